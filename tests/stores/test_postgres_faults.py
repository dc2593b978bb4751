"""Leases in PostgreSQL when answers are lost, the server is paused or killed, the network cut.

Judged by what is true at the end: nobody in twice, nothing held that no one has in hand, and
everybody told.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading

import pytest

from ground import needs
from lifehold import LeaseLost, NotAcquired, StoreUnavailable, connect
from lifehold.aio import aconnect
from lifehold.core.backend import Unreachable
from lifehold.runtime.blocking import finish
from lifehold.store.postgres import backend, upkeep, wire
from lifehold.store.postgres.connect import PostgresUrl
from patience import SOON, at_last, ended, tried, until
from servers.proxy import Proxy

pytestmark = needs("postgres")


@pytest.fixture
def proxy(pg_server):
    with Proxy(pg_server.port) as between:
        yield between


def through(proxy, **options):
    """A store of its own for each test: another `timeout` is another store."""
    url = f"postgresql://lifehold@127.0.0.1:{proxy.port}/test?sslmode=disable&gssencmode=disable"
    return connect(url, **options)


@pytest.fixture(scope="module")
def direct(pg_server):
    return connect(pg_server.url)


def test_to_acquire_and_to_release_is_one_round_trip_each(proxy):
    lock = through(proxy).lock("trips", wait=0)
    with lock as lease:
        lease.verify()  # renewals have a connection of their own: open it
    before = proxy.replies
    lease = lock.acquire()
    assert proxy.replies == before + 1
    lease.verify()
    assert proxy.replies == before + 2
    lease.release()
    assert proxy.replies == before + 3


def play(store, direct, name):
    """One program, with a rival beside it: what it was told is checked against what is so."""
    told = []
    try:
        lease = store.lock(name, wait=0, ttl=60).acquire()
    except (StoreUnavailable, NotAcquired) as error:
        return [type(error).__name__]
    with pytest.raises(NotAcquired):  # never two in
        direct.lock(name, wait=0).acquire()
    for act in (lease.verify, lease.check, lease.release):
        try:
            act()
            told.append("done")
        except StoreUnavailable:
            told.append("unknown")
    return told


def test_whichever_answer_is_lost_nothing_is_leaked_and_nobody_is_in_twice(
    proxy, direct, monkeypatch
):
    monkeypatch.setattr(backend, "AGAIN", (1000.0,))  # no answer of it is one that is lost here
    store = through(proxy)
    play(store, direct, "lost/0")
    lost = 0
    for number in range(1, 10):
        for width in (1, 2, 3):
            name = f"lost/{number}/{width}"
            before = proxy.lost
            proxy.lose(*range(number, number + width))
            play(store, direct, name)
            lost += proxy.lost - before
            proxy.lose()
            if width == 1:
                assert direct.inspect(name) is None, f"leaked: reply {number} of {name}"
            elif (holder := direct.inspect(name)) is not None:
                # Told to be unknown, since no answer came to its end: it runs out by itself.
                assert (holder.owner.pid, width) == (os.getpid(), 3), name
                direct.break_(name, "the test is over")
    assert lost > 12


def test_a_request_that_is_cut_off_is_asked_again(proxy, direct):
    store = through(proxy)
    lease = store.lock("cut", wait=0).acquire()
    proxy.cut()
    lease.verify()
    proxy.cut()
    lease.release()
    assert direct.inspect("cut") is None


def test_a_server_behind_a_silent_network_is_given_up_in_time(proxy, direct):
    store = through(proxy, timeout=0.5)
    lease = at_last(store.lock("silent", wait=SOON, ttl=600).acquire)
    proxy.stalled.set()
    with pytest.raises(StoreUnavailable, match="no answer"):
        lease.verify()
    proxy.stalled.clear()
    at_last(lease.verify)
    until(lambda: tried(lease.release))
    until(lambda: direct.inspect("silent") is None)


def test_all_connections_in_use_is_said_so(proxy):
    store = through(proxy, timeout=0.6, connections=1)
    at_last(lambda: store.inspect("pool"))
    link, errors = store._site.backend._link, []
    proxy.stalled.set()

    def ask():
        try:
            store.inspect("pool")
        except StoreUnavailable as error:
            errors.append(str(error))

    link.limit = SOON * 4  # of who has it: else the next one gets it just before its own time is up
    user = threading.Thread(target=lambda: finish(link.ask("SELECT 1")))
    user.start()
    until(lambda: not link._idle)
    link.limit = 0.6
    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON)
    proxy.stalled.clear()
    user.join(SOON * 4)
    assert [("connections were in use" in error) for error in errors] == [True] * 3, errors


def test_so_is_one_that_was_given_back_before_its_answer_was_lost(pg_server, monkeypatch):
    """By another thread, as for a task of trio that is cancelled."""
    store = connect(pg_server.url, timeout=77)  # a store of its own
    site, late = store._site, None
    monkeypatch.setattr(backend, "AGAIN", (1000.0,))
    waiter = site.waiter()
    request = store.lock("given back", wait=0)._mechanism._request(waiter)
    for answered in (True, False):
        late = site.backend._plan.late
        over = late.sent(waiter.nonce)
        if answered:
            over()
        finish(site.backend.release("given back", waiter.nonce))
        assert bool(late._due) is not answered
    assert not late._doubted
    finish(site.backend.acquire(request))
    assert not late._doubted  # it was heard
    finish(site.backend.release("given back", waiter.nonce))
    assert len(late._due) == 1


def test_who_lets_go_has_the_next_free_connection(proxy, monkeypatch):
    """Behind those who want something it would keep the lock from all others for so long."""
    store = through(proxy, timeout=SOON * 4, connections=1)
    held = store.lock("first", wait=0, ttl=SOON * 4).acquire()
    link, order, threads, leases = store._site.backend._link, [], [], []
    ask = wire.ServerConnection.ask

    def noted(line, statement, given, *more, **named):
        if statement.startswith("lifehold_"):  # no renewal
            order.append((statement, given[0]))
        return ask(line, statement, given, *more, **named)

    def take(number):
        leases.append(store.lock(str(number), wait=0).acquire())

    def begin(work, line, length, *given):
        threads.append(threading.Thread(target=work, args=given))
        threads[-1].start()
        until(lambda: len(line()) == length)

    monkeypatch.setattr(wire.ServerConnection, "ask", noted)
    proxy.stalled.set()
    begin(take, lambda: order, 1, 0)
    for number in range(1, 4):
        begin(take, lambda: link._waiting, number, number)
    begin(held.release, lambda: link._first, 1)
    proxy.stalled.clear()
    for thread in threads:
        thread.join(SOON * 4)
    assert order[1] == ("lifehold_1_release", "first")
    assert [name for _, name in order] == ["0", "first", "1", "2", "3"]
    for lease in leases:
        lease.release()


def test_fifty_waiters_are_called_one_by_one_in_their_order(pg_server, direct):
    """The statements of a hand-over do not grow with the line: one release, one acquire."""
    held = direct.lock("line", wait=0).acquire()
    order, threads, count = [], [], 50

    def wait(number):
        with direct.lock("line", wait=SOON * 4):
            order.append(number)

    for number in range(count):
        threads.append(threading.Thread(target=wait, args=(number,)))
        threads[-1].start()
        until(lambda: direct.waiters("line") == number + 1)  # noqa: B023
    pg_server.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
    pg_server.execute("SELECT pg_stat_statements_reset()")
    held.release()
    for thread in threads:
        thread.join(SOON * 4)
    assert order == list(range(count))
    ours = "query LIKE '%lifehold_1_acquire%' OR query LIKE '%lifehold_1_release%'"
    asked = f"SELECT coalesce(sum(calls), 0) FROM pg_stat_statements WHERE {ours}"
    statements = int(pg_server.execute(asked)[0][0])
    # Two to a hand-over, and a few of those who looked by themselves meanwhile.
    assert statements <= 2 * count + 2 * count, statements


def test_a_waiter_without_a_bell_gets_it_all_the_same(proxy, direct):
    """The listening connection is cut, and cannot come back for a while."""
    store = through(proxy)
    held = direct.lock("deaf", wait=0).acquire()
    came = threading.Event()

    def wait():
        with store.lock("deaf", wait=SOON):
            came.set()

    thread = threading.Thread(target=wait)
    thread.start()
    until(lambda: direct.waiters("deaf") == 1)
    proxy.cut()
    held.release()
    thread.join(SOON)
    assert came.is_set()


HOLDER = """
import sys, time
from lifehold import LeaseLost, Lock
lease = Lock(sys.argv[1], wait=30, ttl=float(sys.argv[2])).acquire()
print(lease.token, flush=True)
for line in sys.stdin:
    try:
        lease.check()
        print("mine", flush=True)
    except LeaseLost as error:
        print("lost", flush=True)
"""


@pytest.fixture
def holder(pg_server):
    """Another process that holds a lease, and checks it whenever it is asked."""
    started = []

    def start(name, ttl):
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, f"{pg_server.url}#{name}", str(ttl)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        started.append(process)
        return process, int(process.stdout.readline())

    yield start
    for process in started:
        process.kill()
        process.wait(SOON)
        process.stdin.close()
        process.stdout.close()


def test_a_holder_that_was_paused_past_its_ttl_is_told_at_its_next_check(holder, direct):
    process, token = holder("paused", 1.0)
    os.kill(process.pid, signal.SIGSTOP)
    with direct.lock("paused", wait=SOON) as successor:
        assert successor.token > token
        os.kill(process.pid, signal.SIGCONT)
        process.stdin.write("check\n")
        process.stdin.flush()
        assert process.stdout.readline() == "lost\n"
        successor.verify()


def test_a_holder_that_is_killed_is_followed_when_its_ttl_is_over(holder, direct):
    process, token = holder("killed", 1.0)
    process.kill()
    with direct.lock("killed", wait=SOON) as successor:
        assert successor.token > token


@pytest.fixture(scope="module")
def rough():
    """A server that may be hurt."""
    from servers import postgres

    with postgres.started() as server:
        yield server


def test_a_request_that_comes_behind_its_undoing_is_undone_again(proxy, direct, monkeypatch):
    """It was on its way on a connection that was given up; nobody is left who knows of it."""
    monkeypatch.setattr(backend, "AGAIN", (0.3,) * 400)
    name, store = "late", through(proxy, connections=1, timeout=1)
    store.inspect(name)
    late = store._site.backend._plan.late
    proxy.hold()
    with pytest.raises((StoreUnavailable, NotAcquired)):
        store.lock(name, wait=0, ttl=3600).acquire()
    until(lambda: late._due)  # it was given back, and that was confirmed
    assert not any(each.holders or each.waiters for each in direct.states(name))
    proxy.deliver()
    until(lambda: direct.states(name) and direct.states(name)[0].token)  # it has come
    until(lambda: not any(each.holders or each.waiters for each in direct.states(name)))
    with direct.lock(name, wait=0):
        pass


def test_who_goes_while_its_request_is_on_its_way_has_it_undone_again(proxy, direct, monkeypatch):
    monkeypatch.setattr(backend, "AGAIN", (0.3,) * 400)

    async def main():
        store = await aconnect(through(proxy, connections=1).url, connections=1, timeout=20)
        await store.inspect("gone")
        late = store._site.backend._plan.late
        proxy.hold()
        task = asyncio.create_task(store.lock("gone", wait=0, ttl=3600).acquire())
        await asyncio.to_thread(until, lambda: proxy.kept)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return late

    late = asyncio.run(main())
    until(lambda: late._due)
    proxy.deliver()
    until(lambda: direct.states("gone") and direct.states("gone")[0].token)
    until(lambda: not direct.states("gone")[0].holders)


def test_a_lease_outlives_a_crash_of_the_server(rough):
    store = connect(rough.url, timeout=5)
    lease = store.lock("crash", wait=0, ttl=60).acquire()
    rough.kill()
    with pytest.raises(StoreUnavailable):
        store.inspect("crash")
    lease.check()  # its deadline has not come: suspended is not lost
    rough.start()
    lease.verify()
    with pytest.raises(NotAcquired):
        store.lock("crash", wait=0).acquire()
    lease.release()
    with store.lock("crash", wait=0) as after:
        assert after.token > lease.token


def test_waiters_outlive_a_restart_of_the_server(rough):
    store = connect(rough.url, timeout=5)
    held = store.lock("restart", wait=0, ttl=60).acquire()
    came = threading.Event()

    def wait():
        with store.lock("restart", wait=SOON):
            came.set()

    thread = threading.Thread(target=wait)
    thread.start()
    until(lambda: store.waiters("restart") == 1)
    rough.stop()
    rough.start()
    until(lambda: tried(held.release))
    thread.join(SOON)
    assert came.is_set()


def test_a_server_that_is_paused_costs_the_lease_at_its_deadline_and_not_before(rough):
    store = connect(rough.url, timeout=0.5)
    lease = at_last(store.lock("stopped", wait=SOON, ttl=2.0).acquire)
    rough.pause()
    try:
        until(lambda: not lease.held)
        with pytest.raises(LeaseLost):
            lease.check()
    finally:
        rough.resume()
    with pytest.raises(LeaseLost):
        at_last(lease.release)
    with at_last(store.lock("stopped", wait=SOON).acquire) as after:
        assert after.token > lease.token
        at_last(after.verify)


def test_a_connection_that_has_become_silent_costs_no_lease(proxy):
    """As a router does that forgot it: the server answers on every new one."""
    with through(proxy, ttl=6.0).lock("silent") as lease:
        until(lambda: lease.renewals > 0)
        before = lease.renewals
        proxy.hold()
        until(lambda: lease.renewals > before + 1 or lease.lost.is_set())
        lease.check()
        proxy.deliver()


def test_a_migration_gives_up_a_server_that_falls_silent_and_is_undone(proxy, pg_url, monkeypatch):
    base = pg_url.rpartition("/")[2]
    url = f"postgresql://lifehold@127.0.0.1:{proxy.port}/{base}?sslmode=disable"
    trust = PostgresUrl.trust

    async def silent(*given):
        found = await trust(*given)
        proxy.stalled.set()
        return found

    monkeypatch.setattr(PostgresUrl, "trust", silent)
    monkeypatch.setattr(upkeep, "MIGRATION_LIMIT", 0.5)
    monkeypatch.setattr(upkeep, "LIMIT", 0.5)
    assert isinstance(ended(lambda: upkeep.migrate(url)), Unreachable)
    proxy.cut()
    proxy.stalled.clear()
    monkeypatch.undo()
    assert upkeep.migrate(pg_url).before == 0
    assert upkeep.migrate(pg_url).before == upkeep.VERSION
