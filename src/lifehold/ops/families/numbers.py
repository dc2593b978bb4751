"""Families that name a bare process number: pid files of daemons, mail locks, X servers, modems."""

from __future__ import annotations

import os

from ...core import explain
from ..foreign_verdict import Family, LockPath, StatedHolder, number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

NOBODY = "it names nobody: its tools take it when nobody has touched it for 5 minutes"
UNSEEN = "its tools do not keep it open: who holds it cannot be seen"
BY_AGE = "lifehold dotlockfile -l -r -1 {0} && lifehold dotlockfile -u {0}"
LONGEST = 64  # bytes of a number with white space
DATA = "it is a number alone, and its name is not one of a pid file: it may be data"
# Folders in which a file NAME.lock is a lock, whether NAME stands beside it or not.
OF_LOCKS = frozenset({"lock", "locks", "run", "mail", "spool"})


def pid_of(sight: LockPath) -> int | None:
    """The one number that a file consists of."""
    if not sight.is_file or not 0 < sight.found.st_size <= LONGEST:
        return None
    return number(sight.content.strip(b" \t\r\n\0"))


def _doubt(path: str) -> str:
    """A number proves nothing but of a process: only a name tells that it is one.

    A program's data may be a number too: a port, a version, an object named by its own digest.
    """
    name = os.path.basename(path)
    return "" if name == "pid" or name.endswith(".pid") else DATA


def _doubt_of_dotlock(path: str) -> str:
    """FILE.lock locks FILE, which stands beside it; where locks lie it may stand elsewhere."""
    folder, name = os.path.split(path)
    if os.path.lexists(os.path.join(folder, name.rpartition(".")[0])):
        return ""
    return "" if OF_LOCKS & set(folder.split("/")) else DATA


def _named(
    names: tuple[str, ...], programs: tuple[str, ...]
) -> Callable[[LockPath], StatedHolder | None]:
    """Who reads a pid file that has one of these names."""

    def read(sight: LockPath) -> StatedHolder | None:
        if not any(sight.path.endswith(f"/{name}") for name in names):
            return None
        pid = pid_of(sight)
        return None if pid is None else StatedHolder(pid, programs=programs)

    return read


def _postgres(sight: LockPath) -> StatedHolder | None:
    """Eight lines: number, data folder, begin in UTC seconds, port, socket ...; of a socket five.

    Its children outlive a killed server and go on writing: while one of them works in the data
    folder, the lock is held.
    """
    lines = sight.text.split("\n")
    of_socket = sight.name.startswith(".s.PGSQL.") and sight.name.endswith(".lock")
    if not (of_socket or sight.name == "postmaster.pid"):
        return None
    if len(lines) < 3 or not lines[1].startswith("/"):
        return None
    pid, since = number(lines[0].lstrip("-")), lines[2].strip()
    if pid is None:
        return None
    return StatedHolder(
        pid,
        since=float(since) if since.isdigit() and len(since) < 12 else None,
        works_in=lines[1],
        programs=("postgres", "postmaster"),
        words=f"data {lines[1]}",
    )


def _x_server(sight: LockPath) -> StatedHolder | None:
    if not (sight.name.startswith(".X") and sight.name.endswith("-lock")):
        return None
    pid = pid_of(sight)
    return None if pid is None else StatedHolder(pid)


def _uucp(sight: LockPath) -> StatedHolder | None:
    pid = pid_of(sight) if sight.name.startswith("LCK..") else None
    return None if pid is None else StatedHolder(pid)


def _dotlock(sight: LockPath) -> StatedHolder | None:
    """As of dotlockfile(1): a number and a newline; 0 for a holder that is not named."""
    if not sight.is_file:
        return None
    name = sight.name.lower()
    writes = sight.found.st_mode & 0o222
    if (
        sight.content.strip(b" \t\r\n\0") == b"0"
        and writes
        and ("lock" in name or name.endswith((".lck", ".lk")))
    ):
        return StatedHolder(
            words=NOBODY, unseen=UNSEEN, waits=BY_AGE.format(explain.quote(sight.path))
        )
    if not sight.name.endswith((".lock", ".lck", ".lk")):
        return None
    pid = pid_of(sight) if sight.content.endswith(b"\n") else None
    if pid is None or sight.content[:1] == b" ":
        return None
    return StatedHolder(pid)


def _procmail(sight: LockPath) -> StatedHolder | None:
    """lockfile(1) and procmail: the digit 0 alone, read-only."""
    if sight.content != b"0" or sight.found.st_mode & 0o222:
        return None
    return StatedHolder(words="it never names its holder", unseen=UNSEEN)


def _zc(sight: LockPath) -> StatedHolder | None:
    """zc.lockfile: a blank and the number, under flock(2), without which it says nothing."""
    text = sight.content
    if text[:1] != b" " or not text.endswith(b"\n") or len(text) > LONGEST + 256:
        return None
    if number(text[1:].partition(b";")[0]) is None or os.path.basename(sight.path)[:1] == ".X":
        return None
    return None if sight.name.startswith("LCK..") else StatedHolder()


def _pid_file(sight: LockPath) -> StatedHolder | None:
    pid = pid_of(sight)
    return None if pid is None else StatedHolder(pid)


FAMILIES = (
    Family("postgres", "PostgreSQL's lock of its data or its socket", _postgres, also_locks=False),
    Family(
        "celery",
        "celery's pid file",
        _named(("celerybeat.pid", "celeryd.pid", "celery.pid"), ("celery",)),
        also_locks=False,
    ),
    Family(
        "gunicorn",
        "gunicorn's pid file",
        _named(("gunicorn.pid",), ("gunicorn",)),
        also_locks=False,
    ),
    Family(
        "rails",
        "a pid file of rails",
        _named(
            ("tmp/pids/server.pid", "pids/puma.pid", "pids/unicorn.pid"),
            ("rails", "puma", "unicorn", "unicorn_rails", "thin", "ruby"),
        ),
        also_locks=False,
    ),
    Family("x-server", "an X server's lock", _x_server, also_locks=False),
    Family("uucp", "a lock of a serial line", _uucp, also_locks=False),
    Family("zc.lockfile", "a file of zc.lockfile", _zc, kernel=True),
    Family("dotlockfile", "a lock of liblockfile's form", _dotlock, doubt=_doubt_of_dotlock),
    Family("procmail", "a lock of procmail's lockfile", _procmail, also_locks=False),
)
PID_FILE = Family("pidfile", "pid file", _pid_file, doubt=_doubt)
