"""Functions that hold a lock while they run, and nothing that would only seem to.

Promise: what is decorated runs under the lock from its first line to its last one, or is refused
when it is decorated, or, where that cannot be seen before, when it is called. A generator, what
contextlib makes of one, a coroutine, and a future that is not done would run when the lock is free
again. Only their types are looked at: an answer may be a proxy, which a look would evaluate. What
can be awaited and is none of these is an answer, as a client or a proxy that has `__await__`.
"""

from __future__ import annotations

import functools
import sys

from .core.errors import InvalidArgument

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from typing import Any, ParamSpec, TypeVar

    P = ParamSpec("P")
    R = TypeVar("R")

_GENERATOR, _ASYNC_GENERATOR, _COROUTINE = 0x20, 0x200, 0x80  # flags of a code object
_LATER = {
    "generator": "a generator",
    "coroutine": "a coroutine",
    "async_generator": "an async generator",
    "_GeneratorContextManager": "a context manager",
    "_AsyncGeneratorContextManager": "an async context manager",
}
_OF_A_COROUTINE = ("__await__", "send", "throw", "close")  # one written as a class, or compiled


def blocking(
    function: Callable[P, R], block: Callable[..., Any], face: str, other: str
) -> Callable[P, R]:
    """`function`, each call of which is made in a block; `block(args, kwargs)` makes it.

    `face`, `other`: the decorator, and the one for coroutine functions.
    """
    refuse_unfit(function, face)
    if is_coroutine_function(function):
        raise InvalidArgument(
            f"@{face} on the coroutine function {_name(function)!r} would lock its creation and "
            f"not its run: use @{other}"
        )

    def locked(*args: P.args, **kwargs: P.kwargs) -> R:
        with block(args, kwargs):
            got = function(*args, **kwargs)
            if (later := _later(got)) is not None:
                raise _too_late(function, later)
            return got

    functools.update_wrapper(locked, function)
    return locked


def awaiting(
    function: Callable[P, Awaitable[R]], block: Callable[..., Any], face: str, other: str
) -> Callable[P, Coroutine[object, None, R]]:
    """The same of a coroutine function; `other`: the decorator for plain ones."""
    refuse_unfit(function, face)
    if not is_coroutine_function(function):
        if is_coroutine_function(getattr(function, "__wrapped__", None)):
            raise InvalidArgument(
                f"@{face} on {_name(function)!r}: what wraps that coroutine function is a plain "
                f"function: put @{face} below the decorator that wraps it, next to `async def`"
            )
        raise InvalidArgument(
            f"@{face} on {_name(function)!r}, which is no coroutine function: use @{other}"
        )

    async def locked(*args: P.args, **kwargs: P.kwargs) -> R:
        async with block(args, kwargs):
            got = await function(*args, **kwargs)
            if (later := _later(got)) is not None:
                raise _too_late(function, later)
            return got

    functools.update_wrapper(locked, function)
    return locked


def is_coroutine_function(function: object) -> bool:
    """Whether calling it makes a coroutine."""
    if _flags(function) & _COROUTINE:
        return True
    inspect = sys.modules.get("inspect")  # who marks a function as one has loaded it
    return inspect is not None and inspect.iscoroutinefunction(function)


def refuse_generators(function: object) -> None:
    """A decorated generator would hold the lock while it is made, and not while it runs."""
    flags = _flags(function) | _flags_of_context(function)
    if flags & (_GENERATOR | _ASYNC_GENERATOR):
        word = "async with" if flags & _ASYNC_GENERATOR else "with"
        raise InvalidArgument(
            f"a lock on the generator function {_name(function)!r} would be held while the "
            f"generator is made and not while it runs: use `{word}` inside of it"
        )


def refuse_unfit(function: object, face: str) -> None:
    """Raises InvalidArgument for what is no function that a lock can be held for."""
    if isinstance(function, type):
        raise InvalidArgument(
            f"@{face} on the class {function.__name__!r} would lock the making of its objects "
            "alone: decorate its methods"
        )
    if isinstance(function, staticmethod | classmethod | property):
        kind = type(function).__name__
        raise InvalidArgument(f"@{face} on a {kind}: write @{kind} above it, and the lock below")
    if not callable(function):
        raise InvalidArgument(
            f"@{face} decorates a function, not {type(function).__name__} {function!r}"
        )
    refuse_generators(function)


def _later(got: object) -> str | None:
    """What would run when the lock is free again; None for what has ended."""
    kind = type(got)
    if kind.__name__ in _LATER:
        return _LATER[kind.__name__]
    if _has_all(kind, _OF_A_COROUTINE):
        return f"a coroutine, {kind.__name__}"
    if _is_future(kind) and not _is_done(got):
        return f"a {kind.__name__} that is not done"
    return None


def _is_future(kind: type) -> bool:
    """Of asyncio by the mark that it tells its own by; of concurrent.futures by its class."""
    futures = sys.modules.get("concurrent.futures")  # who made one has loaded it
    plain = getattr(futures, "Future", None)
    return any(each is plain for each in kind.__mro__) or _has_all(
        kind, ("_asyncio_future_blocking",)
    )


def _has_all(kind: type, names: tuple[str, ...]) -> bool:
    """Of itself: a metaclass may have an attribute for every name."""
    return all(any(name in vars(each) for each in kind.__mro__) for name in names)


def _is_done(got: object) -> bool:
    done = getattr(got, "done", None)  # a future for certain: it may be asked
    return done is not None and bool(done())


def _too_late(function: object, later: str) -> InvalidArgument:
    """What was answered is left as it is: others may have it, as a task that was made of it."""
    return InvalidArgument(
        f"{_name(function)!r} answered {later}, which would run when its lock is free again: use "
        "`with` inside of it, or wait for it before it is answered"
    )


def _name(function: object) -> object:
    return getattr(function, "__name__", function)


def _flags(function: Any) -> int:
    function = _whole(function)
    code = getattr(function, "__code__", None)
    if code is None:  # an object that can be called
        calls = (vars(each).get("__call__") for each in type(function).__mro__)
        code = getattr(next(filter(None, calls), None), "__code__", None)
    return getattr(code, "co_flags", 0)


def _flags_of_context(function: Any) -> int:
    """Those of the generator function below `@contextmanager`, which answers no generator."""
    function = _whole(function)
    made_in = getattr(function, "__globals__", {}).get("__name__")  # `__module__` was copied
    return _flags(getattr(function, "__wrapped__", None)) if made_in == "contextlib" else 0


def _whole(function: Any) -> Any:
    while type(function).__name__ == "partial":  # of functools; a mock has a `func` without end
        function = function.func
    return function
