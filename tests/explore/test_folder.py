"""Mutants of kind folder, each of which is found."""

from __future__ import annotations

import pytest

from explore.claims import folder as proofs
from explore.claims.folder import InLine, folder, lockfolder
from explore.claims.leases_model import Leases
from lifehold.core.owner import DEAD, LifeVerdict
from lifehold.testing.explore import MIXED, MUTEX, STUCK, Exploration

pytestmark = pytest.mark.large


def found(*actors, stop_at, start=proofs.empty):
    return (
        Exploration(
            *actors, crashes=0, model=Leases(), start=start, quiet=proofs.quiet,
            unseen=proofs.unseen, newcomer=False,
        )
        .run(seconds=120, stop_at={stop_at})
        .kinds
    )  # fmt: skip


class NotChosen(InLine):
    """A bid whose ticket is being chosen is nobody's rival (D1)."""

    def _place_of(self, seen, bid):
        return None if seen.ticket == 0 else super()._place_of(seen, bid)


class OnceBefore(InLine):
    """Who was choosing when we looked first is waited for, whatever ticket it has chosen since."""

    def _place_of(self, seen, bid):
        was = self.__dict__.setdefault("was", {})
        if seen.ticket == 0:
            was[seen.name] = 0
        return was.get(seen.name, super()._place_of(seen, bid))


class NotLooked(InLine):
    """The others are looked at before its own ticket is there, and not after."""

    def _try(self, bid):
        return self._enter(bid)


class EmptyIsDead(InLine):
    """An empty bid of lockfolder is removed at once (D4)."""

    def _life(self, seen, fd):
        return LifeVerdict(DEAD, "") if seen.is_empty else super()._life(seen, fd)


class NotReadAgain(InLine):
    """An empty bid is not read again when nobody has it open (D5)."""

    def _life(self, seen, fd):
        if seen.is_empty and not self.files.is_open_elsewhere(fd):
            return LifeVerdict(DEAD, "")
        return super()._life(seen, fd)


def test_a_ticket_that_is_being_chosen_must_be_waited_for():
    actor = folder(NotChosen)
    assert MUTEX in found(actor, actor, stop_at=MUTEX)


def test_who_has_chosen_a_later_ticket_must_not_be_waited_for():
    actor = folder(OnceBefore)
    assert STUCK in found(actor, actor, stop_at=STUCK)


def test_the_others_must_be_looked_at_after_the_ticket():
    actor = folder(NotLooked)
    assert MUTEX in found(actor, actor, stop_at=MUTEX)


@pytest.mark.parametrize("kind", [EmptyIsDead, NotReadAgain])
def test_an_empty_bid_needs_a_proof_and_another_look(kind):
    assert MIXED in found(folder(kind, rounds=2), lockfolder(), stop_at=MIXED)
