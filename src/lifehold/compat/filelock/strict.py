"""`StrictSoftFileLock`: a lock of claims that nobody takes over, not even from the dead.

For file systems where no death can be proven and an overlap is worse than a lock that stays. What
ours adds: a waiter is woken when a claim goes, and `Timeout` says whose it is and whether that
process lives. A claim that a killed process left stays, as with filelock, until `force_break()`.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import stat
import sys
from typing import Any

from ...core.deadline import NEVER
from ...core.grant import Grant, Held, Holder, Lost, Single
from ...core.owner import DEAD, UNKNOWN, Owner
from ...local.ground import is_far, place_at
from ...local.handles import OF_PARENT, RELEASED
from ...local.judge import NO_HINT, WaitHint
from ...local.record_handle import look
from ...local.refusals import JUST_RELEASED
from ...runtime import clock, fork
from . import construction, native_mechanism, owner_record, pidfile, pollers, waits
from .api import MechanismFileLock
from .construction import absolute, canonical
from .errors import SoftFileLockProtocolError, tell_path
from .record_folder import NotAFolder
from .soft import MALFORMED
from .strict_claims import (
    GRACE,
    RETRY,
    Claims,
    PrivateRecordTaken,
    claim_name,
    is_of_ours,
    new_token,
    parts_of,
    public_name,
    published,
    reclaim,
    record,
    server_time,
    without_links,
)
from .system_calls import TABLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from ...core.acquire import Ask
    from .errors import Timeout
    from .strict_claims import StrictSoftFileClaim
    from .waits import AcquireRequest, LockHold

LOGGER = logging.getLogger("lifehold")
FOLLOWING = ["wait longer; or, when its holder is gone for good, force_break() its claims by name"]


class StrictSoftFileLock(MechanismFileLock):
    """A lock by hard-linked claims beside a file. Fails closed."""

    _lifetime_supported = False
    _widest = construction.DEFAULT_POLL
    _ageless = "a strict claim is never broken by age, only by force_break()"

    def _check_options(self) -> None:
        waits.living.add(self)
        if self._on_acquired is not None:
            raise ValueError(f"on_acquired is not supported by {type(self).__name__}")

    def _made(self, path: str) -> object:
        found = self._kernel
        return (
            StrictFile(canonical(path), self.lock_file, self._runtime, TABLE, self._open_mode())
            if found is None or found.path != canonical(path)
            else found
        )

    async def _let_pollers_in(self, want: AcquireRequest) -> None:
        path = canonical(absolute(self._context.lock_file))
        await pollers.let_in(path, want, self._runtime)

    def _end_own(self, hold: LockHold) -> None:
        if hold.grant is None:
            super()._end_own(hold)
            return
        lost = native_mechanism.drop(self._kernel, hold.grant, hold.lease)
        hold.fd = hold.grant = hold.lease = None  # not when a claim of ours is still there
        if lost:
            LOGGER.warning("%r was lost: %s", self.lock_file, lost)

    def _there(self) -> StrictFile:
        path = self._context.hold.path or absolute(self.lock_file)
        return StrictFile(canonical(path), self.lock_file, self._runtime, TABLE, self._open_mode())

    def _refused(self, waited: float | None) -> Timeout:
        if self._kernel is None:
            return super()._refused(waited)
        later = waited is None
        return native_mechanism.kernel_refusal(
            self._kernel, self.lock_file, waited, FOLLOWING, later=later
        )

    @property
    def claims(self) -> tuple[StrictSoftFileClaim, ...]:
        """The claims that are there. Raises SoftFileLockProtocolError."""
        return tuple(self._there().claims.seen(tidy=False, proven=False))

    @property
    def lock_path_occupant(self) -> str | None:
        """What stands at the path and is not the sentinel, in words; None for nothing."""
        try:
            _, occupant, slot = self._there().occupant()
        except FileNotFoundError:
            return None
        if slot is not None:
            slot.close()
            return None
        return occupant

    def force_break(self, claim_name: str) -> None:
        """Remove one claim by its name: its owner may still be inside, and others come in.

        Raises ValueError for what is no name, FileNotFoundError for a name that is not there.
        """
        wrong = not claim_name or claim_name.startswith(".")
        if wrong or any(each in claim_name for each in ("/", "\\", "\x00")):
            raise ValueError("claim_name must be one public claim basename")
        claims = self._there().claims
        try:
            if claim_name not in claims.folder.names():
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), claim_name)
            claims.removed(claim_name)
        except NotAFolder as error:
            raise OSError(errno.ENOTDIR, str(error), error.where) from error


ODD = {stat.S_IFDIR: "a directory", stat.S_IFLNK: "a symlink"}


# ------------------------------------------------------------------------------------------------
# The mechanism of `StrictSoftFileLock`: a doorway of claims, with which no death is ever inferred.
#
# Promise: at most one holder, among ours and filelock's on the same path, on any file system with
# hard links. Nobody's claim is ever removed but by its owner, or by order: who is killed leaves a
# lock that stays until `force_break()`.
#
# Acquire   Look: any claim, and it is held. Publish an intent with a random token. Look again: a
#           held claim, or a smaller token than ours, and we withdraw. Link our intent to a held
#           claim, and keep both. Look a last time: both are there, and no smaller token: the lock
#           is ours.
# Release   Unlink the held claim, then the intent.
#
# How it could fail, and what keeps it:
# - Two publish at once: both intents are there before either looks again; the smaller one stays.
# - A look that runs beside the making of a held claim may miss it; the intent beside it was there
#   before, so every look lists it.
# - An owner of a soft lock's file at the path is met by the sentinel that has to stand there, and
#   which reads as nobody's soft lock to anybody: who wants the one cannot have the other.
# - A name over NFS may be a client's memory: each claim is asked of the server by a link.


NO_TOKEN = "the claims of filelock's protocol have no room for a token"  # noqa: S105
GONE = "its claims were removed: others may be in"


class StrictLockHandle(Single):
    """Ours: the sentinel's open file, and the names that are to go."""

    __slots__ = ("claims", "fd", "generation", "names", "slot")

    def __init__(self, slot: Any, claims: Claims) -> None:
        self.slot, self.fd, self.generation = slot, slot.fd, fork.generation
        self.names: list[str] = []
        self.claims = claims

    def withdraw(self) -> None:
        """Remove what is ours; what cannot be removed stays in `names`, and raises OSError."""
        failed: list[Exception] = []
        for name in list(self.names):
            try:
                self.claims.removed(name)
            except FileNotFoundError:
                self.names.remove(name)
            except NotAFolder as error:
                failed.append(OSError(errno.ENOTDIR, str(error), error.where))
            except OSError as error:
                failed.append(error)
            else:
                self.names.remove(name)
        if len(failed) > 1:
            raise BaseExceptionGroup("strict claim release failed", failed)
        if failed:
            raise failed[0]

    _ending = staticmethod(sys.is_finalizing)

    def __del__(self) -> None:
        """L6  What an exception between two bytecodes drops."""
        if self.names and not self._ending() and self.generation == fork.here():
            with contextlib.suppress(Exception):
                self.withdraw()


class MetClaimants(pollers.MetPeer):
    """A strict lock that another program claims now and then."""

    def __init__(self, path: str, where: str) -> None:
        super().__init__(path)
        self._where = where

    def looked(self) -> bool:
        """Whether a claim of another program's is there."""
        try:
            parts = [parts_of(name) for name in os.listdir(self._where)]
        except OSError:
            return False
        return any(part is not None and not is_of_ours(part[1]) for part in parts)


class StrictFile:
    """The mechanism of one path."""

    path: str
    lock_file: str
    mode: int
    files: Any
    table: Any
    claims: Claims
    runtime: Any
    _seen: Any = None
    _place: Any = None
    verdict = staticmethod(pidfile.verdict)
    exclusive, safety, terms = True, 1.0, None

    def __init__(
        self,
        path: str,
        lock_file: str,
        runtime: object,
        table: Any,
        mode: int,
        *,
        claims: Claims | None = None,
        words: Any = record,
    ) -> None:
        self.path, self.runtime, self.table, self.files = path, runtime, table, table.files
        self.label, self.mode, self.lock_file = "", mode, lock_file
        self.claims = claims or Claims(lock_file, path, self.files)
        self.words = words  # the record of a claim of ours
        self._seen = None
        self.left: list[StrictLockHandle] = []  # of ours, whose removal has failed
        self._near: bool | None = None

    def far(self) -> bool:
        """Whether its calls may wait for a file server."""
        return is_far(self.path)

    # ---- one try

    async def try_acquire(self, ask: Ask) -> Grant | Held:
        return self.attempt()

    def attempt(self) -> Grant | Held:
        """One try that does not wait. Raises OSError."""
        try:
            return self._tried()
        except OSError as error:
            tell_path(error, self.path)
            raise

    def _tried(self) -> Grant | Held:
        if self._near is None:
            self._near = not self.far()
            self.claims.table = self.table if self._near else None
        self._withdraw_left()
        try:
            self.claims.make(self.mode | (self.mode & 0o444) >> 2, self._settled)
        except NotAFolder as error:
            raise SoftFileLockProtocolError(self.lock_file, None, str(error)) from error
        sentinel, due = self._sentinel()
        if sentinel is None:
            return Held("a soft lock's owner is at its path", hint=WaitHint(due))
        ours = StrictLockHandle(sentinel, self.claims)
        try:
            if self._through_the_door(ours):
                now = self.files.clock_ns()
                mark = os.urandom(8).hex()
                return Grant(self.path, mark, None, NO_TOKEN, now, sentinel.key, [ours])
        except BaseException:
            self._given_up(ours)
            raise
        self._given_up(ours)
        return Held("another claim is there")

    def _settled(self, fd: int, found: os.stat_result) -> None:
        """Narrow, and sticky: nobody else may remove our claims."""
        mode = self.mode | (self.mode & 0o444) >> 2
        right = found.st_mode & 0o7000 | found.st_mode & mode & 0o777 | stat.S_ISVTX
        if found.st_uid == os.geteuid() and right != stat.S_IMODE(found.st_mode):
            os.fchmod(fd, right)

    def _withdraw_left(self) -> None:
        """What could not be removed last time. Each is taken by one thread."""
        while self.left:
            ours = self.left.pop()
            try:
                ours.withdraw()
            except BaseException:
                self.left.append(ours)
                raise

    def _look(self, ours: Iterable[str] = ()) -> list[Any]:
        found = self.claims.seen(tidy=True, proven=not self._near, ours=ours)
        if self._near and not all(is_of_ours(each.token) for each in found):
            pollers.met(self.path, lambda: MetClaimants(self.path, self.claims.where))
        return found

    def _through_the_door(self, ours: StrictLockHandle) -> bool:
        if self._look():
            return False
        token = new_token()
        intent, held = claim_name("intent", token), claim_name("held", token)
        ours.names = [intent]
        try:
            with self.claims.entered() as folder:
                published(folder, intent, self.words(token), self.mode)
        except PrivateRecordTaken:
            return False
        except FileExistsError:
            ours.names = []  # another's
            return False
        except OSError as error:
            raise without_links(self.lock_file, error) or error from None
        if not self._is_first(intent):
            return False
        ours.names = [held, intent]
        try:
            with self.claims.entered() as folder:
                folder.linked(intent, held)
        except OSError as error:
            if isinstance(error, FileExistsError):
                ours.names = [intent]
            raise without_links(self.lock_file, error) or error from None
        return self._stands(ours, token)

    def _is_first(self, intent: str) -> bool:
        """Whether our intent is the smallest, and none is held."""
        found = self._look((intent,))
        names = [claim.name for claim in found]
        return bool(names) and min(names) == intent and all(each.state != "held" for each in found)

    def _stands(self, ours: StrictLockHandle, token: str) -> bool:
        """The last look: both of ours are there, and nobody's is smaller."""
        found = self._look(ours.names)
        both = set(ours.names) <= {claim.name for claim in found}
        return both and min(claim.token for claim in found) == token

    def _given_up(self, ours: StrictLockHandle) -> None:
        try:
            ours.withdraw()
        except BaseException:
            self.left.append(ours)
            raise
        finally:
            ours.slot.close()

    # ---- waiting, the end, and questions

    async def wait(self, ask: Ask, until: float) -> Grant | Held:
        """Sleep until a claim goes, then one try."""
        # Of this waiter: another thread's is another.
        hint: WaitHint = NO_HINT if ask.slot is None else ask.slot
        limit = min(until, hint.due, self.runtime.now() + self.safety)
        await self.runtime.changed(ask, self.claims.where, limit, blind=self.far())
        answer = self.attempt()
        ask.slot = answer.hint if isinstance(answer, Held) else None
        return answer

    def drop(self, grant: Grant) -> Lost | None:
        """Let go. Raises OSError when a claim stays: the lock is then still held."""
        ours = next(iter(grant.handle), None)
        if ours is None:
            return Lost(RELEASED)
        if ours.generation != fork.here():
            return Lost(OF_PARENT)
        there = self.check(grant)
        ours.withdraw()
        grant.handle.clear()
        ours.slot.close()
        return there

    async def release(self, grant: Grant) -> Lost | None:
        return self.drop(grant)

    def check(self, grant: Grant) -> Lost | None:
        """Whether both claims of ours are there."""
        ours = next(iter(grant.handle), None)
        if ours is None:
            return Lost(RELEASED)
        if ours.generation != fork.here():
            return Lost(OF_PARENT)
        try:
            with self.claims.entered() as folder:
                there = all(folder.key_at(name) is not None for name in ours.names)
        except (OSError, NotAFolder):
            there = False
        return None if there else Lost(GONE, gone=True)

    def inspect(self, *, held: bool = False) -> Holder | None:
        try:
            found = self.claims.seen(tidy=False, proven=False)
            if not found:
                return Holder(evidence=JUST_RELEASED) if held else None
        except OSError as error:
            return Holder(evidence=str(error))
        first = min(found, key=lambda claim: (claim.state != "held", claim.token))
        named = pidfile.PidFileOwner(first.pid, first.hostname, first.start)
        seen = pidfile.verdict(named, None, not self.far())
        lock = f"{self.path} (strict soft lock of filelock's format)"
        owner = Owner(first.pid, host=first.hostname)
        state = UNKNOWN if seen.state == DEAD else seen.state  # a claim stays whoever is dead
        return Holder(owner, None, state, seen.evidence, lock=lock)

    # --------------------------------------------------------------------------------------------
    # What stands at a strict lock's path: the sentinel, or the file of a soft lock's owner.
    #
    # The sentinel is there for ever, and is nobody's soft lock to whoever reads it as one; so the
    # two kinds exclude each other. Rule: a soft lock's living owner is waited for; what else is
    # there is an error, since no claim shows it and waiting would never end. Nothing at the path is
    # ever removed.
    #
    # The questions of `StrictFile` about its path.

    def _sentinel(self) -> tuple[Any, float]:
        """The sentinel's open file; else None, and when time alone may change that."""
        until = self.runtime.now() + GRACE
        name = os.path.basename(self.path)
        for _ in range(1000):
            found = self._occupied(until)
            if found is not None:
                return found
            self._swept()
            try:
                with self.claims.above() as folder:
                    published(folder, name, pidfile.STRICT, self.mode)
            except PrivateRecordTaken:
                break
            except FileExistsError:
                continue
            except OSError as error:
                raise without_links(self.lock_file, error) or error from None
        return None, NEVER

    def _occupied(self, until: float) -> tuple[object, float] | None:
        """None: nothing is there."""
        while True:
            try:
                state, occupant, slot = self.occupant()
            except FileNotFoundError:
                return None
            if slot is not None or state == "held":
                return slot, NEVER
            reason = f"expected the strict sentinel at the lock path, found {occupant}"
            if state == "unparsable":
                due = self._since() + MALFORMED
                if self.runtime.now() < due:
                    return None, due
                reason += f", unchanged for {MALFORMED:g} seconds"
            if state in ("unparsable", "exited") or self.runtime.now() >= until:
                raise SoftFileLockProtocolError(self.lock_file, None, reason)
            clock.pause(RETRY)

    def occupant(self) -> tuple[str, str, Any]:
        """What stands at the path: its state, in words, and open if it is the sentinel.

        Raises FileNotFoundError.
        """
        mode = self.files.lstat(self.path).st_mode
        if not stat.S_ISREG(mode):
            return "damaged", ODD.get(stat.S_IFMT(mode), "a special file"), None
        try:
            slot = look(self.table, self.path, write=False)
            if slot is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.path)
            content: bytes = self.files.pread(slot.fd, pidfile.LONGEST + 1, 0)
        except FileNotFoundError:
            raise
        except PermissionError as error:
            return "held", f"a file it cannot read ({error.strerror})", None
        except OSError as error:
            return "damaged", f"a file it cannot read ({error.strerror})", None
        if len(content) > pidfile.LONGEST:
            slot.close()
            return "damaged", f"a file it cannot read (exceeds {pidfile.LONGEST} bytes)", None
        if content == pidfile.STRICT:
            return "sentinel", "the strict sentinel", slot
        near = (self._place or place_at(slot)).one_kernel
        slot.close()
        return (*self._owner(content, near), None)

    def _owner(self, content: bytes, near: bool) -> tuple[str, str]:
        mark, named = owner_record.parse(content), pidfile.read(content)
        if mark is not None:
            pid, host = mark.pid, mark.hostname
        elif named is not None:
            pid, host = named.pid, named.host
        else:
            odd = "a file that is neither the sentinel nor a soft-lock marker it can parse"
            return "unparsable", odd
        if named is not None and self.verdict(named, None, near).state == DEAD:
            return "exited", f"a soft-lock marker left by pid {pid} on {host}, which has exited"
        return "held", f"a soft-lock marker held by pid {pid} on {host}"

    def _since(self) -> float:
        """When we first saw it as it is, on our own clock."""
        now = self.runtime.now()
        try:
            found = self.files.lstat(self.path)
        except FileNotFoundError:
            return float(now)
        key, seen = (found.st_ino, found.st_mtime_ns, found.st_size), self._seen
        if seen is None or seen[0] != key:
            self._seen = seen = key, now
        return float(seen[1])

    def _swept(self) -> None:
        """Remove what crashes have left of making the sentinel."""
        name = os.path.basename(self.path)
        now: list[float | None] = []
        try:
            with self.claims.above() as folder:
                for each in folder.names():
                    if public_name(each) == name:
                        if not now:
                            now.append(server_time(folder))
                        reclaim(folder, each, now, True)
        except OSError as error:
            reason = f"cannot reclaim sentinel private records: {error.strerror or error}"
            raise SoftFileLockProtocolError(self.lock_file, None, reason) from error
