"""The shipped kernel lock in every configuration that testing/proofs.py makes a claim of."""

from __future__ import annotations

import pytest

from lifehold.local.kernel import KernelLock
from lifehold.testing.clients import lock_client
from lifehold.testing.explore import Client, Exploration, Model
from lifehold.testing.proofs import claims, kept, main

CLAIMS = {claim.name: claim for claim in claims() if not claim.name.startswith("soft:")}
QUICK = [name for name, claim in CLAIMS.items() if not claim.soak]
SOAK = [name for name, claim in CLAIMS.items() if claim.soak]


@pytest.mark.parametrize("name", QUICK)
def test_the_shipped_kernel_lock_keeps_its_promise_in_every_interleaving(name):
    report = CLAIMS[name].game().run(seconds=60)
    assert kept(CLAIMS[name], report.kinds, report.exhaustive), report
    assert report.kinds == CLAIMS[name].may_show  # what a claim excuses does happen


@pytest.mark.soak
@pytest.mark.parametrize("name", SOAK)
def test_the_shipped_kernel_lock_keeps_its_promise_in_a_larger_world(name):
    report = CLAIMS[name].game().run(seconds=1800)
    assert kept(CLAIMS[name], report.kinds, report.exhaustive), report


def test_every_name_is_used_once():
    names = [claim.name for claim in claims()]
    assert sorted(set(names)) == sorted(names)


def test_the_command_prints_a_row_for_each_configuration(capsys):
    assert main(["-k", "3 clients, empty_file"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert [row.split("  ")[0] for row in rows[:2]] == [
        "kernel: 3 clients, empty_file",
        "kernel: 3 clients, empty_file, 2 crashes",
    ]
    assert rows[-1].endswith("no configuration shows more than it may")


def test_a_counter_does_not_go_with_its_file_before_the_clock_is_past_it():
    """Found by the explorer: cleanup=True removed the file, and the next token was the same."""
    client = Client(lock_client(KernelLock, cleanup=True))
    game = Exploration(client, client, crashes=0, model=Model(clock="still"))
    played = game.replay(TWICE_THE_SAME_TOKEN.replace("RECORD", RECORD).splitlines())
    assert not played.kinds
    assert played.parted == 12  # the unlink
    assert "P1 flock(3, UN) -> ok" in played.instead


RECORD = '\'{"lifehold":1,"ino":2,"token": 1000000,"acquired_at_us": 1000000,"nonce":"0…\''
TWICE_THE_SAME_TOKEN = """\
P1 open('/lock', RDWR) -> ENOENT
P1 open('/lock', RDWR|CREAT|EXCL, 438) -> 3
P1 fstat(3) -> file ino=2 nlink=1 size=0
P1 flock(3, EX|NB) -> ok
P1 lstat('/lock') -> file ino=2 nlink=1 size=0
P1 pread(3, 50, 0) -> ''
P1 fstat(3) -> file ino=2 nlink=1 size=0
P1 clock_ns() -> 1000000000
P1 pwrite(3, RECORD, 0) -> 1024
P1 leave('lock') -> ok
P1 lstat('/lock') -> file ino=2 nlink=1 size=1024
P1 clock_ns() -> 1000000000
P1 unlink('/lock') -> ok
"""
