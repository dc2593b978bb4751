"""The event layer on systems that are not Linux, played on Linux: kqueue, Windows, no thread.

**Not run on macOS, BSD or Windows.** The kqueue is a stand-in that gets its events from inotify.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from bell import Bell, watching
from lifehold.core.acquire import Ask
from lifehold.runtime import (
    clock,
    kqueue,
    watch_table,
    watch_thread,
)
from lifehold.runtime.blocking import BLOCKING, finish
from patience import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the stand-in needs inotify")
VNODE, PROC = -4, -5


class StandIn:
    """What kqueue(2) does, for folders and processes."""

    def __init__(self):
        self.notifier, self.idents, self.pending, self.queues = None, {}, [], 0

    def __getattr__(self, name):
        flags = {"KQ_FILTER_VNODE": VNODE, "KQ_FILTER_PROC": PROC, "KQ_EV_ERROR": 0x4000}
        return flags.get(name, 1)

    def kqueue(self):
        self.notifier = watch_table.Inotify()
        return self

    def kevent(self, ident, filter, flags, fflags):  # noqa: A002 - its name in the manual
        return SimpleNamespace(ident=ident, filter=filter, flags=0, fflags=fflags)

    def fileno(self):
        return self.notifier.fd

    def control(self, changes, most, _timeout):
        for change in changes or ():
            if change.filter == PROC:
                os.kill(change.ident, 0)
            else:
                folder = os.readlink(f"/proc/self/fd/{change.ident}")
                self.idents[self.notifier.add(folder, False)] = change.ident
        if not most:
            return []
        found = [self.kevent(self.idents[n], VNODE, 0, 0) for n, _ in self.notifier.read()]
        pending, self.pending = self.pending, []
        return found + pending

    def close(self):
        self.notifier.close()


@pytest.fixture
def bell():
    return Bell()


@pytest.fixture
def near(monkeypatch):
    mine = watch_thread.WatchThread()
    monkeypatch.setattr(watch_thread, "near", mine)
    monkeypatch.delattr(os, "pidfd_open")
    yield mine
    mine.stop()
    mine.give_back()


@pytest.fixture
def kernel(near, monkeypatch):
    stand_in = StandIn()
    monkeypatch.setattr(kqueue, "kernel", stand_in)
    monkeypatch.setattr(watch_thread, "make_notifier", kqueue.Kqueue)
    return stand_in


def quiet(bell):
    """What is told for nothing to who begins to wait, waited for."""
    while bell.heard(1.2):
        pass


def test_kqueue_tells_of_names_that_come_and_go(kernel, tmp_path, bell):
    with watching(tmp_path / "lock", bell.ring, content=False):
        (tmp_path / "lock").write_text("")
        assert bell.heard()
        bell.heard(0.05)
        (tmp_path / "lock").unlink()
        assert bell.heard()


def test_where_kqueue_tells_no_writes_the_file_is_looked_at(kernel, tmp_path, bell):
    (tmp_path / "lock").write_text("a")
    with watching(tmp_path / "lock", bell.ring):
        assert bell.heard()
        quiet(bell)
        (tmp_path / "lock").write_text("b")
        assert bell.heard()


def test_kqueue_and_a_folder_that_is_replaced(kernel, tmp_path, bell):
    folder = tmp_path / "folder"
    folder.mkdir()
    with watching(folder / "lock", bell.ring, content=False):
        folder.rename(tmp_path / "moved")
        folder.mkdir()
        assert bell.heard()
        bell.heard(0.1)
        (folder / "lock").write_text("")
        assert bell.heard()


def test_two_names_of_a_folder_are_one_watch_of_kqueue(kernel, tmp_path, bell):
    (tmp_path / "folder").mkdir()
    (tmp_path / "alias").symlink_to("folder")
    other = Bell()
    with (
        watching(tmp_path / "folder" / "lock", bell.ring),
        watching(tmp_path / "alias" / "lock", other.ring),
    ):
        assert len(kernel.idents) == 1
        (tmp_path / "folder" / "lock").write_text("")
        assert bell.heard()
        assert other.heard()


def test_kqueue_tells_of_the_end_of_a_process(kernel, tmp_path, bell):
    with watching(tmp_path / "lock", lambda: None):
        other = Bell()
        watch = watch_thread.watch_process(os.getpid(), bell.ring)
        second = watch_thread.watch_process(os.getpid(), other.ring)
        kernel.pending.append(kernel.kevent(os.getpid(), PROC, 0, 0))
        (tmp_path / "lock").write_text("")  # the stand-in's way to be ready
        assert bell.heard()
        assert other.heard()
        watch.close()
        second.close()
    gone = subprocess.Popen(["true"])
    gone.wait()
    watch_thread.watch_process(gone.pid, bell.ring).close()
    assert bell.heard(0)


@pytest.fixture
def windows(near, monkeypatch):
    def none():
        raise OSError("no events of files that we know")

    monkeypatch.setattr(watch_thread, "make_notifier", none)
    monkeypatch.setattr(watch_table, "poll", None)
    monkeypatch.delattr(os, "eventfd")
    return near


def test_without_poll_and_events_it_looks(windows, tmp_path, bell):
    before = len(os.listdir("/proc/self/fd"))
    with watching(tmp_path / "lock", bell.ring):
        assert len(os.listdir("/proc/self/fd")) <= before
        quiet(bell)
        (tmp_path / "lock").write_text("")
        assert bell.heard()
    watch_thread.watch_process(os.getpid(), bell.ring)
    assert bell.heard(), "who cannot be told must look"


def test_without_a_thread_the_waiter_looks_for_himself(near, tmp_path, monkeypatch):
    def none(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(watch_thread.native, "start_new_thread", none)
    ask, path = Ask("a"), tmp_path / "lock"
    with pytest.raises(RuntimeError):
        watch_thread.watch(str(path), lambda: None)
    for _ in range(4):
        started = clock.now()
        finish(BLOCKING.changed(ask, str(path), clock.now() + 60))
        assert clock.now() - started < 30
    ask.leave()
    assert not near.running


def test_a_pause_is_never_longer_than_half_a_second(windows, tmp_path, bell):
    with watching(tmp_path / "lock", bell.ring):
        folder = next(iter(windows.folders.values()))
        until(lambda: folder.pause >= 0.5)
        time.sleep(0.6)
        assert folder.pause == 0.5
