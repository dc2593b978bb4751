"""Which lock file is valid: liblockfile's contract, and what we know besides.

The contract: a lock file is valid for 300 s after its last touch; asked by process (L_PID, L_PPID),
for as long as the process on its first line exists. What ours adds:

- Somebody who lives locks the file (a witness): valid, however old it is.
- A record of ours names a process that is proven to live: valid, however old.
- The witness that a record of ours promises is free: not valid, however young.
- A bare number proves a death only where all processes are visible (L2); elsewhere the age counts.
- The answer is that of the first look. The original takes its clock from the time of the last read,
  which on most mounts changes with the look itself, so that it says "valid" once more.

How it could fail: a clock that is set forward by minutes makes living holders old, here as in the
original. Over a network the clock is therefore the file server's: that of a file made just now.
"""

from __future__ import annotations

import os

from ...core.owner import ALIVE, DEAD, UNKNOWN, LifeVerdict, Owner, judge
from ...local.files import CREATE, READ_WRITE
from ...local.judge import Judgement, LivenessJudge
from ...local.record import CURRENT, LIVE, read
from ...runtime import process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...local.files import Files
    from ...local.ground import MountInfo
    from ...local.record import ParsedRecord
    from ...local.record_handle import BorrowedRecord

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
                return self.files.clock_ns()  # type: ignore[no-any-return]
            try:
                return self.files.fstat(fd).st_mtime_ns  # type: ignore[no-any-return]
            finally:
                self.files.close(fd)
                self.files.unlink(aside)
        return self.files.clock_ns()  # type: ignore[no-any-return]


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
