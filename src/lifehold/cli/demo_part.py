"""The other processes of `lifehold demo`: `python -m lifehold.cli.demo_part ROLE ...`.

holder PATH                   takes the lock and works until its input ends
writer PATH DATABASE AMOUNT   takes the lock; at a line of input writes AMOUNT, guarded by its token
run SECONDS WORDS...          `lifehold WORDS`, told after SECONDS who holds the lock (for --fast)
"""

from __future__ import annotations

import sys

from ..core.errors import LifeholdError
from ..core.fence import admit
from ..lock import Lock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

GUARD = "update account set balance = :amount, token = :token where id = 1 and token <= :token"


def holder(path: str) -> int:
    """Scenes 1 to 3."""
    with Lock(path) as lease:
        print(lease.token, flush=True)
        sys.stdin.read()
    return 0


def writer(path: str, database: str, amount: str) -> int:
    """Scene 4: what every program should do whose data can remember a token."""
    import sqlite3

    with Lock(path) as lease:
        print(lease.token, flush=True)
        sys.stdin.readline()
        rows = sqlite3.connect(database, isolation_level=None)
        changed = rows.execute(GUARD, {"amount": amount, "token": lease.token}).rowcount
        print(changed, flush=True)
        try:
            admit(lease.name, lease.token, rows.execute("select token from account").fetchone()[0])
            lease.check()
        except LifeholdError as error:
            print(f"{type(error).__name__}: {error}", flush=True)
            try:
                lease.check()
            except LifeholdError as lost:
                print(f"{type(lost).__name__}: {lost}", flush=True)
                return 0
        print("check() is content", flush=True)
        sys.stdin.read()
    return 0


def run(seconds: str, *words: str) -> int:
    """The command, in less of a hurry to be slow."""
    from ..core import acquire
    from .main import main

    acquire.FIRST_NOTICE = float(seconds)
    sys.argv[1:] = words
    return main()


if __name__ == "__main__":
    role, *rest = sys.argv[1:]
    sys.orig_argv[:] = ["lifehold", "demo", role]
    roles: dict[str, Callable[..., int]] = {"holder": holder, "writer": writer, "run": run}
    sys.exit(roles[role](*rest))
