"""No missed wake-up: a pause at any line of the way that a wait takes, at the worst moment.

For every line that a waiter runs, in its own thread and in the helper's: while the waiter pauses
there, the lock is let go of, or the wait is cancelled, or its deadline comes. Each time it must go
on by itself: no wait outlives a free lock, a cancel or a deadline. A sample of lines in each run;
all of them with LIFEHOLD_EVERY_LINE=1.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import sys
import threading
import time

import pytest

from crash.scene import free, raised, threads, until
from ground import needs
from lifehold import AsyncLock, Cancel, Lock, NotAcquired
from lifehold.core import acquire
from lifehold.local.handles import TABLE
from lifehold.runtime import flock_wait

pytestmark = needs("linux")

EVERY = 1 if os.environ.get("LIFEHOLD_EVERY_LINE") else 5
WATCHED = (
    "core/acquire.py",
    "local/kernel.py",
    "runtime/flock_wait.py",
    "runtime/blocking.py",
    "runtime/eventloop.py",
)
PAUSE = 0.004
BOUND = 20.0  # seconds after which a wait that goes on has missed something; no notice comes before


class Pauses:
    """Notes each line of the watched files that is run; at `target` it pauses, once."""

    def __init__(self, target=None):
        self.target, self.seen = target, {}
        self.there = threading.Event()

    def __call__(self, frame, event, _):
        return self.line if frame.f_code.co_filename.endswith(WATCHED) else None

    def line(self, frame, event, _):
        if event == "line":
            at = (frame.f_code.co_filename, frame.f_lineno)
            self.seen.setdefault(at)
            if at == self.target and not self.there.is_set():
                self.there.set()
                time.sleep(PAUSE)
        return self.line


@pytest.fixture
def stage(tmp_path, monkeypatch):
    """A lock file that is held by a description of nobody's."""
    monkeypatch.setattr(acquire, "FIRST_NOTICE", 2 * BOUND)
    path = str(tmp_path / "lock")
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    yield path, fd
    os.close(fd)
    TABLE.close_idle()


def blocking(path, wait, cancel, **options):
    Lock(path, **options).acquire(wait, cancel=cancel).release()


def task(path, wait, cancel, **options):
    async def main():
        loop = asyncio.get_running_loop()
        work = asyncio.ensure_future(AsyncLock(path, **options).acquire(wait))
        end = lambda: loop.call_soon_threadsafe(work.cancel)  # noqa: E731
        cancel.attach(end)
        try:
            await (await work).release()
        finally:
            cancel.detach(end)

    asyncio.run(main())


def play(stage, way, end, pauses, monkeypatch, **options):
    """One wait, ended by `end` while it pauses; what it raised."""
    path, fd = stage
    cancel, outcome = Cancel(), []
    fcntl.flock(fd, fcntl.LOCK_EX)
    helper = flock_wait.FlockThread._stand

    def traced(self, libc):
        sys.settrace(pauses)
        helper(self, libc)

    def wait():
        sys.settrace(pauses)
        try:
            outcome.append(
                raised(way, path, 0.012 if end == "deadline" else None, cancel, **options)
            )
        finally:
            sys.settrace(None)

    with monkeypatch.context() as patch:
        patch.setattr(flock_wait.FlockThread, "_stand", traced)
        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        pauses.there.wait(0.012)
        if end == "release":
            fcntl.flock(fd, fcntl.LOCK_UN)
        elif end == "cancel":
            cancel.cancel()
        thread.join(BOUND)
        assert not thread.is_alive(), f"it waits on after {end}, paused at {pauses.target}"
    fcntl.flock(fd, fcntl.LOCK_UN)
    return outcome[0]


WAYS = {
    "own thread": (blocking, {}),
    "own thread, fair": (blocking, {"fair": True}),
    "helper": (blocking, {"helped": True}),
    "helper, fair": (blocking, {"helped": True, "fair": True}),
    "task": (task, {}),
    "task, fair": (task, {"fair": True}),
}


@pytest.mark.parametrize("end", ["release", "deadline", "cancel"])
@pytest.mark.parametrize("name", WAYS)
def test_a_pause_at_any_line_of_a_wait_misses_no_end_of_it(stage, monkeypatch, name, end):
    way, options = WAYS[name]
    options = dict(options)
    if options.pop("helped", False):
        monkeypatch.setattr(flock_wait, "has_timers", False)
    path, _ = stage
    before = threads()
    first = Pauses()
    for _ in range(2):  # the first of all loads modules
        play(stage, way, end, first, monkeypatch, **options)
    lines = list(first.seen)
    assert len(lines) > 50
    start = (len(name) + len(end)) % EVERY
    for line in lines[start::EVERY]:
        error = play(stage, way, end, Pauses(line), monkeypatch, **options)
        if end == "release":
            assert error is None, (line, error)
        elif end == "deadline":
            assert isinstance(error, NotAcquired), (line, error)
        until(lambda: free(path), 5, f"free after {end}, paused at {line}")
    until(lambda: threads() <= before, 5, "no thread is left")
