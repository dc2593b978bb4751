"""Where a store in SQLite lies: `sqlite:///locks.db`, `sqlite:////var/lib/locks.db`.

As SQLAlchemy has it: behind three slashes a path from the working folder, behind four one from the
root. A relative one is made absolute at once. Refused, with the reason: what another kernel may
mount (SQLite's shared memory is one kernel's), links, and whatever is no file of its own (L7).

No function here opens the database itself: POSIX takes all locks of a file from a process that
closes any descriptor of it.
"""

from __future__ import annotations

import os
import stat

from ...core.errors import InvalidArgument, SystemRefused, UnsafeGround
from ...core.mask import printable
from ...local.ground import place_of_path
from ...runtime import clock, fork

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SCHEME = "sqlite://"
SHOWN = "sqlite:///locks.db from the working folder on, or sqlite:////var/lib/locks.db"
SYNCHRONOUS = ("normal", "full")
BUSY = 5.0  # seconds
NEW = ".new"  # ends the name of a file that is being made
TRIES, PAUSE = 20, 0.005  # looks at a file that is being made, and seconds between them


def settled(url: str) -> str:
    """The URL with an absolute path: what it means does not change with the working folder."""
    path, options = parted(url)
    query = "&".join(f"{name}={value}" for name, value in options.items())
    return url_of(path) + (f"?{query}" if query else "")


def parted(url: str) -> tuple[str, dict[str, str]]:
    """The absolute path, and the options behind the `?`. Raises InvalidArgument."""
    text, _, query = url.partition("?")
    shown = printable(url)
    rest = text[len(SCHEME) :]
    if rest in ("", "/", "/:memory:"):
        raise InvalidArgument(
            f"{shown!r} would be a database in the memory of one connection, which excludes "
            f"nobody: memory:// is the store in memory; in a file write {SHOWN}"
        )
    if not rest.startswith("/"):
        raise InvalidArgument(
            f"{shown!r} names a host, and a file has none: write {SHOWN}, with three slashes or "
            "four"
        )
    parse: Any = fork.lazily("urllib.parse")
    path = parse.unquote(rest[1:], errors="surrogateescape")
    if "\0" in path or path.endswith("/"):
        raise InvalidArgument(f"{shown!r} names no file: write {SHOWN}")
    options = dict(parse.parse_qsl(query, keep_blank_values=True))
    return os.path.abspath(path), options


def url_of(path: str) -> str:
    """The URL of an absolute path."""
    return f"{SCHEME}/{quoted(path)}"


def quoted(path: str) -> str:
    """A path as part of a URL."""
    parse: Any = fork.lazily("urllib.parse")
    return str(parse.quote(os.fsencode(path)))


def busy_of(given: object) -> float:
    """How long one operation may wait for the database, in seconds. Raises InvalidArgument."""
    try:
        seconds = float(given)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        seconds = -1.0
    if isinstance(given, bool) or not 0 <= seconds <= 3600:
        raise InvalidArgument(
            f"busy_timeout must be seconds from 0 to 3600, not {given!r}: how long one step may "
            "wait while others use the database"
        )
    return seconds


def synchronous_of(given: object) -> str:
    """Raises InvalidArgument."""
    if given not in SYNCHRONOUS:
        raise InvalidArgument(f"synchronous must be 'normal' or 'full', not {given!r}")
    return str(given)


def flag_of(given: object) -> bool:
    """Raises InvalidArgument."""
    if isinstance(given, bool):
        return given
    if given in ("0", "1"):
        return given == "1"
    raise InvalidArgument(f"shared must be True or False, in a URL 1 or 0, not {given!r}")


def refused(path: str, error: OSError, what: str = "opened") -> SystemRefused:
    """The system said no, and what to do."""
    return SystemRefused(
        f"{path!r} cannot be {what}: {error.strerror}", errno=error.errno, filename=path
    )


def identity(path: str) -> tuple[int, int] | None:
    """The file that a path leads to now, None for none. Raises UnsafeGround, SystemRefused."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise refused(path, error) from error
    if stat.S_ISLNK(found.st_mode):
        raise UnsafeGround(
            f"{path!r} is a symbolic link: whoever can change it could have another file written. "
            f"Give the path it leads to: {os.path.realpath(path)!r}"
        )
    if not stat.S_ISREG(found.st_mode):
        raise UnsafeGround(f"{path!r} is no regular file: no database can be kept there")
    if found.st_nlink > 1 and (left := _of_makers(path)) is not None:
        found = left
    if found.st_nlink > 1:
        raise UnsafeGround(
            f"{path!r} has {found.st_nlink} names (hard links): SQLite keeps what it has written "
            "last beside each name, and would destroy it. Leave it one name"
        )
    return found.st_dev, found.st_ino


def _of_makers(path: str) -> os.stat_result | None:
    """The file again, without the second name that it has while it is made, or after a crash then.

    To remove that name is harmless, whoever does it: the file is at its path.
    """
    folder, name = os.path.split(path)
    try:
        for _ in range(TRIES):
            found = os.lstat(path)
            if found.st_nlink == 1:
                return found
            for other in os.listdir(folder):
                if (
                    other.startswith(f"{name}.")
                    and len(other) == len(name) + 13 + len(NEW)
                    and (other.endswith(NEW))
                ):
                    _forget(os.path.join(folder, other), found)
            clock.pause(PAUSE)
        return os.lstat(path)
    except OSError:
        return None


def _forget(other: str, found: os.stat_result) -> None:
    try:
        if os.path.samestat(os.lstat(other), found):
            os.unlink(other)
    except OSError:
        return  # gone, or not ours to remove


def leads_to(path: str, file: tuple[int, int] | None) -> bool:
    """Whether a path still leads to the file that was opened."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return file is not None and found.st_ino == file[1] and found.st_dev == file[0]


def refuse_far(path: str) -> str:
    """The type of file system. Raises UnsafeGround where another kernel may mount it."""
    place = place_of_path(os.path.realpath(path))
    if place.kind and not place.one_kernel:
        raise UnsafeGround(
            f"{path!r} lies on {place.kind}, which other machines or kernels may mount: SQLite's "
            "shared memory is one kernel's, and its locks are not to be relied on there. Put the "
            "database on a local disk, or use postgresql:// between machines"
        )
    return place.kind


def make(path: str, shared: bool) -> None:
    """An empty file and its folder; what is there already stays. Raises SystemRefused.

    The file is 0600 unless `shared`. It gets its name when its descriptor is closed already, so
    that no lock of this process can be lost with that.
    """
    mode = 0o666 if shared else 0o600
    new = f"{path}.{os.urandom(6).hex()}{NEW}"
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.close(os.open(new, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, mode))
        try:
            os.link(new, path)
        except FileExistsError:
            pass  # somebody was faster
        except OSError:  # a file system without hard links
            if os.path.lexists(path):
                return
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, mode))
        finally:
            try:
                os.unlink(new)
            except FileNotFoundError:
                pass  # done by who came meanwhile
    except FileExistsError:
        pass
    except OSError as error:
        raise refused(path, error, "made") from error


def to_disk(folder: str) -> None:
    """The name of a new file survives a power loss too."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError:
        pass  # a folder that may be written and not read
