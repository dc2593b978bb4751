"""A child that C code has forked, of which Python's hooks know nothing (L9).

Its first call of lifehold finds out: it holds nothing, excludes nobody from within, and its leases
are kept by a heartbeat of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from ground import needs

pytestmark = needs("linux", "fork")

KINDS = {
    "kernel": "Lock(path)",
    "soft": "Lock(path, kind='soft')",
    "soft ttl": "Lock(path, kind='soft', ttl=60)",
    "link": "Lock(path, kind='link')",
    "generation": "Lock(path, kind='generation')",
    "directory": "Lock(path, kind='directory')",
    "folder": "Lock(path, kind='folder')",
    "writer": "Writer(ReadWriteLock(path))",
    "soft writer": "Writer(ReadWriteLock(path, kind='soft'))",
    "slot": "Semaphore(path, 1)",
}

LEASES = {"soft ttl", "link"}  # a `link` is one for its peers

SCRIPT = """
import ctypes, json, linecache, os, sys, time
from _thread import get_ident
from lifehold import Lock, ReadWriteLock, Semaphore, current_token

path, libc = sys.argv[1], ctypes.PyDLL(None)  # it keeps the GIL, so that a child goes on
make = lambda: {make}

class Writer:
    def __init__(self, lock):
        self.acquire = lock.acquire_write

def rest():
    # Whether each other thread sleeps, and at the lock of the heartbeat: none waits for the GIL.
    lines = [linecache.getline(frame.f_code.co_filename, frame.f_lineno)
             for thread, frame in sys._current_frames().items() if thread != get_ident()]
    tasks = [open(f"/proc/self/task/{task}/stat").read() for task in os.listdir("/proc/self/task")
             if int(task) != os.getpid()]
    return (all("wakeup.acquire" in line for line in lines) and len(lines) == len(tasks)
            and all(") S " in task for task in tasks))

def fork():  # no os.fork: none of Python's hooks is called
    while not rest():  # while one waits for the GIL, a child hangs without lifehold too
        time.sleep(0.01)
    return libc.fork()

def told(call):
    try:
        return repr(call())
    except Exception as error:
        return type(error).__name__

def child(answers):
    here, there = os.pipe()
    pid = fork()
    if not pid:
        os.write(there, json.dumps(answers()).encode())
        os._exit(0)
    os.close(there)
    found = b"".join(iter(lambda: os.read(here, 4096), b""))
    os.waitpid(pid, 0)
    return json.loads(found)
"""

HELD = """
lock = make()
lease = lock.acquire()
print(json.dumps(child(lambda: {
    "held": lease.held, "check": told(lease.check), "release": told(lease.release),
    "token": current_token(), "left": told(lease.remaining),
    "again": told(lambda: lock.acquire(wait=0)), "anew": told(lambda: make().acquire(wait=0)),
})))
lease.check()
print(told(lambda: make().acquire(wait=0)))
lease.release()
make().acquire(wait=0).release()
"""

IDLE = """
lock = make()
lock.acquire().release()  # what is kept for the next time is the child's too
go, gone = os.pipe()

def answers():
    os.read(go, 1)
    return [told(lambda: lock.acquire(wait=0)), told(lambda: make().acquire(wait=0))]

here, there = os.pipe()
pid = fork()
if not pid:
    os.write(there, json.dumps(answers()).encode())
    os._exit(0)
lease = lock.acquire(wait=0)
os.write(gone, b"x")
os.waitpid(pid, 0)
print(os.read(here, 4096).decode())
lease.check()
lease.release()
"""

KEPT = """
lock = make()
lease = lock.acquire()  # so that a heartbeat thread runs, here alone

def answers():
    mine = Lock(path + "-child", kind="soft", ttl=30, heartbeat=0.1).acquire()
    until = time.monotonic() + 60
    while not mine.renewals and time.monotonic() < until:
        time.sleep(0.02)
    found = [mine.renewals > 0, mine.held]
    mine.release()
    return found

print(json.dumps(child(answers)))
lease.release()
"""


def said(tmp_path, make, script):
    command = [sys.executable, "-c", SCRIPT.replace("{make}", make) + script, tmp_path / "a.lock"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=150)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("kind", KINDS)
def test_it_neither_holds_nor_releases_what_its_parent_holds(kind, tmp_path):
    found, other = said(tmp_path, KINDS[kind], HELD)
    told = json.loads(found)
    assert (told["held"], told["check"], told["release"]) == (False, "NotHeld", "NotHeld")
    assert (told["token"], told["left"]) == (None, "0.0" if kind in LEASES else "None")
    assert (told["again"], told["anew"], other) == ("WouldBlock",) * 3


@pytest.mark.parametrize("kind", KINDS)
def test_it_shares_no_open_file_that_is_kept_for_the_next_time(kind, tmp_path):
    assert json.loads(said(tmp_path, KINDS[kind], IDLE)[0]) == ["WouldBlock", "WouldBlock"]


def test_its_own_leases_are_renewed(tmp_path):
    assert json.loads(said(tmp_path, KINDS["soft ttl"], KEPT)[0]) == [True, True]
