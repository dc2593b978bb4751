"""The data that a lock protects: it remembers the greatest token and refuses a smaller one.

A judge of its own: it knows nothing of locks but their tokens, and lies apart from them. Imports
nothing but `os` and `fcntl`: it is loaded by processes whose start is part of what is measured.
"""

import fcntl
import os


def write(yard, token, name):
    """Whether the data accepts a write under this token."""
    fd = os.open(f"{yard}/vault", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        greatest = max((line[0] for line in _lines(fd)), default=0)
        accepted = token is None or token >= greatest
        os.lseek(fd, 0, os.SEEK_END)
        os.write(fd, f"{token or 0} {name} {int(accepted)}\n".encode())
        return accepted
    finally:
        os.close(fd)


def _lines(fd):
    size = os.fstat(fd).st_size
    rows = (line.split() for line in os.pread(fd, size, 0).decode().splitlines())
    return [(int(token), name, taken == "1") for token, name, taken in rows if taken == "1"]


def accepted(yard):
    """(token, name) of the writes that were accepted, in their order."""
    try:
        fd = os.open(f"{yard}/vault", os.O_RDONLY)
    except FileNotFoundError:
        return []
    try:
        return [(token, name) for token, name, _ in _lines(fd)]
    finally:
        os.close(fd)
