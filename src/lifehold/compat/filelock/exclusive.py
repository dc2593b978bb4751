"""`BaseFileLock`: counting, settings and policies of all exclusive locks of this face.

What a lock is made of, a subclass says with `_acquire` and `_release`: the first sets
`self._context.lock_file_fd` when it got the lock, and the second sets it to None. Ours override
`_take` and `_let_go` instead, which wait and end by a mechanism of lifehold.

Rule: a lock is held once per thread, or once per object with `thread_local=False`; what is counted
above that happens here and costs no system call.
"""

from __future__ import annotations

import contextlib
import os
import sys
from abc import abstractmethod
from collections.abc import Callable  # noqa: TC003 - typing.get_type_hints looks for it here
from threading import RLock
from typing import TYPE_CHECKING, Any

from ...runtime import fork
from ...runtime.blocking import BLOCKING, finish
from . import brought, options, waits
from .errors import Timeout
from .meta import FileLockMeta, absolute
from .options import CloseErrorPolicy, ContextErrorPolicy  # noqa: TC001 - likewise
from .proxy import AcquireReturnProxy, leave
from .settings import Settings
from .state import Hold, SharedContext, ThreadContext
from .waits import DEBUG, LOGGER

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self


class BaseFileLock(Settings, contextlib.ContextDecorator, metaclass=FileLockMeta):
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
            "timeout": options.seconds("timeout", timeout),
            "mode": options.file_mode(mode),
            "blocking": options.boolean("blocking", blocking),
            "poll_interval": options.poll(poll_interval),
            "lifetime": options.lifetime(lifetime) if self._lifetime_supported else None,
        }
        self._context_error_policy = options.policy(
            "context_error_policy", context_error_policy, ("chain", "group")
        )
        self._close_error_policy = options.policy(
            "close_error_policy", close_error_policy, ("default", "raise", "suppress")
        )
        self._fallback_to_soft = fallback_to_soft
        self._preserve_lock_file = preserve_lock_file
        self._on_acquired = on_acquired
        self._is_thread_local, self._is_singleton = thread_local, is_singleton
        self._generation = fork.here()
        self._holds: set[Hold] = set()  # those in force, of whatever thread
        self._gate: Any = None if thread_local else RLock()
        self._context: Any = (ThreadContext if thread_local else SharedContext)(settings)
        self._check_options()

    def _check_options(self) -> None:
        """Raises ValueError for an option that this kind cannot keep."""

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
            import warnings

            text = "use poll_interval instead of poll_intervall"
            warnings.warn(text, DeprecationWarning, stacklevel=2)
            poll_interval = poll_intervall if poll_interval is None else poll_interval
        context = self._context
        want = waits.Want(context, timeout, poll_interval, blocking, cancel_check)
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

    def _take_first(self, hold: Hold, want: waits.Want) -> None:
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

    def _give_back(self, hold: Hold, force: bool) -> None:
        if self._generation != fork.here():
            return
        if self._gate is not None:
            self._gate.acquire()
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

    def _release_last(self, hold: Hold) -> None:
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

    def _end(self, hold: Hold) -> None:
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

    def _forget(self, hold: Hold) -> None:
        hold.counter, hold.path = 0, ""
        self._holds.discard(hold)
        if hold.mine is not None:
            hold.mine.pop(id(hold), None)
            hold.mine = None

    # ---- what a subclass decides

    def _take(self, hold: Hold, want: waits.Want) -> None:
        """Get the lock for `hold`, or raise Timeout."""
        finish(waits.by_polling(self, hold, want))

    def _refused(self, waited: float | None) -> Timeout:
        return Timeout(self.lock_file)

    def _still_there(self, path: str) -> None:
        """Asked between two tries. Raises OSError when there is no sense in another."""

    def _let_go(self, hold: Hold) -> None:
        """End it, and set `hold.fd` to None."""
        fd = hold.fd
        self._release()
        brought.forget(fd)

    def _register_context_descriptor(self) -> None:
        """Note what `_acquire` has opened, so that a forked child closes it. Raises OSError."""
        brought.note(self._context.lock_file_fd)

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

    def _refuse_child(self) -> None:
        if self._generation != fork.here():
            raise RuntimeError(
                f"{type(self).__name__} on {self.lock_file!r} was inherited across fork; "
                "construct a new instance"
            )


def from_the_start(hold: Hold) -> None:
    """A descriptor that was kept open stands where the last callback left it: at the start again.

    Where a subclass brings the descriptor, it stands as that subclass left it.
    """
    if hold.grant is not None and hold.fd is not None and os.name == "posix":
        os.lseek(hold.fd, 0, os.SEEK_SET)
