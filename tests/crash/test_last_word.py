"""What a child has said before its end is heard, whichever of the two is seen first."""

from __future__ import annotations

import os
import select
import types

import pytest

from lifehold.testing import crash
from lifehold.testing.crash import Child, point


@pytest.fixture
def end_first(monkeypatch):
    """The first look at both sees the end alone, as where the word comes between the two."""

    def looked(read, write, odd, timeout):
        if len(read) == 2 and not seen:
            (line, end), _ = read, seen.append(True)
            assert select.select([end], [], [], timeout)[0]
            assert select.select([line], [], [], timeout)[0]
            return [end], [], []
        return select.select(read, write, odd, timeout)

    seen = []
    monkeypatch.setattr(crash, "select", types.SimpleNamespace(select=looked))


def test_what_a_child_returns_is_not_lost_when_its_end_is_seen_first(end_first):
    with Child(lambda: "its last word") as child:
        end = child.end()
    assert end.well
    assert end.value == "its last word"


def test_why_it_failed_is_not_lost_when_its_end_is_seen_first(end_first):
    with Child(lambda: 1 / 0) as child:
        assert "ZeroDivisionError" in child.end().error


def test_a_point_of_a_child_that_is_killed_there_is_heard(end_first):
    def dies():
        crash._line.send(b'{"at": "here", "value": 7}')
        os._exit(1)

    with Child(dies) as child:
        assert child.at("here") == 7


def test_a_child_whose_own_child_keeps_the_line_open_has_ended_all_the_same():
    held, kept = os.pipe()

    def leaves_one():
        if os.fork() == 0:
            os.close(kept)
            os.read(held, 1)
            os._exit(0)
        point("here")
        os._exit(0)

    try:
        with Child(leaves_one) as child:
            child.at("here")
            assert child.step() is None
            assert child.end().well
    finally:
        os.close(kept)
        os.close(held)
