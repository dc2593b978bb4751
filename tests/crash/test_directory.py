"""kind="directory" in real processes: killed at each call, beside mkdir(2), broken, left empty."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import threading
import time
from pathlib import Path

import pytest

from crash.scene import hold
from lifehold import InvalidArgument, LeaseLost, Lock, UnsafeGround, WouldBlock
from lifehold.cli.wait import until_free
from lifehold.local import files, record_folders
from lifehold.local.record_folders import MARK
from lifehold.ops.who import who
from lifehold.testing.crash import CALLS, Child, point, points_at_calls

KIND = {"kind": "directory"}
MOVES = ["guard", "rename", "rename_new", "mkdir", "rmdir", "listdir", "chmod"]


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "the lock")


def stop_at_every_call(path, options):
    points_at_calls([*CALLS, *MOVES])
    for _ in range(2):
        lease = Lock(path, **KIND, **options).acquire()
        lease.check()
        lease.release()


def all_calls(path, options):
    with Child(stop_at_every_call, path, options) as child:
        while child.step():
            pass
        assert child.end().well, child.end().error
        return child.passed


@pytest.mark.parametrize("options", [{}, {"ttl": 30}], ids=["no ttl", "ttl"])
def test_a_kill_at_any_call_lets_the_next_one_in_within_50_ms(path, options):
    names, lags, last = all_calls(path, options), [], 0
    assert len(names) > 40
    for number in range(1, len(names) + 1):
        with Child(stop_at_every_call, path, options) as child:
            for _ in range(number):
                child.step()
            child.kill()
        began = time.monotonic()
        with Lock(path, **KIND, **options, wait=60) as lease:
            lags.append(time.monotonic() - began)
            assert lease.token > last, f"killed at {names[number - 1]}"
            last = lease.token
        assert not os.path.lexists(path), f"killed at {names[number - 1]}"
    assert min(lags) < 0.05, lags  # the rest is other work of the machine


def test_what_crashes_leave_beside_it_is_swept_after_an_hour(path):
    folder = Path(path).parent
    with Child(stop_at_every_call, path, {}) as child:
        child.at("before rename_new")
        child.kill()
    (left,) = [name for name in os.listdir(folder) if name.startswith(".lifehold-")]
    for young in (True, False):
        if not young:
            os.utime(folder / left, (1, 1))
        with Child(hold_it, path) as child:
            child.at("held")
            child.kill()
        Lock(path, **KIND).acquire(60).release()
        assert (folder / left).exists() == young


def hold_it(path):
    hold(path, **KIND)


def unchanged(path):
    """What nobody has changed; that it was read is none of it."""
    found = os.stat(path)
    return found.st_ino, found.st_mode, found.st_nlink, found.st_mtime_ns, found.st_ctime_ns


@pytest.mark.parametrize("options", [{}, {"ttl": 30}], ids=["no ttl", "ttl"])
def test_a_folder_that_mkdir_made_is_waited_for_and_never_taken(path, options):
    os.mkdir(path)
    before = unchanged(path)
    lock = Lock(path, **KIND, **options)
    for _ in range(3):
        with pytest.raises(WouldBlock, match="an empty folder") as caught:
            lock.acquire(0)
        assert caught.value.holder.alive == "unknown"
    with pytest.raises(UnsafeGround, match="by hand"):
        lock.break_("it stands in the way")
    assert unchanged(path) == before
    with Child(take, path, options) as waiter:
        waiter.at("up")
        waiter.go()
        time.sleep(0.1)  # it waits by now, or it will find the folder gone
        os.rmdir(path)
        assert waiter.end().value > 0


def take(path, options):
    point("up")
    with Lock(path, **KIND, **options, wait=120) as lease:
        return lease.token


@pytest.mark.parametrize("name", ["host-4127.pid", "owner-x", "README"])
def test_a_folder_with_other_things_in_it_is_never_taken(path, name):
    os.mkdir(path)
    Path(path, name).write_text("x")
    with pytest.raises(WouldBlock, match=r"not lifehold's"):
        Lock(path, **KIND).acquire(0)
    assert os.listdir(path) == [name]


@pytest.mark.parametrize(("name", "kind"), [
    ("7" * 20, "generation"), ("0674ad1c-456d-41fe-8246-904f69bbc934.json", "folder"),
])  # fmt: skip
def test_a_folder_of_another_kind_is_refused_and_both_are_named(path, name, kind):
    os.mkdir(path)
    Path(path, name).write_text("{}")
    with pytest.raises(UnsafeGround, match=f"kind='{kind}'.*kind='directory'"):
        Lock(path, **KIND).acquire(0)


def test_with_a_live_holder_mkdir_fails_and_an_old_style_breaker_cannot_remove_it(path):
    with Lock(path, **KIND) as lease:
        with pytest.raises(FileExistsError):
            os.mkdir(path)
        with pytest.raises(OSError, match="not empty"):
            os.rmdir(path)
        lease.check()


def test_makers_by_mkdir_and_ours_are_never_inside_together(path):
    ours = [Child(count, path, True) for _ in range(2)]
    theirs = [Child(count, path, False) for _ in range(2)]
    with contextlib.ExitStack() as stack:
        for child in (*ours, *theirs):
            stack.enter_context(child)
        counts = [child.end().value for child in (*ours, *theirs)]
    assert [overlaps for _, overlaps in counts] == [0] * 4
    assert min(done for done, _ in counts) > 0, counts


def count(path, ours, seconds=1.5):
    done = overlaps = 0
    end = time.monotonic() + seconds
    lock = Lock(path, **KIND)
    while time.monotonic() < end:
        lease = None
        try:
            if ours:
                lease = lock.acquire(0)
            else:
                os.mkdir(path)
        except (WouldBlock, FileExistsError):
            time.sleep(0.0005)
            continue
        try:
            os.close(os.open(path + ".canary", os.O_CREAT | os.O_EXCL))
            os.unlink(path + ".canary")
        except FileExistsError:
            overlaps += 1
        done += 1
        if lease is not None:
            lease.release()
        else:
            os.rmdir(path)
        time.sleep(0.001)
    return [done, overlaps]


@pytest.mark.parametrize("options", [{}, {"ttl": 30}], ids=["no ttl", "ttl"])
def test_a_broken_holder_is_told_and_its_late_release_hits_nobody(path, options):
    lock = Lock(path, **KIND, **options)
    robbed = lock.acquire()
    assert Lock(path, **KIND).break_("the night shift ended").token == robbed.token
    assert not os.path.lexists(path)
    with Lock(path, **KIND, **options, wait=0) as successor:
        with pytest.raises(LeaseLost):
            robbed.check()
        with pytest.raises(LeaseLost):
            robbed.release()
        successor.check()
        assert successor.token > robbed.token
    (line,) = Path(path + ".audit").read_text().splitlines()
    assert json.loads(line)["reason"] == "the night shift ended"
    assert lock.break_("nobody is there") is None


def test_a_token_outlives_the_folder_and_a_clock_that_is_set_back(path, monkeypatch):
    with Lock(path, **KIND) as lease:
        first = lease.token
    shutil.rmtree(path, ignore_errors=True)
    monkeypatch.setattr("lifehold.local.files.HOST.clock_ns", lambda: 1_000_000_000)
    with Lock(path, **KIND) as lease:
        assert lease.token > first


def test_without_renameat2_it_still_takes_the_place_of_nothing_and_of_ours_only(path, monkeypatch):
    monkeypatch.setattr(files, "_rename_call", False)
    os.mkdir(path)
    with pytest.raises(WouldBlock):
        Lock(path, **KIND).acquire(0)
    os.rmdir(path)
    with Lock(path, **KIND) as lease, pytest.raises(WouldBlock):
        lease.check()
        Lock(path, **KIND).acquire(0)


def test_rename_new_replaces_nothing(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    with pytest.raises(FileExistsError):
        files.rename_new(str(tmp_path / "a"), str(tmp_path / "b"))
    files.rename_new(str(tmp_path / "a"), str(tmp_path / "c"))
    assert sorted(os.listdir(tmp_path)) == ["b", "c"]


def test_rename_new_replaces_no_file_where_the_system_has_no_such_call(tmp_path, monkeypatch):
    """As over NFS, or on another system."""
    monkeypatch.setattr(files, "_rename_call", False)
    (tmp_path / "ours").write_text("ours")
    (tmp_path / "theirs").write_text("theirs")
    with pytest.raises(FileExistsError):
        files.rename_new(str(tmp_path / "ours"), str(tmp_path / "theirs"))
    assert (tmp_path / "theirs").read_text() == "theirs"
    files.rename_new(str(tmp_path / "ours"), str(tmp_path / "new"))
    (tmp_path / "folder").mkdir()
    files.rename_new(str(tmp_path / "folder"), str(tmp_path / "moved"))
    assert sorted(os.listdir(tmp_path)) == ["moved", "new", "theirs"]
    assert (tmp_path / "new").read_text() == "ours"
    assert (tmp_path / "new").stat().st_nlink == 1
    at = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(FileExistsError):
            files.rename_new("new", "theirs", at)
        files.rename_new("new", "newer", at)
    finally:
        os.close(at)
    assert sorted(os.listdir(tmp_path)) == ["moved", "newer", "theirs"]


def test_what_ours_left_empty_is_taken_and_mkdir_cannot_make_its_mark(path):
    os.mkdir(path, 0o7777)
    assert not os.stat(path).st_mode & MARK
    os.chmod(path, 0o700 | MARK)
    assert Lock(path, **KIND).holder() is None
    with Lock(path, **KIND, wait=0) as lease:
        lease.check()


def test_a_service_that_may_set_no_such_bit_locks_all_the_same(path, monkeypatch):
    real = os.chmod

    def chmod(where, mode):
        if mode & stat.S_ISUID:
            raise PermissionError(1, "Operation not permitted", where)
        real(where, mode)

    monkeypatch.setattr("lifehold.local.files.HOST.chmod", chmod)
    with Lock(path, **KIND, ttl=30) as lease:
        assert not record_folders.look(Lock(path)._mechanism.files, path)[1]
        lease.check()
    assert not os.path.lexists(path)


def test_a_symbolic_link_is_neither_followed_nor_replaced(path, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    os.symlink(tmp_path / "elsewhere", path)
    with pytest.raises(InvalidArgument, match="symbolic link"):
        Lock(path, **KIND).acquire(0)
    assert os.listdir(tmp_path / "elsewhere") == []


def test_who_names_the_holder_and_wait_ends_with_it(path):
    with Child(hold_it, path) as holder:
        holder.at("held")
        told = who(path, path)
        assert (told.state, told.kind, told.holder.owner.pid) == ("held", KIND["kind"], holder.pid)
        answers = []
        waiter = threading.Thread(target=lambda: answers.append(until_free(path, path, 1e9)))
        waiter.start()
        holder.kill()
        waiter.join(60)
    assert answers[0].state in ("free", "stale")
    Lock(path, **KIND).acquire(60).release()
    assert who(path, path).state == "free"
