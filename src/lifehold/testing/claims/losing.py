"""How a lease ends against its holder's will, and how he learns of it."""

from __future__ import annotations

from ...core import events
from ...core.errors import LeaseLost
from ..stage import Stage, claim, expect, heard, refused


@claim("lose")
async def a_loss_is_told_by_check_release_event_and_callback(s: Stage) -> None:
    called: list[int] = []
    with heard() as told:
        lease = await s.face.acquire(s.lock())
        lease.lost.add_callback(lambda: called.append(1))
        lease.check()
        expect(not lease.lost.is_set() and not await s.lost(lease, 0.001), "lost too early")
        s.lose()
        with refused(LeaseLost):
            lease.check()
        with refused(LeaseLost) as caught:  # once lost, for ever lost
            lease.check()
        expect(caught.error.reason and caught.error.name == lease.name, "the loss has no reason")
        expect(lease.lost.is_set() and await s.lost(lease, 0), "not told")
        await s.until(lambda: called, "not called")  # maybe by the thread that watches
        expect(called == [1], "called twice")
        expect(not lease.held, "held says yes")
        lease.lost.add_callback(lambda: called.append(2))
        expect(called == [1, 2], "a late callback is not called at once")
        with refused(LeaseLost):
            await s.face.release(lease)
    losses = [event for event in told if isinstance(event, events.Lost)]
    expect([(e.name, e.nonce) for e in losses] == [(lease.name, lease.nonce)], f"{losses}")


@claim("lose")
async def who_waits_for_a_loss_is_told_without_asking(s: Stage) -> None:
    lease = await s.face.acquire(s.lock())
    waiter = s.face.start(lambda: s.lost(lease, 15))
    await s.face.sleep(0.03)
    s.lose()
    expect(await waiter.result() is True, "nobody told it")
    with refused(LeaseLost):
        await s.face.release(lease)


@claim("lose")
async def who_has_a_callback_is_told_of_a_loss_without_asking(s: Stage) -> None:
    called: list[int] = []
    lease = await s.face.acquire(s.lock())
    lease.lost.add_callback(lambda: called.append(1))
    waiter = s.face.start(lambda: s.lost(lease, 15))  # where there is nothing to watch: looks
    s.lose()
    await s.until(lambda: called, "not called")
    expect(await waiter.result() is True, "nobody told the one who waits")
    with refused(LeaseLost):
        await s.face.release(lease)


@claim()
async def a_wait_for_the_loss_ends_with_the_release(s: Stage) -> None:
    lease = await s.face.acquire(s.lock())
    waiter = s.face.start(lambda: s.lost(lease, 15))
    await s.face.sleep(0.01)
    await s.face.release(lease)
    expect(await waiter.result() is False, "a lease that was released is not lost")


@claim("lose")
async def after_a_loss_a_successor_gets_in_and_keeps_it(s: Stage) -> None:
    lease = await s.face.acquire(s.lock())
    s.lose()
    successor = await s.face.acquire(s.lock(), 0)
    with refused(LeaseLost):
        lease.check()
    with refused(LeaseLost):
        await s.face.release(lease)
    successor.check()
    expect(not await s.is_free(), "the loser's release freed it")
    await s.face.release(successor)


@claim("lose")
async def a_block_whose_lock_was_lost_says_so(s: Stage) -> None:
    with refused(LeaseLost):
        async with s.face.held(s.lock()) as lease:
            s.lose()
            expect(not lease.held, "the loss was not seen")
    try:
        async with s.face.held(s.lock()) as lease:
            s.lose()
            expect(not lease.held, "the loss was not seen")
            raise KeyError("matters more")
    except KeyError as error:
        expect("lost" in "".join(error.__notes__), "the loss is not noted")
