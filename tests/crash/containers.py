"""Holders and acquirers that are PID 1 of a PID namespace of their own, as containers are."""

from __future__ import annotations

import os
import time

from crash.scene import Section, next_token
from lifehold.testing.crash import Child

FRESH = ("unshare", "-p", "-f", "--mount-proc", "--kill-child")
HOLDER = """
import os, sys
from lifehold import Lock
from lifehold.testing.crash import point
lease = Lock(sys.argv[1], wait=0).acquire()
point("held", [lease.token, os.getpid(), os.uname().nodename])
lease.check()
point("checked")
lease.release()
"""
TRIER = """
import os, sys
from lifehold import Lock, NotAcquired
from lifehold.core.owner import judge
from lifehold.local.ground import MountInfo
from lifehold.local import kernel_holders
from lifehold.runtime import process
from lifehold.testing.crash import point
point("up")
lock = Lock(sys.argv[1])
try:
    lease = lock.acquire(float(sys.argv[2]))
    point("held", [lease.token, os.getpid()])
    lease.release()
except NotAcquired as refused:
    from lifehold.local.files import HOST, READ_ONLY
    from lifehold.local.record import parse
    fd = os.open(sys.argv[1], os.O_RDONLY)
    owner = parse(os.pread(fd, 1024, 0)).owner
    verdicts = [judge(owner, process.ground(True, witness)).state for witness in (None, True)]
    seen = refused.holder
    point("refused", [verdicts, seen.alive, seen.owner and seen.owner.pid, lock.locked(), owner.pid,
                      (lock.holder() or seen).alive])
"""


def rounds(folder, number):
    """`number` times: a holder in a fresh namespace, refused tries, kill -9, the next one in.

    Figures: milliseconds from the kill to the next acquire, overlaps, false reclaims, tokens.
    """
    path = os.path.join(folder, "lock")
    section = Section(folder)
    lags, reclaims, tokens = [], 0, [next_token(path)]
    for _ in range(number):
        with (
            Child.script(HOLDER, path, under=FRESH) as holder,
            Child.script(TRIER, path, 30, under=FRESH) as waiter,
        ):
            token, pid, _ = holder.at("held")
            assert pid == 1
            tokens.append(token)
            section(holder.victim, token)
            with Child.script(TRIER, path, 0, under=FRESH) as other:
                while other.step() == "up":
                    pass
                reclaims += other.passed[-1] != "refused"
            waiter.at("up")
            waiter.go()
            holder.stop()
            holder.signal(9)
            killed = time.monotonic()
            token, pid = waiter.at("held")
            lags.append((time.monotonic() - killed) * 1000)
            assert pid == 1
            section(waiter.victim, token)
            tokens.append(token)
            assert holder.end().signal or holder.end().code
    lags.sort()
    return {
        "rounds": number, "overlaps": section.overlaps, "false reclaims": reclaims,
        "tokens grow": all(a < b for a, b in zip(tokens, tokens[1:], strict=False)),
        "p50 ms": lags[len(lags) // 2], "p99 ms": lags[min(len(lags) - 1, len(lags) * 99 // 100)],
        "max ms": lags[-1],
    }  # fmt: skip
