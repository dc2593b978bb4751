"""The only wait loop.

Try, wait, tell who holds it, until the lock is ours or the caller's patience ends.

L6  Whatever ends it (a grant, the deadline, Ctrl-C, a cancelled task, an error), a place kept in a
    queue is left on the way out, and a grant that came at the last moment is taken or undone, never
    forgotten.
L10 Nobody waits in silence: after 2 s, then at growing intervals, the waiter is told who holds the
    lock. Telling never ends or loses the wait: the place in the queue is kept meanwhile, and what
    goes wrong in telling is reported beside it.
"""

from __future__ import annotations

from . import events
from .deadline import FIRST_NOTICE as FIRST
from .deadline import NEVER, next_gap
from .errors import InvalidArgument
from .grant import Grant, Held
from .ports import is_queued

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol

    from .grant import Holder, Unknown
    from .ports import Mechanism, Runtime

    class QueuePlace(Protocol):
        """A place in a queue, kept while the waiter looks around."""

        def leave(self) -> bool:
            """Give the place up. True: the lock came first and is the caller's."""
            ...

        def undo(self) -> None:
            """Let go of a lock that came first."""
            ...


# Seconds between the notices of those who came together: a thousand threads that wake at once
# would spend more on their turns in the interpreter than on all else. At most so far apart.
APART, FARTHEST = 0.002, 10.0
FIRST_NOTICE = FIRST  # seconds of waiting until the first notice: a demo is in more of a hurry
SOON = 0.25  # seconds until who could not be told is told


def deadline_of(wait: float | None, now: float) -> float:
    """The instant at which a caller's patience ends; NEVER for None, `now` for 0."""
    return NEVER if wait is None else now + wait


class Ask:
    """One acquisition under way.

    What is wanted, how long, and the place in a queue that it may have.
    """

    __slots__ = (
        "alike",
        "cancel",
        "deadline",
        "doubted",
        "first_notice",
        "name",
        "on_wait",
        "pause",
        "place",
        "slot",
        "started_at",
        "told_at",
    )

    def __init__(
        self,
        name: str,
        deadline: float = NEVER,
        cancel: Cancel | None = None,
        on_wait: Callable[[events.Waiting], None] | None = None,
    ) -> None:
        self.name, self.deadline, self.cancel, self.on_wait = name, deadline, cancel, on_wait
        self.first_notice = FIRST_NOTICE
        self.started_at = self.told_at = 0.0
        self.place: QueuePlace | None = None
        self.pause = 0.0  # seconds for which it listens to nothing, before it sleeps again
        self.alike: Any = None  # of waits that one event lets in one after the other: the same
        self.slot: Any = None  # what the mechanism keeps between two calls of wait()
        self.doubted = ""  # the nonce of which nobody knows what it has, of who has left (L6)

    @property
    def cancelled(self) -> bool:
        return self.cancel is not None and self.cancel.cancelled

    def leave(self) -> None:
        """Give up any place in a queue; a lock that came first is let go of (L6)."""
        place = self.place
        if place is not None:
            try:
                came_first = place.leave()
            except BaseException:
                place.leave()  # a signal handler has raised in there: leave all the same
                place.undo()
                raise
            if came_first:
                place.undo()
        self.place = self.slot = None


class Crowd:
    """The waits of this process for one name; when people were told of them, by which call."""

    __slots__ = ("asks", "said_at")

    def __init__(self) -> None:
        self.asks: set[Ask] = set()
        self.said_at: dict[Any, float] = {}


waiting: dict[str, Crowd] = {}  # by name; nothing is decided by it
TURN = 0.001  # seconds in which a loop comes to those who wait


async def acquire(
    mechanism: Mechanism, runtime: Runtime, ask: Ask, answer: Held | Unknown | None = None
) -> Grant | Held | Unknown:
    """The grant, or what stood in the way when `ask.deadline` came or the ask was cancelled.

    `answer`: of a first try that the caller has already made.
    """
    ask.started_at = now = runtime.now()
    gap = ask.first_notice
    notice_at = now + gap
    got: Grant | Held | Unknown = await mechanism.try_acquire(ask) if answer is None else answer
    if isinstance(got, Held) and got.hint is not None:
        ask.slot = got.hint
    try:
        try:
            crowd = waiting.setdefault(ask.name, Crowd())
            crowd.asks.add(ask)
            notice_at += min(APART * (len(crowd.asks) - 1), FARTHEST)
            cancel = ask.cancel
            while isinstance(got, Held) and now < ask.deadline:
                if cancel is not None and cancel.cancelled:
                    break
                got = await mechanism.wait(ask, min(ask.deadline, notice_at))
                now = runtime.now()
                if isinstance(got, Held) and notice_at <= now < ask.deadline:
                    due = now
                    told = await notice(mechanism, runtime, ask, now - ask.started_at)
                    now = runtime.now()  # who is told may take his time
                    if told:
                        gap = next_gap(gap)
                        notice_at = max(due + gap, now)
                    else:
                        notice_at = now + SOON
        finally:
            try:
                ask.leave()
            except BaseException:
                ask.leave()  # a signal handler has raised in there: the queue must be left
                raise
            finally:
                wait_over(ask)
        return got
    except BaseException:
        if isinstance(got, Grant):
            await mechanism.release(got)  # it came, and nobody is left to take it
        raise


def wait_over(ask: Ask) -> None:
    """It waits no more."""
    crowd = waiting.get(ask.name)
    if crowd is not None:
        crowd.asks.discard(ask)
        if not crowd.asks:
            waiting.pop(ask.name, None)


async def notice(mechanism: Mechanism, runtime: Runtime, ask: Ask, waited: float) -> bool:
    """Tell the waiter who holds the lock (L10). False: another one of this process looks just now.

    He keeps his place meanwhile, and is told what the other has seen.
    """
    found: tuple[Holder | None, int | None] | None = (None, None)
    try:
        found = await runtime.look(mechanism)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is not the lock's
        events.report(error)
    if found is None:
        return False
    crowd = waiting.get(ask.name) or Crowd()
    told = events.Waiting(ask.name, waited, *found, max(0, len(crowd.asks) - 1))
    events.tell(told)
    since, ask.told_at = ask.told_at or ask.started_at, runtime.now()
    # One line for all of them: it was said while this one waited, or it is said now.
    said = getattr(ask.on_wait, "__func__", ask.on_wait), mechanism.path
    if ask.on_wait is not None and crowd.said_at.get(said, 0.0) <= since:
        crowd.said_at[said] = ask.told_at
        try:
            ask.on_wait(told)
        except Exception as error:  # noqa: BLE001 - a logging handler, a stderr that is closed
            events.report(error)
    return True


def look(mechanism: Mechanism) -> tuple[Holder | None, int | None]:
    """Who holds the lock, and how many others wait for it, before us if we do.

    None when it cannot be seen, or when this kind has no queue.
    """
    return mechanism.inspect(held=True), mechanism.waiters() if is_queued(mechanism) else None


# ------------------------------------------------------------------------------------------------
# A token by which one thread ends the wait of another.
#
# Async code uses its own cancellation instead.


class Cancel:
    """Pass it to `acquire(cancel=...)`.

    `cancel()` from any thread or signal handler ends that wait.

    Once cancelled it stays so. A wait that has already been granted is not undone.
    """

    __slots__ = ("_callbacks", "_cancelled")

    def __init__(self) -> None:
        self._cancelled = False
        self._callbacks: list[Callable[[], None]] = []

    @property
    def cancelled(self) -> bool:
        return self._cancelled

    def cancel(self) -> None:
        """End every wait that uses this token. Raises the first error, when all have been told."""
        self._cancelled = True
        first: BaseException | None = None
        for callback in self._callbacks.copy():
            try:
                callback()
            except BaseException as error:  # noqa: BLE001 - raised when the others are told
                first = first or error
        if first is not None:
            raise first

    def attach(self, callback: Callable[[], None]) -> None:
        """Call `callback` on cancel, at once if that has happened.

        It must be quick and safe to repeat. Raises InvalidArgument for what cannot be called.
        """
        if not callable(callback):
            raise InvalidArgument(
                f"callback must be callable, not {type(callback).__name__} {callback!r}: give the "
                "function, which is called without arguments"
            )
        self._callbacks.append(callback)
        if self._cancelled:  # looked at after the append, so a cancel in between is not missed
            callback()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            cures = {"set": ": call cancel()", "is_set": ": read cancelled"}
            raise AttributeError(f"Cancel has no {name}{cures.get(name, '')}")

    def detach(self, callback: Callable[[], None]) -> None:
        """Forget `callback`."""
        if callback in self._callbacks:
            self._callbacks.remove(callback)
