"""What can be asked of a kernel lock without holding it: who has it, who waits, where it lies.

Promise: no question takes the lock away from somebody. Only `taken` tries, shared and for a moment,
and only where the kernel hides other namespaces.
"""

from __future__ import annotations

from ..runtime import fork
from .content import refuse_other_kind
from .files import READ_ONLY
from .ground import is_far

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..core.grant import Holder
    from .files import Files


HEAD = 64  # bytes in which a record tells its kind


class Asked:
    """The questions of the mechanism `KernelLock`."""

    path: str
    files: Files

    @property
    def watched(self) -> tuple[str, Callable[[], bool]]:
        """What tells of a loss when it changes, and whether events of that do not reach us."""
        return self.path, self.far

    def far(self) -> bool:
        """Whether its calls may wait for a file server: no event loop should make them then."""
        return is_far(self.path)

    def refuse_mixed(self) -> None:
        """Raises UnsafeGround when what holds the file is a lock of another kind."""
        try:
            fd = self.files.open(self.path, READ_ONLY)
        except OSError:
            return
        try:
            refuse_other_kind(self.path, self.files.pread(fd, HEAD, 0))
        except OSError:
            return
        finally:
            self.files.close(fd)

    def taken(self) -> bool:
        """Whether anybody holds it. Looks at /proc/locks.

        Where that hides other namespaces, tries shared.
        """
        holders: Any = fork.lazily("lifehold.local.holders")
        return holders.is_taken(self.files, self.path)  # type: ignore[no-any-return]

    def inspect(self, *, held: bool = False) -> Holder | None:
        holders: Any = fork.lazily("lifehold.local.holders")
        return holders.holder_of(self.files, self.path, held)  # type: ignore[no-any-return]

    def waiters(self) -> int | None:
        queue: Any = fork.lazily("lifehold.local.queue")
        return queue.waiters(self.files, self.path)  # type: ignore[no-any-return]
