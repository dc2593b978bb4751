"""The modelled machine: a file system, a clock, a kernel that queues waiters, and who holds what.

Promise: `outcomes` gives every way in which a client's next call may turn out, and `events` all
that may happen by itself; nothing else ever changes a `World`.
Rule for adding a call: write `do_NAME(self, world, me, *arguments)` in a subclass. `world` is a
copy, change it; return the answer, or raise OSError and nothing has happened. When it may turn
out in several ways return `Outcomes` of (answer, world), each with a world of its own; an empty one
means that the caller is blocked. A client reaches it by `actor.step("NAME", ...)` or
`actor.files.NAME(...)`. State of its own is kept in `world.notes`. What happens by itself (a lease
runs out, the clock is set) goes to `events`.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import Any, ClassVar, NamedTuple

from ..local.files import LOCK_EX, LOCK_NB, LOCK_UN
from .world import OpenDescription, Stat, TimedStat, World

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from .world import ClaimedHold


# ------------------------------------------------------------------------------------------------
# The modelled file system: what each system call does to a `World`, and what it answers.
#
# Promise: each call answers as Linux does on ext4, xfs and tmpfs; tests replay this file against
# all three. One call is one atomic step.
# Not modelled: permissions, symbolic links, full disks, lost power, torn writes.


DEVICE = 7
UMASK = 0o022
ACCESS = os.O_RDONLY | os.O_WRONLY | os.O_RDWR


class Error(NamedTuple):
    """The answer of a call that failed."""

    errno: int


class Outcomes(list[tuple[Any, World]]):
    """Every way in which a call may turn out; none: it blocks."""


TICK_NS = 10_000  # of the ticking clock, with each look at it
SET_BACK_NS = 1_000_000

MUTEX, MIXED, FOREIGN = "MUTEX", "MUTEX with a foreign party", "MUTEX between foreign parties"
TOKEN = "TOKEN"  # noqa: S105  a kind of violation
OURS = "ours"


class Model:
    """A machine with one file system that nobody else can mount.

    `clock`: "still"; "ticking", 10 us with each look; or "back", ticking, and once set back by 1
    ms at any moment. `oracle`: what `actor.alive(client)` may answer: "right"; "late" (alive for a
    while after the death); "unsure" (late, or "unknown"). It never calls a living client dead.
    `places`: how many may hold one lock at once (a semaphore).
    """

    times = False
    # The answer of rename(2) over a folder that is not empty: EEXIST on xfs, else ENOTEMPTY.
    over_full_folder = errno.ENOTEMPTY

    def __init__(
        self, *, clock: str = "still", oracle: str = "right", times: bool = False, places: int = 1
    ) -> None:
        assert clock in ("still", "ticking", "back")
        assert oracle in ("right", "late", "unsure")
        self.clock, self.oracle, self.times, self.places = clock, oracle, times, places

    def outcomes(self, world: World, me: int, call: tuple[Any, ...]) -> Outcomes:
        """Every way in which a client's call may turn out."""
        after = world.copy()
        try:
            answer = getattr(self, f"do_{call[0]}")(after, me, *call[1:])
        except OSError as error:
            return Outcomes([(Error(error.errno or 0), world)])
        ways = answer if isinstance(answer, Outcomes) else Outcomes([(answer, after)])
        for _, changed in ways:
            changed.forget_unused()
            changed.ring(world)
        return ways

    def events(self, world: World) -> Iterator[tuple[str, World]]:
        """What may happen by itself: the kernel grants a lock to one who stands in the queue."""
        for (client, fd), operation in world.queue.items():
            if not world.conflict(client, fd, operation == LOCK_EX):
                after = world.copy()
                del after.queue[client, fd]
                after.opened[client, fd] = after.opened[client, fd]._replace(lock=operation)
                yield f"the kernel grants flock({fd}) to P{client}", after

    # ---- waiting: runtime.block is these three steps -------------------------------------------

    def do_stand(self, world: World, me: int, fd: int, operation: int) -> None:
        """Begin to stand in the kernel's queue: a blocking flock(2) in a thread of its own."""
        self._opened(world, me, fd)
        world.queue[me, fd] = operation

    def do_wait(self, world: World, me: int, fd: int, endings: tuple[str, ...]) -> Outcomes:
        """Wait for the lock stood for: "granted", or before it one of `endings`."""
        if (me, fd) not in world.queue:
            return Outcomes([("granted", world)])
        return Outcomes([(ending, world) for ending in endings])

    def do_give_up(self, world: World, me: int, fd: int) -> bool:
        """Leave the queue. True: the lock came first."""
        return world.queue.pop((me, fd), None) is None

    # ---- runtime.changed is these: a watch that rings when the world around it has changed -------

    def do_look_out(self, world: World, me: int, path: str, pid: int | None) -> None:
        """Arm: from now on no change of the path, and no end of that client, is missed."""
        world.watches[me] = (path, pid, pid in world.gone)

    def do_changed(self, world: World, me: int, endings: tuple[str, ...]) -> Outcomes:
        """Sleep until an event since the last return: "changed", or one of `endings`."""
        path, pid, rung = world.watches[me]
        if rung:
            world.watches[me] = (path, pid, False)
            return Outcomes([("changed", world)])
        return Outcomes([(ending, world) for ending in endings])

    def do_look_away(self, world: World, me: int) -> None:
        """Disarm."""
        del world.watches[me]

    def do_sleep(self, world: World, me: int, seconds: float) -> None:
        """A pause is an interleaving: it changes nothing."""

    # ---- the clock, and who lives --------------------------------------------------------------

    def do_clock_ns(self, world: World, me: int) -> Outcomes | int:
        if self.clock != "still":
            world.clock += TICK_NS
        if self.clock == "back" and "clock was set back" not in world.notes:
            other = world.copy()
            other.clock -= SET_BACK_NS
            other.notes["clock was set back"] = True
            return Outcomes([(world.clock, world), (other.clock, other)])
        return world.clock

    def do_alive(self, world: World, me: int, client: int) -> Outcomes | str:
        """Whether a process lives: what evidence may say of it."""
        answers = ["dead"] if client in world.gone else ["alive"]
        if self.oracle != "right" and answers == ["dead"]:
            answers.append("alive")
        if self.oracle == "unsure":
            answers.append("unknown")
        return Outcomes([(answer, world) for answer in answers])

    # ---- holding: what the checks look at ------------------------------------------------------

    def enter(self, world: World, claim: ClaimedHold, token: int | None) -> list[str]:
        """Note that a client believes to hold the lock. Returns what is wrong with that."""
        world.holders = frozenset(
            c for c in world.holders if (c.client, c.what) != (claim.client, claim.what)
        )
        wrong = self.judge([*(c for c in world.holders if c.what == claim.what), claim])
        if token is not None and not claim.shared:
            if token <= world.token.get(claim.what, -1):
                wrong.append(TOKEN)
            world.token[claim.what] = max(token, world.token.get(claim.what, -1))
        world.holders |= {claim}
        return wrong

    def late(self, world: World, claim: ClaimedHold, token: int | None) -> list[str]:
        """A token that is handed out after its deadline: who has it may still write by it.

        So it must not be greater than that of who holds the lock by then (L4).
        """
        last = world.token.get(claim.what, -1)
        if token is None or claim.shared or token <= last:
            return []  # a guard refuses it
        world.token[claim.what] = token
        live = any(c.what == claim.what and c.client != claim.client for c in world.holders)
        return [TOKEN] if live else []

    def judge(self, claims: list[ClaimedHold]) -> list[str]:
        """What is wrong when these hold one lock at once; the last of them has just come."""
        last, wrong = claims[-1], list[str]()
        for other in claims[:-1]:
            if not (last.shared and other.shared) and len(claims) > self.places:
                ours = (last.party == OURS) + (other.party == OURS)
                wrong.append((FOREIGN, MIXED, MUTEX)[ours])
        return sorted(set(wrong))

    def do_leave(self, world: World, me: int, what: str) -> None:
        """The holder's protected work ends here."""
        world.holders = frozenset(c for c in world.holders if (c.client, c.what) != (me, what))

    # --------------------------------------------------------------------------------------------
    # One local file system. `times`: whether stat answers carry times.

    def do_open(self, world: World, me: int, path: str, flags: int, mode: int = 0o777) -> int:
        """open(2) with O_CREAT, O_EXCL, O_TRUNC, O_DIRECTORY, O_TMPFILE; others have no effect."""
        ino, access = world.at(path), flags & ACCESS
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            if world.nodes[world.found(path)].kind != stat.S_IFDIR:
                raise OSError(errno.ENOTDIR, path)
            ino = world.put(None, mode=mode & ~UMASK)
        elif ino is None:
            if not flags & os.O_CREAT:
                raise OSError(errno.ENOENT, path)
            ino = world.put(path, mode=mode & ~UMASK)
        elif flags & os.O_CREAT and flags & os.O_EXCL:
            raise OSError(errno.EEXIST, path)
        elif world.nodes[ino].kind == stat.S_IFDIR:
            if access != os.O_RDONLY or flags & os.O_CREAT:
                raise OSError(errno.EISDIR, path)
        elif flags & os.O_DIRECTORY:
            raise OSError(errno.ENOTDIR, path)
        elif flags & os.O_TRUNC:
            self._store(world, ino, b"")
        return world.new_fd(me, OpenDescription(ino, access, 0))

    def do_close(self, world: World, me: int, fd: int) -> None:
        self._opened(world, me, fd)
        del world.opened[me, fd]
        world.queue.pop((me, fd), None)

    def do_pread(self, world: World, me: int, fd: int, length: int, offset: int) -> bytes:
        description = self._opened(world, me, fd)
        if description.access == os.O_WRONLY:
            raise OSError(errno.EBADF, "not open for reading")
        node = world.nodes[description.ino]
        if node.kind == stat.S_IFDIR:
            raise OSError(errno.EISDIR, "a folder")
        return node.data[offset : offset + length]

    def do_pwrite(self, world: World, me: int, fd: int, data: bytes, offset: int) -> int:
        description = self._opened(world, me, fd)
        if description.access == os.O_RDONLY:
            raise OSError(errno.EBADF, "not open for writing")
        old = world.nodes[description.ino].data.ljust(offset, b"\0") if data else b""
        if data:
            self._store(world, description.ino, old[:offset] + data + old[offset + len(data) :])
        return len(data)

    def do_truncate(self, world: World, me: int, where: str | int, length: int) -> None:
        if isinstance(where, int):
            description = self._opened(world, me, where)
            ino = description.ino
            if description.access == os.O_RDONLY:
                raise OSError(errno.EINVAL, "not open for writing")
        else:
            ino = world.found(where)
        if world.nodes[ino].kind == stat.S_IFDIR:
            raise OSError(errno.EISDIR, "a folder")
        self._store(world, ino, world.nodes[ino].data[:length].ljust(length, b"\0"))

    def do_fchmod(self, world: World, me: int, fd: int, mode: int) -> None:
        ino = self._opened(world, me, fd).ino
        world.nodes[ino] = world.nodes[ino]._replace(mode=mode, ctime=world.clock)

    def do_chmod(self, world: World, me: int, path: str, mode: int) -> None:
        ino = world.found(path)
        world.nodes[ino] = world.nodes[ino]._replace(mode=mode, ctime=world.clock)

    def do_utime(self, world: World, me: int, where: str | int) -> None:
        """Both times to now."""
        ino = self._opened(world, me, where).ino if isinstance(where, int) else world.found(where)
        now = world.clock
        world.nodes[ino] = world.nodes[ino]._replace(mtime=now, ctime=now)

    def do_fsync(self, world: World, me: int, fd: int) -> None:
        self._opened(world, me, fd)

    def do_lstat(self, world: World, me: int, path: str) -> Stat | TimedStat:
        return self._stat(world, world.found(path))

    def do_fstat(self, world: World, me: int, fd: int) -> Stat | TimedStat:
        return self._stat(world, self._opened(world, me, fd).ino)

    def do_link(self, world: World, me: int, old: str, new: str) -> None:
        ino = world.found(old)
        if world.at(new) is not None:
            raise OSError(errno.EEXIST, new)
        if world.nodes[ino].kind == stat.S_IFDIR:
            raise OSError(errno.EPERM, old)
        world.names[new] = ino
        self._touch(world, ino)

    def do_link_fd(self, world: World, me: int, fd: int, new: str) -> None:
        """linkat(2) of an open file, which has a name or never had one (O_TMPFILE)."""
        ino = self._opened(world, me, fd).ino
        if world.at(new) is not None:
            raise OSError(errno.EEXIST, new)
        if world.nodes[ino].kind == stat.S_IFDIR:
            raise OSError(errno.EPERM, new)
        if not world.nodes[ino].nameless and not world.links(ino):
            raise OSError(errno.ENOENT, new)  # once its last name is gone it gets no other
        world.nodes[ino] = world.nodes[ino]._replace(nameless=False)
        world.names[new] = ino
        self._touch(world, ino)

    def do_unlink(self, world: World, me: int, path: str) -> None:
        ino = world.found(path)
        if world.nodes[ino].kind == stat.S_IFDIR:
            raise OSError(errno.EISDIR, path)
        del world.names[path]
        self._touch(world, ino)

    def do_rename(self, world: World, me: int, old: str, new: str) -> None:
        ino, there = world.at(old), world.at(new)  # both folders are found first
        if ino is None:
            raise OSError(errno.ENOENT, old)
        folder = world.nodes[ino].kind == stat.S_IFDIR
        if folder and new.startswith(old + "/"):
            raise OSError(errno.EINVAL, new)
        if old.startswith(new + "/"):
            raise OSError(errno.ENOTEMPTY, new)
        if there == ino:
            return  # two names of one file: both stay
        if there is not None:
            over = world.nodes[there].kind == stat.S_IFDIR
            if folder != over:
                raise OSError(errno.EISDIR if over else errno.ENOTDIR, new)
            if over and world.inside(new):
                raise OSError(self.over_full_folder, new)
        for name in [name for name in world.names if name == old or name.startswith(old + "/")]:
            world.names[new + name[len(old) :]] = world.names.pop(name)
        self._touch(world, ino)

    def do_rename_new(self, world: World, me: int, old: str, new: str) -> None:
        """renameat2(2) with RENAME_NOREPLACE."""
        if world.at(old) is not None and world.at(new) is not None:
            raise OSError(errno.EEXIST, new)
        self.do_rename(world, me, old, new)

    def do_mkdir(self, world: World, me: int, path: str, mode: int = 0o777) -> None:
        if world.at(path) is not None:
            raise OSError(errno.EEXIST, path)
        world.put(path, b"", stat.S_IFDIR, mode & ~UMASK)

    def do_makedirs(self, world: World, me: int, path: str, exist_ok: bool = False) -> None:
        """os.makedirs, here in one step."""
        ino = world.names.get(path)
        if ino is not None and (not exist_ok or world.nodes[ino].kind != stat.S_IFDIR):
            raise OSError(errno.EEXIST, path)
        if ino is None:
            above = path.rpartition("/")[0] or "/"
            if above not in world.names:
                self.do_makedirs(world, me, above, True)
            self.do_mkdir(world, me, path)

    def do_rmdir(self, world: World, me: int, path: str) -> None:
        ino = world.found(path)
        if world.nodes[ino].kind != stat.S_IFDIR:
            raise OSError(errno.ENOTDIR, path)
        if world.inside(path):
            raise OSError(errno.ENOTEMPTY, path)
        del world.names[path]

    def do_listdir(self, world: World, me: int, path: str) -> tuple[str, ...]:
        if world.nodes[world.found(path)].kind != stat.S_IFDIR:
            raise OSError(errno.ENOTDIR, path)
        return tuple(world.inside(path))

    def do_anew(self, world: World, me: int, path: str) -> None:
        """What a client remembers of a folder's names is forgotten: here there is no such thing."""
        world.found(path)

    def do_flock(self, world: World, me: int, fd: int, operation: int) -> Outcomes:
        """flock(2). A lock held already is let go of first, also when the new one is refused."""
        description = self._opened(world, me, fd)
        wanted = operation & ~LOCK_NB
        if wanted == LOCK_UN:
            world.opened[me, fd] = description._replace(lock=0)
        elif not world.conflict(me, fd, wanted == LOCK_EX):
            world.opened[me, fd] = description._replace(lock=wanted)
        elif operation & LOCK_NB:
            world.opened[me, fd] = description._replace(lock=0)
            return Outcomes([(Error(errno.EAGAIN), world)])
        else:
            assert not description.lock, "a blocking conversion of a lock is not modelled"
            return Outcomes()
        return Outcomes([(None, world)])

    def do_guard(self, world: World, me: int, fd: int, take: bool = True) -> None:
        """F_OFD_SETLK of a write lock on the whole file: another lock than flock(2)."""
        description = self._opened(world, me, fd)
        if not take:
            world.opened[me, fd] = description._replace(guard=False)
            return
        if description.access == os.O_RDONLY:
            raise OSError(errno.EBADF, "not open for writing")
        for at, other in world.opened.items():
            if other.ino == description.ino and other.guard and at != (me, fd):
                raise OSError(errno.EAGAIN, "guarded by another")
        world.opened[me, fd] = description._replace(guard=True)

    def do_is_open_elsewhere(self, world: World, me: int, fd: int) -> bool:
        """Whether F_SETLEASE of a write lease is refused."""
        ino = self._opened(world, me, fd).ino
        return any(at != (me, fd) and other.ino == ino for at, other in world.opened.items())

    def _opened(self, world: World, me: int, fd: int) -> OpenDescription:
        description = world.opened.get((me, fd))
        if description is None:
            raise OSError(errno.EBADF, "not open")
        return description

    def _store(self, world: World, ino: int, data: bytes) -> None:
        now = world.clock
        world.nodes[ino] = world.nodes[ino]._replace(data=data, mtime=now, ctime=now)

    def _touch(self, world: World, ino: int) -> None:
        world.nodes[ino] = world.nodes[ino]._replace(ctime=world.clock)

    def _stat(self, world: World, ino: int) -> Stat | TimedStat:
        node = world.nodes[ino]
        size = 0 if node.kind == stat.S_IFDIR else len(node.data)
        plain = Stat(node.kind | node.mode, ino, DEVICE, world.links(ino), 0, 0, size)
        if not self.times:
            return plain
        changed, touched = node.mtime / 1e9, node.ctime / 1e9
        return TimedStat(*plain, changed, changed, touched, node.mtime, node.ctime)


class NetworkModel(Model):
    """The same over NFS.

    link, rename and unlink may be done and yet be answered by an error, since the reply was lost
    and the request sent again; lstat and listdir may be answered from the client's cache, which its
    own changes empty and an open fills; open asks the server. O_EXCL and flock are exact.
    """

    LIES: ClassVar = {
        "link": errno.EEXIST,
        "link_fd": errno.EEXIST,
        "rename": errno.ENOENT,
        "rename_new": errno.ENOENT,
        "unlink": errno.ENOENT,
    }
    CHANGES = frozenset({*LIES, "mkdir", "rmdir"})
    CACHED = frozenset({"lstat", "listdir"})
    ASKS = frozenset({"open"})

    def outcomes(self, world: World, me: int, call: tuple[Any, ...]) -> Outcomes:
        """As on one machine, and what a file server adds to it."""
        op, key = call[0], (me, *call)
        ways = super().outcomes(world, me, call)
        if op in self.LIES:
            done = [after for answer, after in ways if not isinstance(answer, Error)]
            ways += [(Error(self.LIES[op]), after.copy()) for after in done]
        elif op in self.CACHED:
            ways = self._from_cache(world, key, ways)
        elif op in self.ASKS:
            ways = Outcomes((answer, after.copy()) for answer, after in ways)
            for _, after in ways:
                after.cache[me, "lstat", call[1]] = self._answer(after, call[1])
        if op in self.CHANGES or (op == "open" and call[2] & os.O_CREAT):
            for _, after in ways:
                after.forget_cache(me)
        return ways

    def do_open(self, world: World, me: int, path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, path)
        return super().do_open(world, me, path, flags, mode)

    def do_rename_new(self, world: World, me: int, old: str, new: str) -> None:
        self.do_rename(world, me, old, new)  # there is no such call: local/files.py

    def _from_cache(self, world: World, key: tuple[Any, ...], ways: Outcomes) -> Outcomes:
        found = Outcomes()
        for answer, after in ways:
            fresh = after.copy()
            fresh.cache[key] = answer
            found.append((answer, fresh))
            if key in world.cache and world.cache[key] != answer:
                found.append((world.cache[key], world))
        return found

    def _answer(self, world: World, path: str) -> Any:
        try:
            return self._stat(world, world.found(path))
        except OSError as error:
            return Error(error.errno or 0)
