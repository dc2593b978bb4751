"""A watch over folders: what is stale, held too long, or skipped again and again is told.

Promise: each thing that is wrong is told once when it begins, once more after `again`, and once
when it has ended; a folder that cannot be read is told as well. Nothing is cleared but by policy,
and then by `clear`, which wants a proof. One round never ends the watch: what fails is counted.
State is kept for what is wrong now alone, so a year takes no more memory than a day.
"""

from __future__ import annotations

import contextlib
import os

from ..core import explain
from ..core.errors import LifeholdError
from ..core.value import value
from ..runtime import clock
from . import clear, history, listing
from .answer import FREE, HELD, STALE, SUSPECT, Answer
from .watch_config import ALERT, CLEAR, IGNORE, Config

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STALE_LOCK, SUSPECT_LOCK, LONG, SKIPPED, SILENT, UNREAD, CLEARED = (
    "stale", "suspect", "held too long", "skipped", "silent", "unread", "cleared",
)  # fmt: skip
BEGUN, STILL, ENDED = "begun", "still", "ended"
FRONT, END = ".", ".history"


@value
class Alert:
    """Something to be told. `what`: which policy; `state`: BEGUN, STILL or ENDED; `since`: UTC."""

    what: str
    state: str
    path: str
    text: str
    since: float
    at: float


@value
class Tally:
    """What the last round saw: locks by state, alerts by policy, how long it took in seconds."""

    locks: dict[str, int]
    wrong: dict[str, int]
    rounds: int
    failures: int
    cleared: int
    took: float
    at: float
    oldest: float


class Watch:
    """The watch. `tell` hears every alert; `scan` and `histories` are asked for what there is."""

    def __init__(
        self, config: Config, tell: Callable[[Alert], object],
        scan: Callable[[str], list[Answer]] | None = None,
        histories: Callable[[str], list[tuple[str, list[history.Entry]]]] | None = None,
    ) -> None:  # fmt: skip
        self.config, self._tell = config, tell
        self._scan = scan or (lambda folder: listing.of_folder(folder, deep=True))
        self._histories = histories or histories_in
        self._wrong: dict[tuple[str, str], tuple[float, float, str]] = {}  # since, told, text
        self.rounds = self.failures = self.cleared = 0
        self.tally = Tally({}, {}, 0, 0, 0, 0.0, 0.0, 0.0)

    def round(self, now: float | None = None) -> Tally:
        """Look at everything once. `now`: UTC seconds, by default the clock's."""
        began = clock.now()
        at = clock.utc_now() if now is None else now
        found: dict[tuple[str, str], str] = {}
        locks: dict[str, int] = dict.fromkeys((HELD, FREE, SUSPECT, STALE), 0)
        oldest = 0.0
        for folder in self.config.folders:
            answers: list[Answer] = []
            runs: list[tuple[str, list[history.Entry]]] = []
            with self._costs_itself(folder, found):
                answers = self._scan(folder)
            with self._costs_itself(folder, found):
                runs = self._histories(folder)
            for answer in answers:
                locks[answer.state] += 1
                with self._costs_itself(answer.path, found):
                    oldest = max(oldest, _age(answer, at))
                    self._judge(answer, at, found)
            for path, entries in runs:
                with self._costs_itself(path, found):
                    self._judge_runs(path, entries, at, found)
        self._report(found, at)
        self.rounds += 1
        wrong: dict[str, int] = {}
        for what, _ in found:
            wrong[what] = wrong.get(what, 0) + 1
        self.tally = Tally(
            locks, wrong, self.rounds, self.failures, self.cleared, clock.now() - began, at, oldest
        )
        return self.tally

    @contextlib.contextmanager
    def _costs_itself(self, path: str, found: dict[tuple[str, str], str]) -> Iterator[None]:
        """L13  One folder, lock or history that fails is told and counted; the round goes on."""
        try:
            yield
        except Exception as error:  # noqa: BLE001
            self.failures += 1
            known = isinstance(error, LifeholdError | OSError)
            found[UNREAD, path] = str(error) if known else repr(error)[:200]

    def _judge(self, answer: Answer, at: float, found: dict[tuple[str, str], str]) -> None:
        config = self.config
        evidence = answer.holder.evidence if answer.holder else answer.note
        by = f"{explain.by(answer.holder)}: {evidence}" if answer.holder else evidence
        if answer.state == STALE and config.stale != IGNORE:
            if config.stale == CLEAR and self._clear(answer, at):
                return
            found[STALE_LOCK, answer.path] = by
        elif answer.state == SUSPECT and config.suspect == ALERT:
            found[SUSPECT_LOCK, answer.path] = by
        elif answer.state == HELD and config.held and _age(answer, at) > config.held:
            found[LONG, answer.path] = f"for more than {explain.span(config.held)}, by {by}"

    def _clear(self, answer: Answer, at: float) -> bool:
        """By policy, on proof. Whether it is gone."""
        try:
            done = clear.clear(answer.path, found=True)
        except Exception:  # noqa: BLE001 - it costs itself alone
            self.failures += 1
            return False
        if done.action in (clear.REMOVED, clear.FREED):
            self.cleared += 1
            self._tell(Alert(CLEARED, ENDED, answer.path, done.why, at, at))
        return done.action in (clear.REMOVED, clear.FREED, clear.NOTHING)

    def _judge_runs(
        self, path: str, entries: list[history.Entry], at: float,
        found: dict[tuple[str, str], str],
    ) -> None:  # fmt: skip
        """By what the history of a lock tells of its runs."""
        for each in entries:
            if each.event == UNREAD:
                found[UNREAD, path] = f"its history cannot be read: {each.reason}"
        runs = [each for each in entries if each.event in (history.HOLD, *MISSED)]
        missed = 0
        for each in reversed(runs):
            if each.event not in MISSED:
                break
            missed += 1
        if self.config.skips and missed >= self.config.skips:
            last = runs[-1]
            who = f", held by {last.holder}" if last.holder else ""
            found[SKIPPED, path] = f"its last {missed} runs did not get it{who}"
        done = max((each.at for each in runs if each.event == history.HOLD), default=None)
        if self.config.silent and done is not None and at - done > self.config.silent:
            found[SILENT, path] = f"it ran last {explain.span(at - done)} ago"

    def _report(self, found: dict[tuple[str, str], str], at: float) -> None:
        """Tell what has begun, what goes on for long, and what has ended."""
        for (what, path), text in found.items():
            since, told, _ = self._wrong.get((what, path), (at, None, ""))
            if told is None or (self.config.again and at - told >= self.config.again):
                state = BEGUN if told is None else STILL
                self._tell(Alert(what, state, path, text, since, at))
                told = at
            self._wrong[what, path] = since, told, text
        for what, path in [key for key in self._wrong if key not in found]:
            since, _, text = self._wrong.pop((what, path))
            self._tell(Alert(what, ENDED, path, text, since, at))


MISSED = (history.SKIP, history.TIMEOUT)


def _age(answer: Answer, at: float) -> float:
    """Seconds for which it is held, 0.0 where that is not known."""
    holder = answer.holder
    if holder is None or answer.state == FREE:
        return 0.0
    since = holder.since if holder.since is not None else holder.began
    return 0.0 if since is None else max(0.0, at - since)


def histories_in(folder: str) -> list[tuple[str, list[history.Entry]]]:
    """The histories in a folder and below it, each by the path of its lock."""
    found = []
    for place, _, names in os.walk(folder):
        for name in names:
            if name.startswith(FRONT) and name.endswith(END) and name != f".{clear.LOG}{END}":
                lock = os.path.join(place, name[len(FRONT) : -len(END)])
                try:
                    found.append((lock, history.read(lock)))
                except OSError as error:
                    entry = history.Entry(UNREAD, lock, 0.0, reason=str(error))
                    found.append((lock, [entry]))
    return found
