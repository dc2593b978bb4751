"""The upkeep of a store, whatever it stands on: its tables made, and whether it can be used.

A store offers it by the attribute `upkeep` of what opens it: the name of a module with `migrate`,
`script` and `check`, as store/postgres/upkeep.py has them. One without has no tables to be made.
"""

from __future__ import annotations

from ..core.address import refuse_lost_slash, refuse_torn, shown_torn, without_password
from ..core.errors import InvalidArgument, StoreUnavailable
from ..core.mask import printable
from ..core.storage import NoReply, Unreachable
from ..registry import STORES, store_at
from ..runtime import fork
from ..store.opening import opener
from ..store.upkeep import GOOD, Checked, Finding, Migrated

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


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
    sentences = tuple(site.ask(lambda backend: backend.ground()))
    return Checked(site.url, 0, 0, (Finding("store", GOOD, "it answers"),), sentences)


def prune(url: str, older_than: float) -> tuple[str, int]:
    """Forget names unused for so many seconds. The URL as shown, and how many those were."""
    _room(url)
    leases: Any = fork.lazily("lifehold.stores.leases")
    store = leases.LeaseStore(url, **_no_tables(url))
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
    name = getattr(opener(url, STORES), "upkeep", None)
    return None if name is None else fork.lazily(name)


def _reached(url: str, ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except (Unreachable, NoReply) as error:
        raise StoreUnavailable(f"{_shown(url)} cannot be used: {error}", name="") from error


def _shown(url: str) -> str:
    return f"'{printable(without_password(url)) if '://' in url else shown_torn(url)}'"
