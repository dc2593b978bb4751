"""A lease lives as long as its holder renews it, and a holder that may have lost it finds out.

Renewed outside of the program's own loop; lost at its own deadline, before anybody else comes (L8,
L9).
"""

from __future__ import annotations

import time
from typing import Any

from ...core.errors import LeaseLost, NotHeld, WouldBlock
from ...core.grant import Unknown
from ..stage import Stage, claim, expect, refused

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
    successor = await s.face.acquire(s.lock(**TERMS), 10)
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
