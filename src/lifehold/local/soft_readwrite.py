"""A reader/writer lock without kernel queues: a writer's claim, and a marker for each reader.

Promise: at most one writer, and no reader beside it; readers together; who is proven dead is in
nobody's way, a silent one until its lease has run out. Once a writer has claimed, no later reader
gets in. Both are records as of the soft lock (local/soft.py), and end as those do.

Reader   1 A writer's claim is there: wait. A dead one: take it over, give it back, look again.
         2 Post a marker under a name that is never used twice.
         3 Look for a claim *again*, afresh: there is one: withdraw the marker, 1. Else it is ours.
Writer   4 Claim: the soft lock of the path.
         5 Look at every marker: the dead are removed, a living one is waited for, with the claim
           kept and renewed. None is left: the lock is ours.

How it could fail: a reader looks, a writer claims and finds no marker, the reader posts and goes
in. So the reader looks again after it has posted (3), and the writer lists after it has claimed
(5): of the two, one sees the other. A marker's name is random and used once, so that a removal of
what was judged hits nothing that came later (L3).

L4  Writers draw the token; readers carry the last one drawn. L8  A claim that was kept while its
    holder waited for readers counts only if its own deadline has not come.
It does not promise that writers without end let a reader in.
"""

from __future__ import annotations

import errno
import os
import stat

from ..core.deadline import NEVER
from ..core.errors import InvalidArgument, SystemRefused
from ..core.grant import Grant, Held, Lost
from ..core.liveness import DEAD
from ..core.value import replace
from .descriptors import TABLE, Descriptors
from .evidence import SEEN, Evidence, Judged
from .paper import look
from .refusals import make_folders, not_lockable, refused
from .soft import SoftLock
from .soft_marker import FRONT, KIND, SUFFIX, Claim, Marker, Questions, is_marker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..core.acquire import Ask
    from ..core.ports import Runtime

EVIDENCE = Evidence(KIND)
READERS_IN = "readers are in"
STRAYS = 100  # how often things may change under our hands before we say so


class SoftReadWrite(Questions):
    """One side of the lock at a path: `exclusive=True` for writers, False for readers."""

    leased = True
    safety = 2.0  # seconds between two looks of a waiter to whom no event comes

    def __init__(
        self, path: str, runtime: Runtime, *, exclusive: bool = True, table: Descriptors = TABLE,
        mode: int | None = None, shared: bool = False, evidence: Evidence = EVIDENCE, **more: Any,
    ) -> None:  # fmt: skip
        self.path, self.runtime, self.exclusive = path, runtime, exclusive
        self.table, self.files, self.folder = table, table.files, path + SUFFIX
        self._more = {"table": table, "mode": mode, "shared": shared, "evidence": evidence, **more}
        self.claim = SoftLock(path, runtime, **self._more)
        self.terms = self.claim.terms
        self.key = (KIND, path)
        self._mode = 0o777 if shared else 0o700 if mode is None else mode | (mode & 0o444) >> 2
        self._ready = False

    # ---- one try

    def attempt(self) -> Grant | Held:
        """One try that does not wait."""
        return self._guarded(self._write if self.exclusive else self._read)[0]

    def _guarded(self, act: Callable[[], tuple[Grant | Held, float]]) -> tuple[Grant | Held, float]:
        """The answer, and the instant at which time alone may change it."""
        try:
            if not self._ready:
                self._make_folder()
            return act()
        except OSError as error:
            if isinstance(error, SystemRefused):
                raise
            raise refused(self.path, error) from error

    def _read(self) -> tuple[Grant | Held, float]:
        for _ in range(STRAYS):
            case = self._writer()  # 1
            if case is not None:
                return Held(case.why, self.key), case.due
            marker = self._marker(f"{self.folder}/{FRONT}{os.urandom(16).hex()}")
            answer = marker.attempt()  # 2
            self.claim._known, self.claim._guards = marker._known, marker._guards  # spares work
            if not isinstance(answer, Grant):
                continue  # over NFS: done, and it looks as if it were not; nobody holds that one
            try:
                case = self._writer()  # 3
            except BaseException:
                marker.drop(answer)
                raise
            if case is None:
                return answer, NEVER
            marker.drop(answer)
            return Held(case.why, self.key), case.due
        return Held("it comes and goes too fast", self.key), self.runtime.now() + 0.25

    def _writer(self) -> Judged | None:
        """Who has claimed; None for nobody who lives."""
        for _ in range(STRAYS):
            found = look(self.table, self.path)
            if found is None:
                return None
            try:
                case = self.claim.judged(found)
            finally:
                found.close()
            if case.state != DEAD:
                return case
            answer = self.claim.attempt()  # judges again, and takes over in one step
            if isinstance(answer, Grant):
                self.claim.drop(answer)
        raise OSError(errno.ESTALE, "the writer's claim changes too fast")

    def _write(self) -> tuple[Grant | Held, float]:
        answer, due = self._claimed()
        if not isinstance(answer, Grant):
            return answer, due
        readers = NEVER
        try:
            readers = self._readers()  # 5
        except BaseException:
            self.claim.drop(answer)
            raise
        if readers == 0.0:
            return answer, NEVER
        self.claim.drop(answer)
        return Held(READERS_IN, self.key), readers

    def _claimed(self) -> tuple[Grant | Held, float]:
        """The soft lock of the path."""
        answer, due = self.claim._try()  # 4
        if isinstance(answer, Grant):
            return replace(answer, key=self.key), due
        return Held(answer.reason, self.key), due

    def _readers(self) -> float:
        """0.0 when no reader is left, else the instant at which time alone may change that."""
        due, living = NEVER, False
        names = list(filter(is_marker, self.files.listdir(self.folder)))
        while names:  # not `for`: how far it has come is seen by the explorer
            name = names.pop()
            path = f"{self.folder}/{name}"
            found = look(self.table, path)
            if found is None:
                continue
            try:
                marker = self._marker(path)
                case = marker.judged(found)
                if case.state == DEAD:
                    self._remove(path)
                else:
                    living, due = True, min(due, case.due)
            finally:
                found.close()
        return due if living else 0.0

    def _remove(self, path: str) -> None:
        """L3  The name is of one reader alone, who was judged."""
        SEEN.pop(path, None)
        try:
            self.files.unlink(path)
        except FileNotFoundError:
            pass

    def _marker(self, path: str) -> Marker:
        marker = Marker(path, self.runtime, **self._more)
        marker.writer = self.path
        marker._known, marker._guards = self.claim._known, self.claim._guards
        return marker

    def _make_folder(self) -> None:
        """0700, or 0777 for all: others must not be able to remove a reader's marker."""
        for again in (True, False):
            try:
                self.files.mkdir(self.folder, self._mode)
            except FileExistsError:
                break
            except FileNotFoundError:
                if not again:
                    raise
                make_folders(self.files, self.path)
            else:
                if self._mode == 0o777:
                    self.files.chmod(self.folder, self._mode)
                break
        found = self.files.lstat(self.folder).st_mode
        if not stat.S_ISDIR(found):  # L7  a link or a file is neither followed nor replaced
            raise not_lockable(self.folder, found)
        self._ready = True

    # ---- waiting

    async def try_acquire(self, ask: Ask) -> Grant | Held:
        return self.attempt()

    async def wait(self, ask: Ask, until: float) -> Grant | Held:
        """Sleep until something happens, or a lease runs out; then one try."""
        claim: Claim | None = ask.slot if isinstance(ask.slot, Claim) else None
        due = ask.slot if isinstance(ask.slot, float) else NEVER
        at = self.path if claim is None else f"{self.folder}/"
        now = self.runtime.now()
        if claim is not None:
            due = min(claim.due, claim.renew_at)
        due = min(until, due, now + self.safety if self.safety < NEVER else NEVER)
        try:
            await self.runtime.changed(ask, at, due, blind=self._blind())
            answer = await self._next(ask, claim)
        except BaseException:
            self._abandon(ask)
            raise
        if isinstance(answer, Held) and (ask.cancelled or self.runtime.now() >= ask.deadline):
            self._abandon(ask)
        return answer

    async def _next(self, ask: Ask, claim: Claim | None) -> Grant | Held:
        """After something happened."""
        if not self.exclusive:
            answer, ask.slot = self._guarded(self._read)
            return answer
        if claim is None:
            answer, due = self._guarded(self._claimed)
            if not isinstance(answer, Grant):
                ask.slot = due
                return answer
            claim = ask.slot = Claim(answer, self.terms, self.runtime.now())
        elif not await self._kept(claim):
            self._abandon(ask)
            return Held("our claim ran out while readers were in", self.key)
        claim.due = self._readers()
        if claim.due or not claim.sure(self.runtime.now()):
            return Held(READERS_IN, self.key)
        ask.slot = None
        return claim.grant

    async def _kept(self, claim: Claim) -> bool:
        """Renew our claim when it is time; whether it still stands (L8)."""
        now = self.runtime.now()
        if now < claim.renew_at:
            return claim.sure(now)
        found = await self.claim.renew(claim.grant)
        if isinstance(found, Lost) or not claim.sure(self.runtime.now()):
            return False
        claim.renewed(found, now)
        return True

    def _abandon(self, ask: Ask) -> None:
        """L6  A claim that nobody waits behind is withdrawn, so that readers get in."""
        claim, ask.slot = ask.slot, None
        if isinstance(claim, Claim) and claim.grant.handle:
            self.claim.drop(claim.grant)

    def _blind(self) -> bool:
        place = self.claim._place
        return self.far() if place is None else not place.one_kernel

    # ---- the life of a grant

    def _record_of(self, grant: Grant) -> SoftLock:
        return self.claim if grant.name == self.path else self._marker(grant.name)

    def check(self, grant: Grant) -> Lost | None:
        """One lstat(2); over NFS an open(2), which asks the server."""
        return self._record_of(grant).check(grant)

    def drop(self, grant: Grant) -> Lost | None:
        """Let go, in plain code."""
        return self._record_of(grant).drop(grant)

    async def release(self, grant: Grant) -> Lost | None:
        return self.drop(grant)

    async def renew(self, grant: Grant) -> Grant | Lost:
        """L8  As of the soft lock."""
        return await self._record_of(grant).renew(grant)

    def downgrade(self, grant: Grant) -> Grant | Lost:
        """Not offered: the lease of a claim cannot become that of a marker in one step."""
        raise InvalidArgument(
            f"kind='soft' has no downgrade: release {self.path!r}, then acquire it for reading, "
            "and look again at what you wrote"
        )


side = SoftReadWrite
