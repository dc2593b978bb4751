"""The one file that asks the operating system who we are and who lives."""

from __future__ import annotations

import os
import sys
import time
from _thread import get_ident

from ..core.errors import pass_up
from ..core.grant import STOPPED, STUCK, TRACED
from ..core.mask import masked_command
from ..core.owner import DEAD, INITIAL_PID_NAMESPACE, ObserverView, Owner, Sighting
from ..core.value import replace
from . import clock, fork

TYPE_CHECKING = False
if TYPE_CHECKING:
    import pwd

    from ..core.grant import Holder
    from . import process_windows
else:
    process_windows = fork.later("lifehold.runtime.process_windows", globals())
    pwd = fork.later("pwd", globals())

INITIAL_USER_NAMESPACE = 0xEFFFFFFD  # PROC_USER_INIT_INO of include/linux/proc_ns.h
CAP_SYS_PTRACE = 19
COUNTS, SEEN_FOR = 20, 1.0  # tries while processes come and go; seconds
_all_seen = False, 0.0
LOOKS_AT_D, PAUSE_AT_D = 3, 0.02  # at a process in state D, and seconds between them
LONGEST = 1 << 15  # bytes of a command line that are read: anybody may make one of megabytes
REMEMBERED = 256  # records of threads and labels of this process
_here: Owner | None = None
_records: dict[tuple[int, str, int | None], Owner] = {}
user_id = getattr(os, "getuid", lambda: None)


def here(label: str = "") -> Owner:
    """This process and thread, as the user it is now. `command` is masked (L11)."""
    global _here
    if not fork.page[0]:
        fork.catch_up()
    key = get_ident(), label, user_id()
    found = _records.get(key)
    if found is None:
        with fork.gate:  # a child must not be left with the record of its parent
            mine = _here
            if mine is None or mine.uid != key[2]:
                mine = _here = _read_self()
            if len(_records) >= REMEMBERED:
                _records.clear()
            found = _records[key] = replace(mine, thread=key[0], label=label)
    return found


@fork.in_child
def _forget() -> None:
    """L9  A child reads anew who it is: its pid, its start, its namespaces."""
    global _here
    _here = None
    _records.clear()


def _read_self() -> Owner:
    pid = os.getpid()
    seen, uid = look(pid, mine=True), user_id()
    return Owner(
        pid=pid,
        host=host_name(),
        machine_id=machine_id(),
        boot_id=boot_id(),
        pid_ns=namespace("pid"),
        time_ns=namespace("time"),
        start_ticks=seen.start_ticks,
        pidfd_ino=seen.pidfd_ino,
        uid=uid,
        user=user_name(uid),
        container=container_of("self"),
        command=masked_command(getattr(sys, "orig_argv", None) or sys.argv),
    )


def host_name() -> str | None:
    """The name of this host, or of this container."""
    if hasattr(os, "uname"):
        return os.uname().nodename or None
    return os.environ.get("COMPUTERNAME")


def machine_id() -> str | None:
    """Systemd's id of the installation. Repeats in cloned images: never a proof by itself."""
    return _text("/etc/machine-id") or _text("/var/lib/dbus/machine-id")


def shares_path(pid: int, path: str) -> bool:
    """Whether a path, with no link in it, leads that process to what it leads us to.

    In another mount namespace, such as a container's, a path may mean another file.
    """
    if namespace("mnt", pid) == namespace("mnt"):
        return True
    try:
        there = living_thread(pid) or f"/proc/{pid}"
        return os.path.samestat(os.stat(f"{there}/root{path}"), os.stat(path))
    except OSError as error:
        pass_up(error)
        return False


def near_pid(owner: Owner | None, *, one_kernel: bool) -> int | None:
    """Its process number where it is one of our own PID namespace, and so can be followed."""
    if owner is None or owner.pid_ns is None or not one_kernel:
        return None
    return owner.pid if owner.pid_ns == namespace("pid") else None


def namespace(kind: str, pid: int | str = "self") -> int | None:
    """The inode number of a namespace of a process; None where it cannot be read."""
    try:
        return os.stat(f"/proc/{pid}/ns/{kind}").st_ino
    except OSError as error:
        pass_up(error)
        if pid == "self" or not isinstance(error, FileNotFoundError):
            return None
        living = living_thread(pid)
    try:
        return os.stat(f"{living}/ns/{kind}").st_ino if living else None
    except OSError as error:
        pass_up(error)
        return None


def living_thread(pid: int | str) -> str:
    """Where /proc tells of a process whose first thread has ended before others; else "".

    Of the first thread it shows no open files, memory, namespaces or command line then.
    """
    try:
        threads = os.listdir(f"/proc/{pid}/task")
        if len(threads) < 2:
            return ""
        with open(f"/proc/{pid}/stat", "rb") as file:
            state = file.read().rpartition(b")")[2].split()[:1]
    except OSError as error:
        pass_up(error)
        return ""
    others = (each for each in threads if each != str(pid))
    return f"/proc/{pid}/task/{next(others)}" if state == [b"Z"] else ""


def look(pid: int, *, mine: bool = False) -> Sighting:
    """What runs under this number in our PID namespace. `mine`: by what command, we know."""
    if sys.platform != "linux" or not os.path.isdir("/proc/self"):
        return _look_elsewhere(pid)
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError as error:
        pass_up(error)
        return _look_hidden(pid)
    status = _status(pid)
    if (group := status.get("Tgid")) not in (None, str(pid)):
        return Sighting(exists=True, is_thread=True, thread_of=int(group))
    try:
        alone = len(os.listdir(f"/proc/{pid}/task")) <= 1  # a leader may exit before its threads do
    except OSError as error:
        pass_up(error)
        alone = True
    return Sighting(
        exists=True,
        is_zombie=fields[0] in (b"Z", b"X", b"x") and alone,
        start_ticks=int(fields[19]),
        pidfd_ino=pidfd_inode(pid),
        command=None if mine else command_of(pid),
    )


def halted(pid: int) -> str:
    """Why a process that lives cannot run: STOPPED, TRACED or STUCK; "" when it can.

    Every process is in state D for moments: STUCK is said of one that is still there later.
    """
    for look_at in range(1 + LOOKS_AT_D):
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                state = file.read().rpartition(b")")[2].split()[:1]
        except OSError as error:
            pass_up(error)
            return ""
        if state != [b"D"]:
            return {b"T": STOPPED, b"t": TRACED}.get(state[0] if state else b"", "")
        if look_at < LOOKS_AT_D:
            clock.pause(PAUSE_AT_D)
    return STUCK


def as_it_runs(holder: Holder | None) -> Holder | None:
    """A holder, with what its process told just now of whether it can run."""
    if holder is None or holder.alive == DEAD or holder.owner is None or holder.halted:
        return holder
    pid = holder.pid_here
    if pid is None and holder.owner.pid_ns == namespace("pid") and holder.owner.boot_id:
        pid = holder.owner.pid if holder.owner.boot_id == boot_id() else None
    why = halted(pid) if pid else ""
    return replace(holder, halted=why) if why else holder


def goes_by(pid: int, owner: Owner) -> bool:
    """Whether the process that we call `pid` is the one its own namespace calls `owner.pid`.

    The namespace of another user's process cannot be read: its begin has to tell.
    """
    space = namespace("pid", pid)
    if space not in (None, owner.pid_ns):  # first: a tenth of the time of its status
        return False
    if _status(pid).get("NSpid", "").split()[-1:] != [str(owner.pid)]:
        return False
    return space is not None or _began_as(pid, owner)


def _began_as(pid: int, owner: Owner) -> bool:
    """Whether a process is the owner by what its begin gave it; False where nothing can tell."""
    seen = look(pid, mine=True)
    if owner.pidfd_ino is not None and seen.pidfd_ino is not None:
        return owner.pidfd_ino == seen.pidfd_ino
    if owner.start_ticks is None or owner.time_ns != namespace("time"):
        return False
    return owner.start_ticks == seen.start_ticks


def _look_hidden(pid: int) -> Sighting:
    """No entry in /proc: gone, or hidden from us (hidepid), which kill(2) tells apart."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return Sighting(exists=False)
    except (PermissionError, OverflowError):
        pass
    return Sighting(exists=True)


def _look_elsewhere(pid: int) -> Sighting:
    """Without /proc: Windows itself, or psutil, which is a dependency there."""
    if sys.platform == "win32":
        return process_windows.look(pid)  # type: ignore[no-any-return]
    try:
        psutil = fork.lazily("psutil")
    except ImportError:
        return _look_hidden(pid)  # Linux with no /proc mounted, where psutil could not help either
    try:
        found = psutil.Process(pid)
        return Sighting(
            exists=True,
            is_zombie=found.status() == psutil.STATUS_ZOMBIE,
            start_ticks=int(found.create_time() * 100),
            command=masked_command(found.cmdline()),
        )
    except psutil.NoSuchProcess:
        return Sighting(exists=False)
    except psutil.AccessDenied:
        return Sighting(exists=True)


def pidfd_inode(pid: int) -> int | None:
    """The inode of the process's pidfd.

    Unique for a boot on kernels with pidfs (Linux 6.9), else None.
    """
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        fd = fork.descriptor(os.pidfd_open, pid)
    except OSError as error:
        pass_up(error)
        return None
    try:
        found, other = os.stat(fd), fork.descriptor(os.eventfd, 0, os.EFD_CLOEXEC)
        try:
            anonymous = found.st_dev == os.stat(other).st_dev
        finally:
            os.close(other)
        return (
            None if anonymous else found.st_ino
        )  # before pidfs all pidfds share one anonymous inode
    except OSError as error:
        pass_up(error)
        return None
    finally:
        os.close(fd)


def command_of(pid: int | str) -> str | None:
    """The command line of a process, masked (L11); None where it cannot be read."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            arguments = os.fsdecode(file.read(LONGEST)).rstrip("\0").split("\0")
    except OSError as error:
        pass_up(error)
        return None
    if os.path.basename(arguments[0]).startswith("python") and len(arguments) > 1:
        if os.path.basename(arguments[1]) == "lifehold":  # as its own records call it
            arguments[:2] = ["lifehold"]
    if arguments != [""]:
        return masked_command(arguments)
    name = _text(f"/proc/{pid}/comm")
    return f"[{name}]" if name else None


def owner_of(pid: int) -> Owner:
    """What can be read of another process from here."""
    status = _status(pid)
    uids = status.get("Uid", "").split()
    uid = int(uids[0]) if uids else None
    return Owner(
        pid=pid,
        host=host_name(),
        boot_id=boot_id(),
        pid_ns=namespace("pid", pid),
        uid=uid,
        user=user_name(uid) if uid is not None else None,
        container=container_of(pid),
        command=command_of(pid),
    )


def numbers_of(pid: int) -> list[int]:
    """What a process is called: by us first, last in its own PID namespace."""
    return [int(number) for number in _status(pid).get("NSpid", "").split()] or [pid]


def parent_of(pid: int) -> int:
    """The parent of a process; 0 when there is none that can be seen."""
    parent = _status(pid).get("PPid", "")
    return int(parent) if parent.isdecimal() else 0


def started_at(pid: int) -> float | None:
    """When a process began, in UTC seconds: as good as the clock has been steady since."""
    seen = look(pid)
    if seen.start_ticks is None or not hasattr(time, "CLOCK_BOOTTIME"):
        return None
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - seen.start_ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - age


def container_of(pid: int | str) -> str | None:
    """The id of the container a process runs in: docker, containerd, podman, cri-o.

    None outside.
    """
    for source in ("cgroup", "mountinfo") if pid == "self" else ("cgroup",):
        try:
            with open(f"/proc/{pid}/{source}", encoding="utf-8", errors="replace") as file:
                for line in file:
                    if source == "mountinfo" and " /etc/hostname " not in line:
                        continue
                    if found := _long_id(line):
                        return found
        except OSError as error:
            pass_up(error)
            continue
    if pid == "self" and (name := os.environ.get("container")) and name != "systemd-nspawn":
        return host_name()
    return None


def _long_id(line: str) -> str | None:
    """A container's 64 hexadecimal digits, standing alone in a path of /proc."""
    for part in line.strip().replace("-", "/").replace(".", "/").replace(":", "/").split("/"):
        if len(part) == 64 and not part.strip("0123456789abcdef"):
            return part
    return None


def sees_all_processes() -> bool:
    """Whether no process of the machine is hidden.

    The initial PID namespace, and /proc without hidepid, or with rights that it heeds.
    """
    if namespace("pid") != INITIAL_PID_NAMESPACE:
        return False
    try:
        with open("/proc/mounts", encoding="utf-8", errors="replace") as file:
            options = [line.split()[3] for line in file if line.split()[1:3] == ["/proc", "proc"]]
    except (OSError, IndexError) as error:
        pass_up(error)
        return False
    if not options:
        return False
    hides = [word for word in options[-1].split(",") if word.startswith("hidepid=")]
    return set(hides) <= {"hidepid=0", "hidepid=off"} or _sees_what_is_hidden()


def _sees_what_is_hidden() -> bool:
    """Whether hidepid hides nothing from us: CAP_SYS_PTRACE of the machine itself, and its effect.

    L2  The effect is the proof, since a security module may hide a process all the same: all
    threads that the kernel counts are seen. Remembered for a moment: it is asked for each lock.
    """
    global _all_seen
    rights = _status(os.getpid()).get("CapEff", "0")
    if namespace("user") != INITIAL_USER_NAMESPACE or not int(rights, 16) >> CAP_SYS_PTRACE & 1:
        return False
    if _all_seen[1] < clock.now():
        seen = any(_threads_seen() == _threads_counted() for _ in range(COUNTS))
        _all_seen = seen, clock.now() + SEEN_FOR
    return _all_seen[0]


def _threads_counted() -> int:
    """All threads of the machine, as the kernel counts them; -1 where it does not tell."""
    try:
        with open("/proc/loadavg", encoding="utf-8") as file:
            return int(file.read().split()[3].partition("/")[2])
    except (OSError, ValueError, IndexError) as error:
        pass_up(error)
        return -1


def _threads_seen() -> int:
    count = 0
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                count += len(os.listdir(f"/proc/{name}/task"))
            except OSError as error:
                pass_up(error)
                continue
    return count


def ground(one_kernel: bool, witness: bool | None) -> ObserverView:
    """What `judge` needs to know of this observer."""
    sees_all = one_kernel and sees_all_processes()  # else a number proves nothing at all
    return ObserverView(one_kernel, witness, here(), sees_all, look, _called)


def _called(number: int) -> int | None:
    return called(number)


def _status(pid: int) -> dict[str, str]:
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            return {key: rest.strip() for key, _, rest in (line.partition(":") for line in file)}
    except OSError as error:
        pass_up(error)
        return {}


def _text(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip() or None
    except OSError as error:
        pass_up(error)
        return None


# ------------------------------------------------------------------------------------------------
# This boot: the kernel's id of it, if it is the kernel's, and when a process began.


NAME = "/proc/sys/kernel/random/boot_id"


def boot_id() -> str | None:
    """The kernel's random id of this boot; None where something was mounted over it.

    Some containers are given an id of their own there. It would tell the kernel's other processes
    that the machine has been restarted since, and they would take a live holder for dead (L2).
    """
    try:
        if os.stat(NAME).st_dev != os.stat("/proc/sys").st_dev or _is_mounted():
            return None
        with open(NAME, encoding="utf-8", errors="replace") as file:
            return file.read().strip() or None
    except OSError as error:
        pass_up(error)
        return None


def _is_mounted() -> bool:
    """Whether something is mounted right there."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
        return any(line.split()[4] == NAME for line in file)


def began_at(start_ticks: int) -> float | None:
    """When a process that began so many ticks after the boot did so, UTC seconds, as psutil says.

    By the wall clock as it is set now: when that is set, the answer changes. None where the
    kernel does not tell.
    """
    try:
        with open("/proc/stat", "rb") as file:
            for line in file:
                if line.startswith(b"btime"):
                    return start_ticks / os.sysconf("SC_CLK_TCK") + float(line.split()[1])
    except (OSError, ValueError, IndexError):
        pass
    return None


# ------------------------------------------------------------------------------------------------
# The login name of a user id.
#
# L9  The C library looks it up under a lock of its own. A fork in the middle of that would leave
# the lock shut in the child, which then waits for it for ever (seen). So it is done under the fork
# gate, and once: a child has its parent's answer.


_names: dict[int, str | None] = {}


def user_name(uid: int | None) -> str | None:
    """The login name of a user id, None when there is none."""
    if uid is None:
        return os.environ.get("USERNAME")
    if uid not in _names:
        _names[uid] = _looked_up(uid)
    return _names[uid]


def _looked_up(uid: int) -> str | None:
    fork.here()
    with fork.gate:
        try:
            return pwd.getpwuid(uid).pw_name
        except KeyError:
            return None


# ------------------------------------------------------------------------------------------------
# By which number a process of another PID namespace is called here.
#
# Promise: a number is given only for a process that is, by its own namespace and its number there,
# the one that was asked for; 0 says that none such can be seen, so no number of ours is its.
# What fails: inside a container /proc shows only its own processes. The namespace of another user's
# process may not be read; it is known by its number there and its begin. Costs a look at each
# process, so it is for texts only.


MOST = 1_000  # processes that are looked at: some 20 ms


def number_here(owner: Owner | None) -> int | None:
    """The number here of an owner in another PID namespace of this kernel, 0 when it is not seen.

    None for an owner of our own namespace, of another kernel, or without a namespace: its number
    is what its record says; and where there are too many processes to look at them all.
    """
    if owner is None or owner.pid_ns is None or owner.boot_id != boot_id():
        return None
    if owner.pid_ns == namespace("pid"):
        return None
    try:
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError as error:
        pass_up(error)
        return None
    for pid in pids[:MOST]:
        if goes_by(pid, owner):
            return pid
    return 0 if len(pids) <= MOST else None


def called(number: int) -> int | None:
    """A process that is called by `number` in a PID namespace below ours; None for nobody."""
    try:
        pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    except OSError as error:
        pass_up(error)
        return None
    return next((pid for pid in pids if number in numbers_of(pid)[1:]), None)
