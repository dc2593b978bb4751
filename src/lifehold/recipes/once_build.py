"""`build_once`: a folder that is built by one, and is there as a whole for all.

Promise: whoever comes back from `build_once(path, build)` finds at `path` all that one `build`
made; a crash at any instant leaves nothing there, and the next one builds. Rule: `once` decides who
builds and tells the others; recipes/once_build.py puts the folder in its place.
"""

from __future__ import annotations

import errno
import os
import re
import stat

from ..core.errors import InvalidArgument, LeaseLost, SystemRefused
from ..core.grant import Single
from ..local.files import FOLDER, LOCK_EX, LOCK_NB, LOCK_UN, READ_ONLY
from ..local.handles import files_for
from ..local.refusals import make_folders, no_flock, refused
from ..lock import lock_path
from ..runtime import fork, notify
from .once import OnceFailed, once, refuse_awaitable, refuse_function, refuse_strange

TYPE_CHECKING = False
if TYPE_CHECKING:
    import shutil
    from collections.abc import Callable
    from typing import Any

    from ..local.files import Files
    from ..runtime import rights
else:
    shutil = fork.later("shutil", globals())
    rights = fork.later("lifehold.runtime.rights", globals())

LOCK = ".lock"  # behind the path of the folder


def build_once(
    path: str | os.PathLike[str], build: Callable[[str], object], *, flush: bool = True,
    keep_failure: float | None = 0.0, **options: object,
) -> str:  # fmt: skip
    """The absolute path of a folder that `build` has made, in this process or in another.

    `build(staging)`: fills an empty folder beside `path`, which is then renamed to `path`. A folder
    with something in it that is there already is the answer, at once and without a lock, whoever
    made it. `flush`: have all of it on the disk before it can be seen, so that power loss leaves no
    half of it.
    `keep_failure`: seconds for which a failure counts for those who did not wait, by default 0.
    `options`: of the `Lock`, which is the file `path` + ".lock".

    Raises OnceFailed when `build` raised an Exception, here or there; LeaseLost when our lock was
    lost and nothing is there; what `Lock.acquire` raises. Not promised: that `build` never runs
    twice; of two results the first stays.
    """
    refuse_function(build, coroutine=False, called="build")
    refuse_strange("build_once()", options)
    if not hasattr(os, "fwalk"):
        raise SystemRefused("build_once needs Unix, where a folder can be renamed over another")
    target = target_of(path)
    site = site_of(target)
    if site.published():
        return target
    make_folders(site.files, target)

    def run() -> str:
        staging = begin(site)
        pid = os.getpid()
        try:
            refuse_awaitable(build, build(staging.path), "build")
            if os.getpid() == pid:  # L9  a child that came out of `build` has built nothing
                put_in_place(site, staging, flush)
        finally:
            staging.end(pid)
        return target

    there = {"unless": lambda: site.published() and target, "keep_failure": keep_failure}
    try:
        once(target + LOCK, run, **there, **options)
    except (LeaseLost, OnceFailed) as error:
        if overtaken(site, error):
            return target  # by whoever took over, or by us before
        raise
    return target  # as we call it: who built it may see it under another path


def overtaken(site: BuildFolder, error: LeaseLost | OnceFailed) -> bool:
    """Whether another's folder is the answer. Raises LeaseLost when our lock and folder are lost.

    OnceFailed came of `once`, which makes it of what the function raises and keeps why it could not
    be told to the others.
    """
    lost = error.untold if isinstance(error, OnceFailed) else error
    gone = site.gone is not None and error.__cause__ is site.gone
    if (gone or isinstance(lost, LeaseLost)) and site.published():
        return True
    if gone and isinstance(lost, LeaseLost):
        raise lost from site.gone
    return False


def target_of(path: object) -> str:
    given = os.fspath(path) if isinstance(path, os.PathLike) else path
    if isinstance(given, str) and os.path.basename(given.rstrip("/")) in ("", ".", ".."):
        raise InvalidArgument(f"path must name the folder to be built, not {given!r}")
    if not isinstance(given, str):
        return lock_path(given)  # says what it may be
    return lock_path(given.rstrip("/") + LOCK).removesuffix(LOCK)


def site_of(target: str) -> BuildFolder:
    files = files_for(target)
    return BuildFolder(files, target, lambda path: remove(files, path))


def begin(site: BuildFolder) -> Staging:
    """A folder to build in, when what killed builders left is gone. With the lock in hand."""
    nonce = os.urandom(8).hex()
    site.clear(nonce)
    staging = site.begin(nonce)
    try:
        staging.mark()
    except BaseException:
        staging.close()
        raise
    return staging


def put_in_place(site: BuildFolder, staging: Staging, flush: bool) -> None:
    fd = staging.look()
    if fd is not None:  # else it was cleared away: publish() tells
        try:
            if not os.listdir(fd):
                raise InvalidArgument(
                    f"build left nothing in the folder that becomes {site.target!r}: an empty "
                    "folder cannot be told from one that is yet to be built",
                    name=site.target,
                )
            if flush:
                _flush(fd)
        finally:
            os.close(fd)
    staging.unmark()
    if staging.publish() and flush:
        _flush_one(site)


def _flush(folder: int) -> None:
    """All files and folders in there, to the disk. What we may not open is left to sync(2).

    No FIFO is waited for that comes in the place of a file meanwhile.
    """
    hidden: list[OSError] = []

    def pass_over(error: OSError) -> None:
        if error.errno not in CLOSED:
            raise error
        hidden.append(error)

    for _, _, names, fd in os.fwalk(".", dir_fd=folder, onerror=pass_over):
        for name in names:
            if stat.S_ISREG(os.lstat(name, dir_fd=fd).st_mode):
                try:
                    file = os.open(name, READ_ONLY, dir_fd=fd)
                except OSError as error:
                    pass_over(error)
                    continue
                try:
                    if stat.S_ISREG(os.fstat(file).st_mode):
                        os.fsync(file)
                finally:
                    os.close(file)
        os.fsync(fd)
    if hidden:
        os.sync()


def _flush_one(site: BuildFolder) -> None:
    try:
        fd = site.files.open(site.folder, FOLDER)
    except PermissionError:
        os.sync()
        return
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


# ------------------------------------------------------------------------------------------------
# The removal of a folder with all that is in it.
#
# Promise (L13): what another user has renamed never makes root remove what that user could not. A
# name proves nothing, so root goes by the folder that it has open. With root's rights it removes
# - what nobody else could have put there (rights.py);
# - the folder that this build fills;
# - a folder of root's that bears the mark of a build: an attribute that nobody else can give it. It
#   is taken away before the folder is put in its place, so none that was ever seen there bears it.
# All else is removed with the rights of the one user who could have put it there. What cannot be
# removed stays, and is told once.


MARK = "user.lifehold.building"  # its value: the name of the target
CLOSED = frozenset(  # of what may not be opened, or is another thing than it was a moment ago
    {errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO}
)
_told: set[tuple[str, int, int]] = set()  # where, and which folders were said to stay
MOST_TOLD = 256


def remove(files: Files, path: str, own: int = -1) -> None:
    """A folder with all that is in it, also where a build took away the right to write.

    `own`: a descriptor of the folder that we have built in.
    """
    try:
        fd = files.open(path, READ_ONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return
    except OSError as error:
        _tell_it_stays(files, path, error.strerror)
        return
    why: object = ""
    try:
        actor = None if _is_of_a_build(files, fd, path, own) else _actor(path, fd)
        if actor is not None:
            why = f"with the rights of {actor.name}, who could have put it there"
        rmtree = shutil.rmtree  # loaded: that user may not be able to read it
        rights.act(actor, lambda: _empty(files, path, fd, rmtree))
    except (OSError, SystemRefused, RecursionError) as error:
        why = why or error
    finally:
        files.close(fd)
    _tell_it_stays(files, path, why)


def could_be_led(path: str) -> bool:
    """Whether we are root, and others could put something else there."""
    try:
        return os.geteuid() == 0 and bool(rights.strangers(path))
    except OSError:
        return True


def _actor(path: str, fd: int) -> Any:
    if not could_be_led(path):
        return None
    return rights.actor_for(path, os.fstat(fd))


def _is_of_a_build(files: Files, fd: int, path: str, own: int) -> bool:
    """Whether it is the folder that we fill, or one that a killed builder of root's filled."""
    found = os.fstat(fd)
    if own >= 0 and os.path.samestat(found, os.fstat(own)):
        return True
    if os.geteuid() != 0 or found.st_uid != 0 or found.st_mode & 0o022:
        return False
    try:
        named = os.fsdecode(os.getxattr(fd, MARK))
        files.flock(fd, LOCK_EX | LOCK_NB)  # its builder lives: it was renamed by others
        files.flock(fd, LOCK_UN)
    except (OSError, AttributeError):
        return False
    return bool(made_as(os.path.basename(path), f".{named}."))


def _open_up(fd: int) -> None:
    try:
        os.fchmod(fd, 0o700)
    except OSError:
        return  # another user's


def _empty(files: Files, path: str, fd: int, rmtree: Callable[..., object]) -> None:
    _open_up(fd)  # else that user may not even look at it
    for _, _, _, each in os.fwalk(".", dir_fd=fd):
        _open_up(each)
    for name in os.listdir(fd):
        try:
            os.unlink(name, dir_fd=fd)
        except OSError:
            rmtree(name, ignore_errors=True, dir_fd=fd)
    if os.path.samestat(files.lstat(path), os.fstat(fd)):
        files.rmdir(path)


def _tell_it_stays(files: Files, path: str, why: object) -> None:
    """One warning for each folder that could not be removed; the next build tries again."""
    try:
        found = files.lstat(path)
    except OSError:
        return
    which = (os.path.dirname(path), found.st_dev, found.st_ino)
    if which in _told:
        return
    if len(_told) >= MOST_TOLD:
        _told.clear()
    _told.add(which)
    because = f" ({why})" if why else ""
    text = f"{path!r} has the name of a build's leftover, and could not be removed{because}: "
    text += "look at what is in it, and remove it by hand"
    notify.unharmed(lambda: notify.warn(text, {"path": path}))


# ------------------------------------------------------------------------------------------------
# Where a folder is built and from where it is put in its place: whole, or not at all.
#
# Promise: at `target` there is nothing, or all that one build made. How it could fail, and what
# keeps
# it, on any file system:
# - Killed while building: it builds in a folder beside the target, which is renamed when it is done
#   and flushed. rename(2) puts a folder in place of nothing or of an empty one and of no other.
# - What a killed builder left is removed while another still writes it: whoever removes holds the
#   lock, so the builder is dead or has lost its lock; and flock(2) of the folder itself must be
#   free, which the builder holds, and whoever it forked.
# - A builder that lost its lock without knowing puts half of its folder in place, the other half
#   being removed just then: a folder is renamed aside before it is removed, so either the builder's
#   rename comes first, with all of it there, or it finds no such folder.


BUILDING, REMOVED = "building", "removed"
MADE = re.compile(rf"(?:({BUILDING})-[0-9a-f]{{16}}|{REMOVED}-[0-9a-f]{{16}}-[0-9]+)", re.ASCII)


def made_as(name: str, front: str) -> str:
    """What we have called by this name, which begins with `front`; "" for what is not ours."""
    found = MADE.fullmatch(name.removeprefix(front)) if name.startswith(front) else None
    return "" if found is None else str(found[1] or REMOVED)


class BuildFolder:
    """The surroundings of one target. `remove`: a folder with all that is in it."""

    __slots__ = ("files", "folder", "gone", "name", "remove", "target")

    def __init__(self, files: Files, target: str, remove: Callable[[str], None]) -> None:
        self.files, self.target, self.remove = files, target, remove
        self.folder, self.name = os.path.split(target)
        self.gone: LeaseLost | None = None  # what `lost` has made

    def aside(self, what: str, nonce: str) -> str:
        """A folder beside the target. `nonce`: of a form that MADE knows again."""
        return f"{self.folder.rstrip('/')}/.{self.name}.{what}-{nonce}"

    def published(self) -> bool:
        """Whether the target is there, with something in it."""
        try:
            found = bool(self.files.listdir(self.target))
        except FileNotFoundError:
            found = False
        except NotADirectoryError:
            raise InvalidArgument(
                f"{self.target!r} is a file, and a folder is to be built there: name another path",
                name=self.target,
            ) from None
        except OSError as error:
            raise refused(self.target, error) from error
        if not found:
            self._refuse_link()
        return found

    def _refuse_link(self) -> None:
        """No folder can be renamed over a link: told before anything is built."""
        try:
            mode = self.files.lstat(self.target).st_mode
        except OSError:
            return  # there is nothing
        if stat.S_ISLNK(mode):
            raise InvalidArgument(
                f"{self.target!r} is a link, to nothing or to an empty folder, and no folder can "
                "take its place: name the folder that it leads to",
                name=self.target,
            )

    def clear(self, nonce: str) -> None:
        """Remove what killed builders left, by the exact form of its name. With the lock in hand.

        A name of another form is a folder of the user, or of a target whose name begins like ours.
        """
        front = f".{self.name}."
        try:
            names = self.files.listdir(self.folder)
        except OSError as error:
            raise refused(self.folder, error) from error
        for number, name in enumerate(sorted(names)):
            made = made_as(name, front)
            path = f"{self.folder.rstrip('/')}/{name}"
            if made == REMOVED:
                self.remove(path)  # no builder knows it by this name
            elif made == BUILDING and self._abandoned(path):
                gone = self.aside(REMOVED, f"{nonce}-{number}")
                try:
                    self.files.rename(path, gone)
                except FileNotFoundError:
                    continue  # it is in its place
                except OSError as error:  # another user's, in a sticky folder
                    _tell_it_stays(self.files, path, error.strerror)
                    continue
                self.remove(gone)

    def _abandoned(self, path: str) -> bool:
        """L2  Whether nobody who builds there lives, on one kernel. Else the lock has said so."""
        try:
            fd = self.files.open(path, READ_ONLY)
        except OSError:
            return False  # not ours to judge
        try:
            self.files.flock(fd, LOCK_EX | LOCK_NB)
            self.files.flock(fd, LOCK_UN)  # L9  not by close alone: a child may have a copy
        except BlockingIOError:
            return False
        except OSError as error:
            return error.errno in no_flock
        finally:
            self.files.close(fd)
        return True

    def begin(self, nonce: str) -> Staging:
        """An empty folder to build in, which nobody removes while we live."""
        path = self.aside(BUILDING, nonce)
        try:
            self.files.mkdir(path)
        except OSError as error:
            raise refused(path, error, making=True) from error
        staging = Staging(self, path)
        try:
            staging.open()
        except FileNotFoundError:
            raise self.lost() from None
        except OSError as error:
            raise refused(path, error) from error
        if not staging.bear_witness():
            staging.close()
            raise self.lost()  # somebody removes it: our lock is not ours
        return staging

    def lost(self) -> LeaseLost:
        """The folder that we build in was removed, as a later builder does it."""
        reason = "the folder it was built in is not there any more"
        self.gone = LeaseLost(f"{self.target!r}: {reason}", name=self.target, reason=reason)
        return self.gone


class Staging(Single):
    """A folder that is being built. `path`: where."""

    __slots__ = ("_fd", "guarded", "path", "site")

    def __init__(self, site: BuildFolder, path: str) -> None:
        self.site, self.path, self._fd = site, path, -1
        self.guarded = False  # whether we are root, and others could put another in its place

    def open(self) -> None:
        """Hold it open, so that it can bear witness. Raises OSError."""
        self._fd = fork.descriptor(self.site.files.open, self.path, READ_ONLY)

    def bear_witness(self) -> bool:
        """Lock it while we build. False: somebody else has, to remove it."""
        try:
            self.site.files.flock(self._fd, LOCK_EX | LOCK_NB)
        except OSError as error:
            return error.errno in no_flock
        return True

    def mark(self) -> None:
        """Have the next builder know it, where its name proves nothing. Raises LeaseLost."""
        self.guarded = could_be_led(self.path)
        if not self.guarded:
            return
        if os.listdir(self._fd):
            raise self.site.lost()  # another one was put in its place
        try:
            os.setxattr(self._fd, MARK, os.fsencode(self.site.name))
        except (OSError, AttributeError):
            pass  # no such attributes here: left by a crash, it stays and is told

    def unmark(self) -> None:
        """From now on nobody takes it for a leftover."""
        if not self.guarded:
            return
        try:
            os.removexattr(self._fd, MARK)
        except AttributeError:
            return
        except OSError as error:
            if error.errno not in (errno.ENODATA, errno.ENOTSUP, errno.EOPNOTSUPP):
                raise  # else it had none

    def look(self) -> int | None:
        """A descriptor of the folder that is to be put in place; None when there is none.

        `build` may have put another in its place. Raises LeaseLost where others could have.
        """
        try:
            fd: int = self.site.files.open(self.path, READ_ONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            return None
        if self.guarded and not os.path.samestat(os.fstat(fd), os.fstat(self._fd)):
            os.close(fd)
            raise self.site.lost()
        return fd

    def end(self, pid: int) -> None:
        """Remove it when it is not in its place, unless we are a child of the builder `pid`."""
        try:
            if os.getpid() == pid:
                remove(self.site.files, self.path, self._fd)
        finally:
            self.close()

    def publish(self) -> bool:
        """Put it in its place; False when another build is there by now. Raises LeaseLost."""
        files, target = self.site.files, self.site.target
        try:
            files.rename(self.path, target)
        except FileNotFoundError:
            if self._is_there():  # over NFS: done, and the reply was lost
                return True
            raise self.site.lost() from None
        except OSError as error:
            if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
                return False
            if error.errno == errno.EBUSY:
                raise SystemRefused(
                    f"{target!r} is a mount point, which nothing can be renamed over: build in a "
                    "folder inside of it",
                    name=target,
                    errno=error.errno,
                    filename=target,
                ) from error
            raise refused(target, error) from error
        return True

    def _is_there(self) -> bool:
        files = self.site.files
        try:
            found = files.lstat(self.site.target)
        except FileNotFoundError:
            return False
        mine = files.fstat(self._fd)
        return bool(found.st_ino == mine.st_ino)

    def close(self) -> None:
        """Let go of the folder, and of its witness."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self.site.files.close(fd)

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:  # a signal came between two lines
            self.close()
