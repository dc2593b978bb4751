"""What the explorer found in the kernel kind, and is found no more."""

from __future__ import annotations

from lifehold.local.kernel import KernelLock
from lifehold.testing.clients import lock_client
from lifehold.testing.explore import Client, Exploration, Model


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
