"""Options of locks in a store that cannot be: refused by name, before anything is asked."""

from __future__ import annotations

import pytest

from lifehold import InvalidArgument, Lock, SelfDeadlock, connect
from lifehold.core.errors import UnknownArgument

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


URLS = ["memory://", "sqlite:///x.db", "postgresql://h/d", "redis://h/0", "redis+cluster://h/0",
        "redis+sentinel://h/jobs", "redis+quorum://a,b,c/0"]  # fmt: skip


@pytest.mark.parametrize("url", URLS)
def test_an_option_that_a_store_does_not_take_is_told_with_those_that_it_takes(url):
    pytest.importorskip("psycopg")
    pytest.importorskip("redis")
    with pytest.raises(UnknownArgument, match=r"takes no foo=1: its arguments are .*label"):
        connect(url, foo=1)
    with pytest.raises(UnknownArgument, match=r"takes no password=\.\.\."):
        connect(url, password="s3cret")


def test_an_option_of_a_quorum_that_there_is_not_is_told():
    pytest.importorskip("redis")
    urls = ["redis://a", "redis://b", "redis://c"]
    with pytest.raises(UnknownArgument, match=r"timout=1: did you mean timeout=1\?"):
        connect(quorum=urls, timout=1)


TORN = ["redis://[::1:6379/0", "redis+cluster://[::1:6379/0", "postgresql://u:s3cret%ff@h/d",
        "postgresql://h%ff/d", "postgresql://\ud800/0", "sqlite:////tmp/\ud800/0",
        "redis://[::1:6379/0?password=s3cret", "postgresql://u:12 s3cret@h/d",
        "redis://u:12 s3cret@h/x", "redis://h/x?password=12 s3cret", "nope://u:12 s3cret@h",
        "memory://?password=12 s3cret", "memory://u:s3cret@h",
        "sqlite://h?password=12 s3cret"]  # fmt: skip


@pytest.mark.parametrize("url", TORN, ids=ascii)
def test_a_url_that_cannot_be_read_is_refused_without_its_password(url):
    pytest.importorskip("psycopg")
    pytest.importorskip("redis")
    for ask in (lambda: connect(url), lambda: Lock(f"{url}#n")):
        with pytest.raises(InvalidArgument, match=r"URL|three slashes|memory://NAME") as told:
            ask()
        assert "s3cret" not in f"{told.value}{told.value.__cause__}"
        str(told.value).encode()


@pytest.mark.parametrize("option", [{"create": 0}, {"create": "no"}, {"owner": 5}], ids=str)
def test_what_makes_tables_is_said_without_doubt(option):
    pytest.importorskip("psycopg")
    with pytest.raises(InvalidArgument, match=f"{next(iter(option))} must be"):
        connect("postgresql://h/d", **option)
