"""Leases in SQLite among real processes: killed, paused, forked, and woken by name."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time

import pytest

import lifehold
from ground import needs
from lifehold import connect
from lifehold.core.backend import Refused, Request
from lifehold.runtime import process
from lifehold.runtime.blocking import finish
from lifehold.testing.crash import Child, point

TTL = 60.0  # never passes in a test: whoever comes in sooner does so by proof or by bell


def hold(url, name="a", ttl=TTL):
    with connect(url).lock(name, ttl=ttl) as lease:
        point("held", lease.token)
        point("still", None)


def wait_for(url, name="a", ttl=TTL):
    point("asks", None)
    with connect(url).lock(name, ttl=ttl, wait=30) as lease:
        point("held", lease.token)


def url_of(tmp_path):
    return f"sqlite:///{tmp_path}/x.db"


def until_line(store, name, count):
    """Wait until so many stand in line."""
    end = time.monotonic() + 60
    while store.waiters(name) != count:
        assert time.monotonic() < end, f"{store.waiters(name)} in line, not {count}"
        time.sleep(0.005)


def test_processes_exclude_each_other_and_tokens_grow(tmp_path):
    url = url_of(tmp_path)
    with Child(hold, url) as child:
        first = child.at("held")
        with pytest.raises(lifehold.WouldBlock) as told:
            connect(url).lock("a", wait=0).acquire()
        assert told.value.holder.owner.pid == child.pid
        child.go()
        child.at("still")
        child.go()
        assert child.end().well
    with connect(url).lock("a") as lease:
        assert lease.token > first


def test_a_killed_holder_is_followed_before_its_ttl(tmp_path):
    url = url_of(tmp_path)
    with Child(hold, url) as child:
        first = child.at("held")
        child.kill()
    with connect(url).lock("a", wait=0) as lease:  # no wait at all: the death is proven
        assert lease.token > first


def test_the_death_of_the_holder_wakes_the_waiter(tmp_path):
    url = url_of(tmp_path)
    store = connect(url)
    with Child(hold, url) as holder, Child(wait_for, url) as waiter:
        holder.at("held")
        waiter.at("asks")
        waiter.go()
        until_line(store, "a", 1)
        holder.kill()
        assert waiter.at("held") > 0


def test_a_dead_waiter_is_skipped(tmp_path):
    url = url_of(tmp_path)
    store = connect(url)
    lease = store.lock("a", ttl=TTL).acquire()
    with Child(wait_for, url) as first, Child(wait_for, url) as second:
        for count, child in enumerate((first, second), 1):
            child.at("asks")
            child.go()
            until_line(store, "a", count)
        first.kill()
        lease.release()
        assert second.at("held") > lease.token


def test_when_holder_and_first_waiter_die_together_the_second_comes_in(tmp_path):
    url = url_of(tmp_path)
    store = connect(url)
    with Child(hold, url) as holder, Child(wait_for, url) as first, Child(wait_for, url) as second:
        token = holder.at("held")
        for count, child in enumerate((first, second), 1):
            child.at("asks")
            child.go()
            until_line(store, "a", count)
        os.kill(holder.pid, signal.SIGKILL)
        first.kill()
        holder.kill()
        assert second.at("held") > token


def test_a_paused_holder_is_followed_after_its_ttl_and_told(tmp_path):
    url = url_of(tmp_path)

    def late(url):
        lease = connect(url).lock("a", ttl=1.0).acquire()
        point("held", lease.token)
        try:
            lease.check()
        except lifehold.LeaseLost:
            return "told"
        return "not told"

    with Child(late, url) as child:
        first = child.at("held")
        child.stop()
        with connect(url).lock("a", wait=30, ttl=TTL) as lease:
            assert lease.token > first
            child.go()
            child.resume()
            assert child.end().value == "told"
            lease.check()


def test_a_forked_child_has_its_own_connection_and_no_lease(tmp_path):
    store = connect(url_of(tmp_path))
    lease = store.lock("a", ttl=TTL).acquire()

    def child(lease):
        try:
            lease.check()
        except lifehold.LifeholdError:
            pass
        else:
            return "the child believes in its parent's lease"
        with pytest.raises(lifehold.WouldBlock):
            store.lock("a", wait=0).acquire()
        with store.lock("b", ttl=TTL):
            return "well"

    with Child(child, lease) as forked:
        assert forked.end().value == "well"
    lease.check()
    lease.release()


def test_threads_of_many_processes_take_turns(tmp_path):
    url = url_of(tmp_path)
    counter = tmp_path / "counter"
    counter.write_text("0")

    def work(url):
        lock = [connect(url).lock("a", ttl=TTL) for _ in range(2)]

        def count(mine):
            for _ in range(15):
                with mine:
                    counter.write_text(str(int(counter.read_text()) + 1))

        threads = [threading.Thread(target=count, args=(mine,)) for mine in lock]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    with contextlib.ExitStack() as stack:
        children = [stack.enter_context(Child(work, url)) for _ in range(3)]
        for child in children:
            assert child.end().well
    assert counter.read_text() == "90"


def test_a_stopped_writer_makes_it_busy_and_the_error_says_so(tmp_path):
    url = f"{url_of(tmp_path)}?busy_timeout=0.2"
    store = connect(url)
    store.list()
    other = sqlite3.connect(tmp_path / "x.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(lifehold.StoreUnavailable, match=r"busy for 0\.2 s"):
        store.lock("a", wait=0).acquire()
    other.execute("ROLLBACK")
    other.close()
    with store.lock("a", wait=0):
        pass


def test_the_signal_of_a_killed_process_leaves_no_pipe_for_ever(tmp_path):
    url = url_of(tmp_path)
    store = connect(url)
    lease = store.lock("a", ttl=TTL).acquire()
    with Child(wait_for, url) as waiter:
        waiter.at("asks")
        waiter.go()
        until_line(store, "a", 1)
        os.kill(waiter.pid, signal.SIGKILL)
        waiter.kill()
    assert len(os.listdir(tmp_path / "x.db-bells")) == 1
    lease.release()  # calls the dead one
    assert os.listdir(tmp_path / "x.db-bells") == []
    assert store.waiters("a") == 0


def killed_at(number, store):
    """This process is killed before its statement of that number."""
    seen = []

    def trace(statement):
        seen.append(statement)
        if len(seen) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    store._site.backend.file.step(lambda _: None)  # opens it
    store._site.backend.file._db.set_trace_callback(trace)


def take_and_release(url, number, whole):
    site = connect(url)._site
    if whole:  # as where others come between: by transactions of several statements
        site.take_free = site.leave_free = site.backend.take_free = lambda *_: None
        site.backend.leave_free = lambda *_: False
    killed_at(number, connect(url))
    lease = connect(url).lock("a", ttl=TTL, wait=0).acquire()
    token = lease.token
    lease.release()
    return token


def stand_in_line(url, number):
    killed_at(number, connect(url))
    with connect(url).lock("a", ttl=TTL, wait=30) as lease:
        return lease.token


def ends_killed(function, *args):
    """Whether it was killed; what it returned, if it was not."""
    with Child(function, *args) as child:
        end = child.end()
    assert end.signal == signal.SIGKILL or end.well, end.error
    return end.signal == signal.SIGKILL, end.value


@pytest.mark.parametrize("whole", [False, True])
def test_killed_before_each_statement_nothing_stays_held(tmp_path, whole):
    url, last, kills = url_of(tmp_path), 0, 0
    for number in range(1, 40):
        killed, token = ends_killed(take_and_release, url, number, whole)
        with connect(url).lock("a", ttl=TTL, wait=0) as lease:
            assert lease.token > max(last, token or 0)
            last = lease.token
        kills += killed
        if not killed:
            break
    assert (8 if whole else 3) <= kills < 38


def ended(pid):
    how = os.WEXITED | os.WNOHANG | os.WNOWAIT
    return os.waitid(os.P_PID, pid, how) is not None


def test_a_waiter_killed_before_each_statement_is_skipped(tmp_path):
    url, kills = url_of(tmp_path), 0
    store = connect(url)
    for number in range(1, 40):
        with store.lock("a", ttl=TTL, wait=0), Child(stand_in_line, url, number) as child:
            end = time.monotonic() + 60
            while not (dead := ended(child.pid)) and not (stands := store.waiters("a")):
                assert time.monotonic() < end
                time.sleep(0.002)
            kills += dead
            child.kill()  # in line, if it came so far
        with store.lock("a", ttl=TTL, wait=0):
            assert store.waiters("a") == 0
        if not dead and stands:
            break
    assert 8 <= kills < 38


C_FORK = """
import ctypes, json, os, sys
from lifehold import connect

store = connect(sys.argv[1])
lease = store.lock("a", ttl=60).acquire()
pid = ctypes.PyDLL(None).fork()  # none of Python's hooks is called
if not pid:
    try:
        store.lock("b", wait=0).acquire()
    except Exception as error:
        print(type(error).__name__, error, flush=True)
    sys.exit(0)  # with all that a program does at its end
os.waitpid(pid, 0)
lease.verify()
with store.lock("b", wait=0):
    print("the parent goes on")
print(store.inspect("a").token == lease.token)
lease.release()
"""


@needs("linux", "fork")
def test_a_child_that_c_code_has_forked_is_told_and_its_parent_goes_on(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", C_FORK, url_of(tmp_path)], capture_output=True, text=True,
        timeout=150, check=False,
    )  # fmt: skip
    told, *rest = done.stdout.splitlines()
    assert told.startswith("StoreUnavailable")
    assert "forked" in told
    assert rest == ["the parent goes on", "True"], done.stderr


def test_who_is_woken_by_a_death_comes_in_with_its_next_request(tmp_path):
    """It was seen alive a moment before: that counts no more."""
    url, rung, nonce = url_of(tmp_path), threading.Event(), "1" * 16
    with Child(hold, url) as holder:
        token = holder.at("held")
        backend = connect(url)._site.backend
        wakeup = backend.listen(nonce, rung.set)
        request = Request("a", nonce, TTL, process.here(), wait=True, wakeup=wakeup)
        assert isinstance(finish(backend.acquire(request)), Refused)
        holder.kill()
        assert rung.wait(90)
        given = finish(backend.acquire(request))
        backend.forget(nonce)
    assert given.token > token
    assert finish(backend.release("a", nonce))
    backend.close()


@pytest.mark.parametrize("removed", [["-shm"], ["-wal"], ["-wal", "-shm"]])
def test_who_is_parted_from_the_others_is_refused_and_loses_its_lease(tmp_path, removed):
    """L1  Whoever comes next makes both anew: nothing of the first is seen there, for good."""
    url, path = url_of(tmp_path), tmp_path / "x.db"
    store = connect(url)
    with Child(wait_for, url, "a") as child:
        child.at("asks")  # a fork closes the file, so it comes before that is opened
        lease = store.lock("a", ttl=TTL).acquire()
        short = store.lock("c", ttl=1).acquire()
        for end in removed:
            os.unlink(f"{path}{end}")
        for ask in (
            lease.verify,
            lambda: store.lock("d", wait=0).acquire(),
            lambda: store.read_write("d").acquire_read(wait=0),
            lambda: store.inspect("a"),
            lambda: store.prune(60),
        ):
            with pytest.raises(lifehold.StoreUnavailable, match="removed while it was open"):
                ask()
        assert short.lost.wait(60)
        anew = len(removed) == 2
        if anew:
            child.go()
            child.at("held")
        store.close()  # all that this process has open there: it begins anew among the others
        if anew:
            assert store.inspect("a").owner.pid == child.pid
            with pytest.raises(lifehold.LeaseLost):
                lease.verify()
        else:
            lease.verify()
        for each in (lease, short):
            with contextlib.suppress(lifehold.LeaseLost):
                each.release()
        child.kill()


def test_who_comes_and_goes_parts_nobody(tmp_path):
    """The last one to close the file removes its -shm, and the next one makes another."""
    url = url_of(tmp_path)
    store = connect(url)
    for _ in range(3):
        with store.lock("a", ttl=TTL, wait=0) as lease, Child(hold, url, "b") as child:
            child.at("held")
            child.go()
            child.at("still")
            child.go()
            assert child.end().well
            lease.verify()
            assert store.inspect("a")
        store.close()
        assert not os.path.exists(tmp_path / "x.db-shm")
        with Child(hold, url, "b") as child:
            child.at("held")
            with store.lock("a", wait=0):
                store.list()
            child.kill()
