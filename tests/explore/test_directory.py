"""Mutants of kind directory, each of which is found."""

from __future__ import annotations

import errno

import pytest

from explore.claims import directory as proofs
from explore.claims.directory import NetworkRooms, Rooms, directory, maker
from lifehold.local import record_folders
from lifehold.local.directory import DirectoryLock
from lifehold.testing.explore import MIXED, MUTEX, STUCK, Exploration

pytestmark = pytest.mark.large


def found(*actors, stop_at, start=None, crashes=0, model=None):
    return (
        Exploration(
            *actors, crashes=crashes, model=model or Rooms(clock="ticking"), start=start,
            quiet=proofs.quiet, unseen=proofs.unseen, newcomer=False,
        )
        .run(seconds=120, stop_at={stop_at})
        .kinds
    )  # fmt: skip


class NoLook(DirectoryLock):
    """Under the guard of the entry it does not look whether that is still in the folder."""

    def _leads(self, entry):
        return True


class NoGuard(DirectoryLock):
    """It looks, and nobody is kept from moving the folder meanwhile."""

    def _guard(self, entry):
        return True


class AnyEntry(DirectoryLock):
    """What was judged is not named in the removal: whatever entry is there goes."""

    def _take_out(self, entry):
        seen = record_folders.look(self.files, self.path)
        for name in seen[0] if seen else ():
            try:
                self.files.unlink(f"{self.path}/{name}")
            except FileNotFoundError:
                return False
        return bool(seen and seen[0])


class BelievesTheReply(DirectoryLock):
    """What rename(2) over a file server replies is believed."""

    def _post(self, entry, aside, over):
        try:
            (self.files.rename if over else self.files.rename_new)(aside, self.path)
        except OSError:
            return False
        return True


class AnyEmpty(DirectoryLock):
    """An empty folder is taken, be it marked or not."""

    def _publish(self, over, ours, least):
        return super()._publish(over, True, least)


class AlwaysByName(DirectoryLock):
    """An entry is removed by itself even where the whole folder could be moved away."""

    def _guard(self, entry):
        return False


def test_moving_the_folder_without_a_look_is_found():
    actor = directory(NoLook)
    assert MUTEX in found(actor, actor, stop_at=MUTEX, start=proofs.dead_holder)


def test_moving_the_folder_without_the_guard_is_found():
    actor = directory(NoGuard)
    assert MUTEX in found(actor, actor, stop_at=MUTEX, start=proofs.dead_holder)


def test_a_removal_that_does_not_name_what_was_judged_is_found():
    def dead(world):
        proofs.entry(world, witness=False)

    actor = directory(AnyEntry, witness=False)
    assert MUTEX in found(actor, actor, stop_at=MUTEX, start=dead)


def test_believing_the_reply_of_rename_over_nfs_is_found():
    actor = directory(BelievesTheReply, witness=False)
    assert STUCK in found(actor, stop_at=STUCK, model=NetworkRooms())


def test_taking_any_empty_folder_is_found_beside_mkdir():
    assert MIXED in found(directory(AnyEmpty), maker(), stop_at=MIXED)


def test_removal_by_name_is_found_beside_mkdir():
    """Why an exact entry goes with its folder: an empty one is seen, goes, and is made by mkdir."""
    actor = directory(AlwaysByName, rounds=2)
    other = directory(AnyEmpty)
    assert MIXED in found(actor, other, maker(), stop_at=MIXED)


class Xfs(Rooms):
    over_full_folder = errno.EEXIST


def test_xfs_says_exists_where_others_say_not_empty():
    actor = directory(witness=False)
    report = Exploration(
        actor, actor, crashes=1, model=Xfs(), start=proofs.left_empty, quiet=proofs.quiet,
        unseen=proofs.unseen,
    ).run(seconds=60)  # fmt: skip
    assert report.exhaustive
    assert not report.violations, report
