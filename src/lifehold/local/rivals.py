"""The bids in a folder and what is known of those who made them. What `folder` stands on.

L2  A bid of ours is dead when its witness is free; of lockfolder, see bids.py. An empty one is dead
    when nobody has it open and it is empty still: else its writer could go on, and enter.
L3  A removal names a bid, and a name is used once.
"""

from __future__ import annotations

from ..core import events
from ..core.grant import Lost
from ..core.liveness import ALIVE, DEAD, UNKNOWN, Verdict
from ..core.owner import Owner
from ..core.value import replace
from ..runtime import process
from ..runtime.blocking import BLOCKING
from . import bids, residue
from .bids import Bid
from .evidence import UNREAD, Evidence, Judged
from .marker import NEWER, OLDER, OURS, SIZE, WAITING
from .present import Present
from .refusals import refused
from .seen import Seen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..core.grant import Holder
    from .bids import Found
    from .stake import Stake


class Rivals(Present):
    """What is asked of the folder at `path`."""

    kind = "folder"
    evidence = Evidence("folder")
    _aside: tuple[str, ...] = ()  # the temporary names that the last listing showed

    @property
    def watched(self) -> tuple[str, Callable[[], bool]]:
        """What tells of a loss when it changes, and whether events of that do not reach us."""
        return f"{self.path}/", self.far

    # ---- the others

    def _names(self, mine: str = "") -> list[str]:
        """All bids but one, listed now."""
        names, self._aside = bids.listed(self.files, self.path) or ((), ())
        return [name for name in names if name != mine]

    def _read(self, name: str, fd: int) -> Found:
        if fd < 0:
            return bids.unseen(name)
        try:
            return bids.read(self.files, fd, name)
        except IsADirectoryError:
            return bids.unseen(name)

    def _close(self, fd: int) -> None:
        if fd >= 0:
            self.files.close(fd)

    def _highest(self, bid: Bid) -> int:
        """The highest ticket of all others; 0 for none. Notes who stands before us by that."""
        highest, names = 0, self._names(bid.name)
        for name in names:
            seen = self._seen(name)
            if seen is not None:
                highest = max(highest, seen.ticket or 0)
                if seen.place:
                    bid.before[name] = seen.place
        return highest

    def _seen(self, name: str) -> Found | None:
        """A bid as it is now; None when it is gone."""
        fd = bids.opened(self.files, self.path, name)
        if fd is None:
            return None
        try:
            seen = self._read(name, fd)  # a variable: the explorer sees no value under way
        finally:
            self._close(fd)
        return seen

    def _nearest(self, bid: Bid) -> tuple[Found, Verdict] | None:
        """Who comes right before us, with what is known of him. The dead go (L2).

        The others before us need no look until he has gone: all are looked at before we enter.
        """
        ahead, names = [], self._names(bid.name)
        for name in names:
            place = bid.before.get(name)
            if place is None and name not in bid.behind:
                seen = self._seen(name)
                place = None if seen is None else self._place_of(seen, bid)
            if place is not None:
                ahead.append((place, name))
        ahead.sort()
        while ahead:
            case = self._case(ahead.pop()[1])  # read again: what was being chosen may be by now
            if case is None or self._place_of(case[0], bid) is None:
                continue
            if case[1].state != DEAD:
                return case
            bids.remove(self.files, self.path, case[0].name)
        return None

    def _place_of(self, seen: Found, bid: Bid) -> int | None:
        """The place of a bid that stands before ours; None of one that enters after us only."""
        if not seen.stands_before((bid.sheet.number, bid.name)):
            bid.behind |= {seen.name}
            return None
        if seen.place:
            bid.before[seen.name] = seen.place
        return seen.place

    def _anybody(self) -> bool:
        """Whether there is any bid of somebody who is not proven dead."""
        names = self._names()
        for name in names:
            case = self._case(name)
            if case is not None and case[1].state != DEAD:
                return True
            if case is not None:
                bids.remove(self.files, self.path, name)
        return False

    def _stays(self, bid: Bid) -> bool:
        """Whether who came right before us is there and lives: its place cannot have changed."""
        fd = bids.opened(self.files, self.path, bid.last) if bid.last else None
        if fd is None or fd < 0:
            return False
        try:
            held = Seen(self.files, fd).has_witness()
        finally:
            self.files.close(fd)
        return held is True

    def _case(self, name: str) -> tuple[Found, Verdict] | None:
        """A bid, and whether its writer lives. None: it is gone."""
        fd = bids.opened(self.files, self.path, name)
        if fd is None:
            return None
        try:
            seen = self._read(name, fd)
            verdict = self._life(seen, fd)
        finally:
            self._close(fd)
        return seen, verdict

    def _life(self, seen: Found, fd: int) -> Verdict:
        """Whether the writer of a bid lives."""
        marker = seen.marker
        if fd < 0:
            return Verdict(UNKNOWN, "a bid of another user, which may not be read: use shared=True")
        if marker.state == NEWER:
            return Verdict(ALIVE, UNREAD[NEWER])
        if marker.state == OURS:
            return self.evidence.verdict(marker, Seen(self.files, fd), self.place)
        if bids.is_ours(marker):  # torn: it is just being written, or its writer died in it
            held = Seen(self.files, fd).has_witness()
            if held is None:
                return Verdict(UNKNOWN, UNREAD[marker.state])
            return Verdict(ALIVE if held else DEAD, "kernel witness" if held else "torn, and free")
        if seen.is_empty and not self.files.is_open_elsewhere(fd):
            # Its writer may have come to its end before that.
            again = self.files.pread(fd, SIZE, 0).strip(b"\0")
            return Verdict(UNKNOWN, bids.EMPTY) if again else Verdict(DEAD, "empty, nobody's")
        return self.foreign(seen, fd)

    def foreign(self, seen: Found, fd: int) -> Verdict:
        """Of a bid of lockfolder. The explorer puts its oracle here."""
        return bids.verdict_of_foreign(seen, self.files.fstat(fd).st_mtime)

    def _gone(self, stake: Stake) -> Lost | None:
        assert isinstance(stake, Bid)
        try:
            found = self.files.lstat(f"{self.path}/{stake.name}")
        except (FileNotFoundError, NotADirectoryError):
            return Lost("its bid was removed: others may be in", gone=True)
        except OSError as error:
            return Lost(f"its folder cannot be looked at any more ({error.strerror})", gone=True)
        if (found.st_dev, found.st_ino) != stake.key:
            return Lost("its bid was replaced by another: others may be in", gone=True)
        return None

    # ---- questions

    def _look(self) -> Judged | None:
        first = self._first()
        return first and first[1]

    def _first(self) -> tuple[str, Judged] | None:
        """Whose bid is held, or else first in line; a dead one only where no other is."""
        found, names = [], self._names()
        for name in names:
            case = self._case(name)
            if case is not None:
                bid, verdict = case
                waits = bid.marker.state == OURS and bid.marker.stage == WAITING
                dead = verdict.state == DEAD
                found.append(((dead, waits, bid.ticket or 0, name), bid, verdict))
        if not found:
            return None
        (_, waits, _, name), bid, verdict = min(found, key=lambda each: each[0])
        return name, self._told(bid, verdict, waits=waits)

    def _told(self, bid: Found, verdict: Verdict, *, waits: bool) -> Judged:
        """A bid as it is shown."""
        evidence = f"first in line; {verdict.evidence}" if waits else verdict.evidence
        marker = bid.marker
        if bid.pid is not None:
            marker = replace(marker, state=OLDER, kind=self.kind, owner=Owner(bid.pid))
        lock = self.evidence.lock(self.path, marker, self.place)
        return Judged(verdict.state, evidence, marker, bid.name, lock)

    def break_(self, reason: str) -> Holder | None:
        """Take the lock from whoever holds it, by order. Who it was; None when it was free.

        A process of lockfolder is not told: it does not look for its bid.
        """
        residue.refuse_no_reason(reason)
        try:
            self.ready()
            first = self._first()
            if first is None:
                return None
            name, found = first
            holder = found.holder()
            mode = 0o666 if self.shared else 0o600 if self.mode is None else self.mode
            residue.note(self, holder, reason, mode)
            bids.remove(self.files, self.path, name)
        except OSError as error:
            raise refused(self.path, error) from error
        events.tell(events.Broken(self.path, holder, reason))
        return holder


def first_at(path: str) -> Judged | None:
    """Who has the lock of a folder of bids, or comes first. Raises OSError."""
    rivals = Rivals(path, BLOCKING)
    rivals.ready()
    first = rivals._first()
    return first and first[1]


def pid_here(seen: Found) -> int | None:
    """The process to be waited for, where its number means the same here."""
    owner = seen.marker.owner
    if owner is not None:
        return owner.pid if owner.pid_ns == process.namespace("pid") else None
    return seen.pid
