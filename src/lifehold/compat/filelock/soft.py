"""`SoftFileLock`: a lock by a file's being there, beside real filelock on the same files.

What ours adds: a waiter is woken when the file goes; a holder's death is proven across PID
namespaces; a file is never seen half written; and a dead holder's lock is taken over on file
systems that cannot exchange names. The rules are in soft.py.
"""

from __future__ import annotations

import contextlib
import errno
import os
import warnings
from typing import Any

from ...core.deadline import NEVER
from ...core.grant import Grant, Held, Holder, Lost
from ...core.owner import ALIVE, DEAD, UNKNOWN, LifeVerdict, Owner
from ...local import clean_up
from ...local import record as form
from ...local.files import LOCK_EX, LOCK_NB, LOCK_UN
from ...local.ground import place_at
from ...local.judge import NO_HINT, PAUSE, WaitHint
from ...local.record_handle import GONE, RecordFile, blank, look
from ...local.record_lock import RecordLock
from ...local.refusals import JUST_RELEASED, refused
from ...runtime import clock, fork, process
from . import native_mechanism, pidfile, pollers
from .api import MechanismFileLock
from .construction import UNSET_FILE_MODE, absolute
from .errors import SoftFileLockLifetimeWarning
from .system_calls import TABLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ...core.acquire import Ask
    from ...local.handles import Descriptors
    from .errors import Timeout
    from .waits import LockHold

FOLLOWING = ["wait longer, or, when its holder is gone for good, break_lock()"]


class SoftFileLock(MechanismFileLock):
    """A lock that is there for as long as its file is. Needs no locks of the file system.

    `lifetime`: seconds of age after which others may break it, against a live holder too.
    """

    _lifetime_supported = True

    @classmethod
    def _about_lifetime(cls, level: int) -> None:
        """A file's age is no proof of a death: who asks for it is told."""
        if not cls._lifetime_supported:
            super()._about_lifetime(level + 1)
            return
        mark = "Async" if cls.__name__.startswith("Async") else ""
        text = (
            f"{cls.__name__}(lifetime=...) uses age-based expiry and can overlap a live holder; "
            f"use {mark}SoftFileLease for expiry or {mark}StrictSoftFileLock for fail-closed "
            "locking"
        )
        warnings.warn(text, SoftFileLockLifetimeWarning, stacklevel=level)

    def _check_options(self) -> None:
        if self._preserve_lock_file:
            raise ValueError(f"preserve_lock_file=True is not supported by {type(self).__name__}")
        if self._on_acquired is not None:
            raise ValueError(f"on_acquired is not supported by {type(self).__name__}")

    def _made(self, path: str) -> object:
        mode = self._context.mode
        return SoftFileMechanism(
            path, self._runtime, TABLE, None if mode == UNSET_FILE_MODE else mode
        )

    def _end_brought(self, fd: int, path: str) -> None:
        super()._end_brought(fd, path)
        with contextlib.suppress(OSError):
            TABLE.files.unlink(path)

    def _found(self, hold: LockHold) -> Any:
        found = super()._found(hold)
        found.still_there = native_mechanism.refuse_lost_folder
        found.lifetime = self._context.lifetime
        if found.lifetime is not None and getattr(self, "_run_in_executor", False):
            self._afar = True  # the question for the age is not asked in the loop's thread
        return found

    def _refused(self, waited: float | None) -> Timeout:
        if self._kernel is None:
            return super()._refused(waited)
        later = waited is None
        error = native_mechanism.kernel_refusal(
            self._kernel, self.lock_file, waited, FOLLOWING, later=later
        )
        path = self._where()

        def tell(error: Timeout) -> None:
            error._named = self._out_of_sight(path)

        error._unnamed.append(tell)
        if not later:
            error._look()
        return error

    def _out_of_sight(self, path: str) -> str | None:
        """A holder that nobody here can prove dead, for whoever has to decide about it."""
        content = self._content(path)
        if content is None:
            return None
        if not content:
            return "an owner that recorded no PID"
        named = pidfile.read(content)
        if named is None or named.host == pidfile.host_name():
            return None
        held = self._kernel.inspect(held=True)
        if held is not None and held.alive != UNKNOWN:
            return None
        return f"pid {named.pid} on {named.host}"

    def _where(self) -> str:
        """The path, of the hold that there is or would be now."""
        return self._context.hold.path or absolute(self.lock_file)

    def _content(self, path: str = "") -> bytes | None:
        """What the file says; None when there is none that could be read."""
        path = path or self._where()
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            return os.read(fd, pidfile.LONGEST + 1)
        except OSError:
            return None
        finally:
            os.close(fd)

    def _named(self) -> pidfile.PidFileOwner | None:
        content = self._content()
        if content is None or content.startswith(pidfile.SECOND):
            return None
        return pidfile.read(content)

    @property
    def pid(self) -> int | None:
        """The process that the file names; None when there is none."""
        named = self._named()
        return None if named is None else named.pid

    @property
    def is_lock_held_by_us(self) -> bool:
        """Whether the file names this process."""
        named = self._named()
        return named is not None and pidfile.is_ours(named)

    def break_lock(self) -> None:
        """Remove the file, whoever holds the lock. Who does finds out by `lease.check()`."""
        try:
            os.unlink(self._where())
        except OSError:
            return


AGE, LONGEST_NUMBER = 300.0, 10  # liblockfile's seconds without a touch; digits of a process
MALFORMED = 2.0  # seconds for which what cannot be read is left alone, while it stays as it is


def breaker(content: bytes) -> int:
    """Whom filelock's placeholder names, which one of it leaves at a path while at work; or 0."""
    word, _, number = content.partition(b"\n")
    number = number.removesuffix(b"\n")
    return int(number) if word == b"filelock/break" and number.isdigit() else 0


# ------------------------------------------------------------------------------------------------
# The mechanism of `SoftFileLock`: a lock that is there for as long as its file is.
#
# Promise: at most one holder, among ours and filelock's of today on the same path; a live holder is
# robbed only by a `lifetime` that somebody asks for, as filelock does it. A dead one is replaced at
# once where its death can be proven (pidfile.py), also on file systems that cannot exchange names.
#
# Acquire   A whole record without a name is locked (the witness), and linked to the path.
# Adopt     A file whose holder is *proven* dead is taken by writing our record into it: no name is
#           touched, so no breaker of filelock's can be robbed by it, and a crash strands nothing.
# Replace   A file that nobody can read, for 2 s unchanged on our clock, or older than `lifetime`,
#           is exchanged (pidfile.py): its writer may live, and would remove by its inode what it
#           had made.
# Release   Guard the file, look that the path leads to it, unlink it. Displaced: write "released".
#
# How it could fail, and what keeps it:
# - Two of ours adopt at once: both need flock(2) of that inode, and look at the path afterwards.
# - filelock's breaker looked before we wrote, and exchanges afterwards: it compares the time of
#   change too, which we have set to another, and gives our file back.
# - It exchanged before we wrote: the path does not lead to our file afterwards. We have lost, and
#   write "released", so that nobody waits for us should the file come back.
# - An empty file is a holder of an old filelock, or one in the middle of its first write: never
# ours.
# - A release looks and then unlinks; in between a breaker with an old judgement may put its own
#   file there. It finds its taken file changed, wants to give it back, finds no lock, and removes
#   both.


RETRY, STRAYS = 0.05, 100
NO_TOKEN = "a file of filelock's format has no room for a token"  # noqa: S105
BUSY = Held("it changes hands just now")
TICK = 1_000_000  # nanoseconds: two times of change that differ by this differ for everybody


def no_matter(path: str) -> None:
    """Whatever becomes of its folder, it is made anew."""


class SoftFileMechanism(RecordLock):
    """The mechanism of one path."""

    lifetime: float | None = None
    _place: Any = None
    words: Any = pidfile
    _seen: tuple[object, float] | None = None
    kind = "soft"
    safety = 2.0  # seconds between two looks of a waiter, at most: whatever events come
    still_there = staticmethod(no_matter)  # asked of the path between two tries of a wait
    clock: Any = clock

    def __init__(
        self,
        path: str,
        runtime: Any,
        table: Descriptors,
        mode: int | None,
        *,
        place: Any = None,
        words: object = pidfile,
    ) -> None:
        super().__init__(path, runtime, table=table, mode=mode, place=place)
        self._place = place
        self.words = words  # who we are, and who lives
        self.mode = (0o666 if mode is None else mode) & ~0o022  # nobody else may write a record
        self._nameless = True

    def attempt(self) -> Grant | Held:
        """One try that does not wait."""
        try:
            for _ in range(STRAYS):
                answer = self._publish() or self._contest()
                if answer is not None:
                    return answer
        except OSError as error:
            raise refused(self.path, error) from error
        return BUSY

    # ---- publish

    def _publish(self) -> Grant | None:
        """None: something is there."""
        if self.files.there(self.path):
            return None
        ours = self._prepared()
        try:
            ours.let_go = (
                self._give_back
            )  # from here on it is withdrawn, whatever comes between (L6)
            if self._linked(ours):
                clean_up.forget_name(ours)
                return self._entered(ours)
            ours.let_go = None
        finally:
            if not ours.granted:
                ours.close()
                clean_up.forget_name(ours)
        return None

    def _linked(self, ours: SoftLockRecord) -> bool:
        try:
            if ours.name:
                self.files.link(ours.name, self.path)
            else:
                self.files.link_fd(ours.fd, self.path)
        except FileExistsError:
            return ours.fresh and ours.is_at(self.path)  # over NFS the answer may be untrue
        except FileNotFoundError:
            self._nameless = False  # no /proc to name a nameless file by
            return False
        return not ours.fresh or ours.is_at(self.path)

    def _prepared(self) -> SoftLockRecord:
        """A whole record of ours that is not the lock yet."""
        ours: Any = blank(
            self.table,
            self.path,
            self.mode,
            os.urandom(16).hex(),
            nameless=self._nameless,
            kind=SoftLockRecord,
        )
        try:
            self._nameless = self._nameless and not ours.name
            place = self._place or place_at(ours)
            ours.fresh = not place.one_kernel
            witness = place.one_kernel and ours.bear_witness()
            if self._exactly:
                self.files.fchmod(ours.fd, self.mode)
            ours.write(self.words.record(witness))
        except BaseException:
            ours.close()
            clean_up.forget_name(ours)
            raise
        made: SoftLockRecord = ours
        return made

    def _entered(self, ours: SoftLockRecord) -> Grant:
        ours.let_go = self._give_back
        mark = os.urandom(8).hex()
        now = self.files.clock_ns()
        grant = Grant(self.path, mark, None, NO_TOKEN, now, ours.key, [ours], None)
        ours.granted = True
        return grant

    # ---- what is there already

    def _contest(self) -> Grant | Held | None:
        """None: look again."""
        found: Any = look(self.table, self.path, write=False, kind=SoftLockRecord)
        if found is None:
            return None
        over: Any = None
        try:
            content, case = self._judged(found)
            if not self._may_be_written(found):
                return None
            due = None if case.state == DEAD else self._due(found, content)
            if case.state == DEAD or (due is not None and self.runtime.now() >= due):
                # For writing only now: its close would tell all who wait, ourselves among them.
                over = look(self.table, self.path, kind=SoftLockRecord)
                if over is None or over.key != found.key:  # while the other is open
                    return None if over is None else self._changed()
                over.stamp = found.stamp
                found.close()
                take = self._adopt if case.state == DEAD else self._replace
                return take(over, content)
            hint = WaitHint(NEVER if due is None else due, self._near(pidfile.read(content)))
            return Held("" if case.state == ALIVE else case.evidence, found.key, hint)
        finally:
            for each in (found, over):
                if each is not None and not each.granted:
                    each.close()

    def _stranded(self, found: SoftLockRecord, pid: int) -> bool:
        """Whether a live holder's file lies aside, since the breaker named at the path died."""
        own = self.words.host_name()
        near = (self._place or place_at(found)).one_kernel

        def lives(named: pidfile.PidFileOwner) -> bool:
            other = (named.pid, named.host) != (pid, own)
            return bool(other and self.words.verdict(named, None, near).state != DEAD)

        def gone(number: int) -> bool:
            return bool(
                self.words.verdict(pidfile.PidFileOwner(number, own), None, near).state == DEAD
            )

        if pid and not gone(pid):
            pid = 0  # it is at work
        return pidfile.restored(self.files, self.path, found, (pid, self.words.pid()), lives, gone)

    def _adopt(self, found: SoftLockRecord, content: bytes) -> Grant | Held | None:
        """L3  Under its flock and its guard: write our record into the file."""
        named = pidfile.read(content)
        assert named is not None
        try:
            self.files.flock(found.fd, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            return self._try_soon()
        if not found.writable or not found.guard():
            return self._try_soon()
        if not found.is_at(self.path) or self._judged_content(found) != content:
            return self._changed()
        if self._stranded(found, named.pid):
            return self._try_soon()
        before = self.files.fstat(found.fd).st_mtime_ns
        found.displaced = True  # until we know that it is ours: a close says "released"
        witness = (self._place or place_at(found)).one_kernel
        found.write(self.words.record(witness))
        self.files.truncate(found.fd, len(self.words.record(witness)))
        now = self.files.clock_ns()
        calls: Any = self.files
        calls.stamp(found.fd, now if abs(now - before) > TICK else before + TICK)
        if not found.is_at(self.path):
            found.close()
            return None
        found.displaced = False
        found.unguard()
        return self._entered(found)

    def _judged_content(self, found: SoftLockRecord) -> bytes:
        return self.files.pread(found.fd, pidfile.LONGEST + 1, 0)

    def _changed(self) -> Held | None:
        """It is not what was judged; None when nothing is there any more."""
        # Somebody is at work, who was faster.
        return self._try_soon() if self.files.there(self.path) else None

    def _try_soon(self) -> Held:
        return Held(BUSY.reason, hint=WaitHint(self.runtime.now() + RETRY, pause=PAUSE))

    def _replace(self, found: SoftLockRecord, content: bytes) -> Grant | Held | None:
        """By an exchange, for what is not proven dead. See pidfile.py."""
        if not found.writable or not found.guard():
            return self._try_soon()
        if not found.is_at(self.path) or self._judged_content(found) != content:
            return self._changed()
        named = pidfile.read(content)
        if self._stranded(found, named.pid if named else breaker(content)):
            return self._try_soon()
        ours = self._prepared()
        try:
            if not self._put_aside(ours):
                return self._try_soon()
            if pidfile.replaced(self.files, self.path, found, found.stamp, ours, self.clock):
                return self._entered(ours)
        finally:
            if not ours.granted:
                ours.displaced = True
                ours.close()
                clean_up.forget_name(ours)
        return self._try_soon()

    def _put_aside(self, ours: SoftLockRecord) -> bool:
        """Give it a breaker's name, whole: who dies over an empty one leaves a lock for ever."""
        name, before = pidfile.aside(self.path, self.words.pid()), ours.name
        if before:
            self.files.rename(before, name)
        ours.name = name
        try:
            if not before:
                self.files.link_fd(ours.fd, name)
        except FileNotFoundError:
            self._nameless = False  # no /proc to name a nameless file by
            return False
        return True

    def _may_be_written(self, found: SoftLockRecord) -> bool:
        """False: it is gone. Raises PermissionError for one that is marked read-only, and is."""
        calls: Any = self.files
        if calls.fstat(found.fd).st_mode & 0o200 or calls.access(self.path):
            return True
        if not found.is_at(self.path):
            return False
        raise OSError(errno.EACCES, os.strerror(errno.EACCES), self.path)

    @property
    def watched(self) -> tuple[str, Callable[[], bool]]:
        """The path whose change may mean a loss, and whether another machine may change it."""
        return self.at, self.far

    # ---- the end of a grant

    def _gone(self, ours: RecordFile) -> Lost | None:
        try:
            return None if ours.is_at(self.path) else Lost(GONE, gone=True)
        except OSError as error:
            return Lost(f"its record cannot be looked at any more ({error.strerror})", gone=True)

    def _give_back(self, ours: Any) -> Lost | None:
        return ours.withdraw(self.path)  # type: ignore[no-any-return]

    def _ended(self, ours: RecordFile) -> Lost | None:
        return self._give_back(ours)

    # ---- waiting, and questions

    async def wait(self, ask: Ask, until: float) -> Grant | Held:
        """Sleep until something happens at the path, or time permits a try; then one try."""
        # Of this waiter: another thread's is another.
        hint: WaitHint = NO_HINT if ask.slot is None else ask.slot
        limit = min(until, hint.due, self.runtime.now() + self.safety)
        ask.pause = hint.pause
        await self.runtime.changed(ask, self.path, limit, blind=self.far(), pid=hint.pid)
        self.still_there(self.path)
        answer = self.attempt()
        ask.slot = answer.hint if isinstance(answer, Held) else None
        return answer

    # --------------------------------------------------------------------------------------------
    # What a soft lock's file is taken for: who holds it, and when time alone may change that.
    #
    # L2  What cannot be decided is UNKNOWN. What nobody can read is left alone for as long as it
    #     changes, and some time more on our own clock; an empty file, a strict lock's and one of
    #     lifehold's own kinds for ever.
    #
    # The questions of `SoftFileMechanism`. `lifetime`: seconds of a file's age, None for any.

    def _judged(self, found: SoftLockRecord) -> tuple[bytes, LifeVerdict]:
        content: bytes = self.files.first(found.fd, pidfile.LONGEST + 1)
        one_kernel = (self._place or place_at(found)).one_kernel
        named = pidfile.read(content)
        if not content:
            return content, LifeVerdict(UNKNOWN, "an owner that recorded no process")
        if content == pidfile.STRICT:
            return content, LifeVerdict(UNKNOWN, "a StrictSoftFileLock")
        if content.startswith(form.MAGIC):
            return content, LifeVerdict(UNKNOWN, "a lock of lifehold's own kinds")
        witness = found.asked() if one_kernel else None
        if named is not None and one_kernel and not named.witness:
            pollers.met(self.path)
        if named is None:
            return content, LifeVerdict(UNKNOWN, "it cannot be read as a record")
        return content, self.words.verdict(named, witness, one_kernel)

    def _due(self, found: SoftLockRecord, content: bytes) -> float | None:
        """When time alone permits to replace it; None for never."""
        if content.startswith(form.MAGIC):
            return None
        state = self.files.fstat(found.fd)
        found.stamp = state.st_mtime
        now, due = self.runtime.now(), NEVER
        if self.lifetime is not None:  # filelock's rule: the wall clock, against a live holder too
            due = now + self.lifetime - (self.files.clock_ns() / 1e9 - state.st_mtime)
        if pidfile.read(content) is None and not self._kept(content):
            due = min(
                due, self._unchanged_since(found, state, now) + self._patience(found, content)
            )
        return None if due == NEVER else due

    def _patience(self, found: SoftLockRecord, content: bytes) -> float:
        """Seconds for which what cannot be read is left alone while it stays as it is.

        L2  filelock's own rule counts for what filelock may have written. A number alone is what
        liblockfile and dotlockfile write, and theirs counts: by the process, else by age.
        """
        line = content[:-1]
        if not (content.endswith(b"\n") and line.isdigit() and len(line) <= LONGEST_NUMBER):
            return MALFORMED
        if not int(line):
            return AGE
        one_kernel = (self._place or place_at(found)).one_kernel
        named = pidfile.PidFileOwner(int(line), self.words.host_name())
        state = self.words.verdict(named, None, one_kernel).state
        return {DEAD: MALFORMED, ALIVE: NEVER}.get(state, AGE)

    def _unchanged_since(self, found: SoftLockRecord, state: Any, now: float) -> float:
        """When we first saw it as it is, on our own clock."""
        key = found.key, state.st_mtime_ns, state.st_ctime_ns
        if self._seen is None or self._seen[0] != key:
            self._seen = key, now
        return self._seen[1]

    def _kept(self, content: bytes) -> bool:
        """Whether it is left alone for ever, though nobody can read it as a record."""
        return content in (b"", pidfile.STRICT) or content.startswith(pidfile.SECOND)

    def inspect(self, *, held: bool = False) -> Holder | None:
        try:
            found: Any = look(self.table, self.path, write=False, kind=SoftLockRecord)
            if found is None:
                return Holder(evidence=JUST_RELEASED) if held else None
            try:
                content, case = self._judged(found)
                since = self.files.fstat(found.fd).st_mtime
            finally:
                found.close()
        except OSError as error:
            return Holder(evidence=f"its file cannot be read: {error.strerror}")
        named = pidfile.read(content)
        lock = f"{self.path} (soft lock of filelock's format)"
        if named is None:
            return Holder(None, since, case.state, case.evidence, lock=lock)
        owner = Owner(named.pid, host=named.host)
        if case.state == ALIVE and self._near(named):
            owner = process.owner_of(named.pid)
        return Holder(owner, since, case.state, case.evidence, lock=lock)

    def _near(self, named: pidfile.PidFileOwner | None) -> int | None:
        """A process number whose end can be told to us."""
        near = named is not None and named.host == self.words.host_name()
        return named.pid if near and named is not None else None


# ------------------------------------------------------------------------------------------------
# An open file of filelock's soft locks: ours, or one that is in our way.
#
# Rule: who gives one up that a breaker may have taken aside, and may put back, writes "released"
# into it first. Else the path would lead to the record of a process that lives and holds nothing.


class SoftLockRecord(RecordFile):
    """As `RecordFile`. `displaced`: it may be ours in words only; its close says so in the file.

    `stamp`: of another's, its time of change when it was judged.
    """

    __slots__ = ("began", "displaced", "missed", "stamp", "tenure", "trouble")

    def __init__(
        self, table: Descriptors, call: Callable[[], tuple[int, bool]], opened: object = None
    ) -> None:
        self.displaced, self.began, self.stamp = (
            False,
            0.0,
            0.0,
        )  # of a lease: before it could be seen
        self.tenure: object = None  # of a lease; the last look missed it, or met an error
        self.missed, self.trouble = False, None
        super().__init__(table, call, opened)

    def unguard(self) -> None:
        """Let others guard it."""
        self.table.files.guard(self.fd, False)

    def asked(self) -> bool | None:
        """Whether somebody who lives locks it. Nothing stays locked by the question."""
        found = self.has_witness()
        if found is False:
            self.table.files.flock(self.fd, LOCK_UN)
        return found

    def withdraw(self, path: str) -> Lost | None:
        """Remove our lock and close it (L5)."""
        self.displaced, refused = True, ""
        try:
            if self.guard():
                path = path if self.is_at(path) else self.moved(path)
                if path:
                    refused = path
                    self.table.files.unlink(path)
                    self.displaced = False
                    return None
        except (FileNotFoundError, NotADirectoryError):
            refused = ""  # its folder has another name now
        except PermissionError:
            if not self.removed(refused):
                raise
            return None
        finally:
            self.close()
        return Lost(GONE, gone=True)

    def removed(self, path: str) -> bool:
        """Whether it is gone now that it is closed: some file systems keep what is open."""
        self.close()  # it says "released" from here on, which no successor's does
        try:
            found = look(self.table, path, write=False) if path else None
            if found is not None:
                ours = found.key == self.key and found.read() == pidfile.RELEASED
                found.close()
                if ours:
                    self.table.files.unlink(path)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True

    def moved(self, path: str) -> str:
        """Where it is when its folder has another name now; empty when it is not there either."""
        name = os.path.basename(path)
        try:
            found = [os.readlink(f"/proc/self/fd/{self.fd}"), os.path.join(os.getcwd(), name)]
        except OSError:
            return ""
        for each in found:  # under another name a breaker has it aside
            if os.path.basename(each) == name and self.is_at(each):
                return each
        return ""

    def close(self, _gate: object = fork.gate, _fork: Any = fork) -> None:
        if self.displaced and self.generation == _fork.generation == _fork.here():
            self.displaced = False
            try:
                self.table.files.pwrite(self.fd, pidfile.RELEASED, 0)
                self.table.files.truncate(self.fd, len(pidfile.RELEASED))
            except OSError:
                pass  # it names a process that will end
        super().close(_gate, _fork)
