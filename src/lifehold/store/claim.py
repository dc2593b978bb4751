"""The part of a grant whose owner holds the lease: whoever takes it ends the grant (L5)."""

from __future__ import annotations

from ..runtime import fork

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Claim:
    """One grant of a store, in hand until it is spent. `lock`: its mechanism.

    L6  A grant that nobody has in hand any more is given back: by `close`, or when the claim is
    garbage. What does not reach the store then runs out by itself.
    """

    __slots__ = ("__weakref__", "_lock", "_mark", "generation", "spent")

    def __init__(self, lock: Any, mark: str, generation: int) -> None:
        """`generation`: of the process that asked for it (runtime/fork.py)."""
        self._lock, self._mark = lock, mark
        self.generation, self.spent = generation, False

    def close(self) -> None:
        """Give it back now, by this thread."""
        self._give_back(True)

    def _give_back(self, here: bool) -> None:
        if not self.spent and self.generation == fork.here():
            self.spent = True
            self._let_go(here)

    def _let_go(self, here: bool) -> None:
        name, mark = self._lock.name, self._mark
        self._lock.site.post(lambda backend: backend.release(name, mark), here=here)

    def __del__(self) -> None:
        if not getattr(self, "spent", True):  # not there when its making was interrupted
            self._give_back(False)


class Slot:
    """One permit of a semaphore, by its name."""

    __slots__ = ("path",)

    def __init__(self, path: str) -> None:
        self.path = path
