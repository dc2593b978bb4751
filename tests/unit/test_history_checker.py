"""The checker of histories finds what may not be, and nothing else."""

from __future__ import annotations

import itertools
import random

import pytest

from lifehold import InvalidArgument
from lifehold.testing.history import (
    FENCE,
    GENERATION,
    MUTEX,
    PERMITS,
    READ,
    SLOT,
    TOKEN,
    WRITE,
    Diary,
    Turn,
    judge,
    longest_wait,
    read,
)


def turn(what, entered, left, token=None, slot=None, stored=(), who="a", asked=None):
    asked = entered if asked is None else asked
    return Turn(who, what, asked, entered, left, token, slot, stored)


def kinds(turns, permits=None):
    return {finding.kind for finding in judge(turns, permits)}


GOOD = {
    "writers": [turn(WRITE, 0, 10, 5), turn(WRITE, 10, 20, 6), turn(WRITE, 25, 30, 9)],
    "readers": [turn(WRITE, 0, 1, 5), turn(READ, 2, 10, 5), turn(READ, 3, 12, 5)],
    "a writer that died unseen": [turn(WRITE, 0, 1, 5), turn(READ, 2, 3, 7), turn(WRITE, 4, 5, 8)],
    "no end known": [turn(WRITE, 0, None, 5), turn(WRITE, 10, 20, 6)],
    "slots": [turn(SLOT, 0, 10, 1, 0), turn(SLOT, 1, 11, 1, 1), turn(SLOT, 10, 20, 2, 0)],
    "slots in no order": [turn(SLOT, 0, 10, 9, 0), turn(SLOT, 1, 11, 4, 1)],
    "a writer drew a token and gave up": [turn(READ, 0, 6, 3), turn(READ, 5, 18, 4)],
    "a reader that was slow to note": [turn(READ, 3, 9, 4), turn(READ, 5, 9, 3, asked=2)],
    "stored": [turn(WRITE, 0, 10, 5, stored=(4,)), turn(WRITE, 10, 20, 6, stored=(11,))],
}
BAD = {
    "two writers": (MUTEX, [turn(WRITE, 0, 10, 5), turn(WRITE, 9, 20, 6)]),
    "a reader beside a writer": (MUTEX, [turn(WRITE, 0, 10, 5), turn(READ, 9, 20, 5)]),
    "a writer beside a reader": (MUTEX, [turn(READ, 0, 10, 5), turn(WRITE, 9, 20, 6)]),
    "a long one beside the second next": (
        MUTEX, [turn(READ, 0, 100, 5), turn(READ, 1, 2, 5), turn(WRITE, 50, 60, 6)]
    ),
    "one slot twice": (MUTEX, [turn(SLOT, 0, 10, 1, 0), turn(SLOT, 9, 11, 2, 0)]),
    "one too many": (
        PERMITS,
        [turn(SLOT, 0, 10, 1, 0), turn(SLOT, 1, 11, 2, 1), turn(SLOT, 2, 5, 3, 2)],
    ),
    "a slot that is none": (PERMITS, [turn(SLOT, 0, 10, 1, 2)]),
    "the same token": (TOKEN, [turn(WRITE, 0, 10, 5), turn(WRITE, 10, 20, 5)]),
    "an older token": (TOKEN, [turn(WRITE, 0, 10, 5), turn(WRITE, 10, 20, 4)]),
    "an older token of a slot": (TOKEN, [turn(SLOT, 0, 9, 5, 1), turn(SLOT, 10, 20, 4, 1)]),
    "a reader of the past": (GENERATION, [turn(WRITE, 0, 10, 5), turn(READ, 11, 12, 4)]),
    "a reader of the future": (GENERATION, [turn(READ, 0, 1, 7), turn(WRITE, 2, 3, 7)]),
    "a reader older than one before it": (
        GENERATION, [turn(WRITE, 0, 1, 3), turn(READ, 2, 3, 5), turn(READ, 4, 5, 4)]
    ),
    "a late write before the last of the next": (
        FENCE, [turn(WRITE, 0, 9, 5, stored=(20,)), turn(WRITE, 10, 30, 6, stored=(15, 25))]
    ),
    "a late write": (
        FENCE, [turn(WRITE, 0, 9, 5, stored=(40,)), turn(WRITE, 10, 30, 6, stored=(20,))]
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_what_may_be_is_not_found(name):
    assert kinds(GOOD[name], permits=2) == set()


@pytest.mark.parametrize("name", BAD)
def test_what_may_not_be_is_found(name):
    kind, turns = BAD[name]
    assert kinds(turns, permits=2) == {kind}
    assert kind in str(judge(turns, permits=2)[0])


def test_one_bad_turn_among_many_is_found_wherever_it_stands():
    dice = random.Random(5)
    good = [turn(WRITE, n * 10, n * 10 + 9, n + 1) for n in range(500)]
    assert not judge(good)
    for _ in range(50):
        at = dice.randrange(500)
        late = turn(READ, at * 10 + 5, at * 10 + 8, at + 1, who="b")
        assert [finding.kind for finding in judge([*good, late])] == [MUTEX]


def test_diaries_come_back_as_turns_and_a_kill_is_the_end_of_one(tmp_path):
    with Diary(tmp_path, "config", "w") as diary, Diary(tmp_path, "config", "killer") as killer:
        with diary.turn(WRITE, 7) as number:
            diary.stored(number)
        diary.note("in", turn=8, what=WRITE, token=8, slot=None, asked=1)
        killer.note("killed", who="w")
        diary.note("in", turn=9, what=READ, token=8, slot=None, asked=1)
    with open(tmp_path / "w.diary", "ab") as file:
        file.write(b'{"name": "config", "ev')
    (turns,) = read(tmp_path).values()
    first, second, third = turns
    assert (first.token, first.what) == (7, WRITE)
    assert first.entered <= first.stored[0] <= first.left
    assert second.left is not None
    assert second.left >= second.entered
    assert third.left is None  # noted after that kill: it proves its first instant alone
    assert not judge(turns)
    assert longest_wait(turns, WRITE) > 1
    assert longest_wait([], READ) == 0.0


def possible(turns):
    """Whether reader and writer turns, each with an end and a token, may have been: each pair."""
    for one, other in itertools.combinations(sorted(turns, key=lambda turn: turn.entered), 2):
        if other.entered < one.left and not one.what == other.what == READ:
            return False
        if other.token < one.token or (other.what == WRITE and other.token == one.token):
            return False
    return True


def test_the_checker_says_what_every_pair_of_turns_says():
    dice, met = random.Random(5), set()
    for _ in range(5000):
        instants = iter(dice.sample(range(20), 2 * dice.randint(2, 4)))
        turns = [
            turn(dice.choice([READ, READ, WRITE]), *sorted(pair), dice.randint(1, 4))
            for pair in zip(instants, instants, strict=True)
        ]
        assert possible(turns) == (not judge(turns)), turns
        met.add(possible(turns))
    assert met == {True, False}


def test_the_order_in_which_turns_are_given_changes_nothing():
    turns = [turn(WRITE, 5, None, 1), turn(WRITE, 5, 9, 2), turn(WRITE, 4, 5, 0)]
    assert {len(judge(each)) for each in itertools.permutations(turns)} == {0}


def test_diaries_of_one_name_keep_their_turns_apart(tmp_path):
    """One process on two locks, and one that has come again under its name."""
    a, b = Diary(tmp_path, "a", "w1"), Diary(tmp_path, "b", "w1")
    with a, b, a.turn(WRITE, 1), b.turn(WRITE, 1):
        pass
    assert {name: len(turns) for name, turns in read(tmp_path).items()} == {"a": 1, "b": 1}
    first, beside = Diary(tmp_path, "c", "w1"), Diary(tmp_path, "c", "w2")
    with first, beside, first.turn(WRITE, 1), beside.turn(WRITE, 2):
        pass
    with Diary(tmp_path, "c", "w1") as again, again.turn(WRITE, 3):
        pass
    assert [finding.kind for finding in judge(read(tmp_path)["c"])] == [MUTEX]


def test_a_kill_ends_the_life_that_it_met(tmp_path):
    with Diary(tmp_path, "c", "w") as first, Diary(tmp_path, "c", "killer") as killer:
        first.note("in", turn=1, what=WRITE, token=1, slot=None, asked=1)
        killer.note("killed", who="w")
        with Diary(tmp_path, "c", "w") as again:
            again.note("in", turn=1, what=WRITE, token=2, slot=None, asked=1)
            killer.note("killed", who="w")
    one, other = read(tmp_path)["c"]
    assert one.entered <= one.left <= other.entered <= other.left


@pytest.mark.parametrize(("what", "slot"), [("exclusive", None), ("", None), (SLOT, None)])
def test_a_turn_that_cannot_be_judged_is_not_noted(tmp_path, what, slot):
    diary = Diary(tmp_path, "c", "w1")
    with diary, pytest.raises(InvalidArgument), diary.turn(what, 1, slot):
        pass
    assert read(tmp_path) == {}
