"""What became of the runs of a lock: a bounded history beside its file, one JSON object a line.

Promise: `append` adds one whole line or none, and never raises: no run fails because of its
history. `read` gives the oldest line first, and skips what is damaged or foreign. With N writers at
a time no line is lost, but by age.

Rule 1. A line is one write(2) of at most PIPE_BUF bytes on a descriptor opened with O_APPEND, so
lines of several writers do not mix.
Rule 2. Who finds the file full renames it to `.1`, over the older one, while holding the flock of
the very inode it found full, and only while the path still leads to that inode (as L3): of two that
find it full one renames. A line written into a renamed file stands in `.1`.
Rule 3. It is 0600; 0666 where the lock is for all users (L7). Links, FIFOs and devices are left
alone, and so is another user's file where the history must be our own (the log of `clear`). Where
we may write into the file but not rename it, it is emptied at twice its size.
"""

from __future__ import annotations

import os
import stat

from ..core.errors import SystemRefused
from ..core.mask import printable
from ..core.value import as_dict, value
from ..local import lock_names
from ..local.files import HOST, LOCK_EX, LOCK_NB
from ..local.handles import files_for
from ..runtime import clock, fork

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..runtime import rights
else:
    rights = fork.later("lifehold.runtime.rights", globals())

try:
    from _json import encode_basestring_ascii as quoted
except ImportError:
    from json.encoder import encode_basestring_ascii as quoted

VERSION = 1
LIMIT = 64 * 1024  # bytes of a file after which it is renamed; two are kept
LINE = 4096  # bytes, PIPE_BUF of Linux
NAME_MAX = 255
HEAD = '{"history":'
OLDER = ".1"
TRIES = 10  # of a reader, while the file is renamed under it
HOLD, SKIP, TIMEOUT, LOSS, TAKEOVER = "hold", "skip", "timeout", "loss", "takeover"
CLEAR, KEPT = "clear", "kept"  # of a lock, by `lifehold clear`; it could not be, after all
EVENTS = (HOLD, SKIP, TIMEOUT, LOSS, TAKEOVER, CLEAR, KEPT)
TEXTS = ("label", "reason", "holder", "command")  # left out when they are empty
LONG = (*TEXTS, "name")
AHEAD = 60.0  # seconds that the clock of another host may be ahead of ours
ROOM = 600  # characters of JSON that each of them may take when the line would be too long


@value
class HistoryEntry:
    """One end of a run, or the lock of a dead holder that a run took over.

    `event`: "hold" (it ran and ended), "skip" (held, and no wait was wanted), "timeout" (held for
    as long as it waited), "loss" (the lock was lost, or its max hold ended, while it ran),
    "takeover" (the run goes on; `reason`: the proof that `holder` was dead).
    `at`: UTC seconds of that; `waited`, `held`: seconds; `code`: the exit code of lifehold;
    `token`, `nonce`: of the grant; `pid`, `user`, `host`, `command` (masked, L11), `label`: of the
    run; `holder`: who stood in the way, in words, with `holder_pid` and `holder_since`.
    """

    event: str
    name: str
    at: float
    code: int | None = None
    waited: float = 0.0
    held: float | None = None
    token: int | None = None
    nonce: str | None = None
    pid: int | None = None
    user: str | None = None
    host: str | None = None
    command: str = ""
    label: str = ""
    reason: str = ""
    holder: str = ""
    holder_pid: int | None = None
    holder_since: float | None = None


def path_of(lock: str) -> str:
    """The history of the lock file at `lock`: hidden, in the same folder."""
    folder, name = os.path.split(lock)
    if lock_names.is_store(lock):  # a store keeps no runs: those of this host stand here
        folder = lock_names.candidates()[0]
        name = "".join(c if c.isalnum() or c in "-._" else f"%{ord(c):X}" for c in lock)
    longest = NAME_MAX - len("..history") - len(OLDER)
    encoded = os.fsencode(name)
    if len(encoded) > longest:
        from binascii import crc32

        name = f"{os.fsdecode(encoded[: longest - 9])}-{crc32(encoded):08x}"
    return os.path.join(folder, f".{name}.history")


def append(lock: str, entry: HistoryEntry, *, shared: bool = False, own: bool = False) -> bool:
    """Add a line to the history of the lock file at `lock`; whether it is there.

    `own`: into a file of our own alone, never into one that another user has made.
    """
    path = path_of(lock)
    try:
        line = line_of(entry)
        fd = _open(path, 0o666 if shared else 0o600, own=own)
        try:
            if os.write(fd, line) != len(line):
                os.write(fd, b"\n")  # a full disk: what comes later begins on a line of its own
                return False
            size = os.fstat(fd).st_size
            if size > LIMIT:
                _rotate(path, fd, size)
        finally:
            os.close(fd)
    except OSError:
        return False
    return True


def read(lock: str) -> list[HistoryEntry]:
    """The ends of its runs, the oldest first; [] for a lock without a history.

    `lock`: path of the lock file. Raises OSError where the history must not be read.
    """
    found = []
    for line in _content(path_of(lock)).split(b"\n"):
        entry = entry_of(line)
        if entry is not None:
            found.append(entry)
    return found


def merged(*files: list[HistoryEntry]) -> list[HistoryEntry]:
    """The entries of several histories by their time; those of one keep the order of its file.

    A clock may stand ahead, and whoever may write to a history may write any time into it. So a
    line that is ahead of our clock stands where the one before it in its file does.
    """
    latest = clock.utc_now() + AHEAD
    found = []
    for entries in files:
        placed = 0.0
        for entry in entries:
            if entry.at <= latest:
                placed = max(placed, entry.at)
            found.append((placed, entry))
    return [entry for _, entry in sorted(found, key=lambda each: each[0])]


# ---- a line


def line_of(entry: HistoryEntry) -> bytes:
    """One line, with its end."""
    line = _json(entry, LINE, LINE)
    if len(line) > LINE:
        line = _json(entry, ROOM, ROOM // 10)
    return line.encode()


def _json(entry: HistoryEntry, room: int, less: int) -> str:
    items = []
    for key, item in as_dict(entry).items():
        if item is None or (item == "" and key in TEXTS):
            continue
        if isinstance(item, str):
            shown = _clipped(printable(item), room if key in LONG else less)
        else:
            shown = f"{item:.3f}" if isinstance(item, float) else str(item)
        items.append(f',"{key}":{shown}')
    return f"{HEAD}{VERSION}{''.join(items)}}}\n"


def _clipped(text: str, room: int) -> str:
    shown = quoted(text)
    while len(shown) > room:
        text = text[: len(text) - max(1, (len(shown) - room) // 12)]
        shown = quoted(text + "...")
    return shown


def entry_of(line: bytes) -> HistoryEntry | None:
    """The entry of one line, None for what is none; of a newer version what we know of it (L12)."""
    start = line.rfind(HEAD.encode())  # after a line that was torn by a full disk
    if start < 0:
        return None
    import json

    try:
        given: dict[str, Any] = json.loads(line[start:])
    except (ValueError, RecursionError):
        return None
    kept: dict[str, Any] = {}
    for key in HistoryEntry.__match_args__:
        item = given.get(key)
        if item is None:
            continue
        if type(item) not in KINDS[key] or not _is_sane(key, item):
            return None
        kept[key] = printable(item[:LINE]) if isinstance(item, str) else item
    if not {"event", "name", "at"} <= kept.keys():
        return None
    return HistoryEntry(**kept)


def _is_sane(key: str, item: Any) -> bool:
    """Whether a number is one that can be shown and compared: no NaN, no infinity, no googol."""
    if isinstance(item, str):
        return True
    if key in ("waited", "held"):
        return bool(0 <= item < LATEST)
    return bool(0 <= item < (LATEST if key in ("at", "holder_since") else 1 << 64))


LATEST = 253_402_300_800  # UTC seconds: the end of the year 9999
NUMBER, WHOLE, TEXT = (int, float), (int,), (str,)
KINDS: dict[str, tuple[type, ...]] = {
    "at": NUMBER,
    "waited": NUMBER,
    "held": NUMBER,
    "holder_since": NUMBER,
    "code": WHOLE,
    "token": WHOLE,
    "pid": WHOLE,
    "holder_pid": WHOLE,
} | dict.fromkeys(
    ("event", "name", "nonce", "user", "host", "command", "label", "reason", "holder"), TEXT
)


# ---- the file

FLAGS = os.O_APPEND | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
FLAGS |= getattr(os, "O_NONBLOCK", 0)  # a FIFO must not hold us up


def _open(path: str, mode: int, *, own: bool = False) -> int:
    """The file, made when it is missing. Raises OSError, also for what is no plain file."""
    files = files_for(path)  # L13
    for _ in range(10):
        try:
            # Without O_CREAT: with it Linux refuses others' files in a sticky folder
            # (fs.protected_regular).
            return _plain(files.open(path, os.O_WRONLY | FLAGS), own=own)
        except FileNotFoundError:
            pass
        try:
            fd = files.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | FLAGS, mode)
        except FileExistsError:
            continue
        if mode == 0o666:
            os.fchmod(fd, mode)  # whatever the umask
        return fd
    raise FileNotFoundError(path)


def _plain(fd: int, *, own: bool) -> int:
    """`fd`, of a regular file with one name: a second name might be somebody's trap."""
    found = os.fstat(fd)
    ours = not own or os.name != "posix" or found.st_uid == os.geteuid()
    if stat.S_ISREG(found.st_mode) and found.st_nlink <= 1 and ours:
        return fd
    os.close(fd)
    raise OSError("not a plain file")


def _rotate(path: str, fd: int, size: int) -> None:
    """Rule 2, by the inode that `fd` has open."""
    try:
        HOST.flock(fd, LOCK_EX | LOCK_NB)
    except BlockingIOError:
        return  # somebody is at it
    files = files_for(path)  # L13
    if not os.path.samestat(os.fstat(fd), files.lstat(path)):
        return
    try:
        (os if files is HOST else files).rename(path, path + OLDER)
    except OSError:
        if size > 2 * LIMIT:
            os.ftruncate(fd, 0)


def _content(path: str) -> bytes:
    """Both files, the older one first.

    Where the path leads to another file afterwards it was renamed meanwhile, and the two need not
    be neighbours: they are read again.
    """
    content = b""
    for _ in range(TRIES):
        fds: list[int | None] = []
        try:
            fds += [_reader(path)]
            fds += [_reader(path + OLDER)]
            content = _bytes(fds[1]) + b"\n" + _bytes(fds[0])
            if _leads_to(path, fds[0]):
                break
        finally:
            for fd in fds:
                if fd is not None:
                    os.close(fd)
    return content


def _reader(path: str) -> int | None:
    try:
        return os.open(path, os.O_RDONLY | FLAGS & ~os.O_APPEND)
    except FileNotFoundError:
        return None


def _leads_to(path: str, fd: int | None) -> bool:
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return fd is None
    return fd is not None and os.path.samestat(found, os.fstat(fd))


def _bytes(fd: int | None) -> bytes:
    if fd is None or not stat.S_ISREG(os.fstat(fd).st_mode):
        return b""
    parts = []
    while part := os.read(fd, 1 << 16):
        parts.append(part)
        if len(parts) > 8 * LIMIT >> 16:
            break  # not ours: nothing of ours is so long
    return b"".join(parts)


# ------------------------------------------------------------------------------------------------
# The audit log of `lifehold clear`: the history of what was removed, whatever lock it was.


LOG = "cleared"  # beside the locks of plain names, hidden as a history is


def log_path() -> str:
    """What `history` calls the audit log; its folder is made. Raises SystemRefused."""
    folder = _log_folder()
    lock_names.make_folder(f"{folder}/{LOG}")
    os.makedirs(folder, exist_ok=True)
    return f"{folder}/{LOG}"


def _log_folder() -> str:
    """L13  The first folder where nobody else may make or swap the audit log of this user."""
    folders = lock_names.private_folders()
    if os.name != "posix":
        return folders[0]
    for folder in folders:
        try:
            if not rights.strangers(f"{folder}/{LOG}"):
                return folder
        except OSError:
            continue
    if os.geteuid() != 0:
        return folders[0]  # its file must be this user's: `own=True`
    raise SystemRefused(
        "there is no folder for the audit log which root alone may write to: nothing was removed. "
        f"Make one: install -d -m 755 {lock_names.MACHINE}",
    )


def logged() -> list[HistoryEntry]:
    """What was removed, the oldest first. Raises OSError."""
    files = []
    for folder in dict.fromkeys((_log_folder(), lock_names.candidates()[0])):
        lock = f"{folder}/{LOG}"
        try:
            known = os.lstat(path_of(lock))
        except FileNotFoundError:
            continue
        if os.name != "posix" or known.st_uid == os.geteuid():
            files.append(read(lock))
    return merged(*files)
