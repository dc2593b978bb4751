"""How the locks of this face are constructed: one object for a path if asked, options checked.

Rule: an option that a subclass's `__init__` does not take is dropped when it has its default, and
refused when it has not, so that nobody believes in an option that nobody reads.
"""

from __future__ import annotations

import math
import os
import warnings
from abc import ABCMeta
from threading import TIMEOUT_MAX, RLock
from typing import Any, Literal, TypedDict, TypeVar
from weakref import WeakValueDictionary

from ...local.handles import leads_astray
from ...runtime import fork

TYPE_CHECKING = False
if TYPE_CHECKING:
    import inspect
    from collections.abc import Callable

    ExtraValue = Any
else:
    inspect = fork.later("inspect", globals())

_T = TypeVar("_T")
KEYWORDS = 0x08  # CO_VARKEYWORDS
OURS = f"{__package__}."


def canonical(path: str) -> str:
    """One spelling of a path, whose last part may be a symlink that is not followed."""
    folder, name = os.path.split(os.fspath(path))
    if leads_astray(path):
        return os.path.join(os.path.abspath(folder), name)  # L13  no link is believed
    return os.path.join(os.path.realpath(folder or "."), name)


def absolute(path: str) -> str:
    """The path from the root on, for as long as the lock is held: the working folder may change."""
    if not path:
        raise FileNotFoundError(2, os.strerror(2), path)
    return path if path[:1] == "/" else os.path.join(os.getcwd(), path)


class FileLockMeta(ABCMeta):
    """The metaclass of all locks of this face but reader/writer locks.

    An ABCMeta, as filelock's: a lock may have abstract base classes beside ours.
    """

    _instances: WeakValueDictionary[object, object]

    def __init__(
        cls, name: str, bases: tuple[type, ...], space: dict[str, object], **named: object
    ) -> None:
        super().__init__(name, bases, space, **named)
        cls._instances = WeakValueDictionary()
        cls._making: set[tuple[int, str]] = set()  # singletons whose constructors run

    def __call__(
        cls: type[_T],
        lock_file: str | os.PathLike[str],
        timeout: float = -1,
        mode: int = -1,
        thread_local: bool = True,
        *,
        blocking: bool = True,
        is_singleton: bool = False,
        poll_interval: float = 0.05,
        lifetime: float | None = None,
        context_error_policy: ContextErrorPolicy = "chain",
        close_error_policy: CloseErrorPolicy = "default",
        fallback_to_soft: bool = True,
        preserve_lock_file: bool = False,
        on_acquired: Callable[[int], None] | None = None,
        **kwargs: ExtraValue,
    ) -> _T:
        given = {
            "timeout": timeout,
            "mode": mode,
            "thread_local": thread_local,
            "blocking": blocking,
            "is_singleton": is_singleton,
            "poll_interval": poll_interval,
            "lifetime": lifetime,
            "context_error_policy": context_error_policy,
            "close_error_policy": close_error_policy,
            "fallback_to_soft": fallback_to_soft,
            "preserve_lock_file": preserve_lock_file,
            "on_acquired": on_acquired,
        }
        made: _T = construct(cls, lock_file, given, DEFAULTS, kwargs)
        return made


def construct(
    cls: Any,
    path: Any,
    given: dict[str, Any],
    defaults: dict[str, object],
    extra: dict[str, object],
) -> Any:
    """An instance of `cls`, or the one there is for this path."""
    passed = accepted(cls, given, defaults, extra)
    if given["lifetime"] is not None and lifetime(given["lifetime"]) is not None:
        cls._about_lifetime(4)
    if not given["is_singleton"]:
        return type.__call__(cls, path, **passed)
    with turn_of(cls):  # of two threads one makes it
        key = canonical(path)
        found = cls._instances.get((fork.here(), key))  # L9  a child has none of its parent's
        # After chdir(2) it may stand for another file than its key says: then it is not this one.
        if found is not None and canonical(found._context.hold.path or found.lock_file) == key:
            refuse_differing(found, given, extra)
            return found
        begun = fork.generation, key
        if begun in cls._making:
            raise RuntimeError(f"Singleton lock construction is already active for {path!s}")
        cls._making.add(begun)
        try:
            made = type.__call__(cls, path, **passed)
        finally:
            cls._making.discard(begun)
        if begun[0] != fork.here():  # L9  a constructor has forked, and this is the child
            raise RuntimeError(
                "Lock construction cannot continue after fork; construct a new lock in the child"
            )
        made._given = given
        cls._instances[fork.generation, key] = made
        return made


def turn_of(cls: Any) -> Any:
    """Of two threads that make an object of one class one goes first; a child waits for nobody.

    Not the fork gate: what a subclass does in its constructor may take its time.
    """
    turn = cls.__dict__.get("_turn")
    if turn is None or turn[0] != fork.here():
        with fork.gate:
            turn = cls.__dict__.get("_turn")
            if turn is None or turn[0] != fork.generation:
                turn = fork.generation, RLock()
                cls._turn = turn
    return turn[1]


def accepted(
    cls: Any, given: dict[str, Any], defaults: dict[str, object], extra: dict[str, object]
) -> dict[str, object]:
    """What `__init__` can take of it. Raises TypeError for what it cannot, and is not a default."""
    names = parameters(cls)
    if names is None:
        return {**given, **extra}
    refused = [name for name in extra if name not in names]
    refused += [
        name
        for name, value in given.items()
        if name not in names and not (value is defaults[name] or value == defaults[name])
    ]
    if refused:
        names_of = ", ".join(sorted(refused))
        raise TypeError(f"{cls.__name__} does not support non-default lock options: {names_of}")
    return {**{name: value for name, value in given.items() if name in names}, **extra}


def parameters(cls: Any) -> frozenset[str] | None:
    """The names that the constructor takes by keyword; None when it takes any."""
    function = cls.__init__
    if cls.__module__.startswith(OURS):
        code = function.__code__
        if code.co_flags & KEYWORDS:
            return None
        return frozenset(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
    known = cls.__dict__.get("_taken")
    if known is None or known[0] is not function:
        known = cls._taken = function, signed(function)
    return known[1]  # type: ignore[no-any-return]


def signed(function: Any) -> frozenset[str] | None:
    """The same of any callable, of what a decorator wraps too. Takes 10 us, and an import."""
    each = inspect.signature(function).parameters.values()
    if any(one.kind is one.VAR_KEYWORD for one in each):
        return None
    return frozenset(
        one.name for one in each if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
    )


def refuse_differing(found: Any, given: dict[str, object], extra: dict[str, object]) -> None:
    """Raises ValueError when the instance has other options by now than are asked for."""
    asked = {**given, "lifetime": lifetime(given["lifetime"])}
    if not found._lifetime_supported:
        asked["lifetime"] = None
    differing = []
    for name, value in asked.items():
        had = current(found, name)
        if name == "timeout":
            same = same_wait(had) == same_wait(value)
        elif name == "on_acquired":
            same = had is value
        else:
            same = had == value
        if not same:
            differing.append(f"\t{name} (existing lock has {had} but {value} was passed)")
    for name, had, value in found._differing(extra):
        differing.append(f"\t{name} (existing lock has {had} but {value} was passed)")
    if differing:
        raise ValueError(
            "Singleton lock instances cannot be initialized with differing arguments:\n"
            + "\n".join(differing)
        )


SETTABLE = ("timeout", "blocking", "poll_interval", "lifetime")


def current(found: Any, name: str) -> Any:
    """An option as it is now: some can be set after the making."""
    return getattr(found, name) if name in SETTABLE else found._given[name]


# ------------------------------------------------------------------------------------------------
# The options that every lock of this face takes, and what each may be.
#
# Rule: a wrong value is refused where it is given, with its name in the text.


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


DEFAULTS: dict[str, object] = {
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


def from_text(name: str, value: object) -> float:
    """The same for a setter, which still takes a numeric string."""
    if isinstance(value, str | bytes):
        text = f"setting {name} from a string is deprecated, use a number of seconds"
        warnings.warn(text, DeprecationWarning, stacklevel=3)
        return float(value)
    return seconds(name, value)


def poll(value: object) -> float:
    """A pause between two tries, in seconds."""
    found = seconds("poll_interval", value)
    if not (math.isfinite(found) and found >= 0):
        raise ValueError(f"poll_interval must be finite and non-negative, not {value}")
    if found > TIMEOUT_MAX:
        raise ValueError(f"poll_interval must not exceed threading.TIMEOUT_MAX ({TIMEOUT_MAX:g} s)")
    return found


def lifetime(value: object) -> float | None:
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


def boolean(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be a bool, not {type(value).__name__}")
    return value


def file_mode(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"mode must be an int, not {type(value).__name__}")
    if value == UNSET_FILE_MODE:
        return value
    if not 0 <= value <= 0o777:
        raise ValueError(f"mode must be within 0o000-0o777, not {value:#o}")
    if value & 0o600 != 0o600:
        raise ValueError(f"mode {value:#o} must grant the owner read and write")
    return value


def policy(name: str, value: object, known: tuple[str, ...]) -> str:
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, known))}, not {value!r}")
    return str(value)


def same_wait(value: object) -> object:
    """A timeout reduced to what it means, for comparing two."""
    found = seconds("timeout", value)
    if math.isnan(found):
        return "nan"
    return -1.0 if found < 0 or math.isinf(found) else found
