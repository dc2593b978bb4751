"""Many who wait for the same: what is looked at is counted, and not how long it takes."""

from __future__ import annotations

import asyncio
import os
import threading
from types import SimpleNamespace

import pytest

from lifehold import AsyncLock, Cancel, Lock, NotAcquired
from lifehold import lock as face
from lifehold.core import acquire, events
from lifehold.core.acquire import Ask
from lifehold.local import proc_locks
from lifehold.runtime import change_wait, clock, fork, holder_for_notices
from lifehold.runtime.blocking import BLOCKING, finish
from lifehold.runtime.eventloop import EVENT_LOOP


@pytest.fixture(autouse=True)
def no_looks():
    holder_for_notices._looks.clear()
    yield
    holder_for_notices._looks.clear()


@pytest.fixture
def hasty(monkeypatch):
    """The first notice is due at once, and no second one."""
    monkeypatch.setattr(acquire, "FIRST_NOTICE", 0.2)
    monkeypatch.setattr(face, "FIRST_NOTICE", 0.2)
    monkeypatch.setattr(acquire, "SOON", 0.05)
    monkeypatch.setattr(holder_for_notices, "AT_ONCE", 3600)
    monkeypatch.setattr(holder_for_notices, "FRESH", 3600)


def until(claim, within=60.0):
    end = clock.now() + within
    while not claim():
        assert clock.now() < end
        clock.pause(0.005)


def counted(monkeypatch, module, name):
    """The calls of a function from now on."""
    calls, real = [], getattr(module, name)

    def call(*given):
        calls.append(given)
        return real(*given)

    monkeypatch.setattr(module, name, call)
    return calls


def told_of(number, path, kind="kernel"):
    """What so many waiting threads are told, when all of them have been."""
    told = []
    unsubscribe = events.subscribe(
        lambda event: isinstance(event, events.Waiting) and told.append(event)
    )
    cancel = Cancel()

    def wait():
        with pytest.raises(NotAcquired):
            Lock(path, cancel=cancel, kind=kind).acquire()

    threads = [threading.Thread(target=wait) for _ in range(number)]
    for thread in threads:
        thread.start()
    until(lambda: len(told) >= number)
    before = told.copy()
    cancel.cancel()
    for thread in threads:
        thread.join()
    unsubscribe()
    return before


@pytest.mark.parametrize("kind", ["kernel", "soft"])
def test_what_is_read_for_a_notice_does_not_grow_with_those_who_wait(
    tmp_path, monkeypatch, hasty, kind
):
    cost = {}
    for number in 3, 40:
        path = str(tmp_path / f"{number}.lock")
        with monkeypatch.context() as patch, Lock(path, kind=kind):
            listed = counted(patch, proc_locks.OpenFileScan, "_list")
            read = counted(patch, proc_locks, "_read")
            told = told_of(number, path, kind)
            asked = [event for event in told if event.holder is not None]
            # The notice and the refusals; of 40 looks it were at least 40 and 120.
            cost[number] = len(listed) <= 20, len(read) <= 60
            assert len(asked) == len(told), "each is told who holds it"
            assert {event.holder.owner.pid for event in told} == {os.getpid()}
    assert cost == {3: (True, True), 40: (True, True)}


def test_one_line_is_written_for_all_who_wait_with_their_number(tmp_path, capsys, hasty, caplog):
    path = str(tmp_path / "lock")
    with Lock(path):
        told_of(30, path)
    lines = [record for record in caplog.records if record.name == "lifehold"]
    assert len(lines) == 1
    assert "29 other waits of this process are for it too" in lines[0].getMessage()
    assert lines[0].beside == 29


def test_other_names_have_lines_of_their_own(tmp_path, hasty, caplog):
    for name in "a", "b":
        with Lock(tmp_path / name):
            told_of(3, str(tmp_path / name))
    assert len([record for record in caplog.records if record.name == "lifehold"]) == 2


class Looked:
    """A lock whose look takes as long as is wanted."""

    path, exclusive = "x", True

    def __init__(self):
        self.count = 0
        self.begun, self.goes_on = threading.Event(), threading.Event()

    def inspect(self, *, held=False):
        self.count += 1
        self.begun.set()
        assert self.goes_on.wait(90)
        return SimpleNamespace(number=self.count)


def test_who_comes_while_another_looks_is_not_kept_from_its_place():
    lock = Looked()
    first = threading.Thread(target=lambda: finish(holder_for_notices.shared(BLOCKING, lock)))
    first.start()
    lock.begun.wait(90)
    for _ in range(20):
        assert finish(holder_for_notices.shared(BLOCKING, lock)) is None
    lock.goes_on.set()
    first.join()
    assert finish(holder_for_notices.shared(BLOCKING, lock))[0].number == 1
    assert lock.count == 1


def test_a_look_that_hangs_leaves_nobody_untold(monkeypatch):
    lock = Looked()
    first = threading.Thread(target=lambda: finish(holder_for_notices.shared(BLOCKING, lock)))
    first.start()
    lock.begun.wait(90)
    monkeypatch.setattr(holder_for_notices, "HANGS", -1.0)
    assert finish(holder_for_notices.shared(BLOCKING, lock)) == (None, None)
    lock.goes_on.set()
    first.join()


def test_who_gives_up_takes_the_look_of_another_who_does_so():
    lock = Looked()
    first = threading.Thread(target=lambda: holder_for_notices.now(lock))
    first.start()
    lock.begun.wait(90)
    found = []
    others = [
        threading.Thread(target=lambda: found.append(holder_for_notices.now(lock)))
        for _ in range(5)
    ]
    for each in others:
        each.start()
    lock.goes_on.set()
    for each in (first, *others):
        each.join()
    assert lock.count == 1
    assert {answer[0].number for answer in found} == {1}


def test_an_event_loop_does_not_stand_still_for_the_look_of_another(monkeypatch):
    monkeypatch.setattr(holder_for_notices, "FRESH", 3600)
    holder_for_notices._looks[holder_for_notices.key_of(lock := Looked())] = (
        holder_for_notices._SharedLook()
    )  # it never ends
    lock.goes_on.set()

    async def give_up():
        return holder_for_notices.now(lock)

    assert asyncio.run(give_up())[0].number == 1


def test_a_cancelled_look_is_made_by_the_next_who_asks():
    lock = Looked()

    async def both():
        looking = asyncio.create_task(holder_for_notices.shared(EVENT_LOOP, lock))
        await asyncio.to_thread(lock.begun.wait, 30)
        assert await holder_for_notices.shared(EVENT_LOOP, lock) is None
        looking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await looking
        lock.goes_on.set()
        assert (await holder_for_notices.shared(EVENT_LOOP, lock))[0].number == 2

    asyncio.run(both())


def test_a_look_that_fails_is_made_by_the_next_who_asks():
    lock = Looked()
    lock.goes_on.set()
    lock.waiters = lambda: 1 // (lock.count - 1)
    with pytest.raises(ZeroDivisionError):
        finish(holder_for_notices.shared(BLOCKING, lock))
    assert finish(holder_for_notices.shared(BLOCKING, lock))[1] == 1


def test_a_look_is_for_those_alone_who_may_see_the_same(monkeypatch):
    lock = Looked()
    lock.goes_on.set()
    finish(holder_for_notices.shared(BLOCKING, lock))
    monkeypatch.setattr(holder_for_notices.os, "geteuid", lambda: 12345)
    finish(holder_for_notices.shared(BLOCKING, lock))
    monkeypatch.setattr(holder_for_notices, "_namespace", lambda kind: 7)
    finish(holder_for_notices.shared(BLOCKING, lock))
    assert lock.count == 3


def test_a_forked_child_begins_with_no_look():
    lock = Looked()
    lock.goes_on.set()
    finish(holder_for_notices.shared(BLOCKING, lock))
    child = os.fork()
    if child == 0:
        finish(holder_for_notices.shared(BLOCKING, lock))
        os._exit(lock.count)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2


# ---- the line of those whom an event wakes


@pytest.mark.parametrize("face", ["threads", "tasks"])
def test_passing_a_soft_lock_on_costs_each_grant_the_same(tmp_path, monkeypatch, face):
    path = str(tmp_path / "lock")
    number = 40
    first = Lock(path, kind="soft").acquire()
    mechanism = type(Lock(path, kind="soft")._mechanism)
    tries = counted(monkeypatch, mechanism, "_try")
    done = []

    def waits():
        return sum(len(line.members) for line in change_wait._lines.values())

    def let_go():
        until(lambda: waits() == number)
        clock.pause(0.7)  # they have looked a few times more
        tries.clear()
        first.release()

    releasing = threading.Thread(target=let_go)
    releasing.start()
    if face == "threads":

        def work():
            with Lock(path, kind="soft"):
                done.append(1)

        threads = [threading.Thread(target=work) for _ in range(number)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    else:

        async def task():
            async with AsyncLock(path, kind="soft"):
                done.append(1)

        async def tasks():
            await asyncio.gather(*(task() for _ in range(number)))

        asyncio.run(tasks())
    releasing.join()
    assert len(done) == number
    # A herd is number * number / 2. Some look by themselves after two seconds of a busy machine.
    assert len(tries) <= 12 * number
    assert not change_wait._lines


def armed(ask, path, alike="x"):
    ask.alike = alike
    finish(BLOCKING.changed(ask, path, clock.now() + 30))
    return ask.place


def test_who_leaves_wakes_the_next_and_the_last_ends_the_watch(tmp_path):
    path = str(tmp_path / "a")
    asks = [Ask("a") for _ in range(3)]
    places = [armed(ask, path) for ask in asks]
    assert len(change_wait._lines) == 1
    line = places[0]._line
    assert not any(place.rung for place in places)
    asks[0].leave()
    assert [place.rung for place in places[1:]] == [True, False]
    asks[2].leave()
    asks[2].leave()
    asks[1].leave()
    assert not change_wait._lines
    assert line.watch.closed


def test_the_next_is_woken_when_the_first_does_not_come(tmp_path):
    path = str(tmp_path / "a")
    asks = [Ask("a") for _ in range(3)]
    places = [armed(ask, path) for ask in asks]
    (tmp_path / "a").touch()
    until(lambda: all(place.rung for place in places))  # a tenth of a second each
    for ask in asks:
        ask.leave()


def test_those_who_look_for_different_things_are_all_woken(tmp_path):
    path = str(tmp_path / "a")
    asks = [Ask("a") for _ in range(3)]
    places = [armed(ask, path, alike) for ask, alike in zip(asks, ["x", "y", None], strict=True)]
    assert len(change_wait._lines) == 3
    (tmp_path / "a").touch()
    until(lambda: all(place.rung for place in places))
    for ask in asks:
        ask.leave()


def test_a_forked_child_stands_in_no_line_of_its_parent(tmp_path):
    ask = Ask("a")
    place = armed(ask, str(tmp_path / "a"))
    child = os.fork()
    if child == 0:
        ask.leave()
        os._exit(len(change_wait._lines) + place.ours)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert place.ours
    assert fork.here() == place._generation
    ask.leave()
