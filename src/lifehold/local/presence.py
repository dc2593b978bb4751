"""What kinds have in common whose record is the lock: how a grant ends, what can be asked."""

from __future__ import annotations

from ..core.grant import Grant, Held, Holder, Lost
from ..core.liveness import DEAD
from ..runtime import fork
from ..runtime.links import holding
from . import residue
from .ground import is_far
from .paper import GONE, Paper, look
from .refusals import refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..core.acquire import Ask
    from ..core.ports import Runtime
    from .descriptors import Descriptors
    from .evidence import Judged
    from .files import Files

OF_PARENT = "it belongs to the parent process, this one was forked from it"
RELEASED = "released already"


class Presence:
    """A lock that is there as long as its record is. The handle of a grant is a `Paper`."""

    exclusive = True
    path: str
    label: str
    mode: int
    runtime: Runtime
    table: Descriptors
    files: Files

    attempt: Callable[[], Grant | Held]  # one try that does not wait
    judged: Callable[[Paper], Judged]  # who is there, whether it lives, when time may change that

    async def try_acquire(self, ask: Ask) -> Grant | Held:
        return self.attempt()

    # ---- the end of a grant

    def check(self, grant: Grant) -> Lost | None:
        """One lstat(2); over NFS an open(2), and the names of its folder asked for anew."""
        ours = next(iter(grant.handle), None)
        if ours is None:
            return Lost(RELEASED)
        if ours.generation != fork.here():
            return Lost(OF_PARENT)
        try:
            return None if ours.is_at(self.path) else Lost(GONE, gone=True)
        except OSError as error:
            return Lost(f"its record cannot be looked at any more ({error.strerror})", gone=True)

    def drop(self, grant: Grant) -> Lost | None:
        """Let go, in plain code."""
        try:
            if not fork.page[0]:
                fork.awoke()
            if grant.handle[0].generation != fork.generation:
                return Lost(OF_PARENT)
            ours: Paper = grant.handle.pop()  # L5  one atomic step
        except IndexError:
            return Lost(RELEASED)
        link = holding.get(grant.key)
        if link is not None and link[0] is grant:
            holding.pop(grant.key, None)  # the next record has another key: these would add up
        try:
            return ours.withdraw()
        except OSError as error:
            raise refused(self.path, error) from error

    async def release(self, grant: Grant) -> Lost | None:
        return self.drop(grant)

    def break_(self, reason: str) -> Holder | None:
        """Take the lock from whoever holds it, by order. Who it was; None when it was free."""
        return residue.by_order(self, reason, lambda why: residue.remove(self, why))

    def ready(self) -> None:
        """Whether the ground bears it is looked at with every record."""

    def judged_of(self, found: Paper) -> Judged:
        return self.judged(found)

    # ---- questions

    def far(self) -> bool:
        """Whether its calls may wait for a file server: no event loop should make them then."""
        return is_far(self.path)

    @property
    def watched(self) -> tuple[str, Callable[[], bool]]:
        """The path whose change may mean a loss, and whether another machine may change it."""
        return self.path, self.far

    def taken(self) -> bool:
        """Whether anybody holds it; a dead record is nobody."""
        holder = self.inspect()
        return holder is not None and holder.alive != DEAD

    def inspect(self, *, held: bool = False) -> Holder | None:
        try:
            found = look(self.table, self.path, write=False)
            if found is None:
                return None
            try:
                return self.judged(found).holder(seek=True)
            finally:
                found.close()
        except OSError as error:
            if held:
                return Holder(evidence=f"its record cannot be read: {error.strerror}")
            raise refused(self.path, error) from error
