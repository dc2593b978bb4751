"""A process that sees its own Python no more, after a chroot, and can load nothing from there."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ground import needs
from lifehold import Lock, Semaphore

pytestmark = needs("linux", "root")
SHAPES = {
    "kernel": "Lock(path)",
    "fair": "Lock(path, fair=True)",
    "shared": "Lock(path, exclusive=False)",
    "semaphore": "Semaphore(path, 1)",
}
SCRIPT = """
import os, sys
from lifehold import Lock, NotAcquired, Semaphore, SystemRefused
folder, path = sys.argv[1], "/a.lock"
def made(path): return {shape}
made(folder + '/first.lock').acquire().release()  # as a daemon at its start
os.chroot(folder)
os.chdir("/")
lock = made(path)
print("ready")
for wait in (0, 0.3):
    try:
        lock.acquire(wait)
        print("granted")
    except NotAcquired as error:
        print(type(error).__name__)
try:
    print(lock.locked())
except SystemRefused as error:
    print("refused in words" if "import it before" in str(error) else error)
sys.stdout.flush()
sys.stdin.readline()
lease = lock.acquire(60)
lease.check()
lease.release()
print("in")
"""


@pytest.mark.parametrize("shape", SHAPES)
def test_a_wait_after_a_chroot_ends_as_any_wait_does(shape, tmp_path):
    path = str(tmp_path / "a.lock")
    holder = (Semaphore(path, 1) if shape == "semaphore" else Lock(path)).acquire()
    script = SCRIPT.replace("{shape}", SHAPES[shape])
    child = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    lines = [child.stdout.readline().strip() for _ in range(4)]
    assert lines[:3] == ["ready", "WouldBlock", "Timeout"], lines
    assert lines[3] in ("True", "refused in words"), lines
    holder.release()
    said, _ = child.communicate("go\n", timeout=90)
    assert said.split() == ["in"]
