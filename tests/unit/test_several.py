"""lock_all, and one object for one file."""

from __future__ import annotations

import asyncio
import gc
import os
import threading

import pytest

import lifehold
from lifehold import AsyncLock, Lock, ReadWriteLock, Semaphore, lock_all
from lifehold.aio import lock_all as async_lock_all


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def free(name):
    """Whether another thread gets the lock at once."""
    found = []

    def attempt():
        try:
            Lock(name).acquire(0).release()
            found.append(True)
        except lifehold.WouldBlock:
            found.append(False)

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join(20)
    return found == [True]


def test_all_are_held_inside_and_none_after(tmp_path):
    with lock_all(["b", "a", "c"]) as leases:
        assert [lease.name for lease in leases] == ["b", "a", "c"]
        assert [lease.token for lease in leases] == leases.tokens
        assert len(leases) == 3
        assert leases.held
        leases.check()
        assert [free(name) for name in "abcd"] == [False, False, False, True]
    assert [free(name) for name in "abc"] == [True] * 3
    assert not leases.held


@pytest.mark.parametrize("wait", [0, 0.05])
def test_one_that_is_held_is_named_and_the_others_are_let_go(wait):
    found = []

    def attempt():
        try:
            lock_all(["c", "b", "a"]).acquire(wait)
        except lifehold.NotAcquired as error:
            found.append(error)

    with Lock("b"):
        thread = threading.Thread(target=attempt)
        thread.start()
        thread.join(20)
        assert found[0].name == "b"
        assert "'a' had been taken, and was let go" in str(found[0])
        assert [free("a"), free("c")] == [True, True]


def test_they_are_taken_in_one_order_whatever_the_order_of_the_names():
    """Two that name them the other way round do not wait for each other."""
    done = []

    def work(names):
        for _ in range(60):
            with lock_all(names, wait=20):
                pass
        done.append(names)

    threads = [
        threading.Thread(target=work, args=(list(names),)) for names in ("abc", "cba", "bca")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(done) == 3


def test_one_file_under_two_names_is_refused(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder")
    with Lock("x"):
        os.link("x", "hard")
    for names in (["a", "a"], ["a", "./a"], ["folder/a", "link/a"], ["x", "hard"]):
        with pytest.raises(lifehold.InvalidArgument, match="are one lock: name it once"):
            lock_all(names)


@pytest.mark.parametrize("names", [[], "a", b"a", None, 5])
def test_what_names_no_locks_is_refused(names):
    with pytest.raises(lifehold.InvalidArgument):
        lock_all(names)


def test_locks_with_options_of_their_own_may_be_given():
    soft = Lock("soft", kind="soft")
    with lock_all([soft, "plain"]) as leases:
        assert leases[0]._lock is soft
    with pytest.raises(lifehold.InvalidArgument, match="its own options"):
        lock_all([soft], label="x")
    with pytest.raises(lifehold.InvalidArgument, match="other face"):
        lock_all([AsyncLock("a")])


def test_a_lost_one_is_told_and_the_others_are_let_go():
    with pytest.raises(lifehold.LeaseLost), lock_all(["a", "b"]):
        os.unlink("b")
    assert free("a")


def test_an_error_of_the_block_comes_out_with_the_loss_beside_it():
    def lose():
        with lock_all(["a", "b"]):
            os.unlink("b")
            raise KeyError("mine")

    with pytest.raises(KeyError) as caught:
        lose()
    assert "lost" in caught.value.__notes__[0]


def test_tasks_get_all_or_nothing_and_a_cancelled_one_leaves_nothing():
    async def main():
        async with async_lock_all(["b", "a"]) as leases:
            assert leases.held
            waiting = asyncio.create_task(async_lock_all(["b", "A", "c"]).acquire())
            await asyncio.sleep(0.05)
            assert not free("A")
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert free("A")
        with Lock("a"), pytest.raises(lifehold.WouldBlock):
            await asyncio.create_task(async_lock_all(["0", "a"]).acquire(0))
        assert [free(name) for name in "0ab"] == [True] * 3

    asyncio.run(main())


def test_a_singleton_is_one_object_for_one_file(tmp_path):
    one = Lock("a", singleton=True, reentrant=True)
    (tmp_path / "link").symlink_to(tmp_path)
    for path in ("a", "./a", tmp_path / "a", "link/a"):
        assert Lock(path, singleton=True, reentrant=True) is one
    assert Lock("a", reentrant=True) is not one
    assert Lock("b", singleton=True, reentrant=True) is not one
    with one, Lock("a", singleton=True, reentrant=True) as inner:
        assert inner is one.lease


def test_other_options_of_a_singleton_are_refused_by_name():
    one = Lock("a", singleton=True, label="x")
    with pytest.raises(lifehold.InvalidArgument, match="label='x' and not 'y'"):
        Lock("a", singleton=True, label="y")
    with pytest.raises(lifehold.InvalidArgument, match="wait=None and not 5"):
        Lock("a", singleton=True, label="x", wait=5)
    with pytest.raises(lifehold.InvalidArgument, match="label='x' and not ''"):
        Lock("a", singleton=True)
    gate = Semaphore("s", 3, singleton=True)
    assert Semaphore("s", 3, singleton=True) is gate
    with pytest.raises(lifehold.InvalidArgument, match=r"\(3,\) and not \(4,\)"):
        Semaphore("s", 4, singleton=True)
    assert one is Lock("a", singleton=True, label="x")


def test_a_singleton_that_nobody_keeps_is_forgotten():
    Lock("a", singleton=True, label="x")
    gc.collect()
    assert Lock("a", singleton=True, label="y").locked() is False


def test_each_face_and_shape_has_its_own_singleton():
    made = [AsyncLock, Lock, ReadWriteLock]
    objects = [kind("a", singleton=True) for kind in made]
    assert len({id(each) for each in objects}) == 3
    assert [kind("a", singleton=True) for kind in made] == objects


def test_threads_that_make_a_singleton_at_once_get_one_object():
    found, barrier = [], threading.Barrier(8)

    def make():
        barrier.wait()
        found.append(Lock("a", singleton=True))

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(each) for each in found}) == 1
