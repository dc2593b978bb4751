"""Redis servers that stand together: a primary behind sentinels, or a cluster.

redis+sentinel://[USER:PASSWORD@]HOST[:26379],HOST.../SERVICE[/DB][?ssl=true&...]
redis+cluster://[USER:PASSWORD@]HOST[:6379],HOST...[?ssl=true&...]

User and password are those of the servers; of the sentinels `sentinel_username=` and
`sentinel_password=`. The other options are those of one server's URL.

Promise: each question goes, by the scripts of one server, to the primary that keeps its name.
Behind sentinels each new connection leads where the sentinel of the newest epoch says, and one that
led to another primary is not used again. In a cluster a node that refers to another one is
followed, and a node that does not answer costs the names of others a third of the limit at most.

How it could fail. Replicas follow behind: one that takes over may lack the last grants (`.ground()`
says so). While a slot moves, a script that names several keys is refused there (TRYAGAIN): nothing
has happened, and it is asked again. A waiter is called over the bus of the cluster, from whichever
node, and then asks for itself: nobody is let in unasked there, since a node cannot tell whether
somebody listens at another.
"""

from __future__ import annotations

from binascii import crc32, crc_hqx

from ...core.backend import NoReply, Unreachable
from ...core.deadline import NEVER
from ...core.errors import InvalidArgument
from ...core.mask import printable
from ...core.value import value
from ...runtime import clock, fork
from ...runtime.blocking import finish
from .connect import NO_ANSWER, NODE_SILENT, ODD, RedisUrl
from .wire import THREAD, NoRedisReply, RedisPool, RedisRefused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from urllib import parse

    from .scripts import RedisScript
    from .wire import Command, Reply, TaskWaits, Waits

    Node = tuple[str, int]  # host and port
else:
    parse = fork.later("urllib.parse", globals())

SENTINEL, CLUSTER, QUORUM = "redis+sentinel", "redis+cluster", "redis+quorum"
PORTS = {SENTINEL: 26379, CLUSTER: 6379, QUORUM: 6379}
OF_SENTINELS = ("sentinel_username", "sentinel_password")
OF_SERVERS = ("username", "password")
SSL, TTL = "ssl", "longest_ttl"
TRUE, FALSE = ("1", "true", "yes"), ("", "0", "false", "no")


def is_group(url: str) -> bool:
    """Whether a URL names sentinels, a cluster or a quorum."""
    return url.partition("://")[0] in PORTS


@value
class Hosts:
    """What such a URL asks for.

    `hosts`: the sentinels, or nodes to begin with; `query`: what is left for one server's URL.
    """

    scheme: str
    hosts: tuple[tuple[str, int], ...]
    service: str
    db: int
    user: str
    password: str
    sentinel_user: str
    sentinel_password: str
    encrypted: bool
    query: str

    @classmethod
    def of(cls, url: str) -> Hosts:
        """Raises InvalidArgument, whose text has no password."""
        scheme, _, rest = url.partition("#")[0].partition("://")
        front, _, query = rest.partition("?")
        where, _, path = front.partition("/")
        who, _, listed = where.rpartition("@")
        user, _, password = who.partition(":")
        hosts = tuple(_host(each, PORTS[scheme]) for each in listed.split(","))
        parts = [parse.unquote(part) for part in path.split("/")] if path.strip("/") else []
        if (scheme == SENTINEL and not (parts and parts[0])) or len(parts) > 2:
            raise InvalidArgument(
                f"{scheme}://{listed}/{path}: behind the sentinels stands the service that they "
                "watch, and a database: redis+sentinel://HOST,HOST,HOST/SERVICE/0"
            )
        if scheme == QUORUM and len(parts) > 1:
            raise InvalidArgument(
                f"{scheme}://{listed}/{path}: one database, as /0, is of them all"
            )
        if scheme == CLUSTER and parts not in ([], ["0"]):
            raise InvalidArgument(f"{scheme}://{listed}/{path}: a cluster has database 0 alone")
        base = parts[0] if scheme == QUORUM and parts else parts[1] if len(parts) > 1 else "0"
        options = parse.parse_qsl(query, keep_blank_values=True)
        named = {name: to for name, to in options if name in OF_SENTINELS}
        more = [(name, to) for name, to in options if name not in (*OF_SENTINELS, SSL, TTL)]
        return cls(
            scheme,
            hosts,
            parts[0] if scheme == SENTINEL else "",
            _db(base),
            parse.unquote(user),
            parse.unquote(password),
            named.get("sentinel_username", ""),
            named.get("sentinel_password", ""),
            _flag(dict(options).get(SSL, "")),
            parse.urlencode(more),
        )

    @classmethod
    def of_client(cls, client: object) -> Hosts | None:
        """Of a `RedisCluster`, or what a `Sentinel` made by `master_for`; None for another one.

        Raises InvalidArgument for one that is made with what no URL can say.
        """
        nodes, pool = (getattr(client, each, None) for each in ("nodes_manager", "connection_pool"))
        if nodes is not None:
            given = dict(getattr(nodes, "connection_kwargs", {}))
            listed = [(each.host, int(each.port)) for each in nodes.startup_nodes.values()]
            return _from_options(CLUSTER, listed, "", given, {})
        manager = getattr(pool, "sentinel_manager", None)
        if pool is None or manager is None:
            return None
        asked = [each.connection_pool.connection_kwargs for each in manager.sentinels]
        listed = [(each["host"], int(each["port"])) for each in asked]
        return _from_options(
            SENTINEL, listed, pool.service_name, dict(pool.connection_kwargs), asked[0]
        )

    @property
    def listed(self) -> str:
        """The servers that the URL names."""
        shown = ((f"[{host}]" if ":" in host else host, port) for host, port in self.hosts)
        return ",".join(f"{host}:{port}" for host, port in shown)

    @property
    def shown(self) -> str:
        """The URL, without what is secret."""
        who = f"{parse.quote(self.user, '')}@" if self.user else ""
        path = f"/{parse.quote(self.service, '')}/{self.db}" if self.service else ""
        path = f"/{self.db}" if self.scheme == QUORUM else path
        return f"{self.scheme}://{who}{self.listed}{path}{'?ssl=true' if self.encrypted else ''}"

    def server(self, host: str, port: int, *, sentinel: bool = False) -> str:
        """The URL of one server of them. Raises InvalidArgument for what is no host."""
        if _torn(host):
            raise InvalidArgument(f"{host!r} is no host")
        user, password = self.user, self.password
        if sentinel:
            user, password = self.sentinel_user, self.sentinel_password
        who = f"{parse.quote(user, '')}:{parse.quote(password, '')}@" if user or password else ""
        shown = f"[{host}]" if ":" in host else host
        scheme = "rediss" if self.encrypted else "redis"
        base = f"{scheme}://{who}{shown}:{port}/{0 if sentinel else self.db}"
        query = self.query
        if sentinel:  # who is named there is of the servers
            pairs = parse.parse_qsl(query, keep_blank_values=True)
            query = parse.urlencode([each for each in pairs if each[0] not in OF_SERVERS])
        return f"{base}?{query}" if query else base


def _from_options(
    scheme: str,
    hosts: list[Node],
    service: str,
    given: dict[str, object],
    sentinel: dict[str, object],
) -> Hosts:
    """What redis-py was given, as far as it is of the servers and not of its own asking."""

    def text(options: dict[str, object], name: str) -> str:
        return str(options.get(name) or "")

    if given.get("credential_provider") is not None:
        raise InvalidArgument(
            "client= with a credential_provider has no URL: name the servers by "
            "redis+sentinel:// or redis+cluster://"
        )
    tls = {name: str(to) for name, to in given.items() if name.startswith("ssl_") and to}
    encrypted = bool(given.get("ssl") or tls)
    return Hosts(
        scheme,
        tuple(hosts),
        service,
        _db(text(given, "db") or "0"),
        text(given, "username"),
        text(given, "password"),
        text(sentinel, "username"),
        text(sentinel, "password"),
        encrypted,
        parse.urlencode(tls) if encrypted else "",
    )


def _torn(host: str) -> bool:
    """Whether a URL with this host would lead to another one."""
    return any(each in host for each in "?#/@")


def _host(text: str, usual: int) -> tuple[str, int]:
    if text.startswith("["):
        name, bracket, port = text[1:].partition("]")
        port = port.removeprefix(":") if bracket else "?"
    else:
        name, _, port = text.partition(":")
    host = parse.unquote(name)
    if not host or _torn(host) or (port and not port.isdigit()):
        raise InvalidArgument(f"{text!r} is no HOST or HOST:PORT")
    return host, int(port) if port else usual


def _db(text: str) -> int:
    if not text.isdigit():
        raise InvalidArgument(f"the database behind the service is a number, not {text!r}")
    return int(text)


def _flag(text: str) -> bool:
    if text.lower() in TRUE:
        return True
    if text.lower() in FALSE:
        return False
    raise InvalidArgument(f"ssl is true or false, not {text!r}")


# ------------------------------------------------------------------------------------------------
# Sentinels: who is the primary now.


FRESH = 1.0  # seconds for which an answer of the sentinels is taken again


class Sentinels:
    """The sentinels of one service, asked by whoever opens a connection."""

    def __init__(self, hosts: Hosts, limit: float) -> None:
        self.hosts = hosts
        part = limit / (len(hosts.hosts) + 1)  # one that is silent leaves time for the others
        self._plans = [RedisUrl(hosts.server(*each, sentinel=True), part) for each in hosts.hosts]
        self._found: tuple[float, Node] | None = None  # when, and whom

    def primary(self, until: float) -> Node:
        """Whom the sentinel of the newest epoch names. Raises Unreachable."""
        found = self._found
        if found is not None and clock.now() < found[0] + FRESH:
            return found[1]
        told: list[tuple[int, Node]] = []
        why: list[str] = []
        for plan in self._plans:
            try:
                told.append(self._asked(plan, until))
            except (Unreachable, NoRedisReply) as error:
                why.append(str(error))
        if not told:
            raise Unreachable(
                f"no sentinel names the primary of {self.hosts.service!r}: {'; '.join(why)}"
            )
        _, node = max(told)
        self._found = clock.now(), node
        return node

    def forget(self, began: float) -> bool:
        """Nobody answers there: ask anew. Whether what was told is older than that instant."""
        found, self._found = self._found, None
        return found is not None and found[0] < began

    def _asked(self, plan: RedisUrl, until: float) -> tuple[int, Node]:
        line = plan.opened(until, strict=False)
        try:
            ends = min(until, clock.now() + plan.limit)
            (flat,) = finish(line.ask([("SENTINEL", "MASTER", self.hosts.service)], ends))
        finally:
            line.close()
        if isinstance(flat, RedisRefused):
            raise Unreachable(f"{plan.place}: {flat}")
        try:
            words = [each.decode("utf-8", "replace") for each in flat]
            facts = dict(zip(words[::2], words[1::2], strict=False))
            return int(facts["config-epoch"]), primary_in(facts)
        except ODD as error:
            raise Unreachable(f"{plan.place}: {NO_ANSWER}") from error


def primary_in(facts: Mapping[str, str]) -> Node:
    """Whom a sentinel names. Raises KeyError, ValueError."""
    return facts["ip"], port_in(facts["port"])


def port_in(told: str | int) -> int:
    """Raises ValueError, TypeError for what is no port."""
    port = int(told)
    if not 0 < port < 1 << 16:
        raise ValueError(f"port {port}")
    return port


# ------------------------------------------------------------------------------------------------
# A cluster: each question to the node that serves its slot.


SLOTS = 16384
MAP: tuple[tuple[str, str], ...] = (("CLUSTER", "SLOTS"),)
HOPS = 5  # referrals that one question follows
SHARE = 3  # a node takes so many parts of the limit, one, where others are asked as well
DOWN = "NODEDOWN"  # the first word of what stands for the reply of a node that was not reached
SCRIPTS = ("EVALSHA", "EVAL")
OF_A_KEY: dict[str, int] = {  # command -> where its key stands
    **dict.fromkeys(SCRIPTS, 3),
    **dict.fromkeys(("TYPE", "PTTL", "GETRANGE", "HLEN", "HRANDFIELD", "HSTRLEN", "HMGET"), 1),
    **dict.fromkeys(("DEL", "HEXISTS", "HGET", "HDEL"), 1),
}


def slot_of(name: str | bytes) -> int:
    """The slot of a key, by its hash tag."""
    key = name.encode() if isinstance(name, str) else name
    begin = key.find(b"{")
    end = key.find(b"}", begin + 1)
    tag = key[begin + 1 : end] if begin >= 0 and end > begin + 1 else key
    return crc_hqx(tag, 0) % SLOTS


def named(host: str | bytes | None, answered: str) -> str:
    """Where a node is that another one, at `answered`, has named. Raises Unreachable.

    L1  One that was not told its own host name is named "?": that is no place to be asked for.
    """
    text = host.decode("utf-8", "replace") if isinstance(host, bytes) else host or ""
    if text in ("", "?"):
        return answered
    if _torn(text):
        raise Unreachable(f"{answered} names a node whose host is {printable(text)!r}")
    return text


def ranges_in(told: Sequence[Reply], answered: str) -> list[tuple[int, int, Node]]:
    """CLUSTER SLOTS: first and last slot of each range, and its primary. Raises one of ODD."""
    return [
        (int(first), int(last), (named(host, answered), port_in(port)))
        for first, last, (host, port, *_), *_ in told
    ]


def referred(words: str, answered: str) -> tuple[int, Node]:
    """MOVED or ASK: the slot, and the node that is to be asked. Raises ValueError."""
    _, slot, where = words.split(" ")[:3]
    host, _, port = where.rpartition(":")
    return int(slot), (named(host, answered), port_in(port))


def _key_of(command: Command) -> str | bytes | None:
    """By which a command goes to a node; None where any node, or each, is asked."""
    at = OF_A_KEY.get(str(command[0]))
    if at is None:
        return None
    key = command[at]
    return key if isinstance(key, bytes) else str(key)


def _none(error: Exception) -> RedisRefused:
    """What stands for the reply of a node that gave none."""
    return RedisRefused(f"{NODE_SILENT if isinstance(error, NoReply) else DOWN} {error}")


def _alone(commands: Sequence[Command]) -> bool:
    """Whether one name alone is asked for: what becomes of it is raised."""
    return sum(str(command[0]) in OF_A_KEY for command in commands) == 1


class ClusterPool:
    """Pools of connections, one for each node that serves a slot, `most` connections each.

    It is asked as a `RedisPool` is. `plan`: of the cluster as a whole; `known`: the scripts, since
    a node may lack one that another has.
    """

    def __init__(
        self, hosts: Hosts, plan: RedisUrl, most: int, known: dict[str, RedisScript]
    ) -> None:
        self.hosts, self.plan, self.most, self.strict = hosts, plan, most, True
        self._texts = {each.sha: each.text for each in known.values()}
        self._pools: dict[Node, RedisPool] = {}
        self._guides: dict[Node, RedisPool] = {}
        self._ranges: list[tuple[int, int, Node]] = []
        self._moved: dict[int, Node] = {}  # slots that have left their range
        self._down: dict[Node, float] = {}  # when it last gave no answer
        self._stale = True

    # ---- the map

    def node(self, slot: int) -> Node:
        """Who serves a slot. Raises Unreachable."""
        moved = self._moved.get(slot)
        if moved is not None:
            return moved
        for first, last, node in self._ranges:
            if first <= slot <= last:
                return node
        self._stale = True
        raise Unreachable(f"{self.plan.place}: no node serves slot {slot}: look at CLUSTER INFO")

    def primaries(self) -> list[Node]:
        """Those that serve slots, those that answered first."""
        found = dict.fromkeys([*(node for *_, node in self._ranges), *self._moved.values()])
        return sorted(found, key=lambda node: (self._down.get(node, 0.0), node))

    def somewhere(self, until: float) -> Node:
        """A node to listen at. Raises Unreachable."""
        if self._stale:
            finish(self._learn(until, THREAD))
        return self.primaries()[0]

    async def _learn(self, until: float, waits: Waits | TaskWaits) -> None:
        """The map anew, from the first node that answers. Raises Unreachable."""
        why: Exception | None = None
        for node in dict.fromkeys([*self.primaries(), *self.hosts.hosts]):
            try:
                (told,) = await self._guide(node).ask(MAP, self._part(until), waits)
            except (Unreachable, NoReply) as error:
                self._down[node], why = clock.now(), error
                continue
            if isinstance(told, RedisRefused) or not told:
                why = Unreachable(f"{node[0]}:{node[1]} is no part of a cluster that serves slots")
                continue
            try:
                self._ranges = ranges_in(told, node[0])
            except ODD:
                why = Unreachable(f"{node[0]}:{node[1]}: {NO_ANSWER}")
                continue
            self._moved, self._stale = {}, False
            return
        raise Unreachable(str(why))

    def _at(self, node: Node) -> RedisPool:
        pool = self._pools.get(node)
        if pool is None:
            plan = RedisUrl(self.hosts.server(*node), self.plan.limit)
            made = RedisPool(plan, self.most)
            made.strict = self.strict
            pool = self._pools.setdefault(node, made)
        return pool

    def _guide(self, node: Node) -> RedisPool:
        """For the map alone, which a replica has too."""
        pool = self._guides.get(node)
        if pool is None:
            plan = RedisUrl(self.hosts.server(*node), self.plan.limit)
            plan.only_reads = True
            made = RedisPool(plan, 1)
            made.strict = False
            pool = self._guides.setdefault(node, made)
        return pool

    def _part(self, until: float) -> float:
        return min(until, clock.now() + self.plan.limit / SHARE)

    # ---- questions

    async def ask(
        self,
        commands: Sequence[Command],
        until: float = NEVER,
        waits: Waits | TaskWaits = THREAD,
        urgent: bool = False,
    ) -> list[Reply]:
        """The replies. Raises Unreachable, NoReply, where one node alone was to be asked.

        WAIT is for each node behind its scripts; its reply has the number of each script.
        """
        until = min(until, clock.now() + self.plan.limit)
        commands = list(commands)
        if self._stale:
            await self._learn(until, waits)
        replies: list[Reply] = [None] * len(commands)
        scripts: dict[int, tuple[Node, bool]] = {}  # number -> at whom, and whether it ASKs
        for number, command in enumerate(commands):
            key = _key_of(command)
            if key is not None:
                try:
                    scripts[number] = self.node(slot_of(key)), False
                except Unreachable as error:  # others have a node
                    if _alone(commands):
                        raise
                    replies[number] = _none(error)
            elif command[0] == "SCAN":
                replies[number] = await self._scan(command, until, waits)
        copies: dict[int, Reply] = {}
        for _ in range(HOPS):
            scripts = await self._round(commands, scripts, (replies, copies), until, waits, urgent)
            if not scripts:
                break
        for number, command in enumerate(commands):  # behind the scripts: a lease waits for none
            if command[0] == "WAIT":
                replies[number] = [copies.get(at, 0) for at in range(number)]
            elif str(command[0]) not in (*OF_A_KEY, "SCAN"):
                alone = len(commands) == 1
                replies[number] = await self._of_all(command, until, waits, alone=alone)
        return replies

    async def _round(
        self,
        commands: list[Command],
        scripts: dict[int, tuple[Node, bool]],
        found: tuple[list[Reply], dict[int, Reply]],
        until: float,
        waits: Waits | TaskWaits,
        urgent: bool,
    ) -> dict[int, tuple[Node, bool]]:
        """Ask each node for its part; what was referred to another one.

        `found`: the replies, and how many replicas have each.
        """
        replies, copies = found
        wait = [command for command in commands if command[0] == "WAIT"]
        parts: dict[Node, list[int]] = {}
        for number, (node, _) in scripts.items():
            parts.setdefault(node, []).append(number)
        ordered = sorted(parts, key=lambda node: self._down.get(node, 0.0))
        for node in ordered:
            numbers = parts[node]
            sent: list[Command] = []
            for number in numbers:
                sent += [("ASKING",)] if scripts[number][1] else []
                sent.append(commands[number])
            ends = until if len(parts) == 1 else self._part(until)
            try:
                told = await self._at(node).ask([*sent, *wait], ends, waits, urgent)
            except (Unreachable, NoReply) as error:
                self._down[node], self._stale = clock.now(), True
                if _alone(commands):
                    raise
                told = [_none(error)] * len([*sent, *wait])
            if wait:
                seen = told.pop()
                copies.update(dict.fromkeys(numbers, seen if isinstance(seen, int) else 0))
            heard = (reply for one, reply in zip(sent, told, strict=True) if one != ("ASKING",))
            for number, reply in zip(numbers, heard, strict=True):
                replies[number] = reply
        return dict(self._referred(commands, scripts, replies))

    def _referred(
        self,
        commands: list[Command],
        scripts: dict[int, tuple[Node, bool]],
        replies: list[Reply],
    ) -> Iterator[tuple[int, tuple[Node, bool]]]:
        for number, (node, asks) in scripts.items():
            reply = replies[number]
            if not isinstance(reply, RedisRefused):
                continue
            if reply.code == "NOSCRIPT" and commands[number][0] == "EVALSHA":
                self._as_text(commands, number)
                yield number, (node, asks)
            elif reply.code in ("MOVED", "ASK"):
                try:
                    slot, to = referred(str(reply), node[0])
                except ODD:
                    continue  # it is told as any other refusal
                if reply.code == "MOVED":
                    self._moved[slot], self._stale = to, True
                yield number, (to, reply.code == "ASK")
            elif reply.code == "CLUSTERDOWN":
                self._stale = True

    def _as_text(self, commands: list[Command], number: int) -> None:
        """The script itself, for a node that does not know it yet."""
        _, sha, *rest = commands[number]
        commands[number] = ("EVAL", self._texts[str(sha)], *rest)

    async def _scan(self, command: Command, until: float, waits: Waits | TaskWaits) -> Reply:
        """One piece. The cursor: of which nodes, which of them by address, and its own cursor.

        Where others are the primaries since, it begins anew: names may have gone to any of them.
        """
        nodes = sorted(self.primaries())
        mark, word = crc32(repr(nodes).encode()), str(command[1])
        known, number, cursor = word.split("-") if "-" in word else ("", "0", "0")
        if known != str(mark):
            number, cursor = "0", "0"
        at = int(number)
        node = nodes[at]
        try:
            (reply,) = await self._at(node).ask([("SCAN", cursor, *command[2:])], until, waits)
        except (Unreachable, NoReply):
            self._down[node], self._stale = clock.now(), True
            raise
        if isinstance(reply, RedisRefused):
            return reply
        following, found = reply
        if following != b"0":
            return [b"%d-%d-%b" % (mark, at, following), found]
        return [b"%d-%d-0" % (mark, at + 1) if at + 1 < len(nodes) else b"0", found]

    async def _of_all(
        self, command: Command, until: float, waits: Waits | TaskWaits, *, alone: bool
    ) -> Reply:
        """The answer of the first node; of INFO that of one which evicts keys, if any does.

        A node that gives none is passed over. Raises Unreachable, NoReply, where all gave none and
        it was asked `alone`.
        """
        first: Reply = None
        lost: Exception = Unreachable(f"{self.plan.place}: no node was asked in time")
        info = command[0] == "INFO"
        for node in self.primaries():
            if clock.now() >= until:
                break
            pool = self._guide(node) if info else self._at(node)  # a guide refuses no evicting
            try:
                (reply,) = await pool.ask([command], self._part(until), waits)
            except (Unreachable, NoReply) as error:
                self._down[node], self._stale, lost = clock.now(), True, error
                continue
            first = reply if first is None else first
            if not info:
                return reply
            if isinstance(reply, bytes) and b"maxmemory_policy:noeviction" not in reply:
                return reply
        if first is None and alone:
            raise lost
        return _none(lost) if first is None else first

    def close(self) -> None:
        """Close what is idle."""
        for pool in [*self._pools.values(), *self._guides.values()]:
            pool.close()
