"""An interrupt before every bytecode that looks for signals, in every kind, shape and face.

The exception is kept, with its frames, as a task, a log or a REPL keeps it. Nothing may be held
then but what the caller can reach: the lease in its hand, or `lock.lease`.

`python tests/crash/test_bytecodes_kinds.py` prints the table of all of them.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from pathlib import Path

import pytest

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from crash.bytecodes import PACKAGE, Before, interrupt
from ground import needs
from lifehold import (
    AsyncLock,
    AsyncReadWriteLock,
    AsyncSemaphore,
    Lock,
    NotAcquired,
    NotHeld,
    ReadWriteLock,
    Semaphore,
    lock_all,
    once,
)
from lifehold.aio import lock_all as lock_all_async
from lifehold.local.handles import TABLE
from lifehold.runtime import fork

pytestmark = [
    needs("linux"),
    pytest.mark.filterwarnings(
        "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
    ),
]
# One of so many bytecodes is looked at; `make soak` looks at all of them.
STEP = int(os.environ.get("LIFEHOLD_STEP", "13"))


class Subject:
    """`lock(face, path)`; `use(lock)`: what goes into `with`; `whole(path)`: it alone."""

    def __init__(self, lock, use=lambda lock: lock, whole=None):
        self.lock, self.use = lock, use
        self.whole = whole or (lambda path: use(lock(Lock, path)))


def of_kind(kind, **more):
    return Subject(lambda face, path: face(path, kind=kind, wait=0, **more))


def shared(face, path):
    return face(path, exclusive=False, wait=0)


def semaphore(face, path):
    return (Semaphore if face is Lock else AsyncSemaphore)(path, 1, wait=0)


def readwrite(kind):
    def made(face, path):
        return (ReadWriteLock if face is Lock else AsyncReadWriteLock)(path, kind=kind, wait=0)

    return made


def reading(kind):
    make = readwrite(kind)
    return Subject(make, lambda lock: lock.reading(), lambda path: make(Lock, path).writing())


def several(face, path):
    make = lock_all if face is Lock else lock_all_async
    return make([f"{path}-1", f"{path}-2"], wait=0)


LEASED = {"ttl": 30.0}
KINDS = {
    "kernel": of_kind("kernel"),
    "kernel, shared": Subject(shared, whole=lambda path: Lock(path, wait=0)),
    "kernel, cleanup": of_kind("kernel", cleanup=True),
    "kernel, fair": of_kind("kernel", fair=True),
    "kernel, max_hold": of_kind("kernel", max_hold=60),
    "soft": of_kind("soft"),
    "soft, ttl": of_kind("soft", **LEASED),
    "link": of_kind("link"),
    "link, ttl": of_kind("link", **LEASED),
    "generation": of_kind("generation"),
    "generation, ttl": of_kind("generation", **LEASED),
    "directory": of_kind("directory"),
    "directory, ttl": of_kind("directory", **LEASED),
    "folder": of_kind("folder"),
    "semaphore": Subject(semaphore),
    "reading": reading("kernel"),
    "writing": Subject(readwrite("kernel"), lambda lock: lock.writing()),
    "reading, soft": reading("soft"),
    "writing, soft": Subject(readwrite("soft"), lambda lock: lock.writing()),
    "lock_all": Subject(several),
}
BY_HAND = [kind for kind in KINDS if not kind.startswith(("reading", "writing"))]
CASES = [(kind, "block") for kind in KINDS] + [(kind, "async block") for kind in KINDS]
CASES += [(kind, "by hand") for kind in BY_HAND] + [("once", "once")]
# What lies between the program and the mechanism, all of whose bytecodes are looked at.
PARTS = ("lock", "aio", "lease", "shapes", "attempts", "several", "several_async")
FACES = tuple(f"{PACKAGE}/{part}.py" for part in PARTS)
assert all(map(os.path.exists, FACES))
OF_FACES = ("kernel, max_hold", "soft, ttl", "reading", "writing, soft", "lock_all")
LEAST = 5  # bytecodes that look for signals, in every face
ENTRY = "RESUME"
MOST = 4  # places at the entry of `__exit__`, where CPython itself leaves no choice


def is_free(kind, path):
    """Whether somebody else gets it."""
    if kind == "once":
        return not Lock(path).locked()
    try:
        with KINDS[kind].whole(path):
            return True
    except NotAcquired:
        return False


def blocking(one, box):
    """A block. Its lease is not taken into the hand: what is left is reached by the object."""
    with one:
        box["body"] = True


async def awaited(one, box):
    async with one as box["lease"]:
        box["body"] = True


def by_hand(one, box):
    """`acquire()` and `release()` without a block."""
    box["by hand"] = True  # the object's own `release()` reaches what an acquire has left
    lease = box["lease"] = one.acquire()
    lease.release()


def go(kind, form, lock, box):
    """One pair of acquire and release, in that form."""
    if form == "once":
        once(lock, lambda: 1, keep=0)
    elif form == "async block":
        coroutine = awaited(KINDS[kind].use(lock), box)
        try:
            asyncio.run(coroutine)
        finally:
            coroutine.close()
    else:
        (blocking if form == "block" else by_hand)(KINDS[kind].use(lock), box)


def freed(lock, box):
    """Release it by what a program can reach. Whether there was something."""
    lease = box.get("lease")
    if lease is not None and lease.held:
        done = lease.release()
        if done is not None:
            asyncio.run(done)
        return True
    try:
        done = lock.release()
        if done is not None:  # of a task that is over
            done.close()
            return False
    except (NotHeld, AttributeError):
        return False
    return True


class Table:
    """What is found in one kind and form: places looked at, held by nobody, held by the object."""

    def __init__(self):
        self.looked, self.wrong, self.reached = 0, [], []

    def judge(self, kind, path, lock, run, box):
        self.looked += 1
        while fork.gate._is_owned():
            fork.gate.release()
        if is_free(kind, path):
            return
        if freed(lock, box):
            if box:  # a body that was come to, or no block
                self.reached.append(run.where)
            else:
                self.wrong.append(f"{run.where}: held, and nobody was told")
            if not is_free(kind, path):
                self.wrong.append(f"{run.where}: its handle does not free it")
            return
        self.wrong.append(f"{run.where}: held without a handle")
        run.forget()
        if not is_free(kind, path):
            self.wrong[-1] += ", for ever"


def played(kind, form, folder, step, inside=PACKAGE):
    """The table of one kind and form. `inside`: the code that is interrupted."""
    table, number = Table(), 0

    def made(path):
        if kind == "once":
            return path
        return KINDS[kind].lock(AsyncLock if form == "async block" else Lock, path)

    for warm in range(3):
        go(kind, form, made(f"{folder}/warm{warm}"), {})
    while True:
        path, box = f"{folder}/{number}.lock", {}
        lock = made(path)
        run = Before(
            number, interrupt, lambda lock=lock, box=box: go(kind, form, lock, box),
            only_real=True, inside=inside,
        )  # fmt: skip
        if not run.came:
            return table
        table.judge(kind, path, lock, run, box)
        run.forget()
        number += step


@pytest.mark.parametrize(("kind", "form"), CASES)
def test_an_interrupt_leaves_nothing_held_that_cannot_be_reached(kind, form, tmp_path):
    table = played(kind, form, tmp_path, STEP)
    assert not table.wrong, "\n".join(table.wrong)
    if form != "by hand":
        assert len(table.reached) <= MOST, "\n".join(table.reached)
    assert sys.exc_info() == (None, None, None)  # no later test is told of the injected ones


@pytest.mark.parametrize("form", ["block", "async block"])
@pytest.mark.parametrize("kind", OF_FACES)
def test_an_interrupt_in_a_face_or_shape_leaves_nothing_held_before_the_body(kind, form, tmp_path):
    table = played(kind, form, tmp_path, 1, FACES)
    assert table.looked > LEAST
    assert not table.wrong, "\n".join(table.wrong)
    behind = [place for place in table.reached if not place.endswith(ENTRY)]
    assert not behind, "\n".join(behind)
    assert sys.exc_info() == (None, None, None)


@pytest.fixture(autouse=True)
def _undone():
    """What no signal can do: an exception put between two bytecodes may leave the gate shut."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    TABLE.close_idle()
    gc.collect()
    gc.freeze()
    yield
    while fork.gate._is_owned():
        fork.gate.release()
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    TABLE.close_idle()


if __name__ == "__main__":
    import tempfile
    import warnings

    warnings.simplefilter("ignore")
    sys.unraisablehook = lambda *_: None
    step = int(os.environ.get("LIFEHOLD_STEP", "1"))
    for kind, form in CASES:
        if kind not in (sys.argv[1:] or [kind]):
            continue
        with tempfile.TemporaryDirectory() as folder:
            table = played(kind, form, folder, step)
        print(f"{kind:16} {form:12} looked at {table.looked:4}: held by nobody {len(table.wrong)}, "
              f"by what is in hand {len(table.reached)}", flush=True)  # fmt: skip
        for place in [*table.wrong, *table.reached] if "-v" in sys.argv else table.wrong:
            print("     ", place)
