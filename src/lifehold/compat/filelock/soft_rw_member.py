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

import errno
import math
import os
from typing import Any

from ...core.deadline import NEVER
from ...core.grant import Grant, Held, Holder, Lost, Unknown
from ...core.owner import DEAD, UNKNOWN, Owner
from ...local.ground import is_far
from ...local.handles import OF_PARENT, RELEASED
from ...local.record_handle import RecordFile
from ...runtime import clock, fork
from . import pidfile, pollers
from .errors import SoftFileLockProtocolError, tell_path
from .record_folder import SOME, NotAFolder, OpenFolder, RecordFolder
from .soft_rw_log import TEMPORARY, GenerationLog, LogState
from .strict_claims import is_token

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ...core.acquire import Ask
    from ...core.deadline import Terms
    from .sides import Mode


# ------------------------------------------------------------------------------------------------
# The log and the holders of a soft reader/writer lock, kept open from one acquisition to the next.
#
# Rule: they are used as long as the path leads to that log, which one lstat(2) tells; a folder that
# is open keeps its number. Each is of one acquisition at a time.


WHOLE_ACCESS = os.access in os.supports_follow_symlinks and os.access in os.supports_effective_ids


def refuse_older(lock_file: str, path: str) -> None:
    """Raises SoftFileLockProtocolError where a filelock before 4 has it, which we would not see.

    That one looks at `<lock>.write` and at what is in `<lock>.readers`, and not at ours.
    """
    there = f"{path}.write"
    if not is_there(there):
        there = f"{path}.readers"
        try:
            if not is_there(there) or not os.listdir(there):
                return
        except (FileNotFoundError, NotADirectoryError):
            return
    raise SoftFileLockProtocolError(
        lock_file,
        None,
        f"{there!r} is of filelock before 4, whose reader/writer lock has another layout and does "
        "not exclude this one: change all programs over at once, and remove it when none is left",
    )


def is_there(path: str) -> bool:
    """Whether there is such a name: as `os.path.lexists`, without an exception when it is not."""
    if not WHOLE_ACCESS:
        return os.path.lexists(path)
    return os.access(path, os.F_OK, effective_ids=True, follow_symlinks=False)


class OpenFolderPair:
    """Two folders that are open. Of one thread at a time; also for a block."""

    __slots__ = ("_folders", "gen", "holders", "path")

    def __init__(self, group: MemberState) -> None:
        table, root = group.table, group.root
        try:
            self._folders = root.both(table, "gen", "holders")
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE) or not table.close_idle():
                raise
            self._folders = root.both(table, "gen", "holders")
        self.gen, self.holders = (
            OpenFolder(each.fd, table.files, table, each.dev) for each in self._folders
        )
        self.path = f"{root.path}/gen"

    def __enter__(self) -> OpenFolderPair:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def lead_here(self) -> bool:
        """Whether the log of the path is this one still."""
        folder = self._folders[0]
        try:
            return folder.generation == fork.here() and folder.is_of(os.lstat(self.path))
        except OSError:
            return False

    def close(self) -> None:
        """They are left."""
        pin = None if self.gen.pin is None else self.gen.pin[1]
        for each in (pin, self.gen.head, *self._folders):
            if each is not None:
                each.close()


# ------------------------------------------------------------------------------------------------
# What the acquisitions of one soft reader/writer lock know, and what they think of the others.
#
# L2  A member is put out only when it is proven dead, or silent for too long on our clock.


WITNESS = "witness=flock\n"
LOCK_SH, LOCK_NB = 1, 4


class MemberState:
    """What all acquisitions of one object know together."""

    def __init__(self, lock_file: str, path: str, runtime: Any, table: Any, terms: Terms) -> None:
        above, name = os.path.split(path)
        self.path, self.runtime, self.table, self.terms = path, runtime, table, terms
        self.words = pidfile  # who we are, and who lives
        self.near = not is_far(path)
        self.log = GenerationLog(lock_file, self.near)
        self.root = RecordFolder(above, f"{name}.rw")
        self.where = f"{self.root.path}/gen/"  # what is to be watched
        self.seen: dict[str, tuple[bytes | None, float]] = {}  # records, and since when the same
        self.ready, self.sweep_at = False, 0.0
        self.poll = 0.25

    def prepare(self) -> None:
        """The folders are there, and nobody has an older layout. Raises NotAFolder, OSError."""
        refuse_older(self.log.lock_file, self.path)
        if not self.ready:
            for part in ("gen", "holders"):
                RecordFolder(self.root.above, *self.root.parts, part).make(0o700)
            self.ready = True

    def opened(self) -> OpenFolderPair:
        """The log and the holders, opened anew. Raises FileNotFoundError, NotAFolder, OSError."""
        return OpenFolderPair(self)

    def idle(self) -> OpenFolderPair | None:
        """Those that the last acquisition has left behind."""
        return self.table.idle.pop(self.where, None)  # type: ignore[no-any-return]

    def keep(self, folders: OpenFolderPair) -> None:
        """For the next acquisition: nobody uses them."""
        if len(self.table.idle) < SOME:
            self.table.keep(self.where, folders)
        else:
            folders.close()

    def unchanged_until(self, key: str, content: bytes | None, asked: float) -> float:
        """When the record will have been the same for long enough, if it stays so."""
        before = self.seen.get(key)
        if before is None or before[0] != content:
            before = self.seen[key] = content, asked
        return before[1] + max(self.terms.ttl, lease_of(content))


class MemberRecord(RecordFile):
    """Our record among the holders. `tenure`: of the grant."""

    __slots__ = ("tenure", "trouble")

    def __init__(self, table: Any, call: Any) -> None:
        self.tenure: Any = None
        self.trouble: Any = None
        super().__init__(table, call)


class MetMembers(pollers.MetPeer):
    """A soft reader/writer lock that another program holds now and then, and waits for."""

    windows = pollers.MEMBERS

    def __init__(self, group: MemberState) -> None:
        super().__init__(group.path)
        self._group = group
        self._turns = 0  # that are ours before it is theirs again
        self._met: set[str] = set()  # tokens of theirs that were in while ours waited

    def due(self) -> bool:
        """Ours are counted against theirs: theirs come one by one, at each of their looks."""
        now = clock.now()
        if self._turns > 0 and now < self.free_until:
            self._turns -= 1
            return False
        if now >= self.since + pollers.QUIET and self._waiting():
            self.since = now
        return now < self.since + pollers.QUIET

    def over(self) -> bool:
        """One that waits has a record, also when it has had no turn for long."""
        return super().over() and not self._waiting()

    def saw(self, token: str) -> None:
        """One of theirs is in, and ours waits."""
        self._met.add(token)

    def came(self) -> None:
        """As many turns as theirs had meanwhile, this one among them."""
        if self._met:
            self._turns = len(self._met) - 1
            self._met.clear()
        super().came()

    def asked(self) -> Callable[[], bool]:
        """What tells whether one that waits now has come in, or nobody waits."""
        first = self._waiting()
        return lambda: not first or not first <= self._waiting()

    def _waiting(self) -> set[str]:
        """The tokens of other programs that have a record and are not in."""
        try:
            with self._group.opened() as folders:
                members = self._group.log.latest(folders.gen).members
                names = [name for name in folders.holders.names() if is_token(name)]
                found = {name: folders.holders.read(name) for name in names if name not in members}
        except (OSError, NotAFolder):
            return set()
        named = {name: named_by(content or b"") for name, content in found.items()}
        return {name for name, each in named.items() if each is not None and not each.witness}


def named_by(content: bytes) -> pidfile.PidFileOwner | None:
    """Whom a holder's record names."""
    try:
        lines = content.decode("ascii").split("\n")
    except UnicodeDecodeError:
        return None
    keys = {key: value for key, _, value in (line.partition("=") for line in lines)}
    pid, host = keys.get("pid", ""), keys.get("host", "")
    if not (pid.isdigit() and len(pid) < 11 and 0 < int(pid) < 1 << 31 and host):
        return None
    return pidfile.PidFileOwner(int(pid), host, None, content.endswith(b"\n" + WITNESS.encode()))


def lease_of(content: bytes | None) -> float:
    """For how long a member wants to be waited for; 0.0 when it does not say."""
    for line in (content or b"").split(b"\n"):
        if line.startswith(b"lease="):
            try:
                found = float(line[6:])
            except ValueError:
                return 0.0
            right = math.isfinite(found) and found > 0 and repr(found).encode() == line[6:]
            return found if right else 0.0
    return 0.0


TRIES, SAFETY = 4, 1.0
CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL


class Participant:
    """One acquisition."""

    folders: OpenFolderPair | None = None
    group: MemberState
    runtime: Any
    token: str
    due: float = NEVER
    _pid: int | None = None
    safety, terms, label = SAFETY, None, ""

    def __init__(self, group: MemberState, mode: Mode) -> None:
        self.group, self.mode, self.exclusive = group, mode, mode == "write"
        self.path, self.runtime, self.files = group.path, group.runtime, group.table.files
        chance = os.urandom(40).hex()
        self._mark, self._nonce, self.token = chance[:16], chance[16:48], chance[48:]
        self.member: Any = None
        self.entered, self.witness = False, False
        self.due, self.fresh_until, self.written_at = NEVER, 0.0, 0.0
        self._pid = None

    def far(self) -> bool:
        """Whether its calls may wait for a file server."""
        return not self.group.near

    # ---- our record

    def _record(self) -> bytes:
        lease = float(self.group.terms.ttl)
        pid, host = self.group.words.record(False).decode().split("\n")[:2]
        head = f"filelock-rw/1\ntoken={self.token}\npid={pid}\nhost={host}\n"
        nonce, self._nonce = self._nonce or os.urandom(16).hex(), ""
        tail = f"lease={lease!r}\nnonce={nonce}\n"
        return (head + tail + (WITNESS if self.witness else "")).encode()

    def _publish(self, holders: OpenFolder) -> None:
        made = MemberRecord(self.group.table, lambda: (holders.open(self.token, CREATE), True))
        self.member = made
        self.witness = self.group.near and made.bear_witness()
        self._write(made)

    def _write(self, ours: MemberRecord) -> None:
        # L8  Before the record is sent: whoever sees it first counts from there on.
        self.written_at = self.runtime.now()
        ours.write(self._record())
        self.fresh_until = self.written_at + self.group.terms.ttl / 4

    def _refresh(self, holders: OpenFolder) -> bool:
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
            self.group.prepare()
            try:
                folders = self._in()
                fresh = self.member is None
                if fresh:
                    self._publish(folders.holders)
                generation = self._step(folders.gen, folders.holders, again, fresh)
            except FileNotFoundError:  # the log was removed: there is a new one to come
                self._out(None)
                self.group.ready, self.entered = False, False
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

    def _step(self, gen: OpenFolder, holders: OpenFolder, again: int, fresh: bool) -> int | None:
        """The generation of our grant; 0: look again; None: wait."""
        log = self.group.log
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
        self,
        gen: OpenFolder,
        holders: OpenFolder,
        latest: LogState,
        names: tuple[Any, frozenset[str]],
        stale: set[str],
    ) -> bool:
        if not self.group.log.commit(gen, latest, LogState(latest.generation + 1, *names)):
            return False
        for token in stale:
            holders.unlink(token)
            self.group.seen.pop(token, None)
        return True

    # ---- waiting

    async def wait(self, ask: Ask, until: float) -> Grant | Held:
        """Sleep until a snapshot comes, or time permits more; then one try."""
        pause = SAFETY if self.group.near else self.group.poll
        limit = min(until, self.due, self.fresh_until, self.runtime.now() + pause)
        where = self.group.where
        await self.runtime.changed(ask, where, limit, blind=self.far(), pid=self._pid)
        return self.attempt()

    # ---- the end

    def leave(self) -> None:
        """Be named no more, and leave no record. Raises OSError."""
        member, self.member = self.member, None
        used: OpenFolderPair | None = None
        try:
            # Where we came in: were these taken away since, we are named by nothing that counts.
            folders = self.folders = self.folders or self.group.opened()
            try:
                self._named_no_more(folders.gen)
            finally:
                if member is not None:
                    folders.holders.unlink(self.token)
            used = folders
        except (FileNotFoundError, NotAFolder):
            pass  # the log was removed, or exchanged for something else
        finally:
            self.entered = False
            self._out(used)
            if member is not None:
                member.close()

    def _named_no_more(self, gen: OpenFolder) -> None:
        log, token = self.group.log, self.token
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
            grant.name,
            grant.mark,
            grant.token,
            None,
            grant.acquired_at_ns,
            grant.key,
            grant.handle,
            self.group.terms.deadline(began),
        )

    async def renew(self, grant: Grant) -> Grant | Lost | Unknown:
        """A new nonce, if we are a member still."""
        ours = next(iter(grant.handle), None)
        if ours is None:
            return Lost(RELEASED)
        began = self.runtime.now()
        try:
            with self.group.opened() as folders:
                if not self._refresh(folders.holders):
                    return Lost("evicted", gone=True)
        except (FileNotFoundError, NotAFolder):
            return Lost("evicted", gone=True)
        except OSError as error:
            ours.trouble = error
            raise
        ours.trouble = None
        try:
            with self.group.opened() as folders:
                latest = self.group.log.latest(folders.gen)
                self._sweep(folders.gen, folders.holders, latest)
        except (OSError, NotAFolder):
            return self.leased(grant, began)  # says nothing of us
        if self.token not in latest.members:
            return Lost("evicted", gone=True)
        return self.leased(grant, began)

    def check(self, grant: Grant) -> Lost | None:
        """By the clock; the heartbeat looks at the log."""
        ours = next(iter(grant.handle), None)
        if ours is None:
            return Lost(RELEASED)
        if ours.generation != fork.here():
            return Lost(OF_PARENT)
        reason = None if ours.tenure is None else ours.tenure.why_not()
        return None if reason is None else Lost(reason, gone=True)

    def inspect(self, *, held: bool = False) -> Holder | None:
        """The writer, or one of the readers."""
        try:
            with self.group.opened() as folders:
                latest = self.group.log.latest(folders.gen)
                others = sorted(latest.readers - {self.token})
                if latest.writer not in (None, self.token):
                    others.insert(0, str(latest.writer))
                if not others:
                    return None
                named = named_by(folders.holders.read(others[0]) or b"")
        except (OSError, NotAFolder) as error:
            return Holder(evidence=f"its log cannot be read: {error}")
        lock = f"{self.path} (soft reader/writer lock of filelock's format)"
        if named is None:
            return Holder(None, None, UNKNOWN, "its record names nobody", lock=lock)
        case = self.group.words.verdict(named, None, self.group.near)
        owner = Owner(named.pid, host=named.host)
        return Holder(owner, None, case.state, case.evidence, latest.generation, lock=lock)

    # --------------------------------------------------------------------------------------------
    # The looks of an acquisition at the other members.

    def _gone(self, holders: OpenFolder, token: str) -> bool:
        """Whether a member is proven dead, or has been silent for long enough (L2)."""
        asked = self.runtime.now()
        content = holders.read(token)
        until = self.group.unchanged_until(token, content, asked)
        if asked >= until:
            return True
        self.due = min(self.due, until)
        return bool(content and self.group.near and self._dead(holders, token, content))

    def _dead(self, holders: OpenFolder, token: str, content: bytes) -> bool:
        named = named_by(content)
        if named is None:
            return False
        if not named.witness:
            pollers.met(self.group.path, lambda: MetMembers(self.group))
            found = pollers.expected.get(self.group.path)
            if isinstance(found, MetMembers):
                found.saw(token)
        witness = self._witnessed(holders, token) if named.witness else None
        if named.host == self.group.words.host_name():
            self._pid = named.pid
        if named.witness and witness is None:
            return False
        return bool(self.group.words.verdict(named, witness, True).state == DEAD)

    @staticmethod
    def _witnessed(holders: OpenFolder, token: str) -> bool | None:
        """Whether somebody locks its record; None when that cannot be told."""
        files = holders.files
        try:
            file = holders.open(token, os.O_RDONLY)
        except OSError:
            return None
        try:
            files.flock(file, LOCK_SH | LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return None
        finally:
            files.close(file)
        return False

    def _sweep(self, gen: OpenFolder, holders: OpenFolder, latest: LogState) -> None:
        """Now and then: what crashes have left, once it has not changed for as long as a member."""
        now = self.runtime.now()
        if now < self.group.sweep_at:
            return
        self.group.sweep_at = now + self.group.terms.ttl / 2
        kept = set(latest.members)
        for folder in (holders, gen):
            for name in folder.names():
                ours = name == self.token or name in latest.members
                left = name.startswith(TEMPORARY)
                if is_token(name) and not ours if folder is holders else left:
                    kept.add(name)
                    if now >= self.group.unchanged_until(name, folder.read(name), now):
                        folder.unlink(name)
        self.group.seen = {key: told for key, told in self.group.seen.items() if key in kept}

    def _in(self) -> OpenFolderPair:
        """Those that the path leads to now."""
        folders = self.folders = self.folders or self.group.idle()
        if folders is None or not folders.lead_here():
            self._out(None)
            folders = self.folders = self.group.opened()
        return folders

    def _out(self, folders: OpenFolderPair | None) -> None:
        """Use them no more. `folders`: they are of use to the next one."""
        before, self.folders = self.folders, None
        if folders is not None:
            self.group.keep(folders)
        elif before is not None:
            before.close()
