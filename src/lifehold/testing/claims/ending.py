"""How a lease ends: by release, once and by its owner; by loss, told; by dropping it.

Never by a child (L5, L9).
"""

from __future__ import annotations

import gc
import os
import pickle
import warnings
from typing import Any

from ...core import events
from ...core.errors import LeaseLost, NotHeld, SelfDeadlock, Timeout, WouldBlock
from ...runtime.blocking import finish
from ..faces import FACES
from ..stage import Stage, claim, expect, heard, refused


@claim()
async def a_second_release_is_refused_and_hurts_nobody(s: Stage) -> None:
    lease = await s.face.acquire(s.lock())
    await s.face.release(lease)
    successor = await s.face.acquire(s.lock(), 0)
    with refused(NotHeld):
        await s.face.release(lease)  # L5
    with refused(NotHeld):
        lease.check()
    successor.check()
    expect(not await s.is_free(), "the late release freed the successor's lock")
    await s.face.release(successor)
    expect(not lease.lost.is_set(), "a lease that was released is not lost")


@claim()
async def a_lock_that_holds_nothing_cannot_be_released(s: Stage) -> None:
    lock = s.lock()
    with refused(NotHeld):
        await s.face.release(lock)
    async with s.face.held(s.lock()) as lease:
        with refused(NotHeld):
            await s.face.release(lock)
        lease.check()


@claim()
async def by_hand_the_lock_releases_its_lease(s: Stage) -> None:
    lock = s.lock()
    expect(lock.lease is None, "a lease before any grant")
    for _ in range(3):
        lease = await s.face.acquire(lock)
        expect(lock.lease is lease, "lock.lease is another")
        await s.face.release(lock)
        expect(lock.lease is None and not lease.held, "still there after release")
    expect(await s.is_free(), "not freed")


@claim()
async def leases_that_were_released_by_hand_are_forgotten(s: Stage) -> None:
    lock = s.lock()
    for _ in range(20):
        await s.face.release(await s.face.acquire(lock))
    gc.collect()
    kept = [thing for thing in gc.get_objects() if getattr(thing, "_lock", None) is lock]
    expect(len(kept) <= 1, f"the lock keeps {len(kept)} leases that have ended")


@claim()
async def a_block_may_release_early(s: Stage) -> None:
    lock = s.lock()
    async with s.face.held(lock) as lease:
        await s.face.release(lease)
        expect(await s.is_free(), "not freed")
    async with s.face.held(lock):
        await s.face.release(lock)
    expect(await s.is_free(), "not freed")


@claim()
async def an_exception_leaves_the_block_and_frees_the_lock(s: Stage) -> None:
    try:
        async with s.face.held(s.lock()):
            raise KeyError("the block's own")
    except KeyError as error:
        expect(error.args == ("the block's own",), "the exception was changed")
    expect(await s.is_free(), "not freed")


@claim()
async def the_decorator_holds_the_lock_for_each_call(s: Stage) -> None:
    lock, seen = s.lock(), []

    def body() -> str:
        seen.append(lock.lease is not None and lock.lease.held)
        if len(seen) == 2:
            raise KeyError("body")
        return "done"

    call = s.face.decorate(lock, body)
    expect(call.__name__ == "body", "the decorator hides the name")
    expect(await s.face.call(call) == "done", "the result is lost")
    try:
        await s.face.call(call)
    except KeyError:
        expect(await s.is_free(), "an exception left it held")
    expect(await s.face.call(call) == "done" and seen == [True] * 3, f"{seen}")
    expect(await s.is_free(), "not freed")


@claim(timed=True)
async def max_hold_ends_the_grant_and_says_so(s: Stage) -> None:
    called: list[int] = []
    with heard() as told:
        lease = await s.face.acquire(s.lock(max_hold=0.05))
        lease.lost.add_callback(lambda: called.append(1))
        expect(0 <= lease.remaining() <= 0.05, f"remaining {lease.remaining()}")
        successor = await s.face.acquire(s.lock(), 30)  # L10
        successor.check()
        await s.until(lambda: called, "the callback was not called")
        with refused(LeaseLost):
            lease.check()
        with refused(LeaseLost):
            await s.face.release(lease)
        expect(lease.remaining() == 0.0 and lease.lost.is_set() and called == [1], f"{called}")
        successor.check()
        await s.face.release(successor)
    losses = [event for event in told if isinstance(event, events.Lost)]
    expect([e.nonce for e in losses] == [lease.nonce], f"told {len(losses)} times")


@claim(timed=True)
async def a_lease_released_before_max_hold_is_not_lost(s: Stage) -> None:
    with heard() as told:
        lease = await s.face.acquire(s.lock(max_hold=0.03))
        await s.face.release(lease)
        successor = await s.face.acquire(s.lock(), 0)
        await s.face.sleep(0.06)
        successor.check()
        await s.face.release(successor)
    expect(not lease.lost.is_set(), "lost after its release")
    expect(not any(isinstance(event, events.Lost) for event in told), f"{told}")
    bound = (await s.face.acquire(lock := s.lock())).remaining()
    expect((bound is None) == (lock._terms is None), f"ends after {bound}")
    await s.face.release(lock)


@claim("drop")
async def a_lease_that_is_dropped_frees_the_lock_with_a_warning(s: Stage) -> None:
    async def drop() -> None:
        await s.face.acquire(s.lock())

    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", ResourceWarning)
        await s.face.start(drop).result()
        gc.collect()
        await s.face.sleep(0)
    texts = [str(w.message) for w in found if "without release" in str(w.message)]
    expect(len(texts) == 1 and s.target in texts[0], f"{[str(w.message) for w in found]}")
    expect(await s.comes_free(), "a dropped lease holds the lock")


@claim("fork", timed=True)
async def a_forked_child_holds_nothing_and_frees_nothing(s: Stage) -> None:
    lock = s.lock()
    async with s.face.held(lock) as lease:
        threads = FACES["blocking"]()  # a remote kind would have to be awaited

        def child() -> None:
            with refused(NotHeld):
                lease.check()
            with refused(NotHeld):
                finish(s.face.release(lease))
            expect(not lease.held, "held in the child")
            finish(s.face.held(lock).__aexit__(None, None, None))  # silent
            if s.has("processes"):
                with refused(WouldBlock):
                    finish(threads.acquire(s.subject.make(s.subject, threads, s.target, {}), 0))

        in_child(child)
        lease.check()
        expect(not await s.is_free(), "the child freed it")
    expect(await s.is_free(), "the child holds on to it")


def in_child(play: Any) -> None:
    """Fork, play there, and raise here what was raised there."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            play()
            os.write(writing, b"+")
        except BaseException as error:
            os.write(writing, repr(error).encode()[:4000])
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        said = pipe.read()
    os.waitpid(pid, 0)
    expect(said == b"+", f"in the child: {said.decode() or 'it died'}")


@claim()
async def every_error_can_be_sent_to_another_process(s: Stage) -> None:
    lease = await s.face.acquire(s.lock())
    found = []
    for kind, wait in ((WouldBlock, 0), (Timeout, 0.001), (SelfDeadlock, None)):
        with refused(kind) as caught:
            await s.face.acquire(s.lock(), wait)
        found.append(caught.error)
    await s.face.release(lease)
    with refused(NotHeld) as caught:
        await s.face.release(lease)
    found.append(caught.error)
    if s.has("lose"):
        lease = await s.face.acquire(s.lock())
        s.lose()
        with refused(LeaseLost) as caught:
            lease.check()
        found.append(caught.error)
        with refused(LeaseLost):
            await s.face.release(lease)
    for error in found:
        copy = pickle.loads(pickle.dumps(error))
        same = type(copy) is type(error) and str(copy) == str(error)
        expect(same and copy.__dict__ == error.__dict__, f"{error!r} came back as {copy!r}")
