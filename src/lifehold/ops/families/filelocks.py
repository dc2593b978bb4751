"""Families of Python's lock libraries: filelock's soft classes, flufl.lock.

filelock writes the host with the PID namespace when that is not the first one of its kernel, and
the begin of the process as boot id and clock ticks.
"""

from __future__ import annotations

from ...core.owner import INITIAL_PID_NAMESPACE
from ...core.value import replace
from ...runtime import process
from ..foreign_verdict import Family, LockPath, StatedHolder, listed, number, read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

STRICT = b"1\nfilelock-strict-v1\0\n0\n"
RELEASED = b"filelock/released\n"
KEPT = "its claim stands in a folder beside it: force_break() of filelock clears that"
MARK = "?pidns-"
LOW = (1 << 64) - 1
LONGEST = 1024


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
    if len(sight.content) > LONGEST or len(lines) not in (2, 3) or not sight.text.endswith("\n"):
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
    lines = read(f"{folder}/{held[0]}", LONGEST).decode(errors="replace").splitlines()
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
    holders = [name for name in listed(f"{sight.path}/holders") if name[:1] != "."]
    for name in holders:
        keys = _keys(read(f"{sight.path}/holders/{name}", LONGEST).decode(errors="replace"))
        found = _identity(number(keys.get("pid", ""), 1 << 31), keys.get("host", ""), None)
        if found is not None:
            return found
    return (
        StatedHolder(words=f"{len(holders)} holders cannot be read")
        if holders
        else StatedHolder(frees=True)
    )


def _flufl(sight: LockPath) -> StatedHolder | None:
    """`claim file|host|pid|random`, hard linked to the claim file; its time is its expiry."""
    parts = sight.text.strip().split("|")
    if len(parts) != 4 or not parts[3].isdigit() or "\n" in sight.text.strip():
        return None
    pid = number(parts[2])
    return None if pid is None or not parts[1] else StatedHolder(pid, host=parts[1])


FAMILIES = (
    Family(
        "filelock-marker", "filelock's MarkerSoftFileLock", _marker("exclusive"), also_locks=False
    ),
    Family("filelock-lease", "filelock's SoftFileLease", _marker("lease"), also_locks=False),
    Family("filelock-strict", "filelock's StrictSoftFileLock", _strict, also_locks=False),
    Family("filelock-rw", "filelock's SoftReadWriteLock", _shared, also_locks=False),
    Family("flufl", "a lock of flufl.lock", _flufl, also_locks=False),
    Family("filelock-soft", "filelock's SoftFileLock", _soft, also_locks=False),
)
