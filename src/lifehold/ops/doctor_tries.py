"""What `doctor` tries beside the ground probe: fcntl and OFD locks, mkdir, inotify, and the folder.

Promise: as of the probe: `refuted` only for what was seen to fail here; everything is tried in a
folder of its own that is removed again, and by two processes where two are needed.
"""

from __future__ import annotations

import os
import select
import stat

from ..local.files import CREATE, HOST, READ_WRITE
from ..local.ground_probe import (
    NOT_TRIED,
    PROVEN,
    REFUTED,
    UNPROVEN,
    Finding,
    other_process,
    room_in,
)  # fmt: skip
from ..runtime import inotify

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..local.ground import Place

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


def tried(folder: str, place: Place) -> list[Finding]:
    """What was found in `folder`, which can be written to. Raises OSError when it cannot."""
    with room_in(folder, "doctor") as room:
        tries: tuple[tuple[str, Callable[[str], str]], ...] = (
            ("fcntl", _fcntl), ("OFD", _ofd), ("mkdir", _mkdir), ("inotify", _inotify),
        )  # fmt: skip
        return [_one(what, try_it, room, place) for what, try_it in tries]


def _one(what: str, try_it: Callable[[str], str], room: str, place: Place) -> Finding:
    try:
        fault = try_it(room)
    except OSError as error:
        fault = f"refused: {error.strerror}"
    if fault.startswith("?"):
        return Finding(what, NOT_TRIED, fault[1:])
    if fault:
        return Finding(what, REFUTED, fault)
    if what == "inotify" and place.far:
        return Finding(
            what, UNPROVEN, "it tells of this host's changes; of other hosts' it may not"
        )
    if place.one_kernel:
        return Finding(what, PROVEN, "tried here")
    return Finding(what, UNPROVEN, "no fault was seen from this host alone")


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
        watch = inotify.Inotify()
    except OSError as error:
        return f"?no watch is to be had: {error.strerror}; waiters look now and then instead"
    try:
        watch.add(room, False)
        os.close(os.open(f"{room}/event", os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        told = select.select(watch.fds, [], [], PATIENCE)[0]
        return "" if told else "?no change is told; waiters look now and then instead"
    finally:
        watch.close()


# ---- what is looked at, not tried


def looked_at(folder: str, options: str) -> list[Finding]:
    """The folder's rights, this process's umask, room, and how it is mounted."""
    mode = os.stat(folder).st_mode
    return [_rights(folder, mode), _umask(), _room(folder), _mount(options)]


def _rights(folder: str, mode: int) -> Finding:
    shown = f"{stat.S_IMODE(mode):04o}"
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        why = f"{shown}: every user can remove your lock files, and take the lock anew: chmod +t"
        return Finding("rights", REFUTED, why)
    if mode & stat.S_IWOTH:
        why = f"{shown}, sticky: others cannot remove your files, but can make theirs before you do"
        return Finding("rights", WARN, why)
    if mode & stat.S_IWGRP:
        why = f"{shown}: every member of its group can remove your lock files"
        return Finding("rights", WARN, why)
    return Finding("rights", GOOD, f"{shown}: only its owner adds and removes files")


def _umask() -> Finding:
    known = None
    try:
        with open("/proc/self/status", encoding="utf-8", errors="replace") as file:
            known = next((line.split()[1] for line in file if line.startswith("Umask:")), None)
    except OSError:
        pass
    if known is None:
        return Finding("umask", NOT_TRIED, "it cannot be read here")
    mask = int(known, 8)
    if mask & 0o022 != 0o022:
        return Finding("umask", WARN, f"{known}: others may write into files that you make")
    if mask & 0o004:  # flock(2) asks for an open file, whatever it is open for
        why = f"{known}: other users can neither lock the files that you make nor read them"
        return Finding("umask", WARN, f"{why}; with shared=True they can")
    why = f"{known}: other users can lock the files that you make, since they can read them"
    return Finding("umask", GOOD, f"{why}; with shared=True they leave a record and get a token")


def _room(folder: str) -> Finding:
    found = os.statvfs(folder)
    room = found.f_bavail * found.f_frsize
    shown = f"{room >> 20:,} MiB and {found.f_favail:,} files are free"
    if room < FREE or (found.f_files and found.f_favail < INODES):
        why = f"{shown}: on a full disk kernel locks still exclude, records cannot be written"
        return Finding("room", WARN, why)
    return Finding("room", GOOD, shown)


def _mount(options: str) -> Finding:
    words = set(options.split(","))
    if "ro" in words:
        return Finding("mount", REFUTED, f"{options}: read-only, nothing can be locked by a file")
    if "nolock" in words or any(word.startswith("local_lock=") and word != "local_lock=none"
                                for word in words):  # fmt: skip
        return Finding("mount", REFUTED, f"{options}: locks stay on this host, others see none")
    return Finding("mount", GOOD, options or "unknown")
