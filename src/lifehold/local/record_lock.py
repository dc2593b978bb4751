"""What all kinds have in common whose record is the lock: the frame on which each stands.

A kind adds where its record lies and how it is taken, given back and looked for. Here is what is
the same: options, errors in words, waiting for a change, renewal, the end of a grant.

L8  A renewal counts only if the clock, read after the write, is still before the *old* deadline.
L9  Of a forked child nothing is accepted.
"""

from __future__ import annotations

from _thread import get_ident
from functools import partial

from ..core import events
from ..core.deadline import NEVER, RETRY
from ..core.errors import InvalidArgument, UnsafeGround, pass_up
from ..core.fence import next_token
from ..core.grant import Grant, Held, Holder, Lost
from ..core.owner import ALIVE, DEAD
from ..core.value import replace
from ..runtime import fork, process
from ..runtime.process import here, near_pid, user_id
from . import clean_up
from .files import hand_back
from .ground import SHARED, ground_of, is_far, place_at
from .handles import RELEASED, TABLE, Descriptors, not_open, table_for
from .judge import NO_HINT, PAUSE, TOO_SLOW, WaitHint, refuse_other_ttl
from .kernel import made
from .record import HELD, RecordTemplate, WrittenRecord
from .refusals import JUST_RELEASED, asked_again, needs_ttl, no_flock, refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from typing import Any

    from ..core.acquire import Ask
    from ..core.deadline import Terms
    from ..core.grant import Unknown
    from ..core.ports import Runtime
    from . import ground_probe
    from .files import Files
    from .ground import MountInfo
    from .judge import Judgement, LivenessJudge
    from .record_handle import BorrowedRecord, RecordFile
else:
    ground_probe = fork.later("lifehold.local.ground_probe", globals())


LOOKS = 5  # at a record that is another one each time
TOO_LATE = "its ttl has passed without a renewal"


class OtherFileSystem(Exception):
    """A record of ours lies on another file system than the path did when we looked."""

    def __init__(self, place: MountInfo) -> None:
        super().__init__(place)
        self.place = place


class RecordLock:
    """The mechanism of one path. Holds no state that a lock depends on.

    The handle of a grant is a `RecordFile`. A kind adds its steps, by one name in all kinds:

    `_attempt`    one try, once the ground is known. In its place `soft`, which looks at the ground
                  of each record, and `folder`, which takes one ground only, override `attempt`.
    `_publish`    put a record of ours where none is in force. In `generation` that is a takeover
                  too: it links the next number. `folder` posts its bid, in `_bid`.
    `_contest`    judge who stands in the way. In `folder` the dead among them go in it.
    `_take_over`  put a dead one out (L3): `soft` and `link` into its place, `directory` before it
                  publishes. `soft` asks in `_right` whether it may.
    `_gone`       whether the path shows that it is not ours any more.
    `_give_back`  the release, by its own descriptor or a name that is surely ours.
    `_look`       who stands there, for people.
    """

    path: str
    _look: Callable[[], Judgement | None]
    _attempt: Callable[[], Grant | Held]
    _give_back: Callable[[Any], object]
    _more: Callable[[], str] = staticmethod(str)  # members of a kind's own, for its records
    evidence: LivenessJudge
    kind = ""
    exclusive = True
    leased = True
    noun, home = "record", "folder"  # what a grant leaves at its path, and where that lies
    in_folder = True  # whether the path is a folder with records in it, not a record itself
    keeps = ""  # why what a release leaves at its path is not to go, "" where nothing stays
    dead_is_told = False  # to who was just refused: else it was held a moment ago
    safety = NEVER  # seconds between two looks of a waiter, at most: whatever events come
    place: MountInfo
    near: bool  # whether one kernel alone can mount it
    label: str
    mode: int
    runtime: Runtime
    table: Descriptors
    files: Files
    terms: Terms | None
    key: Hashable = None

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
        place: MountInfo | None = None,
    ) -> None:
        self._refuse(exclusive, record, cleanup)
        table = table_for(path, table, inside=self.in_folder)
        self.path, self.runtime, self.table, self.files = path, runtime, table, table.files
        self.label, self.terms = label, terms
        self.mode = 0o666 if shared else 0o600 if mode is None else mode
        self._exactly = shared or mode is not None  # whatever the umask
        self.key = self.kind, path
        self._last = 0  # the greatest token this object was given
        self._known: tuple[tuple[object, ...], RecordTemplate] | None = None
        self._ready = self._sound = self._given = place is not None
        self.near = False  # until it has looked
        if place is not None:
            self.place, self.near = place, place.one_kernel

    def _refuse(self, exclusive: bool, record: bool, cleanup: bool) -> None:
        if exclusive is True and record and not cleanup:
            return
        what = "exclusive=False" if not exclusive else "record=False" if not record else "cleanup="
        why = {
            "exclusive=False": "it has one holder at a time: ReadWriteLock knows readers",
            "record=False": "its record is the lock",
            "cleanup=": self.keeps or "it removes its file at release anyway",
        }[what]
        raise InvalidArgument(f"kind {self.kind!r} takes no {what}: {why}")

    @property
    def option(self) -> str:
        """Of the command that takes the same lock."""
        ttl = "" if self.terms is None else f"--ttl {self.terms.ttl:g}s "
        return f"--kind {self.kind} {ttl}"

    # ---- one try, plain code

    def attempt(self) -> Grant | Held:
        """One try that does not wait."""
        return self._settled_on(self._on_ground)

    def _settled_on(self, act: Callable[[], Grant | Held]) -> Grant | Held:
        """What `act` answers; again where what we knew of the ground was of another mount."""
        for _ in range(2):
            try:
                return act()
            except OtherFileSystem as moved:
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

    def _stand_on(self, place: MountInfo) -> None:
        self.place, self.near, self._known = place, place.one_kernel, None
        self._sound = False

    def _write(
        self, ours: RecordFile, least: int, after: str = "", line: bytes = b"", mark: str = ""
    ) -> None:
        """The first record of ours, with its witness and its deadline. Nobody can see it yet.

        L4  Its token is greater than `least`, and not behind the clock. Raises OtherFileSystem.
        """
        if not self._given and (place := place_at(ours)) != self.place:
            raise OtherFileSystem(place)
        witness = ours.witness = self._bear_witness(ours)
        if self.terms is not None:
            ours.deadline = self.terms.deadline(self.runtime.now())  # before it is sent (L8)
        ours.stamp_ns = now = self.files.clock_ns()
        token = next_token(least, self._last, now // 1000)
        text, us = self._words(witness), now // 1000
        ours.sheet = WrittenRecord(text, ours.ino, token, us, after=after, line=line, mark=mark)
        ours.write(ours.sheet.text, sync=not self.near)

    def _words(self, witness: bool) -> RecordTemplate:
        """What every record of this thread has in common, while it is the same user."""
        key, known = (get_ident(), fork.generation, user_id(), witness), self._known
        if known is None or known[0] != key:  # another thread's, which may replace it meanwhile
            known = self._known = (
                key,
                RecordTemplate(
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

    def _bear_witness(self, ours: RecordFile) -> bool:
        """A kernel lock on our own record, where one kernel alone can mount it."""
        return self.near and ours.bear_witness()

    def _granted(self, ours: RecordFile) -> Grant | Held:
        """The grant of a record of ours that is in its place."""
        ours.let_go = self._give_back
        if not self.near:
            hand_back(self.files, ours.fd)
        # L8  After the last call that a file server may keep waiting.
        if ours.deadline is not None and self.runtime.now() >= ours.deadline:
            ours.close()
            return Held(TOO_SLOW, self.key)
        sheet = ours.sheet
        self._last = sheet.number
        why = ours.untold
        grant = made(
            Grant,
            (
                self.path,
                sheet.mark,
                sheet.number if why is None else None,
                why,
                ours.stamp_ns,
                self.key,
                [ours],
                ours.deadline,
            ),
        )
        over, ours.over = ours.over, None
        if over is not None:
            events.tell(events.TakenOver(self.path, grant.nonce, over.holder(), over.evidence))
        return grant

    # ---- whoever stands in the way

    def judged(self, at: str, seen: BorrowedRecord) -> Judgement:
        """Who is there, whether it lives, and when time alone may change that."""
        return self.evidence.judged(at, seen, self.place, self.runtime.now)

    def _weigh(self, at: str, seen: BorrowedRecord) -> Judgement:
        """The same of what stands in the way."""
        found = self.judged(at, seen)
        if found.mixed:
            raise UnsafeGround(found.mixed, name=self.path)
        return found

    def _held(self, found: Judgement, beside: str = "") -> Held:
        """The answer to who came after that holder, with what a waiter has to look at.

        `beside`: where, while the end of its process is told anyway.
        """
        refuse_other_ttl(self.path, found, self._ttl())
        pid = near_pid(found.marker.owner, one_kernel=self.near)
        if pid is not None:
            there = process.look(pid)
            if not there.exists or there.is_zombie:  # a child of it holds on
                pid = None
        return Held(found.why, self.key, WaitHint(found.due, pid, "" if pid is None else beside))

    def _soon(self, why: str) -> Held:  # where neither an event nor a lease may help
        return Held(why, self.key, WaitHint(self.runtime.now() + RETRY, pause=PAUSE))

    def _guard(self, found: RecordFile) -> bool | None:
        """L3  Keep others from removing it. None: somebody else is about to. False: no locks."""
        try:
            return found.guard() or None
        except OSError as error:
            if error.errno in no_flock:
                return False
            raise

    # ---- waiting

    @property
    def at(self) -> str:
        """The path at which a change is told of; with a slash at its end, every entry there."""
        return self.path

    async def try_acquire(self, ask: Ask) -> Grant | Held:
        return await self._apart(self.far())

    async def wait(self, ask: Ask, until: float) -> Grant | Held:
        """Sleep until the record changes, its holder ends or its lease has run out, and try."""
        hint: WaitHint = NO_HINT if ask.slot is None else ask.slot
        at, limit = hint.at or self.at, min(until, hint.due)
        if self.safety < NEVER:
            limit = min(limit, self.runtime.now() + self.safety)
        # What a record was made under is not always its name: its close need not be told here.
        ask.alike = type(self), self._ttl()  # one holder at a time, for each of them
        far = self.far()
        ask.pause = hint.pause
        await self.runtime.changed(ask, at, limit, blind=far or not self.near, pid=hint.pid)
        ask.pause = 0.0
        answer = await self._apart(far)
        ask.slot = answer.hint if isinstance(answer, Held) else None
        return answer

    async def _apart(self, far: bool) -> Grant | Held:
        """One try, in a helper thread where it may wait for a file server. L6: undone when late."""
        if not far:
            return self.attempt()

        def undo(answer: Grant | Held) -> None:
            if isinstance(answer, Grant):
                self.drop(answer)

        return await self.runtime.in_thread(self.attempt, undo)

    # ---- the life and the end of a grant

    async def renew(self, grant: Grant) -> Grant | Lost | Unknown:
        """Write it again. Without a ttl: whether it is still ours."""
        for ours in grant.handle:
            with ours.mutex:
                lost = self._why_lost(ours)
                if lost is not None or self.terms is None:
                    return lost or grant
                deadline = self.terms.deadline(self.runtime.now())
                self._beat(ours)
                if self._late(ours):  # L8
                    return Lost("its renewal came after its deadline", gone=True)
                ours.deadline = deadline
                return replace(grant, deadline=deadline)
        return Lost(RELEASED)

    def _beat(self, ours: RecordFile) -> None:
        ours.write(ours.sheet.now(HELD), sync=not self.near)
        if not self.near:
            hand_back(self.files, ours.fd)

    def _late(self, ours: RecordFile) -> bool:
        return ours.deadline is not None and self.runtime.now() >= ours.deadline

    def _why_lost(self, ours: RecordFile) -> Lost | None:
        if not ours.here:
            return not_open(ours)
        if self._late(ours):
            return Lost(TOO_LATE, gone=True)
        gone = self._gone(ours)
        if gone is None and self._late(ours):  # L8  the look may have hung
            return Lost(TOO_LATE, gone=True)
        return gone

    def _gone(self, ours: RecordFile) -> Lost | None:
        """Why it is not ours any more, as far as its name tells."""
        try:
            if not self.near:
                self._ask_anew()
            found = asked_again(partial(self.files.lstat, self._where(ours)))
        except (FileNotFoundError, NotADirectoryError):
            return Lost(f"its {self.noun} was removed: others may be in", gone=True)
        except OSError as error:
            pass_up(error)
            return Lost(
                f"its {self.home} cannot be looked at any more ({error.strerror})", gone=True
            )
        if not ours.is_of(found):
            return Lost(f"its {self.noun} was replaced by another: others may be in", gone=True)
        return None

    def _where(self, ours: RecordFile) -> str:
        """The name of our record."""
        return f"{self.path}/{ours.name}"

    def _ask_anew(self) -> None:
        """What the path leads to: else the client of a file server says what it remembers."""
        self.files.anew(self.path[: self.path.rindex("/")] or "/")

    def check(self, grant: Grant) -> Lost | None:
        """Whether its deadline or what its path shows says that we hold it no more."""
        for ours in grant.handle:
            return self._why_lost(ours)
        return Lost(RELEASED)

    def drop(self, grant: Grant) -> Lost | None:
        """Let go, in plain code."""
        try:
            if not grant.handle[0].here:
                return not_open(grant.handle[0])
            ours: RecordFile = grant.handle.pop()  # L5  one atomic step
        except IndexError:
            return Lost(RELEASED)
        try:
            with ours.mutex:
                ours.let_go = None
                return self._ended(ours)  # told, never silent (L5)
        except OSError as error:
            raise refused(self.path, error) from error
        finally:
            ours.shut()

    def _ended(self, ours: RecordFile) -> Lost | None:
        """Give it back. Why it was not ours any more."""
        lost = self._why_lost(ours)
        self._give_back(ours)
        return lost

    async def release(self, grant: Grant) -> Lost | None:
        return self.drop(grant)

    def break_(self, reason: str, whom: Holder | None = None) -> Holder | None:
        """Take the lock from whoever holds it, by order. Who it was; None when it was free.

        `whom`: the one that is meant; None when it is another's by now.
        """
        return clean_up.by_order(self, reason, lambda: clean_up.remove(self, reason, whom))

    def judged_of(self, found: RecordFile) -> Judgement:
        """Who is there, as clean_up.py asks."""
        return self.evidence.judged(self.path, found, self.place, self.runtime.now)

    # ---- questions. A kind adds `_look`, who stands there, for people.

    def far(self) -> bool:
        """Whether its calls may wait for a file server: no event loop should make them then."""
        return is_far(self.path)

    def _looked_again(self, found: Judgement | None) -> Judgement | None:
        """Looked at again when its holder seems gone: it may be releasing just now."""
        for _ in range(LOOKS):
            if found is None or found.state == ALIVE:
                break
            again = self._look()
            if _is_same(again, found):
                return again
            found = again
        return found

    def taken(self) -> bool:
        """Whether anybody holds it, as far as can be told; a dead record is nobody."""
        holder = self.inspect()
        return holder is not None and holder.alive != DEAD

    def inspect(self, *, held: bool = False) -> Holder | None:
        """Who holds it. Tries no lock but the record's own, shared, for a moment."""
        try:
            self.ready()
            first = self._look()
            found = self._looked_again(first)
        except OSError as error:
            pass_up(error)
            if held:
                return Holder(evidence=f"its record cannot be read: {error.strerror}")
            raise refused(self.path, error) from error
        if held and first is not None and first.state == DEAD:
            if not (self.dead_is_told and _is_same(found, first)):
                found = replace(first, state=ALIVE, evidence="it was held a moment ago")
        if found is None:
            return Holder(evidence=JUST_RELEASED) if held else None
        return found.holder(seek=True)


def _is_same(found: Judgement | None, other: Judgement) -> bool:
    return found is not None and found.marker.content == other.marker.content
