"""Two names change places in one step: renameat2(2) with RENAME_EXCHANGE, by ctypes."""

from __future__ import annotations

import os

from . import files

EXCHANGE = 2


def exchange(one: str, other: str, at: int = files.AT_FDCWD) -> bool:
    """Whether it was done; False where the file system cannot. Raises OSError.

    `at`: the descriptor of the folder that relative names begin in.
    """
    found = files._load_rename()
    if found is None:
        return False
    call, get_errno = found
    if not call(at, os.fsencode(one), at, os.fsencode(other), EXCHANGE):
        return True
    code = get_errno()
    if code in files.NO_NOREPLACE:
        return False
    raise OSError(code, os.strerror(code), one, None, other)
