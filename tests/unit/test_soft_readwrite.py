"""ReadWriteLock(kind="soft"): what a program sees of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading

import pytest

import lifehold
from lifehold import Lock, ReadWriteLock
from lifehold.aio import AsyncReadWriteLock
from lifehold.local.soft_readwrite import SoftReadWrite


@pytest.fixture(params=[{}, {"ttl": 5}], ids=["witness", "lease"])
def make(tmp_path, request):
    def made(**more):
        return ReadWriteLock(tmp_path / "config", kind="soft", **request.param, **more)

    return made


def in_thread(call):
    found = []

    def run():
        try:
            found.append(call())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    assert found, "the thread hangs"
    return found[0]


def claimed(path):
    return os.path.exists(path)


def markers(tmp_path):
    return os.listdir(tmp_path / "config.readers")


def test_readers_share_it_and_a_writer_is_alone(make):
    with make().reading():
        assert in_thread(lambda: make().acquire_read(0).release()) is None
        assert isinstance(in_thread(lambda: make().acquire_write(0)), lifehold.WouldBlock)
    with make().writing():
        for side in ("acquire_read", "acquire_write"):
            refused = in_thread(lambda side=side: getattr(make(), side)(0))
            assert isinstance(refused, lifehold.WouldBlock)
            assert refused.holder.owner.pid == os.getpid()


def test_tokens_grow_and_readers_carry_the_last(make):
    with make().reading() as lease:
        assert lease.token is None
    tokens = []
    for _ in range(3):
        with make().writing() as lease:
            tokens.append(lease.token)
        with make().reading() as lease:
            assert lease.token == tokens[-1]
    assert tokens == sorted(set(tokens))


def test_nothing_is_left_and_what_is_there_is_private(make, tmp_path):
    with make().reading():
        (name,) = markers(tmp_path)
        assert len(name) == 2 + 32  # 128 random bits
        assert os.stat(tmp_path / "config.readers").st_mode & 0o777 == 0o700
        assert os.stat(tmp_path / "config.readers" / name).st_mode & 0o777 == 0o600
    with make().writing():
        assert os.stat(tmp_path / "config").st_mode & 0o777 == 0o600
    assert markers(tmp_path) == []
    assert sorted(os.listdir(tmp_path)) == ["config.readers", "config.token"]


def test_a_waiting_writer_keeps_later_readers_out_and_gets_in_when_the_last_leaves(
    make, monkeypatch
):
    first, order = make().acquire_read(), []

    def write():
        with make().writing(20):
            order.append("writer")

    def read():
        with make().reading(20):
            order.append("reader")

    claimed, writes = threading.Event(), SoftReadWrite._writes

    def kept(lock, *its):  # a claim that stays: one of a first try is given back at once
        claimed.set()
        return writes(lock, *its)

    monkeypatch.setattr(SoftReadWrite, "_writes", kept)
    writer = threading.Thread(target=write)
    writer.start()
    assert claimed.wait(90)
    reader = threading.Thread(target=read)
    reader.start()
    first.release()
    for thread in (writer, reader):
        thread.join(60)
    assert order == ["writer", "reader"]


def test_a_writer_that_gives_up_lets_readers_in(make):
    with make().reading():
        assert type(in_thread(lambda: make().acquire_write(0.1))) is lifehold.Timeout
        cancel = lifehold.Cancel()
        timer = threading.Timer(0.1, cancel.cancel)
        timer.start()
        ended = in_thread(lambda: make().acquire_write(cancel=cancel))
        assert type(ended) is lifehold.AcquireCancelled
        assert in_thread(lambda: make().acquire_read(0).release()) is None


def test_a_writer_that_comes_later_lets_a_waiting_reader_in_first(make, tmp_path):
    first, came = make().acquire_write(), []
    reader = threading.Thread(target=lambda: came.append(make().acquire_read(60)))
    reader.start()
    while not markers(tmp_path):
        pass
    first.release()
    later = in_thread(lambda: make().acquire_write(0))  # it may come before the reader has woken
    assert isinstance(later, lifehold.WouldBlock), later
    reader.join(60)
    came[0].release()
    make().acquire_write(0).release()
    assert markers(tmp_path) == []


def test_a_writer_that_tries_once_passes_over_a_stopped_reader(make, tmp_path):
    with make().writing():
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(BaseException):
                make().acquire_read(600)
            os._exit(0)
        try:
            while not [name for name in markers(tmp_path) if name.startswith("w.")]:
                pass
            os.kill(pid, signal.SIGSTOP)
            os.waitpid(pid, os.WUNTRACED)
        except BaseException:
            os.kill(pid, signal.SIGKILL)
            raise
    try:
        make().acquire_write(0).release()
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_a_marker_that_names_nobody_holds_a_writer_up_for_a_moment(make, tmp_path):
    make().acquire_read().release()
    asks = tmp_path / "config.readers" / f"w.{'0' * 32}"
    asks.write_text("no record")
    with pytest.raises(lifehold.WouldBlock, match="nobody holds it now") as refused:
        make().acquire_write(0)
    assert "free by now" not in str(refused.value)
    os.utime(asks, (0, 0))
    make().acquire_write(0).release()


def test_a_marker_that_cannot_be_read_is_what_the_writer_is_told(make, tmp_path):
    make().acquire_read().release()
    marker = tmp_path / "config.readers" / f"r.{'0' * 32}"
    marker.write_text("no record")
    with pytest.raises(lifehold.WouldBlock, match="cannot be read as a lock's record"):
        make().acquire_write(0)
    marker.unlink()
    os.mkfifo(marker)
    with pytest.raises(lifehold.InvalidArgument) as refused:
        make().acquire_write(0)
    assert str(marker) in str(refused.value)
    assert "/proc/" not in str(refused.value)


def test_a_writer_waits_for_no_reader_that_only_sleeps(tmp_path):
    lock = ReadWriteLock(tmp_path / "config", kind="soft")
    lock.acquire_read().release()
    mechanism = lock._reads._mechanism
    asks = mechanism._guarded(mechanism._begun)  # it asks, and never looks whether it may go in
    with lock.writing(60):
        assert len(markers(tmp_path)) == 1
    assert mechanism.drop(asks.grant) is None


@pytest.mark.parametrize("way", ["time", "cancel"])
def test_a_reader_that_gives_up_leaves_nothing(make, tmp_path, way):
    with make().writing():
        if way == "time":
            assert type(in_thread(lambda: make().acquire_read(0.1))) is lifehold.Timeout
        else:
            cancel = lifehold.Cancel()
            timer = threading.Timer(0.1, cancel.cancel)
            timer.start()
            ended = in_thread(lambda: make().acquire_read(cancel=cancel))
            assert type(ended) is lifehold.AcquireCancelled
            timer.join()
        assert markers(tmp_path) == []


def test_a_link_put_in_place_of_the_folder_leads_nobody_elsewhere(make, tmp_path):
    lock, folder = make(), tmp_path / "config.readers"
    lock.acquire_read().release()
    (tmp_path / "elsewhere").mkdir()

    def swapped(at):
        folder.rename(tmp_path / "moved")
        folder.symlink_to("elsewhere")
        return lock._reads._mechanism._posted(at, "r.")

    grant = lock._reads._mechanism._guarded(swapped)
    assert os.listdir(tmp_path / "elsewhere") == []
    assert len(os.listdir(tmp_path / "moved")) == 1
    assert lock._reads._mechanism.check(grant).gone
    with pytest.raises(lifehold.InvalidArgument):
        lock.acquire_read(0)


def test_a_folder_that_is_gone_while_a_reader_asks_is_an_error_and_no_hang(make, tmp_path):
    lock = make()
    lock.acquire_read().release()
    mechanism = lock._reads._mechanism

    def removed(at):
        os.rmdir(tmp_path / "config.readers")
        return mechanism._begun(at)

    with pytest.raises(lifehold.SystemRefused):
        mechanism._guarded(removed)


def test_a_folder_that_was_removed_is_made_again_and_is_private(make, tmp_path):
    lock = make()
    lock.acquire_read().release()
    os.rmdir(tmp_path / "config.readers")
    with lock.reading():
        assert os.stat(tmp_path / "config.readers").st_mode & 0o777 == 0o700


def test_a_removed_marker_or_claim_is_a_lost_lease(make, tmp_path):
    lease = make().acquire_read()
    os.unlink(tmp_path / "config.readers" / markers(tmp_path)[0])
    with pytest.raises(lifehold.LeaseLost):
        lease.check()
    with pytest.raises(lifehold.LeaseLost):
        lease.release()
    lease = make().acquire_write()
    os.unlink(tmp_path / "config")
    with pytest.raises(lifehold.LeaseLost):
        lease.check()
    with pytest.raises(lifehold.LeaseLost):
        lease.release()


@pytest.mark.large
def test_a_lease_is_renewed_while_it_is_held(tmp_path):
    lock = ReadWriteLock(tmp_path / "config", kind="soft", ttl=4.0, heartbeat=0.1)
    for acquire in (lock.acquire_read, lock.acquire_write):
        with acquire() as lease:
            assert not lease.lost.wait(4.2)
            assert lease.renewals > 2
            lease.check()


@pytest.mark.large
def test_a_claim_is_renewed_while_its_writer_waits_for_readers(tmp_path):
    lock = ReadWriteLock(tmp_path / "config", kind="soft", ttl=3.0)
    first, came = lock.acquire_read(), threading.Event()

    def write():
        with ReadWriteLock(tmp_path / "config", kind="soft", ttl=3.0).writing(120):
            came.set()

    writer = threading.Thread(target=write)
    writer.start()
    assert not came.wait(6.5)  # more than two ttl
    refused = in_thread(lambda: ReadWriteLock(lock.path, kind="soft", ttl=3.0).acquire_read(0))
    assert isinstance(refused, lifehold.WouldBlock)
    first.release()
    assert came.wait(60)
    writer.join(60)


def test_reading_in_writing_and_upgrading_are_refused_at_once(make):
    lock = make()
    with lock.reading(), pytest.raises(lifehold.SelfDeadlock, match="release the read lease"):
        lock.acquire_write(5)
    with lock.writing(), pytest.raises(lifehold.SelfDeadlock, match="downgrade"):
        lock.acquire_read(5)
    with lock.writing() as lease, pytest.raises(lifehold.InvalidArgument, match="no downgrade"):
        lease.downgrade()


def test_another_kind_on_its_path_is_refused_both_ways(tmp_path):
    with ReadWriteLock(tmp_path / "a", kind="soft").writing():
        with pytest.raises(lifehold.UnsafeGround):
            Lock(tmp_path / "a", kind="soft").acquire(0)
        with pytest.raises(lifehold.LifeholdError):
            Lock(tmp_path / "a").acquire(0)
    with Lock(tmp_path / "b", kind="soft"), pytest.raises(lifehold.UnsafeGround):
        ReadWriteLock(tmp_path / "b", kind="soft").acquire_write(0)


def test_a_link_or_a_file_in_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "a.readers").write_text("x")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "b.readers").symlink_to("elsewhere")
    for name in ("a", "b"):
        with pytest.raises(lifehold.InvalidArgument):
            ReadWriteLock(tmp_path / name, kind="soft").acquire_read(0)


def test_tasks_read_and_write_and_a_cancelled_writer_leaves_no_claim(tmp_path):
    async def main():
        lock = AsyncReadWriteLock(tmp_path / "config", kind="soft")
        async with lock.reading():
            waiting = asyncio.create_task(lock.acquire_write())
            await asyncio.sleep(0.1)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert markers(tmp_path)
            assert not claimed(lock.path)
        async with lock.writing(0):
            assert lock.locked()
        assert not lock.locked()

    asyncio.run(main())
