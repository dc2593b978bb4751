"""A reader/writer lock without kernel queues: a writer's claim, and a marker for each reader.

Promise: at most one writer, and no reader beside it; readers together; who is proven dead is in
nobody's way, a silent one until its lease has run out. Once a writer has claimed, no later reader
gets in; a writer does not claim before readers that waited when it came (soft_turns.py), so neither
side starves. Both are records as of the soft lock (local/soft.py), and end as those do.

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

L4  Writers draw the token; readers carry the last one drawn. L7  Each look reaches the markers
through one open folder, so that no link put in its place meanwhile leads elsewhere. L8  A claim
that was kept while its holder waited for readers counts only if its own deadline has not come.
"""

from __future__ import annotations

import errno
import os
from functools import partial

from ..core.deadline import NEVER
from ..core.errors import InvalidArgument, SystemRefused
from ..core.grant import Grant, Held, Lost
from ..core.liveness import DEAD
from ..core.value import replace
from .descriptors import TABLE, Descriptors, table_for
from .evidence import RETRY, SEEN, TOO_SLOW, Evidence, Judged
from .paper import look
from .refusals import asked_again, make_folders, not_lockable, refused
from .soft import SoftLock
from .soft_marker import FRONT, KIND, SUFFIX, Marker, Questions, is_marker
from .soft_turns import READERS_FIRST, READERS_IN, Turns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    from ..core.ports import Runtime

    T = TypeVar("T")

EVIDENCE = Evidence(KIND)
STRAYS = 100  # how often things may change under our hands before we say so


class SoftReadWrite(Turns, Questions):
    """One side of the lock at a path: `exclusive=True` for writers, False for readers."""

    leased = True

    def __init__(
        self, path: str, runtime: Runtime, *, exclusive: bool = True, table: Descriptors = TABLE,
        mode: int | None = None, shared: bool = False, evidence: Evidence = EVIDENCE, **more: Any,
    ) -> None:  # fmt: skip
        table = table_for(path, table, inside=True)
        self.path, self.runtime, self.exclusive = path, runtime, exclusive
        self.table, self.files, self.folder = table, table.files, path + SUFFIX
        self.claim = SoftLock(
            path, runtime, table=table, mode=mode, shared=shared, evidence=evidence, **more
        )
        self.terms = self.claim.terms
        self.key = (KIND, path)
        self._mode = 0o777 if shared else 0o700 if mode is None else mode | (mode & 0o444) >> 2

    # ---- one try

    def attempt(self) -> Grant | Held:
        """One try that does not wait."""
        return self._guarded(self._write if self.exclusive else self._read)[0]

    def _guarded(self, act: Callable[[str], T]) -> T:
        """What `act` answers, given the folder of the markers, open (L7)."""
        try:
            at, fd = self._anchored()
            try:
                answer = asked_again(partial(act, at), partial(self._ask_anew, at))
            finally:
                if fd >= 0:
                    self.files.close(fd)
        except OSError as error:
            if isinstance(error, SystemRefused):
                raise
            raise refused(self.path, error) from error
        return answer

    def _ask_anew(self, at: str) -> None:
        """Where the path and the markers lead: else a client says what it remembers."""
        self.files.anew(self.path[: self.path.rindex("/")] or "/")
        self.files.anew(at)

    def _read(self, at: str) -> tuple[Grant | Held, float]:
        """The answer, and the instant at which time alone may change it."""
        for _ in range(STRAYS):
            case = self._writer()  # 1
            if case is not None:
                return Held(case.why, self.key), case.due
            answer = self._posted(at, FRONT)  # 2
            if answer is None:
                continue  # over NFS: done, and it looks as if it were not; nobody holds that one
            try:
                case = self._writer(fresh=answer.handle[0].fresh)  # 3
            except BaseException:
                self.drop(answer)
                raise
            if case is None and not self._late(answer):
                return answer, NEVER
            self.drop(answer)
            if case is None:
                continue
            return Held(case.why, self.key), case.due
        return Held("it comes and goes too fast", self.key), self.runtime.now() + RETRY

    def _posted(self, at: str, front: str) -> Grant | None:
        """A marker of ours under a new name."""
        name = f"{front}{os.urandom(16).hex()}"
        marker = self._marker(f"{at}/{name}")
        marker.lasting = f"{self.folder}/{name}"
        answer = marker.posted()
        self.claim._known, self.claim._guards = marker._known, marker._guards  # spares work
        return answer

    def _writer(self, *, fresh: bool = False) -> Judged | None:
        """Who has claimed; None for nobody who lives. `fresh`: as a file server has it now."""
        for _ in range(STRAYS):
            found = look(self.table, self.path, fresh=fresh)
            if found is None:
                return None
            try:
                case = self.claim.judged(found)
            finally:
                found.close()
            if case.state != DEAD:
                return case
            answer, due = self.claim._try()  # judges again, and takes over in one step
            if isinstance(answer, Held):  # somebody else may be doing that, for as long as it likes
                return replace(case, why=answer.reason, due=due)
            self.claim.drop(answer)
        return replace(case, why="it comes and goes too fast", due=self.runtime.now() + RETRY)

    def _write(self, at: str) -> tuple[Grant | Held, float]:
        answer, due = self._claimed(at)
        if not isinstance(answer, Grant):
            return answer, due
        reader = None
        try:
            reader = self._reader(at)  # 5
        except BaseException:
            self.claim.drop(answer)
            raise
        if reader is None and not self._late(answer):
            return answer, NEVER
        self.claim.drop(answer)
        if reader is None:
            return Held(TOO_SLOW, self.key), self.runtime.now()
        return Held(READERS_IN, self.key), reader[1]

    def _late(self, grant: Grant) -> bool:
        """L8  Whether its lease has run out while we looked: the clock comes after every look."""
        return grant.deadline is not None and self.runtime.now() >= grant.deadline

    def _claimed(self, at: str) -> tuple[Grant | Held, float]:
        """The soft lock of the path; not before the readers who asked before us."""
        first = self._courtesy(at, None)
        if first is not None:
            return Held(READERS_FIRST, self.key), first[1]
        return self._claim()

    def _claim(self) -> tuple[Grant | Held, float]:
        answer, due = self.claim._try()  # 4
        if isinstance(answer, Grant):
            return replace(answer, key=self.key), due
        return Held(answer.reason, self.key), due

    def _reader(self, at: str) -> tuple[str, float] | None:
        """A reader that is in: its marker, and the instant at which time alone may change that.

        The others need no look until it has gone. None: nobody is in.
        """
        names = list(filter(is_marker, self.files.listdir(at)))
        while names:  # not `for`: how far it has come is seen by the explorer
            name = names.pop()
            due = self._lives(at, name)
            if due:
                return f"{self.folder}/{name}", due
        return None

    def _lives(self, at: str, name: str) -> float:
        """0.0 when whose marker it is is gone: it is removed then (L3: its name is his alone)."""
        found = look(self.table, f"{at}/{name}")
        if found is None:
            return 0.0
        try:
            case = self._marker(f"{self.folder}/{name}").judged(found)
            if case.state != DEAD:
                return case.due
            SEEN.forget(f"{self.folder}/{name}")
            try:
                self.files.unlink(f"{at}/{name}")
            except FileNotFoundError:
                pass
        finally:
            found.close()
        return 0.0

    def _marker(self, path: str) -> Marker:
        marker: Marker = Marker.__new__(Marker)  # as the claim is, in all but its path
        marker.__dict__.update(self.claim.__dict__)
        marker.path, marker.writer = path, self.path
        return marker

    def _anchored(self) -> tuple[str, int]:
        """The folder of the markers: a name that leads to it, and what is to be closed.

        It is made 0700, or 0777 for all: others must not be able to remove a marker.
        """
        for again in (True, False):
            try:
                return self.files.anchor(self.folder)  # type: ignore[no-any-return]
            except FileNotFoundError:
                if not again:
                    raise
                self._make_folder()
            except OSError as error:  # L7  a link or a file is neither followed nor replaced
                if error.errno in (errno.ENOTDIR, errno.ELOOP):
                    there = self.files.lstat(self.folder).st_mode
                    raise not_lockable(self.folder, there) from error
                raise
        raise AssertionError

    def _make_folder(self) -> None:
        for again in (True, False):
            try:
                self.files.mkdir(self.folder, self._mode)
            except FileExistsError:
                return
            except FileNotFoundError:
                if not again:
                    raise
                make_folders(self.files, self.path)
            else:
                if self._mode == 0o777:
                    self.files.chmod(self.folder, self._mode)
                return

    # ---- the life of a grant

    def _record_of(self, grant: Grant) -> SoftLock:
        return self.claim if grant.name == self.path else self._marker(grant.name)

    def check(self, grant: Grant) -> Lost | None:
        """One lstat(2); over NFS an open(2), and the names of its folder asked for anew."""
        return self._record_of(grant).check(grant)

    def drop(self, grant: Grant) -> Lost | None:
        """Let go, in plain code. Where its record lies is told by the grant."""
        return self.claim.drop(grant)

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
