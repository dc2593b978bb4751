"""Who is let in: never two, and each grant can be told from all others (L1, L4)."""

from __future__ import annotations

import itertools
from typing import Any

from ...core.errors import InvalidArgument, SelfDeadlock, WouldBlock
from ...lock import Lock
from ..stage import Stage, claim, expect, refused


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
