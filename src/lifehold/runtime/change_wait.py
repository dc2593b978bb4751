"""Where a waiter stands who waits for a path to change: `Runtime.changed` of both faces.

Promise: no change is slept through. The first call arms and returns, so that the caller looks
once more with the watch in place; what happens from then on is remembered until it has been told,
whether somebody sleeps at that moment or looks around.
Rule that keeps it: `rung` is set before the sleeper is woken, and taken back before the caller
goes to look, never after.

Those of one process who wait for the same thing stand in one line (`Ask.alike`): one watch serves
all, an event wakes the first, and who leaves, with the lock or without, wakes the next. So a grant
costs two looks, however many wait. A first one who does not come to look holds nobody up for
longer than a tenth of a second: the next one is woken as well.

The kernel may tell of an end before it is there: a close comes before the lock that goes with it,
a process ends before the child that it has forked has closed its copies. So after each event the
caller looks a few times more, at growing intervals.
"""

from __future__ import annotations

import errno

from ..core.deadline import Backoff
from . import clock, fork, heartbeat, native
from .watch_table import FIRST, GROWTH, LONGEST, SPREAD, chance
from .watch_thread import BREATH, IN_VAIN, PathWatch, ProcessWatch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    from ..core.acquire import Ask

# Seconds between two looks where no event reaches us: as the watching thread looks.
PAUSES = Backoff(FIRST, LONGEST, growth=GROWTH, jitter=SPREAD, random=chance)
AGAIN = (0.001, 0.03, 0.5)  # seconds from one look to the next after an event, the last one
ARMED = (0.02, 0.5)  # and after arming: an event may have come just before that
PATIENCE = 0.1  # seconds in which the first of a line comes to look, or the next is woken


class ChangeQueue:
    """Those of this process who wait for the same, in the order in which they came."""

    __slots__ = ("_checks", "_process", "key", "members", "watch")

    def __init__(self, key: Hashable, path: str) -> None:
        self.key = key
        self.members: dict[ChangeWait, None] = {}
        self.watch = PathWatch(path, self.hear)
        self._process: ProcessWatch | None = None
        self._checks = False

    def hear(self) -> None:
        """Something has happened: wake the first."""
        with _mutex:
            first = next(iter(self.members), None)
            more = len(self.members) > 1
        if first is not None:
            first.hear()
            if more:
                self._see_to_it()

    def follow(self, pid: int | None) -> bool:
        """Hear of the end of that process, and of no other. False: it does already.

        Raises RuntimeError.
        """
        with _mutex:
            old = self._process
            if (old and old.pid) == pid:
                return False
            new = self._process = None if pid is None else ProcessWatch(pid, self.hear)
        if new is not None:
            new.start()
        if old is not None:
            old.close()
        return True

    def left(self, member: ChangeWait) -> None:
        """One has left; the next looks, since what woke that one may be still to be seen.

        Safe to repeat.
        """
        with _mutex:
            self.members.pop(member, None)
            first = next(iter(self.members), None)
            if first is None and _lines.get(self.key) is self:
                del _lines[self.key]
        if first is None:
            self.watch.close()
            if self._process is not None:
                self._process.close()
            return
        end_solo(self.watch)  # it may have been that one who heard
        first.pass_on()
        self._see_to_it()

    def _see_to_it(self) -> None:
        """Soon look whether who was woken came to look."""
        if not self._checks:
            self._checks = True
            try:
                heartbeat.at(clock.now() + PATIENCE, self._check)
            except RuntimeError:  # no thread to be had
                self._checks = False

    def _check(self) -> None:
        """Wake the next behind those who were woken and have not come."""
        self._checks = False
        late = idle = None
        with _mutex:
            for each in self.members:
                if not each.rung:
                    idle = each
                    break
                late = each
        if late is not None and idle is not None:
            idle.pass_on()
            self._see_to_it()


_lines: dict[Hashable, ChangeQueue] = {}
_mutex = native.RLock()  # reentrant: a signal handler may wait too


@fork.in_child
def _forget() -> None:
    """L9  Nobody in a child hears what the parent's threads watch."""
    global _mutex
    _mutex = native.RLock()
    _lines.clear()


def _line_of(watching: ChangeWait, key: Hashable, path: str) -> tuple[ChangeQueue, bool]:
    """The line in which it stands from now on, and whether as the first."""
    with _mutex:
        line = _lines.get(key)
        if line is None:
            line = _lines[key] = ChangeQueue(key, path)
        line.members[watching] = None
        return line, len(line.members) == 1


class ChangeWait:
    """Kept in `ask.place` from one call to the next, and given up by `ask.leave()`."""

    __slots__ = (
        "_again",
        "_generation",
        "_key",
        "_line",
        "_pauses",
        "_sought",
        "doubts",
        "ring",
        "rung",
        "unread",
    )

    def __init__(self, path: str, blind: bool, pid: int | None, alike: Hashable = None) -> None:
        self._sought = (path, blind, pid)
        self._key = (path, self if blind or alike is None else alike)
        self._generation = fork.generation
        self._line: ChangeQueue | None = None
        self._pauses = PAUSES.pauses() if blind else None
        self._again: Iterator[float] = iter(ARMED)
        self.rung = False
        self.unread = self.doubts = False  # of one that hears for itself: see `slept`
        self.ring: Callable[[], object] = nobody  # exchanged by each sleeper for its own wake-up

    def arm(self) -> None:
        """From now on nothing is missed. Without a thread to be had it looks now and then."""
        path, blind, pid = self._sought
        line, first = _line_of(self, self._key, path)
        self._line = line
        try:
            if not blind:
                line.watch.start()  # of each one anew: the first may still be about to
            if not first:
                self._again = iter(())
                end_solo(line.watch)
                if pid is None:
                    return
            line.follow(pid)
        except RuntimeError:  # limits, or the interpreter is shutting down
            self._pauses = PAUSES.pauses()

    def follows(self, pid: int | None) -> bool:
        """Hear of the end of that process from now on. False: not before now."""
        path, blind, known = self._sought
        if known == pid:
            return True
        self._sought = path, blind, pid
        try:
            if self._line is None or not self._line.follow(pid):
                return True  # another of the line has seen to it
        except RuntimeError:
            self._pauses = self._pauses or PAUSES.pauses()
        self._again = iter(ARMED)
        return False

    def hear(self) -> None:
        """Look, and then a few times more."""
        self._again = iter(AGAIN)
        self.rung = True
        self.ring()

    def pass_on(self) -> None:
        """Look in the place of one who has left."""
        self.rung = True
        self.ring()

    def at(self, path: str, blind: bool) -> bool:
        """Whether this one looks there (L9)."""
        return self._sought[:2] == (path, blind) and self.ours

    @property
    def ours(self) -> bool:
        """Whether it is of this process: else nothing rings it (L9)."""
        if not fork.page[0]:
            fork.catch_up()
        return self._generation == fork.generation

    def limit(self, until: float) -> float:
        """The instant at which the caller is to look again, event or not."""
        if self.rung:  # nobody sleeps
            return until
        pauses = self._again if self._pauses is None else self._pauses
        pause = next(pauses, None)
        return until if pause is None else min(until, clock.now() + pause)

    def only_watch(self) -> PathWatch | None:
        """That of the path, where it is told of by events and to this one alone."""
        line = self._line
        alone = line is not None and len(line.members) == 1 and not self._sought[1]
        return line.watch if alone and line is not None and self._pauses is None else None

    def leave(self) -> bool:
        """Look no more. Safe to repeat. Never True: there is nothing here that could come first."""
        if self._line is None:
            line = _lines.get(self._key)  # interrupted between the line and the place in it
            if line is not None and self.ours and self in line.members:
                line.left(self)
        elif self.ours:
            self._line.left(self)
        return False

    def undo(self) -> None:
        """Nothing came, so nothing is to be let go of."""


def of(ask: Ask, path: str, blind: bool, pid: int | None) -> ChangeWait | None:
    """That of an ask; None when it was armed only now, and the caller is to look again."""
    place = ask.place
    if isinstance(place, ChangeWait):
        if place.at(path, blind):
            return place if place.follows(pid) else None
        place.leave()
    elif place is not None:
        ask.leave()
    # First, so that an exception can end it (L6).
    ask.place = watching = ChangeWait(path, blind, pid, ask.alike)
    watching.arm()
    return None


# ------------------------------------------------------------------------------------------------
# A blocking waiter that is the only one of its process hears for itself, without a second thread.
#
# Promise: as that of the thread of runtime/watch_thread.py, and a thread's wake-up less. Rule: who
# alone watches anything sleeps on the same instance as that thread, which leaves it out meanwhile;
# whoever of the two reads what has happened tells all. So nothing is missed when the hearing goes
# over: to the thread as soon as somebody else watches too, or the instance was closed by other
# code.
#
# Who is woken looks at the lock first, and reads what has happened when he goes to sleep again;
# then he looks once more. Who has looked in vain, since somebody else's file was meant, reads first
# from then on.


LONGEST_SLEEP = 3600.0  # seconds of one sleep


def end_solo(watch: PathWatch) -> None:
    """Others wait for the same path: the thread hears for them."""
    thread = watch._thread
    if thread.solo is watch:
        with fork.gate:
            if thread.solo is watch:
                thread.end_solo(tell=True)


def nobody() -> None:
    """In place of a wake-up while nobody sleeps."""


def slept(ask: Ask, place: ChangeWait, until: float) -> bool:
    """Sleep until `place` is rung, the ask is cancelled, or that instant. False: not by us."""
    watch = place.only_watch()
    if watch is None:
        return False
    thread = watch._thread
    poller = thread.begin_solo(watch)
    if poller is None:
        return False
    ring, vain = poller.wake, 0
    unread, place.unread = place.unread, False
    cancel = ask.cancel
    if cancel is not None:
        cancel.attach(ring)
    try:
        place.ring = ring  # before the look at `rung`, so that none is missed
        while not place.rung and (left := until - clock.now()) > 0:
            if cancel is not None and cancel.cancelled:
                break
            ready = poller.wait(0.0 if unread else min(left, LONGEST_SLEEP))
            if ready and not unread and not place.doubts:
                place.unread = True
                break
            if ready:
                place.ring = nobody  # this thread is awake
                place.doubts = not thread.hear_solo(ready)
                vain = vain + 1 if place.doubts else 0
                place.ring = ring
                if vain > IN_VAIN:
                    clock.pause(BREATH)
            unread = False
    except OSError as error:
        if error.errno != errno.EBADF:
            raise
        thread.robbed()
        return False
    finally:
        if cancel is not None:
            cancel.detach(ring)
    place.rung = False  # before the caller looks: what comes from here on is told next time
    return True
