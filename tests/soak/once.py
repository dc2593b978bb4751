"""Many processes ask for one result, round after round, and whoever runs may be killed.

    python -m tests.soak.once                          64 processes, 200 rounds
    python -m tests.soak.once --processes 8 --rounds 20 --kind soft

Each round has a name of its own. All processes ask at once; the function says that it has begun,
and of those who do so the first few are killed with kill -9 a random moment later: before their
result is published, while it is, or after. Judged: every survivor has the same value, it is that of
the run whose result lies there, there is one result, no more have begun than were killed and one,
and nothing else is left. Ends with 1 when anything was wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import random
import select
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from lifehold import Lock, Timeout, once
from lifehold.runtime import clock

PATIENCE = 60.0  # seconds of one round, beyond which it hangs


class Round:
    """One name, and all who ask for it."""

    def __init__(self, name: Path, processes: int, kills: int, kind: str, seed: int) -> None:
        self.name, self.kind, self.kills = name, kind, kills
        self.random = random.Random(seed)
        self.heard, self.tell = os.pipe()
        gate, door = os.pipe()
        self.living = {self.child(gate, door) for _ in range(processes)}
        os.close(gate)
        os.close(door)  # the last writer: all begin
        os.close(self.tell)
        self.begun: list[str] = []
        self.killed: list[int] = []
        self.values: Counter[str] = Counter()
        self.wrong: list[str] = []

    def child(self, gate: int, door: int) -> int:
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            os.close(door)
            os.close(self.heard)
            os.read(gate, 1)
            value = once(str(self.name), self.job, kind=self.kind)
            os.write(self.tell, f"value {os.getpid()} {value}\n".encode())
            code = 0
        except BaseException as error:
            os.write(self.tell, f"error {os.getpid()} {error!r}\n".encode()[:4096])
        finally:
            os._exit(code)

    def job(self) -> str:
        value = f"{os.getpid()}-{os.urandom(4).hex()}"
        os.write(self.tell, f"begun {os.getpid()} {value}\n".encode())
        time.sleep(random.uniform(0.0, 0.004))
        return value

    def play(self) -> None:
        """Until all have ended."""
        until, text = clock.now() + PATIENCE, b""
        due: list[tuple[float, int]] = []
        while True:
            now = clock.now()
            for at, pid in [each for each in due if each[0] <= now]:
                due.remove((at, pid))
                os.kill(pid, signal.SIGKILL)  # not reaped before the end, so its number is its own
                self.killed.append(pid)
            wait = min((at for at, _ in due), default=until) - clock.now()
            if not select.select([self.heard], [], [], max(0.0, wait))[0]:
                if clock.now() >= until:
                    self.wrong.append(f"it hangs: {len(self.values)} values, {self.begun}")
                    break
                continue
            piece = os.read(self.heard, 65536)
            if not piece:
                break
            *lines, text = (text + piece).split(b"\n")
            for line in lines:
                word, pid, rest = line.decode().split(" ", 2)
                if word == "begun":
                    self.begun.append(rest)
                    if len(self.begun) <= self.kills:
                        due.append((clock.now() + self.random.uniform(0, 0.006), int(pid)))
                elif word == "value":
                    self.values[rest] += 1
                else:
                    self.wrong.append(rest)
        for pid in self.living:
            if self.wrong:
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(self.heard)
        self.judge(len(self.living))

    def judge(self, processes: int) -> None:
        wrong = self.wrong
        if len(self.values) != 1:
            wrong.append(f"{len(self.values)} different values: {self.values}")
        if self.values.total() < processes - len(self.killed):
            wrong.append(f"{self.values.total()} values of {processes}, {len(self.killed)} killed")
        if len(self.begun) > 1 + len(self.killed):
            wrong.append(f"{len(self.begun)} runs, {len(self.killed)} killed")
        left = sorted(os.listdir(f"{self.name}.once"))
        if len(left) != 1 or not left[0].endswith(".done"):
            wrong.append(f"left: {left}")
        elif not any(f'"{value}"'.encode() in Path(f"{self.name}.once", left[0]).read_bytes()
                     for value in self.values):  # fmt: skip
            wrong.append("the result that lies there is another")


def warm(name: Path) -> None:
    """What a first wait imports is imported once, and not by every process of every round."""
    logging.getLogger("lifehold").setLevel(logging.ERROR)  # hundreds of notices say nothing new
    with Lock(name), contextlib.suppress(Timeout):
        once(name, str, wait=0.01)
    once(name, str)


def main() -> int:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "python -m tests.soak.once", description=__doc__, formatter_class=raw
    )
    parser.add_argument("--processes", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--kind", default="kernel")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    given = parser.parse_args()
    print(
        f"{given.processes} processes, {given.rounds} rounds, kind {given.kind}, seed {given.seed}"
    )
    folder = Path(tempfile.mkdtemp(prefix="once-soak-"))
    warm(folder / "warm")
    luck = random.Random(given.seed)
    began, wrong, runs, kills, hit = clock.now(), 0, 0, 0, 0
    for number in range(given.rounds):
        game = Round(folder / f"r{number}", given.processes, luck.randrange(5), given.kind,
                     luck.randrange(1 << 30))  # fmt: skip
        game.play()
        runs, kills = runs + len(game.begun), kills + len(game.killed)
        hit += len(game.begun) - 1
        if game.wrong:
            wrong += 1
            print(f"round {number}: " + "; ".join(game.wrong[:5]), flush=True)
    shutil.rmtree(folder)
    print(
        f"{given.rounds} rounds in {clock.now() - began:.0f} s: {runs} runs begun, {kills} killed "
        f"({hit} before their result was out), {wrong} rounds wrong"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
