"""Who in this process waits for which path or process, and what the kernel was asked to tell.

Rules: the tables are changed under `fork.gate` alone (L9: no fork tears them apart), in steps that
a signal handler may interrupt and do as well. Nobody is told, and no path is looked at, under it.
What an event says is only where to look: a folder that something became of is added anew by its
path first, then all who wait there are told.
"""

from __future__ import annotations

import errno
import os
import select
import sys

from ..core.deadline import NEVER
from . import clock, fork, native

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from . import inotify, kqueue
    from .watch_thread import ProcessWatch, Watch

    Told = dict[Watch | ProcessWatch, None]  # a set that keeps its order
else:
    inotify = fork.later("lifehold.runtime.inotify", globals())
    kqueue = fork.later("lifehold.runtime.kqueue", globals())


class Post:
    """The tables. `deaf`: of paths that no event can reach, told by looks alone."""

    def __init__(self, *, deaf: bool = False) -> None:
        self.deaf = deaf
        self.folders: dict[str, Folder] = {}
        self.numbers: dict[int, dict[Folder, None]] = {}  # one folder may have many paths
        self.files: dict[int, dict[tuple[Folder, bytes], None]] = {}  # and one file many names
        # By pidfd, or by number (below -1) of a kqueue.
        self.processes: dict[int, dict[ProcessWatch, None]] = {}
        self.unseen: dict[ProcessWatch, None] = {}  # told for nothing, now and then
        self.ears: Any = None  # the instance of inotify or kqueue
        self.sleeper: Sleeper | None = None
        self.try_at = 0.0  # before it no instance is asked for again
        self.why = ""  # there are no events, if so

    # ---- paths -----------------------------------------------------------------------------------

    def enter(self, watch: Watch) -> Folder:
        """Note who waits for a path, and ask for its events."""
        path, name = parted(watch.path)
        while True:  # a signal handler may take away a folder that nobody waits in yet
            folder = self.folders.setdefault(path, Folder(path))
            mine = folder.names.setdefault(name, {})
            mine[watch] = None
            if self.folders.get(path) is folder and folder.names.get(name) is mine:
                break
        folder.content = folder.content or watch.content
        if self.listen(folder) and folder.due < NEVER:  # it has been another for the others too
            folder.alarm, folder.due = True, 0.0
        self.fasten(folder, name)
        first = SWEEP if folder.told(watch.content) else FIRST
        folder.due = min(folder.due, clock.now() + first)
        return folder

    def remove(self, watch: Watch) -> None:
        """Watch it no more. Safe to repeat."""
        path, name = parted(watch.path)
        with fork.gate:
            watch.closed = True
            folder = self.folders.get(path)
            if folder is None:
                return
            mine = folder.names.get(name, {})
            mine.pop(watch, None)
            if not mine:
                folder.names.pop(name, None)
                folder.seen.pop(name, None)
                self.loosen(folder, name)
            if not folder.names:
                self.folders.pop(path, None)
                self.forget(folder)

    def listen(self, folder: Folder) -> bool:
        """Have the kernel tell of the folder that its path leads to. Whether that is another."""
        ears, number = self.hearing(), None
        if ears is not None:
            try:
                number = ears.add(folder.path, folder.content)
            except OSError as error:
                self.why = str(error)
        folder.heard = ears is not None and ears.sees_content
        if number == folder.number:
            return False
        self.forget(folder)
        folder.number = number
        if number is not None:
            self.numbers.setdefault(number, {})[folder] = None
        return True

    def forget(self, folder: Folder) -> None:
        """No more events for this path of a folder."""
        for name in list(folder.files):
            self.loosen(folder, name)
        number, folder.number = folder.number, None
        if number is not None:
            self.numbers.get(number, {}).pop(folder, None)
            self.dismiss(number)

    def dismiss(self, number: int) -> None:
        """No more events of this number if nobody waits for them."""
        for table in (self.numbers, self.files):
            if not table.get(number, True):
                table.pop(number, None)
                if number not in self.numbers and number not in self.files and self.ears:
                    self.ears.remove(number)

    # ---- files, told of by whichever of their names they are written

    def fasten(self, folder: Folder, name: bytes) -> bool:
        """Have the kernel tell of the file that a name leads to. Whether that is another."""
        number = None
        if name and folder.number is not None and folder.content and self.ears.sees_content:
            try:
                number = self.ears.add_file(os.path.join(folder.path, os.fsdecode(name)))
            except FileNotFoundError:
                pass  # that it comes is told by its folder
            except OSError as error:  # not readable, no watch left: it is looked at
                folder.heard, self.why = False, str(error)
        if number == folder.files.get(name):
            return False
        self.loosen(folder, name)
        if number is not None:
            folder.files[name] = number
            self.files.setdefault(number, {})[folder, name] = None
        return True

    def loosen(self, folder: Folder, name: bytes) -> None:
        """No more events of the file that a name led to."""
        number = folder.files.pop(name, None)
        if number is not None:
            self.files.get(number, {}).pop((folder, name), None)
            self.dismiss(number)

    # ---- processes -------------------------------------------------------------------------------

    def attend(self, watch: ProcessWatch) -> None:
        """Note who waits for the end of a process. Raises ProcessLookupError when it has ended."""
        number = self.door_of(watch.pid)
        if number is None:
            self.unseen[watch] = None
            return
        watch.number = number
        self.processes.setdefault(number, {})[watch] = None
        if number >= 0:
            bell = self.bell()
            bell.add(number)
            bell.knock()

    def unfollow(self, watch: ProcessWatch) -> None:
        """Watch it no more. Safe to repeat."""
        with fork.gate:
            self.unseen.pop(watch, None)
            number, watch.number = watch.number, None
            if number is None:
                return
            mine = self.processes.get(number, {})
            mine.pop(watch, None)
            if not mine and self.processes.pop(number, None) is not None and number >= 0:
                if self.sleeper is not None:
                    self.sleeper.drop(number)
                if is_ours(number, "pidfd"):
                    os.close(number)

    def door_of(self, pid: int) -> int | None:
        """What becomes ready when a process ends; None where nothing does."""
        try:
            if hasattr(os, "pidfd_open"):
                return fork.descriptor(os.pidfd_open, pid) if self.bell().polls else None
            ears = self.hearing()
            if hasattr(ears, "follow"):
                return int(ears.follow(pid))
        except ProcessLookupError:
            raise
        except OSError as error:  # EMFILE, ENOSYS
            self.why = f"process {pid}: {error}"
        return None

    # ---- the kernel ------------------------------------------------------------------------------

    def bell(self) -> Sleeper:
        """What the thread sleeps on; a better one when there is one by now."""
        old = self.sleeper
        if old is None or (not old.polls and clock.now() >= self.try_at):
            new = self.sleeper = sleeper(old, deaf=self.deaf)
            if new is not old:
                for fd in self.fds():
                    new.add(fd)
                if old is not None:
                    old.knock()
            return new
        return old

    def fds(self) -> list[int]:
        """What wakes the thread, its own bell aside."""
        ears = [] if self.ears is None else [self.ears.fd]
        return ears + [number for number in self.processes if number >= 0]

    def hearing(self) -> Any:
        """The instance, made when it is first needed; None while there is none to be had."""
        if self.ears is None and not self.deaf and clock.now() >= self.try_at:
            bell = self.bell()
            try:
                if bell.polls:
                    self.ears = make_ears()
                    bell.add(self.ears.fd)
                    bell.knock()
            except (OSError, ImportError) as error:
                self.why = str(error)
            if self.ears is None:
                self.try_at = clock.now() + SWEEP
        return self.ears

    def hear(self, doors: list[int], told: Told) -> int:
        """Note who is to be told of what has happened; how much that was."""
        for fd in doors:
            if fd in self.processes:
                self.gone(fd, told)
        if self.ears is None or self.ears.fd not in doors:
            return 0
        heard = self.ears.read()
        for number, name in heard:
            if number < -1:
                self.gone(number, told)
                continue
            # -1: events were dropped, so anything may have happened anywhere.
            found = self.folders.values() if number == -1 else self.numbers.get(number, ())
            for folder in list(found):
                if name is None:
                    folder.alarm, folder.due = True, 0.0
                elif name:
                    if name in folder.names:
                        self.fasten(folder, name)  # first, so that nothing is missed of it
                        told.update(dict.fromkeys(folder.names[name]))
                    told.update(dict.fromkeys(folder.names.get(b"", ())))
            for folder, alias in list(self.files.get(number, ())) if name == b"" else ():
                told.update(dict.fromkeys(folder.names.get(alias, ())))
        return len(heard)

    def gone(self, number: int, told: Told) -> None:
        """A process has ended: told once.

        A number that was ready may be given back and be another process's by now: asked again.
        """
        if number >= 0 and not ready(number):
            return
        for watch in list(self.processes.get(number, ())):
            told[watch] = None
            self.unfollow(watch)

    def drop_ears(self) -> None:
        """Other code has closed our descriptors: begin anew, and tell all."""
        self.ears = self.sleeper = None
        self.numbers.clear()
        self.files.clear()
        for watches in self.processes.values():
            self.unseen.update(watches)
            for watch in watches:
                watch.number = None
        self.processes.clear()
        for folder in self.folders.values():
            folder.files.clear()
            folder.number, folder.alarm, folder.due = None, True, 0.0

    def give_back(self) -> None:
        """Nobody watches: no descriptor is kept."""
        self.folders.clear()
        self.numbers.clear()
        self.files.clear()
        ears, self.ears, bell, self.sleeper = self.ears, None, self.sleeper, None
        for each in (bell, ears):
            if each is not None:
                each.close()

    def next_look(self, now: float) -> float:
        """The instant at which somebody is to be looked after."""
        latest = now + (SWEEP / 4 if self.unseen else SWEEP)
        return min([latest, *(folder.due for folder in self.folders.values())])


def make_ears() -> Any:
    """An instance of what this system has. Raises OSError."""
    system: str = sys.platform  # a variable: type checkers would follow one system only
    if system == "linux":
        return inotify.Inotify()
    if hasattr(select, "kqueue"):
        return kqueue.Kqueue()
    raise OSError(f"{system} has no events of files that we know")


# ------------------------------------------------------------------------------------------------
# What a watched folder is known to be: who waits for which name in it, and what was last seen.
#
# Rule for what cannot be heard: two changes within one tick of a file system's clock may look
# alike, so a change that was seen is told once more at the next look.


SWEEP = 2.0  # seconds between two looks at what is heard: for what no event tells, if anything
FIRST, LONGEST, GROWTH = 0.02, 0.5, 1.5  # seconds between two looks at what is not
SPREAD = 0.25  # part of a pause that is left to chance, so that many do not look together


class Folder:
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
        self.names: dict[bytes, dict[Watch, None]] = {}
        self.files: dict[bytes, int] = {}
        self.seen: dict[bytes, Any] = {}  # name -> what it looked like, whether to tell it again
        self.pause, self.due = FIRST, NEVER

    def told(self, content: bool) -> bool:
        """Whether events tell all that is to be known."""
        return self.number is not None and (self.heard or not content)

    def remember(self, path: str) -> None:
        """What there is now, for one who begins to wait where nothing is heard.

        He is told once for nothing: a change just before and one just after may look alike.
        """
        self.pause = FIRST
        self.seen[parted(path)[1]] = (signature(path), True)

    def changed(self) -> list[Watch]:
        """Look at every name: those to be told. Calls of lstat(2), any of which may hang."""
        told: list[Watch] = []
        for name, watches in self.names.copy().items():
            now = signature(os.path.join(self.path, os.fsdecode(name)))
            before, again = self.seen.get(name, (now, False))
            self.seen[name] = (now, now != before)
            if now != before or again:
                told += watches
        return told

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


def signature(path: str) -> Any:
    """What a change changes, most of the time."""
    try:
        found = os.lstat(path)
    except OSError as error:
        return error.errno
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def parted(path: str) -> tuple[str, bytes]:
    """(folder, name) of a path; the name of everything in a folder is b""."""
    folder, name = os.path.split(path)
    return folder, os.fsencode(name)


# ------------------------------------------------------------------------------------------------
# How the thread of runtime/watch_thread.py sleeps: until a descriptor is ready or somebody knocks.


poll = native.real(select, "poll")  # that of gevent makes a hub for each thread of ours


def is_ours(fd: int, what: str = "") -> bool:
    """Whether a number still leads to what we opened: other code may have closed or reused it."""
    try:
        found = os.readlink(f"/proc/self/fd/{fd}")
    except FileNotFoundError:
        return not os.path.isdir("/proc/self")  # no such system; else it is closed
    return found.startswith("anon_inode:") and what in found


def ready(number: int) -> bool:
    """Whether a descriptor is ready now, or is none any more."""
    asked = poll()
    asked.register(number, select.POLLIN)
    return bool(asked.poll(0))


def gone(fd: int) -> OSError:
    """What a descriptor that is not ours any more is told as."""
    return OSError(errno.EBADF, os.strerror(errno.EBADF), fd)


class PollSleeper:
    """poll(2) over any number of descriptors, one of them to be knocked on. Raises OSError."""

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
        """Wake for this one too, from the next sleep on: knock."""
        self._poll.register(fd, select.POLLIN)

    def drop(self, fd: int) -> None:
        """Forget it. Before it is closed."""
        try:
            self._poll.unregister(fd)
        except KeyError:
            pass

    def knock(self) -> None:
        """End the sleep, the next one if nobody sleeps. Never waits."""
        try:
            if self._is_ours():  # else the thread finds that out by itself
                native.write(self._other, b"\1\0\0\0\0\0\0\0")
        except OSError:
            pass  # knocked on often enough, or closed just now

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


class LockSleeper:
    """Without any descriptor: Windows, which polls no files, and where none is left (EMFILE)."""

    polls = False
    fds: tuple[int, ...] = ()

    def __init__(self) -> None:
        self._bell = native.allocate_lock()
        self._bell.acquire()

    def add(self, fd: int) -> None:
        """What has no event is looked at now and then: nothing to add."""

    drop = add

    def knock(self) -> None:
        try:
            self._bell.release()
        except RuntimeError:
            pass  # knocked already

    def wait(self, seconds: float) -> list[int]:
        self._bell.acquire(timeout=max(0.0, seconds))
        return []

    def close(self) -> None:
        """Nothing to give back."""


Sleeper = PollSleeper | LockSleeper


def sleeper(old: Sleeper | None, *, deaf: bool) -> Sleeper:
    """The best one to be had; `old` when that is no better."""
    if poll is not None and not deaf:
        try:
            return PollSleeper()
        except OSError:
            pass
    return old or LockSleeper()
