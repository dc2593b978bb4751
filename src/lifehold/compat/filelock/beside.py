"""The private link through which SQLite opens a lock database where others may create names.

SQLite opens by a name, follows symbolic links there, and looks for a journal beside it. So where
another account may write into the database's folder, it gets a name of our own: a hard link in a
folder within a folder, `.filelock-<pid>-<start>-<host>-<chance>/<chance>/lock.db`, as filelock
names them. The outer one is for this account alone, so nobody can know what the inner one is
called: whoever puts another folder in its place makes SQLite fail, never follow.

What a killed process leaves is removed by who next makes a link to that database, on a proof of
death (L2); only links to that very database go, and folders that are empty then.
"""

from __future__ import annotations

import hashlib
import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from ...core.owner import DEAD
from ...local.ground import is_unproven
from ...runtime import clock, fork
from . import whose

if TYPE_CHECKING:
    from collections.abc import Iterator

    Key = tuple[int, int]  # device and inode of a file

PREFIX, NAME = ".filelock-", "lock.db"
BESIDE = ("", "-journal", "-wal", "-shm")  # what SQLite may have made
FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
FOLDER |= getattr(os, "O_CLOEXEC", 0)
OTHERS = stat.S_IRWXG | stat.S_IRWXO
AGAIN = 5.0  # seconds until the same database's left-over links are looked for again
_looked: dict[Key, float] = {}


def needed(path: str) -> bool:
    """Whether another account may create names beside the database."""
    if os.name == "nt":
        return False  # SQLite opens it there so that its name cannot be exchanged
    folder = os.lstat(os.path.dirname(path))
    # A sticky folder lets others create names all the same.
    loose = folder.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return bool(loose) or folder.st_uid not in (os.geteuid(), 0)


class Link(NamedTuple):
    """A private link. `folder`, of that `key`, is the outer one; `inner` the other's name."""

    folder: str
    key: Key
    inner: str

    @property
    def database(self) -> str:
        return os.path.join(self.folder, self.inner, NAME)

    def remove(self) -> None:
        """Take it away, if it is there. What another has put in its place stays."""
        try:
            with opened(self.folder) as fd:
                if key_of(os.fstat(fd)) != self.key:
                    return
                for suffix in BESIDE:
                    with suppress(FileNotFoundError):
                        os.unlink(f"{self.inner}/{NAME}{suffix}", dir_fd=fd)
                with suppress(FileNotFoundError):
                    os.rmdir(self.inner, dir_fd=fd)
            os.rmdir(self.folder)
        except OSError:
            return  # a name that stays behind is no reason to fail a release: it is swept later


class opened:  # noqa: N801 - as open() is called
    """A descriptor of a folder, for a block."""

    def __init__(self, path: str, above: int | None = None) -> None:
        self.fd = os.open(path, FOLDER, dir_fd=above)

    def __enter__(self) -> int:
        return self.fd

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)


def key_of(found: os.stat_result) -> Key:
    return found.st_dev, found.st_ino


def made(path: str, key: Key) -> Link:
    """A link to the database at `path`, which has that `key`. Raises OSError."""
    above = os.path.dirname(path)
    sweep(above, key)
    temporary: Any = fork.lazily("tempfile")
    paths: Any = fork.lazily("pathlib")
    folder = str(temporary.mkdtemp(prefix=prefix(), dir=paths.Path(above)))
    with opened(folder) as fd:
        own = ours(fd, folder, above)
        link = Link(folder, own, os.urandom(8).hex())
        try:
            os.mkdir(link.inner, 0o700, dir_fd=fd)
            linked(path, link.database)
            if key_of(os.lstat(link.database)) != key:
                raise OSError(f"lock database changed while opening: {path!r}")
        except BaseException:
            link.remove()
            raise
    return link


def linked(path: str, name: str) -> None:
    try:
        os.link(path, name, follow_symlinks=False)
    except OSError as error:
        error.add_note(
            "a lock database in a folder where other accounts may write is opened through a hard "
            f"link beside it: make {os.path.dirname(path)!r} writable by its owner only, or use a "
            "file system with hard links"
        )
        raise


def ours(fd: int, folder: str, above: str) -> Key:
    """Make sure that a new folder is the one we made, and for us alone. Raises OSError."""
    found = os.fstat(fd)
    loose = found.st_mode & OTHERS
    if found.st_uid != os.geteuid() or (loose and os.listdir(fd)):
        raise OSError(f"link directory {folder!r} was replaced while opening")
    if loose:  # an access list of the folder above was inherited
        with suppress(PermissionError):
            os.fchmod(fd, 0o700)
        if os.fstat(fd).st_mode & OTHERS:
            with suppress(OSError):
                os.rmdir(folder)
            raise OSError(
                f"link directory {folder!r} stays open to other accounts, through an access list "
                f"that it has inherited: make {above!r} writable by its owner only"
            )
    return key_of(found)


# ---- what the dead have left


def prefix() -> str:
    """How the name of this process's folders begins."""
    pid = os.getpid()
    start = whose.start_of(pid)
    return f"{PREFIX}{pid}-{'' if start is None else start}-{digest(whose.host_name())}-"


def digest(host: str) -> str:
    return hashlib.sha256(host.encode()).hexdigest()[:16]


def sweep(above: str, key: Key) -> None:
    """Remove the links to this database whose processes are gone."""
    now = clock.now()
    if now - _looked.get(key, -AGAIN) < AGAIN:
        return
    _looked[key] = now
    try:
        with os.scandir(above) as entries:
            names = [each.name for each in entries if is_folder(each)]
    except OSError:
        return  # a folder that may be written, and not be read
    for name in names:
        with suppress(OSError):  # another one sweeps as well, or it is not ours to remove
            sweep_one(os.path.join(above, name), key)


def is_folder(entry: os.DirEntry[str]) -> bool:
    return entry.name.startswith(PREFIX) and entry.is_dir(follow_symlinks=False)


def sweep_one(path: str, key: Key) -> None:
    with opened(path) as fd:
        # What another account has named is not even read: no process is probed on its behalf.
        if os.fstat(fd).st_uid != os.geteuid() or not gone(path):
            return
        for name in list(names_in(fd)):
            if name == NAME:  # up to filelock 4.2.0 the link lay in the outer folder
                unlink_link_to(key, fd)
                continue
            with suppress(OSError):
                with opened(name, fd) as inner:
                    unlink_link_to(key, inner)
                os.rmdir(name, dir_fd=fd)
    os.rmdir(path)


def names_in(fd: int) -> Iterator[str]:
    with os.scandir(fd) as entries:
        for each in entries:
            yield each.name


def unlink_link_to(key: Key, fd: int) -> None:
    try:
        found = os.stat(NAME, dir_fd=fd, follow_symlinks=False)
    except OSError:
        return
    if key_of(found) == key:
        os.unlink(NAME, dir_fd=fd)


def gone(path: str) -> bool:
    """Whether the process that a folder is named after is proven dead (L2)."""
    parts = os.path.basename(path).removeprefix(PREFIX).split("-")
    if (
        len(parts) != 4
        or not whose.numeral(parts[0])
        or not whose.numeral(parts[1], bool(parts[1]))
    ):
        return False
    pid, host = int(parts[0]), whose.host_name()
    if not 0 < pid < 1 << 31 or parts[2] != digest(host):
        return False
    named = whose.Named(pid, host, int(parts[1]) if parts[1] else None)
    return whose.verdict(named, None, not is_unproven(path)).state == DEAD
