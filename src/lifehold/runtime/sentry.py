"""A blocking waiter that is the only one of its process hears for itself, without a second thread.

Promise: as that of the thread of runtime/watchman.py, and a thread's wake-up less. Rule: who alone
watches anything sleeps on the same instance as that thread, which leaves it out meanwhile; whoever
of the two reads what has happened tells all. So nothing is missed when the post goes over: to the
thread as soon as somebody else watches too, or the instance was closed by other code.

Who is woken looks at the lock first, and reads what has happened when he goes to sleep again; then
he looks once more. Who has looked in vain, since somebody else's file was meant, reads first from
then on.
"""

from __future__ import annotations

import errno

from . import clock, fork
from .folders import parted
from .post import Post
from .sleeper import PollSleeper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..core.acquire import Ask
    from .folders import Folder
    from .lookout import Lookout
    from .post import Told
    from .wake import Watch

LONGEST = 3600.0  # seconds of one sleep
IN_VAIN = 16  # rounds in a row that nobody waited for, until who hears takes a breath
BREATH = 0.002  # seconds: so a busy folder costs at most so many wakes


class Sentry(Post):
    """The tables, and who hears. `standing`: the watch of the waiter who does, None: the thread."""

    def __init__(self, *, deaf: bool = False) -> None:
        super().__init__(deaf=deaf)
        self.standing: Watch | None = None
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
            path, name = parted(watch.path)
            watch.closed = True
            folder = self.folders.get(path)
            if folder is not None:  # the kernel's watches are the thread's to end: we have the lock
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
            folder, bell, ears = self.folders.get(parted(watch.path)[0]), self.sleeper, self.ears
            if folder is None or bell is None or ears is None or not bell.polls or self.deaf:
                return None
            watched = [names for each in self.folders.values() for names in each.names.values()]
            if folder.number is None or len(watched) > 1 or list(*watched) != [watch]:
                return None
            if self.standing is not watch:
                try:
                    desk = self.desk = self.desk or PollSleeper()
                except OSError:
                    return None
                desk.add(ears.fd)
                self.standing = watch
                bell.drop(ears.fd)
                if self.standing is not watch:  # a signal handler has begun to watch, in between
                    desk.drop(ears.fd)
                    bell.add(ears.fd)
                    return None
                bell.knock()
            return self.desk

    def step_down(self, *, tell: bool) -> None:
        """The thread hears again. Under the gate. `tell`: now, else when somebody watches."""
        watch, self.standing = self.standing, None
        ears, bell = self.ears, self.sleeper
        if watch is None:
            return
        if self.desk is not None and ears is not None:
            self.desk.drop(ears.fd)
        if ears is None or bell is None:
            return
        bell.add(ears.fd)
        self.left_out = not tell
        if tell:
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
