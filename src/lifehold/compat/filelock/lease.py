"""`SoftFileLease`: a soft lock that ends by itself when its holder falls silent.

A lease gives progress for exclusion: a holder that is paused for longer than `lease_duration` may
wake up beside a successor. What ours adds: `lease.check()` before a write says so by a clock, even
where no heartbeat has run; a loss is told at the deadline and not a heartbeat later; and one thread
keeps all leases of a process.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from threading import TIMEOUT_MAX
from typing import Any, Literal
from weakref import ref

from ...core.deadline import Terms, default_margin
from ...core.grant import Grant, Held, Lost, Unknown
from ...local.handles import RELEASED
from ...runtime.renewal import RenewedLease
from . import construction, owner_record, pidfile, waits
from .construction import UNSET_FILE_MODE
from .errors import LeaseSettingsMismatch
from .owner_record import OwnerRecord
from .soft import SoftFileLock, SoftFileMechanism
from .system_calls import TABLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Unpack

    from ...core.owner import LifeVerdict
    from .construction import LockOptions
    from .owner_record import OwnerMode
    from .soft import SoftLockRecord
    from .waits import LockHold


# ------------------------------------------------------------------------------------------------
# `MarkerSoftFileLock`: the soft lock whose file says more of its holder.
#
# The file begins with "filelock/2", and both sides read it. filelock's own `SoftFileLock`, and
# every release before 4, takes such a file for one that nobody can read and removes it after two
# seconds: never use the two classes on one path. Ours leaves it alone.


class MarkerFileMechanism(SoftFileMechanism):
    """The mechanism of one path."""

    def _kept(self, content: bytes) -> bool:
        if not content.startswith(pidfile.SECOND):
            return super()._kept(content)
        return owner_record.parse(content) is not None  # of a contract that is not known here


class MarkerIdentity:
    """Who we are, in the words of this record; who lives, as for any soft lock."""

    def __init__(self, lock: MarkerSoftFileLock) -> None:
        self._lock = ref(lock)  # which keeps its mechanism, and that keeps these words
        self._made: tuple[object, bytes] = None, b""

    def record(self, witness: bool) -> bytes:
        """What the file says."""
        lock = self._lock()
        assert lock is not None
        key = pidfile.record(witness), lock._owner_mode  # made anew when the process or host is
        if lock._owner_mode == "lease":
            return owner_record.spelled(lock._published(), witness)
        if self._made[0] != key:
            self._made = key, owner_record.spelled(lock._published(), witness)
        return self._made[1]

    def verdict(
        self, named: pidfile.PidFileOwner, witness: bool | None, one_kernel: bool
    ) -> LifeVerdict:
        """Whether it lives."""
        return pidfile.verdict(named, witness, one_kernel)

    def host_name(self) -> str:
        """This host."""
        return pidfile.host_name()

    def pid(self) -> int:
        """This process."""
        return pidfile.pid()


class MarkerSoftFileLock(SoftFileLock):
    """A lock that is there for as long as its file is, which names its holder."""

    _owner_mode: OwnerMode = "exclusive"
    _kind: Any = MarkerFileMechanism

    def _made(self, path: str) -> Any:
        mode = self._context.mode
        exactly = None if mode == UNSET_FILE_MODE else mode
        return self._kind(path, self._runtime, TABLE, exactly, words=MarkerIdentity(self))

    def _published(self) -> OwnerRecord:
        own = pidfile.read(pidfile.record(False))
        assert own is not None
        return OwnerRecord(own.pid, own.host, self._owner_mode, start=own.start)

    @property
    def owner(self) -> OwnerRecord | None:
        """Whom the file names; None when there is no such file, or none that says it."""
        return owner_record.parse(self._content())

    @property
    def pid(self) -> int | None:
        """The process that the file names; None when there is none."""
        owner = self.owner
        return None if owner is None else owner.pid

    @property
    def is_lock_held_by_us(self) -> bool:
        """Whether the file names this process."""
        owner = self.owner
        if owner is None:
            return False
        return pidfile.is_ours(pidfile.PidFileOwner(owner.pid, owner.hostname, owner.start))

    def force_break(self) -> None:
        """As `break_lock()`: two may be inside afterwards."""
        self.break_lock()


# ------------------------------------------------------------------------------------------------
# The mechanism of `SoftFileLease`: a marker that its holder touches, and others may outlive.
#
# Promise: a lease is taken from a live holder only after its file has stayed the same for the whole
# duration on the taker's own clock; the holder's own deadline comes a margin before that, on a
# clock that counts suspend, and from it on its `lease.check()` says lost (L8).
#
# How it could fail, and what keeps it:
# - A breaker of filelock's has our file aside for the length of its look: a name that is gone, or
#   leads elsewhere, counts at the second look only.
# - The holder touches after it was judged, or while it is being replaced: the file has another time
#   than the one judged, and stays or is given back (pidfile.py). A touch that lands later still
#   lands after the holder's deadline, and counts for nothing there.
# - Two who ask have different durations: neither's clock may be used on the other, so it is an
# error.
# - A file system that cannot exchange names: a live holder's lease cannot be taken there, a dead
#   one's can.


class LeaseFile(MarkerFileMechanism):
    """The mechanism of one path. `terms`: of ours."""

    terms: Terms  # pyright: ignore[reportIncompatibleVariableOverride]

    def _due(self, found: SoftLockRecord, content: bytes) -> float | None:
        record = owner_record.parse(content)
        if record is None or record.mode != "lease":
            return super()._due(found, content)
        ttl = self.terms.ttl
        if record.lease_duration != ttl:
            raise LeaseSettingsMismatch(
                f"{self.path} holds a lease of {record.lease_duration!r} s and here {ttl!r} s is "
                "asked for: all who ask for one path must agree on lease_duration"
            )
        state = self.files.fstat(found.fd)
        found.stamp = state.st_mtime
        return self._unchanged_since(found, state, self.runtime.now()) + ttl

    def attempt(self) -> Grant | Held:
        """As any soft lock's; the lease counts from before its file could be seen (L8)."""
        began = self.runtime.now()
        answer = super().attempt()
        if isinstance(answer, Grant):
            ours = answer.handle[0]
            ours.began = began
        return answer

    # ---- the holder's side

    def renewed(self, grant: Grant, began: float) -> Grant:
        """The same grant with its deadline, for a touch that was sent at `began`."""
        return Grant(
            grant.name,
            grant.mark,
            None,
            grant.token_reason,
            grant.acquired_at_ns,
            grant.key,
            grant.handle,
            self.terms.deadline(began),
        )

    async def renew(self, grant: Grant) -> Grant | Lost | Unknown:
        """Touch the file, if it is still the lock."""
        ours = next(iter(grant.handle), None)
        if ours is None:
            return Lost(RELEASED)
        began = self.runtime.now()
        reason = ""
        try:
            found = self.files.lstat(self.path)
            if not ours.is_of(found):
                reason = "owner-changed"
        except FileNotFoundError as error:
            if not self.files.fstat(ours.fd).st_nlink:  # else its folder has another name now
                reason, ours.trouble = "marker-missing", error
        except OSError as error:
            ours.trouble = error
            raise
        if reason:
            if ours.missed:
                return Lost(reason, gone=True)
            ours.missed = True
            return Unknown(grant.nonce, LookupError(reason))
        try:
            self.files.utime(ours.fd)
        except OSError as error:
            ours.trouble = error
            raise
        ours.missed, ours.trouble = False, None
        return self.renewed(grant, began)

    def check(self, grant: Grant) -> Lost | None:
        """Our deadline, before and after a look as for any soft lock (L8)."""
        return self._overdue(grant) or super().check(grant) or self._overdue(grant)

    def _overdue(self, grant: Grant) -> Lost | None:
        ours = next(iter(grant.handle), None)
        reason = None if ours is None or ours.tenure is None else ours.tenure.why_not()
        return None if reason is None else Lost(reason, gone=True)


CompromiseReason = Literal["marker-missing", "owner-changed", "refresh-failed", "evicted"]
TOLD = ("marker-missing", "owner-changed")


@dataclass(frozen=True)
class LeaseCompromise:
    """How a lease was lost: `reason`, and the `error` of the last touch when there was one."""

    lock_file: str
    token: str
    reason: CompromiseReason
    error: Exception | None = None


class HeldLease:
    """One hold's lease."""

    __slots__ = ("compromise", "kept", "token")

    def __init__(self) -> None:
        self.token: str | None = None
        self.compromise: LeaseCompromise | None = None
        self.kept: Any = None


class LeaseLossSignal:
    """Tells a loss to the lock, if there is still one. In a thread that may take its time."""

    def __init__(self, lock: SoftFileLease, claim: HeldLease, slip: Any) -> None:
        self._lock, self._claim, self._slip, self._token = ref(lock), claim, slip, claim.token

    def set(self, reason: str, first: Callable[[], None]) -> bool:
        """It is lost."""
        lock = self._lock()
        if lock is None:
            return False
        word: Any = reason if reason in TOLD else became(lock.lock_file, self._slip)
        told = LeaseCompromise(lock.lock_file, self._token or "", word, self._slip.trouble)
        if self._claim.token in (self._token, None):
            self._claim.compromise = told
        first()
        if lock._on_compromise is not None:
            lock._on_compromise(told)
        return True


def became(path: str, slip: Any) -> CompromiseReason:
    """What has become of our file by the time our deadline has come, in filelock's words."""
    files = slip.table.files
    try:
        if not slip.is_of(files.lstat(path)):
            return "owner-changed"
    except FileNotFoundError:
        return "marker-missing"
    except OSError:
        pass
    return "refresh-failed"


class SoftFileLease(MarkerSoftFileLock):
    """A lock whose holder touches its file every `heartbeat_interval` seconds.

    `lease_duration`: seconds without a touch, by the clock of who asks, after which it may be taken
    over; the same for everybody on a path. `on_compromise`: called with a `LeaseCompromise`, in
    another thread, when the lease is lost.
    """

    _owner_mode: OwnerMode = "lease"
    _kind = LeaseFile
    _frees_itself = False  # the heartbeat thread knows of it

    def __init__(
        self,
        lock_file: str | os.PathLike[str],
        *,
        lease_duration: float = 30.0,
        heartbeat_interval: float | None = None,
        on_compromise: Callable[[LeaseCompromise], None] | None = None,
        **kwargs: Unpack[LockOptions],
    ) -> None:
        ttl, beat = lengths(lease_duration, heartbeat_interval)
        super().__init__(lock_file, **kwargs)
        self._terms = Terms(ttl, beat, min(default_margin(ttl), (ttl - beat) / 2))
        self._on_compromise = on_compromise
        if not self.is_thread_local():
            self._context.hold.claim = HeldLease()
        waits.living.add(self)

    _lifetime_supported, _ageless = False, "lease_duration sets when a lease expires"

    def _differing(self, extra: dict[str, object]) -> list[tuple[str, object, object]]:
        """What of a lease's own options a singleton was made with in another way."""
        given = extra.get("heartbeat_interval")
        ttl, beat = lengths(extra.get("lease_duration", 30.0), None)
        beat = self._terms.ttl / 3 if given is None else construction.seconds("heartbeat", given)
        asked = extra.get("on_compromise")
        found: list[tuple[str, object, object]] = []
        if ttl != self._terms.ttl:
            found.append(("lease_duration", self._terms.ttl, ttl))
        if beat != self._terms.heartbeat:
            found.append(("heartbeat_interval", self._terms.heartbeat, given))
        if asked is not self._on_compromise:
            found.append(("on_compromise", self._on_compromise, asked))
        return found

    @property
    def lease_duration(self) -> float:
        """Seconds without a touch after which others may take it."""
        return self._terms.ttl

    @property
    def token(self) -> str | None:
        """The random name of this hold, None when it is not held. No fencing token."""
        return self._claim.token if self.is_locked else None

    @property
    def compromise(self) -> LeaseCompromise | None:
        """How the last hold was lost; None while it holds, or when it held to its release."""
        return self._claim.compromise

    @property
    def _claim(self) -> HeldLease:
        return self._claim_of(self._context.hold)

    @staticmethod
    def _claim_of(hold: LockHold) -> HeldLease:
        if hold.claim is None:
            hold.claim = HeldLease()
        return hold.claim  # type: ignore[no-any-return]

    # ---- taking and letting go

    def _made(self, path: str) -> object:
        made = super()._made(path)
        made.terms = self._terms
        return made

    def _found(self, hold: LockHold) -> object:
        found = super()._found(hold)
        found.lifetime = None
        claim = self._claim_of(hold)
        claim.token, claim.compromise = os.urandom(16).hex(), None
        return found

    def _published(self) -> OwnerRecord:
        record = super()._published()
        return record._replace(token=self._claim.token, lease_duration=self._terms.ttl)

    def _got(self, hold: LockHold, grant: Grant) -> None:
        super()._got(hold, grant)
        claim, slip = self._claim_of(hold), grant.handle[0]
        leased = self._kernel.renewed(grant, slip.began)
        kept = RenewedLease(self._kernel, leased, self._terms, self.lock_file)
        kept.lost = LeaseLossSignal(self, claim, slip)  # type: ignore[assignment]
        claim.kept = slip.tenure = kept
        kept.start()  # without a thread to be had it raises, and the hold is undone

    def _take(self, hold: LockHold, want: Any) -> None:
        try:
            super()._take(hold, want)
        except BaseException:
            if hold.fd is None:
                self._claim_of(hold).token = None
            raise

    async def _contend(self, hold: LockHold, want: Any, answer: object) -> None:
        try:
            await super()._contend(hold, want, answer)
        finally:
            if hold.fd is None:
                self._claim_of(hold).token = None

    def _end_own(self, hold: LockHold) -> None:
        claim = self._claim_of(hold)
        kept, claim.kept = claim.kept, None
        if kept is not None:
            kept.stop()
        claim.token = None
        super()._end_own(hold)


def lengths(duration: object, interval: object) -> tuple[float, float]:
    """The ttl and the heartbeat, in seconds. Raises TypeError, ValueError."""
    ttl = float(construction.seconds("lease_duration", duration))
    if not (math.isfinite(ttl) and ttl > 0):
        raise ValueError(f"lease_duration must be positive and finite, got {ttl!r}")
    beat = (
        ttl / 3 if interval is None else float(construction.seconds("heartbeat_interval", interval))
    )
    if not 0 < beat < ttl:
        raise ValueError(
            f"heartbeat_interval must be positive and below lease_duration, got {beat!r}"
        )
    if beat > TIMEOUT_MAX:
        raise ValueError(f"heartbeat_interval must not exceed threading.TIMEOUT_MAX, got {beat!r}")
    return ttl, beat
