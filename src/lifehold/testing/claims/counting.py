"""A semaphore of two permits: how many are in, in which order, with what slot and token."""

from __future__ import annotations

import os

from ...core.errors import LeaseLost, WouldBlock
from ...local.kernel_semaphore import slot_path
from ..faces import CANCELLED
from ..stage import Inside, Stage, claim, expect, refused


def _blocked(path: str) -> int:
    """How many stand in the kernel's queue of a file. A table that changes may be read amiss."""
    inode = str(os.stat(path).st_ino)
    with open("/proc/locks", encoding="ascii") as table:
        lines = [line.split() for line in table if " -> " in line]
    return sum(line[-3].rpartition(":")[2] == inode for line in lines)


async def _stand(s: Stage, before: int) -> Inside:
    """One more who waits, behind so many who do: it is seen to stand there."""
    waiter = Inside(s, wait=None)
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
    both = [await Inside.entered(s) for _ in range(2)]
    expect(sorted(each.lease.slot for each in both) == [0, 1], "two have one slot")
    with refused(WouldBlock):
        await Inside.entered(s)
    freed = both[0].lease.slot
    await both[0].leave()
    again = await Inside.entered(s)
    expect(again.lease.slot == freed, "the slot that came free was not given")
    for each in (again, both[1]):
        await each.leave()
    expect(await s.is_free(), "a permit is lost")


@claim(shape="semaphore")
async def first_come_is_first_served(s: Stage) -> None:
    both = [await Inside.entered(s) for _ in range(2)]
    standing = [await _stand(s, number) for number in range(3)]
    with refused(WouldBlock):
        await Inside.entered(s)
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
        both = [await Inside.entered(s) for _ in range(2)]
        for each in both:
            slot = each.lease.slot
            expect(each.lease.token > last.get(slot, 0), f"slot {slot}")
            last[slot] = await each.leave()
    expect(set(last) == {0, 1}, "one slot is never used")


@claim("lose", shape="semaphore")
async def who_loses_its_slot_is_told_and_the_other_is_not(s: Stage) -> None:
    both = [await Inside.entered(s) for _ in range(2)]
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
    both = [await Inside.entered(s) for _ in range(2)]
    first = await _stand(s, 0)
    second = await _stand(s, 1)
    first.cancel()
    expect(await first.result() == CANCELLED, "the wait was not cancelled")
    await both[0].leave()
    await s.until(second.has_come, "who stands behind it is not let in")
    for each in (second, both[1]):
        await each.leave()
    expect(await s.is_free(), "a waiter that gave up holds a permit")
