"""What every kind of lock must pass, under the blocking face, asyncio and trio alike.

For the author of a kind, in pytest:

    from lifehold.testing.conformance import Subject, cases

    MINE = Subject("mine", lacks={"shared": "it knows only one holder"}, lose=break_by_force)

    @pytest.mark.parametrize("case", cases(MINE), ids=str)
    def test_my_kind_conforms(case, tmp_path):
        if why := case.why_not():
            pytest.skip(why)
        case.run(tmp_path)

or anywhere: `print(report(check(MINE)))`. A kind is made known by `lifehold.registry.offer` or by
an entry point of the group `lifehold.kinds`.

Rule: everything is demanded. What a kind cannot do it declares in `lacks`, with a reason, and the
claims that need it are *named* as not applicable: none is ever left out in silence.
"""

from __future__ import annotations

import gc
import tempfile
import threading
import traceback
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import LifeholdError
from ..runtime import clock
from .claims import ending, exclusion, sharing, waiting
from .faces import FACES, missing
from .stage import CAPABILITIES, CLAIMS, Broken, Claim, Stage, Subject

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["CAPABILITIES", "Broken", "Case", "Result", "Subject", "cases", "check", "report"]

PLAYS, PAUSE = 5, 0.02  # seconds for which a busy machine may let a thread of ours lie
THEMES = (exclusion, waiting, ending, sharing)  # each puts its claims into CLAIMS


@dataclass(frozen=True)
class Case:
    """One claim about one kind under one face."""

    subject: Subject
    face: str
    claim: Claim

    def __str__(self) -> str:
        return f"{self.subject.name or self.subject.kind}-{self.face}-{self.claim.name}"

    def why_not(self) -> str | None:
        """Why the claim cannot be asked of this kind or here; None when it can."""
        for need in self.claim.needs:
            if need in self.subject.lacks:
                why = self.subject.lacks[need]
                return f"not applicable to {self.subject.name or self.subject.kind} ({need}: {why})"
        return missing(self.face)

    def run(self, folder: Path) -> None:
        """Play the claim in an empty folder.

        Raises Broken, or what went wrong, when it does not hold. A claim about lengths of time that
        the machine paused is played again, PLAYS times at most.
        """
        for left in range(PLAYS - 1, -1, -1):
            if not self.claim.timed:
                self._play(folder)
                return
            within = folder / f"play-{left}"
            within.mkdir()
            with pauses() as longest:
                error = self._tried(within)
            if error is None:
                return
            if not left or longest() < PAUSE:
                raise error
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ResourceWarning)
                error = None  # and what its frames hold
                gc.collect()

    def _tried(self, folder: Path) -> Exception | None:
        try:
            self._play(folder)
        except (Broken, LifeholdError) as error:
            return error
        return None

    def _play(self, folder: Path) -> None:
        face = FACES[self.face]()
        stage = Stage(self.subject, face, folder)
        face.run(lambda: self.claim.play(stage))


def cases(
    subject: Subject, faces: Iterable[str] = tuple(FACES), *, lacking: bool = True
) -> list[Case]:
    """Every claim about its shape under every face.

    `lacking=False`: without those that need what the subject says it lacks.
    """
    claims = [each for each in CLAIMS if each.shape == subject.shape]
    if not lacking:
        claims = [each for each in claims if not {*each.needs} & {*subject.lacks}]
    return [Case(subject, face, each) for face in faces for each in claims]


@dataclass(frozen=True)
class Result:
    """What became of a case, a `Case` or a `StoreCase`: "holds", "broken" or "not applicable"."""

    case: object
    verdict: str
    details: str = ""


def check(subject: Subject, faces: Iterable[str] = tuple(FACES)) -> list[Result]:
    """Run all cases of a kind, without any test runner."""
    results = []
    for case in cases(subject, faces):
        if why := case.why_not():
            results.append(Result(case, "not applicable", why))
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                case.run(Path(folder))
                results.append(Result(case, "holds"))
            except Exception:
                results.append(Result(case, "broken", traceback.format_exc()))
    return results


def report(results: list[Result]) -> str:
    """The results as text: what is broken in full, what is not applicable by name, and a count."""
    lines = []
    for result in results:
        if result.verdict != "holds":
            lines.append(f"{result.verdict}: {result.case}\n    {result.details.strip()}")
    counts: dict[str, int] = dict.fromkeys(("holds", "broken", "not applicable"), 0)
    for result in results:
        counts[result.verdict] += 1
    return "\n".join([*lines, ", ".join(f"{n} {verdict}" for verdict, n in counts.items())])


# ------------------------------------------------------------------------------------------------
# How long the machine let us lie: a thread that wants to wake often, and notes how late it did.
#
# Promise: a pause of all threads of this process that lasts longer than some milliseconds is seen.


EVERY = 0.005  # seconds


@contextmanager
def pauses() -> Iterator[Callable[[], float]]:
    """Asked, the longest pause since the block began, in seconds."""
    end = threading.Event()
    longest = [0.0]

    def watch() -> None:
        before = clock.now()
        while not end.wait(EVERY):
            now = clock.now()
            longest[0] = max(longest[0], now - before - EVERY)
            before = now

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield lambda: longest[0]
    finally:
        end.set()
        thread.join()
