"""The one thread of a process that hears what happens to paths and processes.

Promise: whoever watches is told after every change that comes after `add` returned. By an event;
where there is none (no instance or watch left, no such folder yet, a system without them) by looks
at growing intervals, and events are asked for again meanwhile. It starts with the first watch and
ends, with all its descriptors, within two seconds of the last one (runtime/watch_table.py: the
tables).
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import atexit
import errno
import os
import sys

from ..core.events import report
from . import clock, fork, native
from .watch_table import FIRST, SWEEP, PollSleeper, Post, is_ours, parted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    from ..core.acquire import Ask
    from .change_wait import Lookout
    from .watch_table import Folder, Told

    W = TypeVar("W", "Watch", "ProcessWatch")


# ------------------------------------------------------------------------------------------------
# A blocking waiter that is the only one of its process hears for itself, without a second thread.
#
# Promise: as that of the thread of runtime/watch_thread.py, and a thread's wake-up less. Rule: who
# alone watches anything sleeps on the same instance as that thread, which leaves it out meanwhile;
# whoever of the two reads what has happened tells all. So nothing is missed when the post goes
# over: to the thread as soon as somebody else watches too, or the instance was closed by other
# code.
#
# Who is woken looks at the lock first, and reads what has happened when he goes to sleep again;
# then he looks once more. Who has looked in vain, since somebody else's file was meant, reads first
# from then on.


LONGEST = 3600.0  # seconds of one sleep
IN_VAIN = 16  # rounds in a row that nobody waited for, until who hears takes a breath
BREATH = 0.002  # seconds: so a busy folder costs at most so many wakes


class Sentry(Post):
    """The tables, and who hears. `standing`: the watch of the waiter who does, None: the thread."""

    def __init__(self, *, deaf: bool = False) -> None:
        super().__init__(deaf=deaf)
        self.standing: Watch | None = None
        self.place: tuple[Folder, bytes] | None = None  # of that watch
        self.desk: PollSleeper | None = None  # what that waiter sleeps on
        self.left_out = False  # whether the thread has not been told that it hears again
        self.due = 0.0  # the instant of the thread's next look

    # ---- as the tables, where somebody may stand

    def enter(self, watch: Watch) -> Folder:
        folder = super().enter(watch)
        if self.standing is not watch:
            self.step_down(tell=True)
        return folder

    def remove(self, watch: Watch) -> None:
        with fork.gate:
            if watch is not self.standing:
                super().remove(watch)
                return
            self.step_down(tell=False)
            watch.closed = True
            if self.place is not None:  # the kernel's watches are the thread's to end
                folder, name = self.place
                mine = folder.names.get(name, {})
                mine.pop(watch, None)
                if not mine:
                    folder.names.pop(name, None)
                    folder.seen.pop(name, None)

    def drop_ears(self) -> None:
        self.step_down(tell=False)
        super().drop_ears()

    def give_back(self) -> None:
        self.step_down(tell=False)
        super().give_back()
        desk, self.desk = self.desk, None
        if desk is not None:
            desk.close()

    # ---- standing

    def stand(self, watch: Watch) -> PollSleeper | None:
        """What to sleep on for who watches alone; None: another hears for him."""
        with fork.gate:
            if self.standing is watch and self.place:
                if self.place[0].number is not None:
                    return self.desk
                self.step_down(tell=True)  # the folder is not there: the thread looks for it
                return None
            path, name = parted(watch.path)
            folder, bell, ears = self.folders.get(path), self.sleeper, self.ears
            if folder is None or bell is None or ears is None or not bell.polls or self.deaf:
                return None
            if folder.number is None or not self.is_alone(watch):
                return None
            try:
                desk = self.desk = self.desk or PollSleeper()
            except OSError:
                return None
            desk.add(ears.fd)
            self.place, self.standing = (folder, name), watch
            bell.drop(ears.fd)
            bell.knock()
            if self.standing is watch and self.is_alone(watch):
                return desk
            self.standing = watch  # a signal handler has begun to watch, in between
            self.step_down(tell=True)
            return None

    def is_alone(self, watch: Watch) -> bool:
        """Whether nobody else watches a path."""
        names = [
            each for folder in list(self.folders.values()) for each in list(folder.names.values())
        ]
        return [each for mine in names for each in list(mine)] == [watch]

    def step_down(self, *, tell: bool) -> None:
        """The thread hears again. Under the gate. `tell`: now, else when somebody watches."""
        ears, bell, desk = self.ears, self.sleeper, self.desk
        if self.standing is None:
            return
        if ears is not None and bell is not None:
            bell.add(ears.fd)  # first: a signal handler may come in between, and wait
            self.left_out = not tell
        self.standing = None
        if ears is not None and desk is not None:
            desk.drop(ears.fd)
        if tell and bell is not None:
            bell.knock()

    def hear_standing(self, ready: list[int]) -> bool:
        """Tell whom it concerns what has happened. Whether it concerned anybody."""
        told: Told = {}
        try:
            with fork.gate:
                self.hear(ready, told)
                due = self.next_look(clock.now())
                if due < self.due and self.sleeper is not None:
                    self.due = due
                    self.sleeper.knock()
        finally:
            for watch in told:
                watch.tell()
        return bool(told)

    def robbed(self) -> None:
        """Other code has closed a descriptor of ours: the thread finds out which, and mends it."""
        with fork.gate:
            self.desk = None
            self.step_down(tell=False)
            self.due = 0.0
            if self.sleeper is not None:
                self.sleeper.knock()


def step_down(watch: Watch) -> None:
    """Others wait for the same path: the thread hears for them."""
    post: Any = watch._post
    if post.standing is watch:
        with fork.gate:
            if post.standing is watch:
                post.step_down(tell=True)


def nobody() -> None:
    """In place of a bell while nobody sleeps."""


def slept(ask: Ask, place: Lookout, until: float) -> bool:
    """Sleep until `place` is rung, the ask is cancelled, or that instant. False: not by us."""
    watch = place.only_watch()
    if watch is None:
        return False
    post: Any = watch._post
    desk = post.stand(watch)
    if desk is None:
        return False
    ring, vain = desk.knock, 0
    unread, place.unread = place.unread, False
    if ask.cancel is not None:
        ask.cancel.attach(ring)
    try:
        place.ring = ring  # before the look at `rung`, so that none is missed
        while not place.rung and not ask.cancelled and (left := until - clock.now()) > 0:
            ready = desk.wait(0.0 if unread else min(left, LONGEST))
            if ready and not unread and not place.doubts:
                place.unread = True
                break
            if ready:
                place.ring = nobody  # this thread is awake
                place.doubts = not post.hear_standing(ready)
                vain = vain + 1 if place.doubts else 0
                place.ring = ring
                if vain > IN_VAIN:
                    clock.pause(BREATH)
            unread = False
    except OSError as error:
        if error.errno != errno.EBADF:
            raise
        post.robbed()
        return False
    finally:
        if ask.cancel is not None:
            ask.cancel.detach(ring)
    place.rung = False  # before the caller looks: what comes from here on is told next time
    return True


# ------------------------------------------------------------------------------------------------
# Being told when a path changes or a process ends: `watch`, `watch_process`.
#
# Make the watch of "/run/lock/a" with a `ring`, look with the watch in place, close it at the end.
#
# Promise: after every change that comes after `watch` returned, `ring` is called at least once, in
# a thread of ours; sometimes also for nothing, so look. It must be quick. What is told: the entry
# was made, removed, renamed, replaced by another or, with `content`, written or touched. Below it
# runtime/watch_thread.py decides how.


class Watch:
    """A path that is watched from `start()` to `close()`. It belongs to the process that made it.

    `path`: absolute, there or not; with a slash at its end, every entry of that folder. `blind`:
    events do not reach us there (a network file system, fuse): it is looked at instead. `content`:
    whether writes count.
    """

    __slots__ = ("_generation", "_post", "closed", "content", "path", "ring")

    def __init__(
        self, path: str, ring: Callable[[], object], *, blind: bool = False, content: bool = True
    ) -> None:
        self.path, self.ring, self.content, self.closed = path, ring, content, False
        self._generation = fork.generation
        self._post = far if blind else near

    def start(self) -> None:
        """From its return on nothing is missed. Raises RuntimeError: no thread to be had.

        Safe to repeat; nothing comes of it once it is closed.
        """
        if self._generation == fork.here():
            self._post.add(self)

    def close(self) -> None:
        """Ring no more, but for a call that is under way in the other thread. Safe to repeat."""
        if self._generation == fork.here():
            self._post.remove(self)

    def tell(self) -> None:
        """Ring."""
        _ring(self.ring)


class ProcessWatch:
    """`ring()` once when a process of our PID namespace has ended; at once if there is none."""

    __slots__ = ("_generation", "_post", "number", "pid", "ring")

    def __init__(self, pid: int, ring: Callable[[], object]) -> None:
        self.pid, self.ring = pid, ring
        self.number: int | None = None  # its pidfd
        self._generation = fork.generation
        self._post = near

    def start(self) -> None:
        """From its return on the end is not missed. Raises RuntimeError: no thread to be had."""
        if self._generation != fork.here():
            return
        try:
            self._post.follow(self)
        except ProcessLookupError:
            self.tell()

    def close(self) -> None:
        """Ring no more. Safe to repeat."""
        if self._generation == fork.here():
            self._post.unfollow(self)

    def tell(self) -> None:
        """Ring."""
        _ring(self.ring)


def _ring(ring: Callable[[], object]) -> None:
    """Whatever comes of it: the others are to be told all the same."""
    try:
        ring()
    except Exception as error:  # noqa: BLE001
        report(error)


def watch(
    path: str, ring: Callable[[], object], *, blind: bool = False, content: bool = True
) -> Watch:
    """A `Watch`, started."""
    return _started(Watch(path, ring, blind=blind, content=content))


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


LAST_WORD = 0.2  # seconds that the end of the interpreter waits for a look that hangs
_said: set[str] = set()
_mask: Any = None  # the signals that the program's own threads block


def say(why: str) -> None:
    """Once, at DEBUG. Who has not imported logging has not asked to hear it."""
    logging: Any = sys.modules.get("logging")
    if why not in _said and hasattr(logging, "getLogger"):
        _said.add(why)
        logging.getLogger("lifehold").debug("no event tells of changes, looking instead: %s", why)


class Watchman(Sentry):
    """All watches of one process, and the thread that serves them."""

    def __init__(self, *, deaf: bool = False) -> None:
        super().__init__(deaf=deaf)
        self.over = self.running = False
        self.vain = 0
        self.at_work = native.allocate_lock()

    # ---- in the caller's thread ------------------------------------------------------------------

    def add(self, watch: Watch) -> None:
        """Watch a path. Raises RuntimeError when there is no thread to be had."""
        with fork.gate:
            if watch.closed:
                return
            folder = self.enter(watch)
            told = folder.told(watch.content)
            self.start(folder.due)
        if not told:
            folder.remember(watch.path)

    def follow(self, watch: ProcessWatch) -> None:
        """Watch a process. Raises ProcessLookupError when it has ended, RuntimeError as `add`."""
        with fork.gate:
            self.attend(watch)
            self.start(clock.now() + SWEEP / 4)

    def start(self, due: float) -> None:
        """See to it that the thread runs, and is awake at that instant."""
        if self.over:
            raise RuntimeError("the interpreter is shutting down")
        bell = self.bell()
        if not self.running:
            self.due = due
            native.start_new_thread(self.keep, ())
            self.running = True
        elif due < self.due or self.left_out:
            self.due, self.left_out = min(due, self.due), False
            bell.knock()

    def stop(self) -> None:
        """At interpreter exit: a thread that died with the gate in hand would hang the rest."""
        self.over = True
        bell = self.sleeper
        if bell is not None and self.running:
            bell.knock()
            if self.at_work.acquire(timeout=LAST_WORD):
                self.at_work.release()

    # ---- in its own ------------------------------------------------------------------------------

    def keep(self) -> None:
        """Sleep, hear, look, tell."""
        global _mask
        if hasattr(_signal, "pthread_sigmask"):  # they belong to the program's own threads
            _mask = _signal.pthread_sigmask(_signal.SIG_SETMASK, _signal.valid_signals())
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
        bell = self.sleeper
        ready = [] if bell is None else bell.wait(min(self.due - began, SWEEP))
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
            if self.ears is not None and not is_ours(self.ears.fd):
                self.drop_ears()
                self.bell()
            due = [folder for folder in self.folders.values() if folder.due <= now]
            told.update(dict.fromkeys(self.unseen))
        for folder in due:
            self.look_at(folder, told)
        with fork.gate:
            if self.folders or self.processes or self.unseen:  # else `due` stays, and so it ends
                self.due = self.next_look(clock.now())

    def look_at(self, folder: Folder, told: Told) -> None:
        """Add a folder anew, by its path, and compare what is in it with what was."""
        with fork.gate:
            if self.folders.get(folder.path) is not folder:
                return
            if not folder.names:  # an interrupted `remove`
                self.folders.pop(folder.path, None)
                self.forget(folder)
                return
            for name in folder.files.keys() - folder.names.keys():  # of who heard for himself
                self.loosen(folder, name)
            alarm, folder.alarm = folder.alarm, False
            alarm = self.listen(folder) or alarm
            for name in list(folder.names):
                alarm = self.fasten(folder, name) or alarm
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
                self.drop_ears()
                self.bell()
                self.due = 0.0
        else:
            report(error)
        clock.pause(FIRST)


def aside(call: Callable[[], object]) -> None:
    """`call()` in a thread of its own: it may take its time, and start processes.

    These inherit the signal mask of the thread that starts them; ours blocks all.
    """

    def run() -> None:
        if _mask is not None:
            _signal.pthread_sigmask(_signal.SIG_SETMASK, _mask)
        call()

    try:
        native.start_new_thread(run, ())
    except RuntimeError:  # no thread to be had
        call()


near = Watchman()
# What lies behind a file server is looked at by a thread of its own: a server that does not
# answer holds up nobody else.
far = Watchman(deaf=True)
_parents: list[Watchman] = []  # never to be touched again, not by a finalizer either


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
        for each in (parent.sleeper, parent.ears, parent.desk):
            copies.update(() if each is None else each.fds)
        for fd in copies:
            try:
                if is_ours(fd):
                    os.close(fd)
            except OSError:
                continue  # closed behind our back
        if parent.running:
            _parents.append(parent)
    near, far = Watchman(), Watchman(deaf=True)
