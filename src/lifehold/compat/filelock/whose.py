r"""Who a soft lock's file names, and whether that process lives.

The file is "<pid>\n<host>\n<start>\n"; the last line may be missing. The host carries the PID
namespace when it is not the first one of its kernel; the start is the boot id in the high bits and
the clock ticks of the process's begin in the low 64. A line of one blank after that is lifehold's:
the holder keeps flock(2) on the file for as long as it lives, so that any process of the same
kernel, of whatever PID namespace, can prove its death. filelock reads over it.
Marker locks and leases of filelock are read too, so that a soft lock does not take one for refuse.

L2  Only a proof makes DEAD: a free witness, a process number that nobody has, or one that another
    process has by now. What names another host or namespace, or nobody, is UNKNOWN.
"""

from __future__ import annotations

import hashlib
import os
from typing import Any

from ...core.owner import ALIVE, DEAD, INITIAL_PID_NAMESPACE, UNKNOWN, Verdict
from ...core.value import value
from ...runtime import fork, process
from ...runtime.process import boot_id

LONGEST = 1024  # bytes of a readable file
LONGEST_HOST, DIGEST = 253, 8
TIME_NAMESPACE = 0xEFFFFFFA  # the first one of every kernel
LOW = (1 << 64) - 1
MARK = "?pidns-"
WITNESSED = b" \n"
STRICT = b"1\nfilelock-strict-v1\x00\n0\n"
RELEASED = b"filelock/released\n"
SECOND = b"filelock/2\n"  # of marker locks and leases, which name their process by keys
NOT_INITIAL = (None, INITIAL_PID_NAMESPACE)


@value
class Named:
    """What a file says: the process, its host, its begin, and whether it keeps a witness."""

    pid: int
    host: str
    start: int | None = None
    witness: bool = False


def read(content: bytes) -> Named | None:
    """Whom a file names; None when it cannot be read as a record."""
    if len(content) > LONGEST or not content.endswith(b"\n"):
        return None
    if content.startswith(SECOND):
        return by_keys(content)
    witness = content.endswith(b"\n" + WITNESSED)
    try:
        lines = content.decode().strip().splitlines()
    except UnicodeDecodeError:
        return None
    if len(lines) not in (2, 3) or not (numeral(lines[0]) and numeral(lines[-1], len(lines) == 3)):
        return None
    pid = int(lines[0])
    if not 0 < pid < 1 << 31:
        return None
    return Named(pid, lines[1], int(lines[2]) if len(lines) == 3 else None, witness)


def by_keys(content: bytes) -> Named | None:
    """Whom a marker lock or a lease names; None for a contract that is not known here."""
    marks: Any = fork.lazily("lifehold.compat.filelock.marks")
    found = marks.parse(content)
    if found is None or found.mode == "unknown":
        return None
    witness = content.endswith(b"\n" + marks.WITNESS.encode())
    return Named(found.pid, found.hostname, found.start, witness)


def of_later(content: bytes) -> bool:
    """Whether it is a record of a contract that is not known here: nobody may break that."""
    if not content.startswith(SECOND):
        return False
    marks: Any = fork.lazily("lifehold.compat.filelock.marks")
    found = marks.parse(content)
    return found is not None and found.mode == "unknown"


def numeral(text: str, needed: bool = True) -> bool:
    return not needed or (text.isascii() and text.isdigit() and len(text) < 80)


def host_name() -> str:
    """This host, as such files name it."""
    namespace = process.namespace("pid")
    return spelled(os.uname().nodename, namespace)


def spelled(node: str, namespace: int | None) -> str:
    name = "".join(
        chr(byte) if 0x21 <= byte < 0x7F and byte != 0x3F else f"?{byte:02x}"
        for byte in os.fsencode(node)
    )
    if namespace not in NOT_INITIAL:
        name += f"{MARK}{namespace:x}"
    if len(name) > LONGEST_HOST:
        keep = LONGEST_HOST - DIGEST - 1
        name = f"{name[:keep]}-{hashlib.sha256(name[keep:].encode()).hexdigest()[:DIGEST]}"
    return name or "?"


def start_of(pid: int) -> int | None:
    """The begin of a process; None when it cannot be told, or not be compared with others'."""
    if not comparable():
        return None
    ticks = ticks_of(pid)
    return None if ticks is None else boot() << 64 | ticks


def ticks_of(pid: int | str) -> int | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return None


def boot() -> int:
    """The boot id as a number; 0 when it cannot be read."""
    try:
        return int((boot_id() or "0").replace("-", ""), 16)
    except ValueError:
        return 0


def comparable() -> bool:
    """Whether processes of other time namespaces read the same begins as we do."""
    if process.namespace("time") in (None, TIME_NAMESPACE):
        return True
    try:
        with open("/proc/self/timens_offsets", encoding="ascii") as file:
            offsets = [line.split() for line in file]
    except OSError:
        return False
    return any(each in (["boottime", "0", "0"], ["7", "0", "0"]) for each in offsets)


def same(one: int, other: int) -> bool:
    """Whether two begins are of one process. Who could not read the boot id wrote 0 for it."""
    unread = not one >> 64 or not other >> 64
    return one == other or (unread and one & LOW == other & LOW)


class _Ours:
    """The record of this process, made once for a process and host name."""

    made: tuple[tuple[int, str], bytes] | None = None


def record(witness: bool) -> bytes:
    """What a lock of this process says."""
    key = fork.here(), os.uname().nodename
    if _Ours.made is None or _Ours.made[0] != key:
        pid = os.getpid()
        start = start_of(pid)
        text = f"{pid}\n{host_name()}\n" + ("" if start is None else f"{start}\n")
        _Ours.made = key, text.encode()
    return _Ours.made[1] + (WITNESSED if witness else b"")


def pid() -> int:
    """This process."""
    return os.getpid()


def is_ours(named: Named) -> bool:
    """Whether it names this process."""
    own = read(record(False))
    assert own is not None
    right = (named.pid, named.host) == (own.pid, own.host)
    return right and (named.start is None or named.start == own.start)


def verdict(named: Named, witness: bool | None, one_kernel: bool) -> Verdict:
    """Whether it lives. `witness`: that somebody locks the file; None where that says nothing."""
    if witness:
        return Verdict(ALIVE, "its kernel witness is held")
    if named.witness and witness is False and one_kernel:
        return Verdict(DEAD, "its kernel witness is free")
    if named.host != host_name():
        return Verdict(UNKNOWN, f"it names process {named.pid} of another host, {named.host}")
    start = named.start
    if not one_kernel and (start is None or not boot() or start >> 64 != boot()):
        return Verdict(UNKNOWN, "a shared file system, and nothing says that it ran on this kernel")
    seen = process.look(named.pid)
    if seen.exists and not seen.is_zombie:
        now = start_of(named.pid)
        if start is None or now is None or same(now, start):
            return Verdict(ALIVE, f"process {named.pid} runs")
        evidence = f"process {named.pid} is another one by now"
    else:
        evidence = f"process {named.pid} is gone"
    if MARK not in named.host and elsewhere(named.pid, start):
        return Verdict(ALIVE, f"process {named.pid} of another PID namespace runs")
    return Verdict(DEAD, evidence)


def elsewhere(pid: int, start: int | None) -> bool:
    """Whether it is the number by which a container of our host name calls a process that runs.

    Older releases wrote such numbers without the namespace.
    """
    if start is None or (start >> 64 and boot() and start >> 64 != boot()):
        return False
    compare = comparable()
    try:
        names = os.listdir("/proc")
    except OSError:
        return False
    for name in names:
        if name.isdigit() and int(name) != pid:
            ticks = ticks_of(name)
            if ticks is not None and (not compare or ticks == start & LOW):
                if process.numbers_of(int(name))[-1:] == [pid]:
                    return True
    return False
