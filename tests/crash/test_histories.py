"""Readers, writers, slots and several locks under kills and pauses, their histories judged."""

from __future__ import annotations

import pytest

from patience import steadily
from soak.readwrite import run

SOFT = ["reader", "reader", "writer", "writer"]


def test_no_history_of_a_kernel_kind_shows_what_may_not_be():
    wrong, figures = run(4)
    assert not wrong, wrong[:3]
    for side in ("config   write", "config   read", "gpu      slot", "several  write"):
        assert side in figures


def test_no_history_of_the_soft_reader_writer_lock_shows_what_may_not_be():
    wrong, figures = run(4, kind="soft", cast=SOFT)
    assert not wrong, wrong[:3]
    assert "config   write" in figures
    assert "config   read" in figures


@pytest.mark.parametrize(("bad", "kind"), [("reader", "MUTEX"), ("slot", "PERM"), ("stale", "FEN")])
def test_a_party_that_does_not_lock_as_it_should_is_found(bad, kind):
    def judge():
        wrong, _ = run(1.5, bad)
        assert any(kind in line or "MUTEX" in line for line in wrong), wrong

    steadily(judge)
