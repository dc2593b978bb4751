"""Code of the program that a lock calls: whatever it does, the locks of the process live on."""

from __future__ import annotations

import functools
import queue
import threading

import pytest

from lifehold import InvalidArgument, LeaseLost, Lock, connect
from lifehold.core import events
from lifehold.runtime.loss import LostSignal
from lifehold.store.engine import StoreLock

SOON = 120.0
TTL = 1.5

KINDS = {
    "soft": lambda path: Lock(path / "a", kind="soft", ttl=TTL),
    "memory": lambda path: connect(f"memory:///{path}").lock("a", ttl=TTL),
    "sqlite": lambda path: connect(f"sqlite:///{path}/locks.db").lock("a", ttl=TTL),
}


@pytest.fixture(params=KINDS)
def lock(request, tmp_path):
    return KINDS[request.param](tmp_path)


@pytest.fixture
def hear():
    """Listeners for the length of a test."""
    ends = []
    yield lambda listener: ends.append(events.subscribe(listener))
    for end in ends:
        end()


@pytest.fixture
def reported(monkeypatch):
    """What was raised where nobody could catch it."""
    found = []
    monkeypatch.setattr("sys.unraisablehook", lambda args: found.append(args.exc_type))
    monkeypatch.setattr("threading.excepthook", lambda args: found.append(args.exc_type))
    return found


@pytest.mark.parametrize("raised", [SystemExit, KeyboardInterrupt, ValueError])
def test_what_a_listener_raises_at_a_renewal_costs_no_lease(lock, raised, hear, reported):
    told = queue.Queue()

    def refuse(event):
        if isinstance(event, events.Renewed):
            raise raised

    hear(refuse)
    hear(told.put)
    with lock as lease:
        seen = [told.get(timeout=SOON)]
        while len(seen) < 4 and not isinstance(seen[-1], events.Lost):
            seen.append(told.get(timeout=SOON))
        lease.check()
    assert [type(event) for event in seen] == [events.Acquired, *[events.Renewed] * 3]
    assert set(reported) == {raised}


def test_an_interrupt_in_a_listener_reaches_the_program_in_its_own_thread(lock, hear):
    """A signal raises it wherever the main thread is, in a listener too."""

    def interrupted(event):
        if isinstance(event, events.Released):
            raise KeyboardInterrupt

    hear(interrupted)
    lease = lock.acquire()
    with pytest.raises(KeyboardInterrupt):
        lease.release()
    assert not lock.locked()


async def heard_by_task(event):
    """What nobody would await."""


def heard_in_pieces(event):
    yield


class Hearing:
    async def __call__(self, event):
        pass


@pytest.mark.parametrize(
    "later",
    [heard_by_task, functools.partial(heard_by_task), Hearing(), heard_in_pieces],
    ids=["function", "partial", "object", "generator"],
)
def test_a_listener_that_would_only_be_made_and_not_run_is_refused(later):
    before = events.listeners.copy()
    with pytest.raises(InvalidArgument, match="would never run"):
        events.subscribe(later)
    with pytest.raises(InvalidArgument, match="callable"):
        events.subscribe("print")
    assert events.listeners == before


class EqualListener:
    """Equal to any other, as a listener with values may be."""

    def __init__(self):
        self.told = 0

    def __eq__(self, other):
        return True

    __hash__ = None

    def __call__(self, event):
        self.told += 1


def test_who_ends_a_subscription_twice_ends_no_other():
    first, second = EqualListener(), EqualListener()
    end_first, end_same, end_second = map(events.subscribe, (first, first, second))
    try:
        end_second()
        end_first()
        end_first()
        events.tell(object())
        assert (first.told, second.told) == (1, 0)
    finally:
        end_same()
    events.tell(object())
    assert first.told == 1


def test_an_interrupt_in_a_callback_reaches_the_program_and_the_other_callbacks_are_called():
    lost, called = LostSignal(lambda: True), threading.Event()

    def interrupted():
        raise KeyboardInterrupt

    lost.add_callback(interrupted)
    lost.add_callback(called.set)
    with pytest.raises(KeyboardInterrupt):
        lost.set("it was broken")
    assert called.wait(SOON)


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_a_callback_that_takes_its_time_costs_no_other_lease_of_the_store(store, tmp_path, hear):
    store, told, ended = connect(f"{store}:///{tmp_path}/a", ttl=TTL), queue.Queue(), []
    first = store.lock("first").acquire()
    with store.lock("other") as other:

        def slow():
            while len(ended) < 3 and events.Lost not in ended:
                ended.append(type(told.get(timeout=SOON)))
            told.put(None)

        first.lost.add_callback(slow)
        hear(lambda event: told.put(event) if getattr(event, "nonce", "") == other.nonce else None)
        store.break_("first", "test")
        assert first.lost.wait(SOON)
        while told.get(timeout=SOON) is not None:
            pass
        other.check()
    assert ended == [events.Renewed] * 3
    with pytest.raises(LeaseLost):
        first.release()


def test_a_store_that_exits_in_the_middle_of_a_renewal_costs_no_lease(tmp_path, hear, monkeypatch):
    renew, failed, told = StoreLock.renew_many, [], queue.Queue()

    async def exits_once(many):
        if not failed:
            failed.append(1)
            raise SystemExit
        return await renew(many)

    monkeypatch.setattr(StoreLock, "renew_many", staticmethod(exits_once))
    hear(told.put)
    with connect(f"sqlite:///{tmp_path}/a", ttl=TTL).lock("a") as lease:
        seen = [type(told.get(timeout=SOON)) for _ in range(3)]
        lease.check()
    assert failed
    assert seen == [events.Acquired, events.Suspended, events.Renewed]
