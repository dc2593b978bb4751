"""Nobody starves: a writer among very many readers, a reader among writers without end."""

from __future__ import annotations

import os
import signal
import threading
import time
import traceback

import pytest

from lifehold import ReadWriteLock, Semaphore


@pytest.fixture
def crowd():
    """Fork processes that run a function without end; they are killed when the test ends."""
    pids = []

    def start(work):
        ready, told = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                work(lambda: os.write(told, b"x"))
            except BaseException:
                os.write(told, traceback.format_exc().encode())
            finally:
                os._exit(1)
        pids.append(pid)
        os.close(told)  # so that the end of a child that never gets there is heard
        try:
            said = os.read(ready, 10_000)  # it may have been in more than once by now
            assert said
            assert not said.strip(b"x"), said
        finally:
            os.close(ready)
        return pid

    yield start
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        except (ProcessLookupError, ChildProcessError):
            continue


def end(pid):
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def reading(path, threads, kind):
    """Overlapping readers: somebody is always in."""

    def work(ready):
        lock = ReadWriteLock(path, kind=kind)

        def read():
            while True:
                with lock.reading():
                    time.sleep(0.005)

        with lock.reading():
            for _ in range(threads):
                threading.Thread(target=read, daemon=True).start()
        ready()
        time.sleep(100)

    return work


@pytest.mark.parametrize(("kind", "threads"), [("kernel", 33), ("soft", 4)])
def test_a_writer_gets_in_among_readers_that_overlap_without_end(tmp_path, crowd, kind, threads):
    path = tmp_path / "config"
    for _ in range(3):
        crowd(reading(path, threads, kind))
    lock = ReadWriteLock(path, kind=kind, wait=30)
    tokens = []
    for _ in range(5):
        with lock.writing() as lease:
            tokens.append(lease.token)
    assert tokens == sorted(set(tokens))


@pytest.mark.parametrize("kind", ["kernel", "soft"])
def test_a_reader_gets_in_among_writers_without_end(tmp_path, crowd, kind):
    path = tmp_path / "config"

    def writing(ready):
        lock = ReadWriteLock(path, kind=kind)
        while True:
            with lock.writing():
                ready()
                time.sleep(0.002)

    for _ in range(4):
        crowd(writing)
    lock = ReadWriteLock(path, kind=kind, wait=30)
    for _ in range(5):
        with lock.reading() as lease:
            assert lease.token


@pytest.mark.parametrize("kind", ["kernel", "soft"])
@pytest.mark.parametrize("writes", [True, False])
def test_a_killed_reader_or_writer_is_in_nobodys_way(tmp_path, crowd, kind, writes):
    path = tmp_path / "config"

    def hold(ready):
        lock = ReadWriteLock(path, kind=kind)
        with lock.writing() if writes else lock.reading():
            ready()
            time.sleep(100)

    pid = crowd(hold)
    came, lock = [], ReadWriteLock(path, kind=kind)

    def wait():
        with lock.writing(20):
            came.append(time.monotonic())

    waiter = threading.Thread(target=wait)
    waiter.start()
    time.sleep(0.1)
    assert not came
    killed = time.monotonic()
    end(pid)
    waiter.join(60)
    assert came[0] - killed < 1.5  # by an event: no look of its own comes so early


def test_a_waiting_writer_that_is_killed_lets_readers_in(tmp_path, crowd):
    path = tmp_path / "config"
    for kind in ("kernel", "soft"):
        lock = ReadWriteLock(f"{path}-{kind}", kind=kind)
        with lock.reading():

            def write(ready, kind=kind):
                ready()
                ReadWriteLock(f"{path}-{kind}", kind=kind).acquire_write()

            pid = crowd(write)
            time.sleep(0.2)
            end(pid)
            other = []
            reader = threading.Thread(
                target=lambda lock=lock, other=other: other.append(
                    type(lock)(lock.path, kind=kind).acquire_read(10).release()
                )
            )
            reader.start()
            reader.join(60)
            assert other == [None]


def test_a_killed_holder_frees_its_slot_for_who_waits(tmp_path, crowd):
    path = tmp_path / "gpu"

    def hold(ready):
        leases = [Semaphore(path, 2).acquire() for _ in range(2)]
        ready()
        time.sleep(100 * len(leases))

    pid = crowd(hold)
    killer = threading.Timer(0.1, os.kill, (pid, signal.SIGKILL))
    killer.start()
    with Semaphore(path, 2, wait=20) as one, Semaphore(path, 2, wait=20) as other:
        assert {one.slot, other.slot} == {0, 1}


def test_a_stopped_or_killed_first_waiter_does_not_stop_the_others_for_ever(tmp_path, crowd):
    path = tmp_path / "gpu"
    lease = Semaphore(path, 1).acquire()

    def wait(ready):
        ready()
        Semaphore(path, 1).acquire()
        time.sleep(100)

    pid = crowd(wait)
    time.sleep(0.3)
    end(pid)
    came = []
    waiter = threading.Thread(target=lambda: came.append(Semaphore(path, 1).acquire(120).release()))
    waiter.start()
    time.sleep(0.1)
    lease.release()
    waiter.join(60)
    assert came == [None]


@pytest.mark.parametrize("made", ["reading", "writing", "slot", "soft reading", "soft writing"])
def test_a_forked_child_holds_nothing_and_releases_nothing(tmp_path, made):
    path, kind, made = tmp_path / "lock", "soft" if "soft" in made else "kernel", made.split()[-1]

    def held():
        if made == "slot":
            return Semaphore(path, 1).acquire()
        lock = ReadWriteLock(path, kind=kind)
        return lock.acquire_read() if made == "reading" else lock.acquire_write()

    def free():
        try:
            if made == "slot":
                Semaphore(path, 1).acquire(0).release()
            else:
                ReadWriteLock(path, kind=kind).acquire_write(0).release()
        except Exception:
            return False
        return True

    lease = held()
    pid = os.fork()
    if pid == 0:
        code = 0
        try:
            code |= bool(lease.held)
            try:
                lease.release()
                code |= 2
            except Exception:
                code |= 0
            code |= free() << 2
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    assert lease.held
    lease.release()
    assert free()
