"""One dot lock: the mechanism of local/link.py under the contract of liblockfile.

Promise: what the original makes, with its names, its first line and its mode, and a record of ours
behind that line, which it does not read. The file stays until somebody removes it, as with the
original; so it keeps no open file, unless `keep`, which is for who runs a command under the lock.
Rule, and how it could fail: as local/link.py says. A stale file is adopted in place under the guard
of that very inode, and after every acquisition we wait for breakers that are under way and look
again, since the original may come to unlink what it judged before. One that sleeps longer than that
between its look and its unlink can rob us; two originals can rob each other.

L3  Who may not write a stale file, but may remove it, removes it under its flock. Who adopts it at
    that instant without one sees, looking again, that it is gone.
L5  `remove` takes away only the very file that it is told of, by inode and nonce.
L7  Symbolic links, folders, devices are judged by their time and never removed.
"""

from __future__ import annotations

import errno
import os
import stat

from ...core.grant import Held
from ...core.owner import DEAD, LifeVerdict
from ...local.ground import MountInfo
from ...local.judge import BEING_MOVED
from ...local.link import AGE, LONGEST_NAME, LinkLock
from ...local.record import RecordTemplate, read
from ...local.record_handle import BorrowedRecord
from ...local.refusals import no_locks
from ...runtime.blocking import BLOCKING
from ...runtime.process import here
from .contract import Contract
from .status import L_RMSTALE, L_TMPLOCK, L_TMPWRITE, CreateFailed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ...core.grant import Grant
    from ...core.owner import Owner
    from ...core.ports import Runtime
    from ...local.judge import Judgement
    from ...local.record_handle import RecordFile

AGAIN, PAUSE = 20, 0.001  # who only looks locks the file for microseconds


class DotLock(LinkLock):
    """One lock file. `number`: what stands on its first line; `owner`: who is told to hold it."""

    def __init__(
        self,
        path: str,
        *,
        number: int = 0,
        owner: Owner | None = None,
        by_process: bool = False,
        keep: bool = False,
        runtime: Runtime = BLOCKING,
        **more: Any,
    ) -> None:
        super().__init__(path, runtime, strict=True, **more)
        self.number, self.owner, self.keep = number, owner or here(), keep
        self.contract = Contract(self.files, by_process=by_process)
        self.took: Judgement | None = None  # whose lock it was, when we took it over

    # ---- one try

    def once(self) -> Grant | Held:
        """One try that does not wait. Raises Failed, LifeholdError, OSError."""
        self.took = None
        self.ready()
        self._refuse_folder()
        odd = self._odd()
        if odd is not None:
            if odd.state != DEAD:
                return Held(odd.evidence, self.key)
            raise CreateFailed(
                L_RMSTALE,
                f"{self.path!r} is no lock file that may be removed: {odd.evidence}",
                errno.EEXIST,
            )
        return self._settled_on(self._attempt)

    def _refuse_folder(self) -> None:
        """As the original, which makes its temporary file before it looks at the lock."""
        folder = os.path.dirname(self.path)
        if not os.access(folder, os.W_OK | os.X_OK):
            number = errno.EACCES if os.path.isdir(folder) else errno.ENOENT
            why = f"no temporary file can be made in {folder!r}: {os.strerror(number)}"
            raise CreateFailed(L_TMPLOCK, why, number)

    def standing(self) -> Judgement | LifeVerdict | None:
        """What is there, judged; None for nothing. Raises OSError."""
        self.ready()
        return self._odd() or self._look()

    def _odd(self) -> LifeVerdict | None:
        """A symbolic link, a folder, a device, or what may not be read: by its time alone."""
        try:
            found = self.files.lstat(self.path)
        except FileNotFoundError:
            return None
        if stat.S_ISREG(found.st_mode) and os.access(self.path, os.R_OK):
            return None
        if stat.S_ISLNK(found.st_mode):
            try:
                found = os.stat(self.path)  # the original follows it here, and unlinks the link
            except OSError:
                return LifeVerdict(DEAD, "a symbolic link that leads nowhere")
        return self.contract.by_age(self.path, found.st_mtime_ns, self.place)

    def judged(self, at: str, seen: Any) -> Judgement:
        return self.contract.judged(at, seen, self.place)

    def _weigh(self, at: str, seen: BorrowedRecord) -> Judgement:
        return self.judged(at, seen)

    def _held(self, found: Judgement, beside: str = "") -> Held:
        """Whatever lease it is held under: here 300 s count for all."""
        return Held(found.why, self.key)

    # ---- the file and its text

    def _write_aside(self) -> tuple[str, RecordFile]:
        """As the parent class makes it, but in a folder that is there."""
        folder = os.path.dirname(self.path).rstrip("/")
        front = f".lk{here().pid:05d}{self.files.clock_ns() // 1_000_000_000 & 15:x}"
        ends = (here().host or "").partition(".")[0], os.urandom(8).hex(), os.urandom(8).hex()
        refusal = OSError(errno.EEXIST, "no name is free")
        for end in ends:
            aside = f"{folder}/{(front + end)[:LONGEST_NAME]}"
            try:
                return aside, self._made(aside)
            except OSError as error:
                refusal = error
                if error.errno != errno.EEXIST:
                    break
        why = f"no temporary file can be made in {folder or '/'!r}: {refusal.strerror}"
        raise CreateFailed(L_TMPLOCK, why, refusal.errno or 0) from refusal

    def _write(self, ours: RecordFile, *given: Any, **more: Any) -> None:
        try:
            super()._write(ours, *given, **more)
        except OSError as error:
            why = f"the lock file cannot be written: {error.strerror}"
            raise CreateFailed(L_TMPWRITE, why, error.errno or 0) from error

    def _line(self) -> bytes:
        return b"%d\n" % self.number

    def _words(self, witness: bool) -> RecordTemplate:
        """Without a process or a witness nothing but the age proves anything: a lease of 300 s."""
        proven = self.place.one_kernel and (witness or self.number > 0)
        place = self.place if proven else MountInfo("", self.place.device)
        return RecordTemplate("link", self.owner, None if proven else AGE, place, witness=witness)

    def _bear_witness(self, ours: RecordFile) -> bool:
        return self.keep and super()._bear_witness(ours)

    def _number_anew(self, ours: RecordFile) -> bool:
        """Nobody is told the token; the file has been found to be ours a moment ago."""
        return True

    def _is_counted(self) -> bool:
        """Nor is a file made beside a mailbox for it."""
        return False

    def _lock(self, ours: RecordFile) -> bool | None:
        for left in range(AGAIN, -1, -1):
            locked = super()._lock(ours)
            if locked is not None or not left:
                return locked
            self.files.pause(PAUSE)
        raise AssertionError

    # ---- the file that is there already

    def _take_over(self, ours: RecordFile, found: Judgement) -> RecordFile | Held | None:
        if ours.writable:
            return super()._take_over(ours, found)
        locked = self._lock(ours)
        if locked is None:
            return Held(BEING_MOVED, self.key)
        if not locked:
            raise no_locks(self.path, self.kind)
        again = BorrowedRecord(self.files, ours.fd, by_touch=True)
        same = (again.read(), again.touched()) == (found.marker.content, found.touched)
        if same and self._leads(ours):
            try:
                self.files.unlink(self.path)
            except OSError as error:
                why = f"{self.path!r} is stale and cannot be removed: {error.strerror}"
                raise CreateFailed(L_RMSTALE, why, error.errno or 0) from error
            self.took = found
        return None

    def _adopt(self, ours: RecordFile, found: Judgement) -> bool:
        adopted = super()._adopt(ours, found)
        if adopted:
            self.took = found
        return adopted

    # ---- the end

    def remove(self, key: tuple[int, int], nonce: str | None) -> str:
        """L5  Remove the file with this inode and nonce; "" when done, else why it is not ours."""
        ours = self._open(write=True)
        if ours is None:
            return "it was removed by somebody else"
        try:
            if (ours.dev, ours.ino, read(ours.read()).nonce) != (*key, nonce):
                return "somebody else has taken it over"
            if (self._guard(ours) if ours.writable else self._lock(ours)) is None:
                return BEING_MOVED
            if not self._leads(ours):
                return "somebody else has replaced it"
            self.files.unlink(self.path)
            return ""
        finally:
            ours.close()
