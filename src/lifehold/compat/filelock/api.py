"""`BaseFileLock`: counting, settings and policies of all exclusive locks of this face.

What a lock is made of, a subclass says with `_acquire` and `_release`: the first sets
`self._context.lock_file_fd` when it got the lock, and the second sets it to None. Ours override
`_take` and `_let_go` instead, which wait and end by a mechanism of lifehold.

Rule: a lock is held once per thread, or once per object with `thread_local=False`; what is counted
above that happens here and costs no system call.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import warnings
from abc import abstractmethod
from collections.abc import Callable  # noqa: TC003 - typing.get_type_hints looks for it here
from threading import RLock
from typing import Any, Generic, TypeVar

from ...core.grant import Grant
from ...lock import Lease, Lock
from ...runtime import fork
from ...runtime.blocking import BLOCKING, finish
from ...runtime.held_here import asker
from . import construction, native_mechanism, pollers, waits
from .construction import (
    CloseErrorPolicy,
    ContextErrorPolicy,
    FileLockMeta,
    absolute,
)
from .errors import BODY, Timeout, both_failed
from .system_calls import TABLE
from .waits import DEBUG, LOGGER, LockHold, SharedContext, ThreadContext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import NoReturn, Self

    from .asyncio import BaseAsyncFileLock
    from .waits import AcquireRequest


LOOK = 0.05  # seconds between two looks of a release that waits for another thread


class BaseFileLock(contextlib.ContextDecorator, metaclass=FileLockMeta):
    """The base of the exclusive file locks. Also a context manager and a decorator."""

    _runtime: Any = BLOCKING
    _frees_itself = _is_singleton = False  # the first: what it holds ends with it
    _widest = 0.0  # seconds up to which a shorter pause of the caller's is widened

    def __init__(
        self,
        lock_file: str | os.PathLike[str],
        timeout: float = -1,
        mode: int = -1,
        thread_local: bool = True,
        *,
        blocking: bool = True,
        is_singleton: bool = False,
        poll_interval: float = 0.05,
        lifetime: float | None = None,
        context_error_policy: ContextErrorPolicy = "chain",
        close_error_policy: CloseErrorPolicy = "default",
        fallback_to_soft: bool = True,
        preserve_lock_file: bool = False,
        on_acquired: Callable[[int], None] | None = None,
    ) -> None:
        settings = {
            "lock_file": os.fspath(lock_file),
            "timeout": construction.seconds("timeout", timeout),
            "mode": construction.file_mode(mode),
            "blocking": construction.boolean("blocking", blocking),
            "poll_interval": construction.poll(poll_interval),
            "lifetime": construction.lifetime(lifetime) if self._lifetime_supported else None,
        }
        self._context_error_policy = construction.policy(
            "context_error_policy", context_error_policy, ("chain", "group")
        )
        self._close_error_policy = construction.policy(
            "close_error_policy", close_error_policy, ("default", "raise", "suppress")
        )
        self._fallback_to_soft = fallback_to_soft
        self._preserve_lock_file = preserve_lock_file
        self._on_acquired = on_acquired
        self._is_thread_local, self._is_singleton = thread_local, is_singleton
        self._generation = fork.here()
        self._holds: set[LockHold] = set()  # those in force, of whatever thread
        self._gate = None if thread_local else RLock()
        self._context = (ThreadContext if thread_local else SharedContext)(settings)
        self._check_options()

    def _check_options(self) -> None:
        """Raises ValueError for an option that this kind cannot keep."""

    # ---- what can be asked of a lock, and set: its options and its hold

    @property
    def lock_file(self) -> str:
        """The path, as it was given."""
        return self._context.lock_file

    @property
    def is_locked(self) -> bool:
        """Whether this thread, or this object with `thread_local=False`, holds the lock."""
        return self._context.hold.fd is not None and self._generation == fork.here()

    @property
    def lock_counter(self) -> int:
        """How often it is held."""
        return self._context.hold.counter if self._generation == fork.here() else 0

    def is_thread_local(self) -> bool:
        """Whether each thread has a hold of its own."""
        return self._is_thread_local

    @property
    def is_singleton(self) -> bool:
        """Whether there is one object for a path."""
        return self._is_singleton

    @property
    def timeout(self) -> float:
        """Seconds of patience; below zero without a limit."""
        return self._context.timeout

    @timeout.setter
    def timeout(self, value: float | str) -> None:
        self._context.timeout = construction.from_text("timeout", value)

    @property
    def blocking(self) -> bool:
        """Whether `acquire()` waits."""
        return self._context.blocking

    @blocking.setter
    def blocking(self, value: bool) -> None:
        self._context.blocking = construction.boolean("blocking", value)

    @property
    def poll_interval(self) -> float:
        """Seconds between two tries."""
        return self._context.poll_interval

    @poll_interval.setter
    def poll_interval(self, value: float) -> None:
        self._context.poll_interval = construction.poll(value)

    @property
    def lifetime(self) -> float | None:
        """Seconds after which a soft lock's file may be broken, None for never."""
        return self._context.lifetime

    @lifetime.setter
    def lifetime(self, value: float | None) -> None:
        found = construction.lifetime(value)
        if found is not None:
            self._about_lifetime(3)
        self._context.lifetime = found if self._lifetime_supported else None

    _lifetime_supported = False  # whether a lifetime means anything to this kind
    _ageless = "a native OS lock cannot be broken safely by file age"

    @classmethod
    def _about_lifetime(cls, level: int) -> None:
        """What there is to know for who sets a lifetime; `level`: of the frame that does."""
        if cls._lifetime_supported:
            return
        text = (
            f"lifetime is ignored for {cls.__name__}: {cls._ageless}; "
            "only SoftFileLock supports lifetime-based expiry"
        )
        warnings.warn(text, UserWarning, stacklevel=level)

    @property
    def mode(self) -> int:
        """The permission bits of a new lock file; 0o644 when none were asked for."""
        mode: int = self._context.mode
        return 0o644 if mode == construction.UNSET_FILE_MODE else mode

    @property
    def has_explicit_mode(self) -> bool:
        """Whether `mode` was asked for."""
        return self._context.mode != construction.UNSET_FILE_MODE

    def _open_mode(self) -> int:
        return self.mode if self.has_explicit_mode else 0o666

    @property
    def context_error_policy(self) -> ContextErrorPolicy:
        """What becomes of two errors, of a block and of its release."""
        return self._context_error_policy  # type: ignore[return-value]

    @property
    def close_error_policy(self) -> CloseErrorPolicy:
        """What becomes of an error of close(2) after the lock was let go."""
        return self._close_error_policy  # type: ignore[return-value]

    @property
    def fallback_to_soft(self) -> bool:
        """Whether a file system without flock(2) gets a soft lock."""
        return self._fallback_to_soft

    @property
    def preserve_lock_file(self) -> bool:
        """Whether the lock file stays on Windows too."""
        return self._preserve_lock_file

    @property
    def on_acquired(self) -> Callable[[int], None] | None:
        """Called with the descriptor after each acquisition."""
        return self._on_acquired

    def _differing(self, extra: dict[str, object]) -> list[tuple[str, object, object]]:
        """A kind's own options that a singleton was made with in another way: name, had, asked."""
        return []

    # ---- taking and letting go

    def acquire(
        self,
        timeout: float | None = None,
        poll_interval: float | None = None,
        *,
        poll_intervall: float | None = None,
        blocking: bool | None = None,
        cancel_check: Callable[[], bool] | None = None,
    ) -> AcquireReturnProxy[Self]:
        """Hold the lock, waiting up to `timeout` seconds; below zero without a limit.

        Held already by this thread, or by this object with `thread_local=False`: counted up.
        `blocking=False`: one try. `cancel_check`: asked between tries; true ends the wait.
        `poll_interval`: seconds between tries; left alone, the wait ends by an event.

        Raises Timeout, which names the holder; RuntimeError for a wait for oneself, or in a forked
        child; OSError.
        """
        if poll_intervall is not None:
            text = "use poll_interval instead of poll_intervall"
            warnings.warn(text, DeprecationWarning, stacklevel=2)
            poll_interval = poll_intervall if poll_interval is None else poll_interval
        context = self._context
        want = waits.AcquireRequest(context, timeout, poll_interval, blocking, cancel_check)
        if self._generation != fork.here():
            self._refuse_child()
        if self._gate is not None and not want.pass_gate(self._gate):
            raise Timeout(self.lock_file)
        try:
            hold = context.hold
            if hold.moving:
                waits.refuse_reentry(self, hold)
            if hold.counter and hold.fd is not None:
                absolute(context.lock_file)  # a working folder that is gone is said here too
                hold.counter += 1
            else:
                self._take_first(hold, want)
        finally:
            if self._gate is not None:
                self._gate.release()
        return AcquireReturnProxy(self)

    def _take_first(self, hold: LockHold, want: waits.AcquireRequest) -> None:
        debug = LOGGER.isEnabledFor(DEBUG)
        path = self._context.lock_file
        hold.moving = "acquire"
        try:
            if debug:
                LOGGER.debug("Attempting to acquire lock %s on %s", id(self), path)
            self._take(hold, want)
            hold.counter = 1
            self._holds.add(hold)
            hold.mine = want.mine
            hold.mine[id(hold)] = hold.path
            if debug:
                LOGGER.debug("Lock %s acquired on %s", id(self), path)
            hold.moving = ""
            if self._on_acquired is not None and hold.fd is not None:
                from_the_start(hold)
                self._on_acquired(hold.fd)
        except BaseException as error:
            waits.undone(self, hold, error)
            raise
        finally:
            hold.moving = ""

    def release(self, force: bool = False) -> None:
        """Give back one hold; at the last, or with `force`, the lock itself. Unheld: nothing.

        `force` also ends the holds of threads that have ended. Raises OSError when the system does
        not let go: the lock is then still held.
        """
        hold = self._context.hold
        before = hold.counter
        try:
            if force or before != 1 or hold.moving or self._gate is not None:
                self._give_back(hold, force)
            elif hold.fd is not None and self._generation == fork.here():  # as most of the time
                self._release_last(hold)
        except BaseException as error:
            if before and hold.counter == before and not isinstance(error, Exception):
                self._give_back(hold, force)  # Ctrl-C came before anything was done
            raise

    def _give_back(self, hold: LockHold, force: bool) -> None:
        if self._generation != fork.here():
            return
        if self._gate is not None and not self._pass_gate(self._gate, hold):
            return
        try:
            if hold.counter and hold.fd is not None:
                if hold.moving == "release":
                    return
                if hold.counter > 1 and not force:
                    hold.counter -= 1
                else:
                    self._release_last(hold)
            if force:
                for other in [each for each in self._holds if each.orphaned]:
                    if not other.moving:  # else another thread is at it
                        self._release_last(other)
        finally:
            if self._gate is not None:
                self._gate.release()

    @staticmethod
    def _pass_gate(gate: Any, hold: LockHold) -> bool:
        """Wait until no other thread is in the middle of anything, while there is what to release.

        Who acquires keeps the gate for as long as it waits: what it gets is not ours to let go.
        """
        ended = hold.ended
        while hold.counter and hold.ended == ended:
            if gate.acquire(timeout=LOOK):
                if hold.ended == ended:
                    return True
                gate.release()
        return False

    def _release_last(self, hold: LockHold) -> None:
        """Let go, whatever interrupts: what was begun is done before Ctrl-C goes on."""
        try:
            self._end(hold)
        except Exception:
            raise
        except BaseException:
            if hold.fd is not None:
                self._end(hold)
            self._forget(hold)
            raise

    def _end(self, hold: LockHold) -> None:
        debug = LOGGER.isEnabledFor(DEBUG)
        path = self._context.lock_file
        hold.moving = "release"
        try:
            if debug:
                LOGGER.debug("Attempting to release lock %s on %s", id(self), path)
            try:
                self._let_go(hold)
            finally:
                if hold.fd is None:
                    self._forget(hold)
            if debug:
                LOGGER.debug("Lock %s released on %s", id(self), path)
        finally:
            hold.moving = ""

    def _forget(self, hold: LockHold) -> None:
        hold.ended += bool(hold.counter)
        hold.counter, hold.path = 0, ""
        self._holds.discard(hold)
        if hold.mine is not None:
            hold.mine.pop(id(hold), None)
            hold.mine = None

    # ---- what a subclass decides

    def _take(self, hold: LockHold, want: waits.AcquireRequest) -> None:
        """Get the lock for `hold`, or raise Timeout."""
        finish(waits.by_polling(self, hold, want))

    def _refused(self, waited: float | None) -> Timeout:
        return Timeout(self.lock_file)

    def _still_there(self, path: str) -> None:
        """Asked between two tries. Raises OSError when there is no sense in another."""

    def _let_go(self, hold: LockHold) -> None:
        """End it, and set `hold.fd` to None."""
        fd = hold.fd
        self._release()
        waits.forget(fd)

    def _register_context_descriptor(self) -> None:
        """Note what `_acquire` has opened, so that a forked child closes it. Raises OSError."""
        waits.note(self._context.lock_file_fd)

    @abstractmethod
    def _acquire(self) -> None:
        """One try, which sets `self._context.lock_file_fd` when it got the lock."""

    @abstractmethod
    def _release(self) -> None:
        """The end, which sets `self._context.lock_file_fd` to None."""

    # ---- blocks

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        leave(self, exc_value)

    def __del__(
        self,
        _getpid: Callable[[], int] = os.getpid,
        _is_finalizing: Callable[[], bool] = sys.is_finalizing,
        _suppress: type[contextlib.suppress] = contextlib.suppress,
    ) -> None:
        holds = getattr(self, "_holds", None)
        if self._is_singleton and self._frees_itself:
            return  # it may have been handed out just now; when it is gone, its descriptors are
        if not holds or _is_finalizing() or self._generation != fork.here():
            return
        for hold in list(holds):
            with _suppress(Exception):
                self._release_last(hold)

    def __getstate__(self) -> NoReturn:
        kind = type(self).__name__
        raise TypeError(f"{kind}: it cannot be copied or pickled, make another for its path")

    def _refuse_child(self) -> None:
        if self._generation != fork.here():
            raise RuntimeError(
                f"{type(self).__name__} on {self.lock_file!r} was inherited across fork; "
                "construct a new instance"
            )


def from_the_start(hold: LockHold) -> None:
    """A descriptor that was kept open stands where the last callback left it: at the start again.

    Where a subclass brings the descriptor, it stands as that subclass left it.
    """
    if hold.grant is not None and hold.fd is not None and os.name == "posix":
        os.lseek(hold.fd, 0, os.SEEK_SET)


_LockT = TypeVar("_LockT")


class AcquireReturnProxy(Generic[_LockT]):
    """`with lock.acquire() as same_lock:` releases once at its end."""

    def __init__(self, lock: _LockT) -> None:
        self.lock = lock

    def __enter__(self) -> _LockT:
        return self.lock

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        leave(self.lock, exc_value)


class AwaitableAcquire:
    """What `await lock.acquire...()` answers: `async with` it, and it is released at the end.

    Each says of itself which class of lock it gives, as filelock's do.
    """

    def __init__(self, lock: Any) -> None:
        self.lock = lock

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.lock.release()


class AsyncAcquireReturnProxy(AwaitableAcquire):
    """`async with await lock.acquire() as same_lock:` releases once at its end."""

    def __init__(self, lock: BaseAsyncFileLock) -> None:
        super().__init__(lock)

    async def __aenter__(self) -> BaseAsyncFileLock:
        return self.lock  # type: ignore[no-any-return]

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await leave_awaited(self.lock, exc_value)


def leave(lock: Any, error: BaseException | None) -> None:
    """Release at the end of a block; the block's error and the release's by the lock's policy."""
    try:
        lock.release()
    except BaseException as failed:  # noqa: BLE001 - raised, with the other
        both_failed(lock, BODY, error, failed)


async def leave_awaited(lock: Any, error: BaseException | None) -> None:
    """The same for a task."""
    try:
        await lock.release()
    except BaseException as failed:  # noqa: BLE001 - raised, with the other
        both_failed(lock, BODY, error, failed)


LIFEHOLD = logging.getLogger("lifehold")


class MechanismFileLock(BaseFileLock):
    """What the native and the soft lock have in common."""

    _kernel: Any = None
    _frees_itself = True
    _runtime: Any = BLOCKING
    _stays = False  # whether the lock is a file that stays, so that who polls it can be seen
    _afar = False  # whether its calls may wait for a file server

    def _made(self, path: str) -> Any:
        """The mechanism of an absolute path."""
        raise TypeError(f"{type(self).__name__} brings no mechanism")

    @property
    def lease(self) -> Lease | None:
        """What lifehold knows of the hold: `token`, `check()`, `lost`. None when not held."""
        hold = self._context.hold
        if hold.grant is None or not self.is_locked:
            return None
        if hold.lease is None:
            hold.lease = self._told_lease(hold)
        return hold.lease  # type: ignore[no-any-return]

    def _told_lease(self, hold: LockHold) -> Lease:
        lock = Lock(hold.path)
        lock._mechanism = self._kernel  # which is told of the end, and asked whether it lasts
        made = native_mechanism.LeaseOfHold(lock, hold.grant, asker(), 0.0)
        return made.belongs(self, hold)

    def _ended_by_lease(self, hold: LockHold, grant: Grant) -> None:
        """Let go of a hold, of whatever thread, because its lease was."""
        if self._gate is not None and not self._pass_gate(self._gate, hold):
            return
        try:
            if hold.grant is grant and not hold.moving:
                self._release_last(hold)
        finally:
            if self._gate is not None:
                self._gate.release()

    # ---- taking

    def _brings(self, name: str) -> bool:
        """Whether a subclass, or this object, has replaced `_acquire` or `_release`."""
        return (
            getattr(type(self), name) is not getattr(MechanismFileLock, name)
            or name in self.__dict__
        )

    def _take(self, hold: LockHold, want: AcquireRequest) -> None:
        if type(self)._acquire is not MechanismFileLock._acquire or "_acquire" in self.__dict__:
            finish(waits.by_polling(self, hold, want))
            return
        if pollers.expected:
            finish(self._let_pollers_in(want))
        answer = self._attempt(hold)
        if type(answer) is not Grant:
            finish(self._contend(hold, want, answer))

    async def _let_pollers_in(self, want: AcquireRequest) -> None:
        await pollers.let_in(absolute(self._context.lock_file), want, self._runtime)

    async def _contend(self, hold: LockHold, want: AcquireRequest, answer: object) -> None:
        waits.refuse_self(hold, hold.path, want)
        if want.polled:
            await waits.by_polling(self, hold, want)
        elif not want.blocking:
            if LOGGER.isEnabledFor(DEBUG):
                LOGGER.debug("Timeout on acquiring lock %s on %s", id(self), self.lock_file)
            raise self._refused(None)
        else:
            await self._wait(hold, want, answer)

    def _refused(self, waited: float | None) -> Timeout:
        if self._kernel is None:  # a subclass's `_acquire` did not ask ours
            return Timeout(self.lock_file)
        return native_mechanism.kernel_refusal(
            self._kernel, self.lock_file, waited, later=waited is None
        )

    def _still_there(self, path: str) -> None:
        native_mechanism.refuse_lost_folder(path)

    def _found(self, hold: LockHold) -> Any:
        """The mechanism, of where the path leads now."""
        # Kept for as long as an acquire goes on: the working folder may change meanwhile.
        path = hold.path or absolute(self._context.lock_file)
        found = self._kernel
        if found is None or found.path != path:
            self._kernel = found = self._made(path)
            self._afar = self._runtime is not BLOCKING and found.far()
        hold.path = path
        return found

    def _attempt(self, hold: LockHold) -> object:
        try:
            answer = native_mechanism.attempt(self._found(hold))
        except OSError as error:
            if not self._turned_soft(error, hold.path):
                raise
            return self._attempt(hold)
        if type(answer) is Grant:
            self._got(hold, answer)
        return answer

    def _turned_soft(self, error: OSError, path: str) -> bool:
        """Whether this object is of another kind from now on, which may do better."""
        return False

    async def _tried(self, hold: LockHold) -> object:
        """The same for a task: what may wait for a file server does so in a helper thread."""
        found = self._found(hold)
        if not self._afar:
            return self._attempt(hold)

        def undo(answer: object) -> None:
            if type(answer) is Grant:
                found.drop(answer)

        answer = await self._runtime.in_thread(lambda: native_mechanism.attempt(found), undo)
        if type(answer) is Grant:
            self._got(hold, answer)
        return answer

    def _got(self, hold: LockHold, grant: Grant) -> None:
        hold.grant = grant
        hold.fd = grant.handle[0].fd

    async def _wait(self, hold: LockHold, want: AcquireRequest, answer: Any) -> None:
        if LOGGER.isEnabledFor(DEBUG):
            text = "Lock %s not acquired on %s, waiting %s seconds ..."
            LOGGER.debug(text, id(self), self.lock_file, want.pause)
        if self._stays:
            pollers.expect(hold.path)
        try:
            grant = await native_mechanism.waited(
                self._kernel, self._runtime, self.lock_file, answer, want, self._refused
            )
        except Timeout:
            if want.cancelled:
                LOGGER.debug("Cancellation requested for lock %s on %s", id(self), self.lock_file)
            raise
        if pollers.expected:
            pollers.came(self._kernel.path)
        self._got(hold, grant)

    def _acquire(self) -> None:
        self._attempt(self._context.hold)

    # ---- letting go

    def _let_go(self, hold: LockHold) -> None:
        if self._brings("_release"):
            self._tell_loss(hold)  # after its `_release` a file that it removed would look lost
            super()._let_go(hold)
        else:
            self._end_own(hold)

    def _tell_loss(self, hold: LockHold) -> None:
        """L5  Told before a subclass's `_release` runs, which may remove the file itself."""
        found = None if hold.grant is None else self._kernel.check(hold.grant)
        if found is not None:
            LIFEHOLD.warning("%r was lost: %s", self.lock_file, found.reason)

    def _end_own(self, hold: LockHold) -> None:
        """End what our mechanism has granted, or what a subclass's `_acquire` has opened."""
        if hold.grant is None:
            fd, hold.fd = hold.fd, None
            if fd is not None:
                self._end_brought(fd, hold.path)
            return
        try:
            lost = native_mechanism.drop(self._kernel, hold.grant, hold.lease)
        finally:
            hold.fd = hold.grant = hold.lease = None
        if lost and not self._brings("_release"):  # L5  told, never silent
            LIFEHOLD.warning("%r was lost: %s", self.lock_file, lost)

    def _end_brought(self, fd: int, path: str) -> None:
        """The end of a lock that a subclass's `_acquire` made, by filelock's own `_release`."""
        TABLE.files.close(fd)

    def _release(self) -> None:
        self._end_own(self._context.hold)
