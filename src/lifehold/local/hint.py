"""Where one waiter is to look for a change: what its own last try has seen."""

from __future__ import annotations

from ..core.deadline import NEVER
from ..runtime import process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..core.owner import Owner


def near_pid(owner: Owner | None, *, one_kernel: bool) -> int | None:
    """Its process number where it is one of our own PID namespace, and so can be followed."""
    if owner is None or owner.pid_ns is None or not one_kernel:
        return None
    return owner.pid if owner.pid_ns == process.namespace("pid") else None


class Hint:
    """Where a waiter is to look for a change, in `Held.hint`.

    Each has one of its own: of two who wait on one Lock object, one may have seen an older one.
    `at`: a path, "" for the kind's own; `due`: when time alone may change something;
    `pid`: a process whose end may.
    """

    __slots__ = ("at", "due", "pid")

    def __init__(self, due: float = NEVER, pid: int | None = None, at: str = "") -> None:
        self.due, self.pid, self.at = due, pid, at


NO_HINT = Hint()
