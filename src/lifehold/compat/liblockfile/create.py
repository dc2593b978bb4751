"""To make a lock file, with the patience of the original: tries, and growing pauses between them.

Promise: the pauses are liblockfile's, 5 s longer each time up to 60 s, or the fixed one that the
caller chose, which is kept to the second. Without a chosen one a change of the file wakes us, and
whoever is faster has it; a waiter has no temporary file lying about meanwhile, so that kill -9
leaves nothing.
"""

from __future__ import annotations

import errno
import os

from ...core.errors import LifeholdError
from ...core.grant import Grant
from ...runtime import clock, fork
from ...runtime.blocking import ThreadWakeup
from . import spool
from .status import L_ERROR, L_MAXTRYS, L_SUCCESS, CreateFailed, Status

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...runtime import watch_thread
    from ...runtime.watch_thread import PathWatch
    from .dotlock import DotLock
else:
    watch_thread = fork.later("lifehold.runtime.watch_thread", globals())

STEP, LONGEST = 5.0, 60.0  # seconds


class RetryTerms:
    """How one call waits.

    `retries`: tries after the first, 0 tries for -1; `interval`: a fixed pause instead of growing
    ones; `look`: seconds after which `stop` is asked, whose status ends the wait; `head`: seconds
    of the first pause that had passed before the first try, as a command's own start.
    """

    head = 0.0

    def __init__(self, retries: int, interval: float | None = None, look: float = LONGEST) -> None:
        self.retries, self.interval, self.look = retries, interval, look

    def pause(self, retry: int) -> float:
        """Seconds before the n-th retry, counted from 1."""
        if self.interval is not None:
            return max(0.0, min(self.interval, LONGEST) - (self.head if retry == 1 else 0.0))
        return min(STEP * retry, LONGEST)

    def stop(self) -> Status | None:
        """Why no more is to be waited."""
        return None

    def sleep(self, wakeup: ThreadWakeup, seconds: float) -> None:
        """Until it rings, or `seconds` have passed."""
        wakeup.wait(seconds)


def create(lock: DotLock, patience: RetryTerms) -> tuple[Status, Grant | None]:
    """The status of lockfile_create(3), and the grant with L_SUCCESS."""
    found = Status(L_MAXTRYS, errno=errno.EAGAIN)
    for retry in range(patience.retries + 1):
        grant: Grant | Status | None = None
        if retry:
            grant = _paused(lock, patience, patience.pause(retry))
        if grant is None:
            grant = _tried(lock)
        if isinstance(grant, Grant):
            return Status(L_SUCCESS), grant
        if grant != L_MAXTRYS or grant.errno == errno.ENAMETOOLONG:
            return grant, None
        found = grant
    return found, None


def _tried(lock: DotLock) -> Grant | Status:
    """One try. L_MAXTRYS: somebody else has it; L_SUCCESS: the set-gid program made it for us."""
    try:
        answer = lock.once()
    except CreateFailed as failed:
        mine = lock.number == os.getpid()
        return spool.by_the_program("-l", lock.path, failed.status, by_pid=mine)
    except LifeholdError as error:
        return Status(L_ERROR, error.text, getattr(error, "errno", None) or errno.EINVAL)
    except OSError as error:
        number = error.errno or 0
        code = L_MAXTRYS if number == errno.ENAMETOOLONG else L_ERROR
        return Status(code, f"{lock.path!r}: {error.strerror}", number)
    if isinstance(answer, Grant):
        return answer
    return Status(L_MAXTRYS, answer.reason or "it is held", errno.EAGAIN)


def _paused(lock: DotLock, patience: RetryTerms, seconds: float) -> Grant | Status | None:
    """One pause. A grant when the lock became free in it; None when it is over."""
    end = clock.now() + seconds
    wakeup = ThreadWakeup()
    watch = None
    if patience.interval is None:
        watch = _watched(lock, wakeup)
    try:
        if watch is not None and _won(early := _tried(lock)):
            return early  # it became free before the watch was in place
        while True:  # once at least: in a pause of 0 s, too, signals come in
            patience.sleep(wakeup, max(0.0, min(end - clock.now(), patience.look)))
            if (status := patience.stop()) is not None:
                return status
            if clock.now() >= end:
                return None
            if watch is not None and _won(early := _tried(lock)):
                return early
    finally:
        if watch is not None:
            watch.close()


def _won(answer: Grant | Status) -> bool:
    return isinstance(answer, Grant) or answer == L_SUCCESS


def _watched(lock: DotLock, wakeup: ThreadWakeup) -> PathWatch | None:
    try:
        return watch_thread.watch(lock.path, wakeup.ring, blind=lock.place.far)
    except (RuntimeError, OSError):
        return None  # no thread to be had: the pauses alone then
