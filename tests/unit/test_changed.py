"""`Runtime.changed`: waiting for what a path leads to, on every runtime."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading

import pytest

from lifehold.core.acquire import Ask, Cancel
from lifehold.runtime import clock, watch_table
from lifehold.runtime.blocking import BLOCKING, finish
from lifehold.runtime.change_wait import AGAIN, ARMED, PAUSES
from lifehold.runtime.eventloop import EVENT_LOOP
from lifehold.testing.clock import VirtualRuntime
from lifehold.testing.explore import Client, Model, explore

trio = pytest.importorskip("trio")
FACES = {
    "threads": (BLOCKING, finish),
    "asyncio": (EVENT_LOOP, asyncio.run),
    "trio": (EVENT_LOOP, lambda work: trio.run(lambda: work)),
}


def soon():
    return clock.now() + 120.0


@pytest.fixture(params=FACES)
def face(request):
    return FACES[request.param]


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "lock")


def there(path):
    return os.path.exists(path)


def create(path):
    with open(path, "w"):
        pass


def after(seconds, call, *arguments):
    timer = threading.Timer(seconds, call, arguments)
    timer.start()
    return timer


def test_the_first_call_arms_and_returns_at_once_and_the_next_sleeps_until_a_change(face, path):
    runtime, run = face
    ask, started = Ask("a"), clock.now()

    async def wait():
        await runtime.changed(ask, path, soon())
        armed = clock.now() - started
        timer = after(0.05, create, path)
        assert armed < 0.05 or timer.is_alive()
        while not there(path):
            await runtime.changed(ask, path, soon())
        ask.leave()

    run(wait())
    assert there(path)
    assert clock.now() - started < 60
    assert ask.place is None


def test_a_change_between_two_calls_is_told_by_the_second(face, path):
    runtime, run = face
    ask = Ask("a")

    async def wait():
        await runtime.changed(ask, path, soon())
        create(path)
        await runtime.changed(ask, path, soon())
        ask.leave()

    started = clock.now()
    run(wait())
    assert clock.now() - started < 60


def test_it_ends_at_its_instant_and_not_before(face, path):
    runtime, run = face
    ask = Ask("a")

    async def wait():
        until = clock.now() + 0.2
        while clock.now() < until:
            await runtime.changed(ask, path, until)
        ask.leave()
        return clock.now() - until

    assert 0 <= run(wait()) < 5


def test_where_events_do_not_reach_it_looks_now_and_then(face, path):
    runtime, run = face
    ask, looks = Ask("a"), []

    async def wait():
        while len(looks) < 4:
            await runtime.changed(ask, path, soon(), blind=True)
            looks.append(clock.now())
        ask.leave()

    run(wait())
    assert 0.02 < looks[-1] - looks[0] < 5


def test_what_is_told_before_it_is_so_is_looked_at_again(face, path):
    """The kernel tells of a close before the lock goes that was kept by it."""
    runtime, run = face
    ask, looks = Ask("a"), []

    async def wait():
        await runtime.changed(ask, path, soon())
        for _ in ARMED:
            await runtime.changed(ask, path, soon())
        until, idle = clock.now() + 0.2, 0
        while clock.now() < until:  # after that it sleeps, but for what the kernel tells late
            await runtime.changed(ask, path, until)
            idle += 1
        assert idle <= 3
        create(path)
        while len(looks) <= len(AGAIN):
            await runtime.changed(ask, path, soon())
            looks.append(clock.now())
        ask.leave()

    started = clock.now()
    run(wait())
    assert clock.now() - started < 60


def test_the_end_of_the_process_is_a_change(face, path):
    runtime, run = face
    ask = Ask("a")
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)

    async def wait():
        await runtime.changed(ask, path, soon(), pid=child.pid)
        child.kill()
        while child.poll() is None and clock.now() < soon():
            await runtime.changed(ask, path, soon(), pid=child.pid)
        ask.leave()

    started = clock.now()
    run(wait())
    child.stdin.close()
    child.wait()
    assert clock.now() - started < 60


def test_another_path_arms_anew(face, path):
    runtime, run = face
    ask = Ask("a")

    async def wait():
        await runtime.changed(ask, path, soon())
        first = ask.place
        await runtime.changed(ask, path + "2", soon())
        assert ask.place is not first
        create(path + "2")
        await runtime.changed(ask, path + "2", soon())
        ask.leave()

    started = clock.now()
    run(wait())
    assert clock.now() - started < 60


def test_cancel_ends_it(path):
    cancel = Cancel()
    ask = Ask("a", cancel=cancel)
    finish(BLOCKING.changed(ask, path, soon()))
    after(0.05, cancel.cancel)
    started = clock.now()
    while not ask.cancelled:
        finish(BLOCKING.changed(ask, path, soon()))
    ask.leave()
    assert clock.now() - started < 60


def test_a_cancelled_task_leaves(path):
    ask = Ask("a")

    async def wait():
        try:
            while True:
                await EVENT_LOOP.changed(ask, path, soon())
        finally:
            ask.leave()

    async def main():
        task = asyncio.create_task(wait())
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert ask.place is None


def test_on_the_clock_that_jumps_every_appointment_is_a_change(path):
    runtime, ask = VirtualRuntime(), Ask("a")
    runtime.after(3600, lambda: create(path))
    finish(runtime.changed(ask, path, runtime.now() + 1e6))
    while not os.path.exists(path):
        finish(runtime.changed(ask, path, runtime.now() + 1e6))
    assert runtime.now() == 1_003_600
    ask.leave()


# ---- the explorer's runtime: a file that is there while it is held ------------------------------


def bidding(*, arms_first, pid=None, path="/lock"):
    """A lock by O_EXCL whose waiter sleeps until the file changes. None of ours: a sample."""

    def program(actor):
        ask = Ask("lock")
        while True:
            if arms_first:
                finish(actor.runtime.changed(ask, "/lock", float("inf"), pid=pid))
            try:
                fd = actor.files.open("/lock", os.O_CREAT | os.O_EXCL, 0o600)
            except FileExistsError:
                if not arms_first:
                    actor.step("look_out", "/lock", pid)
                    actor.step("changed", ())
                    actor.step("look_away")
                continue
            actor.files.close(fd)
            break
        if arms_first:
            ask.leave()
        actor.enter()
        actor.leave()
        actor.files.unlink("/lock")

    return Client(program)


def test_the_explorer_finds_no_sleeper_beside_a_free_lock():
    clients = [bidding(arms_first=True), bidding(arms_first=True)]
    report = explore(*clients, crashes=0, model=Model())
    assert report.exhaustive
    assert not report.violations, report


def test_the_explorer_finds_who_looks_before_it_arms():
    clients = [bidding(arms_first=False), bidding(arms_first=False)]
    report = explore(*clients, crashes=0, model=Model())
    assert "STUCK" in str(report)


def test_a_waiter_without_events_looks_as_often_as_the_watching_thread(monkeypatch):
    monkeypatch.setattr(watch_table, "chance", lambda: 0.0)
    monkeypatch.setattr(PAUSES, "random", lambda: 0.0)
    folder, pauses = watch_table.WatchedFolder("/"), PAUSES.pauses()
    theirs = [folder.pause, *(folder.next_pause(changed=False) for _ in range(12))]
    assert [next(pauses) for _ in theirs] == theirs
