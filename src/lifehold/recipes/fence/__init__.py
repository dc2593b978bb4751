"""Guards at the data: what refuses a late writer where no lock can.

The rule is `fence <= token`: data remembers the newest token that it has seen and accepts no older
one. A guard keeps that rule for one kind of data, by comparing and storing in one step of the
data's own system. `advance()` is called before the first read, so that a late writer is refused
even before its successor has written anything. Public as `lifehold.fence`.
"""

from __future__ import annotations

from ...core.errors import StaleToken
from ...core.fence import admit
from ...runtime import fork

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .file import Fenced, FencedFile
    from .http import (
        HEADER,
        AsyncSqlTokens,
        FenceASGI,
        FenceWSGI,
        FileTokens,
        LeaseAuth,
        MemoryTokens,
        SqlTokens,
        ahooks,
        hooks,
    )
    from .objects import FencedObject, FolderObjects, MemoryObjects, S3Objects, Stored
    from .redis import AsyncFencedRedis, Conflict, FencedRedis
    from .rows import AsyncRowFence, RowFence, SessionFence, fenced, wrote
    from .sql import AsyncSqlFence, LeaseTable, SqlFence, create_table

_ROOMS = {
    "file": "Fenced FencedFile",
    "http": (
        "HEADER FenceASGI FenceWSGI LeaseAuth ahooks hooks "
        "AsyncSqlTokens FileTokens MemoryTokens SqlTokens"
    ),
    "objects": "FencedObject FolderObjects MemoryObjects S3Objects Stored",
    "redis": "AsyncFencedRedis Conflict FencedRedis",
    "rows": "AsyncRowFence RowFence SessionFence fenced wrote",
    "sql": "AsyncSqlFence LeaseTable SqlFence create_table",
}
_ON_DEMAND = {
    name: f"{__name__}.{room}" for room, names in _ROOMS.items() for name in names.split()
}

__all__ = [
    "HEADER",
    "AsyncFencedRedis",
    "AsyncRowFence",
    "AsyncSqlFence",
    "AsyncSqlTokens",
    "Conflict",
    "FenceASGI",
    "FenceWSGI",
    "Fenced",
    "FencedFile",
    "FencedObject",
    "FencedRedis",
    "FileTokens",
    "FolderObjects",
    "LeaseAuth",
    "LeaseTable",
    "MemoryObjects",
    "MemoryTokens",
    "RowFence",
    "S3Objects",
    "SessionFence",
    "SqlFence",
    "SqlTokens",
    "StaleToken",
    "Stored",
    "admit",
    "ahooks",
    "create_table",
    "fenced",
    "hooks",
    "wrote",
]


if not TYPE_CHECKING:  # a type checker would take any name for granted

    def __getattr__(name: str) -> object:
        if name in _ON_DEMAND:
            return getattr(fork.lazily(_ON_DEMAND[name]), name)
        raise AttributeError(f"module 'lifehold.fence' has no attribute {name!r}")
