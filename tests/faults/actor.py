"""One process of a fault: it asks, holds, writes and lets go as the lines on stdin say.

    python -S -E actor.py SOURCE YARD NAME PATH MAKE

Run as a file, so that it starts in some 40 ms and does so in any namespace, mount or guest. Every
order has one line of JSON as its answer. It enters the canary's section with every grant, and
writes with every grant to the data (`vault.py`): these two judge, and know nothing of locks.
"""

import json
import os
import sys
import time

sys.path[:0] = [sys.argv[1], os.path.dirname(os.path.abspath(__file__))]
sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "soak"))

from canary import Canary  # noqa: E402
from making import made, told  # noqa: E402
from otherboot import pretend  # noqa: E402
from vault import write  # noqa: E402

# The wall clock as this process reads it. Put in place before anything else can have bound it.
CLOCK, REAL, REAL_NS = [0.0], time.time, time.time_ns
time.time = lambda: REAL() + CLOCK[-1]
time.time_ns = lambda: REAL_NS() + int(CLOCK[-1] * 1e9)


class Actor:
    """The answers to the orders; each is a method."""

    def __init__(self, yard, name, path, make):
        self.yard, self.name, self.path, self.make = yard, name, path, make
        self.canary, self.lock, self.lease, self.inside = Canary(yard, name), None, None, False
        self.seen = []

    def warm_up(self):
        """Import what a try, a wait and a refusal import: none of that is the lock's time."""
        path = f"{self.yard}/warm-{self.name}"
        lock = made(self.make, path, self.name)
        lease = lock.acquire(60)
        if not self.make.startswith(("broken.", "shapes.reader")):
            told(refusal(made(self.make, path, self.name)))
        lease.release()
        self.listen()

    def acquire_only(self, wait=0.5):
        self.lease = None
        if self.lock is None:
            self.lock = made(self.make, self.path, self.name)
        self.lease = self.lock.acquire(wait)

    def acquire(self, wait):
        try:
            self.acquire_only(None if wait == "None" else float(wait))
        except BaseException as error:
            return told(error)
        lease = self.lease
        self.inside = self.canary.enter(lease.token)
        return {"got": lease.token, "inside": self.inside, "written": self._write()}

    def evidence(self):
        """On what its takeovers were decided."""
        return {"evidence": self.seen}

    def listen(self):
        """Note on what each takeover is decided: `soft` tells it, the others are overheard."""
        from lifehold.core import events
        from lifehold.core.owner import DEAD
        from lifehold.local.record import LIVE
        from lifehold.local.record_lock import RecordLock
        from lifehold.local.soft import SoftLock

        def told(event):
            if isinstance(event, events.TakenOver):
                self.seen.append(event.evidence)

        def weigh(*args, real=RecordLock._weigh):
            found = real(*args)
            if found.state == DEAD and found.marker.stage in LIVE:
                self.seen.append(found.evidence)
            return found

        def judged(lock, *found, real=SoftLock.judged_of):
            case = real(lock, *found)
            if case.state == DEAD and lock.enter:  # of a reader or writer; the others are told
                self.seen.append(case.evidence)
            return case

        events.subscribe(told)
        SoftLock.judged_of = judged
        RecordLock._weigh = weigh

    def compete(self, count, seconds):
        """Take it again and again, until all have it so often, or for so long."""
        until, mine, troubles, total = time.monotonic() + float(seconds), 0, [], 0
        while total < int(count) and time.monotonic() < until:
            answer = self.acquire("60")
            if "got" not in answer:
                troubles.append(f"{answer['text']} {answer['where']}")
                continue
            mine += 1
            if not (answer["inside"] and answer["written"]):
                troubles.append(f"{answer}")
            answer = self.leave()
            if "released" not in answer:
                troubles.append(f"{answer['text']} {answer['where']}")
            total = os.stat(f"{self.yard}/entries").st_size // len(f"{self.lease.token} p1\n")
            time.sleep(0.002 if mine * 2 <= total else 0.02)  # who is ahead waits longer
        return {"mine": mine, "troubles": troubles}

    def check(self):
        try:
            self.lease.check()
        except BaseException as error:
            self.inside = False
            return told(error)
        if os.path.exists(mark := f"{self.yard}/killed.{self.name}"):
            os.unlink(mark)  # it was stopped, and counts as inside again
        return {"held": self.lease.token}

    def write(self):
        return {"written": self._write()}

    def _write(self):
        return write(self.yard, self.lease.token, self.name)

    def leave(self):
        if self.inside:
            self.canary.leave()
            self.inside = False
        try:
            self.lease.release()
        except BaseException as error:
            return told(error)
        return {"released": True}

    def clock(self, seconds):
        """From now on the wall clock of this process is off by so much; no other clock is."""
        CLOCK.append(float(seconds))
        return {"time": time.time()}

    def become(self, uid, gid):
        """Another user, who may still look at itself in /proc, as after a login."""
        import ctypes
        import encodings.ascii  # noqa: F401 - that user may not read the interpreter's folder

        from lifehold.runtime import process

        os.setgroups([])
        os.setgid(int(gid))
        os.setuid(int(uid))
        os.umask(0o022)
        ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE
        process._forget()
        return {"uid": os.getuid()}

    def holder(self):
        found = self.lock.holder()
        return {"alive": found and found.alive, "evidence": found and found.evidence}

    def here(self):
        """Who it is, in its own eyes."""
        from lifehold.runtime.process import here

        owner = here()
        return {"pid": owner.pid, "pid_ns": owner.pid_ns, "host": owner.host,
                "boot_id": owner.boot_id, "start": owner.start_ticks}  # fmt: skip

    def fork_in_c(self):
        """A child that the interpreter knows nothing of: no at-fork hook is run."""
        import ctypes

        pid = ctypes.CDLL(None).fork()
        if pid == 0:
            time.sleep(60)
            os._exit(0)
        return {"pid": pid}

    def eat(self):
        """Memory, until somebody puts an end to it."""
        block = []
        while True:
            block.append(bytearray(4 << 20))


def refusal(lock):
    try:
        lock.acquire(0.001).release()
    except Exception as error:
        return error
    raise AssertionError("it was held")


def main():
    pretend()
    actor = Actor(*sys.argv[2:6])
    actor.warm_up()
    print('"ready"', flush=True)
    for line in sys.stdin:
        order, *rest = line.split()
        print(json.dumps(getattr(actor, order)(*rest)), flush=True)


if __name__ == "__main__":
    main()
