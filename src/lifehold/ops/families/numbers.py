"""Families that name a process by number: pid files, mail locks, X servers, modems, filelock."""

from __future__ import annotations

import os
import sys

from ...core import explain
from ...core.owner import INITIAL_PID_NAMESPACE
from ...core.value import replace
from ...runtime import process
from ..foreign_verdict import MOST, Family, LockPath, StatedHolder, listed, number, read, together

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

NOBODY = "it names nobody: its tools take it when nobody has touched it for 5 minutes"
UNSEEN = "its tools do not keep it open: who holds it cannot be seen"
BY_AGE = "lifehold dotlockfile -l -r -1 {0} && lifehold dotlockfile -u {0}"
LONGEST, BINARY = 64, 4  # bytes of a number with white space, and of an int
DATA = "all it says is a process number, and its name is not one of a pid file: it may be data"
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
    """A number as text, and behind it what minicom and others add; or as an int of the machine."""
    if not sight.name.startswith("LCK..") or not sight.is_file or not sight.found.st_size:
        return None
    size, pid = sight.found.st_size, None
    if size == BINARY and 0 in sight.content:  # as in each number of a process; never in a text
        pid = number(str(int.from_bytes(sight.content, sys.byteorder)))
    elif size <= LONGEST:
        pid = number((sight.text.partition("\n")[0].split() or [""])[0])
    return StatedHolder(pid, words="" if pid else "what it says cannot be read")


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


# ------------------------------------------------------------------------------------------------
# Families of Python's lock libraries: filelock's soft classes, flufl.lock.
#
# filelock writes the host with the PID namespace when that is not the first one of its kernel, and
# the begin of the process as boot id and clock ticks.


STRICT = b"1\nfilelock-strict-v1\0\n0\n"
RELEASED = b"filelock/released\n"
KEPT = "its claim stands in a folder beside it: force_break() of filelock clears that"
BY_LEASE = "who wants it next drops a holder that was silent for its lease"
MARK = "?pidns-"
LOW = (1 << 64) - 1
LONGEST_SOFT = 1024


def _identity(pid: int | None, host: str, start: str | None) -> StatedHolder | None:
    """Of a record's number, host and begin."""
    if pid is None or not host:
        return None
    name, mark, space = host.partition(MARK)
    try:
        pid_ns = int(space, 16) if mark else None
    except ValueError:
        return None
    boot = ticks = None
    if start and start.isdigit() and len(start) < 60:
        told = int(start)
        ticks = told & LOW
        shown = f"{told >> 64:032x}"
        if told >> 64 and len(shown) == 32:
            boot = f"{shown[:8]}-{shown[8:12]}-{shown[12:16]}-{shown[16:20]}-{shown[20:]}"
    return StatedHolder(pid, host=name, pid_ns=pid_ns, boot=boot, ticks=ticks if boot else None)


def _taken_over(claim: StatedHolder | None) -> StatedHolder | None:
    """A claim whose holder's death filelock proves itself: not from another PID namespace."""
    if claim is None or (claim.pid_ns or INITIAL_PID_NAMESPACE) != process.namespace("pid"):
        return claim
    return replace(claim, takes_over=True)


def _soft(sight: LockPath) -> StatedHolder | None:
    if sight.content == RELEASED:
        return StatedHolder(frees=True)
    lines = sight.text.strip().splitlines()
    if (
        len(sight.content) > LONGEST_SOFT
        or len(lines) not in (2, 3)
        or not sight.text.endswith("\n")
    ):
        return None
    start = lines[2].strip() if len(lines) == 3 else None
    if start is not None and not start.isdigit():
        return None
    if not lines[1].isprintable() or " " in lines[1] or "/" in lines[1]:
        return None
    return _taken_over(_identity(number(lines[0], 1 << 31), lines[1], start))


def _keys(text: str) -> dict[str, str]:
    pairs = (line.partition("=") for line in text.splitlines()[1:])
    return {key: told for key, _, told in pairs}


def _marker(mode: str) -> Callable[[LockPath], StatedHolder | None]:
    def read_it(sight: LockPath) -> StatedHolder | None:
        if not sight.content.startswith(b"filelock/2\n"):
            return None
        keys = _keys(sight.text)
        if keys.get("mode") != mode:
            return None
        pid = number(keys.get("pid", ""), 1 << 31)
        return _taken_over(_identity(pid, keys.get("host", ""), keys.get("start")))

    return read_it


def _strict(sight: LockPath) -> StatedHolder | None:
    """The file never goes; who holds it stands in a folder beside it."""
    if sight.content != STRICT:
        return None
    folder = f"{sight.path}.filelock/claims"
    held = [name for name in listed(folder) if name.startswith("held-v1-")]
    if not held:
        return StatedHolder(frees=True)
    lines = read(f"{folder}/{held[0]}", LONGEST_SOFT).decode(errors="replace").splitlines()
    words = f"claim {held[0]}"
    if len(lines) < 5 or lines[0] != "filelock-strict-v1":
        return StatedHolder(words=words, kept=KEPT)
    try:
        host = bytes.fromhex(lines[3]).decode()
    except ValueError:
        host = lines[3]
    found = _identity(number(lines[2], 1 << 31), host, lines[4])
    return StatedHolder(words=words, kept=KEPT) if found is None else replace(found, kept=KEPT)


def _shared(sight: LockPath) -> StatedHolder | None:
    """The folder of a SoftReadWriteLock: who reads or writes has a file in `holders`."""
    if not sight.is_folder or not {"gen", "holders"} <= set(sight.names):
        return None
    names = listed(f"{sight.path}/holders")
    found = []
    for name in names:
        if name[:1] == ".":
            continue
        keys = _keys(read(f"{sight.path}/holders/{name}", LONGEST_SOFT).decode(errors="replace"))
        one = _identity(number(keys.get("pid", ""), 1 << 31), keys.get("host", ""), None)
        found.append(one or StatedHolder(words=f"holder {name} cannot be read"))
    if len(names) >= MOST:
        found.append(StatedHolder(words="there are more holders than were looked at"))
    return together(replace(each, kept=BY_LEASE) for each in found)


def _flufl(sight: LockPath) -> StatedHolder | None:
    """`claim file|host|pid|random`, hard linked to the claim file; its time is its expiry."""
    parts = sight.text.strip().split("|")
    if len(parts) != 4 or not parts[3].isdigit() or "\n" in sight.text.strip():
        return None
    pid = number(parts[2])
    return None if pid is None or not parts[1] else StatedHolder(pid, host=parts[1])


FILELOCKS = (
    Family(
        "filelock-marker", "filelock's MarkerSoftFileLock", _marker("exclusive"), also_locks=False
    ),
    Family("filelock-lease", "filelock's SoftFileLease", _marker("lease"), also_locks=False),
    Family("filelock-strict", "filelock's StrictSoftFileLock", _strict, also_locks=False),
    Family("filelock-rw", "filelock's SoftReadWriteLock", _shared, also_locks=False),
    Family("flufl", "a lock of flufl.lock", _flufl, also_locks=False),
    Family("filelock-soft", "filelock's SoftFileLock", _soft, also_locks=False),
)
