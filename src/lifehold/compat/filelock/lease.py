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
from typing import TYPE_CHECKING, Any, Literal
from weakref import ref

from ...core.deadline import Terms, default_margin
from ...runtime import fork
from ...runtime.renewal import Kept
from . import atend, options
from .leasefile import LeaseFile
from .marker import MarkerSoftFileLock

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Unpack

    from ...core.grant import Grant
    from .marks import OwnerMode, OwnerRecord
    from .options import LockOptions
    from .state import Hold

CompromiseReason = Literal["marker-missing", "owner-changed", "refresh-failed", "evicted"]
TOLD = ("marker-missing", "owner-changed")


@dataclass(frozen=True)
class LeaseCompromise:
    """How a lease was lost: `reason`, and the `error` of the last touch when there was one."""

    lock_file: str
    token: str
    reason: CompromiseReason
    error: Exception | None = None


class Claim:
    """One hold's lease."""

    __slots__ = ("compromise", "kept", "token")

    def __init__(self) -> None:
        self.token: str | None = None
        self.compromise: LeaseCompromise | None = None
        self.kept: Any = None


class Teller:
    """Tells a loss to the lock, if there is still one. In a thread that may take its time."""

    def __init__(self, lock: SoftFileLease, claim: Claim, slip: Any) -> None:
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
            self._context.hold.claim = Claim()
        atend.living.add(self)

    _lifetime_supported, _ageless = False, "lease_duration sets when a lease expires"

    def _differing(self, extra: dict[str, Any]) -> list[tuple[str, Any, Any]]:
        """What of a lease's own options a singleton was made with in another way."""
        given = extra.get("heartbeat_interval")
        ttl, beat = lengths(extra.get("lease_duration", 30.0), None)
        beat = self._terms.ttl / 3 if given is None else options.seconds("heartbeat", given)
        asked = extra.get("on_compromise")
        found: list[tuple[str, Any, Any]] = []
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
        return self._claim.token if self._generation == fork.here() else None

    @property
    def compromise(self) -> LeaseCompromise | None:
        """How the last hold was lost; None while it holds, or when it held to its release."""
        return self._claim.compromise

    @property
    def _claim(self) -> Claim:
        return self._claim_of(self._context.hold)

    @staticmethod
    def _claim_of(hold: Hold) -> Claim:
        if hold.claim is None:
            hold.claim = Claim()
        return hold.claim  # type: ignore[no-any-return]

    # ---- taking and letting go

    def _made(self, path: str) -> Any:
        made = super()._made(path)
        made.terms = self._terms
        return made

    def _found(self, hold: Hold) -> Any:
        found = super()._found(hold)
        found.lifetime = None
        claim = self._claim_of(hold)
        claim.token, claim.compromise = os.urandom(16).hex(), None
        return found

    def _published(self) -> OwnerRecord:
        record = super()._published()
        return record._replace(token=self._claim.token, lease_duration=self._terms.ttl)

    def _got(self, hold: Hold, grant: Grant) -> None:
        super()._got(hold, grant)
        claim, slip = self._claim_of(hold), grant.handle[0]
        leased = self._kernel.leased(grant, slip.began)
        kept = Kept(self._kernel, leased, self._terms, self.lock_file)
        kept.lost = Teller(self, claim, slip)  # type: ignore[assignment]
        claim.kept = slip.tenure = kept
        kept.start()  # without a thread to be had it raises, and the hold is undone

    def _take(self, hold: Hold, want: Any) -> None:
        try:
            super()._take(hold, want)
        except BaseException:
            if hold.fd is None:
                self._claim_of(hold).token = None
            raise

    async def _contend(self, hold: Hold, want: Any, answer: Any) -> None:
        try:
            await super()._contend(hold, want, answer)
        finally:
            if hold.fd is None:
                self._claim_of(hold).token = None

    def _end_own(self, hold: Hold) -> None:
        claim = self._claim_of(hold)
        kept, claim.kept = claim.kept, None
        if kept is not None:
            kept.stop()
        claim.token = None
        super()._end_own(hold)


def lengths(duration: Any, interval: Any) -> tuple[float, float]:
    """The ttl and the heartbeat, in seconds. Raises TypeError, ValueError."""
    ttl = float(options.seconds("lease_duration", duration))
    if not (math.isfinite(ttl) and ttl > 0):
        raise ValueError(f"lease_duration must be positive and finite, got {ttl!r}")
    beat = ttl / 3 if interval is None else float(options.seconds("heartbeat_interval", interval))
    if not 0 < beat < ttl:
        raise ValueError(
            f"heartbeat_interval must be positive and below lease_duration, got {beat!r}"
        )
    if beat > TIMEOUT_MAX:
        raise ValueError(f"heartbeat_interval must not exceed threading.TIMEOUT_MAX, got {beat!r}")
    return ttl, beat
