"""A signal handler that raises between two bytecodes of what opens a file and locks it.

A lock of `locked_file` is its block's alone: nobody can reach it afterwards, so it does not stay
held, even while the exception and its frames are kept. CPython's own end of a `with` block, before
the first line of `__exit__`, is out of reach: there dropping the exception drops the lock. An
object of portalocker's or zc.lockfile's lets go by its `release()` or `close()`.
"""

from __future__ import annotations

import gc
import os

import pytest

from crash.bytecodes import Before, every_bytecode, interrupt
from crash.scene import free
from ground import needs
from lifehold import Lock, locked_file
from lifehold.compat import portalocker, zc_lockfile
from lifehold.fence import FencedFile
from lifehold.local.handles import TABLE
from lifehold.runtime import fork

pytestmark = [
    needs("linux"),
    pytest.mark.filterwarnings(
        "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
    ),
]


def of_mode(mode):
    def block(path):
        with locked_file(path, mode) as file:
            if mode != "r":
                file.write("after!")

    return block


def of_portalocker(make):
    def block(path):
        HANDLES[:] = [make(path)]
        with HANDLES[0]:
            pass

    return block


def of_zc(path):
    lock = zc_lockfile.LockFile(path)
    HANDLES[:] = [lock]
    lock.close()


def semaphore(path):
    return portalocker.BoundedSemaphore(1, "one", "slot.lock", os.path.dirname(path))


HANDLES = []  # what a program has, which may let go by it

# What is called, and the file that it locks.
CALLS = {
    **{mode: (of_mode(mode), "data.lock") for mode in ("r", "r+", "w", "a")},
    "portalocker.Lock": (of_portalocker(portalocker.Lock), "data"),
    "portalocker.RLock": (of_portalocker(portalocker.RLock), "data"),
    "portalocker.BoundedSemaphore": (of_portalocker(semaphore), "slot.lock"),
    "zc.lockfile": (of_zc, "data"),
}


def own(folder):
    """Our descriptors of files there."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{fd}").startswith(str(folder)):
                found.append(int(fd))
        except OSError:
            continue
    return found


def opened_gate():
    try:
        while True:
            fork.gate.release()
    except RuntimeError:
        return


def let_go(handle):
    """As a program does that goes on after Ctrl-C."""
    try:
        (getattr(handle, "close", None) or handle.release)()
    except portalocker.LockException:
        return  # an RLock that was let go of


@pytest.fixture(autouse=True)
def _quiet():
    TABLE.close_idle()
    gc.collect()
    gc.freeze()
    yield
    TABLE.close_idle()


@pytest.mark.parametrize("what", CALLS)
def test_an_interrupt_between_two_bytecodes_leaves_no_lock_and_no_half_file(what, tmp_path):
    path, wrong = str(tmp_path / "data"), []
    call, lock = CALLS[what]
    (tmp_path / "data").write_text("before")
    call(path)
    states = {"before", (tmp_path / "data").read_text()}
    for run in every_bytecode(interrupt, lambda: call(path), only_real=True):
        for handle in HANDLES:
            let_go(handle)
        HANDLES.clear()
        if not free(str(tmp_path / lock)) and "RESUME" not in run.where:
            wrong.append(f"{run.where}: held")
        run.forget()
        opened_gate()
        TABLE.close_idle()
        if not free(str(tmp_path / lock)):
            wrong.append(f"{run.where}: held for good")
        if what in ("r", "r+", "w") and (tmp_path / "data").read_text() not in states:
            wrong.append(f"{run.where}: half a file")
        left = [each for each in os.listdir(tmp_path) if each.endswith(".new")]
        wrong += [f"{run.where}: {each} is left" for each in left]
        for fd in own(tmp_path):  # hazard 6: at the return of open(2), and of a list's pop()
            os.close(fd)
    assert not wrong, "\n".join(wrong)


def test_an_interrupt_of_a_guarded_write_leaves_its_lock_free(tmp_path):
    lock = str(tmp_path / "data.fence.lock")
    lease = Lock(tmp_path / "lease.lock").acquire()
    guard, wrong, number = FencedFile(tmp_path / "data", lease, durable=False), [], 0
    ways = {
        "write": lambda: guard.write(b"x"),
        "update": lambda: guard.update(lambda _: b"x"),
        "advance": guard.advance,
    }
    for way, call in ways.items():
        call()
        number = 0
        while True:
            run = Before(number, interrupt, call, skip=(), only_real=True)
            if not run.came:
                break
            number += 1
            run.forget()
            opened_gate()
            TABLE.close_idle()
            if not free(lock):
                wrong.append(f"{way}, {run.where}: held for good")
                guard._lock.release()
    lease.release()
    assert not wrong, "\n".join(wrong)
