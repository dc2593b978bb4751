"""`lifehold run --slots 0,1,2`: CMD runs with one of N slots, which nobody else has meanwhile."""

from __future__ import annotations

from ..shapes import Semaphore, slotted
from .options_run import typed_slots
from .target import NoticedLock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..local import lock_names


class CommandSemaphore(NoticedLock, Semaphore):
    """A semaphore called by what the user typed; its slots have the words that he gave them."""

    __slots__ = ("for_all", "notices", "typed", "words")

    def __init__(self, typed: str, address: lock_names.Address, given: dict[str, Any]) -> None:
        self.words: list[str] = given["slots"]
        super().__init__(
            address.path,
            len(self.words),
            wait=given["wait"],
            label=given["label"],
            shared=address.shared,
            mode=address.mode,
        )
        self.called(typed, address)

    def _words(self) -> list[str]:
        return [typed_slots(self.words)]

    def parts(self) -> list[Any]:
        """The mechanisms of its slots."""
        return [*slotted(self._mechanism).slots]

    def environment(self, lease: Any, variable: str | None) -> dict[str, str]:
        """What CMD is told of its slot."""
        word = self.words[lease.slot]
        return {"LIFEHOLD_SLOT": word} | ({variable: word} if variable else {})
