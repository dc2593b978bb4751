"""On one of the machines of nfs_between.py: take a lock, ask without pause, tell what is said.

`python -m soak.nfs_between_hold KIND TTL PATH SECONDS LOG`. Each line of LOG is one event as JSON,
with its UTC time: `got`, `held` (a check that said so, when it had come back), `told` (the callback
of `lost`), `lost`, `failed`, `released`, `refused`.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time

from lifehold import LeaseLost, Lock, ReadWriteLock

PATIENCE = 400.0  # seconds
PAUSE = 0.05


def taken(kind, path, ttl):
    """The lease."""
    if kind == "readwrite":
        return ReadWriteLock(path, kind="soft", ttl=ttl).acquire_write(wait=PATIENCE)
    options = {} if kind in ("auto", "kernel") else {"ttl": ttl}
    return Lock(path, kind=kind, **options).acquire(wait=PATIENCE)


def main():
    logging.disable(logging.CRITICAL)
    kind, ttl, path, seconds, log = sys.argv[1:6]
    with open(log, "a", buffering=1) as file:

        def say(what, **more):
            file.write(json.dumps({"what": what, "at": time.time(), **more}) + "\n")

        say("began", pid=os.getpid())
        try:
            lease = taken(kind, path, float(ttl))
        except Exception as error:
            say("refused", why=str(error)[:300])
            return
        say("got", token=lease.token)
        lease.lost.add_callback(lambda: say("told"))
        end = time.monotonic() + float(seconds)
        while time.monotonic() < end:
            time.sleep(PAUSE)
            began = time.monotonic()
            try:
                lease.check()
            except LeaseLost as error:
                say("lost", why=error.reason, took=round(time.monotonic() - began, 2))
                break
            except Exception as error:
                say("failed", why=f"{type(error).__name__}: {error}"[:300])
            else:
                left = lease.remaining()
                say("held", left=left, took=round(time.monotonic() - began, 2))
        try:
            lease.release()
            say("released")
        except Exception as error:
            say("released", why=f"{type(error).__name__}: {error}"[:300])


if __name__ == "__main__":
    main()
