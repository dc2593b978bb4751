"""What the blocking and the async semaphore share: arguments, and what a lease knows."""

from __future__ import annotations

import os

from ..core.errors import SelfDeadlock
from ..core.ports import is_slotted
from ..face import lock_path, refusal
from ..runtime import fork
from ..runtime.held_here import held_by
from .sides import _check, _is_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..core.errors import LifeholdError
    from ..core.ports import Mechanism, Permit, Slotted
    from ..local import kernel_semaphore
else:
    kernel_semaphore = fork.later("lifehold.local.kernel_semaphore", globals())

REMEDY = "release one of its leases first, or pass a lease along"


def mechanism(
    path: Any, runtime: Any, permits: Any, label: str, mode: int | None, shared: bool
) -> tuple[str, Any]:
    """(the name as given, the mechanism). Raises InvalidArgument, UnsafeGround."""
    name = path if isinstance(path, str) else os.fspath(path) if _is_path(path) else path
    where = lock_path(name)
    _check(label, mode, shared, "kernel")
    made = kernel_semaphore.KernelSemaphore(
        where, runtime, permits, label=label, mode=mode, shared=shared
    )
    return name, made


def with_slots(error: LifeholdError, words: list[str]) -> LifeholdError:
    """The command in its text names the slots, so that it runs as printed."""
    told = f"lifehold run --wait 1h --slots {','.join(words)} "
    error.args = (error.text.replace("lifehold run --wait 1h ", told),)
    return error


def slot_number(lease: Any) -> int:
    """Which of the slots, from 0, a lease holds."""
    return slotted(lease._lock._mechanism).slot_of(lease._grant)


def slotted(mechanism: Mechanism) -> Slotted:
    """The mechanism of a semaphore."""
    assert is_slotted(mechanism), "a semaphore has slots"
    return mechanism


def fence_name(lease: Any) -> str:
    """`name#slot`: what the token of this lease fences."""
    return f"{lease.name}#{slot_number(lease)}"


def _key_of(slot: Permit) -> str:
    """What is locked by who holds a slot: the slot itself of a store, a file by its identity."""
    if "://" in slot.path:
        return slot.path
    try:
        found = os.lstat(slot.path)
    except OSError:
        return ""
    return f"{found.st_dev}:{found.st_ino}"


def refuse_oneself(semaphore: Any, thread: int, task: object) -> None:
    """Raises SelfDeadlock when the asker holds every slot itself and would wait without end."""
    for slot in slotted(semaphore._mechanism).slots:
        if not held_by(_key_of(slot), thread, task):
            return
    who = "this task" if task is not None else "this thread"
    raise refusal(
        SelfDeadlock,
        semaphore._name,
        semaphore._mechanism,
        f"{who} holds all of its permits already and would wait for itself for ever",
        None,
        following=[REMEDY],
    )
