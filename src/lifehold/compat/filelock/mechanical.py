"""A lock of this face over one of lifehold's mechanisms: the first try, the wait, the end.

Rule: written once as coroutines; the blocking classes finish them in one step, the async classes
await them, and which it is says `_runtime`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from ...core.grant import Grant
from ...lock import Lease, Lock
from ...runtime.blocking import BLOCKING, finish
from ...runtime.links import asker
from . import kernel, waits
from .errors import Timeout
from .exclusive import BaseFileLock
from .meta import absolute
from .waits import DEBUG, LOGGER

if TYPE_CHECKING:
    from .state import Hold
    from .waits import Want


class Mechanical(BaseFileLock):
    """What the native and the soft lock have in common."""

    _kernel: Any = None
    _frees_itself = True
    _runtime: Any = BLOCKING
    _afar = False  # whether its calls may wait for a file server

    def _made(self, path: str) -> Any:
        """The mechanism of an absolute path."""
        raise TypeError(f"{type(self).__name__} brings no mechanism")

    @property
    def lease(self) -> Lease | None:
        """What lifehold knows of the hold: `token`, `check()`, `lost`. None when not held."""
        hold = self._context.hold
        if hold.grant is None or not self.is_locked:
            return None
        if hold.lease is None:
            hold.lease = self._told_lease(hold)
        return hold.lease  # type: ignore[no-any-return]

    def _told_lease(self, hold: Hold) -> Lease:
        lock = Lock(hold.path)
        lock._mechanism = self._kernel  # which is told of the end, and asked whether it lasts
        return Lease(lock, hold.grant, asker(), 0.0)

    # ---- taking

    def _take(self, hold: Hold, want: Want) -> None:
        answer = self._attempt(hold)
        if type(answer) is not Grant:
            finish(self._contend(hold, want, answer))

    async def _contend(self, hold: Hold, want: Want, answer: Any) -> None:
        waits.refuse_self(hold, hold.path, want)
        if want.polled:
            await waits.by_polling(self, hold, want)
        elif not want.blocking:
            if LOGGER.isEnabledFor(DEBUG):
                LOGGER.debug("Timeout on acquiring lock %s on %s", id(self), self.lock_file)
            raise self._refused(None)
        else:
            await self._wait(hold, want, answer)

    def _refused(self, waited: float | None) -> Timeout:
        return kernel.refused(self._kernel, self.lock_file, waited, later=waited is None)

    def _still_there(self, path: str) -> None:
        kernel.refuse_lost_folder(path)

    def _found(self, hold: Hold) -> Any:
        """The mechanism, of where the path leads now."""
        # Kept for as long as an acquire goes on: the working folder may change meanwhile.
        path = hold.path or self._pinned or absolute(self._context.lock_file)
        found = self._kernel
        if found is None or found.path != path:
            self._kernel = found = self._made(path)
            self._afar = self._runtime is not BLOCKING and found.far()
        hold.path = path
        return found

    def _attempt(self, hold: Hold) -> Any:
        try:
            answer = kernel.attempt(self._found(hold))
        except OSError as error:
            if not self._turned_soft(error, hold.path):
                raise
            return self._attempt(hold)
        if type(answer) is Grant:
            self._got(hold, answer)
        return answer

    def _turned_soft(self, error: OSError, path: str) -> bool:
        """Whether this object is of another kind from now on, which may do better."""
        return False

    async def _tried(self, hold: Hold) -> Any:
        """The same for a task: what may wait for a file server does so in a helper thread."""
        found = self._found(hold)
        if not self._afar:
            return self._attempt(hold)

        def undo(answer: Any) -> None:
            if type(answer) is Grant:
                found.drop(answer)

        answer = await self._runtime.in_thread(lambda: kernel.attempt(found), undo)
        if type(answer) is Grant:
            self._got(hold, answer)
        return answer

    def _got(self, hold: Hold, grant: Grant) -> None:
        hold.grant = grant
        hold.fd = grant.handle[0].fd

    async def _wait(self, hold: Hold, want: Want, answer: Any) -> None:
        if LOGGER.isEnabledFor(DEBUG):
            text = "Lock %s not acquired on %s, waiting %s seconds ..."
            LOGGER.debug(text, id(self), self.lock_file, want.pause)
        try:
            grant = await kernel.waited(
                self._kernel, self._runtime, self.lock_file, answer, want, self._refused
            )
        except Timeout:
            if want.cancelled:
                LOGGER.debug("Cancellation requested for lock %s on %s", id(self), self.lock_file)
            raise
        self._got(hold, grant)

    def _acquire(self) -> None:
        self._attempt(self._context.hold)

    # ---- letting go

    def _let_go(self, hold: Hold) -> None:
        try:
            lost = kernel.drop(self._kernel, hold.grant, hold.lease)
        finally:
            hold.fd = hold.grant = hold.lease = None
        if lost:  # L5  told, never silent
            logging.getLogger("lifehold").warning("%r was lost: %s", self.lock_file, lost)

    def _release(self) -> None:
        self._let_go(self._context.hold)
