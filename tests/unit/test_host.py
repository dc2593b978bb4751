"""`of_host` shows every kernel lock of this machine, by its path where one is seen."""

from __future__ import annotations

import fcntl
import os
import struct

import pytest

from ground import needs
from lifehold import Lock
from lifehold.core.errors import SystemRefused
from lifehold.local.ground import MountInfo
from lifehold.local.proc_locks import KernelLine, Key
from lifehold.ops import inventory
from lifehold.ops.answer import HELD

pytestmark = needs("linux", "proc", "all processes")
OFD = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)


@pytest.fixture(autouse=True)
def few_places(tmp_path, monkeypatch):
    """The machine's own folders may be full: one of ours stands for them."""
    usual = tmp_path / "usual"
    usual.mkdir()
    monkeypatch.setenv("LIFEHOLD_DIR", str(tmp_path / "names"))
    monkeypatch.setattr(inventory, "PLACES", ((str(usual), True),))
    monkeypatch.setattr(inventory, "SESSIONS", "/no/such/folder")
    return usual


def at(view, path):
    return [each for each in view.answers if each.name == str(path)]


@pytest.mark.parametrize("kind", ["flock", "fcntl", "ofd"])
def test_a_lock_in_a_folder_that_nobody_named_is_found_by_who_has_it_open(kind, tmp_path):
    path = tmp_path / "far" / "data"
    path.parent.mkdir()
    with open(path, "w") as file:
        if kind == "flock":
            fcntl.flock(file, fcntl.LOCK_EX)
        elif kind == "fcntl":
            fcntl.lockf(file, fcntl.LOCK_EX)
        else:
            fcntl.fcntl(file, fcntl.F_OFD_SETLK, OFD)
        (answer,) = at(inventory.of_host(), path)
        assert len(at(inventory.of_host(), path)) == 1  # to look has not dropped it
    assert (answer.state, answer.kind) == (HELD, kind)
    assert answer.holder.pid_here == os.getpid()


def test_a_lock_file_that_was_made_without_a_name_is_shown_by_its_path(tmp_path):
    path = tmp_path / "soft.lock"
    with Lock(path, kind="soft"):
        view = inventory.of_host()
    (answer,) = at(view, path)
    assert (answer.state, answer.holder.pid_here) == (HELD, os.getpid())
    assert [each.name for each in view.answers if each.name.startswith(f"{tmp_path}/#")] == []


def test_a_plain_name_that_is_locked_is_shown_once_also_where_nobody_is_seen(tmp_path, monkeypatch):
    with Lock(tmp_path / "names" / "job.lock"):
        monkeypatch.setattr(inventory, "OpenFileScan", lambda *_, **__: Blind())
        view = inventory.of_host()
    assert [each.state for each in at(view, "job")] == [HELD]
    locked = os.stat(tmp_path / "names" / "job.lock").st_ino
    assert not [each for each in view.answers if each.name.startswith(f"inode {locked} ")]


class Blind:
    """Sees no open file, as one user those of another."""

    def holding(self, *_):
        return []


def test_a_locked_file_that_was_removed_is_shown_with_what_that_means(tmp_path):
    path = tmp_path / "a"
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        path.unlink()
        (answer,) = at(inventory.of_host(), path)
    assert (answer.state, answer.note) == (HELD, inventory.REMOVED)
    assert answer.holder.pid_here == os.getpid()


def test_a_locked_file_of_a_file_server_is_named_and_not_asked(tmp_path, monkeypatch):
    path = tmp_path / "a"
    real, look = inventory.place_of_path, inventory._keys_at

    def place(asked):
        return MountInfo("nfs4", "0:99") if asked == str(path) else real(asked)

    def opened(asked, inodes):
        assert asked != str(path)
        return look(asked, inodes)

    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        monkeypatch.setattr(inventory, "place_of_path", place)
        monkeypatch.setattr(inventory, "_keys_at", opened)
        (answer,) = at(inventory.of_host(), path)
    assert answer.state == HELD
    assert "which was not asked" in answer.note


def test_a_lock_that_has_no_path_here_is_counted_and_said(monkeypatch):
    line = KernelLine("FLOCK", True, 0, False, Key("9:99", 424242))
    tables = [{line.key: [line]}] * 3  # one for each of its looks
    monkeypatch.setattr(inventory, "by_file", lambda: tables.pop() if tables else {})
    view = inventory.of_host()
    (answer,) = [each for each in view.answers if each.path == ""]
    assert answer.name == "inode 424242 of device 9:99"
    assert any("1 lock has no name here" in each for each in view.unseen)
    tables.append({line.key: [line]})  # and is let go of before the second look
    view = inventory.of_host()
    assert ([each for each in view.answers if each.path == ""], view.unseen) == ([], [])


def test_the_usual_places_are_looked_through_and_what_cannot_be_read_is_said(few_places):
    (few_places / "in").mkdir()
    (few_places / "in" / "SingletonLock").symlink_to("elsewhere-12")
    view = inventory.of_host()
    assert [each.family for each in at(view, few_places / "in" / "SingletonLock")] == ["chromium"]
    assert view.looked == [str(few_places)]
    assert not any("could not be read" in each for each in view.unseen)


def test_folders_that_could_not_be_read_are_named_and_many_are_counted():
    (told,) = inventory._unseen(False, 0, ["/a", "/b", "/c", "/d", "/e\n"])
    assert told == "could not be read: '/a', '/b', '/c' and 2 more folders"


def test_a_programs_own_fcntl_lock_is_not_dropped_by_a_look_at_its_folder(tmp_path):
    """To close any descriptor of the file would drop it; `Watch` looks from inside a program."""
    path = tmp_path / "a.lock"
    with open(path, "w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        for _ in range(2):
            (answer,) = inventory.of_folder(str(tmp_path))
            assert (answer.state, answer.kind) == (HELD, "fcntl")


def test_a_plain_name_behind_a_symbolic_link_is_shown_once(few_places, tmp_path, monkeypatch):
    (few_places / "names").mkdir()
    (tmp_path / "names").symlink_to(few_places / "names")
    (few_places / "names" / "job.lock").touch()
    ours = [each for each in inventory.of_host().answers if each.path.startswith(str(tmp_path))]
    assert [each.name for each in ours if each.path.endswith("/job.lock")] == ["job"]


def test_a_user_without_a_folder_for_plain_names_sees_the_rest(few_places, monkeypatch):
    def refused():
        raise SystemRefused("no home")

    monkeypatch.setattr(inventory, "names", refused)
    (few_places / "SingletonLock").symlink_to("elsewhere-12")
    assert at(inventory.of_host(), few_places / "SingletonLock")
