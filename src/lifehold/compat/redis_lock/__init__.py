"""redis-py's `Lock` over the same keys: `from lifehold.compat.redis_lock import Lock`.

    with Lock(client, "printer", timeout=10) as lock:
        lock.token                  # a fencing token, for the guards of lifehold.fence
        lock.check()                # raises when the timeout is over, by this holder's own clock

Also as `client.lock("printer", timeout=10, lock_class=Lock)`. Promise: this lock and redis-py's own
exclude each other on one key, both ways; arguments, return values and exceptions are redis-py's,
and so is its contract: the key lives for `timeout`, is not renewed unless `auto_renew=True`, and
whoever polls keeps its share. What is added lies beside the key: a fencing token, a record of the
owner, and the message by which a release wakes a waiter. The lock of `redis.asyncio` is in
`lifehold.compat.redis_lock.asyncio`; how both work, and how they could fail, in protocol.py.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Literal

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import LockError, LockNotOwnedError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ...core import events, explain
from ...core.errors import LeaseLost, NotAcquired
from ...core.grant import Grant, Lost
from ...ops.redis_locks import RAW, answer
from ...runtime import clock, fork, heartbeat
from ...runtime.blocking import finish
from ...runtime.renewal import RenewedLease
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
    from collections.abc import Mapping, Sequence
    from types import TracebackType
    from typing import Protocol, Self

    from ...core.deadline import Terms
    from ...core.grant import Holder, Unknown
    from ...ops.redis_locks import Reply
    from .protocol import Subscription, Work

    class ThreadSubscription(Subscription, Protocol):
        """A `pubsub()` of a blocking client."""

        def subscribe(self, channel: bytes) -> object: ...
        def get_message(self, *, timeout: float) -> Mapping[str, object] | None: ...
        def close(self) -> None: ...


__all__ = [
    "Lock",
    "LockError",
    "LockLost",
    "LockNotAcquired",
    "LockNotOwnedError",
    "RedisLock",
    "answer",
]

LOGGER = logging.getLogger("lifehold")
CONFIRMED = 5.0  # seconds for which a subscription may stay unconfirmed


class LockNotAcquired(LockError, NotAcquired):
    """A `with` block did not get the lock: redis-py's LockError, with lifehold's facts."""

    def __init__(self, text: str, **facts: object) -> None:
        NotAcquired.__init__(self, text, **facts)


class LockLost(LockNotOwnedError, LeaseLost):
    """It is not ours any more: redis-py's LockNotOwnedError, with lifehold's facts."""

    def __init__(self, text: str, **facts: object) -> None:
        LeaseLost.__init__(self, text, **facts)


def refusal(lock: LockArguments, holder: Holder | None, waited: float | None) -> LockNotAcquired:
    """Why a block was not entered, and who has the lock."""
    look = [f"look:  redis-cli GET {explain.quote(lock._shown)}"]
    text = explain.held_text(lock._shown, holder, waited, clock.utc_now(), following=look)
    return LockNotAcquired(
        f"Unable to acquire lock within the time specified: {text}",
        name=lock._shown,
        lock_name=lock._shown,
        holder=holder,
        waited=waited or 0.0,
    )


def lost(lock: LockArguments, what: str) -> LockLost:
    """It was ours, and is not any more."""
    return LockLost(
        f"Cannot {what} a lock that's no longer owned: '{lock._shown}'",
        name=lock._shown,
        lock_name=lock._shown,
        reason="its key has another value, or none",
    )


def ended(lock: LockArguments, why: str) -> LockLost:
    """Its holder must stop."""
    return LockLost(
        f"'{lock._shown}' may be held by others: {why}",
        name=lock._shown,
        lock_name=lock._shown,
        reason=why,
    )


class BlockingClient:
    """A client of redis-py, for the calling thread. It knows its lock's class, and not the lock."""

    unanswered: tuple[type[Exception], ...] = (RedisConnectionError, RedisTimeoutError)
    refused: tuple[type[Exception], ...] = (ResponseError,)

    def __init__(self, lock: LockArguments) -> None:
        # The renewals keep it: by a reference to the lock they would keep themselves.
        self._redis, self._key, self._scripts = lock.redis, lock._key, type(lock)
        self._messages: ThreadSubscription | None = None

    async def run(self, script: str, keys: Sequence[bytes], args: Sequence[object]) -> Reply:
        """One script of the lock's class."""
        call, until = getattr(self._scripts, f"lua_{script}"), clock.now() + CROWDED
        while True:
            try:
                return call(keys=keys, args=args, client=self._redis)
            except RedisConnectionError as error:
                if not crowded(error) or clock.now() >= until:
                    raise
            clock.pause(AGAIN)

    async def command(self, *words: object) -> Reply:
        """One command."""
        return self._redis.execute_command(*words, **RAW)

    async def listen(self, channel: bytes) -> bool:
        """On a connection of the pool. False where none is to spare, or it is not allowed."""
        messages: ThreadSubscription | None = subscription(self._redis, self._key)
        if messages is None or not room_to_listen(messages):
            return False
        self._messages = messages
        try:
            messages.subscribe(channel)
            until = clock.now() + CONFIRMED
            while (left := until - clock.now()) > 0:
                if messages.get_message(timeout=left) is not None:
                    return True
        except RedisError:
            pass
        await self.deaf()
        return False

    async def heard(self, seconds: float) -> bool:
        """Until the server tells, or for so long."""
        messages = self._messages
        if messages is None:
            clock.pause(seconds)
            return False
        until = clock.now() + seconds
        try:
            while True:
                told = messages.get_message(timeout=max(0.0, until - clock.now()))
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
                messages.close()
            except RedisError:
                LOGGER.debug("a subscription ended badly", exc_info=True)
            no_longer_listens(messages)

    async def settle(self, work: Work) -> None:
        """Here and now."""
        await work

    def behind(self, work: Work) -> None:
        """In a thread of its own."""

        def finished() -> None:
            finish(work)

        heartbeat.apart(finished)

    async def pause(self, seconds: float) -> None:
        """Sleep."""
        clock.pause(seconds)


class Prolonging:
    """How the heartbeat keeps a lock with `auto_renew=True`."""

    def __init__(self, key: LockKey, grant: RedisGrant, terms: Terms) -> None:
        self._key, self._grant, self._terms = key, grant, terms

    async def renew(self, grant: Grant) -> Grant | Lost | Unknown:
        """One more timeout, from now on."""
        sent_at = clock.now()
        if await self._key.extend(self._grant, int(self._terms.ttl * 1000), "1") is None:
            return Lost("its key has another value, or none", gone=True)
        return self.renewed(grant.acquired_at_ns, sent_at)

    def renewed(self, since: int, sent_at: float) -> Grant:
        """The grant as the heartbeat knows it."""
        one, ends = self._grant, self._terms.deadline(sent_at)
        return Grant(self._key.name, one.nonce, one.token, None, since, one.value, (), ends)

    def far(self) -> bool:
        """A server may be silent: its renewals never wait in the one heartbeat thread."""
        return True

    def check(self, grant: Grant) -> Lost | None:
        """The deadline decides, no request is made."""
        return None


class Renewals:
    """The renewals of one grant, which end when nobody has it in hand any more."""

    def __init__(self, kept: RenewedLease) -> None:
        self._kept, self._generation = kept, fork.here()

    @property
    def terms(self) -> Terms:
        """By which it is renewed."""
        return self._kept.terms

    @property
    def deadline(self) -> float:
        """The instant at which the holder must stop; past it once it is lost."""
        return -1.0 if self._kept.why_not() is not None else self._kept.deadline

    def stop(self) -> None:
        """No more of them. L9  A forked child leaves alone what its parent has in hand."""
        if not self._kept.over and self._generation == fork.here():
            self._kept.stop()

    def __del__(self) -> None:
        self.stop()


class RedisLock(LockArguments):
    """redis-py's `redis.lock.Lock`, on the same key with the same values.

    `redis`: a `redis.Redis`, of a Sentinel too, or a `RedisCluster`; `timeout`: seconds that the
    key lives, None for as long as nobody removes it; `sleep`: seconds between two looks where no
    event tells that a holder has left. `auto_renew=True` prolongs the key every third of `timeout`
    in the background, as long as the process lives and somebody has the lock in hand.

    What it does not promise: fairness. A holder that was paused for longer than `timeout` may wake
    up beside its successor; `check()` says so by this process's clock, and at the data a guard of
    lifehold.fence refuses its token.
    """

    def __enter__(self) -> Self:
        began = clock.now()
        if self.acquire():
            return self
        holder = None
        try:
            holder = finish(self._at().holder())
        except RedisError:
            LOGGER.debug("nobody can say who has it", exc_info=True)
        raise refusal(self, holder, clock.now() - began if self.blocking else None)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.release()
        except LockError:
            if self.raise_on_release_error:
                raise
            LOGGER.warning("'%s' was unlocked or lost before its block ended", self._shown)

    def acquire(
        self,
        sleep: float | None = None,
        blocking: bool | None = None,
        blocking_timeout: float | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        """Wait for the lock; False when it did not become ours.

        `blocking=False`: one try. `blocking_timeout`: seconds of waiting at most, None for ever.
        `token`: the value to be set, a random one by default; give one only that nobody else has.
        Raises what the client raises; nothing stays held by an acquire that raised (L6), once the
        server answers again.
        """
        ask = self._request(token, sleep, blocking_timeout)
        blocking = self.blocking if blocking is None else blocking
        key, began, grant = self._at(), clock.now(), None
        try:
            grant = finish(key.acquire(ask, once=not blocking))
            if grant is None:
                return False
            self._begin(key, grant, ask.terms)
        except BaseException as error:
            self._drop(grant)
            finish(key.undo(ask, error))
            raise
        if events.listeners:
            waited = clock.now() - began
            events.tell(events.Acquired(self._shown, grant.nonce, grant.token, waited))
        return True

    def do_acquire(self, token: str | bytes) -> bool:
        """One try with that value."""
        return self.acquire(blocking=False, token=token)

    def locked(self) -> bool:
        """Whether anybody holds it, asked of the server."""
        return self.redis.get(self.name) is not None

    def owned(self) -> bool:
        """Whether this thread holds it: the server says so, and its own deadline has not come."""
        return self._owns(self.redis.get(self.name))

    def release(self) -> None:
        """Free the lock and wake one waiter.

        Raises LockError when nothing is held, LockNotOwnedError when it was lost before. After any
        other exception the outcome is unknown, and `release()` may be called again.
        """
        if (mine := self._mine()) is None:
            raise misused(self, "Cannot release a lock that's not owned or is already unlocked.")
        self.do_release(mine.value)

    def do_release(self, expected_token: str | bytes) -> None:
        """Free it, if that is its value."""
        grant = self._releasing(expected_token)
        freed = finish(self._at(grant).release(grant))
        self._forgotten(grant)
        if not freed:
            raise lost(self, "release")
        if events.listeners:
            held = clock.now() - grant.sent_at
            events.tell(events.Released(self._shown, grant.nonce, held))

    def extend(self, additional_time: float, replace_ttl: bool = False) -> Literal[True]:
        """Add so many seconds to what is left, or put them in its place."""
        return self.do_extend(additional_time, replace_ttl)

    def do_extend(self, additional_time: float, replace_ttl: bool) -> Literal[True]:
        """For a subclass: what `extend()` does."""
        return self._extended("extend", additional_time, "1" if replace_ttl else "0")

    def reacquire(self) -> Literal[True]:
        """Begin the timeout anew."""
        return self.do_reacquire()

    def do_reacquire(self) -> Literal[True]:
        """For a subclass: what `reacquire()` does."""
        return self._extended("reacquire", self.timeout or 0.0, "again")

    def _extended(self, what: str, seconds: float, mode: str) -> Literal[True]:
        mine, ms = self._extendable(what), self._milliseconds(what, seconds)
        self._shortening(mine, ms, mode)
        grant = finish(self._at(mine).extend(mine, ms, mode))
        if grant is None:
            raise lost(self, what)
        self._prolonged(grant)
        return True

    # ---- what redis-py's lock does not have -----------------------------------------------------

    def check(self) -> None:
        """Raises LockNotOwnedError, which is a LeaseLost, once this holder must stop.

        By its own clock, without a request: between a check and a write only the token protects.
        """
        if (why := self._why_lost()) is not None:
            raise ended(self, why)

    def verify(self) -> None:
        """`check()`, and the server is asked whether the key still has our value."""
        if (why := self._lost_unless(self.owned())) is not None:
            raise ended(self, why)

    def holder(self) -> Holder | None:
        """Who has the lock now, asked of the server; None for nobody."""
        return finish(self._at().holder())

    def _at(self, grant: RedisGrant | None = None) -> LockKey:
        key = self._key if grant is None else grant.key or self._key
        return LockKey(BlockingClient(self), key, self._shown)

    def _begin(self, key: LockKey, grant: RedisGrant, terms: Terms | None) -> None:
        self._granted(grant)
        if terms is None:
            return
        how = Prolonging(key, grant, terms)
        granted = how.renewed(clock.utc_ns(), grant.sent_at)
        kept = RenewedLease(how, granted, terms, self._shown)
        if self._kept(grant, Renewals(kept)):
            kept.start()


Lock = RedisLock
