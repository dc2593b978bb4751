"""One round of "kill -9 at a random moment": is the lock ever free while CMD runs?

CMD notes its pid in a file and sleeps. The judge tries the lock all the time; when it gets it, it
keeps it for a moment, and no CMD may be alive then.
"""

from __future__ import annotations

import fcntl
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

SCRIPT = 'echo $$ > "$0.new" && mv "$0.new" "$0" && exec sleep 60'
LIFEHOLD = (sys.executable, "-m", "lifehold")
PATIENCE = 60.0  # seconds until a round counts as hung
STARTING = 0.08  # seconds in which a run starts, about


class Round:
    """`delay`: seconds until the kill, None: when CMD has just begun. `ran`: CMD was running
    then."""

    def __init__(
        self, folder: Path, number: int, *, close: bool, victim: str, delay: float | None,
        program: tuple[str, ...] = LIFEHOLD,
    ) -> None:  # fmt: skip
        self.lock, self.note = folder / f"{number}.lock", folder / f"{number}.pid"
        self.close, self.victim, self.delay = close, victim, delay
        self.program, self.ran = program, False
        self.violation = ""

    def play(self) -> Round:
        words = [
            "run",
            *(["-o"] if self.close else []),
            str(self.lock),
            "--",
            "sh",
            "-c",
            SCRIPT,
            str(self.note),
        ]
        wrapper = subprocess.Popen(
            [*self.program, *words], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            process_group=0,
        )  # fmt: skip
        try:
            self._wait()
            killed = self._kill(wrapper)
            self._judge(wrapper)
            code = wrapper.wait(PATIENCE)
            if not self.violation and code not in (-9, 137):
                self.violation = f"the wrapper ended with {code} after a kill of its {killed}"
        finally:
            wrapper.kill()
            wrapper.wait()
            if self._alive():
                os.kill(self._pid(), signal.SIGKILL)
        return self

    def _wait(self) -> None:
        if self.delay is not None:
            time.sleep(self.delay)
            return
        until = time.monotonic() + PATIENCE
        while not self._pid() and time.monotonic() < until:
            time.sleep(0.0005)

    def _kill(self, wrapper: subprocess.Popen[bytes]) -> str:
        self.ran = self._alive()
        if self.victim == "supervisor":
            children = Path(f"/proc/{wrapper.pid}/task/{wrapper.pid}/children").read_text().split()
            if children:
                os.kill(int(children[0]), signal.SIGKILL)
                return "supervisor"
        if self.victim == "group":  # as a shell does to a job
            os.killpg(wrapper.pid, signal.SIGKILL)
            return "group"
        wrapper.kill()
        return "wrapper"

    def _judge(self, wrapper: subprocess.Popen[bytes]) -> None:
        gone_at = time.monotonic()
        until = gone_at + PATIENCE
        ended = False
        while time.monotonic() < until:
            wrapper.poll()
            fd = self._take()
            if fd is not None:
                beside = self._alive()
                time.sleep(0.01)  # a CMD that has just started notes its pid meanwhile
                if not ended and (beside or self._alive()):
                    self.violation = f"the lock was free while CMD {self._pid()} ran"
                os.close(fd)
                return
            if not self.lock.exists() and wrapper.returncode is not None:
                return  # killed before it made the file
            if wrapper.returncode is None:
                gone_at = time.monotonic()
            elif not self.close and self._alive() and time.monotonic() > gone_at + 0.02:
                os.kill(
                    self._pid(), signal.SIGKILL
                )  # else it would go on for a minute, holding the lock
                ended = True  # a dying process unlocks some microseconds before it counts as dead
            time.sleep(0.0002)
        self.violation = "the lock did not become free"

    def _take(self) -> int | None:
        try:
            fd = os.open(self.lock, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        return fd

    def _pid(self) -> int:
        try:
            return int(self.note.read_text())
        except (FileNotFoundError, ValueError):
            return 0

    def _alive(self) -> bool:
        pid = self._pid()
        try:
            return (
                pid != 0
                and Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
            )
        except (FileNotFoundError, ProcessLookupError):
            return False


def rounds(
    folder: Path, count: int, *, close: bool, seed: int = 0, program: tuple[str, ...] = LIFEHOLD
) -> list[Round]:
    """`count` rounds, by turns of the wrapper, of its process group, with `close` of the
    supervisor."""
    chance = random.Random(seed)
    played = []
    for number in range(count):
        victims = ("wrapper", "group", "supervisor") if close else ("wrapper", "group")
        victim = victims[number % len(victims)]
        delay = chance.choice((None, chance.uniform(0, STARTING)))
        one = Round(folder, number, close=close, victim=victim, delay=delay, program=program)
        played.append(one.play())
        for leftover in (one.lock, one.note):
            leftover.unlink(missing_ok=True)
    return played
