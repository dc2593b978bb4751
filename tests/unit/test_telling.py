"""Telling must never break waiting: whatever becomes of the telling, the wait goes on."""

from __future__ import annotations

import concurrent.futures
import fcntl
import logging
import multiprocessing
import os
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from lifehold import Lock, Timeout
from lifehold.core import acquire, events
from lifehold.core.grant import Holder
from patience import steadily


@pytest.fixture(autouse=True)
def hasty(monkeypatch):
    monkeypatch.setattr(acquire, "FIRST_NOTICE", 0.05)


@pytest.fixture
def handler():
    logger, made = logging.getLogger("lifehold"), logging.Handler()
    logger.addHandler(made)
    yield made
    logger.removeHandler(made)


@pytest.fixture
def unraised(monkeypatch):
    told = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: told.append(unraisable.exc_value))
    return told


def test_a_handler_that_raises_is_reported_and_the_wait_goes_on(tmp_path, handler, unraised):
    def emit(record):
        raise RuntimeError("a broken handler")

    handler.emit = emit
    path, held = tmp_path / "x", threading.Event()

    def hold():
        with Lock(path):
            held.set()
            time.sleep(0.2)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    with Lock(path):
        thread.join()
    assert {str(error) for error in unraised} == {"a broken handler"}


def refused_by_zero(lock):
    with pytest.raises(ZeroDivisionError):
        lock.acquire(0.1)


def test_an_inspection_that_fails_is_reported_and_the_waiter_is_told_what_is_left(
    tmp_path, monkeypatch, unraised, caplog
):
    lock = Lock(tmp_path / "x")
    monkeypatch.setattr(type(lock._mechanism), "waiters", lambda _: 1 / 0)
    with Lock(tmp_path / "x"), caplog.at_level(logging.WARNING, "lifehold"):
        thread = threading.Thread(target=refused_by_zero, args=(lock,))
        thread.start()
        thread.join()
    assert "held, the holder left no trace" in caplog.text
    assert isinstance(unraised[0], ZeroDivisionError)


def queued(path, number):
    """Waits until so many stand in the kernel's queue for this file."""
    inode = f":{os.stat(path).st_ino} "
    for _ in range(600):
        lines = Path("/proc/locks").read_text().splitlines()
        if sum("->" in line and inode in line for line in lines) == number:
            return
        time.sleep(0.05)
    raise AssertionError(f"not {number} in the queue")


def test_a_slow_handler_keeps_its_place_in_the_queue(tmp_path, handler):
    path, order, started = tmp_path / "x", [], threading.Event()

    def emit(record):
        if threading.current_thread().name == "first":
            started.set()
            time.sleep(0.5)

    handler.emit = emit

    def wait():
        with Lock(path):
            order.append(threading.current_thread().name)

    lease = Lock(path).acquire()
    first = threading.Thread(target=wait, name="first")
    first.start()
    assert started.wait(60)
    queued(path, 1)  # it waits in the kernel's queue while it tells
    second = threading.Thread(target=wait, name="second")
    second.start()
    queued(path, 2)
    lease.release()
    first.join()
    second.join()
    assert order == ["first", "second"]


def test_a_handler_that_waits_for_the_same_lock_is_not_told_by_itself(tmp_path, handler):
    path, calls = tmp_path / "x", []

    def emit(record):
        calls.append(record)
        with pytest.raises(Timeout):
            Lock(path).acquire(0.2)

    handler.emit = emit
    held = os.open(path, os.O_CREAT | os.O_RDWR)
    fcntl.flock(held, fcntl.LOCK_EX)

    def judge():  # a machine that pauses until its patience is over is told nothing
        calls.clear()
        with pytest.raises(Timeout):
            Lock(path).acquire(0.1)
        assert len(calls) == 1

    steadily(judge, tries=9)
    os.close(held)


def test_the_facts_of_a_warning_are_attributes_of_its_record(tmp_path, caplog):
    with Lock(tmp_path / "x", label="nightly") as lease:
        with caplog.at_level(logging.WARNING, "lifehold"), pytest.raises(Timeout):
            Lock(tmp_path / "x").acquire(0.6)
        record = caplog.records[0]
        assert record.name == "lifehold"
        assert record.lock == str(tmp_path / "x")
        assert 0.05 <= record.waited < 30
        assert isinstance(record.holder, Holder)
        assert record.holder.nonce == lease.nonce
        assert record.evidence == record.holder.evidence
        assert record.ahead == 0


def lone(program, path, **more):
    return subprocess.run([sys.executable, "-c", textwrap.dedent(program), str(path)],
                          text=True, timeout=90, check=False, **more)  # fmt: skip


ASYNC = """
    import asyncio, sys
    from lifehold import AsyncLock, Timeout
    from lifehold.core import acquire, events
    acquire.FIRST_NOTICE = 0.05
    told = []
    events.subscribe(lambda event: told.append(1) if isinstance(event, events.Waiting) else None)
    async def main():
        for wait in (0.1, 1, 10):  # a busy machine may come to no notice before the deadline
            try:
                await AsyncLock(sys.argv[1]).acquire(wait)
            except Timeout as error:
                if told:
                    return print(error.code)
    asyncio.run(main())
"""
SYNC = """
    import sys
    from lifehold import Lock, Timeout
    from lifehold.core import acquire, events
    acquire.FIRST_NOTICE = 0.05
    told = []
    events.subscribe(lambda event: told.append(1) if isinstance(event, events.Waiting) else None)
    {before}
    for wait in (0.3, 1, 10):  # a busy machine may come to no notice before the deadline
        try:
            Lock(sys.argv[1]).acquire(wait)
        except Timeout as error:
            if told:
                os.write(1, error.code.encode()) if "os" in globals() else print(error.code)
                break
"""


@pytest.mark.parametrize("program", [SYNC.format(before=""), ASYNC], ids=["sync", "async"])
def test_a_program_that_has_configured_no_logging_is_told_on_stderr(tmp_path, program):
    with Lock(tmp_path / "x"):
        done = lone(program, tmp_path / "x", capture_output=True)
    assert done.stdout.strip() == "timeout"
    assert done.stderr.startswith(f"waiting for '{tmp_path}/x' for 0.")
    assert f"held by pid {os.getpid()}" in done.stderr


@pytest.mark.parametrize(
    "before",
    [
        "sys.stderr.close(); import os",
        "import os; sys.stderr = None",
        "import os; os.close(2)",
        (
            "import os, signal; signal.signal(signal.SIGPIPE, signal.SIG_DFL); "
            "r, w = os.pipe(); os.dup2(w, 2); os.close(w); os.close(r)"
        ),
    ],
    ids=["closed", "none", "descriptor closed", "a reader that went, and SIGPIPE that kills"],
)
def test_a_stderr_that_is_gone_does_not_end_the_wait(tmp_path, before):
    with Lock(tmp_path / "x"):
        done = lone(SYNC.format(before=before), tmp_path / "x", stdout=subprocess.PIPE)
    assert (done.stdout.strip(), done.returncode) == ("timeout", 0)


def test_an_event_loop_is_not_held_up_while_the_holder_is_looked_at(tmp_path, monkeypatch):
    import asyncio

    from lifehold import AsyncLock

    lock, looked = AsyncLock(tmp_path / "x"), []
    inspect = type(lock._mechanism).inspect

    def slowly(self, *, held=False):
        looked.append(threading.get_ident())
        if len(looked) == 1:
            time.sleep(0.3)
        return inspect(self, held=held)

    monkeypatch.setattr(type(lock._mechanism), "inspect", slowly)

    async def main():
        ticks = 0
        task = asyncio.create_task(lock.acquire(0.5))
        while not task.done():
            await asyncio.sleep(0.02)
            ticks += 1
        with pytest.raises(Timeout):
            await task
        return ticks

    with Lock(tmp_path / "x"):
        assert asyncio.run(main()) > 10
    assert looked[0] != threading.get_ident()


def refuse(path):
    Lock(path).acquire(0)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_an_error_comes_home_from_another_process_with_its_facts(tmp_path, method):
    context = multiprocessing.get_context(method)
    with Lock(tmp_path / "x", label="nightly") as lease:
        with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
            error = pool.submit(refuse, str(tmp_path / "x")).exception(30)
        with context.Pool(1) as pool:
            again = pool.apply_async(refuse, [str(tmp_path / "x")])
            with pytest.raises(type(error)) as caught:
                again.get(30)
    for each in (error, caught.value):
        assert each.code == "would_block"
        assert each.holder.nonce == lease.nonce
        assert each.holder.owner.label == "nightly"
        assert (each.evidence, each.waiters) == ("kernel witness", 0)
        assert "  alive  yes" in str(each)


def test_who_listens_to_events_hears_how_many_wait_before_us(tmp_path):
    told, heard = [], threading.Event()

    def listen(event):
        if isinstance(event, events.Waiting):
            told.append(event.ahead)
            heard.set()

    lease = Lock(tmp_path / "x").acquire()
    leaver = threading.Thread(target=lambda: (heard.wait(60), lease.release()))
    leaver.start()
    unsubscribe = events.subscribe(listen)
    try:
        Lock(tmp_path / "x").acquire(60).release()  # it comes free when the first was told
    finally:
        unsubscribe()
        heard.set()
        leaver.join()
    assert told[:1] == [0]
    assert set(told) == {0}
