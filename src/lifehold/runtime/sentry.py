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
