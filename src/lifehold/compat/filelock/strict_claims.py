"""The claims of strict locks: names, records, how one is published, and what a look at them says.

A claim is a file "intent-v1-<32 hex>.claim" or "held-v1-<the same>.claim" whose record names its
process. It is written whole under a private name, linked to its own, and the private name goes.
Rule: what is no claim that we can read means that nobody may come in (SoftFileLockProtocolError).
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from binascii import crc32
from dataclasses import dataclass
from typing import Any, Literal

from ...runtime import clock
from . import pidfile
from .errors import SoftFileLockProtocolError
from .record_folder import NotAFolder, OpenFolder, RecordFolder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

StrictSoftFileClaimState = Literal["intent", "held"]
MAGIC, LONGEST, PROBE = "filelock-strict-v1", 1024, ".probe-v1-"
GRACE, RETRY = 0.5, 0.002  # seconds for which a claim that is just going away is asked for again
NO_LINKS = (errno.ENOSYS, errno.EXDEV, errno.EOPNOTSUPP)
SOME, SEAL = 1 << 31, 0x6C696665


@dataclass(frozen=True)
class StrictSoftFileClaim:
    """One claim, and whom it names."""

    name: str
    state: StrictSoftFileClaimState
    token: str
    pid: int
    hostname: str
    start: int | None = None


def new_token() -> str:
    """A random one, by whose end other programs of ours know that it is of our making."""
    chance = os.urandom(12).hex()
    return chance + _seal(chance)


def is_of_ours(token: str) -> bool:
    """Whether it is of lifehold's making; of filelock's, one in 2**32 looks so."""
    return token.endswith(_seal(token[:24]))


def _seal(chance: str) -> str:
    return f"{crc32(chance.encode(), SEAL):08x}"


def claim_name(state: str, token: str) -> str:
    return f"{state}-v1-{token}.claim"


def parts_of(name: str) -> tuple[Any, str] | None:
    """State and token of a claim's name; None for any other."""
    parts = name.removesuffix(".claim").split("-")
    if not name.endswith(".claim") or len(parts) != 3 or parts[0] not in ("intent", "held"):
        return None
    return (parts[0], parts[2]) if parts[1] == "v1" and is_token(parts[2]) else None


def is_probe(name: str) -> bool:
    """Whether it is a link by which somebody asked a file server."""
    inner = name[len(PROBE) : -len(SUFFIX)]
    return name.startswith(PROBE) and name.endswith(SUFFIX) and is_token(inner)


def record(token: str) -> bytes:
    """Of this process."""
    own = pidfile.read(pidfile.record(False))
    assert own is not None
    host = own.host.encode().hex()
    start = "" if own.start is None else str(own.start)
    return f"{MAGIC}\n{token}\n{own.pid}\n{host}\n{start}\n".encode()


def parsed(lock_file: str, name: str, content: bytes) -> StrictSoftFileClaim:
    """The claim. Raises SoftFileLockProtocolError."""
    parts: Any = parts_of(name)
    state, token = parts
    try:
        magic, said, pid, host, start, rest = content.decode("ascii").split("\n")
        number, began = int(pid), int(start) if start else None
        hostname = bytes.fromhex(host).decode()
        right = (magic, said, rest) == (MAGIC, token, "") and str(number) == pid
        right = right and 0 < number < SOME and (began is None or str(began) == start)
        right = right and (began is None or began >= 0) and hostname.encode().hex() == host
        right = right and hostname.isprintable() and not any(map(str.isspace, hostname))
    except ValueError as error:
        raise SoftFileLockProtocolError(lock_file, name, "malformed claim record") from error
    if not right:
        raise SoftFileLockProtocolError(lock_file, name, "malformed claim record")
    return StrictSoftFileClaim(name, state, token, number, hostname, began)


class Claims:
    """The claims of one lock. `files`: the calls that work on what is open."""

    def __init__(self, lock_file: str, path: str, files: Any) -> None:
        self.lock_file, self.files = lock_file, files
        self.table: Any = None  # of what stays open, where one kernel alone has the folder
        self._made: object = None  # the folders, as they were when they had been seen to
        above, name = os.path.split(path)
        self.folder = RecordFolder(above, f"{name}.filelock", "claims")
        self.where = f"{self.folder.path}/"  # what is to be watched

    def make(self, mode: int, settle: Callable[[int, os.stat_result], None]) -> None:
        """See to it that their folders are there. Raises NotAFolder, OSError."""
        if self._made is None or self._made != self._folders(mode):
            self.folder.make(mode, settle)
            self._made = None if self.table is None else self._folders(mode)

    def _folders(self, mode: int) -> object:
        try:
            found = [
                os.lstat(path) for path in (os.path.dirname(self.folder.path), self.folder.path)
            ]
        except OSError:
            return None
        return mode, [(each.st_dev, each.st_ino, each.st_mode, each.st_uid) for each in found]

    @contextlib.contextmanager
    def entered(self) -> Iterator[OpenFolder]:
        """Their folder, for a block. Raises FileNotFoundError, NotAFolder, OSError."""
        folder, table = self.folder, self.table
        with folder.opened() if table is None else folder.kept(table) as fd:
            yield OpenFolder(fd, self.files)

    @contextlib.contextmanager
    def above(self) -> Iterator[OpenFolder]:
        """The folder of the lock's own path, for a block. Raises OSError."""
        with self.folder.opened(0) as fd:
            yield OpenFolder(fd, self.files)

    def seen(
        self, *, tidy: bool, proven: bool, ours: Iterable[str] = ()
    ) -> list[StrictSoftFileClaim]:
        """All that there are. `tidy`: remove what crashes left; `proven`: ask the server of each.

        `ours`: names whose records the caller has written, and which are not read.

        Raises SoftFileLockProtocolError for anything that is not sure.
        """
        try:
            with self.entered() as folder:
                return self._seen(folder, tidy, proven, ours)
        except FileNotFoundError:
            return []
        except (NotAFolder, OSError) as error:
            if isinstance(error, SoftFileLockProtocolError):
                raise
            reason = f"cannot open claim directory: {getattr(error, 'strerror', None) or error}"
            raise SoftFileLockProtocolError(self.lock_file, None, reason) from error

    def _seen(
        self, folder: OpenFolder, tidy: bool, proven: bool, ours: Iterable[str]
    ) -> list[StrictSoftFileClaim]:
        names = self._named(folder, tidy)
        for name in names:
            if parts_of(name) is None:
                reason = "unknown claim name or protocol version"
                raise SoftFileLockProtocolError(self.lock_file, name, reason)
        found = []
        for name in names:
            if name in ours and not proven:
                parts: Any = parts_of(name)
                found.append(StrictSoftFileClaim(name, parts[0], parts[1], os.getpid(), ""))
                continue
            content = self._content(folder, name)
            if content is not None and (not proven or self._is_at_server(folder, name)):
                found.append(parsed(self.lock_file, name, content))
        return found

    def _named(self, folder: OpenFolder, tidy: bool) -> list[str]:
        try:
            names = sorted(folder.scanned())
        except OSError as error:
            reason = f"cannot list claim directory: {error.strerror}"
            raise SoftFileLockProtocolError(self.lock_file, None, reason) from error
        now: list[float | None] = []
        for name in names:
            public = public_name(name)
            known = is_probe(name) or (public is not None and parts_of(public) is not None)
            if name.startswith(".") and known:
                try:
                    reclaim(folder, name, now, tidy)
                except OSError as error:
                    reason = f"cannot list claim directory: {error.strerror or error}"
                    raise SoftFileLockProtocolError(self.lock_file, None, reason) from error
        return [name for name in names if not name.startswith(".")]

    def _content(self, folder: OpenFolder, name: str) -> bytes | None:
        """A claim's record; None when it is gone."""
        until = 0.0
        while True:
            try:
                content = folder.record(name, LONGEST)
            except FileNotFoundError:
                return None
            except OSError as error:
                stale = error.errno == errno.ESTALE
                until = until or clock.now() + GRACE
                if (stale or error.errno == errno.EACCES) and clock.now() < until:
                    clock.pause(RETRY)
                    continue
                if stale:
                    return None  # the server has it no more
                reason = f"cannot read claim: {error.strerror or error}"
                raise SoftFileLockProtocolError(self.lock_file, name, reason) from error
            if len(content) > LONGEST:
                reason = f"cannot read claim: it exceeds {LONGEST} bytes"
                raise SoftFileLockProtocolError(self.lock_file, name, reason)
            return content

    def _is_at_server(self, folder: OpenFolder, name: str) -> bool:
        """A client reads from its cache what is gone; a link is made by the server."""
        probe = f"{PROBE}{os.urandom(16).hex()}{SUFFIX}"
        try:
            folder.linked(name, probe)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ESTALE):
                return False
            reason = f"cannot verify claim: {error.strerror}"
            raise SoftFileLockProtocolError(self.lock_file, name, reason) from error
        folder.unlink(probe)
        return True

    def removed(self, name: str) -> None:
        """Remove one. Raises OSError, NotAFolder."""
        with self.entered() as folder:
            folder.unlink(name)


def without_links(lock_file: str, error: OSError) -> SoftFileLockProtocolError | None:
    """What to say of a file system that has no hard links."""
    if error.errno not in NO_LINKS:
        return None
    reason = "filesystem does not support atomic no-replace hard-link publication"
    return SoftFileLockProtocolError(lock_file, None, reason)


# ------------------------------------------------------------------------------------------------
# How a record of a strict lock is published whole, and what crashes leave of it.
#
# It is written under a private name, linked to its own, which nobody may have, and the private name
# goes. Rule: such a name is removed by anybody once it is linked, or is two seconds old by the
# clock of the file system; whose private record goes before the link has not published, and tries
# again.


PRIVATE, SUFFIX, TOKEN = ".private-v1-", ".tmp", 32
AGE = 2.0  # seconds
CREATE = os.O_CREAT | os.O_EXCL


class PrivateRecordTaken(Exception):
    """A peer took our private record for what a crash had left: try again."""


def is_token(text: str) -> bool:
    """Whether it is 32 hexadecimal digits."""
    return len(text) == TOKEN and not text.strip("0123456789abcdef")


def private_name(public: str) -> str:
    """A name of which nobody knows, for the record that is to have that one."""
    return f".{public}{PRIVATE}{os.urandom(16).hex()}{SUFFIX}"


def public_name(private: str) -> str | None:
    """The name for which a private record was made; None for any other name."""
    if not private.startswith(".") or not private.endswith(SUFFIX):
        return None
    public, marker, chance = private[1 : -len(SUFFIX)].rpartition(PRIVATE)
    return public if marker and is_token(chance) else None


def published(folder: OpenFolder, name: str, content: bytes, mode: int) -> None:
    """A file of that name, whole from its first instant.

    Raises FileExistsError, PrivateRecordTaken.
    """
    private = private_name(name)
    file = folder.open(private, os.O_RDWR | CREATE, mode)
    found = folder.files.fstat(file)
    key = found.st_dev, found.st_ino
    try:
        folder.write(file, content)
        try:
            folder.linked(private, name, key)
        except FileNotFoundError as error:
            if folder.key_at(private) is not None:
                raise
            raise PrivateRecordTaken from error
        if folder.key_at(name) != key:
            raise PrivateRecordTaken
    finally:
        folder.files.close(file)
        if folder.key_at(private) == key:
            folder.unlink(private)


def reclaim(folder: OpenFolder, name: str, now: list[float | None], tidy: bool) -> None:
    """Remove a private record that a crash has left: one that is linked, or is two seconds old."""
    try:
        found = folder.stat(name)
    except FileNotFoundError:
        return
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, f"{name} is not a regular private record")
    if found.st_nlink == 1:
        if not now:
            now.append(server_time(folder) if tidy else None)
        if now[0] is None or now[0] - found.st_mtime < AGE:
            return
    try:
        folder.unlink(name)
    except PermissionError:
        return  # another account's


def server_time(folder: OpenFolder) -> float | None:
    """What time it is for the file system, which stamps what is written there."""
    probe = private_name(f"held-v1-{os.urandom(16).hex()}.claim")
    try:
        file = folder.open(probe, os.O_WRONLY | CREATE)
    except OSError:
        return None
    try:
        folder.write(file, b"\n")
        return float(folder.files.fstat(file).st_mtime)
    except OSError:
        return None
    finally:
        folder.files.close(file)
        folder.unlink(probe)
