"""What can be asked of a lock whose record is the lock, without holding it."""

from __future__ import annotations

from ..core.grant import Holder
from ..core.liveness import ALIVE, DEAD
from ..core.value import replace
from .ground import is_far
from .refusals import refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .evidence import Judged


class Inquiry:
    """The questions of `Present`. A kind adds `_look`, who stands there, for people."""

    path: str
    ready: Callable[[], None]
    _look: Callable[[], Judged | None]

    def far(self) -> bool:
        """Whether its calls may wait for a file server: no event loop should make them then."""
        return is_far(self.path)

    def taken(self) -> bool:
        """Whether anybody holds it, as far as can be told."""
        holder = self.inspect()
        return holder is not None and holder.alive != DEAD

    def inspect(self, *, held: bool = False) -> Holder | None:
        """Who holds it. Tries no lock but the record's own, shared, for a moment."""
        try:
            self.ready()
            found = self._look()
        except OSError as error:
            if held:
                return Holder(evidence=f"its record cannot be read: {error.strerror}")
            raise refused(self.path, error) from error
        if found is None:
            return None
        if held and found.state == DEAD:
            found = replace(found, state=ALIVE, evidence="it was held a moment ago")
        return found.holder()
