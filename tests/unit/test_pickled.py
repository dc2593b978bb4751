"""What describes a lock can be pickled, whatever has been done with it; what is held cannot."""

from __future__ import annotations

import copy
import multiprocessing
import pickle

import pytest

from ground import needs
from lifehold import (
    AsyncLock,
    AsyncReadWriteLock,
    AsyncSemaphore,
    Cancel,
    Lock,
    NotAcquired,
    ReadWriteLock,
    Semaphore,
    connect,
    lock_all,
)
from lifehold.aio import lock_all as lock_all_async

pytestmark = needs("linux")
SHAPES = {
    "Lock": lambda path: Lock(path, wait=0, label="x", reentrant=True),
    "path=": lambda path: Lock(path=path, wait=0),
    "shared": lambda path: Lock(path, wait=0, exclusive=False),
    "soft": lambda path: Lock(path, wait=0, kind="soft", ttl=30),
    "link": lambda path: Lock(path, wait=0, kind="link"),
    "generation": lambda path: Lock(path, wait=0, kind="generation"),
    "directory": lambda path: Lock(path, wait=0, kind="directory"),
    "folder": lambda path: Lock(path, wait=0, kind="folder"),
    "fair": lambda path: Lock(path, wait=0, fair=True),
    "semaphore": lambda path: Semaphore(path, 1, wait=0),
    "readwrite": lambda path: ReadWriteLock(path, wait=0),
    "several": lambda path: lock_all([path, path.with_suffix(".2")], wait=0),
}


def taken(lock):
    return lock.acquire_write() if isinstance(lock, ReadWriteLock) else lock.acquire()


@pytest.mark.parametrize("shape", SHAPES)
def test_a_lock_that_was_pickled_locks_the_same_before_and_after_its_use(
    shape, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    lock = SHAPES[shape]((tmp_path / "a.lock").relative_to(tmp_path))
    early = pickle.dumps(lock)
    lease = taken(lock)
    late = pickle.dumps(lock)
    monkeypatch.chdir("/")
    for each in (pickle.loads(early), pickle.loads(late), copy.copy(lock), copy.deepcopy(lock)):
        assert type(each) is type(lock)
        if shape == "shared":
            taken(each).release()
            continue
        with pytest.raises(NotAcquired):
            taken(each)
    lease.release()
    taken(pickle.loads(late)).release()


def test_an_async_lock_and_its_shapes_can_be_pickled(tmp_path):
    path = tmp_path / "a.lock"
    for lock in (AsyncLock(path), AsyncSemaphore(path, 2), AsyncReadWriteLock(path)):
        again = pickle.loads(pickle.dumps(lock))
        assert type(again) is type(lock)
        assert again.path == lock.path
    assert pickle.loads(pickle.dumps(lock_all_async([path])))


def test_a_singleton_that_was_copied_is_itself(tmp_path):
    lock = Lock(tmp_path / "a.lock", singleton=True)
    assert copy.copy(lock) is lock
    assert pickle.loads(pickle.dumps(lock)) is lock


def test_what_belongs_to_this_process_is_refused_in_words(tmp_path):
    path = tmp_path / "a.lock"
    store = connect(f"memory:///{tmp_path}")
    for one, why in (
        (store.lock("a"), "hand on its URL, and connect"),
        (store.read_write("b"), "hand on its URL, and connect"),
        (store.semaphore("c", 2), "hand on its URL, and connect"),
        (Lock(f"memory:///{tmp_path}#a"), "hand on its URL, and connect"),
        (Lock(path, cancel=Cancel()), "cancel="),
        (ReadWriteLock(path).reading(), "hand on the lock"),
    ):
        with pytest.raises(TypeError, match=why):
            pickle.dumps(one)
    with Lock(path) as lease, pytest.raises(TypeError, match="hand on the lock"):
        pickle.dumps(lease)
    again = copy.copy(store.lock("a", wait=0))
    with again, pytest.raises(NotAcquired):
        store.lock("a", wait=0).acquire()


class OfUser(Lock):
    """Its argument is no path."""

    def __init__(self, user, folder="."):
        super().__init__(f"{folder}/{user}.lock", wait=0)


class OfUserAsync(AsyncLock):
    def __init__(self, *, user, folder):
        super().__init__(f"{folder}/{user}.lock")


class ReadWriteOfUser(ReadWriteLock):
    def __init__(self, user, *, folder):
        super().__init__(f"{folder}/{user}.lock")


class Fixed(Semaphore):
    folder = ""

    def __init__(self):
        super().__init__(f"{self.folder}/fixed.lock", 2)


class Passing(Lock):
    """It hands its arguments on."""

    def __init__(self, path, *more, **options):
        super().__init__(path, *more, **options)


class Named(Lock):
    """Its constructor is that of `Lock`."""

    def named(self):
        return self.path


MADE_BY_USERS = {
    "by position": lambda folder: OfUser("joe", folder),
    "in part by name": lambda folder: OfUser("joe", folder=folder),
    "by name": lambda folder: OfUser(user="joe", folder=folder),
    "of tasks": lambda folder: OfUserAsync(user="joe", folder=folder),
    "readers and writers": lambda folder: ReadWriteOfUser("joe", folder=folder),
    "without": lambda folder: Fixed(),
    "one object": lambda folder: OfUser("joe", folder, singleton=True),
    "passing": lambda folder: Passing(f"{folder}/joe.lock", wait=0),
}


def remade(lock):
    return copy.copy(lock), copy.deepcopy(lock), pickle.loads(pickle.dumps(lock))


@pytest.mark.parametrize("case", MADE_BY_USERS)
def test_a_lock_with_a_constructor_of_its_own_locks_the_same_file(case, tmp_path, monkeypatch):
    monkeypatch.setattr(Fixed, "folder", str(tmp_path))
    lock = MADE_BY_USERS[case](str(tmp_path))
    for each in remade(lock):
        assert type(each) is type(lock)
        assert each.path == lock.path


@pytest.mark.parametrize("make", [Passing, Named, lambda path: Passing(path=path)])
def test_a_relative_path_that_is_handed_on_is_found_in_another_folder(make, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lock = make("a.lock")
    monkeypatch.chdir("/")
    assert [each.path for each in remade(lock)] == [str(tmp_path / "a.lock")] * 3


def test_a_lock_that_would_be_another_file_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lock = OfUser("joe")
    early = pickle.dumps(lock)
    monkeypatch.chdir("/")
    for again in (copy.copy, copy.deepcopy, pickle.dumps, lambda _: pickle.loads(early)):
        with pytest.raises(TypeError, match=r"would lock '/joe\.lock'") as caught:
            again(lock)
        assert str(tmp_path / "joe.lock") in str(caught.value)
    monkeypatch.chdir(tmp_path)
    assert pickle.loads(early).path == lock.path


def into(lock):
    with lock:
        return True


def test_a_worker_of_a_pool_locks_what_it_is_given(tmp_path):
    lock = Lock(tmp_path / "a.lock")
    with lock:
        pass
    context = multiprocessing.get_context("fork")
    with context.Pool(1) as pool:
        assert pool.map(into, [lock, lock]) == [True, True]
