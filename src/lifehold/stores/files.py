"""`FileStore`: locks by name in the files of a folder, for threads and processes."""

from __future__ import annotations

from ..core.ports import is_queued
from ..lock import Lock
from ..shapes.readwrite import ReadWriteLock
from ..shapes.semaphore import Semaphore
from .folder import Folder, Ground

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..core.grant import Holder


class FileStore(Folder):
    """What `connect("file:///FOLDER")` answers.

    A lock is only a description: it is made each time, and costs nothing until it is acquired.
    """

    __slots__ = ()

    def lock(self, name: str, **options: Any) -> Lock:
        """One holder at a time. Options as of `Lock`: `wait`, `ttl`, `kind`, `label` ..."""
        return Lock(self.address(name), **self._options(options))

    def read_write(self, name: str, **options: Any) -> ReadWriteLock:
        """Many readers or one writer. Options as of `ReadWriteLock`."""
        return ReadWriteLock(self.address(name), **self._options(options))

    def semaphore(self, name: str, permits: int, **options: Any) -> Semaphore:
        """`permits` holders at once. Options as of `Semaphore`."""
        return Semaphore(self.address(name), permits, **self._options(options, leased=False))

    def close(self) -> None:
        """Nothing is kept open between two calls: for `with connect(url) as store:` alike."""

    def __enter__(self) -> FileStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def inspect(self, name: str, **options: Any) -> Holder | None:
        """Who holds a lock, None for nobody. Takes nothing. `kind`: of a lock that names one."""
        return self.lock(name, **options).holder()

    def list(self, prefix: str = "") -> list[str]:
        """The names of the locks here, held or not, that begin with `prefix`, in order."""
        return self._listed(prefix)

    def waiters(self, name: str, **options: Any) -> int | None:
        """How many wait for a lock; None where that cannot be seen."""
        mechanism = self.lock(name, **options)._mechanism
        return mechanism.waiters() if is_queued(mechanism) else None

    def break_(self, name: str, reason: str, **options: Any) -> Holder | None:
        """Take a lock from its holder, who is told; who that was. Noted beside the lock.

        Raises InvalidArgument for a kind that cannot be broken: a kernel lock goes with its holder.
        """
        return self.lock(name, **options).break_(reason)

    def ground(self) -> Ground:
        """What these locks stand on, in words. Raises SystemRefused."""
        return self._ground()
