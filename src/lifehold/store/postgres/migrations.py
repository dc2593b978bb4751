"""The tables of `postgresql://` stores in a migration of yours: Alembic, or any tool that runs SQL.

    from lifehold.stores import migrations

    def upgrade(): migrations.upgrade(grant="app")
    def downgrade(): migrations.downgrade()

Without a tool of your own none of this is needed: `lifehold store migrate URL` does the same.
"""

from __future__ import annotations

from ...core.errors import InvalidArgument
from ...runtime import fork

TYPE_CHECKING = False
if TYPE_CHECKING:
    from . import upkeep
else:
    upkeep = fork.later("lifehold.store.postgres.upkeep", globals())

OURS = (
    "lifehold_schema",
    "lifehold_lease",
    "lifehold_holder",
    "lifehold_owner",
    "lifehold_waiter",
    "lifehold_audit",
    "lifehold_kept",
    "lifehold_session",
)


def upgrade(grant: str = "") -> None:
    """In a revision of Alembic: make the tables and functions, or bring them up to this version.

    `grant`: a role that works with them and does not own them is given what it needs. Runs
    offline too (`alembic upgrade --sql`). Again without harm; so after an update of lifehold whose
    notes name a new schema, a new revision calls it once more. Raises InvalidArgument.
    """
    _run(upkeep.upgrade(grant))


def downgrade() -> None:
    """In a revision of Alembic: remove all of it, last tokens and audit too.

    While anybody holds a lease the program that holds it will be told that it is lost. When they
    are made anew, tokens go on by the clock of the server.
    """
    _run(upkeep.downgrade())


def sql(grant: str = "") -> str:
    """The migration as one text in one transaction, as `lifehold store migrate --sql` prints it."""
    return str(upkeep.script(grant))


def include_name(name: str | None, type_: str, parent_names: object = None) -> bool:
    """For `context.configure(include_name=...)`: autogenerate leaves these tables alone.

    They are not in your models, so it would propose to drop them.
    """
    return not (type_ == "table" and name in OURS)


def _run(statements: tuple[str, ...]) -> None:
    try:
        op = fork.lazily("alembic.op")
    except ImportError as error:
        raise InvalidArgument("this is for a revision of Alembic, which is not here") from error
    context = op.get_context()
    for text in statements:  # as they are: neither `:name` nor `%` is anything of SQLAlchemy's
        if context.as_sql:
            context.impl.static_output(f"{text};\n")
        else:
            op.get_bind().exec_driver_sql(text, execution_options={"no_parameters": True})
