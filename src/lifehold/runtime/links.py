"""Which leases this context and this process hold: for tokens in force and waits for oneself.

Rule: nothing here keeps a lease alive or decides whether a lock is held. A link whose grant has
ended counts no more, whoever ended it.
"""

from __future__ import annotations

from _contextvars import ContextVar

from . import fork

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Hashable
    from typing import Any

    from ..core.grant import Grant

# A link is [grant, the next outer link of its context, the thread or (thread, task) that took it].
# A dropped lease empties the handle of its grant.
#
# What is locked -> its latest link in this process: a wait for oneself is an error, not a hang.
holding: dict[Hashable, list[Any]] = {}
# The link of the innermost lease of this context.
current: ContextVar[list[Any] | None] = ContextVar("lifehold", default=None)


@fork.in_child
def _forget() -> None:
    holding.clear()


def in_force(grant: Grant) -> bool:
    """Whether a grant has not ended by our own doing, nor belongs to a parent process."""
    for part in grant.handle:  # not handle[0]: max_hold may end it meanwhile, in another thread
        return bool(part.generation == fork.generation)
    return False


def tightened(link: list[Any] | None) -> list[Any] | None:
    """The first link that is in force; it leads to the next such one.

    Without this the links of leases that are not released innermost first would add up for ever.
    """
    while link is not None and not in_force(link[0]):
        link = link[1]
    if link is not None:
        outer = link[1]
        while outer is not None and not in_force(outer[0]):
            outer = outer[1]
        link[1] = outer
    return link


def held_by(key: Hashable, thread: int, task: object) -> bool:
    """Whether this thread, or task of it, holds what is locked under `key`."""
    links = [holding.get(key), current.get()]
    while links:
        link = links.pop()
        if link is None:
            continue
        grant, outer, owner = link
        holder, its_task = owner if isinstance(owner, tuple) else (owner, None)
        if grant.key == key and holder == thread and (task is None or its_task is task):
            if in_force(grant):
                return True
        links.append(outer)
    return False
