"""The mechanism of `SoftFileLock`: a lock that is there for as long as its file is.

Promise: at most one holder, among ours and filelock's of today on the same path; a live holder is
robbed only by a `lifetime` that somebody asks for, as filelock does it. A dead one is replaced at
once where its death can be proven (whose.py), also on file systems that cannot exchange names.

Acquire   A whole record without a name is locked (the witness), and linked to the path.
Adopt     A file whose holder is *proven* dead is taken by writing our record into it: no name is
          touched, so no breaker of filelock's can be robbed by it, and a crash strands nothing.
Replace   A file that nobody can read, for 2 s unchanged on our clock, or older than `lifetime`, is
          exchanged (swap.py): its writer may live, and would remove by its inode what it had made.
Release   Guard the file, look that the path leads to it, unlink it. Displaced: write "released".

How it could fail, and what keeps it:
- Two of ours adopt at once: both need flock(2) of that inode, and look at the path afterwards.
- filelock's breaker looked before we wrote, and exchanges afterwards: it compares the time of
  change too, which we have set to another, and gives our file back.
- It exchanged before we wrote: the path does not lead to our file afterwards. We have lost, and
  write "released", so that nobody waits for us should the file come back.
- An empty file is a holder of an old filelock, or one in the middle of its first write: never ours.
- A release looks and then unlinks; in between a breaker with an old judgement may put its own file
  there. It finds its taken file changed, wants to give it back, finds no lock, and removes both.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any

from ...core.deadline import NEVER
from ...core.grant import Grant, Held
from ...core.liveness import ALIVE, DEAD
from ...local import residue
from ...local.descriptors import table_for
from ...local.files import LOCK_EX, LOCK_NB
from ...local.ground import place_at
from ...local.hint import NO_HINT, Hint
from ...local.paper import blank, look
from ...local.refusals import refused
from ...runtime import clock
from . import swap, whose
from .slip import Slip
from .softlook import SoftLook, breaker

if TYPE_CHECKING:
    from ...core.acquire import Ask
    from ...local.descriptors import Descriptors

RETRY, STRAYS = 0.05, 100
NO_TOKEN = "a file of filelock's format has no room for a token"  # noqa: S105
BUSY = Held("it changes hands just now")
TICK = 1_000_000  # nanoseconds: two times of change that differ by this differ for everybody


def no_matter(path: str) -> None:
    """Whatever becomes of its folder, it is made anew."""


class SoftFile(SoftLook):
    """The mechanism of one path."""

    safety = 2.0  # seconds between two looks of a waiter to whom no event comes
    terms = None
    still_there = staticmethod(no_matter)  # asked of the path between two tries of a wait
    clock: Any = clock

    def __init__(
        self,
        path: str,
        runtime: Any,
        table: Descriptors,
        mode: int | None,
        *,
        place: Any = None,
        words: Any = whose,
    ) -> None:
        table = table_for(path, table)
        self.path, self.runtime, self.table, self.files = path, runtime, table, table.files
        self.label, self._exactly, self._place = "", mode is not None, place
        self.words = words  # who we are, and who lives
        self.mode = (0o666 if mode is None else mode) & ~0o022  # nobody else may write a record
        self._nameless = True

    def attempt(self) -> Grant | Held:
        """One try that does not wait."""
        try:
            for _ in range(STRAYS):
                answer = self._publish() or self._contest()
                if answer is not None:
                    return answer
        except OSError as error:
            raise refused(self.path, error) from error
        return BUSY

    # ---- publish

    def _publish(self) -> Grant | None:
        """None: something is there."""
        if self.files.there(self.path):
            return None
        ours = self._prepared()
        try:
            ours.posted = self.path  # from here on it is withdrawn, whatever comes between (L6)
            if self._linked(ours):
                residue.forget_name(ours)
                return self._granted(ours)
            ours.posted = ""
        finally:
            if not ours.granted:
                ours.close()
                residue.forget_name(ours)
        return None

    def _linked(self, ours: Slip) -> bool:
        try:
            if ours.name:
                self.files.link(ours.name, self.path)
            else:
                self.files.link_fd(ours.fd, self.path)
        except FileExistsError:
            return ours.fresh and ours.is_at(self.path)  # over NFS the answer may be untrue
        except FileNotFoundError:
            self._nameless = False  # no /proc to name a nameless file by
            return False
        return not ours.fresh or ours.is_at(self.path)

    def _prepared(self) -> Slip:
        """A whole record of ours that is not the lock yet."""
        ours: Any = blank(
            self.table, self.path, self.mode, os.urandom(16).hex(), nameless=self._nameless,
            kind=Slip,
        )  # fmt: skip
        try:
            self._nameless = self._nameless and not ours.name
            place = self._place or place_at(ours)
            ours.fresh = not place.one_kernel
            witness = place.one_kernel and ours.bear_witness()
            if self._exactly:
                self.files.fchmod(ours.fd, self.mode)
            ours.write(self.words.record(witness))
        except BaseException:
            ours.close()
            residue.forget_name(ours)
            raise
        made: Slip = ours
        return made

    def _granted(self, ours: Slip) -> Grant:
        ours.posted = self.path
        mark = os.urandom(8).hex()
        now = self.files.clock_ns()
        grant = Grant(self.path, mark, None, NO_TOKEN, now, ours.key, [ours], None)
        ours.granted = True
        return grant

    # ---- what is there already

    def _contest(self) -> Grant | Held | None:
        """None: look again."""
        found: Any = look(self.table, self.path, write=False, kind=Slip)
        if found is None:
            return None
        over: Any = None
        try:
            content, case = self._judged(found)
            if not self._may_be_written(found):
                return None
            due = None if case.state == DEAD else self._due(found, content)
            if case.state == DEAD or (due is not None and self.runtime.now() >= due):
                # For writing only now: its close would tell all who wait, ourselves among them.
                over = look(self.table, self.path, kind=Slip)
                if over is None or over.key != found.key:  # while the other is open
                    return None if over is None else self._changed()
                over.stamp = found.stamp
                found.close()
                take = self._adopt if case.state == DEAD else self._replace
                return take(over, content)
            hint = Hint(NEVER if due is None else due, self._near(whose.read(content)))
            return Held("" if case.state == ALIVE else case.evidence, found.key, hint)
        finally:
            for each in (found, over):
                if each is not None and not each.granted:
                    each.close()

    def _stranded(self, found: Slip, pid: int) -> bool:
        """Whether a live holder's file lies aside, since the breaker named at the path died."""
        own = self.words.host_name()
        near = (self._place or place_at(found)).one_kernel

        def lives(named: whose.Named) -> bool:
            other = (named.pid, named.host) != (pid, own)
            return bool(other and self.words.verdict(named, None, near).state != DEAD)

        def gone(number: int) -> bool:
            return bool(self.words.verdict(whose.Named(number, own), None, near).state == DEAD)

        if pid and not gone(pid):
            pid = 0  # it is at work
        return swap.restored(self.files, self.path, found, (pid, self.words.pid()), lives, gone)

    def _adopt(self, found: Slip, content: bytes) -> Grant | Held | None:
        """L3  Under its flock and its guard: write our record into the file."""
        named = whose.read(content)
        assert named is not None
        try:
            self.files.flock(found.fd, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            return self._soon()
        if not found.writable or not found.guard():
            return self._soon()
        if not found.is_at(self.path) or self._judged_content(found) != content:
            return self._changed()
        if self._stranded(found, named.pid):
            return self._soon()
        before = self.files.fstat(found.fd).st_mtime_ns
        found.displaced = True  # until we know that it is ours: a close says "released"
        witness = (self._place or place_at(found)).one_kernel
        found.write(self.words.record(witness))
        self.files.truncate(found.fd, len(self.words.record(witness)))
        now = self.files.clock_ns()
        calls: Any = self.files
        calls.stamp(found.fd, now if abs(now - before) > TICK else before + TICK)
        if not found.is_at(self.path):
            found.close()
            return None
        found.displaced = False
        found.unguard()
        return self._granted(found)

    def _judged_content(self, found: Slip) -> bytes:
        return self.files.pread(found.fd, whose.LONGEST + 1, 0)  # type: ignore[no-any-return]

    def _changed(self) -> Held | None:
        """It is not what was judged; None when nothing is there any more."""
        # Somebody is at work, who was faster.
        return self._soon() if self.files.there(self.path) else None

    def _soon(self) -> Held:
        return Held(BUSY.reason, hint=Hint(self.runtime.now() + RETRY))

    def _replace(self, found: Slip, content: bytes) -> Grant | Held | None:
        """By an exchange, for what is not proven dead. See swap.py."""
        if not found.writable or not found.guard():
            return self._soon()
        if not found.is_at(self.path) or self._judged_content(found) != content:
            return self._changed()
        named = whose.read(content)
        if self._stranded(found, named.pid if named else breaker(content)):
            return self._soon()
        ours = self._prepared()
        try:
            if not self._put_aside(ours):
                return self._soon()
            if swap.replaced(self.files, self.path, found, found.stamp, ours, self.clock):
                return self._granted(ours)
        finally:
            if not ours.granted:
                ours.displaced = True
                ours.close()
                residue.forget_name(ours)
        return self._soon()

    def _put_aside(self, ours: Slip) -> bool:
        """Give it a breaker's name, whole: who dies over an empty one leaves a lock for ever."""
        name, before = swap.aside(self.path, self.words.pid()), ours.name
        if before:
            self.files.rename(before, name)
        ours.name = name
        try:
            if not before:
                self.files.link_fd(ours.fd, name)
        except FileNotFoundError:
            self._nameless = False  # no /proc to name a nameless file by
            return False
        return True

    def _may_be_written(self, found: Slip) -> bool:
        """False: it is gone. Raises PermissionError for one that is marked read-only, and is."""
        calls: Any = self.files
        if calls.fstat(found.fd).st_mode & 0o200 or calls.access(self.path):
            return True
        if not found.is_at(self.path):
            return False
        raise OSError(errno.EACCES, os.strerror(errno.EACCES), self.path)

    # ---- waiting, and questions

    async def wait(self, ask: Ask, until: float) -> Grant | Held:
        """Sleep until something happens at the path, or time permits a try; then one try."""
        hint: Hint = ask.slot or NO_HINT  # of this waiter: another thread's is another
        limit = min(until, hint.due, self.runtime.now() + self.safety)
        await self.runtime.changed(ask, self.path, limit, blind=self.far(), pid=hint.pid)
        self.still_there(self.path)
        answer = self.attempt()
        ask.slot = answer.hint if isinstance(answer, Held) else None
        return answer
