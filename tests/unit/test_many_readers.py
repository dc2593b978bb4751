"""Ten thousand readers of one lock: all are in, or are refused by the name of the limit."""

from __future__ import annotations

import contextlib
import os
import resource
import threading
import tracemalloc

import pytest

import lifehold
from ground import needs
from lifehold import ReadWriteLock

pytestmark = needs("linux")
MANY = 10_000


@contextlib.contextmanager
def open_files(limit):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(limit, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def all_ask(path, kind, many=MANY):
    """The leases of those who are in; what the others met, in words, and how often."""
    leases, met = [], {}
    for _ in range(many):
        try:
            leases.append(ReadWriteLock(path, kind=kind).acquire_read(0))
        except lifehold.SystemRefused as error:
            met[str(error)] = met.get(str(error), 0) + 1
    return leases, met


def write_elsewhere(path, kind):
    """Whether another thread gets in as a writer."""
    found = []

    def attempt():
        try:
            ReadWriteLock(path, kind=kind).acquire_write(0).release()
            found.append(True)
        except lifehold.WouldBlock:
            found.append(False)

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join(120)
    return found == [True]


def open_now():
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize(("kind", "many"), [("kernel", MANY), ("soft", 500)])
def test_of_many_readers_those_beyond_the_limit_are_refused_by_its_name(tmp_path, kind, many):
    path = str(tmp_path / "config")
    ReadWriteLock(path, kind=kind).acquire_write().release()
    before = open_now()
    with open_files(before + 200):
        leases, met = all_ask(path, kind, many)
        assert len(leases) + sum(met.values()) == many
        assert 100 < len(leases) < 300  # what was kept idle before is closed for it
        assert met
        assert all("ulimit -n" in words and path in words for words in met)
        leases.pop().release()
        leases.append(ReadWriteLock(path, kind=kind).acquire_read(0))  # it goes on at the limit
        for lease in leases:
            lease.check()
    assert not write_elsewhere(path, kind)
    for lease in leases:
        lease.release()
    assert write_elsewhere(path, kind)
    assert open_now() <= before + 2  # an idle one is kept for the next acquire
    if kind == "soft":
        assert os.listdir(f"{path}.readers") == []


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["kernel", "soft"])
def test_ten_thousand_readers_are_in_at_once(tmp_path, kind):
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < MANY + 300:
        pytest.skip(f"this machine permits {hard} open files")
    path = str(tmp_path / "config")
    ReadWriteLock(path, kind=kind).acquire_write().release()
    before = open_now()
    with open_files(MANY + 300):
        tracemalloc.start()
        leases, met = all_ask(path, kind)
        used, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert (len(leases), met) == (MANY, {})
        assert open_now() - before <= MANY + 100
        assert used < MANY * 10_000  # bytes: each costs some 5 KB
        assert not write_elsewhere(path, kind)
        for lease in leases:
            lease.check()
            lease.release()
    assert write_elsewhere(path, kind)
    assert open_now() <= before + 70
