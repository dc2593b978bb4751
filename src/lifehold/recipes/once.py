"""One caller runs it; the others wait and get the same result, or the same failure.

Promise: of all who call `once(name, fn)`, threads, processes and containers, one runs `fn` at a
time, and whoever was waiting meanwhile gets what came of it. When that one is killed, exactly one
other takes over, at once; an exception that is no Exception (Ctrl-C, exit, cancellation) is no
result, and the next one runs. Rule: the lock decides who runs and queues the others, in the
kernel, without polling; the folder beside it (recipes/once_results.py) hands the result on.
"""

from __future__ import annotations

import os
from typing import Any, overload

from ..core.deadline import seconds
from ..core.errors import (
    InvalidArgument,
    LeaseLost,
    LifeholdError,
    NotHeld,
    UnknownArgument,
    UnsafeGround,
)
from ..decorated import is_coroutine_function, refuse_generators
from ..described import DescribedLock, explained
from ..lease import BlockEntry, part
from ..local import lock_names
from ..local.handles import files_for
from ..lock import Lock, LockFace, lock_path
from ..runtime import fork
from .once_results import (
    FAILURE,
    LIMIT,
    VALUE,
    Codec,
    OnceFailed,
    OnceResult,
    ResultFolder,
    ResultRefused,
    failed,
    failure_facts,
    packed,
    unpacked,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    import functools
    import logging
    from collections.abc import Callable
    from types import EllipsisType
    from typing import ParamSpec, TypeVar

    from .. import words
    from ..lease import Holding
    from . import once_results
    from .once_results import OnceRun

    P = ParamSpec("P")
    R = TypeVar("R")
    Name = str | os.PathLike[str]
else:
    once_results = fork.later("lifehold.recipes.once_results", globals())
    words = fork.later("lifehold.words", globals())
    functools = fork.later("functools", globals())
    logging = fork.later("logging", globals())

__all__ = ["OnceFailed", "ResultRefused", "forget", "once"]


@overload
def once(name: Name, fn: Callable[[], R], **rules: Any) -> R: ...


@overload
def once(
    name: Name | Callable[..., Name], **rules: Any
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...


@explained("once()", "once('./build', build)", "name it, for example once(.., keep={value})")
def once(
    name: Name | Callable[..., Name],
    fn: Callable[[], object] | EllipsisType = ...,
    *,
    keep: float | None | EllipsisType = ...,
    keep_failure: float | None = 0.0,
    unless: Callable[[], object] | None = None,
    dump: Callable[[Any], bytes] | None = None,
    load: Callable[[bytes], object] | None = None,
    limit: int = LIMIT,
    **options: Any,
) -> Any:
    """What `fn()` returned in the one process that ran it.

    `name`: a plain name, as `lifehold once` has it, or a path with a slash in it, of a lock file.
    `keep`: seconds for which a result counts; None, the default, for good; 0 only for those who
    waited for it. `keep_failure`: the same of a failure, by default 0.
    `unless`: asked before running; when what it returns is true, that is the answer and `fn` is not
    run. With it, `keep` is 0 unless given.
    `dump`, `load`: value to bytes and back, instead of JSON. `limit`: bytes of a result.
    `options`: of the `Lock`: `wait`, `cancel`, `label`, `max_hold`, `kind`, `ttl`, `shared` ...

    Without `fn` a decorator, of a function without arguments; with them `name` is a function of
    the same arguments. Everybody, the one who ran it too, gets the value as it is after `load`.

    Raises OnceFailed when `fn` raised an Exception, here or there; ResultRefused, with the value,
    for what cannot be handed on; LeaseLost when another has taken over; what `Lock.acquire` raises.
    Not promised: that `fn` never runs twice. A process that is killed between the end of `fn` and
    its result being on disk leaves a run that is made again.
    """
    refuse_strange("once()", options)
    codec = Codec(dump, load, limit)

    def rules(of: object) -> OnceRules:
        return OnceRules(of, keep, keep_failure, unless, codec, options)

    if fn is ...:
        return decorator("once", name, lambda of, call: _once(rules(of), call))
    refuse_function(fn, coroutine=False)
    return _once(rules(name), fn)


def _once(rules: OnceRules, fn: Callable[[], object]) -> object:
    if said := _already(rules):
        return said
    seen, result = rules.arrive()
    if result is not None:
        return rules.value(result)
    lock = named(Lock, rules)
    block = part()
    begins, answer = BlockEntry(block=block), NOTHING
    try:
        answer = _let_in(rules, lock.acquire(begins), seen, fn)
    finally:
        try:
            if block.lease is not None:
                block.lease.release()
        except (LeaseLost, NotHeld):
            pass  # told already; what has been published is published
        except BaseException as error:
            block.undo(error)
            told = not_let_go(error, answer)
            if told is error:
                raise
            raise told from told.__cause__
    return answer


def _let_in(rules: OnceRules, lease: Holding, seen: int, fn: Callable[[], object]) -> object:
    result = rules.let_in(seen)
    if result is not None:
        return rules.value(result)
    if said := _already(rules):
        return said
    return _run(rules, lease, seen, fn)


def _already(rules: OnceRules) -> object:
    """What `unless` says."""
    if rules.unless is None:
        return None
    said = rules.unless()
    refuse_awaitable(rules.unless, said)
    return said


def _run(rules: OnceRules, lease: Holding, seen: int, fn: Callable[[], object]) -> object:
    attempt = OnceAttempt(rules, lease, rules.begin(lease))
    try:
        if attempt.run.latest > seen and (result := rules.let_in(seen)) is not None:
            return rules.value(result)  # of a run that we were to take over, and that came first
        try:
            given = fn()
        except Exception as error:
            raise attempt.raised(error) from error
        refuse_awaitable(fn, given)
        return attempt.returned(given)
    finally:
        attempt.withdraw()


def forget(name: Name, *, shared: bool = False) -> bool:
    """Remove the results of a name, so that the next caller runs; whether there was one.

    A run under way goes on, and its result will count.
    """
    return bool(results_of(name_and_path(name)[1], shared).forget())


# ------------------------------------------------------------------------------------------------
# What both faces of `once` share: which results count, and how a run of ours is published.
#
# Promise: a result counts for a caller when it came while that caller waited, or when it is young
# enough for it; a value, a failure and a refusal each reach the others as what they are. What the
# function made is in hand whatever becomes of the publishing: returned, or `value` of the error.


SUFFIX = ".once"  # of the folder, behind the path of the lock
NOTHING: object = object()  # no answer yet
NOT_HERE = ("exclusive", "reentrant", "record", "cleanup")


class OnceRules:
    """Which results count, for one caller, and how they become its value."""

    def __init__(
        self,
        given: object,
        keep: float | None | EllipsisType,
        keep_failure: float | None,
        unless: Callable[[], object] | None,
        codec: Codec,
        options: dict[str, Any],
    ) -> None:
        if unless is not None:
            refuse_function(unless, coroutine=True, called="unless")
        if keep is ...:  # what `unless` looks at knows better than a result that was kept
            keep = None if unless is None else 0.0
        self.keep = None if keep is None else seconds("keep", keep)
        self.keep_failure = None if keep_failure is None else seconds("keep_failure", keep_failure)
        self.unless, self.codec, self.options = unless, codec, options
        self.name, self.path = name_and_path(given)
        self.results = results_of(self.path, bool(options.get("shared")))

    def arrive(self) -> tuple[int, OnceResult | None]:
        """(the number of the latest result before we wait, the result itself if it counts)."""
        if self.keep == 0 and self.keep_failure == 0:
            return self.results.listing().latest, None
        found = self.results.read()
        return (found[0] if found else 0), self._counted(found, None)

    def let_in(self, seen: int) -> OnceResult | None:
        """With the lock in hand: the latest result, if it counts or came while we waited."""
        return self._counted(self.results.read(), seen)

    def _counted(self, found: tuple[int, bytes] | None, seen: int | None) -> OnceResult | None:
        result = None if found is None else unpacked(*found, lock_names.shown(self.path))
        if result is None or (seen is not None and result.number > seen):
            return result
        most = self.keep if result.succeeded else self.keep_failure
        return result if most is None or (most > 0 and result.age() <= most) else None

    def value(self, result: OnceResult, *, ran_here: bool = False) -> Any:
        """What the caller gets. Raises OnceFailed."""
        if result.kind == VALUE:
            return self.codec.unpacked(self.name, result.content)
        if result.succeeded:
            raise InvalidArgument(
                f"{self.name!r} was run by `lifehold once`, whose result is the output of a "
                "command: give the function a name of its own",
                name=self.name,
            )
        raise failed(self.name, result, ran_here=ran_here)

    def begin(self, lease: Holding) -> OnceRun:
        """A run of ours. Raises UnsafeGround for a lock without tokens."""
        if lease.token is None:
            raise UnsafeGround(
                f"{self.name!r}: this lock carries no token ({lease.token_reason}), by which a "
                "late result is refused: use a lock file of its own",
                name=self.name,
            )
        run: OnceRun = self.results.begin(lease.token, lease.check)
        return run


class OnceAttempt:
    """One run of the function under the lock: its value or its failure, published for all."""

    def __init__(self, rules: OnceRules, lease: Holding, run: OnceRun) -> None:
        self.rules, self.lease, self.run = rules, lease, run
        self.generation = fork.generation

    def returned(self, given: Any) -> Any:
        """Publish a value; the caller gets what the others get. Raises ResultRefused, LeaseLost."""
        rules = self.rules
        try:
            content, again = rules.codec.packed(rules.name, given, rules.results.most)
        except ResultRefused as error:
            try:
                self._publish(packed(FAILURE, self.lease.token, b"", **failure_facts(error)))
            except LifeholdError as refused:
                error.add_note(f"It could not be told to the others: {refused}")
            raise
        try:
            self._publish(packed(VALUE, self.lease.token, content))
        except LifeholdError as error:
            error.__dict__["value"] = given
            error.add_note(f"{rules.name!r} ran: its result is the `value` of this error")
            raise
        return again

    def raised(self, error: Exception) -> OnceFailed:
        """Publish a failure; the error for the caller."""
        found = packed(FAILURE, self.lease.token, b"", **failure_facts(error))
        result = unpacked(0, found, self.rules.path)
        assert result is not None, "packed just now"
        told = failed(self.rules.name, result, ran_here=True)
        try:
            self._publish(found)
        except LifeholdError as refused:
            told.untold = refused
            told.add_note(f"It could not be told to the others: {refused}")
        return told

    def _publish(self, content: bytes) -> None:
        self.lease.check()  # in a forked child that came out of `fn`: NotHeld (L9)
        self.run.publish(content)

    def withdraw(self) -> None:
        """There is no result; the next one runs. In a forked child: it is the parent's run."""
        if self.generation == fork.here():
            self.run.withdraw()


def not_let_go(error: BaseException, answer: object) -> BaseException:
    """What goes up where the lock could not be let go: with what the run made, or why it failed."""
    before = error.__context__
    if isinstance(before, OnceFailed | ResultRefused):
        before.add_note(f"Its lock could not be let go: {error}")
        return before
    if isinstance(error, LifeholdError) and answer is not NOTHING:
        error.__dict__["value"] = answer
        error.add_note("What it was taken for is done: the result is the `value` of this error")
    return error


OWN = frozenset({"keep", "keep_failure", "unless", "dump", "load", "limit"})


def refuse_strange(call: str, options: dict[str, object]) -> None:
    """What no run can be made with, told before any is. Raises InvalidArgument."""
    for name in NOT_HERE:
        if name in options:
            raise InvalidArgument(f"once takes no {name}=: one run at a time is what it is")
    for name in ("args", "kwargs"):
        if name in options:
            raise UnknownArgument(
                f"{call} takes no {name}=: fn is called without arguments; give a function that "
                "hands them on, for example lambda: f(1)"
            )
    known = {*(LockFace.__init__.__kwdefaults__ or ())} - {*NOT_HERE}
    if strange := {key: options[key] for key in options if key not in known}:
        raise words.unknown(call, strange, known | OWN)
    refuse_session(options.get("kind"))


def name_and_path(given: object) -> tuple[str, str]:
    """(what to call it, the path of its lock file), of a plain name or a path."""
    if isinstance(given, os.PathLike):  # a path, never a plain name
        given = os.fspath(given)
        if isinstance(given, str) and given and "/" not in given:
            given = f"./{given}"
    if not isinstance(given, str):
        cure = ": give lock.path" if isinstance(given, DescribedLock) else ""
        raise InvalidArgument(
            f"name must be a str or an os.PathLike of str, not {type(given).__name__} "
            f"{given!r}{cure}"
        )
    if type(given) is str and "/" not in given:  # the command has asked: it hands on a `GivenName`
        refuse_file(given)
    path = lock_names.address(given).path
    return lock_names.shown(given), path if lock_names.is_store(path) else lock_path(path)


def refuse_file(word: str) -> None:
    """What looks like a file and is no path would be another lock than that of the file.

    As the command has it. A name that is in use is a name. Raises InvalidArgument.
    """
    if word.endswith(lock_names.ENDS) and not lock_names.used(word):
        name = word.rpartition(".")[0] or "job"
        raise InvalidArgument(
            f"{word!r} may be a file of this folder or a name: write {f'./{word}'!r} for the file, "
            f"or {name!r} for a name, whose file lies where the command keeps them"
        )


def refuse_session(kind: object) -> None:
    """A store keeps a result for who holds a lease there, in one step. Raises InvalidArgument."""
    if kind == "session":
        raise InvalidArgument(
            "once keeps its result with a lease, which a session lock is not: leave out the kind. "
            "To run under a session lock, without a result: lifehold run --kind session"
        )


def results_of(path: str, shared: bool) -> Any:
    """The results beside a lock file, or in the store of a lock's URL."""
    if lock_names.is_store(path):
        return once_results.StoreResults(path)
    return ResultFolder(files_for(path + SUFFIX), path + SUFFIX, shared)


def named(kind: type[Any], rules: OnceRules) -> Any:
    """The lock of a name, called so in messages."""
    if told := lock_names.make_folder(rules.path):
        logging.getLogger("lifehold").warning("%s", told)
    options = rules.options
    if not {"mode", "shared"} & options.keys() and not lock_names.is_store(rules.path):
        options = options | {"mode": lock_names.mode_of(rules.path)}
    lock: LockFace = kind(rules.path, **options)
    lock._name = rules.name
    return lock


def decorator(
    face: str,
    name: Any,
    run: Callable[[object, Callable[[], object]], Any],
    *,
    coroutine: bool = False,
) -> object:
    """`@once(name)`: each call of the function is one `once`."""
    if isinstance(name, DescribedLock) or not (
        callable(name) or isinstance(name, str | os.PathLike)
    ):
        name_and_path(name)  # told when it is decorated
    refuse_bare(face, name)

    def decorate(*given: Any, **options: object) -> Callable[..., object]:
        if len(given) != 1 or options or not callable(given[0]):
            raise _bare(face, name)
        function = given[0]
        refuse_function(function, coroutine=coroutine)

        def begun(args: tuple[object, ...], kwargs: dict[str, object]) -> Any:
            if (args or kwargs) and not callable(name):
                raise InvalidArgument(
                    f"@{face}({name!r}) on {called_so(function)!r}, which was called with "
                    "arguments: their results would be one. Give a name of the arguments: "
                    f"@{face}(lambda version: f'build-{{version}}')"
                )
            of = name(*args, **kwargs) if callable(name) else name
            return run(of, lambda: function(*args, **kwargs))

        def called(*args: object, **kwargs: object) -> object:
            return begun(args, kwargs)

        async def acalled(*args: object, **kwargs: object) -> object:
            return await begun(args, kwargs)

        made = acalled if coroutine else called  # what decorates it further asks which it is
        functools.update_wrapper(made, function)
        return made

    return decorate


def refuse_bare(face: str, name: object) -> None:
    """`@once` without a name, where that shows before the function is called."""
    if isinstance(name, staticmethod | classmethod | property) or is_coroutine_function(name):
        raise _bare(face, name)


def _bare(face: str, name: object) -> InvalidArgument:
    shown = getattr(name, "__name__", name)
    if isinstance(shown, str) and shown.isidentifier():
        return InvalidArgument(f"{face} takes a name first: @{face}('./{shown}')")
    return InvalidArgument(f"@{face}(NAME) decorates one function, which stands below it")


def refuse_function(function: object, *, coroutine: bool, called: str = "fn") -> None:
    """Raises InvalidArgument for what cannot be run by this face."""
    if not callable(function):
        cure = ": hand on build, not build()" if function is None else ""
        shown = function if function is None else f"{type(function).__name__} {function!r}"
        raise InvalidArgument(f"{called} must be callable, not {shown}{cure}")
    refuse_generators(function)
    if is_coroutine_function(function) and not coroutine:
        raise _is_coroutine(function, called)


def refuse_awaitable(function: object, given: Any, called: str = "fn") -> None:
    """The same, for a function whose call alone showed it."""
    if hasattr(given, "__await__"):
        if hasattr(given, "close"):
            given.close()  # else Python warns that it was never awaited
        raise _is_coroutine(function, called)


def called_so(function: object) -> str:
    """The name of a function, or what stands for it."""
    return str(getattr(function, "__name__", repr(function)))


def _is_coroutine(function: object, called: str) -> InvalidArgument:
    cure = "give a plain function" if called == "build" else "use `await aonce(...)`, or @aonce"
    return InvalidArgument(f"{called_so(function)!r} makes a coroutine: {cure}")
