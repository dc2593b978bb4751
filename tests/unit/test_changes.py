"""`Changes` tells when it is worth to look again, and `between` what has become of each lock."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

import pytest

from ground import needs
from lifehold.core.grant import Holder
from lifehold.core.owner import Owner
from lifehold.local.kernel_holders import KernelWaiter
from lifehold.ops import changes
from lifehold.ops.answer import FREE, HELD, LockAnswer
from lifehold.runtime import watch_thread

pytestmark = needs("linux", "proc")
LONG = 30.0


@pytest.fixture
def ear():
    made = changes.Changes()
    yield made
    made.close()


def test_an_entry_of_a_watched_folder_is_told(ear, tmp_path):
    ear.follow([str(tmp_path)])
    (tmp_path / "a.lock").touch()
    assert ear.wait(LONG) == (True, [])


def test_a_kernel_lock_anywhere_is_told_without_any_event(ear, tmp_path):
    with open(tmp_path / "a", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert ear.wait(LONG) == (True, [])


def test_a_folder_that_is_followed_no_more_tells_nothing(ear, tmp_path, monkeypatch):
    monkeypatch.setattr(changes, "whole_table", list)
    ear._moved()
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    ear.follow([str(one)])
    ear.follow([str(two)])
    (one / "a").touch()
    assert ear.wait(0.3) == (False, [])
    (two / "a").touch()
    assert ear.wait(LONG) == (True, [])


def test_who_is_deaf_hears_the_change_the_next_time_and_a_key_at_once(ear, tmp_path):
    ear.follow([str(tmp_path)])
    (tmp_path / "a.lock").touch()
    read, write = os.pipe()
    try:
        os.write(write, b"q")
        assert ear.wait(LONG, [read], deaf=True) == (False, [read])
    finally:
        os.close(read)
        os.close(write)
    assert ear.wait(LONG) == (True, [])


def test_the_bell_of_a_signal_ends_a_wait_and_is_no_change(ear, monkeypatch):
    monkeypatch.setattr(changes, "whole_table", list)
    ear._moved()
    threading.Timer(0.05, os.write, (ear.wakeup, b"!")).start()
    assert ear.wait(LONG) == (False, [])


def test_nothing_stays_open(tmp_path):
    grown = []
    for _ in range(5):  # others of this process may open something too; a leak does each time
        before = len(list(Path("/proc/self/fd").iterdir()))
        ear = changes.Changes()
        ear.follow([str(tmp_path)])
        ear.close()
        kept = len(list(watch_thread.near.fds()))
        grown.append(len(list(Path("/proc/self/fd").iterdir())) > before + kept)
    assert not all(grown)


def test_looking_takes_a_twentieth_and_a_fifth_where_changes_never_end(monkeypatch):
    monkeypatch.setattr(changes.clock, "now", lambda: 110.0)
    assert changes.pace(100.0, 2.0) == changes.LookPace(150.0, 310.0)
    assert changes.pace(109.999, 2.0) == changes.LookPace(110.2, 112.0)


def of(path: str, pid: int | None = None, **more: object) -> LockAnswer:
    holder = None if pid is None else Holder(Owner(pid), 5.0, "alive")
    return LockAnswer(path, path, HELD if pid else FREE, holder, **more)  # type: ignore[arg-type]


def test_what_appeared_changed_and_went_is_told_and_no_more():
    before = [of("/same", 1), of("/free", 2), of("/gone", 3)]
    after = [of("/same", 1), of("/free"), of("/new", 4)]
    told = [(each.what, each.answer.path) for each in changes.between(before, after)]
    assert told == [("changed", "/free"), ("appeared", "/new"), ("gone", "/gone")]


def test_another_holder_and_another_waiter_are_changes():
    queued = of("/a", 1, waiting=(KernelWaiter(9, True),))
    assert [each.what for each in changes.between([of("/a", 1)], [of("/a", 2)])] == ["changed"]
    assert [each.what for each in changes.between([of("/a", 1)], [queued])] == ["changed"]
