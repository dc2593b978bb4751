"""Guards that refuse a late writer at the data: rows, files, HTTP, objects.

The public path of `lifehold.recipes.fence`; each guard is imported when it is asked for.
"""

from __future__ import annotations

from .recipes import fence as _room

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .recipes.fence import (
        HEADER as HEADER,
        AsyncRowFence as AsyncRowFence,
        AsyncSqlFence as AsyncSqlFence,
        AsyncSqlTokens as AsyncSqlTokens,
        FenceASGI as FenceASGI,
        FenceWSGI as FenceWSGI,
        Fenced as Fenced,
        FencedFile as FencedFile,
        FencedObject as FencedObject,
        FileTokens as FileTokens,
        FolderObjects as FolderObjects,
        LeaseAuth as LeaseAuth,
        LeaseTable as LeaseTable,
        MemoryObjects as MemoryObjects,
        MemoryTokens as MemoryTokens,
        RowFence as RowFence,
        S3Objects as S3Objects,
        SessionFence as SessionFence,
        SqlFence as SqlFence,
        SqlTokens as SqlTokens,
        StaleToken as StaleToken,
        Stored as Stored,
        admit as admit,
        ahooks as ahooks,
        create_table as create_table,
        fenced as fenced,
        hooks as hooks,
        wrote as wrote,
    )

__all__ = _room.__all__


def __getattr__(name: str) -> object:
    return getattr(_room, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
