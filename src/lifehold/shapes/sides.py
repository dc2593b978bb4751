"""The two sides of a reader/writer lock, as far as the blocking and the async face share them.

Rule: a side is a `Lock` over a mechanism that knows readers; what is added here is refusing, at
once and by name, what could never come true: a writer that reads, a reader that writes.
"""

from __future__ import annotations

import os

from .. import registry
from ..core.deadline import seconds, terms
from ..core.errors import InvalidArgument, LeaseLost, SelfDeadlock, StoreUnavailable
from ..core.grant import Lost, Unknown
from ..core.ports import is_downgradable, is_far, is_leased
from ..face import lock_path, refusal
from ..runtime import fork
from ..runtime.held_here import held_by

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..core.grant import Grant, Held
    from ..core.ports import Downgradable, Mechanism

KINDS = {
    "kernel": "lifehold.local.kernel_readwrite:side",
    "soft": "lifehold.local.soft_readwrite:side",
}
UPGRADE = (
    "{who} holds it for reading already, and a reader does not become the writer: two that tried "
    "would wait for each other for ever"
)
UPGRADE_REMEDY = "release the read lease, acquire for writing, and read again what you read"
READ_BESIDE_WRITE = "{who} holds it for writing already, and would wait for itself for ever"
READ_REMEDY = "call `downgrade()` of the write lease, which turns it into a reader in one step"


def mechanisms(
    path: Any, runtime: Any, kind: str, label: str, mode: int | None, shared: bool, given: Any
) -> tuple[str, Any, Any]:
    """(the name as given, the mechanism of readers, that of writers). Raises InvalidArgument."""
    name = path if isinstance(path, str) else os.fspath(path) if _is_path(path) else path
    where = lock_path(name)
    _check(label, mode, shared, kind)
    if kind == "auto":
        far = "soft" in KINDS and registry.choose(where, None)[0] != "kernel"
        kind = "soft" if far else "kernel"
        if far and given[0] is None:
            given = (registry.DEFAULT_TTL, *given[1:])
    options: dict[str, Any] = {"label": label, "mode": mode, "shared": shared}
    if any(each is not None for each in given):
        if kind == "kernel":
            raise InvalidArgument(
                "kind='kernel' takes no ttl: the kernel frees the lock with its holder, at once. "
                "To bound a holder that hangs use max_hold="
            )
        options["terms"] = terms(*given)
    module, _, make = KINDS[kind].partition(":")
    side: Any = getattr(fork.lazily(module), make)
    reads, writes = (side(where, runtime, exclusive=each, **options) for each in (False, True))
    return name, reads, writes


def _is_path(given: object) -> bool:
    return hasattr(given, "__fspath__")


def _check(label: object, mode: object, shared: bool, kind: object) -> None:
    if kind != "auto" and kind not in KINDS:
        raise InvalidArgument(
            f"kind must be one of auto, {', '.join(KINDS)} for a reader/writer lock, not {kind!r}"
        )
    if mode is not None and (type(mode) is not int or not 0 <= mode <= 0o777):
        raise InvalidArgument(f"mode must be a file mode from 0 to 0o777, not {mode!r}")
    if mode is not None and shared:
        raise InvalidArgument("give mode= or shared=True, which means mode 0o666, not both")
    if not isinstance(label, str):
        raise InvalidArgument(f"label must be a str, not {type(label).__name__} {label!r}")


def fill(
    lock: Any,
    name: str,
    mechanism: Mechanism,
    wait: float | None,
    cancel: Any,
    max_hold: float | None,
    reentrant: bool,
) -> None:
    """What LockFace.__init__ does, for a mechanism that is there already."""
    lock._name, lock._mechanism = name, mechanism
    lock._wait = None if wait is None else seconds("wait", wait)
    lock._max_hold = None if max_hold is None else seconds("max_hold", max_hold, zero=False)
    lock._cancel, lock._reentrant = cancel, reentrant
    lock._terms = mechanism.terms if is_leased(mechanism) else None
    lock._leases = []
    lock._far = lock._in_loop and is_far(mechanism)


def refuse_oneself(
    side: Any, answer: Held | Unknown, patience: float | None, thread: int, task: object
) -> None:
    """Raises SelfDeadlock at once when a reader asks to write, or a writer to read.

    That a writer asks to write again is told as of a `Lock`; and that one try by another object
    is refused, by WouldBlock.
    """
    mine = side._other._of_asker(thread, task) is not None
    reads = not side._mechanism.exclusive
    key = getattr(answer, "key", None)
    if not mine and not (reads and patience != 0 and held_by(key, thread, task)):
        return
    who = "this task" if task is not None else "this thread"
    why, remedy = (READ_BESIDE_WRITE, READ_REMEDY) if reads else (UPGRADE, UPGRADE_REMEDY)
    raise refusal(
        SelfDeadlock, side._name, side._mechanism, why.format(who=who), None, following=[remedy]
    )


def moved(lease: Any, found: Grant | Lost | Unknown) -> None:
    """After a downgrade: the lease is its reading side's from here on, or lost, which is raised.

    L6  Where no answer came it is a reader's too, since others may read by now; that is raised.
    """
    writes = lease._lock
    if isinstance(found, Lost):
        lease._forget()
        if found.gone:
            lease._lose(found.reason)
        raise lease._error(found.reason)
    try:
        writes._leases.remove(lease)
    except ValueError:
        pass  # by another thread
    if not isinstance(found, Unknown):
        lease._grant = found
    lease._lock = writes._other
    writes._other._leases.append(lease)
    why = lease._why_not()  # its bound may have passed while the grant was out of hand
    if why is not None:
        lease._grant.handle.clear()
        raise lease._error(why)
    if isinstance(found, Unknown):
        raise StoreUnavailable(
            f"{lease.name!r}: could not learn whether it was downgraded ({found.cause}): it counts "
            "as a reader's from here on, and others may read; until its release the store may keep "
            "them out",
            name=lease.name,
            nonce=found.nonce,
        )


def downgradable(lease: Any) -> Downgradable:
    """The mechanism that turns a writer into a reader. Raises LeaseLost, NotHeld."""
    lock = lease._lock
    if not lock._mechanism.exclusive:
        raise InvalidArgument(f"{lease.name!r} is held for reading: there is nothing to downgrade")
    if lease._depth:
        raise InvalidArgument(
            f"{lease.name!r} is held for writing more than once: the outer block counts on it"
        )
    if isinstance(lost := lease._lost and lease._lost.reason, str):
        raise LeaseLost(f"{lease.name!r} is lost: {lost}", name=lease.name, reason=lost)
    mechanism: Mechanism = lock._mechanism
    assert is_downgradable(mechanism), "the writers' side of a reader/writer lock"
    return mechanism
