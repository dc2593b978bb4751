"""Waiting.

It ends when it must, the lock is passed on, and who gives up leaves nothing behind (L6).
"""

from __future__ import annotations

import gc
from typing import Any

from ...core.errors import NotAcquired, Timeout, WouldBlock
from ...runtime import clock
from ..faces import CANCELLED
from ..stage import Broken, Stage, claim, expect, footprint, refused

SLACK = 2.0  # seconds a busy machine may add to a deadline


@claim()
async def without_patience_a_held_lock_is_refused_at_once(s: Stage) -> None:
    async with s.face.held(s.lock()):
        began = clock.now()
        with refused(WouldBlock) as caught:
            await s.face.acquire(s.lock(), 0)
        expect(clock.now() - began < SLACK, "wait=0 waited")
        expect(caught.error.code == "would_block", caught.error.code)
        expect(s.target in str(caught.error), "the text does not name the lock")


@claim()
async def a_wait_ends_at_its_deadline_and_not_before(s: Stage) -> None:
    async with s.face.held(s.lock()):
        began = clock.now()
        with refused(Timeout) as caught:
            await s.face.acquire(s.lock(), 0.08)
        took = clock.now() - began
        expect(0.08 <= took < 0.08 + SLACK, f"0.08 s took {took:.3f} s")
        expect(0.08 <= caught.error.waited <= took, f"waited={caught.error.waited}")
        expect(isinstance(caught.error, TimeoutError), "Timeout is no TimeoutError")


@claim()
async def the_patience_of_the_object_counts_where_none_is_given(s: Stage) -> None:
    async with s.face.held(s.lock()):
        with refused(WouldBlock):
            await s.face.acquire(s.lock(wait=0))
        with refused(Timeout):
            await s.face.acquire(s.lock(wait=0.01))
        with refused(WouldBlock):
            async with s.face.held(s.lock(wait=0)):
                pass


@claim()
async def a_waiter_gets_it_after_release(s: Stage) -> None:
    tokens: list[Any] = []

    async def work() -> str:
        async with s.face.held(s.lock()) as lease:
            tokens.append(lease.token)
            lease.check()
            return "in"

    held = await s.face.acquire(s.lock())
    waiters = [s.face.start(work) for _ in range(3)]
    await s.face.sleep(0.02)
    await s.face.release(held)
    for waiter in waiters:
        expect(await waiter.result() == "in", "a waiter was forgotten")
    if s.has("token"):
        expect([held.token, *tokens] == sorted({held.token, *tokens}), f"{tokens}")


@claim()
async def a_deadline_is_the_last_moment_to_get_it(s: Stage) -> None:
    held = await s.face.acquire(s.lock())
    waiter = s.face.start(lambda: _in_and_out(s, 1.5))
    await s.face.sleep(0.02)
    await s.face.release(held)
    expect(await waiter.result() == "in", "not passed on before the deadline")


@claim("processes")
async def a_waiter_gets_it_when_another_process_lets_go(s: Stage) -> None:
    with s.neighbour() as neighbour:
        neighbour.acquire(0)
        waiter = s.face.start(lambda: _in_and_out(s))
        await s.face.sleep(0.02)
        neighbour.release()
        expect(await waiter.result() == "in", "not passed on")


@claim("survives_crash")
async def a_waiter_gets_it_when_the_holder_is_killed(s: Stage) -> None:
    with s.neighbour() as neighbour:
        theirs = neighbour.acquire(0)
        waiter = s.face.start(lambda: _in_and_out(s))
        await s.face.sleep(0.02)
        neighbour.kill()
        expect(await waiter.result() == "in", "the dead hold on")
        lease = await s.face.acquire(s.lock(), 0)
        if s.has("token"):
            expect(lease.token > theirs["token"], "the token did not grow over a crash")
        await s.face.release(lease)


async def _in_and_out(s: Stage, wait: float | None = None) -> str:
    lease = await s.face.acquire(s.lock(), wait)
    await s.face.release(lease)
    return "in"


@claim()
async def a_cancelled_waiter_leaves_nothing_behind(s: Stage) -> None:
    held = await s.face.acquire(s.lock())
    for wait in (None, 60):
        await _cancel_one(s, wait)
        await _grows_no_more(s, wait)
    held.check()
    await s.face.release(held)
    expect(await s.comes_free(), "a cancelled waiter holds it")


async def _grows_no_more(s: Stage, wait: float | None) -> None:
    """The first waits may leave what is kept for the next, such as connections: not all of them.

    Whatever leaks with a cancel grows in every round. What is kept has its bound, and a thread that
    is slow to end on a busy machine is gone some rounds later.
    """
    for patience in (*[0.3] * 8, *[2.0] * 3, 5.0):
        before = footprint()
        for _ in range(5):
            await _cancel_one(s, wait)
        gc.collect()
        try:
            await _nothing_more_than(s, before, patience)
            break
        except Broken:
            if patience == 5.0:
                raise


async def _nothing_more_than(s: Stage, before: tuple[int, int], patience: float = 5.0) -> None:
    """Threads and descriptors: as many as before, or fewer, soon."""
    seen = before

    def below() -> bool:
        nonlocal seen
        seen = footprint()
        return all(now <= then for now, then in zip(seen, before, strict=True))

    try:
        await s.until(below, "", patience)
    except Broken:
        raise Broken(f"threads and descriptors: {before} before, {seen} afterwards") from None


async def _cancel_one(s: Stage, wait: float | None) -> None:
    waiter = s.face.start(lambda: _in_and_out(s, wait))
    await s.face.sleep(0.005)
    waiter.cancel()
    expect(await waiter.result() == CANCELLED, "the wait was not cancelled")


@claim()
async def a_cancel_that_meets_the_release_leaves_nothing_held(s: Stage) -> None:
    lock = s.lock()
    for number in range(30):
        held = await s.face.acquire(lock, 5)
        waiter = s.face.start(lambda: _in_and_out(s))
        await s.face.sleep(0.0002 * (number % 5))
        if number % 2:
            waiter.cancel()
            await s.face.release(held)
        else:
            await s.face.release(held)
            waiter.cancel()
        expect(await waiter.result() in (CANCELLED, "in"), "neither in nor cancelled")
        expect(await s.comes_free(), f"held by nobody after round {number}")


@claim()
async def a_deadline_that_meets_the_release_leaves_nothing_held(s: Stage) -> None:
    lock = s.lock()
    for number in range(30):
        held = await s.face.acquire(lock, 5)
        waiter = s.face.start(lambda: _in_or_late(s))
        await s.face.sleep(0.0005 * (number % 8))
        await s.face.release(held)
        expect(await waiter.result() in ("late", "in"), "neither in nor late")
        expect(await s.comes_free(), f"held by nobody after round {number}")


async def _in_or_late(s: Stage) -> str:
    try:
        return await _in_and_out(s, 0.002)
    except NotAcquired:
        return "late"


@claim()
async def a_waiter_that_gave_up_leaves_nothing_behind(s: Stage) -> None:
    held = await s.face.acquire(s.lock())
    for _ in range(2):
        await s.face.start(lambda: _in_or_late(s)).result()
    before = footprint()
    for _ in range(5):
        expect(await s.face.start(lambda: _in_or_late(s)).result() == "late", "two are in")
    gc.collect()
    await _nothing_more_than(s, before)
    await s.face.release(held)
    expect(await s.comes_free(), "a waiter that gave up holds it")
