"""`aonce`: the same as `once` for asyncio and trio, among tasks, threads and processes.

Promise: the event loop runs while others have the lock, while the result is flushed to the disk,
and, on a file server, while it is read. A cancelled caller leaves no result, and the next one
runs; a cancellation that comes while the result is being published comes after it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

from ..aio import AsyncLock
from ..core.errors import LeaseLost, NotHeld, SystemRefused
from ..described import explained
from ..lease import BlockEntry, part
from ..runtime.eventloop import EVENT_LOOP
from .once import (
    NOTHING,
    OnceAttempt,
    OnceRules,
    decorator,
    named,
    not_let_go,
    refuse_function,
    refuse_strange,
)
from .once_results import LIMIT, Codec

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import EllipsisType
    from typing import ParamSpec, TypeVar

    from ..aio import AsyncLease
    from .once import Name

    P = ParamSpec("P")
    R = TypeVar("R")


@overload
async def aonce(name: Name, fn: Callable[[], Awaitable[R]], **rules: Any) -> R: ...
@overload
def aonce(
    name: Name | Callable[..., Name], **rules: Any
) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Awaitable[R]]]: ...
@explained("aonce()", "aonce('./build', build)", "name it, for example aonce(.., keep={value})")
def aonce(
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
    """To be awaited: what the coroutine of `fn` returned in the one task that ran it.

    The arguments are those of `once`, and `options` those of `AsyncLock`; `unless` may be a
    coroutine function too. Without `fn` a decorator.

    Raises what `once` raises.
    """
    refuse_strange("aonce()", options)
    codec = Codec(dump, load, limit)

    def rules(of: object) -> OnceRules:
        return OnceRules(of, keep, keep_failure, unless, codec, options)

    if fn is ...:
        return decorator("aonce", name, lambda of, call: _once(rules(of), call), coroutine=True)
    refuse_function(fn, coroutine=True)
    return _once(rules(name), fn)


async def _once(rules: OnceRules, fn: Callable[[], object]) -> object:
    if said := await _already(rules):
        return said
    lock = named(AsyncLock, rules)
    seen, result = await _disk(lock, rules.arrive)
    if result is not None:
        return rules.value(result)
    block = part()
    begins, answer = BlockEntry(block=block), NOTHING
    try:
        answer = await _let_in(rules, lock, await lock.acquire(begins), seen, fn)
    finally:
        try:
            if block.lease is not None:
                await block.lease.release()
        except (LeaseLost, NotHeld):
            pass  # told already; what has been published is published
        except BaseException as error:
            block.undo(error)
            told = not_let_go(error, answer)
            if told is error:
                raise
            raise told from told.__cause__
    return answer


async def _let_in(
    rules: OnceRules, lock: AsyncLock, lease: AsyncLease, seen: int, fn: Callable[[], object]
) -> object:
    result = await _disk(lock, lambda: rules.let_in(seen))
    if result is not None:
        return rules.value(result)
    if said := await _already(rules):
        return said
    return await _run(rules, lock, lease, seen, fn)


async def _run(
    rules: OnceRules, lock: AsyncLock, lease: AsyncLease, seen: int, fn: Callable[[], object]
) -> object:
    # L6  Cancelled while the helper thread makes the file: its late run is withdrawn there.
    run = await _disk(lock, lambda: rules.begin(lease), lambda late: late.withdraw())
    attempt = OnceAttempt(rules, lease, run)
    try:
        if run.latest > seen:
            result = await _disk(lock, lambda: rules.let_in(seen))
            if result is not None:
                return rules.value(result)
        try:
            given = await _awaited(fn())
        except Exception as error:
            cause = error  # `error` is gone when its clause ends
            raise await _flushed(lambda: attempt.raised(cause)) from error
        return await _flushed(lambda: attempt.returned(given))
    finally:
        attempt.withdraw()


async def _already(rules: OnceRules) -> object:
    """What `unless` says."""
    return None if rules.unless is None else await _awaited(rules.unless())


async def _awaited(given: Any) -> object:
    return await given if hasattr(given, "__await__") else given


async def _disk(
    lock: AsyncLock, call: Callable[[], object], undo: Callable[[Any], None] = lambda _: None
) -> Any:
    """A few quick calls of the file system: in the loop itself, unless it is a file server's."""
    if not lock._far:
        return call()
    return await EVENT_LOOP.in_thread(call, undo)


async def _flushed(call: Callable[[], object]) -> Any:
    """A call that waits for the disk, to its end even when we are cancelled."""
    begun = False

    def begin() -> object:
        nonlocal begun
        begun = True
        return call()

    async def in_thread() -> object:
        try:
            return await EVENT_LOOP.in_thread(begin, lambda _: None)
        except SystemRefused:
            if begun:
                raise
        return call()  # no thread is to be had: it holds up the loop, and nothing is lost

    return await EVENT_LOOP.shield(in_thread())
