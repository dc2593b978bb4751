"""The rows of the command that keeps a store in order."""

from __future__ import annotations

from .row import Command, Option, duration

STORE_COMMAND = Command(
    "store", "lifehold store migrate|check|prune [OPTION]... [URL]",
    "Make, check and prune the tables of a store of leases.",
    """\
  lifehold store check postgresql://app@db/shop    what works there, what lacks
  lifehold store migrate --grant app postgresql://owner@db/shop
  lifehold store migrate --sql --grant app | less  the same as SQL, to review
  lifehold store prune --older-than 30d sqlite:////var/lib/locks.db""",
    (
        Option("sql", ("--sql",), "migrate: print the SQL and ask no server; without URL\n"
               "that of PostgreSQL", default=False),
        Option("grant", ("--grant",), "migrate: give the role ROLE what it needs, and no more",
               "ROLE"),
        Option("older_than", ("--older-than",), "prune: forget names that nobody has used for so\n"
               "long: seconds, or 30m, 12h, 90d", "TIME", duration),
        Option("json", ("--json",), "answer in JSON, schema lifehold.store-migrate/1,\n"
               "lifehold.store-check/1 or lifehold.store-prune/1", default=False),
    ),
    (("act", None), ("url", "?")),
    """\
migrate makes tables and functions, or brings them up to this version, in one
transaction; it may be run again, and beside those who hold leases. check
changes nothing: it takes, renews, breaks and releases a lease in a transaction
that is rolled back, and looks at rights, versions, pooler, standbys and clock.
prune leaves alone what is held, waited for, or has a token above the clock.

Exit codes: 0 done, or leases can be kept there; 1 they cannot as it is; 64
usage, 69 the store was not reached, or refused; of a file also 65, 71 and 78.""",
)  # fmt: skip
