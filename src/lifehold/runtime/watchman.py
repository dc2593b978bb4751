"""The one thread of a process that hears what happens to paths and processes.

Promise: whoever watches is told after every change that comes after `add` returned. By an event;
where there is none (no instance or watch left, no such folder yet, a system without them) by looks
at growing intervals, and events are asked for again meanwhile. It starts with the first watch and
ends, with all its descriptors, within two seconds of the last one (runtime/post.py: the tables).
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import atexit
import errno
import os
import sys

from ..core.events import report
from . import clock, fork, native
from .folders import FIRST, SWEEP
from .sentry import BREATH, IN_VAIN, Sentry
from .sleeper import is_ours

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .folders import Folder
    from .post import Told
    from .wake import ProcessWatch, Watch

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
