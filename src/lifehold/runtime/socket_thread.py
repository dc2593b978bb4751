"""The one thread of a process that hears sockets which may speak at any time.

Promise: `hear()` of who is listened to is called soon after its descriptor has become readable, or
has been closed by the other side; it must never wait. Without poll(2), or with no descriptor left
for it, all are asked now and then.
"""

from __future__ import annotations

from ..core.events import report
from . import clock, fork, native, own_thread
from .watch_table import best_sleeper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol

    class SocketReader(Protocol):
        """`fd`: its descriptor."""

        @property
        def fd(self) -> int: ...

        def hear(self) -> None:
            """Take in what has come."""
            ...


LONGEST = 60.0  # seconds of one sleep
NOW_AND_THEN = 0.05  # the same without poll(2)


class SocketThread:
    """The speakers by descriptor, and the thread, which runs as long as there is one."""

    def __init__(self) -> None:
        self.mutex = native.RLock()  # reentrant: a signal handler may come in too
        self.known: dict[int, SocketReader] = {}
        self.sleeper: Any = None
        self.runs = False

    def listen(self, speaker: SocketReader) -> None:
        with self.mutex:
            if not self.runs:
                self.sleeper = best_sleeper(None, deaf=False)
                try:
                    own_thread.start(native.bound(self._run, self.sleeper))
                except RuntimeError:
                    self.sleeper.close()
                    raise
                self.runs = True
            self.known[speaker.fd] = speaker
            self.sleeper.add(speaker.fd)
            self.sleeper.wake()

    def forget(self, speaker: SocketReader) -> None:
        with self.mutex:
            if self.known.get(speaker.fd) is speaker:
                del self.known[speaker.fd]
                self.sleeper.drop(speaker.fd)
                self.sleeper.wake()

    def _run(self, wakeup: Any) -> None:
        while True:
            with self.mutex:
                if not self.known:
                    self.runs = False
                    wakeup.close()
                    return
            try:
                ready = wakeup.wait(LONGEST if wakeup.polls else NOW_AND_THEN)
                with self.mutex:
                    numbers = ready if wakeup.polls else list(self.known)
                    heard = [self.known[fd] for fd in numbers if fd in self.known]
                for speaker in heard:
                    speaker.hear()
            except Exception as error:  # noqa: BLE001 - the others are heard on
                report(error)
                clock.pause(NOW_AND_THEN)


_ear = SocketThread()


@fork.in_child
def _forget() -> None:
    """L9  A child hears none of its parent's."""
    global _ear
    parents, _ear = _ear, SocketThread()
    if parents.runs:
        parents.sleeper.close()


def listen(speaker: SocketReader) -> None:
    """Hear it from now on. Raises RuntimeError when there is no thread to be had."""
    _ear.listen(speaker)


def forget(speaker: SocketReader) -> None:
    """Before its descriptor is closed: the number may soon be another's. Safe to repeat."""
    _ear.forget(speaker)
