"""The signal that a lease is lost: once, for all who wait or asked to be called.

Promise: who waits for it or has a callback on it is told when the lock file is unlinked, renamed
away or replaced, without calling `check()`; a lease that nobody asks costs nothing
(runtime/watch_thread.py watches from the first question to the release).
Rule: an event only says where to look. `check()` decides, in the thread of the one who waits, or
in one of its own when there are callbacks: these may take their time, the watching thread may not.
"""

from __future__ import annotations

from _weakref import ref

from ..core import events
from ..core.deadline import NEVER
from ..core.errors import InvalidArgument
from . import clock, fork
from .blocking import wakeup_here

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from . import heartbeat, watch_thread
else:
    heartbeat = fork.later("lifehold.runtime.heartbeat", globals())
    watch_thread = fork.later("lifehold.runtime.watch_thread", globals())

POLL = 0.2  # seconds between two looks of `wait()` where there is nothing to watch
SLOW = 2.0  # where there is: for what no event tells, as a descriptor closed by other code


class LostSignal:
    """Set once when a lease is lost. Wait on it, or be called back.

    Not set by an ordinary release. `check` looks whether the lease is held. `path`: the file whose
    change may mean its loss, None when there is none; `far()`: whether another machine may change
    it.
    """

    __slots__ = (
        "__weakref__",
        "_callbacks",
        "_check",
        "_denied",
        "_far",
        "_looking",
        "_over",
        "_path",
        "_waiting",
        "_watch",
        "reason",
    )

    def __init__(
        self,
        check: Callable[[], object],
        path: str | None = None,
        far: Callable[[], bool] = lambda: False,
    ) -> None:
        self._check, self._path, self._far = check, path, far
        self._callbacks: list[Callable[[], object]] = []
        self._waiting: list[Callable[[], object]] = []  # of those who wait
        self._watch: Any = None
        self._looking = -1  # the process (`fork.generation`) that looks in a thread apart
        self._denied = False  # what such a look said
        self._over = False  # released, or lost: there is nothing to watch for
        self.reason: str | None = None

    def is_set(self) -> bool:
        """Whether the lease is known to be lost. Does not look; `lease.check()` does."""
        return self.reason is not None

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the lease is lost, at most `timeout` seconds; whether it is.

        False as soon as it has been released: nothing can be lost any more.
        """
        check_timeout(timeout)
        if timeout is not None and timeout <= 0:  # a look, and no watch for it
            self._check()
            return self.is_set()
        until = NEVER if timeout is None else clock.now() + timeout
        wakeup = wakeup_here()
        self._waiting.append(wakeup.ring)
        try:
            while True:
                pause = self._pause()  # armed before the look, so that nothing is slept through
                held = self._look()
                left = until - clock.now()
                if self.is_set() or self._over or not held or left <= 0:
                    return self.is_set()
                wakeup.wait(min(pause, left))
        finally:
            self._waiting.remove(wakeup.ring)
            self._rest()

    def _look(self) -> object:
        """Whether the lease is held, as far as that can be told without a wait.

        L8  A look may hang on a file server until long after the deadline, which is told meanwhile:
        there it is made in a thread apart, one at a time.
        """
        if self._path is None or not self._far():
            return self._check()
        if self._looking != fork.here():
            self._looking = fork.generation
            apart = heartbeat.apart
            apart(self._look_apart)
        return not self._denied

    def _look_apart(self) -> None:
        try:
            self._denied = not self._check()
        finally:
            self._looking = -1
        if self._denied:
            for ring in self._waiting.copy():
                ring()

    def add_callback(self, callback: Callable[[], object]) -> None:
        """Call `callback()` once when the lease is lost, at once if it is.

        In the thread that notices. Raises InvalidArgument for what cannot be called so.
        """
        check_callback(callback)
        fork.here()
        with fork.gate:  # a lock of its own could be left shut in a child (L9)
            late = self.reason is not None
            if not late:
                self._callbacks.append(callback)
        if late:
            callback()
            return
        self._pause()
        if self._path is not None and not self._far():  # there the first look tells it
            self._check()  # what was lost before there was a watch

    def remove_callback(self, callback: Callable[[], object]) -> None:
        """Take back what `add_callback` was given, which need not be there any more."""
        fork.here()
        with fork.gate:
            if callback in self._callbacks:
                self._callbacks.remove(callback)
        self._rest()

    def set(self, reason: str, first: Callable[[], object] | None = None) -> bool:
        """Mark the lease as lost. False: it was already.

        `first` is called before the callbacks: these are the program's own, and may take their
        time or raise; what they raise is shown by `sys.unraisablehook`.
        """
        fork.here()
        with fork.gate:  # a lock of its own could be left shut in a child (L9)
            if self.reason is not None:
                return False
            self.reason = reason
            callbacks, self._callbacks = self._callbacks, []
        self._call(iter((*(() if first is None else (first,)), self._end, *callbacks)))
        return True

    def _call(self, steps: Iterator[Callable[[], object]]) -> None:
        try:
            for step in steps:
                events.call(step)
        except BaseException:  # as a signal raises it: the others are called all the same
            apart = heartbeat.apart
            apart(lambda: self._call(steps))
            raise

    def _end(self) -> None:
        """Nothing can be lost any more: watch no longer, wake who waits."""
        self._over = True
        self._watch_no_more()

    def _watch_no_more(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()
        for ring in self._waiting.copy():
            ring()

    # ---- the watch -------------------------------------------------------------------------------

    def _pause(self) -> float:
        """See to it that changes of the path are told; seconds until one must look by oneself."""
        if self._path is None or self._over:
            return POLL
        far = self._far()
        with fork.gate:  # one of two threads makes it, and both see to it that it has started
            watch = self._watch
            if watch is None:
                watch = watch_thread.PathWatch(self._path, _weakly(self), blind=far, content=False)
                self._watch = watch  # before it starts: whatever comes in between, `_end` closes it
        try:
            watch.start()
        except RuntimeError:  # no thread to be had
            return POLL
        return SLOW

    def _rest(self) -> None:
        """Watch no longer when nobody asks."""
        if not self._waiting and not self._callbacks:
            self._watch_no_more()

    def _changed(self) -> None:
        """In the watching thread, which has more to do than to look: pass it on."""
        for ring in self._waiting.copy():
            ring()
        if self._callbacks:
            apart = heartbeat.apart
            apart(self._check)

    def __del__(self) -> None:
        watch = getattr(self, "_watch", None)
        if watch is not None:
            fork.collected(watch.close)


def check_timeout(given: object) -> None:
    """Raises InvalidArgument for what is no length of a wait."""
    if given is None:
        return
    try:
        number = not isinstance(given, bool) and isinstance(given, int | float) and float(given)
    except OverflowError as error:  # an int of hundreds of digits, which Python may not write
        raise InvalidArgument("timeout is no length of time: None waits until the end") from error
    if number is False or not number >= 0:
        raise InvalidArgument(f"timeout must be 0 or more, in seconds, or None, not {given!r}")


def check_callback(given: object) -> None:
    """Raises InvalidArgument for what a loss could not call."""
    if not callable(given) or _needs_more(given):
        raise InvalidArgument(
            "callback must be callable without arguments, not "
            f"{type(given).__name__} {getattr(given, '__name__', given)!r}"
        )
    if events.runs_later(given):
        raise InvalidArgument(
            f"callback {getattr(given, '__name__', given)!r} would never run: calling it makes a "
            "coroutine or a generator, and nobody awaits it. Give a plain function, or have a task "
            "that waits by `await lease.lost.wait()`"
        )


def _needs_more(callback: object) -> bool:
    """Whether a plain function, or a method, has a parameter that nothing would fill."""
    made: Any = getattr(callback, "__func__", callback)
    if type(made) is not _FUNCTION:
        return False
    code, filled = made.__code__, len(made.__defaults__ or ()) + (made is not callback)
    named = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    return code.co_argcount > filled or bool({*named} - {*(made.__kwdefaults__ or ())})


_FUNCTION = type(check_timeout)


def _weakly(signal: LostSignal) -> Callable[[], None]:
    """What its watch rings. A lease that is dropped must not be kept alive by its watch."""
    found = ref(signal)

    def ring() -> None:
        there = found()
        if there is not None:
            there._changed()

    return ring
