"""The lock of `redis.asyncio` over the same keys.

    from lifehold.compat.redis_lock.asyncio import Lock

    async with client.lock("printer", timeout=10, lock_class=Lock) as lock:
        lock.token

As `lifehold.compat.redis_lock.Lock`, with which it shares keys, scripts and waiting. What a
cancelled task had asked for is undone in a step of its own, so that neither a second cancellation
nor the end of `asyncio.run` leaves the key held. With `auto_renew=True` a task of the same event
loop prolongs the key: a loop that is blocked for longer than the timeout loses the lock, and
`check()` says so.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from typing import TYPE_CHECKING, Literal

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import LockError, RedisError

from ...core import events
from ...core.renew import RenewalSchedule, concluded
from ...ops.redis_locks import RAW
from ...runtime import clock, fork
from ...runtime.eventloop import EVENT_LOOP, Step
from . import BlockingClient, Prolonging, ended, lost, refusal
from .arguments import LockArguments, misused
from .protocol import (
    AGAIN,
    CROWDED,
    LockKey,
    RedisGrant,
    crowded,
    no_longer_listens,
    room_to_listen,
    subscription,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from types import TracebackType
    from typing import Protocol, Self

    from ...core.deadline import Terms
    from ...core.grant import Grant, Holder
    from ...ops.redis_locks import Reply
    from .protocol import Subscription, Work

    class TaskSubscription(Subscription, Protocol):
        """A `pubsub()` of a client of asyncio."""

        async def subscribe(self, channel: bytes) -> object: ...
        async def get_message(self, *, timeout: float) -> Mapping[str, object] | None: ...
        async def aclose(self) -> None: ...


__all__ = ["AsyncRedisLock", "Lock"]

LOGGER = logging.getLogger("lifehold")
CONFIRMED = 5.0  # seconds for which a subscription may stay unconfirmed
ANSWERED = 5.0  # seconds for which a step that nobody can cancel waits for the server
_behind: set[asyncio.Task[object]] = set()  # a loop alone does not keep its tasks


class AsyncioClient:
    """A client of redis.asyncio, for the running loop. It knows no lock, as `BlockingClient`."""

    unanswered: tuple[type[Exception], ...] = BlockingClient.unanswered
    refused: tuple[type[Exception], ...] = BlockingClient.refused

    def __init__(self, lock: LockArguments) -> None:
        self._redis, self._key, self._scripts = lock.redis, lock._key, type(lock)
        self._messages: TaskSubscription | None = None

    async def run(self, script: str, keys: object, args: object) -> Reply:
        """One script of the lock's class."""
        call = functools.partial(getattr(self._scripts, f"lua_{script}"), keys, args, self._redis)
        step = asyncio.current_task()
        if not isinstance(step, Step):
            return await _room_found(call)
        async with asyncio.timeout(ANSWERED):
            while True:
                try:
                    return await _room_found(call)
                except asyncio.CancelledError:  # if not ours: of a task that the client has begun
                    if step.cancelling():
                        raise
                await asyncio.sleep(AGAIN)

    async def command(self, *words: object) -> Reply:
        """One command."""
        return await self._redis.execute_command(*words, **RAW)

    async def listen(self, channel: bytes) -> bool:
        """On a connection of the pool. False where none is to spare, or it is not allowed."""
        messages: TaskSubscription | None = subscription(self._redis, self._key)
        if messages is None or not room_to_listen(messages):
            return False
        self._messages = messages
        try:
            await messages.subscribe(channel)
            until = clock.now() + CONFIRMED
            while (left := until - clock.now()) > 0:
                if await messages.get_message(timeout=left) is not None:
                    return True
        except RedisError:
            pass
        await self.deaf()
        return False

    async def heard(self, seconds: float) -> bool:
        """Until the server tells, or for so long."""
        messages = self._messages
        if messages is None:
            await asyncio.sleep(seconds)
            return False
        until = clock.now() + seconds
        try:
            while True:
                told = await messages.get_message(timeout=max(0.0, until - clock.now()))
                if told is not None and told["type"] == "message":
                    return True
                if clock.now() >= until:
                    return True
        except RedisError:  # the connection is gone
            await self.deaf()
            return False

    async def deaf(self) -> None:
        """The connection goes back, and what it subscribed to ends with it."""
        messages, self._messages = self._messages, None
        if messages is not None:
            try:
                await messages.aclose()
            except RedisError:
                LOGGER.debug("a subscription ended badly", exc_info=True)
            no_longer_listens(messages)

    async def settle(self, work: Work) -> None:
        """In a step that nobody cancels, also at the end of `asyncio.run`; the caller stays."""
        await EVENT_LOOP.shield(work)

    def behind(self, work: Work) -> None:
        """In a task of its own. Cancelled, it ends with the try that is under way."""
        task = asyncio.get_running_loop().create_task(work)
        _behind.add(task)
        task.add_done_callback(_behind.discard)

    async def pause(self, seconds: float) -> None:
        """Sleep."""
        await asyncio.sleep(seconds)


async def _room_found(call: Callable[[], Awaitable[Reply]]) -> Reply:
    """It, once the client's pool has a connection for it."""
    until = clock.now() + CROWDED
    while True:
        try:
            return await call()
        except RedisConnectionError as error:
            if not crowded(error) or clock.now() >= until:
                raise
        await asyncio.sleep(AGAIN)


class RenewalTask:
    """The renewals of one grant in a task, which ends when nobody has the lock in hand any more."""

    def __init__(self, key: LockKey, grant: RedisGrant, terms: Terms) -> None:
        self.terms = terms
        how = Prolonging(key, grant, terms)
        granted = how.renewed(clock.utc_ns(), grant.sent_at)
        self._kept = RenewalSchedule(granted, terms, _unheard)
        self._loop, self._generation = asyncio.get_running_loop(), fork.here()
        self._task = self._loop.create_task(_beats(how, self._kept, granted))

    @property
    def deadline(self) -> float:
        """The instant at which the holder must stop; past it once it is lost."""
        self._kept.late(clock.now())
        return -1.0 if self._kept.reason is not None else self._kept.deadline

    def stop(self) -> None:
        """No more of them. L9  A forked child leaves alone what its parent has in hand."""
        self._kept.over = True
        if not self._loop.is_closed() and self._generation == fork.here():
            self._loop.call_soon_threadsafe(self._task.cancel)

    def __del__(self) -> None:
        if not self._kept.over:
            self.stop()


def _unheard(reason: str) -> None:
    """Whoever holds it asks `check()`."""


async def _beats(how: Prolonging, kept: RenewalSchedule, granted: Grant) -> None:
    at = clock.now() + kept.terms.heartbeat
    while not kept.over:
        await asyncio.sleep(max(0.0, min(at, kept.deadline) - clock.now()))
        began = clock.now()
        if kept.is_over() or kept.late(began):
            return
        try:
            answer = await how.renew(granted)
        except RedisError as error:  # our deadline has not come
            LOGGER.debug("a renewal had no answer", exc_info=error)
            at = began + kept.terms.heartbeat / 4
            continue
        at = concluded(kept, answer, began, clock.now())


class AsyncRedisLock(LockArguments):
    """redis-py's `redis.asyncio.lock.Lock`, on the same key with the same values.

    Arguments, promises and limits are those of `RedisLock`; it belongs to one event loop.
    """

    async def __aenter__(self) -> Self:
        began = clock.now()
        if await self.acquire():
            return self
        holder = None
        try:
            holder = await self.holder()
        except RedisError:
            LOGGER.debug("nobody can say who has it", exc_info=True)
        raise refusal(self, holder, clock.now() - began if self.blocking else None)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        mine = self._mine()
        try:
            await self.release()
        except LockError:
            if self.raise_on_release_error:
                raise
            LOGGER.warning("'%s' was unlocked or lost before its block ended", self._shown)
        except asyncio.CancelledError:
            if mine is not None:
                await EVENT_LOOP.shield(self._released_again(mine.value))
            raise

    async def _released_again(self, value: bytes) -> None:
        """A release was cut short, and nobody is there to call it again.

        By its value: a task that shares this object may have been granted the lock since.
        """
        try:
            await self.do_release(value)
        except Exception as error:  # the cancellation goes on
            LOGGER.debug("a cancelled release did not end well", exc_info=error)

    async def acquire(
        self,
        blocking: bool | None = None,
        blocking_timeout: float | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        """Wait for the lock; False when it did not become ours. As `RedisLock.acquire`."""
        ask = self._request(token, None, blocking_timeout)
        blocking = self.blocking if blocking is None else blocking
        key, began, grant = self._at(), clock.now(), None
        try:
            grant = await key.acquire(ask, once=not blocking)
            if grant is None:
                return False
            self._granted(grant)
            if ask.terms is not None:
                self._kept(grant, RenewalTask(key, grant, ask.terms))
        except BaseException as error:
            self._drop(grant)
            await key.undo(ask, error)
            raise
        if events.listeners:
            waited = clock.now() - began
            events.tell(events.Acquired(self._shown, grant.nonce, grant.token, waited))
        return True

    async def do_acquire(self, token: str | bytes) -> bool:
        """One try with that value."""
        return await self.acquire(blocking=False, token=token)

    async def locked(self) -> bool:
        """Whether anybody holds it, asked of the server."""
        return await self.redis.get(self.name) is not None

    async def owned(self) -> bool:
        """Whether it is held by us: the server says so, and our own deadline has not come."""
        return self._owns(await self.redis.get(self.name))

    async def release(self) -> None:
        """Free the lock and wake one waiter. Cancelled, it may be called again."""
        if (mine := self._mine()) is None:
            raise misused(self, "Cannot release a lock that's not owned or is already unlocked.")
        await self.do_release(mine.value)

    async def do_release(self, expected_token: str | bytes) -> None:
        """Free it, if that is its value."""
        grant = self._releasing(expected_token)
        freed = await self._at(grant).release(grant)
        self._forgotten(grant)
        if not freed:
            raise lost(self, "release")
        if events.listeners:
            held = clock.now() - grant.sent_at
            events.tell(events.Released(self._shown, grant.nonce, held))

    def extend(self, additional_time: float, replace_ttl: bool = False) -> Awaitable[Literal[True]]:
        """Add so many seconds to what is left, or put them in its place."""
        return self.do_extend(additional_time, replace_ttl)

    def do_extend(self, additional_time: float, replace_ttl: bool) -> Awaitable[Literal[True]]:
        """For a subclass: what `extend()` does."""
        return self._extended("extend", additional_time, "1" if replace_ttl else "0")

    def reacquire(self) -> Awaitable[Literal[True]]:
        """Begin the timeout anew."""
        return self.do_reacquire()

    def do_reacquire(self) -> Awaitable[Literal[True]]:
        """For a subclass: what `reacquire()` does."""
        return self._extended("reacquire", self.timeout or 0.0, "again")

    def _extended(self, what: str, seconds: float, mode: str) -> Awaitable[Literal[True]]:
        # Raises here, and not when it is awaited, as redis-py.
        mine, ms = self._extendable(what), self._milliseconds(what, seconds)

        async def extended() -> Literal[True]:
            self._shortening(mine, ms, mode)
            grant = await self._at(mine).extend(mine, ms, mode)
            if grant is None:
                raise lost(self, what)
            self._prolonged(grant)
            return True

        return extended()

    # ---- what redis-py's lock does not have -----------------------------------------------------

    def check(self) -> None:
        """Raises LockNotOwnedError, which is a LeaseLost, once this holder must stop."""
        if (why := self._why_lost()) is not None:
            raise ended(self, why)

    async def verify(self) -> None:
        """`check()`, and the server is asked whether the key still has our value."""
        if (why := self._lost_unless(await self.owned())) is not None:
            raise ended(self, why)

    async def holder(self) -> Holder | None:
        """Who has the lock now, asked of the server; None for nobody."""
        return await self._at().holder()

    def _at(self, grant: RedisGrant | None = None) -> LockKey:
        key = self._key if grant is None else grant.key or self._key
        return LockKey(AsyncioClient(self), key, self._shown)


Lock = AsyncRedisLock
