"""What can be asked of a lock in a store: by `who`, `ls`, `wait`, `check` and `clear`.

The store answers, by its own clock. It ends what has run out by itself, so nothing stale is ever
left to be removed; what an operator may do is to break a lease that still runs, by its nonce.
"""

from __future__ import annotations

from ..core.address import refuse_lost_slash, refuse_torn, shown_torn, without_password
from ..core.backend import WHOLE, NoReply, Unreachable
from ..core.errors import InvalidArgument, StoreUnavailable
from ..core.mask import printable
from ..local.kernel_holders import NOBODY, KernelWaiter
from ..local.lock_names import shown
from ..registry import STORES, store_at
from ..runtime import fork
from ..store.opening import opener
from ..store.site import checked, decoded
from ..store.upkeep import GOOD, Checked, Migrated, StoreFinding
from ..stores import broken
from .answer import FREE, HELD, KEPT, NOTHING, REMOVED, STALE, SUSPECT, WOULD, Answer, ClearOutcome

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .. import stores
    from ..core.backend import State
    from ..core.grant import Holder
else:
    stores = fork.later("lifehold.stores", globals())

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
    if state is None or not state.holders:
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
    line = tuple(KernelWaiter(NOBODY, True, "SESSION") for _ in seen.line)
    if not seen.holders:
        return Answer(name, path, FREE, exists=False, kind="session", waiting=line)
    first, *others = seen.holders
    return Answer(
        name, path, STATES[first.alive], first, kind="session", others=tuple(others), waiting=line
    )


def of_state(name: str, site: Any, state: State) -> Answer:
    """What a store knows of a name, as the answer about a lock."""
    path = site.address(state.name)
    holders = [site.holder(seat, state.name) for seat in state.holders]
    kind = "lease"
    if state.holders and state.capacity == WHOLE:
        kind = "lease, read-write"
    elif state.capacity > 1:
        kind = f"lease, {state.capacity} permits"
    line = tuple(KernelWaiter(NOBODY, True, "LEASE") for _ in state.waiters)
    if not holders:
        return Answer(name, path, FREE, kind=kind, waiting=line)
    first, *others = holders
    return Answer(
        name, path, STATES[first.alive], first, kind=kind, others=tuple(others), waiting=line
    )


def holder_of(url: str) -> Holder | None:
    """Who holds it, None for nobody."""
    return answer(url, url).holder


# ------------------------------------------------------------------------------------------------
# `clear` on a lock in a store: nothing stale is there to remove, but a live one can be broken.
#
# Promise: a lease, or a session that holds a lock, is ended before its time only by who types the
# word that names this very grant; its holder is told at its next renewal, its token is behind every
# later one, and the store notes who did it and why.


LETTERS = 8  # of the grant's mark, to be typed; of another tool's session the process


def clear(url: str, *, force: str = "", dry_run: bool = False) -> ClearOutcome:
    """What became of the lock of a URL. Raises InvalidArgument, StoreUnavailable."""
    found = answer(url, url)
    if found.state == FREE or found.holder is None:
        return ClearOutcome(found.path, NOTHING, "it is free", found)
    if found.state == STALE:
        why = f"{found.holder.evidence}: whoever asks next gets it at once"
        return ClearOutcome(found.path, NOTHING, why, found)
    owner = found.holder.owner
    word = (found.holder.nonce or str(owner.pid if owner else found.holder.evidence))[:LETTERS]
    evidence = found.holder.evidence
    if force != word:
        why = f"a {found.kind} ends by itself: {evidence}"
        if force:
            why = f"the word {force!r} is not of the grant that holds it now; {why}"
        return ClearOutcome(found.path, KEPT, why, found, word)
    why = f"by order, although {evidence}"
    if dry_run:
        return ClearOutcome(found.path, WOULD, why, found)
    site, key = parted(url)
    broken(site, key, "lifehold clear --force")
    return ClearOutcome(found.path, REMOVED, why, found)


# ------------------------------------------------------------------------------------------------
# The upkeep of a store, whatever it stands on: its tables made, and whether it can be used.
#
# A store offers it by the attribute `upkeep` of what opens it: the name of a module with `migrate`,
# `script` and `check`, as store/postgres/upkeep.py has them. One without has no tables to be made.


def migrate(url: str, role: str = "") -> Migrated:
    """Make the tables of a store, or bring them up to this version.

    `role`: of the server, is granted what it needs. Raises InvalidArgument, StoreUnavailable.
    """
    room = _room(url)
    if room is None:
        raise InvalidArgument(f"{_shown(url)} has no tables that could be made")
    made: Migrated = _reached(url, lambda: room.migrate(url, role))
    return made


def script(url: str, role: str = "") -> str:
    """The same as SQL. `url`: of which only the scheme counts. Raises InvalidArgument."""
    room = _room(url)
    if room is None:
        raise InvalidArgument(f"{_shown(url)} has no tables that could be made")
    return str(room.script(role))


def check(url: str) -> Checked:
    """Whether leases can be kept there by us. Raises InvalidArgument, StoreUnavailable."""
    room = _room(url)
    if room is not None:
        found: Checked = _reached(url, lambda: room.check(url))
        return found
    site = store_at(url)
    sentences = tuple(site.ask(site.ground))
    return Checked(site.url, 0, 0, (StoreFinding("store", GOOD, "it answers"),), sentences)


def prune(url: str, older_than: float) -> tuple[str, int]:
    """Forget names unused for so many seconds. The URL as shown, and how many those were."""
    _room(url)
    store = stores.LeaseStore(url, **_no_tables(url))
    return store.url, store.prune(older_than)


def _no_tables(url: str) -> dict[str, Any]:
    """Where there are none, nothing is to be forgotten: a server's are not made for that."""
    return {"create": False} if url.startswith("postgres") else {}


def _room(url: str) -> Any:
    refuse_torn(url)
    refuse_lost_slash(url)
    if "://" not in url or "#" in url:
        raise InvalidArgument(
            f"a store is named by its URL, such as postgresql://HOST/DATABASE, not by {_shown(url)}"
        )
    if url.startswith(("file:", "memory:")):
        raise InvalidArgument(
            f"{_shown(url)} needs no upkeep: of folders see lifehold doctor, and memory ends with "
            "its process"
        )
    name = opener(url, STORES).upkeep
    return None if name is None else fork.lazily(name)


def _reached(url: str, ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except (Unreachable, NoReply) as error:
        raise StoreUnavailable(f"{_shown(url)} cannot be used: {error}", name="") from error


def _shown(url: str) -> str:
    return f"'{printable(without_password(url)) if '://' in url else shown_torn(url)}'"
