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

import contextlib
import errno
import hashlib
import os
from typing import Any

from ...core.owner import ALIVE, DEAD, INITIAL_PID_NAMESPACE, UNKNOWN, LifeVerdict
from ...core.value import value
from ...runtime import clock as host_clock
from ...runtime import fork, process
from ...runtime.process import boot_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ...local import files as local_files
    from ...local.record_handle import RecordFile
    from . import owner_record
else:
    owner_record = fork.later("lifehold.compat.filelock.owner_record", globals())
    local_files = fork.later("lifehold.local.files", globals(), "local_files")

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
class PidFileOwner:
    """What a file says: the process, its host, its begin, and whether it keeps a witness."""

    pid: int
    host: str
    start: int | None = None
    witness: bool = False


def read(content: bytes) -> PidFileOwner | None:
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
    return PidFileOwner(pid, lines[1], int(lines[2]) if len(lines) == 3 else None, witness)


def by_keys(content: bytes) -> PidFileOwner | None:
    """Whom a marker lock or a lease names; None for a contract that is not known here."""
    found = owner_record.parse(content)
    if found is None or found.mode == "unknown":
        return None
    witness = content.endswith(b"\n" + owner_record.WITNESS.encode())
    return PidFileOwner(found.pid, found.hostname, found.start, witness)


def of_later(content: bytes) -> bool:
    """Whether it is a record of a contract that is not known here: nobody may break that."""
    if not content.startswith(SECOND):
        return False
    found = owner_record.parse(content)
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
        with open("/proc/self/timens_offsets", encoding="utf-8") as file:
            offsets = [line.split() for line in file]
    except OSError:
        return False
    return any(each in (["boottime", "0", "0"], ["7", "0", "0"]) for each in offsets)


def same(one: int, other: int) -> bool:
    """Whether two begins are of one process. Who could not read the boot id wrote 0 for it."""
    unread = not one >> 64 or not other >> 64
    return one == other or (unread and one & LOW == other & LOW)


class _OwnRecord:
    """The record of this process, made once for a process and host name."""

    made: tuple[tuple[int, str], bytes] | None = None


def record(witness: bool) -> bytes:
    """What a lock of this process says."""
    key = fork.here(), os.uname().nodename
    if _OwnRecord.made is None or _OwnRecord.made[0] != key:
        pid = os.getpid()
        start = start_of(pid)
        text = f"{pid}\n{host_name()}\n" + ("" if start is None else f"{start}\n")
        _OwnRecord.made = key, text.encode()
    return _OwnRecord.made[1] + (WITNESSED if witness else b"")


def pid() -> int:
    """This process."""
    return os.getpid()


def is_ours(named: PidFileOwner) -> bool:
    """Whether it names this process."""
    own = read(record(False))
    assert own is not None
    right = (named.pid, named.host) == (own.pid, own.host)
    return right and (named.start is None or named.start == own.start)


def verdict(named: PidFileOwner, witness: bool | None, one_kernel: bool) -> LifeVerdict:
    """Whether it lives. `witness`: that somebody locks the file; None where that says nothing."""
    if witness:
        return LifeVerdict(ALIVE, "its kernel witness is held")
    if named.witness and witness is False and one_kernel:
        return LifeVerdict(DEAD, "its kernel witness is free")
    if named.host != host_name():
        return LifeVerdict(UNKNOWN, f"it names process {named.pid} of another host, {named.host}")
    start = named.start
    if not one_kernel and (start is None or not boot() or start >> 64 != boot()):
        return LifeVerdict(
            UNKNOWN, "a shared file system, and nothing says that it ran on this kernel"
        )
    seen = process.look(named.pid)
    if seen.exists and not seen.is_zombie:
        now = start_of(named.pid)
        if start is None or now is None or same(now, start):
            return LifeVerdict(ALIVE, f"process {named.pid} runs")
        evidence = f"process {named.pid} is another one by now"
    else:
        evidence = f"process {named.pid} is gone"
    if MARK not in named.host and elsewhere(named.pid, start):
        return LifeVerdict(ALIVE, f"process {named.pid} of another PID namespace runs")
    return LifeVerdict(DEAD, evidence)


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


# ------------------------------------------------------------------------------------------------
# Two names that change places in one step, as filelock's own breakers do it.
#
# A breaker puts a complete file of its own under `<lock>.break.<pid>.<32 hex>`, exchanges it with
# the lock, and looks at what it took. Was it the file that it had judged, that is removed and the
# lock is the breaker's. Else somebody was faster: it is put back.
#
# What may go wrong, and what keeps it:
# - Two breakers nest: A has taken S, B has taken A's file for S. B's look tells it, and it gives
#   A's file back. Until then the path leads to a file of a live process, so nobody else comes in.
# - A breaker dies before it gives back: the path names a dead process, and the live holder's file
#   lies under the breaker's name. So whoever finds a dead process at the path looks for such files
#   first (`restored`), claims one by renaming it to `<lock>.restore.<pid>.<32 hex>`, and puts it
#   back. Where two want to, one rename fails, and he waits.
# - A release looks just before the exchange and unlinks just after it: it removes the breaker's own
#   file. The breaker then waits for nobody, and removes what it took, which nobody holds any more.
#   Not what it takes after that: somebody may have come in meanwhile, and gets his file back.
# - A breaker gives up, and a live holder's file stays aside: what cannot be read is left in its
#   place as long as there is such a file of a live process.
# - A holder that releases while its file is taken must not leave a live record to be put back: it
#   writes "released" into it (soft.py), which ages out.


AT_FDCWD, RENAME_EXCHANGE = -100, 2
NOT_OFFERED = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EXDEV)
STALL, GIVE_UP, STEP = 0.01, 2.0, 0.0005  # seconds of putting back


def exchange(one: str, other: str) -> bool:
    """Both names change places. False where the file system cannot. Raises OSError."""
    found = _load()
    if found is None:
        return False
    call, get_errno = found
    if not call(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE):
        return True
    code = get_errno()
    if code in NOT_OFFERED:
        return False
    raise OSError(code, os.strerror(code), one, None, other)


class _RenameCall:
    loaded: object = ()


def _load() -> Any:
    if _RenameCall.loaded == ():
        _RenameCall.loaded = local_files._load_rename()
    return _RenameCall.loaded


def aside(path: str, pid: int, kind: str = "break") -> str:
    """A name beside a lock that says what it is there for, and whose it is."""
    return f"{path}.{kind}.{pid}.{os.urandom(16).hex()}"


def leads(files: Any, path: str, key: tuple[int, int]) -> bool | None:
    """Whether a name is of that file; None when it is of none."""
    found = where(files, path)
    return None if found is None else found == key


def give_back(files: Any, path: str, name: str, ours: RecordFile, clock: Any = host_clock) -> None:
    """After an exchange that took the wrong file: until our own is under `name` again.

    Who has taken ours from the path will give it back within some system calls; who stalls is fed,
    which opens a ring of breakers; who is dead leaves it to `restored`.
    """
    key, begun = (ours.dev, ours.ino), clock.now()
    feed_at = begun + STALL
    taken = there = where(files, name)
    while there is not None and there != key:
        now, here = clock.now(), where(files, path)
        gone = not files.fstat(ours.fd).st_nlink
        if there == taken and (gone or here is None):
            break  # its release has removed what it found at the path: it is nobody's any more
        if now >= begun + GIVE_UP and (gone or here not in (None, key)):
            return
        try:
            if here is None:
                files.link(name, path)  # of one who came in after that release, and was taken
                break
            if gone or here == key or now >= feed_at:
                if not files.exchange(name, path):
                    return
                feed_at = now + STALL
            else:
                clock.pause(STEP)
        except (FileNotFoundError, FileExistsError):
            pass  # look again
        there = where(files, name)
    try:
        files.unlink(name)
    except FileNotFoundError:
        pass


def where(files: Any, path: str) -> tuple[int, int] | None:
    """Which file has a name; None for none."""
    try:
        found = files.lstat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def replaced(
    files: Any,
    path: str,
    judged: RecordFile,
    stamp: float,
    ours: RecordFile,
    clock: Any = host_clock,
) -> bool:
    """Put `ours`, which has a name, in the place of `judged`. False: somebody was faster.

    `stamp`: its time of change when it was judged: a holder may have touched it since. Raises
    OSError; then nothing has changed.
    """
    key, name = (judged.dev, judged.ino, stamp), ours.name
    try:
        found = files.lstat(path)
        if (found.st_dev, found.st_ino, found.st_mtime) != key or not files.exchange(name, path):
            return False
    except FileNotFoundError:
        return False  # released meanwhile
    ours.name = ""  # what has that name now may be somebody's
    try:
        found = files.lstat(name)
        if (found.st_dev, found.st_ino, found.st_mtime) == key:
            files.unlink(name)
            return True
    except BaseException:
        give_back(files, path, name, ours, clock)
        raise
    give_back(files, path, name, ours, clock)
    return False


def restored(
    files: Any,
    path: str,
    dead: RecordFile,
    pids: tuple[int, int],
    lives: Callable[[PidFileOwner], bool],
    gone: Any,
) -> bool:
    """Whether a live holder's file may lie aside, left by the dead breaker that the path names.

    True: the lock counts as held; when it could be, the file is back in its place. `pids`:
    the breaker's, and ours. `lives`: whether a record's process does, other than the breaker's own;
    `gone(pid)`: whether a claimant is dead. Breaker 0: any, as what is at the path names none.
    """
    pid, me = pids
    folder = os.path.dirname(path)
    for each, kind, number in stranded(files, path):
        if kind == "break" and number != pid:
            if not pid and _lives(files, os.path.join(folder, each), lives):
                return True  # taken by one who was stopped, or is at work, and not given back yet
            continue
        if kind == "restore" and number != me and not gone(number):
            return True  # somebody is at it
        claim, name = aside(path, me, "restore"), os.path.join(folder, each)
        try:
            files.rename(name, claim)
            content = _content(files, claim)
        except OSError:
            with contextlib.suppress(OSError):
                files.rename(claim, name)  # for who can read it
            return True
        named = read(content)
        kept = not content or content == STRICT or of_later(content)
        if not kept and (named is None or not lives(named)):
            files.unlink(claim)
            continue
        try:
            if leads(files, path, (dead.dev, dead.ino)) and files.exchange(claim, path):
                if leads(files, claim, (dead.dev, dead.ino)):
                    files.unlink(claim)
                    return True
                files.exchange(claim, path)  # a peer came between: what we took is its
        except OSError:
            return True
        files.rename(claim, aside(path, pid))
        return True
    return False


def _lives(files: object, name: str, lives: Callable[[PidFileOwner], bool]) -> bool:
    try:
        content = _content(files, name)
    except OSError:
        return True
    named = read(content)
    kept = not content or content == STRICT or of_later(content)
    return kept or (named is not None and lives(named))


def stranded(files: Any, path: str) -> list[tuple[str, str, int]]:
    """What breakers have beside a lock: file name, "break" or "restore", process number."""
    folder, name = os.path.split(path)
    found = []
    for each in files.listdir(folder or "/"):
        if each.startswith(name):
            parts = each[len(name) :].split(".")
            if len(parts) == 4 and not parts[0] and parts[1] in ("break", "restore"):
                if whole(parts[2], "0123456789") and whole(parts[3], "0123456789abcdef"):
                    if 0 < int(parts[2]) < 1 << 31:
                        found.append((each, parts[1], int(parts[2])))
    return sorted(found)


def whole(text: str, letters: str) -> bool:
    return 0 < len(text) <= 32 and not text.strip(letters)


def _content(files: Any, name: str) -> bytes:
    from ...local.files import READ_ONLY

    fd = files.open(name, READ_ONLY)
    try:
        content: bytes = files.pread(fd, LONGEST + 1, 0)
    finally:
        files.close(fd)
    return content
