"""Signals that raise in the middle of acquires and waits lose no descriptor."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ground import needs

pytestmark = needs("linux")
ROUNDS = 500
# The idle one, a lease that came into the hand, what watches: once for the process.
MOST = 6
KINDS = {
    "kernel": "Lock(path)",
    "soft": "Lock(path, kind='soft')",
    "link": "Lock(path, kind='link')",
    "generation": "Lock(path, kind='generation')",
    "directory": "Lock(path, kind='directory')",
    "folder": "Lock(path, kind='folder')",
    "semaphore": "Semaphore(path, 1)",
    "reader, soft": "ReadWriteLock(path, kind='soft')._reads",
    "writer": "ReadWriteLock(path)._writes",
}
SCRIPT = """
import gc, logging, os, random, signal, sys, warnings
from lifehold import Lock, NotAcquired, ReadWriteLock, Semaphore
warnings.simplefilter("ignore")
logging.disable(50)
sys.unraisablehook = lambda _: None
class Boom(Exception): pass
def boom(*_): raise Boom
signal.signal(signal.SIGALRM, boom)
path, rounds = sys.argv[1], int(sys.argv[2])
chance = random.Random(2)
lock = {kind}
for _ in range(4):
    lock.acquire(60).release()
before = len(os.listdir("/proc/self/fd"))
for _ in range(rounds):
    try:
        signal.setitimer(signal.ITIMER_REAL, chance.random() * 0.0015)
        lease = lock.acquire(0.01)
        lease.release()
    except (Boom, NotAcquired):
        pass
    try:
        signal.setitimer(signal.ITIMER_REAL, 0)
    except Boom:
        pass
    for lease in list(lock._leases):  # it came, and was not yet in the hand
        lease.release()
lease = None
gc.collect()
print(len(os.listdir("/proc/self/fd")) - before, flush=True)
os._exit(0)
"""


HALF_ARMED = """
import os, sys, time, warnings
from lifehold import Lock, NotAcquired
from lifehold.runtime import flock_wait
warnings.simplefilter("ignore")
class Boom(Exception): pass
class Signal:
    def __getattr__(self, name):
        return getattr(real, name)
    def siginterrupt(self, *given):
        flock_wait._signal = real
        raise Boom
held, real = Lock(sys.argv[1]).acquire(), flock_wait._signal
flock_wait._signal = Signal()
def waits_in_vain():
    try:
        Lock(sys.argv[1], reentrant=False).acquire(0.02)
    except (Boom, NotAcquired) as error:
        return type(error).__name__
import threading
def elsewhere():
    told.append(waits_in_vain())
told = []
for _ in range(3):
    waits = threading.Thread(target=elsewhere)
    waits.start()
    waits.join()
for _ in range(500):  # a thread may end a moment after it was joined
    if len(os.listdir("/proc/self/task")) == 1:
        break
    time.sleep(0.01)
print(*told, len(os.listdir("/proc/self/task")))
os._exit(0)
"""


def test_an_interrupt_while_the_wait_is_made_endable_leaves_later_waits_endable(tmp_path):
    command = [sys.executable, "-c", HALF_ARMED, str(tmp_path / "a.lock")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split() == ["Boom", "Timeout", "Timeout", "1"], done.stdout + done.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_interrupted_acquires_leave_no_descriptor_open(kind, tmp_path):
    script = SCRIPT.replace("{kind}", KINDS[kind])
    command = [sys.executable, "-c", script, str(tmp_path / "a.lock"), str(ROUNDS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) <= MOST, done.stdout + done.stderr
