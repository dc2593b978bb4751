"""The mechanism of `SoftReadWriteLock`: one acquisition, from its claim to its end.

Promise: at most one writer and no reader beside it, among ours and filelock's on the same path, on
any file system with hard links; a live member is put out only when its record has stayed the same
for the longer of two thresholds, its own and ours, on our own clock. A waiting writer keeps new
readers out. `generation` grows with every grant: it is a fencing token.

Read      The next snapshot names us as a reader, when no writer is named.
Write     The next names us as the writer, when none is; one after the last reader has left grants.
Release   The next names us no more.

How it could fail, and what keeps it:
- A member dies. Ours keeps flock(2) on its record, so another of ours on the same kernel sees it at
  once; the process of one of filelock's, whose number nobody has any more, likewise. Else the
  record ages.
- A member sleeps for too long and wakes up: its own deadline is a margin before the others', and
  what it writes afterwards carries a smaller generation than its successor's.
- We are put out while we wait: the snapshot is the truth, and we begin anew.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ...core.deadline import NEVER
from ...core.grant import Grant, Held, Holder, Lost, Unknown
from ...core.owner import UNKNOWN, Owner
from ...local.record_lock import OF_PARENT, RELEASED
from ...runtime import fork
from .errors import tell_path
from .folder import NotAFolder
from .rwothers import WITNESS, Member, Others, Shelf, named_by
from .snapshot import State

if TYPE_CHECKING:
    from ...core.acquire import Ask
    from .levels import Mode
    from .room import Room
    from .rwrooms import Rooms

TRIES, SAFETY = 4, 1.0
CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL


class Participant(Others):
    """One acquisition."""

    safety, terms, label = SAFETY, None, ""

    def __init__(self, shelf: Shelf, mode: Mode) -> None:
        self.shelf, self.mode, self.exclusive = shelf, mode, mode == "write"
        self.path, self.runtime, self.files = shelf.path, shelf.runtime, shelf.table.files
        chance = os.urandom(40).hex()
        self._mark, self._nonce, self.token = chance[:16], chance[16:48], chance[48:]
        self.member: Any = None
        self.entered, self.witness = False, False
        self.due, self.fresh_until, self.written_at = NEVER, 0.0, 0.0
        self._pid: int | None = None

    def far(self) -> bool:
        """Whether its calls may wait for a file server."""
        return not self.shelf.near

    # ---- our record

    def _record(self) -> bytes:
        lease = float(self.shelf.terms.ttl)
        pid, host = self.shelf.words.record(False).decode().split("\n")[:2]
        head = f"filelock-rw/1\ntoken={self.token}\npid={pid}\nhost={host}\n"
        nonce, self._nonce = self._nonce or os.urandom(16).hex(), ""
        tail = f"lease={lease!r}\nnonce={nonce}\n"
        return (head + tail + (WITNESS if self.witness else "")).encode()

    def _publish(self, holders: Room) -> None:
        made = Member(self.shelf.table, lambda: (holders.open(self.token, CREATE), True))
        self.member = made
        self.witness = self.shelf.near and made.bear_witness()
        self._write(made)

    def _write(self, ours: Member) -> None:
        # L8  Before the record is sent: whoever sees it first counts from there on.
        self.written_at = self.runtime.now()
        ours.write(self._record())
        self.fresh_until = self.written_at + self.shelf.terms.ttl / 4

    def _refresh(self, holders: Room) -> bool:
        """Write a new nonce. False: the name does not lead to our record."""
        ours = self.member
        if ours is None or holders.key_at(self.token) != (ours.dev, ours.ino):
            return False
        if self.files.fstat(self.member.fd).st_nlink != 1:
            return False
        self._write(ours)
        return True

    # ---- taking

    async def try_acquire(self, ask: Ask) -> Grant | Held:
        return self.attempt()

    def attempt(self) -> Grant | Held:
        """One try that does not wait. Raises OSError, NotAFolder."""
        self.due = NEVER
        for again in range(TRIES):
            self.shelf.prepare()
            try:
                rooms = self._in()
                fresh = self.member is None
                if fresh:
                    self._publish(rooms.holders)
                generation = self._step(rooms.gen, rooms.holders, again, fresh)
            except FileNotFoundError:  # the log was removed: there is a new one to come
                self._out(None)
                self.shelf.ready, self.entered = False, False
                continue
            except OSError as error:
                tell_path(error, self.path)
                raise
            if generation:
                return self._granted(generation)
            if generation is None:
                break
        return Held("", self.path)

    def _granted(self, generation: int) -> Grant:
        now = self.files.clock_ns()
        return Grant(self.path, self._mark, generation, None, now, self.path, [self.member])

    def _step(self, gen: Room, holders: Room, again: int, fresh: bool) -> int | None:
        """The generation of our grant; 0: look again; None: wait."""
        log = self.shelf.log
        # What we know may be old: then its successor is there already, and our link fails.
        known = log.last if not again and log.last and not log.last.members else None
        latest = known or log.latest(gen)
        self.entered = self.token in latest.members
        if self.runtime.now() >= self.fresh_until or not (fresh or holders.key_at(self.token)):
            if not self._refresh(holders):
                self.member.close()
                self.member = None
                self._publish(holders)
        self._sweep(gen, holders, latest)
        stale, writer, readers = set(), latest.writer, latest.readers
        if writer is not None or readers:
            stale = {token for token in latest.members - {self.token} if self._gone(holders, token)}
            writer, readers = None if writer in stale else writer, readers - stale
        if not self.entered:
            if writer is not None:
                if stale:
                    self._commit(gen, holders, latest, (writer, readers), stale)
                return None
            if self.exclusive:
                writer = self.token
            else:
                readers |= {self.token}
        granted = not self.exclusive or not readers
        if self.entered and not stale and not granted:
            return None
        if not self._commit(gen, holders, latest, (writer, readers), stale):
            return 0
        self.entered = True
        return latest.generation + 1 if granted else None

    def _commit(
        self, gen: Room, holders: Room, latest: State, names: tuple[Any, frozenset[str]],
        stale: set[str],
    ) -> bool:  # fmt: skip
        if not self.shelf.log.commit(gen, latest, State(latest.generation + 1, *names)):
            return False
        for token in stale:
            holders.unlink(token)
            self.shelf.seen.pop(token, None)
        return True

    # ---- waiting

    async def wait(self, ask: Ask, until: float) -> Grant | Held:
        """Sleep until a snapshot comes, or time permits more; then one try."""
        pause = SAFETY if self.shelf.near else self.shelf.poll
        limit = min(until, self.due, self.fresh_until, self.runtime.now() + pause)
        where = self.shelf.where
        await self.runtime.changed(ask, where, limit, blind=self.far(), pid=self._pid)
        return self.attempt()

    # ---- the end

    def leave(self) -> None:
        """Be named no more, and leave no record. Raises OSError."""
        member, self.member = self.member, None
        used: Rooms | None = None
        try:
            # Where we came in: were these taken away since, we are named by nothing that counts.
            rooms = self.rooms = self.rooms or self.shelf.opened()
            try:
                self._named_no_more(rooms.gen)
            finally:
                if member is not None:
                    rooms.holders.unlink(self.token)
            used = rooms
        except (FileNotFoundError, NotAFolder):
            pass  # the log was removed, or exchanged for something else
        finally:
            self.entered = False
            self._out(used)
            if member is not None:
                member.close()

    def _named_no_more(self, gen: Room) -> None:
        log, token = self.shelf.log, self.token
        latest = log.last
        if latest is None or token not in latest.members:
            latest = log.latest(gen)
        while token in latest.members and not log.commit(gen, latest, latest.without(token)):
            latest = log.latest(gen)

    def drop(self, grant: Grant) -> Lost | None:
        """Let go."""
        ours = next(iter(grant.handle), None)
        if ours is None:
            return Lost(RELEASED)
        if ours.generation != fork.here():
            return Lost(OF_PARENT)
        grant.handle.clear()
        self.leave()
        return None

    async def release(self, grant: Grant) -> Lost | None:
        return self.drop(grant)

    # ---- the holder's side

    def leased(self, grant: Grant, began: float) -> Grant:
        """The same grant with its deadline, for a record that was written at `began`."""
        return Grant(
            grant.name, grant.mark, grant.token, None, grant.acquired_at_ns, grant.key,
            grant.handle, self.shelf.terms.deadline(began),
        )  # fmt: skip

    async def renew(self, grant: Grant) -> Grant | Lost | Unknown:
        """A new nonce, if we are a member still."""
        ours: Any = next(iter(grant.handle), None)
        if ours is None:
            return Lost(RELEASED)
        began = self.runtime.now()
        try:
            with self.shelf.opened() as rooms:
                if not self._refresh(rooms.holders):
                    return Lost("evicted", gone=True)
        except (FileNotFoundError, NotAFolder):
            return Lost("evicted", gone=True)
        except OSError as error:
            ours.trouble = error
            raise
        ours.trouble = None
        try:
            with self.shelf.opened() as rooms:
                latest = self.shelf.log.latest(rooms.gen)
                self._sweep(rooms.gen, rooms.holders, latest)
        except (OSError, NotAFolder):
            return self.leased(grant, began)  # says nothing of us
        if self.token not in latest.members:
            return Lost("evicted", gone=True)
        return self.leased(grant, began)

    def check(self, grant: Grant) -> Lost | None:
        """By the clock; the heartbeat looks at the log."""
        ours: Any = next(iter(grant.handle), None)
        if ours is None:
            return Lost(RELEASED)
        if ours.generation != fork.here():
            return Lost(OF_PARENT)
        reason = None if ours.tenure is None else ours.tenure.why_not()
        return None if reason is None else Lost(reason, gone=True)

    def inspect(self, *, held: bool = False) -> Holder | None:
        """The writer, or one of the readers."""
        try:
            with self.shelf.opened() as rooms:
                latest = self.shelf.log.latest(rooms.gen)
                others = sorted(latest.readers - {self.token})
                if latest.writer not in (None, self.token):
                    others.insert(0, str(latest.writer))
                if not others:
                    return None
                named = named_by(rooms.holders.read(others[0]) or b"")
        except (OSError, NotAFolder) as error:
            return Holder(evidence=f"its log cannot be read: {error}")
        lock = f"{self.path} (soft reader/writer lock of filelock's format)"
        if named is None:
            return Holder(None, None, UNKNOWN, "its record names nobody", lock=lock)
        case = self.shelf.words.verdict(named, None, self.shelf.near)
        owner = Owner(named.pid, host=named.host)
        return Holder(owner, None, case.state, case.evidence, latest.generation, lock=lock)
