"""A writer that becomes a reader, by growing lighter at the store.

Promise: in one step, so no other writer comes in between; the grant, its token and its mark stay.
L6  A lost answer is asked for again: the step changes nothing the second time. Still none: readers
    may be in already, so from here on it is a reader's, whatever the store has. That is Unknown.
"""

from __future__ import annotations

from ..core.grant import Grant, Lost, Unknown
from ..core.storage import NoReply, Renewal, Unreachable
from ..core.value import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .known import Known

READER = 1  # the weight of one


async def lightened(lock: Known, grant: Grant, send: Any) -> Grant | Lost | Unknown:
    """What the store made of it. `send`: how a request gets there."""
    doubt: Exception | None = None
    for _ in range(2):
        sent_at = lock.now()  # L8
        asked = (Renewal(lock.name, grant.mark, lock.terms.ttl, READER),)
        try:
            _, (held,) = await send(lambda backend, asked=asked: backend.renew(asked))
        except (Unreachable, NoReply) as error:
            doubt = error
            continue
        if held:
            return replace(grant, deadline=lock.terms.deadline(sent_at))
        grant.handle.clear()
        return Lost("the store had let it go", gone=True)
    assert doubt is not None
    return Unknown(grant.nonce, doubt)
