"""Guards that refuse a late writer at the data: rows, files, HTTP, objects.

The public path of `lifehold.recipes.fence`; each guard is imported when it is asked for.
"""

from __future__ import annotations

from .recipes import fence as _room

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .recipes.fence import (
        HEADER,
        AsyncRowFence,
        AsyncSqlFence,
        AsyncSqlTokens,
        FenceASGI,
        Fenced,
        FencedFile,
        FencedObject,
        FenceWSGI,
        FileTokens,
        FolderObjects,
        LeaseAuth,
        LeaseTable,
        MemoryObjects,
        MemoryTokens,
        RowFence,
        S3Objects,
        SessionFence,
        SqlFence,
        SqlTokens,
        StaleToken,
        Stored,
        admit,
        ahooks,
        create_table,
        fenced,
        hooks,
        wrote,
    )

__all__ = [
    "HEADER",
    "AsyncRowFence",
    "AsyncSqlFence",
    "AsyncSqlTokens",
    "FenceASGI",
    "FenceWSGI",
    "Fenced",
    "FencedFile",
    "FencedObject",
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


def __getattr__(name: str) -> object:
    return getattr(_room, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
