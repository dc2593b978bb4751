"""What runs while the power fails, and what is asked of the locks when it has come back.

    python powercut_work.py work FOLDER SECONDS SEED     a line `time row token` for each grant
    python powercut_work.py ask FOLDER                   a line of JSON for each kind of lock

`work`: of each kind one process after another takes the lock, lets go, holds it, dies with it; at
times it is taken away by order; and somebody has everything written to the disk at any instant.
"""

import ctypes
import gc
import json
import os
import random
import shutil
import signal
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", each) for each in ("../src", "")]

from faults.making import made, told  # noqa: E402
from faults.otherboot import pretend  # noqa: E402
from faults.rows import ROWS  # noqa: E402
from lifehold import InvalidArgument, LeaseLost, NotAcquired  # noqa: E402
from lifehold.local.judge import LivenessJudge  # noqa: E402
from lifehold.local.kinds import KINDS  # noqa: E402
from lifehold.registry import maker  # noqa: E402

GRACE = 2.0  # seconds for which what names nobody is left alone; else 120, of link 300
READER_OR_WRITER = ("p1", "p2")  # faults/shapes.py
LONGEST = 10.0 + GRACE


def path_of(folder, row):
    return f"{folder}/{row.name.replace(' ', '-')}/lock"


def rows():
    return [row for row in ROWS if "broken" not in row.make]


# ---- before the cut


def grants(row, path, dice):
    """One process: some grants, and in most cases its death while it holds the last."""
    lock = made(row.make, path, dice.choice(READER_OR_WRITER))
    for turn in range(dice.randrange(1, 6)):
        try:
            lease = lock.acquire(20)
        except NotAcquired:
            continue
        at = time.monotonic_ns()
        os.write(1, f"{at} {row.name.replace(' ', '-')} {lease.token or 0}\n".encode())
        time.sleep(dice.choice([0, 0, 0.01, 0.05, 0.4]))
        try:
            lease.check()
            if turn == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            lease.release()
        except LeaseLost:
            continue
        time.sleep(dice.choice([0, 0.02]))


def turns(row, path, until, seed):
    """One process after another, and somebody who breaks the lock of a few."""
    dice = random.Random(f"{seed} {row.name}")
    while time.monotonic() < until:
        pid = os.fork()
        if pid == 0:
            try:
                grants(row, path, random.Random(dice.random()))
            finally:
                os._exit(0)
        if dice.random() < 0.3:
            time.sleep(dice.random() / 10)
            try:
                made(row.make, path).break_("the power fails")
            except (InvalidArgument, AttributeError):
                pass  # a kernel lock is nobody's to break
        os.waitpid(pid, 0)


def flushes(folder, until, seed):
    """All to the disk, at any instant; the file system itself would do it now and then."""
    dice, libc = random.Random(seed), ctypes.CDLL(None)
    fd = os.open(folder, os.O_RDONLY)
    while time.monotonic() < until:
        time.sleep(dice.choice([0.002, 0.02, 0.1, 0.5]))
        libc.syncfs(fd)


def work(folder, seconds, seed):
    until = time.monotonic() + float(seconds)
    jobs = [(turns, row, path_of(folder, row), until, seed) for row in rows()]
    children = []
    for row in rows():
        os.makedirs(os.path.dirname(path_of(folder, row)))
    for job, *args in [*jobs, (flushes, folder, until, seed)]:
        pid = os.fork()
        if pid == 0:
            try:
                job(*args)
            finally:
                os._exit(0)
        children.append(pid)
    for pid in children:
        os.waitpid(pid, 0)


# ---- after it


def refused(row, path):
    """Whether another process is refused while we hold it."""
    pid = os.fork()
    if pid == 0:
        answer = 1
        try:
            made(row.make, path, "p2").acquire(0)
        except NotAcquired:
            answer = 0
        finally:
            os._exit(answer)
    return os.waitpid(pid, 0)[1] == 0


def asked(row, path):
    began, lock = time.monotonic(), made(row.make, path, "p2")
    try:
        lease = lock.acquire(LONGEST)
    except BaseException as error:
        return {"error": told(error)}
    said = {"took": time.monotonic() - began, "token": lease.token, "alone": refused(row, path)}
    try:
        lease.check()
        lease.release()
        again = lock.acquire(5)
        said["next"] = again.token
        again.release()
    except BaseException as error:
        return {"error": told(error)}
    return said


def ask(folder):
    for kind in KINDS:
        maker(kind)
    seen, _, foreign = LivenessJudge.__init__.__defaults__
    LivenessJudge.__init__.__defaults__ = (seen, GRACE, foreign)
    for weighs in gc.get_objects():
        if isinstance(weighs, LivenessJudge):
            weighs.grace = GRACE
            weighs.foreign = None if weighs.foreign is None else GRACE
    warm = f"/dev/shm/warm-{os.getpid()}"  # what has to be imported is not the locks' time
    for row in rows():
        made(row.make, f"{warm}/{row.name}/lock", "p2").acquire(5).release()
    shutil.rmtree(warm)
    for row in rows():
        if os.path.isdir(os.path.dirname(path_of(folder, row))):
            said = asked(row, path_of(folder, row))
            print(json.dumps({"row": row.name, **said}), flush=True)


if __name__ == "__main__":
    pretend()
    {"work": work, "ask": ask}[sys.argv[1]](*sys.argv[2:])
