"""The kinds of lock that the fault table has a row for, and what each of them promises.

A new shape joins with one line in `ROWS`: an expression that makes its lock from `path`, and the
words about it. Everything else asks the lock only for `acquire(wait)`, and its lease for `token`,
`check()` and `release()`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from lifehold.local.kernel_semaphore import slot_path

SLOW = float(os.environ.get("LIFEHOLD_FAULTS_SLOW", "1"))  # times a usual machine's, in a guest
TTL, HEARTBEAT, MARGIN = 1.0 * SLOW, 0.2 * SLOW, 0.2 * SLOW
TERMS = f"ttl={TTL}, heartbeat={HEARTBEAT}, margin={MARGIN}"
PROOF = 0.05 * SLOW  # seconds to recover where one kernel proves the death
LEASE = TTL + HEARTBEAT  # and where only the lease ends


@dataclass(frozen=True)
class Row:
    """One kind. `witness`: a kernel lock on its own record tells whether its holder lives;
    `flock`: it cannot work without flock(2); `settles`: seconds of its own that a takeover takes;
    `shared`: it may be used on a shared file system; `counter`: its tokens grow when the clock is
    set back, too; `folder`: its lock is a folder; `slot`: it is the file of a slot; `marker`: it
    is one of many files beside the path; `reads`: the first party of a scene does, and has the
    token of the writer before it.
    """

    name: str
    make: str
    leased: bool = False
    witness: bool = True
    flock: bool = True
    settles: float = 0.0
    shared: bool = False
    counter: bool = True
    folder: bool = False
    slot: bool = False
    marker: bool = False
    reads: bool = False

    @property
    def kind(self) -> str:
        return self.name.partition(" ")[0]

    def at(self, path: Path) -> Path:
        """What is the lock, of one at `path`."""
        if self.marker:
            return next(Path(f"{path}.readers").glob("r.*"))
        return Path(slot_path(str(path), 0)) if self.slot else path

    @property
    def proof(self) -> float:
        """Seconds to recover from a death that one kernel proves."""
        return PROOF + self.settles

    @property
    def lease(self) -> float:
        """Seconds to recover from a silence that nothing explains."""
        return LEASE + self.settles

    def proof_by(self, *, witness: bool) -> float:
        """From a death that only a witness can prove, when `witness`."""
        return self.proof if self.witness or not witness else self.lease


SETTLES = 0.06 * SLOW  # of `link`: the 50 ms in which a foreign breaker must come, and a wake-up

ROWS = (
    Row("kernel", 'Lock(path, kind="kernel")'),
    Row("soft", 'Lock(path, kind="soft")'),
    Row("soft ttl", f'Lock(path, kind="soft", {TERMS})', leased=True, shared=True),
    Row("link", 'Lock(path, kind="link")', settles=SETTLES, counter=False),
    Row(
        "link ttl", f'Lock(path, kind="link", {TERMS})', leased=True,
        settles=SETTLES, shared=True, counter=False,
    ),
    Row("generation", 'Lock(path, kind="generation")', flock=False, folder=True),
    Row(
        "generation ttl", f'Lock(path, kind="generation", {TERMS})', leased=True, flock=False,
        shared=True, folder=True,
    ),
    Row("directory", 'Lock(path, kind="directory")', flock=False, folder=True),
    Row(
        "directory ttl", f'Lock(path, kind="directory", {TERMS})', leased=True, flock=False,
        shared=True, folder=True,
    ),
    Row("folder", 'Lock(path, kind="folder")', folder=True),
    Row("readwrite", 'shapes.writer(path, kind="kernel")'),
    Row("readwrite soft", 'shapes.writer(path, kind="soft")'),
    Row(
        "readwrite soft ttl", f'shapes.writer(path, kind="soft", {TERMS})', leased=True,
        shared=True,
    ),
    Row("reader", 'shapes.reader(path, me, kind="kernel")', reads=True),
    Row("reader soft ttl", f'shapes.reader(path, me, kind="soft", {TERMS})', leased=True,
        shared=True, marker=True, reads=True),
    Row("semaphore", "Semaphore(path, 1)", slot=True),
    Row("once", "shapes.Once(path)"),
)  # fmt: skip
BY_NAME = {row.name: row for row in ROWS}
