"""A file server may be slow: the async face calls it from helper threads, undoing late grants."""

from __future__ import annotations

import asyncio
import os
import threading
from functools import partial

import pytest

from lifehold import (
    AsyncLock,
    AsyncReadWriteLock,
    LeaseLost,
    Lock,
    NotHeld,
    ReadWriteLock,
    events,
)
from lifehold.core.deadline import Terms
from lifehold.core.grant import Grant, Unknown
from lifehold.core.owner import DEAD
from lifehold.core.value import replace
from lifehold.local import ground
from lifehold.local.directory import DirectoryLock
from lifehold.local.files import HOST, Files
from lifehold.local.generation import GenerationLock
from lifehold.local.ground import MountInfo, place_of_path
from lifehold.local.handles import Descriptors
from lifehold.local.kernel import KernelLock
from lifehold.local.kernel_readwrite import KernelReadWrite
from lifehold.local.link import LinkLock
from lifehold.local.soft import SoftLock
from lifehold.local.soft_readwrite import SoftReadWrite
from lifehold.runtime import clock
from lifehold.runtime.blocking import BLOCKING, finish
from patience import SOON, until


@pytest.fixture
def far(monkeypatch):
    monkeypatch.setattr(ground, "place_of_path", lambda path: MountInfo("nfs4", "0:50"))
    ground._of_folders.clear()
    yield
    ground._of_folders.clear()


def calls_of(monkeypatch, name, gate=None, kind=KernelLock):
    """The threads of its calls, which wait for the gate."""
    threads, plain = [], getattr(kind, name)

    def watched(self, *arguments):
        threads.append(threading.get_ident())
        assert gate is None or gate.wait(SOON)
        return plain(self, *arguments)

    monkeypatch.setattr(kind, name, watched)
    return threads


def test_a_far_lock_is_taken_and_released_outside_the_loop(far, monkeypatch, tmp_path):
    tried, dropped = calls_of(monkeypatch, "attempt"), calls_of(monkeypatch, "drop")

    async def play():
        async with AsyncLock(tmp_path / "a", kind="kernel") as lease:
            assert lease.token
        with pytest.raises(NotHeld):
            await lease.release()

    asyncio.run(play())
    assert len(tried) == 1
    assert threading.get_ident() not in tried + dropped


def test_a_near_lock_is_taken_by_the_loop_itself(monkeypatch, tmp_path):
    tried = calls_of(monkeypatch, "attempt")

    async def play():
        async with AsyncLock(tmp_path / "a", kind="kernel"):
            pass

    asyncio.run(play())
    assert tried == [threading.get_ident()]


def test_a_grant_that_comes_after_the_cancellation_is_undone(far, monkeypatch, tmp_path):
    gate = threading.Event()
    tried = calls_of(monkeypatch, "attempt", gate)
    dropped = calls_of(monkeypatch, "drop")

    async def play():
        task = asyncio.create_task(AsyncLock(tmp_path / "a", kind="kernel").acquire())
        while not tried:  # noqa: ASYNC110 - what is waited for happens in a thread
            await asyncio.sleep(0.001)
        task.cancel()
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(play())
    until(lambda: dropped)
    Lock(tmp_path / "a", kind="kernel", wait=SOON).acquire().release()


def test_a_cancelled_release_is_finished_all_the_same(far, monkeypatch, tmp_path):
    gate = threading.Event()
    dropped = calls_of(monkeypatch, "drop", gate)

    async def play():
        lease = await AsyncLock(tmp_path / "a", kind="kernel").acquire()
        task = asyncio.create_task(lease.release())
        while not dropped:  # noqa: ASYNC110 - what is waited for happens in a thread
            await asyncio.sleep(0.001)
        task.cancel()
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(play())
    Lock(tmp_path / "a", kind="kernel", wait=SOON).acquire().release()


@pytest.fixture
def told():
    """The events that a program hears."""
    heard = []
    end = events.subscribe(heard.append)
    yield heard
    end()


def cancelled_in(step, calls, gate):
    """`step()` in a task that is cancelled while a thread is in it."""

    async def play():
        task = asyncio.create_task(step())
        async with asyncio.timeout(SOON):
            while not calls:  # noqa: ASYNC110 - what is waited for happens in a thread
                await asyncio.sleep(0.001)
        task.cancel()
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    return play()


@pytest.mark.parametrize("lost", [False, True], ids=["held", "lost"])
def test_a_cancelled_release_is_told_all_the_same(far, monkeypatch, tmp_path, told, lost):
    gate, path = threading.Event(), tmp_path / "a"
    dropped = calls_of(monkeypatch, "drop", gate)
    lock = AsyncLock(path, kind="kernel", max_hold=SOON * 10)

    async def play():
        lease = await lock.acquire()
        if lost:
            os.unlink(path)
        await cancelled_in(lease.release, dropped, gate)
        return lease

    lease = asyncio.run(play())
    assert lease.lost.is_set() == lost
    assert [type(each).__name__ for each in told] == ["Acquired", "Lost" if lost else "Released"]
    assert lease._lost._over  # nobody waits for its loss any more


@pytest.mark.parametrize("lost", [False, True], ids=["held", "lost"])
def test_a_cancelled_downgrade_is_done_and_told(monkeypatch, tmp_path, lost):
    gate, path = threading.Event(), tmp_path / "a"
    calls = calls_of(monkeypatch, "downgrade", gate, KernelReadWrite)
    lock = AsyncReadWriteLock(path)
    lock._writes._far = lock._reads._far = True  # as that of a store is

    async def play():
        lease = await lock.acquire_write()
        if lost:
            os.unlink(path)
        await cancelled_in(lease.downgrade, calls, gate)
        assert lease.lost.is_set() == lost
        if not lost:
            assert not lease.exclusive
            await lease.checked()
            await lease.release()
        else:
            with pytest.raises(LeaseLost):
                lease.check()

    asyncio.run(play())
    ReadWriteLock(path).acquire_write(0).release()


def test_the_mount_that_covers_a_path_is_found_by_its_name_alone(tmp_path):
    assert place_of_path("/proc/self/status").kind == "proc"
    assert place_of_path("/no/such/folder").kind == place_of_path("/").kind != ""
    assert not place_of_path(str(tmp_path)).far


class Lending(Files):
    """A file server that lends every file that is opened, until its client changes its times.

    So does Linux: what is lent is called back before another may write, touch, rename or unlink the
    file, and from a machine that is cut off that takes 1.5 leases of the *server*.
    """

    def __init__(self):
        super().__init__()
        self.lent = set()

        def opened(path, *rest):
            fd = HOST.open(path, *rest)
            self.lent.add(os.fstat(fd).st_ino)
            return fd

        def touched(fd):
            HOST.utime(fd)
            self.lent.discard(os.fstat(fd).st_ino)

        self.open, self.utime = opened, touched

    def lent_below(self, folder):
        """Of a folder of numbers all but the last may be: who follows writes and moves none."""
        files = sorted(each for each in folder.rglob("*") if each.is_file())
        last = [each for each in files if each.name.isdigit()][-1:]
        return [each.name for each in files if each.stat().st_ino in self.lent
                and (each in last or not each.name.isdigit())]  # fmt: skip


TERMS = Terms(ttl=60.0, heartbeat=20.0, margin=6.0)
LEASED = {
    "generation": GenerationLock, "link": LinkLock, "soft": SoftLock, "directory": DirectoryLock,
    "soft writer": SoftReadWrite, "soft reader": partial(SoftReadWrite, exclusive=False),
}  # fmt: skip


@pytest.mark.parametrize("kind", LEASED)
def test_a_holder_keeps_nothing_that_its_successor_would_wait_for(kind, tmp_path):
    files = Lending()
    lock = LEASED[kind](
        str(tmp_path / "job"), BLOCKING, table=Descriptors(files), terms=TERMS,
        place=MountInfo("nfs4", ""),
    )  # fmt: skip
    grant = lock.attempt()
    assert isinstance(grant, Grant)
    assert files.lent_below(tmp_path) == []
    assert lock.check(grant) is None
    assert files.lent_below(tmp_path) == []
    renewed = finish(lock.renew(grant))
    assert isinstance(renewed, Grant)
    assert files.lent_below(tmp_path) == []
    lock.drop(grant)


class Clocked(Files):
    """A machine whose clock is `ahead` seconds before ours."""

    def __init__(self, ahead):
        super().__init__()
        self.clock_ns = lambda: HOST.clock_ns() + int(ahead * 1e9)


def linked(path, ahead, kind="nfs4"):
    return LinkLock(
        str(path),
        BLOCKING,
        table=Descriptors(Clocked(ahead)),
        terms=TERMS,
        place=MountInfo(kind, ""),
    )


def test_tokens_of_a_link_grow_between_machines_whose_clocks_are_an_hour_apart(tmp_path):
    machines = [linked(tmp_path / "job", ahead) for ahead in (3600, 0, 1800, -3600)]
    tokens = []
    for _ in range(3):
        for machine in machines:
            grant = machine.attempt()
            assert isinstance(grant, Grant)
            tokens.append(grant.token)
            machine.drop(grant)
    assert tokens == sorted(set(tokens))


def test_the_token_of_a_link_grows_over_a_takeover_between_clocks(tmp_path):
    """And for the server itself, which has the folder as its own disk."""
    dead = linked(tmp_path / "job", 3600).attempt()
    os.truncate(tmp_path / "job", 0)  # as a power failure may leave it: it names no token
    behind = linked(tmp_path / "job", 0)
    behind.judged = lambda at, seen: replace(LinkLock.judged(behind, at, seen), state=DEAD, due=0.0)
    grant = behind.attempt()
    assert isinstance(grant, Grant)
    assert grant.token > dead.token
    behind.drop(grant)
    on_the_server = linked(tmp_path / "job", 0, "ext4")
    last = on_the_server.attempt()
    assert last.token > grant.token
    on_the_server.drop(last)


def test_a_counter_that_may_not_be_written_is_the_reason_of_no_token(tmp_path):
    (tmp_path / "job.token").mkdir()
    machine = linked(tmp_path / "job", 0)
    grant = machine.attempt()
    assert grant.token is None
    assert "token" in grant.token_reason
    assert machine.check(grant) is None
    machine.drop(grant)


def test_on_a_disk_of_one_kernel_a_link_leaves_nothing_behind(tmp_path):
    machine = linked(tmp_path / "job", 0, "ext4")
    grant = machine.attempt()
    machine.drop(grant)
    assert list(tmp_path.iterdir()) == []


# ---- a lease whose file server is silent, in an event loop ---------------------------------------


@pytest.fixture
def silent(far, monkeypatch):
    """Looks and renewals of soft locks hang until the event is set."""
    answers = threading.Event()
    looks = []
    look = SoftLock.check

    def late(self, grant):
        looks.append(threading.get_ident())
        assert answers.wait(SOON)
        return look(self, grant)

    async def never(self, grant):
        return Unknown(grant.nonce, TimeoutError())

    monkeypatch.setattr(SoftLock, "check", late)
    monkeypatch.setattr(SoftLock, "renew", never)
    yield answers, looks
    answers.set()


def in_a_loop(path, play):
    """Play a lease of 4 s, or longer, beside a task that counts its turns."""

    async def main():
        turns = []

        async def turn():
            while True:
                turns.append(clock.now())
                await asyncio.sleep(0.01)

        counting = asyncio.create_task(turn())
        lease = await AsyncLock(path, kind="soft", ttl=4).acquire(0)
        try:
            await play(lease, turns)
        finally:
            counting.cancel()
            with pytest.raises(LeaseLost):
                await lease.release()

    asyncio.run(main())


def test_a_check_in_a_loop_never_waits_for_a_file_server(silent, tmp_path):
    answers, looks = silent

    async def play(lease, turns):
        lease.check()
        assert lease.held
        while lease.remaining():  # noqa: ASYNC110 - a clock is waited for
            await asyncio.sleep(0.01)
        with pytest.raises(LeaseLost):
            lease.check()
        assert not answers.is_set()
        assert looks
        assert threading.get_ident() not in looks

    in_a_loop(tmp_path / "a", play)


def test_a_check_in_a_loop_says_what_the_last_look_found(far, tmp_path):
    async def main():
        lease = await AsyncLock(tmp_path / "a", kind="soft", ttl=60).acquire(0)
        os.unlink(tmp_path / "a")
        while lease.held:  # noqa: ASYNC110 - what is waited for happens in a thread
            await asyncio.sleep(0.01)
        with pytest.raises(LeaseLost, match="removed"):
            lease.check()
        with pytest.raises(LeaseLost):
            await lease.release()

    asyncio.run(asyncio.wait_for(main(), SOON))


@pytest.mark.parametrize("how", ["checked", "verify"])
def test_an_awaited_look_ends_at_the_deadline_and_the_loop_goes_on(silent, tmp_path, how):
    answers, looks = silent

    async def play(lease, turns):
        before = len(turns)
        with pytest.raises(LeaseLost):
            await getattr(lease, how)()
        assert not answers.is_set()
        assert threading.get_ident() not in looks
        assert len(turns) > before + 5

    in_a_loop(tmp_path / "a", play)


def test_a_cancelled_look_leaves_nothing_behind(silent, tmp_path):
    _answers, looks = silent

    async def play(lease, turns):
        looking = asyncio.create_task(lease.checked())
        while not looks:  # noqa: ASYNC110 - what is waited for happens in a thread
            await asyncio.sleep(0.01)
        looking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await looking
        assert lease.lost._waiting == []
        while lease.remaining():  # noqa: ASYNC110 - a clock is waited for
            await asyncio.sleep(0.01)

    in_a_loop(tmp_path / "a", play)


def test_an_awaited_look_finds_what_became_of_the_file(far, tmp_path):
    async def main():
        lock = AsyncLock(tmp_path / "a", kind="soft", ttl=60)
        lease = await lock.acquire(0)
        await lease.checked()
        await lease.verify()
        os.unlink(tmp_path / "a")
        with pytest.raises(LeaseLost):
            await lease.checked()
        with pytest.raises(LeaseLost):
            await lease.release()
        other = await lock.acquire(0)
        await other.release()
        with pytest.raises(NotHeld):
            await other.checked()
        with pytest.raises(NotHeld):
            other.check()

    asyncio.run(main())


def test_a_task_that_waits_for_a_soft_lock_asks_the_server_beside_the_loop(
    far, monkeypatch, tmp_path
):
    threads, plain = [], SoftLock.attempt

    def watched(self):
        threads.append(threading.get_ident())
        return plain(self)

    monkeypatch.setattr(SoftLock, "attempt", watched)
    held = Lock(tmp_path / "a", kind="soft", ttl=60).acquire(0)
    threads.clear()

    async def main():
        waiter = asyncio.create_task(AsyncLock(tmp_path / "a", kind="soft", ttl=60).acquire(SOON))
        while len(threads) < 3:  # noqa: ASYNC110 - what is waited for happens in threads
            await asyncio.sleep(0.01)
        held.release()
        await (await waiter).release()

    asyncio.run(main())
    assert threading.get_ident() not in threads
