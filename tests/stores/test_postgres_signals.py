"""The handler of a signal asks the same PostgreSQL, wherever it has interrupted its thread."""

from __future__ import annotations

import asyncio
import sys
import threading
import time

import pytest

from ground import needs
from lifehold import Timeout, connect
from lifehold.aio import aconnect
from lifehold.runtime import native
from lifehold.store import listening
from lifehold.store.postgres import wire

pytestmark = needs("postgres")
LONG = 120.0  # seconds after which what hangs is called hung


def signalled(number, handler, act, watched):
    """`act()`, and `handler()` before line `number` of the objects' methods; whether it was run."""
    seen = 0

    def trace(frame, event, _):
        nonlocal seen
        if frame.f_code.co_name == "ask" or not isinstance(frame.f_locals.get("self"), watched):
            return None  # not each line of `ask` is a point where a signal comes
        if event == "line":
            seen += 1
            if seen == number:
                sys.settrace(None)
                handler()
                sys.settrace(trace)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    finally:
        sys.settrace(before)
    return seen >= number


def ends(work):
    """`work()` in a thread of its own, which has come to its end; what it raised is raised."""
    raised = []

    def run():
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(LONG)
    assert not thread.is_alive(), "it waits for itself"
    for error in raised:
        raise error


@pytest.mark.parametrize("warm", [True, False])
def test_the_handler_asks_in_the_middle_of_a_request(pg_url, warm):
    store = connect(pg_url, connections=2, create=True)
    link, asked = store._site.backend._link, []

    def handler():
        with store.lock("another", wait=0) as lease:
            asked.append(lease.token)

    def work():
        for number in range(1, 1000):
            if not warm:
                store.close()
            if not signalled(number, handler, lambda: store.inspect("nobody"), wire.ConnectionPool):
                break
        assert len(asked) == number - 1 > 15

    ends(work)
    assert not link._waiting
    assert len(link._lines) == len(link._idle) <= 2
    store.close()


def test_the_handler_closes_the_store_of_the_event_loop_that_it_interrupts(pg_url):
    def work():
        async def main():
            store = await aconnect(pg_url, connections=2)
            await store.inspect("x")
            for number in range(1, 1000):
                came = []

                def once(came=came):
                    came.append(store._site.close())

                tracer = Tracer(number, once)
                sys.settrace(tracer.trace)
                try:
                    await store.inspect("x")
                finally:
                    sys.settrace(None)
                if not came:
                    return number
            return 0

        assert asyncio.run(main()) > 10

    connect(pg_url, create=True).inspect("x")
    ends(work)


class Tracer:
    """Calls before one line of the pool, counted by itself."""

    def __init__(self, number, call):
        self.left, self.call = number, call

    def trace(self, frame, event, _):
        if not isinstance(frame.f_locals.get("self"), wire.ConnectionPool):
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                self.call()
        return self.trace


def test_the_handler_waits_while_its_thread_begins_to_wait(pg_url):
    store = connect(pg_url, create=True)
    with store.lock("held", wait=0):
        wakeups = store._site.wakeups

        def handler():
            wakeups.listen("of the handler", print)
            wakeups.forget("of the handler")

        def act():
            wakeups.listen("of the thread", print)
            wakeups.forget("of the thread")

        def work():
            for number in range(1, 100):
                if not signalled(number, handler, act, listening.ListeningThread):
                    break
            assert number > 8

        ends(work)


class Late(Exception):
    """Of the handler of a signal."""


def test_a_handler_that_raises_just_then_does_not_keep_the_others_from_being_called(
    pg_url, monkeypatch
):
    """Else nobody would listen any more, and all would look by the clock for good."""
    store = connect(pg_url, create=True)
    store.inspect("x")
    wakeups, began = store._site.wakeups, []
    monkeypatch.setattr(wakeups, "_keep", lambda: began.append(1))

    def raised():
        raise Late

    def act():
        wakeups.listen("me", print)

    for number in range(1, 100):
        wakeups._runs = False
        began.clear()
        try:
            more = signalled(number, raised, act, listening.ListeningThread)
        except Late:
            more = True
        act()
        end = time.monotonic() + LONG
        while not began:
            assert time.monotonic() < end, "nobody listens"
            time.sleep(0.001)
        if not more:
            break
    assert number > 5


def test_without_a_thread_to_listen_in_who_waits_looks_by_itself(pg_url, monkeypatch):
    """The caller does not become the thread that listens until nobody waits, himself included."""
    store = connect(pg_url, create=True, connections=3)
    began = []

    def none(*_):
        began.append(1)
        raise RuntimeError("can't start new thread")

    def work():
        with pytest.raises(Timeout):
            store.lock("x", wait=0.3).acquire()

    with store.lock("x", wait=0, ttl=600), monkeypatch.context() as patch:
        patch.setattr(native, "start_new_thread", none)
        ends(work)
    assert began
    assert "can't start new thread" in store._site.wakeups.state
    assert not store._site.wakeups._runs


def test_words_of_others_on_our_channel_do_not_cut_off_who_listens(pg_server):
    store = connect(f"{pg_server.url}?application_name=words", create=True)
    with store.lock("words", wait=0):
        wakeups, rung = store._site.wakeups, []
        wakeups.listen("me", lambda *_: rung.append(1))
        end = time.monotonic() + LONG
        while not rung:  # all are, when somebody begins to listen
            assert time.monotonic() < end
            time.sleep(0.001)
        key = wakeups._listener
        rung.clear()
        for words in ("a b", "a b c d e f", "me"):
            pg_server.execute(f"NOTIFY {wakeups.channel}, '{words}'")
        while not rung:
            assert time.monotonic() < end
            time.sleep(0.001)
        assert wakeups._listener == key
        wakeups.forget("me")


class Closed:
    """An event loop that has ended; another thread makes a store of its own meanwhile."""

    def __init__(self, known):
        self.known = known

    def is_closed(self):
        self.known[object()] = None, None
        self.known.pop(self, None)
        return True


def test_the_loops_of_several_threads_end_and_begin_at_once(pg_url):
    async def main():
        store = await aconnect(pg_url, connections=3)
        loops = store._site.swift.__self__
        loops._known = {}
        loops._known[Closed(loops._known)] = None, None
        loops._known[Closed(loops._known)] = None, None
        try:
            await store.inspect("x")
        finally:
            loops._known = {loop: one for loop, one in loops._known.items() if one[1]}

    connect(pg_url, create=True).inspect("x")
    asyncio.run(main())
