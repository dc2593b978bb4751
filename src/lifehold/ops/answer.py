"""What is known of one lock, the answer of `who`, `ls` and `wait`; and what `clear` did to one."""

from __future__ import annotations

from ..core.value import value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..core.grant import Holder
    from ..local.kernel_holders import KernelWaiter

HELD, FREE, SUSPECT, STALE = "held", "free", "suspect", "stale"


@value
class Answer:
    """What is known of one lock.

    `holder`: who has it now; `others`: who has it too (shared, or another kind of lock); `waiting`:
    who stands in the kernel's queue, in its order; `removed`: who holds the lock of a file that
    stood here before; `last`: whom the record names, when it is free; `kind`: flock, fcntl, ofd,
    pidfile, existence, soft, soft-read-write, link, generation, directory or folder, and of a
    store lease or session; `exists`: whether there is a lock file; `note`: what else a reader must
    know; `family`: whose lock it is, as the tables of ops/families name it; `remedy`: what to do
    next, each a command behind its word.
    """

    name: str
    path: str
    state: str
    holder: Holder | None = None
    last: Holder | None = None
    exists: bool = True
    note: str = ""
    kind: str = "flock"
    others: tuple[Holder, ...] = ()
    waiting: tuple[KernelWaiter, ...] = ()
    removed: tuple[Holder, ...] = ()
    family: str = ""
    remedy: tuple[str, ...] = ()


REMOVED, WOULD, KEPT, NOTHING = "removed", "would remove", "kept", "nothing"
FREED, WOULD_FREE = "freed", "would free"


@value
class ClearOutcome:
    """What became of one path.

    `action`: REMOVED, FREED (a file or folder stays there, which is nobody's lock), WOULD or
    WOULD_FREE (a dry run), KEPT or NOTHING; `why` in words; `word`: what must be
    typed to remove it all the same, "" where nobody may; `next`: a command that is better.
    """

    path: str
    action: str
    why: str
    answer: Answer
    word: str = ""
    next: str = ""

    @property
    def left(self) -> bool:
        """Whether something is left that stands in the way, and is not simply held."""
        return self.action in (WOULD, WOULD_FREE) or (
            self.action == KEPT and self.answer.state in (STALE, SUSPECT)
        )
