"""What a holder has in hand.

The lease of both faces, its token, its loss.

Rule: nothing here decides whether a lock is held; the mechanism's grant does, and its handle is
claimed in one atomic step by whoever ends it first: release, `max_hold`, or the garbage collector
(L5, L6).
"""

from __future__ import annotations

import errno
import os
import warnings

from .core import events
from .core.errors import LeaseLost, NotHeld, StoreUnavailable, SystemRefused
from .core.grant import Unknown
from .runtime import clock, fork, heartbeat
from .runtime.blocking import finish
from .runtime.links import current, in_force, note
from .runtime.loss import LostSignal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    from .core.grant import Grant, Lost
    from .face import LockFace

    Signal = TypeVar("Signal", bound=LostSignal)


def current_token(name: str | None = None) -> int | None:
    """The token of the innermost lease that this context holds.

    None when it holds none, or one without.

    `name`: of the lease whose token is wanted, when several are held. Follows `contextvars`: a task
    sees the leases of the code that started it. Does not look at the lock; `lease.check()` does.
    """
    link = current.get()
    while link is not None:
        grant: Grant = link[0]
        link = link[1]
        if in_force(grant) and (name is None or grant.name in (name, os.path.abspath(name))):
            return grant.token
    return None


class Holding:
    """One grant in the hands of a program. `Lease` and `AsyncLease` add how it is released."""

    __slots__ = ("_alarm", "_depth", "_grant", "_key", "_lock", "_lost", "_until")

    def __init__(
        self, lock: LockFace, grant: Grant, key: tuple[int, object] | int, waited: float
    ) -> None:
        self._lock, self._grant, self._key = lock, grant, key
        self._lost: LostSignal | None = None
        self._until: float | None = None
        self._alarm: Callable[[], None] | None = None
        self._depth = 0
        note(grant, key)
        if lock._max_hold is not None:
            self._limit(lock._max_hold)
        if events.listeners:
            events.tell(events.Acquired(lock._name, grant.nonce, grant.token, waited))

    def _limit(self, max_hold: float) -> None:
        """L10  End the grant at its bound, whatever the holder is doing.

        A hung one does not block for ever.
        """
        mechanism, grant, lost, name = self._lock._mechanism, self._grant, self.lost, self.name
        reason = f"max_hold of {max_hold:g} s has passed"

        def free() -> None:
            finish(mechanism.release(grant))

        def let_go() -> None:
            try:
                free()
            finally:
                events.tell(events.Lost(name, grant.nonce, reason))

        def end() -> None:
            if grant.handle and not lost.set(reason, first=let_go):
                free()  # check() saw the deadline first, and told it

        self._until = clock.now() + max_hold
        try:
            self._alarm = heartbeat.at(self._until, end)
        except BaseException as error:
            free()  # L6  whoever keeps the exception would keep the lock
            if not isinstance(error, RuntimeError):
                raise
            raise SystemRefused(
                f"{name!r}: no thread to keep max_hold in ({error}): raise the limit of processes "
                "(ulimit -u), or drop max_hold",
                name=name, errno=errno.EAGAIN, filename=name,
            ) from error  # fmt: skip

    # ---- what was granted

    @property
    def name(self) -> str:
        """The lock, as it was named."""
        return self._lock._name

    @property
    def token(self) -> int | None:
        """The fencing token: grows with every exclusive grant of this lock.

        None when it can carry none.
        """
        return self._grant.token

    @property
    def token_reason(self) -> str | None:
        """Why `token` is None."""
        return self._grant.token_reason

    @property
    def exclusive(self) -> bool:
        """Whether nobody else can hold the lock meanwhile; False for a shared lock."""
        return bool(self._lock._mechanism.exclusive)

    @property
    def nonce(self) -> str:
        """The random value of this very grant."""
        return self._grant.nonce

    @property
    def path(self) -> str:
        """The lock file."""
        return self._grant.name

    @property
    def acquired_at(self) -> float:
        """When it was granted, UTC seconds. For people: nothing is decided by it."""
        return self._grant.acquired_at_ns / 1e9

    @property
    def lost(self) -> LostSignal:
        """Set when we may hold the lock no more."""
        return self._lost or self._made_lost(LostSignal)

    def _made_lost(self, kind: type[Signal]) -> Signal:
        """The one signal of this lease, made when somebody first asks for it."""
        mechanism: Any = self._lock._mechanism
        with fork.gate:  # of two threads that ask one makes it
            if self._lost is None:
                self._lost = kind(lambda: self.held, *getattr(mechanism, "watched", ()))
        return self._lost  # type: ignore[return-value]

    def remaining(self) -> float | None:
        """Seconds that we may still rely on; None when the grant does not end by itself.

        0.0 when none.

        A positive answer permits a start and does not promise a finish.
        """
        if self._until is None:
            return None
        if not self._here() or (self._lost is not None and self._lost.reason is not None):
            return 0.0  # let go, or lost before its time
        return max(0.0, self._until - clock.now())

    def fileno(self) -> int:
        """The descriptor that holds the lock, to be handed on to a child that is to hold it too.

        Whoever has a copy holds the lock; `release()` unlocks all copies. Raises NotHeld.
        """
        if not self._here():
            raise NotHeld(f"{self.name!r} is not held", name=self.name)
        return self._grant.handle[0].fd  # type: ignore[no-any-return]

    # ---- whether it still holds

    @property
    def held(self) -> bool:
        """Whether we hold the lock, as far as one look can tell."""
        return self._why_not() is None

    def check(self) -> None:
        """Raises LeaseLost once we may no longer hold it, NotHeld when we let it go ourselves.

        One lstat(2) for a lock file. Between this and your write anything may happen: only the
        token, checked at the data, protects that gap.
        """
        why = self._why_not()
        if why is not None:
            raise self._error(why)

    def _why_not(self) -> str | None:
        """Why we do not hold it, None when we do. A loss is told once and stays."""
        if self._lost is not None and self._lost.reason is not None:
            return self._lost.reason
        # L8  Before the heartbeat comes to it: that thread may have been paused as we were.
        if self._until is not None and clock.now() >= self._until:
            return self._lose("its time has passed")
        found: Lost | None = self._lock._mechanism.check(self._grant)
        if found is None:
            return None
        return self._lose(found.reason) if found.gone or self._here() else found.reason

    def _here(self) -> bool:
        return in_force(self._grant)

    def _of_parent(self) -> bool:
        """Whether we are a forked child and this is our parent's (L9)."""
        handle = self._grant.handle
        return bool(handle) and handle[0].generation != fork.generation

    def _lose(self, reason: str) -> str:
        told = events.Lost(self.name, self._grant.nonce, reason)
        self.lost.set(reason, first=lambda: events.tell(told))
        return reason

    def _error(self, why: str) -> LeaseLost | NotHeld:
        if self._lost is not None and self._lost.reason is not None:
            others = "others may be in"
            text = f"{self.name!r} is lost: {why.removesuffix(f': {others}')}: {others}"
            return LeaseLost(text, name=self.name, reason=why)
        return NotHeld(f"{self.name!r} is not held: {why}", name=self.name)

    # ---- its end

    def _forget(self) -> None:
        """Undo what this process noted about the grant."""
        try:
            self._lock._leases.remove(self)
        except ValueError:
            pass  # by another thread, or a decorator's

    def _ended(self, found: Lost | Unknown | None) -> None:
        """After the mechanism let go.

        Tell it, or raise when what we let go of was not ours any more (L5).
        """
        if self._alarm is not None:
            self._alarm()
        if self._lost is not None:
            self._lost._end()
        if isinstance(found, Unknown):
            raise StoreUnavailable(
                f"could not learn whether {self.name!r} was released ({found.cause}): it may "
                "be held in our name still",
                name=self.name, nonce=found.nonce,
            )  # fmt: skip
        if found is not None and found.gone:
            self._lose(found.reason)
        if self._lost is not None and self._lost.reason is not None:
            raise self._error(self._lost.reason)
        if found is not None:
            raise self._error(found.reason)
        if events.listeners:
            held = clock.utc_now() - self.acquired_at
            events.tell(events.Released(self.name, self._grant.nonce, held))

    def __del__(self) -> None:
        grant = getattr(self, "_grant", None)  # not there when its making was interrupted
        if grant is not None and grant.handle:
            self._dropped()

    def _dropped(self) -> None:
        if self._here():
            self._forget()
            self._grant.handle.clear()  # closes the description, which unlocks it
            warnings.warn(  # last: it raises where warnings are errors
                f"lease of {self.name!r} was dropped without release()", ResourceWarning, 3
            )

    def __repr__(self) -> str:
        state = "held" if self._here() else "not held"
        return f"<{type(self).__name__} of {self.name!r}: {state}, token {self.token}>"
