"""What a watched folder is known to be: who waits for which name in it, and what was last seen.

Rule for what cannot be heard: two changes within one tick of a file system's clock may look
alike, so a change that was seen is told once more at the next look.
"""

from __future__ import annotations

import os

from ..core.deadline import NEVER
from . import clock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .wake import Watch

SWEEP = 2.0  # seconds between two looks at what is heard: for what no event tells, if anything
FIRST, LONGEST, GROWTH = 0.02, 0.5, 1.5  # seconds between two looks at what is not
SPREAD = 0.25  # part of a pause that is left to chance, so that many do not look together


class Folder:
    """One folder by one of its names. `number`: under which its events come, None: it is looked at.

    `names` name -> those who wait for it; b"": for everything in it. `due`: the instant of the
    next look. `alarm`: all are to be told then. `content`: writes are wanted; `heard`: and told.
    `files` name -> the number under which the events of that file itself come.
    """

    __slots__ = (
        "alarm", "content", "due", "files", "heard", "names", "number", "path", "pause", "seen",
    )  # fmt: skip

    def __init__(self, path: str) -> None:
        self.path = path
        self.number: int | None = None
        self.content = self.heard = self.alarm = False
        self.names: dict[bytes, dict[Watch, None]] = {}
        self.files: dict[bytes, int] = {}
        self.seen: dict[bytes, Any] = {}  # name -> what it looked like, whether to tell it again
        self.pause, self.due = FIRST, NEVER

    def told(self, content: bool) -> bool:
        """Whether events tell all that is to be known."""
        return self.number is not None and (self.heard or not content)

    def remember(self, path: str) -> None:
        """What there is now, for one who begins to wait where nothing is heard.

        He is told once for nothing: a change just before and one just after may look alike.
        """
        self.pause = FIRST
        self.seen[parted(path)[1]] = (signature(path), True)

    def changed(self) -> list[Watch]:
        """Look at every name: those to be told. Calls of lstat(2), any of which may hang."""
        told: list[Watch] = []
        for name, watches in self.names.copy().items():
            now = signature(os.path.join(self.path, os.fsdecode(name)))
            before, again = self.seen.get(name, (now, False))
            self.seen[name] = (now, now != before)
            if now != before or again:
                told += watches
        return told

    def next_pause(self, *, changed: bool) -> float:
        """Seconds until the next look."""
        if self.told(self.content):
            self.pause = FIRST
            return SWEEP
        pause = self.pause = FIRST if changed else min(self.pause * GROWTH, LONGEST)
        return pause * (1 - SPREAD * chance())


def chance() -> float:
    """A number in [0, 1) to part many from each other; `random` may not be to be had (EMFILE)."""
    return clock.now() * 1e5 % 1.0


def signature(path: str) -> Any:
    """What a change changes, most of the time."""
    try:
        found = os.lstat(path)
    except OSError as error:
        return error.errno
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def parted(path: str) -> tuple[str, bytes]:
    """(folder, name) of a path; the name of everything in a folder is b""."""
    folder, name = os.path.split(path)
    return folder, os.fsencode(name)
