"""What the leases of a PostgreSQL stand on, in sentences."""

from __future__ import annotations

from .tables import VERSION
from .words import migrate_command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

QUESTION = """
SELECT current_setting('server_version'), current_setting('fsync') = 'on',
    current_setting('full_page_writes') = 'on', current_setting('synchronous_commit'),
    (SELECT count(*) FROM pg_stat_replication), current_setting('synchronous_standby_names'),
    (SELECT version FROM {at}lifehold_schema)
"""


CLOCK = (
    "leases run by the server's clock: a step forward ends them early by as much, a step back"
    " prolongs them; hosts' clocks are never compared"
)


def sentences(
    row: tuple[Any, ...], known: dict[str, Any], pooled: bool, listening: str
) -> tuple[str, ...]:
    """What the server answered, in words. `known`: host, database and so on."""
    version, fsync, pages, commit, standbys, names, schema = row
    told = [
        f"PostgreSQL {version}, schema {schema}: one primary decides, in one transaction each",
        CLOCK,
    ]
    lost = (
        "a token can repeat only when grants were lost and the clock of the server is behind the"
        " one that gave them: then bump(name)"
    )
    if names and commit in ("on", "remote_apply", "remote_write"):
        told.append(f"a standby has each grant before its holder ({names}, {commit}); {lost}")
    elif standbys:
        told.append(
            f"{standbys} asynchronous standby{'s' if standbys != 1 else ''}: a failover may lose"
            f" the last grants, so two may hold one name until the older ttl is over; {lost}"
        )
    else:
        told.append(
            "no standby is connected: a standby promoted later, or a backup restored, may have lost"
            f" grants; {lost}"
        )
    if not fsync or not pages or commit == "off":
        what = "fsync" if not fsync else "full_page_writes" if not pages else "synchronous_commit"
        told.append(f"{what} is off: a crash of the server may forget grants that are in use")
    if schema < VERSION:
        told.append(
            f"its tables are of version {schema}, which is slower. This brings them up: "
            f"{migrate_command(known)}"
        )
    if pooled:
        told.append(
            "a pooler stands between: leases are kept, waiters are not called and look every 1 to"
            " 5 s; for calls, and for kind='session', connect to the server itself"
        )
    else:
        told.append(f"waiters are called by NOTIFY ({listening})")
    return tuple(told)
