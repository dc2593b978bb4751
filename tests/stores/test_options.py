"""Options of locks in a store that cannot be: refused by name, before anything is asked."""

from __future__ import annotations

import pytest

from lifehold import InvalidArgument, SelfDeadlock, connect

BAD = [
    ({"ttl": 0}, "ttl must be more than 0"),
    ({"ttl": -1}, "ttl must be more than 0"),
    ({"ttl": float("nan")}, "ttl must be"),
    ({"ttl": 40e6}, "longer than a year"),
    ({"ttl": "30"}, "ttl must be a number"),
    ({"heartbeat": 20, "ttl": 30}, "less than 3 heartbeats"),
    ({"lock_delay": -1}, "lock_delay must be 0 or more"),
    ({"lock_delay": float("inf")}, "lock_delay must be"),
    ({"label": 3}, "label must be a str"),
    ({"wait": -1}, "wait must be"),
    ({"max_hold": 0}, "max_hold must be"),
    ({"kind": "soft"}, "takes no kind='soft'"),
]
NAMES = [("", "must not be empty"), ("x" * 513, "too long"), ("a\0b", "printable"),
         (b"job", "must be a str"), ("\ud800", "printable")]  # fmt: skip


@pytest.mark.parametrize(("options", "words"), BAD, ids=str)
def test_a_bad_option_is_refused(options, words, tmp_path):
    store = connect(f"memory://{tmp_path}")
    for make in (store.lock, store.read_write, lambda name, **o: store.semaphore(name, 2, **o)):
        with pytest.raises(InvalidArgument, match=words):
            make("job", **options)
    assert store.list() == []


@pytest.mark.parametrize(("name", "words"), NAMES, ids=repr)
def test_a_bad_name_is_refused(name, words, tmp_path):
    store = connect(f"memory://{tmp_path}")
    for ask in (store.lock, store.inspect, store.waiters, lambda n: store.break_(n, "why")):
        with pytest.raises(InvalidArgument, match=words):
            ask(name)


@pytest.mark.parametrize("permits", [0, -1, 513, 1.5, "2", True])
def test_permits_are_a_whole_number(permits, tmp_path):
    with pytest.raises(InvalidArgument, match="permits must be a whole number from 1 to 512"):
        connect(f"memory://{tmp_path}").semaphore("gpu", permits)


def test_other_permits_are_refused_while_somebody_holds_and_taken_afterwards(tmp_path):
    store = connect(f"memory://{tmp_path}")
    with store.semaphore("gpu", 2):
        with pytest.raises(InvalidArgument, match=r"a semaphore of 2 permits.*of 3 permits"):
            store.semaphore("gpu", 3).acquire()
        with pytest.raises(InvalidArgument, match="was asked for as a lock"):
            store.lock("gpu").acquire()
    with store.semaphore("gpu", 3) as lease:
        assert lease.slot == 0


def test_a_lock_delay_keeps_others_out_after_a_lease_that_ran_out_and_not_after_a_release(tmp_path):
    store = connect(f"memory://{tmp_path}")
    with store.lock("job", ttl=30, lock_delay=60):
        pass
    held = store.lock("job", ttl=30, lock_delay=60, wait=0).acquire()
    held._kept.stop()  # nobody renews it any more
    assert 60 < store.states()[0].holders[0].ends_in <= 90
    held.release()
    store.lock("job", wait=0).acquire().release()


def test_a_lock_and_a_slot_of_like_names_are_two_things(tmp_path):
    """Who holds the one does not wait for itself where it waits for the other."""
    store = connect(f"memory://{tmp_path}")
    with store.semaphore("gpu", 2) as slot, store.lock("gpu#0", wait=0) as lease:
        assert slot.slot == 0
        assert slot._grant.key != lease._grant.key
    with store.semaphore("gpu", 2) as first, store.semaphore("gpu", 2) as second:
        assert [first.slot, second.slot] == [0, 1]
        with pytest.raises(SelfDeadlock):
            store.semaphore("gpu", 2).acquire()
