"""kind="folder" in real processes: killed at each call, in line, beside bids of all sorts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from crash.scene import hold, until
from crash.terrain import folder_for_all
from ground import needs
from lifehold import InvalidArgument, LeaseLost, Lock, UnsafeGround, WouldBlock
from lifehold.cli.wait import until_free
from lifehold.local.ground import MountInfo
from lifehold.ops.who import who
from lifehold.runtime import process
from lifehold.runtime.process import began_at
from lifehold.testing.crash import CALLS, Child, point, points_at_calls

KIND = {"kind": "folder"}
GUID = "0674ad1c-456d-41fe-8246-904f69bbc934.json"
GONE = 4194302  # no process has this number: the last one that Linux gives is rarely in use


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "bids here")


def bids_in(path):
    return [name for name in os.listdir(path) if name.endswith(".json")]


def post(path, content, name=GUID):
    os.makedirs(path, exist_ok=True)
    Path(path, name).write_bytes(content)


def of_lockfolder(pid, created):
    return json.dumps({"PID": pid, "CREATED": created}).encode()


def stop_at_every_call(path):
    points_at_calls([*CALLS, "rename", "listdir"])
    lock = Lock(path, **KIND)
    for _ in range(2):
        lease = lock.acquire()
        lease.check()
        lease.release()


def test_a_kill_at_any_call_lets_the_next_one_in_within_50_ms(path):
    with Child(stop_at_every_call, path) as child:
        while child.step():
            pass
        assert child.end().well, child.end().error
        names = child.passed
    lags, last = [], 0
    assert len(names) > 40
    for number in range(1, len(names) + 1):
        with Child(stop_at_every_call, path) as child:
            for _ in range(number):
                child.step()
            child.kill()
        began = time.monotonic()
        with Lock(path, **KIND, wait=60) as lease:
            lags.append(time.monotonic() - began)
            assert lease.token > last, f"killed at {names[number - 1]}"
            last = lease.token
        assert not os.path.isdir(path) or not bids_in(path), f"killed at {names[number - 1]}"
    assert min(lags) < 0.05, lags  # the rest is other work of the machine


def hold_it(path):
    hold(path, **KIND)


def wait_for_it(path):
    point("up")
    with Lock(path, **KIND, wait=120) as lease:
        point("in", lease.token)


def test_a_killed_holder_and_a_killed_waiter_hold_up_nobody(path):
    with (
        Child(hold_it, path) as holder,
        Child(wait_for_it, path) as first,
        Child(wait_for_it, path) as second,
    ):
        holder.at("held")
        for number, child in enumerate((first, second), 2):
            child.at("up")
            child.go()
            until(lambda number=number: len(bids_in(path)) == number)
        first.kill()
        holder.kill()
        second.at("in")


def test_who_asked_first_is_served_first(path):
    served, threads = [], []
    with Lock(path, **KIND):
        for number in range(5):
            threads.append(threading.Thread(target=serve, args=(path, served, number)))
            threads[-1].start()
            until(lambda number=number: len(bids_in(path)) == number + 2)
            time.sleep(0.002)  # its ticket is chosen by then, or it has asked at the same time
    for thread in threads:
        thread.join()
    assert served == sorted(served)


def serve(path, served, number):
    with Lock(path, **KIND):
        served.append(number)


def test_the_holder_is_named_and_a_waiter_is_not_taken_for_it(path):
    with Lock(path, **KIND) as lease:
        waiter = threading.Thread(target=serve, args=(path, [], 0))
        waiter.start()
        until(lambda: len(bids_in(path)) == 2)
        holder = Lock(path, **KIND).holder()
        assert (holder.token, holder.evidence) == (lease.token, "kernel witness")
    waiter.join()
    assert Lock(path, **KIND).holder() is None


def test_a_waiter_that_gives_up_leaves_no_bid(path):
    with Lock(path, **KIND) as lease:
        for wait in (0, 0.02):
            with pytest.raises(Exception, match="could not acquire"):
                Lock(path, **KIND).acquire(wait)
        assert len(bids_in(path)) == 1
        lease.check()
    assert bids_in(path) == []


# ---- bids of all sorts -----------------------------------------------------------------------------


def test_a_live_bid_of_lockfolder_is_waited_for_and_a_dead_one_removed(path):
    here = process.here()
    mine = of_lockfolder(here.pid, int(began_at(here.start_ticks)))
    post(path, mine)
    with pytest.raises(WouldBlock) as caught:
        Lock(path, **KIND).acquire(0)
    assert (caught.value.holder.owner.pid, caught.value.holder.alive) == (here.pid, "alive")
    assert Path(path, GUID).read_bytes() == mine
    post(path, of_lockfolder(GONE, 1))
    with Lock(path, **KIND, wait=0) as lease:
        lease.check()
    assert bids_in(path) == []


def test_a_recycled_number_is_dead_and_a_clock_that_was_set_is_no_proof(path):
    here = process.here()
    began = int(began_at(here.start_ticks))
    post(path, of_lockfolder(here.pid, began - 1000))
    os.utime(Path(path, GUID), (began - 900, began - 900))  # made before this process began
    Lock(path, **KIND).acquire(0).release()
    assert bids_in(path) == []
    for created, written_at in ((began - 1000, began + 50), (began + 1000, began + 1001)):
        post(path, of_lockfolder(here.pid, created))
        os.utime(Path(path, GUID), (written_at, written_at))
        with pytest.raises(WouldBlock, match="the clock was set"):
            Lock(path, **KIND).acquire(0)


@pytest.mark.parametrize("content", [b"", b"\0" * 1024], ids=["empty", "lost to the power"])
def test_an_empty_bid_is_removed_once_nobody_has_it_open(path, content):
    post(path, content)
    with Path(path, GUID).open("a") as writer:  # as the original has it, between two steps
        with pytest.raises(WouldBlock, match="an empty bid"):
            Lock(path, **KIND).acquire(0)
        writer.flush()
        assert bids_in(path) == [GUID]
    with Lock(path, **KIND, wait=60) as lease:
        lease.check()
        assert GUID not in bids_in(path)


RUBBISH = [b"{", b"[]", b'{"PID": "x", "CREATED": 1}', b'{"PID": -4, "CREATED": 1}', b"\xff" * 99,
           b'{"PID": 1}', b'{"PID": 99999999999, "CREATED": 1}', b"[" * 5000,
           b'{"lifehold":2,"token":1}']  # fmt: skip


@pytest.mark.parametrize("content", RUBBISH)
def test_what_cannot_be_read_as_a_bid_is_never_stale(path, content):
    post(path, content)
    with pytest.raises(WouldBlock) as caught:
        Lock(path, **KIND).acquire(0)
    assert caught.value.holder.alive in ("unknown", "alive")
    assert Path(path, GUID).read_bytes() == content
    assert bids_in(path) == [GUID]


def test_a_folder_with_the_name_of_a_bid_is_named_and_left_alone(path):
    name = GUID
    os.makedirs(f"{path}/{name}")
    with pytest.raises(WouldBlock) as caught:
        Lock(path, kind="folder").acquire(0)
    assert name in str(caught.value)
    assert "remove it" in str(caught.value)
    assert os.listdir(path) == [name]


def test_a_bid_of_another_host_is_suspect_and_left_alone(path):
    with Lock(path, **KIND):
        (name,) = bids_in(path)
        content = Path(path, name).read_bytes()
    ground = b'"ground":"' + content.partition(b'"ground":"')[2].partition(b'"')[0] + b'"'
    far = content.replace(ground, b'"ground":"nfs4"').replace(b'"witness":true', b'"witness":null')
    post(path, far)
    with pytest.raises(WouldBlock, match="shared file system") as caught:
        Lock(path, **KIND).acquire(0)
    assert caught.value.holder.alive == "unknown"
    assert Path(path, GUID).read_bytes() == far


@pytest.mark.parametrize("name", ["README", "config.json", ".hidden.json", "a.json.bak"])
def test_other_files_in_the_folder_are_left_alone_and_hinder_nobody(path, name):
    post(path, b"data", name)
    with Lock(path, **KIND, wait=0) as lease:
        lease.check()
    assert Path(path, name).read_bytes() == b"data"


@pytest.mark.parametrize(
    ("name", "kind"), [("owner-" + "7" * 32, "directory"), ("7" * 20, "generation")]
)
def test_a_folder_of_another_kind_is_refused_and_both_are_named(path, name, kind):
    post(path, b"{}", name)
    with pytest.raises(UnsafeGround, match=kind):
        Lock(path, **KIND).acquire(0)


def test_a_file_where_the_folder_should_be_is_refused(path):
    Path(path).write_text("data")
    with pytest.raises(InvalidArgument, match="is a file"):
        Lock(path, **KIND).acquire(0)


def test_a_file_server_is_refused_with_the_kind_that_works_there(path, monkeypatch):
    monkeypatch.setattr("lifehold.local.record_lock.ground_of", lambda _: MountInfo("nfs4", ""))
    with pytest.raises(UnsafeGround, match="kind='directory'"):
        Lock(path, **KIND).acquire(0)


def test_a_ttl_is_refused(path):
    with pytest.raises(InvalidArgument, match="takes no ttl"):
        Lock(path, **KIND, ttl=5)


def test_a_removed_bid_is_told(path):
    lease = Lock(path, **KIND).acquire()
    os.unlink(Path(path, bids_in(path)[0]))
    with pytest.raises(LeaseLost):
        lease.check()
    with pytest.raises(LeaseLost):
        lease.release()


def test_a_broken_holder_is_told_and_its_late_release_hits_nobody(path):
    robbed = Lock(path, **KIND).acquire()
    assert Lock(path, **KIND).break_("the night shift ended").token == robbed.token
    with Lock(path, **KIND, wait=0) as successor:
        with pytest.raises(LeaseLost):
            robbed.release()
        successor.check()


@needs("root")
def test_who_waits_behind_a_bid_that_was_broken_gets_in(path):
    lease, came = Lock(path, kind="folder").acquire(), []
    waiter = threading.Thread(target=lambda: came.append(Lock(path, kind="folder").acquire(60)))
    waiter.start()
    while len(os.listdir(path)) < 2:
        pass
    Lock(path, kind="folder").break_("it hangs")
    waiter.join(60)
    assert came[0].token > lease.token
    with pytest.raises(LeaseLost):
        lease.release()
    came[0].release()
    assert os.listdir(path) == []


def test_two_users_share_it():
    with folder_for_all(0o777) as folder:
        path = str(folder / "bids here")
        os.mkdir(path)
        os.chmod(path, 0o777)
        with Child(as_user, path, 65534) as child:
            child.at("held")
            with pytest.raises(WouldBlock):
                Lock(path, **KIND, shared=True).acquire(0)
            child.kill()
        Lock(path, **KIND, shared=True).acquire(60).release()


def as_user(path, user):
    os.setgid(user)
    os.setuid(user)
    hold(path, **KIND, shared=True)


def test_a_stopped_holder_is_waited_for(path):
    with Child(hold_it, path) as holder:
        holder.at("held")
        os.kill(holder.pid, signal.SIGSTOP)
        with pytest.raises(WouldBlock):
            Lock(path, **KIND).acquire(0)
        os.kill(holder.pid, signal.SIGCONT)


# ---- the original ----------------------------------------------------------------------------------

ORIGINAL = """
import os, pathlib, sys, time
from lockfolder import lockfolder
lockfolder.setup()
path = pathlib.Path(sys.argv[1])
print(lockfolder.lock(path), flush=True)
sys.stdin.readline()
"""


def original():
    """The interpreter that has lockfolder: ours, or that which LOCKFOLDER_PYTHON names."""
    return os.environ.get("LOCKFOLDER_PYTHON", sys.executable)


def has_original():
    probe = [original(), "-c", "import lockfolder.lockfolder"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


def test_the_original_and_ours_exclude_each_other(path):
    if not has_original():
        pytest.skip("needs lockfolder 1.0.2, in the interpreter that LOCKFOLDER_PYTHON names")
    os.mkdir(path)

    def start():
        return subprocess.Popen(
            [original(), "-c", ORIGINAL, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    with Lock(path, **KIND), start() as peer:
        assert peer.communicate(b"\n", 20)[0] == b"False\n"
    with start() as peer:
        assert peer.stdout.readline() == b"True\n"
        with pytest.raises(WouldBlock):
            Lock(path, **KIND).acquire(0)
        peer.kill()
    with Lock(path, **KIND, wait=60) as lease:
        lease.check()


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
