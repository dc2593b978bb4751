"""The schema of a store in PostgreSQL as SQL: single statements, and one text to be reviewed.

Promise: what makes the tables may be run again, beside those who work with them, and takes nothing
away. A role that is granted RIGHTS and owns nothing can do all that leases need.
"""

from __future__ import annotations

from ...core.errors import InvalidArgument
from .sql import SCHEMA, VERSION

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
