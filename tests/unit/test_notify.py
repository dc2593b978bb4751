"""When who waits is told, per lock: by default, later, or not by a warning."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from lifehold import AsyncLock, Lock, ReadWriteLock, Semaphore, connect
from lifehold.core import acquire

SOON = 0.1  # seconds: the least that `notify` takes


@pytest.fixture
def heard():
    """The log records of the waits, and an event that is set by each."""
    logger, handler = logging.getLogger("lifehold"), logging.Handler()
    handler.records, handler.came = [], threading.Event()

    def emit(record):
        handler.records.append(record)
        handler.came.set()

    handler.emit = emit
    level = logger.level
    logger.setLevel(logging.DEBUG)
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(level)


SHAPES = {
    "lock": Lock,
    "semaphore": lambda path, **options: Semaphore(path, 1, **options),
    "writing": lambda path, **options: ReadWriteLock(path, **options).writing(),
    "memory": lambda path, **options: connect(f"memory:///{path}").lock("a", **options),
    "memory writing": lambda path, **options: (
        connect(f"memory:///{path}").read_write("a", **options).writing()
    ),
    "url": lambda path, **options: Lock(f"memory:///{path}#b", **options),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("notify", "level"), [(SOON, logging.WARNING), (False, logging.DEBUG)])
def test_who_waits_is_told_as_its_lock_says(shape, notify, level, tmp_path, heard, monkeypatch):
    monkeypatch.setattr(acquire, "FIRST_NOTICE", SOON if notify is False else 600.0)
    path = str(tmp_path / "a.lock")

    def wait():
        with SHAPES[shape](path, notify=notify):
            pass

    with SHAPES[shape](path):
        waiter = threading.Thread(target=wait)
        waiter.start()
        assert heard.came.wait(90)
    waiter.join(90)
    assert {record.levelno for record in heard.records} == {level}


def test_a_task_that_waits_is_told_as_its_lock_says(tmp_path, heard, monkeypatch):
    monkeypatch.setattr(acquire, "FIRST_NOTICE", 600.0)

    async def run():
        async with AsyncLock(tmp_path / "a.lock"):
            quick = AsyncLock(tmp_path / "a.lock", notify=SOON)
            task = asyncio.create_task(quick.acquire())
            assert await asyncio.to_thread(heard.came.wait, 30)
        await (await task).release()

    asyncio.run(run())
    assert heard.records[0].levelno == logging.WARNING


def test_a_quiet_wait_makes_no_text_that_nobody_reads(tmp_path, heard, monkeypatch):
    logging.getLogger("lifehold").setLevel(logging.INFO)
    looked = threading.Event()
    monkeypatch.setattr(acquire, "FIRST_NOTICE", SOON)
    told = acquire.events.tell

    def tell(event):
        told(event)
        if type(event).__name__ == "Waiting":
            looked.set()

    monkeypatch.setattr(acquire.events, "tell", tell)
    with Lock(tmp_path / "a.lock"):
        waiter = threading.Thread(
            target=lambda: Lock(tmp_path / "a.lock", notify=False).acquire().release()
        )
        waiter.start()
        assert looked.wait(90)  # those who listen to events are told all the same
    waiter.join(90)
    assert heard.records == []
