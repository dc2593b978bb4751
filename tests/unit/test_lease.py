"""Leases beyond the conformance suite:

what a program forgets, in which order it lets go, shared ones.
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
import gc
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import trio

from lifehold import (
    AsyncLock,
    LeaseLost,
    Lock,
    NotHeld,
    ReadWriteLock,
    SelfDeadlock,
    SystemRefused,
    Timeout,
    WouldBlock,
    current_token,
)
from lifehold.cli.child import ChildCare
from lifehold.cli.run import LockedCommand
from lifehold.core.grant import Unknown
from lifehold.runtime import clock
from lifehold.runtime.held_here import current, holding, in_force, prune
from lifehold.runtime.watch_table import WatchedFolder
from lifehold.several import LeaseGroup
from patience import SOON, until


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "build.lock")


def depth() -> int:
    link, number = current.get(), 0
    while link is not None:
        link, number = link[1], number + 1
    return number


def test_a_dropped_lease_frees_the_lock_even_where_warnings_are_errors(path):
    def drop():
        Lock(path).acquire()

    unraisable = []
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("error", ResourceWarning)
        patch.setattr("sys.unraisablehook", unraisable.append)
        drop()
        gc.collect()
    assert len(unraisable) == 1
    Lock(path).acquire(0).release()
    assert not any(in_force(link[0]) for link in holding.values() if link[0].name == path)


def test_hand_over_hand_locking_does_not_grow_the_context(tmp_path):
    # In a context of its own: what other tests have not let go of yet is in force in theirs.
    contextvars.Context().run(hand_over_hand, tmp_path)


def hand_over_hand(tmp_path):
    leases = [Lock(tmp_path / "0.lock").acquire()]
    for number in range(1, 100):
        leases.append(Lock(tmp_path / f"{number % 7}.lock").acquire())
        if len(leases) > 3:
            leases.pop(0).release()
        assert depth() <= 4 + 4 + 8 + 1  # live, as many more, the slack
    for lease in leases[::-1]:
        lease.release()
    assert current_token() is None


def test_leases_released_in_any_order_leave_the_right_token_in_force(tmp_path):
    a, b, c = (Lock(tmp_path / f"{name}.lock").acquire() for name in "abc")
    b.release()
    assert current_token() == c.token
    c.release()
    assert current_token() == a.token
    a.release()
    assert current_token() is None


def test_after_max_hold_waiting_for_a_successor_is_no_deadlock(path):
    lost = Lock(path, max_hold=0.01).acquire()
    assert lost.lost.wait(60)
    got, let = threading.Event(), threading.Event()

    def successor():
        with Lock(path):
            got.set()
            let.wait(60)

    thread = threading.Thread(target=successor)
    thread.start()
    assert got.wait(60)
    threading.Timer(0.02, let.set).start()
    Lock(path).acquire(None).release()
    thread.join()
    with pytest.raises(LeaseLost):
        lost.release()


def test_the_release_of_a_lost_lease_leaves_the_successor_guarded(path):
    lost = Lock(path, max_hold=0.01).acquire()
    assert lost.lost.wait(60)
    with Lock(path):
        with pytest.raises(LeaseLost):
            lost.release()
        with pytest.raises(SelfDeadlock):
            Lock(path).acquire(None)


def test_a_reader_that_waits_for_itself_as_writer_is_told(path):
    first, second = (Lock(path, exclusive=False).acquire() for _ in range(2))
    second.release()
    with pytest.raises(SelfDeadlock):
        Lock(path).acquire(None)
    first.release()


def test_threads_leave_a_shared_object_without_disturbing_one_another(path):
    lock, errors = Lock(path, exclusive=False), []

    def work():
        try:
            for _ in range(200):
                with lock as lease:
                    lease.check()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert not lock._leases
    Lock(path).acquire(0).release()


def test_a_lease_is_a_context_manager_that_releases(path):
    with Lock(path).acquire() as lease, pytest.raises(WouldBlock):
        Lock(path).acquire(0)
    with pytest.raises(NotHeld):
        lease.check()


def test_another_thread_may_release_a_lease(path):
    lock = Lock(path)
    lease = lock.acquire()
    thread = threading.Thread(target=lease.release)
    thread.start()
    thread.join()
    assert lock.lease is None
    assert not any(in_force(link[0]) for link in holding.values() if link[0].name == path)
    Lock(path).acquire(0).release()


def test_lost_wait_looks_at_the_lock_and_ends_in_time(path, tmp_path):
    with Lock(path) as lease:
        assert not lease.lost.wait(0)
        (tmp_path / "build.lock").rename(tmp_path / "aside")
        assert lease.lost.wait(0)
        assert "removed or renamed" in lease.lost.reason
        (tmp_path / "aside").rename(tmp_path / "build.lock")
        with pytest.raises(LeaseLost):
            lease.check()  # once lost, for ever lost
        lease.lost.reason = None  # only so that this block can end


def test_a_wait_for_the_loss_sees_it_when_it_comes(path, tmp_path):
    lock = Lock(path)
    lease = lock.acquire()
    threading.Timer(0.03, (tmp_path / "build.lock").unlink).start()
    assert lease.lost.wait(60)
    with pytest.raises(LeaseLost):
        lease.release()


def test_a_callback_that_raises_stops_neither_the_release_nor_the_other_callbacks(
    path, monkeypatch
):
    reported, called = [], threading.Event()
    monkeypatch.setattr("sys.unraisablehook", lambda args: reported.append(args.exc_value))
    lease = Lock(path, max_hold=0.02).acquire()
    lease.lost.add_callback(lambda: 1 / 0)
    lease.lost.add_callback(called.set)
    second = Lock(path, max_hold=0.02).acquire(60)
    assert called.wait(60)
    assert [type(error) for error in reported] == [ZeroDivisionError]
    Lock(path).acquire(60).release()  # the heartbeat still beats for the second lease
    for lost in (lease, second):
        with pytest.raises(LeaseLost):
            lost.release()


def test_a_callback_that_takes_long_does_not_keep_the_lock(path):
    let = threading.Event()
    lease = Lock(path, max_hold=0.02).acquire()
    lease.lost.add_callback(lambda: let.wait(120))
    Lock(path).acquire(60).release()
    let.set()
    with pytest.raises(LeaseLost):
        lease.release()


def test_check_says_lost_even_if_a_callback_raises(path, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.unraisablehook", lambda args: None)
    lease = Lock(path).acquire()
    lease.lost.add_callback(lambda: 1 / 0)
    (tmp_path / "build.lock").unlink()
    with pytest.raises(LeaseLost):
        lease.check()
    with pytest.raises(LeaseLost):
        lease.release()


def test_a_wait_for_the_loss_of_a_lease_ends_with_its_release(path):
    lease, answers = Lock(path).acquire(), []
    watcher = threading.Thread(target=lambda: answers.append(lease.lost.wait()), daemon=True)
    watcher.start()
    lease.release()
    watcher.join(60)
    assert answers == [False]


def test_a_check_says_lost_before_the_heartbeat_has_told_it(path, monkeypatch):
    """It notices in its thread, and tells from another: a check may come in between."""
    waiting = []
    monkeypatch.setattr("lifehold.runtime.own_thread.is_here", lambda: True)
    monkeypatch.setattr("lifehold.runtime.heartbeat.apart", waiting.append)
    lease = Lock(path, kind="soft", ttl=30).acquire()
    lease._kept.end("its ttl has passed")
    assert len(waiting) == 1
    with pytest.raises(LeaseLost):
        lease.check()
    for tell in waiting:
        tell()
    with pytest.raises(LeaseLost):
        lease.release()


@pytest.mark.parametrize("kind", ["soft", "link", "generation"])
def test_a_check_after_the_deadline_waits_for_no_heartbeat(path, kind, monkeypatch):
    """The process was stopped: all its threads go on at the same time (L8)."""
    lease, now = Lock(path, kind=kind, ttl=30).acquire(), clock.now
    monkeypatch.setattr(clock, "now", lambda: now() + 31)
    with pytest.raises(LeaseLost):
        lease.check()
    with pytest.raises(LeaseLost):
        lease.release()


# ---- L8: a look that hangs, as one on a hard mount may ------------------------------------------


class Hung:
    """The lease of a mechanism whose looks answer, with what they saw, after its deadline only."""

    def __init__(self, lease):
        mechanism = lease._lock._mechanism
        look, over = mechanism.check, lambda: not lease.remaining()

        def late(grant):
            found = look(grant)
            until(over, 10)
            return found

        async def never(grant):
            return Unknown(grant.nonce, TimeoutError())

        mechanism.check, mechanism.renew = late, never


def leased(path, kind):
    if kind.startswith("rw"):
        lock = ReadWriteLock(path, kind="soft", ttl=1)
        return (lock.reading() if kind == "rw reader" else lock.writing()).__enter__()
    return Lock(path, kind=kind, ttl=1).acquire(0)


LEASED = ["soft", "link", "generation", "directory", "rw writer", "rw reader"]


@pytest.mark.parametrize("kind", LEASED)
@pytest.mark.parametrize("how", ["check", "held", "verify", "wait"])
def test_no_look_that_ends_after_the_deadline_says_held(path, kind, how):
    lease = leased(path, kind)
    Hung(lease)
    if how == "held":
        assert not lease.held
    elif how == "wait":
        assert lease.lost.wait(0)
    else:
        with pytest.raises(LeaseLost):
            getattr(lease, how)()
    assert lease.lost.is_set()
    with pytest.raises(LeaseLost):
        lease.release()


def test_a_look_that_outlasts_max_hold_does_not_say_held(path):
    lease = Lock(path, kind="soft", max_hold=0.3).acquire(0)
    Hung(lease)
    assert not lease.held


@pytest.mark.parametrize("how", ["check", "held"])
def test_of_several_a_look_at_one_is_no_word_for_the_others(tmp_path, how):
    """L8  The first is looked at in time, and the look at the second outlasts the first."""
    first, second = leased(str(tmp_path / "a"), "soft"), Lock(tmp_path / "b").acquire(0)
    look = second._lock._mechanism.check

    async def never(grant):
        return Unknown(grant.nonce, TimeoutError())

    def late(grant):
        until(lambda: not first.remaining(), 10)
        return look(grant)

    first._lock._mechanism.renew = never
    second._lock._mechanism.check = late
    both = LeaseGroup([first, second])
    if how == "held":
        assert not both.held
    else:
        with pytest.raises(LeaseLost):
            both.check()
    second.release()
    with pytest.raises(LeaseLost):
        first.release()


def test_a_link_that_bears_another_name_is_lost_though_its_file_is_the_same(path):
    """L5  A successor writes into the same file: the inode alone proves nothing."""
    lease = Lock(path, kind="link", ttl=30).acquire(0)
    with open(path, "rb") as file:
        text = file.read()
    nonce = lease.nonce.partition("-")[0].encode()
    assert nonce in text
    with open(path, "r+b") as file:
        file.write(text.replace(nonce, bytes(nonce[::-1])))
    with pytest.raises(LeaseLost):
        lease.check()
    with pytest.raises(LeaseLost):
        lease.release()


def on_a_server(lease, monkeypatch):
    """As on a file server that gives no answer; the event at whose setting it does."""
    answers, mechanism = threading.Event(), lease._lock._mechanism
    look = mechanism.check

    def late(grant):
        assert answers.wait(SOON), "whoever waits for this look waits too long"
        return look(grant)

    async def never(grant):
        return Unknown(grant.nonce, TimeoutError())

    monkeypatch.setattr(mechanism, "far", lambda: True)
    monkeypatch.setattr(mechanism, "check", late)
    monkeypatch.setattr(mechanism, "renew", never)
    return answers


def test_who_waits_for_the_loss_is_told_it_though_the_look_hangs(path, monkeypatch):
    lease = leased(path, "soft")
    answers = on_a_server(lease, monkeypatch)
    assert lease.lost.wait(SOON)
    assert not answers.is_set()
    answers.set()
    with pytest.raises(LeaseLost):
        lease.release()


def test_a_task_that_waits_for_the_loss_is_told_it_though_the_look_hangs(path, monkeypatch):
    async def main():
        lease = await AsyncLock(path, kind="soft", ttl=1).acquire(0)
        answers = on_a_server(lease, monkeypatch)
        assert await lease.lost.wait(SOON)
        assert not answers.is_set()
        answers.set()
        with pytest.raises(LeaseLost):
            await lease.release()

    asyncio.run(main())


def test_run_stops_its_command_at_the_deadline_though_the_look_hangs(path, monkeypatch):
    lease = leased(path, "soft")
    answers = on_a_server(lease, monkeypatch)
    hold = LockedCommand.__new__(LockedCommand)
    hold.leases = [lease]
    hold.care = ChildCare("", None, None, 1.0, hold._why_stop, str)
    assert hold._why_stop() is None
    until(lambda: not lease.remaining())
    assert hold._look_in() == 0.0
    assert "ttl of 1 s has passed" in hold._why_stop()
    assert (
        hold.care.kill_by < lease._kept.deadline + lease._kept.terms.margin
    )  # it is gone before anybody may take over
    assert not hold.care.held
    assert not answers.is_set()
    answers.set()
    with pytest.raises(LeaseLost):
        lease.release()


# ---- a lease that was the result of something that has ended -----------------------------------

DROPPED = {
    "kernel": {}, "soft": {"ttl": 2}, "generation": {"ttl": 2}, "link": {}, "directory": {},
    "sqlite": {"ttl": 2},
}  # fmt: skip


def of_kind(face, path, kind):
    if kind == "sqlite":
        return face(f"sqlite:///{path}#job", **DROPPED[kind])
    return face(path, kind=kind, **DROPPED[kind])


def by_asyncio(path, kind):
    async def take():
        return await of_kind(AsyncLock, path, kind).acquire(0)

    return asyncio.run(take())


def by_a_task(path, kind):
    async def take():
        return await of_kind(AsyncLock, path, kind).acquire(0)

    async def main():
        return await asyncio.create_task(take())

    return asyncio.run(main())


def by_trio(path, kind):
    async def take():
        return await of_kind(AsyncLock, path, kind).acquire(0)

    return trio.run(take)


def by_a_thread(path, kind):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: of_kind(Lock, path, kind).acquire(0)).result()


@pytest.mark.parametrize("kind", DROPPED)
@pytest.mark.parametrize("how", [by_asyncio, by_a_task, by_trio, by_a_thread])
def test_a_lease_that_was_a_result_and_is_dropped_is_let_go(path, kind, how):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", ResourceWarning)
        lease = how(path, kind)
        assert lease.held
        del lease
        gc.collect()
    assert any("dropped without release" in str(each.message) for each in told)
    of_kind(Lock, path, kind).acquire(SOON).release()


class Nobody:
    handle = ()
    key = "nobody"


class Garbage:
    """Ends up in a cycle; the collector that finds it adds to the dictionary that is looked over,
    as a thread does that comes to its turn while the collector runs code."""

    def __init__(self, add) -> None:
        self.add, self.itself = add, self

    def __del__(self) -> None:
        self.add()


@pytest.mark.parametrize("what", ["the leases of this process", "the names of a watched folder"])
def test_a_collector_that_runs_meanwhile_disturbs_no_look_over_what_all_threads_share(
    what, tmp_path
):
    if what == "the leases of this process":
        shared, look = holding, prune
        fill = {f"filled {number}": [Nobody()] for number in range(2000)}
        new = [Nobody()]
    else:
        folder = WatchedFolder(str(tmp_path))
        shared, look = folder.names, folder.changed
        fill, new = {b"%d" % number: {} for number in range(2000)}, {}
    shared.update(fill)
    added = []

    def add() -> None:
        added.append(f"added {len(added)}" if shared is holding else b"added %d" % len(added))
        shared[added[-1]] = new

    usual = gc.get_threshold()
    gc.collect()
    for _ in range(5):
        Garbage(add)
    gc.set_threshold(100, 1, 1)
    try:
        look()
    finally:
        gc.set_threshold(*usual)
        for each in [*fill, *added]:
            shared.pop(each, None)
    gc.collect()
    assert added


@pytest.mark.parametrize("kind", ["soft", "link", "generation", "directory"])
@pytest.mark.parametrize("face", [Lock, AsyncLock])
def test_what_is_known_to_be_lost_is_told_though_the_storage_refuses_its_release(
    path, kind, face, monkeypatch
):
    """L5  As on an export that has become read-only."""

    async def never(grant):
        return Unknown(grant.nonce, TimeoutError())

    def refuses(grant):
        raise SystemRefused("read-only", name=path, errno=errno.EROFS, filename=path)

    async def play():
        lock = face(path, kind=kind, ttl=1)
        lease = lock.acquire(0) if face is Lock else await lock.acquire(0)
        drop = lock._mechanism.drop
        monkeypatch.setattr(lock._mechanism, "renew", never)
        monkeypatch.setattr(lock._mechanism, "drop", refuses)
        until(lambda: not lease.remaining())
        with pytest.raises(LeaseLost):
            lease.release() if face is Lock else await lease.release()
        drop(lease._grant)

    asyncio.run(play())


@pytest.mark.parametrize("refused", [False, True])
@pytest.mark.parametrize("face", [Lock, AsyncLock])
def test_a_loss_that_the_heartbeat_noticed_and_has_not_told_is_told_by_the_release(
    path, face, refused, monkeypatch
):
    """L5  That thread may be paused between the two."""

    def refuses(grant):
        raise SystemRefused("read-only", name=path, errno=errno.EROFS, filename=path)

    async def play():
        lock = face(path, kind="soft", ttl=9)
        lease = lock.acquire(0) if face is Lock else await lock.acquire(0)
        drop = lock._mechanism.drop
        lease._kept.reason, lease._kept.over = "its ttl has passed", True
        if refused:
            monkeypatch.setattr(lock._mechanism, "drop", refuses)
        with pytest.raises(LeaseLost, match="its ttl has passed"):
            lease.release() if face is Lock else await lease.release()
        assert lease.lost.reason == "its ttl has passed"
        drop(lease._grant)

    asyncio.run(play())


@pytest.mark.parametrize(("wait", "error"), [(0, WouldBlock), (0.05, Timeout)])
def test_who_waits_in_vain_for_itself_is_told_so_and_how_to_hold_it_twice(path, wait, error):
    with Lock(path), pytest.raises(error) as caught:
        Lock(path, wait=wait).acquire()
    assert "this thread holds it itself" in str(caught.value)
    assert "reentrant=True" in str(caught.value)


def test_who_waits_in_vain_for_another_thread_is_not_told_of_itself(path):
    lease = Lock(path).acquire()
    found = []

    def ask():
        try:
            Lock(path).acquire(0)
        except WouldBlock as error:
            found.append(str(error))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    lease.release()
    assert "itself" not in found[0]
    assert "reentrant" not in found[0]


def test_a_task_that_waits_in_vain_for_itself_is_told_so_and_another_is_not(path):
    async def other():
        with pytest.raises(WouldBlock) as caught:
            await AsyncLock(path).acquire(0)
        assert "itself" not in str(caught.value)

    async def main():
        async with AsyncLock(path):
            with pytest.raises(WouldBlock) as caught:
                await AsyncLock(path).acquire(0)
            assert "this task holds it itself" in str(caught.value)
            await asyncio.create_task(other())

    asyncio.run(main())
