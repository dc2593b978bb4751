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
the link: as long as that has its name, nothing after it was cut. So who keeps one open finds the
newest from there, name by name, without a list; and what he has linked himself is the next one to
be kept.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

from ...core.value import value
from ...local.ground import place_of
from ...runtime import fork
from .errors import SoftFileLockProtocolError
from .record_folder import MOST
from .strict_claims import is_token, without_links

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .record_folder import OpenFolder


HEAD, EPOCH, TEMPORARY = "HEAD", "epoch", ".commit-"
USUAL, BUFFER = 1 << 10, 1 << 16  # bytes read of it; one that is longer is replaced


# ------------------------------------------------------------------------------------------------
# One snapshot of a soft reader/writer lock: who writes, who reads, and its bytes.


FORM, DIGITS = "filelock-rw/1", 20


@value
class LogState:
    """Who holds the lock at one generation."""

    generation: int
    writer: str | None
    readers: frozenset[str]

    @property
    def members(self) -> frozenset[str]:
        """All of them."""
        readers, writer = self.readers, self.writer
        return readers if writer is None else readers | {writer}

    def without(self, token: str) -> LogState:
        """The next one, when a member has left."""
        writer = None if self.writer == token else self.writer
        return LogState(self.generation + 1, writer, self.readers - {token})


def numbered(generation: int) -> str:
    """Its name."""
    return f"{generation:0{DIGITS}d}"


def spelled(state: LogState) -> bytes:
    """The bytes of a snapshot."""
    text = f"{FORM}\ngeneration={state.generation}\n"
    if state.writer is not None:
        text += f"writer={state.writer}\n"
    for token in sorted(state.readers):
        text += f"reader={token}\n"
    return text.encode()


def parsed(content: bytes) -> LogState | None:
    """The snapshot; None for what is none."""
    try:
        lines = content.decode("ascii").split("\n")
    except UnicodeDecodeError:
        return None
    if len(content) > MOST or lines[0] != FORM or lines[-1]:
        return None
    number: int | None = None
    writer: str | None = None
    readers: set[str] = set()
    for line in lines[1:-1]:
        key, _, told = line.partition("=")
        if key == "generation" and number is None and is_number(told):
            number = int(told)
        elif key == "writer" and writer is None and is_token(told):
            writer = told
        elif key == "reader" and is_token(told) and told not in readers:
            readers.add(told)
        else:
            return None
    return None if number is None else LogState(number, writer, frozenset(readers))


def is_number(text: str) -> bool:
    return len(text) <= DIGITS and text.isdigit() and str(int(text)) == text


# ------------------------------------------------------------------------------------------------
# A file's content on its way to the disk before a name leads to it.
#
# Promise: after a power loss no name is there without its content. fsync(2) would do, and costs a
# flush of the disk each time. Where the journal commits a name together with the file's size, and
# the size only when the data is on the disk, it is enough that the data has been sent: ext4 in its
# usual mode, where the commit itself waits for it, needs it begun; xfs needs it done.


BEGUN, DONE = 2, 7  # of sync_file_range(2): WRITE; WAIT_BEFORE, WRITE and WAIT_AFTER
FLUSHED, NOTHING = -1, 0
_ways: dict[int, int] = {}  # of each device


def durable(fd: int, device: int | None = None) -> None:
    """See to it that no name that is given from now on outlives the content. Raises OSError.

    `device`: of the file, where it is known.
    """
    if device is None:
        device = os.fstat(fd).st_dev
    way = _ways.get(device)
    if way is None:
        way = _ways[device] = _way(fd)
    if way == FLUSHED or (way and _LinkCall.found(fd, 0, 0, way)):
        os.fsync(fd)


def _way(fd: int) -> int:
    place = place_of(fd)
    if place.kind == "tmpfs":
        return NOTHING
    if place.kind not in ("ext4", "xfs") or not _LinkCall.load():
        return FLUSHED
    return BEGUN if place.kind == "ext4" and _is_ordered(place.device) else DONE


def _is_ordered(device: str) -> bool:
    """Whether ext4 holds a journal's commit back until the data that goes with it is written."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
            lines = [line.split() for line in file]
    except OSError:
        return False
    options = [line[-1] for line in lines if line[2] == device]
    odd = ("data=writeback", "data=journal", "nobarrier", "barrier=0", "norecovery")
    return bool(options) and not any(word in each for each in options for word in odd)


class _LinkCall:
    found: Any = None

    @classmethod
    def load(cls) -> bool:
        """Whether there is sync_file_range(2)."""
        try:
            ctypes = fork.lazily("ctypes")
            call = ctypes.CDLL(None, use_errno=True).sync_file_range
        except (ImportError, AttributeError, OSError):
            return False
        call.argtypes = ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint
        cls.found = call
        return True


KEEP, CUT = 64, 128  # what others count on; ours are removed when the disk has long had them
BATCH = 32  # at once: each may wait for the journal, of which all of one moment wait together
MANY = 8 * BATCH  # since we have cut last, for which those that others have cut are not sought


class GenerationLog:
    """The log of one lock, as far as one object knows it. `near`: one kernel has its folder."""

    sync: Any = staticmethod(durable)
    keep, cut, batch = KEEP, CUT, BATCH

    def __init__(self, lock_file: str, near: bool) -> None:
        self.lock_file, self.near = lock_file, near
        self.epoch: bytes | None = None
        self._said: tuple[bytes, int] = b"", 0  # what it said last, and of which generation
        self.last: LogState | None = None
        self._cut_to = 0

    # ---- looking

    def latest(self, folder: OpenFolder) -> LogState:
        """The newest snapshot. Raises SoftFileLockProtocolError, OSError."""
        found = self._ahead(folder)
        if found is None:
            found = self._found(folder) or self._found(
                folder
            )  # all that was named may have been cut
            if found is None:
                reason = "generation log names no readable snapshot"
                raise SoftFileLockProtocolError(self.lock_file, None, reason)
            if self.near and found.generation:
                folder.pin = self._opened(folder, found)
        self.last = found
        return found

    def _ahead(self, folder: OpenFolder) -> LogState | None:
        """From the one that is kept open on, to the first that is missing.

        None: there is none, or it was cut meanwhile, and with it others may have been.
        """
        kept, folder.pin = folder.pin, None
        if kept is None:
            return None
        for _ in range(self.keep):
            state, pin = kept
            try:
                after = folder.kept(numbered(state.generation + 1))
            except FileNotFoundError:
                if not pin.has_name():
                    break
                folder.pin = kept
                return state  # type: ignore[no-any-return]
            content = folder.files.pread(after.fd, MOST + 1, 0)
            kept = self._told(content, state.generation + 1), after
            pin.close()
        kept[1].close()
        return None

    def _opened(self, folder: OpenFolder, state: LogState) -> tuple[LogState, Any] | None:
        """A snapshot, to be kept open. None: its name is gone, or leads to another."""
        try:
            pin = folder.kept(numbered(state.generation))
        except FileNotFoundError:
            return None
        expected = spelled(state)
        if folder.files.pread(pin.fd, len(expected) + 1, 0) == expected:
            return state, pin
        pin.close()
        return None

    def _found(self, folder: OpenFolder) -> LogState | None:
        epoch = self._incarnation(folder)
        if epoch != self.epoch:
            self.epoch, self.last, self._cut_to = epoch, None, 0
        head = self._head(folder)
        listed = self._listed(folder)
        newest = listed[-1] if listed else 0
        if newest >= max(head, self.last.generation if self.last else 0):
            start = self._read(folder, newest) if newest else None
            if start is not None:
                # Where a list is never old, what it lacks came later, and follows without a gap.
                sure = self.near or newest == head
                return self._probed(folder, start, 1 if sure else self.keep)
        named = set(listed[-self.keep :])
        if self.last is not None and self.last.generation:
            named.add(self.last.generation)
        if head:
            named.add(head)
        for generation in sorted(named, reverse=True):
            start = self._read(folder, generation)
            if start is not None:
                return self._probed(folder, start, 1 if generation == head else self.keep)
        newest = max(named, default=0)
        found = self._probed(folder, LogState(newest, None, frozenset()), self.keep)
        return found if found.generation > newest or not named else None

    def _probed(self, folder: OpenFolder, start: LogState, patience: int) -> LogState:
        """The last one from there on, over gaps of fewer than `patience`."""
        latest, generation, gap = start, start.generation, 0
        while gap < patience:
            generation += 1
            found = self._read(folder, generation)
            if found is None:
                gap += 1
            else:
                latest, gap = found, 0
        return latest

    def _read(self, folder: OpenFolder, generation: int) -> LogState | None:
        content = folder.read(numbered(generation))
        return None if content is None else self._told(content, generation)

    def _told(self, content: bytes, generation: int) -> LogState:
        found = parsed(content)
        if found is None or found.generation != generation:
            reason = "malformed generation record"
            raise SoftFileLockProtocolError(self.lock_file, numbered(generation), reason)
        return found

    def _incarnation(self, folder: OpenFolder) -> bytes | None:
        found = folder.read(EPOCH)
        if found is None:
            with contextlib.suppress(FileExistsError):
                folder.created(EPOCH, f"{os.urandom(16).hex()}\n".encode(), self.sync)
            found = folder.read(EPOCH)
        return found

    @staticmethod
    def _listed(folder: OpenFolder) -> list[int]:
        """The numbers in the folder, in order."""
        return sorted(
            int(name)
            for name in folder.names()
            if len(name) == DIGITS and name.isascii() and name.isdigit()
        )

    # ---- committing

    def commit(self, folder: OpenFolder, before: LogState, state: LogState) -> bool:
        """Publish what follows `before`. False: somebody was faster, or it is another log by now.

        Raises FileNotFoundError when the folder was removed; OSError.
        """
        done = self._commit_near if self.near else self._commit_far
        if not done(folder, before, state, spelled(state)):
            return False
        self.last = state
        if not state.generation % self.batch:
            self._cut(folder, state.generation - self.cut)
        return True

    def _commit_near(
        self, folder: OpenFolder, before: LogState, state: LogState, content: bytes
    ) -> bool:
        if before.generation:
            kept = self._pinned(folder, before)
            if kept is None:
                return False
        elif self._head(folder):
            return False
        else:
            kept = None
        ours: list[Any] = []
        try:
            name = numbered(state.generation)
            if not self._published(folder, name, content, ours):
                return False
            if kept is not None:
                if not kept.has_name():
                    return self._withdrawn(folder, state.generation, name)
                kept.let_go()
                kept = None
            if ours:
                folder.pin = state, ours.pop()
        finally:
            for each in (kept, *ours):
                if each is not None:
                    each.close()
        if state.writer is None:  # else the next one comes soon, and nobody new before it
            with contextlib.suppress(OSError):
                self._move_head(folder, state.generation, content)
        return True

    def _pinned(self, folder: OpenFolder, state: LogState) -> Any:
        """A snapshot, open: whether it has its name still is asked later. None: it has not."""
        kept, folder.pin = folder.pin, None
        if kept is not None and kept[0] != state:
            kept[1].close()
            kept = None
        if kept is None:
            kept = self._opened(folder, state)
        return None if kept is None else kept[1]

    def _commit_far(
        self, folder: OpenFolder, before: LogState, state: LogState, content: bytes
    ) -> bool:
        generation, name = state.generation, numbered(state.generation)
        if folder.read(EPOCH) != self.epoch or not self._follows(folder, generation):
            return False
        if not self._linked(folder, name, content):
            return False
        head = self._head(folder)
        lead = max([head, *self._listed(folder)]) - generation
        if lead >= self.keep or not self._follows(folder, generation):
            return self._withdrawn(folder, generation, name, lead)
        with contextlib.suppress(OSError):
            if self._has_epoch() and head < generation:
                self._rename_head(folder, content)
        return True

    def _withdrawn(
        self, folder: OpenFolder, generation: int, name: str, lead: int | None = None
    ) -> bool:
        """The log went on by so much that its name was free again, or it is another one."""
        if lead is None:
            head = self._head(folder)
            lead = max([head, *self._listed(folder)]) - generation
        if not 0 < lead < self.keep:
            folder.unlink(name)
        return False

    def _cut(self, folder: OpenFolder, generation: int) -> None:
        """Remove what is too old, the oldest first: what stays has no hole."""
        oldest = self._cut_to + 1  # what is older we have removed before
        if not generation - MANY < oldest <= generation:
            oldest = generation
            while oldest > 1 and folder.key_at(numbered(oldest - 1)) is not None:
                oldest -= 1
        for number in range(max(oldest, 1), generation + 1):
            folder.unlink(numbered(number))
        self._cut_to = generation

    def _follows(self, folder: OpenFolder, generation: int) -> bool:
        """Whether the snapshot before it is there; the first one follows nothing."""
        if generation > 1:
            return folder.key_at(numbered(generation - 1)) is not None
        return not self._head(folder)

    def _published(self, folder: OpenFolder, name: str, content: bytes, ours: list[object]) -> bool:
        """Whether it has its name now, whole, and nobody was faster. `ours`: it, if it is open."""
        made = folder.nameless()
        if made is None:
            return self._linked(folder, name, content)
        try:
            folder.files.pwrite(made.fd, content, 0)
            self.sync(made.fd, made.dev)
            if not folder.named(made.fd, name):
                return self._linked(folder, name, content)
            ours.append(made)
        except FileExistsError:
            return False
        except OSError as error:
            raise without_links(self.lock_file, error) or error from None
        finally:
            if not ours:
                made.close()
        return True

    def _linked(self, folder: OpenFolder, name: str, content: bytes) -> bool:
        temporary = f"{TEMPORARY}{os.urandom(16).hex()}"
        key = folder.created(temporary, content, self.sync)
        try:
            folder.linked(temporary, name, key)
        except FileExistsError:
            return False
        except OSError as error:
            if folder.key_at(name) == key:
                return True
            raise without_links(self.lock_file, error) or error from None
        finally:
            folder.unlink(temporary)
        return folder.key_at(name) == key

    # --------------------------------------------------------------------------------------------
    # HEAD of a reader/writer log: a copy of one of the newest snapshots, behind the log's own name.
    #
    # Rule: it may lag behind and never leads; only its number is used, and what it names is looked
    # at. It is written in place by whoever has committed, and kept open for the next time as long
    # as it has its name.
    #
    # HEAD as one object knows it. `epoch`: the name of the log, with its newline.

    def _head(self, folder: OpenFolder) -> int:
        """The generation that HEAD names; 0 for none."""
        content = folder.read(HEAD)
        return 0 if content is None else self._named_by(content)

    def _named_by(self, content: bytes) -> int:
        epoch, newline, rest = content.partition(b"\n")
        if not self._has_epoch() or epoch + newline != self.epoch:
            return 0
        found = parsed(rest)
        return 0 if found is None else found.generation

    def _has_epoch(self) -> bool:
        return self.epoch is not None and is_token(self.epoch.decode("ascii", "replace")[:-1])

    def _move_head(self, folder: OpenFolder, generation: int, content: bytes) -> None:
        """In place: a rename over a file makes ext4 write it out at once."""
        if not self._has_epoch():
            return
        files, head = folder.files, folder.head
        if head is None or files.fstat(head.fd).st_nlink != 1:
            try:
                head = folder.head = folder.kept(HEAD, os.O_RDWR)
            except FileNotFoundError:
                self._rename_head(folder, content)
                return
            if files.fstat(head.fd).st_nlink != 1:
                return
        text, (found, number) = (self.epoch or b"") + content, self._said
        there = files.pread(head.fd, USUAL, 0)
        if len(there) == USUAL:
            there = files.pread(head.fd, BUFFER, 0)
        if not there.startswith(self.epoch or b"-"):
            if folder.read(EPOCH) == self.epoch:
                self._rename_head(folder, content)  # half of it, after a crash
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

    def _rename_head(self, folder: OpenFolder, content: bytes) -> None:
        temporary = f"{TEMPORARY}{os.urandom(16).hex()}"
        folder.created(temporary, (self.epoch or b"") + content, None)
        try:
            folder.rename(temporary, HEAD)
        except OSError:
            folder.unlink(temporary)
