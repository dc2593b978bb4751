"""The names of lockfolder 1.0.2 over kind `folder`: a folder of bids, on the same files.

    from lifehold.compat import lockfolder      # was: from lockfolder import lockfolder

    lockfolder.init()
    if lockfolder.lock(path):
        ...
        lockfolder.unlock(path)

Promise: old processes and new ones exclude each other; a bid of ours is what lockfolder reads, with
more in it. What ours adds: two threads never have it both, a forked child has nothing of its
parent's; a bid appears whole; a look never raises because a rival came or went; one of those who
ask at once gets it. Rule: local/folder.py. Each grant has a bid of its own name, so that no removal
can hit another's; who holds is the thread that locked, and not whoever finds a file.
How it could fail: as kind `folder` says; and a program that locks in one thread and unlocks in
another is told that it does not have it.
"""

from __future__ import annotations

import os
from _thread import _local

from ..core.errors import LeaseLost, SystemRefused, WouldBlock
from ..core.owner import DEAD
from ..described import canonical
from ..local import folder as bids
from ..local.folder import FolderLock
from ..local.record_folders import is_bid
from ..local.refusals import refused
from ..lock import Lock, lock_path
from ..runtime import fork
from ..runtime.blocking import BLOCKING

TYPE_CHECKING = False
if TYPE_CHECKING:
    import logging
    from collections.abc import Callable

    from ..lock import Lease

    Path = str | os.PathLike[str]
else:
    logging = fork.later("logging", globals())

__all__ = ["challenge", "have_lock", "in_use", "init", "lock", "setup", "unlock"]

_mine = _local()  # `get_ident` is given to another thread when this one has ended
_held: dict[tuple[str, object], Lease] = {}
fork.in_child(_held.clear)  # L9  a child holds nothing of what its parent holds


def init() -> None:
    """Nothing is left to be done: kept for who calls it, once or in every child.

    The name in lockfolder's text; its package has `setup`.
    """


setup = init


def lock(lockfolder_path: Path) -> bool:
    """One try to lock the folder, which is made when it is missing. True: this thread has it.

    True also when this thread has it already; one `unlock` ends it. Never waits for a holder.
    Raises UnsafeGround on network file systems, where an old listing may hide a rival,
    InvalidArgument for what is no folder, SystemRefused.
    """
    key = _key(lockfolder_path)
    if _ours(key):
        return True
    try:
        _held[key] = Lock(key[0], kind="folder").acquire(0)
    except WouldBlock:
        return False
    return True


def unlock(lockfolder_path: Path) -> None:
    """Give it back. Safe to repeat: what this thread does not have, it does not give.

    That it was lost meanwhile, and that there was nothing to give, is a warning of the logger
    `lifehold`.
    """
    key = _key(lockfolder_path)
    if key in _held:
        _end(key)
    else:
        _warn("%r was to be unlocked, and this thread does not have it", key[0])


def have_lock(lockfolder_path: Path) -> bool:
    """Whether this thread has it, and has it still."""
    return _ours(_key(lockfolder_path))


def in_use(lockfolder_path: Path) -> bool:
    """Whether anybody else has a bid in there who is not proven dead. Dead bids are removed.

    Raises InvalidArgument, UnsafeGround, SystemRefused.
    """
    key = _key(lockfolder_path)

    def look() -> bool:
        rivals = _rivals(key[0])
        lease = _held.get(key)
        mine = None if lease is None else lease.nonce
        if mine is None:
            return rivals._anybody()
        names = [name for name in rivals._names() if bids.nonce_in(name) != mine.partition("-")[0]]
        return any(_stands(rivals, name) for name in names)

    return _looked(key[0], look)


def challenge(p: Path) -> bool:
    """Whether this bid is nobody's: True when its process was proven dead, and it was removed.

    True also when it is gone. False: it is valid, or nothing can be proven, or it has not the name
    of a bid. Raises as `in_use`.
    """
    path = _path(p)
    folder, name = os.path.split(path)
    return is_bid(name) and not _looked(path, lambda: _stands(_rivals(folder), name))


def _looked(path: str, look: Callable[[], bool]) -> bool:
    try:
        return look()
    except SystemRefused:
        raise
    except OSError as error:
        raise refused(path, error) from error


def _stands(rivals: FolderLock, name: str) -> bool:
    """Whether a bid is there and not proven dead; a dead one goes (L2, L3)."""
    case = rivals._case(name)
    if case is None:
        return False
    if case[1].state != DEAD:
        return True
    bids.remove(rivals.files, rivals.path, name)
    return False


def _rivals(path: str) -> FolderLock:
    rivals = FolderLock(path, BLOCKING)
    rivals.ready()
    return rivals


def _path(path: Path) -> str:
    """One path for all spellings. Raises InvalidArgument, SystemRefused as `Lock` does."""
    given = os.fspath(path) if isinstance(path, os.PathLike) else path
    if isinstance(given, str):  # else `lock_path` refuses it
        given = given.rstrip("/") or given
    return canonical(lock_path(given))


def _key(path: Path) -> tuple[str, object]:
    fork.here()  # L9  before what is known by this key is looked for
    thread = _mine.__dict__.setdefault("thread", object())
    return _path(path), thread


def _ours(key: tuple[str, object]) -> bool:
    lease = _held.get(key)
    if lease is None:
        return False
    try:
        lease.check()
    except LeaseLost:
        _end(key)
        return False
    return True


def _end(key: tuple[str, object]) -> None:
    """L5  Once."""
    lease = _held.pop(key, None)
    try:
        if lease is not None:
            lease.release()
    except LeaseLost as lost:
        _warn("the lock of %r was lost: %s", key[0], lost.text)


def _warn(text: str, *of: object) -> None:
    logging.getLogger("lifehold").warning(text, *of)
