"""`lifehold.compat.lockfolder`: its names, and what is safe here that was not."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
import uuid

import pytest

from ground import needs
from lifehold import LifeholdError, Lock, SystemRefused, WouldBlock
from lifehold.compat import lockfolder
from lifehold.runtime.process import began_at, here, look

pytestmark = needs("linux")
# The one that runs the original, with the package installed; CONTRIBUTING.md.
ORIGINAL = os.environ.get("LOCKFOLDER_PYTHON", "")


@pytest.fixture
def folder(tmp_path):
    yield tmp_path / "bids"
    if lockfolder.have_lock(tmp_path / "bids"):
        lockfolder.unlock(tmp_path / "bids")


def bid_of(folder, pid, created):
    folder.mkdir(exist_ok=True)
    path = folder / f"{uuid.uuid4()}.json"
    path.write_text(json.dumps({"PID": pid, "CREATED": created}))
    return path


def test_the_round_of_the_readme_works_with_either_name(folder):
    for begin in (lockfolder.init, lockfolder.setup):
        begin()
        assert lockfolder.lock(folder)
        assert lockfolder.have_lock(folder)
        assert not lockfolder.in_use(folder)
        lockfolder.unlock(folder)
        assert not lockfolder.have_lock(folder)
    assert os.listdir(folder) == []


def test_a_bid_is_what_lockfolder_reads(folder):
    assert lockfolder.lock(folder)
    (name,) = os.listdir(folder)
    assert str(uuid.UUID(name.removesuffix(".json"))) + ".json" == name
    found = json.loads((folder / name).read_text())
    assert found["PID"] == os.getpid()
    assert found["CREATED"] == int(began_at(here().start_ticks))


def test_two_threads_never_have_it_both(folder):
    assert lockfolder.lock(folder)
    seen = []

    def other():
        seen.append((lockfolder.lock(folder), lockfolder.have_lock(folder)))
        seen.append(lockfolder.in_use(folder))
        lockfolder.unlock(folder)  # not its own

    thread = threading.Thread(target=other)
    thread.start()
    thread.join(90)
    assert seen == [(False, False), True]
    assert lockfolder.have_lock(folder)
    assert lockfolder.lock(folder)  # the same thread has it already


def test_a_thread_that_ended_takes_its_lock_along_into_nobodys_hands(folder):
    seen = []
    for _ in range(3):
        thread = threading.Thread(target=lambda: seen.append(lockfolder.lock(folder)))
        thread.start()
        thread.join(90)  # its number is given to the next one
    assert seen == [True, False, False]
    for key in list(lockfolder._held):
        lockfolder._held.pop(key).release()


@needs("fork")
def test_a_forked_child_has_nothing_of_its_parents(folder):
    assert lockfolder.lock(folder)
    child = os.fork()
    if child == 0:
        had, got = lockfolder.have_lock(folder), lockfolder.lock(folder)
        lockfolder.unlock(folder)
        os._exit(2 * had + got)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert lockfolder.have_lock(folder)


@needs("all processes")
def test_another_users_live_bid_keeps_us_out_and_a_dead_one_goes(folder):
    mine = look(os.getpid()).start_ticks
    live = bid_of(folder, os.getpid(), int(began_at(mine)))
    assert not lockfolder.lock(folder)
    assert lockfolder.in_use(folder)
    assert not lockfolder.challenge(live)
    live.unlink()
    dead = bid_of(folder, 2**22 - 2, 1)
    assert lockfolder.challenge(dead)
    assert lockfolder.challenge(dead)  # gone
    bid_of(folder, 2**22 - 2, 1)
    assert lockfolder.lock(folder)
    assert len(os.listdir(folder)) == 1


def test_a_half_written_bid_is_a_rival_and_no_exception(folder):
    folder.mkdir()
    path = folder / f"{uuid.uuid4()}.json"
    with path.open("w") as file:
        file.write('{"PID"')
        file.flush()
        assert not lockfolder.lock(folder)
        assert lockfolder.in_use(folder)
    path.write_text("")
    assert lockfolder.lock(folder)  # empty, and nobody writes it


@needs("all processes")
@pytest.mark.parametrize("name", ["notes.txt", "__init__.py", "conf.json", "sub"])
def test_what_is_no_bid_is_never_removed(folder, name):
    path = bid_of(folder, 2**22 - 2, 1).rename(folder / name)
    assert not lockfolder.challenge(path)
    path.write_text("")
    assert not lockfolder.challenge(path)
    assert os.listdir(folder) == [name]


def test_what_cannot_be_read_stands_for_all_that_is_known(folder):
    folder.mkdir()
    os.mkfifo(folder / f"{uuid.uuid4()}.json")
    (bid,) = folder.iterdir()
    assert lockfolder.in_use(folder)
    assert not lockfolder.challenge(bid)
    assert bid.is_fifo()


@pytest.mark.parametrize("odd", ["a\0b", "\ud800", "", "x" * 256, "x/" * 3000 + "y", b"bytes", 5])
@pytest.mark.parametrize("call", ["lock", "in_use", "have_lock", "unlock", "challenge"])
def test_what_names_no_folder_is_refused_as_by_a_lock(tmp_path, monkeypatch, call, odd):
    monkeypatch.chdir(tmp_path)
    if call == "challenge" and isinstance(odd, str) and odd:
        odd += f"/{uuid.uuid4()}.json"
    try:
        answer = getattr(lockfolder, call)(odd)
    except LifeholdError:
        answer = None
    assert not answer


@pytest.mark.skipif(sys.platform != "linux", reason="a folder in use is not removed elsewhere")
def test_a_lock_is_given_back_when_the_working_folder_is_gone(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # and back, in the end
    (tmp_path / "work").mkdir()
    os.chdir(tmp_path / "work")
    assert lockfolder.lock(folder)
    (bid,) = folder.iterdir()
    (tmp_path / "work").rmdir()
    assert lockfolder.have_lock(folder)
    assert not lockfolder.in_use(folder)
    assert not lockfolder.challenge(bid)
    lockfolder.unlock(folder)
    assert os.listdir(folder) == []
    for call in (lockfolder.lock, lockfolder.have_lock, lockfolder.in_use, lockfolder.unlock):
        with pytest.raises(SystemRefused, match="working folder has been removed"):
            call("bids")


@pytest.mark.parametrize("spelling", ["bids/", "./bids", "../here/bids//"])
def test_all_spellings_of_a_folder_are_one_lock(tmp_path, monkeypatch, spelling):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert lockfolder.lock(spelling)
    assert lockfolder.have_lock("bids")
    lockfolder.unlock("bids")
    assert os.listdir("bids") == []


def test_to_unlock_twice_is_told_and_no_error(folder, caplog):
    assert lockfolder.lock(folder)
    lockfolder.unlock(folder)
    with caplog.at_level(logging.WARNING, "lifehold"):
        lockfolder.unlock(folder)
    assert "does not have it" in caplog.text


def test_a_lock_whose_bid_was_removed_is_lost(folder, caplog):
    assert lockfolder.lock(folder)
    (name,) = os.listdir(folder)
    (folder / name).unlink()
    with caplog.at_level(logging.WARNING, "lifehold"):
        assert not lockfolder.have_lock(folder)
    assert "lost" in caplog.text


def test_it_is_kind_folder_on_the_same_files(folder):
    assert lockfolder.lock(str(folder))
    with pytest.raises(WouldBlock):
        Lock(folder, kind="folder").acquire(0)
    lockfolder.unlock(folder)
    with Lock(folder, kind="folder", wait=0):
        assert not lockfolder.lock(folder)


REAL = """
import pathlib, sys
from lockfolder import lockfolder
lockfolder.setup()
path = pathlib.Path(sys.argv[1])
print(lockfolder.lock(path), lockfolder.in_use(path), flush=True)
sys.stdin.readline()
"""


@pytest.mark.skipif(not ORIGINAL, reason="needs LOCKFOLDER_PYTHON")
def test_the_original_and_ours_exclude_each_other(folder):
    folder.mkdir()

    def original():
        return subprocess.Popen([ORIGINAL, "-c", REAL, str(folder)], text=True,
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip

    assert lockfolder.lock(folder)
    with original() as peer:
        assert peer.stdout.readline() == "False True\n"
    lockfolder.unlock(folder)
    with original() as peer:
        assert peer.stdout.readline() == "True False\n"
        assert not lockfolder.lock(folder)
        assert lockfolder.in_use(folder)
        peer.kill()
        peer.wait(timeout=90)
        assert lockfolder.lock(folder)
