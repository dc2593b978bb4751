"""Whether leases can be kept in a PostgreSQL by one role: looked at, and tried.

Promise: nothing is changed. Every question of the backend is asked as that role, in a transaction
that is rolled back, so what it may do is not guessed from its rights; those are listed to say
which is missing.
"""

from __future__ import annotations

from ...core.backend import Order, Renewal, Request, Unreachable
from ...core.deadline import NEVER
from ...core.errors import InvalidArgument
from ...runtime import clock, process
from ...runtime.blocking import finish
from ..check_report import BAD, GOOD, NOTE, Checked, Migrated, StoreFinding
from . import wire
from .backend import Postgres
from .connect import PostgresUrl, literal, psycopg, rows
from .messages import distrusted, migrate_command, place, role_of, said
from .notify import NotifyWakeups
from .sql import SCHEMA, VERSION, strangers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

# ------------------------------------------------------------------------------------------------
# The schema of a store in PostgreSQL as SQL: single statements, and one text to be reviewed.
#
# Promise: what makes the tables may be run again, beside those who work with them, and takes
# nothing away. A role that is granted RIGHTS and owns nothing can do all that leases need.


ALL = "SELECT, INSERT, UPDATE, DELETE"
RIGHTS = {  # table -> what a role needs that works with it
    "lifehold_schema": "SELECT",
    "lifehold_lease": "SELECT, INSERT, UPDATE",
    "lifehold_holder": ALL,
    "lifehold_owner": "SELECT, INSERT, UPDATE",
    "lifehold_waiter": ALL,
    "lifehold_audit": "INSERT",
    "lifehold_kept": ALL,
    "lifehold_session": "SELECT, INSERT, UPDATE",
}
SINCE = {"lifehold_owner": 4}  # the version that first had it, where that was not the first
TABLES = tuple(RIGHTS)
DROP_FUNCTIONS = """DO $$
DECLARE
    each regprocedure;
BEGIN
    FOR each IN SELECT p.oid::regprocedure FROM pg_proc p
        WHERE p.pronamespace = (SELECT c.relnamespace FROM pg_class c
            WHERE c.oid = to_regclass('lifehold_schema'))
        AND (p.proname = 'lifehold_now' OR p.proname ~ '^lifehold_[0-9]+_')
    LOOP
        EXECUTE 'DROP FUNCTION ' || each || ' CASCADE';
    END LOOP;
END $$;"""


def statements(text: str) -> tuple[str, ...]:
    """The single statements of a text, each without the semicolon at its end."""
    found: list[str] = []
    lines: list[str] = []
    in_body = False
    for line in text.strip().splitlines():
        if not lines and not line.strip():
            continue
        lines.append(line)
        in_body ^= line.count("$$") % 2 == 1
        code = line if in_body else line.partition("--")[0]
        if not in_body and code.rstrip().endswith(";"):
            found.append("\n".join(lines).strip().removesuffix(";"))
            lines = []
    assert not lines, lines
    return tuple(found)


def grants(role: str) -> tuple[str, ...]:
    """What lets `role` work with the tables: nothing that is not needed. Raises InvalidArgument."""
    named = _identifier(role)
    return (
        *(f"GRANT {rights} ON {table} TO {named}" for table, rights in RIGHTS.items()),
        *(f"GRANT EXECUTE ON FUNCTION {name} TO {named}" for name in functions()),
    )


def functions() -> tuple[str, ...]:
    """The names of the functions of this version."""
    mark = "CREATE OR REPLACE FUNCTION "
    made = [text.partition(mark)[2] for text in statements(SCHEMA) if mark in text]
    return tuple(text.partition("(")[0].strip() for text in made)


def _identifier(role: str) -> str:
    """A role as SQL has it. Raises InvalidArgument."""
    if not role or not role.isprintable() or len(role.encode()) > 63:
        raise InvalidArgument(f"--grant takes the name of a role, not {role!r}")
    return '"' + role.replace('"', '""') + '"'


def upgrade(role: str = "") -> tuple[str, ...]:
    """The statements, in order, for one transaction. `role`: with what it needs."""
    return (*statements(SCHEMA), *(grants(role) if role else ()))


def downgrade() -> tuple[str, ...]:
    """The statements that remove all of it, the last tokens and the audit too."""
    tables = ", ".join(reversed(TABLES))
    return (DROP_FUNCTIONS.rstrip(";"), f"DROP TABLE {tables} CASCADE")


def script(role: str = "") -> str:
    """The migration as SQL, for psql and for whoever has to review it first."""
    head = (
        f"-- The tables and functions of leases in PostgreSQL, schema version {VERSION}.\n"
        "-- It may be run again, and beside those who work with them. They are made in the first\n"
        "-- schema of the search_path; all who share locks must find them there.\n"
    )
    if not role:
        head += "-- What another role than the owner needs is added by: --grant ROLE\n"
    body = "\n\n".join(f"{text};" for text in upgrade(role))
    return f"{head}\nBEGIN ISOLATION LEVEL READ COMMITTED;\n\n{body}\n\nCOMMIT;\n"


# ------------------------------------------------------------------------------------------------
# The look at what is there.


LIMIT = 10.0  # seconds for one answer
APART = 1.0  # seconds that the server's clock may be off ours before it is remarked
FACTS = """
SELECT current_setting('server_version'), current_setting('server_version_num')::int,
    pg_is_in_recovery(), current_user, current_schema(), pg_backend_pid(),
    coalesce((SELECT s.version FROM pg_stat_ssl s WHERE s.pid = pg_backend_pid() AND s.ssl), ''),
    extract(epoch FROM clock_timestamp())::double precision,
    current_setting('max_connections')::int,
    (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'),
    current_setting('transaction_read_only') = 'on'
"""
HOMES = """
SELECT n.nspname::text, to_regclass('lifehold_schema') = c.oid
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relname = 'lifehold_schema' AND c.relkind IN ('r', 'p') ORDER BY 2 DESC NULLS LAST, 1
"""
MAY_MAKE = "SELECT coalesce(has_schema_privilege(current_schema(), 'CREATE'), false)"
MAY_READ = "SELECT has_table_privilege('lifehold_schema', 'SELECT')"
MISSING = """
SELECT string_agg(lacks.what, ', ' ORDER BY lacks.what) FROM (
    SELECT r.may || ' on ' || t.name AS what
        FROM unnest($1::text[], $2::text[]) t (name, rights),
            unnest(string_to_array(t.rights, ', ')) r (may)
        WHERE to_regclass(t.name) IS NULL OR NOT has_table_privilege(to_regclass(t.name), r.may)
    UNION ALL
    SELECT 'EXECUTE on ' || f.name FROM unnest($3::text[]) f (name)
        WHERE NOT EXISTS (SELECT 1 FROM pg_proc p WHERE p.proname = f.name
            AND pg_function_is_visible(p.oid) AND has_function_privilege(p.oid, 'EXECUTE'))
) lacks
"""
OLDEST = 120000  # server_version_num of PostgreSQL 12
SESSION = "_session"  # what kind="session" needs for its tokens, and leases do not
NAME = "lifehold store check"  # of a lock that is rolled back


def check(url: str) -> Checked:
    """What the role of this URL finds. Raises InvalidArgument, Unreachable."""
    plan = PostgresUrl(url, LIMIT, create=False)
    client = psycopg()
    try:
        connection = client.Connection.connect(**plan.known, autocommit=True)
    except client.Error as error:
        raise Unreachable(said(error, plan.known)) from error
    try:
        return _RoleCheck(plan, connection).all()
    finally:
        connection.pgconn.finish()  # whatever it was in the middle of is rolled back


class _RoleCheck:
    """One look over one connection. Nothing of it stays there: it may be lent by a pooler."""

    prepared = False  # in place of a ConnectionPool (wire.py)

    def __init__(self, plan: PostgresUrl, connection: Any) -> None:
        self.plan, self.line = plan, wire.ServerConnection(connection)
        self.session: int = connection.info.backend_pid
        self.found: list[StoreFinding] = []
        self.version = 0

    def all(self) -> Checked:
        sent_at = clock.utc_now()
        row = self._row(FACTS)
        came_at = clock.utc_now()
        self._server(row, (sent_at + came_at) / 2, came_at - sent_at)
        sentences: tuple[str, ...] = ()
        if self._tables(row[3]) and self._rights(row[3]):
            sentences = self._tried()
        return Checked(self.plan.url, self.version, VERSION, tuple(self.found), sentences)

    def _tell(self, what: str, verdict: str, why: str) -> bool:
        self.found.append(StoreFinding(what, verdict, why))
        return verdict != BAD

    # ---- the server

    def _server(self, row: Sequence[Any], here: float, took: float) -> None:
        version, number, replica, _, _, pid, tls, there, most, used, reads = row
        if number < OLDEST:
            self._tell("server", BAD, f"PostgreSQL {version}: 12 or newer is needed")
        elif replica:
            self._tell("server", BAD, f"PostgreSQL {version}, a replica that only reads: name the "
                       "primary, or all hosts with target_session_attrs=read-write")  # fmt: skip
        elif reads:
            self._tell("server", BAD, f"PostgreSQL {version}, a primary whose transactions only "
                       "read here: look for default_transaction_read_only (ALTER DATABASE, ALTER "
                       "ROLE)")  # fmt: skip
        else:
            self._tell("server", GOOD, f"PostgreSQL {version}, a primary")
        host = str(self.plan.known.get("host") or "")
        near = not host or host.startswith(("/", "@", "127.")) or host in ("localhost", "::1")
        if tls:
            self._tell("connection", GOOD, f"encrypted, {tls}; {took * 1000:.1f} ms to and fro")
        else:
            self._tell("connection", GOOD if near else NOTE, f"not encrypted"
                       f"{'' if near else ': ask for sslmode=verify-full'}; "
                       f"{took * 1000:.1f} ms to and fro")  # fmt: skip
        self.plan.pooled = pid != self.session
        free = most - used
        self._tell("connections", GOOD if free > 10 else NOTE, f"{used} of {most} are in use; a "
                   "process takes 8 at most for its threads that ask, and 3 more")  # fmt: skip
        off = there - here
        words = f"{abs(off):.1f} s {'ahead of' if off > 0 else 'behind'} this host's"
        if abs(off) <= APART + took:
            self._tell("clock", GOOD, "level with this host's; only the server's own counts")
        else:
            self._tell("clock", NOTE, f"{words}: leases do not mind, but records show its time, "
                       "and a server that takes over should not be behind it")  # fmt: skip

    # ---- the tables

    def _tables(self, role: str) -> bool:
        homes = finish(self.ask(HOMES))
        others = [name for name, ours in homes if not ours]
        if not homes or not homes[0][1]:
            elsewhere = f"; there are some in schema {', '.join(others)}, which is not on the "
            what = "there are none" + (f"{elsewhere}search_path" if others else "")
            (ours,) = self._row(MAY_MAKE)
            command = migrate_command(self.plan.known) if ours else self._migrate(role)
            who = "" if ours else f" by a role that may create there, which {role} may not"
            return self._tell("tables", BAD, f"{what}. This makes them{who}: {command}")
        home = homes[0][0]
        told, who = self._row(strangers(literal(home), literal(self.plan.owner)))
        if told:
            return self._tell("owners", BAD, distrusted(self.plan.known, home, told, who))
        self.plan.home = home
        (may,) = self._row(MAY_READ)
        if not may:
            return self._tell(
                "tables",
                BAD,
                f"in schema {home}, where the role {role} may not "
                f"even read their version: {self._migrate(role)}",
            )
        found = finish(self.ask("SELECT version, least FROM lifehold_schema"))
        self.version, least = found[0] if found else (0, 0)
        if least > VERSION:
            return self._tell(
                "tables",
                BAD,
                f"version {self.version}, which clients of version "
                f"{VERSION} would spoil: use a newer lifehold here",
            )
        if self.version < VERSION:
            return self._tell(
                "tables",
                NOTE,
                f"version {self.version}, whose functions do the "
                f"same, less fast, as those of {VERSION}. This brings them up to "
                f"it: {self._migrate(role)}",
            )
        told = f"version {self.version}, in schema {home}"
        if others:
            return self._tell(
                "tables",
                NOTE,
                f"{told}; others in schema {', '.join(others)}: who "
                "has that one on its search_path has other locks",
            )
        return self._tell("tables", GOOD, told)

    def _migrate(self, role: str) -> str:
        known = {**self.plan.known, "user": role}
        return f"{migrate_command(known, owner=True)} --grant {role_of(known)}"

    def _rights(self, role: str) -> bool:
        rights = {
            table: may
            for table, may in RIGHTS.items()
            if SESSION not in table and SINCE.get(table, 1) <= self.version
        }
        calls = [
            name for name in functions() if SESSION not in name and _since(name) <= self.version
        ]
        (missing,) = self._row(MISSING, [list(rights), list(rights.values()), calls])
        if missing:
            return self._tell(
                "rights",
                BAD,
                f"the role {role} lacks {missing}. The owner of the "
                f"tables gives them: {self._migrate(role)}",
            )
        return self._tell("rights", GOOD, f"the role {role} has all that is needed")

    # ---- the questions of the backend

    def _tried(self) -> tuple[str, ...]:
        """Everything that a backend asks, and back; the sentences of the ground."""
        wakeups = NotifyWakeups(self.plan)
        backend = Postgres(self.plan, self, self, wakeups)
        began = clock.now()
        try:
            finish(self.ask("BEGIN ISOLATION LEVEL READ COMMITTED"))
            finish(_play(backend))
            self._tell(
                "leases",
                GOOD,
                "taken, waited for, renewed, broken and released again in "
                f"{(clock.now() - began) * 1000:.0f} ms, and rolled back",
            )
        except (Unreachable, AssertionError) as error:
            self._tell("leases", BAD, str(error) or "an answer was not what it has to be")
        finally:
            finish(self.ask("ROLLBACK"))
        if self.plan.pooled:
            self._tell(
                "waking",
                NOTE,
                "a pooler stands between, which hands on no calls: waiters "
                "look for themselves every 1 to 5 s",
            )
        else:
            heard = self._heard(wakeups.channel)
            self._tell(
                "waking",
                GOOD if heard else NOTE,
                "a call by NOTIFY was heard"
                if heard
                else "no call by NOTIFY came: waiters look for themselves",
            )
        try:
            return finish(backend.ground())
        except Unreachable as error:
            self._tell("ground", BAD, str(error))
            return ()

    def _heard(self, channel: str) -> bool:
        finish(self.ask(f"LISTEN {channel}"))
        finish(self.ask("SELECT pg_notify($1, 'check')", (channel,)))
        return "check" in finish(self.line.calls(LIMIT))

    def _row(self, query: str, given: Sequence[object] = ()) -> tuple[Any, ...]:
        (row,) = finish(self.ask(query, given))
        return row

    async def ask(
        self,
        query: Any,
        given: Sequence[Any] = (),
        until: float = NEVER,
        *,
        first: bool = False,
    ) -> list[tuple[Any, ...]]:
        """One statement of the backend, on this one connection."""
        text, _ = (query, False) if isinstance(query, str) else query()
        try:
            return await self.line.ask(text, given, LIMIT)
        except wire.NoAnswer as error:
            raise Unreachable(f"no answer within {LIMIT:g} s") from error
        except (wire.QueryFailed, psycopg().Error) as error:
            raise Unreachable(said(error, self.plan.known)) from error


def _since(function: str) -> int:
    """The version that first had it, as its name says."""
    number = function.split("_")[1]
    return int(number) if number.isdigit() else 1


async def _play(backend: Any) -> None:
    """One lock from its first holder to its last."""
    me = process.here(NAME)
    one = Request(NAME, "one", 30.0, me)
    two = Request(NAME, "two", 30.0, me, wait=True, wakeup="lifehold_check")
    first = await backend.acquire(one)
    refused = await backend.acquire(two)
    assert hasattr(first, "token"), "a lock that nobody has was refused"
    assert not hasattr(refused, "token"), "a lock that is held was given away"
    _, kept = await backend.renew((Renewal(NAME, "one", 30.0),))
    assert kept == (True,), "a lease was not renewed"
    await backend.order(Order("keep", NAME, "", "", first.token, "left"))
    await backend.order(Order("forget", NAME, "", ""))
    await backend.order(Order("break", NAME, "a trial", "nobody"))
    second = await backend.acquire(two)
    assert getattr(second, "token", 0) > first.token, "a token did not grow"
    assert await backend.release(NAME, "two"), "a lease could not be released"
    assert len(await backend.look((NAME,))) == 1, "a name is not to be found again"
    _, kept = await backend.renew((Renewal(NAME, "two", 30.0, 1),))
    assert kept == (False,), "a lease that was released was renewed"


# ------------------------------------------------------------------------------------------------
# The tables of a store in PostgreSQL as an operator makes them: by one call, or as SQL to review.
#
# Promise: a migration happens as a whole or not at all, beside those who work, and leaves alone
# what a newer version has made.


__all__ = ["check", "downgrade", "migrate", "script", "upgrade"]

MIGRATION_LIMIT = 60.0  # seconds for which the migration may wait for others
TURN = "SELECT pg_advisory_xact_lock(7811887393204924516)"  # as the schema itself
HOME = """SELECT (SELECT n.nspname::text FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n
    ON n.oid = c.relnamespace WHERE c.oid = to_regclass('lifehold_schema'))"""
WHERE = "SELECT to_regclass('lifehold_schema') IS NOT NULL"
THERE = "SELECT version, least FROM lifehold_schema"


def migrate(url: str, role: str = "") -> Migrated:
    """Make the tables and functions, or bring them up to this version.

    `role`: is granted what it needs. In one transaction, and again without harm. Raises
    InvalidArgument, Unreachable.
    """
    plan = PostgresUrl(url, MIGRATION_LIMIT, create=True)
    wanted = grants(role) if role else ()
    client, asked = psycopg(), {**plan.known, **({"user": role} if role else {})}
    try:
        connection = client.Connection.connect(**plan.known, autocommit=True)
    except client.Error as error:
        raise Unreachable(said(error, asked)) from error
    try:
        _run(connection, "BEGIN ISOLATION LEVEL READ COMMITTED")
        _run(connection, f"SET LOCAL lock_timeout = '{MIGRATION_LIMIT:g}s'")
        _run(connection, TURN)  # of several migrations each sees what the one before it did
        ((home,),) = _run(connection, HOME)
        finish(plan.trust(connection, home))
        _run(connection, plan.words(home))
        before = _version(connection, plan)
        if before <= VERSION:
            _run(connection, SCHEMA)
        for text in wanted:
            _run(connection, text)
        after = _version(connection, plan)
        _run(connection, "COMMIT")
    except wire.NoAnswer as error:
        raise Unreachable(
            f"{place(plan.known)}: it does not answer any more. Try again: what was done "
            "already does no harm"
        ) from error
    except (client.Error, wire.QueryFailed) as error:
        raise Unreachable(said(error, asked)) from error
    except BaseException:  # interrupted: its wait for a lock would keep all others waiting
        try:
            connection.cancel_safe(timeout=wire.MOMENT)
        except Exception:  # noqa: BLE001, S110 - it does not answer, or has gone
            pass
        raise
    finally:
        connection.pgconn.finish()  # whatever it was in the middle of is rolled back
    return Migrated(plan.url, before, after)


def _run(connection: object, text: str) -> list[tuple[Any, ...]]:
    """The rows of the last of some statements, each of which may wait for a lock once."""
    return finish(rows(connection, text, clock.now() + MIGRATION_LIMIT + LIMIT))


def _version(connection: object, plan: PostgresUrl) -> int:
    """Of the tables that are there, 0 for none."""
    ((there,),) = _run(connection, WHERE)
    found = _run(connection, THERE) if there else []
    if not found:
        return 0
    version, least = found[0]
    if least > VERSION:
        raise Unreachable(
            f"{place(plan.known)}: its schema is of version {version}, which this version would "
            "spoil: use a newer lifehold here"
        )
    return int(version)
