"""A file server's client that remembers what a name led to: what is decided by names asks anew.

Played on a seam whose open(2) and lstat(2) answer from memory, as a client of NFSv4.1 does: it
opens the file that a name led to by its handle, even when that name leads elsewhere by now.
"""

from __future__ import annotations

import os

import pytest

from ground import needs
from lifehold.core.deadline import Terms
from lifehold.core.grant import Grant, Held, Lost
from lifehold.local.files import Files, anew
from lifehold.local.generation import GenerationLock
from lifehold.local.ground import MountInfo
from lifehold.local.handles import Descriptors
from lifehold.local.link import LinkLock
from lifehold.local.soft import SoftLock
from lifehold.local.soft_readwrite import SoftReadWrite
from lifehold.runtime.blocking import BLOCKING, finish

pytestmark = needs("linux")
TERMS = Terms(ttl=60.0, heartbeat=20.0, margin=6.0)
FAR = MountInfo("nfs4", "0:9")
KINDS = {"link": LinkLock, "soft": SoftLock, "soft writer": SoftReadWrite}


class Remembering(Files):
    """Names given to `remember` lead where they did then, until their folder is asked for anew."""

    def __init__(self):
        super().__init__()
        self.known = {}

    def remember(self, path):
        """What it leads to now; nothing is something to remember, too."""
        try:
            self.known[path] = os.open(path, os.O_RDWR)
        except FileNotFoundError:
            self.known[path] = None

    def _named(self, path):
        fd = self.known.get(path, -1)
        if fd is None:
            raise FileNotFoundError(2, "as it was remembered", path)
        return path if fd == -1 else f"/proc/self/fd/{fd}"

    def open(self, path, flags, *rest):
        name = self._named(path) if not flags & os.O_CREAT else path
        return os.open(name, flags if name is path else flags & ~os.O_NOFOLLOW, *rest)

    def lstat(self, path):
        name = self._named(path)
        return os.lstat(path) if name is path else os.stat(name)

    def anew(self, folder):
        for path in [path for path in self.known if os.path.dirname(path) == folder]:
            fd = self.known.pop(path)
            if fd is not None:
                os.close(fd)


@pytest.fixture
def far():
    files = Remembering()
    yield files
    for path in list(files.known):
        files.anew(os.path.dirname(path))


def made(kind, files, path, **more):
    return KINDS[kind](path, BLOCKING, table=Descriptors(files), place=FAR, terms=TERMS, **more)


def held(kind, files, path):
    lock = made(kind, files, path)
    grant = lock.attempt()
    assert isinstance(grant, Grant)
    return lock, grant


def replaced(kind, files, path):
    """A lock and its grant, which was broken by order, and its successor, unknown to the client."""
    lock, grant = held(kind, files, path)
    files.remember(path)
    there = made(kind, Files(), path)
    (there.claim if kind == "soft writer" else there).break_("a test")
    successor = there.attempt()
    assert isinstance(successor, Grant)
    return lock, grant, there, successor


@pytest.mark.parametrize("kind", KINDS)
def test_a_late_release_does_not_remove_the_successors_lock(kind, far, tmp_path):
    path = str(tmp_path / "lock")
    lock, grant, there, successor = replaced(kind, far, path)
    assert isinstance(lock.drop(grant), Lost)
    assert os.path.exists(path)
    assert there.check(successor) is None
    assert there.drop(successor) is None


@pytest.mark.parametrize("kind", KINDS)
def test_a_check_tells_that_it_was_broken(kind, far, tmp_path):
    lock, grant, there, successor = replaced(kind, far, str(tmp_path / "lock"))
    assert isinstance(lock.check(grant), Lost)
    lock.drop(grant)
    there.drop(successor)


@pytest.mark.parametrize("kind", KINDS)
def test_a_renewal_finds_that_it_was_broken(kind, far, tmp_path):
    lock, grant, there, successor = replaced(kind, far, str(tmp_path / "lock"))
    assert isinstance(finish(lock.renew(grant)), Lost)
    lock.drop(grant)
    there.drop(successor)


def test_a_dead_holder_that_is_remembered_is_not_taken_for_the_living_one(far, tmp_path):
    """Its record has run out, and somebody else has replaced it meanwhile."""
    path = str(tmp_path / "lock")
    seen = {}

    class Watching(SoftLock):
        def judged(self, found):
            seen.setdefault("case", case := super().judged(found))
            return case

    first, _ = held("soft", Files(), path)
    late = Watching(path, BLOCKING, table=Descriptors(far), place=FAR, terms=TERMS)
    assert isinstance(late.attempt(), Held)
    far.remember(path)
    os.unlink(path)
    _, living = held("soft", Files(), path)
    late.evidence.seen[path] = late.evidence.seen[path][0], -1e9  # its ttl has passed
    assert isinstance(late.attempt(), Held)
    assert first.check(living) is None
    first.drop(living)


def test_a_reader_sees_the_writer_whose_claim_it_has_not_heard_of(far, tmp_path):
    path = str(tmp_path / "lock")
    far.remember(path)  # that nobody is there
    writer = made("soft writer", Files(), path)
    grant = writer.attempt()
    reader = made("soft writer", far, path, exclusive=False)
    assert isinstance(reader.attempt(), Held)
    assert writer.check(grant) is None
    writer.drop(grant)


def test_a_number_that_was_followed_is_told_of(far, tmp_path):
    path = str(tmp_path / "lock")
    lock = GenerationLock(path, BLOCKING, table=Descriptors(far), place=FAR, terms=TERMS)
    grant = lock.attempt()
    far.remember(f"{path}/{grant.handle[0].number + 1:020d}")
    GenerationLock(path, BLOCKING, place=FAR, terms=TERMS).break_("a test")
    assert isinstance(lock.check(grant), Lost)
    lock.drop(grant)


@pytest.mark.parametrize("how", ["statx", "open"])
def test_a_folder_is_asked_for_by_either_call(how, tmp_path, monkeypatch):
    if how == "open":
        monkeypatch.setattr("lifehold.local.files._statx_call", False)
    anew(str(tmp_path))
    with pytest.raises(FileNotFoundError):
        anew(str(tmp_path / "none"))
