"""`FencedRedis`: keys of Redis that accept no write of a late holder.

    guard = FencedRedis(client, lease)
    guard.advance("account:7")              # before the first read: older tokens are refused
    guard.hset("account:7", {"sum": 5})     # StaleToken once a later holder has been there
    guard.run("return redis.call('append', KEYS[1], ARGV[1])", ["account:7"], ["x"])

Promise: of two writes that were admitted under different tokens, the one with the older token was
made first. Rule: a key beside the data, in the same slot, remembers the newest token; one script
compares it, writes and stores it, and a server runs one script at a time. The fence lives and dies
with the data: a failover that loses the last writes loses it with them, a flush takes both. A
server that evicts keys which do not expire might evict the fence alone. So where there is no fence
the policy is asked, and such a server is refused.

`transaction` is for what one script cannot do: WATCH, reads, MULTI, EXEC. The fence is watched with
the keys, so a successor's `advance` ends it. EXEC answers nil when any watched key changed: then
the lease is asked, and the caller learns whether to try again (`Conflict`) or to stop. redis-py
raises the same WatchError when the connection ends in between: before EXEC that is tried again,
from EXEC on the outcome is unknown and its cause is raised (L6). How it could fail: what writes
these keys without a guard is not seen, as everywhere.
"""

from __future__ import annotations

from contextlib import contextmanager
from inspect import isawaitable

from ...core.deadline import seconds
from ...core.errors import CorruptRecord, InvalidArgument, LeaseLost, LifeholdError, UnsafeGround
from ...core.fence import stale
from ...decorated import is_coroutine_function
from ...runtime import fork
from ...store.redis.same_slot import in_slot_of
from .rule import token_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
    from typing import Any

    from .rule import Carrier

    Client = Any  # blocking, of asyncio, of a cluster: they have no type in common
    Pipe = Client
    Reply = Any  # what a server answered, in the form that the client gives it
    Word = str | bytes | int | float

__all__ = ["AsyncFencedRedis", "Conflict", "FencedRedis"]

PREFIX = b"lifehold:1:fence:"  # the number: of this layout
_WORDS = "EVALSHA 0az{}"  # are the same bytes in each encoding that a server can read

_MAY_EVICT = """
local function may_evict()
    local told = redis.pcall('info', 'memory')
    return type(told) == 'string' and string.find(told, 'maxmemory_policy:allkeys', 1, true)
end
"""
_LASTS = f"{_MAY_EVICT}\nreturn {{may_evict() and -1 or 1}}\n"
# Tokens are compared as texts: a number of Lua is exact up to 2**53 only.
_ADMIT = (
    _MAY_EVICT
    + """
local half, missing = #KEYS / 2, false
for at = half + 1, #KEYS do
    local seen = redis.pcall('get', KEYS[at])
    if type(seen) == 'table' and not string.find(seen.err, '^WRONGTYPE') then
        return seen
    elseif type(seen) == 'table' then
        return {-2, at - half}
    end
    missing = missing or not seen
    if seen and (#seen > 19 or seen ~= '0' and not string.find(seen, '^[1-9]%d*$')) then
        return {-2, at - half}
    end
    if seen and (#seen > #ARGV[1] or (#seen == #ARGV[1] and seen > ARGV[1])) then
        return {0, seen, at - half}
    end
end
if missing and may_evict() then
    return {-1}
end
local keys, words = {}, {}
for at = 1, half do
    keys[at] = KEYS[at]
    redis.call('set', KEYS[half + at], ARGV[1])
end
for at = 2, #ARGV do
    words[at - 1] = ARGV[at]
end
"""
)
_REFUSAL = """
local function refusal(got)
    if type(got) ~= 'table' or not got.err then
        return nil
    end
    return string.find(got.err, '^WRONGTYPE') and {-3, got.err} or got
end
"""
_COMMAND = (
    _ADMIT
    + _REFUSAL
    + """
if #words == 0 then
    return {1}
end
local name = table.remove(words, 1)
local got = redis.pcall(name, keys[1], unpack(words))
return refusal(got) or {1, got}
"""
)
# The words of a command come out of a table: of one for which Lua has no room it goes in pieces,
# in this same step. Only of what cannot fail behind its first piece.
_PIECES = (
    _ADMIT
    + _REFUSAL
    + """
local got = 0
for at = 3, #words, 7000 do
    local last = math.min(at + 6999, #words)
    local said = redis.pcall(words[2], keys[1], unpack(words, at, last))
    if refusal(said) then
        return refusal(said)
    end
    got = words[1] == 'sum' and got + said or said
end
return {1, got}
"""
)
MOST = 7999  # words behind the key of one command in a script: Lua's own limit
_ANSWERS = {  # of one command, from those of its pieces
    **dict.fromkeys(("HSET", "HDEL", "SADD", "SREM", "ZREM"), "sum"),
    **dict.fromkeys(("LPUSH", "RPUSH"), "last"),
}


class Conflict(LifeholdError):
    """A watched key changed before EXEC, and the lease still holds: read again, and try again."""

    code = "conflict"


def scripted(script: str) -> str:
    """The program's script behind the admission, with KEYS and ARGV of its own."""
    head = f"{_ADMIT}\nlocal function guarded(KEYS, ARGV)\n"
    tail = "if type(got) == 'table' and got.err then\n    return got\nend\nreturn {1, got}\n"
    return f"{head}{script}\nend\nlocal got = guarded(keys, words)\n{tail}"


class KeyFences:
    """What both faces are made of: the keys beside the data, and what an answer means."""

    _asynchronous = False

    def __init__(self, client: Client, lease: Carrier | int) -> None:
        if not hasattr(client, "register_script") or hasattr(client, "execute"):
            raise InvalidArgument(
                f"client must be a client of redis-py, and no pipeline, not {type(client).__name__}"
            )
        self._client, self._lease = client, lease
        encoder = client.get_encoder()
        self._encoding = encoder.encoding, encoder.encoding_errors
        if _WORDS.encode(*self._encoding) != _WORDS.encode():
            raise InvalidArgument(
                f"client writes text in {encoder.encoding}, in which no server reads a command: "
                "make it with the encoding utf-8"
            )
        self._one = client.register_script(_COMMAND)
        if is_coroutine_function(self._one) is not self._asynchronous:
            face = "FencedRedis" if self._asynchronous else "AsyncFencedRedis"
            raise InvalidArgument(f"client is of {type(client).__module__}: take {face}")
        self._many = client.register_script(_PIECES)
        self._lasts = client.register_script(_LASTS)  # whether a fence that is not there yet will
        self._scripts: dict[str, Callable[..., Reply]] = {}

    @property
    def token(self) -> int:
        """That of the lease. Raises StaleToken for a lock that carries none."""
        return token_of(self._lease, "redis")

    def _asked(self, keys: Sequence[str | bytes], words: Sequence[Word]) -> dict[str, object]:
        if not keys:
            raise InvalidArgument("a guarded write names its keys")
        fences = [*map(self._fence_of, keys)]
        token = token_of(self._lease, _shown(keys[0]))
        return {"keys": [*keys, *fences], "args": [token, *words]}

    def _fence_of(self, key: str | bytes) -> bytes:
        """The fence of the very bytes that the client makes of a key. Raises InvalidArgument."""
        if not isinstance(key, str):
            return fence_key(key)
        try:
            return fence_key(key.encode(*self._encoding))
        except UnicodeEncodeError as error:
            raise InvalidArgument(
                f"{key!r} is no key of this client: {self._encoding[0]} has no bytes for it"
            ) from error

    @contextmanager
    def _reading(self, key: str | bytes) -> Iterator[None]:
        """L13  A fence of another type was written by something else."""
        try:
            yield
        except fork.lazily("redis.exceptions").ResponseError as error:
            if not str(error).startswith("WRONGTYPE"):
                raise
            raise damaged(key, self._fence_of(key)) from error

    def _sent(self, name: str, key: str | bytes, words: Sequence[Word]) -> Reply:
        """What the script of one command answers, or the client's promise of that."""
        if len(words) <= MOST:
            return self._one(**self._asked([key], (name, *words)))
        return self._many(**self._asked([key], (answer_of_pieces(name, words), name, *words)))

    def _script(self, text: str) -> Callable[..., Reply]:
        if text not in self._scripts:
            self._scripts[text] = self._client.register_script(scripted(text))
        return self._scripts[text]

    def _answered(self, keys: Sequence[str | bytes], answer: Reply) -> Reply:
        if answer[0] == -2:
            late = keys[int(answer[1]) - 1]
            raise damaged(late, self._fence_of(late))
        if answer[0] == -3:
            raise self._of_another_type(keys[0], answer[1])
        if answer[0] < 0:
            raise UnsafeGround(
                f"{_shown(keys[0])!r}: the server's maxmemory-policy evicts keys that do not "
                "expire, so it may evict the fence and keep the data: a late write would be "
                "admitted. Set it to noeviction or volatile-lru, or use a server of its own",
                name=_shown(keys[0]),
            )
        if answer[0]:
            said = answer[1] if len(answer) > 1 else None
            if isinstance(said, Exception):
                raise said
            return said
        late = _shown(keys[int(answer[2]) - 1])
        raise stale(late, token_of(self._lease, late), int(answer[1]))

    def _of_another_type(self, key: str | bytes, told: str | bytes) -> BaseException:
        """What the client would have raised, and of which key."""
        kind: type[BaseException] = fork.lazily("redis.exceptions").ResponseError
        return kind(f"{_shown(told)} (key {_shown(key)!r})")

    def _compared(self, keys: Sequence[str | bytes], seen: Sequence[Reply]) -> None:
        for key, told in zip(keys, seen, strict=True):
            name, fence = _shown(key), number(key, self._fence_of(key), told)
            token = token_of(self._lease, name)
            if fence > token:
                raise stale(name, token, fence)

    def _asking(self) -> Callable[[], object] | None:
        """What asks the lease: its store, where it can be asked. None of a bare token."""
        lease = self._lease
        if isinstance(lease, int):
            return None
        ask: Callable[[], object] | None = getattr(lease, "verify", None)
        return ask or getattr(lease, "check", None)

    def _conflict(self, keys: Sequence[str | bytes]) -> Conflict:
        names = ", ".join(map(repr, map(_shown, keys)))
        return Conflict(
            f"a key watched with {names} changed before EXEC, and the lease still holds: read "
            "again and try again",
            name=_shown(keys[0]),
        )

    def _gone(self, keys: Sequence[str | bytes]) -> LeaseLost:
        return LeaseLost(
            f"{_shown(keys[0])!r}: nothing was written: a watched key changed before EXEC, and the "
            "lease does not hold any more",
            name=_shown(keys[0]),
            reason="it does not hold any more",
        )


class FencedRedis(KeyFences):
    """Writes under a lease, refused once a later holder has been at that key.

    `client`: of redis-py, blocking, also of a cluster; `lease`: whose token is compared, or that
    token. Each guarded key has a fence beside it, `lifehold:1:fence:{KEY}`, which does not expire.
    All that write these keys must go through a guard. Writes raise StaleToken; UnsafeGround of a
    server that may evict a fence; and what the client raises: then the outcome is unknown, and a
    client that retries by itself may have made an `incr` twice, as without a guard.
    """

    def advance(self, *keys: str | bytes) -> None:
        """Refuse older tokens at these keys from now on. In a cluster, keys of one slot."""
        self._answered(keys, self._one(**self._asked(keys, ())))

    def command(self, name: str, key: str | bytes, *words: Word) -> Reply:
        """Any command whose first argument is the one key that it writes. The server's answer.

        Raises InvalidArgument of more than 7999 words behind the key, before anything is written:
        a script has no room for them. HSET, HDEL, LPUSH, RPUSH, SADD, SREM and ZREM may have more,
        and are one step still.
        """
        return self._answered([key], self._sent(name, key, words))

    def set(self, key: str | bytes, value: Word, ttl: float | None = None) -> None:
        """The whole value. `ttl`: seconds after which it ends, None for never."""
        self.command("SET", key, value, *lasting(ttl))

    def hset(self, key: str | bytes, mapping: Mapping[Word, Word]) -> int:
        """Fields of a hash. How many of them are new."""
        return int(self.command("HSET", key, *flat(mapping)))

    def incr(self, key: str | bytes, amount: int = 1) -> int:
        """The number afterwards."""
        return int(self.command("INCRBY", key, amount))

    def delete(self, key: str | bytes) -> bool:
        """Whether it was there. Its fence stays."""
        return bool(self.command("DEL", key))

    def run(self, script: str, keys: Sequence[str | bytes], args: Sequence[Word] = ()) -> Reply:
        """A script of yours in one step with the admission. It sees its own KEYS and ARGV."""
        return self._answered(keys, self._script(script)(**self._asked(keys, args)))

    def fence(self, key: str | bytes) -> int:
        """The least token that is admitted at a key."""
        return number(key, self._fence_of(key), self._seen(self._client, key))

    def transaction(
        self, work: Callable[[Pipe], object], *keys: str | bytes, tries: int = 1
    ) -> list[Reply]:
        """WATCH the keys and their fences, call `work(pipe)`, EXEC. What EXEC answered.

        `work` reads through the pipe, calls `pipe.multi()` and queues its writes; it may be called
        `tries` times. Raises StaleToken, Conflict (a key changed: try again) or LeaseLost; and the
        client's ConnectionError or TimeoutError when EXEC had no answer: then the outcome is
        unknown, the writes may have been made, and `work` is not called again.
        """
        WatchError = fork.lazily("redis.exceptions").WatchError  # noqa: N806  its own name
        fences = [*map(self._fence_of, keys)]
        while True:
            self._asked(keys, ())
            sent = False
            with self._client.pipeline(transaction=True) as pipe:
                try:
                    pipe.watch(*keys, *fences)
                    seen = [self._seen(pipe, each) for each in keys]
                    self._compared(keys, seen)
                    if None in seen:
                        self._answered(keys, self._lasts(keys=fences[:1]))
                    work(pipe)
                    queued(pipe)
                    for each in fences:
                        pipe.set(each, self.token)
                    sent = True
                    return list(pipe.execute())[: -len(fences)]
                except WatchError as error:
                    why = _cut(error)
                    if why is not None and sent:
                        raise why from None  # L6  nobody knows whether EXEC was carried out
                    self._compared(keys, [self._seen(self._client, each) for each in keys])
                    if not self._still_ours():
                        raise self._gone(keys) from error
                    tries -= 1
                    if tries < 1:
                        raise why or self._conflict(keys) from error

    def _seen(self, where: Pipe, key: str | bytes) -> Reply:
        with self._reading(key):
            return where.get(self._fence_of(key))

    def _still_ours(self) -> bool:
        ask = self._asking()
        try:
            return ask is None or ask() is not False
        except LeaseLost:
            return False


class AsyncFencedRedis(KeyFences):
    """The same for a client of redis.asyncio; `work` may be a coroutine function."""

    _asynchronous = True

    async def advance(self, *keys: str | bytes) -> None:
        """Refuse older tokens at these keys from now on."""
        self._answered(keys, await self._one(**self._asked(keys, ())))

    async def command(self, name: str, key: str | bytes, *words: Word) -> Reply:
        """Any command whose first argument is the one key that it writes. As in `FencedRedis`."""
        return self._answered([key], await self._sent(name, key, words))

    async def set(self, key: str | bytes, value: Word, ttl: float | None = None) -> None:
        """The whole value. `ttl`: seconds after which it ends, None for never."""
        await self.command("SET", key, value, *lasting(ttl))

    async def hset(self, key: str | bytes, mapping: Mapping[Word, Word]) -> int:
        """Fields of a hash. How many of them are new."""
        return int(await self.command("HSET", key, *flat(mapping)))

    async def incr(self, key: str | bytes, amount: int = 1) -> int:
        """The number afterwards."""
        return int(await self.command("INCRBY", key, amount))

    async def delete(self, key: str | bytes) -> bool:
        """Whether it was there. Its fence stays."""
        return bool(await self.command("DEL", key))

    async def run(
        self, script: str, keys: Sequence[str | bytes], args: Sequence[Word] = ()
    ) -> Reply:
        """A script of yours in one step with the admission."""
        return self._answered(keys, await self._script(script)(**self._asked(keys, args)))

    async def fence(self, key: str | bytes) -> int:
        """The least token that is admitted at a key."""
        return number(key, self._fence_of(key), await self._seen(self._client, key))

    async def transaction(
        self, work: Callable[[Pipe], Awaitable[object] | object], *keys: str | bytes, tries: int = 1
    ) -> list[Reply]:
        """WATCH the keys and their fences, call `work(pipe)`, EXEC. As in `FencedRedis`."""
        WatchError = fork.lazily("redis.exceptions").WatchError  # noqa: N806  its own name
        fences = [*map(self._fence_of, keys)]
        while True:
            self._asked(keys, ())
            sent = False
            async with self._client.pipeline(transaction=True) as pipe:
                try:
                    await pipe.watch(*keys, *fences)
                    seen = [await self._seen(pipe, each) for each in keys]
                    self._compared(keys, seen)
                    if None in seen:
                        self._answered(keys, await self._lasts(keys=fences[:1]))
                    made = work(pipe)
                    if isawaitable(made):
                        await made
                    queued(pipe)
                    for each in fences:
                        pipe.set(each, self.token)
                    sent = True
                    return list(await pipe.execute())[: -len(fences)]
                except WatchError as error:
                    why = _cut(error)
                    if why is not None and sent:
                        raise why from None  # L6  nobody knows whether EXEC was carried out
                    self._compared(keys, [await self._seen(self._client, each) for each in keys])
                    if not await self._still_ours():
                        raise self._gone(keys) from error
                    tries -= 1
                    if tries < 1:
                        raise why or self._conflict(keys) from error

    async def _seen(self, where: Pipe, key: str | bytes) -> Reply:
        with self._reading(key):
            return await where.get(self._fence_of(key))

    async def _still_ours(self) -> bool:
        ask = self._asking()
        try:
            said = None if ask is None else ask()
            return (await said if isawaitable(said) else said) is not False
        except LeaseLost:
            return False


def fence_key(key: str | bytes) -> bytes:
    """The key that remembers the newest token. Raises InvalidArgument."""
    if not isinstance(key, str | bytes | bytearray | memoryview):  # bytes(7) is seven NULs
        raise InvalidArgument(f"a key is text or bytes, not {type(key).__name__} {key!r}")
    raw = key.encode() if isinstance(key, str) else bytes(key)
    tail = in_slot_of(raw)
    if tail is None:
        raise InvalidArgument(
            f"{_shown(key)!r} cannot be guarded: it has a }} and no hash tag, so no other key is "
            "certain to share its cluster slot"
        )
    return PREFIX + tail


def number(key: str | bytes, fence: bytes, told: str | bytes | None) -> int:
    """What a fence says; 0 where there is none. Raises CorruptRecord: it must not admit."""
    if told is None:
        return 0
    text = told if isinstance(told, str) else told.decode("latin-1")
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and str(int(text)) == text):
        raise damaged(key, fence)
    return int(text)


def damaged(key: str | bytes, fence: bytes) -> CorruptRecord:
    """What to say of a fence that is no token."""
    return CorruptRecord(
        f"{_shown(key)!r}: its fence {_shown(fence)!r} is no token, so something else has written "
        "it: nothing was written. Make sure that every old holder has ended, then delete that key",
        name=_shown(key),
    )


def queued(pipe: Pipe) -> None:
    """Refuse a `work` that has not called `pipe.multi()`: its writes would be done already."""
    if not getattr(pipe, "explicit_transaction", True):  # a cluster's pipe does not say
        raise InvalidArgument("work(pipe) must call pipe.multi() before it queues its writes")


def _cut(error: BaseException) -> BaseException | None:
    """For what a connection's end WatchError was raised: no key is known to have changed."""
    of_client = fork.lazily("redis.exceptions")
    why = error.__context__
    return why if isinstance(why, (of_client.ConnectionError, of_client.TimeoutError)) else None


def answer_of_pieces(name: str, words: Sequence[Word]) -> str:
    """How a command's answer comes from those of its pieces. Raises InvalidArgument."""
    said = _ANSWERS.get(name.upper())
    if said is None:
        raise InvalidArgument(
            f"{name} has {len(words)} words behind its key, and a script has room for {MOST} in "
            "one command. Give them in several calls, or all of them to run(), with a script that "
            "takes them in turn"
        )
    if name.upper() == "HSET" and len(words) % 2:  # its last piece alone would be refused
        raise InvalidArgument(f"HSET takes fields and values in turn, not {len(words)} words")
    return said


def lasting(ttl: float | None) -> tuple[Word, ...]:
    """The words of SET for a time to live."""
    given = seconds("ttl", ttl, zero=False)
    return () if given is None else ("PX", max(1, int(given * 1000)))


def flat(mapping: Mapping[Word, Word]) -> list[Reply]:
    """Fields and values in turn."""
    if not mapping:
        raise InvalidArgument("hset needs at least one field")
    return [word for pair in mapping.items() for word in pair]


def _shown(key: str | bytes) -> str:
    return key if isinstance(key, str) else bytes(key).decode("utf-8", "surrogateescape")
