"""The protocol of this face: what its scripts do at the server, and how an acquire waits.

The lock is redis-py's own: one string key, set if it is not there, removed by who has its value.
Everything else lies beside it (ops/redis_locks.py) and may be lost without harm to exclusion.
Written once as coroutines over a port: the blocking client, or that of asyncio.

How it could fail, and what keeps it:
- A reply is lost and the client sends the script again: the grant carries a nonce, chosen before
  the first request, and the second run finds it (L6). So does a release.
- Who gave up without an answer had been granted it, or will be when a paused server goes on: the
  undo ends the grant and marks its nonce as given up, so that a request that comes late is refused.
  Where the newest request was answered by a refusal there is nothing to undo.
- The key was released and its waiter is not told (a lost message, a client that died): each waiter
  looks again by itself, the first in line of a foreign holder every `sleep` seconds.
- A foreign process releases or takes the key: the record names the value that it is about, and
  counts only while that value stands at the key.
- Threads or tasks share one object, and one is granted the lock before another's release has its
  answer: a call changes what is in hand only where its own grant still is (arguments.py).
"""

from __future__ import annotations

import json
import uuid
from weakref import WeakKeyDictionary, WeakSet

from redis.cluster import AbstractRedisCluster
from redis.exceptions import (
    MaxConnectionsError,
    NoPermissionError,
    RedisClusterException,
)

from ...core.deadline import FIRST_NOTICE, NEVER, default_margin, next_gap
from ...core.events import Waiting, report
from ...core.value import as_dict, replace, value
from ...ops.redis_locks import PREFIX, SideKeys, look, side_keys
from ...runtime import clock, fork, notify, process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence
    from typing import Any, Protocol, TypeVar

    from ...core.deadline import Terms
    from ...core.grant import Holder
    from ...core.owner import Owner
    from ...ops.redis_locks import Reply

    S = TypeVar("S")
    S_co = TypeVar("S_co", covariant=True)
    Work = Coroutine[Any, Any, object]

    class Pool(Protocol):
        """Connections of a client, or of a cluster's node."""

        max_connections: int
        name: str  # of a node alone

    class Subscription(Protocol):
        """A `pubsub()` of redis-py; the last two: of a cluster's client alone."""

        connection_pool: Pool
        cluster: object
        node: Pool

    class Subscribable(Protocol[S_co]):
        """A client of redis-py, as one listens by it."""

        def pubsub(self, **where: object) -> S_co:
            """Somebody who listens."""
            ...

        def get_node_from_key(self, key: bytes) -> object:
            """Of a cluster's client alone."""
            ...

    class LockClient(Protocol):
        """What a client of redis-py does for a lock, blocking or not."""

        unanswered: tuple[type[Exception], ...]  # what it raises when nobody knows the outcome
        refused: tuple[type[Exception], ...]  # ... when the server said no

        async def run(self, script: str, keys: Sequence[bytes], args: Sequence[object]) -> Reply:
            """One script, by the name that it has in SCRIPTS."""
            ...

        async def command(self, *words: object) -> Reply:
            """One command."""
            ...

        async def listen(self, channel: bytes) -> bool:
            """Subscribe, and wait until the server has confirmed that. False: it cannot be.

            A subscription keeps a connection of the client's pool: see `room_to_listen`.
            """
            ...

        async def heard(self, seconds: float) -> bool:
            """Sleep, at most until a message comes. Whether it still listens."""
            ...

        async def deaf(self) -> None:
            """Listen no more."""
            ...

        async def settle(self, work: Work) -> None:
            """Do it to its end, whoever cancels the caller meanwhile."""
            ...

        def behind(self, work: Work) -> None:
            """Go on with it while the caller has left."""
            ...

        async def pause(self, seconds: float) -> None:
            """Sleep."""
            ...


SLOW = 1.0  # seconds between two looks while an event will tell
GRACE = 6.0  # seconds after which a waiter that asked no more is passed over
CROWDED, AGAIN = 2.0, 0.005  # seconds, where all connections of the client's pool are in use
KEPT_MS = 10_000  # for which a release may be asked for again
GIVEN_UP_MS = 600_000  # for which a request may still come from a server that was paused
FOR_GOOD = ("NOPERM", "ACL failure", "WRONGTYPE")  # refusals that stay, also out of a script
UNDONE_AFTER = 60.0  # seconds for which the undo of a lock without an expiry is tried

_WAKE = """
local function wake(line, seen)
    while true do
        local head = redis.call('zrange', line, 0, 0)[1]
        if not head then
            return
        end
        redis.call('zrem', line, head)
        redis.call('hdel', seen, head)
        local heard = redis.pcall('publish', head, 'free')
        if type(heard) == 'number' and heard > 0 then
            return
        end
    end
end
local function cleared(owner)
    redis.call('hdel', owner, 'value', 'nonce', 'token', 'at', 'owner')
end
"""

# Keys of each: the lock, then either nothing or token, owner, given-up mark, line, seen.
SCRIPTS = {
    # value, milliseconds or '', nonce, owner, channel or '', first asked or '', grace
    # -> got it, token or time, milliseconds left, whether its release will be told, place in line
    "acquire": """
local beside = #KEYS > 1
local t = redis.call('time')
local us = t[1] * 1000000 + t[2]
local ms = math.floor(us / 1000)
local found = redis.pcall('get', KEYS[1])
local record = {}
if beside then
    if redis.call('exists', KEYS[4]) == 1 then
        return {0, ms, -1, 0, 0}
    end
    record = redis.call('hmget', KEYS[3], 'value', 'nonce', 'token')
end
if found == ARGV[1] and ARGV[3] ~= '' then
    if beside and record[2] == ARGV[3] and record[1] == found then
        return {1, tonumber(record[3]), -1, 0, 0}
    elseif not beside then
        return {1, 0, -1, 0, 0}
    end
end
if not found then
    local token = 0
    if beside then
        local last = redis.call('get', KEYS[2]) or '0'  -- L13  no step of ours has written others
        if not string.match(last, '^%d+$') or #last > 16 or tonumber(last) >= 9007199254740991 then
            last = '0'
        end
        token = math.max(tonumber(last) + 1, us)
    end
    if ARGV[2] == '' then
        redis.call('set', KEYS[1], ARGV[1])
    else
        redis.call('set', KEYS[1], ARGV[1], 'px', ARGV[2])
    end
    if not beside then
        return {1, 0, -1, 0, 0}
    end
    local text = string.format('%.0f', token)
    redis.call('set', KEYS[2], text)
    redis.call('hset', KEYS[3], 'value', ARGV[1], 'nonce', ARGV[3], 'token', text,
        'at', string.format('%.0f', ms), 'owner', ARGV[4])
    if ARGV[2] == '' then
        redis.call('persist', KEYS[3])
    else
        redis.call('pexpire', KEYS[3], ARGV[2])
    end
    if ARGV[5] ~= '' then
        redis.call('zrem', KEYS[5], ARGV[5])
        redis.call('hdel', KEYS[6], ARGV[5])
    end
    return {1, token, -1, 0, 0}
end
local told, place = 0, 0
if beside and record[1] == found then
    told = 1
end
if beside and ARGV[5] ~= '' then
    local first = ARGV[6] == '' and string.format('%.0f', ms) or ARGV[6]
    redis.call('zadd', KEYS[5], 'nx', first, ARGV[5])
    redis.call('hset', KEYS[6], ARGV[5], string.format('%.0f', ms + ARGV[7]))
    for _, key in ipairs({KEYS[5], KEYS[6]}) do
        if redis.call('pttl', key) < tonumber(ARGV[7]) then
            redis.call('pexpire', key, ARGV[7])
        end
    end
    while true do
        local head = redis.call('zrange', KEYS[5], 0, 0)[1]
        if tonumber(redis.call('hget', KEYS[6], head) or '0') > ms then
            break
        end
        redis.call('zrem', KEYS[5], head)
        redis.call('hdel', KEYS[6], head)
    end
    place = redis.call('zrank', KEYS[5], ARGV[5])
end
return {0, ms, redis.call('pttl', KEYS[1]), told, place}
""",
    # value, nonce -> 1 when it was ours until now
    "release": _WAKE
    + f"""
local beside = #KEYS > 1
if redis.call('get', KEYS[1]) ~= ARGV[1] then
    if beside and ARGV[2] ~= '' and redis.call('hget', KEYS[3], 'released') == ARGV[2] then
        return 1
    end
    return 0
end
redis.call('del', KEYS[1])
if beside then
    cleared(KEYS[3])
    redis.call('hset', KEYS[3], 'released', ARGV[2])
    redis.call('pexpire', KEYS[3], {KEPT_MS})
    wake(KEYS[5], KEYS[6])
end
return 1
""",
    # value, milliseconds, '1' to replace what is left -> milliseconds left, or nothing
    "extend": """
if redis.call('get', KEYS[1]) ~= ARGV[1] then
    return nil
end
local left = redis.call('pttl', KEYS[1])
if left < 0 and ARGV[3] ~= 'again' then
    return nil
end
local ms = tonumber(ARGV[2])
if ARGV[3] == '0' then
    ms = ms + left
end
redis.call('pexpire', KEYS[1], ms)
if #KEYS > 1 and redis.call('hget', KEYS[3], 'value') == ARGV[1] then
    redis.call('pexpire', KEYS[3], ms)
end
return ms
""",
    # value, nonce, channel or '', '1' when a request of that nonce may still come. A full server
    # still deletes: so that comes first, and the mark, which it may refuse, after it.
    "leave": _WAKE
    + f"""
if #KEYS > 1 then
    if ARGV[4] == '1' then
        local record = redis.call('hmget', KEYS[3], 'value', 'nonce')
        if record[2] == ARGV[2] and redis.pcall('get', KEYS[1]) == record[1] then
            redis.call('del', KEYS[1])
            cleared(KEYS[3])
        end
        redis.call('set', KEYS[4], 1, 'px', {GIVEN_UP_MS})
    end
    if ARGV[3] ~= '' then
        redis.call('zrem', KEYS[5], ARGV[3])
        redis.call('hdel', KEYS[6], ARGV[3])
    end
    if redis.call('exists', KEYS[1]) == 0 then
        wake(KEYS[5], KEYS[6])
    end
elseif ARGV[4] == '1' and redis.pcall('get', KEYS[1]) == ARGV[1] then
    redis.call('del', KEYS[1])
end
return 0
""",
}
_records: dict[Owner, str] = {}


@value
class RedisGrant:
    """One grant, or a value that the program has put in itself.

    `value`: what stands at the key; `nonce`: "" where nothing is known but the value; `sent_at`:
    the instant of our clock at which it was asked for or prolonged; `deadline`: at which its holder
    stops, NEVER without a timeout; `generation`: of the process that was granted it (L9); `key`: at
    which it was granted, b"" for the lock's own.
    """

    value: bytes
    nonce: str = ""
    token: int | None = None
    sent_at: float = 0.0
    deadline: float = NEVER
    generation: int = -1
    key: bytes = b""


@value
class LockRequest:
    """What one acquire asks for. `px`: milliseconds, None for no expiry; `until`: an instant.

    `terms`: by which it is renewed, None for never.
    """

    value: bytes
    nonce: str
    timeout: float | None
    sleep: float
    until: float
    terms: Terms | None

    @property
    def px(self) -> int | str:
        """Of the key, as redis-py counts it."""
        return int(self.timeout * 1000) if self.timeout else ""


def deadline(sent_at: float, ttl: float | None) -> float:
    """L8  Counted from the sending, a margin before the key ends."""
    if not ttl:
        return NEVER
    ttl = float(ttl)  # redis-py takes whatever can be multiplied
    return sent_at + ttl - min(default_margin(ttl), ttl / 4)


class LockKey:
    """One lock of one client: its keys, and what is asked of them."""

    def __init__(self, client: LockClient, key: bytes, name: str) -> None:
        self.client, self.key, self.name = client, key, name
        self.beside: SideKeys | None = side_keys(key)
        self._refused = False  # the newest request of an acquire was answered, and granted nothing

    def _keys(self, nonce: str = "") -> list[bytes]:
        beside = self.beside
        if beside is None:
            return [self.key]
        mark = beside.given_up + b":" + nonce.encode()
        return [self.key, beside.token, beside.owner, mark, beside.line, beside.seen]

    async def attempt(
        self, ask: LockRequest, channel: bytes = b"", first: object = ""
    ) -> RedisGrant | list[int]:
        """One try: the grant, or what the server says of who has it."""
        sent_at = clock.now()
        args = (ask.value, ask.px, ask.nonce, _record(), channel, first, _grace(ask.sleep))
        self._refused = False
        found: list[int] = await self.client.run("acquire", self._keys(ask.nonce), args)
        if not found[0]:
            self._refused = True
            return found
        token = found[1] if self.beside is not None else None
        ends = deadline(sent_at, ask.timeout)
        nonce = ask.nonce or uuid.uuid1().hex  # here alone: who holds that value again is another
        return RedisGrant(ask.value, nonce, token, sent_at, ends, fork.here(), self.key)

    async def acquire(self, ask: LockRequest, *, once: bool) -> RedisGrant | None:
        """The grant; None when the caller's patience is over. `once`: one try and no wait.

        L6  Whoever calls it undoes it after any exception: also one that came with the grant.
        """
        got = await self.attempt(ask)
        if isinstance(got, RedisGrant):
            return got
        return None if once or clock.now() >= ask.until else await self._wait(ask)

    async def _wait(self, ask: LockRequest) -> RedisGrant | None:
        """L10  Wait for the event, and look by ourselves where none is to be expected."""
        client, first = self.client, ""
        channel = _channel(ask)
        began = clock.now()
        notice_at, gap = began + FIRST_NOTICE, FIRST_NOTICE
        can_listen, listening = self.beside is not None, False
        try:
            while True:
                if can_listen and not listening:
                    can_listen = listening = await client.listen(channel)
                last = clock.now() >= ask.until
                got = await self.attempt(ask, channel if listening else b"", first)
                if isinstance(got, RedisGrant):
                    return got
                if last:
                    return None
                first = first or str(got[1])
                if (now := clock.now()) >= notice_at:
                    await self._tell(now - began, got[4] if listening else None)
                    gap = next_gap(gap)
                    notice_at = now + gap
                pause = _pause(got, ask.sleep) if listening else ask.sleep
                listening = await client.heard(
                    max(0.0, min(pause, ask.until - now, notice_at - now))
                )
        finally:
            await client.settle(self._leave(ask, channel, first))

    async def _leave(self, ask: LockRequest, channel: bytes, first: str) -> None:
        """Listen no more, and out of the line; if the lock is free, the next one is told."""
        await self.client.deaf()
        if self.beside is None or not (first or self._refused):
            return
        try:
            await self.client.run("leave", self._keys(ask.nonce), (ask.value, "", channel, ""))
        except Exception as error:  # noqa: BLE001 - whoever is next looks by itself
            report(error)

    async def undo(self, ask: LockRequest, error: BaseException) -> None:
        """L6  Nothing stays held without a handle, whether or not the request was carried out."""
        if self._refused:
            return  # nothing is held, and no request is on its way: no mark for ten minutes
        if not ask.nonce:
            return  # a value that others may hold too: ours cannot be told from it
        if isinstance(error, self.client.unanswered):
            self.client.behind(self._undo_again(ask))  # the caller has waited for one timeout
        else:
            await self.client.settle(self._undo_now(ask))

    async def _undo(self, ask: LockRequest) -> None:
        args = (ask.value, ask.nonce, _channel(ask), "1")
        await self.client.run("leave", self._keys(ask.nonce), args)

    async def _undo_now(self, ask: LockRequest) -> None:
        try:
            await self._undo(ask)
        except Exception as error:  # noqa: BLE001 - tried again
            if not self._for_good(error):  # else as the request was
                self.client.behind(self._undo_again(ask))

    def _for_good(self, error: Exception) -> bool:
        """Whether it is a refusal that no waiting ends; a full or a busy server is none."""
        if not isinstance(error, self.client.refused):
            return False
        text = str(error)
        return isinstance(error, NoPermissionError) or any(word in text for word in FOR_GOOD)

    async def _undo_again(self, ask: LockRequest) -> None:
        """Until it is done, or the key has ended by itself."""
        until = clock.now() + float(ask.timeout or UNDONE_AFTER)
        pause = 0.05
        while True:
            try:
                await self.client.settle(self._undo(ask))
            except Exception as error:  # noqa: BLE001 - no answer still
                if clock.now() >= until or self._for_good(error):
                    report(error)
                    return
            else:
                return
            await self.client.pause(pause)
            pause = min(pause * 2, 2.0)

    async def release(self, grant: RedisGrant) -> bool:
        """Free the key. False: it was not ours any more."""
        args = (grant.value, grant.nonce)
        return bool(await self.client.run("release", self._keys(), args))

    async def extend(self, grant: RedisGrant, ms: int, mode: str) -> RedisGrant | None:
        """Prolong it; None when it is not ours. `mode`: "0" adds, "1" replaces, "again" always."""
        sent_at = clock.now()
        left = await self.client.run("extend", self._keys(), (grant.value, ms, mode))
        if left is None:
            return None
        ends = deadline(sent_at, left / 1000) if left > 0 else sent_at
        return replace(grant, sent_at=sent_at, deadline=ends)

    async def holder(self) -> Holder | None:
        """Who has it, as far as the key and the record beside it tell; None for nobody."""
        found = await look(self.client.command, self.key)
        return found.holders[0] if found is not None and found.holders else None

    async def _tell(self, waited: float, ahead: int | None) -> None:
        try:
            holder = await self.holder()
        except Exception as error:  # noqa: BLE001 - the wait goes on
            report(error)
            return
        notify.waiting(Waiting(self.name, waited, holder, ahead))


# Who listens, by what its connection comes from: a client's pool, or a cluster's of one node.
# Whoever is gone is no member.
_listening: WeakKeyDictionary[object, dict[str, WeakSet[Subscription]]] = WeakKeyDictionary()
fork.in_child(_listening.clear)  # the parent's listeners, and their connections, are not here


def subscription(redis: Subscribable[S], key: bytes) -> S | None:
    """To wait by for the lock at `key`; None where the client has none.

    In a cluster at the node of the lock: PUBLISH counts only who listens where it is asked, and a
    release wakes one waiter more for each that nobody heard.
    """
    try:
        if isinstance(redis, AbstractRedisCluster):
            return redis.pubsub(node=redis.get_node_from_key(key))
        return redis.pubsub()
    except (AttributeError, RedisClusterException):  # of an old client; a slot that nobody serves
        return None


def room_to_listen(messages: Subscription) -> bool:
    """Whether a subscription may have a connection of its client's pool: at most half of them.

    The others are for requests, that of a holder who releases among them. A cluster's client has
    as many for each node. `messages`: it.
    """
    owner, node, most = _place(messages)
    fork.here()
    with fork.gate:
        there = _listening.setdefault(owner, {}).setdefault(node, WeakSet())
        if len(there) >= most // 2:
            return False
        there.add(messages)
        return True


def _place(messages: Subscription) -> tuple[object, str, int]:
    """Whose its connection is, of which node of it, and how many there are."""
    pool = messages.connection_pool
    try:
        return pool, "", pool.max_connections
    except AttributeError:  # of redis.asyncio: each node of a cluster keeps its connections itself
        node = messages.node
        return messages.cluster, node.name, node.max_connections


def crowded(error: Exception) -> bool:
    """Whether the client's pool had no connection to give: nothing was sent.

    redis-py's own lock has one for each request, so as many of it as there are connections never
    meet that. We have one more while we listen: who meets it asks again, for `CROWDED` seconds.
    """
    return isinstance(error, MaxConnectionsError) or "Too many connections" in str(error)


def no_longer_listens(messages: Subscription) -> None:
    """Its connection has gone back."""
    owner, node, _ = _place(messages)
    with fork.gate:
        _listening.get(owner, {}).get(node, WeakSet()).discard(messages)


def _channel(ask: LockRequest) -> bytes:
    """On which this very waiter is told."""
    return PREFIX + b"wake:" + ask.nonce.encode()


def _pause(refusal: list[int], sleep: float) -> float:
    """Seconds until we look by ourselves: the first in line looks for what no event tells."""
    _, _, left, told, place = refusal
    if place:
        return max(SLOW, sleep)
    if not told:
        return sleep
    return SLOW if left < 0 else min(SLOW, left / 1000 + 0.001)


def _grace(sleep: float) -> int:
    """Milliseconds for which a waiter that is silent keeps its place."""
    return int(max(GRACE, 3 * sleep) * 1000)


def _record() -> str:
    """This process and thread, for whoever asks who has the lock."""
    owner = process.here()
    text = _records.get(owner)
    if text is None:
        if len(_records) >= 64:
            _records.clear()
        text = _records[owner] = json.dumps(as_dict(owner), separators=(",", ":"))
    return text
