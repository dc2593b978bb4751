"""When a waiter in a store looks again: rarely, not all at once, and soon past the dead."""

from __future__ import annotations

import pytest

from lifehold import connect
from lifehold.core.backend import Given, Refused, Request, StoreHolder
from lifehold.core.owner import Owner
from lifehold.lock import Lock
from lifehold.runtime import clock
from lifehold.store.rules import CLAIM, LockState
from lifehold.store.waiter import AFTER, CLOSE, FAR, NEAR, PATIENCE, ROOM, SPREAD, Waiter

SEAT = StoreHolder("holder", 1, 1, 0, 30.0, 20.0, "holder:0", 0.0, 0, None)
HELD = (SEAT,)


def pause(answer, nonce="80" * 8):
    turn = Waiter(nonce)
    turn.refused(answer, 100.0)
    return turn.look_at - 100.0


def test_the_first_two_look_each_second_and_the_others_rarely():
    assert pause(Refused(HELD, 0)) == pause(Refused(HELD, 1)) == NEAR
    assert pause(Refused(HELD, 2)) > 0.8 * FAR
    assert pause(Refused(HELD, 0, look_in=0.3)) == pytest.approx(0.305)
    assert pause(Refused((), 1, look_in=0.3)) == pytest.approx(0.305)


def test_those_who_came_together_do_not_look_together():
    pauses = {pause(Refused(HELD, 40), f"{number:02x}" * 8) for number in range(256)}
    assert len(pauses) == 256
    assert min(pauses) == pytest.approx(FAR * (1 - SPREAD))
    assert max(pauses) == pytest.approx(FAR * (1 + SPREAD))
    assert sum(pauses) / 256 == pytest.approx(FAR)
    assert 2 * max(pauses) < PATIENCE  # so that one look that gets no answer costs no place


def test_where_there_is_room_those_behind_the_called_look_soon():
    assert pause(Refused((), 1)) == pause(Refused((), CLOSE - 1)) == ROOM
    assert pause(Refused((), CLOSE)) > ROOM  # a long line is not woken by one who does not come


@pytest.mark.parametrize("dead", [1, 5])
def test_each_dead_one_ahead_costs_no_more_than_its_claim_and_a_look(dead):
    """Played on the rules of every store, where nobody's death can be seen."""
    book, now, asked = LockState("x"), 1000.0, 0

    def ask(nonce, *, wait=True):
        book.at(now, "", int(now * 1e6))
        return book.acquire(Request("x", nonce, 30.0, Owner(1), wait=wait, patience=PATIENCE))

    assert isinstance(ask("holder"), Given)
    for number in range(dead):
        ask(f"dead{number}")
    turn = Waiter()
    turn.refused(ask(turn.nonce), now)
    book.at(now, "", 0).release("holder")
    began = now
    while True:
        now, asked = turn.look_at, asked + 1
        answer = ask(turn.nonce)
        if isinstance(answer, Given):
            break
        turn.refused(answer, now)
    assert now - began <= FAR * (1 + SPREAD) + dead * (CLAIM + ROOM)
    assert asked <= 2 + dead * 3


@pytest.mark.parametrize("phase", [0.0, 0.3, 0.9])
def test_who_is_behind_one_that_died_looks_again_at_the_very_end_of_its_claim(phase):
    book, now, second = LockState("x"), 1000.0, Waiter()

    def ask(nonce):
        book.at(now, "", int(now * 1e6))
        return book.acquire(Request("x", nonce, 30.0, Owner(1), wait=True, patience=PATIENCE))

    for nonce in ("holder", "dead", second.nonce):
        ask(nonce)
    book.at(now, "", 0).release("holder")
    called_at, now = now, now + phase
    second.refused(ask(second.nonce), now)
    now = second.look_at
    while not isinstance(answer := ask(second.nonce), Given):
        second.refused(answer, now)
        now = second.look_at
    assert called_at + CLAIM <= now <= called_at + CLAIM + 2 * AFTER


def test_leases_that_began_together_are_renewed_apart_and_never_late(tmp_path):
    stores = [connect(f"memory://{tmp_path}/{number}") for number in range(64)]
    leases = [store.lock("job", ttl=30).acquire() for store in stores]
    kept = [lease._kept for lease in leases]
    began = [each.deadline - (each.terms.ttl - each.terms.margin) for each in kept]
    first = [each.beat_at - at for each, at in zip(kept, began, strict=True)]
    assert all(5.0 <= length <= 10.0 for length in first)
    assert len({round(length, 1) for length in first}) > 20
    at = clock.now() + 10.0
    for each in kept:
        each.again(at)
    assert all(at - 1.1 <= each.beat_at <= at for each in kept)
    assert len({each.beat_at for each in kept}) > 20
    for lease in leases:
        lease.release()


def test_a_lease_in_a_file_is_renewed_when_it_is_due(tmp_path):
    with Lock(tmp_path / "a.lock", kind="link", ttl=30) as lease:
        kept = lease._kept
        began = kept.deadline - (kept.terms.ttl - kept.terms.margin)
        assert kept.beat_at == pytest.approx(began + 10.0)
