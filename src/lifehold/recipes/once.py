"""One caller runs it; the others wait and get the same result, or the same failure.

Promise: of all who call `once(name, fn)`, threads, processes and containers, one runs `fn` at a
time, and whoever was waiting meanwhile gets what came of it. When that one is killed, exactly one
other takes over, at once; an exception that is no Exception (Ctrl-C, exit, cancellation) is no
result, and the next one runs. Rule: the lock decides who runs and queues the others, in the
kernel, without polling; the folder beside it (recipes/once_shelf.py) hands the result on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

from ..blocks import Entry, part
from ..core.errors import LeaseLost, NotHeld
from ..lock import Lock
from .once_result import LIMIT, Codec, OnceFailed, ResultRefused
from .once_rules import (
    Attempt,
    Rules,
    decorator,
    name_and_path,
    named,
    refuse_awaitable,
    refuse_function,
    shelf_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import EllipsisType
    from typing import ParamSpec, TypeVar

    from ..lease import Holding
    from .once_rules import Name

    P = ParamSpec("P")
    R = TypeVar("R")

__all__ = ["OnceFailed", "ResultRefused", "forget", "once"]


@overload
def once(name: Name, fn: Callable[[], R], **rules: Any) -> R: ...
@overload
def once(
    name: Name | Callable[..., Name], fn: None = None, **rules: Any
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def once(
    name: Name | Callable[..., Name], fn: Callable[[], Any] | None = None, *,
    keep: float | None | EllipsisType = ..., keep_failure: float | None = 0.0,
    unless: Callable[[], Any] | None = None, dump: Callable[[Any], bytes] | None = None,
    load: Callable[[bytes], Any] | None = None, limit: int = LIMIT, **options: Any,
) -> Any:  # fmt: skip
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
    codec = Codec(dump, load, limit)

    def rules(of: Any) -> Rules:
        return Rules(of, keep, keep_failure, unless, codec, options)

    if fn is None:
        return decorator(name, lambda of, call: _once(rules(of), call))
    refuse_function(fn, coroutine=False)
    return _once(rules(name), fn)


def _once(rules: Rules, fn: Callable[[], Any]) -> Any:
    if rules.unless is not None and (said := rules.unless()):
        return said
    seen, result = rules.arrive()
    if result is not None:
        return rules.value(result)
    lock = named(Lock, rules)
    block = part()
    begins: Any = Entry(block=block)
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
            raise
    return answer


def _let_in(rules: Rules, lease: Holding, seen: int, fn: Callable[[], Any]) -> Any:
    result = rules.let_in(seen)
    if result is not None:
        return rules.value(result)
    if rules.unless is not None and (said := rules.unless()):
        return said
    return _run(rules, lease, seen, fn)


def _run(rules: Rules, lease: Holding, seen: int, fn: Callable[[], Any]) -> Any:
    attempt = Attempt(rules, lease, rules.begin(lease))
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
    return bool(shelf_of(name_and_path(name)[1], shared).forget())
