"""`lifehold who` and `lifehold ls` on locks that are kept in folders: those of kind "directory" and
"folder", and the readers, the writer and the waiting writer of a reader/writer lock."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path

import jsonschema
import pytest

from lifehold import Lock, ReadWriteLock
from lifehold.cli.main import main
from patience import until

SCHEMA = json.loads(
    (Path(__file__).parents[2] / "docs/reference/who.schema.json").read_text(encoding="utf-8")
)


@pytest.fixture
def who(capfd):
    """The answer of `who` for programs, which keeps the schema, and its status."""

    def ask(path):
        capfd.readouterr()
        code = main(["who", "--json", str(path)])
        answer = json.loads(capfd.readouterr().out)
        jsonschema.validate(answer, SCHEMA)
        return code, answer["locks"][0]

    return ask


@pytest.fixture
def ls(capfd):
    """Name and state of each lock that `ls` shows of a folder."""

    def ask(folder):
        capfd.readouterr()
        assert main(["ls", "--json", str(folder)]) == 0
        found = json.loads(capfd.readouterr().out)["locks"]
        return {Path(each["path"]).name: each["state"] for each in found}

    return ask


@pytest.mark.parametrize("kind", ["soft", "link", "generation", "directory", "folder"])
def test_a_held_lock_of_every_kind_is_in_the_list(tmp_path, ls, kind):
    with Lock(tmp_path / "x", kind=kind):
        assert ls(tmp_path) == {"x": "held"}


@pytest.mark.parametrize("kind", ["directory", "folder"])
def test_a_held_folder_with_a_plain_name_is_in_the_list(tmp_path, monkeypatch, capfd, kind):
    monkeypatch.setenv("LIFEHOLD_DIR", str(tmp_path))
    with Lock(tmp_path / "nightly.lock", kind=kind):
        assert main(["ls", "--names"]) == 0
        assert capfd.readouterr().out == "nightly\n"


def test_a_folder_of_somebodys_files_is_in_no_list(tmp_path, ls):
    for name in ("data", "data.readers", ".readers"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "r.txt").write_text("mine")
    assert ls(tmp_path) == {}


@pytest.mark.parametrize("ttl", [None, 30.0])
def test_readers_are_all_named(tmp_path, who, ls, ttl):
    lock = ReadWriteLock(tmp_path / "config", kind="soft", ttl=ttl)
    with lock.reading():
        other = []
        thread = threading.Thread(target=lambda: other.append(lock.acquire_read()))
        thread.start()
        thread.join()
        code, answer = who(lock.path)
        assert (code, answer["state"], answer["kind"]) == (0, "held", "soft-read-write")
        pids = {each["owner"]["pid"] for each in [answer["holder"], *answer["others"]]}
        assert pids == {os.getpid()}
        assert len(answer["others"]) == 1
        assert "2 readers" in answer["note"]
        assert "reader" in answer["holder"]["evidence"]
        assert ls(tmp_path) == {"config": "held"}
        other[0].release()
    assert who(lock.path)[0] == 1


def test_a_writer_is_named_and_so_is_one_that_waits_for_readers(tmp_path, who, ls):
    lock = ReadWriteLock(tmp_path / "config", kind="soft")
    with lock.writing() as lease:
        code, answer = who(lock.path)
        assert (code, answer["waiting"]) == (0, [])
        assert answer["holder"]["token"] == lease.token
        assert "a writer" in answer["note"]
    with lock.reading():
        waiter = threading.Thread(target=lambda: lock.acquire_write(60).release())
        waiter.start()
        until(lambda: "a writer waits" in str(who(lock.path)[1]["note"]))  # not its first try
        code, answer = who(lock.path)
        assert (code, answer["state"]) == (0, "held")
        assert answer["waiting"][0] | {"command": ""} == {
            "pid": os.getpid(), "kind": "claim", "exclusive": True, "command": ""
        }  # fmt: skip
        assert "a writer waits" in answer["note"]
        assert ls(tmp_path) == {"config": "held"}
    waiter.join(60)
    assert not waiter.is_alive()


def test_readers_that_are_gone_are_stale(tmp_path, who):
    lock = ReadWriteLock(tmp_path / "config", kind="soft")
    ready, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        lease = ReadWriteLock(lock.path, kind="soft").acquire_read()
        os.write(told, b"x")
        signal.pause()
        os._exit(bool(lease))
    assert os.read(ready, 1) == b"x"
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    for fd in (ready, told):
        os.close(fd)
    code, answer = who(lock.path)
    assert (code, answer["state"], answer["holder"]["owner"]["pid"]) == (3, "stale", pid)
    lock.acquire_write(0).release()
    assert who(lock.path)[0] == 1
