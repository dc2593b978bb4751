"""Waiting, and what a waiter and others are told.

It ends when it must, the lock is passed on, and who gives up leaves nothing behind (L6).
"""

from __future__ import annotations

import gc
import itertools
import logging
import os
from contextlib import contextmanager
from typing import Any

from ...core import acquire, events
from ...core.errors import NotAcquired, Timeout, WouldBlock
from ...lease import current_token
from ...runtime import clock
from ..faces import CANCELLED
from ..stage import ClaimBroken, Stage, claim, expect, footprint, heard, refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

SLACK = 30.0  # seconds a busy machine may add to a deadline
EXCESS = 0.4  # of which it adds less to one wait of some


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


@claim(timed=True)
async def a_wait_is_over_soon_after_its_deadline(s: Stage) -> None:
    """The shortest of some waits: whoever sleeps past the end of each shows it in all."""
    took = []
    async with s.face.held(s.lock()):
        for _ in range(5):
            began = clock.now()
            with refused(Timeout):
                await s.face.acquire(s.lock(), 0.05)
            took.append(clock.now() - began - 0.05)
            if took[-1] < EXCESS:
                return
    raise ClaimBroken(f"{len(took)} waits of 0.05 s took {min(took):.2f} s more at the least")


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
        except ClaimBroken:
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
    except ClaimBroken:
        raise ClaimBroken(f"threads and descriptors: {before} before, {seen} afterwards") from None


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


async def _in_or_late(s: Stage, wait: float = 0.002) -> str:
    try:
        return await _in_and_out(s, wait)
    except NotAcquired:
        return "late"


@claim()
async def a_waiter_that_gave_up_leaves_nothing_behind(s: Stage) -> None:
    held = await s.face.acquire(s.lock())
    await s.face.start(lambda: _in_or_late(s)).result()
    await s.face.start(lambda: _in_or_late(s, 0)).result()  # may keep a file open for the next try
    before = footprint()
    for _ in range(5):
        expect(await s.face.start(lambda: _in_or_late(s)).result() == "late", "two are in")
    gc.collect()
    await _nothing_more_than(s, before)
    await s.face.release(held)
    expect(await s.comes_free(), "a waiter that gave up holds it")


# ------------------------------------------------------------------------------------------------
# What people and programs are told.
#
# Who holds it, which token is in force, what has happened (L10).


@claim("evidence")
async def the_holder_is_named_with_evidence_while_it_holds(s: Stage) -> None:
    lock, other = s.lock(label="nightly"), s.lock()
    expect(other.holder() is None, "a holder of a free lock")
    async with s.face.held(lock) as lease:
        holder = other.holder()
        expect(holder is not None and holder.owner is not None, "nobody is named")
        assert holder is not None  # for type checkers
        assert holder.owner is not None
        expect(holder.owner.pid == os.getpid(), f"pid {holder.owner.pid}")
        expect(holder.owner.label == "nightly", f"label {holder.owner.label!r}")
        expect(holder.alive == "alive" and holder.evidence, f"{holder.alive}: {holder.evidence}")
        expect(abs((holder.since or 0) - lease.acquired_at) < 1e-5, f"since {holder.since}")
        expect((holder.token, holder.nonce) == (lease.token, lease.nonce), "another grant is named")
        with refused(WouldBlock) as caught:
            await s.face.acquire(other, 0)
        told = caught.error.holder
        assert told is not None
        named = (told.owner, told.since, told.nonce, told.token, told.alive, told.lock)
        expected = (holder.owner, holder.since, holder.nonce, holder.token, "alive", holder.lock)
        expect(named == expected, f"the refusal names another holder: {told}, not {holder}")
        expect(caught.error.evidence == told.evidence, "the refusal has no evidence")
        for part in (f"pid {os.getpid()}", "alive  yes", "nightly", "next   "):
            expect(part in str(caught.error), f"{part!r} is not in:\n{caught.error}")
    expect(other.holder() is None, "a holder after release")


@claim("evidence", "processes")
async def a_holder_in_another_process_is_named(s: Stage) -> None:
    with s.neighbour() as neighbour:
        theirs = neighbour.acquire(0)
        holder = s.lock().holder()
        expect(holder is not None and holder.owner is not None, "nobody is named")
        assert holder is not None  # for type checkers
        assert holder.owner is not None
        expect(holder.owner.pid == neighbour.pid, f"pid {holder.owner.pid} for {neighbour.pid}")
        expect(holder.nonce == theirs["nonce"] and holder.alive == "alive", f"{holder}")


@claim()
async def locked_tells_whether_anybody_holds_it(s: Stage) -> None:
    lock, other = s.lock(), s.lock()
    expect(not lock.locked() and not other.locked(), "locked before any grant")
    async with s.face.held(lock):
        expect(lock.locked() and other.locked(), "not locked while held")
    expect(not lock.locked() and not other.locked(), "locked after release")


@claim()
async def reprs_say_what_is_held(s: Stage) -> None:
    lock = s.lock()
    expect("not held" in repr(lock) and s.target in repr(lock), repr(lock))
    async with s.face.held(lock) as lease:
        expect("not held" not in repr(lock) and "held" in repr(lock), repr(lock))
        expect(f"held, token {lease.token}" in repr(lease), repr(lease))
    expect("not held" in repr(lock) and "not held" in repr(lease), f"{lock!r} {lease!r}")


@claim("token")
async def the_innermost_token_is_in_force(s: Stage) -> None:
    expect(current_token() is None, "a token before any grant")
    inner_stage = Stage(s.subject, s.face, s.folder / "aside")
    async with s.face.held(s.lock()) as outer:
        expect(current_token() == outer.token, "not the one that is held")
        async with s.face.held(inner_stage.lock()) as inner:
            expect(current_token() == inner.token, "not the innermost")
            expect(current_token(outer.name) == outer.token, "not the one that is named")
            expect(current_token("another name") is None, "a token of a lock that nobody named")
        expect(current_token() == outer.token, "not the outer one after the inner ended")
    expect(current_token() is None, "a token after the last release")


@claim("token")
async def a_task_inherits_the_token_and_a_thread_does_not(s: Stage) -> None:
    async def work() -> int | None:
        return current_token()

    async with s.face.held(s.lock()) as lease:
        inherited = await s.face.start(work).result()
    expect(inherited == (None if s.face.name == "blocking" else lease.token), f"{inherited}")


@claim()
async def grant_and_release_are_told_with_their_facts(s: Stage) -> None:
    with heard() as told:
        lease = await s.face.acquire(s.lock())
        await s.face.sleep(0.01)
        await s.face.release(lease)
    expect([type(event) for event in told] == [events.Acquired, events.Released], f"{told}")
    begun, ended = told
    assert isinstance(ended, events.Released)
    expect(begun == events.Acquired(lease.name, lease.nonce, lease.token, 0.0), f"{begun}")
    expect((ended.name, ended.nonce) == (lease.name, lease.nonce), f"{ended}")
    expect(0.005 < ended.held < SLACK, f"held {ended.held}")


@claim()
async def a_waiter_is_told_at_growing_intervals_by_event_and_log(s: Stage) -> None:
    lines: list[str] = []
    with heard() as told, hasty(0.02), logged(lines):
        async with s.face.held(s.lock(label="nightly")):
            for patience in (0.5, 4.0, 30.0):  # a busy machine tells late, and never too often
                told.clear()
                lines.clear()
                with refused(Timeout):
                    await s.face.acquire(s.lock(), patience)
                notices = [event for event in told if isinstance(event, events.Waiting)]
                if len(notices) >= 2:
                    break
    expect(len(notices) >= 2, f"{len(notices)} notices, due at 0.02, 0.06, 0.14, 0.3 of 0.5 s")
    waits = [0.0, *(notice.waited for notice in notices)]
    gaps = [later - before for before, later in itertools.pairwise(waits)]
    due = [0.02 * 2**number for number in range(len(gaps))]
    expect(all(gap > least - 0.001 for gap, least in zip(gaps, due, strict=True)), f"{waits}")
    expect(all(notice.name == s.target for notice in notices), f"{notices}")
    expect(len(lines) == len(notices) and s.target in lines[0], f"{lines}")
    if s.has("evidence"):
        expect(notices[0].holder is not None and f"pid {os.getpid()}" in lines[0], f"{lines}")


@contextmanager
def hasty(first: float) -> Iterator[None]:
    """The first notice after `first` seconds instead of two."""
    usual, acquire.FIRST_NOTICE = acquire.FIRST_NOTICE, first
    try:
        yield
    finally:
        acquire.FIRST_NOTICE = usual


@contextmanager
def logged(lines: list[str]) -> Iterator[None]:
    """The warnings of our logger, instead of wherever they usually go."""
    logger, handler = logging.getLogger("lifehold"), logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    usual, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = usual
