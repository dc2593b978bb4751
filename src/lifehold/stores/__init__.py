"""`connect(url)`: locks by name, wherever they are kept.

store = connect("file:///var/lib/jobs")
with store.lock("payments/42", wait=5) as lease: ...
with store.read_write("config").reading(): ...
with store.semaphore("gpu", 4) as lease: lease.slot

What a store offers is the same whatever it stands on. This version keeps locks in files; others add
stores by an entry point of the group `lifehold.stores`, a callable `make(url, asynchronous,
**options)` under the name of its scheme.
"""

from __future__ import annotations

from ..core.errors import InvalidArgument
from ..core.mask import printable
from ..runtime import fork

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Callable
    from typing import Any

    from .afiles import AsyncFileStore
    from .files import FileStore


def connect(url: str | os.PathLike[str], **options: Any) -> FileStore:
    """The store at `url`, for threads and processes.

    `file:///FOLDER`: locks in the files of a folder, which is made when the first lock is. Options:
    `kind`, `ttl`, `label`, `shared`, as of `Lock`, for all locks of the store.

    Nothing is opened, so nothing needs to be closed. Raises InvalidArgument.
    """
    return _maker(url)(url, False, **options)  # type: ignore[no-any-return]


async def aconnect(url: str | os.PathLike[str], **options: Any) -> AsyncFileStore:
    """The same for tasks: its locks are used with `async with`, its questions are awaited."""
    return _maker(url)(url, True, **options)  # type: ignore[no-any-return]


def _maker(url: Any) -> Callable[..., Any]:
    text = url if isinstance(url, str) else ""
    scheme, mark, _ = text.partition("://")
    if not mark:
        raise InvalidArgument(
            f"a store is named by a URL, for example 'file:///var/lib/jobs', not {url!r}"
        )
    if scheme == "file":
        return _files
    metadata: Any = fork.lazily("importlib.metadata")
    offered = {point.name: point for point in metadata.entry_points(group="lifehold.stores")}
    if scheme in offered:
        return offered[scheme].load()  # type: ignore[no-any-return]
    known = ", ".join(sorted({"file", *offered}))
    raise InvalidArgument(
        f"there is no store for {printable(scheme)!r} here; there is one for: {known}"
    )


def _files(url: str, asynchronous: bool, **options: Any) -> Any:
    if asynchronous:
        from .afiles import AsyncFileStore

        return AsyncFileStore(url, **options)
    from .files import FileStore

    return FileStore(url, **options)
