"""Which leases this context and this process hold: for tokens in force and waits for oneself.

Rule: nothing here keeps a lease alive or decides whether a lock is held. A link whose grant has
ended counts no more, whoever ended it.
"""

from __future__ import annotations

import os
import sys
from _contextvars import ContextVar
from _weakref import ref
from itertools import count

from ..core.errors import InvalidArgument
from . import fork, native

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from typing import Any

    from ..core.grant import Grant

# A link is [grant, the next outer link of its context, the thread or (thread, task) that took it,
# how many more may follow until those that are not in force are taken out, its lease by a weak
# reference].
# A dropped lease empties the handle of its grant.
#
# What is locked -> its latest link in this process: a wait for oneself is an error, not a hang.
holding: dict[Hashable, list[Any]] = {}
SLACK = 8  # links not in force that a context may carry along
LEAST = 1024  # links remembered before those that are not in force are forgotten
_most = LEAST
# The link of the innermost lease of this context.
current: ContextVar[list[Any] | None] = ContextVar("lifehold", default=None)

_numbers = count(1)


class Thread(native.local):  # type: ignore[misc]
    """`key`: the number of the thread that asks, which no other thread of this process ever has.

    That of `get_ident()` goes to the next thread as soon as one ends, and its leases with it (L9).
    Where greenlets are the program's threads it is the number of the greenlet.
    `begun()`: the `with` block that this thread began last, while it lasts (lease.py).
    """

    def __init__(self) -> None:
        self.key = next(_numbers)
        self.begun: Callable[[], object] = _none


def _none() -> None:
    """No block has begun."""


class Greenlet(native.local):  # type: ignore[misc]
    """What a `Thread` becomes when the program's threads are greenlets.

    The main greenlet of a thread keeps the number of the thread: it may hold locks already.
    """

    def __init__(self) -> None:
        self.__dict__["key"] = next(_numbers)
        self.begun: Callable[[], object] = _none

    @property
    def key(self) -> int:
        if sys.modules["greenlet"].getcurrent().parent is None:
            return self.__dict__["key"]  # type: ignore[no-any-return]
        return _of_greenlet.key  # type: ignore[no-any-return]


this_thread: Any = Thread()
_of_greenlet: Any = None


def asker() -> int:
    """`this_thread.key`, after a look whether a library has made greenlets of the threads."""
    if native.is_replaced() and type(this_thread) is Thread:
        _by_greenlet()
    return this_thread.key  # type: ignore[no-any-return]


def _by_greenlet() -> None:
    """L9  From now on greenlets exclude each other: gevent or eventlet may come at any time."""
    global _of_greenlet
    threads: Any = sys.modules["_thread"]

    class Number(threads._local):  # type: ignore[misc]
        """`key`: the number of the greenlet that asks."""

        def __init__(self) -> None:
            self.key = next(_numbers)

    if "greenlet" in sys.modules and threads._local.__module__ != "_thread":
        _of_greenlet = Number()
        this_thread.__class__ = Greenlet


@fork.in_child
def _forget() -> None:
    """L9  A child holds nothing of what its parent holds."""
    holding.clear()


def note(grant: Grant, owner: object, lease: object) -> None:
    """Remember a grant as the innermost of this context, and as this process's latest of its lock.

    It is not forgotten at release: a link that is not in force counts no more, and goes when later
    ones come. So a release need not look at either place, and an acquire rarely beyond one link.
    """
    outer = current.get()
    if outer is not None and not outer[0].handle:
        outer = outer[1]
    left = SLACK
    if outer is not None:
        left = outer[3] - 1
        if left <= 0:
            outer, live = tightened(outer)
            left = live + SLACK
    link = [grant, outer, owner, left, ref(lease)]
    current.set(link)
    if len(holding) >= _most:
        prune()
    holding[grant.key] = link


def prune() -> None:
    """Forget the links of locks that are not held: a program of many locks would keep them all."""
    global _most
    # A copy of the dictionary, no list of pairs: to make these may run the collector, and with it
    # another thread that adds a link meanwhile (CPython 3.11).
    for key, link in holding.copy().items():
        if not in_force(link[0]) and holding.get(key) is link:
            holding.pop(key, None)
    _most = max(LEAST, 2 * len(holding))


def in_force(grant: Grant) -> bool:
    """Whether a grant has not ended by our own doing, nor belongs to a parent process."""
    for part in grant.handle:  # not handle[0]: max_hold may end it meanwhile, in another thread
        return bool(part.generation == fork.here())
    return False


def tightened(link: list[Any] | None) -> tuple[list[Any] | None, int]:
    """The links that are in force, from the first one on, and how many they are.

    Leases need not be released innermost first: without this their links would add up for ever.
    """
    live = 0
    kept: list[Any] = [None, None]
    last = kept
    while link is not None:
        if in_force(link[0]):
            last[1] = link
            last, live = link, live + 1
        link = link[1]
    last[1] = None
    return kept[1], live


def held_by(key: Hashable, thread: int, task: object) -> Any:
    """The lease by which this thread, or task of it, holds what is locked under `key`.

    None for none. One that is known to be lost is passed over: others may hold it by now.
    """
    links = [holding.get(key), current.get()]
    while links:
        link = links.pop()
        if link is None:
            continue
        grant, outer, owner, _, found = link
        holder, its_task = owner if isinstance(owner, tuple) else (owner, None)
        if grant.key == key and holder == thread and (task is None or its_task is task):
            lease = found() if in_force(grant) else None
            if lease is not None and lease._keeps_out():
                return lease
        links.append(outer)
    return None


def spelled_alike(key: Hashable) -> list[tuple[str, str]]:
    """Other keys of what this process holds that may be `key` by another name of its folder.

    Of the kinds whose key is (kind, path): to look at the file would cost each grant a call.
    """
    if not (isinstance(key, tuple) and len(key) == 2 and isinstance(key[1], str)):
        return []
    name = os.path.basename(key[1])
    return [
        each
        for each, link in holding.copy().items()
        if isinstance(each, tuple) and each[0] == key[0] and each != key and in_force(link[0])
        if isinstance(each[-1], str) and os.path.basename(each[-1]) == name
    ]


def current_token(name: str | None = None) -> int | None:
    """The token of the innermost lease that this context holds.

    None when it holds none, or one without.

    `name`: of the lease whose token is wanted, when several are held. Follows `contextvars`: a task
    sees the leases of the code that started it. Does not look at the lock; `lease.check()` does.
    """
    given: object = name
    if given is not None and not isinstance(given, str | os.PathLike):
        cure = ": give lock.path" if hasattr(name, "acquire") else ""
        raise InvalidArgument(f"name must be a str or None, not {type(name).__name__}{cure}")
    link = current.get()
    while link is not None:
        grant: Grant = link[0]
        link = link[1]
        if in_force(grant) and (name is None or grant.name in (name, os.path.abspath(name))):
            return grant.token
    return None


def running_task() -> object:
    """The task of trio or asyncio that calls us; None outside of any task."""
    trio = sys.modules.get("trio")
    if trio is not None:
        try:
            return trio.lowlevel.current_task()
        except RuntimeError:
            pass  # imported, but it is not what runs us
    loops = sys.modules.get("asyncio")
    try:
        return None if loops is None else loops.current_task()
    except (RuntimeError, AttributeError):
        # No loop runs: a forked child leaves the block of its parent's task. Or another thread
        # is importing asyncio just now.
        return None
