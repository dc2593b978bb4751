"""What excludes on a folder's file system, tried out: flock, link, O_EXCL, rename, the clock.

Promise: `probe(folder)` says `refuted` only for what was seen to fail here, and `proven` only where
one kernel alone can mount the file system. One host cannot prove anything of a shared one: what
works between two of its processes may fail between two machines, so there the verdict is `unproven`
whatever was seen. Everything tried is tried through two descriptors and by two processes, in a
folder of its own that is removed again.
"""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys

from ..core.errors import UnsafeGround
from ..core.value import value
from ..runtime import fork
from .files import CREATE, HOST, LOCK_EX, LOCK_NB, READ_ONLY, READ_WRITE, Files
from .ground import MountInfo, ground_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PROVEN, UNPROVEN, REFUTED, NOT_TRIED = "proven", "unproven", "refuted", "not tried"
WHAT = ("flock", "link", "exclusive create", "rename", "clock")
SKEW = 2.0  # seconds between our clock and the file server's that are worth a word

OTHER = """
import fcntl, os, sys
kind, path = sys.argv[1:]
try:
    if kind == "flock":
        fcntl.flock(os.open(path, os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)
    elif kind == "exclusive create":
        os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR)
    else:
        os.link(path + ".other", path)
except OSError:
    sys.exit(3)
"""


@value
class ProbeResult:
    """One thing that was tried: `verdict` and `why` in words."""

    what: str
    verdict: str
    why: str


@value
class GroundSurvey:
    """What is known of the ground of a folder: `place`, and a finding for each of WHAT."""

    place: MountInfo
    findings: tuple[ProbeResult, ...]

    def verdict(self, what: str) -> str:
        return next((found.verdict for found in self.findings if found.what == what), NOT_TRIED)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of lock that exclude here, as far as can be said; the best first."""
        words = []
        if self.verdict("flock") == PROVEN:
            words.append("kernel")
        if self.verdict("link") != REFUTED:
            words += ["generation", "link"]
        return tuple(words)


_surveys: dict[int, tuple[MountInfo, GroundSurvey]] = {}


def probe(folder: str, *, files: Files = HOST, anew: bool = False) -> GroundSurvey:
    """The survey of a folder that may be written to. Made once per mount and process.

    Raises OSError where nothing can be made in it.
    """
    place = ground_of(folder)
    device = os.stat(folder).st_dev
    known = _surveys.get(device)
    if known is not None and known[0] == place and not anew:
        return known[1]
    with inner_folder(folder, "probe", files) as inner:
        tried = (_flock, _link, _create, _rename, _clock)
        found = tuple(
            _one(try_it, what, files, inner, place)
            for what, try_it in zip(WHAT, tried, strict=True)
        )
    survey = GroundSurvey(place, found)
    _surveys[device] = place, survey
    return survey


@contextlib.contextmanager
def inner_folder(folder: str, what: str, files: Files = HOST) -> Iterator[str]:
    """A folder of our own in `folder`, by a path that leads to it; gone in the end with all in it.

    L13  What is made and removed there is ours, although others may rename the folder, or put
    another in its place: both are open, and their paths lead through these descriptors. Raises
    OSError.
    """
    opened: list[int] = []
    try:
        outer = files.anchor(f"{folder.rstrip('/')}/.", opened)
        made = f"{outer}/.lifehold-{what}-{os.urandom(12).hex()}"
        files.mkdir(made, 0o700)
        try:
            inner = files.anchor(made, opened)
            if files.listdir(inner):
                raise OSError(errno.ESTALE, "another has put something into our folder")
            try:
                yield inner
            finally:
                for name in files.listdir(inner):
                    try:
                        files.unlink(f"{inner}/{name}")
                    except (IsADirectoryError, PermissionError):
                        files.rmdir(f"{inner}/{name}")
        finally:
            try:
                files.rmdir(made)
            except (FileNotFoundError, NotADirectoryError):
                pass  # taken away: an empty folder of ours is somewhere else
    finally:
        for fd in opened:
            files.close(fd)


def other_process(script: str, kind: str, path: str) -> int:
    """The status of another Python that runs `script`. It sees nothing of our folder's modules."""
    through = path.split("/")
    fds = (int(through[4]),) if path.startswith("/proc/self/fd/") else ()
    command = [sys.executable, "-I", "-c", script, kind, path]
    done = subprocess.run(  # noqa: S603
        command, check=False, timeout=30, capture_output=True, cwd="/", pass_fds=fds
    )
    return done.returncode


def refuse(path: str, kind: str) -> None:
    """Raises UnsafeGround where link(2), by which `kind` is taken, was seen to fail.

    For FUSE and types that we do not know: there anything may be. Where nothing can be made, the
    lock itself will say so.
    """
    folder = os.path.dirname(path)
    try:
        survey = probe(folder)
    except OSError:
        return
    found = next(each for each in survey.findings if each.what == "link")
    if found.verdict == REFUTED:
        raise UnsafeGround(
            f"{path!r} lies on {survey.place.kind or 'an unknown file system'}, where link(2), by "
            f"which a {kind!r} lock is taken, does not exclude: {found.why}. Lock a file on "
            "another file system",
            name=path,
        )


@fork.in_child
def _forget() -> None:
    """L9  What was tried on a file system is tried anew by a child that asks."""
    _surveys.clear()


def _one(
    try_it: Callable[[Files, str], str], what: str, files: Files, inner: str, place: MountInfo
) -> ProbeResult:
    try:
        fault = try_it(files, inner)
    except OSError as error:
        fault = f"refused: {error.strerror}"
    if fault:
        return ProbeResult(what, REFUTED, fault)
    if place.one_kernel:
        return ProbeResult(what, PROVEN, f"tried here, and one kernel alone can mount {place.kind}")
    kind = place.kind or "an unknown file system"
    return ProbeResult(
        what, UNPROVEN, f"no fault was seen from this host; {kind} may be used by others"
    )


def _new(files: Files, path: str) -> int:
    fd: int = files.open(path, READ_WRITE | CREATE, 0o600)
    return fd


def _other_gets(kind: str, path: str) -> bool:
    """Whether another process gets what this one has."""
    return other_process(OTHER, kind, path) == 0


def _flock(files: Files, inner: str) -> str:
    path = f"{inner}/flock"
    one = _new(files, path)
    two: int = files.open(path, READ_WRITE)
    try:
        files.flock(one, LOCK_EX | LOCK_NB)
        try:
            files.flock(two, LOCK_EX | LOCK_NB)
            return "two descriptors had it at once"
        except BlockingIOError:
            pass
        return "two processes had it at once" if _other_gets("flock", path) else ""
    finally:
        files.close(two)
        files.close(one)


def _link(files: Files, inner: str) -> str:
    path = f"{inner}/link"
    for name in (".mine", ".other"):
        files.close(_new(files, path + name))
    said = ""
    try:
        files.link(path + ".mine", path)
    except OSError as error:
        said = error.strerror or "refused"
    try:
        fd = files.open(path, READ_ONLY)
    except FileNotFoundError:
        return f"it made nothing ({said or 'without an error'})"
    mine, made = files.lstat(path + ".mine"), files.fstat(fd)
    files.close(fd)
    if (mine.st_ino, mine.st_dev) != (made.st_ino, made.st_dev):
        return "the link leads to another inode number than its file"
    try:
        files.link(path + ".other", path)
        return "a name that exists was linked again"
    except OSError:
        pass
    return "another process linked a name that exists" if _other_gets("link", path) else ""


def _create(files: Files, inner: str) -> str:
    path = f"{inner}/create"
    files.close(_new(files, path))
    try:
        files.close(_new(files, path))
        return "a name that exists was created again"
    except FileExistsError:
        pass
    return "another process created it again" if _other_gets("exclusive create", path) else ""


def _rename(files: Files, inner: str) -> str:
    """A folder over one that is not empty must be refused."""
    one, two = f"{inner}/one", f"{inner}/two"
    for name in (one, two):
        files.mkdir(name)
        files.close(_new(files, f"{name}/entry"))
    try:
        files.rename(one, two)
        fault = "a folder was renamed over one that was not empty"
    except OSError:
        fault = ""
    for name in (one, two):
        for remove, path in ((files.unlink, f"{name}/entry"), (files.rmdir, name)):
            try:
                remove(path)
            except FileNotFoundError:
                continue
    return fault


def _clock(files: Files, inner: str) -> str:
    """The times of files are those of the file server's clock. No lock of ours is decided by it."""
    path = f"{inner}/clock"
    before = files.clock_ns() / 1e9
    fd = _new(files, path)
    try:
        files.pwrite(fd, b"x", 0)
        found: float = files.fstat(fd).st_mtime
    finally:
        files.close(fd)
    skew = found - min(max(found, before), files.clock_ns() / 1e9)
    return f"the file server's clock is {skew:+.0f} s off ours" if abs(skew) > SKEW else ""
