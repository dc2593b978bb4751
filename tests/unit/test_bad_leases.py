"""Terms that no lease can keep, and names without room, are refused in words; nothing is left."""

from __future__ import annotations

import os

import pytest

from lifehold import InvalidArgument, LifeholdError, Lock

KINDS = ["soft", "link", "generation"]


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        ({"ttl": 3, "heartbeat": 2}, "less than 3 heartbeats"),
        ({"ttl": 3, "margin": 3}, "leaves nothing"),
        ({"ttl": 3, "margin": 4}, "leaves nothing"),
        ({"ttl": 0}, "more than 0"),
        ({"ttl": float("nan")}, "more than 0"),
        ({"heartbeat": 1}, "give ttl="),
        ({"margin": 1}, "give ttl="),
    ],
)
def test_terms_that_no_lease_can_keep_are_refused(tmp_path, kind, terms, words):
    with pytest.raises(InvalidArgument, match=words):
        Lock(tmp_path / "job", kind=kind, **terms)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("length", [249, 250, 255, 256])
def test_a_name_is_locked_whole_or_refused_with_the_room_it_needs(tmp_path, kind, length):
    path = str(tmp_path / ("n" * length))
    longest = 249 if kind == "soft" else 255  # NAME.token
    if length <= longest:
        with Lock(path, kind=kind, wait=0) as lease:
            lease.check()
        return
    with pytest.raises(InvalidArgument, match="shorter"):
        Lock(path, kind=kind).acquire(0)
    assert os.listdir(tmp_path) == []


def test_an_order_that_cannot_be_noted_is_not_carried_out(tmp_path, kind):
    path = str(tmp_path / ("n" * 249))
    os.mkdir(path + ".audit")
    with Lock(path, kind=kind, wait=0) as lease:
        with pytest.raises(LifeholdError, match="no plain file"):
            Lock(path, kind=kind).break_("there is no room for a note")
        lease.check()
