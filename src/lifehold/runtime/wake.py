"""Being told when a path changes or a process ends: `watch`, `watch_process`.

    watch = wake.watch("/run/lock/a", bell.ring)
    ...                                             # look now, with the watch in place
    watch.close()

Promise: after every change that comes after `watch` returned, `ring` is called at least once, in a
thread of ours; sometimes also for nothing, so look. It must be quick. What is told: the entry was
made, removed, renamed, replaced by another or, with `content`, written or touched.
Below it runtime/watchman.py decides how.
"""

from __future__ import annotations

from ..core.events import report
from . import fork, watchman

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    W = TypeVar("W", "Watch", "ProcessWatch")


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
        self._post = watchman.far if blind else watchman.near

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
        self._post = watchman.near

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
