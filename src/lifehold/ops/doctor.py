"""Whether a folder is safe for locks: the ground probe, explained, with a kind to use.

Promise: `unsafe` only for what was seen to fail, `safe` only where one kernel alone can mount the
file system, or a second host was asked and excluded both ways; else `unproven`. L1  A kind that
stands on a kernel lock is never safe where others may mount. Whatever was tried is removed again.
"""

from __future__ import annotations

import errno
import os
import select
import stat
import subprocess

from .. import registry
from ..core import explain
from ..core.errors import InvalidArgument, SystemRefused
from ..core.mask import printable
from ..core.value import value
from ..local import record
from ..local.files import CREATE, HOST, LOCK_EX, LOCK_NB, READ_WRITE
from ..local.ground import MountInfo, mount_of
from ..local.ground_probe import (
    NOT_TRIED,
    PROVEN,
    REFUTED,
    UNPROVEN,
    ProbeResult,
    inner_folder,
    other_process,
    probe,
)
from ..local.kinds import KINDS
from ..runtime import process, rights, watch_table
from .who import FolderMissing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

SAFE, UNSURE, UNSAFE = "safe", "unproven", "unsafe"
LEASE = (
    "a kernel lock is the lease of the file server of {} there: it may drop that of a machine that "
    "is cut off, which is not told"
)


@value
class KindVerdict:
    """One kind of lock here: `verdict` is SAFE, UNSURE or UNSAFE."""

    name: str
    verdict: str
    why: str


@value
class FolderReport:
    """What is known of a folder. `advice`: what to do; `kind`: the one to use, "" for none."""

    folder: str
    place: MountInfo
    verdict: str
    findings: tuple[ProbeResult, ...]
    kinds: tuple[KindVerdict, ...]
    kind: str
    advice: str
    peer: str = ""


def examine(folder: str, *, peer: str = "") -> FolderReport:
    """The report. `peer`: `ssh:HOST` runs the other half there, in the folder of the same path.

    Raises FolderMissing, InvalidArgument.
    """
    folder = os.path.abspath(folder)
    if not os.path.isdir(folder):
        raise FolderMissing(f"'{printable(folder)}' is not a folder")
    place, options = mount_of(folder)
    looked = looked_at(folder, options)
    try:
        survey = probe(folder, anew=True)
        found = [*survey.findings, *tried(folder, place)]
        if peer:
            found = joined(found, ask(folder, peer))
    except SystemRefused:  # of the peer
        raise
    except OSError as error:
        found = [ProbeResult("writing", REFUTED, f"nothing can be made here: {error.strerror}")]
    kinds = tuple(_kind(name, found, place) for name in KINDS)
    automatic = registry.choose(f"{folder.rstrip('/')}/lock", None)[0]
    best = _best(kinds, "kernel" if place.one_kernel else registry.ON_A_FILE_SERVER)
    verdict = best.verdict if best is not None else UNSAFE
    rights = next(each for each in looked if each.what == "rights")
    if rights.verdict == REFUTED:
        verdict = UNSAFE
    advice = _advice(best, automatic, peer, found, rights)
    return FolderReport(
        folder, place, verdict, (*found, *looked), kinds, best.name if best else "", advice, peer
    )


def _best(kinds: tuple[KindVerdict, ...], first: str) -> KindVerdict | None:
    """The kind to use: `first` where nothing speaks against it."""
    able = [each for each in kinds if each.verdict != UNSAFE]
    able.sort(key=lambda each: (each.name != first, each.verdict != SAFE))
    return able[0] if able else None


def _kind(name: str, found: list[ProbeResult], place: MountInfo) -> KindVerdict:
    needs = KINDS[name].needs
    verdicts = {each.what: each for each in found}
    missing = [each for each in needs if each not in verdicts]
    if missing:
        return KindVerdict(name, UNSAFE, "nothing can be made here")
    worst = max((verdicts[each] for each in needs), key=lambda each: ORDER.index(each.verdict))
    if worst.verdict == PROVEN and "flock" in needs and not place.one_kernel:
        return KindVerdict(name, UNSURE, LEASE.format(place.kind or "an unknown file system"))  # L1
    if worst.verdict == PROVEN:
        return KindVerdict(name, SAFE, KINDS[name].merit)
    if worst.verdict == UNPROVEN and name == "kernel":
        return KindVerdict(name, UNSURE, LEASE.format(place.kind or "an unknown file system"))
    if worst.verdict == UNPROVEN:
        return KindVerdict(
            name, UNSURE, f"{worst.what}: {worst.why}; only a ttl frees it after a crash"
        )
    return KindVerdict(name, UNSAFE, f"{worst.what}: {worst.why}")


ORDER = (PROVEN, "good", "warning", "not tried", UNPROVEN, REFUTED)


def _advice(
    best: KindVerdict | None,
    automatic: str,
    peer: str,
    found: list[ProbeResult],
    rights: ProbeResult,
) -> str:
    if best is None:
        return "no lock can stand here: use a folder on another file system, or a server"
    text = f"use kind='{best.name}'"
    text += ", which is what kind='auto' does" if best.name == automatic else ""
    if best.name != "kernel" and not all(each.verdict == PROVEN for each in found):
        text += "; give it a ttl, and check the fencing token where the data is"
    apart = next((each.why for each in found if each.what == PEER), "")
    if apart:
        text += f". Nothing was tried between two hosts: {apart}"
    elif best.verdict == UNSURE and not peer:
        text += ". No fault was seen, but from one host: ask a second one with --peer ssh:HOST"
    if rights.verdict == REFUTED:
        return f"first: {rights.why.partition(': ')[2]}. Then {text}"
    return text


def refuse_peer(peer: str) -> None:
    """Raises InvalidArgument for what is no peer."""
    if peer and not (peer.startswith("ssh:") and len(peer) > 4 and peer[4] != "-"):
        raise InvalidArgument(f"--peer is ssh:HOST, with HOST as ssh(1) takes it, not {peer!r}")


# ------------------------------------------------------------------------------------------------
# The other half of `doctor`, on a second host: whether locks exclude both ways.
#
# Promise: a kind is `proven` only when each host was refused while the other held the lock, and got
# it when the other had let go. The peer needs Python 3 and ssh, and no lifehold. The script is sent
# as the command; a host name never becomes an option of ssh.


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


def ask(folder: str, peer: str) -> list[ProbeResult]:
    """What was found for each of BOTH. Raises SystemRefused when the peer cannot be asked."""
    host = peer.removeprefix("ssh:")
    quoted = "'" + SCRIPT.replace("'", "'\"'\"'") + "'"
    command = [
        "ssh",
        "-o",
        "BatchMode=yes",
        "-o",
        f"ConnectTimeout={WAIT}",
        "--",
        host,
        f"exec python3 -I -c {quoted}",
    ]
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
            return [ProbeResult(PEER, NOT_TRIED, why)]
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


def _one(what: str, path: str, host: str, other: subprocess.Popen[str]) -> ProbeResult:
    """Held here, tried there; let go here, taken there, tried here."""
    try:
        release = TAKE[what](path)
    except OSError as error:
        return ProbeResult(what, REFUTED, f"refused: {error.strerror}")
    try:
        if _told(other, what, path):
            return ProbeResult(what, REFUTED, f"{host} got it while it was held here")
    finally:
        release()
    if not _told(other, what, path):
        return ProbeResult(what, UNPROVEN, f"{host} did not get it after it was free here")
    try:
        TAKE[what](path)()
    except OSError:
        _told(other, "release", path)
        return ProbeResult(what, PROVEN, f"tried between this host and {host}, both ways")
    return ProbeResult(what, REFUTED, f"we got it while {host} had it")


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


def joined(found: list[ProbeResult], asked: list[ProbeResult]) -> list[ProbeResult]:
    """What was found by both hosts counts for what was found by one, unless that was a fault."""
    by_both = {each.what: each for each in asked}
    return [each if each.verdict == REFUTED else by_both.get(each.what, each) for each in found] + [
        each for each in asked if each.what == PEER
    ]


# ------------------------------------------------------------------------------------------------
# What `doctor` tries beside the ground probe: fcntl and OFD locks, mkdir, inotify, and the folder.
#
# Promise: as of the probe: `refuted` only for what was seen to fail here; everything is tried in a
# folder of its own that is removed again, and by two processes where two are needed.


PATIENCE = 2.0  # seconds for an event that a local file system tells at once
FREE, INODES = 16 << 20, 1000  # bytes and files below which a warning is due
WARN, GOOD = "warning", "good"

LOCKED = """
import fcntl, os, sys
kind, path = sys.argv[1:]
fd = os.open(path, os.O_RDWR)
lock = bytes([fcntl.F_WRLCK, 0]).ljust(32, b"\\0")
try:
    if kind == "fcntl":
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    else:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, lock)
except OSError:
    sys.exit(3)
"""


def tried(folder: str, place: MountInfo) -> list[ProbeResult]:
    """What was found in `folder`, which can be written to. Raises OSError when it cannot."""
    with inner_folder(folder, "doctor") as room:
        _write_record(room)
        tries: tuple[tuple[str, Callable[[str], str]], ...] = (
            ("fcntl", _fcntl),
            ("OFD", _ofd),
            ("mkdir", _mkdir),
            ("inotify", _inotify),
        )
        return [_one_try(what, try_it, room, place) for what, try_it in tries]


def _write_record(room: str) -> None:
    """Raises OSError where the disk is full: tmpfs makes a file there, and takes no byte of it."""
    fd = HOST.open(f"{room}/record", READ_WRITE | CREATE, 0o600)
    try:
        HOST.pwrite(fd, b"\n" * record.SIZE, 0)
        os.fsync(fd)  # where a file server is asked no sooner
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
    finally:
        HOST.close(fd)


def _one_try(what: str, try_it: Callable[[str], str], room: str, place: MountInfo) -> ProbeResult:
    try:
        fault = try_it(room)
    except OSError as error:
        fault = f"refused: {error.strerror}"
    if fault.startswith("?"):
        return ProbeResult(what, NOT_TRIED, fault[1:])
    if fault:
        return ProbeResult(what, REFUTED, fault)
    if what == "inotify" and place.far:
        return ProbeResult(
            what, UNPROVEN, "it tells of this host's changes; of other hosts' it may not"
        )
    if place.one_kernel:
        return ProbeResult(what, PROVEN, "tried here")
    return ProbeResult(what, UNPROVEN, "no fault was seen from this host alone")


def _locked(room: str, kind: str, take: Callable[[int], object]) -> str:
    path = f"{room}/{kind}"
    fd = HOST.open(path, READ_WRITE | CREATE, 0o600)
    try:
        take(fd)
        other = other_process(LOCKED, kind, path)
        return "two processes had it at once" if other == 0 else ""
    finally:
        HOST.close(fd)


def _fcntl(room: str) -> str:
    import fcntl

    return _locked(room, "fcntl", lambda fd: fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB))


def _ofd(room: str) -> str:
    import fcntl

    if not hasattr(fcntl, "F_OFD_SETLK"):
        return "?this system has no OFD locks"
    lock = bytes([fcntl.F_WRLCK, 0]).ljust(32, b"\0")
    return _locked(room, "OFD", lambda fd: fcntl.fcntl(fd, fcntl.F_OFD_SETLK, lock))


def _mkdir(room: str) -> str:
    os.mkdir(f"{room}/one")
    try:
        os.mkdir(f"{room}/one")
    except FileExistsError:
        return ""
    return "a folder that exists was made again"


def _inotify(room: str) -> str:
    """Whether a change is told, as waiters for existence locks need it."""
    try:
        watch = watch_table.Inotify()
    except OSError as error:
        return f"?no watch is to be had: {error.strerror}; waiters look now and then instead"
    try:
        watch.add(room, False)
        os.close(os.open(f"{room}/event", os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        told = select.select(watch.fds, [], [], PATIENCE)[0]
        return "" if told else "?no change is told; waiters look now and then instead"
    finally:
        watch.close()


def looked_at(folder: str, options: str) -> list[ProbeResult]:
    """The folder's rights, this process's umask, room, and how it is mounted."""
    return [_rights(folder), _umask(), _room(folder), _mount(options)]


def _rights(folder: str) -> ProbeResult:
    found = os.stat(folder)
    mode, shown = found.st_mode, f"{stat.S_IMODE(found.st_mode):04o}"
    owner, others = _strangers(folder, found.st_uid)
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        why = f"{shown}: every user can remove your lock files, and take the lock anew: chmod +t"
        return ProbeResult("rights", REFUTED, why)
    if above := _open_above(folder):
        why = f"{shown}: every user can put another folder in its place: chmod +t {above}"
        return ProbeResult("rights", REFUTED, why)
    if mode & stat.S_IWOTH:
        first = f"its owner, {owner}, can remove your files; " if owner else ""
        why = f"{first}others cannot remove your files, but can make theirs before you do"
        return ProbeResult("rights", WARN, f"{shown}, sticky: {why}")
    if mode & stat.S_IWGRP:
        why = f"{shown}: every member of its group can remove your lock files"
        return ProbeResult("rights", WARN, why)
    if owner:
        why = f"{shown}: its owner, {owner}, can remove your lock files, and take the lock anew"
        return ProbeResult("rights", WARN, why)
    if others:
        return ProbeResult("rights", WARN, f"{shown}: {others} can put another folder in its place")
    return ProbeResult("rights", GOOD, f"{shown}: only its owner adds and removes files")


def _strangers(folder: str, owner: int) -> tuple[str, str]:
    """The folder's owner, and who may put another folder in its place, in words.

    "" for root and ourselves, whom nobody has to fear.
    """
    if os.name != "posix":
        return "", ""
    try:
        found = rights.strangers(os.path.realpath(folder))
    except OSError:
        found = {rights.ANYBODY}  # it cannot be seen here
    named = [_user(uid) for uid in sorted(found - {rights.ANYBODY})]
    named += ["others"] * (rights.ANYBODY in found)
    stranger = owner not in (0, os.geteuid())
    return _user(owner) if stranger else "", " and ".join(named)


def _user(uid: int) -> str:
    return f"user {process.user_name(uid) or uid}"


def _open_above(folder: str) -> str:
    """A folder on the path to this one in which every user can rename what is there; "" for none.

    Quoted, for a command.
    """
    here, above = "", os.path.dirname(os.path.realpath(folder))
    while os.name == "posix" and here != above:
        mode = os.stat(above).st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            return explain.quote(above)
        here, above = above, os.path.dirname(above)
    return ""


def _umask() -> ProbeResult:
    known = None
    try:
        with open("/proc/self/status", encoding="utf-8", errors="replace") as file:
            known = next((line.split()[1] for line in file if line.startswith("Umask:")), None)
    except OSError:
        pass
    if known is None:
        return ProbeResult("umask", NOT_TRIED, "it cannot be read here")
    mask = int(known, 8)
    if mask & 0o022 != 0o022:
        return ProbeResult("umask", WARN, f"{known}: others may write into files that you make")
    if mask & 0o004:  # flock(2) asks for an open file, whatever it is open for
        why = f"{known}: other users can neither lock the files that you make nor read them"
        return ProbeResult("umask", WARN, f"{why}; with shared=True they can")
    why = f"{known}: other users can lock the files that you make, since they can read them"
    return ProbeResult(
        "umask", GOOD, f"{why}; with shared=True they leave a record and get a token"
    )


def _room(folder: str) -> ProbeResult:
    found = os.statvfs(folder)
    room = found.f_bavail * found.f_frsize
    shown = f"{room >> 20:,} MiB and {found.f_favail:,} files are free"
    if room < FREE or (found.f_files and found.f_favail < INODES):
        why = f"{shown}: on a full disk kernel locks still exclude, records cannot be written"
        return ProbeResult("room", WARN, why)
    return ProbeResult("room", GOOD, shown)


def _mount(options: str) -> ProbeResult:
    words = set(options.split(","))
    if "ro" in words:
        return ProbeResult(
            "mount", REFUTED, f"{options}: read-only, nothing can be locked by a file"
        )
    if "nolock" in words or any(
        word.startswith("local_lock=") and word != "local_lock=none" for word in words
    ):
        return ProbeResult("mount", REFUTED, f"{options}: locks stay on this host, others see none")
    return ProbeResult("mount", GOOD, options.replace(",", ", ") or "unknown")
