"""Leases behind sentinels and in a cluster: failovers, slots that move, nodes that are gone.

Nothing here changes by itself: each failover and each move is a step of the test (servers/
redis_groups.py), and whoever is to meet it has been seen to wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import re
import socket
import threading
import uuid
from urllib.parse import quote

import pytest

from ground import needs
from lifehold import InvalidArgument, LeaseLost, LifeholdError, aio, connect
from lifehold.core.backend import NoReply, Renewal, Unreachable
from lifehold.core.deadline import NEVER
from lifehold.ops import redis_locks, stored
from lifehold.runtime import clock
from lifehold.runtime.blocking import finish
from lifehold.store.redis import backend, groups
from lifehold.store.redis.groups import Hosts, slot_of
from lifehold.store.redis.upkeep import examine
from lifehold.store.redis.wire import RedisRefused
from lifehold.testing.conformance import Subject, cases
from servers import redis_groups
from servers.redis import until

pytestmark = needs("redis")
SOON = 180.0  # seconds that a busy machine may take
TTL = 900.0  # longer than any of it: no lease runs out here


@pytest.fixture(scope="module")
def watched():
    with redis_groups.sentinels() as group:
        yield group


@pytest.fixture(scope="module")
def cluster():
    with redis_groups.cluster() as group:
        yield group


@contextlib.contextmanager
def waiting(store, name, server):
    """Somebody in line, seen there; afterwards: the tokens it got."""
    got = []

    def wait():
        with store.lock(name, ttl=TTL, wait=SOON) as lease:
            got.append(lease.token)

    thread = threading.Thread(target=wait)
    thread.start()
    until("it stands in line", lambda: server.call("ZCARD", f"lifehold:{{{name}}}:line"))
    yield got
    thread.join(SOON)
    assert not thread.is_alive()


# ---- sentinels


def test_a_lease_and_its_waiter_outlive_a_failover_to_a_replica_that_has_them(watched):
    store = connect(watched.url)
    lease = store.lock("kept", ttl=TTL, wait=SOON).acquire()
    before = watched.primary
    with waiting(store, "kept", before) as got:
        until("both replicas have it", lambda: before.call("WAIT", 2, 1000) == 2)
        watched.fail_over()
        lease.verify()
        lease.release()
    assert got
    assert got[0] > lease.token
    assert watched.primary.call("HGET", "lifehold:{kept}:lease", "token") == str(got[0])
    watched.again(before)


def test_a_primary_that_was_told_a_moment_ago_and_is_gone_is_asked_for_anew(watched):
    store = connect(watched.url, connections=3)  # of its own: no connection is open yet
    sentinels = store._site.backend.plan.locate.__self__
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    sentinels._found = clock.now(), ("127.0.0.1", port)
    store.lock("moved a moment ago", ttl=TTL, wait=0).acquire().release()
    assert sentinels._found[1][1] == watched.primary.port


def test_a_token_grows_though_a_failover_has_lost_the_grant_before(watched):
    store = connect(watched.url)
    with store.lock("lost", ttl=TTL, wait=SOON) as first:
        pass
    before = watched.primary
    watched.cut_off()
    unseen = store.lock("lost", ttl=TTL, wait=SOON).acquire()
    watched.fail_over()
    with store.lock("lost", ttl=TTL, wait=SOON) as second:  # two holders: ground() says so
        assert second.token > unseen.token > first.token
    assert "may forget the last grants" in str(store.ground())
    assert "sentinels say who is the primary" in str(store.ground())
    with pytest.raises(LeaseLost):
        unseen.release()
    watched.again(before)


def test_connections_to_a_primary_that_was_replaced_and_lives_are_not_used_again(watched):
    store = connect(watched.url)
    with store.lock("moved", ttl=TTL, wait=SOON):
        before = watched.primary
        until("both replicas have it", lambda: before.call("WAIT", 2, 1000) == 2)
        now = watched.fail_over(kill=False)
        until("the old one follows", before.follows)
    assert now.call("HEXISTS", "lifehold:{moved}:lease", "token")
    with store.lock("after", ttl=TTL, wait=SOON) as lease:
        assert now.call("HGET", "lifehold:{after}:lease", "token") == str(lease.token)


# ---- a cluster


def place(cluster, name):
    """The slot of a name, who serves it, and another primary."""
    slot = cluster.slot(f"lifehold:{{{name}}}:lease")
    source = cluster.owner(slot)
    return slot, source, next(each for each in cluster.primaries if each is not source)


def test_a_holder_and_its_waiter_follow_their_slot(cluster):
    store = connect(cluster.url)
    lease = store.lock("slot", ttl=TTL, wait=SOON).acquire()
    slot, source, target = place(cluster, "slot")
    with waiting(store, "slot", source) as got:
        assert cluster.move(slot, target) >= 2
        lease.verify()
        lease.release()
    assert got
    assert got[0] > lease.token
    assert target.call("HGET", "lifehold:{slot}:lease", "token") == str(got[0])


def test_who_asks_while_a_slot_moves_waits_and_gets_in_when_it_has_moved(cluster):
    store = connect(cluster.url)
    slot, source, target = place(cluster, "moving")
    cluster.begin_move(slot, target)
    got = []

    def ask():
        with store.lock("moving", ttl=TTL, wait=SOON) as lease:
            got.append(lease.token)

    thread = threading.Thread(target=ask)
    thread.start()
    for node in (source, target):
        until("it was refused", lambda each=node: "errorstat_TRYAGAIN" in each.info("errorstats")
              or "errorstat_ASK" in each.info("errorstats"))  # fmt: skip
    assert not got
    cluster.carry(slot, target)
    cluster.end_move(slot, target)
    thread.join(SOON)
    assert got


def test_a_name_outlives_its_primary_and_old_nodes_still_lead_to_it(cluster):
    slot, source, _ = place(cluster, "outlives")
    store = connect(f"redis+cluster://127.0.0.1:{source.port}")
    lease = store.lock("outlives", ttl=TTL, wait=SOON).acquire()
    until("the replica has it", lambda: source.call("WAIT", 1, 1000) == 1)
    new = cluster.fail_over(source, kill=False)
    until("the old one follows", source.follows)
    lease.verify()
    other = connect(f"redis+cluster://127.0.0.1:{source.port}", timeout=11)  # knows a replica alone
    assert other.inspect("outlives").nonce == lease.nonce
    lease.release()
    assert cluster.owner(slot) is new


def test_a_node_that_is_gone_suspends_no_lease_of_another():
    with redis_groups.cluster(replicas=False) as three:
        store = connect(three.url)
        names = {three.owner(three.slot(f"{{{name}}}")).port: name for name in "abcdefgh"}
        leases = {port: store.lock(name, ttl=TTL).acquire() for port, name in names.items()}
        gone = three.nodes[1]
        gone.kill()
        asked = [Renewal(name, leases[port]._grant.mark, TTL) for port, name in names.items()]
        _, kept = finish(store._site.backend.renew(asked))
        told = dict(zip(names, kept, strict=True))
        assert isinstance(told.pop(gone.port), Unreachable)
        assert set(told.values()) == {True}
        plan = store._site.backend.plan
        for one in asked:  # the look whether a node evicts keys is due, and one gives no answer
            if names[gone.port] != one.name:
                plan.looked_at = -NEVER
                assert finish(store._site.backend.renew([one]))[1] == (True,)
                assert plan.looked_at > 0
        gone.start()
        three.wait_ok()
        for lease in leases.values():
            with contextlib.suppress(LifeholdError):  # the one of the node that came back empty
                lease.release()


def test_a_slot_that_nobody_serves_costs_its_own_renewal_alone(cluster):
    store = connect(cluster.url)
    leases = {name: store.lock(name, ttl=TTL).acquire() for name in "ab"}
    asked = [Renewal(name, lease._grant.mark, TTL) for name, lease in leases.items()]
    link = store._site.backend._beats
    finish(store._site.backend.renew(asked))
    slot = slot_of("lifehold:{a}:lease")
    ranges, link._stale = link._ranges, False
    link._ranges = [(first, min(last, slot - 1), node) for first, last, node in ranges]
    link._ranges += [(max(first, slot + 1), last, node) for first, last, node in ranges]
    link._moved.clear()
    _, (one, other) = finish(store._site.backend.renew(asked))
    assert isinstance(one, Unreachable)
    assert other is True
    for lease in leases.values():
        lease.release()


def test_a_node_of_many_that_falls_silent_leaves_a_doubt(cluster, monkeypatch):
    """L6  It may have done it."""
    store = connect(cluster.url)
    leases = {name: store.lock(name, ttl=TTL).acquire() for name in "ab"}
    asked = [Renewal(name, lease._grant.mark, TTL) for name, lease in leases.items()]
    link = store._site.backend._beats
    finish(store._site.backend.renew(asked))

    async def silent(*_):
        raise NoReply("no answer in time")

    with monkeypatch.context() as patch:
        patch.setattr(link._at(link.node(slot_of("lifehold:{a}:lease"))), "ask", silent)
        _, (one, other) = finish(store._site.backend.renew(asked))
    assert isinstance(one, NoReply)
    assert other is True
    for lease in leases.values():
        lease.release()


def test_all_names_of_a_cluster_are_listed_once(cluster):
    store = connect(cluster.url)
    names = [f"listed/{number}" for number in range(30)]
    leases = [store.lock(name, ttl=TTL).acquire() for name in names]
    assert store.list("listed/") == sorted(names)
    for lease in leases:
        lease.release()


def test_a_key_that_looks_like_ours_and_has_no_name_spoils_no_listing(cluster):
    """Its keys are in several slots, since its hash tag is empty."""
    key, store = "lifehold:{}:lease", connect(cluster.url)
    node = cluster.owner(cluster.slot(key))
    node.call("HSET", key, "lifehold", "1", "token", "5")
    with store.lock("beside/no/name", ttl=TTL):
        assert "beside/no/name" in store.list()
        assert "" not in store.list()
        assert store.prune(3600) >= 0
    node.call("DEL", key)


def test_a_lock_of_another_library_is_asked_of_the_node_that_has_its_key(cluster):
    keys = [f"theirs/{number}" for number in range(6)]
    nodes = [cluster.owner(cluster.slot(key)) for key in keys]
    assert len({node.port for node in nodes}) > 1
    for key, node in zip(keys, nodes, strict=True):
        node.call("SET", key, uuid.uuid1().hex, "PX", "600000")
    found = [stored.answer("", f"{cluster.url}#{key}") for key in keys]
    assert {each.family for each in found} == {"redis-py"}
    for key, node in zip(keys, nodes, strict=True):
        node.call("DEL", key)


def test_nodes_that_do_not_know_their_own_host_names_are_asked_where_they_answer(cluster):
    """L1  They are named "?", and a URL of that host leads to another server."""
    for node in cluster.nodes:
        node.call("CONFIG", "SET", "cluster-preferred-endpoint-type", "hostname")
    try:
        store = connect(cluster.url, timeout=12)  # it learns the map now
        with store.lock("named", ttl=TTL, wait=SOON) as lease:
            _, source, target = place(cluster, "named")
            key = "lifehold:{named}:lease"
            assert source.call("HGET", key, "token") == str(lease.token)
        link = store._site.backend._link
        link._moved[slot_of(key)] = target.address  # which refers to "?" and the port of the other
        with store.lock("named", ttl=TTL, wait=SOON) as later:
            assert source.call("HGET", key, "token") == str(later.token)
        found = {each.what: each for each in examine(cluster.url).findings}
        assert "16384 of 16384" in found["cluster"].why
        assert "server" not in {each.what for each in found.values() if each.verdict == "bad"}
    finally:
        for node in cluster.nodes:
            node.call("CONFIG", "SET", "cluster-preferred-endpoint-type", "ip")


@pytest.mark.parametrize("host", [None, b"", b"?", "?"])
def test_a_node_that_is_not_named_is_where_the_answer_came_from(host):
    assert groups.named(host, "10.0.0.7") == "10.0.0.7"
    assert groups.named(b"10.0.0.8", "10.0.0.7") == "10.0.0.8"


@pytest.mark.parametrize("host", ["a?b", "a#b", "a/b", "me@b"])
def test_a_host_that_would_lead_a_url_to_another_server_is_refused(host):
    with pytest.raises(InvalidArgument, match="no host"):
        Hosts.of("redis+cluster://h").server(host, 6379)
    with pytest.raises(Unreachable, match="names a node"):
        groups.named(host, "10.0.0.7")
    with pytest.raises(InvalidArgument, match="no HOST"):
        Hosts.of(f"redis+cluster://{quote(host, safe='')}")


def test_what_is_damaged_is_told_and_removed_at_whichever_node(cluster):
    store = connect(cluster.url)
    names = [f"odd/{number}" for number in range(8)]
    nodes = {name: place(cluster, name)[1] for name in names}
    assert len({node.port for node in nodes.values()}) == 3
    damaged, foreign = names[:4], names[4:]
    for name in names:
        store.lock(name, ttl=TTL).acquire().release()
    for name in damaged:
        nodes[name].call("HSET", f"lifehold:{{{name}}}:holders", "x", "rubbish")
    for name in foreign:
        nodes[name].call("SET", f"lifehold:{{{name}}}:holders", "x")
    assert [state.name for state in store.states("odd/") if state.damage] == names
    for name in damaged:
        assert stored.clear(f"{cluster.url}#{name}", force="damaged").action == stored.REMOVED
        store.lock(name, ttl=TTL, wait=0).acquire().release()
    for name in foreign:
        nodes[name].call("DEL", f"lifehold:{{{name}}}:holders")


def test_each_command_about_a_key_goes_to_the_node_that_has_it():
    said = "".join(inspect.getsource(each) for each in (backend, redis_locks, stored))
    asked = set(re.findall(r'\b(?:(?:ask|command)\(|question = )\[?\(?"([A-Z]+)"', said))
    assert {"DEL", "HEXISTS", "TYPE", "INFO", "TIME"} <= asked
    assert asked - {"INFO", "TIME", "SCAN"} <= set(groups.OF_A_KEY)


def test_a_refusal_does_not_say_that_a_key_is_not_ours(redis_url, monkeypatch):
    store = connect(redis_url)
    store.lock("refused", ttl=TTL).acquire().release()
    asked = store._site.backend

    async def refuse(*_):
        return [RedisRefused("MOVED 1 h:1")]

    monkeypatch.setattr(asked._link, "ask", refuse)
    with pytest.raises(Unreachable):
        finish(asked._is_ours("refused"))


class Answering:
    """A node with these names, two to a piece."""

    def __init__(self, names):
        self.names = names

    async def ask(self, commands, *_):
        at = int(commands[0][1])
        following = at + 2 if at + 2 < len(self.names) else 0
        return [[b"%d" % following, [b"lifehold:{%b}:lease" % n for n in self.names[at : at + 2]]]]


class Gone:
    async def ask(self, *_):
        raise Unreachable("nobody there")


def of_nodes(monkeypatch, nodes):
    """A cluster as it is known: its link."""
    link = connect("redis+cluster://127.0.0.1:1")._site.backend._link
    link._ranges = [(at, at, ("h", at)) for at in sorted(nodes)]
    link._moved, link._stale, link._down = {}, False, {}
    monkeypatch.setattr(link, "_at", lambda node: nodes[node[1]])
    return link


def test_a_listing_begins_anew_where_nodes_have_come_or_gone(monkeypatch):
    """The names of one that has gone are at any of the others, also at one that was looked at."""
    nodes = {at: Answering([b"%d/%d" % (at, number) for number in range(4)]) for at in (1, 2, 3)}
    link = of_nodes(monkeypatch, nodes)
    store, asked = connect("redis+cluster://127.0.0.1:1"), []
    ask = link.ask

    async def counted(commands, *more):
        asked.append(commands[0])
        if len(asked) == 5:  # two nodes were looked at, and the third has begun
            nodes[1].names.append(b"3/0")
            link._ranges = link._ranges[:2]
        return await ask(commands, *more)

    monkeypatch.setattr(link, "ask", counted)

    async def listed():
        names, cursor = set(), "0"
        while True:
            cursor, found = await store._site.backend._scan(cursor)
            names.update(found)
            if cursor == "0":
                return names

    assert finish(listed()) >= {"1/0", "1/3", "2/0", "2/3", "3/0"}
    assert len(asked) == 4 + 3 + 2


def test_a_node_that_gives_no_piece_of_a_listing_is_looked_for_anew(monkeypatch):
    link = of_nodes(monkeypatch, {1: Gone()})
    with pytest.raises(Unreachable):
        finish(link.ask([("SCAN", "0", "COUNT", 2)]))
    assert link._stale


# ---- who they are


def test_the_slot_of_a_key_is_that_of_the_server(cluster):
    for key in ("a", "lifehold:{a/b}:lease", "{}x", "x{y}{z}", "{ä}", "{a"):
        assert slot_of(key) == cluster.slot(key)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis+sentinel://h1,h2", "the service"),
        ("redis+sentinel://h1/a/b/c", "the service"),
        ("redis+sentinel://h1/a/x", "a number"),
        ("redis+cluster://h1/1", "database 0 alone"),
        ("redis+cluster://h1:x,h2", "HOST or HOST:PORT"),
        ("redis+cluster://h1?ssl=perhaps", "ssl is true or false"),
    ],
)
def test_a_url_that_names_no_such_servers_is_refused(url, said):
    with pytest.raises(InvalidArgument, match=said):
        Hosts.of(url)


def test_a_password_is_given_to_the_servers_and_shown_to_nobody():
    url = "redis+sentinel://ana:s3%40cret@h1,[::1]:7/jobs/3?sentinel_password=wat&ssl=true"
    hosts = Hosts.of(url)
    assert hosts.server("::1", 7) == "rediss://ana:s3%40cret@[::1]:7/3"
    assert hosts.server("h1", 26379, sentinel=True) == "rediss://:wat@h1:26379/0"
    asked = Hosts.of("redis+sentinel://h1/jobs?username=ana&password=s3cret&ssl_check_hostname=no")
    assert asked.server("h1", 1, sentinel=True) == "redis://h1:1/0?ssl_check_hostname=no"
    assert "password=s3cret" in asked.server("h1", 1)
    assert hosts.shown == "redis+sentinel://ana@h1:26379,[::1]:7/jobs/3?ssl=true"
    store = connect(url)
    assert "cret" not in repr(store) + store.url
    assert "wat" not in repr(store) + store.url


def test_clients_of_the_program_lead_to_the_same_locks(watched, cluster):
    import redis
    from redis.asyncio.cluster import RedisCluster as AsyncCluster
    from redis.sentinel import Sentinel

    near = Sentinel([("127.0.0.1", each.port) for each in watched.watchers])
    mine = near.master_for("lifehold"), redis.RedisCluster("127.0.0.1", cluster.nodes[0].port)
    unopened = AsyncCluster("127.0.0.1", cluster.nodes[0].port)
    for client, url in ((mine[0], watched.url), (mine[1], cluster.url), (unopened, cluster.url)):
        with connect("redis://", client=client).lock("own", ttl=TTL, wait=SOON) as lease:
            assert connect(url).inspect("own").nonce == lease.nonce
    for each in (*mine, *near.sentinels):
        each.close()


@pytest.mark.parametrize("which", ["watched", "cluster"])
def test_a_task_waits_and_is_called(which, request):
    group = request.getfixturevalue(which)

    async def run():
        store = await aio.aconnect(group.url)
        lease = await store.lock("tasks", ttl=TTL, wait=SOON).acquire()
        second = asyncio.ensure_future(store.lock("tasks", ttl=TTL, wait=SOON).acquire())
        while await store.waiters("tasks") == 0:  # noqa: ASYNC110 - its line is at the server
            await asyncio.sleep(0.01)
        await lease.release()
        got = await second
        assert got.token > lease.token
        await got.release()

    asyncio.run(run())


# ---- the claims of every kind: a few here, all of them by `make soak`


FEW = frozenset(
    "two_objects_exclude_each_other a_waiter_gets_it_after_release the_faces_exclude_each_other "
    "a_cancelled_waiter_leaves_nothing_behind the_holder_is_named_with_evidence_while_it_holds "
    "each_token_is_greater_than_the_last".split()
)
urls = {}


def _in(which):
    return lambda folder: f"{urls[which]}#{str(folder).strip('/')}"


def _lose(url):
    where, _, name = url.partition("#")
    connect(where).break_(name, "to see who is told")


SUBJECTS = [
    Subject(
        "auto", name=which, remote=True, target=_in(which), lose=_lose,
        make=lambda subject, face, target, options: face.lock(
            target, **{**subject.options, **options}
        ),
        lacks={
            "survives_crash": "its lease runs out: the single server's tests wait for that",
            "shared": "readers share by read_write(), not by exclusive=False",
            "lose": "check() asks no store: verify() does",
        },
    )
    for which in ("watched", "cluster")
]  # fmt: skip
CASES = [
    pytest.param(each, marks=() if any(name in str(each) for name in FEW) else pytest.mark.soak)
    for subject in SUBJECTS
    for each in cases(subject, lacking=False)
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_servers_together_keep_the_claim(case, tmp_path, request):
    which = str(case).partition("-")[0]
    urls[which] = request.getfixturevalue(which).url
    if why := case.why_not():
        pytest.skip(why)
    case.run(tmp_path)
