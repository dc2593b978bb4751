"""What macOS lacks is nowhere needed:

no /proc, no O_NOATIME, no pidfd, no CLOCK_BOOTTIME, no psutil.
Leases count in CLOCK_MONOTONIC_RAW, which goes on in sleep there.

Shown by a Python on Linux from which all that has been taken away. **Not run on macOS.**
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import lifehold
from ground import needs

PREAMBLE = """
import builtins, os, sys, threading, time, signal, subprocess, asyncio, asyncio.events
sys.path.insert(0, sys.argv[1])
sys.modules["psutil"] = None
for name in ("O_NOATIME", "pidfd_open", "eventfd"):
    if hasattr(os, name):
        delattr(os, name)
delattr(time, "CLOCK_BOOTTIME")

def hidden(call):
    def guard(path, *args, **more):
        if str(path).startswith(("/proc", "/etc/machine-id", "/var/lib/dbus")):
            raise FileNotFoundError(2, "no such file", path)
        return call(path, *args, **more)
    return guard

builtins.open, os.stat, os.listdir, os.open = map(hidden, (open, os.stat, os.listdir, os.open))
isdir = os.path.isdir
os.path.isdir = lambda path: not str(path).startswith("/proc") and isdir(path)
sys.platform = "darwin"
"""

STORY = """
import lifehold
from lifehold.runtime import clock
before = time.clock_gettime(time.CLOCK_MONOTONIC_RAW)
assert before <= clock.now() <= time.clock_gettime(time.CLOCK_MONOTONIC_RAW)
path = sys.argv[2]
lock = lifehold.Lock(path, label="nightly")
with lock as lease:
    assert lease.token
    lease.check()
    try:
        lifehold.Lock(path).acquire(0.05)
    except lifehold.Timeout as error:
        holder = error.holder
    assert holder.owner.pid == os.getpid() and holder.owner.label == "nightly"
    assert (holder.alive, holder.evidence) == ("alive", "kernel witness"), holder
    assert lifehold.Lock(path).holder() == holder
    assert holder.owner.boot_id is None and holder.owner.start_ticks is None
    assert lifehold.Lock(path).locked()
    got = []
    thread = threading.Thread(target=lambda: got.append(lifehold.Lock(path).acquire()))
    thread.start()
    time.sleep(0.02)
thread.join(60)
assert got[0].token > lease.token
got[0].release()
assert not lifehold.Lock(path).locked()
assert lifehold.Lock(path).holder() is None

async def tasks():
    async with lifehold.AsyncLock(path):
        waiter = asyncio.ensure_future(lifehold.AsyncLock(path).acquire())
        await asyncio.sleep(0.02)
        waiter.cancel()
        try:
            await waiter
        except asyncio.CancelledError:
            pass
    await (await lifehold.AsyncLock(path).acquire(0)).release()

asyncio.run(tasks())
pid = os.fork()
if not pid:
    os._exit(0 if lifehold.Lock(path).acquire(0).token else 1)
assert os.waitpid(pid, 0)[1] == 0
print("told")
"""


@needs("linux")
def test_the_kernel_lock_needs_nothing_that_only_linux_has(tmp_path):
    source = str(Path(lifehold.__file__).parents[1])
    command = [sys.executable, "-c", PREAMBLE + STORY, source, str(tmp_path / "build.lock")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    assert done.stdout == "told\n", done.stderr
