"""Guards that refuse a late writer at the data: rows, files, HTTP, objects.

The public path of `lifehold.recipes.fence`; each guard is imported when it is asked for.
"""

from __future__ import annotations

from .recipes import fence as _room

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .recipes.fence import *  # noqa: F403  the same names
else:  # a type checker would take any name for granted
    __all__ = _room.__all__

    def __getattr__(name: str) -> object:
        return getattr(_room, name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *_room.__all__})
