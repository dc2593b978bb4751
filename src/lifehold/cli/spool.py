"""What CMD writes to stdout: into a file, from there to everybody, in pieces.

Promise: CMD never waits for a reader of ours; no output is held in memory, however much it is. The
one who runs CMD sees it while it comes (`Follower.pump`, which never blocks), and the rest when
the lock has been let go of, so that a paused pager holds up nobody.
"""

from __future__ import annotations

import os
import select

from ..runtime import clock
from .render import forget_stdout

PIECE = 1 << 20  # bytes read and written at once where blocking is right
SAFE = 4096  # PIPE_BUF: a pipe that poll(2) calls writable takes so much without blocking
SOON, LATEST = 0.02, 0.5  # seconds between two looks at a file that grows, or does not
AT_MOST = 0.05  # seconds of one pump: signals must not wait for long


class Follower:
    """Copies a growing file to a descriptor, as far as nobody has to wait."""

    def __init__(self, source: int, sink: int) -> None:
        self.source, self.sink, self.at = source, sink, 0
        self.pause = SOON
        self.error: OSError | None = None  # why nothing can be passed on any more
        self._poll = select.poll()
        self._poll.register(sink, select.POLLOUT)

    def pump(self) -> None:
        """Pass on what has come and can go."""
        began, until = self.at, clock.now() + AT_MOST
        while self.error is None and clock.now() < until and self._ready():
            piece = os.pread(self.source, SAFE, self.at)
            if not piece:
                break
            self._put(piece)
        self.pause = SOON if self.at > began else min(2 * self.pause, LATEST)

    def rest(self) -> None:
        """Pass on all that is left, and wait for who reads it."""
        while self.error is None and (piece := os.pread(self.source, PIECE, self.at)):
            self._put(piece)

    def _ready(self) -> bool:
        return bool(self._poll.poll(0))

    def _put(self, piece: bytes) -> None:
        try:
            self.at += os.write(self.sink, piece)
        except BlockingIOError:  # somebody made it non-blocking
            self._poll.poll()
        except OSError as error:
            self.error = error  # nobody reads any more; CMD runs on for the others


def replay(source: int, size: int) -> None:
    """The first `size` bytes of a file to stdout. Raises BrokenPipeError without a reader."""
    at = 0
    while at < size and (piece := os.pread(source, min(PIECE, size - at), at)):
        try:
            at += os.write(1, piece)
        except BlockingIOError:
            select.select([], [1], [])
        except BrokenPipeError:
            raise
        except OSError:
            forget_stdout()
            raise
