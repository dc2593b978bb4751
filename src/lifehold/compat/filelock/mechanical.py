"""A lock of this face over one of lifehold's mechanisms: the first try, the wait, the end.

Rule: written once as coroutines; the blocking classes finish them in one step, the async classes
await them, and `_runtime` says which it is.
Rule: a subclass, or a test, that replaces `_acquire` or `_release` is obeyed, as filelock obeys it.
Such a lock is tried again and again, because only its own code knows when it is free.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from ...core.grant import Grant
from ...lock import Lease, Lock
from ...runtime.blocking import BLOCKING, finish
from ...runtime.links import asker
from . import kernel, pollers, waits
from .calls import TABLE
from .errors import Timeout
from .exclusive import BaseFileLock
from .meta import absolute
from .waits import DEBUG, LOGGER

if TYPE_CHECKING:
    from .state import Hold
    from .waits import Want

LIFEHOLD = logging.getLogger("lifehold")


class Mechanical(BaseFileLock):
    """What the native and the soft lock have in common."""

    _kernel: Any = None
    _frees_itself = True
    _runtime: Any = BLOCKING
    _stays = False  # whether the lock is a file that stays, so that who polls it can be seen
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

    def _brings(self, name: str) -> bool:
        """Whether a subclass, or this object, has replaced `_acquire` or `_release`."""
        return getattr(type(self), name) is not getattr(Mechanical, name) or name in self.__dict__

    def _take(self, hold: Hold, want: Want) -> None:
        if type(self)._acquire is not Mechanical._acquire or "_acquire" in self.__dict__:
            finish(waits.by_polling(self, hold, want))
            return
        if pollers.expected:
            finish(self._let_pollers_in(want))
        answer = self._attempt(hold)
        if type(answer) is not Grant:
            finish(self._contend(hold, want, answer))

    async def _let_pollers_in(self, want: Want) -> None:
        await pollers.let_in(absolute(self._context.lock_file), want, self._runtime)

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
        if self._kernel is None:  # a subclass's `_acquire` did not ask ours
            return Timeout(self.lock_file)
        return kernel.refused(self._kernel, self.lock_file, waited, later=waited is None)

    def _still_there(self, path: str) -> None:
        kernel.refuse_lost_folder(path)

    def _found(self, hold: Hold) -> Any:
        """The mechanism, of where the path leads now."""
        # Kept for as long as an acquire goes on: the working folder may change meanwhile.
        path = hold.path or absolute(self._context.lock_file)
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
        if self._stays:
            pollers.expect(hold.path)
        try:
            grant = await kernel.waited(
                self._kernel, self._runtime, self.lock_file, answer, want, self._refused
            )
        except Timeout:
            if want.cancelled:
                LOGGER.debug("Cancellation requested for lock %s on %s", id(self), self.lock_file)
            raise
        if pollers.expected:
            pollers.came(self._kernel.path)
        self._got(hold, grant)

    def _acquire(self) -> None:
        self._attempt(self._context.hold)

    # ---- letting go

    def _let_go(self, hold: Hold) -> None:
        if self._brings("_release"):
            self._tell_loss(hold)  # after its `_release` a file that it removed would look lost
            super()._let_go(hold)
        else:
            self._end_own(hold)

    def _tell_loss(self, hold: Hold) -> None:
        """L5  Told before a subclass's `_release` runs, which may remove the file itself."""
        found = None if hold.grant is None else self._kernel.check(hold.grant)
        if found is not None:
            LIFEHOLD.warning("%r was lost: %s", self.lock_file, found.reason)

    def _end_own(self, hold: Hold) -> None:
        """End what our mechanism has granted, or what a subclass's `_acquire` has opened."""
        if hold.grant is None:
            fd, hold.fd = hold.fd, None
            if fd is not None:
                self._end_brought(fd, hold.path)
            return
        try:
            lost = kernel.drop(self._kernel, hold.grant, hold.lease)
        finally:
            hold.fd = hold.grant = hold.lease = None
        if lost and not self._brings("_release"):  # L5  told, never silent
            LIFEHOLD.warning("%r was lost: %s", self.lock_file, lost)

    def _end_brought(self, fd: int, path: str) -> None:
        """The end of a lock that a subclass's `_acquire` made, by filelock's own `_release`."""
        TABLE.files.close(fd)

    def _release(self) -> None:
        self._end_own(self._context.hold)
