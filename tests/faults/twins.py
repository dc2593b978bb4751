"""Two processes with one number and one start tick: the first dies holding the lock.

    python -S -E twins.py SOURCE YARD NAME PATH MAKE      in a PID namespace of which it is root

Forks holders under one number until a second process under that number has the same start tick
as one that was killed holding. Then it tells so, and the second lives on.
"""

import json
import os
import shutil
import sys
import time

sys.path[:0] = [sys.argv[1], os.path.dirname(os.path.abspath(__file__))]

from making import made  # noqa: E402

NUMBER = 400
PATIENCE = 10.0


def forked(number, work):
    """A child with this very number, or None."""
    with open("/proc/sys/kernel/ns_last_pid", "w") as file:
        file.write(str(number - 1))
    pid = os.fork()
    if pid == 0:
        work()
        os._exit(0)
    if pid == number:
        return pid
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    return None


def start(pid):
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[19])


def main():
    path, make = sys.argv[4:6]
    lock = made(make, path)
    lock.acquire(60).release()
    read, write = os.pipe()

    def hold():
        lease = lock.acquire(60)
        os.write(write, f"{lease.token:20d}".encode())
        time.sleep(60)

    print('"ready"', flush=True)
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        # What the twins of before have left, who are gone: to take it over would take its time.
        if os.path.isdir(path):
            shutil.rmtree(path)
        elif os.path.isfile(path):
            os.unlink(path)
        tick = time.clock_gettime(time.CLOCK_BOOTTIME) * 100
        time.sleep((1 - tick % 1) / 100)  # from the beginning of a tick there is most time
        if forked(NUMBER, hold) is None:
            continue
        os.read(read, 20)
        first = start(NUMBER)
        os.kill(NUMBER, 9)
        os.waitpid(NUMBER, 0)
        if forked(NUMBER, lambda: time.sleep(60)) is None:
            continue
        if start(NUMBER) == first:
            print(json.dumps({"same": True, "pid": NUMBER, "start": first}), flush=True)
            sys.stdin.read()
            os.kill(NUMBER, 9)
            os.waitpid(NUMBER, 0)
            return
        os.kill(NUMBER, 9)
        os.waitpid(NUMBER, 0)
    print(json.dumps({"same": False}), flush=True)


if __name__ == "__main__":
    main()
