"""The soft lock of lifehold.compat.filelock among its own kind and beside filelock's protocol.

Played: the shipped mechanism, and a model of filelock 4.2, which creates, judges, exchanges and
gives back.
"""

from __future__ import annotations

import errno
import os
from types import SimpleNamespace

import pytest

from lifehold.compat.filelock import softfile, softlook, swap, whose
from lifehold.compat.filelock.slip import Slip
from lifehold.core.grant import Grant
from lifehold.core.liveness import ALIVE, DEAD, Verdict
from lifehold.local.descriptors import Descriptors
from lifehold.local.ground import Place
from lifehold.testing.clients import PATH
from lifehold.testing.explore import MIXED, MUTEX, Client, Exploration, Model

CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL
LOCAL = Place("ext4", "0:1")
DEAD_ONE = 99


def text(number, witness=False):
    return f"{number}\nhost\n".encode() + (whose.WITNESSED if witness else b"")


class Swapping(Model):
    """A machine that exchanges names; its clock stands still, so a write alone moves no time."""

    def __init__(self, **options):
        super().__init__(times=True, clock="still", **options)

    def do_exchange(self, world, me, one, other):
        first, second = world.found(one), world.found(other)
        world.names[one], world.names[other] = second, first
        return True

    def do_stamp(self, world, me, where, when):
        ino = self._opened(world, me, where).ino
        world.nodes[ino] = world.nodes[ino]._replace(mtime=when)

    def do_alive(self, world, me, client):
        return "dead" if client == DEAD_ONE or client in world.gone else "alive"


@pytest.fixture(autouse=True)
def no_time_passes(monkeypatch):
    monkeypatch.setattr(swap, "clock", SimpleNamespace(now=lambda: 0.0, pause=lambda _: None))
    monkeypatch.setattr(
        swap, "aside", lambda path, pid, kind="break": f"{path}.{kind}.{pid}.{'0' * 32}"
    )


def words(seat):
    """Who we are and who lives, as the model has it."""

    def verdict(named, witness, one_kernel):
        if witness:
            return Verdict(ALIVE, "")
        if named.witness and witness is False:
            return Verdict(DEAD, "")
        return Verdict(DEAD if seat.alive(named.pid) == "dead" else ALIVE, "")

    return SimpleNamespace(
        record=lambda witness: text(seat.me, witness), verdict=verdict,
        host_name=lambda: "host", pid=lambda: seat.me,
    )  # fmt: skip


def ours(rounds=1):
    def program(seat):
        table = Descriptors(seat.files)
        lock = softfile.SoftFile(PATH, seat.runtime, table, None, place=LOCAL, words=words(seat))
        for _ in range(rounds):
            answer = lock.attempt()
            if isinstance(answer, Grant):
                seat.enter(None)
                seat.leave()
                lock.drop(answer)
        return set()

    return Client(program, nonces="same")


def original(rounds=1):
    """filelock 4.2, after what its users can see of it."""

    def program(seat):
        for _ in range(rounds):
            fd = take(seat)
            if fd is not None:
                seat.enter(None)
                seat.leave()
                give(seat.files, fd)
        return set()

    return Client(program, party="filelock", nonces="same")


def take(seat):
    files = seat.files
    try:
        fd = files.open(PATH, CREATE)
    except OSError as error:
        if error.errno != errno.EEXIST:
            raise
        return broken(seat)
    files.pwrite(fd, text(seat.me), 0)
    return fd


def broken(seat):
    """By an exchange, if it names the dead: our descriptor of what is the lock now, or None."""
    files = seat.files
    try:
        pin = files.open(PATH, os.O_RDONLY)
    except OSError:
        return None
    judged, fd, won = files.fstat(pin), None, False
    try:
        content = files.pread(pin, 2000, 0)
        named = whose.read(content)
        stale = content == b"garbage"
        if named is not None:
            stale = seat.alive(named.pid) == "dead"
        if not stale:
            return None
        name = swap.aside(PATH, seat.me)
        fd = files.open(name, CREATE)
        files.pwrite(fd, text(seat.me), 0)
        if not same(files, PATH, judged):
            files.unlink(name)
            return None
        try:
            files.exchange(name, PATH)
        except OSError:
            files.unlink(name)
            return None
        if same(files, name, judged):
            files.unlink(name)
            won = True
            return fd
        own = files.fstat(fd)
        swap.give_back(files, PATH, name, SimpleNamespace(fd=fd, dev=own.st_dev, ino=own.st_ino))
        return None
    finally:
        files.close(pin)
        if fd is not None and not won:
            files.close(fd)


def same(files, path, judged):
    try:
        found = files.lstat(path)
    except OSError:
        return False
    return (found.st_ino, found.st_mtime) == (judged.st_ino, judged.st_mtime)


def give(files, fd):
    own = files.fstat(fd)
    try:
        found = files.lstat(PATH)
        if found.st_ino == own.st_ino:
            files.unlink(PATH)
        else:
            files.pwrite(fd, whose.RELEASED, 0)
            files.truncate(fd, len(whose.RELEASED))
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise
    files.close(fd)


def dead(witness):
    def left(world):
        world.put(PATH, text(DEAD_ONE, witness))

    return left


def played(*clients, crashes=1, start=None, seconds=60):
    game = Exploration(
        *clients, crashes=crashes, model=Swapping(), start=start, newcomer=False, name="soft files"
    )
    return game.run(seconds=seconds)


@pytest.mark.parametrize("witness", [True, False])
def test_two_of_ours_and_a_dead_holder(witness):
    report = played(ours(), ours(), start=dead(witness))
    assert report.exhaustive, report
    assert not report.kinds, report


@pytest.mark.parametrize("witness", [True, False])
def test_ours_beside_the_original_and_a_dead_holder(witness):
    report = played(ours(), original(), start=dead(witness), crashes=1)
    assert report.exhaustive, report
    assert not report.kinds, report


def test_two_of_ours_beside_the_original_and_a_dead_holder():
    report = played(ours(), ours(), original(), start=dead(False), crashes=0)
    assert report.exhaustive, report
    assert not report.kinds, report


def garbage(world):
    world.put(PATH, b"garbage")


@pytest.mark.parametrize("peer", [ours, original])
def test_two_who_replace_what_nobody_can_read(peer, monkeypatch):
    """Nobody waits before he takes it for a left-over: the exchange alone keeps them apart."""
    monkeypatch.setattr(softlook, "MALFORMED", 0.0)
    report = played(ours(), peer(), start=garbage)
    assert report.exhaustive, report
    assert not report.kinds, report


def test_a_replacement_that_keeps_what_it_took_is_found(monkeypatch):
    monkeypatch.setattr(softlook, "MALFORMED", 0.0)
    monkeypatch.setattr(swap, "replaced", blindly)
    report = played(ours(), original(), start=garbage, crashes=0)
    assert report.kinds & {MUTEX, MIXED}, report


def blindly(files, path, judged, mine):
    """Without a look at what the exchange took."""
    name, mine.name = mine.name, ""
    try:
        files.exchange(name, path)
    except FileNotFoundError:
        return False
    files.unlink(name)
    return True


def test_an_adoption_that_does_not_look_again_is_found(monkeypatch):
    monkeypatch.setattr(Slip, "is_at", lambda self, path: True)
    report = played(ours(), original(), start=dead(False), crashes=0)
    assert report.kinds & {MUTEX, MIXED}, report
