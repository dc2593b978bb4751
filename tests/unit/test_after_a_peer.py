"""After a dead holder of another tool: whoever of that tool comes meanwhile is not robbed.

One attempt of ours is played again and again, and before each of its calls in turn the other tool
takes the same lock in its own way, as a whole. Never do both hold it.
"""

from __future__ import annotations

import os
import subprocess
import sys

import filelock
import pytest

from ground import needs
from lifehold.core.grant import Grant
from lifehold.local.handles import TABLE, Descriptors
from lifehold.local.record import ROOM
from lifehold.local.soft import SoftLock
from lifehold.runtime.blocking import BLOCKING

MOST_CALLS = 100


@pytest.fixture(scope="module")
def gone():
    """The number of a process that is no more."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


class Filelocks:
    """The real one."""

    def __init__(self, path, gone):
        self.lock = filelock.SoftFileLock(path, timeout=0, is_singleton=False)
        with open(path, "w") as file:
            file.write(f"{gone}\n{filelock._identity.host_name()}\n")

    def take(self):
        try:
            self.lock.acquire()
        except filelock.Timeout:
            return False
        return True

    def holds(self):
        return self.lock.is_lock_held_by_us


class Liblockfiles:
    """lockfile_create(3): it judges the content, unlinks by name, links, compares."""

    def __init__(self, path, gone):
        self.path, self.aside = path, f"{path}.aside"
        with open(path, "w") as file:
            file.write(f"{gone}\n")

    def take(self):
        with open(self.aside, "w") as file:
            file.write(f"{os.getppid()}\n")
        for _ in range(2):
            try:
                os.link(self.aside, self.path)
            except FileExistsError:
                with open(self.path, "rb") as file:
                    pid = int(file.read(16).split(b"\n")[0])
                if os.path.exists(f"/proc/{pid}"):
                    return False
                os.unlink(self.path)
            else:
                return True
        raise AssertionError

    def holds(self):
        return os.path.exists(self.path) and os.path.samefile(self.path, self.aside)


class Meets:
    """The seam; before the `number`-th call of ours the other comes."""

    def __init__(self, number, other):
        self.left, self.other, self.name, self.took = number, other, "", False

    def __getattr__(self, name):
        call = getattr(TABLE.files, name)
        if not callable(call):
            return call

        def met(*given):
            self.left -= 1
            if self.left == 0:
                self.name, self.took = name, self.other.take()
            return call(*given)

        return met


def both(tmp_path, number, other):
    path = str(tmp_path / f"{number}.lock")
    other = other(path)
    seam = Meets(number, other)
    lock = SoftLock(path, BLOCKING, table=Descriptors(seam))
    answer = lock.attempt()
    ours = isinstance(answer, Grant) and lock.check(answer) is None
    if isinstance(answer, Grant) and not ours:
        pytest.fail(f"call {number} ({seam.name}): granted, and lost at once")
    return seam, ours, seam.took and other.holds(), seam.took


@pytest.mark.parametrize("tool", [Filelocks, Liblockfiles])
def test_a_peer_that_follows_the_same_dead_holder_is_never_robbed(tmp_path, gone, tool):
    outcomes = set()
    for number in range(1, MOST_CALLS):
        seam, ours, theirs, took = both(tmp_path, number, lambda path: tool(path, gone))
        if seam.left > 0:
            break
        assert not (took and not theirs), f"call {number} ({seam.name}): it was robbed"
        assert ours != theirs, f"call {number} ({seam.name}): {ours}, {theirs}"
        outcomes.add((ours, theirs))
    assert outcomes == {(True, False), (False, True)}
    assert number < MOST_CALLS - 1


def test_over_a_record_of_our_own_one_call_lies_open_to_a_peer(tmp_path, gone):
    """Between the last look at the path and rename(2): some microseconds."""

    class AfterOurs(Liblockfiles):
        def __init__(self, path, gone):
            super().__init__(path, gone)
            dead = SoftLock(f"{path}.dead", BLOCKING)
            grant = dead.attempt()
            grant.handle[0].let_go = None
            with open(f"{path}.dead", "rb") as file:
                content = file.read()
            os.unlink(f"{path}.dead")
            grant.handle.clear()
            with open(path, "wb") as file:
                _mine, _, rest = content.partition(b"\n")
                file.write(b"%d\n" % gone + rest)

    exposed = []
    for number in range(1, MOST_CALLS):
        seam, _ours, theirs, took = both(tmp_path, number, lambda path: AfterOurs(path, gone))
        if seam.left > 0:
            break
        if took and not theirs:
            exposed.append(seam.name)
    assert exposed == ["rename"]


def two_names(path):
    os.link(path, f"{path}.kept")


def of_another(path):
    os.chown(path, 65534, -1)


def longer_than_a_record(path):
    with open(path, "a") as file:
        file.write("\n" * ROOM)


@pytest.mark.parametrize(
    "what",
    [two_names, longer_than_a_record, pytest.param(of_another, marks=needs("root", "linux"))],
    ids=lambda what: what.__name__,
)
def test_only_a_small_file_of_our_own_under_one_name_is_written_into(tmp_path, gone, what):
    """L3  Anything else is renamed over: whoever has it open, or under another name, keeps it."""
    path = str(tmp_path / "a.lock")
    Filelocks(path, gone)
    what(path)
    with open(path, "rb") as dead:
        before = dead.read()
        lock = SoftLock(path, BLOCKING)
        grant = lock.attempt()
        assert isinstance(grant, Grant)
        assert not os.path.samestat(os.fstat(dead.fileno()), os.stat(path))
        dead.seek(0)
        assert dead.read() == before
    assert os.stat(path).st_uid == os.getuid()
    assert lock.drop(grant) is None
