"""Lock objects as descriptions: copied, pickled, and with `singleton=True` one for one file.

Promise: two calls with the same path, however it is written, and the same options answer the same
object, as long as somebody keeps it; other options are refused by name. So code in several places
shares one object and, with `reentrant=True`, may nest. Rule: the object is found under its
canonical path, without symbolic links in its folders; the file itself is never followed (L7).
"""

from __future__ import annotations

import os
from _weakref import ref
from abc import ABCMeta

from .core.errors import InvalidArgument
from .runtime import fork

TYPE_CHECKING = False
if TYPE_CHECKING:
    import inspect
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any, SupportsIndex, TypeVar

    from . import words
    from .local import handles

    F = TypeVar("F", bound=Callable[..., object])
else:
    inspect = fork.later("inspect", globals())
    handles = fork.later("lifehold.local.handles", globals())
    words = fork.later("lifehold.words", globals())


OVERRIDDEN = "lifehold.overridden:follow"  # loaded for a class that needs it
_known: dict[tuple[type, str], tuple[ref[object], tuple[object, ...], dict[str, object]]] = {}


def canonical(path: str) -> str:
    """The path without symbolic links in its folders; the file itself is never followed (L7)."""
    if "://" in path:
        return path  # the name of a store's lock
    if handles.leads_astray(path):
        return os.path.abspath(path)  # L13  a link that stands there for a moment is not believed
    folder, name = os.path.split(path)
    return os.path.join(os.path.realpath(folder), name)


class SingletonMeta(ABCMeta):
    """The class of lock classes: looks for the one object when it is asked for it.

    It is an ABCMeta, so that a class may be a lock and abstract. A class that overrides `acquire`
    or `release` gets `with` blocks that call them.
    """

    def __init__(cls, name: str, bases: tuple[type, ...], names: dict[str, object]) -> None:
        super().__init__(name, bases, names)
        if any(_is_overridden(cls, *each) for each in _OF_BLOCKS):
            module, _, follow = OVERRIDDEN.partition(":")
            getattr(fork.lazily(module), follow)(
                cls, [enter for enter in _ENTERS if is_real(cls, enter)]
            )

    def __dir__(cls) -> list[str]:
        return listed(cls, super().__dir__())

    @property
    def __signature__(cls) -> object:
        """For `help()`: that of `__init__`, not of `__call__`."""
        made = next(vars(each)["__init__"] for each in cls.__mro__ if "__init__" in vars(each))
        _, *parameters = inspect.signature(made).parameters.values()
        return inspect.Signature(parameters)

    if not TYPE_CHECKING:  # a class whose calls are of `__init__` for type checkers

        def __call__(cls, *given: object, singleton: bool = False, **options: object) -> object:
            if singleton is not False:
                if singleton is not True:
                    kind = type(singleton).__name__
                    raise InvalidArgument(
                        f"singleton must be True or False, not {kind} {singleton!r}"
                    )
                return _the_one(cls, given, options)
            try:
                made = type.__call__(cls, *given, **options)
            except TypeError as error:
                why = words.of_call(cls.__init__, cls.__name__, given, options)
                if why is None:
                    raise
                raise why from error
            made._given = given, options
            return made


_COROUTINE = 0x80  # flag of the code of `async def`


def explained(call: str, example: str, more: str = "", others: str = "") -> Callable[[F], F]:
    """Decorator: arguments that do not fit are told in words, with `example` of a right call.

    `more`: what to write instead of a number, `{value}`, that is one too many by position;
    `others`: instead of another value, where `{all}` are all that were given.
    """

    def decorate(function: F) -> F:
        def refused(error: TypeError, given: tuple[object, ...], options: Any) -> TypeError:
            if error.__traceback__ is not None and error.__traceback__.tb_next is not None:
                return error  # of a line of its own: the arguments did fit
            told = words.of_function(function, call, given, options, example, more, others)
            return error if told is None else told

        def called(*given: object, **options: object) -> object:
            try:
                return function(*given, **options)
            except TypeError as error:
                if (why := refused(error, given, options)) is error:
                    raise
                raise why from error

        async def awaited(*given: object, **options: object) -> object:
            try:
                return await function(*given, **options)  # type: ignore[misc]
            except TypeError as error:
                if (why := refused(error, given, options)) is error:
                    raise
                raise why from error

        made = awaited if function.__code__.co_flags & _COROUTINE else called
        for name in ("__module__", "__name__", "__qualname__", "__doc__"):
            setattr(made, name, getattr(function, name))
        made.__wrapped__ = function  # type: ignore[attr-defined]
        return made  # type: ignore[return-value]

    return decorate


_ENTERS = ("__enter__", "__aenter__")
# What a `with` block of a lock stands for, and the method that a class may override.
_OF_BLOCKS = (
    ("acquire", "__enter__"),
    ("release", "__exit__"),
    ("acquire", "__aenter__"),
    ("release", "__aexit__"),
)


def is_real(cls: type, block: str) -> bool:
    """Whether blocks of this face are offered by a class."""
    found = (vars(one)[block] for one in cls.__mro__ if block in vars(one))
    return not isinstance(next(found, ABSENT), OtherFace)


def _is_overridden(cls: type, method: str, block: str) -> bool:
    """Whether `method` is of a class that comes before the one whose `block` calls another."""
    for each in cls.__mro__:
        if block in each.__dict__:
            return False
        if method in each.__dict__:
            return is_real(cls, block)
    return False


class WrongFace(TypeError, AttributeError):
    """`with` where `async with` is meant, or the other way. For `hasattr` it is not there."""


class OtherFace:
    """`__enter__` of what is for `async with`, and the like: says what to write instead."""

    __slots__ = ("_words",)

    def __init__(self, words: str) -> None:
        self._words = words

    def __get__(self, one: object, kind: type) -> object:
        text = self._words
        if "{other}" in text:
            text = text.replace("{other}", _twin(one, kind))
        raise WrongFace(f"{kind.__name__}: {text}")


class Foreign(OtherFace):
    """A member that locks of other libraries have: says what does the same here."""

    __slots__ = ("_name",)

    def __init__(self, name: str, words: str) -> None:
        super().__init__(words)
        self._name = name

    def __get__(self, one: object, kind: type) -> object:
        for_tasks = any(each.__name__.startswith("Async") for each in kind.__mro__)
        block = "async with" if for_tasks else "with"
        words = self._words.replace("{with}", block)
        raise AttributeError(f"{kind.__name__} has no {self._name}: {words}")


def _of_lease(block: str) -> dict[str, str]:
    """The members of a lease -> where it comes from, for who asks its lock."""
    calls = "check verify remaining".split()
    plain = "held lost token token_reason nonce renewals acquired_at".split()
    words = f"it is of the lease: `{{with}} {block} as lease:`, then lease."
    return {name: words + name for name in plain} | {name: f"{words}{name}()" for name in calls}


_RENEWS = "a lease renews itself while it is held, see ttl="
OF_LOCK = {  # what leases and locks of other libraries have -> what does the same here
    **_of_lease("lock"),
    **dict.fromkeys(("is_locked", "is_held"), "call locked()"),
    **dict.fromkeys(("owned", "i_am_locking"), "read lease: the one of this thread or task"),
    **dict.fromkeys(("extend", "reacquire", "renew", "refresh"), _RENEWS),
    "lock": "call acquire()",
    "unlock": "call release()",
    **dict.fromkeys(("trylock", "try_lock"), "call try_acquire()"),
    "lock_file": "read path",
    "lock_counter": "each acquire() makes a lease of its own",
    "timeout": "give wait= when it is made, or to acquire()",
}
OF_SIDES = {
    **_of_lease("lock.writing()"),
    **dict.fromkeys(("read_lock", "read", "acquire_read_lock"), "call reading()"),
    **dict.fromkeys(("write_lock", "write", "acquire_write_lock"), "call writing()"),
    **dict.fromkeys(("release_read", "release_write"), "call release()"),
    "downgrade": "it is of the lease: lease.downgrade()",
    **{name: OF_LOCK[name] for name in ("is_locked", "owned", "unlock", "lock_file", "timeout")},
    **dict.fromkeys(("extend", "renew", "refresh"), _RENEWS),
}
OF_LEASE = {
    **{name: f"it is of the lock: lock.{name}()" for name in ("acquire", "try_acquire", "attempt")},
    **{name: f"it is of the lock: lock.{name}()" for name in ("holder", "reading", "writing")},
    **dict.fromkeys(("extend", "reacquire", "renew", "refresh"), "it renews itself, see ttl="),
    **dict.fromkeys(("locked", "is_locked", "is_held", "owned"), "read held"),
    "unlock": "call release()",
}


def strange(cls: type, members: Mapping[str, str]) -> None:
    """Give a class what says which of its members does what those of other libraries do."""
    for name, cure in members.items():
        setattr(cls, name, Foreign(name, cure))
    cls.__dir__ = _members  # type: ignore[assignment, method-assign]


def _members(one: object) -> list[str]:
    return listed(one, object.__dir__(one))


def listed(one: object, names: Iterable[str]) -> list[str]:
    """For `dir()`: without those."""
    foreign = OF_LOCK.keys() | OF_SIDES.keys() | OF_LEASE.keys()
    own, cls = getattr(one, "__dict__", ()), one if isinstance(one, type) else type(one)
    return [
        name
        for name in names
        if name not in foreign or hasattr(cls, name) or (cls is not one and name in own)
    ]


ABSENT = OtherFace("it has none")
ASYNC = OtherFace("it is for tasks: write `async with`; for plain code use the blocking {other}")
PLAIN = OtherFace("it blocks a thread: write `with`; in a coroutine use the async form, {other}")
ASYNC_LEASE = OtherFace("it is for tasks: write `async with`")
PLAIN_LEASE = OtherFace(
    "it is of a blocking lock: write `with`; in a coroutine `async with` an {other}"
)
# What stands for the same in plain code, and in coroutines.
_TWINS = {
    "Lock": "AsyncLock",
    "Semaphore": "AsyncSemaphore",
    "ReadWriteBlock": "AsyncReadWriteLock",
    "ReadWriteLease": "AsyncReadWriteLock",
    "SlotLease": "AsyncSemaphore",
    "Lease": "AsyncLock",
    "All": "lifehold.alock_all",
    "AllAttempt": "lifehold.alock_all",
    "LeaseGroup": "lifehold.alock_all",
    "LockedFile": "lifehold.alocked_file",
    "LeaseStore": "`await aconnect(URL)`",
    "FileStore": "`await aconnect(URL)`",
    "AsyncLeaseStore": "connect(URL)",
    "AsyncFileStore": "connect(URL)",
    "LockSide": "AsyncReadWriteLock",
    "AsyncLockSide": "ReadWriteLock",
    "AsyncLock": "Lock",
    "AsyncSemaphore": "Semaphore",
    "AsyncReadWriteBlock": "ReadWriteLock",
    "AsyncAll": "lifehold.lock_all",
    "AsyncAllAttempt": "lifehold.lock_all",
    "AsyncLeaseGroup": "lifehold.lock_all",
    "AsyncLockedFile": "lifehold.locked_file",
}


def _twin(one: object, kind: type) -> str:
    """What has the other face: of the same shape, of the same store."""
    owner = getattr(one, "_side", None) or getattr(getattr(one, "_take", None), "__self__", one)
    names = [each.__name__ for each in (*kind.__mro__, *type(owner).__mro__)]
    if "://" in str(getattr(owner, "path", "")):
        return "connect(URL)" if names[0].startswith("Async") else "`await aconnect(URL)`"
    return next((_TWINS[name] for name in names if name in _TWINS), "form")


class DescribedLock:
    """A base class of locks: what describes one, its path and options, can be copied and pickled.

    What it holds stays behind. The lock of a store has its connections with it, and perhaps a
    password: it is refused, in words.
    """

    __slots__ = ()

    def __reduce_ex__(self, _: SupportsIndex) -> Any:
        described = _description(self)
        if not _is_made_by_us(type(self)):
            remade(*described)  # who gets it may be a worker, which could tell nobody
        return remade, described

    def __copy__(self) -> object:
        try:
            described = _description(self)
        except TypeError:
            return self  # of a store: it describes the same lock
        return remade(*described)

    def __deepcopy__(self, _: object) -> object:
        return self.__copy__()


def remade(
    cls: Any, given: tuple[object, ...], options: dict[str, object], path: str | None = None
) -> Any:
    """The lock that was pickled. Raises TypeError where it would be another than that of `path`."""
    made = cls(*given, **options)
    if path is None or made.path == path or canonical(made.path) == canonical(path):
        return made
    raise TypeError(
        f"the {cls.__name__} of {path!r} cannot be made again: with the same arguments it would "
        f"lock {made.path!r}; have its constructor give an absolute path, or hand on the path"
    )


def _is_made_by_us(cls: type) -> bool:
    """Whether the arguments of a class are those of a lock: its constructor is no user's."""
    made = next(each for each in cls.__mro__ if "__init__" in vars(each))
    return made.__module__.partition(".")[0] == __name__.partition(".")[0]


def takes_paths(owner: type | str) -> bool:
    """Whether it is a class of locks that is given the path itself, and no store."""
    return isinstance(owner, type) and _is_made_by_us(owner)


def _description(one: Any) -> tuple[type, tuple[object, ...], dict[str, object], str]:
    """What makes the same lock anywhere on this machine, by `remade`. Raises TypeError."""
    kept: tuple[tuple[object, ...], dict[str, object]] | None = getattr(one, "_given", None)
    if "://" in one.path:
        raise TypeError(
            f"{one!r} cannot be pickled: its store is open in this process; hand on its URL, and "
            "connect there"
        )
    if kept is None:
        raise TypeError(
            f"{one!r} cannot be pickled: its file is open in this process; hand on the path, and "
            "open it there"
        )
    given, options = kept
    if options.get("cancel") is not None:
        raise TypeError(f"{one!r} cannot be pickled: its cancel= is of this process")
    ours, name = _is_made_by_us(type(one)), getattr(one, "_writes", one)._name

    def absolute(argument: object) -> object:
        """The path, wherever the working folder is then; what else a user's class takes."""
        known = os.fspath(argument) if isinstance(argument, os.PathLike) else argument
        return one.path if ours or (type(known) is str and known == name) else argument

    if given:
        given = (absolute(given[0]), *given[1:])
    if "path" in options:
        options = {**options, "path": absolute(options["path"])}
    return type(one), given, options, one.path


def _the_one(cls: Any, given: tuple[object, ...], options: dict[str, object]) -> object:
    made = type.__call__(cls, *given, **options)  # checks the arguments too
    made._given = given, {**options, "singleton": True}
    key = (cls, canonical(made.path))
    more = given[1:]
    fork.here()
    with fork.gate:
        found = _known.get(key)
        one = found[0]() if found is not None else None
        if found is None or one is None:
            for dead in [each for each, (kept, *_) in _known.items() if kept() is None]:
                del _known[dead]
            _known[key] = ref(made), more, options
            return made
    _refuse_others(cls, made.path, found[1:], (more, options))
    return one


def _refuse_others(
    cls: Any,
    path: str,
    first: tuple[object, dict[str, object]],
    now: tuple[object, dict[str, object]],
) -> None:
    defaults = cls.__init__.__kwdefaults__ or {}
    was, asked = ({**defaults, **options} for _, options in (first, now))
    differing = [name for name in asked if asked[name] != was.get(name) and name != "path"]
    if first[0] == now[0] and not differing:
        return
    words = ", ".join(f"{name}={was.get(name)!r} and not {asked[name]!r}" for name in differing)
    raise InvalidArgument(
        f"singleton=True: the {cls.__name__} of {path!r} exists already, with "
        f"{words or f'{first[0]!r} and not {now[0]!r}'}: give the same options everywhere, or "
        "leave out singleton=True for an object of its own",
        name=path,
    )
