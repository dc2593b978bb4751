"""`StrictSoftFileLock`: a lock of claims that nobody takes over, not even from the dead.

For file systems where no death can be proven and an overlap is worse than a lock that stays. What
ours adds: a waiter is woken when a claim goes, and `Timeout` says whose it is and whether that
process lives. A claim that a killed process left stays, as with filelock, until `force_break()`.
"""

from __future__ import annotations

import errno
import logging
import os
from typing import TYPE_CHECKING, Any

from . import atend, kernel, options, pollers
from .calls import TABLE
from .folder import NotAFolder
from .mechanical import Mechanical
from .meta import absolute, canonical
from .strictfile import StrictFile

if TYPE_CHECKING:
    from .claims import StrictSoftFileClaim
    from .errors import Timeout
    from .state import Hold
    from .waits import Want

LOGGER = logging.getLogger("lifehold")
FOLLOWING = ["wait longer; or, when its holder is gone for good, force_break() its claims by name"]


class StrictSoftFileLock(Mechanical):
    """A lock by hard-linked claims beside a file. Fails closed."""

    _lifetime_supported = False
    _widest = options.DEFAULT_POLL
    _ageless = "a strict claim is never broken by age, only by force_break()"

    def _check_options(self) -> None:
        atend.living.add(self)
        if self._on_acquired is not None:
            raise ValueError(f"on_acquired is not supported by {type(self).__name__}")

    def _made(self, path: str) -> Any:
        found = self._kernel
        return StrictFile(
            canonical(path), self.lock_file, self._runtime, TABLE, self._open_mode()
        ) if found is None or found.path != canonical(path) else found  # fmt: skip

    async def _let_pollers_in(self, want: Want) -> None:
        path = canonical(absolute(self._context.lock_file))
        await pollers.let_in(path, want, self._runtime)

    def _end_own(self, hold: Hold) -> None:
        if hold.grant is None:
            super()._end_own(hold)
            return
        lost = kernel.drop(self._kernel, hold.grant, hold.lease)
        hold.fd = hold.grant = hold.lease = None  # not when a claim of ours is still there
        if lost:
            LOGGER.warning("%r was lost: %s", self.lock_file, lost)

    def _there(self) -> StrictFile:
        path = self._context.hold.path or absolute(self.lock_file)
        return StrictFile(canonical(path), self.lock_file, self._runtime, TABLE, self._open_mode())

    def _refused(self, waited: float | None) -> Timeout:
        if self._kernel is None:
            return super()._refused(waited)
        later = waited is None
        return kernel.refused(self._kernel, self.lock_file, waited, FOLLOWING, later=later)

    @property
    def claims(self) -> tuple[StrictSoftFileClaim, ...]:
        """The claims that are there. Raises SoftFileLockProtocolError."""
        return tuple(self._there().claims.seen(tidy=False, proven=False))

    @property
    def lock_path_occupant(self) -> str | None:
        """What stands at the path and is not the sentinel, in words; None for nothing."""
        try:
            _, occupant, slot = self._there().occupant()
        except FileNotFoundError:
            return None
        if slot is not None:
            slot.close()
            return None
        return occupant

    def force_break(self, claim_name: str) -> None:
        """Remove one claim by its name: its owner may still be inside, and others come in.

        Raises ValueError for what is no name, FileNotFoundError for a name that is not there.
        """
        wrong = not claim_name or claim_name.startswith(".")
        if wrong or any(each in claim_name for each in ("/", "\\", "\x00")):
            raise ValueError("claim_name must be one public claim basename")
        claims = self._there().claims
        try:
            if claim_name not in claims.folder.names():
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), claim_name)
            claims.removed(claim_name)
        except NotAFolder as error:
            raise OSError(errno.ENOTDIR, str(error), error.where) from error
