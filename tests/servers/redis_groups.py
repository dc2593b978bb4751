"""Private Redis servers that stand together: a primary under three sentinels, a cluster of six.

    with redis_groups.sentinels() as group:
        connect(group.url)
        group.fail_over()          # kill -9 of the primary; returns when a replica is agreed on
    with redis_groups.cluster() as cluster:
        cluster.move(cluster.slot("{jobs}"), to=2)

Neither changes by itself: a sentinel or a node calls another one dead after `down_after` or
`node_timeout` seconds, longer than any pause of a busy machine, and the failovers here are ordered.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from servers.redis import ADMIN, LAST, Server, room, until

SLOTS = 16384
SERVICE = "lifehold"  # the name that the sentinels give to the primary


class Sentinels:
    """A primary, its replicas, three sentinels. `servers`: the first three kinds of data alone."""

    def __init__(self, home: Path, replicas: int, down_after: float, **options: Any) -> None:
        self.primary = Server(home / "0", **options)
        self.servers = [self.primary]
        self.watchers = [Server(home / f"sentinel-{n}", sentinel=True) for n in range(3)]
        self._home, self._replicas, self._down = home, replicas, down_after
        self._options = options

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{each.port}" for each in self.watchers)
        return f"redis+sentinel://{hosts}/{SERVICE}/0"

    @property
    def replicas(self) -> list[Server]:
        return [each for each in self.servers if each is not self.primary and each.running]

    def start(self) -> Sentinels:
        self.primary.start()
        for number in range(1, self._replicas + 1):
            copy = self.primary.replica(self._home / str(number), **self._options)
            self.servers.append(copy)
        for each in self.watchers:
            each.lines += [
                f"sentinel monitor {SERVICE} 127.0.0.1 {self.primary.port} 2",
                f"sentinel down-after-milliseconds {SERVICE} {self._down * 1000:.0f}",
                f"sentinel failover-timeout {SERVICE} 20000",
                f"sentinel parallel-syncs {SERVICE} 2",
            ]
            each.launch()
        for each in self.watchers:
            each.wait_ready()
        until("the sentinels know one another and the replicas", self._complete)
        return self

    def _complete(self) -> bool:
        for each in self.watchers:
            known = each.call("SENTINEL", "MASTER", SERVICE)
            if (int(known["num-other-sentinels"]), int(known["num-slaves"])) != (2, self._replicas):
                return False
        return True

    def agreed(self) -> int:
        """The port of the primary when all sentinels name the same one, else 0."""
        ports = {each.call("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)[1]
                 for each in self.watchers if each.running}  # fmt: skip
        return int(ports.pop()) if len(ports) == 1 else 0

    def fail_over(self, *, kill: bool = True) -> Server:
        """The new primary, once all agree on it and it takes writes.

        `kill`: the old one by kill -9; else it goes on and is made a replica by the sentinels.
        """
        before = self.primary
        if kill:
            before.kill()
        until("a sentinel begins a failover", self._ordered)
        port = until("a new primary is agreed on", lambda: self._other(before.port))
        self.primary = next(each for each in self.servers if each.port == port)
        until("it is a primary", lambda: self.primary.info("replication")["role"] == "master")
        self._renewed()
        self._reach(self.replicas, True)  # of those that were cut off
        if not kill:  # as a sentinel does it ten seconds later
            until("it is told", lambda: before.call("REPLICAOF", "127.0.0.1", port))
            kill_all = ("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            until("its clients end", lambda: before.call(*kill_all) is not None)
        self._renewed()
        until("the failover has ended", self._ended)
        return self.primary

    def _renewed(self) -> None:
        """A server that changes its role ends its connections, the harness's own among them."""
        for each in self.servers:
            each.close()

    def _ordered(self) -> bool:
        """NOGOODSLAVE and INPROG are errors: not yet."""
        return bool(self.watchers[0].call("SENTINEL", "FAILOVER", SERVICE))

    def _ended(self) -> bool:
        known = self.watchers[0].call("SENTINEL", "MASTER", SERVICE)
        return "failover_in_progress" not in known["flags"]

    def _other(self, port: int) -> int:
        now = self.agreed()
        return now if now != port else 0

    def again(self, server: Server) -> None:
        """Start a killed server as a replica, and wait until the sentinels see it."""
        server.start()
        server.call("REPLICAOF", "127.0.0.1", self.primary.port)
        until(f"{server} follows", server.follows)
        until("the sentinels see it", self._complete)

    def cut_off(self) -> None:
        """Let the primary's writes reach no replica, and tell no sentinel."""
        self._reach(self.replicas, False)
        self.primary.call("CLIENT", "KILL", "TYPE", "replica")

    def _reach(self, copies: list[Server], able: bool) -> None:
        """Whether their next try to follow a primary succeeds."""
        user, word = ADMIN if self.primary.guarded else ("", "")
        words = ("CONFIG", "SET", "masteruser", user if able else "none-such",
                 "masterauth", word if able else "none-such")  # fmt: skip
        for each in copies:  # a sentinel may end our connection meanwhile
            until("it takes that", lambda one=each: one.call(*words))

    def close(self) -> None:
        for each in (*self.watchers, *self.servers):
            each.kill()


@contextlib.contextmanager
def sentinels(
    replicas: int = 2, down_after: float = 60.0, **options: Any
) -> Iterator[Sentinels]:  # fmt: skip
    """Up and complete; gone afterwards. Options of the servers, as of `Server`."""
    with room("lifehold-sentinel-") as home:
        group = Sentinels(home, replicas, down_after, **options)
        try:
            yield group.start()
        finally:
            group.close()


class Cluster:
    """`primaries` of them, each with one replica after them in `nodes`."""

    def __init__(
        self, home: Path, primaries: int, replicas: bool, node_timeout: float, **options: Any
    ) -> None:
        self.nodes = [Server(home / str(number), **options)
                      for number in range(primaries * (2 if replicas else 1))]  # fmt: skip
        self.primaries, self.node_timeout = self.nodes[:primaries], node_timeout
        for each in self.nodes:
            each.settings |= {
                "cluster-enabled": "yes",
                "cluster-config-file": "nodes.conf",
                "cluster-node-timeout": "300",  # nodes speak to one another twice as often
                "cluster-replica-no-failover": "yes",
                "cluster-require-full-coverage": "no",
            }

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{each.port}" for each in self.primaries)
        return f"redis+cluster://{hosts}"

    def start(self) -> Cluster:
        for each in self.nodes:
            each.launch()
        first, count = self.nodes[0], len(self.primaries)
        for number, each in enumerate(self.nodes):
            each.wait_ready()
            each.call("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for number, each in enumerate(self.primaries):
            each.call("CLUSTER", "ADDSLOTSRANGE", SLOTS * number // count,
                      SLOTS * (number + 1) // count - 1)  # fmt: skip
        for each in self.nodes[1:]:
            first.call("CLUSTER", "MEET", "127.0.0.1", each.port)
        until("each node knows the others", lambda: self._all("cluster_known_nodes",
                                                              len(self.nodes)))  # fmt: skip
        for number, each in enumerate(self.nodes[count:]):
            primary = self.identity(self.nodes[number])
            until("the primary is known", lambda e=each, p=primary: p in e.call("CLUSTER", "NODES"))
            each.call("CLUSTER", "REPLICATE", primary)
        self.wait_ok()
        for each in self.nodes[count:]:
            until(f"{each} follows", each.follows)
        until("the replicas are known", lambda: all(self._roles(each) for each in self.nodes))
        for each in self.nodes:
            each.settings |= {
                "cluster-node-timeout": f"{self.node_timeout * 1000:.0f}",
                "cluster-replica-no-failover": "no",
            }
            each.call("CONFIG", "SET", "cluster-node-timeout", f"{self.node_timeout * 1000:.0f}",
                      "cluster-replica-no-failover", "no")  # fmt: skip
        self.wait_ok()
        return self

    def _all(self, fact: str, worth: object) -> bool:
        line = f"{fact}:{worth}"
        return all(line in each.call("CLUSTER", "INFO").split() for each in self.nodes
                   if each.running)  # fmt: skip

    def _roles(self, node: Server) -> bool:
        """Whether `node` has heard of each other one what it is."""
        roles = [line.split()[2] for line in node.call("CLUSTER", "NODES").splitlines()]
        return sum("slave" in each for each in roles) == len(self.nodes) - len(self.primaries)

    def wait_ok(self) -> None:
        """Until each node that runs calls the cluster whole."""
        until("the cluster is ok", lambda: self._all("cluster_state", "ok")
              and self._all("cluster_slots_assigned", SLOTS))  # fmt: skip

    def identity(self, node: Server) -> str:
        return str(node.call("CLUSTER", "MYID"))

    def slot(self, key: str) -> int:
        return int(self.nodes[0].call("CLUSTER", "KEYSLOT", key))

    def owner(self, slot: int) -> Server:
        """Who serves a slot, as the first running node has it."""
        asked = next(each for each in self.nodes if each.running)
        for begin, end, (_, port, *_), *_ in _ranges(asked):
            if begin <= slot <= end:
                return next(each for each in self.nodes if each.port == port)
        raise AssertionError(f"nobody serves slot {slot}")

    def keys(self, slot: int) -> list[str]:
        return list(self.owner(slot).call("CLUSTER", "GETKEYSINSLOT", slot, 1_000_000))

    def begin_move(self, slot: int, to: Server) -> None:
        """The slot stands between two nodes: what is not there any more is ASKed for at `to`."""
        source = self.owner(slot)
        to.call("CLUSTER", "SETSLOT", slot, "IMPORTING", self.identity(source))
        source.call("CLUSTER", "SETSLOT", slot, "MIGRATING", self.identity(to))

    def carry(self, slot: int, to: Server) -> int:
        """The keys that were handed on to `to`."""
        source, carried = self.owner(slot), 0
        while keys := source.call("CLUSTER", "GETKEYSINSLOT", slot, 100):
            source.call("MIGRATE", "127.0.0.1", to.port, "", 0, 30000, "KEYS", *keys)
            carried += len(keys)
        return carried

    def end_move(self, slot: int, to: Server) -> None:
        """Until each node names `to`."""
        who = self.identity(to)
        for each in (to, *(each for each in self.primaries if each is not to and each.running)):
            each.call("CLUSTER", "SETSLOT", slot, "NODE", who)
        running = [each for each in self.nodes if each.running]
        until("the move is known", lambda: all(_serves(each, slot) == to.port for each in running))

    def move(self, slot: int, to: Server) -> int:
        """A slot and its keys, from whoever serves it; how many keys that were."""
        self.begin_move(slot, to)
        carried = self.carry(slot, to)
        self.end_move(slot, to)
        return carried

    def fail_over(self, primary: Server, *, kill: bool = True) -> Server:
        """The replica of `primary`, which has taken over; `kill`: kill -9 of the old one first."""
        new = next(each for each in self.nodes if each.running and each is not primary
                   and each.info("replication").get("master_port") == primary.port)  # fmt: skip
        slot = next(begin for begin, _, (_, port, *_), *_ in _ranges(new) if port == primary.port)
        if kill:
            primary.kill()
        new.call("CLUSTER", "FAILOVER", *(("TAKEOVER",) if kill else ()))
        self.primaries[self.primaries.index(primary)] = new
        running = [each for each in self.nodes if each.running]
        until("the failover is known",
              lambda: all(_serves(each, slot) == new.port for each in running))  # fmt: skip
        return new

    def close(self) -> None:
        for each in self.nodes:
            each.kill()


def _ranges(node: Server) -> list[Any]:
    """`CLUSTER SLOTS` as it stands: [first, last, [host, port, ...], replicas ...]."""
    return list(node.call("CLUSTER", "SLOTS"))


def _serves(node: Server, slot: int) -> int:
    """The port that `node` names for a slot, 0 for none."""
    return next((int(port) for begin, end, (_, port, *_), *_ in _ranges(node)
                 if begin <= slot <= end), 0)  # fmt: skip


@contextlib.contextmanager
def cluster(
    primaries: int = 3, *, replicas: bool = True, node_timeout: float = LAST, **options: Any
) -> Iterator[Cluster]:  # fmt: skip
    """Up, whole, each slot served; gone afterwards. Options of the nodes, as of `Server`."""
    with room("lifehold-cluster-") as home:
        made = Cluster(home, primaries, replicas, node_timeout, **options)
        try:
            yield made.start()
        finally:
            made.close()
