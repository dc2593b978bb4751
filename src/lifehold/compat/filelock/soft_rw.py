"""`SoftReadWriteLock`: one writer or many readers, without any lock of the file system.

What ours adds: a waiter is woken by the next snapshot, a member that was killed on this machine is
followed at once and not after `stale_threshold`, a loss is told at the deadline, and one thread
keeps all of them alive. The rules are in soft_rw_log.py and soft_rw_member.py.
"""

from __future__ import annotations

import math
from threading import TIMEOUT_MAX, get_ident
from typing import Any
from weakref import ref

from ...core.deadline import Terms, default_margin
from ...core.grant import Grant
from ...runtime import clock
from ...runtime.blocking import BLOCKING, finish
from ...runtime.renewal import RenewedLease
from . import construction, native_mechanism, pollers, waits
from .api import AwaitableAcquire
from .async_sides import AsyncSides
from .lease import LeaseCompromise
from .one import SidesMeta
from .readwrite import ReadWriteWant
from .record_folder import NotAFolder
from .sides import Sides
from .soft_rw_member import MemberState, Participant
from .system_calls import TABLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    import os
    from collections.abc import Callable
    from concurrent import futures

    from .sides import HeldLevels, Mode, WaitTerms


class SoftReadWriteLockMeta(SidesMeta):
    """Its metaclass."""

    def __call__(
        cls,  # noqa: N805 - a metaclass's
        lock_file: str | os.PathLike[str],
        timeout: float = -1,
        *,
        blocking: bool = True,
        is_singleton: bool = True,
        heartbeat_interval: float = 30.0,
        stale_threshold: float | None = None,
        poll_interval: float = 0.25,
        on_compromise: Callable[[LeaseCompromise], None] | None = None,
    ) -> SoftReadWriteLock:
        construction.boolean("blocking", blocking)
        timeout = construction.seconds("timeout", timeout)
        more = {} if on_compromise is None else {"on_compromise": on_compromise}

        def make() -> Any:
            return type.__call__(
                cls,
                lock_file,
                timeout,
                blocking=blocking,
                is_singleton=is_singleton,
                heartbeat_interval=heartbeat_interval,
                stale_threshold=stale_threshold,
                poll_interval=poll_interval,
                **more,
            )

        if not is_singleton:
            return make()  # type: ignore[no-any-return]
        found = cls._one(lock_file, timeout, blocking, make)
        intervals(heartbeat_interval, stale_threshold, poll_interval)
        if on_compromise is not None and found._on_compromise != on_compromise:
            raise ValueError(
                f"Singleton lock created with a different on_compromise callback for {lock_file!s}"
            )
        return found  # type: ignore[no-any-return]


class SoftReadWriteLock(Sides, metaclass=SoftReadWriteLockMeta):
    """A reader/writer lock whose state is a log of files beside the path.

    `heartbeat_interval`, `stale_threshold`, `poll_interval`: seconds between two signs of life;
    after which a silent holder is put out; between two looks on a network file system.
    `on_compromise`: called with a `LeaseCompromise`, in another thread, when the hold is lost.
    """

    def __init__(
        self,
        lock_file: str | os.PathLike[str],
        timeout: float = -1,
        *,
        blocking: bool = True,
        is_singleton: bool = True,
        heartbeat_interval: float = 30.0,
        stale_threshold: float | None = None,
        poll_interval: float = 0.25,
        on_compromise: Callable[[LeaseCompromise], None] | None = None,
    ) -> None:
        beat, ttl, poll = intervals(heartbeat_interval, stale_threshold, poll_interval)
        self.heartbeat_interval, self.stale_threshold, self.poll_interval = beat, ttl, poll
        self._on_compromise = on_compromise
        self._compromise: LeaseCompromise | None = None
        self._begin(lock_file, timeout, blocking)
        terms = Terms(ttl, beat, min(default_margin(ttl), (ttl - beat) / 2))
        self._group = MemberState(self.lock_file, self._path, BLOCKING, TABLE, terms)
        self._group.poll = poll
        waits.sides.add(self)

    @classmethod
    def get_lock(
        cls, lock_file: str | os.PathLike[str], timeout: float = -1, *, blocking: bool = True
    ) -> SoftReadWriteLock:
        """The one object for a path."""
        return cls(lock_file, timeout, blocking=blocking)

    @property
    def generation(self) -> int | None:
        """The fencing token of the hold: greater than every earlier one. None when not held."""
        grant = self._hold.grant
        return None if grant is None else grant[1].token

    @property
    def compromise(self) -> LeaseCompromise | None:
        """How the hold was lost; None while it stands, and before the first loss."""
        return self._compromise

    # ---- what Sides asks of a kind

    def _enter(self, mode: Mode, want: WaitTerms) -> object:
        ours = Participant(self._group, mode)
        try:
            answer = ours.attempt()
            if not isinstance(answer, Grant):
                if not want.blocking or want.deadline <= clock.now():
                    raise native_mechanism.kernel_refusal(ours, self.lock_file, later=True)
                pause: Any = ReadWriteWant(want)
                pause.cancel = lambda: self._closed or (want.cancel is not None and want.cancel())
                answer = finish(
                    native_mechanism.waited(
                        ours,
                        BLOCKING,
                        self.lock_file,
                        answer,
                        pause,
                        lambda waited: self._refused(ours, waited),
                    )
                )
                pollers.came(self._path)
            kept = RenewedLease(
                ours, ours.leased(answer, ours.written_at), self._group.terms, self.lock_file
            )
            kept.lost = ReadWriteLossSignal(self, ours)  # type: ignore[assignment]
            ours.member.tenure = kept
            kept.start()
        except BaseException:
            try:
                ours.leave()
            except OSError:
                pass  # it ages
            raise
        return ours, answer, kept

    def _refused(self, ours: Participant, waited: float | None) -> Any:
        return (
            self._closed_error()
            if self._closed
            else native_mechanism.kernel_refusal(ours, self.lock_file, waited)
        )

    def _exit(self, grant: Any) -> None:
        ours, answer, kept = grant
        kept.stop()
        ours.drop(answer)

    def _granted(self) -> None:
        self._compromise = None

    def _lost(self, mode: Mode) -> None:
        if self._compromise is not None:
            raise RuntimeError(
                f"Cannot acquire {mode} lock on {self.lock_file}: the current hold was lost "
                f"({self._compromise.reason}), release it before acquiring again"
            )

    def _refuse_stranger(self, hold: HeldLevels, holder: int) -> None:
        if holder != self._telling:
            super()._refuse_stranger(hold, holder)

    _telling: int | None = None  # the thread in which a loss is told, and which may release


class ReadWriteLossSignal:
    """Tells a loss to the lock. In a thread that may take its time."""

    def __init__(self, lock: SoftReadWriteLock, ours: Participant) -> None:
        self._lock, self._ours = ref(lock), ref(ours)
        self._token, self._member = ours.token, ours.member

    def set(self, reason: str, first: Callable[[], None]) -> bool:
        """It is lost."""
        lock, ours = self._lock(), self._ours()
        if lock is None or ours is None:
            return False
        word: Any = "evicted" if reason == "evicted" or evicted(ours) else "refresh-failed"
        with lock._state:
            grant = lock._hold.grant
            if grant is None or grant[0] is not ours:
                return False
            told = LeaseCompromise(lock.lock_file, self._token, word, self._member.trouble)
            lock._compromise = told
        first()
        if lock._on_compromise is not None:
            lock._telling = get_ident()
            try:
                lock._on_compromise(told)
            finally:
                lock._telling = None
        return True


def evicted(ours: Participant) -> bool:
    """Whether the log names us no more, by the time our deadline has come."""
    try:
        with ours.group.opened() as folders:
            return ours.token not in ours.group.log.latest(folders.gen).members
    except (FileNotFoundError, NotAFolder):
        return True
    except OSError:
        return False


def intervals(beat: Any, ttl: Any, poll: Any) -> tuple[float, float, float]:
    """Heartbeat, threshold and poll, in seconds. Raises TypeError, ValueError."""
    beat = construction.seconds("heartbeat_interval", beat)
    if not math.isfinite(beat) or beat <= 0:
        raise ValueError(f"heartbeat_interval must be positive and finite, got {beat}")
    refuse_too_long("heartbeat_interval", beat)
    ttl = beat * 3 if ttl is None else construction.seconds("stale_threshold", ttl)
    if not math.isfinite(ttl) or ttl <= beat:
        raise ValueError(
            f"stale_threshold must exceed heartbeat_interval ({beat}) and be finite, got {ttl}"
        )
    poll = construction.seconds("poll_interval", poll)
    if not math.isfinite(poll) or poll <= 0:
        raise ValueError(f"poll_interval must be positive and finite, got {poll}")
    refuse_too_long("poll_interval", poll)
    if poll >= ttl:
        raise ValueError(f"poll_interval must be below stale_threshold ({ttl}), got {poll}")
    return beat, ttl, poll


def refuse_too_long(name: str, seconds: float) -> None:
    if seconds > TIMEOUT_MAX:
        raise ValueError(f"{name} must not exceed threading.TIMEOUT_MAX ({TIMEOUT_MAX:g} s)")


# ------------------------------------------------------------------------------------------------
# `AsyncSoftReadWriteLock`: the soft reader/writer lock for tasks of asyncio.


class AsyncSoftReadWriteLock(AsyncSides):
    """As `SoftReadWriteLock`; each task holds for itself."""

    def __init__(
        self,
        lock_file: str | os.PathLike[str],
        timeout: float = -1,
        *,
        blocking: bool = True,
        is_singleton: bool = True,
        heartbeat_interval: float = 30.0,
        stale_threshold: float | None = None,
        poll_interval: float = 0.25,
        on_compromise: Callable[[LeaseCompromise], None] | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
        executor: futures.Executor | None = None,
    ) -> None:
        lock = SoftReadWriteLock(
            lock_file,
            timeout,
            blocking=blocking,
            is_singleton=is_singleton,
            heartbeat_interval=heartbeat_interval,
            stale_threshold=stale_threshold,
            poll_interval=poll_interval,
            on_compromise=on_compromise,
        )
        self._begin(lock, is_singleton, loop, executor)

    @property
    def generation(self) -> int | None:
        """The fencing token of the hold; None when not held."""
        return self._lock.generation  # type: ignore[no-any-return]

    @property
    def compromise(self) -> LeaseCompromise | None:
        """How the hold was lost; None while it stands."""
        return self._lock.compromise  # type: ignore[no-any-return]

    def _lost(self, mode: Mode) -> None:
        self._lock._lost(mode)

    async def acquire_read(
        self, timeout: float | None = None, *, blocking: bool | None = None
    ) -> AsyncAcquireSoftReadWriteReturnProxy:
        """Hold it for reading. As `SoftReadWriteLock.acquire_read`."""
        await self._acquire("read", timeout, blocking)
        return AsyncAcquireSoftReadWriteReturnProxy(self)

    async def acquire_write(
        self, timeout: float | None = None, *, blocking: bool | None = None
    ) -> AsyncAcquireSoftReadWriteReturnProxy:
        """Hold it for writing. As `SoftReadWriteLock.acquire_write`."""
        await self._acquire("write", timeout, blocking)
        return AsyncAcquireSoftReadWriteReturnProxy(self)


class AsyncAcquireSoftReadWriteReturnProxy(AwaitableAcquire):
    """`async with await lock.acquire_read():` releases at its end."""

    def __init__(self, lock: AsyncSoftReadWriteLock) -> None:
        super().__init__(lock)

    async def __aenter__(self) -> AsyncSoftReadWriteLock:
        return self.lock  # type: ignore[no-any-return]
