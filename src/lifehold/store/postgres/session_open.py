"""How a session is opened, and kept for the next lock.

Promise: what is handed out is a session of a primary's own, past every pooler that shows itself; a
silent peer is given up by both sides: by the server `ttl` seconds after the last sign of us at the
earliest (TCP keepalive and `tcp_user_timeout`, set for this session), by us before that.
No limit of the role or database ends a session while it waits or holds.

How it could fail. PgBouncer gives every client a number of its own in place of the server's
process, whatever its pool mode: so it is noticed, and its modes are not told apart. Session pooling
would do, but frees a dead holder's lock only by its `server_reset_query`; all of it is refused. A
pooler that passes the number on is found by the next heartbeat, which asks for the process again. A
server that is no Linux gives a silent peer up by keepalive alone.
"""

from __future__ import annotations

import _thread
from math import ceil

from ...core.errors import UnsafeGround
from ...core.storage import Unreachable
from ...runtime import clock, fork, heartbeat, process, socket_thread
from ...runtime.blocking import finish
from . import session_sql as sql
from . import session_wire as wire
from .arrival import opened
from .link import drop, told
from .open import OWN, SOON, psycopg, quoted
from .sql import SCHEMA
from .tables import VERSION
from .wire import Failed, Line
from .words import migrate_command, place, said

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from .open import Plan
    from .session_wire import Session

IDLE_MOST = 2  # sessions kept open for the next lock
# Nothing is set behind a pooler: the connection of the server is others' too.
SET_UP = """
WITH wanted (name, value) AS (VALUES {wanted})
SELECT pg_backend_pid(), pg_is_in_recovery(), {there}, (SELECT n.nspname::text
        FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE c.oid = to_regclass('lifehold_schema')),
    (SELECT count(set_config(w.name, w.value, false)) FROM wanted w JOIN pg_settings s
        ON s.name = w.name WHERE s.setting <> w.value AND pg_backend_pid() = {number})
"""
CHECKED = "SELECT set_config('client_connection_check_interval', '{}', false)"
IN_TIME = "SELECT set_config('statement_timeout', '10s', true);"
POOLED = (
    "{where}: a pooler such as PgBouncer stands between, and a session lock would be held by "
    "whoever gets the server's connection next (transaction pooling); session pooling cannot be "
    "told apart from here. Connect to the server itself, past the pooler: "
    "connect('postgresql://SERVER:5432/...'). Or take a lease, which needs no session: the same "
    "lock without kind='session'"
)


def settings(ttl: float, slice_ms: int) -> dict[str, str]:
    """What a session is told. Those that this server does not know are left out."""
    return {
        "statement_timeout": "0",
        "transaction_timeout": "0",
        "idle_session_timeout": "0",
        "idle_in_transaction_session_timeout": "0",
        "default_transaction_isolation": "read committed",
        "lock_timeout": str(slice_ms),
        "tcp_keepalives_idle": str(ceil(ttl / 2)),
        "tcp_keepalives_interval": str(ceil(ttl / 6)),
        "tcp_keepalives_count": "3",
        "tcp_user_timeout": str(ceil(ttl * 1000)),
    }


def our_side(ttl: float) -> dict[str, str]:
    """The same for our end of the connection."""
    return {
        "keepalives_idle": str(ceil(ttl / 2)),
        "keepalives_interval": str(ceil(ttl / 6)),
        "tcp_user_timeout": str(ceil(ttl * 1000)),
    }


class Sessions:
    """The sessions of one store. `bare`: why its grants have no token, "" when they have."""

    slice = 5.0  # seconds of one wait at the server: who waits longer stands in line anew
    linger = 10.0  # seconds for which a session stays open for the next lock

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.limit = plan.limit
        self.bare = ""
        self._fits = False  # whether the version of the tables was looked at
        self._begin()

    def _begin(self) -> None:
        self._mutex = _thread.RLock()
        self._idle: list[tuple[float, Session]] = []  # since when
        self._swept = True
        self._generation = fork.here()

    def idle(self, ttl: float) -> Session | None:
        """One that is open already."""
        if self._generation != fork.here():
            self._begin()
        while True:
            with self._mutex:
                found = [each for each in self._idle if each[1].ttl == ttl]
                if not found:
                    return None
                self._idle.remove(found[-1])
            session = found[-1][1]
            if session.look() is None:
                return session

    def back(self, session: Session) -> None:
        """It holds nothing, and may serve the next lock for a while."""
        session.on_end = None
        with self._mutex:
            full = len(self._idle) >= IDLE_MOST
            if session.dead is None and not full and session.generation == fork.generation:
                self._idle.append((clock.now(), session))
                if self._swept:
                    self._sweep_at(clock.now() + self.linger)
                return
        session.end("it was not needed any more")

    def _sweep_at(self, instant: float) -> None:
        try:
            heartbeat.at(instant, lambda: heartbeat.apart(self._sweep))
            self._swept = False
        except RuntimeError:
            pass  # no thread: they stay for the next lock

    def _sweep(self) -> None:
        with self._mutex:
            over = [each for each in self._idle if each[0] + self.linger <= clock.now()]
            self._idle = [each for each in self._idle if each not in over]
            self._swept = True
            if self._idle:
                self._sweep_at(self._idle[0][0] + self.linger)
        for _, session in over:
            session.end("it was not needed any more")

    def close(self) -> None:
        """End those that hold nothing."""
        with self._mutex:
            idle, self._idle = self._idle, []
        for _, session in idle:
            session.end("it was not needed any more")

    # ---- opening

    def opened(self, ttl: float) -> Session:
        """A new one; may block. Raises UnsafeGround behind a pooler, Unreachable."""
        client = psycopg()
        known = {**self.plan.known, "client_encoding": "UTF8"}
        for name, value in our_side(ttl).items():  # unless the URL says otherwise
            if known.get(name) == OWN[name]:
                known[name] = value
        try:
            connection = finish(
                opened(
                    client.Connection, **known, autocommit=True,
                    cursor_factory=client.ClientCursor, prepare_threshold=None,
                )
            )  # fmt: skip
        except client.Error as error:
            raise Unreachable(said(error, known)) from error
        try:
            session = self._set_up(Line(connection), ttl)
            socket_thread.listen(session)
            return session
        except Exception as error:
            drop(connection)
            if isinstance(error, RuntimeError):
                raise Unreachable(f"no thread to be had ({error}): raise ulimit -u") from error
            if not hasattr(error, "sqlstate"):
                raise
            raise Unreachable(str(told(error, known, self.limit))) from error
        except BaseException:
            drop(connection)
            raise

    def _set_up(self, line: Line, ttl: float) -> Session:
        slice_ms, number = int(self.slice * 1000), line.connection.info.backend_pid
        wanted = settings(ttl, slice_ms)
        if not self.plan.named:
            me = process.here()
            wanted["application_name"] = f"lifehold pid {me.pid} on {me.host or '?'}"[:63]
        given = [each for pair in wanted.items() for each in pair]
        places = ", ".join(f"(${at}, ${at + 1})" for at in range(1, len(given), 2))
        text = SET_UP.format(there=sql.THERE, wanted=places, number=number)
        pid, replica, tabled, store, _ = self._row(line, text, given)
        where = place(self.plan.known)
        if pid != number:
            self.plan.pooled = True
            raise UnsafeGround(POOLED.format(where=where), name=self.plan.url)
        if replica:
            raise Unreachable(
                f"{where}: it is a replica, whose advisory locks keep nobody out of the primary: "
                "name the primary, or all hosts with target_session_attrs=read-write"
            )
        if line.connection.info.server_version >= 140000:  # notice a waiter whose host is gone
            try:
                self._row(line, CHECKED.format(slice_ms))
            except Failed:
                pass  # a server on Windows cannot
        if not self._fits and (store or self.plan.create is not False):
            finish(self.plan.trust(line.connection, store))  # L13
        if store:  # ours alone: what it calls by name is found there, and nowhere else
            self._row(line, "SELECT set_config('search_path', $1, false)",
                      (f"{quoted(store)}, pg_temp",))  # fmt: skip
        if store and not self._fits:
            self._check(line)
        if not tabled:
            tabled = self._make_table(line.connection, sql.TABLE if store else SCHEMA)
        self._fits = True
        return wire.Session(line.connection, pid, ttl, tabled)

    def _row(self, line: Line, text: str, given: Sequence[str] = ()) -> tuple[Any, ...]:
        (row,) = finish(line.ask(text, given, self.limit))
        return row

    def _check(self, line: Line) -> None:
        """L12  Raises Unreachable for tables that this version would spoil."""
        (least,) = self._row(line, "SELECT max(least) FROM lifehold_schema")
        if (least or 0) > VERSION:
            raise Unreachable(
                f"{place(self.plan.known)}: its schema is for clients of version {least} and "
                f"newer, and this one is of version {VERSION}: use a newer lifehold here"
            )

    def _make_table(self, connection: Any, schema: str) -> bool:
        """Whether it is there now. Without it a session lock excludes all the same."""
        if self.plan.create is False:
            command = migrate_command(self.plan.known)
            self.bare = f"its table is not there, and create=False. This makes it: {command}"
            return False
        try:
            connection.execute(IN_TIME + SOON + self.plan.words(None) + schema)
        except psycopg().Error as error:
            if connection.closed:
                raise
            self.bare = f"its table is not there: {said(error, self.plan.known)}"
            return False
        self.bare = ""
        return True
