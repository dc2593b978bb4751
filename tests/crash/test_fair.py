"""fair=True among real processes: nobody who stands in line is passed, held up, or forgotten."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import mmap
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from crash.scene import Section, free, hold, raised, threads, until
from ground import needs
from lifehold import (
    AsyncLock,
    Cancel,
    InvalidArgument,
    Lock,
    ReadWriteLock,
    SystemRefused,
    Timeout,
    UnsafeGround,
    WouldBlock,
)
from lifehold.local import kernel
from lifehold.local.handles import TABLE
from lifehold.runtime import flock_wait
from lifehold.testing.crash import Child, point
from patience import steadily

pytestmark = needs("linux")


@pytest.fixture
def path(tmp_path):
    yield str(tmp_path / "lock")
    TABLE.close_idle()


@pytest.fixture
def start():
    """Children that are killed and reaped at the end."""
    with contextlib.ExitStack() as stack:
        yield lambda *work: stack.enter_context(Child(*work))


def in_line(path):
    """How many stand in line, as three looks in a row have it."""
    looks = [places(path)]
    while len(looks) < 3:
        looks.append(places(path))
        if looks[-1] != looks[-2]:  # the table was read while somebody was on his way
            looks = looks[-1:]
    return len(looks[0])


def places(path):
    """The places taken: bytes locked one by one, far behind the end of the file."""
    inode = str(os.stat(path).st_ino)
    lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    found = [line for line in lines if line[1] == "OFDLCK" and line[5].split(":")[2] == inode]
    # A set: while the table changes, a line may be read twice. The first in line has all from the
    # first byte to his own, each of the others his byte.
    return {line[7] for line in found if int(line[6]) >= 1 << 62}


def turn(path, number, how="blocking", wait=30, log=None, **options):
    """Wait for the lock, and note in the order of entry who came."""
    point("ready")
    me = f"{number}\n"

    async def task():
        async with AsyncLock(path, fair=True, wait=wait, **options):
            note(log, me)

    if how == "task":
        asyncio.run(task())
        return
    with Lock(path, fair=True, wait=wait, **options):
        note(log, me)


def note(log, line):
    fd = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, line.encode())
    os.close(fd)
    time.sleep(0.002)


def queue_up(path, children):
    """Let the children come one after the other, each when the one before stands in line."""
    for child in children:
        before = in_line(path)
        child.at("ready")
        child.go()
        until(lambda before=before: in_line(path) > before, words="it stands in line")


def order(log):
    return [int(line) for line in Path(log).read_text().split()]


def test_processes_threads_and_tasks_are_served_in_the_order_they_came(path, tmp_path, start):
    log = str(tmp_path / "log")
    kinds = ["blocking", "task", "blocking", "task", "blocking", "blocking"]
    with Lock(path, fair=True):
        children = [start(turn, path, n, how, 300, log) for n, how in enumerate(kinds)]
        queue_up(path, children[:3])
        before = in_line(path)
        mine = threading.Thread(target=turn, args=(path, 10, "blocking", 300, log))
        mine.start()
        until(lambda: in_line(path) > before)
        queue_up(path, children[3:])
    for child in children:
        assert child.end().well, child.end().error
    mine.join(60)
    assert order(log) == [0, 1, 2, 10, 3, 4, 5]
    assert in_line(path) == 0


def test_a_holder_that_comes_back_at_once_stands_behind_those_who_wait(path, tmp_path):
    log = str(tmp_path / "log")
    lock = Lock(path, fair=True)
    lease = lock.acquire()
    with Child(turn, path, 1, "blocking", 300, log) as child:
        queue_up(path, [child])
        for _ in range(200):
            with pytest.raises(WouldBlock):
                lock.acquire(0)
        lease.release()
        with lock:
            note(log, "2\n")
        assert child.end().well
    assert order(log) == [1, 2]


def test_who_dies_or_gives_up_in_line_lets_the_others_move_up_in_order(path, tmp_path, start):
    log = str(tmp_path / "log")
    cancel = Cancel()
    with Lock(path, fair=True):
        children = [start(turn, path, n, "blocking", 300, log) for n in range(6)]
        queue_up(path, children[:3])
        mine = threading.Thread(
            target=raised, args=(turn, path, 10), kwargs={"log": log, "cancel": cancel}
        )
        mine.start()
        until(lambda: in_line(path) == 4)
        queue_up(path, children[3:])
        children[0].kill()  # it asks for the lock
        children[4].kill()  # it stands in the middle
        cancel.cancel()
        mine.join(60)
    for number in (1, 2, 3, 5):
        assert children[number].end().well, children[number].end().error
    assert order(log) == [1, 2, 3, 5]
    assert in_line(path) == 0
    assert free(path)


def test_a_wait_in_line_ends_at_its_deadline_with_no_place_left(path):
    with Lock(path, fair=True):
        before = threads()
        for wait in (0.05, 0.003, 0.0005):
            began = time.monotonic()
            assert isinstance(raised(Lock(path, fair=True).acquire, wait), Timeout)
            assert wait <= time.monotonic() - began < 30
        asyncio.run(too_late(path))
        until(lambda: threads() <= before)
        assert in_line(path) == 0
    Lock(path, fair=True).acquire(0).release()


async def too_late(path):
    with pytest.raises(Timeout):
        await AsyncLock(path, fair=True).acquire(0.02)
    task = asyncio.ensure_future(AsyncLock(path, fair=True).acquire())
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def heard(path, number, log):
    signal.signal(signal.SIGUSR1, lambda *_: None)
    turn(path, number, log=log)


def test_a_signal_or_a_notice_costs_a_fair_waiter_no_place(path, tmp_path, monkeypatch, start):
    log = str(tmp_path / "log")
    monkeypatch.setattr("lifehold.core.acquire.FIRST_NOTICE", 0.05)
    with Lock(path, fair=True):
        children = [start(heard, path, n, log) for n in range(4)]
        queue_up(path, children)
        for child in children[:2]:
            child.signal(signal.SIGUSR1)
        time.sleep(0.12)  # more than one notice
        children[0].signal(signal.SIGUSR1)
    for child in children:
        assert child.end().well, child.end().error
    assert order(log) == [0, 1, 2, 3]


def read(path):
    ReadWriteLock(path).acquire_read()


def test_a_stopped_reader_in_line_is_named_and_not_the_writer_that_was_in(path, start):
    with ReadWriteLock(path).writing():
        child = start(read, path)
        until(lambda: in_line(path) == 1)
        child.stop()
    for wait in (0, 0.05):
        error = raised(ReadWriteLock(path).acquire_write, wait)
        assert isinstance(error, Timeout if wait else WouldBlock)
        assert error.holder.owner is None
        assert "nobody holds it now" in str(error)
        assert f"kill -CONT {child.pid}" in str(error)
    assert free(path)


def test_a_stopped_waiter_keeps_its_place_until_it_goes_on_or_dies(path, tmp_path, start):
    log = str(tmp_path / "log")
    with Lock(path, fair=True):
        children = [start(turn, path, n, "blocking", 300, log) for n in range(3)]
        queue_up(path, children)
        children[0].stop()
        children[1].stop()
    error = raised(Lock(path, fair=True).acquire, 0)
    assert isinstance(error, WouldBlock)
    assert "others asked for it before and stand in line" in str(error)
    assert error.holder.owner is None  # not the last holder, who is named in the file
    assert "nobody holds it now" in str(error)
    assert isinstance(raised(Lock(path, fair=True).acquire, 0.05), Timeout)
    assert free(path)
    Lock(path).acquire(0).release()  # who does not stand in line is not held up
    children[0].kill()
    children[1].resume()
    for number in (1, 2):
        assert children[number].end().well, children[number].end().error
    assert order(log) == [1, 2]


def test_readers_do_not_pass_a_writer_and_share_among_themselves(path, tmp_path):
    first = Lock(path, fair=True, exclusive=False).acquire(0)
    with Lock(path, fair=True, exclusive=False, wait=0):  # nobody waits: they share
        pass
    log = str(tmp_path / "log")
    with Child(turn, path, 1, "blocking", 300, log) as writer:
        queue_up(path, [writer])
        with pytest.raises(WouldBlock):
            Lock(path, fair=True, exclusive=False).acquire(0)
        first.release()
        assert writer.end().well
    both = [Lock(path, fair=True, exclusive=False).acquire(0) for _ in range(2)]
    for lease in both:
        lease.release()


def fork_in_line(path):
    waiter = threading.Thread(target=lambda: Lock(path, fair=True).acquire(), daemon=True)
    waiter.start()
    until(lambda: in_line(path))
    child = os.fork()
    if not child:
        signal.alarm(20)
        time.sleep(20)
        os._exit(0)
    point("forked", child)


def test_a_child_of_one_who_stands_in_line_has_no_place_in_it(path):
    with Child(hold, path) as holder:
        holder.at("held")
        with Child(fork_in_line, path) as parent:
            orphan = parent.at("forked")
            parent.kill()
            until(lambda: in_line(path) == 0, words="the place is gone, though the child lives")
        holder.at("released")
        Lock(path, fair=True).acquire(60).release()
        os.kill(orphan, signal.SIGKILL)


def contend(folder, number, fair_one, end):
    section = Section(folder)
    entered = 0
    while time.monotonic() < end:
        with Lock(f"{folder}/lock", fair=fair_one) as lease:
            section(number, lease.token)
            entered += 1
    return entered


def test_fair_and_unfair_askers_exclude_each_other(tmp_path, start):
    end = time.monotonic() + 1.5
    children = [start(contend, str(tmp_path), n, n % 2 == 0, end) for n in range(6)]
    counts = []
    for child in children:
        ended = child.end()
        assert ended.well, ended.error
        counts.append(ended.value)
    section = Section(tmp_path)
    assert section.overlaps == 0
    assert section.tokens_grow()
    assert min(counts) > 0, counts


def busy(path, number, shared):
    """Its turns in a span of time that begins when all have had one; `shared`: begin, end, turns."""
    lock, turns = Lock(path, fair=True), 0
    while not shared[1] or time.monotonic() < shared[1]:
        with lock:
            shared[2 + number] += 1
            turns += bool(shared[1]) and time.monotonic() >= shared[0]
            time.sleep(0.002)
    return turns


def test_eight_processes_have_equal_shares(path, start):
    def judge():
        counts = []
        shared = memoryview(mmap.mmap(-1, 80)).cast("d")
        children = [start(busy, path, number, shared) for number in range(8)]
        until(lambda: all(shared[2:]), words="each has had a turn")
        shared[0] = time.monotonic()
        shared[1] = shared[0] + 2.0
        for child in children:
            ended = child.end()
            if not ended.well:
                pytest.fail(ended.error)
            counts.append(ended.value)
        print(counts)
        assert max(counts) <= 1.5 * min(counts) + 2, counts

    steadily(judge)


# ---- other tools, and where it cannot be -------------------------------------------------------


def test_who_locks_the_whole_file_by_fcntl_stands_in_line_like_a_waiter(path):
    Lock(path).acquire().release()
    with Child(lock_all_bytes, path) as other:
        other.at("locked")
        with pytest.raises(WouldBlock):
            Lock(path, fair=True).acquire(0)
        began = time.monotonic()
        with pytest.raises(Timeout):
            Lock(path, fair=True).acquire(0.05)
        assert time.monotonic() - began < 30
        Lock(path).acquire(0).release()  # flock(2) itself knows nothing of it
        other.at("unlocked")
        Lock(path, fair=True).acquire(60).release()


def lock_all_bytes(path):
    fd = os.open(path, os.O_RDWR)
    fcntl.lockf(fd, fcntl.LOCK_EX)
    point("locked")
    fcntl.lockf(fd, fcntl.LOCK_UN)
    point("unlocked")


def test_flock_by_others_is_waited_for_by_the_first_in_line(path):
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(fd, fcntl.LOCK_EX)
    with pytest.raises(Timeout):
        Lock(path, fair=True).acquire(0.02)
    thread = threading.Timer(0.05, fcntl.flock, (fd, fcntl.LOCK_UN))
    thread.start()
    Lock(path, fair=True).acquire(60).release()
    thread.join()
    os.close(fd)


def test_a_file_that_may_only_be_read_is_refused_with_a_remedy(path):
    Path(path).write_text("#!/bin/sh\n")
    os.chmod(path, 0o755)  # a program is opened for reading only: it must stay runnable
    with pytest.raises(SystemRefused, match="fair=True needs the right to write") as caught:
        Lock(path, fair=True).acquire(5)
    assert caught.value.errno == errno.EACCES
    with Lock(path):
        pass
    assert in_line(path) == 0


def test_far_ground_is_refused(path, monkeypatch):
    monkeypatch.setattr(kernel, "is_far", lambda _: True)
    with pytest.raises(UnsafeGround, match="fair=True"):
        Lock(path, fair=True).acquire()
    assert not os.path.exists(path)


def test_what_cannot_be_fair_is_refused_when_the_lock_is_made(path, monkeypatch):
    with pytest.raises(InvalidArgument, match="cleanup"):
        Lock(path, fair=True, cleanup=True)
    with pytest.raises(InvalidArgument, match="kind must be one of"):
        Lock(path, fair=True, kind="never")
    monkeypatch.setattr(flock_wait, "SET_NOW", -1)  # as on macOS
    with pytest.raises(InvalidArgument, match="open file descriptions"):
        Lock(path, fair=True)
