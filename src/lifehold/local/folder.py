"""A folder of bids, of which the lowest ticket has the lock: lockfolder's, with an election.

Promise: at most one holder, among ours and real lockfolder processes; among ours the lock goes
round in the order of asking, and one of those who ask gets it: nobody withdraws for another. Rule:
Lamport's bakery. A bid is there *before* its ticket is chosen, and the others are looked at *after*
it was; so of two that do not see each other's ticket each sees the other's bid, and waits.

Acquire   1 Publish a bid under a new name, its ticket 0: being chosen.
          2 List; ticket = the highest there + 1, not behind the clock; write it into the bid.
          3 List. Each other bid: gone, go on. Of a dead process: remove it. Held, of lockfolder,
            being chosen, or with a lower (ticket, name): wait until it changes, and 3.
          4 None in the way: write "held" into the bid.
Release   Remove the bid, by its name. Who waits stays in line; who gives up removes its bid.

Lockfolder posts, looks again, and withdraws when it sees a bid of ours: it never enters beside one.
L2, L3  folder.py: which bids are dead, and that a removal names one.
L4  token_file.py, in a file beside the folder. The ticket is not the token: the folder may go.
L6  A bid without a handle withdraws itself.
"""

from __future__ import annotations

import errno
import os

from ..core import events
from ..core.deadline import NEVER, RETRY
from ..core.errors import InvalidArgument, SystemRefused, UnsafeGround
from ..core.fence import next_token
from ..core.grant import Grant, Held, is_grant_of
from ..core.owner import ALIVE, DEAD, INITIAL_PID_NAMESPACE, UNKNOWN, LifeVerdict, Owner
from ..core.value import replace, value
from ..runtime import fork, process
from ..runtime.blocking import BLOCKING
from ..runtime.process import began_at, here
from . import clean_up, record_folders
from . import record as form
from .files import CREATE, LOCK_SH, READ_ONLY, READ_WRITE
from .judge import UNREAD, Judgement, LivenessJudge
from .record import (
    CURRENT,
    FROM_NEWER,
    HELD,
    MAGIC,
    OLDER,
    READ_SIZE,
    WAITING,
    ParsedRecord,
    WrittenRecord,
)
from .record_folders import is_bid, is_entry, refuse_other_kind, sweep_numbered
from .record_handle import BorrowedRecord, RecordFile, look, opened_as
from .record_lock import RecordLock
from .refusals import is_number, make_folders, mixed_kinds, refused
from .token_file import draw

TYPE_CHECKING = False
if TYPE_CHECKING:
    import json
    from collections.abc import Callable

    from ..core.acquire import Ask
    from ..core.grant import Holder
    from .files import Files
    from .handles import Descriptors
else:
    json = fork.later("json", globals())


# ------------------------------------------------------------------------------------------------
# The bids in a folder and what is known of those who made them. What `folder` stands on.
#
# L2  A bid of ours is dead when its witness is free; of lockfolder, see folder.py. An empty one is
#     dead when nobody has it open and it is empty still: else its writer could go on, and enter.
# L3  A removal names a bid, and a name is used once.


def first_at(path: str) -> Judgement | None:
    """Who has the lock of a folder of bids, or comes first. Raises OSError."""
    rivals = FolderLock(path, BLOCKING)
    rivals.ready()
    first = rivals._first()
    return first and first[1]


def pid_here(seen: FoundBid) -> int | None:
    """The process to be waited for, where its number means the same here."""
    owner = seen.marker.owner
    if owner is not None:
        return owner.pid if owner.pid_ns == process.namespace("pid") else None
    return seen.pid


SHORT = 0.0002  # seconds between two of them
CHOOSING = 0


class FolderLock(RecordLock):
    """The mechanism of one folder of bids. Made once per Lock object."""

    kind = "folder"
    evidence = LivenessJudge("folder")
    noun = "bid"
    _aside: tuple[str, ...] = ()  # the temporary names that the last listing showed
    leased = False
    safety = 2.0  # seconds between two looks of a waiter, at most: whatever events come
    looks = 40  # at bids whose ticket is being chosen, before a try without patience gives up

    def _refuse_far(self) -> None:
        self.ready()
        if self.place.shared:
            raise UnsafeGround(
                f"{self.path!r} lies on {self.place.words}: whoever lists a folder there may be "
                "shown an old listing, and would not see a bid. Use kind='directory' with ttl=30",
                name=self.path,
            )

    def _more(self) -> str:
        return members()

    # ---- one try

    def attempt(self) -> Grant | Held:
        """One try that does not wait: no bid is posted where somebody stands before it."""
        try:
            if not self._sound:
                self._refuse_far()
                self._sound = True
            if self._anybody():
                return Held("", self.key)
            bid = self._bid()
            try:
                answer = self._try(bid)
                for _ in range(self.looks):
                    if isinstance(answer, Grant) or not bid.choosing:
                        break
                    self.files.pause(SHORT)
                    answer = self._try(bid)
            except BaseException:
                bid.close()
                raise
            if not isinstance(answer, Grant):
                bid.close()
            return answer
        except SystemRefused:
            raise
        except OSError as error:
            raise refused(self.path, error) from error

    async def wait(self, ask: Ask, until: float) -> Grant | Held:
        """Stand in line: the bid stays posted in `ask.slot`. Then one look."""
        bid = ask.slot
        try:
            if isinstance(bid, Bid) and bid.here and self._gone(bid) is None:
                await self._sleep(ask, bid, until)
            else:
                _leave(ask)
                bid = ask.slot = self._bid()
            answer = self._try(bid)
        except BaseException as error:
            ask.slot = None
            if isinstance(bid, Bid):
                bid.close()  # at once: the exception keeps this frame, and with it the bid
            if isinstance(error, OSError) and not isinstance(error, SystemRefused):
                raise refused(self.path, error) from error
            raise
        if isinstance(answer, Grant):
            ask.slot = None
        return answer

    async def _sleep(self, ask: Ask, bid: Bid, until: float) -> None:
        """Until who comes right before us has gone, or something else is to be looked at."""
        if bid.ahead is not None and bid.ahead[0] != bid.nearest:
            _leave(ask)
            bid.ahead = None
        if bid.nearest:
            await self._stand(ask, bid, until)
            return
        # The event of a crash may come while the kernel still keeps the witness.
        blindly = bid.unsure or bid.pid is None
        limit = min(until, self.runtime.now() + RETRY) if blindly else until
        await self.runtime.changed(ask, bid.at, limit, pid=bid.pid)

    async def _stand(self, ask: Ask, bid: Bid, until: float) -> None:
        """In the kernel's queue for the witness of who comes before us: his end wakes us alone.

        Shared, so that it keeps nobody from judging. That his bid was taken away by order while he
        lives is told by nothing: it is looked at now and then.
        """
        if bid.ahead is None:
            _leave(ask)
            found = look(self.table, f"{self.path}/{bid.nearest}", write=False)
            if found is None:
                return
            bid.ahead = bid.nearest, found
        found = bid.ahead[1]
        if self.safety < NEVER:
            until = min(until, self.runtime.now() + self.safety)
        if await self.runtime.block(ask, found, LOCK_SH, until):
            bid.ahead = None
            found.close()

    # ---- the bakery

    def _bid(self) -> Bid:
        """1 and 2. A bid with its ticket."""
        bid = self._blank()
        name = bid.name
        bid.let_go = self._withdraw  # L6  under either name
        try:
            if self._exactly:
                self.files.fchmod(bid.fd, self.mode)
            bid.witness = self._bear_witness(bid)
            bid.stamp_ns = now = self.files.clock_ns()
            bid.sheet = WrittenRecord(
                self._words(bid.witness),
                bid.ino,
                CHOOSING,
                now // 1000,
                mark=nonce_in(name),
            )
            bid.write(bid.sheet.now(WAITING), sync=False)
            self.files.rename(f"{self.path}/{aside_of(name)}", f"{self.path}/{name}")
            highest = self._highest(bid)
            ticket = next_token(highest, self._last, now // 1000)
            bid.write(bid.sheet.renumbered(ticket, now // 1000), sync=False)
        except BaseException:
            bid.close()
            raise
        return bid

    def _blank(self) -> Bid:
        """A file that nobody has seen, under a temporary name in the folder.

        Not one without a name (O_TMPFILE): what is written into such a file, and its close by a
        crash, is told to nobody who watches for the name that it gets later.
        """
        name = new_name()
        aside = aside_of(name)
        flags, at = READ_WRITE | CREATE, f"{self.path}/{aside}"
        try:
            bid = opened_as(Bid, self.table, at, flags, self.mode)
        except FileNotFoundError:
            if self._exactly:
                make_folders(self.files, self.path)
                record_folders.begin(self.files, self.path, self.mode)
            else:
                make_folders(self.files, f"{self.path}/{aside}")
            bid = opened_as(Bid, self.table, at, flags, self.mode)
        bid.name = name
        return bid

    def _try(self, bid: Bid) -> Grant | Held:
        """3 and 4. A look at all others."""
        if (lost := self._gone(bid)) is not None:
            return Held(lost.reason, self.key)
        if self._stays(bid):
            return Held("", self.key)
        nearest = self._contest(bid)
        if nearest is None:
            return self._enter(bid)
        seen, verdict = nearest
        bid.choosing, bid.unsure = seen.ticket == CHOOSING, verdict.state != ALIVE
        witnessed = bid.witness and seen.marker.witness and not (bid.choosing or bid.unsure)
        bid.nearest = seen.name if witnessed else ""
        bid.at, bid.pid = f"{self.path}/{seen.name}", pid_here(seen)
        return Held("" if verdict.state == ALIVE else verdict.evidence, self.key)

    def _enter(self, bid: Bid) -> Grant | Held:
        """4. A bid that is held stands before all others, so from here on its number may grow."""
        bid.stamp_ns, ticket = self.files.clock_ns(), bid.sheet.number
        now = bid.stamp_ns // 1000
        bid.sheet.renumbered(ticket, now)
        bid.write(bid.sheet.now(HELD), sync=False)
        drawn = draw(self.files, self.path, self._last, ticket, self.mode, self._exactly)
        if isinstance(drawn, int) and drawn != ticket:
            bid.write(bid.sheet.renumbered(drawn, now), sync=False)
        if self._aside:
            sweep_numbered(self.files, self.path, self._aside, bid.fd)
        answer = self._granted(bid)
        if isinstance(answer, Grant) and not isinstance(drawn, int):
            return replace(answer, token=None, token_reason=drawn)
        return answer

    # ---- the end of a grant

    def _withdraw(self, ours: RecordFile) -> None:
        assert isinstance(ours, Bid)
        if not remove(self.files, self.path, ours.name):
            remove(self.files, self.path, aside_of(ours.name))

    def _give_back(self, ours: RecordFile) -> None:
        assert isinstance(ours, Bid)
        remove(self.files, self.path, ours.name)

    # --------------------------------------------------------------------------------------------
    # What is asked of the folder at `path`.

    @property
    def watched(self) -> tuple[str, Callable[[], bool]]:
        """The path whose change may mean a loss, and whether another machine may change it."""
        return self.at, self.far

    @property
    def at(self) -> str:
        return f"{self.path}/"

    def _names(self, mine: str = "") -> list[str]:
        """All bids but one, listed now."""
        names, self._aside = listed(self.files, self.path) or ((), ())
        return [name for name in names if name != mine]

    def _read(self, name: str, fd: int) -> FoundBid:
        if fd < 0:
            return unseen(name)
        try:
            return read(self.files, fd, name)
        except OSError as error:
            if error.errno not in (errno.EISDIR, errno.ESPIPE):  # a folder, a FIFO
                raise
            return unseen(name)

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

    def _seen(self, name: str) -> FoundBid | None:
        """A bid as it is now; None when it is gone."""
        fd = opened(self.files, self.path, name)
        if fd is None:
            return None
        try:
            seen = self._read(name, fd)  # a variable: the explorer sees no value under way
        finally:
            self._close(fd)
        return seen

    def _contest(self, bid: Bid) -> tuple[FoundBid, LifeVerdict] | None:
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
            remove(self.files, self.path, case[0].name)
        return None

    def _place_of(self, seen: FoundBid, bid: Bid) -> int | None:
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
                remove(self.files, self.path, name)
        return False

    def _stays(self, bid: Bid) -> bool:
        """Whether who came right before us is there and lives: its place cannot have changed."""
        fd = opened(self.files, self.path, bid.nearest) if bid.nearest else None
        if fd is None or fd < 0:
            return False
        try:
            held = BorrowedRecord(self.files, fd).has_witness()
        finally:
            self.files.close(fd)
        return held is True

    def _case(self, name: str) -> tuple[FoundBid, LifeVerdict] | None:
        """A bid, and whether its writer lives. None: it is gone."""
        fd = opened(self.files, self.path, name)
        if fd is None:
            return None
        try:
            seen = self._read(name, fd)
            verdict = self._life(seen, fd)
        finally:
            self._close(fd)
        return seen, verdict

    def _life(self, seen: FoundBid, fd: int) -> LifeVerdict:
        """Whether the writer of a bid lives."""
        marker = seen.marker
        if fd < 0:
            return LifeVerdict(
                UNKNOWN, "a bid of another user, which may not be read: use shared=True"
            )
        if marker.state == FROM_NEWER:
            return LifeVerdict(ALIVE, UNREAD[FROM_NEWER])
        if marker.state == CURRENT:
            return self.evidence.verdict(marker, BorrowedRecord(self.files, fd), self.place)
        if is_ours(marker):  # torn: it is just being written, or its writer died in it
            held = BorrowedRecord(self.files, fd).has_witness()
            if held is None:
                return LifeVerdict(UNKNOWN, UNREAD[marker.state])
            return LifeVerdict(
                ALIVE if held else DEAD, "kernel witness" if held else "torn, and free"
            )
        if seen.is_empty and not self.files.is_open_elsewhere(fd):
            # Its writer may have come to its end before that.
            again = self.files.pread(fd, READ_SIZE, 0).strip(b"\0")
            return LifeVerdict(UNKNOWN, EMPTY) if again else LifeVerdict(DEAD, "empty, nobody's")
        return self.foreign(seen, fd)

    def foreign(self, seen: FoundBid, fd: int) -> LifeVerdict:
        """Of a bid of lockfolder. The explorer puts its oracle here."""
        return verdict_of_foreign(seen, self.files.fstat(fd).st_mtime)

    def _look(self) -> Judgement | None:
        first = self._first()
        return first and first[1]

    def _first(self) -> tuple[str, Judgement] | None:
        """Whose bid is held, or else first in line; a dead one only where no other is.

        Of several that look held the living one: another cannot be read, or cannot be judged.
        """
        found, names = [], self._names()
        for name in names:
            case = self._case(name)
            if case is not None:
                bid, verdict = case
                waits = bid.marker.state == CURRENT and bid.marker.stage == WAITING
                doubt = (ALIVE, UNKNOWN, DEAD).index(verdict.state) if not waits else 0
                place = verdict.state == DEAD, waits, doubt, bid.ticket or 0, name
                found.append((place, bid, verdict))
        if not found:
            return None
        (_, waits, _, _, name), bid, verdict = min(found, key=lambda each: each[0])
        return name, self._told(bid, verdict, waits=waits)

    def _told(self, bid: FoundBid, verdict: LifeVerdict, *, waits: bool) -> Judgement:
        """A bid as it is shown."""
        evidence = f"first in line; {verdict.evidence}" if waits else verdict.evidence
        marker = bid.marker
        if bid.pid is not None:
            marker = replace(marker, state=OLDER, kind=self.kind, owner=Owner(bid.pid))
        lock = self.evidence.lock(self.path, marker, self.place)
        return Judgement(verdict.state, evidence, marker, bid.name, lock)

    def break_(self, reason: str, whom: Holder | None = None) -> Holder | None:
        """Take the lock from whoever holds it, by order. Who it was; None when it was free.

        A process of lockfolder is not told: it does not look for its bid. `whom`: the one that is
        meant; None when it is another's by now.
        """
        clean_up.refuse_no_reason(reason)
        try:
            self.ready()
            first = self._first()
            if first is None:
                return None
            name, found = first
            holder = found.holder()
            if not is_grant_of(holder, whom):
                return None
            clean_up.note(self, holder, reason, self.mode)
            remove(self.files, self.path, name)
        except OSError as error:
            raise refused(self.path, error) from error
        events.tell(events.Broken(self.path, holder, reason))
        return holder


def _leave(ask: Ask) -> None:
    """Give up the place in a queue. L6  What came first is let go of: it was a look, no lock."""
    place = ask.place
    if place is not None:
        if place.leave():
            place.undo()
        ask.place = None


# ------------------------------------------------------------------------------------------------
# A folder of bids, as lockfolder lays it out: their names, their text, who wrote them.
#
# A bid is `<GUID>.json`, a JSON object with `PID` and `CREATED`, the second at which that process
# began. Ours is a record of lifehold with these two members in it, so that lockfolder reads it too,
# and its token is the ticket: its place in the line, 0 while it is being chosen.
# Promise: a bid of ours is whole from the instant at which it has its name, which is used once.
# L2  A bid of lockfolder has a bare process number: its process is gone when no process has it, or
#     when the one that has it began after the bid was written. Only where all processes are seen.


EMPTY = "an empty bid: its writer was stopped, or died, in the middle"
UNREADABLE = (
    "it has the name of a bid and cannot be read as one: remove it, if nobody is just writing it"
)
END, ASIDE = ".json", ".lifehold-"


class Bid(RecordFile):
    """An open bid of ours. `at`, `pid`: what its waiter waits for.

    `nearest`: whose bid that is, when its witness tells of its end; `ahead`: that name and the bid,
    open, while we stand in the kernel's queue for its witness; `before`, `behind`: bids whose
    ticket, which does not change, is earlier or later; `choosing`, `unsure`: whether the one we
    wait for is being chosen, or cannot be judged.
    """

    __slots__ = ("ahead", "at", "before", "behind", "choosing", "nearest", "pid", "unsure")

    def __init__(
        self, table: Descriptors, call: Callable[[], tuple[int, bool]], opened: object = None
    ) -> None:
        self.at = self.nearest = ""
        self.pid: int | None = None
        self.ahead: tuple[str, RecordFile] | None = None
        self.before: dict[str, int] = {}
        self.behind: frozenset[str] = frozenset()
        self.choosing = self.unsure = False
        super().__init__(table, call, opened)


@value
class FoundBid:
    """A bid as found. `ticket`: None of one that has none, 0 while it is being chosen."""

    name: str
    marker: ParsedRecord
    ticket: int | None = None
    pid: int | None = None
    created: int | None = None

    @property
    def is_empty(self) -> bool:
        """Nothing is in it, or what a power failure leaves of a text that was not on the disk."""
        return not self.marker.content.strip(b"\0")

    @property
    def place(self) -> int:
        """Its place in line, which does not change; 0 of one that has none yet, or no more."""
        waits = self.marker.state == CURRENT and self.marker.stage == WAITING
        return self.ticket or 0 if waits else 0

    def stands_before(self, mine: tuple[int, str]) -> bool:
        """Whether who wrote it, if it lives, has the lock or comes first."""
        if self.marker.state != CURRENT or self.marker.stage != WAITING:
            return True
        return not self.ticket or (self.ticket, self.name) < mine


def new_name() -> str:
    """The name of a bid: a random GUID of version 4."""
    digits = bytearray(os.urandom(16))
    digits[6] = digits[6] & 0x0F | 0x40
    digits[8] = digits[8] & 0x3F | 0x80
    text = digits.hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:])) + END


def aside_of(name: str) -> str:
    """The name of a bid before it is published: lockfolder reads whatever ends in .json."""
    return ASIDE + name.removesuffix(END)


def nonce_in(name: str) -> str:
    """The random digits of a name."""
    return name.removesuffix(END).replace("-", "")


def listed(files: Files, path: str) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """(the bids in a folder, the temporary names); None when there is no folder.

    What has another name is nobody's bid and left alone. Raises InvalidArgument for what is no
    folder, UnsafeGround for one of another kind.
    """
    try:
        names = files.listdir(path)
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        refuse_other_kind(files, path, "folder")
        raise InvalidArgument(
            f"{path!r} is a file, as kinds 'kernel', 'soft' and 'link' make one; kind 'folder' "
            "needs a folder of its own there, and the two do not exclude each other: use one kind "
            "everywhere, or another path",
            name=path,
        ) from None
    for name in names:
        if is_entry(name) or is_number(name):
            other = "directory" if is_entry(name) else "generation"
            raise UnsafeGround(mixed_kinds(path, "folder", other), name=path)
    left = tuple(name for name in names if name.startswith(ASIDE))
    return tuple(sorted(filter(is_bid, names))), left


def read(files: Files, fd: int, name: str) -> FoundBid:
    """A bid, whoever wrote it."""
    marker = form.read(files.pread(fd, READ_SIZE, 0))
    if marker.state == CURRENT:
        return FoundBid(name, marker, marker.token or 0)
    if is_ours(marker):
        return FoundBid(name, marker)
    try:
        found = json.loads(marker.content)
        pid, created = found["PID"], found["CREATED"]
        whole = type(pid) is int and type(created) is int
        if whole and 0 < pid < 1 << 31 and 0 <= created < 1 << 40:
            return FoundBid(name, marker, pid=pid, created=created)
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    return FoundBid(name, marker)


def is_ours(marker: ParsedRecord) -> bool:
    """Whether a lifehold wrote it, be it torn or of a version that this one does not know."""
    return marker.content.startswith(MAGIC)


def members() -> str:
    """What lockfolder looks for in a bid: this process, and when it began."""
    owner = here()
    began = None if owner.start_ticks is None else began_at(owner.start_ticks)
    return f',"PID":{owner.pid},"CREATED":{int(began or 0)}'


def verdict_of_foreign(seen: FoundBid, written_at: float) -> LifeVerdict:
    """Whether the writer of a bid of lockfolder lives. `written_at`: the file's mtime."""
    if seen.is_empty:
        return LifeVerdict(UNKNOWN, EMPTY)
    if seen.pid is None or seen.created is None:
        return LifeVerdict(UNKNOWN, f"{seen.name}: {UNREADABLE}")
    ground = process.ground(True, None)
    if ground.here.pid_ns != INITIAL_PID_NAMESPACE or not ground.sees_all:
        return LifeVerdict(
            UNKNOWN, f"a bare process number {seen.pid}, and not all processes are visible here"
        )
    now = process.look(seen.pid)
    if not now.exists or now.is_zombie or now.is_thread:
        return LifeVerdict(DEAD, f"no process {seen.pid} any more")
    began = None if now.start_ticks is None else began_at(now.start_ticks)
    if began is None:
        return LifeVerdict(UNKNOWN, f"some process has the number {seen.pid}")
    if abs(began - seen.created) <= 1:
        return LifeVerdict(ALIVE, f"process {seen.pid} runs, same start time")
    if began > max(seen.created, written_at) + 1:  # not so after the clock was set back
        return LifeVerdict(DEAD, f"{seen.pid} was given to another process, after the bid was made")
    return LifeVerdict(UNKNOWN, f"process {seen.pid} runs, and the clock was set since it began")


def opened(files: Files, path: str, name: str) -> int | None:
    """A descriptor of a bid; None when it is gone, -1 when it may not be read."""
    try:
        fd: int = files.open(f"{path}/{name}", READ_ONLY)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in (errno.EACCES, errno.ELOOP, errno.EISDIR, errno.ENXIO):
            return -1
        raise
    return fd


def unseen(name: str) -> FoundBid:
    """A bid that may not be read."""
    return FoundBid(name, ParsedRecord(form.UNREADABLE, form.UNSEEN))


def remove(files: Files, path: str, name: str) -> bool:
    """Remove a bid by its name, which no other grant has. False: it was gone."""
    try:
        files.unlink(f"{path}/{name}")
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise
        return False
    return True
