"""kind="session" when answers are lost, the network is silent, the server is stopped or killed.

Judged by what the server says at the end, and by what the holder was told.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading

import pytest

from ground import needs
from lifehold import LeaseLost, NotAcquired, StoreUnavailable, connect
from lifehold.runtime import clock
from lifehold.store.postgres.session import SessionLock
from lifehold.store.postgres.session_server import Sessions
from patience import SOON, at_last, ended, tried, until
from servers.proxy import Proxy

pytestmark = needs("postgres")
HELD = """SELECT pid FROM pg_locks JOIN pg_database d ON d.oid = database
    WHERE locktype = 'advisory' AND d.datname = current_database()"""


@pytest.fixture
def proxy(pg_server):
    with Proxy(pg_server.port) as between:
        yield between


@pytest.fixture
def through(proxy, pg_url):
    """A store of the test's own database, behind the proxy."""

    def make(**options):
        base = pg_url.rpartition("/")[2]
        host = f"lifehold@127.0.0.1:{proxy.port}"
        return connect(f"postgresql://{host}/{base}?sslmode=disable&gssencmode=disable", **options)

    return make


@pytest.fixture
def ask(pg_server, pg_url):
    return lambda text: pg_server.execute(text, pg_url.rpartition("/")[2])


def session(store, name, **options):
    return store.lock(name, kind="session", **options)


def test_to_acquire_and_to_release_is_one_round_trip_each(proxy, through):
    lock = session(through(), "trips", wait=0)
    with lock:
        pass
    before = proxy.replies
    lease = lock.acquire()
    assert proxy.replies == before + 1
    lease.check()
    assert proxy.replies == before + 1
    lease.verify()
    assert proxy.replies == before + 2
    lease.release()
    assert proxy.replies == before + 3


@pytest.mark.parametrize("comes", ["at once", "behind a waiter's line"])
def test_an_answer_that_took_the_whole_lease_is_asked_for_again_first(pg_url, monkeypatch, comes):
    """The server answers in its time; whoever is let in by that has a lease that lasts."""
    store, answers = connect(pg_url), []
    exchange, terms = SessionLock.exchange, {"ttl": 2.0, "heartbeat": 0.6, "margin": 0.2}

    async def late(lock, runtime, own, text):
        found = await exchange(lock, runtime, own, text)
        if "pg_locks" in text or comes == "at once":
            answers.append(found)
            if len(answers) == 1:
                clock.pause(terms["ttl"])  # until that answer has come
        return found

    holder = session(store, "late").acquire() if comes != "at once" else None
    monkeypatch.setattr(SessionLock, "exchange", late)
    got = []
    thread = threading.Thread(
        target=lambda: got.append(session(store, "late", **terms).acquire(SOON))
    )
    thread.start()
    if holder is not None:
        until(lambda: store.waiters("late") == 1)
        clock.pause(terms["heartbeat"])  # its place in the line has become old
        holder.release()
    thread.join(SOON)
    (lease,) = got
    lease.check()
    assert len(answers) >= 2
    lease.release()


def test_whichever_answer_is_lost_nothing_is_left_and_nobody_is_in_twice(
    proxy, through, pg_url, ask
):
    direct, told = connect(pg_url), []
    direct.list()  # makes the tables
    for number in range(1, 9):
        store = through(connections=number)  # a store of its own, with no session yet
        lost = proxy.lost
        proxy.lose(number)
        told.append(play(store, direct))
        until(lambda: not ask(HELD))
        assert proxy.lost == lost + 1
        proxy.lose()
    # Five to open a session; then to acquire, which is asked again; to verify; to release.
    no = "StoreUnavailable"
    assert told == [no, no, no, no, no, "done", "LeaseLost", no]


def play(store, direct):
    """One program, with a rival beside it: how it ended."""
    try:
        lease = session(store, "lost", wait=0).acquire()
        with pytest.raises(NotAcquired):  # never two in
            session(direct, "lost", wait=0).acquire()
        try:
            lease.verify()
        finally:
            lease.release()
    except (StoreUnavailable, LeaseLost) as error:
        return type(error).__name__
    return "done"


def test_an_order_to_break_whose_answer_is_lost_is_not_given_twice(proxy, through, pg_url, ask):
    lease = session(connect(pg_url), "order", wait=0, ttl=3600).acquire()
    with waiting(pg_url, "order") as came:
        breaking = session(through(), "order")
        breaking.holder()  # opens the session that is asked
        proxy.lose(2)  # the first tells who holds it
        with pytest.raises(StoreUnavailable, match="may have been carried out") as error:
            breaking.break_("it hangs")
        assert proxy.lost == 1
        assert error.value.name == "order"
        until(lambda: came)
        came[0].verify()
        came[0].release()
    with pytest.raises(LeaseLost):
        lease.release()


@contextlib.contextmanager
def waiting(url, name):
    """A session that waits for the lock, and what it gets."""
    store, came = connect(url, connections=2), []
    lock = session(store, name, wait=4 * SOON, ttl=3600)
    thread = threading.Thread(target=lambda: came.append(lock.acquire()))
    thread.start()
    until(lambda: store.waiters(name) == 1)
    yield came
    thread.join(4 * SOON)


@pytest.mark.parametrize("same", [False, True], ids=["another session", "the same session"])
def test_an_order_to_break_that_comes_late_ends_nobody_who_came_since(pg_url, monkeypatch, same):
    store, lock = connect(pg_url), session(connect(pg_url), "late order", wait=0, ttl=3600)
    first, later, breaking = lock.acquire(), [], session(store, "late order")
    look = breaking._mechanism.look

    def looked():
        found = look()
        if not later:
            process = first._grant.handle[0].session
            first.release()
            if not same:
                process.end("its program has ended")
            later.append(lock.acquire())
            assert (later[0]._grant.handle[0].session is process) == same
        return found

    monkeypatch.setattr(breaking._mechanism, "look", looked)
    assert breaking.break_("it hangs") is None
    later[0].verify()
    later[0].release()


def test_the_note_of_an_order_is_written_once_whatever_becomes_of_its_answer(proxy, through, ask):
    mechanism = session(through(), "note")._mechanism
    with session(through(), "note", wait=0):
        holder = mechanism.inspect()
        proxy.lose(1)
        mechanism._note(holder, "it hangs")
    assert proxy.lost == 1
    assert ask("SELECT count(*) FROM lifehold_audit WHERE name = 'note'") == [(1,)]


def test_a_holder_whose_connection_is_cut_is_told_at_once(proxy, through, ask):
    lease = session(through(), "cut", wait=0, ttl=3600).acquire()
    told = threading.Event()
    lease.lost.add_callback(told.set)
    proxy.cut()
    assert told.wait(SOON)
    with pytest.raises(LeaseLost):
        lease.release()
    until(lambda: not ask(HELD))


def test_a_session_that_ends_while_its_lock_is_let_go_of_is_told(pg_url, ask):
    lease, told = session(connect(pg_url), "late end", wait=0, ttl=3600).acquire(), []
    wire = lease._grant.handle[0].session

    def let_go():
        with pytest.raises(LeaseLost, match="administrator command") as caught:
            lease.release()
        told.append(caught.value)

    os.kill(wire.pid, signal.SIGSTOP)  # the server's process does not read what it is asked
    thread = threading.Thread(target=let_go)
    thread.start()
    until(lambda: wire.asked is not None)
    ask(f"SELECT pg_terminate_backend({wire.pid})")
    os.kill(wire.pid, signal.SIGCONT)
    thread.join(SOON)
    assert told
    until(lambda: not ask(HELD))


def test_a_holder_on_a_silent_network_is_told_at_its_deadline_and_not_before(proxy, through, ask):
    lease = at_last(session(through(timeout=0.5), "silent", wait=SOON, ttl=6.0).acquire)
    told = threading.Event()
    lease.lost.add_callback(told.set)
    proxy.stalled.set()
    lease.check()
    with pytest.raises(StoreUnavailable):
        lease.verify()
    lease.check()  # suspended is not lost
    assert told.wait(SOON)
    assert lease.remaining() == 0.0
    with pytest.raises(LeaseLost):
        lease.check()
    assert ask(HELD)  # the server has not given it up yet
    proxy.stalled.clear()
    until(lambda: not ask(HELD))  # closed when its ttl was over, whoever has it in hand
    with pytest.raises(LeaseLost):
        lease.release()


def test_a_server_that_falls_silent_while_a_table_is_made_is_given_up(proxy, through, monkeypatch):
    made = Sessions._make_table

    def silent(*given):
        proxy.stalled.set()
        return made(*given)

    monkeypatch.setattr(Sessions, "_make_table", silent)
    lock = session(through(timeout=0.5, create=True), "no table", wait=0, ttl=6.0)
    assert isinstance(ended(lock.try_acquire), StoreUnavailable)


def test_a_server_that_does_not_greet_is_given_up_after_the_timeout_of_the_store():
    with socket.create_server(("127.0.0.1", 0)) as mute:
        url = f"postgresql://a@127.0.0.1:{mute.getsockname()[1]}/b?connect_timeout=1000"
        lock = session(connect(url, timeout=0.5), "mute", wait=0)
        assert isinstance(ended(lock.try_acquire), StoreUnavailable)


def test_a_short_silence_costs_nothing(proxy, through):
    store = through(timeout=0.3)
    lease = at_last(session(store, "short silence", wait=SOON, ttl=600, heartbeat=0.2).acquire)
    proxy.stalled.set()
    with pytest.raises(StoreUnavailable):
        lease.verify()
    proxy.stalled.clear()
    until(lambda: lease.renewals)
    at_last(lease.verify)
    until(lambda: tried(lease.release))


@pytest.mark.parametrize("ttl", [12, 86400, 30 * 86400])
def test_the_server_is_told_to_give_up_a_silent_peer_after_the_ttl_and_not_before(through, ttl):
    with session(through(), "settings", wait=0, ttl=ttl) as lease:
        wire = lease._grant.handle[0].session
        names = ("tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count",
                 "tcp_user_timeout", "statement_timeout")  # fmt: skip
        shown = ", ".join(f"(SELECT setting FROM pg_settings WHERE name = '{n}')" for n in names)
        asked = wire.ask(f"SELECT {shown}")
        until(lambda: asked.over)
        idle, pause, count, user_timeout, limit = map(int, asked.rows[0])
        ours = wire.connection.info.get_parameters()
        assert lease.remaining() < user_timeout / 1000  # L8
    assert idle + pause * count >= user_timeout / 1000
    assert user_timeout == min(ttl * 1000, 2147483000)  # an int of 32 bits
    assert limit == 0
    assert ours["tcp_user_timeout"] == str(user_timeout)


def test_a_ttl_of_a_month_is_had_by_a_local_socket_too(pg_server, pg_url):
    base = pg_url.rpartition("/")[2]
    store = connect(f"postgresql://lifehold@/{base}?host={pg_server.home}&port={pg_server.port}")
    with session(store, "month", wait=0, ttl=30 * 86400) as lease:
        lease.verify()


# ---- a server that may be hurt


@pytest.fixture(scope="module")
def rough():
    from servers import postgres

    with postgres.started() as server:
        yield server


def test_a_server_that_crashes_lets_go_and_the_holder_is_told(rough):
    store = connect(rough.url, timeout=5)
    lease = session(store, "crash", wait=0, ttl=3600).acquire()
    told = threading.Event()
    lease.lost.add_callback(told.set)
    rough.kill()
    assert told.wait(SOON)
    with pytest.raises(StoreUnavailable):
        session(store, "crash", wait=0).acquire()
    rough.start()
    with session(store, "crash", wait=SOON) as after:
        assert after.token > lease.token
    with pytest.raises(LeaseLost):
        lease.release()


def test_who_waits_outlives_a_restart_of_the_server(rough):
    store = connect(rough.url, timeout=5)
    held = session(store, "restart", wait=0).acquire()
    came = []

    def wait():
        with session(store, "restart", wait=4 * SOON) as lease:
            came.append(lease.token)

    thread = threading.Thread(target=wait)
    thread.start()
    until(lambda: store.waiters("restart") == 1)
    rough.stop()
    rough.start()
    thread.join(4 * SOON)
    assert came
    assert came[0] > held.token
    with pytest.raises(LeaseLost):
        held.release()


def test_a_server_that_is_stopped_costs_the_lock_at_its_deadline_and_not_before(rough):
    store = connect(rough.url, timeout=0.5)
    lease = at_last(session(store, "stopped", wait=SOON, ttl=6.0).acquire)
    rough.pause()
    try:
        lease.check()
        until(lambda: not lease.held)
        with pytest.raises(LeaseLost):
            lease.check()
    finally:
        rough.resume()
    with pytest.raises(LeaseLost):
        lease.release()
    with session(connect(rough.url), "stopped", wait=SOON) as after:
        assert after.token > lease.token


def test_a_replica_is_refused(rough, tmp_path):
    copy = rough.standby(rough.home / "copy")
    try:
        with pytest.raises(StoreUnavailable, match=r"only reads|a replica"):
            session(connect(copy.url), "x", wait=0).acquire()
    finally:
        copy.stop()
