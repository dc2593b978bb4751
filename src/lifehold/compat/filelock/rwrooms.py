"""The log and the holders of a soft reader/writer lock, kept open from one acquisition to the next.

Rule: they are used as long as the path leads to that log, which one lstat(2) tells; a folder that
is open keeps its number. Each is of one acquisition at a time.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from ...runtime import fork
from .errors import SoftFileLockProtocolError
from .room import Room

if TYPE_CHECKING:
    from .rwothers import Shelf

WHOLE_ACCESS = os.access in os.supports_follow_symlinks and os.access in os.supports_effective_ids


def refuse_older(lock_file: str, path: str) -> None:
    """Raises SoftFileLockProtocolError where a filelock before 4 has it, which we would not see.

    That one looks at `<lock>.write` and at what is in `<lock>.readers`, and not at ours.
    """
    there = f"{path}.write"
    if not is_there(there):
        there = f"{path}.readers"
        try:
            if not is_there(there) or not os.listdir(there):
                return
        except (FileNotFoundError, NotADirectoryError):
            return
    raise SoftFileLockProtocolError(
        lock_file, None,
        f"{there!r} is of filelock before 4, whose reader/writer lock has another layout and does "
        "not exclude this one: change all programs over at once, and remove it when none is left",
    )  # fmt: skip


def is_there(path: str) -> bool:
    """Whether there is such a name: as `os.path.lexists`, without an exception when it is not."""
    if not WHOLE_ACCESS:
        return os.path.lexists(path)
    return os.access(path, os.F_OK, effective_ids=True, follow_symlinks=False)


class Rooms:
    """Two rooms that are open. Of one thread at a time; also for a block."""

    __slots__ = ("_folders", "gen", "holders", "path")

    def __init__(self, shelf: Shelf) -> None:
        table, root = shelf.table, shelf.root
        try:
            self._folders = root.both(table, "gen", "holders")
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE) or not table.close_idle():
                raise
            self._folders = root.both(table, "gen", "holders")
        self.gen, self.holders = (
            Room(each.fd, table.files, table, each.dev) for each in self._folders
        )
        self.path = f"{root.path}/gen"

    def __enter__(self) -> Rooms:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def lead_here(self) -> bool:
        """Whether the log of the path is this one still."""
        folder = self._folders[0]
        try:
            return folder.generation == fork.here() and folder.is_of(os.lstat(self.path))
        except OSError:
            return False

    def close(self) -> None:
        """They are left."""
        pin = None if self.gen.pin is None else self.gen.pin[1]
        for each in (pin, self.gen.head, *self._folders):
            if each is not None:
                each.close()


class Visitor:
    """An acquisition, which has them open from its first look to its end."""

    shelf: Shelf
    rooms: Rooms | None = None

    def _in(self) -> Rooms:
        """Those that the path leads to now."""
        rooms = self.rooms = self.rooms or self.shelf.idle()
        if rooms is None or not rooms.lead_here():
            self._out(None)
            rooms = self.rooms = self.shelf.opened()
        return rooms

    def _out(self, rooms: Rooms | None) -> None:
        """Use them no more. `rooms`: they are of use to the next one."""
        before, self.rooms = self.rooms, None
        if rooms is not None:
            self.shelf.keep(rooms)
        elif before is not None:
            before.close()
