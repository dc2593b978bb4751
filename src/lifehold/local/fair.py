"""The kernel lock for fair askers: first come, first served among all of them.

Promise: all that the kernel lock promises, to everybody; and of two who ask with `fair=True`, the
one that waited first is served first, across threads, tasks and processes. Rule that keeps it: who
asks stands in the line of runtime/turnstile.py until the lock is there. Also a try without patience
and a holder that comes back at once: both find the line and do not pass it.
"""

from __future__ import annotations

from ..core.errors import InvalidArgument, UnsafeGround
from ..core.grant import Held, Holder
from ..runtime import turnstile
from .files import CALLS, LOCK_NB, Files
from .ground import is_far, place_of_path
from .kernel import KernelLock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..core.grant import Grant
    from ..core.ports import Runtime

IN_LINE = "others asked for it before and stand in line"


class FairFiles(Files):
    """The seam as it is, but for tries of flock(2): those look at the line."""

    def __init__(self, path: str, below: Any) -> None:
        self._path, self._flock = path, below.flock
        self.in_line = False  # whether the last "held" was said by the line; for people only
        for name in CALLS:
            if name != "flock":
                setattr(self, name, getattr(below, name))

    def flock(self, fd: int, operation: int) -> None:
        if operation & LOCK_NB:
            self.in_line = True
            turnstile.try_now(self._path, fd, operation, self._asked)
        else:
            self._flock(fd, operation)

    def _asked(self, fd: int, operation: int) -> None:
        self.in_line = False
        self._flock(fd, operation)


class FairKernelLock(KernelLock):
    """As KernelLock, made with `fair=True`."""

    def __init__(self, path: str, runtime: Runtime, *, cleanup: bool = False, **more: Any) -> None:
        super().__init__(path, runtime, **more)
        if not turnstile.possible():
            raise InvalidArgument(
                "fair=True needs locks of open file descriptions, which this system does not "
                "offer: leave it out; the kernel still queues who waits"
            )
        if cleanup:
            raise InvalidArgument(
                "fair=True and cleanup=True cannot both be: the line goes with the file that is "
                "unlinked. Leave one of them out"
            )
        self.files = self._seam = FairFiles(path, self.table.files)
        self._operation |= turnstile.FAIR

    def attempt(self) -> Grant | Held:
        if is_far(self.path):
            raise UnsafeGround(
                f"{self.path!r} lies on {place_of_path(self.path).kind}: a file server may keep "
                "flock(2) and the line of fair=True as one and the same lock, and they would wait "
                "for each other. Lock a file on a local disk, or leave out fair=True",
                name=self.path,
            )
        answer = super().attempt()
        if self._seam.in_line and isinstance(answer, Held) and not answer.reason:
            return Held(IN_LINE, answer.key)
        return answer

    def inspect(self, *, held: bool = False) -> Holder | None:
        """As KernelLock; but to be refused may mean the line, while nobody holds the lock."""
        found = super().inspect()
        if found is None and held:
            note = "nobody holds it now: others stand in line for it, one of them may be stopped"
            return Holder(evidence=note)
        return found
