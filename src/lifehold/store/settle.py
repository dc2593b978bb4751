"""One adapter for blocking and asynchronous clients.

A backend is written once as coroutines: `await settle(client.execute(...))`. A blocking client has
answered already, so nothing suspends and `finish` runs the backend to its end in one step; an
asynchronous one is awaited.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


async def settle(answer: Any) -> Any:
    """The answer of a client, which may have to be awaited."""
    return await answer if hasattr(answer, "__await__") else answer
