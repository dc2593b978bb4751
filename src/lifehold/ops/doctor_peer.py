"""The other half of `doctor`, on a second host: whether locks exclude both ways.

Promise: a kind is `proven` only when each host was refused while the other held the lock, and got
it when the other had let go. The peer needs Python 3 and ssh, and no lifehold. The script is sent
as the command; a host name never becomes an option of ssh.
"""

from __future__ import annotations

import errno
import os
import stat
import subprocess

from ..core.errors import SystemRefused
from ..core.mask import printable
from ..local.files import CREATE, HOST, LOCK_EX, LOCK_NB, READ_WRITE
from ..local.ground_probe import NOT_TRIED, PROVEN, REFUTED, UNPROVEN, Finding
from ..runtime import rights

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

WAIT = 30  # seconds of ssh for the connection
BOTH = ("flock", "fcntl", "link", "exclusive create", "rename")
PEER = "peer"  # what is found of the second host itself

SCRIPT = """
import fcntl, os, sys
kept = []
def flock(path):
    fd = os.open(path, os.O_RDWR); kept.append(fd)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
def posix(path):
    fd = os.open(path, os.O_RDWR); kept.append(fd)
    fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
def link(path):
    own = path + "." + str(os.getpid()); os.close(os.open(own, os.O_CREAT | os.O_RDWR, 0o600))
    try: os.link(own, path)
    finally: os.unlink(own)
def create(path): os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
def rename(path):
    own = path + "." + str(os.getpid()); os.mkdir(own); create(own + "/entry")
    try: os.rename(own, path)
    except OSError: os.unlink(own + "/entry"); os.rmdir(own); raise
def same(path): os.stat(path)
does = {"flock": flock, "fcntl": posix, "link": link, "exclusive create": create,
        "rename": rename, "same": same}
print("ready", flush=True)
for line in sys.stdin:
    what, _, path = line.rstrip("\\n").partition("\\t")
    try:
        if what == "release":
            while kept: os.close(kept.pop())
        else: does[what](path)
        print("got", flush=True)
    except OSError as error: print("refused", error.strerror, flush=True)
"""


def ask(folder: str, peer: str) -> list[Finding]:
    """What was found for each of BOTH. Raises SystemRefused when the peer cannot be asked."""
    host = peer.removeprefix("ssh:")
    quoted = "'" + SCRIPT.replace("'", "'\"'\"'") + "'"
    command = ["ssh", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={WAIT}", "--", host,
               f"exec python3 -I -c {quoted}"]  # fmt: skip
    room = f"{folder.rstrip('/')}/.lifehold-peer-{os.urandom(6).hex()}"
    os.mkdir(room, 0o777)
    if os.name == "posix" and os.geteuid() == 0 and rights.strangers(room):
        os.rmdir(room)
        raise SystemRefused(
            f"{printable(folder)!r} is not tried with a peer by root: others may swap what is made "
            "there. Run it as a user of that folder",
            errno=errno.EPERM,
        )
    other = subprocess.Popen(  # noqa: S603
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        if _said(other) != "ready":
            raise SystemRefused(f"{host!r} cannot be asked by ssh: see above", errno=0)
        if not _told(other, "same", room):
            why = (
                f"{host} does not see what is made in {folder!r} here: mount the same folder there"
            )
            return [Finding(PEER, NOT_TRIED, why)]
        return [_one(what, f"{room}/{what.replace(' ', '-')}", host, other) for what in BOTH]
    finally:
        _end(other)
        _clear(room)


def _clear(room: str) -> None:
    """What was tried in it, one folder deep. L13  No link that another put there is followed."""
    for name in os.listdir(room):
        path = f"{room}/{name}"
        if stat.S_ISDIR(os.lstat(path).st_mode):
            _clear_one(path)
        else:
            os.unlink(path)
    os.rmdir(room)


def _clear_one(folder: str) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.unlink("entry", dir_fd=fd)
    except FileNotFoundError:
        pass
    finally:
        os.close(fd)
    os.rmdir(folder)


def _end(other: subprocess.Popen[str]) -> None:
    other.terminate()
    other.wait()
    for pipe in (other.stdin, other.stdout):
        if pipe is not None:
            pipe.close()


def _said(other: subprocess.Popen[str]) -> str:
    assert other.stdout is not None
    return other.stdout.readline().strip()


def _told(other: subprocess.Popen[str], what: str, path: str) -> bool:
    """Whether the peer got it."""
    assert other.stdin is not None
    try:
        other.stdin.write(f"{what}\t{path}\n")
        other.stdin.flush()
    except BrokenPipeError as error:
        raise SystemRefused("the peer has gone", errno=error.errno) from error
    said = _said(other)
    if not said:
        raise SystemRefused("the peer has gone", errno=0)
    return said.startswith("got")


def _one(what: str, path: str, host: str, other: subprocess.Popen[str]) -> Finding:
    """Held here, tried there; let go here, taken there, tried here."""
    try:
        release = TAKE[what](path)
    except OSError as error:
        return Finding(what, REFUTED, f"refused: {error.strerror}")
    try:
        if _told(other, what, path):
            return Finding(what, REFUTED, f"{host} got it while it was held here")
    finally:
        release()
    if not _told(other, what, path):
        return Finding(what, UNPROVEN, f"{host} did not get it after it was free here")
    try:
        TAKE[what](path)()
    except OSError:
        _told(other, "release", path)
        return Finding(what, PROVEN, f"tried between this host and {host}, both ways")
    return Finding(what, REFUTED, f"we got it while {host} had it")


def _file_lock(call: Callable[[int], object]) -> Callable[[str], Callable[[], None]]:
    def take(path: str) -> Callable[[], None]:
        try:
            fd = HOST.open(path, READ_WRITE | CREATE, 0o666)
        except FileExistsError:
            fd = HOST.open(path, READ_WRITE)
        try:
            call(fd)
        except OSError:
            HOST.close(fd)
            raise
        return lambda: HOST.close(fd)

    return take


def _lockf(fd: int) -> None:
    import fcntl

    fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _name(make: Callable[[str], None]) -> Callable[[str], Callable[[], None]]:
    def take(path: str) -> Callable[[], None]:
        make(path)
        return lambda: os.unlink(path)

    return take


def _linked(path: str) -> None:
    own = f"{path}.own"
    HOST.close(HOST.open(own, READ_WRITE | CREATE, 0o600))
    try:
        HOST.link(own, path)
    finally:
        os.unlink(own)


def _folder(path: str) -> None:
    """A folder in its place, over nothing or an empty one."""
    own = f"{path}.own"
    os.mkdir(own)
    os.close(os.open(f"{own}/entry", os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
    try:
        HOST.rename(own, path)
    except OSError:
        _clear_one(own)
        raise


def _renamed(path: str) -> Callable[[], None]:
    _folder(path)
    return lambda: _clear_one(path)


TAKE: dict[str, Callable[[str], Callable[[], None]]] = {
    "flock": _file_lock(lambda fd: HOST.flock(fd, LOCK_EX | LOCK_NB)),
    "fcntl": _file_lock(_lockf),
    "rename": _renamed,
    "link": _name(_linked),
    "exclusive create": _name(lambda path: HOST.close(HOST.open(path, READ_WRITE | CREATE, 0o600))),
}


def joined(found: list[Finding], asked: list[Finding]) -> list[Finding]:
    """What was found by both hosts counts for what was found by one, unless that was a fault."""
    by_both = {each.what: each for each in asked}
    return [each if each.verdict == REFUTED else by_both.get(each.what, each) for each in found] + [
        each for each in asked if each.what == PEER
    ]
