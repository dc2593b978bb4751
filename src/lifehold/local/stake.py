"""The open record of one grant: the handle of a lock that is there because its record is.

Promise: whoever pops it from the grant's handle ends the grant, once (L5); when it is garbage, or
an exception drops it, it lets go (L6); a forked child lets nothing go and keeps no copy of the
descriptor, which may be the witness (L9); a renewal and a release never meet half way, so that no
renewal writes through a descriptor that is somebody else's by then.
"""

from __future__ import annotations

import sys
from _thread import RLock
from stat import ST_DEV, ST_INO

from ..runtime import fork
from .files import CREATE, READ_WRITE

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Callable
    from typing import Any

    from .descriptors import Descriptors
    from .evidence import Judged


class Stake:
    """An open file of ours. `let_go`: what gives the lock up, called before it is closed."""

    __slots__ = (
        "__weakref__",
        "below", "deadline", "fd", "generation", "key", "let_go", "mutex", "number", "over",
        "sheet", "stamp_ns", "table", "untold", "witness", "writable",
    )  # fmt: skip

    def __init__(
        self,
        table: Descriptors,
        path: str,
        flags: int,
        mode: int = 0o600,
        opened: list[int] | None = None,
    ) -> None:
        """`opened`: the descriptor of the path, made just now under the same `fork.gate`.

        It is taken out of the list when it is ours to close.
        """
        self.table, self.generation = table, -1  # not open
        self.key = (0, 0)  # not known yet
        self.let_go: Callable[[Stake], object] | None = None
        self.sheet: Any = None  # the text of its record
        self.deadline: float | None = None
        self.untold: str | None = None  # why its token is none
        self.witness, self.writable = False, True
        self.number, self.stamp_ns = 0, 0
        self.over: Judged | None = None  # the dead holder whom it replaces
        self.below: tuple[int, ...] = ()  # of numbered records: those that this one makes useless
        self.mutex: Any = RLock()  # reentrant: a signal handler may release while we renew
        if opened is None and not fork.page[0]:
            fork.awoke()
        with fork.gate:
            self.fd = opened[0] if opened else table.files.open(path, flags, mode)
            self.generation = fork.generation
            if opened:
                opened.clear()
            mine: Any = self  # of the table's own kind as far as the table asks
            table.noted(mine)
        try:
            found = table.files.fstat(self.fd)
        except BaseException:
            self.close()
            raise
        self.key = (found[ST_DEV], found[ST_INO])

    @property
    def dev(self) -> int:
        """The number of its device; 0 before we know it."""
        return self.key[0]

    def is_of(self, found: os.stat_result) -> bool:
        """Whether these are the numbers of our file; true before we know them."""
        return self.key == (0, 0) or (found.st_dev, found.st_ino) == self.key

    @property
    def here(self) -> bool:
        """Whether it is open, in the process that opened it."""
        if not fork.page[0]:
            fork.awoke()
        return self.generation == fork.generation

    def write(self, text: bytes, *, sync: bool) -> None:
        """The whole record. `sync`: others see it only when the file server has it."""
        files = self.table.files
        written = files.pwrite(self.fd, text, 0)
        if written != len(text):
            import errno

            raise OSError(errno.EFBIG, "the record could not be written whole")
        if sync:
            files.fsync(self.fd)

    _ending = staticmethod(sys.is_finalizing)

    # The names are bound early: at interpreter exit module globals are gone before the last one is.
    def close(self, _gate: Any = fork.gate, _fork: Any = fork) -> None:
        """Let go and close. Safe to repeat; in a forked child it does nothing."""
        if self.generation != _fork.generation or self.generation != _fork.here():
            return  # nor is the mutex: a thread of our parent may have it
        # A daemon thread that the exit froze in a renewal will never end it.
        entered = self.mutex.acquire(not self._ending())
        try:
            if self.generation != _fork.generation:
                return
            let_go, self.let_go = self.let_go, None
            try:
                if let_go is not None:
                    let_go(self)
            except OSError:
                pass  # the storage failed: the witness goes with the descriptor, else the ttl ends
            finally:
                self.shut(_gate, _fork)
        finally:
            if entered:
                self.mutex.release()

    def shut(self, _gate: Any = fork.gate, _fork: Any = fork) -> None:
        """Close the descriptor, which frees the witness."""
        entered = _gate.acquire(not self._ending())
        try:
            if self.generation != _fork.generation:
                return
            self.generation = -1
            try:
                self.table.files.close(self.fd)
            except OSError:
                pass
            finally:
                self.table.open.pop(self.fd, None)
        finally:
            if entered:
                _gate.release()

    def __del__(self, _fork: Any = fork) -> None:
        if getattr(self, "generation", -1) == _fork.generation:  # its making may be interrupted
            _fork.collected(self.close)


def made(table: Descriptors, path: str, mode: int, shared: bool, exactly: bool = False) -> Stake:
    """A new file of ours, which nobody else has. `exactly`: whatever the umask is.

    Raises OSError.
    """
    wished = 0o666 if shared else mode
    stake = Stake(table, path, READ_WRITE | CREATE, wished)
    if shared or exactly:
        try:
            table.files.fchmod(stake.fd, wished)
        except BaseException:
            stake.close()
            raise
    return stake
