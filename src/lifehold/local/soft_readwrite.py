"""A reader/writer lock without kernel queues: a writer's claim, and a marker for each reader.

Promise: at most one writer, and no reader beside it; readers together; who is proven dead is in
nobody's way, a silent one until its lease has run out. Once a writer has claimed, no later reader
gets in; a writer does not claim before readers that waited when it came (soft_readwrite.py), so
neither side starves. Both are records as of the soft lock (local/soft.py), and end as those do.

Reader   1 A writer's claim is there: wait. A dead one: take it over, give it back, look again.
         2 Post a marker under a name that is never used twice.
         3 Look for a claim *again*, afresh: there is one: withdraw the marker, 1. Else it is ours.
Writer   4 Claim: the soft lock of the path.
         5 Look at every marker: the dead are removed, a living one is waited for, with the claim
           kept and renewed. None is left: the lock is ours.

How it could fail: a reader looks, a writer claims and finds no marker, the reader posts and goes
in. So the reader looks again after it has posted (3), and the writer lists after it has claimed
(5): of the two, one sees the other. A marker's name is random and used once, so that a removal of
what was judged hits nothing that came later (L3).

L4  Writers draw the token; readers carry the last one drawn. L7  Each look reaches the markers
through one open folder, so that no link put in its place meanwhile leads elsewhere. L8  A claim
that was kept while its holder waited for readers counts only if its own deadline has not come.
"""

from __future__ import annotations

import errno
import os
from functools import partial

from ..core.deadline import NEVER, RETRY
from ..core.errors import InvalidArgument, SystemRefused, UnsafeGround
from ..core.grant import Grant, Held, Holder, Lost
from ..core.owner import DEAD
from ..core.value import replace
from ..runtime import process
from . import kernel_record
from .files import READ_ONLY, group_bit, hand_back
from .ground import is_far
from .handles import TABLE, Descriptors, table_for
from .judge import SEEN, TOO_SLOW, Judgement, LivenessJudge, WaitHint
from .record_handle import look
from .refusals import JUST_RELEASED, asked_again, make_folders, not_lockable, refused
from .soft import SoftLock
from .token_file import LENGTH, counter_of, stored_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, TypeVar

    from ..core.acquire import Ask
    from ..core.ports import Runtime
    from .record_handle import RecordFile

    T = TypeVar("T")
    Asked = frozenset[str] | None


# ------------------------------------------------------------------------------------------------
# Who waits for a soft reader/writer lock, and whose turn it is.
#
# Promise: no side starves. A writer that waits for readers keeps its claim, which keeps later
# readers out. A reader that waits for a writer posts that it asks, and a writer that comes later
# lets it in first. Rule: this only orders, and whoever excludes looks at nothing of it (L1): so a
# writer is courteous to those alone who asked before it came, and for COURTESY seconds at most
# while nobody has claimed. Who died or sleeps for ever holds nobody up. A writer that tries once
# cannot tell how long it is: it passes over who cannot run, and over what names nobody.
#
# L6  What was posted is withdrawn when its owner waits no more.


READERS_IN = "readers are in"
READERS_FIRST = "readers asked for it before"
COURTESY = 0.5  # seconds for which a writer lets readers go first that could
# path of who asks -> since when it could go in, and did not. For all locks of the process.
FREE_FOR: dict[str, float] = {}
MOST, LATER = 1024, 60.0  # of them at least are kept, and each for so many seconds


class EarlierReaders:
    """What a writer knows that has not claimed yet.

    `before`: the readers who asked before it; `at`: the marker of one that is to go first.
    """

    __slots__ = ("at", "before", "due")

    def __init__(self, before: frozenset[str]) -> None:
        self.before, self.due, self.at = before, NEVER, ""


# ------------------------------------------------------------------------------------------------
# The two records of a soft reader/writer lock: a reader's marker, and a claim that waits.
#
# Rule: a marker's name is random and never used twice, so what is judged under a name is what is
# removed under it (L3). A reader draws no token: it carries that of the last writer (L4).


KIND = "soft-read-write"
SUFFIX = ".readers"  # the folder of their markers, beside the claim
FRONT, ASKS = "r.", "w."  # of a reader's name, of one's who waits; and 128 random bits


def is_marker(name: str, front: str = FRONT) -> bool:
    """Whether an entry of that folder is a reader's record."""
    return name.startswith(front) and len(name) == 34 and not name[2:].strip("0123456789abcdef")


def generation(files: Any, path: str, far: bool = False) -> int | None:
    """The token that the last writer drew; None before the first. `far`: on a file server."""
    try:
        fd = files.open(counter_of(path), READ_ONLY)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.EACCES, errno.ELOOP):
            return None
        raise
    try:
        token = stored_in(files.pread(fd, LENGTH, 0), path)
        if far:
            hand_back(files, fd)  # the next writer writes into it
    except OSError as error:
        if error.errno in (errno.ESPIPE, errno.EISDIR):  # a FIFO, a folder: no counter of ours
            return None
        raise
    finally:
        files.close(fd)
    return token or None


class WaitingRecord:
    """A record that is kept while its owner waits.

    A writer's claim while readers are still in, the marker of a reader that waits for a writer.
    `at`: what is to change, "" for the claim that is there; `due`: when time alone may change it.
    """

    __slots__ = ("at", "due", "grant", "renew_at", "terms")

    def __init__(self, grant: Grant, terms: Any, now: float) -> None:
        self.grant, self.terms, self.at, self.due = grant, terms, "", NEVER
        self.renew_at = NEVER if terms is None else now + terms.heartbeat

    def sure(self, now: float) -> bool:
        """L8  Whether it is still ours for sure."""
        return self.grant.deadline is None or now < self.grant.deadline

    def renewed(self, grant: Grant, now: float) -> None:
        self.grant, self.renew_at = grant, now + self.terms.heartbeat


EVIDENCE = LivenessJudge(KIND)
STRAYS = 100  # how often things may change under our hands before we say so


class SoftReadWrite:
    """One side of the lock at a path: `exclusive=True` for writers, False for readers."""

    safety = 2.0  # seconds between two looks of a waiter, at most: whatever events come
    courtesy = COURTESY
    option = None  # no `lifehold run` takes it
    key: Any
    runtime: Runtime
    table: Descriptors
    terms: Any
    path: str
    folder: str
    exclusive: bool
    files: Any
    claim: SoftLock
    leased = True

    def __init__(
        self,
        path: str,
        runtime: Runtime,
        *,
        exclusive: bool = True,
        table: Descriptors = TABLE,
        mode: int | None = None,
        shared: bool = False,
        evidence: LivenessJudge = EVIDENCE,
        **more: Any,
    ) -> None:
        table = table_for(path, table, inside=True)
        self.path, self.runtime, self.exclusive = path, runtime, exclusive
        self.table, self.files, self.folder = table, table.files, path + SUFFIX
        self.claim = SoftLock(
            path, runtime, table=table, mode=mode, shared=shared, evidence=evidence, **more
        )
        self.terms = self.claim.terms
        self.key = (KIND, path)
        self._mode = 0o777 if shared else 0o700 if mode is None else mode | (mode & 0o444) >> 2
        self._exactly = shared or mode is not None  # whatever the umask

    # ---- one try

    def attempt(self) -> Grant | Held:
        """One try that does not wait."""
        return self._guarded(self._write if self.exclusive else self._read)[0]

    def _guarded(self, act: Callable[[str], T]) -> T:
        """What `act` answers, given the folder of the markers, open (L7)."""
        opened: list[int] = []
        try:
            try:
                at = self._anchored(opened)
                answer = asked_again(partial(act, at), partial(self._ask_anew, at))
            finally:
                for fd in opened:
                    self.files.close(fd)
        except OSError as error:
            if isinstance(error, SystemRefused):
                raise
            raise refused(self.path, error) from error
        return answer

    def _ask_anew(self, at: str) -> None:
        """Where the path and the markers lead: else a client says what it remembers."""
        self.files.anew(self.path[: self.path.rindex("/")] or "/")
        self.files.anew(at)

    def _read(self, at: str) -> tuple[Grant | Held, float]:
        """The answer, and the instant at which time alone may change it."""
        for _ in range(STRAYS):
            case = self._writer()  # 1
            if case is not None:
                return Held(case.why, self.key), case.due
            answer = self._posted(at, FRONT)  # 2
            if answer is None:
                continue  # over NFS: done, and it looks as if it were not; nobody holds that one
            try:
                case = self._writer(fresh=answer.handle[0].fresh)  # 3
            except BaseException:
                self.drop(answer)
                raise
            if case is None and not self._late(answer):
                return answer, NEVER
            self.drop(answer)
            if case is None:
                continue
            return Held(case.why, self.key), case.due
        return Held("it comes and goes too fast", self.key), self.runtime.now() + RETRY

    def _posted(self, at: str, front: str) -> Grant | None:
        """A marker of ours under a new name."""
        name = f"{front}{os.urandom(16).hex()}"
        marker = self._marker(f"{at}/{name}", f"{self.folder}/{name}")
        answer = marker._publish()  # None: its name was swept, or over NFS it looks as if it were
        self.claim._known, self.claim._guards = marker._known, marker._guards  # spares work
        return answer if isinstance(answer, Grant) else None

    def _writer(self, *, fresh: bool = False) -> Judgement | None:
        """Who has claimed; None for nobody who lives. `fresh`: as a file server has it now."""
        for _ in range(STRAYS):
            found = look(self.table, self.path, write=False, fresh=fresh)
            if found is None:
                return None
            try:
                case = self.claim.judged_of(found)
            finally:
                found.close()
            if case.state != DEAD:
                return case
            answer, due = self.claim._try()  # judges again, and takes over in one step
            if isinstance(answer, Held):  # somebody else may be doing that, for as long as it likes
                return replace(case, why=answer.reason, due=due)
            self.claim.drop(answer)
        return replace(case, why="it comes and goes too fast", due=self.runtime.now() + RETRY)

    def _write(self, at: str) -> tuple[Grant | Held, float]:
        answer, due = self._claimed(at)
        if not isinstance(answer, Grant):
            return answer, due
        reader = None
        try:
            reader = self._reader(at)  # 5
        except BaseException:
            self.claim.drop(answer)
            raise
        if reader is None and not self._late(answer):
            return answer, NEVER
        self.claim.drop(answer)
        if reader is None:
            return Held(TOO_SLOW, self.key), self.runtime.now()
        return Held(READERS_IN, self.key), reader[1]

    def _late(self, grant: Grant) -> bool:
        """L8  Whether its lease has run out while we looked: the clock comes after every look."""
        return grant.deadline is not None and self.runtime.now() >= grant.deadline

    def _claimed(self, at: str) -> tuple[Grant | Held, float]:
        """The soft lock of the path; not before the readers who asked before us."""
        first = self._courtesy(at, None)
        if first is not None:
            return Held(READERS_FIRST, self.key), first[1]
        return self._claim()

    def _claim(self) -> tuple[Grant | Held, float]:
        answer, due = self.claim._try()  # 4
        if isinstance(answer, Grant):
            return replace(answer, key=self.key), due
        return Held(answer.reason, self.key), due

    def _reader(self, at: str) -> tuple[str, float] | None:
        """A reader that is in: its marker, and the instant at which time alone may change that.

        The others need no look until it has gone. None: nobody is in.
        """
        names = list(filter(is_marker, self.files.listdir(at)))
        while names:  # not `for`: how far it has come is seen by the explorer
            name = names.pop()
            case = self._lives(at, name)
            if case is not None:
                return f"{self.folder}/{name}", case.due
        return None

    def _lives(self, at: str, name: str) -> Judgement | None:
        """None when whose marker it is is gone: it is removed then (L3: its name is his alone)."""
        try:
            found = look(self.table, f"{at}/{name}", write=False)
        except (InvalidArgument, UnsafeGround) as error:
            path = f"{self.folder}/{name}"  # as people know it
            raise InvalidArgument(
                f"{path!r} is not a regular file, so it is no reader's record: remove it", name=path
            ) from error
        if found is None:
            return None
        try:
            case = self._marker(f"{self.folder}/{name}").judged_of(found)
            if case.state != DEAD:
                return case
            SEEN.forget(f"{self.folder}/{name}")
            try:
                self.files.unlink(f"{at}/{name}")
            except FileNotFoundError:
                pass
        finally:
            found.close()
        return None

    def _marker(self, path: str, lasting: str = "") -> SoftLock:
        """The record of a reader: as the claim is, in all but its path and what it is granted.

        `lasting`: its path, while `path` leads there through the open folder.
        """
        marker: SoftLock = object.__new__(type(self.claim))
        marker.__dict__.update(self.claim.__dict__)
        marker.path, marker.enter = path, partial(self._enter, marker, lasting or path)
        return marker

    def _enter(self, marker: SoftLock, path: str, ours: RecordFile, sent_at: float) -> Grant:
        """L4  A reader draws no token: it carries that of the last writer."""
        token = generation(self.files, self.path, ours.fresh)
        reason = None if token else kernel_record.SHARED_REASON
        deadline = None if self.terms is None else self.terms.deadline(sent_at)
        now = self.files.clock_ns()
        if ours.fresh:
            hand_back(self.files, ours.fd)
        marker.path = path
        grant = Grant(path, ours.nonce, token, reason, now, self.key, [ours], deadline)
        ours.granted = True
        return grant

    def _anchored(self, opened: list[int]) -> str:
        """A name that leads to the folder of the markers, whose descriptor is in `opened`.

        It is made 0700, or as `shared` or `mode` say: others must not be able to remove a marker.
        """
        for again in (True, False):
            try:
                return self.files.anchor(self.folder, opened)  # type: ignore[no-any-return]
            except FileNotFoundError:
                if not again:
                    raise
                self._make_folder()
            except OSError as error:  # L7  a link or a file is neither followed nor replaced
                if error.errno in (errno.ENOTDIR, errno.ELOOP):
                    there = self.files.lstat(self.folder).st_mode
                    raise not_lockable(self.folder, there) from error
                raise
        raise AssertionError

    def _make_folder(self) -> None:
        for again in (True, False):
            try:
                self.files.mkdir(self.folder, self._mode)
            except FileExistsError:
                return
            except FileNotFoundError:
                if not again:
                    raise
                make_folders(self.files, self.path)
            else:
                if self._exactly:
                    group = group_bit(self.files, self.folder)
                    self.files.chmod(self.folder, self._mode | group)
                return

    # ---- the life of a grant

    def _record_of(self, grant: Grant) -> SoftLock:
        return self.claim if grant.name == self.path else self._marker(grant.name)

    def check(self, grant: Grant) -> Lost | None:
        """One lstat(2); over NFS an open(2), and the names of its folder asked for anew."""
        return self._record_of(grant).check(grant)

    def drop(self, grant: Grant) -> Lost | None:
        """Let go, in plain code. Where its record lies is told by the grant."""
        return self._record_of(grant).drop(grant)

    async def release(self, grant: Grant) -> Lost | None:
        return self.drop(grant)

    async def renew(self, grant: Grant) -> Grant | Lost:
        """L8  As of the soft lock."""
        return await self._record_of(grant).renew(grant)

    def downgrade(self, grant: Grant) -> Grant | Lost:
        """Not offered: the lease of a claim cannot become that of a marker in one step."""
        raise InvalidArgument(
            f"kind='soft' has no downgrade: release {self.path!r}, then acquire it for reading, "
            "and look again at what you wrote"
        )

    # --------------------------------------------------------------------------------------------
    # What can be asked of a soft reader/writer lock without holding it.

    @property
    def watched(self) -> tuple[str, Callable[[], bool]]:
        """What tells of a loss when it changes, and whether events of that do not reach us."""
        return (self.path if self.exclusive else f"{self.folder}/"), self.far

    def far(self) -> bool:
        """Whether its calls may wait for a file server."""
        return is_far(self.path)

    def taken(self) -> bool:
        """Whether anybody reads or writes; the dead are nobody."""
        holder = self.inspect()
        return holder is not None and holder.alive != DEAD

    def inspect(self, *, held: bool = False) -> Holder | None:
        """The writer, or one of the readers."""
        vague = None
        for found in self._inspected(held):
            if found is not None and found.owner is not None:
                return found
            if vague is None or (found is not None and vague.evidence == JUST_RELEASED):
                vague = found
        return vague

    def _inspected(self, held: bool) -> Iterator[Holder | None]:
        yield self.claim.inspect(held=held)
        try:
            names = self.files.listdir(self.folder)
        except OSError:
            return
        for name in filter(is_marker, names):
            yield self._marker(f"{self.folder}/{name}").inspect(held=held)
        if held and any(is_marker(name, ASKS) for name in names):
            yield Holder(evidence="nobody holds it now: readers who asked for it before go first")

    # --------------------------------------------------------------------------------------------
    # How one side of the lock waits.

    async def try_acquire(self, ask: Ask) -> Grant | Held:
        return self.attempt()

    async def wait(self, ask: Ask, until: float) -> Grant | Held:
        """Sleep until something happens, or a lease runs out; then one try."""
        if ask.slot is None:
            ask.slot = self._guarded(self._begun)
        slot: WaitingRecord | EarlierReaders = ask.slot
        due = min(until, slot.due, slot.renew_at if isinstance(slot, WaitingRecord) else NEVER)
        if self.safety < NEVER:
            due = min(due, self.runtime.now() + self.safety)
        try:
            await self.runtime.changed(ask, slot.at or self.path, due, blind=self._blind())
            if isinstance(slot, EarlierReaders):
                answer = self._claims(ask, slot)
            elif not await self._kept(slot):
                self._abandon(ask)
                return Held("what we had posted ran out while we waited", self.key)
            else:
                answer = self._writes(ask, slot) if self.exclusive else self._reads(ask, slot)
        except BaseException:
            self._abandon(ask)
            raise
        if isinstance(answer, Held) and (ask.cancelled or self.runtime.now() >= ask.deadline):
            self._abandon(ask)
        return answer

    def _begun(self, at: str) -> WaitingRecord | EarlierReaders:
        """A reader asks; a writer looks who has asked before."""
        if self.exclusive:
            return EarlierReaders(self._asking(at))
        for _ in range(STRAYS):  # over NFS: posted, and it looks as if it were not
            asks = self._posted(at, ASKS)
            if asks is not None:
                return WaitingRecord(asks, self.terms, self.runtime.now())
        raise OSError(errno.ESTALE, "the folder of the markers is taken away again and again")

    def _reads(self, ask: Ask, asks: WaitingRecord) -> Grant | Held:
        answer: Grant | Held
        answer, asks.due = self._guarded(self._read)
        if isinstance(answer, Grant):
            ask.slot = None
            try:
                self.drop(asks.grant)
            except BaseException:
                self.drop(answer)
                raise
            if self._late(answer):  # L8  that was a look at the storage too
                self.drop(answer)
                return Held(TOO_SLOW, self.key, WaitHint(self.runtime.now()))
        return answer

    def _asking(self, at: str) -> frozenset[str]:
        return frozenset(name for name in self.files.listdir(at) if is_marker(name, ASKS))

    def _courtesy(self, at: str, known: Asked) -> tuple[str, float] | None:
        """The marker of a reader that goes first, and until when. None: nobody does."""
        asking = self._asking(at)
        names = sorted(asking if known is None else asking & known)
        if not names:
            return None
        found = look(self.table, self.path, write=False)
        if found is not None:
            found.close()
            return None  # another writes: they could not go in
        while names:
            name = names.pop()
            case = self._lives(at, name)
            if case is None:
                continue
            due = self._free_since(name) + self.courtesy
            if due <= self.runtime.now() or (known is None and not self._may_come(at, name, case)):
                continue
            return f"{self.folder}/{name}", due
        return None

    def _may_come(self, at: str, name: str, case: Judgement) -> bool:
        """Whether who asked can go in, as far as one look tells: it runs, or has begun just now."""
        if case.marker.owner is not None:
            asks = process.as_it_runs(case.holder(seek=True))
            return asks is None or not asks.halted
        try:
            age: int = self.files.clock_ns() - self.files.lstat(f"{at}/{name}").st_mtime_ns
        except FileNotFoundError:
            return False
        return abs(age) < self.courtesy * 1e9

    def _free_since(self, name: str) -> float:
        now = self.runtime.now()
        if len(FREE_FOR) >= MOST:
            for path, since in list(FREE_FOR.items()):
                if since + LATER < now:
                    FREE_FOR.pop(path, None)
        return FREE_FOR.setdefault(f"{self.folder}/{name}", now)

    def _claims(self, ask: Ask, turn: EarlierReaders) -> Grant | Held:
        """A writer that has not claimed yet."""
        first = self._guarded(lambda at: self._courtesy(at, turn.before)) if turn.before else None
        if first is not None:
            turn.at, turn.due = first
            return Held(READERS_FIRST, self.key)
        answer: Grant | Held
        turn.at = ""
        answer, turn.due = self._guarded(lambda _: self._claim())
        if not isinstance(answer, Grant):
            return answer
        ask.slot = claim = WaitingRecord(answer, self.terms, self.runtime.now())
        return self._writes(ask, claim)

    def _writes(self, ask: Ask, claim: WaitingRecord) -> Grant | Held:
        """A writer that has."""
        reader = self._guarded(self._reader)
        if reader is not None:
            claim.at, claim.due = reader
        elif claim.sure(self.runtime.now()):
            ask.slot = None
            return claim.grant
        return Held(READERS_IN, self.key)

    async def _kept(self, claim: WaitingRecord) -> bool:
        """Renew it when it is time; whether it still stands (L8)."""
        now = self.runtime.now()
        if now < claim.renew_at:
            return claim.sure(now)
        found = await self.renew(claim.grant)
        if isinstance(found, Lost) or not claim.sure(self.runtime.now()):
            return False
        claim.renewed(found, now)
        return True

    def _abandon(self, ask: Ask) -> None:
        """L6  Nobody waits behind it any more: a claim that stood would keep readers out."""
        posted, ask.slot = ask.slot, None
        if isinstance(posted, WaitingRecord) and posted.grant.handle:
            self.drop(posted.grant)

    def _blind(self) -> bool:
        place = self.claim._place
        return self.far() if place is None else not place.one_kernel


side = SoftReadWrite
