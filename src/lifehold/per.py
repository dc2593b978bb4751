"""`Lock.per("user-{user_id}.lock")`: a lock for each value of an argument.

    @Lock.per("locks/user-{user_id}.lock", wait=5)
    def rename(user_id: int, name: str) -> None: ...

Promise: two calls lock the same file exactly when the named arguments have the same values, and no
value leads out of the folder of its template. Rule: a value is written into the name so that it can
be read back: letters and digits as they are, all else that may mean something as %XX of its UTF-8;
what stands between two values is never part of one. What would be too long is refused, never cut.
"""

from __future__ import annotations

import os

from .core.deadline import seconds
from .core.errors import InvalidArgument, UnknownArgument
from .described import OtherFace, takes_paths
from .runtime import fork

TYPE_CHECKING = False
if TYPE_CHECKING:
    import inspect
    import string
    import uuid
    import weakref
    from collections.abc import Awaitable, Callable, Coroutine, Mapping
    from types import EllipsisType
    from typing import Any, Never, ParamSpec, TypeVar

    from . import decorated, words
    from .core import mask

    P = ParamSpec("P")
    R = TypeVar("R")
else:
    decorated = fork.later("lifehold.decorated", globals())
    mask = fork.later("lifehold.core.mask", globals())
    inspect = fork.later("inspect", globals())
    string = fork.later("string", globals())
    uuid = fork.later("uuid", globals())
    weakref = fork.later("weakref", globals())
    words = fork.later("lifehold.words", globals())

LONGEST = 240  # bytes of a name: of 255, room for the files beside a lock
_ALWAYS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")
_MAY = frozenset("_-.@+=,")
_OURS = "lifehold."  # the module of a class that is no user's
_PASS_ON = frozenset({"functools", "contextlib", "_lru_cache_wrapper"})  # a partial adds its own
_STARS = frozenset({2, 4})  # kinds of a parameter: VAR_POSITIONAL, VAR_KEYWORD
_EXAMPLE = 'Lock.per("user-{user_id}.lock")'


class Template:
    """A text with the names of arguments in braces. Raises InvalidArgument."""

    __slots__ = ("fields", "parts", "safe", "text")

    def __init__(self, text: object) -> None:
        if not isinstance(text, str):
            raise InvalidArgument(
                f"a template must be a str, not {type(text).__name__} {text!r}: {_EXAMPLE}"
            )
        self.text = text
        self.parts: list[tuple[str, str]] = []  # (what stands before, the name of a field or "")
        try:
            for before, field, spec, conversion in string.Formatter().parse(text):
                if field is not None and (spec or conversion or not field.isidentifier()):
                    shown = field + (f"!{conversion}" if conversion else "")
                    shown += f":{spec}" if spec else ""
                    raise InvalidArgument(
                        f"{{{shown}}} in the template {text!r} must be the plain name of a "
                        f"parameter, without index, attribute or format: {_EXAMPLE}"
                    )
                self.parts.append((before, field or ""))
        except ValueError as error:
            if isinstance(error, InvalidArgument):
                raise
            raise InvalidArgument(_torn(text, error)) from error
        self.fields = [field for _, field in self.parts if field]
        if not self.fields:
            raise InvalidArgument(
                f"the template {text!r} names no argument, so all calls would share one lock: "
                f"name one, as in {_EXAMPLE}, or use Lock({text!r})"
            )
        self.safe = _ALWAYS | (_MAY - self._between())

    def _between(self) -> set[str]:
        """What tells two values apart is never written as itself in one."""
        found: set[str] = set()
        joined, seen = "", False
        for before, field in self.parts:
            joined += before
            if not field:
                continue
            if seen and not {*joined} - _ALWAYS - {"%"}:
                raise InvalidArgument(
                    f"nothing in the template {self.text!r} tells {{{field}}} from the value "
                    "before it, so two pairs of values would be one lock: write a dash between them"
                )
            if seen:
                found |= {*joined}
            joined, seen = "", True
        return found

    def filled(self, values: Mapping[str, object]) -> str:
        """The name for these values. Raises InvalidArgument."""
        made = "".join(
            before + (self._encoded(field, values[field]) if field else "")
            for before, field in self.parts
        )
        longest = max(len(part.encode("utf-8", "surrogatepass")) for part in made.split("/"))
        if longest > LONGEST:
            raise InvalidArgument(
                f"the values of {', '.join(self.fields)} make a name of {longest} bytes, {LONGEST} "
                "at most: it is not cut, since two values would then be one lock; name the lock by "
                "something shorter, for example a key or a digest"
            )
        return made

    def _encoded(self, field: str, given: object) -> str:
        text = _text(field, given)
        if not text:
            raise InvalidArgument(f"{field} is empty: it names no lock")
        safe = self.safe
        made = "".join(
            char if char in safe else "".join(f"%{byte:02X}" for byte in _bytes(char))
            for char in text
        )
        made = f"%2E{made[1:]}" if made[0] == "." else made  # not hidden, and no `..`
        # Behind the # of a URL %XX is read once, and has to be %XX still.
        return made.replace("%", "%25") if "://" in self.text else made


def _torn(text: str, error: ValueError) -> str:
    """What is said of a template whose braces do not fit."""
    _, opened, inside = text.rpartition("{")
    name = inside.partition(".")[0].partition("-")[0].partition("/")[0]
    cure = "{{ or }} is a brace itself"
    if opened and "}" not in inside and name.isidentifier():
        cure = f"close it: {{{name}}}; {{{{ is a brace itself"
    return f"the template {text!r} cannot be read ({error}): {cure}"


def _bytes(char: str) -> bytes:
    return char.encode("utf-8", "surrogatepass")


def _text(field: str, given: object) -> str:
    if isinstance(given, str):
        return str.__str__(given)
    if isinstance(given, int) and not isinstance(given, bool):
        try:
            return int.__repr__(given)
        except ValueError as error:  # more digits than Python writes
            raise InvalidArgument(f"{field} is too long to name a lock: {error}") from error
    if isinstance(given, uuid.UUID):
        return str(given)
    shown = "..." if mask.names_a_secret(field) else mask.masked_urls(repr(given))[:60]  # L11
    raise InvalidArgument(
        f"{field} must be a str, int or UUID to name a lock, not {type(given).__name__} {shown}: "
        "give its id"
    )


def _faces(owner: type | str, call: str) -> tuple[str, str]:
    """The decorator, and the one for functions of the other sort."""
    if isinstance(owner, str):
        other = "connect" if owner == "aconnect" else "await aconnect"
        return f"store.{call}", f"store.{call} with `store = {other}(URL)`"
    name = next(each.__name__ for each in owner.__mro__ if each.__module__.startswith(_OURS))
    bare = name.removeprefix("Async")
    return f"{name}.{call}", f"{bare if name != bare else f'Async{name}'}.{call}"


def _passing(function: Any) -> Any:
    """What takes the arguments as they are given: below wrappers that are known to hand them on."""
    while hasattr(function, "__wrapped__"):
        made_in = getattr(function, "__globals__", {}).get("__name__", type(function).__name__)
        if made_in not in _PASS_ON and not made_in.startswith(_OURS):
            break
        function = function.__wrapped__
    return function


def _has_below(function: Callable[..., object], field: str) -> bool:
    """Whether a wrapped function has the parameter, which its wrapper may fill otherwise."""
    found = inspect.signature(function).parameters.get(field)
    return found is not None and found.kind not in _STARS


class PerArguments:
    """What `per()` of a blocking lock answers: a decorator, and `of(...)` for one lock."""

    __slots__ = ("_faces", "_folder", "_kept", "_make", "_template")
    if not TYPE_CHECKING:
        __enter__ = __aenter__ = acquire = try_acquire = attempt = OtherFace(
            "it is a template and no lock: decorate a function, or `with that.of(NAME=VALUE):`"
        )

    def __init__(
        self,
        template: str,
        make: Callable[[str], object],
        owner: type | str,
        *,
        call: str = "per",
        keep: bool = False,
    ) -> None:
        self._template, self._make = Template(template), make
        self._faces = _faces(owner, call)
        self._kept: Any = weakref.WeakValueDictionary() if keep else None  # for `reentrant`
        try:  # checks the options
            make(self._template.filled(dict.fromkeys(self._template.fields, "x")))
        except UnknownArgument as error:
            _, takes, what = error.text.partition("() takes no ")
            if not takes:
                raise
            raise UnknownArgument(f"{self._faces[0]}{takes}{what}") from error
        relative = takes_paths(owner) and "://" not in template and not os.path.isabs(template)
        self._folder = os.getcwd() if relative else ""  # as of a lock: that in which it was made

    def of(self, /, *given: Never, **values: object) -> Any:
        """The lock for these values, by name. Raises InvalidArgument."""
        wanted = {*self._template.fields}
        if given:
            pairs = zip(self._template.fields, [*given, *["..."] * len(wanted)], strict=False)
            cure = ", ".join(f"{name}={mask.masked_urls(repr(value))}" for name, value in pairs)
            raise UnknownArgument(f".of() takes names: of({cure})")
        if {*values} != wanted:
            names = ", ".join(f"{name}=" for name in self._template.fields)
            raise InvalidArgument(
                f"the template {self._template.text!r} needs {names} and nothing else"
            )
        name = self._template.filled(values)
        if self._kept is None:
            return self._made(name)
        found = self._kept.get(name)
        if found is None:
            made = self._made(name)
            fork.here()
            with fork.gate:  # of two threads that ask one makes it
                found = self._kept.get(name)
                if found is None:
                    self._kept[name] = found = made
        return found

    def _made(self, name: str) -> Any:
        """The lock in the folder of the template, called as the template says."""
        path = os.path.join(self._folder, name)
        lock: Any = self._make(path)
        if path != name and not lock._given[1].get("singleton"):  # that one may be in use already
            for each in (lock._reads, lock._writes) if hasattr(lock, "_writes") else (lock,):
                each._name = name
        return lock

    def _block(self, function: Callable[P, object]) -> Callable[..., object]:
        """Makes the block of one call."""
        signature = inspect.signature(_passing(function), follow_wrapped=False)
        fields = self._template.fields
        for field in fields:
            found = signature.parameters.get(field)
            if (found is None or found.kind in _STARS) and _has_below(function, field):
                raise InvalidArgument(
                    f"{{{field}}} in the template {self._template.text!r} is a parameter of "
                    f"{getattr(function, '__name__', function)!r}, and none of what wraps it, "
                    f"which may pass another value on: put @{self._faces[0]} below the decorator "
                    "that wraps it, next to `def`"
                )
            if found is not None and found.kind in _STARS:
                stars = "*" if found.kind is found.VAR_POSITIONAL else "**"
                raise InvalidArgument(
                    f"{{{field}}} in the template {self._template.text!r} is {stars}{field}, many "
                    f"values: name a plain parameter of {getattr(function, '__name__', function)!r}"
                )
            if found is None:
                known = ", ".join(signature.parameters) or "none"
                raise InvalidArgument(
                    f"{{{field}}} in the template {self._template.text!r} is no parameter of "
                    f"{getattr(function, '__name__', function)!r}, which has {known}"
                )

        def block(args: tuple[object, ...], kwargs: Mapping[str, object]) -> object:
            try:
                bound = signature.bind(*args, **kwargs)
            except TypeError as error:  # as Python says it of the function itself
                name = getattr(function, "__qualname__", repr(function))
                raise TypeError(f"{name}() {error}") from None
            bound.apply_defaults()
            return self._block_of(self.of(**{field: bound.arguments[field] for field in fields}))

        return block

    def _block_of(self, lock: object) -> object:
        return lock

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Decorator: each call of `function` holds the lock that its arguments name."""
        decorated.refuse_unfit(function, self._faces[0])
        return decorated.blocking(function, self._block(function), *self._faces)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._template.text!r}>"


class AsyncPerArguments(PerArguments):
    """What `per()` of an async lock answers: a decorator of coroutine functions."""

    __slots__ = ()
    if TYPE_CHECKING:

        def __call__(  # type: ignore[override]
            self, function: Callable[P, Awaitable[R]]
        ) -> Callable[P, Coroutine[object, None, R]]: ...

    else:

        def __call__(self, function):
            decorated.refuse_unfit(function, self._faces[0])
            return decorated.awaiting(function, self._block(function), *self._faces)


class OneSide(PerArguments):
    """The readers, or the writers, for each value."""

    __slots__ = ("_side",)

    def __init__(
        self, whole: ReadWritePer | AsyncReadWritePer, side: str, wait: float | None | EllipsisType
    ) -> None:
        self._template, self._make, self._kept = whole._template, whole._make, whole._kept
        self._faces, self._folder, self._side = whole._faces, whole._folder, (side, wait)

    def _block_of(self, lock: object) -> object:
        side, wait = self._side
        return getattr(lock, side)(wait)


class AsyncOneSide(OneSide):
    """The same for coroutine functions."""

    __slots__ = ()
    if TYPE_CHECKING:

        def __call__(  # type: ignore[override]
            self, function: Callable[P, Awaitable[R]]
        ) -> Callable[P, Coroutine[object, None, R]]: ...

    else:
        __call__ = AsyncPerArguments.__call__


class AsyncReadWritePer(PerArguments):
    """The same for coroutine functions."""

    __slots__ = ()

    def reading(self, wait: float | None | EllipsisType = ..., **unknown: Never) -> AsyncOneSide:
        """A decorator: each call reads what its arguments name."""
        _check_wait("reading()", wait, unknown)
        return AsyncOneSide(self, "reading", wait)

    def writing(self, wait: float | None | EllipsisType = ..., **unknown: Never) -> AsyncOneSide:
        """A decorator: each call writes what its arguments name."""
        _check_wait("writing()", wait, unknown)
        return AsyncOneSide(self, "writing", wait)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Raises InvalidArgument: it does not say which side."""
        raise refuse_side()


class ReadWritePer(PerArguments):
    """What `ReadWriteLock.per()` answers: `@that.reading()`, `@that.writing()`."""

    __slots__ = ()

    def reading(self, wait: float | None | EllipsisType = ..., **unknown: Never) -> OneSide:
        """A decorator: each call reads what its arguments name."""
        _check_wait("reading()", wait, unknown)
        return OneSide(self, "reading", wait)

    def writing(self, wait: float | None | EllipsisType = ..., **unknown: Never) -> OneSide:
        """A decorator: each call writes what its arguments name."""
        _check_wait("writing()", wait, unknown)
        return OneSide(self, "writing", wait)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Raises InvalidArgument: it does not say which side."""
        raise refuse_side()


def _check_wait(call: str, wait: object, unknown: dict[str, Never]) -> None:
    """Told when it is decorated, not at the first call."""
    if unknown:
        raise words.unknown(call, unknown, ("wait",))
    if callable(wait):
        raise words.not_called(call.removesuffix("()"), wait, "that")
    if wait is not ...:
        seconds("wait", wait)


def refuse_side() -> InvalidArgument:
    """The error for a decorator that does not say whether it reads."""
    return InvalidArgument("a function reads or writes: write @that.reading() or @that.writing()")
