"""A lock that is broken by order: its holder is told, who comes next is not hit, the order is noted."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from crash.scene import hold
from lifehold import InvalidArgument, LeaseLost, LifeholdError, Lock, UnsafeGround
from lifehold.testing.crash import Child

KINDS = ["soft", "link", "generation"]


def hold_as(path, kind):
    hold(path, kind=kind)


@pytest.mark.parametrize("kind", KINDS)
def test_who_is_broken_is_told_and_the_next_token_is_greater(tmp_path, kind):
    path = str(tmp_path / "job")
    lock = Lock(path, kind=kind, label="op")
    assert lock.break_("nobody is there") is None
    lease = Lock(path, kind=kind).acquire(0)
    holder = lock.break_("the job hangs, ticket 7")
    assert (holder.token, holder.alive) == (lease.token, "alive")
    with pytest.raises(LeaseLost):
        lease.check()
    with lock:
        assert lock.lease.token > lease.token
        with pytest.raises(LeaseLost):
            lease.release()  # a late release hits nobody
        lock.lease.check()
    [line] = Path(path + ".audit").read_text().splitlines()
    noted = json.loads(line)
    assert (noted["reason"], noted["token"]) == ("the job hangs, ticket 7", lease.token)
    assert (noted["by"]["label"], noted["alive"]) == ("op", "alive")
    assert lock.break_("again") is None
    with pytest.raises(InvalidArgument, match="reason"):
        lock.break_(" ")


@pytest.mark.parametrize("kind", KINDS)
def test_a_holder_in_another_process_and_a_dead_one_are_broken(tmp_path, kind):
    path = str(tmp_path / "job")
    with Child(hold_as, path, kind) as child:
        token = child.at("held")
        assert Lock(path, kind=kind).break_("for a test").token == token
        with Lock(path, kind=kind, wait=0) as lease:
            assert lease.token > token
        child.kill()
    with Child(hold_as, path, kind) as child:
        child.at("held")
        child.kill()
    assert Lock(path, kind=kind).break_("it died").alive == "dead"
    Lock(path, kind=kind).acquire(0).release()


def mark(nonce):
    """Of a grant; its token may not have been noted yet."""
    return nonce.partition("-")[0]


@pytest.mark.parametrize("kind", KINDS)
def test_orders_beside_holders_never_hit_who_was_not_meant(tmp_path, kind):
    """Every lease that is lost was broken by name, and nobody else is."""
    path, broken, lost, stop = str(tmp_path / "job"), [], [], threading.Event()

    def works():
        while not stop.is_set():
            lease = Lock(path, kind=kind).acquire(60)
            try:
                lease.release()
            except LeaseLost:
                lost.append(mark(lease.nonce))

    workers = [threading.Thread(target=works) for _ in range(2)]
    for worker in workers:
        worker.start()
    end = time.monotonic() + 60
    while len(broken) < 8 and time.monotonic() < end:
        try:
            holder = Lock(path, kind=kind).break_("a storm")
        except LifeholdError:
            continue
        if holder is not None:
            broken.append(mark(holder.nonce))
    stop.set()
    for worker in workers:
        worker.join(60)
    assert len(broken) == 8
    assert set(lost) <= set(broken)


TRAPS = {
    "a FIFO": os.mkfifo,
    "a folder": os.mkdir,
    "a link": lambda path: os.symlink("/dev/null", path),
    "a second name": lambda path: (Path(path + "2").touch(), os.link(path + "2", path)),
}


@pytest.mark.parametrize("trap", TRAPS)
@pytest.mark.parametrize("kind", [*KINDS, "directory", "folder"])
def test_what_is_no_file_for_notes_is_refused_by_name_and_nobody_is_broken(tmp_path, kind, trap):
    """A FIFO was waited for, with the guard of the lock in hand, and the holder lost it."""
    path = str(tmp_path / "lock")
    TRAPS[trap](path + ".audit")
    with Child(lambda: hold(path, kind=kind)) as holder:
        holder.at("held")

        def breaks():
            signal.alarm(30)
            with pytest.raises(UnsafeGround, match="remove it, or end the holder") as caught:
                Lock(path, kind=kind).break_("it hangs")
            return caught.value.name

        with Child(breaks) as breaker:
            end = breaker.end()
        assert (end.well, end.value) == (True, path + ".audit"), end.error
        holder.go()
        assert holder.end().well
    assert not os.path.exists(path + "2") or not os.path.getsize(path + "2")
