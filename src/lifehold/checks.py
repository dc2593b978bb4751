"""What the options of a lock may be, whatever its shape: each is refused by name and value."""

from __future__ import annotations

from .core.deadline import FIRST_NOTICE, seconds
from .core.errors import InvalidArgument
from .runtime import fork

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from . import words
else:
    words = fork.later("lifehold.words", globals())


SOONEST = 0.1  # seconds until who waits is first told, at the least


def notify_of(given: object) -> float | bool:
    """When the wait of a lock is first told. Raises InvalidArgument."""
    if given is False:
        return False
    if given is True or not isinstance(given, int | float) or not given >= SOONEST:
        raise InvalidArgument(
            f"notify must be None (waiters are told after {FIRST_NOTICE:g} s), {SOONEST} seconds "
            f"or more until the first time, or False (told at the level DEBUG alone), not {given!r}"
        )
    return seconds("notify", given) or False


def check_flags(given: dict[str, Any]) -> None:
    """What is True or False, and `cancel`. Raises InvalidArgument."""
    for name in ("reentrant", "exclusive", "record", "cleanup", "shared", "fair", "strict"):
        check_bool(name, given[name])
    if given["self"]._in_loop and given["cancel"] is not None:
        raise InvalidArgument("AsyncLock takes no cancel=: cancel the task that waits instead")
    check_cancel(given["cancel"])


def check_bool(name: str, given: object) -> None:
    """Raises InvalidArgument for what is neither True nor False."""
    if type(given) is not bool:
        raise InvalidArgument(f"{name} must be True or False, not {type(given).__name__} {given!r}")


def check_cancel(given: object) -> None:
    """Raises InvalidArgument for what cannot end a wait."""
    if isinstance(given, type):
        raise InvalidArgument("cancel must be a lifehold.Cancel object: write cancel=Cancel()")
    if given is not None and not (hasattr(given, "attach") and hasattr(given, "cancelled")):
        raise InvalidArgument(
            f"cancel must be a lifehold.Cancel, whose cancel() ends the wait, not {given!r}"
        )


def check_options(mode: object, shared: bool, label: object) -> None:
    """What every lock on a file may be given. Raises InvalidArgument."""
    if mode is not None and (type(mode) is not int or not 0 <= mode <= 0o777):
        raise words.of_mode(mode)
    if mode is not None and shared:
        raise InvalidArgument("give mode= or shared=True, which means mode 0o666, not both")
    if not isinstance(label, str):
        raise InvalidArgument(f"label must be a str, not {type(label).__name__} {label!r}")


def check_record(record: bool, cleanup: bool, exclusive: bool) -> None:
    """Raises InvalidArgument for a file that could not be known to be ours."""
    if cleanup and not (record and exclusive):
        raise InvalidArgument(
            "cleanup=True needs an exclusive lock with a record: only a file "
            "that is known to be lifehold's may be unlinked"
        )
