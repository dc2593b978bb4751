"""A signal handler that raises, acquires or forks between any two bytecodes.

No lock without a handle.

And no handle without a lock, no thread left waiting, no token given twice.
"""

from __future__ import annotations

import asyncio
import fcntl
import gc
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from crash.bytecodes import every_bytecode, interrupt
from crash.scene import descriptors, free, threads, until
from lifehold import AsyncLock, Lock, NotAcquired
from lifehold.local.handles import TABLE
from lifehold.runtime import fork

# What an interrupt inside __del__ raises is swallowed by CPython (hazard 6).
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
# Waits take milliseconds each: a greater step looks at fewer of their bytecodes.
# `make soak` looks at all of them.
STEP = int(os.environ.get("LIFEHOLD_STEP", "7"))
KINDS = {"exclusive": {}, "shared": {"exclusive": False}, "cleanup": {"cleanup": True},
         "bare": {"record": False}, "bounded": {"max_hold": 60}}  # fmt: skip


@pytest.fixture(autouse=True)
def _no_idle_descriptors():
    TABLE.close_idle()
    gc.collect()
    gc.freeze()  # each interrupt is followed by a collection, which need not look at all of pytest
    yield
    TABLE.close_idle()


@pytest.fixture(autouse=True)
def undone():
    """What no signal can do: an exception put between two bytecodes may leave the gate shut."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield
    while fork.gate._is_owned():
        fork.gate.release()
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def lost(path):
    """Hazard 6: unlocked descriptors that an interrupt at the return of open(2) has lost.

    Closes them.
    """
    found = [fd for fd in descriptors(path) if fd not in TABLE.open]
    for fd in found:
        os.close(fd)
    return len(found)


def gate_left_shut():
    """Opens the fork gate that an interrupt between the bytecodes of a `with` statement's end left.

    CPython looks for no signal there; but other threads, and children, would wait for it for ever.
    """
    try:
        while True:
            fork.gate.release()
    except RuntimeError:
        return


def judged(run, path, lease_of):
    """What is wrong after an interrupt, "" for nothing: free, or held by a handle that frees it."""
    if not run.real:
        run.forget()
    lease = lease_of()
    held = not free(path)
    run.forget()
    if not run.real:
        gate_left_shut()
    if held and lease is None:
        return f"{run.where}: held without a handle"
    if held:
        lease.release()
        if not free(path):
            return f"{run.where}: its handle does not release it"
    if lost(path) and not run.where.startswith(("handles.py", "files.py", "fork.py")):
        return f"{run.where}: an open descriptor is forgotten"
    return ""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("warm", [True, False])
def test_an_interrupt_between_two_bytecodes_of_acquire_and_release_leaves_nothing(
    tmp_path, kind, warm
):
    path, wrong, last = str(tmp_path / "lock"), [], 0
    made = lease = None

    def pair():
        nonlocal made, lease
        made, lease = Lock(path, **KINDS[kind]), None
        lease = made.acquire(0)
        lease.release()

    if warm:
        pair()
    for run in every_bytecode(interrupt, pair):
        fault = judged(run, path, lambda: lease or (made and made.lease))
        wrong += [fault] if fault else []
        made = lease = None
        if not warm:
            TABLE.close_idle()
        with Lock(path, wait=0) as after:
            assert after.token > last
            last = after.token
    assert not wrong, "\n".join(wrong)


def test_an_interrupt_of_a_with_block_leaves_nothing_or_a_handle(tmp_path):
    path, wrong = str(tmp_path / "lock"), []
    lock = Lock(path)

    def block():
        with lock:
            pass

    block()
    for run in every_bytecode(interrupt, block):
        fault = judged(run, path, lambda: lock.lease)
        wrong += [fault] if fault else []
        assert lock._leases == [], run.where
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("ends", ["granted", "timed out"])
def test_an_interrupt_of_a_wait_leaves_nothing_held_and_no_thread(tmp_path, ends):
    path = str(tmp_path / "lock")
    other = os.open(path, os.O_RDONLY | os.O_CREAT)
    lock, lease = Lock(path), None
    before = threads()

    def wait():
        nonlocal lease
        lease = None
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        let_go = threading.Timer(0.001, fcntl.flock, (other, fcntl.LOCK_UN))
        if ends == "granted":
            let_go.start()
        try:
            lease = lock.acquire(5 if ends == "granted" else 0.001)
            lease.release()
        except NotAcquired:
            pass
        finally:
            if ends == "granted":
                let_go.join()

    wait()
    for run in every_bytecode(interrupt, wait, step=STEP, only_real=True):
        fcntl.flock(other, fcntl.LOCK_UN)
        fault = judged(run, path, lambda: lease or lock.lease)
        until(lambda: threads() <= before, 5, f"no thread is left after {run.where}")
        assert not fault
    os.close(other)


@pytest.mark.parametrize("held", [False, True])
def test_an_interrupt_of_an_async_acquire_and_release_leaves_nothing(tmp_path, held):
    path = str(tmp_path / "lock")
    other = os.open(path, os.O_RDONLY | os.O_CREAT)
    lease = lock = None
    before = threads()

    async def pair():
        nonlocal lease, lock
        lock, lease = AsyncLock(path), None
        lease = await lock.acquire(0.002 if held else 0)
        await lease.release()

    def go():
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB if held else fcntl.LOCK_UN)
        try:
            asyncio.run(pair())
        except NotAcquired:
            pass

    go()
    for run in every_bytecode(interrupt, go, step=STEP if held else 1, only_real=True):
        fcntl.flock(other, fcntl.LOCK_UN)
        if not free(path):
            run.forget()
            if not free(path):
                asyncio.run((lease or lock).release())
        fault = judged(run, path, lambda: None)
        until(lambda: threads() <= before, 5, f"no thread is left after {run.where}")
        assert not fault
    os.close(other)


def test_a_handler_that_acquires_between_two_bytecodes_excludes_and_is_excluded(tmp_path):
    path, tokens, inside = str(tmp_path / "lock"), [], []
    lock = Lock(path)

    def handler(_):
        try:
            with Lock(path, wait=0) as lease:
                assert not inside
                tokens.append(lease.token)
        except NotAcquired:
            inside.append("refused")

    def pair():
        lease = lock.acquire(60)
        inside.append("held")
        tokens.append(lease.token)
        lease.check()
        inside.clear()
        lease.release()

    pair()
    refused = 0
    for run in every_bytecode(handler, pair):
        assert run.error is None, run.where
        refused += "refused" in inside
        inside.clear()
        assert free(path)
    assert tokens == sorted(set(tokens))
    assert refused


FORKS = """
import os, sys
from crash.bytecodes import every_bytecode
from crash.scene import free
from lifehold import Lock

path = sys.argv[1]
lock = Lock(path)
parent, child = os.getpid(), 0

def handler(_):
    global child
    child = os.fork()

def pair():
    try:
        lease = lock.acquire(60)
        held = lease.held
        taken = not free(path)
        lease.release()
    except BaseException:
        if os.getpid() == parent:
            raise
        os._exit(0)  # a child may be told that this lease is its parent's
    if os.getpid() != parent:
        os._exit(3 if held and not taken else 0)
    assert held
    assert taken

pair()
runs = 0
for run in every_bytecode(handler, pair):
    runs += 1
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code or run.error or not free(path):
        print(f"{run.where}: child {code}, {run.error!r}, free {free(path)}")
print(runs > 200)
"""


def test_a_fork_between_two_bytecodes_never_makes_two_holders(tmp_path):
    """A signal handler forks, and the child comes back from it into the middle of acquire.

    In an interpreter of its own: a fork of all the tests takes ten times as long.
    """
    done = subprocess.run(
        [sys.executable, "-c", FORKS, tmp_path / "lock"], cwd=Path(__file__).parents[1],
        capture_output=True, text=True, timeout=200, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each)},
    )  # fmt: skip
    assert (done.stdout, done.returncode) == ("True\n", 0), done.stdout + done.stderr
