"""Mutants of generation and link, which are found."""

from __future__ import annotations

import pytest

from explore.claims import generation_starts as starts
from explore.claims import leases_model as model
from explore.claims.generation_and_link import Knows, generation, link
from explore.claims.leases_model import FAR, Leases, NetworkLeases, liblockfile
from lifehold.local.generation import GenerationLock
from lifehold.local.link import LinkLock
from lifehold.local.record import HELD, RELEASED, VOID
from lifehold.testing.explore import MIXED, MUTEX, STUCK, Client, Exploration
from lifehold.testing.world import ClaimedHold, OpenDescription

pytestmark = pytest.mark.large

STRANGER = 9


class Busy(Leases):
    """Somebody takes 8, then 9 and 10, cleans, and holds 10, while others are on their way."""

    def events(self, world):
        yield from super().events(world)
        seven, eight, nine = (f"{model.PATH}/{number:020d}" for number in (7, 8, 9))
        if "busy" not in world.notes and eight not in world.names and nine not in world.names:
            after = world.copy()
            self.hold(after, 8)
            yield "somebody takes 8", after
        elif world.notes.get("busy") == 8 and nine not in world.names:
            after = world.copy()
            for name in (seven, eight):
                after.names.pop(name, None)
            self.hold(after, 10)
            after.forget_unused()
            yield "it releases, takes 9 and 10, and cleans", after

    def hold(self, world, number):
        world.opened.pop((STRANGER, 3), None)
        starts.numbered(world, number, pid=STRANGER, state=HELD)
        ino = world.names[f"{model.PATH}/{number:020d}"]
        world.opened[STRANGER, 3] = OpenDescription(ino, 2, 2)
        world.holders |= {ClaimedHold(STRANGER, "ours", False, "lock")}
        world.notes["busy"] = number


class BurnsAsReleased(GenerationLock):
    """A number that was made anew by who came late looks like one that was held and released."""

    def _void(self, stake):
        if stake.sheet is not None:
            stake.write(stake.sheet.now(RELEASED), sync=False)


class FollowsAnybody(GenerationLock):
    """A silent record is gone on from without a look at its own predecessor."""

    def _is_first(self, number, marker):
        return True


class NoPredecessor(GenerationLock):
    """Whether what it went on from is still there is not asked."""

    def _leads(self, number, key):
        found = super()._leads(number, key)
        return True if found is None else found


class NeverFollowsTheBurnt(GenerationLock):
    """A number that was given up is waited for, as if somebody would come back to it."""

    def _is_first(self, number, marker):
        return marker.stage != VOID and super()._is_first(number, marker)


class BelievesTheReply(NeverFollowsTheBurnt):
    """What link(2) replies is believed."""

    def _leads(self, number, key):
        return False if key[1] >= 100 else super()._leads(number, key)

    def _link(self, stake, aside, number):
        try:
            self.files.link(aside, self._name(number + 1))
        except FileExistsError:
            return False
        return True


class RenewsLate(GenerationLock):
    """The old deadline is not looked at after the write."""

    def _late(self, stake):
        return False


def busy(kind, crashes):
    actor = generation(kind)
    return Exploration(
        actor, actor, crashes=crashes, model=Busy(), start=starts.free_folder, newcomer=False,
        quiet=model.quiet, unseen=model.unseen,
    ).run(seconds=120)  # fmt: skip


@pytest.mark.parametrize("crashes", [0, 1])
@pytest.mark.parametrize("kind", [GenerationLock, Knows])
def test_who_comes_late_finds_nothing_to_go_on_from(kind, crashes):
    report = busy(kind, crashes)
    assert report.exhaustive
    assert MUTEX not in report.kinds, report


def test_a_burnt_number_that_looks_released_is_found():
    """Two late ones beside one that goes on: not seen with three rounds of the earlier model."""
    assert MUTEX in busy(BurnsAsReleased, 0).kinds


def test_a_silent_number_that_is_not_the_first_is_found():
    assert MUTEX in busy(FollowsAnybody, 1).kinds


def test_a_missing_look_at_the_predecessor_is_found():
    assert MUTEX in busy(NoPredecessor, 0).kinds


def test_a_burnt_number_at_the_top_that_nobody_follows_is_found():
    """An error or Ctrl-C between the link and the look at it burns the highest number."""
    actor = generation(NeverFollowsTheBurnt)
    report = Exploration(actor, crashes=0, model=Leases(), start=starts.burnt, quiet=model.quiet)
    assert STUCK in report.run(seconds=60).kinds


def test_believing_the_reply_of_link_over_nfs_is_found():
    actor = generation(BelievesTheReply, witness=False, server=True)
    report = Exploration(actor, crashes=0, model=NetworkLeases(), start=starts.free_folder,
                         quiet=model.quiet).run(seconds=60)  # fmt: skip
    assert STUCK in report.kinds


@pytest.mark.soak
def test_a_renewal_believed_after_its_deadline_is_found():
    leased = {"leased": True, "place": FAR}
    report = Exploration(
        generation(RenewsLate, renews=True, **leased), generation(**leased), crashes=0,
        model=Leases(steps=4), start=starts.free_folder, quiet=model.quiet, unseen=model.unseen,
        newcomer=False,
    ).run(seconds=120, stop_at={MUTEX})  # fmt: skip
    assert MUTEX in report.kinds, report


class UnlinksTheStale(LinkLock):
    """As the original: what was judged dead is removed by name (C1)."""

    def _adopt(self, stake, found):
        self.files.unlink(self.path)
        return False


def test_unlinking_a_stale_file_beside_liblockfile_is_found():
    def left(world):
        world.put(model.PATH, b"0\n")

    def dead(world):
        world.put(model.PATH, b"7\n")
        world.gone |= {7}

    def game(kind, start):
        peer = Client(liblockfile(), party="liblockfile")
        return Exploration(link(kind), peer, model=Leases(clock="ticking"), start=start)

    assert MIXED in game(UnlinksTheStale, dead).run(seconds=60, stop_at={MIXED}).kinds
    assert MIXED not in game(LinkLock, dead).run(seconds=60).kinds
    assert "ours" not in str(game(LinkLock, left).first)
