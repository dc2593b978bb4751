"""What a holder has in hand: the lease of both faces, its token, its loss.

Rule: nothing here decides whether a lock is held; the mechanism's grant does, and its handle is
claimed in one atomic step by whoever ends it first: release, `max_hold`, or the garbage collector
(L5, L6).
"""

from __future__ import annotations

import errno
from _warnings import warn  # all that `warnings` would be loaded for
from _weakref import ref

from .core import events
from .core.errors import (
    InvalidArgument,
    LeaseLost,
    NotHeld,
    StoreUnavailable,
    SystemRefused,
    UnknownArgument,
)
from .core.grant import Bound, Unknown
from .core.ports import is_negotiating, is_remote, is_watched
from .runtime import clock, fork
from .runtime.held_here import current_token, in_force, note, this_thread
from .runtime.loss import LostSignal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import EllipsisType, TracebackType
    from typing import Any, TypeVar

    from .core.grant import Grant, Lost
    from .lock import LockFace
    from .runtime import heartbeat, renewal

    F = TypeVar("F")
else:
    heartbeat = fork.later("lifehold.runtime.heartbeat", globals())
    renewal = fork.later("lifehold.runtime.renewal", globals())

__all__ = ["Holding", "current_token"]


def unwound(error: BaseException) -> None:
    """L6  Let go of all that the calls which `error` has ended had in hand.

    Whoever keeps an exception keeps the frames that it came through, and their locals: a record
    half made, a descriptor, another exception. Those frames are over, so they are emptied.
    """
    left, seen = [error], set()
    while left:
        each = left.pop()
        seen.add(id(each))
        trace = each.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next  # the first frame caught it, and may go on
            try:
                if trace.tb_frame.f_globals.get("__name__", "").startswith("lifehold."):
                    trace.tb_frame.clear()
            except RuntimeError:
                pass  # it runs still
        more = each.__context__, each.__cause__
        left += [one for one in more if one is not None and id(one) not in seen]


class Holding(Bound):
    """One grant in the hands of a program. `Lease` and `AsyncLease` add how it is released."""

    __slots__ = (
        "__weakref__",
        "_alarm",
        "_depth",
        "_grant",
        "_kept",
        "_key",
        "_lock",
        "_lost",
        "_until",
        "_way",
    )
    _signals: type[LostSignal] = LostSignal  # of what kind `lost` is

    def __init__(
        self,
        lock: LockFace | None = None,
        grant: Grant | None = None,
        key: tuple[int, object] | int = 0,
        waited: float = 0.0,
    ) -> None:
        if lock is None or grant is None:
            raise UnknownArgument("a lease is made by lock.acquire(), and by no call of its class")
        self._lock, self._grant, self._key = lock, grant, key
        self._lost: LostSignal | None = None
        self._until: float | None = None
        self._alarm: Callable[[], None] | None = None
        self._depth = self._way = 0  # taken by hand (lease.py)
        self._kept: renewal.RenewedLease | None = None
        note(grant, key, self)
        if grant.deadline is not None:
            self._keep()
        if lock._max_hold is not None:
            self._limit(lock._max_hold)
        if events.listeners:
            events.tell(events.Acquired(lock._name, grant.nonce, grant.token, waited))

    def _keep(self) -> None:
        """L8, L9  From now on the heartbeat thread renews the lease, and tells its loss."""
        mechanism, grant, terms = self._lock._mechanism, self._grant, self._lock._terms
        assert terms is not None, "a deadline without terms"
        if is_negotiating(mechanism):
            terms = mechanism.terms_of(grant)
        self._kept = kept = renewal.RenewedLease(mechanism, grant, terms, self.name)
        try:
            kept.signals = self._signals
            kept.start()
        except BaseException as error:
            kept.stop()
            mechanism.drop(grant)  # L6
            if not isinstance(error, RuntimeError):
                raise
            raise _no_thread(self.name, "ttl", error) from error

    def _limit(self, max_hold: float) -> None:
        """L10  End the grant at its bound: a holder that hangs does not block for ever."""
        mechanism, grant, lost, name = self._lock._mechanism, self._grant, self.lost, self.name
        reason = f"max_hold of {max_hold:g} s has passed"

        def free() -> None:
            mechanism.drop(grant)

        def let_go() -> None:
            try:
                free()
            finally:
                events.tell(events.Lost(name, grant.nonce, reason))

        def end() -> None:  # in a thread of its own: a store, or a callback, may take its time
            if grant.handle and not lost.set(reason, first=let_go):
                free()  # check() saw the deadline first, and told it

        self._until = clock.now() + max_hold
        try:
            self._alarm = heartbeat.at(self._until, lambda: heartbeat.apart(end))
        except BaseException as error:
            free()  # L6  whoever keeps the exception would keep the lock
            if not isinstance(error, RuntimeError):
                raise
            raise _no_thread(name, "max_hold", error) from error

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
        return self._lost or self._made_lost()

    def _made_lost(self) -> LostSignal:
        """The one signal of this lease, made when somebody first asks for it."""
        mechanism = self._lock._mechanism
        path, far = mechanism.watched if is_watched(mechanism) else (None, bool)
        fork.here()
        with fork.gate:  # of two threads that ask one makes it
            if self._lost is None:
                kept, kind = self._kept, self._signals
                self._lost = kept.signal() if kept else kind(self._holds, path, far)
            return self._lost

    def remaining(self) -> float | None:
        """Seconds that we may still rely on; None when the grant does not end by itself.

        A positive answer permits a start and does not promise a finish.
        """
        ends = [self._until] if self._until is not None else []
        ends += [self._kept.deadline] if self._kept is not None else []
        if not ends:
            return None
        lost = self._lost or self._kept
        if not self._here() or (lost is not None and lost.reason is not None):
            return 0.0  # let go, or lost before its time
        return max(0.0, min(ends) - clock.now())

    @property
    def renewals(self) -> int:
        """How often the lease has been renewed; 0 for a grant that does not end by itself."""
        return 0 if self._kept is None else self._kept.renewals

    def fileno(self) -> int:
        """The descriptor that holds the lock, to be handed on to a child that is to hold it too.

        Whoever has a copy holds the lock; `release()` unlocks all copies. Raises NotHeld.
        """
        if not self._here():
            raise self._over()
        return self._grant.handle[0].fd  # type: ignore[no-any-return]

    # ---- whether it still holds

    @property
    def held(self) -> bool:
        """Whether we hold the lock, as far as one look can tell."""
        return self._why_not() is None

    def check(self) -> None:
        """Raises LeaseLost once we may no longer hold it, NotHeld when we let it go ourselves.

        One lstat(2) for a lock file, no I/O for a lease in a store: the deadline decides, and where
        the last renewal found no answer the storage is asked once more, behind the caller.
        `verify()` asks and waits. Between this and your write anything may happen: only the token,
        checked at the data, protects that gap.
        """
        if self._kept is not None and self._kept.suspended:
            self._kept.ask()
        why = self._why_not()
        if why is not None:
            raise self._error(why)

    def _why_not(self) -> str | None:
        """Why we do not hold it, None when we do. A loss is told once and stays."""
        if (why := self._why_over()) is not None:
            return why
        grant = self._grant if self._kept is None else self._kept.grant
        found: Lost | None = self._lock._mechanism.check(grant)
        if found is None:
            return self._why_over()  # L8  a look that hung proves nothing of what came meanwhile
        return self._lose(found.reason) if found.gone or self._here() else found.reason

    def _holds(self) -> bool:
        return Holding._why_not(self) is None

    def _why_over(self) -> str | None:
        """The same by what is told already and by the clock. Asks no storage."""
        if self._lost is not None and self._lost.reason is not None:
            return self._lost.reason
        # L8  Before the heartbeat comes to it: that thread may have been paused as we were.
        if self._kept is not None and self._here() and (why := self._kept.why_not()) is not None:
            return self._lose(why)  # the heartbeat may have noticed, and not told yet
        if self._until is not None and clock.now() >= self._until:
            if not is_remote(self._lock._mechanism):  # a look asks no store
                self._lock._mechanism.drop(self._grant)  # as the alarm will in a moment
            return self._lose("its time has passed")
        return None

    def _is_lost(self) -> bool:
        """Whether it is known to be lost, by the clock too. Asks and tells nobody."""
        kept, now = self._kept, clock.now()
        if kept is not None and (kept.reason is not None or now >= kept.deadline):
            return True
        if self._until is not None and now >= self._until:
            return True
        return self._lost is not None and self._lost.reason is not None

    def _keeps_out(self) -> bool:
        """Whether who asks once more would wait for this very lease, as far as is known.

        Not for one that is lost: others may hold it, or it is free. But a file that was moved away
        may be back, and with it our lock.
        """
        if not self._is_lost():
            return True
        if self._kept is not None or self._until is not None or self._lock._far:
            return False  # time lets others in
        return self._lock._mechanism.check(self._grant) is None

    def _here(self) -> bool:
        return in_force(self._grant)

    def _lasts(self) -> bool:
        """Whether it may be taken once more; no, where `max_hold` has ended it: then acquire anew.

        L8  Raises LeaseLost for one that is known to be lost and was not released yet: what runs
        inside of its block would run without the lock.
        """
        why = self._why_over()
        if why is not None and self._here():
            raise self._error(why)
        return why is None

    def _check_entry(self) -> None:
        """L8  No block begins by it once it is over. Raises NotHeld, LeaseLost."""
        if self._why_over() is not None or not self._here():
            raise self._not_entered()

    def _of_parent(self) -> bool:
        """Whether we are a forked child and this is our parent's (L9)."""
        handle = self._grant.handle
        return bool(handle) and handle[0].generation != fork.generation

    def _lose(self, reason: str) -> str:
        told = events.Lost(self.name, self._grant.nonce, reason)
        self.lost.set(reason, lambda: events.tell(told))
        return reason

    def _error(self, why: str) -> LeaseLost | NotHeld:
        if self._lost is not None and self._lost.reason is not None:
            others = "others may be in"
            text = f"{self.name!r} is lost: {why.removesuffix(f': {others}')}: {others}"
            return LeaseLost(text, name=self.name, reason=why)
        return NotHeld(f"{self.name!r} is not held: {why}", name=self.name)

    def _over(self) -> LeaseLost | NotHeld:
        """What is said of a lease that is no longer in force."""
        return self._error(Holding._why_not(self) or "it has ended")

    def _not_entered(self) -> LeaseLost | NotHeld:
        """The same for a block that begins with it: its body would run without the lock."""
        error = self._over()
        if isinstance(error, NotHeld) and not self._of_parent():
            error.args = (f'{error.args[0]}; a lease is one grant: use "with lock:" again',)
        return error

    def _unanswered(self, cause: BaseException) -> StoreUnavailable:
        text = (
            f"{self.name!r}: no answer ({cause}); our lease has {self.remaining() or 0:.1f} s left"
        )
        return StoreUnavailable(text, name=self.name, nonce=self.nonce)

    # ---- its end

    def _excused(self, other: BaseException, error: BaseException | None) -> bool:
        """Whether a block that `error` has ended, or None, passes over what its release raised."""
        if isinstance(other, LeaseLost):
            if error is not None:
                error.add_note(str(other))  # what the block raised matters more
            return error is not None
        if isinstance(other, NotHeld):
            return self._of_parent()  # a forked child leaves the block; the lock is its parent's
        if not self._depth:
            self._lock._undo(self._grant, other)
        return False

    def _forget(self) -> None:
        if self._kept is not None:
            self._kept.stop()
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
        if self._kept is not None:
            self._kept.stop()
            self._lost = self._lost or self._kept.lost
            if self._kept.reason is not None:
                self._lose(self._kept.reason)  # L5  noticed by the heartbeat, and not told yet
        if self._lost is not None:
            self._lost._end()
        if isinstance(found, Unknown):
            raise StoreUnavailable(
                f"could not learn whether {self.name!r} was released ({found.cause}): it may "
                "be held in our name still",
                name=self.name,
                nonce=found.nonce,
            )
        if found is not None and found.gone:
            self._lose(found.reason)
        if self._lost is not None and self._lost.reason is not None:
            raise self._error(self._lost.reason)
        if found is not None:
            raise self._error(found.reason)
        if events.listeners:
            held = clock.utc_now() - self.acquired_at
            events.tell(events.Released(self.name, self._grant.nonce, held))

    def _refused(self, error: SystemRefused) -> None:
        """The storage refused our release. L5  What is known to be lost is told as that."""
        kept, lost = self._kept, self._lost
        if (lost is not None and lost.reason is not None) or (kept is not None and kept.reason):
            try:
                self._ended(None)
            except LeaseLost as told:
                raise told from error

    def __del__(self) -> None:
        grant = getattr(self, "_grant", None)  # not there when its making was interrupted
        if grant is not None and grant.handle:
            self._dropped()

    def _dropped(self) -> None:
        if self._here():
            self._forget()
            handle, remote = self._grant.handle, is_remote(self._lock._mechanism)
            while handle:  # closes the description, which unlocks it; frames may have it as well
                close = None if remote else getattr(handle[-1], "close", None)
                handle.pop()  # of a store: given back behind us
                if close is not None:
                    fork.collected(close)
            warn(  # last: it raises where warnings are errors
                f"lease of {self.name!r} was dropped without release()", ResourceWarning, 3
            )

    def __repr__(self) -> str:
        state = "held" if self._here() else "not held"
        return f"<{type(self).__name__} of {self.name!r}: {state}, token {self.token}>"


def _no_thread(name: str, what: str, error: RuntimeError) -> SystemRefused:
    more = ", or drop max_hold" if what == "max_hold" else ""  # a ttl may be that of the kind
    return SystemRefused(
        f"{name!r}: no thread to keep {what} in ({error}): raise the limit of processes "
        f"(ulimit -u){more}",
        name=name,
        errno=errno.EAGAIN,
        filename=name,
    )


# ------------------------------------------------------------------------------------------------
# `with` blocks: each ends the lease that it took, and no other.
#
# Promise: the blocks of one object may end in any order, as those of generators, greenlets, tasks
# and exit stacks do, and in another thread than they began in.
#
# Rule: Python looks `__exit__` up when a block begins, and then calls `__enter__` (language
# reference, 8.5). Looking it up makes a `Block`, the acquire that follows gives it the lease, and
# whoever looked calls it at the end. No frame is looked at or kept alive.
# L5  A block that was entered by a bare call of `__enter__()` has no `Block`. Where a thread could
#     have two of those, they could not be told apart: the second one is refused.


# How a lease was taken: by acquire(), by a bare call of __enter__(), by a `with` block.
BY_HAND, BLIND, OF_BLOCK = range(3)


class Block:
    """One block under way: the object that it uses, and its lease once it has come."""

    __slots__ = ("__weakref__", "lease", "one")
    way = OF_BLOCK
    one: Any
    lease: Any

    def ended(self, asker: object) -> Any:
        """The lease that ends with this block; None when it was let go by hand before."""
        lease, one = self.lease, self.one
        if lease is None:  # __exit__() was called alone
            blind = newest(one._leases, asker, BLIND)
            return blind or newest(one._leases, asker, BY_HAND)
        if lease._depth or lease in lease._lock._leases:
            return lease
        # A condition variable lets a lock go inside of its block, and takes it again.
        return None if one._many() else newest(one._leases, asker, BY_HAND)

    def leave(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> Any:
        """What stands for `__exit__` of a blocking lock."""
        lease = self.lease
        if lease is None or not (lease._depth or lease in lease._lock._leases):
            lease = self.ended(this_thread.key)
            if lease is None:
                return
        try:
            lease.release()
        except BaseException as other:
            if not lease._excused(other, error):
                raise

    def leave_of(
        self,
        one: Any,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> Any:
        """The same for who looked in the class, and gives the object: contextlib.ExitStack."""
        self.one = one
        return self.leave(kind, error, trace)

    def leases(self) -> list[Any]:
        """What it holds."""
        return [] if self.lease is None else [self.lease]

    def undo(self, error: BaseException) -> None:
        """L6  An exception came before the body: nothing of it stays held."""
        for lease in self.leases():
            if lease._depth:
                lease._depth -= 1
            else:
                lease._lock._undo(lease._grant, error)
        self.lease = None


class BareBlock(Block):
    """What begins by a bare call of `__enter__()`, and ends by one of `__exit__()`."""

    __slots__ = ()
    way = BLIND


class Owning(Block):
    """A block whose lease nobody else can reach: when it is dropped unended, the lease is too."""

    __slots__ = ()

    def __del__(self) -> None:
        if getattr(self, "lease", None) is None:  # ended; or its making was interrupted
            return
        for lease in self.leases():
            if lease._depth:
                lease._depth -= 1
                continue
            try:  # L6  it is its caller's alone from here on, or nobody's
                lease._lock._leases.remove(lease)
            except ValueError:
                pass  # it has ended


class OfShape(Owning):
    """A block of a shape that is no lock itself, and keeps its blind blocks by itself."""

    __slots__ = ()

    def ended(self, asker: object) -> Any:
        """The lease that ends with this block; None when it was let go by hand before."""
        if self.lease is None and self.one._blind:
            self.lease = self.one._blind.pop().given()
        lease = self.lease
        if lease is None or lease._depth or lease in lease._lock._leases:
            return lease
        return None

    def given(self) -> Any:
        """Its lease, which another block ends."""
        lease, self.lease = self.lease, None
        return lease

    def leave(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> Any:
        """What stands for `__exit__`."""
        try:
            lease = self.ended(None)
            if lease is not None:
                lease._leave(error)
            self.lease = None
        except BaseException as other:
            self.undo(other)
            raise


class Tried(Bound):
    """What `attempt()` answers. Nothing is tried before its block, so it is no condition (L1)."""

    __slots__ = ("_blind",)
    _refusal = "an attempt cannot be copied or pickled: hand on the lock"
    _with = "with"

    def __bool__(self) -> bool:
        tried = "await lock.try_acquire()" if self._with == "async with" else "lock.try_acquire()"
        raise InvalidArgument(
            f"an attempt that is not entered has tried nothing, and holds nothing: write "
            f"`{self._with} lock.attempt() as lease:`, where lease is None when the lock is held; "
            f"for an `if` call `{tried}`"
        )


class AsyncTried(Tried):
    """The same for `async with`."""

    __slots__ = ()
    _with = "async with"


def part() -> Block:
    """Where an acquire puts its lease for whoever must reach it, whatever comes after it (L6)."""
    made = Block()
    made.one = made.lease = None
    return made


def of_shape(one: Any, kind: type[Block] = OfShape) -> Any:
    """The block that begins with `one`: the one looked up just now, or a blind one."""
    block = this_thread.begun()
    if isinstance(block, kind) and block.lease is None and (block.one is one or block.one is None):
        block.one = one
        return block
    block = kind()
    block.one, block.lease = one, None
    one._blind.append(block)
    return block


class Exit:
    """`__exit__` of a class: whoever looks it up gets the end of a block of its own."""

    def __init__(self, block: type[Block]) -> None:
        self.block = block

    def __get__(self, one: Any, kind: object = None) -> Any:
        block = self.block()
        block.one, block.lease = one, None
        this_thread.begun = ref(block)
        return block.leave if one is not None else block.leave_of


def exiting(block: type[Block], method: F) -> F:
    """`Exit`. To type checkers it is `method`: one of these two."""
    return Exit(block)  # type: ignore[return-value]


def exit_method(
    self: object,
    kind: type[BaseException] | None,
    error: BaseException | None,
    trace: TracebackType | None,
) -> None: ...


async def aexit_method(
    self: object,
    kind: type[BaseException] | None,
    error: BaseException | None,
    trace: TracebackType | None,
) -> None: ...


class BlockEntry:
    """What an acquire gets for `wait` when a block begins: its own `wait`, and the block."""

    __slots__ = ("block", "wait")

    def __init__(self, wait: float | EllipsisType | None = ..., block: Block | None = None) -> None:
        self.wait, self.block = wait, block

    def __repr__(self) -> str:
        return "..."  # in signatures: the object's own patience


WITH = BlockEntry()


def renamed(method: Any, name: str) -> object:
    """A method under another name: in tracebacks and in `help()` too."""
    method.__name__, old = name, method.__name__
    method.__qualname__ = method.__qualname__.removesuffix(old) + name
    method.__code__ = method.__code__.replace(co_name=name, co_qualname=method.__qualname__)
    return method


def entering(acquire: Any, name: str = "__enter__") -> object:
    """`acquire` under the name that `with` calls: the same code, told that a block begins."""
    made: Any = type(entering)
    made = made(acquire.__code__, acquire.__globals__, name, (WITH,))
    made.__kwdefaults__, made.__doc__ = acquire.__kwdefaults__, acquire.__doc__
    made.__module__, made.__annotations__ = acquire.__module__, acquire.__annotations__
    made.__qualname__ = acquire.__qualname__.replace("acquire", name)
    return made


def begun(one: Any, block: Any, asker: object) -> Block:
    """The block that begins with `one`: the one looked up just now, or a blind one."""
    if block is not None and block.lease is None and (block.one is one or block.one is None):
        block.one = one  # looked up in the class
        return block  # type: ignore[no-any-return]
    if one._many() and newest(one._leases, asker, BLIND) is not None:
        raise InvalidArgument(
            f"{one._name!r} is entered a second time by a bare call of __enter__(): whose lease "
            "__exit__() would end cannot be told. Use `with`, or `with lock.acquire() as lease:`",
            name=one._name,
        )
    blind = BareBlock()
    blind.one, blind.lease = one, None
    return blind


def newest(leases: list[Any], asker: object, way: int) -> Any:
    """The newest lease that this thread, or task, took in this way; None for none."""
    for lease in leases[::-1]:  # a copy: other threads add and remove theirs
        if lease._way == way and lease._key == asker:
            return lease
    return None
