"""`lifehold.look` and `lifehold.clear`: the command's verdicts and refusals in a program."""

from __future__ import annotations

import os
import subprocess
import sys
import typing

import pytest

import lifehold
import lifehold.typing as types
from ground import needs
from lifehold import InvalidArgument, Lock, connect

pytestmark = needs("linux", "proc", "all processes")


@pytest.fixture
def dead():
    """The number of a process that has ended, and is not reused yet."""
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        pass
    return child.pid


def test_a_held_lock_is_seen_and_kept(tmp_path):
    path = tmp_path / "a.lock"
    assert lifehold.look(path).state == "free"
    with Lock(path, label="import"):
        answer = lifehold.look(path)
        assert (answer.state, answer.holder.owner.label) == ("held", "import")
        assert answer.holder.alive == "alive"
        assert lifehold.clear(path).action == "kept"
    assert lifehold.look(str(path)).state == "free"


def test_what_is_stale_is_removed_and_only_told_in_a_dry_run(tmp_path, dead):
    path = tmp_path / "job.pid"
    path.write_text(f"{dead}\n")
    os.utime(path, (0, 0))
    assert lifehold.look(path).state == "stale"
    told = lifehold.clear(path, dry_run=True)
    assert (told.action, path.exists()) == ("would free", True)
    assert lifehold.clear(path).action == "freed"  # a pid file is emptied: its program may lock it
    assert lifehold.look(path).state == "free"


def test_a_bare_word_is_a_path_and_a_url_a_lock_in_a_store(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    url = f"memory:///{tmp_path}"
    with Lock("a.lock"), connect(url).lock("b"):
        assert lifehold.look("a.lock").state == "held"
        assert lifehold.look(f"{url}#b").state == "held"
        assert lifehold.clear(f"{url}#b").action == "kept"


@pytest.mark.parametrize("bad", [5, None, b"x", "", "a\0b"])
def test_a_wrong_path_is_refused(bad):
    for call in (lifehold.look, lifehold.clear):
        with pytest.raises(InvalidArgument, match="path"):
            call(bad)
    with pytest.raises(InvalidArgument, match="dry_run"):
        lifehold.clear("a.lock", dry_run="no")


def test_the_types_for_annotations_are_those_that_are_made(tmp_path):
    with Lock(tmp_path / "a.lock") as lease:
        assert type(lease) is types.Lease
        assert isinstance(lease, types.AnyLease)
    assert isinstance(connect("memory://types"), types.AnyStore)
    for name in types.__all__:
        assert getattr(types, name) is not None
    assert dir(types) == sorted(types.__all__)
    with pytest.raises(AttributeError):
        types.Nothing  # noqa: B018
    assert typing.TYPE_CHECKING is False


def test_what_is_public_is_what_dir_shows():
    shown = {name for name in dir(lifehold) if not name.startswith("__")}
    assert {"AsyncReadWriteLock", "AsyncSemaphore", "aonce", "aconnect", "look", "clear"} <= shown
    assert not shown & {"TYPE_CHECKING", "annotations", "core", "lock", "lease"}
    for name in shown:
        assert getattr(lifehold, name) is not None
