"""How a lease is renewed, and how it ends: by release, by loss, by dropping it.

A release counts once and by its owner, a loss is told, a child ends nothing (L5, L9).
"""

from __future__ import annotations

import gc
import os
import pickle
import time
import warnings
from typing import Any

from ...core import events
from ...core.errors import LeaseLost, NotHeld, SelfDeadlock, Timeout, WouldBlock
from ...core.grant import Unknown
from ...lease import Holding
from ...runtime import clock
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


def _is_lease_of(thing: object, lock: object) -> bool:
    """By its class first: a question to an object of others may load what it stands for."""
    return issubclass(type(thing), Holding) and getattr(thing, "_lock", None) is lock


@claim()
async def leases_that_were_released_by_hand_are_forgotten(s: Stage) -> None:
    lock = s.lock()
    for _ in range(20):
        await s.face.release(await s.face.acquire(lock))
    gc.collect()
    kept = [thing for thing in gc.get_objects() if _is_lease_of(thing, lock)]
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
        lease.check()  # one that was lost would be waited for without end
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


# ------------------------------------------------------------------------------------------------
# A lease lives as long as its holder renews it, and a holder that may have lost it finds out.
#
# Renewed outside of the program's own loop; lost at its own deadline, before anybody else comes
# (L8, L9).


TERMS: dict[str, float] = {"ttl": 0.45, "heartbeat": 0.1, "margin": 0.1}


@claim("ttl", timed=True)
async def a_held_lease_outlives_its_ttl_though_the_program_never_yields(s: Stage) -> None:
    async with s.face.held(s.lock(**TERMS)) as lease:
        expect(0 < lease.remaining() <= 0.35, f"remaining {lease.remaining()}")
        time.sleep(3 * TERMS["ttl"])  # no other task runs meanwhile
        lease.check()
        expect(not lease.lost.is_set(), "told as lost")
        expect(lease.renewals >= 3, f"{lease.renewals} renewals")
        with refused(WouldBlock):
            await s.face.acquire(s.lock(**TERMS), 0)
    expect(await s.is_free(), "not freed")


@claim("ttl", timed=True)
async def a_lease_whose_renewals_get_no_answer_is_lost_at_its_deadline(s: Stage) -> None:
    lock, called = s.lock(**TERMS), list[int]()
    lease = await s.face.acquire(lock)
    lease.lost.add_callback(lambda: called.append(1))
    silence(lock)
    lease.check()
    successor = await _succeeds(s, lease)
    with refused(LeaseLost):  # whoever asks is told before the successor comes (L8)
        lease.check()
    await s.until(lambda: called and lease.lost.is_set(), "who does not ask was not told")
    expect(lease.remaining() == 0.0 and not lease.held and called == [1], f"{called}")
    if s.has("token"):
        expect(successor.token > lease.token, "the successor's token is not greater")
    with refused(LeaseLost):
        await s.face.release(lease)
    successor.check()
    await s.face.release(successor)


async def _succeeds(s: Stage, lease: Any) -> Any:
    """The lease of who comes behind one that is renewed no more: not before its deadline (L8)."""
    expires = clock.now() + lease.remaining()
    successor = await s.face.acquire(s.lock(**TERMS), 10)
    early = expires - clock.now()
    expect(early <= 0, f"taken over {early:.3f} s before its deadline")
    return successor


@claim("ttl", timed=True)
async def a_renewed_lease_is_taken_over_at_its_new_deadline_at_the_earliest(s: Stage) -> None:
    lock = s.lock(**TERMS)
    lease = await s.face.acquire(lock)
    await s.until(lambda: lease.renewals, "nobody renews it")
    silence(lock)
    successor = await _succeeds(s, lease)
    with refused(LeaseLost):
        await s.face.release(lease)
    await s.face.release(successor)


@claim("ttl", timed=True)
async def a_lease_that_was_lost_is_not_found_again(s: Stage) -> None:
    lock = s.lock(**TERMS)
    lease = await s.face.acquire(lock)
    silence(lock)
    expect(await s.lost(lease, 10), "not lost")
    speak(lock)
    await s.face.sleep(2 * TERMS["heartbeat"])
    with refused(LeaseLost):
        lease.check()
    with refused(LeaseLost):
        await s.face.release(lease)
    async with s.face.held(s.lock(wait=10, **TERMS)):
        pass


@claim("ttl", timed=True)
async def a_released_lease_is_never_lost(s: Stage) -> None:
    lease = await s.face.acquire(s.lock(**TERMS))
    await s.face.release(lease)
    await s.face.sleep(1.2 * TERMS["ttl"])
    expect(not lease.lost.is_set() and lease.remaining() == 0.0, "lost after its release")
    with refused(NotHeld):
        lease.check()


@claim("ttl", "lose", timed=True)
async def a_heartbeat_finds_out_what_nobody_asks_for(s: Stage) -> None:
    lease = await s.face.acquire(s.lock(**TERMS))
    told: list[int] = []
    lease.lost.add_callback(lambda: told.append(1))
    s.lose()
    await s.until(lambda: told, "a lease that was taken away was not told")
    with refused(LeaseLost):
        await s.face.release(lease)


def silence(lock: Any) -> None:
    """From now on the storage answers no renewal, of one lease or of many together."""

    async def no_answer(grant: Any) -> Unknown:
        return Unknown(grant.nonce, OSError("no answer"))

    async def no_answers(many: list[Any]) -> list[Unknown]:
        return [await no_answer(grant) for _, grant in many]

    lock._mechanism.renew = no_answer
    if hasattr(lock._mechanism, "joint"):
        lock._mechanism.renew_many = no_answers


def speak(lock: Any) -> None:
    """It answers again."""
    for name in ("renew", "renew_many"):
        vars(lock._mechanism).pop(name, None)


# ------------------------------------------------------------------------------------------------
# How a lease ends against its holder's will, and how he learns of it.


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
    if s.has("token"):  # L4  whatever was taken away with the lock
        expect(successor.token > lease.token, f"{successor.token} after the lost {lease.token}")
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
