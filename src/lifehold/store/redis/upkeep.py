"""Whether leases can be kept in a Redis by one user, and what they stand on there: looked at.

Promise: nothing is written. What the user may do is asked of the server by a script that changes
nothing; the rest is read from INFO, TIME, CONFIG GET, CLUSTER and the sentinels. What an ACL or a
provider hides is called not seen. No password is told (L11).

A lease in Redis stands on memory. It is lost, and another holder let in, where memory makes room,
where a server comes back without its last writes, and where a replica takes over that lacks them.
The token, which is never behind the clock, still grows then: only a guard at the data helps.
"""

from __future__ import annotations

import re

from ...core.address import without_password
from ...core.backend import Unreachable
from ...core.errors import InvalidArgument
from ...core.mask import masked_urls
from ...core.value import value
from ...runtime import clock
from ..check_report import BAD, GOOD, NOTE, UNPROVEN, Checked, StoreFinding
from .backend import LIMIT
from .connect import NO_ANSWER, ODD, redis_library, without_ours
from .groups import CLUSTER, QUORUM, SENTINEL, SLOTS, Hosts, is_group, named, primary_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    Client = Any  # a redis.Redis
    Reply = Any  # what redis-py makes of an answer; None: it was refused
    Info = dict[str, Any]
    Tell = Callable[[str, str, str], None]  # what, verdict, why

OLDEST = (6, 2)
APART = 1.0  # seconds between two clocks that nobody need mind
PINGS = 5
FULL = 0.9  # of maxmemory, from where on grants will be refused soon
SAMPLE = "lifehold:{check}:lease"  # a key as ours are; never written
CHANNEL = "lifehold:wake:check"
# What the scripts and their callers do, as `redis.acl_check_cmd` is asked; KEY and CHANNEL stand
# for one of ours.
DONE = (
    "evalsha x 1 KEY",
    "eval x 1 KEY",
    "time",
    "exists KEY",
    "del KEY",
    "pttl KEY",
    "pexpire KEY 1",
    "hexists KEY x",
    "hget KEY x",
    "hmget KEY x",
    "hset KEY x 1",
    "hdel KEY x",
    "hgetall KEY",
    "hincrby KEY x 1",
    "zadd KEY 1 x",
    "zrem KEY x",
    "zscore KEY x",
    "zcard KEY",
    "zrank KEY x",
    "zrange KEY 0 0",
    "zrevrange KEY 0 0",
    "zrangebyscore KEY 0 0",
    "zremrangebyscore KEY 0 0",
    "zremrangebyrank KEY 0 0",
    "scan 0",
    "pubsub numsub CHANNEL",
    "publish CHANNEL x",
    "subscribe CHANNEL",
    "ping",
)
MORE = {QUORUM: ("info server",), CLUSTER: ("asking",)}  # scheme -> what is done there besides
ASKED = """
if not redis.acl_check_cmd then  -- before Redis 7
  return nil
end
local lacks = {}
for _, line in ipairs(ARGV) do
  local words = {}
  for word in string.gmatch(line, '%S+') do
    words[#words + 1] = word
  end
  local known, may = pcall(redis.acl_check_cmd, unpack(words))
  if known and not may then
    lacks[#lacks + 1] = words[1]
  end
end
return lacks
"""


def examine(url: str) -> Checked:
    """What the user of this URL finds; what can lose a lease at a crash or failover is UNPROVEN.

    Raises InvalidArgument, Unreachable.
    """
    look = _Look(url)
    try:
        return look.all()
    except InvalidArgument:
        raise
    except ODD as error:
        raise Unreachable(f"{NO_ANSWER}: {_plain(error)}") from error
    finally:
        look.close()


@value
class _Told:
    """A finding of one server."""

    node: str
    finding: StoreFinding


class _Look:
    """One look at a server, at what sentinels name, or at each primary of a cluster."""

    def __init__(self, url: str) -> None:
        self.redis = redis_library()
        self.url = url
        self.clients: list[Client] = []
        self.hosts = Hosts.of(url) if is_group(url) else None
        self.found: list[_Told] = []

    def close(self) -> None:
        for each in self.clients:
            each.close()

    def all(self) -> Checked:
        if self.hosts is None:
            self._server(self._client(), "")
        elif self.hosts.scheme == SENTINEL:
            self._sentinels(self.hosts)
        elif self.hosts.scheme == QUORUM:
            self._quorum(self.hosts)
        else:
            self._cluster(self.hosts)
        return Checked(without_password(self.url), 0, 0, tuple(_joined(self.found)))

    # ---- how they are asked

    def _client(self, host: str = "", port: int = 0, *, sentinel: bool = False) -> Client:
        """A client that asks once. Its first question tells whether it is reached."""
        once = self.redis.retry.Retry(self.redis.backoff.NoBackoff(), 0)
        given: dict[str, object] = {
            "decode_responses": True,
            "socket_timeout": LIMIT,
            "socket_connect_timeout": LIMIT,
            "retry": once,
        }
        url = self.hosts.server(host, port, sentinel=sentinel) if self.hosts else self.url
        try:
            made = self.redis.Redis.from_url(without_ours(url), **given)
        except (ValueError, TypeError) as error:
            raise InvalidArgument(masked_urls(str(error))) from error
        self.clients.append(made)
        return made

    def _ask(self, client: Client, *words: object) -> Reply:
        """One answer, None where it is not ours to know. Raises Unreachable."""
        try:
            return client.execute_command(*words)
        except self.redis.exceptions.AuthenticationError as error:
            raise Unreachable(_plain(error)) from error
        except self.redis.exceptions.ResponseError:
            return None
        except (self.redis.exceptions.RedisError, OSError) as error:
            raise Unreachable(_plain(error)) from error
        except (RecursionError, *ODD) as error:  # L13  as redis-py reads it
            raise Unreachable(NO_ANSWER) from error

    def _tell(self, node: str, what: str, verdict: str, why: str) -> None:
        self.found.append(_Told(node, StoreFinding(what, verdict, why)))

    # ---- one server

    def _server(self, client: Client, node: str) -> Info:
        """What INFO said of it. Raises Unreachable, also for what no Redis says (L13)."""
        try:
            return self._judged(client, node)
        except InvalidArgument:
            raise
        except ODD as error:
            raise Unreachable(f"{NO_ANSWER}: {_plain(error)}") from error

    def _judged(self, client: Client, node: str) -> Info:
        took = min(self._ping(client) for _ in range(PINGS))
        info: Info = self._ask(client, "INFO") or {}

        def tell(what: str, verdict: str, why: str) -> None:
            self._tell(node, what, verdict, why)

        _of_server(info, tell)
        kwargs = client.connection_pool.connection_kwargs
        encrypted = issubclass(
            client.connection_pool.connection_class, self.redis.connection.SSLConnection
        )
        _of_connection(str(kwargs.get("host", "")), encrypted, took, tell)
        self._clock(client, took, tell)
        if not info:
            tell(
                "INFO",
                UNPROVEN,
                "this user may not ask for it: memory, persistence and replicas were not seen",
            )
        else:
            _of_memory(info, self._config(client, "maxmemory-policy"), tell)
            _of_persistence(
                info, self._config(client, "appendfsync"), self._config(client, "save"), tell
            )
            _of_replicas(info, self._config(client, "min-replicas-to-write"), tell)
        self._rights(client, tell)
        return info

    def _ping(self, client: Client) -> float:
        began = clock.now()
        self._ask(client, "PING")
        return clock.now() - began

    def _config(self, client: Client, name: str) -> str | None:
        """A setting, None where it is not shown."""
        told = self._ask(client, "CONFIG", "GET", name)
        return _pairs(told).get(name) if told else None

    def _clock(self, client: Client, took: float, tell: Tell) -> None:
        sent_at = clock.utc_now()
        told = self._ask(client, "TIME")
        came_at = clock.utc_now()
        if not told:
            tell("clock", BAD, "this user may not ask for TIME, by which leases end")
            return
        seconds, micros = told
        off = int(seconds) + int(micros) / 1e6 - (sent_at + came_at) / 2
        if abs(off) <= APART + took:
            tell("clock", GOOD, "level with this host's; only the server's own counts")
            return
        side = "ahead of" if off > 0 else "behind"
        tell(
            "clock",
            NOTE,
            f"{abs(off):.1f} s {side} this host's: leases do not mind, but a "
            "replica that takes over should not be behind it",
        )

    def _rights(self, client: Client, tell: Tell) -> None:
        kwargs = client.connection_pool.connection_kwargs
        who = self._ask(client, "ACL", "WHOAMI") or kwargs.get("username") or "default"
        done = (*DONE, *MORE.get(self.url.partition("://")[0], ()))
        if "replicas=" in self.url.partition("?")[2]:
            done += ("wait 0 1",)
        asked = [line.replace("KEY", SAMPLE).replace("CHANNEL", CHANNEL) for line in done]
        try:
            lacks = client.execute_command("EVAL", ASKED, 0, *asked)
        except self.redis.exceptions.NoPermissionError:
            tell(
                "rights",
                BAD,
                f"the user {who} may not EVAL, and each question is a script. "
                f"{_grant(who, ['eval', 'evalsha'])}",
            )
        except self.redis.exceptions.ResponseError as error:
            tell("scripts", BAD, f"scripts cannot be run here: {_plain(error)}")
        except (self.redis.exceptions.RedisError, OSError) as error:
            raise Unreachable(_plain(error)) from error
        except (RecursionError, *ODD) as error:
            raise Unreachable(NO_ANSWER) from error
        else:
            tell("scripts", GOOD, "a script was run")
            if lacks is None:
                tell(
                    "rights",
                    UNPROVEN,
                    f"Redis 7 says what the user {who} may do, this one does not: look at ACL LIST",
                )
            elif lacks:
                missing = list(dict.fromkeys(map(str, lacks)))
                tell(
                    "rights",
                    BAD,
                    f"the user {who} lacks, on keys and channels that begin with "
                    f"lifehold: {', '.join(missing)}. {_grant(who, missing)}",
                )
            else:
                tell("rights", GOOD, f"the user {who} has all that is needed")

    # ---- sentinels

    def _sentinels(self, hosts: Hosts) -> None:
        named: dict[tuple[str, int], int] = {}
        down: list[str] = []
        quorum = others = 0
        for host, port in hosts.hosts:
            client = self._client(host, port, sentinel=True)
            try:
                facts = _pairs(self._ask(client, "SENTINEL", "MASTER", hosts.service))
                if not facts:
                    raise Unreachable(f"it knows no service {hosts.service!r}")
                decide, more = int(facts.get("quorum", 0)), int(facts.get("num-other-sentinels", 0))
                where = primary_in(facts)
            except Unreachable as error:
                down.append(f"{host}:{port}: {error}")
                continue
            except ODD:
                down.append(f"{host}:{port}: {NO_ANSWER}")
                continue
            quorum, others = decide, max(others, more)
            named[where] = named.get(where, 0) + 1
        if not named:
            raise Unreachable("; ".join(down))
        primary = max(named, key=lambda each: named[each])
        said = (
            f"{sum(named.values())} of {len(hosts.hosts)} answer, {others + 1} know one another; "
            "the primary is {}:{}".format(*primary)
        )
        if len(named) > 1:
            self._tell("", "sentinels", UNPROVEN, f"{said}; they do not name the same primary yet")
        elif down:
            self._tell("", "sentinels", NOTE, f"{said}; {'; '.join(down)}")
        elif quorum * 2 <= others + 1 or others + 1 < 3:
            self._tell(
                "",
                "sentinels",
                UNPROVEN,
                f"{said}, and {quorum} of them decide: take three"
                " or more, of which a majority decides",
            )
        else:
            self._tell("", "sentinels", GOOD, f"{said}; {quorum} have to agree")
        self._server(self._client(*primary), "")
        self._tell(
            "",
            "failover",
            UNPROVEN,
            "replicas follow behind: one that takes over may lack "
            "the last grants, and lets others in beside their holders. Their tokens grow "
            "all the same: check them where the data is",
        )

    # ---- a quorum

    def _quorum(self, hosts: Hosts) -> None:
        good, why = 0, list[str]()
        for host, port in hosts.hosts:
            node = f"{host}:{port}"
            try:
                self._server(self._client(host, port), node)
                good += 1
            except Unreachable as error:
                why.append(f"{node}: {error}")
                self._tell(node, "server", BAD, f"it does not answer: {error}")
        if not good:
            raise Unreachable("; ".join(why))
        count = len(hosts.hosts)
        most = count // 2 + 1
        said = f"{good} of {count} servers answer, and {most} give a lease"
        self._tell("", "quorum", GOOD if good >= most else BAD, said)

    # ---- a cluster

    def _cluster(self, hosts: Hosts) -> None:
        ranges, why = None, "no node is a part of a cluster"
        for answered, port in hosts.hosts:
            try:
                ranges = self._ask(self._client(answered, port), "CLUSTER", "SLOTS")
            except Unreachable as error:
                why = str(error)
            if ranges:
                break
        if not ranges:
            raise Unreachable(why)
        primaries: dict[tuple[str, int], int] = {}
        copies = 0
        for first, last, (host, port, *_), *replicas in ranges:
            where = named(host, answered), int(port)
            primaries[where] = primaries.get(where, 0) + int(last) - int(first) + 1
            copies += len(replicas)
        served = sum(primaries.values())
        for host, port in primaries:
            client, node = self._client(host, port), f"{host}:{port}"
            try:
                facts = dict(_lines(str(self._ask(client, "CLUSTER", "INFO") or "")))
                self._server(client, node)
            except Unreachable as error:
                self._tell(node, "server", BAD, f"it does not answer: {error}")
                continue
            state = facts.get("cluster_state", "unknown")
            self._tell(node, "state", GOOD if state == "ok" else BAD, f"cluster_state is {state}")
        count = f"{len(primaries)} primaries serve {served} of {SLOTS} slots"
        self._tell("", "cluster", GOOD if served == SLOTS else BAD, count)
        if copies:
            self._tell(
                "",
                "failover",
                UNPROVEN,
                "replicas follow behind: one that takes over may "
                "lack the last grants of its slots, and lets others in beside their "
                "holders. Check tokens where the data is",
            )


# ------------------------------------------------------------------------------------------------
# What INFO says, judged.


def _of_server(info: Info, tell: Tell) -> None:
    valkey = info.get("valkey_version")
    name = f"Valkey {valkey}" if valkey else f"Redis {info.get('redis_version', '?')}"
    version = tuple(
        int(each) for each in re.findall(r"\d+", str(info.get("redis_version", "")))[:2]
    )
    if version and version < OLDEST:
        tell("server", BAD, f"{name}: {'.'.join(map(str, OLDEST))} or newer is needed")
    elif int(info.get("loading", 0)):
        tell("server", BAD, f"{name}, which still loads its data")
    elif info.get("role") == "slave":
        tell(
            "server",
            BAD,
            f"{name}, a replica that only reads: name its primary "
            f"{info.get('master_host')}:{info.get('master_port')}, or the sentinels",
        )
    elif info:
        tell("server", GOOD, f"{name}, a primary")


def _of_connection(host: str, encrypted: bool, took: float, tell: Tell) -> None:
    speed = f"{took * 1000:.1f} ms to and fro at best"
    near = not host or host.startswith("127.") or host in ("localhost", "::1")
    if encrypted:
        tell("connection", GOOD, f"encrypted; {speed}")
    else:
        more = "" if near else ": rediss:// is"
        tell("connection", GOOD if near else NOTE, f"not encrypted{more}; {speed}")


def _of_memory(info: Info, policy: str | None, tell: Tell) -> None:
    policy = policy or info.get("maxmemory_policy")
    most, used = int(info.get("maxmemory", 0)), int(info.get("used_memory", 0))
    room = f"{used >> 20:,} MiB are used, of {most >> 20:,}" if most else f"{used >> 20:,} MiB used"
    if policy is None:
        tell("memory", UNPROVEN, f"maxmemory-policy is not shown; {room}")
    elif policy != "noeviction":
        tell(
            "memory",
            BAD,
            f"maxmemory-policy is {policy}: leases would be evicted, and others "
            "let in. CONFIG SET maxmemory-policy noeviction",
        )
    elif most and used > most * FULL:
        tell("memory", NOTE, f"noeviction; {room}: when it is full nothing more is granted")
    else:
        tell("memory", GOOD, f"noeviction; {room}")


def _of_persistence(info: Info, fsync: str | None, save: str | None, tell: Tell) -> None:
    if str(info.get("aof_last_write_status", "ok")) != "ok":
        tell("persistence", BAD, "the append-only file could not be written: look at its disk")
    elif int(info.get("aof_enabled", 0)):
        if fsync == "always":
            tell("persistence", GOOD, "AOF, each write before its answer")
        elif fsync is None:
            tell("persistence", UNPROVEN, "AOF; appendfsync is not shown")
        else:
            lost = "the last second of grants" if fsync == "everysec" else "the last grants"
            tell(
                "persistence",
                UNPROVEN,
                f"AOF with appendfsync {fsync}: a crash of the host "
                f"loses {lost}. CONFIG SET appendfsync always",
            )
    elif save:
        tell(
            "persistence",
            UNPROVEN,
            f"snapshots alone (save {save}): a restart loses the grants "
            "since the last one. CONFIG SET appendonly yes appendfsync always",
        )
    elif save is None:
        tell("persistence", UNPROVEN, "no AOF: a restart loses the last grants")
    else:
        tell(
            "persistence",
            UNPROVEN,
            "none: a restart frees every lock at once. CONFIG SET "
            "appendonly yes appendfsync always",
        )


def _of_replicas(info: Info, least: str | None, tell: Tell) -> None:
    count = int(info.get("connected_slaves", 0))
    if info.get("role") == "slave":
        return
    if not count:
        tell("replicas", GOOD, "none: nothing takes over that lacks a write")
        return
    ahead = int(info.get("master_repl_offset", 0))
    copies = [info.get(f"slave{number}") for number in range(count)]
    behind = [
        (ahead - int(each.get("offset", 0)), int(each.get("lag", 0)))
        for each in copies
        if isinstance(each, dict)
    ]
    most, lag = (
        (max(each[0] for each in behind), max(each[1] for each in behind)) if behind else (0, 0)
    )
    said = f"{count}, {max(most, 0):,} bytes and {lag} s behind at most"
    if least is None or int(least) == 0:
        shown = "is not shown" if least is None else "is 0"
        tell(
            "replicas",
            UNPROVEN,
            f"{said}; min-replicas-to-write {shown}: a primary that is cut "
            "off grants on while another takes over",
        )
    else:
        tell(
            "replicas",
            UNPROVEN,
            f"{said}; min-replicas-to-write is {least}, which narrows what "
            "a failover can lose, and does not close it",
        )


# ------------------------------------------------------------------------------------------------


def _joined(found: Iterable[_Told]) -> Iterator[StoreFinding]:
    """What several servers said alike is told once, with their addresses."""
    rows: dict[tuple[str, str, str], list[str]] = {}
    for each in found:
        one = each.finding
        rows.setdefault((one.what, one.verdict, one.why), []).append(each.node)
    for (what, verdict, why), nodes in rows.items():
        named = ", ".join(node for node in nodes if node)
        yield StoreFinding(what, verdict, f"{named}: {why}" if named else why)


def _grant(who: str, missing: list[str]) -> str:
    rights = " ".join(f"+{each}" for each in missing)
    return f"ACL SETUSER {who} ~lifehold:* &lifehold:* {rights}"


def _pairs(reply: Reply) -> dict[str, str]:
    """An answer of names and values, as RESP2 or RESP3 has it."""
    if isinstance(reply, dict):
        return {str(name): str(to) for name, to in reply.items()}
    flat = list(map(str, reply or ()))
    return dict(zip(flat[::2], flat[1::2], strict=False))


def _lines(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        name, colon, to = line.partition(":")
        if colon:
            yield name, to


def _plain(error: BaseException) -> str:
    """What a client said, in one line and without secrets."""
    return masked_urls(" ".join(str(error).split())) or type(error).__name__
