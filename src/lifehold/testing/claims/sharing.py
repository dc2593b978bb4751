"""Readers and writers, semaphores: who is in beside whom, whose turn it is, what they carry."""

from __future__ import annotations

import os

from ...core.errors import LeaseLost, NotAcquired, WouldBlock
from ...local.kernel_semaphore import slot_path
from ..faces import CANCELLED
from ..stage import ClaimBroken, InsideHolder, Stage, claim, expect, refused

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


# ------------------------------------------------------------------------------------------------
# A semaphore of two permits: how many are in, in which order, with what slot and token.


def _blocked(path: str) -> int:
    """How many stand in the kernel's queue of a file. A table that changes may be read amiss."""
    inode = str(os.stat(path).st_ino)
    with open("/proc/locks", encoding="ascii") as table:
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
