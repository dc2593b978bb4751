"""Who is let in: never two; readers beside readers; as many as there are permits (L1, L4)."""

from __future__ import annotations

import itertools
import os
from typing import Any

from ...core.errors import InvalidArgument, LeaseLost, NotAcquired, SelfDeadlock, WouldBlock
from ...local.kernel_semaphore import slot_path
from ...lock import Lock
from ..faces import CANCELLED
from ..stage import ClaimBroken, InsideHolder, Stage, claim, expect, refused


@claim()
async def two_objects_exclude_each_other(s: Stage) -> None:
    first, second = s.lock(), s.lock()
    lease = await s.face.acquire(first)
    with refused(WouldBlock):
        await s.face.acquire(second, 0)
    await s.face.release(lease)
    await s.face.release(await s.face.acquire(second, 0))


def stays(turn: int) -> float:
    """How long a worker stays inside: mostly no time, sometimes long enough for others to come."""
    return 0 if turn % 5 else 0.002


@claim()
async def workers_are_never_inside_together(s: Stage) -> None:
    inside: list[object] = []
    leases: list[tuple[int | None, str]] = []

    async def work() -> int:
        lock = s.lock()
        for turn in range(20):
            lease = await s.face.acquire(lock)
            inside.append(lease)
            leases.append((lease.token, lease.nonce))
            await s.face.sleep(stays(turn))
            expect(inside == [lease], f"{len(inside)} holders at once")
            inside.clear()
            await s.face.release(lease)
        return 20

    workers = [s.face.start(work) for _ in range(4)]
    expect(sum([await w.result() for w in workers]) == 80, "a round is missing")
    tokens = [token for token, _ in leases]
    expect(len({nonce for _, nonce in leases}) == 80, "a nonce was used twice")
    if s.has("token"):
        growing = all(a < b for a, b in itertools.pairwise([t or 0 for t in tokens]))
        expect(growing, f"tokens: {tokens}")


@claim()
async def workers_of_one_object_exclude_each_other(s: Stage) -> None:
    lock, inside = s.lock(), []

    async def work() -> None:
        for turn in range(20):
            async with s.face.held(lock):
                inside.append(1)
                await s.face.sleep(stays(turn))
                expect(len(inside) == 1, f"{len(inside)} holders at once")
                inside.pop()

    for worker in [s.face.start(work) for _ in range(3)]:
        await worker.result()


@claim()
async def the_faces_exclude_each_other(s: Stage) -> None:
    from ..faces import Blocking

    other: Any = s.subject.make(s.subject, Blocking(), s.target, {})
    expect(isinstance(other, Lock), "make() ignores the face it is given")
    async with s.face.held(s.lock()):
        with refused(WouldBlock):
            other.acquire(0)
    lease = other.acquire(0)
    with refused(WouldBlock):
        await s.face.acquire(s.lock(), 0)
    lease.release()


@claim("processes")
async def processes_exclude_each_other(s: Stage) -> None:
    with s.neighbour() as neighbour:
        lease = await s.face.acquire(s.lock())
        expect(neighbour.acquire(0).get("refused") == "WouldBlock", "two processes hold it")
        await s.face.release(lease)
        theirs = neighbour.acquire(0)
        expect("nonce" in theirs, f"a free lock was refused to a process: {theirs}")
        with refused(WouldBlock):
            await s.face.acquire(s.lock(), 0)
        neighbour.release()
        ours = await s.face.acquire(s.lock(), 0)
        if s.has("token"):
            expect(lease.token < theirs["token"] < ours.token, "tokens do not grow over processes")
        await s.face.release(ours)


@claim("token")
async def each_token_is_greater_than_the_last(s: Stage) -> None:
    last, lock = 0, s.lock()
    for number in range(50):
        lease = await s.face.acquire(lock if number % 2 else s.lock())
        expect(isinstance(lease.token, int) and lease.token > last, f"{lease.token} after {last}")
        expect(lease.token_reason is None, "a token and a reason for none")
        last = lease.token
        await s.face.release(lease)


@claim()
async def a_lease_without_a_token_says_why(s: Stage) -> None:
    lease = await s.face.acquire(s.lock())
    expect((lease.token is None) == bool(lease.token_reason), "token and reason disagree")
    await s.face.release(lease)


@claim()
async def no_nonce_is_used_twice(s: Stage) -> None:
    nonces = set()
    for _ in range(50):
        lease = await s.face.acquire(s.lock())
        nonces.add(lease.nonce)
        await s.face.release(lease)
    expect(len(nonces) == 50, f"{len(nonces)} nonces for 50 grants")


@claim("shared")
async def readers_share_it_and_keep_a_writer_out(s: Stage) -> None:
    readers = [await s.face.acquire(s.lock(exclusive=False), 0) for _ in range(3)]
    with refused(WouldBlock):
        await s.face.acquire(s.lock(), 0)
    for reader in readers:
        reader.check()
        expect(not reader.exclusive, "a shared lease says it is exclusive")
        await s.face.release(reader)
    await s.face.release(await s.face.acquire(s.lock(), 0))


@claim("shared", "token")
async def readers_carry_the_token_of_the_last_writer(s: Stage) -> None:
    for _ in range(2):
        writer = await s.face.acquire(s.lock(), 0)
        await s.face.release(writer)
        readers = [await s.face.acquire(s.lock(exclusive=False), 0) for _ in range(2)]
        for reader in readers:
            expect(reader.token == writer.token, f"{reader.token} after {writer.token}")  # L4
            await s.face.release(reader)


@claim("shared")
async def a_writer_keeps_readers_out(s: Stage) -> None:
    async with s.face.held(s.lock()) as lease:
        expect(lease.exclusive, "an exclusive lease says it is shared")
        with refused(WouldBlock):
            await s.face.acquire(s.lock(exclusive=False), 0)
    await s.face.release(await s.face.acquire(s.lock(exclusive=False), 0))


@claim()
async def waiting_for_oneself_is_an_error_and_not_a_hang(s: Stage) -> None:
    lock = s.lock()
    async with s.face.held(lock) as lease:
        for other in (lock, s.lock()):
            lease.check()  # one that was lost would be waited for without end
            with refused(SelfDeadlock) as caught:
                await s.face.acquire(other, None)
            expect(caught.error.name == lease.name, "the error does not name the lock")
            with refused(WouldBlock):
                await s.face.acquire(other, 0)
        lease.check()

    async def stranger() -> bool:
        async with s.face.held(s.lock()):
            return True

    held = await s.face.acquire(lock)
    worker = s.face.start(stranger)
    await s.face.sleep(0.02)
    await s.face.release(held)
    expect(await worker.result(), "a wait for another worker was taken for one for oneself")


@claim()
async def a_reentrant_lock_is_released_as_often_as_it_was_taken(s: Stage) -> None:
    lock = s.lock(reentrant=True)
    async with s.face.held(lock) as outer:
        async with s.face.held(lock) as inner:
            expect(inner.token == outer.token and inner.nonce == outer.nonce, "two grants")
            again = await s.face.acquire(lock, 0)
            await s.face.release(again)
        outer.check()
        expect(not await s.is_free(), "the inner release freed it")
    expect(await s.is_free(), "the last release did not free it")


@claim()
async def a_reentrant_lock_keeps_other_workers_out(s: Stage) -> None:
    lock = s.lock(reentrant=True)

    async def work() -> None:
        with refused(WouldBlock):
            await s.face.acquire(lock, 0)

    async with s.face.held(lock):
        await s.face.start(work).result()


@claim()
async def a_wait_that_is_no_length_of_time_is_refused_and_nothing_is_held(s: Stage) -> None:
    for wait in (-1, float("nan"), float("inf"), "5", True, [1]):
        with refused(InvalidArgument):
            await s.face.acquire(s.lock(), wait)  # type: ignore[arg-type]
        with refused(InvalidArgument):
            s.lock(wait=wait)
    expect(await s.is_free(), "a refused argument left the lock held")


# ------------------------------------------------------------------------------------------------
# Readers and writers, semaphores: who is in beside whom, whose turn it is, what they carry.


ROUNDS = 2000  # of readers that overlap, after which a writer that waits counts as starved


@claim(shape="readwrite")
async def readers_are_in_together_and_a_writer_is_alone(s: Stage) -> None:
    readers = [await InsideHolder.entered(s, exclusive=False) for _ in range(3)]
    with refused(WouldBlock):
        await InsideHolder.entered(s)
    for each in readers:
        await each.leave()
    writer = await InsideHolder.entered(s)
    for exclusive in (True, False):
        with refused(WouldBlock):
            await InsideHolder.entered(s, exclusive=exclusive)
    await writer.leave()
    expect(await s.is_free(), "somebody is still in")


@claim(shape="readwrite")
async def readers_that_overlap_without_end_keep_no_writer_out(s: Stage) -> None:
    reader = await InsideHolder.entered(s, exclusive=False)
    writer = InsideHolder(s, wait=None)
    for _ in range(ROUNDS):
        try:
            following = await InsideHolder.entered(s, exclusive=False)
        except NotAcquired:  # a writer has asked: whoever comes later is behind it
            await reader.leave()
            break
        await reader.leave()
        reader = following
    else:
        writer.cancel()
        await reader.leave()
        raise ClaimBroken(f"{ROUNDS} readers passed a writer that waits")
    await s.until(writer.has_come, "nobody is in, and the writer waits")
    await writer.leave()


@claim(shape="readwrite")
async def writers_without_end_keep_no_reader_out(s: Stage) -> None:
    over: list[int] = []

    async def write() -> None:
        while not over:
            await s.face.release(await s.face.acquire(s.lock(), None))
            await s.face.sleep(0)

    writers = [s.face.start(write) for _ in range(2)]
    try:
        for _ in range(3):
            await (await InsideHolder.entered(s, wait=None, exclusive=False)).leave()
    finally:
        over.append(1)
        for each in writers:
            await each.result()


@claim(shape="readwrite")
async def a_writers_token_grows_and_readers_carry_it(s: Stage) -> None:
    last = 0
    for _ in range(3):
        writer = await InsideHolder.entered(s)
        token = await writer.leave()
        expect(token > last, f"{token} after {last}")
        last = token
        for _ in range(2):
            reader = await InsideHolder.entered(s, exclusive=False)
            expect(await reader.leave() == last, "a reader carries another token")


@claim("lose", shape="readwrite")
async def a_reader_and_a_writer_are_told_of_a_loss(s: Stage) -> None:
    for exclusive in (True, False):
        holder = await InsideHolder.entered(s, exclusive=exclusive)
        holder.lease.check()
        s.lose()
        with refused(LeaseLost):
            holder.lease.check()
        with refused(LeaseLost):
            await holder.leave()
        expect(await s.is_free(), "what was lost is still held")
        if s.has("token"):  # L4
            token, lost = await (await InsideHolder.entered(s)).leave(), holder.lease.token
            expect(token > lost, f"{token} after the lost {lost}")


@claim(shape="readwrite")
async def a_writer_that_gives_up_keeps_no_reader_out(s: Stage) -> None:
    reader = await InsideHolder.entered(s, exclusive=False)
    writer = InsideHolder(s, wait=None)
    for _ in range(ROUNDS):
        try:
            await (await InsideHolder.entered(s, exclusive=False)).leave()
        except NotAcquired:
            break
    writer.cancel()
    expect(await writer.result() == CANCELLED, "the wait was not cancelled")
    await (await InsideHolder.entered(s, exclusive=False)).leave()
    await reader.leave()
    expect(await s.is_free(), "a writer that gave up holds it")


def _blocked(path: str) -> int:
    """How many stand in the kernel's queue of a file. A table that changes may be read amiss."""
    inode = str(os.stat(path).st_ino)
    with open("/proc/locks", encoding="utf-8") as table:
        lines = [line.split() for line in table if " -> " in line]
    return sum(line[-3].rpartition(":")[2] == inode for line in lines)


async def _stand(s: Stage, before: int) -> InsideHolder:
    """One more who waits, behind so many who do: it is seen to stand there."""
    waiter = InsideHolder(s, wait=None)
    if s.subject.remote:  # the store keeps the line
        store = s.lock()._mechanism
        await s.until(
            lambda: store.waiters() == before + 1, "it does not come to stand in line", 20.0
        )
        return waiter

    def standing() -> bool:
        """The first stands in the queues of the slots, the others in that of the file."""
        places = (s.target, before), (slot_path(s.target, 0), 1)
        looks = [[_blocked(path) == number for path, number in places] for _ in range(2)]
        return all(map(all, looks))

    await s.until(standing, "it does not come to stand in line", 20.0)
    return waiter


@claim(shape="semaphore")
async def no_more_are_in_than_permits_and_each_has_its_own_slot(s: Stage) -> None:
    both = [await InsideHolder.entered(s) for _ in range(2)]
    expect(sorted(each.lease.slot for each in both) == [0, 1], "two have one slot")
    with refused(WouldBlock):
        await InsideHolder.entered(s)
    freed = both[0].lease.slot
    await both[0].leave()
    again = await InsideHolder.entered(s)
    expect(again.lease.slot == freed, "the slot that came free was not given")
    for each in (again, both[1]):
        await each.leave()
    expect(await s.is_free(), "a permit is lost")


@claim(shape="semaphore")
async def first_come_is_first_served(s: Stage) -> None:
    both = [await InsideHolder.entered(s) for _ in range(2)]
    standing = [await _stand(s, number) for number in range(3)]
    with refused(WouldBlock):
        await InsideHolder.entered(s)
    await both[0].leave()
    for number, waiter in enumerate(standing):
        await s.until(waiter.has_come, "the first in line is not in")
        expect(not any(each.lease for each in standing[number + 1 :]), "one was passed")
        await waiter.leave()
    await both[1].leave()
    expect(await s.is_free(), "a permit is lost")


@claim(shape="semaphore")
async def the_token_of_a_slot_only_grows(s: Stage) -> None:
    last: dict[int, int] = {}
    for _ in range(4):
        both = [await InsideHolder.entered(s) for _ in range(2)]
        for each in both:
            slot = each.lease.slot
            expect(each.lease.token > last.get(slot, 0), f"slot {slot}")
            last[slot] = await each.leave()
    expect(set(last) == {0, 1}, "one slot is never used")


@claim("lose", shape="semaphore")
async def who_loses_its_slot_is_told_and_the_other_is_not(s: Stage) -> None:
    both = [await InsideHolder.entered(s) for _ in range(2)]
    s.lose()
    robbed = next(each for each in both if each.lease.slot == 0)
    other = next(each for each in both if each is not robbed)
    with refused(LeaseLost):
        robbed.lease.check()
    other.lease.check()
    with refused(LeaseLost):
        await robbed.leave()
    if s.has("token"):  # L4
        token, lost = await (await InsideHolder.entered(s)).leave(), robbed.lease.token
        expect(token > lost, f"{token} after the lost {lost}")
    await other.leave()


@claim(shape="semaphore")
async def a_waiter_that_gives_up_takes_no_permit_and_no_place(s: Stage) -> None:
    both = [await InsideHolder.entered(s) for _ in range(2)]
    first = await _stand(s, 0)
    second = await _stand(s, 1)
    first.cancel()
    expect(await first.result() == CANCELLED, "the wait was not cancelled")
    await both[0].leave()
    await s.until(second.has_come, "who stands behind it is not let in")
    for each in (second, both[1]):
        await each.leave()
    expect(await s.is_free(), "a waiter that gave up holds a permit")
