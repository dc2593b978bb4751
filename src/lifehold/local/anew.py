"""To have a file server asked anew what the names in a folder lead to.

A client of NFS remembers what a name led to, or that it led nowhere, for as long as it takes the
folder for unchanged: up to a minute. open(2) does not ask either: from NFSv4.1 on it opens what the
name led to by its handle, and a file that was replaced or removed answers while anybody has it
open. So whoever decides by a name asks for the folder first; if that has changed, every name in it
is looked up again. A server that tells two changes of one instant apart by nothing but the time (an
export of tmpfs) may hide the second of them.

statx(2) with AT_STATX_FORCE_SYNC asks whatever the mount's options are, and needs no right to read
the folder. Where there is no such call the folder is opened, which asks unless it is mounted
`nocto`. On Windows nothing is asked; no shared folder was tried there.

What a server has lent a machine, a *delegation* of a file, it calls back before another may open
that file for writing, touch, rename or unlink it; from a machine that it cannot reach, for 1.5 of
its own leases. Any open(2) of a file may get one. So a holder looks at its record by its name, and
gives back what it was lent (`hand_back`): else its ttl would not be the longest wait for it.
"""

from __future__ import annotations

import errno
import os
import sys

from ..runtime import fork

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

AT_FDCWD, AT_STATX_FORCE_SYNC, STATX_BASIC_STATS = -100, 0x2000, 0x7FF
SIZE = 256  # bytes of struct statx
_PLAIN: int = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
# EPERM: what some filters of system calls say of a call that is younger than they are.
NOT_OFFERED = frozenset({errno.ENOSYS, errno.EINVAL, errno.EPERM})
_call: Any = None


def anew(folder: str) -> None:
    """From here on names in the folder lead where the server says. Raises OSError.

    Of a file: what is read of it by a descriptor is what the server has.
    """
    global _call
    if _call is None:
        _call = _load() or False
    if _call:
        call, buffer, get_errno = _call
        name, how = os.fsencode(folder), AT_STATX_FORCE_SYNC
        if call(AT_FDCWD, name, how, STATX_BASIC_STATS, buffer(SIZE)) == 0:
            return
        code = get_errno()
        if code not in NOT_OFFERED:
            raise OSError(code, os.strerror(code), folder)
    if sys.platform != "win32":
        os.close(os.open(folder, _PLAIN))


def hand_back(files: Any, fd: int) -> None:
    """Give a delegation of our own file back: its client does so before it changes the times."""
    try:
        files.utime(fd)
    except OSError:
        pass  # it is not ours any more, or may not be written: who asks for that is told


def _load() -> Any:
    """The call, what takes its answer, and its errno; None where there is no statx(2)."""
    if sys.platform != "linux":
        return None
    try:
        ctypes: Any = fork.lazily("ctypes")
        call = ctypes.CDLL(None, use_errno=True).statx
    except (ImportError, OSError, AttributeError):
        return None
    call.argtypes = (
        ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint, ctypes.c_void_p,
    )  # fmt: skip
    return call, ctypes.create_string_buffer, ctypes.get_errno
