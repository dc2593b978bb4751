"""A lock that is a file: while the record is there, the lock is held.

Promise: at most one holder, among all who use this kind on the path; a holder that is proven dead
is replaced at once, a silent one when its lease has run out, nobody else; release and takeover hit
what they are about and nothing that came later; the token only grows.

Acquire   1 Look: open the path. Nothing there: 2. Something: 3.
          2 Publish: make a record without a name, lock it (the witness), write it, link it to the
            path. EEXIST: 1. Then draw the token from the file beside it, and note it.
          3 Judge what is there. Alive, or nobody can tell: wait, and 1.
          4 Take over: make a record of our own under a name of its own; guard the dead one, read
            it again, look that the path still leads to it; then rename ours over it, in one step.
            Of some other tools (PEERS): write our record into it, and look again.
Release   Guard our record, look that the path leads to it, unlink it, close it.
Renew     Look afresh; if the path leads to our record, write the number of renewals into it.

L2  The proof: its witness is free; or its process is gone by identity; both only where the writer
    and we saw a file system that one kernel alone can mount. Or its ttl has passed on our own clock
    since we first saw this very record. What cannot be read is given GRACE seconds of that.
L3  Whoever removes or replaces a record holds its guard (record_handle.py), and has looked since.
L4  token_file.py. L5  The open file is popped from the grant. L6  A posted record that has no
    handle withdraws itself. L8  The deadline counts from before the record was published.
"""

from __future__ import annotations

import errno
import os
from _thread import get_ident

from ..core import events
from ..core.deadline import NEVER, RETRY
from ..core.errors import InvalidArgument, UnsafeGround, pass_up
from ..core.grant import Grant, Held, Lost
from ..core.owner import DEAD
from ..core.value import replace
from ..runtime import fork
from ..runtime.held_here import holding
from ..runtime.process import here, near_pid, user_id
from . import clean_up
from .files import hand_back
from .ground import place_at
from .handles import RELEASED
from .judge import (
    BEING_MOVED,
    PAUSE,
    TOO_SLOW,
    Judgement,
    LivenessJudge,
    WaitHint,
    no_guard,
    refuse_other_ttl,
)
from .kernel import made
from .record import OLDER, ROOM, RecordTemplate, temporary
from .record_handle import GONE, RecordFile, blank, look
from .record_lock import RecordLock
from .refusals import another_users, needs_ttl, refuse_read_only, refused
from .token_file import draw

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..core.owner import Owner
    from ..core.ports import Runtime
    from .ground import MountInfo
    from .record import ParsedRecord

KIND = "soft"
EVIDENCE = LivenessJudge(KIND)
STALE = 16  # how often the file server may say that what we look at is gone
STRAYS = 100  # how often a path may change under our hands before we say so
TICK = 0.02  # seconds: longer than any of the kernel's clock that stamps files
# What the dead file of another tool says, (kind, whether it names a host), and how long we settle
# after our record was written into it. What is not here is replaced by rename(2): its breakers may
# remove our record by name, some microseconds after it has come.
PEERS = {
    # filelock's SoftFileLock: it exchanges names, and gives back what has another inode or time
    # of change than it had judged.
    ("pid", True): 0.0,
    # liblockfile and dotlockfile: they judge the content and unlink by name some microseconds later
    # (link.py). Who comes after that finds us, and judges us alive.
    ("pid", False): 0.05,
}


class SoftLock(RecordLock):
    """The mechanism of one path. Made once per Lock object; no lock depends on its state."""

    kind, in_folder = KIND, False
    enter: Callable[[RecordFile, float], Grant | Held] | None = None  # of a record that draws none
    dead_is_told = True  # whom nothing but the right to write keeps us from following
    safety = 2.0  # seconds between two looks of a waiter, at most: whatever events come

    def __init__(
        self,
        path: str,
        runtime: Runtime,
        *,
        place: MountInfo | None = None,
        evidence: LivenessJudge = EVIDENCE,
        owner: Owner | None = None,
        **options: Any,
    ) -> None:
        super().__init__(path, runtime, place=place, **options)
        self.evidence = evidence
        self._user: Callable[[], int] = getattr(os, "geteuid", int)
        self._owner = owner  # of a client that is played; else this process
        self._place, self._nameless, self._guards = place, True, False

    def _refuse(self, exclusive: bool, record: bool, cleanup: bool) -> None:
        if not exclusive or not record:
            wrong = "exclusive=False" if not exclusive else "record=False"
            raise InvalidArgument(
                f"kind={self.kind!r} takes no {wrong}: its record is the lock, and has one owner"
            )

    def ready(self) -> None:
        """On what ground it lies is looked at with every record."""

    # ---- acquire: plain code, run by both faces and by the explorer

    def attempt(self) -> Grant | Held:
        """One try that does not wait."""
        return self._try()[0]

    def _try(self) -> tuple[Grant | Held, float]:
        """The answer, and the instant at which time alone may change it."""
        try:
            for n in range(STRAYS):
                found = None
                try:
                    found = look(self.table, self.path, write=False)  # 1
                except OSError as error:  # over NFS what was there is removed: link(2) asks anew
                    if error.errno != errno.ESTALE:
                        raise
                try:
                    answer = self._publish() if found is None else self._contest(found)
                except OSError as error:  # the same of an open file
                    if error.errno != errno.ESTALE or n > STALE:
                        raise
                    continue
                if isinstance(answer, Judgement):
                    near = found is not None and not found.fresh
                    pid = near_pid(answer.marker.owner, one_kernel=near)
                    pause = PAUSE if answer.why == BEING_MOVED else 0.0
                    hint = WaitHint(answer.due, pid, pause=pause)
                    return Held(answer.why, answer.key, hint), answer.due
                if isinstance(answer, Held):
                    return answer, answer.hint.due
                if answer is not None:
                    return answer, NEVER
        except OSError as error:
            if error.errno == errno.EACCES and error.filename == self.path:
                raise another_users(self.path) from error
            raise refused(self.path, error) from error
        due = self.runtime.now() + RETRY
        return Held("it comes and goes too fast", hint=WaitHint(due)), due

    def _contest(self, found: RecordFile) -> Grant | Held | Judgement | None:
        """3. None: look again."""
        over = None
        try:
            case = self.judged_of(found)
            if case.mixed:
                raise UnsafeGround(case.mixed, name=self.path)
            if found.fresh:
                self._refuse_ground(found, self._place or place_at(found))
            if case.state != DEAD:
                ttl = None if self.terms is None else self.terms.ttl
                refuse_other_ttl(self.path, case, ttl)
                return case
            over = look(self.table, self.path)  # while the other is open: numbers are used again
            if over is None or over.key != found.key:
                return None
            over.fresh = found.fresh
            found.close()  # and with it its lock: who asks for the witness is in a guard's way
            return self._take_over(over, case)
        finally:
            found.close()
            if over is not None and not over.granted:
                over.close()

    def _take_over(self, dead: RecordFile, case: Judgement) -> Grant | Held | Judgement | None:
        """4. None: look again."""
        if not dead.writable:
            refuse_read_only(self.files, self.path, self.path)
            return self._busy(case, "it may not be written")
        settle = self._in_place(dead, case.marker)
        grant: Grant | Held | Judgement | None
        if settle is not None:
            grant = self._adopt(dead, case, settle)
        else:
            grant = self._publish(dead, case)
        if isinstance(grant, Grant):
            events.tell(events.TakenOver(self.path, grant.nonce, case.holder(), case.evidence))
        return grant

    def _busy(self, case: Judgement, why: str) -> Judgement:
        return replace(case, why=why, due=self.runtime.now() + RETRY)

    def _right(self, dead: RecordFile, case: Judgement) -> Judgement | bool:
        """L3  Whether it may be replaced now. The path is last: few peers take a guard."""
        if not dead.guard():
            return self._busy(case, BEING_MOVED)
        return dead.read() == case.marker.content and dead.is_at(self.path)

    def _publish(
        self, over: RecordFile | None = None, case: Judgement | None = None
    ) -> Grant | Held | Judgement | None:
        """2; over a dead record: the end of 4. None: somebody else was faster.

        All is ready before the last look: between that and the step lie no calls but one rename(2).
        """
        try:
            ours = self._prepare(named=over is not None)
        except FileNotFoundError:
            return None  # its temporary name was swept
        try:
            sent_at = 0.0 if self.terms is None else self.runtime.now()
            if over is not None and case is not None:
                right = self._right(over, case)
                if right is not True:
                    return right or None
            ours.let_go = (
                self._give_back
            )  # from here on it is withdrawn, whatever comes between (L6)
            if self._post(ours, over):
                if ours.name:
                    clean_up.forget_name(ours)
                if over is not None:
                    self._tidy(over)
                return (self.enter or self._enter)(ours, sent_at)
            ours.let_go = None
        finally:
            if not ours.granted:
                ours.close()
                clean_up.forget_name(ours)
        return None

    def _tidy(self, over: RecordFile) -> None:
        """A crash was seen: let its record go, and remove what it has left."""
        near = not over.fresh
        over.close()
        if near:
            clean_up.sweep(self.table, self.path)

    def _post(self, ours: RecordFile, over: RecordFile | None) -> bool:
        """Give the record its place: one step of the kernel or of the file server (L3)."""
        files = self.files
        try:
            if over is not None:
                files.rename(ours.name, self.path)
                ours.name = ""
            elif ours.name:
                files.link(ours.name, self.path)
            else:
                files.link_fd(ours.fd, self.path)
        except (FileExistsError, FileNotFoundError) as error:
            if over is None and isinstance(error, FileNotFoundError):
                self._nameless = False  # no /proc to name a nameless file by
            return ours.fresh and ours.opens_at(self.path)  # over NFS the answer may be untrue
        return not ours.fresh or ours.opens_at(self.path)

    def _prepare(self, *, named: bool) -> RecordFile:
        """A record that nobody can find yet; `named`: under a name of its own, to be renamed."""
        nonce = os.urandom(16).hex()
        ours = blank(self.table, self.path, self.mode, nonce, nameless=self._nameless)
        try:
            self._nameless = not ours.name
            place = self._place or place_at(ours)
            near = place.one_kernel
            ours.fresh = not near
            if not near:
                self._refuse_ground(ours, place)
            witness = near and ours.bear_witness()
            if self._exactly:
                self.files.fchmod(ours.fd, self.mode)
            ours.write(self._worded(ours, nonce, place, witness))
            if named and not ours.name:
                name = temporary(self.path, nonce)
                self.files.link_fd(ours.fd, name)
                ours.name = name
        except BaseException:
            ours.close()
            clean_up.forget_name(ours)
            raise
        return ours

    def _worded(self, ours: RecordFile, nonce: str, place: MountInfo, witness: bool) -> bytes:
        """The record of this grant, whose token is still to come."""
        key = (get_ident(), fork.generation, user_id(), place, witness)
        known = self._known
        if known is None or known[0] != key:  # another thread's, which may replace it meanwhile
            owner = self._owner or here(self.label)
            line = b"%d\n" % owner.pid
            text = RecordTemplate(
                self.evidence.kind, owner, self._ttl(), place, witness=witness, line=line
            )
            known = self._known = key, text
        ours.text, ours.nonce = known[1], nonce
        stamp = self.files.clock_ns() // 1000
        ours.content = ours.text.numbered(ours.ino, nonce, 0, stamp)
        return ours.content

    # ---- a dead holder of another tool, whose own breakers may be under way

    def _in_place(self, dead: RecordFile, marker: ParsedRecord) -> float | None:
        """Seconds to settle after the record was written into the dead file; None: rename over it.

        PEERS tells for whose files. It must be nobody else's, under one name, and no longer than
        the record, which is written in one piece.
        """
        if marker.state != OLDER or dead.fresh:
            return None
        found = self.files.fstat(dead.fd)
        if found.st_nlink != 1 or found.st_uid != self._user() or len(marker.content) > ROOM:
            return None
        return PEERS.get((marker.kind, marker.owner is not None and marker.owner.host is not None))

    def _adopt(
        self, dead: RecordFile, case: Judgement, settle: float
    ) -> Grant | Held | Judgement | None:
        """4, in place: no name is touched, so whoever else judged the file robs nobody by it."""
        try:
            witness = dead.bear_witness()
        except FileNotFoundError:
            return self._busy(case, BEING_MOVED)  # or a judge asks for it at this moment
        sent_at = 0.0 if self.terms is None else self.runtime.now()
        place = self._place or place_at(dead)
        content = self._worded(dead, os.urandom(16).hex(), place, witness)
        self.files.fchmod(dead.fd, self.mode)
        # Within one tick of the kernel's clock the time of change would stay what it was.
        if self.files.clock_ns() - self.files.fstat(dead.fd).st_mtime_ns < TICK * 1e9:
            self.files.pause(TICK)
        right = self._right(dead, case)
        if right is not True:
            return right or None
        dead.write(content)
        if settle:
            self.files.pause(settle)
        if not dead.is_at(self.path):  # a breaker has it, and looks whether it is as it was
            dead.write(case.marker.content)
            self.files.truncate(dead.fd, len(case.marker.content))
            return None
        dead.let_go = self._give_back  # L6  from here on, whatever comes between
        self.files.guard(dead.fd, False)
        return (self.enter or self._enter)(dead, sent_at)

    def _enter(self, ours: RecordFile, sent_at: float) -> Grant | Held:
        """The lock is ours: the token, and the grant.

        L4, L8  Who comes to it after its deadline may have drawn a greater token than whoever holds
        the lock by now: nobody is given it.
        """
        now, nonce = self.files.clock_ns(), ours.nonce
        stamp = now // 1000
        drawn = draw(self.files, self.path, self._last, stamp, self.mode, self._exactly, ours.fresh)
        token, reason = (drawn, None) if isinstance(drawn, int) else (None, drawn)
        if token is not None:
            self._last = token
            ours.write(ours.text.drawn(ours.content, len(nonce), token, stamp))
        if ours.fresh:
            hand_back(self.files, ours.fd)
        ours.content = b""
        deadline = None if self.terms is None else self.terms.deadline(sent_at)
        if deadline is not None and (late := self.runtime.now()) >= deadline:
            return Held(TOO_SLOW, ours.key, WaitHint(late))  # not granted: it is withdrawn
        ours.granted = True
        return made(Grant, (self.path, nonce, token, reason, now, ours.key, [ours], deadline))

    def judged_of(self, found: RecordFile) -> Judgement:
        """Who is there, whether it lives, and when time alone may change that."""
        place = self._place or place_at(found)
        self.near = place.one_kernel
        found.fresh = not self.near
        return self.evidence.judged(self.path, found, place, self.runtime.now)

    def _refuse_ground(self, found: RecordFile, place: MountInfo) -> None:
        """L2  Without a ttl only where death can be proven; nowhere without a lock to guard by."""
        if self.terms is None:
            raise needs_ttl(self.path, self.kind, place.kind)
        if found.name and not self._guards:
            self._guards = found.can_be_guarded()
            if not self._guards:
                raise UnsafeGround(no_guard(self.path, place), name=self.path)

    @property
    def watched(self) -> tuple[str, Callable[[], bool]]:
        """The path whose change may mean a loss, and whether another machine may change it."""
        return self.at, self.far

    # ---- the life and the end of a grant

    def _gone(self, ours: RecordFile) -> Lost | None:
        """One lstat(2); over NFS an open(2), and the names of its folder asked for anew."""
        try:
            return None if ours.is_at(self.path) else Lost(GONE, gone=True)
        except OSError as error:
            pass_up(error)
            return Lost(f"its record cannot be looked at any more ({error.strerror})", gone=True)

    def _give_back(self, ours: RecordFile) -> Lost | None:
        """L5  Guard our record, look that the path leads to it, unlink it."""
        if not ours.guard():
            return Lost("somebody is taking it over", gone=True)
        if not ours.is_at(self.path):
            return Lost(GONE, gone=True)
        try:
            self.files.unlink(self.path)
        except FileNotFoundError:
            pass  # over NFS: done, and the answer was lost
        return None

    def drop(self, grant: Grant) -> Lost | None:
        """Let go, in plain code."""
        link = holding.get(grant.key)
        if link is not None and link[0] is grant:
            holding.pop(grant.key, None)  # the next record has another key: these would add up
        return super().drop(grant)

    def _ended(self, ours: RecordFile) -> Lost | None:
        return self._give_back(ours)

    def _look(self) -> Judgement | None:
        found = look(self.table, self.path, write=False)
        if found is None:
            return None
        try:
            return self.judged_of(found)
        finally:
            found.close()

    async def renew(self, grant: Grant) -> Grant | Lost:
        """L8  Through a descriptor of its own: the grant's may be closed by a release meanwhile."""
        ours = next(iter(grant.handle), None)
        if ours is None:
            return Lost(RELEASED)
        if self.terms is None:
            return grant
        sent_at = self.runtime.now()
        found = look(self.table, self.path, fresh=ours.fresh)
        if found is None:
            return Lost(GONE, gone=True)
        try:
            if found.key != ours.key or ours.nonce.encode() not in found.read():
                return Lost(GONE, gone=True)
            ours.renewals += 1
            text, at = ours.text.renewed(ours.renewals, self.files.clock_ns() // 1000)
            self.files.pwrite(found.fd, text, at)
            if ours.fresh:
                hand_back(self.files, found.fd)
        finally:
            found.close()
        return replace(grant, deadline=self.terms.deadline(sent_at))
