"""`UnixFileLock`: the native lock, on files that real filelock locks too.

Both call flock(2) on the same file, which is never unlinked; so they exclude each other. What ours
adds: who holds it stands in the file and in `Timeout`, `lease.token` grows with every grant, and a
waiter is woken by the kernel.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from ...core.grant import Grant
from ...lock import Lease, Lock
from ...runtime.links import this_thread
from . import kernel, waits
from .errors import Timeout
from .exclusive import DEBUG, LOGGER, BaseFileLock
from .meta import absolute
from .options import UNSET_FILE_MODE

if TYPE_CHECKING:
    from .state import Hold
    from .waits import Want


class UnixFileLock(BaseFileLock):
    """A lock by flock(2). Where the file system has none, an OSError."""

    _kernel: Any = None

    @property
    def lease(self) -> Lease | None:
        """What lifehold knows of the hold: `token`, `check()`, `lost`. None when not held."""
        hold = self._context.hold
        if hold.grant is None or not self.is_locked:
            return None
        if hold.lease is None:
            hold.lease = Lease(Lock(hold.path), hold.grant, this_thread.key, 0.0)
        return hold.lease  # type: ignore[no-any-return]

    def _take(self, hold: Hold, want: Want) -> None:
        answer = self._attempt(hold)
        if type(answer) is Grant:
            return
        waits.refuse_self(hold, hold.path, want)
        if want.polled:
            waits.by_polling(self, hold, want)
        elif not want.blocking:
            if LOGGER.isEnabledFor(DEBUG):
                LOGGER.debug("Timeout on acquiring lock %s on %s", id(self), self.lock_file)
            raise kernel.refused(self._kernel, self.lock_file)
        else:
            self._wait(hold, want, answer)

    def _attempt(self, hold: Hold) -> Any:
        path = self._pinned or absolute(self._context.lock_file)
        found = self._kernel
        if found is None or found.path != path:
            mode = self._context.mode
            # With a callback the file's content is the caller's.
            found = kernel.mechanism(
                path, None if mode == UNSET_FILE_MODE else mode, self._on_acquired is None
            )
            self._kernel = found
        hold.path = path
        answer = kernel.attempt(found)
        if type(answer) is Grant:
            hold.grant = answer
            hold.fd = answer.handle[0].fd
        return answer

    def _wait(self, hold: Hold, want: Want, answer: Any) -> None:
        if LOGGER.isEnabledFor(DEBUG):
            text = "Lock %s not acquired on %s, waiting %s seconds ..."
            LOGGER.debug(text, id(self), self.lock_file, want.pause)
        try:
            grant = kernel.wait(self._kernel, self.lock_file, answer, want)
        except Timeout:
            if want.cancelled:
                LOGGER.debug("Cancellation requested for lock %s on %s", id(self), self.lock_file)
            raise
        hold.grant = grant
        hold.fd = grant.handle[0].fd

    def _acquire(self) -> None:
        self._attempt(self._context.hold)

    def _let_go(self, hold: Hold) -> None:
        try:
            lost = kernel.drop(self._kernel, hold.grant, hold.lease)
        finally:
            hold.fd = hold.grant = hold.lease = None
        if lost:  # L5  told, never silent
            logging.getLogger("lifehold").warning("%r was lost: %s", self.lock_file, lost)

    def _release(self) -> None:
        self._let_go(self._context.hold)
