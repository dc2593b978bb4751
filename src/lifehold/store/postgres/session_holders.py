"""Who holds a session lock, and who waits for it: as the server sees its sessions.

Promise: whoever holds the advisory lock is named, whatever took it: by our record, where it is of
that very session; else by what its client says of itself. Alive is certain: its session is open.
"""

from __future__ import annotations

from ...core.errors import InvalidArgument
from ...core.grant import Holder
from ...core.liveness import ALIVE
from ...core.owner import Owner
from ...core.value import as_dict, value
from ...runtime import fork, process
from . import session_sql as sql
from .session_key import key_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .open import Plan
    from .session_key import Key

FIELDS = frozenset(Owner.__match_args__)
OURS = "lifehold pid "  # how the application_name of our sessions begins


@value
class Seen:
    """One key. `name`: of our record, else the key in words; more `holders` where it is shared.

    `pids` of the server's processes: of the holders, and of those in `line`, who comes first first.
    """

    name: str
    holders: tuple[Holder, ...] = ()
    pids: tuple[int, ...] = ()
    line: tuple[int, ...] = ()


def question(key: Key | None, tabled: bool) -> str:
    """What the server is asked: about one key, or all of its database."""
    return sql.SEEN.format(
        record=sql.RECORD if tabled else "NULL",
        joined=sql.JOINED if tabled else "",
        ours=sql.DATABASE if key is None else sql.OURS.format(*key.in_pg_locks),
    )


def read(answer: str, address: Callable[[str], str], known: dict[str, Any]) -> dict[str, Seen]:
    """Its answer, by key. `address`: of a name; `known`: how the server is reached."""
    json: Any = fork.lazily("json")
    by_key: dict[str, list[Any]] = {}
    for key, *row in json.loads(answer):
        by_key.setdefault(key, []).append(row)
    host = str(known.get("host") or "/")
    server = process.host_name() if host.startswith(("/", "@")) else host
    found = {}
    for key, rows in by_key.items():
        name = next((row[-1][-1] for row in rows if row[-1]), key)
        granted = [row for row in rows if row[1]]
        holders = tuple(holder(row, address(name), server) for row in granted)
        line = tuple(row[0] for row in rows if not row[1])
        found[key] = Seen(name, holders, tuple(row[0] for row in granted), line)
    return found


async def seen_by(
    backend: Any, name: str | None, address: Callable[[str], str], plan: Plan
) -> tuple[Seen, ...]:
    """The same over the connections of leases, which may pass a pooler. None: of all keys."""
    try:
        key = None if name is None else key_of(name)
    except InvalidArgument:
        return ()  # the name of a lease, which looks like a key
    if not plan.tabled:
        ((plan.tabled,),) = await backend.read(sql.TABLED, ())
    ((answer,),) = await backend.read(question(key, plan.tabled), ())
    given = address if name is None else lambda _: address(name)
    return tuple(read(answer, given, plan.known).values())


def holder(row: list[Any], path: str, server: str | None) -> Holder:
    """One session that holds it."""
    pid, _, application, user, origin, began_ms, state, record = row
    where = f", from {origin}" if origin else ""
    evidence = f"its session is open at the server, process {pid} there{where}"
    began = None if began_ms is None else began_ms / 1000
    if record is not None:
        mark, token, acquired_us, owner, _ = record
        return Holder(
            read_owner(owner), acquired_us / 1e6, ALIVE, evidence, token, f"{mark}-{token}", path
        )
    named = (application or "").removeprefix(OURS).split(" on ", 1)
    if (application or "").startswith(OURS) and named[0].isdecimal() and len(named) == 2:
        found = Owner(int(named[0]), host=named[1], user=user)
        return Holder(found, None, ALIVE, evidence, lock=path, began=began)
    what = f"PostgreSQL's process for {application!r}" if application else "PostgreSQL's process"
    found = Owner(pid, host=server, user=user, command=f"{what}, {state}" if state else what)
    return Holder(found, None, ALIVE, evidence, lock=path, began=began)


def written(owner: Owner) -> str:
    """An owner's record."""
    json: Any = fork.lazily("json")
    known = {key: item for key, item in as_dict(owner).items() if item not in (None, "")}
    return json.dumps(known)  # type: ignore[no-any-return]


def read_owner(text: str) -> Owner | None:
    """L12  What a newer version wrote besides is not for us."""
    json: Any = fork.lazily("json")
    try:
        return Owner(**{key: item for key, item in json.loads(text).items() if key in FIELDS})
    except (ValueError, TypeError, AttributeError):
        return None
