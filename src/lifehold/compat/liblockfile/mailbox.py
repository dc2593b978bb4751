"""maillock(3), touchlock(3), mailunlock(3): the lock of one mailbox, as SVR4 has them.

Promise: as liblockfile, one mailbox at a time for the whole process; its file holds "0" and counts
for 300 s after its last touch. What ours adds: a second mailbox is refused, where the original
answers 0 and has locked nothing; another thread waits for its turn, and neither touches nor frees
what a living one has; a forked child holds nothing.
"""

from __future__ import annotations

import errno
import os
from _thread import _local, allocate_lock
from _weakref import ref

from ...runtime import fork
from .calls import lockfile_create, lockfile_remove, lockfile_touch, whole
from .create import RetryTerms
from .status import L_ERROR, L_MAXTRYS, L_SUCCESS, Status

MAILDIR = "/var/mail/"


class _MailThread:
    """Lives as long as its thread, whose number is given to another one then."""

    __slots__ = ("__weakref__",)


class _MailboxMutex:
    """Which thread has the mailbox."""

    def __init__(self) -> None:
        self.lock = allocate_lock()
        self.held: list[tuple[str, ref[_MailThread]]] = []  # at most one: the path, and whose it is


_turn = _MailboxMutex()
_mine = _local()


def _this_thread() -> _MailThread:
    found: _MailThread = _mine.__dict__.setdefault("thread", _MailThread())
    return found


def _in_reach(turn: _MailboxMutex) -> tuple[str, ref[_MailThread]] | None:
    """The mailbox that this thread has, or one that has ended."""
    for entry in turn.held[:1]:
        if entry[1]() in (None, _this_thread()):
            return entry
    return None


@fork.in_child
def _forget() -> None:
    """L9  The mailbox that a thread of the parent holds is not the child's."""
    global _turn
    _turn = _MailboxMutex()


def mail_lock_of(name: str) -> str:
    """The lock file of a user's mailbox: of $MAIL, if that is a mailbox of this name."""
    mail = os.environ.get("MAIL", "")
    return f"{mail if mail.rpartition('/')[2] == name else MAILDIR + name}.lock"


def maillock(name: str, retrycnt: int = 5) -> Status:
    """Lock the mailbox of a user: $MAIL if it is of that name, else /var/mail/NAME.

    0 also when this thread has it already. L_MAXTRYS when another thread or program has it,
    L_ERROR with EBUSY when this thread has another mailbox. Raises TypeError for what is no name.
    """
    if not isinstance(name, str):
        raise TypeError(f"name must be a str, not {type(name).__name__} {name!r:.40}")
    retrycnt = whole("retrycnt", retrycnt)
    path = mail_lock_of(name)
    fork.here()  # L9  before it is asked who has the mailbox
    for held, whose in _turn.held[:1]:
        if whose() is _this_thread():
            if held == path:
                return Status(L_SUCCESS)
            return Status(L_ERROR, f"this program has {held!r}: one at a time", errno.EBUSY)
    patience = RetryTerms(retrycnt)
    seconds = sum(patience.pause(n) for n in range(1, max(0, min(retrycnt, 10_000)) + 1))
    if not _turn.lock.acquire(timeout=min(seconds, 1e6)):
        return Status(L_MAXTRYS, "another thread of this program has a mailbox", errno.EAGAIN)
    status = Status(L_ERROR)
    try:
        status = lockfile_create(path, retrycnt, 0)
    finally:
        if status == L_SUCCESS:
            _turn.held.append((path, ref(_this_thread())))
        else:
            _turn.lock.release()
    return status


def touchlock() -> None:
    """Make the lock of the mailbox young again: every minute, or it counts for 300 s."""
    fork.here()  # L9
    entry = _in_reach(_turn)
    if entry is not None:
        lockfile_touch(entry[0])


def mailunlock() -> None:
    """Let the mailbox go. Safe to repeat. What another thread has stays, while that one lives."""
    fork.here()  # L9
    turn = _turn
    entry = _in_reach(turn)
    if entry is None:
        return
    try:
        turn.held.remove(entry)  # one atomic step: of two who let go at once one has it
    except ValueError:
        return
    try:
        lockfile_remove(entry[0])
    finally:
        turn.lock.release()
