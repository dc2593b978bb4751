"""The answers of liblockfile(3): its numbers, with the reason in words."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

L_SUCCESS = 0  # the lock file was made
L_NAMELEN = 1  # its name is too long
L_TMPLOCK = 2  # the temporary file could not be made
L_TMPWRITE = 3  # the temporary file could not be written
L_MAXTRYS = 4  # somebody else holds it, after as many tries as were wished
L_ERROR = 5  # something else, see `errno` and `why`
L_MANLOCK = 6  # liblockfile names it and never returns it
L_ORPHANED = 7  # L_PPID, and the parent is gone
L_RMSTALE = 8  # what is there is no valid lock, and cannot be removed or must not be

L_PID = 16  # the number of this process into the file, and life judged by it
L_PPID = 32  # that of the parent

NAMES = {
    L_SUCCESS: "L_SUCCESS",
    L_NAMELEN: "L_NAMELEN",
    L_TMPLOCK: "L_TMPLOCK",
    L_TMPWRITE: "L_TMPWRITE",
    L_MAXTRYS: "L_MAXTRYS",
    L_ERROR: "L_ERROR",
    L_MANLOCK: "L_MANLOCK",
    L_ORPHANED: "L_ORPHANED",
    L_RMSTALE: "L_RMSTALE",
    -1: "-1",
}


class Status(int):
    """A number of liblockfile(3), which compares as one.

    `errno`: the system's, 0 for none; `why`: what happened, in words; "" for nothing to say.
    """

    errno: int
    why: str

    def __new__(cls, code: int, why: str = "", errno: int = 0) -> Status:
        made = super().__new__(cls, code)
        made.errno = errno
        made.why = why or (os.strerror(errno) if errno else "")
        return made

    def __repr__(self) -> str:
        words = f": {self.why}" if self.why else ""
        return f"<{NAMES.get(int(self), int(self))}{words}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return Status, (int(self), self.why, self.errno)


class CreateFailed(Exception):
    """One try cannot succeed, and another would not either."""

    def __init__(self, code: int, why: str = "", errno: int = 0) -> None:
        super().__init__(why)
        self.status = Status(code, why, errno)
