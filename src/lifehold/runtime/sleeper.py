"""How the thread of runtime/watchman.py sleeps: until a descriptor is ready or somebody knocks."""

from __future__ import annotations

import errno
import os
import select

from . import fork, native

TYPE_CHECKING = False
poll = native.real(select, "poll")  # that of gevent makes a hub for each thread of ours


def is_ours(fd: int, what: str = "") -> bool:
    """Whether a number still leads to what we opened: other code may have closed or reused it."""
    try:
        found = os.readlink(f"/proc/self/fd/{fd}")
    except FileNotFoundError:
        return not os.path.isdir("/proc/self")  # no such system; else it is closed
    return found.startswith("anon_inode:") and what in found


def ready(number: int) -> bool:
    """Whether a descriptor is ready now, or is none any more."""
    asked = poll()
    asked.register(number, select.POLLIN)
    return bool(asked.poll(0))


def gone(fd: int) -> OSError:
    """What a descriptor that is not ours any more is told as."""
    return OSError(errno.EBADF, os.strerror(errno.EBADF), fd)


class PollSleeper:
    """poll(2) over any number of descriptors, one of them to be knocked on. Raises OSError."""

    polls = True

    def __init__(self) -> None:
        if hasattr(os, "eventfd"):
            number = fork.descriptor(os.eventfd, 0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            self.fd = self._other = number
        else:  # macOS, BSD
            self.fd, self._other = os.pipe()
            os.set_blocking(self.fd, False)
            os.set_blocking(self._other, False)
        self._poll = poll()
        self._poll.register(self.fd, select.POLLIN)

    @property
    def fds(self) -> tuple[int, ...]:
        """Its own descriptors."""
        return tuple({self.fd, self._other})

    def add(self, fd: int) -> None:
        """Wake for this one too, from the next sleep on: knock."""
        self._poll.register(fd, select.POLLIN)

    def drop(self, fd: int) -> None:
        """Forget it. Before it is closed."""
        try:
            self._poll.unregister(fd)
        except KeyError:
            pass

    def knock(self) -> None:
        """End the sleep, the next one if nobody sleeps. Never waits."""
        try:
            if self._is_ours():  # else the thread finds that out by itself
                native.write(self._other, b"\1\0\0\0\0\0\0\0")
        except OSError:
            pass  # knocked on often enough, or closed just now

    def _is_ours(self) -> bool:
        return self.fd != self._other or is_ours(self.fd, "eventfd")  # a pipe is not told apart

    def wait(self, seconds: float) -> list[int]:
        """The descriptors that are ready, its own left out."""
        ready = [fd for fd, _ in self._poll.poll(max(0.0, seconds) * 1000)]
        if self.fd in ready:
            ready.remove(self.fd)
            if not self._is_ours():
                raise gone(self.fd)
            try:
                native.read(self.fd, 512)
            except BlockingIOError:
                pass
        return ready

    def close(self) -> None:
        """Give the descriptors back."""
        for fd in self.fds if self._is_ours() else ():
            os.close(fd)


class LockSleeper:
    """Without any descriptor: Windows, which polls no files, and where none is left (EMFILE)."""

    polls = False
    fds: tuple[int, ...] = ()

    def __init__(self) -> None:
        self._bell = native.allocate_lock()
        self._bell.acquire()

    def add(self, fd: int) -> None:
        """What has no event is looked at now and then: nothing to add."""

    drop = add

    def knock(self) -> None:
        try:
            self._bell.release()
        except RuntimeError:
            pass  # knocked already

    def wait(self, seconds: float) -> list[int]:
        self._bell.acquire(timeout=max(0.0, seconds))
        return []

    def close(self) -> None:
        """Nothing to give back."""


Sleeper = PollSleeper | LockSleeper


def sleeper(old: Sleeper | None, *, deaf: bool) -> Sleeper:
    """The best one to be had; `old` when that is no better."""
    if poll is not None and not deaf:
        try:
            return PollSleeper()
        except OSError:
            pass
    return old or LockSleeper()
