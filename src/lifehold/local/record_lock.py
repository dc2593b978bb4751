"""What `generation`, `link`, `directory` and `folder` have in common: their record is the lock.

A kind adds where its record lies and how it is taken, given back and looked for. Here is what is
the same: options, errors in words, waiting for a change, renewal, the end of a grant.

L8  A renewal counts only if the clock, read after the write, is still before the *old* deadline.
L9  Of a forked child nothing is accepted.
"""

from __future__ import annotations

from _thread import get_ident

from ..core import events
from ..core.errors import InvalidArgument, UnsafeGround
from ..core.fence import next_token
from ..core.grant import Grant, Held, Holder, Lost
from ..core.owner import ALIVE, DEAD
from ..core.value import replace
from ..runtime import fork, process
from ..runtime.held_here import holding
from ..runtime.process import here
from . import takeover
from .files import LOCK_EX, LOCK_NB, hand_back
from .ground import SHARED, ground_of, is_far, place_at
from .handles import TABLE, Descriptors, table_for
from .judge import NO_HINT, RETRY, TOO_SLOW, Hint, near_pid, refuse_other_ttl
from .kernel import made
from .record import HELD, Sheet, Text
from .record_handle import GONE, Paper, look
from .refusals import needs_ttl, no_flock, refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from ..core.acquire import Ask
    from ..core.deadline import Terms
    from ..core.grant import Unknown
    from ..core.ports import Runtime
    from . import ground_probe
    from .files import Files
    from .ground import Place
    from .judge import Evidence, Judged
    from .record_handle import Seen, Stake
else:
    ground_probe = fork.later("lifehold.local.ground_probe", globals())


# ------------------------------------------------------------------------------------------------
# What kinds have in common whose record is the lock: how a grant ends, what can be asked.


RELEASED = "released already"


class Presence:
    """A lock that is there as long as its record is. The handle of a grant is a `Paper`."""

    exclusive = True
    path: str
    label: str
    mode: int
    runtime: Runtime
    table: Descriptors
    files: Files

    attempt: Callable[[], Grant | Held]  # one try that does not wait
    judged: Callable[[Paper], Judged]  # who is there, whether it lives, when time may change that

    async def try_acquire(self, ask: Ask) -> Grant | Held:
        return self.attempt()

    # ---- the end of a grant

    def check(self, grant: Grant) -> Lost | None:
        """One lstat(2); over NFS an open(2), and the names of its folder asked for anew."""
        ours = next(iter(grant.handle), None)
        if ours is None:
            return Lost(RELEASED)
        if ours.generation != fork.here():
            return Lost(OF_PARENT)
        try:
            return None if ours.is_at(self.path) else Lost(GONE, gone=True)
        except OSError as error:
            return Lost(f"its record cannot be looked at any more ({error.strerror})", gone=True)

    def drop(self, grant: Grant) -> Lost | None:
        """Let go, in plain code."""
        try:
            if not fork.page[0]:
                fork.awoke()
            if grant.handle[0].generation != fork.generation:
                return Lost(OF_PARENT)
            ours: Paper = grant.handle.pop()  # L5  one atomic step
        except IndexError:
            return Lost(RELEASED)
        link = holding.get(grant.key)
        if link is not None and link[0] is grant:
            holding.pop(grant.key, None)  # the next record has another key: these would add up
        try:
            return ours.withdraw()
        except OSError as error:
            raise refused(self.path, error) from error

    async def release(self, grant: Grant) -> Lost | None:
        return self.drop(grant)

    def break_(self, reason: str) -> Holder | None:
        """Take the lock from whoever holds it, by order. Who it was; None when it was free."""
        return takeover.by_order(self, reason, lambda why: takeover.remove(self, why))

    def ready(self) -> None:
        """Whether the ground bears it is looked at with every record."""

    def judged_of(self, found: Paper) -> Judged:
        return self.judged(found)

    # ---- questions

    def far(self) -> bool:
        """Whether its calls may wait for a file server: no event loop should make them then."""
        return is_far(self.path)

    @property
    def watched(self) -> tuple[str, Callable[[], bool]]:
        """The path whose change may mean a loss, and whether another machine may change it."""
        return self.path, self.far

    def taken(self) -> bool:
        """Whether anybody holds it; a dead record is nobody."""
        holder = self.inspect()
        return holder is not None and holder.alive != DEAD

    def inspect(self, *, held: bool = False) -> Holder | None:
        try:
            found = look(self.table, self.path, write=False)
            if found is None:
                return None
            try:
                return self.judged(found).holder(seek=True)
            finally:
                found.close()
        except OSError as error:
            if held:
                return Holder(evidence=f"its record cannot be read: {error.strerror}")
            raise refused(self.path, error) from error


# ------------------------------------------------------------------------------------------------
# What can be asked of a lock whose record is the lock, without holding it.


OF_PARENT = "it belongs to the parent process, this one was forked from it"
RELEASED_ALREADY = "released already"
TOO_LATE = "its ttl has passed without a renewal"


class Moved(Exception):
    """A record of ours lies on another file system than the path did when we looked."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.place = place


class Present:
    """The mechanism of one path. Holds no state that a lock depends on.

    A kind adds `_attempt`, one try; `_gone`, whether the path shows that it is not ours any more;
    `_give_back`, the release, by its own descriptor or a name that is surely ours; `_look`, who
    stands there, for people.
    """

    path: str
    _look: Callable[[], Judged | None]
    _attempt: Callable[[], Grant | Held]
    _gone: Callable[[Stake], Lost | None]
    _give_back: Callable[[Stake], object]
    _more: Callable[[], str] = staticmethod(str)  # members of a kind's own, for its records
    evidence: Evidence
    kind = ""
    exclusive = True
    leased = True
    place: Place
    near: bool  # whether one kernel alone can mount it

    def __init__(
        self,
        path: str,
        runtime: Runtime,
        *,
        table: Descriptors = TABLE,
        exclusive: bool = True,
        label: str = "",
        record: bool = True,
        cleanup: bool = False,
        mode: int | None = None,
        shared: bool = False,
        terms: Terms | None = None,
        place: Place | None = None,
    ) -> None:
        self._refuse(exclusive, record, cleanup)
        table = table_for(path, table, inside=self.kind != "link")
        self.path, self.runtime, self.table, self.files = path, runtime, table, table.files
        self.label, self.mode, self.shared = label, mode, shared
        self.terms = terms
        self.key: Hashable = (self.kind, path)
        self._last = 0  # the greatest token this object was given
        self._known: tuple[tuple[object, ...], Text] | None = None
        self._ready = self._sound = self._given = place is not None
        if place is not None:
            self.place, self.near = place, place.one_kernel

    def _refuse(self, exclusive: bool, record: bool, cleanup: bool) -> None:
        if exclusive is True and record and not cleanup:
            return
        what = "exclusive=False" if not exclusive else "record=False" if not record else "cleanup="
        why = {
            "exclusive=False": "it has one holder at a time: ReadWriteLock knows readers",
            "record=False": "its record is the lock",
            "cleanup=": "what it leaves behind is what keeps its tokens growing"
            if self.kind == "generation"
            else "it removes its file at release anyway",
        }[what]
        raise InvalidArgument(f"kind {self.kind!r} takes no {what}: {why}")

    # ---- one try, plain code

    def attempt(self) -> Grant | Held:
        """One try that does not wait."""
        return self._settled_on(self._on_ground)

    def _settled_on(self, act: Callable[[], Grant | Held]) -> Grant | Held:
        """What `act` answers; again where what we knew of the ground was of another mount."""
        for _ in range(2):
            try:
                return act()
            except Moved as moved:
                self._stand_on(moved.place)
        return self._soon("its file system changes under it")

    def _on_ground(self) -> Grant | Held:
        try:
            if not self._ready:
                self.ready()
            if not self.near and not self._sound:
                if self.terms is None:
                    raise needs_ttl(self.path, self.kind, self.place.kind)
                if self.place.kind not in SHARED:  # FUSE, or of no type that we know
                    ground_probe.refuse(self.path, self.kind)
                self._sound = True
            return self._attempt()
        except OSError as error:
            raise refused(self.path, error) from error

    def ready(self) -> None:
        """Look on what ground the lock lies. Each record of ours is compared with that (L2)."""
        if not self._ready:
            self._stand_on(ground_of(self.path))
            self._ready = True

    def _stand_on(self, place: Place) -> None:
        self.place, self.near, self._known = place, place.one_kernel, None
        self._sound = False

    def _write(
        self, stake: Stake, least: int, after: str = "", line: bytes = b"", mark: str = ""
    ) -> None:
        """The first record of a stake, with its witness and its deadline. Nobody can see it yet.

        L4  Its token is greater than `least`, and not behind the clock. Raises Moved.
        """
        if not self._given and (place := place_at(stake)) != self.place:
            raise Moved(place)
        witness = stake.witness = self._bear_witness(stake)
        if self.terms is not None:
            stake.deadline = self.terms.deadline(self.runtime.now())  # before it is sent (L8)
        stake.stamp_ns = now = self.files.clock_ns()
        token = next_token(least, self._last, now // 1000)
        text, us = self._words(witness), now // 1000
        stake.sheet = Sheet(text, stake.key[1], token, us, after=after, line=line, mark=mark)
        stake.write(stake.sheet.text, sync=not self.near)

    def _words(self, witness: bool) -> Text:
        """What every record of this thread has in common."""
        key, known = (get_ident(), fork.generation, witness), self._known
        if known is None or known[0] != key:  # another thread's, which may replace it meanwhile
            known = self._known = (
                key,
                Text(
                    self.kind,
                    here(self.label),
                    self._ttl(),
                    self.place,
                    witness=witness,
                    more=self._more(),
                ),
            )
        return known[1]

    def _ttl(self) -> float | None:
        """As the record tells it."""
        return self.terms.ttl if self.terms is not None else None

    def _bear_witness(self, stake: Stake) -> bool:
        """A kernel lock on our own record, where one kernel alone can mount it."""
        if not self.near:
            return False
        try:
            self.files.flock(stake.fd, LOCK_EX | LOCK_NB)
        except OSError as error:
            if error.errno in no_flock:
                return False
            raise
        return True

    def _granted(self, stake: Stake) -> Grant | Held:
        """The grant of a stake that is in its place."""
        stake.let_go = self._give_back
        if not self.near:
            hand_back(self.files, stake.fd)
        # L8  After the last call that a file server may keep waiting.
        if stake.deadline is not None and self.runtime.now() >= stake.deadline:
            stake.close()
            return Held(TOO_SLOW, self.key)
        sheet = stake.sheet
        self._last = sheet.number
        why = stake.untold
        grant = made(
            Grant,
            (
                self.path,
                sheet.mark,
                sheet.number if why is None else None,
                why,
                stake.stamp_ns,
                self.key,
                [stake],
                stake.deadline,
            ),
        )
        over, stake.over = stake.over, None
        if over is not None:
            events.tell(events.TakenOver(self.path, grant.nonce, over.holder(), over.evidence))
        return grant

    # ---- whoever stands in the way

    def judged(self, at: str, seen: Seen) -> Judged:
        """Who is there, whether it lives, and when time alone may change that."""
        return self.evidence.judged(at, seen, self.place, self.runtime.now)

    def _weigh(self, at: str, seen: Seen) -> Judged:
        """The same of what stands in the way."""
        found = self.judged(at, seen)
        if found.mixed:
            raise UnsafeGround(found.mixed, name=self.path)
        return found

    def _held(self, found: Judged, beside: str = "") -> Held:
        """The answer to who came after that holder, with what a waiter has to look at.

        `beside`: where, while the end of its process is told anyway.
        """
        refuse_other_ttl(self.path, found, self._ttl())
        pid = near_pid(found.marker.owner, one_kernel=self.near)
        if pid is not None:
            there = process.look(pid)
            if not there.exists or there.is_zombie:  # a child of it holds on
                pid = None
        return Held(found.why, self.key, Hint(found.due, pid, "" if pid is None else beside))

    def _soon(self, why: str) -> Held:  # where neither an event nor a lease may help
        return Held(why, self.key, Hint(self.runtime.now() + RETRY))

    # ---- waiting

    @property
    def at(self) -> str:
        """The path at which a change is told of; with a slash at its end, every entry there."""
        return self.path

    async def try_acquire(self, ask: Ask) -> Grant | Held:
        return await self._apart()

    async def wait(self, ask: Ask, until: float) -> Grant | Held:
        """Sleep until the record changes, its holder ends or its lease has run out, and try."""
        hint: Hint = ask.slot or NO_HINT
        at, limit = hint.at or self.at, min(until, hint.due)
        ask.alike = type(self), self._ttl()  # one holder at a time, for each of them
        await self.runtime.changed(ask, at, limit, blind=not self.near, pid=hint.pid)
        answer = await self._apart()
        ask.slot = answer.hint if isinstance(answer, Held) else None
        return answer

    async def _apart(self) -> Grant | Held:
        """One try, in a helper thread where it may wait for a file server. L6: undone when late."""
        if not self.far():
            return self.attempt()

        def undo(answer: Grant | Held) -> None:
            if isinstance(answer, Grant):
                self.drop(answer)

        return await self.runtime.in_thread(self.attempt, undo)

    # ---- the life and the end of a grant

    async def renew(self, grant: Grant) -> Grant | Lost | Unknown:
        """Write it again. Without a ttl: whether it is still ours."""
        for stake in grant.handle:
            with stake.mutex:
                lost = self._why_lost(stake)
                if lost is not None or self.terms is None:
                    return lost or grant
                deadline = self.terms.deadline(self.runtime.now())
                self._beat(stake)
                if self._late(stake):  # L8
                    return Lost("its renewal came after its deadline", gone=True)
                stake.deadline = deadline
                return replace(grant, deadline=deadline)
        return Lost(RELEASED_ALREADY)

    def _beat(self, stake: Stake) -> None:
        stake.write(stake.sheet.now(HELD), sync=not self.near)
        if not self.near:
            hand_back(self.files, stake.fd)

    def _late(self, stake: Stake) -> bool:
        return stake.deadline is not None and self.runtime.now() >= stake.deadline

    def _why_lost(self, stake: Stake) -> Lost | None:
        if not stake.here:
            return Lost(OF_PARENT if stake.generation >= 0 else RELEASED_ALREADY)
        if self._late(stake):
            return Lost(TOO_LATE, gone=True)
        gone = self._gone(stake)
        if gone is None and self._late(stake):  # L8  the look may have hung
            return Lost(TOO_LATE, gone=True)
        return gone

    def check(self, grant: Grant) -> Lost | None:
        """Whether its deadline or what its path shows says that we hold it no more."""
        for stake in grant.handle:
            return self._why_lost(stake)
        return Lost(RELEASED_ALREADY)

    def drop(self, grant: Grant) -> Lost | None:
        """Let go, in plain code."""
        try:
            if not grant.handle[0].here:
                return Lost(OF_PARENT)
            stake: Stake = grant.handle.pop()  # L5  one atomic step
        except IndexError:
            return Lost(RELEASED_ALREADY)
        try:
            with stake.mutex:
                stake.let_go = None
                lost = self._ended(stake)  # told, never silent (L5)
        except OSError as error:
            raise refused(self.path, error) from error
        finally:
            stake.shut()
        return lost

    def _ended(self, stake: Stake) -> Lost | None:
        """Give it back. Why it was not ours any more."""
        lost = self._why_lost(stake)
        self._give_back(stake)
        return lost

    async def release(self, grant: Grant) -> Lost | None:
        return self.drop(grant)

    # --------------------------------------------------------------------------------------------
    # The questions of `Present`. A kind adds `_look`, who stands there, for people.

    def far(self) -> bool:
        """Whether its calls may wait for a file server: no event loop should make them then."""
        return is_far(self.path)

    def taken(self) -> bool:
        """Whether anybody holds it, as far as can be told."""
        holder = self.inspect()
        return holder is not None and holder.alive != DEAD

    def inspect(self, *, held: bool = False) -> Holder | None:
        """Who holds it. Tries no lock but the record's own, shared, for a moment."""
        try:
            self.ready()
            found = self._look()
        except OSError as error:
            if held:
                return Holder(evidence=f"its record cannot be read: {error.strerror}")
            raise refused(self.path, error) from error
        if found is None:
            return None
        if held and found.state == DEAD:
            found = replace(found, state=ALIVE, evidence="it was held a moment ago")
        return found.holder()
