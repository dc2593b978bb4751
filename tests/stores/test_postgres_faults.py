"""Leases in PostgreSQL when answers are lost, the server is paused or killed, the network cut.

Judged by what is true at the end: nobody in twice, nothing held that no one has in hand, and
everybody told.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from ground import needs
from lifehold import LeaseLost, LifeholdError, NotAcquired, StoreUnavailable, connect
from servers.proxy import Proxy

pytestmark = needs("postgres")
SOON = 30.0  # seconds that any of this may take on a busy machine


def until(what, within=SOON):
    end = time.monotonic() + within
    while not what():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.005)


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


def test_whichever_answer_is_lost_nothing_is_leaked_and_nobody_is_in_twice(proxy, direct):
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
    lease = store.lock("silent", wait=0, ttl=60).acquire()
    proxy.stalled.set()
    with pytest.raises(StoreUnavailable, match="no answer"):
        lease.verify()
    proxy.stalled.clear()
    lease.verify()
    lease.release()
    assert direct.inspect("silent") is None


def test_all_connections_in_use_is_said_so(proxy):
    store = through(proxy, timeout=0.6, connections=1)
    store.inspect("pool")
    proxy.stalled.set()
    errors = []

    def ask():
        try:
            store.inspect("pool")
        except StoreUnavailable as error:
            errors.append(str(error))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON)
    proxy.stalled.clear()
    assert any("connections were in use" in error for error in errors), errors


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


def tried(act):
    try:
        act()
    except StoreUnavailable:
        return False
    except LifeholdError:
        return True
    return True


def test_a_server_that_is_paused_costs_the_lease_at_its_deadline_and_not_before(rough):
    store = connect(rough.url, timeout=0.5)
    lease = store.lock("stopped", wait=0, ttl=2.0).acquire()
    rough.pause()
    try:
        until(lambda: not lease.held)
        with pytest.raises(LeaseLost):
            lease.check()
    finally:
        rough.resume()
    with pytest.raises(LeaseLost):
        lease.release()
    with store.lock("stopped", wait=SOON) as after:
        assert after.token > lease.token
