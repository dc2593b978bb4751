"""rename(2) that replaces nothing: renameat2(2) with RENAME_NOREPLACE, by ctypes.

Plain rename(2) puts a folder in the place of an empty one; for a program that takes its locks by
mkdir(2), an empty folder is a lock that it holds. Where there is no such call (another system, an
old C library, a file server, no ctypes) it is plain rename(2), and a lock of mkdir(2) that was made
since the caller looked is replaced.
"""

from __future__ import annotations

import errno
import os

from ..runtime import fork

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

AT_FDCWD, RENAME_NOREPLACE = -100, 1
NOT_OFFERED = frozenset({errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP})
_call: Any = None


def rename_new(old: str, new: str, at: int = AT_FDCWD) -> None:
    """Rename, unless something has the new name: then FileExistsError. Raises OSError.

    `at`: the descriptor of the folder that relative names begin in.
    """
    global _call
    if _call is None:
        _call = _load() or False
    if _call:
        call, get_errno = _call
        if call(at, os.fsencode(old), at, os.fsencode(new), RENAME_NOREPLACE) == 0:
            return
        code = get_errno()
        if code not in NOT_OFFERED:
            raise OSError(code, os.strerror(code), old, None, new)
    if at == AT_FDCWD:
        os.rename(old, new)
    else:
        os.rename(old, new, src_dir_fd=at, dst_dir_fd=at)


def _load() -> Any:
    """The call and its errno; None where the C library has no such thing."""
    try:
        ctypes: Any = fork.lazily("ctypes")
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except (ImportError, OSError, AttributeError):
        return None
    number, name = ctypes.c_int, ctypes.c_char_p
    call.argtypes = (number, name, number, name, ctypes.c_uint)
    return call, ctypes.get_errno
