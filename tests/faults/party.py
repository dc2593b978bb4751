"""A process of a fault as the test sees it: told what to do, killed, stopped, in any namespace."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import lifehold
from faults.rows import SLOW
from soak import canary

HERE = Path(__file__).parent
SOURCE = Path(lifehold.__file__).parents[1]
PATIENCE = 20.0 * SLOW
NEW_PIDS = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")


class Gone(AssertionError):
    """It ended, or said nothing, where it should have answered."""


class Party:
    """One actor. `under`: the words of a command that wraps it."""

    def __init__(self, yard, name, path, make, under=(), env=None, script="actor"):
        self.yard, self.name = str(yard), name
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed at the end of the block
        self._process = subprocess.Popen(
            [*under, sys.executable, "-S", "-E", str(HERE / f"{script}.py"), str(SOURCE),
             self.yard, name, str(path), make],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said, bufsize=0,
            env=None if env is None else os.environ | env,
        )  # fmt: skip
        self._left = b""

    def ready(self):
        assert self.answer() == "ready"
        self.pid = _leaf(self._process.pid)
        return self

    def tell(self, *order):
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(" ".join(map(str, order)).encode() + b"\n")

    def answer(self, within=PATIENCE):
        """What it answers. `at`: when that was read, of our monotonic clock."""
        until = time.monotonic() + within
        while b"\n" not in self._left:
            ready = select.select([self._process.stdout], [], [], max(0, until - time.monotonic()))
            if not ready[0]:
                raise Gone(f"{self.name} has not answered within {within:g} s")
            found = os.read(self._process.stdout.fileno(), 1 << 16)
            if not found:
                raise Gone(f"{self.name} has ended: {self.words()}")
            self._left += found
        self.at = time.monotonic()
        line, _, self._left = self._left.partition(b"\n")
        return json.loads(line)

    def ask(self, *order, within=PATIENCE):
        self.tell(*order)
        return self.answer(within)

    def words(self):
        """What it said on stderr."""
        self._said.seek(0)
        return self._said.read()[-2000:]

    # ---- what is done to it

    def kill(self, number=signal.SIGKILL):
        """The instant just before. It is out of the section from then on, whatever it left."""
        canary.killed(self.yard, self.name)
        at = time.monotonic()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)
        return at

    def stop(self):
        """SIGSTOP. Who stands still writes nothing: it is out of the section until it looks."""
        canary.killed(self.yard, self.name)
        os.kill(self.pid, signal.SIGSTOP)
        until = time.monotonic() + PATIENCE
        while _state(self.pid) not in "TtZ?":
            assert time.monotonic() < until, "it does not stop"
            time.sleep(0.001)
        return time.monotonic()

    def resume(self):
        os.kill(self.pid, signal.SIGCONT)

    def ended(self, within=PATIENCE):
        """Wait for its end; the status."""
        return self._process.wait(within)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._said.closed:
            return
        with contextlib.suppress(ProcessLookupError, AttributeError):
            os.kill(self.pid, signal.SIGCONT)
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()  # its last order
        try:
            self._process.wait(0.5)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError, AttributeError):
                os.kill(self.pid, signal.SIGKILL)
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._said.close()


def _leaf(pid):
    """The innermost process of a chain of wrapping commands."""
    while children := Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        pid = int(children[0])
    return pid


def _state(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "?"
