"""What stands at a strict lock's path: the sentinel, or the file of a soft lock's owner.

The sentinel is there for ever, and is nobody's soft lock to whoever reads it as one; so the two
kinds exclude each other. Rule: a soft lock's living owner is waited for; what else is there is an
error, since no claim shows it and waiting would never end. Nothing at the path is ever removed.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING, Any

from ...core.deadline import NEVER
from ...core.owner import DEAD
from ...local.ground import place_at
from ...local.record_handle import look
from ...runtime import clock
from . import marks, whose
from .claims import GRACE, RETRY, without_links
from .errors import SoftFileLockProtocolError
from .private import Reclaimed, public_name, published, reclaim, server_time
from .softlook import MALFORMED

if TYPE_CHECKING:
    from .claims import Claims

ODD = {stat.S_IFDIR: "a directory", stat.S_IFLNK: "a symlink"}


class StrictLook:
    """The questions of `StrictFile` about its path."""

    path: str
    lock_file: str
    mode: int
    files: Any
    table: Any
    claims: Claims
    runtime: Any
    _seen: Any = None
    _place: Any = None
    verdict = staticmethod(whose.verdict)

    def _sentinel(self) -> tuple[Any, float]:
        """The sentinel's open file; else None, and when time alone may change that."""
        until = self.runtime.now() + GRACE
        name = os.path.basename(self.path)
        for _ in range(1000):
            found = self._occupied(until)
            if found is not None:
                return found
            self._swept()
            try:
                with self.claims.above() as room:
                    published(room, name, whose.STRICT, self.mode)
            except Reclaimed:
                break
            except FileExistsError:
                continue
            except OSError as error:
                raise without_links(self.lock_file, error) or error from None
        return None, NEVER

    def _occupied(self, until: float) -> tuple[Any, float] | None:
        """None: nothing is there."""
        while True:
            try:
                state, occupant, slot = self.occupant()
            except FileNotFoundError:
                return None
            if slot is not None or state == "held":
                return slot, NEVER
            reason = f"expected the strict sentinel at the lock path, found {occupant}"
            if state == "unparsable":
                due = self._since() + MALFORMED
                if self.runtime.now() < due:
                    return None, due
                reason += f", unchanged for {MALFORMED:g} seconds"
            if state in ("unparsable", "exited") or self.runtime.now() >= until:
                raise SoftFileLockProtocolError(self.lock_file, None, reason)
            clock.pause(RETRY)

    def occupant(self) -> tuple[str, str, Any]:
        """What stands at the path: its state, in words, and open if it is the sentinel.

        Raises FileNotFoundError.
        """
        mode = self.files.lstat(self.path).st_mode
        if not stat.S_ISREG(mode):
            return "damaged", ODD.get(stat.S_IFMT(mode), "a special file"), None
        try:
            slot = look(self.table, self.path, write=False)
            if slot is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.path)
            content: bytes = self.files.pread(slot.fd, whose.LONGEST + 1, 0)
        except FileNotFoundError:
            raise
        except PermissionError as error:
            return "held", f"a file it cannot read ({error.strerror})", None
        except OSError as error:
            return "damaged", f"a file it cannot read ({error.strerror})", None
        if len(content) > whose.LONGEST:
            slot.close()
            return "damaged", f"a file it cannot read (exceeds {whose.LONGEST} bytes)", None
        if content == whose.STRICT:
            return "sentinel", "the strict sentinel", slot
        near = (self._place or place_at(slot)).one_kernel
        slot.close()
        return (*self._owner(content, near), None)

    def _owner(self, content: bytes, near: bool) -> tuple[str, str]:
        mark, named = marks.parse(content), whose.read(content)
        if mark is not None:
            pid, host = mark.pid, mark.hostname
        elif named is not None:
            pid, host = named.pid, named.host
        else:
            odd = "a file that is neither the sentinel nor a soft-lock marker it can parse"
            return "unparsable", odd
        if named is not None and self.verdict(named, None, near).state == DEAD:
            return "exited", f"a soft-lock marker left by pid {pid} on {host}, which has exited"
        return "held", f"a soft-lock marker held by pid {pid} on {host}"

    def _since(self) -> float:
        """When we first saw it as it is, on our own clock."""
        now = self.runtime.now()
        try:
            found = self.files.lstat(self.path)
        except FileNotFoundError:
            return float(now)
        key, seen = (found.st_ino, found.st_mtime_ns, found.st_size), self._seen
        if seen is None or seen[0] != key:
            self._seen = seen = key, now
        return float(seen[1])

    def _swept(self) -> None:
        """Remove what crashes have left of making the sentinel."""
        name = os.path.basename(self.path)
        now: list[float | None] = []
        try:
            with self.claims.above() as room:
                for each in room.names():
                    if public_name(each) == name:
                        if not now:
                            now.append(server_time(room))
                        reclaim(room, each, now, True)
        except OSError as error:
            reason = f"cannot reclaim sentinel private records: {error.strerror or error}"
            raise SoftFileLockProtocolError(self.lock_file, None, reason) from error
