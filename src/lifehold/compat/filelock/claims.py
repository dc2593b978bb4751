"""The claims of strict locks: names, records, how one is published, and what a look at them says.

A claim is a file "intent-v1-<32 hex>.claim" or "held-v1-<the same>.claim" whose record names its
process. It is written whole under a private name, linked to its own, and the private name goes.
Rule: what is no claim that we can read means that nobody may come in (SoftFileLockProtocolError).
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from typing import Any, Literal

from ...runtime import clock
from . import folder, whose
from .errors import SoftFileLockProtocolError
from .folder import Folder, NotAFolder

StrictSoftFileClaimState = Literal["intent", "held"]
MAGIC, LONGEST, TOKEN = "filelock-strict-v1", 1024, 32
PRIVATE, SUFFIX, PROBE = ".private-v1-", ".tmp", ".probe-v1-"
AGE, GRACE, RETRY = 2.0, 0.5, 0.002  # seconds: of what a crash left; of a claim just going away
NO_LINKS = (errno.ENOSYS, errno.EXDEV, errno.EOPNOTSUPP)
SOME = 1 << 31


class Reclaimed(Exception):
    """A peer took our private record for what a crash had left: try again."""


@dataclass(frozen=True)
class StrictSoftFileClaim:
    """One claim, and whom it names."""

    name: str
    state: StrictSoftFileClaimState
    token: str
    pid: int
    hostname: str
    start: int | None = None


def is_token(text: str) -> bool:
    return len(text) == TOKEN and not text.strip("0123456789abcdef")


def claim_name(state: str, token: str) -> str:
    return f"{state}-v1-{token}.claim"


def parts_of(name: str) -> tuple[Any, str] | None:
    """State and token of a claim's name; None for any other."""
    parts = name.removesuffix(".claim").split("-")
    if not name.endswith(".claim") or len(parts) != 3 or parts[0] not in ("intent", "held"):
        return None
    return (parts[0], parts[2]) if parts[1] == "v1" and is_token(parts[2]) else None


def record(token: str) -> bytes:
    """Of this process."""
    own = whose.read(whose.record(False))
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
    """The claims of one lock."""

    def __init__(self, lock_file: str, path: str) -> None:
        self.lock_file = lock_file
        above, name = os.path.split(path)
        self.folder = Folder(above, f"{name}.filelock", "claims")
        self.above, self.name = above, name

    def seen(self, *, tidy: bool, proven: bool) -> list[StrictSoftFileClaim]:
        """All that there are. `tidy`: remove what crashes left; `proven`: ask the server of each.

        Raises SoftFileLockProtocolError for anything that is not sure.
        """
        try:
            with self.folder.opened() as fd:
                return self._seen(fd, tidy, proven)
        except FileNotFoundError:
            return []
        except (NotAFolder, OSError) as error:
            if isinstance(error, SoftFileLockProtocolError):
                raise
            reason = f"cannot open claim directory: {getattr(error, 'strerror', None) or error}"
            raise SoftFileLockProtocolError(self.lock_file, None, reason) from error

    def _seen(self, fd: int, tidy: bool, proven: bool) -> list[StrictSoftFileClaim]:
        names = self._named(fd, tidy)
        for name in names:
            if parts_of(name) is None:
                reason = "unknown claim name or protocol version"
                raise SoftFileLockProtocolError(self.lock_file, name, reason)
        found = []
        for name in names:
            content = self._content(fd, name)
            if content is not None and (not proven or self._is_at_server(fd, name)):
                found.append(parsed(self.lock_file, name, content))
        return found

    def _named(self, fd: int, tidy: bool) -> list[str]:
        try:
            with os.scandir(fd) as entries:
                names = sorted(entry.name for entry in entries)
        except OSError as error:
            reason = f"cannot list claim directory: {error.strerror}"
            raise SoftFileLockProtocolError(self.lock_file, None, reason) from error
        now: list[float | None] = []
        for name in names:
            public = public_name(name)
            known = is_probe(name) or (public is not None and parts_of(public) is not None)
            if name.startswith(".") and known:
                try:
                    reclaim(fd, name, now, tidy)
                except OSError as error:
                    reason = f"cannot list claim directory: {error.strerror or error}"
                    raise SoftFileLockProtocolError(self.lock_file, None, reason) from error
        return [name for name in names if not name.startswith(".")]

    def _content(self, fd: int, name: str) -> bytes | None:
        """A claim's record; None when it is gone."""
        until = clock.now() + GRACE
        while True:
            try:
                content = folder.read(fd, name, LONGEST)
            except FileNotFoundError:
                return None
            except OSError as error:
                stale = error.errno == errno.ESTALE
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

    def _is_at_server(self, fd: int, name: str) -> bool:
        """A client reads from its cache what is gone; a link is made by the server."""
        probe = f"{PROBE}{os.urandom(16).hex()}{SUFFIX}"
        try:
            folder.linked(fd, name, probe)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ESTALE):
                return False
            reason = f"cannot verify claim: {error.strerror}"
            raise SoftFileLockProtocolError(self.lock_file, name, reason) from error
        unlinked(fd, probe)
        return True

    def removed(self, name: str) -> None:
        """Remove one. Raises OSError, NotAFolder."""
        with self.folder.opened() as fd:
            unlinked(fd, name)


def published(fd: int | None, above: str, name: str, content: bytes, mode: int) -> None:
    """A file of that name, whole from its first instant. Raises FileExistsError, Reclaimed."""
    private = f".{name}{PRIVATE}{os.urandom(16).hex()}{SUFFIX}"
    where = name if fd is not None else os.path.join(above, name)
    private = private if fd is not None else os.path.join(above, private)
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | folder.FLAGS
    file = os.open(private, flags, mode, dir_fd=fd)
    found = os.fstat(file)
    key = found.st_dev, found.st_ino
    try:
        folder.write_all(file, content)
        try:
            folder.linked(fd, private, where, key)
        except FileNotFoundError as error:
            if folder.key_at(fd, private) is not None:
                raise
            raise Reclaimed from error
        if folder.key_at(fd, where) != key:
            raise Reclaimed
    finally:
        os.close(file)
        if folder.key_at(fd, private) == key:
            unlinked(fd, private)


def unlinked(fd: int | None, name: str) -> None:
    try:
        os.unlink(name, dir_fd=fd)
    except FileNotFoundError:
        return


def public_name(private: str) -> str | None:
    """The name for which a private record was made; None for any other name."""
    if not private.startswith(".") or not private.endswith(SUFFIX):
        return None
    public, marker, chance = private[1 : -len(SUFFIX)].rpartition(PRIVATE)
    return public if marker and is_token(chance) else None


def is_probe(name: str) -> bool:
    inner = name[len(PROBE) : -len(SUFFIX)]
    return name.startswith(PROBE) and name.endswith(SUFFIX) and is_token(inner)


def reclaim(fd: int | None, name: str, now: list[float | None], tidy: bool) -> None:
    """Remove a private record that a crash has left: one that is linked, or is two seconds old."""
    try:
        found = os.stat(name, dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        return
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, f"{name} is not a regular private record")
    if found.st_nlink == 1:
        if not now:
            now.append(server_time(fd) if tidy else None)
        if now[0] is None or now[0] - found.st_mtime < AGE:
            return
    try:
        unlinked(fd, name)
    except PermissionError:
        return  # another account's


def server_time(fd: int | None, above: str = "") -> float | None:
    """What time it is for the file system, which stamps what is written there."""
    probe = f".{claim_name('held', os.urandom(16).hex())}{PRIVATE}{os.urandom(16).hex()}{SUFFIX}"
    probe = probe if fd is not None else os.path.join(above, probe)
    try:
        file = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | folder.FLAGS, 0o600, dir_fd=fd)
    except OSError:
        return None
    try:
        os.write(file, b"\n")
        return os.fstat(file).st_mtime
    except OSError:
        return None
    finally:
        os.close(file)
        unlinked(fd, probe)


def without_links(lock_file: str, error: OSError) -> SoftFileLockProtocolError | None:
    """What to say of a file system that has no hard links."""
    if error.errno not in NO_LINKS:
        return None
    reason = "filesystem does not support atomic no-replace hard-link publication"
    return SoftFileLockProtocolError(lock_file, None, reason)
