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
from ...core.owner import ALIVE, DEAD, UNKNOWN, LifeVerdict, Owner, judge
from ...local.files import CREATE, READ_WRITE
from ...local.ground import MountInfo
from ...local.judge import BEING_MOVED, Judgement, LivenessJudge
from ...local.link import AGE, LONGEST_NAME, LinkLock
from ...local.record import CURRENT, LIVE, RecordTemplate, read
from ...local.record_handle import BorrowedRecord
from ...local.refusals import no_locks
from ...runtime import process
from ...runtime.blocking import BLOCKING
from ...runtime.process import here
from .status import L_RMSTALE, L_TMPLOCK, L_TMPWRITE, CreateFailed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ...core.grant import Grant
    from ...core.ports import Runtime
    from ...local.files import Files
    from ...local.record import ParsedRecord
    from ...local.record_handle import RecordFile

AGAIN, PAUSE = 20, 0.001  # who only looks locks the file for microseconds
ANOTHERS = "somebody else has taken it over"


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
            if not _is_the_one(ours, key, nonce):
                return ANOTHERS
            if (self._guard(ours) if ours.writable else self._lock(ours)) is None:
                return BEING_MOVED
            if not _is_the_one(ours, key, nonce):  # L2  adopted in place, before our guard
                return ANOTHERS
            if not self._leads(ours):
                return "somebody else has replaced it"
            self.files.unlink(self.path)
            return ""
        finally:
            ours.close()

    def stands(self, key: tuple[int, int], nonce: str, *, touch: bool = False) -> bool:
        """Whether the file with this inode and nonce is there. `touch`: that very one.

        Raises FileNotFoundError for no file.
        """
        seen = self._open(write=False)
        if seen is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.path)
        try:
            found = _is_the_one(seen, key, nonce)
            if found and touch:
                self._beat(seen)
            return found
        finally:
            seen.close()


def _is_the_one(found: RecordFile, key: tuple[int, int], nonce: str | None) -> bool:
    """Who takes a file over writes into it: the inode alone proves nothing."""
    return (found.dev, found.ino, read(found.read()).nonce) == (*key, nonce)


# ------------------------------------------------------------------------------------------------
# Which lock file is valid: liblockfile's contract, and what we know besides.
#
# The contract: a lock file is valid for 300 s after its last touch; asked by process (L_PID,
# L_PPID), for as long as the process on its first line exists. What ours adds:
#
# - Somebody who lives locks the file (a witness): valid, however old it is.
# - A record of ours names a process that is proven to live: valid, however old.
# - The witness that a record of ours promises is free: not valid, however young.
# - A bare number proves a death only where all processes are visible (L2); elsewhere the age
# counts.
# - The answer is that of the first look. The original takes its clock from the time of the last
#   read, which on most mounts changes with the look itself, so that it says "valid" once more.
#
# How it could fail: a clock that is set forward by minutes makes living holders old, here as in the
# original. Over a network the clock is therefore the file server's: that of a file made just now.


AGE_NS = 300 * 1_000_000_000
FIRST = 16  # bytes that the original reads
KINDS = ("link", "")
WORDS = LivenessJudge("link")


class Contract:
    """The judge of one call. `by_process`: L_PID or L_PPID was given."""

    def __init__(self, files: Files, *, by_process: bool) -> None:
        self.files, self.by_process = files, by_process

    def judged(self, path: str, found: BorrowedRecord, place: MountInfo) -> Judgement:
        """A file that is open: ALIVE for a valid one, else DEAD."""
        content, touched = found.read(), found.touched()
        marker = read(content)
        verdict = self._at_once(marker, found, place)
        if verdict.state == UNKNOWN:
            verdict = self.by_age(path, touched, place)
        lock = WORDS.lock(path, marker, place)
        why = "" if marker.owner else verdict.evidence
        return Judgement(
            verdict.state, verdict.evidence, marker, found.key, lock, why=why, touched=touched
        )

    def _at_once(
        self, marker: ParsedRecord, found: BorrowedRecord, place: MountInfo
    ) -> LifeVerdict:
        """What is known without a look at the clock."""
        if marker.state == CURRENT and marker.kind not in KINDS:
            return LifeVerdict(ALIVE, f"a lock of kind={marker.kind!r}, which is no dot lock")
        if marker.state == CURRENT and marker.stage not in LIVE:
            return LifeVerdict(DEAD, marker.stage)
        held = found.has_witness() if place.one_kernel else None
        if held:
            return LifeVerdict(
                ALIVE, "kernel witness" if marker.witness else "somebody locks the file"
            )
        if marker.state == CURRENT and marker.witness and marker.one_kernel and held is False:
            return LifeVerdict(DEAD, "its kernel witness is free")
        if marker.state == CURRENT and marker.owner is not None:
            return self._named(marker.owner, marker.one_kernel and place.one_kernel)
        number = first_number(marker.content)
        if self.by_process and number > 0 and place.one_kernel:
            return _bare(number)
        return LifeVerdict(UNKNOWN, "")

    def _named(self, owner: Owner, one_kernel: bool) -> LifeVerdict:
        """A death counts only for who asks by process: for all others the age is the contract."""
        found = judge(owner, process.ground(one_kernel, None))
        if found.state == DEAD and not self.by_process:
            return LifeVerdict(UNKNOWN, found.evidence)
        return found

    def by_age(self, path: str, touched: int, place: MountInfo) -> LifeVerdict:
        """The 5 minutes. `touched`: the file's time in nanoseconds."""
        age = self._now(path, place) - touched
        seconds = max(0, age) // 1_000_000_000
        if age < AGE_NS:
            return LifeVerdict(ALIVE, f"it was touched {seconds} s ago, which counts for 300 s")
        return LifeVerdict(DEAD, f"nobody has touched it for {seconds} s, and 300 s is the rule")

    def _now(self, path: str, place: MountInfo) -> int:
        """UTC nanoseconds by the clock that stamps files there."""
        if place.far:
            aside = os.path.join(
                os.path.dirname(path), f".lk{os.getpid():05d}{os.urandom(8).hex()}"
            )
            try:
                fd = self.files.open(aside, READ_WRITE | CREATE, 0o600)
            except OSError:
                return self.files.clock_ns()
            try:
                return self.files.fstat(fd).st_mtime_ns
            finally:
                self.files.close(fd)
                self.files.unlink(aside)
        return self.files.clock_ns()


def first_number(content: bytes) -> int:
    """The number at the start of a lock file, as atoi(3) reads it; 0 for none."""
    text = content[:FIRST].lstrip(b" \t\n\v\f\r")
    sign = text[:1] in (b"+", b"-")
    digits = text[sign:]
    digits = digits[: len(digits) - len(digits.lstrip(b"0123456789"))]
    number = int(digits or b"0")
    return -number if text[:1] == b"-" else number


def _bare(number: int) -> LifeVerdict:
    """A file of the original that names a process."""
    if number >= 1 << 31:
        return LifeVerdict(UNKNOWN, "")
    found = judge(Owner(number), process.ground(True, None))
    if found.state == UNKNOWN and process.look(number).exists:
        return LifeVerdict(ALIVE, f"a process {number} runs")
    return found
