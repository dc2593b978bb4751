"""The modelled file system: what each system call does to a `World`, and what it answers.

Promise: each call answers as Linux does on ext4, xfs and tmpfs; tests replay this file against
all three. One call is one atomic step. How a call is added: see `Model` in model.py.
Not modelled: permissions, symbolic links, full disks, lost power, torn writes.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import Any, NamedTuple

from ..local.files import LOCK_EX, LOCK_NB, LOCK_UN
from .world import OpenDescription, Stat, TimedStat, World

DEVICE = 7
UMASK = 0o022
ACCESS = os.O_RDONLY | os.O_WRONLY | os.O_RDWR


class Error(NamedTuple):
    """The answer of a call that failed."""

    errno: int


class Outcomes(list[tuple[Any, World]]):
    """Every way in which a call may turn out; none: it blocks."""


class FileSystem:
    """One local file system. `times`: whether stat answers carry times."""

    times = False
    # The answer of rename(2) over a folder that is not empty: EEXIST on xfs, else ENOTEMPTY.
    over_full_folder = errno.ENOTEMPTY

    # ---- files ---------------------------------------------------------------------------------

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

    # ---- names ---------------------------------------------------------------------------------

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

    # ---- locks ---------------------------------------------------------------------------------

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

    # ---- what they share -----------------------------------------------------------------------

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
