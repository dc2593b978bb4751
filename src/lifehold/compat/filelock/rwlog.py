"""The log of a `SoftReadWriteLock`: numbered snapshots of who writes and who reads.

`<lock>.rw/gen/<20 digits>` is one snapshot, written whole before it gets its name by a link that
replaces nothing: of two successors of one snapshot one comes to be. The newest is the state. Some
are kept; HEAD beside them is a copy of one of the newest, for clients that list a folder from a
cache; `epoch` names the log itself, so that one who outlives its removal does not go on in another.

How it could fail, and what keeps it:
- A committer sleeps between its look and its link until the number after it is free again, since
  the log is 64 further on and has been cut: after its link it looks at how far others are, and
  whether the snapshot before its own is there, and takes it back.
- A link that was made is reported as failed (NFS): what the name leads to decides.
- Power is lost after a link: the name must not outlive its content, which both sides would take for
  a broken log. So the content goes to the disk first (`durable`).
- Two write HEAD at once where it is written in place: only its number is used, and what it names is
  looked at; it may lag behind, and what cannot be read is not there.

Where one kernel has the folder, a committer keeps the snapshot before its own open from the look to
the link: as long as that has its name, nothing after it was cut.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

from .claims import without_links
from .durable import durable
from .errors import SoftFileLockProtocolError
from .private import is_token
from .snapshot import DIGITS, State, parsed, spelled

if TYPE_CHECKING:
    from .room import Room

KEEP, CUT = 64, 128  # what others count on; ours are removed when the disk has long had them
BATCH = 32  # at once: each may wait for the journal, of which all of one moment wait together
HEAD, EPOCH, TEMPORARY = "HEAD", "epoch", ".commit-"
BUFFER = 1 << 16  # bytes read of HEAD; one that is longer is not understood, and replaced


class Log:
    """The log of one lock, as far as one object knows it. `near`: one kernel has its folder."""

    sync: Any = staticmethod(durable)
    keep, cut, batch = KEEP, CUT, BATCH

    def __init__(self, lock_file: str, near: bool) -> None:
        self.lock_file, self.near = lock_file, near
        self.epoch: bytes | None = None
        self.last: State | None = None

    # ---- looking

    def latest(self, room: Room) -> State:
        """The newest snapshot. Raises SoftFileLockProtocolError, OSError."""
        found = self._found(room) or self._found(room)  # all that was named may have been cut
        if found is None:
            reason = "generation log names no readable snapshot"
            raise SoftFileLockProtocolError(self.lock_file, None, reason)
        self.last = found
        return found

    def _found(self, room: Room) -> State | None:
        epoch = self._incarnation(room)
        if epoch != self.epoch:
            self.epoch, self.last = epoch, None
        head = self._head(room)
        listed = self._listed(room)
        newest = listed[-1] if listed else 0
        if newest >= max(head, self.last.generation if self.last else 0):
            start = self._read(room, newest) if newest else None
            if start is not None:
                return self._probed(room, start, 1 if newest == head else self.keep)
        named = set(listed[-self.keep :])
        if self.last is not None and self.last.generation:
            named.add(self.last.generation)
        if head:
            named.add(head)
        for generation in sorted(named, reverse=True):
            start = self._read(room, generation)
            if start is not None:
                return self._probed(room, start, 1 if generation == head else self.keep)
        newest = max(named, default=0)
        found = self._probed(room, State(newest, None, frozenset()), self.keep)
        return found if found.generation > newest or not named else None

    def _probed(self, room: Room, start: State, patience: int) -> State:
        """The last one from there on, over gaps of fewer than `patience`."""
        latest, generation, gap = start, start.generation, 0
        while gap < patience:
            generation += 1
            found = self._read(room, generation)
            if found is None:
                gap += 1
            else:
                latest, gap = found, 0
        return latest

    def _read(self, room: Room, generation: int) -> State | None:
        name = numbered(generation)
        content = room.read(name)
        if content is None:
            return None
        found = parsed(content)
        if found is None or found.generation != generation:
            reason = "malformed generation record"
            raise SoftFileLockProtocolError(self.lock_file, name, reason)
        return found

    def _incarnation(self, room: Room) -> bytes | None:
        found = room.read(EPOCH)
        if found is None:
            with contextlib.suppress(FileExistsError):
                room.created(EPOCH, f"{os.urandom(16).hex()}\n".encode(), self.sync)
            found = room.read(EPOCH)
        return found

    @staticmethod
    def _listed(room: Room) -> list[int]:
        """The numbers in the folder, in order."""
        return sorted(int(name) for name in room.names() if len(name) == DIGITS and name.isascii()
                      and name.isdigit())  # fmt: skip

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

    # ---- committing

    def commit(self, room: Room, before: State, state: State) -> bool:
        """Publish what follows `before`. False: somebody was faster, or it is another log by now.

        Raises FileNotFoundError when the folder was removed; OSError.
        """
        done = self._commit_near if self.near else self._commit_far
        if not done(room, before, numbered(state.generation), spelled(state)):
            return False
        self.last = state
        if not state.generation % self.batch:
            self._cut(room, state.generation - self.cut)
        return True

    def _commit_near(self, room: Room, before: State, name: str, content: bytes) -> bool:
        files, pin = room.files, -1
        if before.generation:
            try:
                pin = room.open(numbered(before.generation), os.O_RDONLY)
            except FileNotFoundError:
                return False
        elif self._head(room):
            return False
        try:
            if pin >= 0:
                expected = spelled(before)
                if files.pread(pin, len(expected) + 1, 0) != expected:
                    return False
            if not self._published(room, name, content):
                return False
            if pin >= 0 and not files.fstat(pin).st_nlink:
                return self._withdrawn(room, before.generation + 1, name)
        finally:
            if pin >= 0:
                files.close(pin)
        with contextlib.suppress(OSError):
            self._move_head(room, before.generation + 1, content)
        return True

    def _commit_far(self, room: Room, before: State, name: str, content: bytes) -> bool:
        generation = before.generation + 1
        if room.read(EPOCH) != self.epoch or not self._follows(room, generation):
            return False
        if not self._linked(room, name, content):
            return False
        head = self._head(room)
        lead = max([head, *self._listed(room)]) - generation
        if lead >= self.keep or not self._follows(room, generation):
            return self._withdrawn(room, generation, name, lead)
        with contextlib.suppress(OSError):
            if self._has_epoch() and head < generation:
                self._rename_head(room, content)
        return True

    def _withdrawn(self, room: Room, generation: int, name: str, lead: int | None = None) -> bool:
        """The log went on by so much that its name was free again, or it is another one."""
        if lead is None:
            head = self._head(room)
            lead = max([head, *self._listed(room)]) - generation
        if not 0 < lead < self.keep:
            room.unlink(name)
        return False

    @staticmethod
    def _cut(room: Room, generation: int) -> None:
        """Remove what is too old, the oldest first: what stays has no hole."""
        oldest = generation
        while oldest > 1 and room.key_at(numbered(oldest - 1)) is not None:
            oldest -= 1
        for number in range(max(oldest, 1), generation + 1):
            room.unlink(numbered(number))

    def _follows(self, room: Room, generation: int) -> bool:
        """Whether the snapshot before it is there; the first one follows nothing."""
        if generation > 1:
            return room.key_at(numbered(generation - 1)) is not None
        return not self._head(room)

    def _published(self, room: Room, name: str, content: bytes) -> bool:
        """Whether it has its name now, whole, and nobody was faster."""
        fd = room.nameless()
        if fd is None:
            return self._linked(room, name, content)
        try:
            room.files.pwrite(fd, content, 0)
            self.sync(fd)
            if not room.named(fd, name):
                return self._linked(room, name, content)
        except FileExistsError:
            return False
        except OSError as error:
            raise without_links(self.lock_file, error) or error from None
        finally:
            room.files.close(fd)
        return True

    def _linked(self, room: Room, name: str, content: bytes) -> bool:
        temporary = f"{TEMPORARY}{os.urandom(16).hex()}"
        key = room.created(temporary, content, self.sync)
        try:
            room.linked(temporary, name, key)
        except FileExistsError:
            return False
        except OSError as error:
            if room.key_at(name) == key:
                return True
            raise without_links(self.lock_file, error) or error from None
        finally:
            room.unlink(temporary)
        return room.key_at(name) == key

    # ---- HEAD

    def _move_head(self, room: Room, generation: int, content: bytes) -> None:
        """In place: a rename over a file makes ext4 write it out at once."""
        if not self._has_epoch():
            return
        try:
            fd = room.open(HEAD, os.O_RDWR)
        except FileNotFoundError:
            self._rename_head(room, content)
            return
        files = room.files
        try:
            found = files.pread(fd, BUFFER, 0)
            if not found.startswith(self.epoch or b"-"):
                if room.read(EPOCH) == self.epoch:
                    self._rename_head(room, content)  # half of it, after a crash
                else:
                    self.epoch = None  # of somebody who has begun anew: looked at next time
                return
            if self._named_by(found) < generation and files.fstat(fd).st_nlink == 1:
                text = (self.epoch or b"") + content
                files.pwrite(fd, text, 0)
                if len(text) < len(found):
                    files.truncate(fd, len(text))
        finally:
            files.close(fd)

    def _rename_head(self, room: Room, content: bytes) -> None:
        temporary = f"{TEMPORARY}{os.urandom(16).hex()}"
        room.created(temporary, (self.epoch or b"") + content, None)
        try:
            room.rename(temporary, HEAD)
        except OSError:
            room.unlink(temporary)


def numbered(generation: int) -> str:
    """The name of a snapshot."""
    return f"{generation:0{DIGITS}d}"
