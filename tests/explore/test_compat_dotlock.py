"""The dot lock of lifehold.compat.liblockfile, whose file stays when its maker has closed it.

Played: the shipped mechanism, among its own kind, beside kind `link`, and beside liblockfile as it
is. Who lives is told by the model: by the number on the first line, and by the kernel lock of who
keeps the file open.
"""

from __future__ import annotations

import pytest

from explore.claims import leases_model as model
from explore.claims.generation_and_link import link
from explore.claims.leases_model import NEAR, Leases, liblockfile
from lifehold.compat.liblockfile import dotlock
from lifehold.compat.liblockfile.dotlock import DotLock, first_number
from lifehold.core.grant import Grant
from lifehold.core.owner import ALIVE, DEAD
from lifehold.local.handles import Descriptors
from lifehold.local.judge import Judgement
from lifehold.local.record import read
from lifehold.testing.clients import PATH
from lifehold.testing.explore import MIXED, MUTEX, Client, Exploration

pytestmark = pytest.mark.large

SECONDS = 200  # larger worlds are cut by it
DEAD_ONE = 99


@pytest.fixture(autouse=True)
def one_look(monkeypatch):
    """Who only looks is no obstacle here: it does so in no time."""
    monkeypatch.setattr(dotlock, "AGAIN", 0)


class Machine(Leases):
    """One on which a process of before is gone."""

    def do_alive(self, world, me, client):
        return "dead" if client == DEAD_ONE or client in world.gone else "alive"


def stale(world):
    """Its lock file is there."""
    world.put(PATH, b"%d\n" % DEAD_ONE)


class Rule:
    """The contract, with the model in the place of /proc and of the clock."""

    def __init__(self, actor):
        self.actor = actor

    def judged(self, _path, found, _place):
        content = found.read()
        touched = found.touched()
        marker = read(content)
        held = found.has_witness()
        life = "dead"
        if not marker.witness:
            life = self.actor.alive(first_number(content))
        dead = not held and life == "dead"
        return Judgement(DEAD if dead else ALIVE, "", marker, found.key, "", touched=touched)


def dot(kind=DotLock, *, rounds=1, keep=False):
    def program(actor):
        table = Descriptors(actor.files)
        lock = kind(
            PATH, number=actor.me, keep=keep, runtime=actor.runtime, table=table, place=NEAR
        )
        lock.contract = Rule(actor)
        for _ in range(rounds):
            while not isinstance(grant := lock._attempt(), Grant):
                actor.step("sleep", 0.0)
            stake = grant.handle.pop()
            key, nonce = stake.key, stake.sheet.nonce
            if not keep:
                stake.let_go = None
                stake.shut()
            actor.enter()
            actor.leave()
            if keep:
                stake.close()
            else:
                lock.remove(key, nonce)

    return Client(program, nonces="same")


def peer(rounds=1):
    return Client(liblockfile(rounds=rounds), party="liblockfile")


def played(*actors, crashes=1, start=None, stop_at=frozenset()):
    return Exploration(
        *actors, crashes=crashes, model=Machine(clock="ticking"), unseen=model.unnamed,
        quiet=lambda call: call[0] in ("sleep", "fstat", "fsync"), start=start,
    ).run(seconds=SECONDS, stop_at=stop_at)  # fmt: skip


QUICK = {
    "two, a stale file": ((dot(), dot()), {"crashes": 0, "start": stale}),
    "beside the original": ((dot(), peer()), {}),
    "beside the original, a stale file": ((dot(), peer()), {"crashes": 0, "start": stale}),
}
LARGE = {
    "two": ((dot(), dot()), {}),
    "two, a stale file": ((dot(), dot()), {"start": stale}),
    "two that keep it open": ((dot(keep=True), dot(keep=True)), {}),
    "beside kind link": ((dot(), link(strict=True)), {}),
    "kept open beside the original": ((dot(keep=True), peer()), {"start": stale}),
    "three": ((dot(), dot(), dot()), {"start": stale}),
    "two beside the original": ((dot(), dot(), peer()), {}),
    "two rounds beside the original": ((dot(rounds=2), peer(rounds=2)), {}),
}


@pytest.mark.parametrize("name", QUICK)
def test_one_is_inside_in_every_interleaving(name):
    cast, how = QUICK[name]
    report = played(*cast, **how)
    assert report.exhaustive, report
    assert report.kinds == set(), report


@pytest.mark.soak
@pytest.mark.parametrize("name", LARGE)
def test_one_is_inside_in_a_larger_world(name):
    cast, how = LARGE[name]
    assert played(*cast, **how).kinds == set()


class Unlinks(DotLock):
    """As the original: what was found stale is unlinked by name, without a look again."""

    def _take_over(self, stake, found):
        self.files.unlink(self.path)


class Believes(DotLock):
    """Does not look again after an acquisition."""

    def _settled(self, stake):
        return True


@pytest.mark.parametrize(
    ("cast", "kind"),
    [
        pytest.param((dot(Unlinks), dot(Unlinks)), MUTEX, marks=pytest.mark.soak, id="unlinks"),
        pytest.param((dot(Believes), peer()), MIXED, id="believes"),
    ],
)
def test_the_explorer_finds_what_the_shipped_one_avoids(cast, kind):
    assert kind in played(*cast, crashes=0, start=stale, stop_at={kind}).kinds
