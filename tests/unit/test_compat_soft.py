"""lifehold.compat.filelock.SoftFileLock: filelock's file, and what ours makes of it."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
import threading
import time
import warnings

import pytest

from bell import no_sweep
from ground import needs
from lifehold import LeaseLost
from lifehold.compat.filelock import (
    AsyncFileLock,
    AsyncSoftFileLock,
    FileLock,
    SoftFileLock,
    SoftFileLockLifetimeWarning,
    Timeout,
    pidfile,
    soft,
)

pytestmark = needs("linux")


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "a.lock")


@pytest.fixture
def dead():
    """The number of a process that is gone."""
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        pass
    return child.pid


@pytest.fixture
def impatient(monkeypatch):
    """What cannot be read is left alone for a shorter time."""
    monkeypatch.setattr(soft, "MALFORMED", 0.2)


def text(pid, host=None, start=None):
    lines = [str(pid), host or pidfile.host_name(), *([] if start is None else [str(start)])]
    return "".join(f"{line}\n" for line in lines)


def write(path, content):
    with open(path, "w") as file:
        file.write(content)


def test_the_file_names_us_and_goes_with_the_release(path, tmp_path):
    lock = SoftFileLock(path)
    assert (lock.pid, lock.is_lock_held_by_us) == (None, False)
    with lock:
        with open(path) as file:
            pid, host, start, mark = file.read().split("\n", 3)
        assert (int(pid), host) == (os.getpid(), pidfile.host_name())
        assert int(start) & pidfile.LOW == pidfile.ticks_of("self")
        assert mark == " \n"
        assert (lock.pid, lock.is_lock_held_by_us) == (os.getpid(), True)
        assert os.stat(path).st_mode & 0o022 == 0
        lock.lease.check()
        assert lock.lease.token is None
    assert os.listdir(tmp_path) == []


def test_a_timeout_names_the_holder_and_what_can_be_done(path):
    with SoftFileLock(path), pytest.raises(Timeout) as caught:
        SoftFileLock(path).acquire(timeout=0.02)
    assert caught.value.holder.owner.pid == os.getpid()
    assert "break_lock()" in caught.value.__notes__[0]


def test_a_waiter_is_woken_when_the_file_goes(path, monkeypatch):
    no_sweep(monkeypatch)
    lock = SoftFileLock(path)
    lock.acquire()
    took = []

    def wait():
        with SoftFileLock(path):
            took.append(time.monotonic())

    other = threading.Thread(target=wait)
    other.start()
    time.sleep(0.3)
    began = time.monotonic()
    lock.release()
    other.join(60)
    assert took[0] - began < 30  # and not at the next of the looks that come anyway


@pytest.mark.parametrize("start", [None, 5])
def test_the_lock_of_a_dead_process_is_taken_at_once(path, dead, start):
    write(path, text(dead, start=start))
    inode = os.stat(path).st_ino
    with SoftFileLock(path, timeout=60) as lock:
        assert lock.is_lock_held_by_us
        assert os.stat(path).st_ino == inode  # no name was touched
    assert not os.path.exists(path)


def test_the_lease_of_a_dead_process_is_taken_at_once(path, dead):
    named = f"pid={dead}\nhost={pidfile.host_name()}"
    write(path, f"filelock/2\n{named}\nmode=lease\ntoken=a\nduration=30.0\n")
    with SoftFileLock(path, timeout=60) as lock:
        assert lock.is_lock_held_by_us


def test_a_number_that_another_process_has_by_now_is_dead(path):
    own = pidfile.start_of(os.getpid())
    write(path, text(os.getpid(), start=own - 1))
    with SoftFileLock(path, timeout=60):
        pass


@pytest.mark.parametrize("content", ["", "STRICT", "FOREIGN", "LIVE", "LIFEHOLD", "LEASE", "LATER"])
def test_who_may_live_is_never_robbed(path, content, impatient):
    known = {
        "STRICT": pidfile.STRICT.decode(),
        "FOREIGN": text(1, "elsewhere"),
        "LIVE": text(os.getpid(), start=pidfile.start_of(os.getpid())),
        "LEASE": f"filelock/2\npid={os.getpid()}\nhost={pidfile.host_name()}\n"
        "mode=lease\ntoken=a\n",
        "LATER": "filelock/2\npid=1\nhost=h\nmode=unheard-of\n",
        "LIFEHOLD": '{"lifehold":1,"kind":"soft"}\n',
    }
    content = known.get(content, content)
    write(path, content)
    with pytest.raises(Timeout):
        SoftFileLock(path).acquire(timeout=0.6)
    with open(path) as file:
        assert file.read() == content


def test_a_timeout_says_that_a_holder_cannot_be_probed(path):
    write(path, text(17, "elsewhere"))
    with pytest.raises(Timeout, match="pid 17 on elsewhere, which this host cannot probe"):
        SoftFileLock(path).acquire(timeout=0)


def test_what_cannot_be_read_is_replaced_when_it_stays_so(path, impatient):
    write(path, "garbage")
    inode = os.open(path, os.O_RDONLY)
    try:
        with pytest.raises(Timeout):
            SoftFileLock(path).acquire(timeout=0.05)
        with SoftFileLock(path, timeout=60) as lock:
            assert lock.is_lock_held_by_us
            assert os.stat(path).st_ino != os.fstat(inode).st_ino  # its writer may still unlink it
    finally:
        os.close(inode)


def test_a_dead_breaker_gives_back_what_it_took(path, dead, tmp_path):
    """A live holder's file lies aside, and the path names who took it and died."""
    lock = SoftFileLock(path)
    lock.acquire()
    os.rename(path, pidfile.aside(path, dead))
    write(path, text(dead))
    with pytest.raises(Timeout):
        SoftFileLock(path).acquire(timeout=0.5)
    lock.lease.check()
    lock.release()
    assert os.listdir(tmp_path) == []


def test_a_dead_breaker_that_took_from_the_dead_is_in_nobodys_way(path, dead, tmp_path):
    write(pidfile.aside(path, dead), text(dead))
    write(path, text(dead))
    with SoftFileLock(path, timeout=60):
        pass
    assert os.listdir(tmp_path) == []


def test_a_live_file_aside_keeps_what_cannot_be_read_in_its_place(path, impatient, tmp_path):
    """A breaker that gave up has left a live holder's file under its own name."""
    lock = SoftFileLock(path)
    lock.acquire()
    os.rename(path, pidfile.aside(path, os.getppid()))
    write(path, pidfile.RELEASED.decode())
    with pytest.raises(Timeout):
        SoftFileLock(path).acquire(timeout=0.6)
    lock.release()
    with SoftFileLock(path, timeout=60):
        pass


def test_a_release_while_the_file_is_taken_aside_leaves_no_live_record(path, dead):
    lock = SoftFileLock(path)
    lock.acquire()
    taken = pidfile.aside(path, dead)
    os.rename(path, taken)
    write(path, text(dead))
    lock.release()
    with open(taken, "rb") as file:
        assert file.read() == pidfile.RELEASED
    with open(path) as file:
        assert file.read() == text(dead)


def test_a_peer_that_was_faster_gets_its_file_back(path, monkeypatch, dead, tmp_path):
    write(path, "garbage")
    found = soft.look(softfile_table(), path, kind=soft.SoftLockRecord)
    os.rename(path, path + ".old")
    write(path, text(os.getpid()))
    inode = os.stat(path).st_ino
    mechanism = soft.SoftFileMechanism(path, None, softfile_table(), None)
    before = os.fstat(found.fd)
    ours = mechanism._prepared()
    mechanism._put_aside(ours)
    monkeypatch.setattr(mechanism.files, "lstat", lying_once(mechanism.files.lstat, before))
    assert not pidfile.replaced(mechanism.files, path, found, before.st_mtime, ours)
    assert os.stat(path).st_ino == inode
    ours.close()
    found.close()
    assert sorted(os.listdir(tmp_path)) == ["a.lock", "a.lock.old"]


def softfile_table():
    from lifehold.compat.filelock.system_calls import TABLE

    return TABLE


def lying_once(call, before):
    """The look before the exchange comes too early: it shows what was there before."""
    lies = [before]
    return lambda *arguments: lies.pop() if lies else call(*arguments)


def test_a_lifetime_breaks_a_live_holder_who_finds_out(path):
    holder = SoftFileLock(path)
    holder.acquire()
    os.utime(path, (time.time() - 100, time.time() - 100))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        other = SoftFileLock(path, timeout=60, lifetime=50)
    with other:
        with pytest.raises(LeaseLost):
            holder.lease.check()
        holder.release()
        other.lease.check()


@pytest.mark.parametrize("made", [SoftFileLock, AsyncSoftFileLock])
def test_a_lifetime_is_warned_of_where_it_is_given(path, made):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made(path, lifetime=5)
        made(path).lifetime = 5
        FileLock(path, lifetime=5)
    assert [each.category for each in caught] == [
        SoftFileLockLifetimeWarning,
        SoftFileLockLifetimeWarning,
        UserWarning,
    ]
    assert {each.filename for each in caught} == {__file__}


def test_a_broken_lock_is_told_to_its_holder(path):
    lock = SoftFileLock(path)
    lock.acquire()
    SoftFileLock(path).break_lock()
    with pytest.raises(LeaseLost):
        lock.lease.check()
    with SoftFileLock(path, timeout=60) as other:
        lock.release()
        other.lease.check()


@pytest.mark.parametrize("option", [{"preserve_lock_file": True}, {"on_acquired": print}])
def test_what_a_file_that_goes_cannot_keep_is_refused(path, option):
    with pytest.raises(ValueError, match=next(iter(option))):
        SoftFileLock(path, **option)


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, lambda path: os.symlink("x", path)])
def test_what_is_no_file_is_refused_and_stays(path, make):
    make(path)
    with pytest.raises(OSError, match="Errno"):
        SoftFileLock(path).acquire(timeout=1)
    assert os.path.lexists(path)


def test_the_witness_proves_a_death_in_another_pid_namespace(path):
    named = pidfile.PidFileOwner(17, "host?pidns-f0000001", 5, witness=True)
    assert pidfile.verdict(named, True, True).state == "alive"
    assert pidfile.verdict(named, False, True).state == "dead"
    assert pidfile.verdict(named, None, False).state == "unknown"
    unmarked = pidfile.PidFileOwner(17, "host?pidns-f0000001", 5)
    assert pidfile.verdict(unmarked, False, True).state == "unknown"


@pytest.mark.parametrize(
    ("node", "namespace", "name"),
    [
        ("host", None, "host"),
        ("host", 0xF0000001, "host?pidns-f0000001"),
        ("two words?", None, "two?20words?3f"),
        ("", None, "?"),
    ],
)
def test_a_host_is_spelled_as_filelock_spells_it(node, namespace, name):
    assert pidfile.spelled(node, namespace) == name


@pytest.mark.parametrize(
    "content", [b"", b"12\n", b"12\nhost", b"+1\nhost\n", b"0\nhost\n", b"1\nh\nx\n", b"\xff\nh\n"]
)
def test_a_record_that_was_cut_names_nobody(content):
    assert pidfile.read(content) is None


def without_flock(fd, operation):
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


def test_without_flock_the_native_lock_becomes_a_soft_one(path, monkeypatch, tmp_path):
    monkeypatch.setattr("fcntl.flock", without_flock)
    lock = FileLock(path)
    with pytest.warns(UserWarning, match="SoftFileLock"):
        lock.acquire()
    assert type(lock) is SoftFileLock
    assert lock.is_lock_held_by_us
    with pytest.raises(Timeout):
        SoftFileLock(path).acquire(timeout=0)
    lock.release()
    assert os.listdir(tmp_path) == []


def test_without_flock_a_task_gets_a_soft_lock_too(path, monkeypatch):
    monkeypatch.setattr("fcntl.flock", without_flock)

    async def main():
        lock = AsyncFileLock(path)
        with pytest.warns(UserWarning, match="SoftFileLock"):
            await lock.acquire()
        assert type(lock) is AsyncSoftFileLock
        await lock.release()

    asyncio.run(main())


@pytest.mark.parametrize("option", [{"fallback_to_soft": False}, {"on_acquired": print}])
def test_who_wants_no_soft_lock_gets_the_error(path, monkeypatch, option):
    monkeypatch.setattr("fcntl.flock", without_flock)
    with pytest.raises(OSError, match="Function not implemented"):
        FileLock(path, **option).acquire()


@pytest.mark.parametrize(
    ("content", "waits"),
    [("{live}\n", True), ("0\n", True), ("{gone}\n", False), ("{live}", False), ("what\n", False)],
)
def test_a_number_alone_is_another_tools_lock_while_its_process_lives(tmp_path, content, waits):
    """dotlockfile -p and liblockfile write it; filelock's rule is for what filelock may write."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    path = tmp_path / "build.lock"
    path.write_text(content.format(live=os.getppid(), gone=gone.pid))
    lock = SoftFileLock(path)
    if waits:
        with pytest.raises(Timeout):
            lock.acquire(timeout=2.8)
        assert path.read_text().strip().isdigit()
    else:
        with lock.acquire(timeout=120):
            assert lock.is_locked
