"""A quorum of Redis servers that are killed, paused, emptied, set back, or lose their answers.

Judged by what is true at the end: nobody in twice, tokens that grow, nothing held that no one has
in hand, and everybody told.
"""

from __future__ import annotations

import contextlib
import itertools
import shlex
import threading
from pathlib import Path

import pytest

from ground import needs
from lifehold import (
    CorruptRecord,
    InvalidArgument,
    LeaseLost,
    Lock,
    NotAcquired,
    StoreUnavailable,
    connect,
    once,
)
from lifehold.aio import aconnect
from lifehold.core.backend import Unable
from lifehold.ops import stored
from lifehold.runtime.blocking import finish
from servers import quorum, redis
from servers.proxy import Proxy, redis_replies

pytestmark = needs("redis")
TTL = 600.0  # seconds: no lease of these tests ends by itself
_bases = itertools.count(1)  # each test has a database of its own at the servers
_clients = itertools.count(8)  # and each client connections of its own


@pytest.fixture(scope="module")
def five():
    with quorum.started(5, databases="200") as servers:
        yield servers


@pytest.fixture
def servers(five):
    """All five, and running, whatever the test before has done."""
    yield five
    for each in five:
        if not each.running:
            each.start()
        each.resume()
        each.close()
        redis.until("it answers", lambda each=each: each.call("PING"))


@pytest.fixture
def base():
    return next(_bases)


def client(servers, base, count=None):
    """A client of its own, as another process has it."""
    made = quorum.store_of(servers, base, connections=next(_clients))
    return quorum.ready(made, count)


def acquired(store, name="a", **options):
    return store.lock(name, wait=0, ttl=TTL, notify=False, **options).acquire()


def refused(store, name="a"):
    with pytest.raises((NotAcquired, StoreUnavailable)):
        acquired(store, name).release()


def test_three_servers_give_one_lease_at_a_time(servers, base):
    ours = quorum.long_ago(servers[:3], base)
    theirs = client(servers[:3], base)
    with acquired(ours) as lease:
        refused(theirs)
        assert theirs.inspect("a").token == lease.token
        lease.verify()
    with acquired(theirs) as later:
        assert later.token > lease.token


def test_an_order_for_one_grant_ends_no_other(servers, base):
    ours = quorum.long_ago(servers[:3], base)
    with acquired(ours):
        whom = ours.inspect("a")
    with acquired(ours) as lease:
        assert ours._site.break_("a", "a word of long ago", whom) is None
        lease.verify()
    lease = acquired(ours)
    whom = ours.inspect("a")
    assert ours._site.break_("a", "its word", whom).nonce == whom.nonce
    with pytest.raises(LeaseLost):
        lease.release()
    acquired(ours).release()


def test_two_of_five_may_be_killed(servers, base):
    ours = quorum.long_ago(servers, base)
    theirs = client(servers, base)
    lease = acquired(ours)
    for each in servers[:2]:
        each.kill()
    lease.verify()
    refused(theirs)
    lease.release()
    with acquired(theirs) as later:
        assert later.token > lease.token
    servers[2].kill()
    with pytest.raises(StoreUnavailable) as error:
        acquired(ours)
    for each in servers[:3]:
        assert f"port {each.port}" in str(error.value)
    assert "3 are needed" in str(error.value)


def test_two_of_five_may_be_paused_and_nothing_of_it_stays(servers, base):
    ours = quorum.long_ago(servers, base)
    theirs = client(servers, base)
    for each in servers[:2]:
        each.pause()
    with acquired(ours) as lease:
        lease.verify()
        refused(theirs)
    with acquired(theirs) as later:
        assert later.token > lease.token
    for each in servers[:2]:
        each.resume()
    quorum.ready(ours)
    quorum.ready(theirs)
    for each in servers:
        redis.until("nothing of it stays", lambda each=each: not held_at(each, base))
    acquired(ours).release()


def held_at(server, base, name="a"):
    with server.client(db=base) as asked:
        return asked.hkeys(f"lifehold:{{{name}}}:holders")


@pytest.mark.parametrize("how", ["emptied", "with an old snapshot", "flushed"])
def test_a_server_that_forgets_makes_no_second_holder(servers, base, how):
    """A, B, C have given it; A forgets; then A, D, E would be a majority without the holder."""
    ours = quorum.long_ago(servers, base)
    theirs = client(servers, base)
    first, away = servers[0], servers[3:]
    if how == "with an old snapshot":
        first.call("SAVE")
    for each in away:
        each.pause()
    lease = acquired(ours)
    if how == "flushed":
        first.call("FLUSHALL")
    else:
        first.restart(empty=how == "emptied")
    for each in away:
        each.resume()
    for each in servers[1:3]:
        each.kill()
    refused(theirs)
    redis.until("its marker is of this run", lambda: quorum.marked(first, base))
    refused(theirs)
    quorum.age(first, base)  # the longest ttl is over
    quorum.ready(theirs, 3)
    with acquired(theirs) as later:
        assert later.token > lease.token
    with contextlib.suppress(LeaseLost, StoreUnavailable):
        lease.release()


def test_a_lease_that_a_majority_has_forgotten_is_lost(servers, base):
    ours = quorum.long_ago(servers[:3], base)
    lease = acquired(ours)
    for each in servers[:2]:
        with each.client(db=base) as asked:
            asked.delete("lifehold:{a}:holders")
    with pytest.raises(LeaseLost):
        lease.verify()
    with contextlib.suppress(LeaseLost):
        lease.release()
    redis.until("the rest is given back", lambda: not held_at(servers[2], base))


def test_what_a_first_try_to_release_has_freed_at_some_is_no_loss(servers, base):
    """One had lost it; two of the others free it, and two can at the second try only."""
    ours = quorum.long_ago(servers, base)
    lease = acquired(ours)
    with servers[0].client(db=base) as asked:
        asked.delete("lifehold:{a}:holders")
    away = [quorum.members(ours)[at] for at in (0, 3, 4)]
    for each in away:
        each.release = _once_unable(each.release)
    lease.release()
    for each in servers:
        assert held_at(each, base) == []


def _once_unable(there):
    tries = iter((False,))

    async def release(*given):
        if not next(tries, True):
            raise Unable("its disk is full")
        return await there(*given)

    return release


def test_tokens_grow_whichever_majority_gives_them(servers, base):
    """One server is ahead by far: what it says is written to the others before it is believed."""
    ours = quorum.long_ago(servers[:3], base)
    with servers[0].client(db=base) as asked:
        asked.hset("lifehold:{a}:lease", mapping={"lifehold": "1", "token": str(2**61)})
    tokens = []
    for away in (2, 0, 1, 2):
        servers[away].pause()
        with acquired(quorum.ready(ours, 2)) as lease:
            tokens.append(lease.token)
        servers[away].resume()
        quorum.ready(ours)
    assert tokens == sorted(set(tokens))
    assert tokens[0] == 2**61 + 1


def test_a_token_is_not_believed_before_a_majority_has_it(servers, base):
    ours = quorum.long_ago(servers[:3], base)
    found = quorum.members(ours)
    for each in found[:2]:
        each.confirm = unheard
    with pytest.raises((NotAcquired, StoreUnavailable)):
        acquired(ours)
    for each in found[:2]:
        del each.confirm
    for each in servers[:3]:
        redis.until("it is undone", lambda each=each: not held_at(each, base))


async def unheard(*_):
    return False


def test_what_a_minority_gave_is_given_back(servers, base):
    ours = quorum.long_ago(servers[:3], base)
    with servers[0].client(db=base) as asked, servers[1].client(db=base) as other:
        for each in (asked, other):  # held there by one who lives
            each.hset("lifehold:{a}:lease", mapping={"lifehold": "1", "token": "7"})
            each.hset("lifehold:{a}:holders", "x", "7 1 0 0 600 0 9999999999 1 0 1 {}")
        refused(ours)
        assert held_at(servers[2], base) == []
        for each in (asked, other):
            each.delete("lifehold:{a}:holders")
    acquired(ours).release()


def test_two_clients_with_one_half_each_both_come_in_at_last(servers, base):
    """An even number, so that both can have a half; whoever loses undoes, and asks again."""
    four = servers[:4]
    stores = [quorum.long_ago(four, base), client(four, base)]
    inside, seen, errors = threading.Lock(), [], []

    def work(store):
        try:
            for _ in range(10):
                with store.lock("a", ttl=TTL, wait=120, notify=False) as lease:
                    assert inside.acquire(blocking=False)
                    seen.append(lease.token)
                    inside.release()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(store,)) for store in stores]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not errors
    assert len(seen) == 20
    assert seen == sorted(set(seen))
    assert any("4 independent servers" in each for each in stores[0].ground().sentences)


def test_who_waits_is_called_when_it_is_let_go(servers, base):
    ours = quorum.long_ago(servers[:3], base)
    theirs = client(servers[:3], base)
    lease, came = acquired(ours), threading.Event()

    def wait():
        with theirs.lock("a", ttl=TTL, wait=120, notify=False):
            came.set()

    waiting = threading.Thread(target=wait)
    waiting.start()
    redis.until("it waits", lambda: ours.waiters("a") == 1)
    lease.release()
    assert came.wait(60)
    waiting.join()


def damage(some, base, name="a"):
    for each in some:
        with each.client(db=base) as asked:
            asked.hset(f"lifehold:{{{name}}}:holders", "x", "rubbish")


@pytest.mark.parametrize("away", [False, True])
def test_a_lease_that_too_few_servers_can_read_is_not_called_free(servers, base, away):
    ours = quorum.long_ago(servers[:3], base)
    lease = acquired(ours)
    damage(servers[: 1 if away else 2], base)
    if away:
        servers[1].pause()
    lease.verify()
    (state,) = ours.states()
    assert "no state of a lock" in state.damage
    with pytest.raises(CorruptRecord, match="removes it"):
        ours.inspect("a")
    with pytest.raises(CorruptRecord, match="removes it"):
        client(servers[:3], base, 2).lock("a", wait=60, notify=False).acquire()
    servers[1].resume()
    lease.release()


def test_damage_at_a_minority_hides_no_holder(servers, base):
    ours = quorum.long_ago(servers[:3], base)
    lease = acquired(ours)
    damage(servers[:1], base)
    for state in (*ours.states(), ours._site.state("a")):
        assert (len(state.holders), state.damage) == (1, "")
    with servers[1].client(db=base) as asked:
        asked.delete("lifehold:{a}:holders")  # it may be in at the one that is damaged
    assert len(ours.states()[0].holders) == 1
    servers[0].kill()
    lease.release()


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_damaged_name_is_removed_by_order(servers, base, count):
    ours = quorum.long_ago(servers[:3], base)
    acquired(ours).release()
    damage(servers[:count], base)
    url = f"{ours.url}#a"
    if count > 1:
        assert [stored.of_state("a", ours._site, each).state for each in ours.states()] == [
            "suspect"
        ]
        assert "damaged" in str(stored.clear(url))
        assert stored.clear(url, force="damaged").action == stored.REMOVED
    else:
        ours.break_("a", "it is none of ours")
    for each in servers[:3]:
        assert not held_at(each, base)
    with acquired(ours):
        refused(client(servers[:3], base))


@pytest.mark.parametrize("which", [0, 2])
def test_whichever_answer_is_lost_nothing_is_leaked_and_nobody_is_in_twice(servers, base, which):
    direct = quorum.long_ago(servers[:3], base)
    with contextlib.ExitStack() as stack:
        between = [stack.enter_context(Proxy(each.port, redis_replies)) for each in servers[:3]]
        store = client(between, base)
        play(store, direct, "warm")
        lost = 0
        for number, width in itertools.product(range(1, 7), (1, 2)):
            before = between[which].lost
            between[which].lose(*range(number, number + width))
            play(store, direct, f"lost/{number}/{width}")
            lost += between[which].lost - before
            between[which].lose()
            quorum.ready(store)
            for each in servers[:3]:
                name = f"lost/{number}/{width}"
                redis.until("nothing stays", lambda e=each, n=name: not held_at(e, base, n))
        assert lost > 6


def play(store, direct, name):
    """One program, with a rival beside it."""
    lease = acquired(store, name)  # one server may always fail
    refused(direct, name)
    lease.verify()
    lease.check()
    lease.release()
    acquired(direct, name).release()


def test_an_answer_of_each_server_is_lost_in_the_same_step(servers, base):
    direct = quorum.long_ago(servers[:3], base)
    with contextlib.ExitStack() as stack:
        between = [stack.enter_context(Proxy(each.port, redis_replies)) for each in servers[:3]]
        store = client(between, base)
        acquired(store, "warm").release()
        for number in range(1, 6):
            name = f"all/{number}"
            for each in between:
                each.lose(number)
            with contextlib.suppress(StoreUnavailable, NotAcquired, LeaseLost):
                lease = acquired(store, name)
                refused(direct, name)
                lease.release()
            for each in between:
                each.lose()
            for each in servers[:3]:
                redis.until("nothing stays", lambda e=each, n=name: not held_at(e, base, n))
            quorum.ready(store)


def test_what_two_programs_do_not_agree_on_is_told(servers, base):
    quorum.long_ago(servers[:3], base)
    for other in (
        quorum.store_of(servers[:3], base, longest_ttl=60),
        quorum.store_of(servers[:4], base),
    ):
        with pytest.raises(InvalidArgument, match=r"set up as one of 3 servers with longest_ttl"):
            other.lock("a", wait=0).acquire()


def test_one_server_by_two_names_is_refused(servers, base):
    one, two = servers[:2]
    store = connect(
        quorum=[
            f"redis://127.0.0.1:{one.port}/{base}",
            f"unix://{one.socket}?db={base}",
            f"redis://127.0.0.1:{two.port}/{base}",
        ],
        longest_ttl=quorum.HOUR,
    )
    with pytest.raises(InvalidArgument, match="are one server"):
        store.lock("a", wait=0).acquire()


A, B, C = "redis://a:1/0", "redis://b:1/0", "redis://c:1/0"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"quorum": [A, B]}, "3 to 15 servers, not 2"),
        ({"quorum": []}, "3 to 15 servers, not 0"),
        ({"quorum": A}, "a list of URLs"),
        ({"quorum": [A, B, None]}, "are named by redis://"),
        ({"quorum": [A, B, "redis+sentinel://c/s/0"]}, "each must decide alone"),
        ({"quorum": [A, B, "redis+cluster://c"]}, "each must decide alone"),
        ({"quorum": [A, B, A]}, "named twice"),
        ({"url": A, "quorum": [A, B, C]}, "and not both"),
        ({"quorum": [A, B, C], "longest_ttl": 0}, "longest_ttl must be"),
        ({"quorum": [A, B, C], "longest_ttl": "x"}, "longest_ttl must be"),
        ({"url": "redis+quorum://a,b"}, "3 to 15 servers, not 2"),
        ({"url": "redis+quorum://a,b,c/0/1"}, "one database"),
        ({"url": "redis+quorum://a,b,c/x"}, "a number"),
    ],
)
def test_what_is_no_quorum_is_refused(given, words):
    with pytest.raises(InvalidArgument, match=words):
        connect(**given)


def test_what_a_quorum_has_not_is_refused_by_name(servers, base):
    store = quorum.long_ago(servers[:3], base)
    for refuse in (
        lambda: store.lock("a", fair=True),
        lambda: store.lock("a", lock_delay=1),
        lambda: store.read_write("a"),
        lambda: store.semaphore("a", 2),
        lambda: once(f"{store.url}#a", lambda: 1),
    ):
        with pytest.raises(InvalidArgument, match=r"has not what .* needs"):
            refuse()
    with pytest.raises(InvalidArgument, match="longer than longest_ttl"):
        store.lock("a", wait=0, ttl=quorum.HOUR + 1).acquire()


def test_servers_that_are_new_are_waited_for_and_told(servers, base):
    store = quorum.store_of(servers[:3], base)
    with pytest.raises(StoreUnavailable, match=r"0 of 3 servers count, and 2 are needed.* new"):
        store.lock("a", wait=0).acquire()
    for each in servers[:3]:
        quorum.age(each, base)
    with store.lock("a", wait=120, notify=False) as lease:
        assert lease.token


def test_an_operator_may_say_that_servers_are_new_for_this_run_alone(servers, base):
    """By the command of the page, which changes nothing where nobody has asked, or it counts."""
    page = Path(__file__).parents[2] / "docs/explanation/redis.md"
    line = next(each for each in page.read_text().splitlines() if each.startswith("redis-cli -n 0"))
    command = shlex.split(line)[3:]

    def said(server):
        with server.client(db=base) as db:
            return db.execute_command(*command)

    three = servers[:3]
    assert [said(each) for each in three] == [None] * 3
    ours = quorum.store_of(three, base)
    with pytest.raises(StoreUnavailable, match="it is new"):
        acquired(ours)
    assert [said(each) for each in three] == ["OK"] * 3
    quorum.ready(ours)
    acquired(ours).release()
    assert [said(each) for each in three] == [None] * 3
    three[0].restart(empty=True)
    three[1].restart(empty=True)
    with pytest.raises(StoreUnavailable, match="2 are needed"):
        acquired(quorum.store_of(three, base, connections=next(_clients)))


def test_a_url_names_the_same_quorum(servers, base):
    store = quorum.long_ago(servers[:3], base)
    assert store.url.startswith("redis+quorum://127.0.0.1:")
    with acquired(store, "a"), pytest.raises(NotAcquired):
        Lock(f"{store.url}#a", wait=0, notify=False).acquire()


def test_no_password_is_told(base):
    ports = [redis.free_port() for _ in range(3)]
    store = connect(quorum=[f"redis://me:hunter2@127.0.0.1:{port}/{base}" for port in ports])
    with pytest.raises(StoreUnavailable) as error:
        store.lock("a", wait=0).acquire()
    text = f"{error.value!r} {store!r} {store.ground()}"
    assert "hunter2" not in text
    assert all(str(port) in text for port in ports)


def test_tasks_use_it_too(servers, base):
    import asyncio

    store = quorum.long_ago(servers[:3], base)

    async def main():
        urls = [f"redis://127.0.0.1:{each.port}/{base}" for each in servers[:3]]
        ours = await aconnect(quorum=urls, longest_ttl=quorum.HOUR, timeout=8)
        async with ours.lock("a", ttl=TTL, wait=60, notify=False) as lease:
            await asyncio.to_thread(refused, store)
            return lease.token

    assert asyncio.run(main())


def test_a_late_confirmation_lowers_no_token(servers, base):
    store = quorum.long_ago(servers[:3], base)
    lease = acquired(store)
    backend = store._site.backend
    for each in backend.servers:
        asked = {each: each.confirm("a", lease.nonce.partition("-")[0], 7, 1.0)}
        assert finish(backend.asking.together(asked, 1e12, lambda _: False))[each]
    assert store.inspect("a").token == lease.token
    lease.release()
