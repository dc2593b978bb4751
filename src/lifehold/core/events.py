"""What happened to a lock, as frozen records. They travel up; telemetry is an adapter on them.

`subscribe(listener)` hears all of them, in the thread or task in which they happen. A listener must
be quick and must not raise; what it raises is reported by `sys.unraisablehook` and does not touch
the lock. In a thread of the program an exit or an interrupt passes on: a signal may have raised it
there. Nobody listening costs one look at an empty list.
"""

from __future__ import annotations

from .errors import InvalidArgument
from .value import value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .grant import Holder


@value
class Waiting:
    """Told at growing intervals while the lock is someone else's.

    `waited`: seconds so far; `ahead`: how many others wait before us, None when that cannot be
    seen; `beside`: how many other waits of this process are for the same name.
    """

    name: str
    waited: float
    holder: Holder | None
    ahead: int | None = None
    beside: int = 0


@value
class Acquired:
    """The lock became ours. `waited`: seconds."""

    name: str
    nonce: str
    token: int | None
    waited: float


@value
class Renewed:
    """A lease was prolonged. `remaining`: seconds to its deadline."""

    name: str
    nonce: str
    remaining: float


@value
class Suspended:
    """The store cannot be reached, and our deadline has not come yet."""

    name: str
    nonce: str
    remaining: float


@value
class Lost:
    """We held it and may hold it no more."""

    name: str
    nonce: str
    reason: str


@value
class Released:
    """We let it go. `held`: seconds."""

    name: str
    nonce: str
    held: float


@value
class HandedOver:
    """A store passed the lock on to the next waiter."""

    name: str
    nonce: str


@value
class TakenOver:
    """The lock of a holder that is proven gone became ours. `evidence`: the proof in words (L2)."""

    name: str
    nonce: str
    holder: Holder | None
    evidence: str


@value
class Broken:
    """A lock was taken from its holder by order. `reason`: as given by who ordered it."""

    name: str
    holder: Holder | None
    reason: str


@value
class Cleared:
    """A stale lock was removed. `evidence`: the proof in words."""

    name: str
    holder: Holder | None
    evidence: str


@value
class Skipped:
    """A run did not take place because the lock was held."""

    name: str
    holder: Holder | None
    waited: float


@value
class InDoubt:
    """An idempotency record whose lease ran out: the work may or may not have happened."""

    name: str
    nonce: str


Event = (
    Waiting
    | Acquired
    | Renewed
    | Suspended
    | Lost
    | Released
    | HandedOver
    | TakenOver
    | Broken
    | Cleared
    | Skipped
    | InDoubt
)

listeners: list[Callable[[Event], object]] = []


def subscribe(listener: Callable[[Event], object]) -> Callable[[], None]:
    """Call `listener(event)` for everything that happens from now on; the answer ends it.

    Raises InvalidArgument for what cannot be called, or would make a coroutine that nobody awaits.
    """
    if not callable(listener):
        raise InvalidArgument(
            f"listener must be callable with an event, not {type(listener).__name__} {listener!r}"
        )
    if runs_later(listener):
        raise InvalidArgument(
            f"listener {getattr(listener, '__name__', listener)!r} would never run: calling it "
            "makes a coroutine or a generator, and nobody awaits it. Give a plain function, which "
            "may put the event into a queue for a task"
        )
    mine = SubscribedListener(listener)
    listeners.append(mine)

    def unsubscribe() -> None:
        if mine in listeners:
            listeners.remove(mine)

    return unsubscribe


class SubscribedListener:
    """One listener, told once: another subscription of the same, or of an equal one, is another."""

    __slots__ = ("listener",)

    def __init__(self, listener: Callable[[Event], object]) -> None:
        self.listener = listener

    def __call__(self, event: Event) -> object:
        return self.listener(event)


LATER = 0x20 | 0x80 | 0x200  # of a code object: a generator, a coroutine, an async generator


def runs_later(callback: Any) -> bool:
    """Whether calling it makes a coroutine or a generator, which nobody would run."""
    while type(callback).__name__ == "partial":  # of functools; a mock has a `func` without end
        callback = callback.func
    made = callback if hasattr(callback, "__code__") else type(callback).__call__
    return bool(getattr(getattr(made, "__code__", None), "co_flags", 0) & LATER)


def tell(event: Event) -> None:
    """Pass an event to whoever listens."""
    for listener in listeners.copy():
        call(listener, event)


# Calls code of the program if a thread of ours runs, else it is None, or answers False. It is set
# by runtime/own_thread.py.
in_own_thread: Callable[[Callable[..., object], tuple[object, ...]], bool] | None = None


def call(theirs: Callable[..., object], *given: object) -> None:
    """Call code of the program: what it raises is not the lock's, and is reported.

    What is no `Exception` passes on in a thread of the program, and never in one of ours.
    """
    try:
        if in_own_thread is None or not in_own_thread(theirs, given):
            theirs(*given)
    except Exception as error:  # noqa: BLE001 - whatever it is
        report(error)


def report(error: BaseException) -> None:
    """Show what a listener or callback raised, without disturbing the lock that called it."""
    _Unheard(error)


class _Unheard:
    """Raises an error where nobody can catch it: CPython then calls `sys.unraisablehook`.

    It cannot be called by us, since the type of its argument has no public name.
    """

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __del__(self) -> None:
        raise self.error
