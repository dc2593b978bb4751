"""One cell of the fault table: a fault met by a kind of lock, and what came of it.

Two judges that know nothing of locks say what came of it: the canary's section (a second one
inside), and the data behind it (tokens that do not grow, a late write accepted). A fault is a
function `play(scene)`; it fills `scene.cell`. `wrong` is empty when the cell is as promised.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from faults import vault
from faults.party import Gone, Party
from faults.rows import Row
from soak import canary

ALL: dict[str, Fault] = {}
SLOW = "recovered only after"
WEDGED = 12.0  # seconds beyond what is promised after which nobody will ever get it
BUSY = 0.15  # seconds by which a machine may be late three times in a row, for each task per CPU


@dataclass
class Cell:
    """`recover`: seconds, None when nobody had to take the lock over; `bound`: those promised.
    `told`, `refused`: "yes", "no", or "-" when there was nobody to tell, nothing to refuse.
    """

    fault: str
    row: str
    double: int = 0
    wedged: int = 0
    recover: float | None = None
    bound: float | None = None
    told: str = "-"
    refused: str = "-"
    note: str = ""
    complaints: list[str] = field(default_factory=list)
    slack: float = 0.0

    @property
    def wrong(self) -> list[str]:
        """What is not as promised."""
        found = list(self.complaints)
        found += [f"{self.double} double holders"] * bool(self.double)
        found += ["wedged"] * bool(self.wedged)
        found += ["the old holder was not told"] * (self.told == "no")
        found += ["its token was accepted"] * (self.refused == "no")
        late = self.recover is not None and self.bound is not None
        if late and self.recover > self.bound + self.slack:
            found.append(f"{SLOW} {self.recover:.3f} s, promised {self.bound:g} s")
        return found


@dataclass(frozen=True)
class Fault:
    """A line of the table. `unless`: why it cannot happen to a kind, "" for one to which it can;
    `needs`: its ground; `ci`: played in every run of the tests, not only in the long ones.
    """

    name: str
    play: Callable[[Scene], None]
    unless: Callable[[Row], str]
    needs: tuple[str, ...]
    ci: Callable[[Row], bool]
    group: str


def fault(name, *needs, unless=lambda row: "", ci=lambda row: True):
    """Make a function `play(scene)` a line of the table."""

    def made(play):
        group = (play.__module__ or "").rpartition(".")[2]
        assert name not in ALL, name
        ALL[name] = Fault(name, play, unless, needs, ci, group)
        return play

    return made


class Scene:
    """The folder of a lock, the yard of the judges, and those who play."""

    def __init__(
        self, cell: Cell, row: Row, base: Path, *, whole: bool = False, where: Path | None = None
    ) -> None:
        self.cell, self.row, self.base, self.whole = cell, row, base, whole
        self.yard = base / "yard"
        self.yard.mkdir(exist_ok=True)
        self.yard.chmod(0o777)
        for name in ("entries", "overlaps", "vault"):  # of all users, whatever their umask
            (self.yard / name).touch()
            (self.yard / name).chmod(0o666)
        self.folder = where or base / "locks"
        self.folder.mkdir(exist_ok=True)
        self.path = self.folder / "lock"
        self._number, self.clock_set_back = 0, False
        self._open: list[Party] = []

    @property
    def everybody(self):
        return list(self._open)

    def move(self, folder):
        """The lock lies there from now on."""
        self.folder, self.path = folder, folder / "lock"

    def party(self, *under, path=None, env=None, make=None, script="actor"):
        """Somebody who uses the lock; not yet ready."""
        self._number += 1
        found = Party(
            self.yard, f"p{self._number}", path or self.path, make or self.row.make, under, env,
            script,
        )  # fmt: skip
        self._open.append(found)
        return found

    def ready(self, *under, **options):
        return self.party(*under, **options).ready()

    def close(self) -> None:
        for party in self._open:
            party.__exit__()
        self.cell.double += len(canary.overlaps(self.yard))
        tokens = [
            token
            for token, name in canary.entries(self.yard)
            if token is not None and not (self.row.reads and name == "p1")
        ]
        if (stale := canary.not_growing(tokens)) and not self.clock_set_back:
            self.cell.complaints.append(f"{stale} tokens did not grow")

    # ---- what happens in most faults

    def holds(self, party, wait="60"):
        """It gets the lock, and is alone."""
        answer = party.ask("acquire", wait)
        if "got" not in answer:
            raise Gone(f"{party.name} could not acquire: {answer['text']}")
        if not answer["written"] and not self.clock_set_back:
            self.cell.complaints.append("the data refused the token of the holder")
        return answer["got"]

    def is_refused(self, party):
        """While another holds it, a try is refused, and in our own words."""
        answer = party.ask("acquire", "0")
        if "got" in answer:
            self.cell.double += 1
            party.ask("leave")
        elif "NotAcquired" not in answer["kinds"]:
            self.cell.complaints.append(f"the refusal was {answer['error']}: {answer['text']}")

    def is_robbed_never(self, party, seconds):
        """Not after so long either."""
        answer = party.ask("acquire", str(seconds))
        if "got" in answer:
            self.cell.double += 1

    def recovers(self, party, since, bound, *, asked=False, after=""):
        """The next one gets the lock soon after `since`; its token. `after`: what was done."""
        self.cell.bound = bound
        if not asked:
            party.tell("acquire", "None")
        try:
            answer = party.answer(within=bound * 2 + WEDGED)
        except Gone:
            self.cell.wedged += 1
            raise
        took = max(0.0, party.at - since)
        self.cell.recover = took if self.cell.recover is None else max(took, self.cell.recover)
        if took > bound and after:
            self.cell.note = f"slow after {after}"
        if "got" not in answer:
            self.cell.wedged += 1
            where = f"{answer['text']} ({answer['where']})"
            self.cell.complaints.append(f"the next one met {answer['error']}: {where}")
            return None
        if not answer["written"] and not self.clock_set_back:
            self.cell.complaints.append("the data refused the next one's token")
        return answer["got"]

    def is_told(self, party):
        """An old holder asks whether it still holds, and writes all the same."""
        answer = party.ask("check")
        self.cell.told = "yes" if "LeaseLost" in answer.get("kinds", ()) else "no"
        if self.cell.told == "no":
            self.cell.complaints.append(f"its check answered {answer}")
        self.cell.refused = "no" if party.ask("write")["written"] else "yes"
        answer = party.ask("leave")
        if "released" in answer:
            self.cell.complaints.append("its release of what it had lost was silent")

    def is_denied(self, party, *words):
        """A try meets one error of ours, with a remedy, within a moment."""
        answer = party.ask("acquire", "0")
        if "got" in answer:
            self.cell.complaints.append("it was let in")
        elif not answer["ours"] or not any(word in answer["text"] for word in words):
            self.cell.complaints.append(f"it met {answer['error']}: {answer['text']}")

    def goes_on(self, party):
        """A holder that has lost nothing is told nothing, and lets go well."""
        answer = party.ask("check")
        if "held" not in answer:
            self.cell.complaints.append(f"a holder was told {answer['error']}: {answer['text']}")
        answer = party.ask("leave")
        if "released" not in answer:
            self.cell.complaints.append(f"a release met {answer['error']}: {answer['text']}")

    def is_free(self, bound=30.0):
        """A fresh process gets it and lets go."""
        party = self.ready()
        answer = party.ask("acquire", str(bound))
        if "got" not in answer:
            self.cell.wedged += 1
            self.cell.complaints.append(f"afterwards: {answer['error']}: {answer['text']}")
        else:
            self.goes_on(party)


def play(fault: Fault, row: Row, *, whole: bool = False, patient: bool = True) -> Cell:
    """The cell; again, up to twice, when all that was wrong with it was a slow machine.

    `whole`: every point of those faults that have many.
    """
    busy = min(1.0, BUSY * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)))
    for slack in (0.0, 0.0, busy) if patient else (0.0,):
        with tempfile.TemporaryDirectory(prefix="fault-") as folder:
            Path(folder).chmod(0o755)
            cell = Cell(fault.name, row.name, slack=slack)
            scene = Scene(cell, row, Path(folder), whole=whole)
            try:
                try:
                    fault.play(scene)
                finally:
                    scene.close()
            except Gone as gone:
                cell.complaints.append(str(gone))
            shutil.rmtree(scene.folder, ignore_errors=True)
        if not cell.wrong or any(not text.startswith(SLOW) for text in cell.wrong):
            break
    return cell


def greatest(scene: Scene) -> int:
    """The greatest token that the data has accepted."""
    return max((token for token, _ in vault.accepted(str(scene.yard))), default=0)
