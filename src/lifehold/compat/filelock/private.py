"""How a record of a strict lock is published whole, and what crashes leave of it.

It is written under a private name, linked to its own, which nobody may have, and the private name
goes. Rule: such a name is removed by anybody once it is linked, or is two seconds old by the clock
of the file system; whose private record goes before the link has not published, and tries again.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .room import Room

PRIVATE, SUFFIX, TOKEN = ".private-v1-", ".tmp", 32
AGE = 2.0  # seconds
CREATE = os.O_CREAT | os.O_EXCL


class Reclaimed(Exception):
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


def published(room: Room, name: str, content: bytes, mode: int) -> None:
    """A file of that name, whole from its first instant. Raises FileExistsError, Reclaimed."""
    private = private_name(name)
    file = room.open(private, os.O_RDWR | CREATE, mode)
    found = room.files.fstat(file)
    key = found.st_dev, found.st_ino
    try:
        room.write(file, content)
        try:
            room.linked(private, name, key)
        except FileNotFoundError as error:
            if room.key_at(private) is not None:
                raise
            raise Reclaimed from error
        if room.key_at(name) != key:
            raise Reclaimed
    finally:
        room.files.close(file)
        if room.key_at(private) == key:
            room.unlink(private)


def reclaim(room: Room, name: str, now: list[float | None], tidy: bool) -> None:
    """Remove a private record that a crash has left: one that is linked, or is two seconds old."""
    try:
        found = room.stat(name)
    except FileNotFoundError:
        return
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, f"{name} is not a regular private record")
    if found.st_nlink == 1:
        if not now:
            now.append(server_time(room) if tidy else None)
        if now[0] is None or now[0] - found.st_mtime < AGE:
            return
    try:
        room.unlink(name)
    except PermissionError:
        return  # another account's


def server_time(room: Room) -> float | None:
    """What time it is for the file system, which stamps what is written there."""
    probe = private_name(f"held-v1-{os.urandom(16).hex()}.claim")
    try:
        file = room.open(probe, os.O_WRONLY | CREATE)
    except OSError:
        return None
    try:
        room.write(file, b"\n")
        return float(room.files.fstat(file).st_mtime)
    except OSError:
        return None
    finally:
        room.files.close(file)
        room.unlink(probe)
