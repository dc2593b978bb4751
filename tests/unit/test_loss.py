"""A loss finds who waits for it: nobody has to ask, and who does not ask pays nothing."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import time
import warnings

import pytest

from bell import no_sweep
from lifehold import AsyncLock, Lock
from lifehold.core import events
from lifehold.core.errors import LeaseLost
from lifehold.runtime import loss, watch_thread
from lifehold.testing.stage import heard
from patience import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs inotify")


@pytest.fixture(autouse=True)
def own(monkeypatch):
    """Watches of these tests alone, and no look that comes to the loss before its event does."""
    mine = watch_thread.WatchThread()
    monkeypatch.setattr(watch_thread, "near", mine)
    monkeypatch.setattr(loss, "SLOW", 600.0)
    no_sweep(monkeypatch)
    yield
    mine.stop()
    mine.give_back()


def watched():
    """The folders in which anything is watched; one that nobody watches any more may be left."""
    return [path for path, folder in watch_thread.near.folders.items() if folder.names]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "build.lock"


def replace(path):
    other = path.with_name("other")
    other.write_text("")
    other.rename(path)


LOSSES = {
    "unlinked": lambda path: path.unlink(),
    "renamed": lambda path: path.rename(path.with_name("aside")),
    "replaced": replace,
    "its folder moved": lambda path: path.parent.rename(path.parent.with_name("moved")),
}


@pytest.mark.parametrize("how", LOSSES)
def test_a_callback_is_called_when_the_file_is_lost_and_nobody_asks(tmp_path, how):
    (tmp_path / "folder").mkdir()
    path = tmp_path / "folder" / "lock"
    called = threading.Event()
    with heard() as told:
        lease = Lock(path).acquire()
        lease.lost.add_callback(called.set)
        LOSSES[how](path)
        assert called.wait(60), "not told by an event"
        with pytest.raises(LeaseLost):
            lease.release()
    losses = [event for event in told if isinstance(event, events.Lost)]
    assert [event.nonce for event in losses] == [lease.nonce]


def test_a_wait_ends_by_the_event_of_the_loss(path):
    lease = Lock(path).acquire()
    waiter = threading.Thread(target=lease.lost.wait)
    waiter.start()
    until(watched)
    path.unlink()
    waiter.join(60)
    assert not waiter.is_alive()
    with pytest.raises(LeaseLost):
        lease.release()


def asyncio_run(work):
    return asyncio.run(work())


def trio_run(work):
    return pytest.importorskip("trio").run(work)


@pytest.mark.parametrize("run", [asyncio_run, trio_run])
def test_tasks_await_the_loss(path, run):
    async def main():
        lease = await AsyncLock(path).acquire()
        assert not await lease.lost.wait(0.01)
        threading.Timer(0.05, path.unlink).start()
        assert await lease.lost.wait(60)
        with pytest.raises(LeaseLost):
            await lease.release()

    run(main)


def test_a_cancelled_wait_for_the_loss_watches_no_longer(path):
    async def main():
        async with AsyncLock(path) as lease:
            task = asyncio.create_task(lease.lost.wait())
            while not watched():  # noqa: ASYNC110 - a thread of its own begins it
                await asyncio.sleep(0.001)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert not watched()
            lease.check()

    asyncio.run(main())


def test_the_watch_ends_with_the_lease(path):
    with Lock(path) as lease:
        lease.lost.add_callback(lambda: None)
        assert watched()
    assert not watched()
    lease.lost.add_callback(lambda: None)  # too late: nothing can be lost any more
    assert not lease.lost.wait(5)
    assert not watched()


def test_a_lease_that_is_dropped_is_freed_though_it_is_watched(path):
    Lock(path).acquire().lost.add_callback(lambda: None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
    Lock(path).acquire(0).release()
    assert not watched()


def test_a_slow_callback_holds_up_nobody_else(path, tmp_path):
    let, called, waits = threading.Event(), threading.Event(), threading.Event()
    first, second = Lock(path).acquire(), Lock(tmp_path / "second").acquire()
    first.lost.add_callback(lambda: (waits.set(), let.wait(120)))
    second.lost.add_callback(called.set)
    path.unlink()
    until(waits.is_set)
    (tmp_path / "second").unlink()
    assert called.wait(60)
    let.set()
    for lease in (first, second):
        with pytest.raises(LeaseLost):
            lease.release()


def test_records_that_others_write_in_the_folder_wake_nobody(path, tmp_path):
    with Lock(path) as lease:
        lease.lost.add_callback(lambda: None)
        looks = []
        lease.lost._check = lambda: looks.append(1)
        for _ in range(50):
            Lock(tmp_path / "busy").acquire().release()
        time.sleep(0.1)
        assert not looks


def test_a_forked_child_that_waits_for_its_parents_loss_is_told_no_at_once(path):
    with Lock(path) as lease:
        lease.lost.add_callback(lambda: None)
        child = os.fork()
        if child == 0:
            os._exit(0 if lease.lost.wait(60) is False else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        called = threading.Event()
        lease.lost.add_callback(called.set)
        path.rename(path.with_name("aside"))
        assert called.wait(60), "the child has taken the parent's watch away"
        path.with_name("aside").rename(path)
        lease.lost.reason = None  # only so that this block can end


UNASKED = """
import sys
from lifehold import Lock
with Lock(sys.argv[1]) as lease:
    lease.check()
    assert not lease.lost.is_set()
watching = [name for name in sys.modules if name.startswith("lifehold.runtime.")]
print(sorted(set(watching) & {"lifehold.runtime." + name for name in sys.argv[2:]}))
print(len(sys._current_frames()))
"""


def test_who_does_not_ask_pays_nothing(path):
    rooms = ["watch_thread", "watch_table", "change_wait"]
    command = [sys.executable, "-c", UNASKED, str(path), *rooms]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "[]\n1\n"


PAIR = """
import sys
from lifehold import Lock
lock, called = Lock(sys.argv[1]), []
lock.acquire().release()
def profile(frame, event, _):
    if event == "call":
        called.append(frame.f_code.co_filename.rpartition("/")[2])
sys.setprofile(profile)
lock.acquire().release()
sys.setprofile(None)
print(*called)
"""


def test_an_uncontended_acquire_and_release_never_come_here(path):
    """In a process of its own: who listens to events makes a pair longer."""
    command = [sys.executable, "-c", PAIR, str(path)]
    called = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert 0 < len(called) <= 14  # the whole pair, whatever is loaded late
    assert not {"loss.py", "watch_thread.py", "watch_table.py", "change_wait.py"} & set(called)


MASK = """
import signal, sys, threading
from lifehold import LeaseLost, Lock, connect, events
masks, done = set(), threading.Event()
path, how = sys.argv[1:]
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
def look(_=None):
    masks.add(frozenset(signal.pthread_sigmask(signal.SIG_BLOCK, ())))
def last():
    look()
    done.set()
events.subscribe(look)
if how in ("memory", "sqlite"):
    store = connect(f"{how}:///{path}-store", ttl=1.5)
    lock = store.lock("a")
else:
    lock = Lock(path, kind="soft", ttl=1.5) if how == "soft" else Lock(path)
    lock = Lock(path, max_hold=0.1) if how == "max_hold" else lock
lease = lock.acquire()
lease.lost.add_callback(last)
if how in ("memory", "sqlite"):
    store.break_("a", "test")
elif how != "max_hold":
    __import__("os").unlink(path)
assert done.wait(60)
assert masks == {frozenset({signal.SIGUSR2})}, masks
try:
    lease.release()
except LeaseLost:
    pass
"""


@pytest.mark.parametrize("how", ["kernel", "soft", "max_hold", "memory", "sqlite"])
def test_a_callback_and_a_listener_have_the_signal_mask_of_the_program(path, how):
    command = [sys.executable, "-c", MASK, str(path), how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_look_for_a_loss_starts_no_watch(path):
    with Lock(path) as lease:
        assert not lease.lost.wait(0)
        assert not watched()
