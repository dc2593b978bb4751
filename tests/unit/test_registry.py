"""Kinds of lock: built in, offered in code, offered by an entry point. Arguments of the faces."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from lifehold import InvalidArgument, Lock, connect, registry
from lifehold.testing.dict_lock import MemoryLocks

BAD = [
    ({"path": ""}, "must not be empty"),
    ({"path": 5}, "not int"),
    ({"path": b"x"}, "not bytes"),
    ({"path": None}, "str"),
    ({"path": "a\0b"}, "NUL"),
    ({"path": "a/"}, "names a folder"),
    ({"path": "~/a.lock"}, "begins with ~"),
    ({"path": "~ana/a.lock"}, "begins with ~"),
    ({"path": "nosuch://h/0#x"}, "there is no store for"),
    ({"path": "x" * 5000}, "too long"),
    ({"path": "é" * 2100}, "too long: 4200 bytes"),
    ({"wait": -1}, "wait"),
    ({"wait": True}, "wait"),
    ({"max_hold": 0}, "more than 0"),
    ({"max_hold": "1"}, "max_hold"),
    ({"kind": "paper"}, "kind"),
    ({"kind": None}, "kind"),
    ({"mode": 0o1777}, "mode"),
    ({"mode": True}, "mode"),
    ({"mode": "600"}, "mode"),
    ({"mode": 0o600, "shared": True}, "not both"),
    ({"label": 5}, "label"),
    ({"cleanup": True, "record": False}, "cleanup"),
    ({"cleanup": True, "exclusive": False}, "cleanup"),
]


@pytest.mark.parametrize(("wrong", "words"), BAD, ids=lambda value: str(value)[:30])
def test_a_bad_argument_is_one_clear_error_and_leaves_nothing(wrong, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = {"path": "a.lock", **wrong}
    with pytest.raises(InvalidArgument, match=words):
        Lock(arguments.pop("path"), **arguments)
    assert list(tmp_path.iterdir()) == []


def test_making_a_lock_object_touches_no_file(tmp_path):
    Lock(tmp_path / "deep" / "a.lock", mode=0o600)
    assert list(tmp_path.iterdir()) == []


def test_folders_are_made_on_demand(tmp_path):
    with Lock(tmp_path / "deep" / "down" / "a.lock"):
        assert (tmp_path / "deep" / "down" / "a.lock").exists()


def test_a_relative_path_means_the_folder_of_the_time_it_was_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lock = Lock("sub/../a.lock")
    monkeypatch.chdir("/")
    assert lock.path == str(tmp_path / "a.lock")
    with lock:
        assert (tmp_path / "a.lock").exists()


def test_an_offered_kind_is_known_until_it_is_withdrawn():
    locks = MemoryLocks()
    withdraw = registry.offer("locks", locks.lock)
    with Lock("x", kind="locks") as lease:
        assert lease.token
    with pytest.raises(InvalidArgument, match="exists already"):
        registry.offer("locks", locks.lock)
    withdraw()
    withdraw()
    with pytest.raises(
        InvalidArgument, match="kind must be one of auto, directory, folder, generation, kernel"
    ):
        Lock("x", kind="locks")
    for built_in in ("kernel", "auto"):
        with pytest.raises(InvalidArgument, match="choose another name"):
            registry.offer(built_in, locks.lock)


def test_a_kind_of_an_installed_package_is_found_by_its_entry_point(tmp_path, monkeypatch):
    folder = tmp_path / "paper-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: paper\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[lifehold.kinds]\npaper = paper_kind:make\n")
    Path(tmp_path, "paper_kind.py").write_text(
        "from lifehold.testing.dict_lock import MemoryLocks\nmake = MemoryLocks().lock\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        with Lock("x", kind="paper") as lease:
            assert lease.token
        with pytest.raises(InvalidArgument, match=r"auto, .*paper"):
            Lock("x", kind="stone")
    finally:
        registry._made.pop("paper", None)


WRONG = """
def raises(*given, **options):
    raise RuntimeError("boom")

def none(*given, **options):
    pass

seven = 7
"""


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("wrong_kind:raises", "RuntimeError: boom"),
        ("wrong_kind:none", "NoneType"),
        ("wrong_kind:seven", "int"),
        ("wrong_kind:missing", "AttributeError"),
        ("no_such_module:make", "ModuleNotFoundError"),
    ],
)
def test_an_entry_point_that_does_it_wrong_is_named_with_its_package(
    value, said, tmp_path, monkeypatch
):
    folder = tmp_path / "wrong-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: wrong\nVersion: 1.0\n")
    groups = [f"[lifehold.{group}]\nwrong = {value}\n" for group in ("kinds", "stores")]
    (folder / "entry_points.txt").write_text("\n".join(groups))
    Path(tmp_path, "wrong_kind.py").write_text(WRONG)
    monkeypatch.syspath_prepend(str(tmp_path))
    for ask in (
        lambda: Lock("x", kind="wrong"),
        lambda: connect("wrong://host"),
        lambda: Lock("wrong://host#name").acquire(),
    ):
        with pytest.raises(InvalidArgument, match=re.escape(f"'wrong' = {value} of wrong")) as told:
            ask()
        assert said in str(told.value)
    registry._made.pop("wrong", None)


def test_the_old_name_of_the_lock_in_a_dict_is_the_same_module():
    from lifehold.testing import dict_lock, memory

    assert memory is dict_lock
    assert importlib.import_module("lifehold.testing.memory").MemoryLocks is MemoryLocks
