"""The rows of the command that keeps a store in order."""

from __future__ import annotations

from .row import Command, Option

STORE_COMMAND = Command(
    "store", "lifehold store migrate|check [--sql] [--grant ROLE] [--json] [URL]",
    "Make the tables of a store; say whether leases can be kept in it.",
    """\
  lifehold store check postgresql://app@db/shop    what works there, what lacks
  lifehold store migrate --grant app postgresql://owner@db/shop
  lifehold store migrate --sql --grant app | less  the same as SQL, to review""",
    (
        Option("sql", ("--sql",), "migrate: print the SQL and ask no server; without URL that of\n"
               "PostgreSQL", default=False),
        Option("grant", ("--grant",), "migrate: give the role ROLE what it needs, and no more",
               "ROLE"),
        Option("json", ("--json",), "answer in JSON, schema lifehold.store-migrate/1 or\n"
               "lifehold.store-check/1", default=False),
    ),
    (("act", None), ("url", "?")),
    """\
migrate makes tables and functions, or brings them up to this version, in one
transaction; it may be run again, and beside those who hold leases. check
changes nothing: it takes, renews, breaks and releases a lease in a transaction
that is rolled back, and looks at rights, versions, pooler, standbys and clock.

Exit codes: 0 done, or leases can be kept there; 1 they cannot as it is; 64
usage, 69 the store was not reached, or refused; of a file also 65, 71 and 78.""",
)  # fmt: skip
