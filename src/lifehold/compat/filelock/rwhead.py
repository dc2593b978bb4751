"""HEAD of a reader/writer log: a copy of one of the newest snapshots, behind the log's own name.

Rule: it may lag behind and never leads; only its number is used, and what it names is looked at.
It is written in place by whoever has committed, and kept open for the next time as long as it has
its name.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from .private import is_token
from .snapshot import parsed

if TYPE_CHECKING:
    from .room import Room

HEAD, EPOCH, TEMPORARY = "HEAD", "epoch", ".commit-"
USUAL, BUFFER = 1 << 10, 1 << 16  # bytes read of it; one that is longer is replaced


class Head:
    """HEAD as one object knows it. `epoch`: the name of the log, with its newline."""

    def __init__(self) -> None:
        self.epoch: bytes | None = None
        self._said: tuple[bytes, int] = b"", 0  # what it said last, and of which generation

    def _head(self, room: Room) -> int:
        """The generation that HEAD names; 0 for none."""
        content = room.read(HEAD)
        return 0 if content is None else self._named_by(content)

    def _named_by(self, content: bytes) -> int:
        epoch, newline, rest = content.partition(b"\n")
        if not self._has_epoch() or epoch + newline != self.epoch:
            return 0
        found = parsed(rest)
        return 0 if found is None else found.generation

    def _has_epoch(self) -> bool:
        return self.epoch is not None and is_token(self.epoch.decode("ascii", "replace")[:-1])

    def _move_head(self, room: Room, generation: int, content: bytes) -> None:
        """In place: a rename over a file makes ext4 write it out at once."""
        if not self._has_epoch():
            return
        files, head = room.files, room.head
        if head is None or files.fstat(head.fd).st_nlink != 1:
            try:
                head = room.head = room.kept(HEAD, os.O_RDWR)
            except FileNotFoundError:
                self._rename_head(room, content)
                return
            if files.fstat(head.fd).st_nlink != 1:
                return
        text, (found, number) = (self.epoch or b"") + content, self._said
        there = files.pread(head.fd, USUAL, 0)
        if len(there) == USUAL:
            there = files.pread(head.fd, BUFFER, 0)
        if not there.startswith(self.epoch or b"-"):
            if room.read(EPOCH) == self.epoch:
                self._rename_head(room, content)  # half of it, after a crash
            else:
                self.epoch = None  # of somebody who has begun anew: looked at next time
            return
        if there != found:
            number = self._named_by(there)
        if number < generation:
            files.pwrite(head.fd, text, 0)
            if len(text) < len(there):
                files.truncate(head.fd, len(text))
            self._said = text, generation

    def _rename_head(self, room: Room, content: bytes) -> None:
        temporary = f"{TEMPORARY}{os.urandom(16).hex()}"
        room.created(temporary, (self.epoch or b"") + content, None)
        try:
            room.rename(temporary, HEAD)
        except OSError:
            room.unlink(temporary)
