"""What can be asked of a lock in a store: by `who`, `ls`, `wait`, `check` and `clear`.

The store answers, by its own clock. It ends what has run out by itself, so nothing stale is ever
left to be removed; what an operator may do is to break a lease that still runs, by its nonce.
"""

from __future__ import annotations

from ..core.storage import WHOLE
from ..local.kernel_holders import NOBODY, Waiting
from ..local.lock_names import shown
from ..registry import store_at
from ..store.site import checked, decoded
from .answer import FREE, HELD, STALE, SUSPECT, Answer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..core.grant import Holder
    from ..core.storage import State

STATES = {"alive": HELD, "dead": STALE, "unknown": SUSPECT}


def parted(url: str) -> tuple[Any, str]:
    """The store of a URL, and the name behind its #. Raises InvalidArgument."""
    where, _, name = url.partition("#")
    return store_at(where), checked(decoded(name))


def canonical(url: str) -> str:
    """The lock of a URL as every process calls it, without its password. Raises InvalidArgument."""
    site, key = parted(url)
    return str(site.address(key))


def answer(name: str, url: str) -> Answer:
    """Who holds the lock of a URL. Raises InvalidArgument, StoreUnavailable."""
    site, key = parted(url)
    name, state = shown(name), site.state(key)
    if state is None or not state.seats:
        for seen in site.ask(lambda backend: site.by_session(backend, key)):
            return of_session(name, site.address(key), seen)
    if state is None:
        return Answer(name, site.address(key), FREE, exists=False, kind="lease")
    return of_state(name, site, state)


def answers(url: str) -> list[Answer]:
    """All locks of a store, or the one that a URL names."""
    if "#" in url:
        return [answer(url, url)]
    site = store_at(url)
    found = {
        state.name: of_state(site.address(state.name), site, state)
        for page in site.pages()
        for state in page
    }
    for seen in site.ask(lambda backend: site.by_session(backend, None)):
        path = site.address(seen.name)
        if seen.name not in found or found[seen.name].state == FREE:
            found[seen.name] = of_session(path, path, seen)
    return [found[each] for each in sorted(found)]


def of_session(name: str, path: str, seen: Any) -> Answer:
    """What the server knows of an advisory lock."""
    line = tuple(Waiting(NOBODY, True, "SESSION") for _ in seen.line)
    if not seen.holders:
        return Answer(name, path, FREE, exists=False, kind="session", waiting=line)
    first, *others = seen.holders
    return Answer(
        name, path, STATES[first.alive], first, kind="session", others=tuple(others), waiting=line
    )


def of_state(name: str, site: Any, state: State) -> Answer:
    """What a store knows of a name, as the answer about a lock."""
    path = site.address(state.name)
    holders = [site.holder(seat, state.name) for seat in state.seats]
    kind = "lease"
    if state.seats and state.capacity == WHOLE:
        kind = "lease, read-write"
    elif state.capacity > 1:
        kind = f"lease, {state.capacity} permits"
    line = tuple(Waiting(NOBODY, True, "LEASE") for _ in state.waiters)
    if not holders:
        return Answer(name, path, FREE, kind=kind, waiting=line)
    first, *others = holders
    return Answer(
        name, path, STATES[first.alive], first, kind=kind, others=tuple(others), waiting=line
    )


def holder_of(url: str) -> Holder | None:
    """Who holds it, None for nobody."""
    return answer(url, url).holder
