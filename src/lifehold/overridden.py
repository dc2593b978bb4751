"""`with` of a class that overrides `acquire` or `release`: its blocks call what it says.

A block of a plain `Lock` runs the code of `acquire` itself, under another name, and ends its lease
by itself: it costs no call more. A class that says something of its own about either means its
blocks as well, so they are made anew for it, when the class is made.

Rule: a block still ends the lease that it took, and no other (lease.py): `release()` of the class
is called where that very lease is the one that it would end; else the lease is let go by itself.
L6  A method of the class that raises leaves the lock as it was before the block, nested or not.
"""

from __future__ import annotations

from .core.deadline import TRY
from .core.errors import LeaseLost, NotHeld, WouldBlock
from .lease import AsyncTried, Exit, Holding, OfShape, Tried, begun, of_shape
from .runtime.held_here import asker, this_thread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

    from .aio import AsyncLock
    from .lease import Block
    from .lock import Lock, LockFace


def follow(cls: type, enters: list[str]) -> None:
    """Give a class blocks that call its own `acquire` and `release`; `enters`: those it has."""
    for enter, leave, made in (
        ("__enter__", "__exit__", (_enter, _left, _attempt)),
        ("__aenter__", "__aexit__", (_enter_async, _left_async, _attempt_async)),
    ):
        if enter not in enters:
            continue
        block = next(vars(one)[leave] for one in cls.__mro__ if leave in vars(one))
        if isinstance(block, Exit):
            kind = block.block
            setattr(cls, enter, made[0])
            setattr(cls, leave, Exit(type(kind.__name__, (kind,), _names(made[1], kind))))
            attempt = cls.attempt  # type: ignore[attr-defined]
            if attempt.__module__.startswith("lifehold."):
                cls.attempt = made[2]  # type: ignore[attr-defined]


def _names(leave: object, kind: type) -> dict[str, object]:
    return {"__slots__": (), "leave": leave, "__module__": __name__, "__doc__": kind.__doc__}


def _begun(one: LockFace) -> Block:
    """The block that begins."""
    task, mine = one._task(), _asker(one)
    block = this_thread.begun()
    if block is not None and one._in_loop and block.task is not task:
        block = None  # of another task, which has not entered its own yet
    if block is None or block.one is not one or block.lease is not None:
        block = begun(one, block, mine)
    return block  # type: ignore[no-any-return]


def _asker(one: LockFace) -> object:
    return (this_thread.key, one._task()) if one._in_loop else asker()


def _given(one: Lock | AsyncLock, block: Block, got: object) -> None:
    """Note the lease that a block took, whatever the method of the class answered."""
    lease = got if isinstance(got, Holding) else None
    if lease is None or lease._lock is not one:  # of a lock behind it, unless it holds itself
        lease = one.lease or lease
    block.lease = lease
    if lease is not None and not lease._depth:
        lease._way = block.way


def _before(one: LockFace) -> dict[Any, int]:
    """What the asker holds of it, and how often."""
    mine = _asker(one)
    return {lease: lease._depth for lease in one._all() if lease._key == mine}


def _undo(one: LockFace, block: Block, before: dict[object, int], error: BaseException) -> None:
    """L6  An exception came before the body: what was taken for it is let go."""
    block.lease = None
    mine = _asker(one)
    for lease in one._all():
        if lease in before:
            lease._depth = min(lease._depth, before[lease])
        elif lease._key == mine:
            one._undo(lease._grant, error)


def _over(lease: Holding, depth: int, other: BaseException, error: BaseException | None) -> bool:
    """L6  `release()` raised: what it was to end has ended. Whether the block passes over it."""
    if lease._depth == depth and lease._here():  # it came before the lease was let go
        if depth:
            lease._depth -= 1
        else:
            lease._lock._undo(lease._grant, other)
    return isinstance(other, LeaseLost | NotHeld) and lease._excused(other, error)


def _enter(self: Lock) -> object:
    block, before = _begun(self), _before(self)
    try:
        got = self.acquire()
        _given(self, block, got)
    except BaseException as error:
        _undo(self, block, before, error)
        raise
    return got


async def _enter_async(self: AsyncLock) -> object:
    block, before = _begun(self), _before(self)
    try:
        got = await self.acquire()
        _given(self, block, got)
    except BaseException as error:
        _undo(self, block, before, error)
        raise
    return got


def _left(
    self: Block,
    kind: type[BaseException] | None = None,
    error: BaseException | None = None,
    trace: TracebackType | None = None,
) -> None:
    lease = self.ended(this_thread.key)
    if lease is not None:
        _release(self, self.one, lease, error)


def _release(block: Block, one: Lock, lease: Any, error: BaseException | None) -> None:
    depth = lease._depth
    try:
        (one if one.lease is lease else lease).release()
    except BaseException as other:
        block.lease = None  # nothing is left to be undone
        if not _over(lease, depth, other, error):
            raise


async def _left_async(
    self: Block,
    kind: type[BaseException] | None = None,
    error: BaseException | None = None,
    trace: TracebackType | None = None,
) -> None:
    try:
        one = self.one
        lease = self.ended((this_thread.key, one._task()))
        if lease is not None:
            await _release_async(self, one, lease, error)
        self.lease = None
    except BaseException as other:
        self.undo(other)
        raise


async def _release_async(
    block: Block, one: AsyncLock, lease: Any, error: BaseException | None
) -> None:
    depth = lease._depth
    try:
        await (one if one.lease is lease else lease).release()
    except BaseException as other:
        block.lease = None  # nothing is left to be undone
        if not _over(lease, depth, other, error):
            raise


# ------------------------------------------------------------------------------------------------
# `attempt()` of such a class: one try by its `acquire`, let go by its `release`.


class OfAttempt(OfShape):
    """The block of an attempt."""

    __slots__ = ()

    def leave(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        """What stands for `__exit__`."""
        try:
            lease = self.ended(None)
            if lease is not None:
                _release(self, self.one._one, lease, error)
            self.lease = None
        except BaseException as other:
            self.undo(other)
            raise


class AsyncOfAttempt(OfShape):
    """The same for `async with`."""

    __slots__ = ()

    async def leave(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        """What stands for `__aexit__`."""
        try:
            lease = self.ended(None)
            if lease is not None:
                await _release_async(self, self.one._one, lease, error)
            self.lease = None
        except BaseException as other:
            self.undo(other)
            raise


class OverriddenAttempt(Tried):
    """What `attempt()` answers: `with` it."""

    __slots__ = ("_one",)

    def __init__(self, one: Lock) -> None:
        self._one = one
        self._blind: list[OfShape] = []

    def __enter__(self) -> object:
        block, before = of_shape(self, OfAttempt), _before(self._one)
        try:
            _given(self._one, block, self._one.acquire(TRY))
        except BaseException as error:
            _undo(self._one, block, before, error)
            if not isinstance(error, WouldBlock):
                raise
        return block.lease

    __exit__ = Exit(OfAttempt)


class AsyncOverriddenAttempt(AsyncTried):
    """The same for `async with`."""

    __slots__ = ("_one",)

    def __init__(self, one: AsyncLock) -> None:
        self._one = one
        self._blind: list[OfShape] = []

    async def __aenter__(self) -> object:
        block, before = of_shape(self, AsyncOfAttempt), _before(self._one)
        try:
            _given(self._one, block, await self._one.acquire(TRY))
        except BaseException as error:
            _undo(self._one, block, before, error)
            if not isinstance(error, WouldBlock):
                raise
        return block.lease

    __aexit__ = Exit(AsyncOfAttempt)


def _attempt(self: Lock) -> OverriddenAttempt:
    """`with lock.attempt() as lease: if lease:` the lease, or None when it is held."""
    return OverriddenAttempt(self)


def _attempt_async(self: AsyncLock) -> AsyncOverriddenAttempt:
    """`async with lock.attempt() as lease: if lease:` the lease, or None when it is held."""
    return AsyncOverriddenAttempt(self)
