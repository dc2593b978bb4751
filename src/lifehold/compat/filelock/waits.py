"""How an acquire of this face waits: by an event, or by trying again and again when told to."""

from __future__ import annotations

import atexit
import contextlib
import logging
import math
import os
from threading import local
from typing import Any
from weakref import WeakSet, ref

from ...core.grant import Single
from ...runtime import clock, fork
from . import construction
from .construction import absolute, canonical
from .errors import BODY, AcquireErrors, Timeout, grouped, raised
from .system_calls import ANCHORED

TYPE_CHECKING = False
if TYPE_CHECKING:
    import secrets
    from collections.abc import Callable
else:
    secrets = fork.later("secrets", globals())

LOGGER = logging.getLogger("filelock")
DEBUG = logging.DEBUG


class AcquireRequest:
    """What one acquire asks for: patience, pause, and who may end it."""

    asked: Callable[[], bool] | None = None
    cancel: Callable[[], bool] | None = None
    cancelled = said = False
    tries = 0
    path = ""  # where it led at the first try: of one that is awaited
    deadline = math.inf
    mine: dict[int, str]  # the paths that the asking thread, or task, holds

    def __init__(
        self,
        context: Any,
        timeout: float | None,
        poll_interval: float | None,
        blocking: bool | None,
        cancel: Callable[[], bool] | None,
    ) -> None:
        patience = context.timeout if timeout is None else construction.seconds("timeout", timeout)
        if blocking is None:
            blocking = context.blocking
        else:
            construction.boolean("blocking", blocking)
        if poll_interval is None:
            self.pause = context.poll_interval
        else:
            self.pause = construction.poll(poll_interval)
        if cancel is not None:
            self.asked, self.cancel = cancel, self._ask
        self.mine = held_here.holds
        self.blocking = blocking and patience != 0
        if self.blocking and not (patience < 0 or patience == math.inf):
            if patience != patience:
                raise ValueError("timeout must be a number of seconds, not nan")
            self.deadline = clock.now() + patience

    def _ask(self) -> bool:
        if self.asked is not None:
            self.cancelled = bool(self.asked())
        return bool(self.cancelled)

    @property
    def polled(self) -> bool:
        """Whether it is to try again and again."""
        return bool(self.pause != construction.DEFAULT_POLL)

    @property
    def endless(self) -> bool:
        return bool(self.blocking) and self.deadline == math.inf

    def pass_gate(self, gate: Any) -> bool:
        """Wait until no other thread is in the middle of an acquire or release of this object."""
        if gate.acquire(blocking=False):
            return True
        while self.blocking:
            left = self.deadline - clock.now()
            if left <= 0 or (self.cancel is not None and self.cancel()):
                return False
            if gate.acquire(timeout=min(left, max(self.pause, 0.01))):
                return True
        return False


def refuse_self(hold: LockHold, path: str, want: AcquireRequest) -> None:
    """A wait without end for what this thread holds by another object is an error, not a hang."""
    if not want.endless:
        return
    mine = want.mine
    if mine and canonical(path) in {canonical(held) for held in mine.values()}:
        raise RuntimeError(
            f"Deadlock: lock {path!r} is already held by a different FileLock instance in this "
            "thread. Use is_singleton=True to share one instance, or pass the lock along"
        )


async def by_polling(lock: Any, hold: LockHold, want: AcquireRequest) -> None:
    """Try, pause, try again: when told to, and for subclasses that bring a lock of their own."""
    path = absolute(lock.lock_file)
    try:
        while True:
            tried(lock, hold)
            if hold.fd is not None:
                hold.path = path
                return
            ANCHORED[id(want)] = os.path.dirname(path)
            refuse_self(hold, path, want)
            await lock._runtime.sleep(pause_or_refuse(lock, want))
            lock._still_there(path)
    finally:
        ANCHORED.pop(id(want), None)


def tried(lock: Any, hold: LockHold) -> None:
    """One `_acquire` of a subclass's; after an exception nothing is held, or it is still noted."""
    met = AcquireErrors()
    begins(hold)
    try:
        try:
            lock._acquire()
            lock._refuse_child()  # it has forked: this is the child
        except BaseException as error:  # noqa: BLE001 - told below
            met.failed = error
        _noted(lock, hold, met)
    finally:
        ended(hold)
    met.tell()


def _noted(lock: Any, hold: LockHold, met: AcquireErrors) -> None:
    if hold.fd is not None and hold.grant is None:
        try:
            lock._register_context_descriptor()
        except BaseException as error:  # noqa: BLE001 - told below
            met.unnoted = error
    if met.errors and hold.fd is not None:
        fd = hold.fd
        try:
            lock._release()
        except BaseException as error:  # noqa: BLE001 - told below
            met.stuck = error
            hold.moving, hold.path = "stuck", lock.lock_file  # a release may end it later
        else:
            forget(fd)


def undone(lock: Any, hold: LockHold, error: BaseException) -> None:
    """After an exception of an acquire: nothing is held, or what the system did not let go of."""
    failed: BaseException | None = None
    if hold.moving != "stuck" and hold.fd is not None:
        try:
            lock._let_go(hold)
        except BaseException as met:  # noqa: BLE001 - raised below, with the other
            failed = met
    if hold.fd is None:
        lock._forget(hold)
    else:
        hold.counter = 1
        lock._holds.add(hold)
    if failed is not None:
        raised(grouped(BODY, error, failed))


def pause_or_refuse(lock: Any, want: AcquireRequest) -> float:
    """Seconds until the next try. Raises Timeout when there is none to come."""
    path = lock.lock_file
    if want.cancel is not None and want.blocking and want.cancel():
        LOGGER.debug("Cancellation requested for lock %s on %s", id(lock), path)
        raise Timeout(path)
    left = want.deadline - clock.now()
    if not want.blocking or left <= 0:
        LOGGER.debug("Timeout on acquiring lock %s on %s", id(lock), path)
        raise lock._refused(0.0)
    pause: float = min(widened(lock, want), left)
    if LOGGER.isEnabledFor(DEBUG):
        text = "Lock %s not acquired on %s, waiting %s seconds ..."
        LOGGER.debug(text, id(lock), path, pause)
    return pause


def widened(lock: Any, want: AcquireRequest) -> float:
    """The pause that was asked for; at random up to twice the last one for a lock of many files.

    Those who publish several files for each try would otherwise meet at every one.
    """
    want.tries += 1
    if want.pause >= lock._widest:
        return want.pause  # type: ignore[no-any-return]
    window = min(lock._widest, want.pause * 2 ** min(want.tries, 16))
    drawn: float = max(want.pause, secrets.randbelow(int(window * 1e6) + 1) / 1e6)
    return drawn


def refuse_reentry(lock: Any, hold: LockHold) -> None:
    """A signal handler asks again in the middle of what it interrupted: waiting would never end."""
    doing = "acquire of it waits" if hold.moving == "acquire" else "release of it runs"
    raise RuntimeError(
        f"{lock.lock_file!r} was acquired again while this thread's {doing}: a signal handler "
        "cannot wait for what it interrupted"
    )


# ------------------------------------------------------------------------------------------------
# What one lock object knows of itself, for each thread or for all of them together.
#
# Rule: the hold of a thread lives in `holds` of its lock and not only in the thread's own context,
# so that a lock taken in a thread that has ended is still held, and can still be let go.


__all__ = ["Context", "LockHold", "SharedContext", "ThreadContext", "held_here"]


class ThreadLife:
    """Lives as long as the thread whose context has it."""

    __slots__ = ("__weakref__",)


class LockHold(Single):
    """One hold of a lock: by one thread, or by the object for all threads."""

    __slots__ = (
        "__weakref__",
        "claim",
        "counter",
        "ended",
        "fd",
        "grant",
        "lease",
        "mine",
        "moving",
        "path",
        "presence",
        "turn",
    )

    def __init__(self, presence: ThreadLife | None) -> None:
        self.counter = 0  # how often it was acquired and not yet released
        self.ended = 0  # how many of those that it has been are over
        self.fd: int | None = (
            None  # a descriptor that stands for it; what a subclass wants it to be
        )
        self.grant: Any = None  # of our mechanism
        self.lease: Any = None  # made when somebody asks for it
        self.path = ""  # absolute, for as long as it is held
        self.moving = ""  # "acquire" or "release" while one of them runs
        self.mine: dict[int, str] | None = None  # the acquiring thread's holds, this among them
        self.turn: Any = None  # of tasks (asyncio.py)
        self.claim: Any = None  # of a lease (lease.py)
        self.presence = None if presence is None else ref(presence)

    def __del__(self) -> None:
        if self.mine is not None:
            self.mine.pop(id(self), None)

    @property
    def orphaned(self) -> bool:
        """Whether the thread that took it has ended."""
        return self.presence is not None and self.presence() is None


class HeldPaths(local):
    """The paths that this thread holds, by any object: a wait for oneself never ends."""

    def __init__(self) -> None:
        self.holds: dict[int, str] = {}


held_here = HeldPaths()


class _Context:
    """Settings, and the hold. Its names are known to subclasses of the original."""

    hold: LockHold
    timeout: float
    blocking: bool
    poll_interval: float
    lifetime: float | None
    lock_file: str
    mode: int

    @property
    def lock_file_fd(self) -> int | None:
        return self.hold.fd

    @lock_file_fd.setter
    def lock_file_fd(self, fd: int | None) -> None:
        self.hold.fd = fd

    @property
    def lock_counter(self) -> int:
        return self.hold.counter

    @lock_counter.setter
    def lock_counter(self, count: int) -> None:
        self.hold.counter = count

    def _set(self, settings: dict[str, object], hold: LockHold) -> None:
        self.__dict__.update(settings)
        self.hold = hold


class SharedContext(_Context):
    """One for all threads."""

    def __init__(self, settings: dict[str, object]) -> None:
        self._set(settings, LockHold(None))


class ThreadContext(_Context, local):
    """One for each thread, made when it first asks, with the settings of the constructor."""

    def __init__(self, settings: dict[str, object]) -> None:
        self.presence = ThreadLife()
        self._set(settings, LockHold(self.presence))


Context = SharedContext | ThreadContext


# ------------------------------------------------------------------------------------------------
# Descriptors of locks that a subclass brings: a forked child must not keep them open.
#
# Ours are in the table of open locks; what a third party's `_acquire` has opened is noted here,
# with the file that it leads to, so that a number which was used again meanwhile is left alone.
# What one has opened that has not returned yet is found by its hold.


_open: dict[int, tuple[int, int] | None] = {}
_under_way: dict[int, LockHold] = {}  # those whose `_acquire` runs


def begins(hold: LockHold) -> None:
    """Its `_acquire` is called."""
    _under_way[id(hold)] = hold


def ended(hold: LockHold) -> None:
    """That has returned, and what it has opened is noted, or is nobody's."""
    _under_way.pop(id(hold), None)


def note(fd: object) -> None:
    """It is held from now on. Noted even when it cannot be looked at, which raises OSError."""
    if type(fd) is int and fd >= 0:
        _open[fd] = None
        found = os.fstat(fd)
        _open[fd] = found.st_dev, found.st_ino


def forget(fd: object) -> None:
    """It was let go of."""
    if type(fd) is int:
        _open.pop(fd, None)


@fork.in_child
def _close() -> None:
    """L9  A child closes its copies of lock files, those of a wait under way too."""
    closed = set()  # and not what is noted: a number may have been used again since
    for fd, key in list(_open.items()):
        try:
            found = os.fstat(fd)
            if key is None or key == (found.st_dev, found.st_ino):
                closed.add(fd)
                os.close(fd)
        except OSError:
            continue  # closed behind our back
    for hold in _under_way.values():
        opened = hold.fd
        if type(opened) is int and opened >= 0 and opened not in closed and hold.grant is None:
            hold.fd = None
            try:
                os.close(opened)
            except OSError:
                continue
    _open.clear()
    _under_way.clear()


# ------------------------------------------------------------------------------------------------
# At the end of the program: locks that lie in a file system, and that nobody would release.
#
# A kernel lock ends with its process; what is a file stays. Modules are taken apart before the last
# objects are, so it is done before. A hold of a thread that still runs is left to it.


living: WeakSet[Any] = WeakSet()
sides: WeakSet[Any] = WeakSet()  # reader/writer locks


@atexit.register
def release_all() -> None:
    """Let go of everything whose thread is over, or is this one."""
    for lock in list(living):
        if lock._generation == fork.here():
            for hold in list(lock._holds):
                if hold.orphaned or hold is lock._context.hold:
                    with contextlib.suppress(Exception):
                        lock._release_last(hold)
    for each in list(sides):
        with contextlib.suppress(Exception):
            each.release(force=True)
