"""`with` blocks: each ends the lease that it took, and no other.

Promise: the blocks of one object may end in any order, as those of generators, greenlets, tasks
and exit stacks do, and in another thread than they began in.

Rule: Python looks `__exit__` up when a block begins, and then calls `__enter__` (language
reference, 8.5). Looking it up makes a `Block`, the acquire that follows gives it the lease, and
whoever looked calls it at the end. No frame is looked at or kept alive.
L5  A block that was entered by a bare call of `__enter__()` has no `Block`. Where a thread could
    have two of those, they could not be told apart: the second one is refused.
"""

from __future__ import annotations

from _weakref import ref

from .core.errors import InvalidArgument
from .runtime.held_here import this_thread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import EllipsisType, TracebackType
    from typing import Any

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


class Blind(Block):
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


def part() -> Block:
    """Where an acquire puts its lease for whoever must reach it, whatever comes after it (L6)."""
    made = Block()
    made.one = made.lease = None
    return made


def of_shape(one: Any, kind: type[Block] = OfShape) -> Any:
    """The block that begins with `one`: the one looked up just now, or a blind one."""
    block: Any = this_thread.begun()
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
        self._block = block

    def __get__(self, one: Any, kind: object = None) -> Any:
        block = self._block()
        block.one, block.lease = one, None
        this_thread.begun = ref(block)
        return block.leave if one is not None else block.leave_of


class Entry:
    """What an acquire gets for `wait` when a block begins: its own `wait`, and the block."""

    __slots__ = ("block", "wait")

    def __init__(self, wait: float | EllipsisType | None = ..., block: Block | None = None) -> None:
        self.wait, self.block = wait, block

    def __repr__(self) -> str:
        return "..."  # in signatures: the object's own patience


WITH = Entry()


def entering(acquire: Any, name: str = "__enter__") -> Any:
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
    blind = Blind()
    blind.one, blind.lease = one, None
    return blind


def newest(leases: list[Any], asker: object, way: int) -> Any:
    """The newest lease that this thread, or task, took in this way; None for none."""
    for lease in leases[::-1]:  # a copy: other threads add and remove theirs
        if lease._way == way and lease._key == asker:
            return lease
    return None
