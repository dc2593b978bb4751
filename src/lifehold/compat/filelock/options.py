"""The options that every lock of this face takes, and what each may be.

Rule: a wrong value is refused where it is given, with its name in the text.
"""

from __future__ import annotations

import math
from threading import TIMEOUT_MAX
from typing import Any, Literal, TypedDict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

ContextErrorPolicy = Literal["chain", "group"]
CloseErrorPolicy = Literal["default", "raise", "suppress"]

UNSET_FILE_MODE = -1
DEFAULT_POLL = 0.05  # seconds; left alone, waits are ended by events
LEAST = 5e-324  # the smallest float above zero


class LockOptions(TypedDict, total=False):
    """What a constructor takes beside the path."""

    timeout: float
    mode: int
    thread_local: bool
    blocking: bool
    is_singleton: bool
    poll_interval: float
    lifetime: float | None
    context_error_policy: ContextErrorPolicy
    close_error_policy: CloseErrorPolicy
    fallback_to_soft: bool
    preserve_lock_file: bool
    on_acquired: Callable[[int], None] | None


DEFAULTS: dict[str, Any] = {
    "timeout": -1,
    "mode": UNSET_FILE_MODE,
    "thread_local": True,
    "blocking": True,
    "is_singleton": False,
    "poll_interval": DEFAULT_POLL,
    "lifetime": None,
    "context_error_policy": "chain",
    "close_error_policy": "default",
    "fallback_to_soft": True,
    "preserve_lock_file": False,
    "on_acquired": None,
}


def seconds(name: str, value: Any) -> float:
    """A number of seconds as a float; nan stays nan. Raises TypeError, ValueError."""
    if type(value) is float:
        return value
    if isinstance(value, bool | str | bytes | bytearray) or not hasattr(type(value), "__float__"):
        raise TypeError(f"{name} must be a number of seconds, not {type(value).__name__}")
    try:
        found = float(value)
    except OverflowError:
        raise ValueError(f"{name} is too large to be a number of seconds") from None
    except ValueError:
        return math.nan  # a signaling nan of decimal
    if found == 0 and value < 0:
        return -LEAST  # the sign says "without a limit"
    return found


def from_text(name: str, value: Any) -> float:
    """The same for a setter, which still takes a numeric string."""
    if isinstance(value, str | bytes):
        import warnings

        text = f"setting {name} from a string is deprecated, use a number of seconds"
        warnings.warn(text, DeprecationWarning, stacklevel=3)
        return float(value)
    return seconds(name, value)


def poll(value: Any) -> float:
    """A pause between two tries, in seconds."""
    found = seconds("poll_interval", value)
    if not (math.isfinite(found) and found >= 0):
        raise ValueError(f"poll_interval must be finite and non-negative, not {value}")
    if found > TIMEOUT_MAX:
        raise ValueError(f"poll_interval must not exceed threading.TIMEOUT_MAX ({TIMEOUT_MAX:g} s)")
    return found


def lifetime(value: Any) -> float | None:
    """An age in seconds, or None."""
    if value is None:
        return None
    if type(value) is int:
        found: float = value  # however large
    else:
        found = seconds("lifetime", value)
    if (type(found) is float and not math.isfinite(found)) or found < 0:
        raise ValueError(f"lifetime must be finite and non-negative, not {value}")
    return found


def boolean(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be a bool, not {type(value).__name__}")
    return value


def file_mode(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"mode must be an int, not {type(value).__name__}")
    if value == UNSET_FILE_MODE:
        return value
    if not 0 <= value <= 0o777:
        raise ValueError(f"mode must be within 0o000-0o777, not {value:#o}")
    if value & 0o600 != 0o600:
        raise ValueError(f"mode {value:#o} must grant the owner read and write")
    return value


def policy(name: str, value: Any, known: tuple[str, ...]) -> str:
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, known))}, not {value!r}")
    return str(value)


def same_wait(value: Any) -> Any:
    """A timeout reduced to what it means, for comparing two."""
    found = seconds("timeout", value)
    if math.isnan(found):
        return "nan"
    return -1.0 if found < 0 or math.isinf(found) else found
