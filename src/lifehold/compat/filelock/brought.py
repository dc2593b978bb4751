"""Descriptors of locks that a subclass brings: a forked child must not keep them open.

Ours are in the table of open locks; what a third party's `_acquire` has opened is noted here, with
the file that it leads to, so that a number which was used again meanwhile is left alone.
"""

from __future__ import annotations

import os

from ...runtime import fork

_open: dict[int, tuple[int, int] | None] = {}


def note(fd: object) -> None:
    """It is held from now on. Noted even when it cannot be looked at, which raises OSError."""
    if type(fd) is int and fd >= 0:
        _open[fd] = None
        found = os.fstat(fd)
        _open[fd] = found.st_dev, found.st_ino


def forget(fd: object) -> None:
    """It was let go of."""
    if type(fd) is int:
        _open.pop(fd, None)


@fork.in_child
def _close() -> None:
    for fd, key in list(_open.items()):
        try:
            found = os.fstat(fd)
            if key is None or key == (found.st_dev, found.st_ino):
                os.close(fd)
        except OSError:
            continue  # closed behind our back
    _open.clear()
