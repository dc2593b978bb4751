"""`MarkerSoftFileLock`: the soft lock whose file says more of its holder.

The file begins with "filelock/2", and both sides read it. filelock's own `SoftFileLock`, and every
release before 4, takes such a file for one that nobody can read and removes it after two seconds:
never use the two classes on one path. Ours leaves it alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import ref

from . import marks, whose
from .calls import TABLE
from .marks import OwnerMode, OwnerRecord
from .options import UNSET_FILE_MODE
from .soft import SoftFileLock
from .softfile import SoftFile

if TYPE_CHECKING:
    from ...core.owner import Verdict


class MarkFile(SoftFile):
    """The mechanism of one path."""

    def _kept(self, content: bytes) -> bool:
        if not content.startswith(whose.SECOND):
            return super()._kept(content)
        return marks.parse(content) is not None  # of a contract that is not known here


class Words:
    """Who we are, in the words of this record; who lives, as for any soft lock."""

    def __init__(self, lock: MarkerSoftFileLock) -> None:
        self._lock = ref(lock)  # which keeps its mechanism, and that keeps these words
        self._made: tuple[Any, bytes] = None, b""

    def record(self, witness: bool) -> bytes:
        """What the file says."""
        lock = self._lock()
        assert lock is not None
        key = whose.record(witness), lock._owner_mode  # made anew when the process or host is
        if lock._owner_mode == "lease":
            return marks.spelled(lock._published(), witness)
        if self._made[0] != key:
            self._made = key, marks.spelled(lock._published(), witness)
        return self._made[1]

    def verdict(self, named: whose.Named, witness: bool | None, one_kernel: bool) -> Verdict:
        """Whether it lives."""
        return whose.verdict(named, witness, one_kernel)

    def host_name(self) -> str:
        """This host."""
        return whose.host_name()

    def pid(self) -> int:
        """This process."""
        return whose.pid()


class MarkerSoftFileLock(SoftFileLock):
    """A lock that is there for as long as its file is, which names its holder."""

    _owner_mode: OwnerMode = "exclusive"
    _kind: Any = MarkFile

    def _made(self, path: str) -> Any:
        mode = self._context.mode
        exactly = None if mode == UNSET_FILE_MODE else mode
        return self._kind(path, self._runtime, TABLE, exactly, words=Words(self))

    def _published(self) -> OwnerRecord:
        own = whose.read(whose.record(False))
        assert own is not None
        return OwnerRecord(own.pid, own.host, self._owner_mode, start=own.start)

    @property
    def owner(self) -> OwnerRecord | None:
        """Whom the file names; None when there is no such file, or none that says it."""
        return marks.parse(self._content())

    @property
    def pid(self) -> int | None:
        """The process that the file names; None when there is none."""
        owner = self.owner
        return None if owner is None else owner.pid

    @property
    def is_lock_held_by_us(self) -> bool:
        """Whether the file names this process."""
        owner = self.owner
        if owner is None:
            return False
        return whose.is_ours(whose.Named(owner.pid, owner.hostname, owner.start))

    def force_break(self) -> None:
        """As `break_lock()`: two may be inside afterwards."""
        self.break_lock()
