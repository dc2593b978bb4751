"""The two Protocols between the core and the world, and what is asked of them.

Everything above is written once against these: the blocking face runs the coroutines to their end
in one step, the async face awaits them, the explorer interleaves them. Imported by type checkers
only.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from .acquire import Ask
from .grant import Grant, Held, Holder, Lost, Unknown

T = TypeVar("T")


class Mechanism(Protocol):
    """One lock of one kind. A method is one whole *attempt*, never one system call.

    Answers are values.
    """

    async def try_acquire(self, ask: Ask) -> Grant | Held | Unknown:
        """One try, which does not wait."""
        ...

    async def wait(self, ask: Ask, until: float) -> Grant | Held | Unknown:
        """Wait for the lock until an instant of the runtime's clock; may itself return the Grant.

        A Held before `until` means "try me again". A place in a queue is kept in `ask.place` from
        one call to the next, and left by `ask.leave()`.
        """
        ...

    async def renew(self, grant: Grant) -> Grant | Lost | Unknown:
        """Prolong the lease by its ttl."""
        ...

    async def release(self, grant: Grant) -> Lost | Unknown | None:
        """Let it go, if it is still ours (L5). None: done."""
        ...

    def check(self, grant: Grant) -> Lost | None:
        """Whether we may still hold it: one stat(2) for file kinds, no I/O for store leases."""
        ...

    def inspect(self, *, held: bool = False) -> Holder | None:
        """Who holds it, None for nobody. Takes no lock and disturbs nobody's try.

        `held`: the caller has just been refused, so somebody does.
        """
        ...


class Runtime(Protocol):
    """The only place that reads a clock or starts a thread or a task."""

    def now(self) -> float:
        """Monotonic seconds, counting the time the machine was suspended."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Pause. May end early when the ask is cancelled."""
        ...

    async def block(self, ask: Ask, slot: Any, operation: int, until: float) -> bool:
        """Stand in the kernel's queue for `slot` by flock(2), interruptibly.

        `operation`: LOCK_EX or LOCK_SH; with FAIR (runtime/flock_wait.py) behind all fair askers
        that came before.

        True: the lock is there and the slot is the caller's. False: `until` has come or the ask was
        cancelled; the place in the queue stays in `ask.place`. Raises OSError when flock(2)
        refuses.
        """
        ...

    async def changed(
        self, ask: Ask, path: str, until: float, *, blind: bool = False, pid: int | None = None
    ) -> None:
        """Sleep until something happens to what a path leads to, or to a process.

        The first call for a path and process arms and returns at once: look again, then call
        again. Later ones return after an event since the last return, at `until`, when the ask is
        cancelled, and now and then for nothing: whoever returns looks for itself. Kept in
        `ask.place`, left by `ask.leave()`.
        `path`: a file or folder by its absolute name, whether it is there or not; with a slash at
        its end, everything in that folder. `blind`: events do not reach us there (a network file
        system): sleep with growing pauses. `pid`: return when this process of our namespace ends.
        """
        ...

    async def rung(self, ask: Ask, place: Any, until: float) -> None:
        """Sleep until somebody rings at `place`, at `until`, or when the ask is cancelled.

        `place` has `rung`, and `ring`, which is exchanged by each sleeper for its own bell: who
        rings sets the one and then calls the other. What was rung is told once.
        """
        ...

    async def look(self, mechanism: Mechanism) -> tuple[Holder | None, int | None] | None:
        """Who holds the lock, and how many others wait, for people only.

        It may be what another waiter of this process has just seen. None: one looks at this moment,
        ask again soon.
        """
        ...

    async def in_thread(self, call: Callable[[], T], undo: Callable[[T], None]) -> T:
        """`call()` in a helper thread.

        On cancellation its late result is undone, exactly once (L6).
        """
        ...

    def at(self, instant: float, call: Callable[[], None]) -> Callable[[], None]:
        """`call()` once at that instant, whatever the caller's thread or loop is doing.

        The answer ends it (L9).
        """
        ...

    async def shield(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` to its end even when the caller is cancelled meanwhile."""
        ...
