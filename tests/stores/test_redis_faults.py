"""Leases in Redis when answers are lost, the server is paused or killed, the network cut.

Judged by what is true at the end: nobody in twice, nothing held that no one has in hand, and
everybody told.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import threading

import pytest

from ground import needs
from lifehold import LeaseLost, NotAcquired, StoreUnavailable, aio, connect
from lifehold.core.backend import NoReply
from lifehold.runtime import clock, native
from lifehold.runtime.blocking import finish
from lifehold.store.redis import wire
from lifehold.store.redis.connect import RedisUrl
from patience import SOON, at_last, steadily, tried, until
from servers.proxy import Proxy, redis_replies

pytestmark = needs("redis")


@pytest.fixture
def proxy(redis_server):
    with Proxy(redis_server.port, redis_replies) as between:
        yield between


def through(proxy, **options):
    """A store of its own for each test: another port is another store."""
    return connect(f"redis://127.0.0.1:{proxy.port}/0", **options)


@pytest.fixture(scope="module")
def direct(redis_server):
    return connect(redis_server.unix_url)


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


async def aplay(store, direct, name):
    try:
        lease = await store.lock(name, wait=0, ttl=60).acquire()
    except (StoreUnavailable, NotAcquired):
        return
    with pytest.raises(NotAcquired):
        direct.lock(name, wait=0).acquire()
    for act in (lease.verify, lease.release):
        try:
            await act()
        except StoreUnavailable:
            pass


def test_whichever_answer_is_lost_a_task_leaks_nothing(proxy, direct):
    async def main():
        store = await aio.aconnect(f"redis://127.0.0.1:{proxy.port}/0")
        await aplay(store, direct, "task/0")
        for number in range(1, 7):
            proxy.lose(number)
            await aplay(store, direct, f"task/{number}")
            proxy.lose()
            assert direct.inspect(f"task/{number}") is None, f"leaked: reply {number}"

    asyncio.run(main())
    assert proxy.lost > 2


def test_a_request_that_is_cut_off_is_asked_again(proxy, direct):
    store = through(proxy)
    lease = store.lock("cut", wait=0).acquire()
    proxy.cut()
    lease.verify()
    proxy.cut()
    lease.release()
    assert direct.inspect("cut") is None


def test_a_server_behind_a_silent_network_is_given_up_in_time(proxy, direct):
    store = through(proxy, timeout=3)
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
    proxy.stalled.set()
    errors = []

    def ask():
        try:
            store.inspect("pool")
        except StoreUnavailable as error:
            errors.append(str(error))

    def crowd():  # four at once, unless the machine lets them begin one after the other
        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SOON)
        assert any("connections were in use" in error for error in errors), errors

    steadily(crowd, tries=9)
    proxy.stalled.clear()


def test_where_no_thread_is_to_be_had_nobody_listens_and_all_goes_on(redis_server, monkeypatch):
    """A thread that closes what is idle, and one that listens, are wanted here."""
    store = connect(redis_server.url, connections=3)  # a store of its own
    backend, wakeups = store._site.backend, store._site.wakeups

    def none(*_):
        raise RuntimeError("can't start new thread")

    me, pause = threading.get_ident(), clock.pause

    def not_here(seconds):
        """What such a thread would do in the caller. One of an earlier test may still do it."""
        return raised() if threading.get_ident() == me else pause(seconds)

    with monkeypatch.context() as patch:
        patch.setattr(native, "start_new_thread", none)
        patch.setattr(clock, "pause", not_here)
        patch.setattr(wakeups, "_hear", raised)
        store.inspect("nobody")
        assert not backend._link._watched
        assert wakeups.listen("me", print) == wakeups.channel
    assert "no" in wakeups.state
    assert not wakeups._runs
    wakeups.forget("me")
    store.inspect("nobody")
    assert backend._link._watched


class Late(Exception):
    """Of the handler of a signal."""


def signalled(number, handler, act):
    """`act()`, and `handler()` before line `number` of the pool's; whether there was one."""
    seen = 0

    def trace(frame, event, _):
        nonlocal seen
        code = frame.f_code
        if code.co_name == "_ask" or not isinstance(frame.f_locals.get("self"), wire.RedisPool):
            return None  # not each line of `_ask` is a point where a signal comes
        if event == "line":
            seen += 1
            if seen == number:
                handler()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    finally:
        sys.settrace(before)
    return seen >= number


def raised():
    raise Late


@pytest.mark.parametrize("warm", [True, False])
def test_the_handler_of_a_signal_that_raises_leaks_no_connection(redis_server, warm):
    store = connect(redis_server.url, connections=1)
    for number in range(1, 1000):
        if not warm:
            store._site.backend.close()
        store.inspect("nobody") if warm else None
        try:
            if not signalled(number, raised, lambda: store.inspect("nobody")):
                break
        except Late:
            pass
        store.inspect("nobody")  # else all connections are in use, for good
    assert number > 20
    assert len(store._site.backend._link._idle) <= 1


OPENING = {  # through whose hands a new connection goes
    wire.RedisPool._take.__code__,
    wire.RedisPool._opened.__code__,
    wire.RedisConnection.__init__.__code__,
    wire.Waits.call.__code__,
    wire.keep.__code__,
    RedisUrl.opened.__code__,
}


def interrupted(number, act):
    """`act()`, with an exception at step `number` of an opening; whether there was one."""
    seen = 0

    def trace(frame, event, _):
        nonlocal seen
        if frame.f_code not in OPENING:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            seen += 1
            if seen == number:
                raise Late
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    except Late:
        pass
    finally:
        sys.settrace(before)
    return seen >= number


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
def test_an_opening_that_is_interrupted_anywhere_leaves_no_socket(redis_server):
    store = connect(redis_server.unix_url, connections=1)
    store.inspect("nobody")
    site = store._site
    for number in itertools.count(1):
        site.backend.close()
        before = set(wire._all_open())
        if not interrupted(number, lambda: store.inspect("nobody")):
            break
        site.backend.close()
        assert set(wire._all_open()) <= before, f"step {number}"
    assert number > 100


@pytest.mark.parametrize("warm", [True, False])
def test_the_handler_of_a_signal_asks_the_same_store(redis_server, warm):
    store = connect(redis_server.url, connections=2)
    link, asked = store._site.backend._link, []

    def handler():
        asked.append(store.inspect("another"))

    for number in range(1, 1000):
        if not warm:
            store._site.backend.close()
        if not signalled(number, handler, lambda: store.inspect("nobody")):
            break
    assert len(asked) == number - 1 > 20
    assert not link._used
    lines = [line for _, line in link._idle]
    assert len(lines) == len(set(lines)) <= 2


def test_a_request_that_comes_behind_its_undoing_is_not_let_in(direct):
    """It was on its way on a connection that was given up."""
    site = direct._site
    lock = direct.lock("late", wait=0)._mechanism
    waiter = site.waiter()
    request = lock._request(waiter, wait=True)
    assert finish(site.backend.release("late", waiter.nonce)) is False
    finish(site.backend.acquire(request))
    assert direct.states("late") == () or not direct.states("late")[0].waiters
    assert direct.inspect("late") is None


def test_a_copy_of_a_request_that_comes_behind_the_release_is_not_let_in(proxy, direct):
    """Its answer was lost, it was asked again, held and released; then the first one arrives."""
    store = through(proxy)
    store.inspect("copy")
    site = store._site
    lock, waiter = store.lock("copy", wait=0)._mechanism, site.waiter()
    request = lock._request(waiter)
    proxy.lose(1)
    with pytest.raises(NoReply):
        finish(site.backend.acquire(request))
    finish(site.backend.acquire(request))
    assert finish(site.backend.release("copy", waiter.nonce)) is True
    finish(site.backend.acquire(request))  # the copy that was on its way
    assert direct.inspect("copy") is None


def commands(server, name):
    """How often the server was asked for a command."""
    found = server.call("INFO", "commandstats").get(f"cmdstat_{name}", {})
    return found.get("calls", 0)


def test_fifty_waiters_are_called_one_by_one_in_their_order(redis_server, direct):
    """The commands of a hand-over do not grow with the line: one release, at most one acquire."""
    held = direct.lock("line", wait=0).acquire()
    order, threads, count = [], [], 50

    def wait(number):
        with direct.lock("line", wait=SOON * 4):
            order.append(number)

    for number in range(count):
        threads.append(threading.Thread(target=wait, args=(number,)))
        threads[-1].start()
        until(lambda: direct.waiters("line") == number + 1)  # noqa: B023
    redis_server.call("CONFIG", "RESETSTAT")
    held.release()
    for thread in threads:
        thread.join(SOON * 4)
    assert order == list(range(count))
    asked, published = commands(redis_server, "evalsha"), commands(redis_server, "publish")
    # Two to a hand-over, and a few of those who looked by themselves meanwhile.
    assert asked <= 2 * count + 2 * count, asked
    assert published <= 2 * count, published


def test_a_waiter_who_hears_nothing_gets_it_all_the_same(proxy, direct):
    """The listening connection is cut."""
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
def holder(redis_server):
    """Another process that holds a lease, and checks it whenever it is asked."""
    started = []

    def start(name, ttl):
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, f"{redis_server.unix_url}#{name}", str(ttl)],
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


@pytest.fixture(scope="module")
def rough():
    """A server that may be hurt, and keeps what it has said yes to."""
    from servers import redis

    with redis.started(aof=True) as server:
        yield server


def test_a_lease_outlives_a_crash_of_the_server_that_writes_each_step(rough):
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


def test_a_server_that_forgets_all_gives_a_greater_token_all_the_same(redis_server):
    """By its clock: what it gave before it was restarted empty is smaller."""
    from servers import redis

    with redis.started() as server:
        store = connect(server.url, timeout=5)
        lease = store.lock("forgotten", wait=0, ttl=60).acquire()
        server.restart(empty=True)
        until(lambda: tried(lease.verify))
        with pytest.raises(LeaseLost):
            lease.release()
        with store.lock("forgotten", wait=0) as after:
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
    rough.restart()
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
