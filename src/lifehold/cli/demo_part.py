"""The other processes of `lifehold demo`: `python -m lifehold.cli.demo_part ROLE ...`.

holder PATH                   takes the lock and works until its input ends
writer PATH DATA AMOUNT       takes the lock; at a line of input writes AMOUNT, guarded by its token
run SECONDS WORDS...          `lifehold WORDS`, told after SECONDS who holds the lock (for --fast)
"""

from __future__ import annotations

import fcntl
import json
import os
import sys

from ..core.errors import LifeholdError
from ..core.fence import admit
from ..lock import Lock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def holder(path: str) -> int:
    """Scenes 1 and 2."""
    with Lock(path) as lease:
        print(lease.token, flush=True)
        sys.stdin.read()
    return 0


def guarded_write(path: str, name: str, balance: int, token: int) -> None:
    """Scene 3: what every program should do whose data can remember a token.

    The data keeps the token of who wrote it last, and refuses an older one. Raises StaleToken.
    """
    with open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # compare and write are one step
        content = file.read()
        admit(name, token, json.loads(content)["token"] if content else 0)
        file.seek(0)
        file.truncate()
        file.write(json.dumps({"balance": balance, "token": token}) + "\n")


def writer(path: str, data: str, balance: str) -> int:
    """Scene 3."""
    lease = Lock(path).acquire()
    print(lease.token, flush=True)
    sys.stdin.readline()
    try:
        assert lease.token is not None
        guarded_write(data, lease.name, int(balance), lease.token)
        print("written, under its token", flush=True)
    except LifeholdError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        try:
            lease.check()
        except LifeholdError as lost:
            print(f"{type(lost).__name__}: {lost}", flush=True)
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
