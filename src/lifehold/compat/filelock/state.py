"""What one lock object knows of itself, for each thread or for all of them together.

Rule: the hold of a thread lives in `holds` of its lock and not only in the thread's own context, so
that a lock taken in a thread that has ended is still held, and can still be let go.
"""

from __future__ import annotations

from threading import local
from typing import Any
from weakref import ref

__all__ = ["Context", "Hold", "SharedContext", "ThreadContext", "held_here"]


class Presence:
    """Lives as long as the thread whose context has it."""

    __slots__ = ("__weakref__",)


class Hold:
    """One hold of a lock: by one thread, or by the object for all threads."""

    __slots__ = ("__weakref__", "claim", "counter", "fd", "grant", "lease", "mine", "moving",
                 "path", "presence", "turn")  # fmt: skip

    def __init__(self, presence: Presence | None) -> None:
        self.counter = 0  # how often it was acquired and not yet released
        self.fd: int | None = (
            None  # a descriptor that stands for it; what a subclass wants it to be
        )
        self.grant: Any = None  # of our mechanism
        self.lease: Any = None  # made when somebody asks for it
        self.path = ""  # absolute, for as long as it is held
        self.moving = ""  # "acquire" or "release" while one of them runs
        self.mine: dict[int, str] | None = None  # the acquiring thread's holds, this among them
        self.turn: Any = None  # of tasks (turns.py)
        self.claim: Any = None  # of a lease (lease.py)
        self.presence = None if presence is None else ref(presence)

    def __del__(self) -> None:
        if self.mine is not None:
            self.mine.pop(id(self), None)

    @property
    def orphaned(self) -> bool:
        """Whether the thread that took it has ended."""
        return self.presence is not None and self.presence() is None


class Mine(local):
    """The paths that this thread holds, by any object: a wait for oneself never ends."""

    def __init__(self) -> None:
        self.holds: dict[int, str] = {}


held_here = Mine()


class _Context:
    """Settings, and the hold. Its names are known to subclasses of the original."""

    hold: Hold
    timeout: float
    blocking: bool
    poll_interval: float
    lifetime: float | None
    lock_file: str
    mode: int

    @property
    def lock_file_fd(self) -> int | None:
        return self.hold.fd

    @lock_file_fd.setter
    def lock_file_fd(self, fd: int | None) -> None:
        self.hold.fd = fd

    @property
    def lock_counter(self) -> int:
        return self.hold.counter

    @lock_counter.setter
    def lock_counter(self, count: int) -> None:
        self.hold.counter = count

    def _set(self, settings: dict[str, Any], hold: Hold) -> None:
        self.__dict__.update(settings)
        self.hold = hold


class SharedContext(_Context):
    """One for all threads."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._set(settings, Hold(None))


class ThreadContext(_Context, local):
    """One for each thread, made when it first asks, with the settings of the constructor."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.presence = Presence()
        self._set(settings, Hold(self.presence))


Context = SharedContext | ThreadContext
