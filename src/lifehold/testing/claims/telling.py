"""What people and programs are told.

Who holds it, which token is in force, what has happened (L10).
"""

from __future__ import annotations

import itertools
import logging
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ...core import acquire, events
from ...core.errors import Timeout, WouldBlock
from ...lease import current_token
from ..stage import Stage, claim, expect, heard, refused

if TYPE_CHECKING:
    from collections.abc import Iterator


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
        expect(caught.error.holder == holder, "the refusal names another holder")
        expect(caught.error.evidence == holder.evidence, "the refusal has no evidence")
        for part in (f"pid {os.getpid()}", "alive  yes", "nightly", "next   wait:"):
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
    expect(0.005 < ended.held < 5, f"held {ended.held}")


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
