"""Readers and writers: who is in beside whom, whose turn it is, what they carry, how they learn."""

from __future__ import annotations

from ...core.errors import LeaseLost, NotAcquired, WouldBlock
from ..faces import CANCELLED
from ..stage import Broken, Inside, Stage, claim, expect, refused

ROUNDS = 2000  # of readers that overlap, after which a writer that waits counts as starved


@claim(shape="readwrite")
async def readers_are_in_together_and_a_writer_is_alone(s: Stage) -> None:
    readers = [await Inside.entered(s, exclusive=False) for _ in range(3)]
    with refused(WouldBlock):
        await Inside.entered(s)
    for each in readers:
        await each.leave()
    writer = await Inside.entered(s)
    for exclusive in (True, False):
        with refused(WouldBlock):
            await Inside.entered(s, exclusive=exclusive)
    await writer.leave()
    expect(await s.is_free(), "somebody is still in")


@claim(shape="readwrite")
async def readers_that_overlap_without_end_keep_no_writer_out(s: Stage) -> None:
    reader = await Inside.entered(s, exclusive=False)
    writer = Inside(s, wait=None)
    for _ in range(ROUNDS):
        try:
            following = await Inside.entered(s, exclusive=False)
        except NotAcquired:  # a writer has asked: whoever comes later is behind it
            await reader.leave()
            break
        await reader.leave()
        reader = following
    else:
        writer.cancel()
        await reader.leave()
        raise Broken(f"{ROUNDS} readers passed a writer that waits")
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
            await (await Inside.entered(s, wait=None, exclusive=False)).leave()
    finally:
        over.append(1)
        for each in writers:
            await each.result()


@claim(shape="readwrite")
async def a_writers_token_grows_and_readers_carry_it(s: Stage) -> None:
    last = 0
    for _ in range(3):
        writer = await Inside.entered(s)
        token = await writer.leave()
        expect(token > last, f"{token} after {last}")
        last = token
        for _ in range(2):
            reader = await Inside.entered(s, exclusive=False)
            expect(await reader.leave() == last, "a reader carries another token")


@claim("lose", shape="readwrite")
async def a_reader_and_a_writer_are_told_of_a_loss(s: Stage) -> None:
    for exclusive in (True, False):
        holder = await Inside.entered(s, exclusive=exclusive)
        holder.lease.check()
        s.lose()
        with refused(LeaseLost):
            holder.lease.check()
        with refused(LeaseLost):
            await holder.leave()
        expect(await s.is_free(), "what was lost is still held")


@claim(shape="readwrite")
async def a_writer_that_gives_up_keeps_no_reader_out(s: Stage) -> None:
    reader = await Inside.entered(s, exclusive=False)
    writer = Inside(s, wait=None)
    for _ in range(ROUNDS):
        try:
            await (await Inside.entered(s, exclusive=False)).leave()
        except NotAcquired:
            break
    writer.cancel()
    expect(await writer.result() == CANCELLED, "the wait was not cancelled")
    await (await Inside.entered(s, exclusive=False)).leave()
    await reader.leave()
    expect(await s.is_free(), "a writer that gave up holds it")
