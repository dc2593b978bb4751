"""An open file of filelock's soft locks: ours, or one that is in our way.

Rule: who gives one up that a breaker may have taken aside, and may put back, writes "released" into
it first. Else the path would lead to the record of a process that lives and holds nothing.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ...core.grant import Lost
from ...local.files import LOCK_UN
from ...local.record_handle import GONE, Paper, look
from ...runtime import fork
from . import whose

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...local.handles import Descriptors


class Slip(Paper):
    """As `Paper`. `displaced`: it may be ours in words only; its close says so in the file.

    `stamp`: of another's, its time of change when it was judged.
    """

    __slots__ = ("began", "displaced", "missed", "stamp", "tenure", "trouble")

    def __init__(
        self, table: Descriptors, call: Callable[[], tuple[int, bool]], opened: Any = None
    ) -> None:
        self.displaced, self.began, self.stamp = (
            False,
            0.0,
            0.0,
        )  # of a lease: before it could be seen
        self.tenure: Any = None  # of a lease; the last look missed it, or met an error
        self.missed, self.trouble = False, None
        super().__init__(table, call, opened)

    def unguard(self) -> None:
        """Let others guard it."""
        self.table.files.guard(self.fd, False)

    def asked(self) -> bool | None:
        """Whether somebody who lives locks it. Nothing stays locked by the question."""
        found = self.has_witness()
        if found is False:
            self.table.files.flock(self.fd, LOCK_UN)
        return found

    def withdraw(self) -> Lost | None:
        """Remove our lock and close it (L5)."""
        path, self.posted = self.posted, ""
        self.displaced, refused = True, ""
        try:
            if self.guard():
                path = path if self.is_at(path) else self.moved(path)
                if path:
                    refused = path
                    self.table.files.unlink(path)
                    self.displaced = False
                    return None
        except (FileNotFoundError, NotADirectoryError):
            refused = ""  # its folder has another name now
        except PermissionError:
            if not self.removed(refused):
                raise
            return None
        finally:
            self.close()
        return Lost(GONE, gone=True)

    def removed(self, path: str) -> bool:
        """Whether it is gone now that it is closed: some file systems keep what is open."""
        self.close()  # it says "released" from here on, which no successor's does
        try:
            found = look(self.table, path, write=False) if path else None
            if found is not None:
                ours = found.key == self.key and found.read() == whose.RELEASED
                found.close()
                if ours:
                    self.table.files.unlink(path)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True

    def moved(self, path: str) -> str:
        """Where it is when its folder has another name now; empty when it is not there either."""
        name = os.path.basename(path)
        try:
            found = [os.readlink(f"/proc/self/fd/{self.fd}"), os.path.join(os.getcwd(), name)]
        except OSError:
            return ""
        for each in found:  # under another name a breaker has it aside
            if os.path.basename(each) == name and self.is_at(each):
                return each
        return ""

    def close(self, _gate: Any = fork.gate, _fork: Any = fork) -> None:
        if self.displaced and self.generation == _fork.generation == _fork.here():
            self.displaced = False
            try:
                self.table.files.pwrite(self.fd, whose.RELEASED, 0)
                self.table.files.truncate(self.fd, len(whose.RELEASED))
            except OSError:
                pass  # it names a process that will end
        super().close(_gate, _fork)
