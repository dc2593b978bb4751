"""Ctrl-C between any two bytecodes of `lock_all`, where one of its locks is held already.

Its level of that lock is given back, and no other: not one too few, not one too many.
"""

from __future__ import annotations

import gc
import signal

import pytest

from crash.bytecodes import PACKAGE, Before, interrupt
from ground import needs
from lifehold import AsyncLock, Lock, WouldBlock, lock_all
from lifehold.aio import lock_all as lock_all_async
from lifehold.runtime import fork

pytestmark = needs("linux")
FACES = tuple(f"{PACKAGE}/{part}.py" for part in ("lock", "aio", "several", "several_async"))
LEAST = 50  # bytecodes that look for signals, in each form
MOST = 4  # of the places that are excused
ENTRY = "RESUME"  # of `__exit__`, where CPython itself leaves no choice
RAISED = ":None CALL"  # of a call that has raised: it does not look for signals


def refused(locks):
    try:
        lock_all(locks, wait=0).acquire()
    except WouldBlock:
        pass


def block(locks):
    with lock_all(locks[:2], wait=0):
        pass


def refused_of_tasks(locks):
    async def main():
        try:
            await lock_all_async(locks, wait=0).acquire()
        except WouldBlock:
            pass

    stepped(main())


def block_of_tasks(locks):
    async def main():
        async with lock_all_async(locks[:2], wait=0):
            pass

    stepped(main())


def stepped(coroutine):
    """What waits for nothing needs no loop."""
    try:
        while True:
            coroutine.send(None)
    except StopIteration as ended:
        return ended.value
    finally:
        coroutine.close()


def taken(lock):
    return lock.acquire() if isinstance(lock, Lock) else stepped(lock.acquire())


def is_free(path):
    lease = Lock(path).try_acquire()
    if lease is not None:
        lease.release()
    return lease is not None


def wrong(face, form, levels, names, number):
    """Where it was interrupted, None when it ran through; and whether it left the wrong things."""
    lock = face(names[0], reentrant=True)
    for _ in range(levels):
        lease = taken(lock)
    locks = [lock, *map(face, names[1:])]
    with Lock(names[2]):
        run = Before(number, interrupt, lambda: form(locks), only_real=True, inside=FACES)
        while fork.gate._is_owned():
            fork.gate.release()
        right = lease.held and lease._depth == levels - 1 and is_free(names[1])
    where = run.where if run.came else None
    run.forget()
    lease._depth = 0
    if lease.held and (done := lease.release()) is not None:
        stepped(done)
    return where, not right


@pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.parametrize("levels", [1, 2])
@pytest.mark.parametrize(
    ("face", "form"),
    [(Lock, refused), (Lock, block), (AsyncLock, refused_of_tasks), (AsyncLock, block_of_tasks)],
)
def test_an_interrupt_gives_back_the_level_that_was_taken_and_no_other(
    face, form, levels, tmp_path
):
    found, number, where = [], 0, ""
    while where is not None:
        names = [f"{tmp_path}/{number}{each}.lock" for each in "abc"]
        where, bad = wrong(face, form, levels, names, number)
        if bad:
            found.append(str(where))
        number += 1
    assert number > LEAST
    assert not [each for each in found if not each.endswith((ENTRY, RAISED))], found
    assert len(found) <= MOST, found


@pytest.fixture(autouse=True)
def _undone():
    """What no signal can do: an exception put between two bytecodes may leave the gate shut."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield
    while fork.gate._is_owned():
        fork.gate.release()
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    gc.collect()
