"""The tables of a store in PostgreSQL as an operator makes them: by one call, or as SQL to review.

Promise: a migration happens as a whole or not at all, beside those who work, and leaves alone what
a newer version has made.
"""

from __future__ import annotations

from ...core.storage import Unreachable
from ...runtime.blocking import finish
from ..upkeep import Migrated
from .check import check
from .open import Plan, psycopg
from .script import downgrade, grants, script, upgrade
from .sql import SCHEMA
from .tables import VERSION
from .words import place, said

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["check", "downgrade", "migrate", "script", "upgrade"]

LIMIT = 60.0  # seconds for the migration, which may wait for others
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
    plan = Plan(url, LIMIT, create=True)
    wanted = grants(role) if role else ()
    client = psycopg()
    try:
        with client.Connection.connect(**plan.known) as connection:
            connection.isolation_level = client.IsolationLevel.READ_COMMITTED
            connection.execute(f"SET LOCAL lock_timeout = '{LIMIT:g}s'")
            connection.execute(TURN)  # of several migrations each sees what the one before it did
            ((home,),) = connection.execute(HOME).fetchall()
            finish(plan.trust(connection, home))
            connection.execute(plan.words(home))
            before = _version(connection, plan)
            if before <= VERSION:
                connection.execute(SCHEMA)
            for text in wanted:
                connection.execute(text)
            after = _version(connection, plan)
    except client.Error as error:
        asked = {**plan.known, **({"user": role} if role else {})}
        raise Unreachable(said(error, asked)) from error
    return Migrated(plan.url, before, after)


def _version(connection: Any, plan: Plan) -> int:
    """Of the tables that are there, 0 for none."""
    ((there,),) = connection.execute(WHERE).fetchall()
    found = connection.execute(THERE).fetchone() if there else None
    if found is None:
        return 0
    version, least = found
    if least > VERSION:
        raise Unreachable(
            f"{place(plan.known)}: its schema is of version {version}, which this version would "
            "spoil: use a newer lifehold here"
        )
    return int(version)
