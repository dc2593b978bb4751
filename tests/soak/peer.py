"""One process of the namespace rounds: it asks, holds and lets go as the lines on stdin say.

Run as a file under `python -S -E`, so that it starts in some 30 ms and has imported lifehold, the
canary and nothing else. It says `ready` first; every order has one line as its answer:

    kind KIND               will                of which kind the lock is to be
    acquire SECONDS|None    got TOKEN STARTED_NS GRANTED_NS | refused ALIVE PID PID_NS
    leave                   left
    heir                    spawned            a child that has inherited the lock's open file
    holder | error | judge  a JSON value       what this process says about who holds it
    here                    PID HOST PID_NS    who it is, in its own eyes
"""

import os
import sys
import time

sys.path[:0] = [sys.argv[1], os.path.dirname(os.path.abspath(__file__))]

from canary import Canary  # noqa: E402

from lifehold import Lock, NotAcquired  # noqa: E402

HEIRLOOM = 100  # the descriptor under which a child inherits the lock's open file


class Peer:
    """The answers to the orders; each is a method."""

    def __init__(self, folder, name):
        self.lock = Lock(f"{folder}/lock", label=name)
        self.canary = Canary(folder, name)
        self.lease = None
        self.inside = False

    def kind(self, kind):
        self.lock = Lock(self.lock.path, label=self.lock._mechanism.label, kind=kind)
        return "will"

    def acquire(self, wait):
        patience = None if wait == "None" else float(wait)
        started_at = time.monotonic_ns()
        try:
            self.lease = self.lock.acquire(patience)
        except NotAcquired as error:
            owner = error.holder.owner if error.holder else None
            if owner is None:
                return "refused unknown 0 0"
            return f"refused {error.holder.alive} {owner.pid} {owner.pid_ns}"
        granted_at = time.monotonic_ns()
        self.inside = self.canary.enter(self.lease.token)
        return f"got {self.lease.token} {started_at} {granted_at}"

    def leave(self):
        if self.inside:
            self.canary.leave()
        self.lease.release()
        return "left"

    def heir(self):
        os.dup2(self._descriptor(), HEIRLOOM)  # inheritable, which ours is not
        os.posix_spawnp("sleep", ["sleep", "600"], dict(os.environ))
        os.close(HEIRLOOM)
        return "spawned"

    def _descriptor(self):
        for fd in map(int, os.listdir("/proc/self/fd")):
            try:
                if os.readlink(f"/proc/self/fd/{fd}") == self.lock.path:
                    return fd
            except OSError:
                continue  # the one of the listing itself
        raise AssertionError("the lock's open file is not among ours")

    def holder(self):
        return _json(self.lock.holder())

    def error(self):
        try:
            self.lock.acquire(0).release()
        except NotAcquired as error:
            return _json(error.holder, text=str(error))
        return "null"

    def judge(self):
        """The record's owner by identity alone, without and with each piece of ground."""
        from lifehold.core.owner import judge
        from lifehold.core.value import replace
        from lifehold.local.record import SIZE, parse
        from lifehold.runtime import process

        with open(self.lock.path, "rb") as file:
            owner = parse(file.read(SIZE)).owner
        ground = process.ground(True, None)
        without_pidfd = replace(owner, pidfd_ino=None)
        return _dump({
            "local": judge(owner, ground).state,
            "shared": judge(owner, replace(ground, one_kernel=False)).state,
            "held": judge(owner, replace(ground, witness=True)).state,
            "no pidfd": judge(without_pidfd, ground).state,
            "evidence": judge(owner, ground).evidence,
        })  # fmt: skip

    def here(self):
        space = os.stat("/proc/self/ns/pid").st_ino
        return f"{os.getpid()} {os.uname().nodename} {space}"


def _json(holder, **more):
    if holder is None:
        return "null"
    owner = holder.owner
    known = ("pid", "pid_ns", "host", "boot_id", "label")
    who = {key: getattr(owner, key) for key in known} if owner else {}
    return _dump({"alive": holder.alive, "evidence": holder.evidence, **who, **more})


def _dump(found):
    import json

    return json.dumps(found)


def main():
    peer = Peer(*sys.argv[2:4])
    print("ready", flush=True)
    for line in sys.stdin:
        order, *rest = line.split()
        print(getattr(peer, order)(*rest), flush=True)


if __name__ == "__main__":
    main()
