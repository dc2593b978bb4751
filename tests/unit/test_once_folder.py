"""The folder of results of a `once`: what stands in its place, and what becomes of it meanwhile."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lifehold import InvalidArgument, once
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
