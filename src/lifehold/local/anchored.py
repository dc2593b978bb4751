"""The seam of root's locks in folders of others: no name is looked up where they can lead it.

Promise (L13): a call acts in a folder that was reached through real folders, or by a symbolic link
that leads its maker's way: into a folder of that same user, who may do there what root would do.
Root's own links lead anywhere. What is swapped between two calls, or within one, is not followed.

Each call walks the path anew, from the root folder, one open(2) with O_NOFOLLOW for each part. It
then acts on a name in the folder that it has open by that, through /proc: nobody can swap it any
more. That costs about two system calls for each part of the path, so it is for root alone, and for
those folders alone whose place others can swap (`seam_for`). Without /proc there is no such seam.

Not promised: who owns a folder on the path can still put another real folder in the place of one,
as far as that user's rights to rename go. Only folders below its own are within reach by that.
"""

from __future__ import annotations

import errno
import os
import stat
import sys

from ..core.errors import pass_up
from ..runtime import clock, fork
from ..runtime.process import user_name
from .files import CALLS, NAMELESS, Files
from .refusals import UntrustedPath, is_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..runtime import rights
else:
    rights = fork.later("lifehold.runtime.rights", globals())

ANYBODY = -1
LINKS = 40  # symbolic links on one path, as in the kernel
OWN = "/proc/self/fd/"  # what stands there leads to what we have open
_PART: int = getattr(os, "O_PATH", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_FOLDERS = frozenset({"anchor", "listdir", "anew"})  # calls whose path is that of a folder
_FIRST = frozenset({"open", "lstat", "there", "unlink", "mkdir", "rmdir", "access", "utime"})
_SECOND = frozenset({"link_fd"})
_BOTH = frozenset({"link", "rename", "rename_new", "exchange"})


class AnchoredFiles(Files):
    """The calls of `below`, each in the folder that its path led to when it was made."""

    def __init__(self, below: Files) -> None:
        self.below = below
        names = {*CALLS, "first", "again", "there", "access", "stamp", "exchange"}
        for name in names:
            call = getattr(below, name, None)
            if call is not None and name not in ("makedirs", "glance"):  # methods here
                setattr(self, name, self._led(name, call))

    def _led(self, name: str, call: Callable[..., object]) -> Any:
        if name in ("anchor", "chmod"):
            return self._anchor if name == "anchor" else self._chmod
        if name in _FOLDERS:
            return lambda path: _inside(path, call)
        if name == "open":
            return lambda path, flags, mode=0o777: self._open(call, path, flags, mode)
        if name in _FIRST:
            return lambda path, *more, **named: _at(path, lambda at: call(at, *more, **named))
        if name in _SECOND:
            return lambda fd, path: _at(path, lambda at: call(fd, at))
        if name in _BOTH:
            return lambda one, other: _at(
                one, lambda here: _at(other, lambda there: call(here, there))
            )
        return call  # by a descriptor

    def _open(self, call: Any, path: str, flags: int, mode: int) -> int:
        """As open(2). A folder is itself walked to, unless no link may be followed to it."""
        folder = flags & os.O_DIRECTORY and not flags & os.O_NOFOLLOW
        itself = folder or (NAMELESS and flags & NAMELESS == NAMELESS)
        flags |= 0 if itself else os.O_NOFOLLOW
        made: list[int] = []
        try:
            (_inside if itself else _at)(path, lambda at: made.append(call(at, flags, mode)))
        except BaseException:  # L6  also a signal handler's, after it was opened
            for fd in made:
                os.close(fd)
            raise
        return made[0]

    def _anchor(self, folder: str, opened: list[int]) -> str:
        """No symbolic link at its end is followed, as with the plain call."""
        return _at(folder, lambda at: self.below.anchor(at, opened))  # type: ignore[no-any-return]

    def _chmod(self, folder: str, mode: int) -> None:
        """Others get rights to a folder of root's only while there is nothing in it but numbers.

        A folder of root's own may have come in the place of the one that was made for the lock.
        """

        def change(at: str) -> None:
            fd = os.open(at, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                found = os.fstat(fd)
                wider = mode & ~found.st_mode & 0o077
                if wider and found.st_uid == 0 and not all(map(is_number, os.listdir(fd))):
                    raise OSError(errno.ENOTEMPTY, "another folder was put in its place", folder)
                os.fchmod(fd, mode)
            finally:
                os.close(fd)

        _at(folder, change)

    def glance(self, path: str) -> None:
        """None: such a look would go by the path."""

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """As os.makedirs, each folder in the one that is open."""
        try:
            try:
                self.mkdir(path)
            except FileNotFoundError:
                above = os.path.dirname(path.rstrip("/"))
                if above == path:
                    raise
                self.makedirs(above, exist_ok=True)
                self.mkdir(path)
        except OSError as error:
            pass_up(error)
            if isinstance(error, UntrustedPath) or not exist_ok:
                raise
            try:
                os.close(reached(path))  # it is there, whatever was refused
            except FileNotFoundError:
                raise error from None


def _at(path: str | int, call: Callable[[Any], object]) -> Any:
    """`call` of a name of what stands at `path`, in the folder that the walk has reached."""
    if isinstance(path, int) or path.startswith(OWN) or "/" not in path:
        return call(path)
    folder, _, name = path.rstrip("/").rpartition("/")
    fd = reached(folder)
    try:
        return call(f"{OWN}{fd}/{name or '.'}")
    except OSError as error:
        _rename(error, path, fd)
        raise
    finally:
        os.close(fd)


def _inside(path: str, call: Callable[[str], object]) -> Any:
    """`call` of a name of the folder at `path`."""
    if path.startswith(OWN):
        return call(path)
    fd = reached(path)
    try:
        return call(f"{OWN}{fd}/.")
    except OSError as error:
        _rename(error, path, fd)
        raise
    finally:
        os.close(fd)


def _rename(error: OSError, path: str, fd: int) -> None:
    """Have an error name the path that was asked for in place of ours."""
    if isinstance(error.filename, str) and error.filename.startswith(f"{OWN}{fd}/"):
        error.filename = path


def reached(folder: str) -> int:
    """A descriptor of the folder at an absolute path (O_PATH). Raises OSError, UntrustedPath."""
    rest, links = folder.split("/")[::-1], 0
    leaders: set[int] = set()  # who could put another link there, of each that we follow
    landing = 0  # how many parts are left where these links end
    fd = os.open("/", _PART)
    try:
        while rest or leaders:
            if leaders and len(rest) <= landing:
                if leaders != {os.fstat(fd).st_uid}:
                    raise _astray(folder, leaders)
                leaders = set()
                continue
            name = rest.pop()
            if name in ("", "."):
                continue
            below = os.open(name, _PART, dir_fd=fd)
            try:
                found = os.fstat(below)
                if stat.S_ISLNK(found.st_mode):
                    links += 1
                    if links > LINKS:
                        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), folder)
                    landing = landing if leaders else len(rest)
                    leaders |= _leaders(os.fstat(fd), found)
                    target = os.readlink("", dir_fd=below)
                    rest += target.split("/")[::-1]
                    if target.startswith("/"):
                        fd = _instead(fd, os.open("/", _PART))
                    continue
                if not stat.S_ISDIR(found.st_mode):
                    raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), folder)
                fd, below = below, fd
            finally:
                os.close(below)
    except BaseException as error:
        os.close(fd)
        if isinstance(error, OSError) and not isinstance(error, UntrustedPath):
            error.filename = folder
        raise
    return fd


def _instead(fd: int, other: int) -> int:
    os.close(fd)
    return other


def _leaders(folder: os.stat_result, link: os.stat_result) -> set[int]:
    """Who, besides root, made this link or could put another in its place."""
    found = {folder.st_uid, link.st_uid}
    if folder.st_mode & 0o022 and not folder.st_mode & stat.S_ISVTX and link.st_uid == 0:
        found.add(ANYBODY)  # a link of root's that others may have moved here
    return found - {0, os.geteuid()}


def _astray(folder: str, leaders: set[int]) -> UntrustedPath:
    who = " and ".join(
        "anybody" if uid == ANYBODY else user_name(uid) or str(uid) for uid in sorted(leaders)
    )
    return UntrustedPath(
        errno.EXDEV,
        f"a symbolic link on its path, which {who} can change, leads to a folder of another user: "
        "root does not follow it. Name the folder that it leads to",
        folder,
    )


# ---- when it is needed


def is_due(path: str, inside: bool) -> bool:
    """Whether the calls of a lock at `path` are to be anchored, and can be.

    `inside`: the lock is a folder, whose entries are looked up by its name.
    """
    return is_led_by_others(path, inside) and os.access(OWN, os.X_OK)


def is_led_by_others(path: str, inside: bool) -> bool:
    """Whether anybody but root could swap the folder of `path`; `inside`: or what stands there."""
    folder = path[: path.rfind("/")]
    if _roots_until.get(folder, 0.0) > clock.now() or sys.platform != "linux":
        return False
    loose = _loose_at(folder)
    if loose == NEVER:
        _remember(folder)
    if loose in (NEVER, STICKY) or (loose == HERE and not inside):
        return False
    try:
        return bool(rights.strangers(f"{folder}/." if inside else folder))
    except OSError as error:
        pass_up(error)
        return True


NEVER, STICKY, HERE, ABOVE = range(4)  # where others may write
REMEMBERED, LOCKED_IN = 1.0, 256  # seconds for which a folder of root's is believed; how many
_roots_until: dict[str, float] = {}  # folder -> when it is looked at again


def _remember(folder: str) -> None:
    if len(_roots_until) >= LOCKED_IN:
        _roots_until.clear()
    _roots_until[folder] = clock.now() + REMEMBERED


def _loose_at(folder: str) -> int:
    """A cheap look. NEVER: all folders are root's, and nobody else may write in any of them.

    STICKY: nor may others rename any; but where root removes one, others may make it.
    """
    at, mode, where = 0, 0, NEVER
    try:
        while at >= 0:
            if mode & 0o022:
                where = STICKY
                if not mode & stat.S_ISVTX:
                    return ABOVE
            at = folder.find("/", at + 1)
            found = os.lstat(folder if at < 0 else folder[:at])
            mode = found.st_mode
            if found.st_uid != 0 or not stat.S_ISDIR(mode):
                return ABOVE
    except OSError as error:
        pass_up(error)
        return ABOVE
    return HERE if mode & 0o022 else where
