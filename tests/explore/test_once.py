"""The explorer finds what a weaker store of results of `once` does."""

from __future__ import annotations

import pytest

from explore.claims.once import once_claims
from lifehold import LeaseLost
from lifehold.recipes import once_build, once_results
from lifehold.testing.explore import LEAK

pytestmark = pytest.mark.large

CLAIMS = [claim for claim in once_claims() if not claim.soak]


def found(name: str) -> set[str]:
    (claim,) = (each for each in CLAIMS if name in each.name)
    return claim.game().run(seconds=100, stop_at=frozenset({LEAK})).kinds


def test_a_shelf_that_leaves_earlier_runs_alone_lets_a_late_result_in(monkeypatch):
    remove = once_results.ResultFolder.remove

    def results_only(self, number, what):
        if what != once_results.RUN:
            remove(self, number, what)

    monkeypatch.setattr(once_results.ResultFolder, "remove", results_only)
    assert LEAK in found("2 runs without a lock")


def test_a_run_that_does_not_look_again_after_its_begin_lets_a_late_result_in(monkeypatch):
    def settle(self):
        seen = self.results.listing()
        for number in seen.runs:
            if number < self.number:
                self.results.remove(number, once_results.RUN)
        self.older, self.latest = seen, seen.latest  # of before the removal

    monkeypatch.setattr(once_results.OnceRun, "settle", settle)
    assert LEAK in found("3 runs without a lock")


def test_a_late_beginner_that_does_not_withdraw_lets_its_result_in(monkeypatch):
    def settle(self):
        try:
            plain(self)
        except LeaseLost:
            return  # a higher number is there, and it goes on

    plain = once_results.OnceRun.settle
    monkeypatch.setattr(once_results.OnceRun, "settle", settle)
    assert LEAK in found("2 runs without a lock")


def test_a_builder_that_removes_in_place_lets_half_a_folder_be_seen(monkeypatch):
    def clear(self, nonce):
        for name in self.files.listdir(self.folder):
            if once_build.BUILDING in name:
                self.remove(f"{self.folder}{name}")

    monkeypatch.setattr(once_build.BuildFolder, "clear", clear)
    assert LEAK in found("2 build one folder without a lock")
