"""The one thread of a process that hears what happens to paths and processes.

Promise: whoever watches is told after every change that comes after `add` returned. By an event;
where there is none (no instance or watch left, no such folder yet, a system without them) by looks
at growing intervals, and events are asked for again meanwhile. It starts with the first watch and
ends, with all its descriptors, within two seconds of the last one.

Rules: the tables are changed under `fork.gate` alone (L9: no fork tears them apart), in steps that
a signal handler may interrupt and do as well. Nobody is told, and no path is looked at, under it.
What an event says is only where to look: a folder that something became of is added anew by its
path first, then all who wait there are told.
"""

from __future__ import annotations

import atexit
import errno
import os
import sys

from ..core.deadline import NEVER
from ..core.errors import pass_up
from ..core.events import report
from . import clock, fork, native, own_thread
from .watch_table import (
    FIRST,
    SWEEP,
    Poller,
    WatchedFolder,
    best_sleeper,
    close_ours,
    is_ours,
    make_notifier,
    ready,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    from .watch_table import Sleeper

    Told = dict["PathWatch | ProcessWatch", None]  # a set that keeps its order
    W = TypeVar("W", "PathWatch", "ProcessWatch")


# ------------------------------------------------------------------------------------------------
# Being told when a path changes or a process ends: `watch`, `watch_process`.
#
# Make the watch of "/run/lock/a" with a `ring`, look with the watch in place, close it at the end.
#
# Promise: after every change that comes after `watch` returned, `ring` is called at least once, in
# a thread of ours; sometimes also for nothing, so look. It must be quick. What is told: the entry
# was made, removed, renamed, replaced by another or, with `content`, written or touched.


class PathWatch:
    """A path that is watched from `start()` to `close()`. It belongs to the process that made it.

    `path`: absolute, there or not; with a slash at its end, every entry of that folder. It is kept
    as `folder` and `name`, b"" for every entry. `blind`: events do not reach us there (a network
    file system, fuse): it is looked at instead. `content`: whether writes count.
    """

    __slots__ = ("_generation", "_thread", "closed", "content", "folder", "name", "ring")

    def __init__(
        self, path: str, ring: Callable[[], object], *, blind: bool = False, content: bool = True
    ) -> None:
        self.ring, self.content, self.closed = ring, content, False
        self.folder, name = os.path.split(path)
        self.name = os.fsencode(name)  # b"": everything in the folder
        self._generation = fork.generation
        self._thread = far if blind else near

    def start(self) -> None:
        """From its return on nothing is missed. Raises RuntimeError: no thread to be had.

        Safe to repeat; nothing comes of it once it is closed.
        """
        if is_here(self):
            self._thread.add(self)

    def close(self) -> None:
        """Ring no more, but for a call that is under way in the other thread. Safe to repeat."""
        if is_here(self):
            self._thread.remove(self)

    def tell(self) -> None:
        """Ring."""
        _ring(self.ring)


class ProcessWatch:
    """`ring()` once when a process of our PID namespace has ended; at once if there is none."""

    __slots__ = ("_generation", "_thread", "number", "pid", "ring")

    def __init__(self, pid: int, ring: Callable[[], object]) -> None:
        self.pid, self.ring = pid, ring
        self.number: int | None = None  # its pidfd
        self._generation = fork.generation
        self._thread = near

    def start(self) -> None:
        """From its return on the end is not missed. Raises RuntimeError: no thread to be had."""
        if not is_here(self):
            return
        try:
            self._thread.follow(self)
        except ProcessLookupError:
            self.tell()

    def close(self) -> None:
        """Ring no more. Safe to repeat."""
        if is_here(self):
            self._thread.unfollow(self)

    def tell(self) -> None:
        """Ring."""
        _ring(self.ring)


def is_here(watch: PathWatch | ProcessWatch) -> bool:
    """Whether it is of this process (L9)."""
    if not fork.page[0]:
        fork.catch_up()
    return watch._generation == fork.generation


def _ring(ring: Callable[[], object]) -> None:
    """Whatever comes of it: the others are to be told all the same."""
    try:
        ring()
    except Exception as error:  # noqa: BLE001
        report(error)


def watch(
    path: str, ring: Callable[[], object], *, blind: bool = False, content: bool = True
) -> PathWatch:
    """A `PathWatch`, started."""
    return _started(PathWatch(path, ring, blind=blind, content=content))


def watch_process(pid: int, ring: Callable[[], object]) -> ProcessWatch:
    """A `ProcessWatch`, started."""
    return _started(ProcessWatch(pid, ring))


def _started(made: W) -> W:
    """Nothing stays behind of a watch that could not start, or was interrupted."""
    try:
        made.start()
    except BaseException:
        made.close()
        raise
    return made


IN_VAIN = 16  # rounds in a row that nobody waited for, until who hears takes a breath
BREATH = 0.002  # seconds: so a busy folder costs at most so many wakes
LAST_WORD = 0.2  # seconds that the end of the interpreter waits for a look that hangs
_said: set[str] = set()


def say(why: str) -> None:
    """Once, at DEBUG. Who has not imported logging has not asked to hear it."""
    logging: Any = sys.modules.get("logging")
    if why not in _said and hasattr(logging, "getLogger"):
        _said.add(why)
        logging.getLogger("lifehold").debug("no event tells of changes, looking instead: %s", why)


class WatchThread:
    """All watches of one process, and the thread that serves them.

    `deaf`: of paths that no event can reach, told by looks alone. `solo`: the watch of the
    waiter that hears for itself, None: the thread hears.
    """

    def __init__(self, *, deaf: bool = False) -> None:
        self.deaf = deaf
        self.folders: dict[str, WatchedFolder] = {}
        self.numbers: dict[int, dict[WatchedFolder, None]] = {}  # one folder may have many paths
        # And one file many names.
        self.files: dict[int, dict[tuple[WatchedFolder, bytes], None]] = {}
        # By pidfd, or by number (below -1) of a kqueue.
        self.processes: dict[int, dict[ProcessWatch, None]] = {}
        self.unseen: dict[ProcessWatch, None] = {}  # told for nothing, now and then
        self.notifier: Any = None  # the instance of inotify or kqueue
        self.sleeper: Sleeper | None = None
        self.try_at = 0.0  # before it no instance is asked for again
        self.why = ""  # there are no events, if so
        self.solo: PathWatch | None = None
        self.place: tuple[WatchedFolder, bytes] | None = None  # of that watch
        self.poller: Poller | None = None  # what that waiter sleeps on
        self.left_out = False  # whether the thread has not been told that it hears again
        self.due = 0.0  # the instant of the thread's next look
        self.over = self.running = False
        self.vain = 0
        self.at_work = native.allocate_lock()

    # ---- paths

    def enter(self, watch: PathWatch) -> tuple[WatchedFolder, bool]:
        """Note who waits for a path, and ask for its events. Whether these tell all."""
        path, name = watch.folder, watch.name
        while True:  # a signal handler may take away a folder that nobody waits in yet
            folder = self.folders.setdefault(path, WatchedFolder(path))
            mine = folder.names.setdefault(name, {})
            mine[watch] = None
            if self.folders.get(path) is folder and folder.names.get(name) is mine:
                break
        folder.content = folder.content or watch.content
        if self.listen(folder) and folder.due < NEVER:  # it has been another for the others too
            folder.alarm, folder.due = True, 0.0
        self.watch_file(folder, name)
        told = folder.told(watch.content)
        folder.due = min(folder.due, clock.now() + (SWEEP if told else FIRST))
        if self.solo is not watch:
            self.end_solo(tell=True)
        return folder, told

    def remove(self, watch: PathWatch) -> None:
        """Watch it no more. Safe to repeat."""
        path, name = watch.folder, watch.name
        with fork.gate:
            if watch is self.solo:
                self.remove_solo(watch)
                return
            watch.closed = True
            folder = self.folders.get(path)
            if folder is None:
                return
            mine = folder.names.get(name, {})
            mine.pop(watch, None)
            if not mine:
                folder.names.pop(name, None)
                folder.seen.pop(name, None)
                self.unwatch_file(folder, name)
            if not folder.names:
                self.folders.pop(path, None)
                self.forget(folder)

    def listen(self, folder: WatchedFolder) -> bool:
        """Have the kernel tell of the folder that its path leads to. Whether that is another."""
        notifier, number = self.hearing(), None
        if notifier is not None:
            try:
                number = notifier.add(folder.path, folder.content)
            except OSError as error:
                pass_up(error)
                self.why = str(error)
        folder.heard = notifier is not None and notifier.sees_content
        if number == folder.number:
            return False
        self.forget(folder)
        folder.number = number
        if number is not None:
            self.numbers.setdefault(number, {})[folder] = None
        return True

    def forget(self, folder: WatchedFolder) -> None:
        """No more events for this path of a folder."""
        for name in list(folder.files):
            self.unwatch_file(folder, name)
        number, folder.number = folder.number, None
        if number is not None:
            self.numbers.get(number, {}).pop(folder, None)
            self.drop_number(number)

    def drop_number(self, number: int) -> None:
        """No more events of this number if nobody waits for them."""
        for table in (self.numbers, self.files):
            if not table.get(number, True):
                table.pop(number, None)
                if number not in self.numbers and number not in self.files and self.notifier:
                    self.notifier.remove(number)

    # ---- files, told of by whichever of their names they are written

    def watch_file(self, folder: WatchedFolder, name: bytes) -> bool:
        """Have the kernel tell of the file that a name leads to. Whether that is another."""
        number = None
        if name and folder.number is not None and folder.content and self.notifier.sees_content:
            try:
                number = self.notifier.add_file(os.path.join(folder.path, os.fsdecode(name)))
            except FileNotFoundError:
                pass  # that it comes is told by its folder
            except OSError as error:  # not readable, no watch left: it is looked at
                pass_up(error)
                folder.heard, self.why = False, str(error)
        if number == folder.files.get(name):
            return False
        self.unwatch_file(folder, name)
        if number is not None:
            folder.files[name] = number
            self.files.setdefault(number, {})[folder, name] = None
        return True

    def unwatch_file(self, folder: WatchedFolder, name: bytes) -> None:
        """No more events of the file that a name led to."""
        number = folder.files.pop(name, None)
        if number is not None:
            self.files.get(number, {}).pop((folder, name), None)
            self.drop_number(number)

    # ---- processes

    def note_process(self, watch: ProcessWatch) -> None:
        """Note who waits for the end of a process. Raises ProcessLookupError when it has ended."""
        number = self.pidfd_of(watch.pid)
        if number is None:
            self.unseen[watch] = None
            return
        watch.number = number
        self.processes.setdefault(number, {})[watch] = None
        if number >= 0:
            sleeper = self.own_sleeper()
            sleeper.add(number)
            sleeper.wake()

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
                close_ours(number, "pidfd")

    def pidfd_of(self, pid: int) -> int | None:
        """What becomes ready when a process ends; None where nothing does."""
        try:
            if hasattr(os, "pidfd_open"):
                return fork.descriptor(os.pidfd_open, pid) if self.own_sleeper().polls else None
            notifier = self.hearing()
            if hasattr(notifier, "follow"):
                return int(notifier.follow(pid))
        except ProcessLookupError:
            raise
        except OSError as error:  # EMFILE, ENOSYS
            pass_up(error)
            self.why = f"process {pid}: {error}"
        return None

    # ---- the kernel

    def own_sleeper(self) -> Sleeper:
        """What the thread sleeps on; a better one when there is one by now."""
        old = self.sleeper
        if old is None or (not old.polls and clock.now() >= self.try_at):
            new = self.sleeper = best_sleeper(old, deaf=self.deaf)
            if new is not old:
                for fd in self.fds():
                    new.add(fd)
                if old is not None:
                    old.wake()
            return new
        return old

    def fds(self) -> list[int]:
        """What wakes the thread, its own sleeper aside."""
        notifier = [] if self.notifier is None else [self.notifier.fd]
        return notifier + [number for number in self.processes if number >= 0]

    def hearing(self) -> Any:
        """The instance, made when it is first needed; None while there is none to be had."""
        if self.notifier is None and not self.deaf and clock.now() >= self.try_at:
            sleeper = self.own_sleeper()
            try:
                if sleeper.polls:
                    self.notifier = make_notifier()
                    sleeper.add(self.notifier.fd)
                    sleeper.wake()
            except (OSError, ImportError) as error:
                pass_up(error)
                self.why = str(error)
            if self.notifier is None:
                self.try_at = clock.now() + SWEEP
        return self.notifier

    def hear(self, readable: list[int], told: Told) -> int:
        """Note who is to be told of what has happened; how much that was."""
        for fd in readable:
            if fd in self.processes:
                self.gone(fd, told)
        if self.notifier is None or self.notifier.fd not in readable:
            return 0
        heard = self.notifier.read()
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
                        self.watch_file(folder, name)  # first, so that nothing is missed of it
                        # A signal handler may have taken the last one away meanwhile.
                        told.update(dict.fromkeys(folder.names.get(name, ())))
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

    def drop_notifier(self) -> None:
        """Other code has closed our descriptors: begin anew, and tell all.

        What wakes a sleeper is left open: somebody may be about to write to that number.
        """
        self.end_solo(tell=False)
        self.notifier = self.sleeper = None
        self.numbers.clear()
        self.files.clear()
        for number, watches in self.processes.items():
            self.unseen.update(watches)
            for watch in watches:
                watch.number = None
            if number >= 0:
                close_ours(number, "pidfd")
        self.processes.clear()
        for folder in self.folders.values():
            folder.files.clear()
            folder.number, folder.alarm, folder.due = None, True, 0.0

    def give_back(self) -> None:
        """Nobody watches: no descriptor is kept."""
        self.end_solo(tell=False)
        self.folders.clear()
        self.numbers.clear()
        self.files.clear()
        notifier, self.notifier, sleeper, self.sleeper = self.notifier, None, self.sleeper, None
        poller, self.poller = self.poller, None
        for each in (sleeper, notifier, poller):
            if each is not None:
                each.close()

    def next_look(self, now: float) -> float:
        """The instant at which somebody is to be looked after."""
        latest = now + (SWEEP / 4 if self.unseen else SWEEP)
        return min([latest, *(folder.due for folder in self.folders.values())])

    # ---- one waiter that hears for itself

    def remove_solo(self, watch: PathWatch) -> None:
        """The same of the one that stands. Under the gate."""
        self.end_solo(tell=False)
        watch.closed = True
        if self.place is not None:  # the kernel's watches are the thread's to end
            folder, name = self.place
            mine = folder.names.get(name, {})
            mine.pop(watch, None)
            if not mine:
                folder.names.pop(name, None)
                folder.seen.pop(name, None)

    def begin_solo(self, watch: PathWatch) -> Poller | None:
        """What to sleep on for who watches alone; None: another hears for him."""
        with fork.gate:
            if self.solo is watch and self.place:
                if self.place[0].number is not None:
                    return self.poller
                self.end_solo(tell=True)  # the folder is not there: the thread looks for it
                return None
            path, name = watch.folder, watch.name
            folder, sleeper, notifier = self.folders.get(path), self.sleeper, self.notifier
            if (
                folder is None
                or sleeper is None
                or notifier is None
                or not sleeper.polls
                or self.deaf
            ):
                return None
            if folder.number is None or not self.is_alone(watch):
                return None
            try:
                poller = self.poller = self.poller or Poller()
            except OSError as error:
                pass_up(error)
                return None
            poller.add(notifier.fd)
            self.place, self.solo = (folder, name), watch
            sleeper.drop(notifier.fd)
            sleeper.wake()
            if self.solo is watch and self.is_alone(watch):
                return poller
            self.solo = watch  # a signal handler has begun to watch, in between
            self.end_solo(tell=True)
            return None

    def is_alone(self, watch: PathWatch) -> bool:
        """Whether nobody else watches a path."""
        names = [
            each for folder in list(self.folders.values()) for each in list(folder.names.values())
        ]
        return [each for mine in names for each in list(mine)] == [watch]

    def end_solo(self, *, tell: bool) -> None:
        """The thread hears again. Under the gate. `tell`: now, else when somebody watches."""
        notifier, sleeper, poller = self.notifier, self.sleeper, self.poller
        if self.solo is None:
            return
        if notifier is not None and sleeper is not None:
            sleeper.add(notifier.fd)  # first: a signal handler may come in between, and wait
            self.left_out = not tell
        self.solo = None
        if notifier is not None and poller is not None:
            poller.drop(notifier.fd)
        if tell and sleeper is not None:
            sleeper.wake()

    def hear_solo(self, ready: list[int]) -> bool:
        """Tell whom it concerns what has happened. Whether it concerned anybody."""
        told: Told = {}
        try:
            with fork.gate:
                self.hear(ready, told)
                due = self.next_look(clock.now())
                if due < self.due and self.sleeper is not None:
                    self.due = due
                    self.sleeper.wake()
        finally:
            for watch in told:
                watch.tell()
        return bool(told)

    def robbed(self) -> None:
        """Other code has closed a descriptor of ours: the thread finds out which, and mends it."""
        with fork.gate:
            self.poller = None
            self.end_solo(tell=False)
            self.due = 0.0
            if self.sleeper is not None:
                self.sleeper.wake()

    # ---- in the caller's thread

    def add(self, watch: PathWatch) -> None:
        """Watch a path. Raises RuntimeError when there is no thread to be had."""
        others: Told = {}
        try:
            with fork.gate:
                if watch.closed:
                    return
                self.catch_up(others)
                folder, told = self.enter(watch)
                self.start(folder.due)
        finally:
            for each in others:
                each.tell()
        if not told:
            folder.remember(watch.name)

    def catch_up(self, told: Told) -> None:
        """Read what came while nobody waited: who begins now looks once more after this anyway.

        Only while nobody waits: an exception of a signal handler after the read drops what was
        read, and others would not look again.
        """
        alone = not self.processes and not any(each.names for each in [*self.folders.values()])
        if self.left_out and alone and self.notifier is not None:
            try:
                self.hear([self.notifier.fd], told)
            except OSError as error:  # other code has closed it: the thread finds out
                pass_up(error)

    def follow(self, watch: ProcessWatch) -> None:
        """Watch a process. Raises ProcessLookupError when it has ended, RuntimeError as `add`."""
        with fork.gate:
            self.note_process(watch)
            self.start(clock.now() + SWEEP / 4)

    def start(self, due: float) -> None:
        """See to it that the thread runs, and is awake at that instant."""
        if self.over:
            raise RuntimeError("the interpreter is shutting down")
        sleeper = self.own_sleeper()
        if not self.running:
            self.due, self.left_out = due, False
            own_thread.start(self.keep)
            self.running = True
        elif due < self.due or self.left_out:
            self.due, self.left_out = min(due, self.due), False
            sleeper.wake()

    def stop(self) -> None:
        """At interpreter exit: a thread that died with the gate in hand would hang the rest."""
        self.over = True
        sleeper = self.sleeper
        if sleeper is not None and self.running:
            sleeper.wake()
            if self.at_work.acquire(timeout=LAST_WORD):
                self.at_work.release()

    # ---- in its own

    def keep(self) -> None:
        """Sleep, hear, look, tell."""
        own_thread.hold_signals()
        with self.at_work:
            while not self.ending():
                try:
                    self.one_round()
                except Exception as error:  # noqa: BLE001 - the others' watches are kept
                    self.mend(error)

    def ending(self) -> bool:
        """Whether nobody watches any more; then all is given back, with no fork in between."""
        if self.over:  # the interpreter ends: the gate must not be taken any more
            return True
        with fork.gate:
            watched = any(folder.names for folder in self.folders.values())
            if watched or self.processes or self.unseen or clock.now() < self.due:
                return False
            self.running = False
            self.give_back()
            return True

    def one_round(self) -> None:
        began, heard = clock.now(), 0
        told: Told = {}
        sleeper = self.sleeper
        ready = [] if sleeper is None else sleeper.wait(min(self.due - began, SWEEP))
        if self.over:
            return
        try:
            if ready:
                with fork.gate:
                    heard = self.hear(ready, told)
                    self.due = self.next_look(clock.now()) if heard else self.due
            if clock.now() >= self.due:
                self.look(told)
        finally:
            for watch in told:
                watch.tell()
        if self.why:
            why, self.why = self.why, ""
            say(why)
        quiet = told or not heard or clock.now() - began > 5 * BREATH
        self.vain = 0 if quiet else self.vain + 1
        if self.vain > IN_VAIN:
            clock.pause(BREATH)

    def look(self, told: Told) -> None:
        """Look at every folder that is due; find the instant of the next look."""
        now = clock.now()
        with fork.gate:
            if self.notifier is not None and not is_ours(self.notifier.fd):
                self.drop_notifier()
                self.own_sleeper()
            due = [folder for folder in self.folders.values() if folder.due <= now]
            told.update(dict.fromkeys(self.unseen))
        for folder in due:
            self.look_at(folder, told)
        with fork.gate:
            if self.folders or self.processes or self.unseen:  # else `due` stays, and so it ends
                self.due = self.next_look(clock.now())

    def look_at(self, folder: WatchedFolder, told: Told) -> None:
        """Add a folder anew, by its path, and compare what is in it with what was."""
        with fork.gate:
            if self.folders.get(folder.path) is not folder:
                return
            if not folder.names:  # an interrupted `remove`
                self.folders.pop(folder.path, None)
                self.forget(folder)
                return
            for name in folder.files.keys() - folder.names.keys():  # of who heard for himself
                self.unwatch_file(folder, name)
            alarm, folder.alarm = folder.alarm, False
            alarm = self.listen(folder) or alarm
            for name in list(folder.names):
                alarm = self.watch_file(folder, name) or alarm
            folder.due = clock.now() + SWEEP  # an alarm, or who begins to wait, may set it earlier
        changed = folder.changed()
        with fork.gate:
            pause = folder.next_pause(changed=bool(changed) or alarm)
            folder.due = min(folder.due, clock.now() + pause)
            told.update(dict.fromkeys(changed))
            for watches in folder.names.values() if alarm else ():
                told.update(dict.fromkeys(watches))

    def mend(self, error: Exception) -> None:
        """Go on after an error. Descriptors that other code has closed are opened anew."""
        if isinstance(error, OSError) and error.errno == errno.EBADF:
            with fork.gate:
                self.drop_notifier()
                self.own_sleeper()
                self.due = 0.0
        else:
            report(error)
        clock.pause(FIRST)


near = WatchThread()
# What lies behind a file server is looked at by a thread of its own: a server that does not
# answer holds up nobody else.
far = WatchThread(deaf=True)
_parents: list[WatchThread] = []  # never to be touched again, not by a finalizer either


def _at_exit() -> None:
    for each in (near, far):
        each.stop()


atexit.register(_at_exit)


@fork.in_child
def _forget() -> None:
    """L9  A child never reads its parent's events: it closes its copies and begins anew."""
    global near, far
    for parent in (near, far):
        copies = {*parent.fds()}
        for each in (parent.sleeper, parent.notifier, parent.poller):
            copies.update(() if each is None else each.fds)
        for fd in copies:
            try:
                if is_ours(fd):
                    os.close(fd)
            except OSError:
                continue  # closed behind our back
        if parent.running:
            _parents.append(parent)
    near, far = WatchThread(), WatchThread(deaf=True)
