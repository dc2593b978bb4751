"""A change at every line of the way to sleep, in the waiter and in the thread that wakes it.

The sweep and the further looks after an event, which would hide a missed wake-up, are put off:
what is not told by an event is missed.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import suppress
from itertools import product
from pathlib import Path

import pytest

from bell import Bell, watching
from lifehold.core.acquire import Ask
from lifehold.runtime import (
    blocking,
    change_wait,
    clock,
    fork,
    watch_table,
    watch_thread,
)
from lifehold.runtime.blocking import BLOCKING, finish
from patience import until as wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs inotify")
FILES = {module.__file__ for module in (blocking, change_wait, watch_table, watch_thread)}
PATIENCE = 20.0  # seconds after which a wake-up counts as missed
LIMIT = 3000  # line events of one trial, by far


def write(folder, text):
    (folder / "new").write_text(text)
    os.replace(folder / "new", folder / "lock")


def nudge(folder):
    """Something happens that is not what the waiter waits for."""
    try:
        os.utime(folder / "lock")
    except FileNotFoundError:
        with suppress(FileNotFoundError):  # the folder itself is being replaced
            (folder / "lock").touch()


def read(path):
    try:
        return path.read_text()
    except OSError:
        return ""


def another_folder(folder, text):
    aside = folder.with_name(f"aside{time.monotonic_ns()}")
    folder.rename(aside)
    folder.mkdir()
    write(folder, text)


def write_by_another_name(folder, text):
    """As a record is: made aside, brought to its place, written through the name it had."""
    with open(folder / "aside", "w") as aside:
        os.link(folder / "aside", folder / "new")
        os.replace(folder / "new", folder / "lock")
        os.unlink(folder / "aside")
        time.sleep(0.001)
        aside.write(text)


def nothing():
    """Who watches something else hears nothing."""


def write_in_company(folder, text):
    """Somebody else begins to watch: the waiter hears no longer by himself."""
    watch_thread.watch(str(folder / "other"), nothing)
    write(folder, text)


def runnable():
    """Whether another thread of ours would go on if it had a processor."""
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):
            state = (task / "stat").read_text().rpartition(")")[2].split()[0]
            if state == "R" and int(task.name) != threading.get_native_id():
                return True
    return False


def looks(path, within=0.05):
    """How often a wait in vain wakes up."""
    ask, until, number = Ask("a"), clock.now() + within, 0
    while clock.now() < until:
        finish(BLOCKING.changed(ask, str(path), until))
        number += 1
    ask.leave()
    return number


class Trial:
    """One waiter who waits for the text "2", which comes at the n-th line of one thread."""

    def __init__(self, folder, number, who, act):
        self.folder, self.number, self.who, self.act = folder, number, who, act
        self.lines, self.acted, self.missed = 0, threading.Event(), False
        self.where, self.turn, self.began = "", threading.Lock(), threading.Event()

    def trace(self, frame, event, _):
        if frame.f_code.co_filename not in FILES:
            return None
        if event == "line" and not self.acted.is_set():
            self.lines += 1
            if self.lines == self.number and self.turn.acquire(blocking=False):
                self.where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
                self.act(self.folder, "2")
                time.sleep(0.002)  # the other thread may hear of it now
                self.acted.set()
        return self.trace

    def wait(self):
        if self.who == "waiter again":  # what came in between is read as the next wait begins
            looks(self.folder / "lock", 0.005)
            nudge(self.folder)
        self.began.set()
        if self.who != "watchman":
            sys.settrace(self.trace)
        else:  # somebody else watches too, so that it is the thread that hears
            watch_thread.watch(str(self.folder / "other"), nothing)
        ask, until = Ask("a"), clock.now() + PATIENCE
        path = self.folder / "lock"
        while read(path) != "2" and clock.now() < until:
            finish(BLOCKING.changed(ask, str(path), until))
        self.missed = clock.now() >= until
        sys.settrace(None)
        ask.leave()

    def asleep(self, thread):
        """Wait until the traced thread makes no more lines, and not for want of a processor."""
        before, until = -1, clock.now() + 5
        while (before != self.lines or runnable()) and thread.is_alive() and clock.now() < until:
            before = self.lines
            time.sleep(0.006)

    def run(self):
        thread = threading.Thread(target=self.wait)
        thread.start()
        self.began.wait()
        self.asleep(thread)
        if not self.acted.is_set():
            nudge(self.folder)  # wakes it; it looks, and goes to sleep again
            self.asleep(thread)
        beyond = self.turn.acquire(blocking=False)
        if beyond:  # so many lines there are not
            self.acted.set()
            write(self.folder, "2")
        thread.join(PATIENCE * 2)
        return not beyond


@pytest.fixture
def unswept(monkeypatch):
    for module in (watch_table, watch_table, watch_thread):
        monkeypatch.setattr(module, "SWEEP", 600.0)
    for further in ("AGAIN", "ARMED"):  # one more look would hide it too
        monkeypatch.setattr(change_wait, further, ())


@pytest.mark.large
@pytest.mark.parametrize(
    ("act", "who"),
    [
        *product(
            [write, another_folder, write_by_another_name, write_in_company], ["waiter", "watchman"]
        ),
        (write, "waiter again"),
        (another_folder, "waiter again"),
    ],
)
@pytest.mark.usefixtures("unswept")
def test_a_change_at_any_line_is_not_slept_through(tmp_path, monkeypatch, who, act):
    trials = {}

    def keep(self, real=watch_thread.WatchThread.keep):
        trial = trials.get(self)
        if trial is not None and trial.who == "watchman":
            sys.settrace(trial.trace)
        real(self)

    monkeypatch.setattr(watch_thread.WatchThread, "keep", keep)
    places, number, beyond = set(), 0, 0
    for number in range(1, LIMIT):
        folder = tmp_path / str(number)
        folder.mkdir()
        mine = watch_thread.WatchThread()
        monkeypatch.setattr(watch_thread, "near", mine)
        trial = trials[mine] = Trial(folder, number, who, act)
        try:
            within = trial.run()
        finally:
            mine.stop()
            mine.give_back()
        assert not trial.missed, f"a change at {trial.where} of the {who} was slept through"
        places.add(trial.where)
        beyond = 0 if within else beyond + 1
        if beyond == 6:  # once may have been a thread that did not get the processor
            break
    assert number > 40
    assert len(places) > 25


@pytest.mark.usefixtures("unswept")
def test_what_came_while_nobody_waited_wakes_nobody(tmp_path):
    write(tmp_path, "1")
    often = looks(tmp_path / "lock")
    for _ in range(10):
        nudge(tmp_path)
        write(tmp_path, "1")
    assert looks(tmp_path / "lock") == often


@pytest.fixture
def own(monkeypatch):
    mine = watch_thread.WatchThread()
    monkeypatch.setattr(watch_thread, "near", mine)
    yield mine
    mine.stop()
    mine.give_back()


def once_the_thread_has_ended(mine):
    for each in [mine, *mine.folders.values()]:
        each.due = 0.0
    mine.sleeper.wake()
    wait_until(lambda: not mine.running)


def read_in_main(monkeypatch, then):
    """`then` is called after whatever the main thread reads, as a signal handler may be."""
    real = watch_thread.WatchThread.hear

    def hear(self, ready, told):
        if threading.current_thread() is not threading.main_thread():
            return real(self, ready, told)
        self.notifier.read()
        return then()

    monkeypatch.setattr(watch_thread.WatchThread, "hear", hear)


def interrupt():
    raise KeyboardInterrupt


@pytest.mark.usefixtures("unswept")
@pytest.mark.parametrize("between", ["the thread ended", "other code closed a descriptor"])
def test_who_begins_to_wait_reads_nothing_of_others(tmp_path, monkeypatch, own, between):
    bell = Bell()
    looks(tmp_path / "lock")
    assert own.left_out
    once_the_thread_has_ended(own)
    with watching(tmp_path / "mine", bell.ring):
        if between == "other code closed a descriptor":
            own.left_out = True  # as `robbed` leaves it
        read_in_main(monkeypatch, interrupt)
        with fork.gate:  # the thread has not heard of it yet
            (tmp_path / "mine").touch()
            with suppress(KeyboardInterrupt):
                looks(tmp_path / "lock")
        assert bell.heard(20.0)


@pytest.mark.usefixtures("unswept")
def test_a_watch_that_ends_while_its_event_is_read_is_told_to_nobody(tmp_path, monkeypatch, own):
    watch = watch_thread.watch(str(tmp_path / "mine"), nothing)
    real = own.watch_file

    def watch_file(folder, name):
        watch.close()
        return real(folder, name)

    monkeypatch.setattr(own, "watch_file", watch_file)
    told = {}
    with fork.gate:
        (tmp_path / "mine").touch()
        own.hear([own.notifier.fd], told)
    assert not told
