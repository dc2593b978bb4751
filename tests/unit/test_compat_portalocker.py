"""`lifehold.compat.portalocker`: its names, the same files, and what is safe here that was not."""

from __future__ import annotations

import copy
import fcntl
import gc
import os
import pickle
import threading
from pathlib import Path

import pytest

from ground import needs, require
from lifehold import LeaseLost
from lifehold.compat import portalocker
from lifehold.compat.portalocker import (
    LOCK_EX,
    LOCK_NB,
    LOCK_SH,
    AlreadyLocked,
    BoundedSemaphore,
    Lock,
    LockException,
    LockFlags,
    NamedBoundedSemaphore,
    RLock,
    TemporaryFileLock,
)

pytestmark = needs("linux")


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "x.lock")


def is_free(path):
    """As portalocker asks: flock(2) on a file of its own."""
    with open(path, "a") as other:
        try:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def in_child(act):
    """What `act()` answers in a forked child, as a number."""
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            code = int(act())
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_block_gives_the_open_file_and_keeps_flock_out(path):
    lock = Lock(path)
    with lock as file:
        assert (file.mode, file.name, lock.fh) == ("a", path, file)
        assert lock.acquire() is file  # by the object that has it
        assert not is_free(path)
        file.write("kept")
        assert os.path.getsize(path) == 0
    assert (os.path.getsize(path), file.closed, lock.fh) == (4, True, None)
    assert is_free(path)
    lock.release()  # safe to repeat


def test_flock_keeps_ours_out_and_the_file_is_emptied_under_the_lock_alone(path):
    with open(path, "w") as other:
        other.write("theirs")
        other.flush()
        fcntl.flock(other, fcntl.LOCK_EX)
        for lock in (Lock(path, "w", timeout=0.01), Lock(path, "w", fail_when_locked=True)):
            with pytest.raises(AlreadyLocked, match="give timeout=60"):
                lock.acquire()
        assert os.path.getsize(path) == 6
    with Lock(path, "w+") as file:
        assert file.read() == ""


@pytest.mark.parametrize(
    ("mode", "found"),
    [
        ("w", "HELLO world"),
        ("w+", "HELLO world"),
        ("wb", "HELLO world"),
        ("wb+", "HELLO world"),
        ("a", "oldhello worldHELLO"),
    ],
)
def test_a_file_is_written_where_its_mode_says(path, mode, found):
    Path(path).write_text("old", encoding="utf-8")
    as_mode = (lambda text: text.encode()) if "b" in mode else str
    with Lock(path, mode) as file:
        file.write(as_mode("hello world"))
        file.seek(0)
        file.write(as_mode("HELLO"))
    assert Path(path).read_text(encoding="utf-8") == found
    with TemporaryFileLock(path) as file:
        file.write("hello world")
        file.seek(0)
        file.write("HELLO")
        file.flush()
        assert Path(path).read_text(encoding="utf-8") == "HELLO world"


class Owner:
    """A lock that all its objects share."""

    def __init_subclass__(cls, lock):
        cls.lock = lock


@pytest.mark.parametrize("kind", [Lock, RLock, TemporaryFileLock])
def test_deleting_a_lock_that_is_an_attribute_of_a_class_lets_it_go(path, kind):
    class Shared(Owner, lock=kind(path)):
        pass

    owner = Shared()
    owner.lock.acquire()
    assert not is_free(path)
    del owner.lock
    assert is_free(path)
    assert owner.lock is Shared.lock  # it stays, and may be taken again
    with owner.lock:
        assert not is_free(path)


def test_deleting_a_semaphore_that_is_an_attribute_of_a_class_lets_it_go(tmp_path):
    class Shared(Owner, lock=BoundedSemaphore(1, "slots", directory=tmp_path)):
        pass

    owner = Shared()
    slot = owner.lock.acquire()
    del owner.lock
    assert is_free(slot.filename)


def test_a_refusal_names_the_holder_and_goes_to_another_process(path):
    with Lock(path), pytest.raises(LockException, match=str(os.getpid())) as caught:
        Lock(path, timeout=0).acquire()
    assert caught.value.holder_pid == os.getpid()
    assert caught.value.fh.closed
    found = pickle.loads(pickle.dumps(caught.value))
    assert (type(found), found.holder_pid, found.fh) == (AlreadyLocked, os.getpid(), None)
    assert found.fh_name == caught.value.fh_name == path
    assert issubclass(AlreadyLocked, portalocker.exceptions.BaseLockException)


def test_shared_locks_are_held_together(path):
    flags = LockFlags.SHARED | LockFlags.NON_BLOCKING
    with Lock(path, flags=flags), Lock(path, flags=flags), pytest.raises(AlreadyLocked):
        Lock(path, fail_when_locked=True).acquire()
    with Lock(path), pytest.raises(AlreadyLocked):
        Lock(path, flags=flags, timeout=0).acquire()


@pytest.mark.parametrize("options", [{"timeout": 60}, {"flags": LOCK_EX}])
def test_a_waiter_gets_it_when_it_is_let_go(path, options):
    got = threading.Event()

    def wait():
        with Lock(path, **options):
            got.set()

    with Lock(path):
        waiter = threading.Thread(target=wait)
        waiter.start()
    assert got.wait(90)
    waiter.join(90)


def test_a_file_that_was_replaced_before_the_lock_came_is_left(path, monkeypatch):
    real, calls = portalocker._lease, []

    def replaced(*given):
        if not calls:
            os.rename(path, path + ".old")
            open(path, "w").close()
        calls.append(given)
        return real(*given)

    monkeypatch.setattr(portalocker, "_lease", replaced)
    with Lock(path):
        assert len(calls) == 2
        assert not is_free(path)
        assert is_free(path + ".old")


def test_who_cannot_be_locked_is_told_with_portalockers_words(path):
    with pytest.raises(FileNotFoundError):
        Lock(path, "r").acquire()
    with pytest.raises(LockException, match="EXCLUSIVE") as caught:
        Lock(path, flags=LOCK_NB).acquire()
    assert not isinstance(caught.value, AlreadyLocked)
    with pytest.warns(UserWarning, match="timeout"):
        Lock(path, timeout=1, flags=LOCK_EX)


def test_a_dropped_object_lets_go_and_a_temporary_file_goes_with_it(path):
    lock, inner = Lock(path), RLock(path + "2")
    lock.acquire(), inner.acquire(), inner.acquire()
    temporary = TemporaryFileLock(path + "3")
    temporary.acquire()
    with pytest.warns(ResourceWarning, match="unclosed file"):  # as of any file
        del lock, inner, temporary
    assert is_free(path)
    assert is_free(path + "2")
    assert not os.path.exists(path + "3")


@pytest.mark.parametrize("kind", [Lock, RLock, TemporaryFileLock])
@pytest.mark.parametrize("circle", [False, True])
def test_a_lock_lasts_as_long_as_its_file_is_kept(path, kind, circle):
    def only_one():
        lock = kind(path, timeout=0)
        lock.itself = lock if circle else None  # what the collector finds, in any order
        return lock.acquire()

    file = only_one()
    gc.collect()
    assert not file.closed
    assert not is_free(path)
    with pytest.raises(AlreadyLocked):
        kind(path, timeout=0).acquire()
    file.write("kept")
    if kind is TemporaryFileLock:
        with pytest.warns(ResourceWarning, match="unclosed file"):
            del file
        assert not os.path.exists(path)
        return
    file.close()
    assert is_free(path)
    assert Path(path).read_text() == "kept"


def test_a_file_that_is_kept_of_a_temporary_lock_unlinks_no_other(path):
    file = TemporaryFileLock(path).acquire()
    os.rename(path, path + ".old")
    with TemporaryFileLock(path):
        with pytest.warns(ResourceWarning, match="unclosed file"):
            del file
        assert not is_free(path)
    kept = [TemporaryFileLock(path).acquire()]
    assert in_child(lambda: kept[0].close() or kept.clear() or 0) == 0
    assert not is_free(path)
    kept.pop().close()
    assert not os.path.exists(path)


@pytest.mark.parametrize("keep", ["lock", "fh"])
def test_a_slot_lasts_as_long_as_what_is_kept_of_it(tmp_path, keep):
    def made():
        return BoundedSemaphore(1, "s", directory=tmp_path, timeout=0)

    kept = made().acquire()
    kept = kept if keep == "lock" else kept.fh
    gc.collect()
    with pytest.raises(AlreadyLocked):
        made().acquire()
    (kept.release if keep == "lock" else kept.close)()
    made().acquire().release()


def test_a_lock_that_is_copied_and_dropped_stays(path):
    lock = Lock(path)
    with lock as file:
        copy.copy(lock)
        gc.collect()
        assert lock.acquire() is file
        assert not is_free(path)


def test_a_temporary_file_is_there_while_it_is_held_and_no_other_is_unlinked(path):
    lock = TemporaryFileLock(path)
    with lock:
        with pytest.raises(AlreadyLocked):
            TemporaryFileLock(path).acquire()
        assert os.path.exists(path)
    assert not os.path.exists(path)
    lock.acquire()
    os.rename(path, path + ".old")
    with TemporaryFileLock(path):
        lock.release()
        assert os.path.exists(path)
    readers = [TemporaryFileLock(path, flags=LOCK_SH | LOCK_NB) for _ in range(2)]
    [reader.acquire() for reader in readers]
    readers[0].release()
    with pytest.raises(AlreadyLocked):  # a file that was unlinked here would let it in
        TemporaryFileLock(path).acquire()
    readers[1].release()


def test_a_temporary_file_that_cannot_be_unlinked_is_unlocked_and_that_is_told(path, monkeypatch):
    lock = TemporaryFileLock(path)
    lock.acquire()

    def refuse(path, **more):
        raise PermissionError(path)

    monkeypatch.setattr(os, "unlink", refuse)  # as portalocker's own test does
    with pytest.raises(PermissionError):
        lock.release()
    monkeypatch.undo()
    with TemporaryFileLock(path):
        pass
    assert not os.path.exists(path)


def test_what_a_link_leads_to_is_neither_emptied_nor_made_where_the_file_is_a_lock(tmp_path):
    locks = [
        TemporaryFileLock(tmp_path / "x.lock"),
        BoundedSemaphore(1, "x", "{name}.lock", directory=tmp_path, timeout=0),
    ]
    data, missing = tmp_path / "data", tmp_path / "missing"
    data.write_text("important")
    for target in (data, missing):
        os.symlink(target, tmp_path / "x.lock")
        for lock in locks:
            with pytest.raises(LockException, match="is a symbolic link"):
                lock.acquire()
        os.unlink(tmp_path / "x.lock")
    os.mkfifo(tmp_path / "x.lock")
    for lock in locks:
        with pytest.raises(LockException, match="is a FIFO"):  # and is not waited for
            lock.acquire()
    os.unlink(tmp_path / "x.lock")
    assert os.listdir(tmp_path) == ["data"]
    assert data.read_text() == "important"
    for lock in locks:
        lock.acquire()
        lock.release()


def test_a_data_file_is_locked_through_a_link(path, tmp_path):
    os.symlink(tmp_path / "data", path)
    with Lock(path, "w") as file:
        file.write("mine")
    assert (tmp_path / "data").read_text() == "mine"


def test_an_rlock_is_released_as_often_as_it_was_acquired(path):
    lock = RLock(path)
    with lock as file, lock as again:
        assert file is again
    assert is_free(path)
    with pytest.raises(LockException):
        lock.release()


@pytest.mark.parametrize("kind", [Lock, RLock, TemporaryFileLock])
def test_a_forked_child_has_nothing_of_its_parents(path, kind):
    lock = kind(path, timeout=0)
    lock.acquire()

    def act():
        try:
            lock.acquire(fail_when_locked=True)
        except AlreadyLocked:
            return lock.fh is not None
        return 1

    assert in_child(act) == 0
    assert in_child(lambda: lock.release() or 0) == 0
    assert os.path.exists(path)
    assert not is_free(path)
    lock.release()
    assert not os.path.exists(path) or is_free(path)


@pytest.mark.parametrize("mode", ["w", "ab"])
@pytest.mark.parametrize("end", ["release", "acquire"])
def test_a_forked_child_writes_nothing_of_what_its_parent_has_in_hand(path, mode, end):
    lock = Lock(path, mode, timeout=0)
    with lock as file:
        file.write("mine" if mode == "w" else b"mine")  # in the buffer still

        def act():
            if end == "release":
                lock.release()
            else:
                with pytest.raises(AlreadyLocked):
                    lock.acquire()
            return not file.closed

        assert in_child(act) == 0
        assert os.path.getsize(path) == 0
        assert not is_free(path)
    assert Path(path).read_text() == "mine"


@needs("all processes")
def test_a_daemon_keeps_the_lock_of_its_ended_parent_and_writes_what_that_one_left(path):
    ready, go = os.pipe(), os.pipe()
    lock = Lock(path, "w", timeout=0)

    def daemon():
        os.write(ready[1], b".")
        os.read(go[0], 1)
        lock.release()
        os.write(ready[1], b".")

    def parent():
        lock.acquire().write("its number")
        if os.fork() == 0:
            try:
                daemon()
            finally:
                os._exit(0)
        os.read(ready[0], 1)
        return 0

    assert in_child(parent) == 0
    assert not is_free(path)
    os.write(go[1], b".")
    assert os.read(ready[0], 1) == b"."
    for fd in (*ready, *go):
        os.close(fd)
    assert is_free(path)
    assert Path(path).read_text() == "its number"


def test_a_slot_of_its_parent_does_not_keep_a_forked_child_from_the_next(tmp_path):
    name = {"name": "pool", "directory": tmp_path, "timeout": 0}
    semaphore = BoundedSemaphore(2, **name)
    first = semaphore.acquire()

    def act():
        mine = semaphore.acquire()
        taken = mine.filename != first.filename
        with pytest.raises(LockException, match="holds it already"):
            semaphore.acquire()
        semaphore.release()
        return not (taken and semaphore.lock is None)

    assert in_child(act) == 0
    with BoundedSemaphore(2, **name), pytest.raises(AlreadyLocked):
        BoundedSemaphore(2, **name).acquire()
    semaphore.release()


def test_what_goes_wrong_at_the_release_is_told(path, caplog):
    with Lock(path) as file:
        file.close()
    assert "closed" in caplog.text
    strict = Lock(path, raise_on_release_error=True)
    strict.acquire().close()
    with pytest.raises(LeaseLost):
        strict.release()
    strict.acquire().close()
    error = KeyError()
    strict.__exit__(KeyError, error, None)
    assert "release" in error.__notes__[0]
    assert isinstance(error.__context__, LeaseLost)
    lock = Lock(path)
    lock.acquire().close()
    with lock.acquire() as file:  # a closed file is no lock: it is taken anew
        assert not is_free(path)


def test_a_semaphore_lets_so_many_in_by_portalockers_files(tmp_path):
    made = [BoundedSemaphore(2, "s", directory=tmp_path, timeout=0) for _ in range(3)]
    assert [each.name for each in made[0].get_filenames()] == ["s.00.lock", "s.01.lock"]
    first, second = made[0].acquire(), made[1].acquire()
    assert {first.filename, second.filename} == {str(each) for each in made[0].get_filenames()}
    with pytest.raises(AlreadyLocked):
        made[2].acquire(timeout=0.01)
    assert made[2].acquire(fail_when_locked=False) is None
    with pytest.raises(LockException, match="already"):
        made[0].acquire()
    assert sorted(made[0].get_random_filenames()) == made[0].get_filenames()
    made[0].release()
    with open(first.filename, "a") as theirs:
        fcntl.flock(theirs, fcntl.LOCK_EX)
        assert made[2].acquire(fail_when_locked=False) is None
    with made[2] as got:
        assert got.filename == first.filename
    made[1].release()
    with pytest.warns(DeprecationWarning, match="name"):
        BoundedSemaphore(1)
    assert NamedBoundedSemaphore(1).name != NamedBoundedSemaphore(1).name
    missing = NamedBoundedSemaphore(1, directory=tmp_path / "missing")
    with pytest.raises(FileNotFoundError):
        missing.acquire()
    assert missing.lock is None


def test_an_open_file_is_locked_and_unlocked(path):
    with open(path, "w") as file, open(path) as other:
        portalocker.lock(file, LOCK_SH)
        portalocker.lock(other.fileno(), LOCK_SH | LOCK_NB)
        with pytest.raises(AlreadyLocked) as caught:
            portalocker.lock(other, LOCK_EX | LOCK_NB)
        assert (caught.value.fh, bool(caught.value.strerror)) == (other, True)
        portalocker.unlock(file)
        portalocker.lock(other, LOCK_EX | LOCK_NB)
        with pytest.raises(RuntimeError):
            portalocker.lock(other, LOCK_NB)
    with pytest.raises(LockException):
        portalocker.lock(10**6, LOCK_EX)


NO_LOCKS = [
    LockFlags.UNBLOCK,
    LOCK_NB | LockFlags.UNBLOCK,
    LOCK_EX | LOCK_NB | LockFlags.UNBLOCK,
    LOCK_EX | LOCK_SH | LOCK_NB,
    LOCK_NB,
    99,
]
NO_FLAGS = [LOCK_EX | LOCK_NB | 32, LOCK_EX | LOCK_NB | 64]  # 32: LOCK_MAND of Linux


@pytest.mark.parametrize("flags", NO_LOCKS + NO_FLAGS)
def test_flags_that_describe_no_lock_lock_and_unlock_nothing(path, flags):
    with open(path, "a") as file:
        portalocker.lock(file, LOCK_EX | LOCK_NB)
        with pytest.raises(LockException if flags in NO_FLAGS else RuntimeError):
            portalocker.lock(file, flags)
        assert not is_free(path)
    for kind in (Lock, RLock):
        with pytest.raises(LockException):
            kind(path, flags=flags).acquire()
        assert is_free(path)


def test_what_cannot_be_unlocked_is_told_by_the_type_that_callers_catch(path):
    with open(path, "a") as file:
        number = os.dup(file.fileno())
    os.close(number)
    with pytest.raises(LockException) as caught:
        portalocker.unlock(number)
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.fh == number


@pytest.mark.parametrize("mode", ["w", "a"])
def test_a_device_is_refused_by_the_type_that_callers_catch(mode):
    with pytest.raises(LockException, match="device") as caught:
        Lock("/dev/null", mode).acquire()
    assert caught.value.fh_name == "/dev/null"


def test_it_and_the_real_one_exclude_each_other(path, tmp_path):
    require("package:portalocker")
    import portalocker as real

    for ours, theirs in ((Lock, real.Lock), (TemporaryFileLock, real.TemporaryFileLock)):
        for one, other, refusal in (
            (ours, theirs, real.AlreadyLocked),
            (theirs, ours, AlreadyLocked),
        ):
            with one(path), pytest.raises(refusal):
                other(path, timeout=0.01).acquire()
            with other(path):
                pass
    options = {"directory": str(tmp_path), "timeout": 0}
    semaphores = BoundedSemaphore, real.BoundedSemaphore
    for one, other in (semaphores, semaphores[::-1]):
        with one(1, "s", **options):
            assert other(1, "s", **options).acquire(fail_when_locked=False) is None


@pytest.mark.parametrize("kind", ["Lock", "RLock", "TemporaryFileLock"])
def test_a_lock_is_of_the_folder_in_which_it_was_made_as_the_real_one(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "link").symlink_to("run")
    name = os.path.join("link", "..", "x.lock")  # as portalocker reads it: by the words alone
    ours = getattr(portalocker, kind)(name, timeout=0)
    monkeypatch.chdir(tmp_path / "run")  # as a daemon does
    with ours as file:
        assert os.path.samestat(os.fstat(file.fileno()), os.stat(tmp_path / "x.lock"))
        assert ours.filename == str(tmp_path / "x.lock")
        assert not list(Path().iterdir())
    assert (tmp_path / "x.lock").exists() == (kind != "TemporaryFileLock")
    monkeypatch.chdir(tmp_path)
    require("package:portalocker")
    import portalocker as real

    theirs = getattr(real, kind)(name, timeout=0)
    monkeypatch.chdir(tmp_path / "run")
    with theirs, pytest.raises(AlreadyLocked):
        ours.acquire()
    with ours, pytest.raises(real.AlreadyLocked):
        theirs.acquire()


def test_a_working_folder_that_is_gone_is_told_in_words(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # and back, in the end
    (tmp_path / "work").mkdir()
    os.chdir(tmp_path / "work")
    (tmp_path / "work").rmdir()
    with pytest.raises(FileNotFoundError, match="working folder has been removed"):
        Lock("x.lock")
    with Lock(tmp_path / "x.lock"):
        pass


@pytest.mark.parametrize("bad", [None, 3, b"x.lock", ["x.lock"]])
def test_what_is_no_path_is_refused_and_no_file_of_that_name_is_made(bad, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for kind in (Lock, RLock, TemporaryFileLock):
        with pytest.raises(TypeError, match="filename must be"):
            kind(bad)
    assert not list(tmp_path.iterdir())
