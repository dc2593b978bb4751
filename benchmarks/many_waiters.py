"""Many waiters of one process: a foreign holder, then all of them pass the lock on.

    python -m benchmarks.many_waiters [--waiters 300 1000] [--foreign 15] [--hold 0.002]

Each row is a program of its own: so many threads or tasks wait for one lock that another process
holds for a while; then each holds it for some milliseconds. `over` is the time from the end of the
foreign holder to the last of them, `times` the same over that of threads in plain flock(2) in this
run, `cpu` the seconds of processor time of the program. A row that needs more than `--patience`
seconds is ended: it shows how many came in.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile

HOLDER = """
import sys, time
path, kind, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
if kind == "filelock":
    import filelock
    lock = filelock.FileLock(path)
elif kind == "sqlite":
    import lifehold
    lock = lifehold.connect(f"sqlite:///{path}").lock("x", ttl=30)
else:
    import lifehold
    lock = lifehold.Lock(path, kind="kernel" if kind == "flock" else kind)
lock.acquire()
print("held", flush=True)
sys.stdin.readline()
time.sleep(seconds)
print(time.monotonic(), flush=True)
lock.release()
"""
WAITERS = """
import asyncio, os, sys, threading, time
path, kind, face, number, hold, patience = sys.argv[1:7]
number, hold, patience = int(number), float(hold), float(patience)
done, most, inside = 0, 0, 0
ended = threading.Event()

def note(change):
    global done, most, inside
    inside += change
    most = max(most, inside)
    if change < 0:
        done += 1
        if done == number:
            ended.set()

if kind == "flock":
    import fcntl
    class Plain:
        def __enter__(self):
            self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
            fcntl.flock(self.fd, fcntl.LOCK_EX)
        def __exit__(self, *_):
            os.close(self.fd)
        async def __aenter__(self):
            await asyncio.get_running_loop().run_in_executor(pool, self.__enter__)
        async def __aexit__(self, *_):
            os.close(self.fd)
    from concurrent.futures import ThreadPoolExecutor
    pool = ThreadPoolExecutor(number)
    make = Plain
elif kind == "filelock":
    import filelock
    one = (filelock.FileLock if face == "threads" else filelock.AsyncFileLock)
    make = lambda: one(path)
else:
    import lifehold, lifehold.aio
    one = lifehold.Lock if face == "threads" else lifehold.AsyncLock
    store = f"sqlite:///{path}#x"
    where, given = (store, {"ttl": 30}) if kind == "sqlite" else (path, {"kind": kind})
    made = one(where, **given)
    make = lambda: made

def work():
    with make():
        note(1)
        time.sleep(hold)
        note(-1)

async def task():
    async with make():
        note(1)
        await asyncio.sleep(hold)
        note(-1)

async def all_tasks():
    tasks = [asyncio.create_task(task()) for _ in range(number)]
    await asyncio.sleep(0.2)
    print("wait", flush=True)
    await asyncio.wait(tasks, timeout=patience)
    report()

def report():
    times = os.times()
    print(done, most, time.monotonic(), times.user + times.system, flush=True)
    os._exit(0)

if face == "tasks":
    asyncio.run(all_tasks())
threading.stack_size(256 * 1024)
for _ in range(number):
    threading.Thread(target=work, daemon=True).start()
print("wait", flush=True)
ended.wait(patience)
report()
"""
ROWS = [
    ("flock", "threads"), ("flock", "tasks"), ("kernel", "threads"), ("kernel", "tasks"),
    ("soft", "threads"),
    ("soft", "tasks"), ("generation", "threads"), ("sqlite", "threads"), ("filelock", "threads"),
    ("filelock", "tasks"),
]  # fmt: skip


def row(kind: str, face: str, number: int, given: argparse.Namespace) -> tuple[int, ...]:
    """How many came in, how many were inside at once, seconds, and seconds of processor time."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "lock")
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        holder = subprocess.Popen(
            [sys.executable, "-c", HOLDER, path, kind, str(given.foreign)], **pipes
        )
        holder.stdout.readline()
        patience = given.foreign + given.patience
        numbers = [str(number), str(given.hold), str(patience)]
        waiters = subprocess.Popen(
            [sys.executable, "-c", WAITERS, path, kind, face, *numbers],
            stderr=subprocess.DEVNULL, **pipes,
        )  # fmt: skip
        waiters.stdout.readline()
        holder.stdin.write("\n")
        holder.stdin.flush()
        began = float(holder.stdout.readline())
        done, most, ended, cpu = waiters.stdout.readline().split()
        holder.wait()
        waiters.wait()
        return int(done), int(most), float(ended) - began, float(cpu)


def main() -> None:
    """Print the table."""
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--waiters", type=int, nargs="+", default=[300, 1000])
    asked.add_argument("--foreign", type=float, default=15.0)
    asked.add_argument("--hold", type=float, default=0.002)
    asked.add_argument("--patience", type=float, default=60.0)
    asked.add_argument("--rows", nargs="+", default=[f"{kind}-{face}" for kind, face in ROWS])
    given = asked.parse_args()
    print(f"a foreign holder of {given.foreign:g} s, then {given.hold * 1000:g} ms each")
    print("| waiters | lock | in | at once | over (s) | times | cpu (s) |")
    print("|---|---|---|---|---|---|---|")
    for number in given.waiters:
        plain = None
        for kind, face in ROWS:
            if f"{kind}-{face}" not in given.rows:
                continue
            done, most, over, cpu = row(kind, face, number, given)
            plain = over if plain is None else plain
            print(f"| {number} | {kind}, {face} | {done} | {most} | {over:.2f} | "
                  f"{over / plain:.2f} | {cpu:.2f} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
