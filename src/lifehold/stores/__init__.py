"""`connect(url)`: locks by name, wherever they are kept.

store = connect("file:///var/lib/jobs")
with store.lock("payments/42", wait=5) as lease: ...
with store.read_write("config").reading(): ...
with store.semaphore("gpu", 4) as lease: lease.slot

What a store offers is the same whatever it stands on: files, or leases in memory, SQLite and
PostgreSQL. Others add stores by an entry point of the group `lifehold.stores` under the name of
their scheme (store/opening.py).
"""

from __future__ import annotations

import os

from ..core.errors import InvalidArgument
from ..runtime import fork

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..core import address
    from .afiles import AsyncFileStore
    from .aleases import AsyncLeaseStore
    from .files import FileStore
    from .leases import LeaseStore
else:
    address = fork.later("lifehold.core.address", globals())


def connect(url: str | os.PathLike[str], **options: Any) -> FileStore | LeaseStore:
    """The store at `url`, for threads and processes.

    `file:///FOLDER`: locks in the files of a folder, which is made when the first lock is; a
    `FileStore`, whose options are `kind`, `ttl`, `label`, `shared`, as of `Lock`.
    `memory://`, `sqlite:////var/lib/locks.db`, `postgresql://HOST/DB`: leases; a `LeaseStore`,
    whose options are `ttl` and `label` of all its locks, and those of its client
    (docs/reference/store.md).

    It is opened at the first question, once per process. Raises InvalidArgument.
    """
    made: FileStore | LeaseStore = _maker(url, "FileStore", "LeaseStore")(url, **options)
    return made


async def aconnect(url: str | os.PathLike[str], **options: Any) -> AsyncFileStore | AsyncLeaseStore:
    """The same for tasks: its locks are used with `async with`, its questions are awaited."""
    made: Any = _maker(url, "AsyncFileStore", "AsyncLeaseStore")(url, **options)
    return made  # type: ignore[no-any-return]


def _maker(url: Any, files: str, leases: str) -> Callable[..., Any]:
    text = url if isinstance(url, str) else ""
    scheme, mark, _ = text.partition("://")
    if not mark:
        address.refuse_lost_slash(os.fspath(url) if hasattr(url, "__fspath__") else text)
        shown = address.shown_torn(text) if text else url
        raise InvalidArgument(
            f"a store is named by a URL, for example 'file:///var/lib/jobs', not {shown!r}"
        )
    wanted = files if scheme == "file" else leases
    rooms = {
        "FileStore": "files",
        "AsyncFileStore": "afiles",
        "LeaseStore": "leases",
        "AsyncLeaseStore": "aleases",
    }
    room: Any = fork.lazily(f"lifehold.stores.{rooms[wanted]}")
    return getattr(room, wanted)  # type: ignore[no-any-return]
