"""Who holds a lock that a library of Redis made: redis-py, python-redis-lock, Redisson and others.

    answer(redis.Redis(), "printer")        # read only: TYPE, PTTL, then GETRANGE or HRANDFIELD

Promise: nothing is written, and no key but those of one lock is read. However large it is, at most
`LONGEST` bytes of a string come here, and of a hash `MOST` fields, their values only when they are
short; the name of a field is taken as long as it is. Rule: a value names nobody, so nobody is named
by it; what a format does say (the time of a UUID, the thread of Redisson) is told as what the
holder wrote. A key that ends by itself is held until then, by the server's clock. One without an
expiry is suspect: no server can tell whether its holder lives.

The face of redis-py's lock (compat/redis_lock) keeps an owner record beside the key. What it calls
its keys stands here, since `who` reads them.
"""

from __future__ import annotations

import functools
import json

from ..core.fence import LARGEST
from ..core.grant import Holder
from ..core.mask import printable
from ..core.owner import ALIVE, UNKNOWN, owner_of
from ..core.value import replace, value
from ..runtime.blocking import finish
from ..store.redis.same_slot import in_slot_of
from .answer import FREE, HELD, SUSPECT, LockAnswer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from typing import Any, Protocol

    Reply = Any  # what a server answered, in the form that the client gives it
    Ask = Callable[..., Awaitable[Reply]]

    class CommandClient(Protocol):
        """A blocking client of redis-py."""

        def execute_command(self, *words: object, **options: object) -> Reply:
            """One command."""
            ...


RAW = {"NEVER_DECODE": True}  # for redis-py: a key of somebody else may hold what is no text
PREFIX = b"lifehold:1:redis-lock:"  # the number: of this layout
LONGEST = 1 << 16  # bytes of a value that are looked at
TYPED = 1024  # bytes of a value that a printed remedy may contain
MOST = 20  # holders of a hash who are shown; more of them are counted
FIELD, COUNT = 128, 32  # bytes, of a field's name and value in a lock of Redisson, at most
RECORD = ("value", "nonce", "token", "at", "owner")  # of ours beside the key
LATEST = 253_402_300_799_999  # UTC milliseconds: the end of the year 9999
EPOCH = 0x01B21DD213814000  # of UUIDs (1582) before that of Unix, in steps of 100 ns
HEX = frozenset("0123456789abcdef")
BASE64 = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")


@value
class SideKeys:
    """What our face keeps beside a lock's key, in the same slot of a cluster.

    `token`: the last token, which stays; `owner`: a hash that says who has it; `given_up`: the
    begin of marks of those who gave up without an answer; `line`, `seen`: who waits, until when.
    """

    token: bytes
    owner: bytes
    given_up: bytes
    line: bytes
    seen: bytes


@functools.lru_cache(128)
def side_keys(key: bytes) -> SideKeys | None:
    """The keys beside `key`; None where no other key can be made for the same slot."""
    tail = in_slot_of(key)
    if tail is None:
        return None
    parts = (b"token", b"owner", b"given-up", b"line", b"seen")
    return SideKeys(*(PREFIX + part + b":" + tail for part in parts))


@value
class LockAtKey:
    """What was seen at a key.

    `family`: whose format it has, "" for nobody's; `ends_in`: seconds, None for never; `text`: the
    value, as it may be shown; `fields`: of a hash; `more`: of its fields that were not looked at.
    """

    family: str = ""
    holders: tuple[Holder, ...] = ()
    text: str = ""
    ends_in: float | None = None
    note: str = ""
    is_string: bool = True
    fields: tuple[str, ...] = ()
    more: int = 0


def answer(client: CommandClient, key: str | bytes, name: str = "", path: str = "") -> LockAnswer:
    """Who holds the lock at `key`. `name`, `path`: what it is called in the answer."""

    async def ask(*words: object) -> Reply:
        return client.execute_command(*words, **RAW)

    raw = key.encode() if isinstance(key, str) else key
    shown = printable(raw.decode("utf-8", "surrogateescape"))
    return as_answer(finish(look(ask, raw)), raw, name or shown, path or shown)


def as_answer(
    found: LockAtKey | None, key: bytes, name: str, path: str, client: str = "redis-cli"
) -> LockAnswer:
    """What was seen there, as the answer about a lock. `client`: what its remedy is typed to."""
    if found is None:
        return LockAnswer(name, path, FREE, exists=False, kind="lease")
    if not found.holders:
        return LockAnswer(
            name, path, FREE, kind="lease", note=found.note, family=found.family
        )  # it is something else, or a lock of Redisson that nobody has
    first, *others = found.holders
    state = SUSPECT if found.ends_in is None else HELD
    remedy = () if state == HELD else removal(key, found, client)
    return LockAnswer(
        name,
        path,
        state,
        first,
        note=found.note,
        kind="lease",
        others=tuple(others),
        family=found.family,
        remedy=remedy,
    )


# Each ends one holder's lock, and calls those who wait as its own library does. It changes nothing
# when another holder has come since.
_SAME = "if redis.call('get',KEYS[1])~=ARGV[1] then return 0 end "
_DELETED = "return redis.call('del',KEYS[1])"
_SIGNALLED = (
    "redis.call('del',KEYS[2]) redis.call('lpush',KEYS[2],1) redis.call('pexpire',KEYS[2],1000) "
)
_UNCHANGED = (
    "if redis.call('hlen',KEYS[1])~=#ARGV then return 0 end for _,f in ipairs(ARGV) do "
    "if redis.call('hexists',KEYS[1],f)==0 then return 0 end end "
)
_CALLED = "redis.call('publish',KEYS[2],0) "
PYTHON_REDIS_LOCK = b"lock:"


def removal(key: bytes, found: LockAtKey, client: str) -> tuple[str, ...]:
    """How to end a lock that never ends by itself, once its holder is known to be gone."""
    from ..core.explain import quote

    if found.more or len(found.text) > TYPED:
        return ()  # what was judged cannot be named in a command

    def text(script: str, keys: list[bytes], *given: str) -> tuple[str, ...]:
        shown = [quote(each.decode("utf-8", "surrogateescape")) for each in keys]
        words = [f'EVAL "{script}"', str(len(keys)), *shown, *map(quote, given)]
        return (f"once its holder is known to be gone:  {client} {' '.join(words)}",)

    if found.family == "python-redis-lock":
        signal = b"lock-signal:" + key.removeprefix(PYTHON_REDIS_LOCK)
        return text(_SAME + _SIGNALLED + _DELETED, [key, signal], found.text)
    if found.is_string:
        return text(_SAME + _DELETED, [key], found.text)
    channel = b"redisson_rwlock:" if "mode" in found.fields else b"redisson_lock__channel:"
    channel += key if b"{" in key else b"{" + key + b"}"
    return text(_UNCHANGED + _CALLED + _DELETED, [key, channel], *found.fields)


async def look(ask: Ask, key: bytes) -> LockAtKey | None:
    """What is at `key`, None for nothing. `ask(*words)`: one command of any client."""
    kind = _text(await ask("TYPE", key))
    if kind == "none":
        return None
    left = await ask("PTTL", key)
    if left == -2:  # it ended in between
        return None
    ends_in = None if left < 0 else left / 1000
    if kind == "hash":
        return await _hash(ask, key, ends_in)
    if kind != "string":
        return LockAtKey(note=f"a {kind}, which is no lock", ends_in=ends_in, is_string=False)
    content = _bytes(await ask("GETRANGE", key, 0, LONGEST))
    beside = side_keys(key)
    if beside is not None and await ask("HSTRLEN", beside.owner, "value") == len(content):
        record = await _short(ask, beside.owner, RECORD, LONGEST)
        if record.get("value", "").encode("utf-8", "surrogateescape") == content:
            return _ours(record, content, ends_in)
    return _string(key, content, ends_in)


async def _hash(ask: Ask, key: bytes, ends_in: float | None) -> LockAtKey:
    """Some fields of it, all of them where they are few."""
    count = await ask("HLEN", key)
    names = [_text(each) for each in await ask("HRANDFIELD", key, MOST)]
    names += [] if "mode" in names or count <= MOST else ["mode"]
    short = [each for each in names if len(each) <= FIELD]
    found = _redisson(await _short(ask, key, short, COUNT), ends_in)
    more = count - len(found.fields)
    if more <= 0 or not found.holders:
        return found
    others = f"{more} more of its {count} fields were not looked at"
    return replace(found, more=more, note=f"{found.note}; {others}")


async def _short(ask: Ask, key: bytes, names: Sequence[str], most: int) -> dict[str, str]:
    """Those fields whose values have no more bytes than that."""
    there = [each for each in names if 0 < await ask("HSTRLEN", key, _raw(each)) <= most]
    values = await ask("HMGET", key, *map(_raw, there)) if there else ()
    pairs = zip(there, values, strict=True)
    return {name: _text(each) for name, each in pairs if each is not None}


def _ours(record: dict[str, str], content: bytes, ends_in: float | None) -> LockAtKey:
    alive, evidence = _life(ends_in)
    since = _number(record.get("at", ""), LATEST)
    holder = Holder(
        owner_of(lambda: json.loads(record.get("owner", ""))),
        None if since is None else since / 1000,
        alive,
        evidence,
        _number(record.get("token", ""), LARGEST),
        record.get("nonce"),
    )
    return LockAtKey("redis-py", (holder,), _shown(content), ends_in)


def _string(key: bytes, content: bytes, ends_in: float | None) -> LockAtKey:
    """A lock whose value is a random text."""
    text = _shown(content)
    family, since, note = "", None, "whose it is cannot be told from its value"
    if len(text) == 32 and set(text) <= HEX:
        since = _time_of_uuid(text)
        family = "redis-py" if since is not None else ""
        note = "redis-py's value: it says when the holder asked, and not who it is"
    elif key.startswith(PYTHON_REDIS_LOCK) and len(text) == 24 and set(text) <= BASE64:
        family, note = "python-redis-lock", "python-redis-lock's value names nobody"
    elif key.startswith(b"redlock:") and len(text) == 36 and text.count("-") == 4:
        family, note = "pottery", "pottery's value names nobody, and is one of several servers'"
    elif len(text) == 22 and text.isascii() and text.isalnum():
        family, note = "redlock-py", "redlock-py's value names nobody, and is one of several"
    alive, evidence = _life(ends_in)
    holder = Holder(None, since, alive, f"{evidence}; its value is {text[:40]!r}")
    return LockAtKey(family, (holder,), text, ends_in, note if family else f"a string: {note}")


def _redisson(fields: dict[str, str], ends_in: float | None) -> LockAtKey:
    """A hash of CLIENT:THREAD to how often it was taken, and the mode of a reader/writer lock."""
    mode = fields.get("mode", "")
    alive, evidence = _life(ends_in)
    holders = []
    for field, count in sorted(fields.items()):
        client, _, thread = field.removesuffix(":write").rpartition(":")
        if len(client) == 36 and client.count("-") == 4 and thread.isdecimal():
            times = "" if count == "1" else f", taken {count} times"
            words = f"{evidence}; client {client}, thread {thread}{times}"
            holders.append(Holder(None, None, alive, words))
    if not holders:
        note = "a hash, which is no lock of Redisson"
        return LockAtKey(note=note, ends_in=ends_in, is_string=False)
    note = f"a reader/writer lock, in mode {mode}" if mode in ("read", "write") else ""
    note = note or "Redisson's watchdog prolongs it every 10 s as long as its client runs"
    return LockAtKey(
        "Redisson", tuple(holders), "", ends_in, note, is_string=False, fields=tuple(sorted(fields))
    )


def _life(ends_in: float | None) -> tuple[str, str]:
    if ends_in is None:
        return UNKNOWN, "its key has no expiry: nothing tells whether its holder lives"
    return ALIVE, f"its key ends in {ends_in:.1f} s unless it is prolonged"


def _time_of_uuid(text: str) -> float | None:
    """UTC seconds at which a UUID of version 1 was made; None for another."""
    if text[12] != "1" or text[16] not in "89ab":
        return None
    steps = int(text[13:16] + text[8:12] + text[:8], 16) - EPOCH
    return steps / 1e7 if steps >= 0 else None


def _number(text: str, most: int) -> int | None:
    """What a record holds, None for what is no number of that size."""
    if not text.isdecimal() or len(text) > len(str(most)):
        return None
    return number if (number := int(text)) <= most else None


def _bytes(found: Reply) -> bytes:
    """As it stands there, whether or not the client decodes."""
    return found.encode("utf-8", "surrogateescape") if isinstance(found, str) else bytes(found)


def _raw(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def _text(found: Reply) -> str:
    return found if isinstance(found, str) else bytes(found).decode("utf-8", "surrogateescape")


def _shown(content: bytes) -> str:
    return content.decode("utf-8", "surrogateescape")
