"""Who really holds a flock(2): the process that has the locked file open, whoever locked it."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ground import needs, reason
from lifehold import Lock, WouldBlock
from lifehold.local import kernel_holders, proc_locks
from lifehold.local.files import HOST
from lifehold.local.kernel_holders import holder_of
from lifehold.local.proc_locks import OpenFileScan, key_of
from lifehold.ops import foreign
from lifehold.ops.who import who
from lifehold.runtime import process
from lifehold.runtime.flock_wait import LOCK, SET_NOW, span
from patience import until

pytestmark = needs("linux", "proc")

LEAVES_A_CHILD = """
import fcntl, os, subprocess, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.set_inheritable(fd, True)
fcntl.flock(fd, fcntl.LOCK_EX)
for _ in range(int(sys.argv[2])):
    print(subprocess.Popen(["sleep", "60"], close_fds=False).pid)
"""
TAKES_A_FILE = """
import socket, sys, time
line = socket.socket(fileno=int(sys.argv[1]))
kept = socket.recv_fds(line, 1, 1)
line.send(b".")
time.sleep(60)
"""


@contextmanager
def orphans(path: str, count: int = 1) -> Iterator[list[int]]:
    """The children of a process that locked the file and has ended."""
    script = [sys.executable, "-c", LEAVES_A_CHILD, path, str(count)]
    with subprocess.Popen(script, stdout=subprocess.PIPE, text=True) as parent:
        pids = [int(parent.stdout.readline()) for _ in range(count)]
        parent.wait()
        try:
            yield [parent.pid, *pids]
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)


def key(path: str) -> proc_locks.Key:
    with open(path, "rb") as file:
        return key_of(file.fileno())


def test_the_child_that_really_holds_is_named_and_not_its_dead_parent(tmp_path):
    path = str(tmp_path / "x.lock")
    with orphans(path) as (parent, child):
        found = holder_of(HOST, path, False)
        assert (found.owner.pid, found.owner.command, found.alive) == (child, "sleep 60", "alive")
        assert f"process {parent} locked it and is gone" in found.evidence
        with pytest.raises(WouldBlock) as refusal:
            Lock(path).acquire(wait=0)
        assert refusal.value.holder.owner.pid == child
        assert f"by     pid {child} (sleep 60)" in str(refusal.value)


def test_of_several_heirs_the_oldest_is_named_and_the_others_are_listed(tmp_path):
    path = str(tmp_path / "x.lock")
    with orphans(path, 3) as (_, *children):
        found = holder_of(HOST, path, False)
        others = [pid for pid in children if pid != found.owner.pid]
        assert found.owner.pid in children
        assert all(str(pid) in found.evidence for pid in others)


def test_a_file_passed_on_by_a_living_process_names_who_has_it_now(tmp_path):
    path = str(tmp_path / "x.lock")
    left, right = socket.socketpair()
    taker = subprocess.Popen(
        [sys.executable, "-c", TAKES_A_FILE, str(right.fileno())], pass_fds=[right.fileno()]
    )
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT)
        fcntl.flock(fd, fcntl.LOCK_EX)
        socket.send_fds(left, [b"x"], [fd])
        left.recv(1)
        assert holder_of(HOST, path, False).owner.pid == os.getpid()
        os.close(fd)
        found = holder_of(HOST, path, False)
        assert found.owner.pid == taker.pid
        assert f"process {os.getpid()} locked it and passed its open file" in found.evidence
    finally:
        taker.kill()
        taker.wait()
        left.close()
        right.close()


LEADER_ENDS = """
import ctypes, os, sys, threading
from lifehold import Lock
lease = Lock(sys.argv[1], label="mine").acquire()
if sys.argv[2:] == ["removed"]:
    os.unlink(sys.argv[1])
libc = ctypes.CDLL(None)
threading.Thread(target=libc.pause).start()
print(lease.nonce, flush=True)
libc.pthread_exit(None)
"""


def test_a_process_whose_first_thread_has_ended_keeps_its_record(tmp_path):
    path = str(tmp_path / "x.lock")
    words = [sys.executable, "-c", LEADER_ENDS, path]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as holder:
        try:
            nonce = holder.stdout.readline().strip()
            until(lambda: proc_locks.stat_fields(holder.pid)[:1] == [b"Z"])
            found = holder_of(HOST, path, False)
            assert (found.owner.pid, found.owner.label, found.nonce) == (holder.pid, "mine", nonce)
            os.link(path, f"{path}.too")
            assert holder_of(HOST, f"{path}.too", False).nonce == nonce
        finally:
            holder.kill()
    assert holder_of(HOST, path, False) is None


def test_a_removed_file_is_held_by_a_process_whose_first_thread_has_ended(tmp_path):
    path = str(tmp_path / "x.lock")
    words = [sys.executable, "-c", LEADER_ENDS, path, "removed"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as holder:
        try:
            nonce = holder.stdout.readline().strip()
            until(lambda: proc_locks.stat_fields(holder.pid)[:1] == [b"Z"])
            assert process.namespace("mnt", holder.pid) == process.namespace("mnt")
            found = who(path, path)
            assert (found.state, [each.nonce for each in found.removed]) == ("suspect", [nonce])
        finally:
            holder.kill()
    assert who(path, path).state == "free"


def test_what_is_for_root_alone_of_an_ended_first_thread_is_read_of_another(tmp_path, monkeypatch):
    """As the kernel shows it to a plain user, of its own processes too."""
    path, listdir = str(tmp_path / "x.lock"), os.listdir
    words = [sys.executable, "-c", LEADER_ENDS, path]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as holder:
        shut = (f"/proc/{holder.pid}/fd", f"/proc/{holder.pid}/task/{holder.pid}/fd")

        def denied(folder="."):
            if str(folder).rstrip("/") in shut:
                raise PermissionError(13, "Permission denied")
            return listdir(folder)

        try:
            nonce = holder.stdout.readline().strip()
            until(lambda: proc_locks.stat_fields(holder.pid)[:1] == [b"Z"])
            monkeypatch.setattr(proc_locks.os, "listdir", denied)
            survey = OpenFileScan(["x.lock"], [holder.pid])
            assert (survey.hidden, len(survey.holding(key(path), "FLOCK"))) == (0, 1)
            assert proc_locks.shares_descriptors(holder.pid)
            assert holder_of(HOST, path, False).nonce == nonce
        finally:
            holder.kill()


@pytest.mark.parametrize("recorded", [False, True])
def test_who_takes_and_lets_go_again_and_again_is_named(tmp_path, monkeypatch, recorded):
    """Each of the first looks at its open files meets a moment in which it holds nothing."""
    path, misses = str(tmp_path / "x.lock"), [1, 2, 3]
    if recorded:
        with Lock(path, label="mine"):
            pass

    class Between(OpenFileScan):
        def holding(self, key, kind):
            if not misses:
                return super().holding(key, kind)
            misses.pop()
            fcntl.flock(fd, fcntl.LOCK_UN)
            try:
                return super().holding(key, kind)
            finally:
                fcntl.flock(fd, fcntl.LOCK_EX)

    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        seen = kernel_holders.look_at(HOST, path)
        monkeypatch.setattr(kernel_holders, "OpenFileScan", Between)
        found = kernel_holders.held_by(seen, seen.setters("FLOCK")[0])
    finally:
        os.close(fd)
    assert (found.pid_here, found.owner.label) == (os.getpid(), "mine" if recorded else "")
    assert "open no more" not in found.evidence


MAPS = """
import ctypes, os, sys
fd, libc = int(sys.argv[1]), ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
assert libc.mmap(None, 4096, 1, 1, fd, 0) not in (None, ctypes.c_void_p(-1).value)
os.close(fd)
print("in", flush=True)
input()
"""


@needs("all processes")
def test_a_mapping_that_keeps_a_lock_is_named_and_not_who_locked_it(tmp_path):
    path = str(tmp_path / "x.lock")
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    os.truncate(fd, 4096)
    fcntl.flock(fd, fcntl.LOCK_EX)
    with subprocess.Popen(
        [sys.executable, "-c", MAPS, str(fd)],
        pass_fds=[fd],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout.readline() == b"in\n"
        assert holder_of(HOST, path, False).owner.pid == os.getpid()
        os.close(fd)
        found = holder_of(HOST, path, False)
        assert (found.owner.pid, found.pid_here) == (child.pid, child.pid)
        assert f"process {os.getpid()} locked it and has it open no more" in found.evidence
        child.communicate(b"\n")
    assert holder_of(HOST, path, False) is None


@needs("all processes")
def test_a_descriptor_on_its_way_keeps_a_lock_that_nobody_is_called_the_holder_of(tmp_path):
    path = str(tmp_path / "x.lock")
    left, right = socket.socketpair()
    with left, right, open(path, "w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        socket.send_fds(left, [b"x"], [file.fileno()])
        file.close()
        found = holder_of(HOST, path, False)
    assert (found.owner, found.alive) == (None, "alive")
    assert f"process {os.getpid()} locked it and has it open no more" in found.evidence
    assert holder_of(HOST, path, False) is None


@contextmanager
def locked_bytes(path: str) -> Iterator[int]:
    """A descriptor of a file whose bytes another open file has locked."""
    with open(path, "wb") as holder, open(path, "rb") as asker:
        fcntl.fcntl(holder, SET_NOW, span(LOCK, 0, 0))
        yield asker.fileno()


def test_the_kernel_is_asked_for_bytes_in_the_layout_of_linux_on_linux_alone(tmp_path, monkeypatch):
    with locked_bytes(str(tmp_path / "x")) as fd:
        assert foreign.bytes_in_the_way(fd).kind == "OFDLCK"
        monkeypatch.setattr(foreign.sys, "platform", "darwin")
        assert foreign.bytes_in_the_way(fd) is None


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP, errno.EIO])
def test_a_file_server_that_locks_no_bytes_hides_no_holder_of_them(tmp_path, monkeypatch, code):
    path = str(tmp_path / "x")
    with locked_bytes(path) as fd:
        seen = kernel_holders.look_at(HOST, path)

        def refuse(*_: object) -> None:
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(fcntl, "fcntl", refuse)
        found = foreign.unshown_bytes(seen, fd, foreign.ForeignFiles([path]))
    assert [each.alive for _, each in found] == (["unknown"] if code == errno.EIO else [])


def test_a_holder_found_through_another_name_of_the_file_is_found(tmp_path):
    path, other = str(tmp_path / "x.lock"), str(tmp_path / "y.lock")
    with orphans(path) as (_, child):
        os.link(path, other)
        assert holder_of(HOST, other, False).owner.pid == child


def test_an_heir_is_found_through_another_name_in_shared_memory_too():
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip(reason("linux", "no /dev/shm"))
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        path, other = f"{folder}/x.lock", f"{folder}/y.lock"
        with orphans(path) as (_, child):
            os.link(path, other)
            assert holder_of(HOST, other, False).owner.pid == child


def test_what_may_not_be_looked_into_is_counted_and_said(tmp_path, monkeypatch):
    path = str(tmp_path / "x.lock")
    listdir = os.listdir

    def denied(folder="."):
        if str(folder).endswith("/fd/"):
            raise PermissionError(13, "Permission denied")
        return listdir(folder)

    with orphans(path) as (parent, _):
        monkeypatch.setattr(proc_locks.os, "listdir", denied)
        found = holder_of(HOST, path, False)
    assert found.owner.pid == parent
    assert "a process that inherited its open file holds on" in found.evidence
    assert "processes may not be read from here" in found.evidence


def test_a_holder_that_ends_while_we_look_is_never_mistaken_for_the_next(tmp_path, monkeypatch):
    """Its line was read, then another took the lock and wrote its record."""
    path = str(tmp_path / "x.lock")
    with Lock(path):
        first = kernel_holders.look_at(HOST, path)
    looks = [first]

    def look(files, path, fd=None):
        return looks.pop() if looks else look_at(files, path, fd)

    look_at = kernel_holders.look_at
    monkeypatch.setattr(kernel_holders, "look_at", look)
    assert holder_of(HOST, path, False) is None
    looks[:] = [first] * 5
    assert "faster than can be looked" in holder_of(HOST, path, False).evidence


def test_a_record_whose_number_was_given_to_another_process_that_locks_is_not_believed(tmp_path):
    path = str(tmp_path / "x.lock")
    with Lock(path):
        pass
    content = (tmp_path / "x.lock").read_bytes()
    old = process.here()
    for field in (f'"start_ticks":{old.start_ticks}', f'"pidfd_ino":{old.pidfd_ino}'):
        key, _, number = field.partition(":")
        content = content.replace(field.encode(), f"{key}:{'7' * len(number)}".encode())
    (tmp_path / "x.lock").write_bytes(content)
    with open(path) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        found = holder_of(HOST, path, False)
    assert (found.owner.pid, found.since) == (os.getpid(), None)
    assert "it left no record" in found.evidence


def test_a_look_through_all_processes_has_an_end(tmp_path, monkeypatch):
    monkeypatch.setattr(proc_locks, "PATIENCE", -1.0)
    fd = os.open(tmp_path / "x", os.O_RDWR | os.O_CREAT)
    survey = OpenFileScan(["x"])
    assert survey.cut
    assert survey.holding(key_of(fd), "FLOCK") == []
    os.close(fd)
