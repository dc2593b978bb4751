"""`python -m tests.soak.namespaces [ROUNDS] [SEED]`: holders killed with their PID namespace.

Each round has three fresh PID namespaces on one host, and a process with number 1 in each. The
first holds the lock, in a section with a canary. The second asks with wait=0 and has to be refused:
nothing that the third process knows by number or host name may pass for the death of the first.
Then the first is killed with SIGKILL, and its namespace with it; in every other round a child lives
there that has inherited the lock's open file. The third gets the lock; in half of the rounds it
stood in the kernel's queue before the kill, in the others it asks afterwards.

Nothing but the lock is measured: all have started before, and time is CLOCK_MONOTONIC, which these
namespaces share, read by the process that is granted the lock.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import lifehold

from .canary import entries, killed, not_growing, overlaps

NEW_PID_NAMESPACE = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
PEER = Path(__file__).with_name("peer.py")
ROOM = Path(lifehold.__file__).parents[1]
PATIENCE = 20.0


class Peer:
    """A process that takes orders, in namespaces of its own."""

    def __init__(self, folder, name, under=NEW_PID_NAMESPACE):
        self.folder, self.name = folder, name
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115  closed at the end of the block
        self._process = subprocess.Popen(
            [*under, sys.executable, "-S", "-E", str(PEER), str(ROOM), str(folder), name],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said,
            text=True, bufsize=1,
        )  # fmt: skip

    def ready(self):
        assert self.answer() == "ready"
        outer = self._process.pid
        inner = Path(f"/proc/{outer}/task/{outer}/children").read_text().split()
        self.pid = int(inner[0]) if inner else outer  # our number for it
        return self

    def tell(self, *order):
        print(*order, file=self._process.stdin, flush=True)

    def answer(self):
        line = self._process.stdout.readline().strip()
        if not line:
            self._said.seek(0)
            raise AssertionError(f"{self.name} has ended: {self._said.read()}")
        return line

    def ask(self, *order):
        self.tell(*order)
        return self.answer()

    def kill(self):
        """SIGKILL, and with it to all of its namespace. The time just before, in ns."""
        killed(self.folder, self.name)
        at = time.monotonic_ns()
        os.kill(self.pid, signal.SIGKILL)
        return at

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            self._process.stdin.close()  # its last order
        except BrokenPipeError:
            pass
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()  # with --kill-child
            self._process.wait()
        self._process.stdout.close()
        self._said.close()


@dataclass
class Account:
    """What the rounds came to."""

    rounds: int = 0
    false_reclaims: int = 0  # granted, or a live holder called dead, while the holder lived
    misnamed: int = 0  # a refusal that named another than the holder
    from_kill: list[float] = field(default_factory=list)  # ms, of those who stood in the queue
    from_start: list[float] = field(default_factory=list)  # ms, of those who asked afterwards
    overlaps: int = 0
    tokens: list[int] = field(default_factory=list)

    @property
    def clean(self):
        wrong = self.overlaps + self.false_reclaims + self.misnamed + not_growing(self.tokens)
        return not wrong and len(self.tokens) == 2 * self.rounds


def play(folder, rounds, seed=0):
    """That many rounds on one lock in `folder`."""
    chance, account = random.Random(seed), Account()
    for number in range(rounds):
        with (
            Peer(folder, f"holder-{number}") as holder,
            Peer(folder, f"third-{number}") as third,
            Peer(folder, f"next-{number}") as following,
        ):
            for peer in (holder, third, following):
                peer.ready()
            _round(account, number, chance, holder, third, following)
        account.rounds += 1
    account.overlaps = len(overlaps(folder))
    account.tokens = [token for token, _ in entries(folder)]
    return account


def _round(account, number, chance, holder, third, following):
    before = int(holder.ask("acquire", "None").split()[1])
    pid, _, space = holder.ask("here").split()
    if number % 4 >= 2:
        holder.ask("heir")
    queued = number % 2 == 0
    if queued:
        following.tell("acquire", "None")
        _until(lambda: waiters(f"{holder.folder}/lock"), "the next one is not in the queue")
    refusal = third.ask("acquire", "0").split()
    account.false_reclaims += refusal[0] != "refused" or refusal[1] == "dead"
    account.misnamed += refusal[1:] != ["alive", pid, space]
    time.sleep(chance.random() * 0.005)  # the kill comes at no particular moment
    killed_at = holder.kill()
    answer = following.answer() if queued else following.ask("acquire", "None")
    _, token, started_at, granted_at = answer.split()
    account.false_reclaims += int(granted_at) < killed_at or int(token) <= before
    if queued:
        account.from_kill.append((int(granted_at) - killed_at) / 1e6)
    else:
        account.from_start.append((int(granted_at) - int(started_at)) / 1e6)
    following.ask("leave")


def waiters(path):
    """How many stand in the kernel's queue for the file; seen from the first namespace only."""
    inode = f":{os.stat(path).st_ino}"
    with open("/proc/locks") as file:
        return sum("->" in line and line.split()[6].endswith(inode) for line in file)


def _until(claim, complaint):
    end = time.monotonic() + PATIENCE
    while not claim():
        assert time.monotonic() < end, complaint
        time.sleep(0.0005)


def spread(lengths):
    """`p50 1.2  p99 3.4  max 5.6 ms (n)` of lengths in ms."""
    if not lengths:
        return "none"
    row = sorted(lengths)
    p50, p99 = (row[min(len(row) - 1, int(len(row) * part))] for part in (0.5, 0.99))
    return f"p50 {p50:.2f}  p99 {p99:.2f}  max {row[-1]:.2f} ms ({len(row)})"


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else int(time.time())
    started_at = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        account = play(folder, rounds, seed)
    print(
        f"{account.rounds} rounds in {time.monotonic() - started_at:.0f} s, seed {seed}",
        f"overlaps {account.overlaps}",
        f"false reclaims {account.false_reclaims}",
        f"refusals that named another {account.misnamed}",
        f"next acquire, from the kill, in the queue before:  {spread(account.from_kill)}",
        f"next acquire, from its own start after the kill:   {spread(account.from_start)}",
        f"next acquire, all:  {spread(account.from_kill + account.from_start)}",
        f"tokens {len(account.tokens)}, not growing {not_growing(account.tokens)}",
        sep="\n",
    )
    return 0 if account.clean else 1


if __name__ == "__main__":
    sys.exit(main())
