"""What the crash tests share.

A wait for a claim, a free lock seen from outside, the next acquirer.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import time
from pathlib import Path

from lifehold import Lock
from lifehold.testing.crash import Child, point


def until(claim, within=60.0, words=""):
    """Wait until `claim()` holds; its answer.

    The claim is asked again and again, never slept for.
    """
    end = time.monotonic() + within
    while not (found := claim()):
        assert time.monotonic() < end, f"not so within {within:g} s: {words or claim}"
        time.sleep(0.001)
    return found


def free(path):
    """Whether nobody holds flock(2) on the file, as seen by a description of our own."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True


def descriptors(path, pid="self"):
    """The descriptors of a process that may write the file at `path`, or what was there.

    One that only reads belongs to who looks for the holder; no lock was ever tried on it.
    """
    found, sought = [], os.path.abspath(path)
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            if os.readlink(f"/proc/{pid}/fd/{fd}").removesuffix(" (deleted)") != sought:
                continue
            flags = Path(f"/proc/{pid}/fdinfo/{fd}").read_text().split("flags:")[1].split()[0]
        except OSError:
            continue
        if int(flags, 8) & 3:
            found.append(int(fd))
    return found


def open_files(pid="self"):
    return len(os.listdir(f"/proc/{pid}/fd"))


def threads(pid="self"):
    return len(os.listdir(f"/proc/{pid}/task"))


def waits_in_the_kernel(pid):
    """Whether a thread of the process stands in the kernel's queue of a flock(2)."""
    with open("/proc/locks") as file:
        waiting = [line.split()[5] for line in file if line.split()[1] == "->"]
    tasks = os.listdir(f"/proc/{pid}/task")
    return str(pid) in waiting or any(task in waiting for task in tasks)


def waited_for(path):
    """Whether anybody stands in the kernel's queue for the file."""
    inode = str(os.stat(path).st_ino)
    lines = (line.split() for line in Path("/proc/locks").read_text().splitlines())
    return any(line[1] == "->" and line[6].split(":")[2] == inode for line in lines)


def acquire_and_release(path, wait=0):
    with Lock(path, wait=wait) as lease:
        lease.check()
        return lease.token


def next_token(path, wait=60):
    """The token that a fresh process gets, which must not have to wait long."""
    with Child(acquire_and_release, path, wait) as child:
        end = child.end()
    assert end.well, end.error
    return end.value


def hold(path, **options):
    """A holder that stands at the point "held" until it is told to let go."""
    lease = Lock(path, **options).acquire()
    point("held", lease.token)
    lease.release()
    point("released")


def raised(call, *args, **named):
    """What `call` raised, None for nothing.

    Its traceback, and so every frame of it, stays alive.
    """
    try:
        call(*args, **named)
    except BaseException as error:
        return error
    return None


class Section:
    """A critical section that notices a second one inside.

    The canary is a link that link(2) makes only where there is none. One that was left by a process
    of which the killer wrote `killed.<pid>` before it killed is the remains of that process and no
    overlap. It is never without its maker's number, wherever its maker is killed.
    """

    def __init__(self, folder):
        self.folder = Path(folder)
        self.canary = str(self.folder / "canary")
        self.log = os.open(self.folder / "tokens", os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o666)

    def __call__(self, who, token, work=0.0):
        me = os.getpid()
        mine = self.folder / f"pid.{me}"
        if not mine.exists():
            mine.write_text(str(me))
        while True:
            try:
                os.link(mine, self.canary)
                break
            except FileExistsError:
                left_by = Path(self.canary).read_text() or "0"
                if not (self.folder / f"killed.{left_by}").exists():
                    (self.folder / f"overlap.{me}.{time.monotonic_ns()}").write_text(left_by)
                    return
                os.unlink(self.canary)
        os.write(self.log, f"{token} {who} {time.monotonic_ns()}\n".encode())
        if work:
            time.sleep(work)
        os.unlink(self.canary)

    def killed(self, pid):
        """To be told before `pid` is killed."""
        (self.folder / f"killed.{pid}").touch()

    @property
    def overlaps(self):
        return len(list(self.folder.glob("overlap.*")))

    @property
    def entries(self):
        """(token or None, who, monotonic ns) in the order of entry."""
        lines = (self.folder / "tokens").read_text().split("\n")[:-1]
        fields = (line.split() for line in lines)
        return [(None if t == "None" else int(t), who, int(ns)) for t, who, ns in fields]

    def tokens_grow(self):
        tokens = [token for token, _, _ in self.entries if token is not None]
        return all(a < b for a, b in itertools.pairwise(tokens))
