"""The Protocols between the core and the world, and what is asked of them.

Everything above is written once against these: the blocking face runs the coroutines to their end
in one step, the async face awaits them, the explorer interleaves them. `Mechanism` is what every
kind of lock has; each part that only some have says what it buys. A part is there when all of its
methods are, which the functions at the end find out, and nobody else does.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Hashable, Sequence
    from typing import Any, Protocol, TypeGuard, TypeVar

    from .acquire import Ask
    from .deadline import Terms
    from .errors import LifeholdError
    from .grant import Grant, Held, Holder, Lost, Unknown

    T = TypeVar("T")

    class Keeping(Protocol):
        """What keeps a grant, and says whether it holds."""

        async def renew(self, grant: Grant) -> Grant | Lost | Unknown:
            """Prolong the lease by its ttl."""
            ...

        def check(self, grant: Grant) -> Lost | None:
            """Whether we may still hold it: one stat(2) for file kinds, no I/O for store leases."""
            ...

    class Mechanism(Keeping, Protocol):
        """One lock of one kind. A method is one whole *attempt*, never one system call.

        Answers are values. What only some kinds can do is a Protocol of its own below.
        """

        @property
        def path(self) -> str:
            """What is locked: a file by its absolute name, a lock in a store by its URL."""
            ...

        @property
        def exclusive(self) -> bool:
            """Whether one alone holds it."""
            ...

        def attempt(self) -> Grant | Held | Unknown:
            """One try by the calling thread, which does not wait for the lock."""
            ...

        def drop(self, grant: Grant) -> Lost | Unknown | None:
            """Let it go, by the calling thread, if it is still ours (L5). None: done."""
            ...

        def taken(self) -> bool:
            """Whether anybody holds it now."""
            ...

        async def try_acquire(self, ask: Ask) -> Grant | Held | Unknown:
            """One try, which does not wait."""
            ...

        async def wait(self, ask: Ask, until: float) -> Grant | Held | Unknown:
            """Wait for the lock until an instant of the runtime's clock; the Grant may come of it.

            A Held before `until` means "try me again". A place in a queue is kept in `ask.place`
            from one call to the next, and left by `ask.leave()`.
            """
            ...

        async def release(self, grant: Grant) -> Lost | Unknown | None:
            """Let it go, if it is still ours (L5). None: done."""
            ...

        def inspect(self, *, held: bool = False) -> Holder | None:
            """Who holds it, None for nobody. Takes no lock and disturbs nobody's try.

            `held`: the caller has just been refused, so somebody does.
            """
            ...

    class Breakable(Mechanism, Protocol):
        """Buys: an operator may take it from a holder that lives."""

        def break_(self, reason: str, whom: Holder | None = None) -> Holder | None:
            """End whoever holds it, noted with the reason; who that was.

            `whom`: the grant that is meant: where it holds it no more, nothing is done: None.
            """
            ...

    class Queued(Mechanism, Protocol):
        """Buys: whoever waits is told how many others do."""

        def waiters(self) -> int | None:
            """How many wait: before us, if we do and have just been refused.

            None: cannot be seen.
            """
            ...

    class Leased(Mechanism, Protocol):
        """Buys: its grants end by themselves, and the heartbeat thread calls its `renew`."""

        @property
        def terms(self) -> Terms | None:
            """Of its grants; None for a kind that has leases too, where no ttl was asked for."""
            ...

    class Joined(Leased, Protocol):
        """Buys: leases of one store are renewed together."""

        @property
        def joint(self) -> Together:
            """What renews it, together with all others that have the same."""
            ...

    class Negotiating(Leased, Protocol):
        """Buys: a store may give a shorter ttl than it was asked for, and no deadline is late."""

        def terms_of(self, grant: Grant) -> Terms:
            """Under which this very grant is held (L8)."""
            ...

    class Together(Protocol):
        """What renews leases: those of a store go in one request (runtime/renewal.py)."""

        def enter(self, mechanism: object, kept: Any) -> None:
            """A lease that is to be kept."""
            ...

        def leave(self, kept: Any) -> None:
            """It is kept no more."""
            ...

        def add(self, mechanism: object, kept: Any) -> None:
            """The beat of a lease is due. By the heartbeat thread."""
            ...

    class Distant(Mechanism, Protocol):
        """Buys: an event loop does not stand still for a file server."""

        def far(self) -> bool:
            """Whether its calls may take their time, as on another machine."""
            ...

    class LossWatched(Mechanism, Protocol):
        """Buys: a holder that loses it is told at once, not at its next `check()`."""

        @property
        def watched(self) -> tuple[str, Callable[[], bool]]:
            """The path whose change may mean the loss, and whether events do not reach us there."""
            ...

    class Answering(Mechanism, Protocol):
        """Buys: an event loop awaits it, without a thread; `check()` asks nobody."""

        @property
        def remote(self) -> bool:
            """True."""
            ...

        def unavailable(self, cause: BaseException, nonce: str) -> LifeholdError:
            """The error for a caller whose question had no answer; `nonce`: of what is in doubt."""
            ...

    class Slotted(Mechanism, Protocol):
        """Buys: a semaphore, each of whose holders has a slot of its own."""

        @property
        def permits(self) -> int:
            """How many may hold it at once."""
            ...

        @property
        def slots(self) -> Sequence[Permit]:
            """All of them."""
            ...

        def slot_of(self, grant: Grant) -> int:
            """Which one a grant has."""
            ...

    class Permit(Protocol):
        """One permit of a semaphore."""

        @property
        def path(self) -> str:
            """Its name, which no lock can have."""
            ...

    class Downgradable(Mechanism, Protocol):
        """Buys: a writer becomes a reader, and no other writer comes in between."""

        def downgrade(self, grant: Grant) -> Grant | Lost | Unknown:
            """The reader's grant, by a thread that may block."""
            ...

    class AskerKnowing(Mechanism, Protocol):
        """Buys: readers of one process that share one file are told apart by thread and task."""

        def asked_by(self, asker: Callable[[], Hashable]) -> None:
            """Who asks, whenever it asks."""
            ...

    class Mixing(Mechanism, Protocol):
        """Buys: two kinds of lock on one path are refused, which would not exclude each other."""

        def refuse_mixed(self) -> None:
            """Raises UnsafeGround when another kind holds the path."""
            ...

    class Sited(Mechanism, Protocol):
        """Buys: one look for all waiters of one store, and not for another one of the same name."""

        @property
        def site(self) -> object:
            """The store."""
            ...

    class Optioned(Mechanism, Protocol):
        """Buys: remedies that run as printed, for a kind that the command is told by an option."""

        @property
        def option(self) -> str | None:
            """Of the `lifehold run` that takes the same lock; None where none does."""
            ...

    class Maker(Protocol):
        """A kind: what `Lock(kind=...)` calls (registry.py)."""

        def __call__(
            self,
            path: str,
            runtime: Runtime,
            *,
            exclusive: bool,
            label: str,
            record: bool,
            cleanup: bool,
            mode: int | None,
            shared: bool,
            **more: object,
        ) -> Mechanism:
            """The lock of a path; `terms=` besides for a kind that makes leases."""
            ...

    class LeaseMaker(Maker, Protocol):
        """Buys: `ttl=`, `heartbeat=` and `margin=` of a lock."""

        @property
        def leased(self) -> bool:
            """Whether it takes `terms`."""
            ...

    class Kinded(Mechanism, Protocol):
        """Buys: kinds that make one path their own are told apart in words."""

        @property
        def kind(self) -> str:
            """As in `Lock(kind=...)`; "store" for a lease."""
            ...

    class Runtime(Protocol):
        """The only place that reads a clock or starts a thread or a task."""

        def now(self) -> float:
            """Monotonic seconds, counting the time the machine was suspended."""
            ...

        async def sleep(self, seconds: float) -> None:
            """Pause. May end early when the ask is cancelled."""
            ...

        async def block(self, ask: Ask, slot: object, operation: int, until: float) -> bool:
            """Stand in the kernel's queue for `slot` by flock(2), interruptibly.

            `operation`: LOCK_EX or LOCK_SH; with FAIR (runtime/flock_wait.py) behind all fair
            askers that came before.

            True: the lock is there and the slot is the caller's. False: `until` has come or the ask
            was cancelled; the place in the queue stays in `ask.place`. Raises OSError when flock(2)
            refuses.
            """
            ...

        async def changed(
            self, ask: Ask, path: str, until: float, *, blind: bool = False, pid: int | None = None
        ) -> None:
            """Sleep until something happens to what a path leads to, or to a process.

            The first call for a path and process arms and returns at once: look again, then call
            again. Later ones return after an event since the last return, at `until`, when the ask
            is cancelled, and now and then for nothing: whoever returns looks for itself. Kept in
            `ask.place`, left by `ask.leave()`.
            `path`: a file or folder by its absolute name, whether it is there or not; with a slash
            at its end, everything in that folder. `blind`: events do not reach us there (a network
            file system): sleep with growing pauses. `pid`: return when this process of our
            namespace ends.
            """
            ...

        async def rung(self, ask: Ask, place: object, until: float) -> None:
            """Sleep until somebody rings at `place`, at `until`, or when the ask is cancelled.

            `place` has `rung`, and `ring`, which is exchanged by each sleeper for its own: who
            rings sets the one and then calls the other. What was rung is told once.
            """
            ...

        async def look(self, mechanism: Mechanism) -> tuple[Holder | None, int | None] | None:
            """Who holds the lock, and how many others wait, for people only.

            It may be what another waiter of this process has just seen. None: one looks at this
            moment, ask again soon.
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

        async def shield(self, work: Coroutine[object, None, T]) -> T:
            """Run `work` to its end even when the caller is cancelled meanwhile."""
            ...


def is_breakable(mechanism: object) -> TypeGuard[Breakable]:
    return hasattr(mechanism, "break_")


def is_queued(mechanism: object) -> TypeGuard[Queued]:
    return hasattr(mechanism, "waiters")


def is_leased(mechanism: object) -> TypeGuard[Leased]:
    return hasattr(mechanism, "terms")


def is_joined(mechanism: object) -> TypeGuard[Joined]:
    return hasattr(mechanism, "joint")


def is_negotiating(mechanism: object) -> TypeGuard[Negotiating]:
    return hasattr(mechanism, "terms_of")


def is_distant(mechanism: object) -> TypeGuard[Distant]:
    return hasattr(mechanism, "far")


def is_watched(mechanism: object) -> TypeGuard[LossWatched]:
    return hasattr(mechanism, "watched")


def is_remote(mechanism: object) -> TypeGuard[Answering]:
    return hasattr(mechanism, "remote") and hasattr(mechanism, "unavailable")


def is_slotted(mechanism: object) -> TypeGuard[Slotted]:
    return hasattr(mechanism, "permits") and hasattr(mechanism, "slot_of")


def is_downgradable(mechanism: object) -> TypeGuard[Downgradable]:
    return hasattr(mechanism, "downgrade")


def is_asking(mechanism: object) -> TypeGuard[AskerKnowing]:
    return hasattr(mechanism, "asked_by")


def is_mixing(mechanism: object) -> TypeGuard[Mixing]:
    return hasattr(mechanism, "refuse_mixed")


def is_sited(mechanism: object) -> TypeGuard[Sited]:
    return hasattr(mechanism, "site")


def is_named(mechanism: object) -> TypeGuard[Optioned]:
    return hasattr(mechanism, "option")


def makes_leases(make: Maker) -> bool:
    """Whether a kind takes `terms`."""
    return _is_lease_maker(make) and make.leased


def _is_lease_maker(make: object) -> TypeGuard[LeaseMaker]:
    return hasattr(make, "leased")


def is_kinded(mechanism: object) -> TypeGuard[Kinded]:
    return hasattr(mechanism, "kind")


def is_far(mechanism: object) -> bool:
    """Whether its calls may take their time."""
    return is_distant(mechanism) and mechanism.far()
