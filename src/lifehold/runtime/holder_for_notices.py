"""One look for many who wait for the same lock: who holds it, told to each.

Promise: however many threads, tasks and greenlets of a process wait, it looks once a second at
most, and nobody is kept from his place in the queue by the look of another. A look that was
cancelled is made by the next one who asks. Shared is only what people are told: every grant and
every takeover looks for itself, in its own step (L2, L3).

What one may see another may not: a look is shared by those who have the same rights and
namespaces. A forked child begins with none (L9).
"""

from __future__ import annotations

import os

from ..core import acquire
from ..core.errors import pass_up
from ..core.ports import is_sited
from . import clock, fork, native
from .held_here import running_task

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Hashable
    from typing import Any

    from ..core.ports import Mechanism, Runtime

    Answer = tuple[Any, int | None]

FRESH = 1.0  # seconds for which a look is told to others
AT_ONCE = 0.2  # the same for who gives up just now
HANGS = 5.0  # seconds after which nobody waits for a look: a file server does not answer
KEPT = 64  # looks remembered before old ones are forgotten
STEP = 0.01
NOBODY_KNOWS: Answer = (None, None)


class _SharedLook:
    """A look under way, or its answer."""

    __slots__ = ("answer", "at")

    def __init__(self) -> None:
        self.at = clock.now()  # when it began, then when it ended
        self.answer: Answer | None = None


_looks: dict[Hashable, _SharedLook] = {}
_mutex = native.RLock()  # reentrant: a signal handler may wait for a lock too


@fork.in_child
def _forget() -> None:
    """L9  A child shares no look at a lock with threads that it has not."""
    global _mutex
    _mutex = native.RLock()
    _looks.clear()
    acquire.waiting.clear()


def key_of(mechanism: Mechanism) -> Hashable:
    """What one look is good for, and for whom."""
    ids = [getattr(os, name, int)() for name in ("geteuid", "getegid")]
    spaces = [_namespace(kind) for kind in ("pid", "mnt", "user", "time")]
    site = id(mechanism.site) if is_sited(mechanism) else None
    return type(mechanism), mechanism.path, mechanism.exclusive, site, *ids, *spaces


def _namespace(kind: str) -> int | None:
    """Of the thread that asks, which need not be that of its process."""
    try:
        return os.stat(f"/proc/thread-self/ns/{kind}").st_ino
    except OSError as error:
        pass_up(error)
        return None


async def shared(runtime: Runtime, mechanism: Mechanism) -> Answer | None:
    """Who holds it and how many wait, as seen less than a second ago. None: ask again soon."""
    fork.here()
    key = key_of(mechanism)
    found, ours = _entered(key, FRESH)
    if not ours:
        late = found.answer is None and clock.now() - found.at > HANGS
        return NOBODY_KNOWS if late else found.answer
    try:
        # Not by the thread of an event loop: it reads files, and those of other processes.
        answer = await runtime.in_thread(lambda: acquire.look(mechanism), lambda _: None)
    except BaseException:
        _left(key, found)  # the next one looks
        raise
    _answered(found, answer)
    return answer


def now(mechanism: Mechanism) -> Answer:
    """The same for who gives up: that of another who does so at this moment, or its own.

    An event loop does not stand still for the look of another: it makes its own.
    """
    fork.here()
    key, until = key_of(mechanism), clock.now() + (FRESH if running_task() is None else 0.0)
    while True:
        found, ours = _entered(key, AT_ONCE)
        if not ours and found.answer is not None:
            return found.answer
        if ours or clock.now() >= until:
            break
        clock.pause(STEP)
    try:
        answer = acquire.look(mechanism)
    except BaseException:
        if ours:
            _left(key, found)
        raise
    _answered(found, answer)
    return answer


def _entered(key: Hashable, fresh: float) -> tuple[_SharedLook, bool]:
    """The look that serves, and whether it is the caller's to make."""
    with _mutex:
        found = _looks.get(key)
        if found is not None and (found.answer is None or clock.now() - found.at <= fresh):
            return found, False
        if len(_looks) >= KEPT:
            for old in [each for each, look in _looks.items() if look.answer is not None]:
                del _looks[old]
        found = _looks[key] = _SharedLook()
        return found, True


def _left(key: Hashable, look: _SharedLook) -> None:
    with _mutex:
        if _looks.get(key) is look:
            del _looks[key]


def _answered(look: _SharedLook, answer: Answer) -> None:
    look.at = clock.now()
    look.answer = answer
