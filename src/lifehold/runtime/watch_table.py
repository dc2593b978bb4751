"""What the watching thread sleeps on, and what it hears by: folders, pollers, inotify."""

from __future__ import annotations

import errno
import os
import select
import struct
import sys

from ..core.deadline import NEVER
from ..core.errors import pass_up
from . import clock, fork, native

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from . import kqueue
    from .watch_thread import PathWatch
else:
    kqueue = fork.later("lifehold.runtime.kqueue", globals())


def make_notifier() -> Inotify | kqueue.Kqueue:
    """An instance of what this system has. Raises OSError."""
    system: str = sys.platform  # a variable: type checkers would follow one system only
    if system == "linux":
        return Inotify()
    if hasattr(select, "kqueue"):
        return kqueue.Kqueue()
    raise OSError(errno.ENOSYS, f"{system} has no events of files that we know")


# ------------------------------------------------------------------------------------------------
# What a watched folder is known to be: who waits for which name in it, and what was last seen.
#
# Rule for what cannot be heard: two changes within one tick of a file system's clock may look
# alike, so a change that was seen is told once more at the next look.


SWEEP = 2.0  # seconds between two looks at what is heard: for what no event tells, if anything
FIRST, LONGEST, GROWTH = 0.02, 0.5, 1.5  # seconds between two looks at what is not
SPREAD = 0.25  # part of a pause that is left to chance, so that many do not look together


class WatchedFolder:
    """One folder by one of its names. `number`: under which its events come, None: it is looked at.

    `names` name -> those who wait for it; b"": for everything in it. `due`: the instant of the
    next look. `alarm`: all are to be told then. `content`: writes are wanted; `heard`: and told.
    `files` name -> the number under which the events of that file itself come.
    """

    __slots__ = (
        "alarm",
        "content",
        "due",
        "files",
        "heard",
        "names",
        "number",
        "path",
        "pause",
        "seen",
    )

    def __init__(self, path: str) -> None:
        self.path = path
        self.number: int | None = None
        self.content = self.heard = self.alarm = False
        self.names: dict[bytes, dict[PathWatch, None]] = {}
        self.files: dict[bytes, int] = {}
        self.seen: dict[
            bytes, tuple[object, bool]
        ] = {}  # name -> what it looked like, whether to tell it again
        self.pause, self.due = FIRST, NEVER

    def told(self, content: bool) -> bool:
        """Whether events tell all that is to be known."""
        return self.number is not None and (self.heard or not content)

    def remember(self, name: bytes) -> None:
        """What there is now, for one who begins to wait where nothing is heard.

        He is told once for nothing: a change just before and one just after may look alike.
        """
        self.pause = FIRST
        self.seen[name] = (self.look_at(name), True)

    def changed(self) -> list[PathWatch]:
        """Look at every name: those to be told. Calls of lstat(2), any of which may hang."""
        told: list[PathWatch] = []
        for name, watches in self.names.copy().items():
            now = self.look_at(name)
            before, again = self.seen.get(name, (now, False))
            self.seen[name] = (now, now != before)
            if now != before or again:
                told += watches
        return told

    def look_at(self, name: bytes) -> object:
        """What a change of that name changes, most of the time."""
        try:
            found = os.lstat(os.path.join(self.path, os.fsdecode(name)))
        except OSError as error:
            pass_up(error)
            return error.errno
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns

    def next_pause(self, *, changed: bool) -> float:
        """Seconds until the next look."""
        if self.told(self.content):
            self.pause = FIRST
            return SWEEP
        pause = self.pause = FIRST if changed else min(self.pause * GROWTH, LONGEST)
        return pause * (1 - SPREAD * chance())


def chance() -> float:
    """A number in [0, 1) to part many from each other; `random` may not be to be had (EMFILE)."""
    return clock.now() * 1e5 % 1.0


# ------------------------------------------------------------------------------------------------
# How the thread of runtime/watch_thread.py sleeps: until a descriptor is ready, or woken.


poll = native.real(select, "poll")  # that of gevent makes a hub for each thread of ours


def is_ours(fd: int, what: str = "") -> bool:
    """Whether a number still leads to what we opened: other code may have closed or reused it."""
    try:
        found = os.readlink(f"/proc/self/fd/{fd}")
    except FileNotFoundError:
        return not os.path.isdir("/proc/self")  # no such system; else it is closed
    return found.startswith("anon_inode:") and what in found


def close_ours(fd: int, what: str) -> None:
    """Close it if it is ours, also when a signal handler raises meanwhile: nobody else will."""
    try:
        if is_ours(fd, what):
            os.close(fd)
    except OSError as error:
        if error.errno is None:
            close_ours(fd, what)
        raise


def ready(number: int) -> bool:
    """Whether a descriptor is ready now, or is none any more."""
    asked = poll()
    asked.register(number, select.POLLIN)
    return bool(asked.poll(0))


def gone(fd: int) -> OSError:
    """What a descriptor that is not ours any more is told as."""
    return OSError(errno.EBADF, os.strerror(errno.EBADF), fd)


class Poller:
    """poll(2) over any number of descriptors, one of them its own. Raises OSError."""

    polls = True

    def __init__(self) -> None:
        if hasattr(os, "eventfd"):
            number = fork.descriptor(os.eventfd, 0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            self.fd = self._other = number
        else:  # macOS, BSD
            self.fd, self._other = os.pipe()
            os.set_blocking(self.fd, False)
            os.set_blocking(self._other, False)
        self._poll = poll()
        self._poll.register(self.fd, select.POLLIN)

    @property
    def fds(self) -> tuple[int, ...]:
        """Its own descriptors."""
        return tuple({self.fd, self._other})

    def add(self, fd: int) -> None:
        """Wake for this one too, from the next sleep on: call `wake`."""
        self._poll.register(fd, select.POLLIN)

    def drop(self, fd: int) -> None:
        """Forget it. Before it is closed."""
        try:
            self._poll.unregister(fd)
        except KeyError:
            pass

    def wake(self) -> None:
        """End the sleep, the next one if nobody sleeps. Never waits."""
        try:
            if self._is_ours():  # else the thread finds that out by itself
                native.write(self._other, b"\1\0\0\0\0\0\0\0")
        except OSError as error:
            if error.errno is None:
                self.wake()  # first: others wait for it
            pass_up(error)  # else woken often enough, or closed just now

    def _is_ours(self) -> bool:
        return self.fd != self._other or is_ours(self.fd, "eventfd")  # a pipe is not told apart

    def wait(self, seconds: float) -> list[int]:
        """The descriptors that are ready, its own left out."""
        ready = [fd for fd, _ in self._poll.poll(max(0.0, seconds) * 1000)]
        if self.fd in ready:
            ready.remove(self.fd)
            if not self._is_ours():
                raise gone(self.fd)
            try:
                native.read(self.fd, 512)
            except BlockingIOError:
                pass
        return ready

    def close(self) -> None:
        """Give the descriptors back."""
        for fd in self.fds if self._is_ours() else ():
            os.close(fd)


class LockPoller:
    """Without any descriptor: Windows, which polls no files, and where none is left (EMFILE)."""

    polls = False
    fds: tuple[int, ...] = ()

    def __init__(self) -> None:
        self._lock = native.allocate_lock()
        self._lock.acquire()

    def add(self, fd: int) -> None:
        """What has no event is looked at now and then: nothing to add."""

    drop = add

    def wake(self) -> None:
        try:
            self._lock.release()
        except RuntimeError:
            pass  # woken already

    def wait(self, seconds: float) -> list[int]:
        self._lock.acquire(timeout=max(0.0, seconds))
        return []

    def close(self) -> None:
        """Nothing to give back."""


Sleeper = Poller | LockPoller


def best_sleeper(old: Sleeper | None, *, deaf: bool) -> Sleeper:
    """The best one to be had; `old` when that is no better."""
    if poll is not None and not deaf:
        try:
            return Poller()
        except OSError as error:
            pass_up(error)
    return old or LockPoller()


# ------------------------------------------------------------------------------------------------
# What the kernel of Linux tells about folders: one inotify instance, by ctypes.
#
# Promise: from the return of `add` on, `read` tells every change in that folder, or an overflow.
# Rule: the same number for two adds means the same folder. So adding again is the one atomic
# question whether a path still leads to what is watched, and two names of one folder share a watch.
#
# A folder tells of writes and closings under the name by which the file was *opened*, which need
# not be its name now: it may have been made aside, linked to its place and unlinked there. So a
# watch that wants these has the file itself watched too (`add_file`).


IN_MODIFY, IN_ATTRIB, IN_CLOSE_WRITE, IN_OPEN = 0x2, 0x4, 0x8, 0x20
IN_MOVED_FROM, IN_MOVED_TO, IN_CREATE, IN_DELETE = 0x40, 0x80, 0x100, 0x200
IN_DELETE_SELF, IN_MOVE_SELF = 0x400, 0x800
IN_UNMOUNT, IN_Q_OVERFLOW, IN_IGNORED = 0x2000, 0x4000, 0x8000
IN_ONLYDIR, IN_DONT_FOLLOW, IN_MASK_ADD = 0x01000000, 0x02000000, 0x20000000

NAMES = IN_CREATE | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO | IN_DELETE_SELF | IN_MOVE_SELF
CONTENT = IN_MODIFY | IN_ATTRIB | IN_CLOSE_WRITE  # also of an mmap, which tells at its close only
ITSELF = IN_DELETE_SELF | IN_MOVE_SELF | IN_UNMOUNT | IN_IGNORED

HEAD = struct.Struct("iIII")  # wd, mask, cookie, length of the name
BUFFER = 1 << 16
_libc: Any = None


def _load() -> Any:
    """The C library with the three calls. Raises OSError(ENOSYS) where it has none."""
    global _libc
    if _libc is None:
        ctypes = fork.lazily("ctypes")
        lib = ctypes.CDLL(None, use_errno=True)
        if not hasattr(lib, "inotify_init1"):
            raise OSError(errno.ENOSYS, "this C library knows no inotify")
        lib.inotify_add_watch.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_uint32)
        lib.get_errno = ctypes.get_errno
        _libc = lib
    return _libc


def _done(number: int, path: str | None = None) -> int:
    """The answer of a call of libc. Raises OSError."""
    if number < 0:
        code = _libc.get_errno()
        raise OSError(code, os.strerror(code), path)
    return number


class Inotify:
    """One instance. Raises OSError when there is none to be had: 128 per user, of all processes."""

    sees_content = True  # a write in a file is told too, not only the coming and going of names

    def __init__(self) -> None:
        self.fd = _done(_load().inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))

    @property
    def fds(self) -> tuple[int, ...]:
        """What a forked child inherits of it."""
        return (self.fd,)

    def add(self, folder: str, content: bool) -> int:
        """The number under which events of this folder come. `content`: writes in it as well.

        Raises OSError: no such folder, not readable, no watch left (ENOSPC).
        """
        mask = NAMES | CONTENT if content else NAMES
        # Added to the mask: another name of the same folder may want more.
        wished = mask | IN_ONLYDIR | IN_MASK_ADD
        return _done(_libc.inotify_add_watch(self.fd, os.fsencode(folder), wished), folder)

    def add_file(self, path: str) -> int:
        """The number under which writes and closings of this file come, by whichever of its names.

        Raises OSError: nothing there, not readable (EACCES), no watch left (ENOSPC).
        """
        wished = CONTENT | IN_DONT_FOLLOW | IN_MASK_ADD  # it may be a folder that is watched
        return _done(_libc.inotify_add_watch(self.fd, os.fsencode(path), wished), path)

    def add_opens(self, path: str) -> int:
        """The number under which each open(2) of this file comes, by any process, ours too."""
        wished = IN_OPEN | IN_DONT_FOLLOW | IN_MASK_ADD
        return _done(_libc.inotify_add_watch(self.fd, os.fsencode(path), wished), path)

    def remove(self, number: int) -> None:
        """No more events of this number; those on their way still come."""
        _libc.inotify_rm_watch(self.fd, number)  # EINVAL: the kernel has removed it before

    def read(self) -> list[tuple[int, bytes | None]]:
        """What has happened: (number, name); the name None for the folder itself, b"" for a file.

        The number -1: events were dropped, and anything may have happened.
        """
        if not is_ours(self.fd, "inotify"):
            raise gone(self.fd)  # what we read would be another's
        try:
            data = native.read(self.fd, BUFFER)
        except BlockingIOError:
            return []
        found: list[tuple[int, bytes | None]] = []
        at = 0
        while at < len(data):
            number, mask, _, length = HEAD.unpack_from(data, at)
            at += HEAD.size
            name = data[at : at + length].rstrip(b"\0")
            at += length
            if mask & IN_Q_OVERFLOW:
                found.append((-1, None))
            elif mask & ITSELF:
                found.append((number, None))
            else:
                found.append((number, name))
        return found

    def close(self) -> None:
        """Give it back. Takes the kernel some milliseconds."""
        close_ours(self.fd, "inotify")
