"""The log of a `SoftReadWriteLock`: numbered snapshots of who writes and who reads.

`<lock>.rw/gen/<20 digits>` is one snapshot, written whole before it gets its name by a link that
replaces nothing: of two successors of one snapshot one comes to be. The newest is the state. 64 are
kept; HEAD beside them is a copy of one of the newest, for clients that list a folder from a cache;
`epoch` names the log itself, so that one who outlives its removal does not go on in another.

How it could fail, and what keeps it:
- A committer sleeps between its look and its link until the number after it is free again, since
  the log is 64 further on and has been cut: after its link it looks at how far others are, and
  whether the snapshot before its own is there, and takes it back.
- A link that was made is reported as failed (NFS): what the name leads to decides.
- Power is lost after a link: the name must not outlive its content, which both sides would take for
  a broken log. So the content goes to the disk first (`durable`).
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from . import folder
from .claims import is_token, unlinked, without_links
from .durable import durable
from .errors import SoftFileLockProtocolError
from .folder import Folder
from .snapshot import DIGITS, State, content_of, parsed, spelled

if TYPE_CHECKING:
    from collections.abc import Callable

KEEP = 64
HEAD, EPOCH, TEMPORARY = "HEAD", "epoch", ".commit-"


class Log:
    """The log of one lock, as far as one object knows it."""

    def __init__(self, lock_file: str, path: str) -> None:
        above, name = os.path.split(path)
        self.lock_file = lock_file
        self.gen = Folder(above, f"{name}.rw", "gen")
        self.epoch: bytes | None = None
        self.last: State | None = None

    # ---- looking

    def latest(self, fd: int) -> State:
        """The newest snapshot. Raises SoftFileLockProtocolError, OSError."""
        found = self._found(fd) or self._found(fd)  # all that was named may have been cut meanwhile
        if found is None:
            reason = "generation log names no readable snapshot"
            raise SoftFileLockProtocolError(self.lock_file, None, reason)
        self.last = found
        return found

    def _found(self, fd: int) -> State | None:
        epoch = self._incarnation(fd)
        if epoch != self.epoch:
            self.epoch, self.last = epoch, None
        head = self._head(fd)
        newest = self._newest(fd)
        if newest >= max(head, self.last.generation if self.last else 0):
            start = self._read(fd, newest) if newest else None
            if start is not None:
                return self._probed(fd, start, 1 if newest == head else KEEP)
        named = {int(name) for name in self._listed(fd)[-KEEP:]}
        if self.last is not None and self.last.generation:
            named.add(self.last.generation)
        if head:
            named.add(head)
        for generation in sorted(named, reverse=True):
            start = self._read(fd, generation)
            if start is not None:
                return self._probed(fd, start, 1 if generation == head else KEEP)
        newest = max(named, default=0)
        found = self._probed(fd, State(newest, None, frozenset()), KEEP)
        return found if found.generation > newest or not named else None

    def _probed(self, fd: int, start: State, patience: int) -> State:
        """The last one from there on, over gaps of fewer than `patience`."""
        latest, generation, gap = start, start.generation, 0
        while gap < patience:
            generation += 1
            found = self._read(fd, generation)
            if found is None:
                gap += 1
            else:
                latest, gap = found, 0
        return latest

    def _read(self, fd: int, generation: int) -> State | None:
        name = f"{generation:0{DIGITS}d}"
        content = content_of(fd, name)
        if content is None:
            return None
        found = parsed(content)
        if found is None or found.generation != generation:
            reason = "malformed generation record"
            raise SoftFileLockProtocolError(self.lock_file, name, reason)
        return found

    def _incarnation(self, fd: int) -> bytes | None:
        found = content_of(fd, EPOCH)
        if found is None:
            with contextlib.suppress(FileExistsError):
                created(fd, EPOCH, f"{os.urandom(16).hex()}\n".encode(), durable)
            found = content_of(fd, EPOCH)
        return found

    @staticmethod
    def _listed(fd: int) -> list[str]:
        names = os.listdir(fd)
        return sorted(name for name in names if len(name) == DIGITS and name.isascii()
                      and name.isdigit())  # fmt: skip

    @staticmethod
    def _newest(fd: int) -> int:
        """The greatest number in the folder; 0 for none."""
        found = max(
            [name for name in os.listdir(fd) if len(name) == DIGITS and name < ":"], default=""
        )
        return int(found) if found.isascii() and found.isdigit() else 0

    def _head(self, fd: int) -> int:
        """The generation that HEAD names; 0 for none."""
        content = content_of(fd, HEAD)
        if content is None:
            return 0
        epoch, newline, rest = content.partition(b"\n")
        if not self._named() or epoch + newline != self.epoch:
            return 0
        found = parsed(rest)
        return 0 if found is None else found.generation

    def _named(self) -> bool:
        return self.epoch is not None and is_token(self.epoch.decode("ascii", "replace")[:-1])

    # ---- committing

    def commit(self, fd: int, state: State) -> bool:
        """Publish the next snapshot. False: somebody was faster, or it is not our log any more."""
        if content_of(fd, EPOCH) != self.epoch or not self._follows(fd, state.generation):
            return False
        name, content = f"{state.generation:0{DIGITS}d}", spelled(state)
        if not self._linked(fd, name, content):
            return False
        head = self._head(fd)
        lead = max(self._newest(fd), head) - state.generation
        if lead >= KEEP or not self._follows(fd, state.generation):
            if not 0 < lead < KEEP:
                unlinked(fd, name)
            return False
        self.last = state
        with contextlib.suppress(OSError):
            if self._named() and head < state.generation:
                self._renamed(fd, (self.epoch or b"") + content)
        self._cut(fd, state.generation - KEEP - 1)
        return True

    @staticmethod
    def _cut(fd: int, generation: int) -> None:
        """Remove what is too old, the oldest first: what stays has no hole."""
        oldest = generation
        while oldest > 1 and folder.key_at(fd, f"{oldest - 1:0{DIGITS}d}") is not None:
            oldest -= 1
        for number in range(max(oldest, 1), generation + 1):
            unlinked(fd, f"{number:0{DIGITS}d}")

    def _follows(self, fd: int, generation: int) -> bool:
        """Whether the snapshot before it is there; the first one follows nothing."""
        if generation > 1:
            return folder.key_at(fd, f"{generation - 1:0{DIGITS}d}") is not None
        return not self._head(fd)

    def _linked(self, fd: int, name: str, content: bytes) -> bool:
        temporary = f"{TEMPORARY}{os.urandom(16).hex()}"
        key = created(fd, temporary, content, durable)
        try:
            folder.linked(fd, temporary, name, key)
        except FileExistsError:
            return False
        except OSError as error:
            if folder.key_at(fd, name) == key:
                return True
            raise without_links(self.lock_file, error) or error from None
        finally:
            unlinked(fd, temporary)
        return folder.key_at(fd, name) == key

    @staticmethod
    def _renamed(fd: int, content: bytes) -> None:
        temporary = f"{TEMPORARY}{os.urandom(16).hex()}"
        created(fd, temporary, content, None)
        try:
            os.rename(temporary, HEAD, src_dir_fd=fd, dst_dir_fd=fd)
        except OSError:
            unlinked(fd, temporary)


def created(
    fd: int, name: str, content: bytes, sync: Callable[[int], None] | None
) -> tuple[int, int]:
    """A new file of that name, whole: its device and inode. Raises FileExistsError, OSError."""
    file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | folder.FLAGS, 0o600, dir_fd=fd)
    try:
        folder.write_all(file, content)
        if sync is not None:
            sync(file)
        found = os.fstat(file)
    except BaseException:
        os.close(file)
        unlinked(fd, name)
        raise
    os.close(file)
    return found.st_dev, found.st_ino
