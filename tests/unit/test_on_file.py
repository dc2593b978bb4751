"""The lock of a file that is open already: flock on that descriptor, once in a process."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import warnings

import pytest

from ground import needs
from lifehold import InvalidArgument, LeaseLost, Lock, SystemRefused, Timeout, WouldBlock
from lifehold.compat import portalocker, zc_lockfile

pytestmark = needs("linux")


@pytest.fixture
def file(tmp_path):
    with (tmp_path / "data.txt").open("w+") as found:
        yield found


def is_free(file):
    with open(file.name) as other:
        try:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


@pytest.mark.parametrize("how", ["file", "descriptor"])
def test_it_excludes_flock_and_is_excluded_by_it(how, file):
    lock = Lock.on_file(file if how == "file" else file.fileno())
    with lock as lease:
        assert not is_free(file)
        assert (lease.token, lease.held) == (None, True)
        assert "nothing is written" in lease.token_reason
        lease.check()
    assert is_free(file)
    with open(file.name) as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert lock.try_acquire() is None
        with pytest.raises(Timeout):
            lock.acquire(wait=0.01)
    assert lock.path == file.name
    assert os.path.getsize(file.name) == 0


def test_one_description_is_granted_once(file):
    copy = os.dup(file.fileno())
    try:
        with Lock.on_file(file):
            assert Lock.on_file(copy).try_acquire() is None
            assert Lock.on_file(file, exclusive=False).try_acquire() is None
            with pytest.raises(WouldBlock):
                Lock.on_file(file).acquire(wait=0)
            assert not is_free(file)
    finally:
        os.close(copy)


def test_a_waiter_gets_it_when_it_is_let_go(file):
    got = threading.Event()

    def wait():
        with Lock.on_file(file):
            got.set()

    with Lock.on_file(file):
        waiter = threading.Thread(target=wait)
        waiter.start()
    assert got.wait(90)
    waiter.join(90)


def test_release_writes_the_buffer_out_first(file):
    with Lock.on_file(file):
        file.write("whole")
        assert os.path.getsize(file.name) == 0
    assert os.path.getsize(file.name) == 5


def test_a_buffer_that_does_not_fit_is_told_and_the_lock_is_free(file, monkeypatch):
    class Full:
        closed = False

        def fileno(self):
            return file.fileno()

        def flush(self):
            raise OSError(errno.ENOSPC, "No space left on device")

    lease = Lock.on_file(Full()).acquire()
    with pytest.raises(SystemRefused) as caught:
        lease.release()
    assert caught.value.errno == errno.ENOSPC
    assert is_free(file)


def test_a_file_that_is_closed_meanwhile_is_a_lock_lost(tmp_path):
    file = (tmp_path / "data.txt").open("w")
    lease = Lock.on_file(file).acquire()
    file.close()
    with pytest.raises(LeaseLost):
        lease.check()
    with pytest.raises(LeaseLost):
        lease.release()
    with pytest.raises(InvalidArgument, match="closed"):
        Lock.on_file(file)


def test_a_forked_child_holds_nothing_and_unlocks_nothing(file):
    lease = Lock.on_file(file).acquire()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if not lease.held else 2
            lease._leave(None)
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert lease.held
    assert not is_free(file)
    lease.release()
    assert is_free(file)


class Slow:
    """A file whose buffer is written out as long as the test wishes."""

    closed = False

    def __init__(self, file):
        self.fileno, self.begun, self.end = file.fileno, threading.Event(), threading.Event()

    def flush(self):
        self.begun.set()
        assert self.end.wait(90)


def test_nobody_here_gets_it_until_it_is_unlocked(file):
    slow = Slow(file)
    lease = Lock.on_file(slow).acquire()
    ending = threading.Thread(target=lease.release)
    ending.start()
    try:
        assert slow.begun.wait(90)
        assert Lock.on_file(file).try_acquire() is None
    finally:
        slow.end.set()
        ending.join(90)
    with Lock.on_file(file) as mine:
        mine.check()
        assert not is_free(file)


def in_child(work):
    """What `work()` answers in a forked child."""
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            code = int(work())
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def is_refused(ask):
    try:
        ask()
    except InvalidArgument as error:
        return "open the file again in the child" in str(error)
    return False


@pytest.mark.parametrize("anew", [False, True])
def test_a_forked_child_is_refused_the_description_of_its_parent(anew, file):
    lock = Lock.on_file(file)
    with lock as lease:
        child = (lambda: Lock.on_file(file)) if anew else (lambda: lock)
        assert in_child(lambda: is_refused(lambda: child().try_acquire())) == 1
        lease.check()
        assert not is_free(file)


def test_a_forked_child_that_opens_the_file_again_asks_the_kernel(file):
    def work():
        with open(file.name) as own:
            lock = Lock.on_file(own)
            before = lock.try_acquire()
            os.write(asked[1], b"x")
            os.read(let_go[0], 1)
            with lock:
                return before is None and lock.try_acquire() is None and not is_free(own)

    asked, let_go = os.pipe(), os.pipe()
    lease = Lock.on_file(file).acquire()

    def parent():
        os.read(asked[0], 1)
        lease.release()
        os.write(let_go[1], b"x")

    helper = threading.Thread(target=parent)
    helper.start()
    try:
        assert in_child(work) == 1
    finally:
        os.write(asked[1], b"x")
        helper.join(90)
        for each in (*asked, *let_go):
            os.close(each)


def test_a_lease_that_is_dropped_unlocks(file):
    lease = Lock.on_file(file).try_acquire()
    assert lease is not None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        del lease
    assert is_free(file)
    with Lock.on_file(file):
        assert not is_free(file)


def test_a_lost_lease_that_is_kept_is_in_nobodys_way(tmp_path):
    path = tmp_path / "data.txt"
    first = path.open("w")
    lost = Lock.on_file(first).acquire()
    with path.open("w") as second:
        first.close()
        with Lock.on_file(second) as lease:
            with pytest.raises(LeaseLost):
                lost.release()
            lease.check()
            assert Lock.on_file(second).try_acquire() is None
            assert not is_free(second)


@pytest.mark.parametrize("bad", ["a path", None, True, 5.0, -1, 10**6, b"x"])
def test_what_is_no_open_file_is_refused(bad):
    with pytest.raises(InvalidArgument, match="file"):
        Lock.on_file(bad)


def test_a_pipe_is_refused():
    ends = os.pipe()
    try:
        with pytest.raises(InvalidArgument, match="pipe"):
            Lock.on_file(ends[0])
    finally:
        for each in ends:
            os.close(each)


@pytest.mark.parametrize("whose", ["a lease", "portalocker", "zc.lockfile"])
def test_a_descriptor_that_another_lock_holds_is_refused_and_stays_locked(whose, tmp_path):
    path = str(tmp_path / "x.lock")
    if whose == "a lease":
        held = Lock(path).acquire()
        fd, end = held.fileno(), held.release
    elif whose == "portalocker":
        lock = portalocker.Lock(path)
        fd, end = lock.acquire().fileno(), lock.release
    else:
        lock = zc_lockfile.LockFile(path)
        fd, end = lock._fp.fileno(), lock.close
    with pytest.raises(InvalidArgument, match="another lock of this program"):
        Lock.on_file(fd).acquire(wait=0)
    with open(path) as other:
        assert Lock.on_file(other).try_acquire() is None
    end()
    with open(path) as other, Lock.on_file(other, wait=0):
        pass


@pytest.mark.parametrize("how", ["opened again", "unlocked", "doubled"])
def test_a_descriptor_that_other_code_unlocked_is_a_lock_lost(how, tmp_path):
    path = tmp_path / "data.txt"
    path.write_text("kept")
    fd = os.open(path, os.O_RDWR)
    lease = Lock.on_file(fd).acquire()
    lease.check()
    if how == "opened again":
        os.close(fd)
        assert os.open(path, os.O_RDWR) == fd
    elif how == "unlocked":
        fcntl.flock(fd, fcntl.LOCK_UN)
    else:
        other = os.open(path, os.O_RDWR)
        os.dup2(other, fd)
        os.close(other)
    with path.open() as other:
        assert is_free(other)
    with pytest.raises(LeaseLost):
        lease.check()
    with pytest.raises(LeaseLost):
        lease.release()
    with Lock.on_file(fd, wait=0) as again:
        again.check()
    os.close(fd)


def test_where_the_kernel_shows_no_locks_of_a_descriptor_the_file_alone_tells(file, monkeypatch):
    kind = type(Lock.on_file(file)._mechanism)
    monkeypatch.setattr(kind, "_is_locked", lambda self, untold=True: untold)
    with Lock.on_file(file) as lease:
        lease.check()
