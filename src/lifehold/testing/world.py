"""One state of the modelled machine: names, inodes, descriptors, locks, a clock, who holds.

Promise: two worlds with the same `key()` behave alike; a copy shares nothing that can be changed.
Rule: inode numbers and descriptors are the smallest free ones, so a number is used again the
moment nothing refers to it any more. That is the worst case for code which compares numbers (ext4
does the same: 199 of 200), and it makes states meet again.
"""

from __future__ import annotations

import errno
import stat
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Hashable

ROOT = 1  # the inode of "/"
FIRST_FD = 3
NOW_NS = 1_000_000_000  # what the wall clock says at first


class Inode(NamedTuple):
    """An inode. `kind` is stat.S_IFREG or stat.S_IFDIR; times in nanoseconds of the wall clock.

    `nameless`: made by O_TMPFILE and never named so far.
    """

    kind: int
    data: bytes
    mode: int
    mtime: int
    ctime: int
    nameless: bool = False


class OpenDescription(NamedTuple):
    """An open file description. `lock`: 0, LOCK_SH or LOCK_EX; `guard`: its other lock."""

    ino: int
    access: int
    lock: int
    guard: bool = False


class ClaimedHold(NamedTuple):
    """Somebody who believes to hold the lock `what`, until an instant of the model's time."""

    client: int
    party: str
    shared: bool
    what: str
    until: float = float("inf")


class Stat(NamedTuple):
    """The answer of stat(2), in its order, without times: they would part states that are alike."""

    st_mode: int
    st_ino: int
    st_dev: int
    st_nlink: int
    st_uid: int
    st_gid: int
    st_size: int


class TimedStat(NamedTuple):
    """The same with times, for a `Model(times=True)`."""

    st_mode: int
    st_ino: int
    st_dev: int
    st_nlink: int
    st_uid: int
    st_gid: int
    st_size: int
    st_atime: float
    st_mtime: float
    st_ctime: float
    st_mtime_ns: int
    st_ctime_ns: int


class World:
    """All that clients share. Operations of the model change a copy; see `Model` in model.py.

    `names` path -> inode number; `nodes`; `opened` (client, fd) -> description; `queue` (client,
    fd) -> the flock operation it stands for; `watches` client -> (path, other client, whether
    something has happened there); `holders` claims; `token` the greatest token granted
    so far, by name; `gone` clients that have ended; `cache` what an NFS client remembers; `notes`
    for extensions, any hashable value by any hashable name.
    """

    __slots__ = (
        "cache",
        "clock",
        "gone",
        "holders",
        "names",
        "nodes",
        "notes",
        "opened",
        "queue",
        "token",
        "watches",
    )

    def __init__(self) -> None:
        self.names: dict[str, int] = {"/": ROOT}
        self.nodes: dict[int, Inode] = {ROOT: Inode(stat.S_IFDIR, b"", 0o755, 0, 0)}
        self.opened: dict[tuple[int, int], OpenDescription] = {}
        self.queue: dict[tuple[int, int], int] = {}
        self.watches: dict[int, tuple[str, int | None, bool]] = {}
        self.clock = NOW_NS
        self.holders: frozenset[ClaimedHold] = frozenset()
        self.token: dict[str, int] = {}
        self.gone: frozenset[int] = frozenset({0})  # 0: whoever left the files of a start state
        self.cache: dict[tuple[Any, ...], Any] = {}
        self.notes: dict[Hashable, Hashable] = {}

    def copy(self) -> World:
        """A world of its own with the same content."""
        other = World.__new__(World)
        other.names, other.nodes = self.names.copy(), self.nodes.copy()
        other.opened, other.queue = self.opened.copy(), self.queue.copy()
        other.watches = self.watches.copy()
        other.cache, other.notes, other.token = (
            self.cache.copy(),
            self.notes.copy(),
            self.token.copy(),
        )
        other.clock, other.holders, other.gone = self.clock, self.holders, self.gone
        return other

    def key(self) -> Hashable:
        """All of the state, exactly: no hash stands for content."""
        return (
            frozenset(self.names.items()),
            frozenset(self.nodes.items()),
            frozenset(self.opened.items()),
            frozenset(self.queue.items()),
            self.clock,
            self.holders,
            frozenset(self.token.items()),
            self.gone,
            frozenset(self.cache.items()),
            frozenset(self.notes.items()),
            frozenset(self.watches.items()),
        )

    # ---- names and inodes ----------------------------------------------------------------------

    def put(
        self, path: str | None, data: bytes = b"", kind: int = stat.S_IFREG, mode: int = 0o644
    ) -> int:
        """A new inode under a new name, or without any. Also for start states. Its number."""
        ino = next(number for number in range(ROOT + 1, 1 << 20) if number not in self.nodes)
        self.nodes[ino] = Inode(kind, data, mode, self.clock, self.clock, path is None)
        if path is not None:
            self.names[path] = ino
        return ino

    def at(self, path: str) -> int | None:
        """The inode a path leads to, None when the last part of it is missing. Raises OSError."""
        if path != "/":
            above = self.at(path.rpartition("/")[0] or "/")
            if above is None:
                raise OSError(errno.ENOENT, path)
            if self.nodes[above].kind != stat.S_IFDIR:
                raise OSError(errno.ENOTDIR, path)
        return self.names.get(path)

    def found(self, path: str) -> int:
        """The inode a path leads to. Raises OSError."""
        ino = self.at(path)
        if ino is None:
            raise OSError(errno.ENOENT, path)
        return ino

    def inside(self, folder: str) -> list[str]:
        """The names in a folder."""
        front = folder.rstrip("/") + "/"
        return sorted(
            name[len(front) :]
            for name in self.names
            if name.startswith(front) and name != "/" and "/" not in name[len(front) :]
        )

    def links(self, ino: int) -> int:
        """st_nlink: of a folder 2 and one for each folder in it."""
        names = [name for name, other in self.names.items() if other == ino]
        if self.nodes[ino].kind != stat.S_IFDIR:
            return len(names)
        if not names:
            return 0
        front = names[0].rstrip("/") + "/"
        inner = (self.nodes[self.names[front + name]] for name in self.inside(names[0]))
        return 2 + sum(node.kind == stat.S_IFDIR for node in inner)

    def forget_unused(self) -> None:
        """Free the inodes that no name and no descriptor refers to."""
        used = {*self.names.values(), *(description.ino for description in self.opened.values())}
        if len(used) != len(self.nodes):
            for ino in [ino for ino in self.nodes if ino not in used]:
                del self.nodes[ino]

    # ---- descriptors and clients ---------------------------------------------------------------

    def new_fd(self, client: int, description: OpenDescription) -> int:
        """The smallest free descriptor of a client."""
        fd = FIRST_FD
        while (client, fd) in self.opened:
            fd += 1
        self.opened[client, fd] = description
        return fd

    def conflict(self, client: int, fd: int, exclusive: bool) -> bool:
        """Whether flock(2) through this descriptor meets another description's lock."""
        ino = self.opened[client, fd].ino
        return any(
            other.ino == ino and other.lock and (exclusive or other.lock == 2)
            for at, other in self.opened.items()
            if at != (client, fd)
        )

    def end(self, client: int) -> None:
        """The process is gone, and with it its descriptors, locks, places in queues and caches."""
        before = self.copy() if self.watches else self  # its descriptors are closed, which is told
        self.opened = {at: item for at, item in self.opened.items() if at[0] != client}
        self.queue = {at: item for at, item in self.queue.items() if at[0] != client}
        self.watches.pop(client, None)
        self.forget_cache(client)
        self.holders = frozenset(claim for claim in self.holders if claim.client != client)
        self.gone |= {client}
        self.forget_unused()
        self.ring(before)

    def ring(self, before: World) -> None:
        """Note for every watch whether this world differs from the one before where it looks."""
        for client, (path, pid, rung) in self.watches.items():
            ended = pid in self.gone and pid not in before.gone
            closed = self._closed(before, before.names.get(path))
            if not rung and (ended or closed or self.seen(path) != before.seen(path)):
                self.watches[client] = (path, pid, True)

    def _closed(self, before: World, ino: int | None) -> bool:
        """Whether a descriptor that could write a file was closed: IN_CLOSE_WRITE."""
        return any(
            item.ino == ino and item.access and at not in self.opened
            for at, item in before.opened.items()
        )

    def seen(self, path: str) -> Hashable:
        """What a watch sees of a path; with a slash at its end, of everything in that folder."""
        if path.endswith("/"):
            return tuple((name, self.seen(path + name)) for name in self.inside(path))
        ino = self.names.get(path)
        return ino, self.nodes.get(ino or 0)

    def forget_cache(self, client: int) -> None:
        """Drop what an NFS client remembers."""
        self.cache = {at: item for at, item in self.cache.items() if at[0] != client}

    def left_by(self, client: int, keeps: frozenset[int]) -> str:
        """What a client that says it is done still has and should not, in words."""
        mine = {fd: item for (owner, fd), item in self.opened.items() if owner == client}
        found = [f"still locks descriptor {fd}" for fd, item in mine.items() if item.lock]
        found += [f"leaves descriptor {fd} open" for fd in mine if fd not in keeps]
        found += [f"still stands in the queue with {fd}" for at, fd in self.queue if at == client]
        found += ["still looks out for a change"] if client in self.watches else []
        found += [f"never left {claim.what!r}" for claim in self.holders if claim.client == client]
        return ", ".join(found)
