"""`with lock.attempt() as lease: if lease:` the block of a try that does not raise.

Promise: the block is entered in any case, with the lease, or with None when the lock is held; what
was got ends with the block. All else that may go wrong raises, as of `acquire`.
"""

from __future__ import annotations

from .core.deadline import TRY
from .core.errors import WouldBlock
from .described import PLAIN
from .lease import BlockEntry, OfShape, Tried, exit_method, exiting, of_shape

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class Attempt(Tried):
    """What `attempt()` of a blocking lock answers: `with` it."""

    __slots__ = ("_take",)
    _kind: type[OfShape] = OfShape

    def __init__(self, take: Callable[[Any], Any]) -> None:
        self._take = take  # acquires, told of a block
        self._blind: list[OfShape] = []

    def __enter__(self) -> Any:
        block = of_shape(self, self._kind)
        try:
            return self._take(BlockEntry(TRY, block))
        except WouldBlock:
            return None
        except BaseException as error:
            block.undo(error)
            raise

    __exit__ = exiting(OfShape, exit_method)
    if not TYPE_CHECKING:
        __aenter__ = PLAIN
