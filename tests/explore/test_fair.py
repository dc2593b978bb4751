"""The line of fair askers in every interleaving: the shipped runtime/flock_wait.py and block.stand.

The model has the byte-range locks of open file descriptions. A blocked one goes on at any moment at
which nothing conflicts, in any order, so the claim does not rest on how a kernel wakes waiters.
ORDER: somebody got the lock while one who stood in line before he came still stood there.
"""

from __future__ import annotations

import errno
import os
from struct import unpack

import pytest

from lifehold.local.files import LOCK_EX, LOCK_NB, LOCK_SH, LOCK_UN, READ_WRITE
from lifehold.runtime import flock_wait
from lifehold.testing import actor as stage
from lifehold.testing.explore import Client, Exploration, Model
from lifehold.testing.model import Error, Outcomes

ORDER = "ORDER"
PATH = "/lock"
LAST = 1 << 63


class LineModel(Model):
    """A machine with locks of byte ranges, and a signal that may come once per wait."""

    def do_stamp(self, world, me):
        """The clock, and who stands in line at this moment: nobody of those is to be passed."""
        now = world.notes.get("now", 0) + 1
        world.notes["now"] = now
        world.notes["before", me] = self._standing(world)
        return now

    def do_range(self, world, me, fd, kind, first, length, now_or_never, interruptible):
        last = first + length - 1 if length else LAST
        mine = world.notes.get(("range", me, fd))
        if kind == flock_wait.UNLOCK:
            world.notes.pop(("range", me, fd), None)
            world.notes.pop(("stands", me), None)
            return None
        for (what, *owner), theirs in world.notes.items():
            if what != "range" or owner == [me, fd] or owner[0] in world.gone:
                continue
            meets = theirs[1] <= last and first <= theirs[2]
            if meets and flock_wait.LOCK in (kind, theirs[0]):
                return self._refused(world, me, now_or_never, interruptible)
        world.notes["range", me, fd] = (
            (kind, first, last) if mine is None else (kind, min(first, mine[1]), max(last, mine[2]))
        )
        if length == 1:
            world.notes["stands", me] = first  # the doorway is behind us
        return None

    def _refused(self, world, me, now_or_never, interruptible):
        if now_or_never:
            return Outcomes([(Error(errno.EAGAIN), world)])
        if interruptible and ("interrupted", me) not in world.notes:
            world.notes["interrupted", me] = True
            return Outcomes([(Error(errno.EINTR), world)])
        return Outcomes()

    def do_close(self, world, me, fd):
        super().do_close(world, me, fd)
        self.do_range(world, me, fd, flock_wait.UNLOCK, 0, 0, True, False)

    def _standing(self, world):
        return frozenset(
            (key[1], first)
            for key, first in world.notes.items()
            if key[0] == "stands" and key[1] not in world.gone
        )

    def enter(self, world, claim, token):
        wrong = super().enter(world, claim, token)
        passed = world.notes.get(("before", claim.client), frozenset()) & self._standing(world)
        return [*wrong, ORDER] if passed else wrong


def actor():
    return stage._stage.actor


class Clock:
    """In place of the module `time`."""

    @staticmethod
    def monotonic_ns():
        return actor().step("stamp")


class Libc:
    """In place of the C library, as block.stand and Turn use it; and of the module fcntl."""

    F_GETFL = 3
    error = 0

    def __init__(self, interruptible=False):
        self.interruptible = interruptible

    def get_errno(self):
        return self.error

    def call(self, *step):
        try:
            actor().step(*step)
        except OSError as error:
            self.error = error.errno
            return -1
        return 0

    def flock(self, fd, operation):
        return self.call("flock", fd, operation)

    def fcntl(self, fd, command, data):
        kind, _, first, length, _ = unpack("@hhqqi0q", data)
        now_or_never = command == flock_wait.SET_NOW
        return self.call("range", fd, kind, first, length, now_or_never, self.interruptible)


class Fcntl:
    """In place of the module fcntl."""

    F_GETFL = 3

    @staticmethod
    def fcntl(fd, command, data):
        kind, _, first, length, _ = unpack("@hhqqi0q", data)
        actor().step("range", fd, kind, first, length, True, False)


@pytest.fixture(autouse=True)
def _modelled(monkeypatch):
    monkeypatch.setattr(flock_wait, "time", Clock)
    monkeypatch.setattr(flock_wait, "fcntl", Fcntl)


def asker(
    rounds=1,
    *,
    wait=True,
    shared=False,
    interruptible=False,
    gives_up=False,
    turn=flock_wait.FairTicket,
):
    operation = LOCK_SH if shared else LOCK_EX

    def program(actor):
        files = actor.files
        for _ in range(rounds):
            fd = files.open(PATH, READ_WRITE | os.O_CREAT, 0o644)
            if one_round(files, fd):
                actor.enter(shared=shared)
                actor.leave()
                files.flock(fd, LOCK_UN)
            files.close(fd)

    def one_round(files, fd):
        try:
            flock_wait.try_now(PATH, fd, operation | LOCK_NB, files.flock)
        except BlockingIOError:
            return wait and stand(fd)
        return True

    def stand(fd):
        libc, place = Libc(interruptible), turn(fd)
        while True:
            failed = flock_wait.stand(libc, fd, operation, place)
            if failed != errno.EINTR:
                return not failed
            if gives_up:
                return False

    return Client(program)


def run(*clients, crashes=1):
    game = Exploration(*clients, crashes=crashes, model=LineModel(), start=lambda w: w.put(PATH))
    return game.run(seconds=120)


class LooksAtNobody(flock_wait.FairTicket):
    """Known to be wrong: it stands in line and goes on at once."""

    __slots__ = ()

    def come(self, libc):
        self._stamp = flock_wait.time.monotonic_ns()
        return -libc.fcntl(
            self._fd,
            flock_wait.SET,
            flock_wait.span(flock_wait.LOCK, flock_wait.FIRST_BYTE + self._stamp, 1),
        )


class OwnClock(flock_wait.FairTicket):
    """Known to be wrong: a number that does not grow with the time of arrival."""

    __slots__ = ()

    def come(self, libc):
        flock_wait.time.monotonic_ns()
        self._stamp = 100 - actor().me
        return super().come(libc)


GOOD = {
    "2 askers, 2 rounds": [asker(2)] * 2,
    "3 askers": [asker()] * 3,
    "3 askers, one does not wait": [asker(), asker(), asker(wait=False)],
    "3 askers, one is interrupted": [asker(interruptible=True), asker(), asker()],
    "3 askers, one gives up": [asker(interruptible=True, gives_up=True), asker(), asker()],
    "a writer and two readers": [asker(), asker(shared=True), asker(shared=True)],
}


@pytest.mark.parametrize("name", GOOD)
def test_nobody_who_stands_in_line_is_passed_in_any_interleaving(name):
    report = run(*GOOD[name])
    assert report.exhaustive, report
    assert not report.kinds, report


@pytest.mark.parametrize("turn", [pytest.param(LooksAtNobody, marks=pytest.mark.large), OwnClock])
def test_the_explorer_finds_lines_that_let_somebody_pass(turn):
    report = run(asker(), *[asker(turn=turn)] * 2)
    assert report.kinds == {ORDER}, report


def test_an_asker_that_does_not_stand_in_line_passes_and_excludes_all_the_same():
    """What fairness means where fair and unfair askers share a file."""

    def program(actor):
        files = actor.files
        actor.step("stamp")
        fd = files.open(PATH, READ_WRITE)
        try:
            files.flock(fd, LOCK_EX | LOCK_NB)
            actor.enter()
            actor.leave()
        except BlockingIOError:
            pass
        files.close(fd)

    report = run(Client(program), asker(), asker())
    assert report.kinds == {ORDER}, report  # and no MUTEX
