"""A snapshot of a log that stays open, as the proof that nothing after it was cut.

Rule: as any open file of ours it is closed by a forked child, and what other code has made of its
number is left alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...local.handles import CLOSED, Descriptors, LockFile
from ...runtime import fork

if TYPE_CHECKING:
    from collections.abc import Callable


class PinnedSnapshot(LockFile):
    """One. `dev`: the device of its folder; who opens it need not ask."""

    __slots__ = ()

    def __init__(self, table: Descriptors, call: Callable[[], int], dev: int) -> None:
        self.table, self.generation, self.key = table, CLOSED, ""
        self.dev, self.ino = dev, 0
        if not fork.page[0]:
            fork.awoke()
        with fork.gate:
            generation = fork.generation
            self.fd = call()
            if generation != fork.generation:  # L9  a signal handler has forked: we are its child
                table.files.close(self.fd)
                self.fd = call()
            self.generation = fork.generation
            table.noted(self)

    def has_name(self) -> bool:
        """Whether it has its name still."""
        found = self.table.files.fstat(self.fd)
        if not self.key:
            self.ino, self.dev = found.st_ino, found.st_dev
            self.key = f"{self.dev}:{self.ino}"
        return found.st_nlink > 0 and self.is_of(found)

    def let_go(self, _gate: Any = fork.gate, _fork: Any = fork) -> None:
        """Close it, just after it was seen to have its name."""
        with _gate:
            if self.generation == _fork.generation:
                self.generation = CLOSED
                self.table.open.pop(self.fd, None)
                self.table.files.close(self.fd)
