"""Descriptors of locks that a subclass brings: a forked child must not keep them open.

Ours are in the table of open locks; what a third party's `_acquire` has opened is noted here, with
the file that it leads to, so that a number which was used again meanwhile is left alone. What one
has opened that has not returned yet is found by its hold.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ...runtime import fork

if TYPE_CHECKING:
    from .state import Hold

_open: dict[int, tuple[int, int] | None] = {}
_under_way: dict[int, Hold] = {}  # those whose `_acquire` runs


def begins(hold: Hold) -> None:
    """Its `_acquire` is called."""
    _under_way[id(hold)] = hold


def ended(hold: Hold) -> None:
    """That has returned, and what it has opened is noted, or is nobody's."""
    _under_way.pop(id(hold), None)


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
    for hold in _under_way.values():
        opened = hold.fd
        if type(opened) is int and opened >= 0 and opened not in _open and hold.grant is None:
            hold.fd = None
            try:
                os.close(opened)
            except OSError:
                continue
    _open.clear()
    _under_way.clear()
