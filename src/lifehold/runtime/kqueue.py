"""What the kernel of macOS and the BSDs tells about folders: one kqueue.

The same face as runtime/watch_table.py. Names that come and go in a folder are told without saying
which, and writes in a file are not, so whoever asks for these is looked at now and then as well.
Written from the manual pages and played against a stand-in; not yet run on such a system.
"""

from __future__ import annotations

import errno
import os
import select

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

kernel: Any = select  # type checkers know only what their own system has


class Kqueue:
    """One queue. Raises OSError when there is none to be had."""

    sees_content = False

    def __init__(self) -> None:
        self._queue = kernel.kqueue()
        self.fd: int = self._queue.fileno()
        os.set_inheritable(self.fd, False)
        self._folders: dict[int, tuple[int, int]] = {}  # number, a descriptor -> (dev, ino)

    @property
    def fds(self) -> tuple[int, ...]:
        """What a forked child inherits of it: the folders. The queue itself it does not."""
        return tuple(self._folders)

    def add(self, folder: str, content: bool) -> int:
        """The number of this folder: the same while the path leads to the same folder."""
        flags = getattr(os, "O_EVTONLY", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
        number = os.open(folder, flags)
        try:
            found = os.fstat(number)
            key = (found.st_dev, found.st_ino)
            for known, other in self._folders.items():
                if other == key:
                    os.close(number)
                    return known
            event = kernel.kevent(
                number,
                kernel.KQ_FILTER_VNODE,
                kernel.KQ_EV_ADD | kernel.KQ_EV_CLEAR,
                kernel.KQ_NOTE_WRITE
                | kernel.KQ_NOTE_EXTEND
                | kernel.KQ_NOTE_LINK
                | kernel.KQ_NOTE_DELETE
                | kernel.KQ_NOTE_RENAME
                | kernel.KQ_NOTE_REVOKE,
            )
            self._queue.control([event], 0, 0)
        except BaseException:
            os.close(number)
            raise
        self._folders[number] = key
        return number

    def remove(self, number: int) -> None:
        """No more events of this number."""
        if self._folders.pop(number, None) is not None:
            os.close(number)  # and with it goes its event

    def follow(self, pid: int) -> int:
        """The number, below -1, under which the end of a process comes. Raises OSError."""
        event = kernel.kevent(
            pid,
            kernel.KQ_FILTER_PROC,
            kernel.KQ_EV_ADD | kernel.KQ_EV_ONESHOT,
            kernel.KQ_NOTE_EXIT,
        )
        self._queue.control([event], 0, 0)
        return -1 - pid

    def read(self) -> list[tuple[int, bytes | None]]:
        """What has happened: (number, None), since no names are told."""
        found: list[tuple[int, bytes | None]] = []
        for event in self._queue.control(None, 256, 0):
            if event.filter == kernel.KQ_FILTER_PROC:
                found.append((-1 - event.ident, None))
            elif event.flags & kernel.KQ_EV_ERROR and event.data != errno.ENOENT:
                found.append((-1, None))
            else:
                found.append((event.ident, None))
        return found

    def close(self) -> None:
        """Give it back, and the folders."""
        for number in list(self._folders):
            self.remove(number)
        self._queue.close()
