"""What the reader/writer locks of this face have in common: who may nest, and who may release.

Rule: one object holds its lock once, for reading or for writing, and counts for whom: a reader's
levels by thread, a writer's for one thread. It speaks for its process: a thread that wants the
other side of what its own object holds is refused, since waiting for oneself never ends.
"""

from __future__ import annotations

import math
import os
from contextlib import contextmanager
from threading import TIMEOUT_MAX, Lock, RLock, get_ident
from typing import Any, Literal

from ...runtime import clock, fork
from ...runtime.blocking import BLOCKING, finish
from . import construction, pollers
from .api import AcquireReturnProxy
from .construction import canonical
from .errors import Timeout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator


class Sides:
    """A lock with a side for readers and one for writers."""

    lock_file: str
    timeout: float
    blocking: bool

    def _begin(self, lock_file: str | os.PathLike[str], timeout: float, blocking: bool) -> None:
        self.lock_file = os.fspath(lock_file)
        self.timeout, self.blocking = timeout, blocking
        self._path = canonical(os.path.abspath(self.lock_file))
        self._hold = HeldLevels()
        self._state, self._turn = Lock(), Lock()
        self._step = RLock()  # one attempt, or one release, at a time
        self._at_work: set[int] = set()  # threads in the middle of an acquire
        self._generation, self._closed = fork.generation, False

    # ---- what a kind brings

    def _attempt(self, mode: Mode) -> object:
        """The grant, if it is free; None: `_enter` finds out."""
        return None

    def _enter(self, mode: Mode, want: WaitTerms) -> object:
        """The grant. Raises Timeout."""
        raise TypeError(f"{type(self).__name__} brings no lock")

    def _exit(self, grant: object) -> None:
        """Let go of it."""

    def _closed_error(self) -> Exception:
        return RuntimeError(f"{type(self).__name__} on {self.lock_file} has been closed")

    def _lost(self, mode: Mode) -> None:
        """Raises RuntimeError when the hold that is there was lost."""

    def _granted(self) -> None:
        """A new hold is there."""

    # ---- taking

    def _acquire(
        self,
        mode: Mode,
        timeout: float | None,
        blocking: bool | None,
        holder: int | None = None,
        cancel: Callable[[], bool] | None = None,
    ) -> AcquireReturnProxy[object]:
        self._refuse_child()
        blocking = self.blocking if blocking is None else blocking
        thread = get_ident()
        holder = thread if holder is None else holder
        with self._state:
            if self._closed:
                raise self._closed_error()
            want = WaitTerms(
                patience(self.timeout if timeout is None else timeout, blocking), blocking, cancel
            )
            if self._nested(mode, holder):
                return AcquireReturnProxy(self)
            self._refuse_at_work("acquire")
            self._at_work.add(thread)
        try:
            if not want.take(self._turn):
                raise Timeout(self.lock_file)
            try:
                self._first(mode, holder, want)
            finally:
                self._turn.release()
        finally:
            self._at_work.discard(thread)
        return AcquireReturnProxy(self)

    def _first(self, mode: Mode, holder: int, want: WaitTerms) -> None:
        if pollers.expected and not self._hold.level:
            finish(pollers.let_in(self._path, want, BLOCKING))
            if self._closed:  # meanwhile
                raise self._closed_error()
        with self._step:  # who releases or closes meanwhile comes after the whole of it
            with self._state:
                if self._nested(mode, holder):  # another thread was faster
                    return
            grant = self._attempt(mode)
            if grant is not None:
                self._begun(mode, holder, grant)
                return
        self._begun(mode, holder, self._enter(mode, want))

    def _begun(self, mode: Mode, holder: int, grant: object) -> None:
        try:
            with self._state:
                if self._closed:
                    raise self._closed_error()
                self._granted()
                self._hold.begin(mode, holder, grant)
        except BaseException:
            self._clear_lock_state()
            self._exit(grant)
            raise

    def _nested(self, mode: Mode, holder: int) -> bool:
        """Whether it is held so, and one level more now. Raises RuntimeError."""
        hold = self._hold
        if not hold.level:
            return False
        where = f"{mode} lock on {self.lock_file} (lock id: {id(self)})"
        if hold.mode != mode:
            other = "write" if mode == "read" else "read"
            if hold.has(holder):
                way = "downgrade" if mode == "read" else "upgrade"
                why = f"already holding a {other} lock ({way} not allowed)"
            else:
                why = (
                    f"already holding a {other} lock in another thread, and this object speaks for "
                    "the process; give each thread its own with is_singleton=False "
                    f"({'downgrade' if mode == 'read' else 'upgrade'} not allowed)"
                )
            raise RuntimeError(f"Cannot acquire {where}: {why}")
        if mode == "write" and holder != hold.writer:
            raise RuntimeError(
                f"Cannot acquire {where} from thread {holder} while it is held by thread "
                f"{hold.writer}"
            )
        self._lost(mode)
        hold.nest(holder)
        return True

    def _refuse_child(self) -> None:
        if self._generation != fork.here():
            raise RuntimeError(
                f"{type(self).__name__} on {self.lock_file} was invalidated by fork(); construct a "
                "new instance"
            )

    # ---- letting go

    def release(self, *, force: bool = False) -> None:
        """Give back one level; at the last, or with `force`, the lock itself.

        Raises RuntimeError when this thread holds no level, and `force` is false. In a forked
        child: nothing.
        """
        if self._generation == fork.here():
            self._release(get_ident(), force)

    def _release(self, holder: int, force: bool) -> None:
        self._refuse_at_work("release")
        with self._step:
            hold = self._left(holder, force)
            if hold is not None:
                self._exit(hold.grant)

    def _left(self, holder: int, force: bool) -> HeldLevels | None:
        """What is to be let go of. Raises RuntimeError."""
        with self._state:
            hold = self._hold
            if not hold.level:
                if force:
                    return None
                raise RuntimeError(
                    f"Cannot release a lock on {self.lock_file} (lock id: {id(self)}) that is not "
                    "held"
                )
            if not force:
                self._refuse_stranger(hold, holder)
                if hold.level > 1:
                    hold.leave(holder)
                    return None
            self._clear_lock_state()
            return hold

    def _refuse_at_work(self, what: str) -> None:
        if get_ident() in self._at_work:
            raise RuntimeError(
                f"Cannot {what} {type(self).__name__} on {self.lock_file} while acquisition is "
                "active in this thread"
            )

    def _clear_lock_state(self) -> None:
        self._hold = HeldLevels()

    def _refuse_stranger(self, hold: HeldLevels, holder: int) -> None:
        where = f"Cannot release {hold.mode} lock on {self.lock_file} (lock id: {id(self)})"
        if hold.mode == "write" and holder != hold.writer:
            raise RuntimeError(
                f"{where} from thread {holder} while it is held by thread {hold.writer}"
            )
        if hold.mode == "read" and holder not in hold.readers:
            raise RuntimeError(f"{where} from thread {holder}, which does not hold it")

    def close(self) -> None:
        """Let go, whoever holds it, and be of no more use."""
        if self._generation != fork.here():
            return
        self._refuse_at_work("close")
        with self._step:
            with self._state:
                self._closed = True
            self._release(get_ident(), True)

    # ---- the two sides

    def acquire_read(
        self, timeout: float | None = None, *, blocking: bool | None = None
    ) -> AcquireReturnProxy:  # type: ignore[type-arg]
        """Hold it for reading, beside other readers. `timeout`: seconds, -1 without a limit.

        Raises Timeout; RuntimeError for one side in the middle of the other; OSError.
        """
        return self._acquire("read", timeout, blocking)

    def acquire_write(
        self, timeout: float | None = None, *, blocking: bool | None = None
    ) -> AcquireReturnProxy:  # type: ignore[type-arg]
        """Hold it for writing, alone. As `acquire_read`."""
        return self._acquire("write", timeout, blocking)

    @contextmanager
    def read_lock(
        self, timeout: float | None = None, *, blocking: bool | None = None
    ) -> Generator[None]:
        """`acquire_read()` for a block."""
        self.acquire_read(timeout, blocking=blocking)
        try:
            yield
        finally:
            self.release()

    @contextmanager
    def write_lock(
        self, timeout: float | None = None, *, blocking: bool | None = None
    ) -> Generator[None]:
        """`acquire_write()` for a block."""
        self.acquire_write(timeout, blocking=blocking)
        try:
            yield
        finally:
            self.release()

    # ---- for tasks, which hold one level together

    def _acquire_level_of(
        self, holder: int, mode: Mode, timeout: float, *, blocking: bool, cancel_check: Any
    ) -> AcquireReturnProxy[object]:
        return self._acquire(mode, timeout, blocking, holder, cancel_check)

    def _release_level_of(self, holder: int) -> None:
        self._release(holder, False)

    def _holds_level_of(self, holder: int) -> bool:
        return self._hold.has(holder)


# ------------------------------------------------------------------------------------------------
# What one reader/writer lock holds, and how long it waits.


Mode = Literal["read", "write"]
TASKS = -1  # the holder that stands for all tasks together


class HeldLevels:
    """What an object holds. `level` 0: nothing."""

    __slots__ = ("grant", "level", "mode", "readers", "writer")

    def __init__(self) -> None:
        self.level, self.mode = 0, ""
        self.writer: int | None = None
        self.readers: dict[int, int] = {}
        self.grant: Any = None

    def begin(self, mode: str, holder: int, grant: Any) -> None:
        """The first level."""
        self.mode, self.level, self.grant = mode, 1, grant
        self.writer = holder if mode == "write" else None
        self.readers = {holder: 1} if mode == "read" else {}

    def nest(self, holder: int) -> None:
        """One more."""
        if self.mode == "read":
            self.readers[holder] = self.readers.get(holder, 0) + 1
        self.level += 1

    def leave(self, holder: int) -> None:
        """One less."""
        self.level -= 1
        if self.mode == "read":
            owner = holder if holder in self.readers else next(iter(self.readers))
            depth = self.readers.pop(owner) - 1
            if depth:
                self.readers[owner] = depth

    def has(self, holder: int) -> bool:
        """Whether it holds a level."""
        return self.level > 0 and (holder == self.writer or holder in self.readers)


class WaitTerms:
    """How long an acquire waits, and who may end it."""

    __slots__ = ("blocking", "cancel", "deadline")

    def __init__(self, timeout: float, blocking: bool, cancel: Callable[[], bool] | None) -> None:
        self.blocking, self.cancel = blocking, cancel
        self.deadline = math.inf if timeout == -1 else clock.now() + timeout

    def take(self, lock: Any) -> bool:
        """A lock of threads, within it."""
        if lock.acquire(blocking=False):
            return True
        while self.blocking:
            left = self.deadline - clock.now()
            if left <= 0 or (self.cancel is not None and self.cancel()):
                return False
            if lock.acquire(timeout=min(left, TIMEOUT_MAX if self.cancel is None else 0.05)):
                return True
        return False


def patience(timeout: Any, blocking: Any) -> float:
    """Seconds of a wait, -1 without a limit. Raises TypeError, ValueError."""
    construction.boolean("blocking", blocking)
    found = construction.seconds("timeout", timeout)
    if not blocking:
        return 0.0
    if math.isnan(found):
        raise ValueError("timeout must be a number of seconds, not nan")
    if found == math.inf:
        return -1
    if found < 0 and found != -1:
        raise ValueError(f"timeout must be a non-negative number or -1, not {found!r}")
    return found


def shown(timeout: float) -> Any:
    """A timeout reduced to what it means."""
    if math.isnan(timeout):
        return "nan"
    return -1.0 if timeout == math.inf else timeout
