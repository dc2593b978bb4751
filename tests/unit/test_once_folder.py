"""The folder of results of a `once`: what stands in its place, and what becomes of it meanwhile."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from lifehold import InvalidArgument, LeaseLost, SystemRefused, once
from lifehold.recipes.once import forget


@pytest.fixture
def name(tmp_path: Path) -> str:
    return str(tmp_path / "job")


def never():
    raise AssertionError("it ran")


def test_results_are_not_looked_for_nor_removed_where_a_link_leads(name, tmp_path):
    other = str(tmp_path / "other")
    once(other, lambda: "secret")
    os.symlink(other + ".once", name + ".once")
    for rules in ({}, {"keep": 0}):
        with pytest.raises(InvalidArgument, match="no folder of results"):
            once(name, never, **rules)
    with pytest.raises(InvalidArgument, match="no folder of results"):
        forget(name)
    assert once(other, never) == "secret"


@pytest.mark.parametrize("what", ["folder", "run"])
def test_results_that_somebody_removed_during_a_run_are_no_lost_lock(name, what):
    def job():
        folder = Path(name + ".once")
        shutil.rmtree(folder)
        if what == "run":
            folder.mkdir()
        return "made"

    with pytest.raises(SystemRefused, match="removed") as caught:
        once(name, job)
    assert caught.value.value == "made"
    assert once(name, lambda: "anew") == "anew"


def test_a_later_run_that_left_nothing_is_told_as_a_lost_lock(name, monkeypatch):
    """The last look at the lock came before it; the rename, after its results were removed."""

    def job():
        os.unlink(name)
        once(name, lambda: "later")
        shutil.rmtree(name + ".once")
        monkeypatch.setattr("lifehold.lease.Holding.check", first_look)
        return "late"

    def first_look(lease):
        monkeypatch.undo()

    with pytest.raises(LeaseLost):
        once(name, job)
