"""What nobody can read among the records of a lock hides neither its holder nor that doubt."""

from __future__ import annotations

import os
import socket

import pytest

from ground import needs
from lifehold import Lock, ReadWriteLock
from lifehold.cli.clear import is_folder
from lifehold.local import identify
from lifehold.local.files import HOST
from lifehold.ops.answer import HELD, KEPT, SUSPECT
from lifehold.ops.clear import clear
from lifehold.ops.inventory import of_folder
from lifehold.ops.who import who

pytestmark = needs("linux", "proc")


def a_socket(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path)


def a_link(path: str) -> None:
    os.symlink("/nowhere", path)


TRAPS = {"fifo": os.mkfifo, "folder": os.mkdir, "link": a_link, "socket": a_socket}
KINDS = ("folder", "directory", "generation", "soft-read-write")
GUID = "%s-%s-4%s-8%s-%s"


def taken(kind: str, path: str):
    if kind == "soft-read-write":
        return ReadWriteLock(path, kind="soft").acquire_read()
    return Lock(path, kind=kind).acquire(0)


def planted(kind: str, path: str, trap: str) -> list[str]:
    """An entry that comes before the holder's, and one that comes behind it."""
    names = []
    for digit in "0f":
        guid = GUID % tuple(digit * length for length in (8, 4, 3, 3, 12))
        name = {
            "folder": f"{path}/{guid}.json",
            "directory": f"{path}/owner-{digit * 32}",
            "generation": f"{path}/{'0' if digit == '0' else '9'}{'0' * 18}1",
            "soft-read-write": f"{path}.readers/r.{digit * 32}",
        }[kind]
        TRAPS[trap](name)
        names.append(name)
    return names


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("trap", TRAPS)
def test_an_odd_entry_hides_no_living_holder(kind, trap, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    path = f"{tmp_path}/x"
    lease = taken(kind, path)
    names = planted(kind, "x", trap)
    try:
        told = who(path, path)
        assert (told.state, told.kind) == (HELD, kind), told
        assert told.holder.owner.pid == os.getpid()
        assert [each.state for each in of_folder(str(tmp_path))] == [HELD]
        outcome = clear(path, dry_run=True)
        assert (outcome.action, outcome.answer.state) == (KEPT, HELD)
        assert not is_folder(path)
    finally:
        for name in names:
            os.rmdir(name) if trap == "folder" else os.unlink(name)
        lease.release()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("trap", TRAPS)
def test_of_an_odd_entry_alone_it_is_told_why_nobody_can_judge_it(
    kind, trap, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    path = f"{tmp_path}/x"
    (tmp_path / ("x.readers" if kind == "soft-read-write" else "x")).mkdir()
    planted(kind, "x", trap)
    told = who(path, path)
    assert (told.state, told.kind) == (SUSPECT, kind), told
    assert told.holder.evidence
    assert "damaged" not in told.note
    assert [each.state for each in of_folder(str(tmp_path))] == [SUSPECT]
    assert clear(path, dry_run=True).left
    assert kind == "soft-read-write" or identify.holder_at(HOST, path) is not None


def test_the_living_one_of_several_in_one_folder_is_its_holder(tmp_path):
    path = f"{tmp_path}/x"
    lease = Lock(path, kind="directory").acquire(0)
    for digit in "0f":
        (tmp_path / "x" / f"owner-{digit * 32}").write_text("junk")
    told = who(path, path)
    assert (told.state, told.holder.owner.pid) == (HELD, os.getpid())
    lease.release()
