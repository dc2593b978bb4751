"""The mechanism of `SoftFileLease`: a marker that its holder touches, and others may outlive.

Promise: a lease is taken from a live holder only after its file has stayed the same for the whole
duration on the taker's own clock; the holder's own deadline comes a margin before that, on a clock
that counts suspend, and from it on its `lease.check()` says lost (L8).

How it could fail, and what keeps it:
- A breaker of filelock's has our file aside for the length of its look: a name that is gone, or
  leads elsewhere, counts at the second look only.
- The holder touches after it was judged, or while it is being replaced: the file has another time
  than the one judged, and stays or is given back (swap.py). A touch that lands later still lands
  after the holder's deadline, and counts for nothing there.
- Two who ask have different durations: neither's clock may be used on the other, so it is an error.
- A file system that cannot exchange names: a live holder's lease cannot be taken there, a dead
  one's can.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...core.grant import Grant, Held, Lost, Unknown
from ...local.record_lock import RELEASED
from . import marks
from .errors import LeaseSettingsMismatch
from .marker import MarkFile

if TYPE_CHECKING:
    from ...core.deadline import Terms
    from .slip import Slip


class LeaseFile(MarkFile):
    """The mechanism of one path. `terms`: of ours."""

    terms: Terms  # type: ignore[assignment]

    def _due(self, found: Slip, content: bytes) -> float | None:
        record = marks.parse(content)
        if record is None or record.mode != "lease":
            return super()._due(found, content)
        ttl = self.terms.ttl
        if record.lease_duration != ttl:
            raise LeaseSettingsMismatch(
                f"{self.path} holds a lease of {record.lease_duration!r} s and here {ttl!r} s is "
                "asked for: all who ask for one path must agree on lease_duration"
            )
        state = self.files.fstat(found.fd)
        found.stamp = state.st_mtime
        return self._unchanged_since(found, state, self.runtime.now()) + ttl

    def attempt(self) -> Grant | Held:
        """As any soft lock's; the lease counts from before its file could be seen (L8)."""
        began = self.runtime.now()
        answer = super().attempt()
        if isinstance(answer, Grant):
            ours: Any = answer.handle[0]
            ours.began = began
        return answer

    # ---- the holder's side

    def leased(self, grant: Grant, began: float) -> Grant:
        """The same grant with its deadline, for a touch that was sent at `began`."""
        return Grant(
            grant.name, grant.mark, None, grant.token_reason, grant.acquired_at_ns, grant.key,
            grant.handle, self.terms.deadline(began),
        )  # fmt: skip

    async def renew(self, grant: Grant) -> Grant | Lost | Unknown:
        """Touch the file, if it is still the lock."""
        ours: Any = next(iter(grant.handle), None)
        if ours is None:
            return Lost(RELEASED)
        began = self.runtime.now()
        reason = ""
        try:
            found = self.files.lstat(self.path)
            if not ours.is_of(found):
                reason = "owner-changed"
        except FileNotFoundError as error:
            if not self.files.fstat(ours.fd).st_nlink:  # else its folder has another name now
                reason, ours.trouble = "marker-missing", error
        except OSError as error:
            ours.trouble = error
            raise
        if reason:
            if ours.missed:
                return Lost(reason, gone=True)
            ours.missed = True
            return Unknown(grant.nonce, LookupError(reason))
        try:
            self.files.utime(ours.fd)
        except OSError as error:
            ours.trouble = error
            raise
        ours.missed, ours.trouble = False, None
        return self.leased(grant, began)

    def check(self, grant: Grant) -> Lost | None:
        """Our deadline, before and after a look as for any soft lock (L8)."""
        return self._late(grant) or super().check(grant) or self._late(grant)

    def _late(self, grant: Grant) -> Lost | None:
        ours: Any = next(iter(grant.handle), None)
        reason = None if ours is None or ours.tenure is None else ours.tenure.why_not()
        return None if reason is None else Lost(reason, gone=True)
