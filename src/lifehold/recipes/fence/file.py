"""`FencedFile`: a plain file that refuses a late writer.

    guard = FencedFile("report.csv", lease)
    guard.advance()                     # before the first read: older tokens are refused from here
    rows = guard.read().data
    guard.write(rows + more)            # StaleToken, when a later holder has been here

Promise: a write is whole or not there, and none is accepted under a token older than one that was
admitted before, also when writers are killed at any step (pair.py says how). Rule: compare, note
and rename happen under one kernel lock, `PATH.fence.lock`, which no lease can outlive: it is free
when its process is gone, and waits, told who holds it, while that process is only stopped.
Not promised: anything against programs that write PATH by other means.
"""

from __future__ import annotations

import os

from ...core.errors import InvalidArgument, LifeholdError, UnsafeGround
from ...local import ground
from ...local.descriptors import files_for
from ...local.refusals import make_folders, refused
from ...lock import Lock
from .pair import SUFFIX, Fenced, Pair
from .rule import token_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ...lock import Lease
    from .rule import Carrier

__all__ = ["Fenced", "FencedFile"]


class FencedFile:
    """A file at `path` that only the newest holder may write.

    `lease`: whose token guards the writes, or that token; None is for reading alone. `wait`:
    seconds to wait for another writer of this file, who holds it for one write; None until it is
    free. `mode`: of new files, whatever the umask; a file that is there keeps its own.
    `shared=True`: several users write it. `durable=False`: nothing is flushed, so a power failure
    may take the last writes and the fence back; kill -9 may not.
    `server_locks=True`: believe in the locks of a file server. They end with its connection, so a
    writer that was cut off in the middle of its write may finish it late.

    Raises InvalidArgument; UnsafeGround where other machines may write the file.
    """

    __slots__ = ("_lease", "_lock", "_pair", "path")

    def __init__(
        self, path: str | os.PathLike[str], lease: Carrier | int | None = None, *,
        wait: float | None = None, mode: int | None = None, shared: bool = False,
        durable: bool = True, server_locks: bool = False,
    ) -> None:  # fmt: skip
        if not isinstance(path, str | os.PathLike):
            raise InvalidArgument(f"path must be a str or a Path, not {type(path).__name__}")
        where = os.fspath(path)
        if not where or "\0" in where or where.endswith("/"):
            raise InvalidArgument(f"{where!r} cannot be the path of a file")
        if shared and mode is None:
            mode = 0o666
        self.path = os.path.abspath(where)
        if not server_locks and ground.is_unproven(self.path):
            raise UnsafeGround(
                f"{self.path!r} lies on a file system that another machine may mount, whose locks "
                "end with a connection: keep what must be guarded in a database, or give "
                "server_locks=True to rely on them",
                name=self.path,
            )
        self._lease = lease
        self._pair = Pair(files_for(self.path), self.path, durable, mode)
        self._lock = Lock(
            f"{self.path}{SUFFIX}.lock", kind="kernel", wait=wait, mode=mode,
            label=f"a write to {os.path.basename(self.path)}"[:100],
        )  # fmt: skip

    def advance(self) -> None:
        """Refuse older tokens from now on. To be called before the first read under a lease.

        Raises StaleToken when this one is older itself; Timeout, SystemRefused, CorruptRecord.
        """
        token = token_of(self._lease, self.path)
        with self._lock_of_file():
            self._told(self._pair.advance, token)

    def read(self) -> Fenced:
        """(data, token, fence): the bytes, under which token they were written, and the fence.

        Takes no lock and needs no lease. `data` is None when there is no file; `token` is None for
        bytes that something else has written. Raises SystemRefused, CorruptRecord.
        """
        return self._told(self._pair.read)  # type: ignore[no-any-return]

    def write(self, data: bytes) -> None:
        """Replace the content in one step. On the disk when this returns, if `durable`.

        Raises StaleToken, and nothing is written, when a later holder has been here; Timeout,
        SystemRefused, CorruptRecord.
        """
        content = as_bytes(self.path, data)
        token = token_of(self._lease, self.path)
        with self._lock_of_file() as held:
            self._told(self._pair.put, content, token, held.check)

    def update(self, change: Callable[[bytes | None], bytes]) -> bytes:
        """`write(change(data))` with no other writer in between; what was written.

        `change` gets None when there is no file. It runs under the lock of the file: keep it short.
        """
        token = token_of(self._lease, self.path)
        with self._lock_of_file() as held:
            self._told(self._pair.advance, token)
            made = as_bytes(self.path, change(self._told(self._pair.read).data))
            self._told(self._pair.put, made, token, held.check)
        return made

    def _lock_of_file(self) -> Lease:
        self._told(make_folders, self._pair.files, self.path)
        return self._lock.acquire()

    def _told(self, step: Callable[..., Any], *given: Any) -> Any:
        """`step(*given)`, an error of the system in our words."""
        try:
            return step(*given)
        except LifeholdError:
            raise
        except OSError as error:
            raise refused(self.path, error) from error

    def __repr__(self) -> str:
        return f"<FencedFile {self.path!r}>"


def as_bytes(name: str, data: object) -> bytes:
    """Data of a guarded thing. Raises InvalidArgument."""
    if not isinstance(data, bytes | bytearray | memoryview):
        raise InvalidArgument(f"{name!r}: data is bytes, not {type(data).__name__}", name=name)
    return bytes(data)
