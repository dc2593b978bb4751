"""The blocking face: `Lock` and its `Lease`.

A lock object is only a description of what to lock. Each acquire makes a lease of its own, so one
object may be shared by threads: they exclude each other, as two objects and two processes do.
"""

from __future__ import annotations

import _thread

from . import registry
from .blocks import Block, Entry, Exit, begun, entering
from .core import events
from .core.acquire import Ask, acquire
from .core.deadline import deadline_of, seconds
from .core.errors import InvalidArgument, NotHeld, SystemRefused
from .core.grant import Grant, Held
from .face import (
    LockFace,
    began_at,
    is_coroutine_function,
    out_of_reach,
    polled,
    refuse_generators,
)
from .lease import Holding, unwound
from .runtime import fork
from .runtime.blocking import BLOCKING, finish
from .runtime.held_here import asker, this_thread
from .runtime.native import get_ident

TYPE_CHECKING = False
if TYPE_CHECKING:
    import functools
    from collections.abc import Callable
    from types import EllipsisType, TracebackType
    from typing import Any, ParamSpec, TypeVar

    from .core.acquire import Cancel
    from .core.grant import Unknown

    P = ParamSpec("P")
    R = TypeVar("R")
else:
    functools = fork.later("functools", globals())


class Lease(Holding):
    """A lock in hand: its token, `check()`, `lost`, `release()`.

    Also a context manager that releases.
    """

    __slots__ = ()

    def verify(self) -> None:
        """`check()`, and where the lease is kept it is renewed first: one round trip of a store.

        Raises as `check()`; StoreUnavailable when no answer came: the lease may hold still, until
        its deadline.
        """
        cause = self._kept.verify() if self._kept is not None and self._here() else None
        self.check()
        if cause is not None:
            raise self._unanswered(cause) from cause

    def release(self) -> None:
        """Let the lock go.

        Raises NotHeld when that was done before or belongs to a parent process, LeaseLost
        when the lock was lost meanwhile.
        """
        if self._depth:
            self._depth -= 1
            return
        lock = self._lock
        try:
            lock._leases.remove(self)
        except ValueError:
            pass  # taken out by another thread
        kept = self._kept
        if kept is not None:
            kept.why_not()  # L5, L8  a deadline that passed unnoticed is told
            kept.stop()  # first: an interrupted release must not be renewed for ever
        try:
            found = lock._mechanism.drop(self._grant)
        except BaseException as error:
            unwound(error)
            if isinstance(error, SystemRefused):
                self._refused(error)
            raise
        told = self._lost or (kept is not None and (kept.reason or kept.lost))
        if told or found is not None or events.listeners:
            self._ended(found)

    def _leave(self, error: BaseException | None) -> None:
        """Release at the end of a block, which `error` has ended, or None."""
        try:
            self.release()
        except BaseException as other:
            if not self._excused(other, error):
                raise

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class Lock(LockFace):
    """A lock on a file, for threads, processes and containers of one machine.

    `path`: the lock file; it is made, with its folders, when it is not there, and it stays.
    `wait`: seconds that `acquire()` and `with` wait; None until acquired, 0 for one try.
    `kind`: "kernel", or "auto", which chooses it. `exclusive=False` locks shared: many may hold it
    at once.
    `label`: a word for people, shown to who waits. `reentrant`: the thread that holds it may take
    it again.
    `max_hold`: seconds after which a grant ends by itself and is lost. `record=False` writes
    nothing.
    `cleanup`: unlink the file at release. `mode`: of a new file, whatever the umask; `shared=True`:
    0666.
    `cancel`: a `Cancel` by which another thread ends a wait.
    `fair`: first come, first served among all who ask with `fair=True`.
    `singleton`: the same object for the same file in this process, as long as it is kept; other
    options are refused.

    Raises InvalidArgument for a path or a value that no lock can be made of. See
    docs/explanation/kernel-lock.md.
    """

    __slots__ = ()
    _runtime = BLOCKING
    _hand = Lease  # what an acquire puts into the caller's hand

    def acquire(
        self, wait: float | None | EllipsisType = ..., *, cancel: Cancel | None = None
    ) -> Lease:
        """The lease, once the lock is ours.

        `wait` in seconds: None until acquired, 0 for one try; left out: the lock's own.

        Raises Timeout or WouldBlock, which name the holder; AcquireCancelled; SelfDeadlock when
        this thread holds the lock itself and would wait for ever; SystemRefused, CorruptRecord,
        UnsafeGround.
        """
        me = this_thread.key if _thread.get_ident is get_ident else asker()
        block: Any = None
        asked: Any = wait
        if type(asked) is Entry:
            wait, block = asked.wait, asked.block
            if block is None:
                block = this_thread.begun()
                if block is None or block.one is not self or block.lease is not None:
                    block = begun(self, block, me)
        patience = self._wait if wait is ... else seconds("wait", wait)
        if self._reentrant and (mine := self._of_thread(me)) is not None:
            mine._depth += 1
            if block is not None:
                block.lease = mine
            return mine
        answer: Any = None
        waited = 0.0
        try:
            answer = self._mechanism.attempt()
            if type(answer) is not Grant:
                answer, waited = self._contend(answer, patience, cancel or self._cancel)
            lease = self._hand(self, answer, me, waited)
            if block is not None:
                lease._way, block.lease = block.way, lease
            self._leases.append(lease)
        except BaseException as error:
            self._undo(answer, error)
            raise
        return lease

    def _contend(
        self, answer: Held | Unknown, patience: float | None, cancel: Cancel | None
    ) -> tuple[Grant, float]:
        """The wait of a lock that is held."""
        started = began_at(answer) or self._runtime.now()
        ask = Ask(self._name, deadline_of(patience, started), cancel, self._tell_waiting)
        found: Grant | Held | Unknown = answer
        registry.refuse_mixed(self._mechanism)
        if patience != 0:
            if patience is None and isinstance(answer, Held):
                self._refuse_self_deadlock(answer.key, this_thread.key, None)
            try:
                found = finish(acquire(self._mechanism, self._runtime, ask, answer))
            except (ImportError, SystemRefused) as error:
                if not out_of_reach(error):
                    raise
                found = finish(polled(self._mechanism, self._runtime, ask, answer))
        try:
            waited = self._runtime.now() - started
            if isinstance(found, Grant):
                return found, waited
        except BaseException as error:
            self._undo(found, error)
            raise
        raise self._refusal(found, ask, patience, waited)

    def release(self) -> None:
        """Release the lease of this thread, the last one that it took. Raises NotHeld for none.

        A lock that is passed on to another thread is released there by its lease (L5, L9).
        """
        lease = self._of_thread(this_thread.key)
        if lease is None:
            raise NotHeld(f"{self._name!r} is not held by this thread", name=self._name)
        lease.release()

    @property
    def lease(self) -> Lease | None:
        """The lease that this thread holds, the last one that it took; None for none."""
        return self._of_thread(this_thread.key)

    def _many(self) -> bool:
        """Whether one thread may hold it twice, by two leases."""
        return not self._mechanism.exclusive

    def _of_thread(self, me: int) -> Lease | None:
        found: Lease
        for found in self._leases[::-1]:
            if found._key == me and found._here():
                return found
        return None

    if TYPE_CHECKING:
        __enter__ = acquire

        def __exit__(
            self,
            kind: type[BaseException] | None,
            error: BaseException | None,
            trace: TracebackType | None,
        ) -> None: ...

    else:
        __enter__ = entering(acquire)
        __exit__ = Exit(Block)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Decorator: each call of `function` holds the lock. For coroutines: `AsyncLock`."""
        refuse_generators(function)
        if is_coroutine_function(function):
            name = getattr(function, "__name__", function)
            raise InvalidArgument(
                f"@Lock on the coroutine function {name!r} would lock its creation and not its "
                "run: use @AsyncLock"
            )

        def locked(*args: P.args, **kwargs: P.kwargs) -> R:
            with self:
                return function(*args, **kwargs)

        functools.update_wrapper(locked, function)
        return locked
