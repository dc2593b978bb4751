"""What can be asked of a lock in a store: by `who`, `ls`, `wait`, `check` and `clear`.

The store answers, by its own clock. It ends what has run out by itself, so nothing stale is ever
left to be removed; what an operator may do is to break a lease that still runs, by its nonce.
"""

from __future__ import annotations

from ..core.address import refuse_lost_slash, refuse_torn, shown_torn, without_password
from ..core.backend import WHOLE, NoReply, Unable, Unreachable, is_commanded
from ..core.errors import CorruptRecord, InvalidArgument, StoreUnavailable
from ..core.explain import quote
from ..core.mask import printable
from ..core.value import replace
from ..local.kernel_holders import NOBODY, KernelWaiter
from ..local.lock_names import shown
from ..registry import STORES, store_at
from ..runtime import fork
from ..store.check_report import GOOD, NOTE, UNPROVEN, Checked, Migrated, StoreFinding
from ..store.opening import opener
from ..store.site import checked, decoded
from ..stores import broken
from .answer import (
    FREE,
    HELD,
    KEPT,
    NOTHING,
    REMOVED,
    STALE,
    SUSPECT,
    WOULD,
    ClearOutcome,
    LockAnswer,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from typing import Any

    from .. import stores
    from ..core.backend import Backend, State
    from ..core.grant import Holder
    from . import redis_locks
else:
    redis_locks = fork.later("lifehold.ops.redis_locks", globals())
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


def answer(name: str, url: str) -> LockAnswer:
    """Who holds the lock of a URL. Raises InvalidArgument, StoreUnavailable."""
    site, key = parted(url)
    found = _ours(shown(name), site, key)
    return found if found.holder is not None else beside(found, site, key)


def _ours(name: str, site: Any, key: str) -> LockAnswer:
    state = site.state(key)
    if state is None or not state.holders:
        for seen in site.ask(lambda backend: site.by_session(backend, key)):
            return of_session(name, site.address(key), seen)
    if state is None:
        return LockAnswer(name, site.address(key), FREE, exists=False, kind="lease")
    return of_state(name, site, state)


def answers(url: str) -> list[LockAnswer]:
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
    return [*(found[each] for each in sorted(found)), *_others(site, found)]


# ---- locks that other libraries made in the same server, as keys of it


BEGINS = (b"lock:", b"redlock:")  # of their keys; redis-py and Redisson use the bare name
WITH = "lock:"  # what each of them contains
FEW = 1000  # of them that are looked at
ANOTHER = "it and the lease of this name here do not exclude each other"
UNSEEN = "whether another library has a lock at this key was not seen: the user may not read it"


def beside(free: LockAnswer, site: Any, key: str) -> LockAnswer:
    """What another library has at a key of that name, or that ours is free. Nothing is written."""

    async def look(backend: Backend) -> redis_locks.LockAtKey | str | None:
        if not is_commanded(backend):
            return None
        try:
            return await redis_locks.look(backend.command, key.encode())
        except Unable:
            return UNSEEN

    found = site.ask(look)
    if found is None or isinstance(found, str):
        return replace(free, note=found or free.note)
    if not found.family:  # any program may have a key of that name, and for anything
        ends = "" if found.ends_in is None else f"; it ends in {found.ends_in:.1f} s"
        what = found.note or "a string"
        return replace(free, note=f"the server has a key of this name, {what}{ends}")
    told = redis_locks.as_answer(found, key.encode(), free.name, free.path, _client_of(site.url))
    return replace(told, note="; ".join(filter(None, (told.note, ANOTHER))))


def _others(site: Any, known: Collection[str]) -> Iterator[LockAnswer]:
    """The locks of those libraries whose keys can be found by how they begin."""

    async def listed(backend: Backend) -> set[bytes]:
        keys, cursor = set[bytes](), "0"
        while is_commanded(backend):
            told = await backend.command("SCAN", cursor, "MATCH", f"*{WITH}*", "COUNT", FEW)
            keys.update(each for each in told[1] if each.startswith(BEGINS))
            cursor = told[0].decode()
            if cursor == "0" or len(keys) >= FEW:
                break
        return keys

    for key in sorted(site.ask(listed))[:FEW]:
        try:
            name = checked(key.decode())
        except (UnicodeDecodeError, InvalidArgument):
            continue
        if name not in known:
            path = site.address(name)
            found = beside(LockAnswer(path, path, FREE, kind="lease"), site, name)
            if found.family:
                yield found


def _client_of(url: str) -> str:
    """How redis-cli is told of the server; a password it takes from REDISCLI_AUTH."""
    scheme, _, rest = url.partition("://")
    if scheme == "unix":
        path, _, query = rest.partition("?")
        base = query.partition("db=")[2].partition("&")[0]
        return f"redis-cli -s {quote(path)}" + (f" -n {quote(base)}" if base else "")
    if scheme in ("redis", "rediss"):
        return f"redis-cli -u {quote(url)}"
    if scheme == "redis+cluster":
        host, _, port = rest.partition("/")[0].partition(",")[0].rpartition(":")
        return f"redis-cli -c -h {quote(host)} -p {quote(port)}"
    return "redis-cli"


def of_session(name: str, path: str, seen: Any) -> LockAnswer:
    """What the server knows of an advisory lock."""
    line = tuple(KernelWaiter(NOBODY, True, "SESSION") for _ in seen.line)
    if not seen.holders:
        return LockAnswer(name, path, FREE, exists=False, kind="session", waiting=line)
    first, *others = seen.holders
    return LockAnswer(
        name, path, STATES[first.alive], first, kind="session", others=tuple(others), waiting=line
    )


def of_state(name: str, site: Any, state: State) -> LockAnswer:
    """What a store knows of a name, as the answer about a lock."""
    path = site.address(state.name)
    if state.damage:
        return LockAnswer(name, path, SUSPECT, kind="lease", note=state.damage)
    holders = [site.holder(held, state.name) for held in state.holders]
    kind = "lease"
    if state.holders and state.capacity == WHOLE:
        kind = "lease, read-write"
    elif state.capacity > 1:
        kind = f"lease, {state.capacity} permits"
    line = tuple(KernelWaiter(NOBODY, True, "LEASE") for _ in state.waiters)
    if not holders:
        return LockAnswer(name, path, FREE, kind=kind, waiting=line)
    first, *others = holders
    return LockAnswer(
        name, path, STATES[first.alive], first, kind=kind, others=tuple(others), waiting=line
    )


def holder_of(url: str) -> Holder | None:
    """Who holds it, None for nobody. Of another library's lock nothing is said."""
    return _ours(shown(url), *parted(url)).holder


# ------------------------------------------------------------------------------------------------
# `clear` on a lock in a store: nothing stale is there to remove, but a live one can be broken.
#
# Promise: a lease, or a session that holds a lock, is ended before its time only by who types the
# word that names this very grant; its holder is told at its next renewal, its token is behind every
# later one, and the store notes who did it and why.


LETTERS = 8  # of the grant's mark, to be typed; of another tool's session the process


def clear(url: str, *, force: str = "", dry_run: bool = False) -> ClearOutcome:
    """What became of the lock of a URL. Raises InvalidArgument, StoreUnavailable."""
    try:
        found = answer(url, url)
    except CorruptRecord as error:
        return _clear_damaged(url, error, force, dry_run)
    if found.state == FREE or found.holder is None:
        return ClearOutcome(found.path, NOTHING, "it is free", found)
    if found.family:
        why = f"a lock of {found.family}, which lifehold never ends; {found.holder.evidence}"
        return ClearOutcome(found.path, KEPT, why, found, next="".join(found.remedy[:1]))
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
    if broken(site, key, "lifehold clear --force", found.holder) is None:
        return ClearOutcome(found.path, KEPT, GONE, found)
    return ClearOutcome(found.path, REMOVED, why, found)


GONE = "whom the word names has let go meanwhile, and nobody else was touched"
DAMAGED = "damaged"  # the word for what no grant can be told of


def _clear_damaged(url: str, error: CorruptRecord, force: str, dry_run: bool) -> ClearOutcome:
    site, key = parted(url)
    found = LockAnswer(shown(url), site.address(key), SUSPECT, kind="lease", note=error.text)
    if error.name is None:  # of the whole store, in which nothing can be put right
        return ClearOutcome(found.path, KEPT, error.text, found)
    if force != DAMAGED:
        return ClearOutcome(found.path, KEPT, error.text, found, DAMAGED)
    if not dry_run:
        broken(site, key, "lifehold clear --force")
    why = "by order, although nobody can tell who holds it"
    return ClearOutcome(found.path, WOULD if dry_run else REMOVED, why, found)


# ------------------------------------------------------------------------------------------------
# The upkeep of a store, whatever it stands on: its tables made, and whether it can be used.
#
# A store offers it by the attribute `upkeep` of what opens it: the name of a module with `migrate`,
# `script` and `check`, as store/postgres/upkeep.py has them. One without has no tables to be made.
# Where the settings of a server decide what a lease is worth, `doctor` asks too.


LOOKED_AT: dict[str, str] = {  # scheme -> who looks
    "redis": "lifehold.store.redis.upkeep:examine",
    "rediss": "lifehold.store.redis.upkeep:examine",
    "unix": "lifehold.store.redis.upkeep:examine",
    "redis+sentinel": "lifehold.store.redis.upkeep:examine",
    "redis+cluster": "lifehold.store.redis.upkeep:examine",
    "redis+quorum": "lifehold.store.redis.upkeep:examine",
}


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
    look = _look(url)
    if look is not None:
        looked: Checked = _reached(url, lambda: look(url))
        told = (
            replace(each, verdict=NOTE) if each.verdict == UNPROVEN else each
            for each in looked.findings
        )
        return replace(looked, findings=tuple(told))
    room = _room(url)
    if room is not None:
        found: Checked = _reached(url, lambda: room.check(url))
        return found
    site = store_at(url)
    sentences = tuple(site.ask(site.ground))
    return Checked(site.url, 0, 0, (StoreFinding("store", GOOD, "it answers"),), sentences)


def examine(url: str) -> Checked:
    """What leases stand on there, for `doctor`; findings may be UNPROVEN.

    Raises InvalidArgument, also for a store of which `check` says all; StoreUnavailable.
    """
    look = _look(url)
    if look is None:
        raise InvalidArgument(
            f"of a store ask: lifehold store check {quote(without_password(url))}"
        )
    found: Checked = _reached(url, lambda: look(url))
    return found


def prune(url: str, older_than: float) -> tuple[str, int]:
    """Forget names unused for so many seconds. The URL as shown, and how many those were."""
    _room(url)
    store = stores.LeaseStore(url, **_no_tables(url))
    return store.url, store.prune(older_than)


def _no_tables(url: str) -> dict[str, Any]:
    """Where there are none, nothing is to be forgotten: a server's are not made for that."""
    return {"create": False} if url.startswith("postgres") else {}


def _look(url: str) -> Any:
    """What looks at a server whose settings decide what a lease is worth, or None."""
    name = LOOKED_AT.get(url.partition("://")[0])
    if name is None:
        return None
    _refuse_no_store(url)
    module, _, call = name.partition(":")
    return getattr(fork.lazily(module), call)


def _room(url: str) -> Any:
    _refuse_no_store(url)
    name = opener(url, STORES).upkeep
    return None if name is None else fork.lazily(name)


def _refuse_no_store(url: str) -> None:
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


def _reached(url: str, ask: Callable[[], object]) -> Any:
    try:
        return ask()
    except (Unreachable, NoReply) as error:
        raise StoreUnavailable(f"{_shown(url)} cannot be used: {error}", name="") from error


def _shown(url: str) -> str:
    return f"'{printable(without_password(url)) if '://' in url else shown_torn(url)}'"
