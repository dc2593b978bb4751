"""The command as a user calls it: a process of its own, with a folder of its own for plain
names."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
PATIENCE = 30.0


class Command:
    """Calls `lifehold`; whatever it started is gone when the test ends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("LIFEHOLD_", "XDG_"))}
        self.environment = kept | {"LIFEHOLD_DIR": str(folder), "PYTHONPATH": str(SOURCE)}
        self.started: list[subprocess.Popen[str]] = []

    def __call__(self, *words: str, **more: object) -> subprocess.CompletedProcess[str]:
        """Run it to its end."""
        process = self.start(*words, **more)
        out, err = process.communicate(timeout=PATIENCE)
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    def start(
        self, *words: str, program: tuple[str, ...] = ("-m", "lifehold"),
        env: dict[str, str] | None = None, **more: object,
    ) -> subprocess.Popen[str]:  # fmt: skip
        """Start it in a session of its own, with pipes."""
        more = {
            "text": True,
            "errors": "surrogateescape",
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
        } | more
        process: subprocess.Popen[str] = subprocess.Popen(  # type: ignore[call-overload]
            [sys.executable, *program, *words], env=self.environment | (env or {}), cwd=self.folder, start_new_session=True, **more,
        )  # fmt: skip
        self.started.append(process)
        return process

    def holder(self, *words: str) -> subprocess.Popen[str]:
        """`lifehold run WORDS -- CMD` whose CMD is running: it says so and sleeps until it is
        killed."""
        process = self.start("run", *words, "--", "sh", "-c", "echo $$; exec sleep 60")
        assert process.stdout is not None
        line = process.stdout.readline()
        process.child = int(line or 0)  # type: ignore[attr-defined]
        return process

    def kill(self, process: subprocess.Popen[str]) -> None:
        """kill -9 of its whole session: CMD leads a process group of its own."""
        kill_all(process.pid)

    def end(self) -> None:
        for process in self.started:
            kill_all(process.pid)
            process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe:
                    pipe.close()


def kill_all(session: int) -> None:
    """kill -9 of a whole session."""
    for _ in range(3):  # who was being forked just then
        found = [
            int(entry.name)
            for entry in Path("/proc").iterdir()
            if entry.name.isdigit() and _session(entry) == session
        ]
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def _session(entry: Path) -> int:
    try:
        return int((entry / "stat").read_text().rpartition(")")[2].split()[3])
    except OSError:
        return 0


@pytest.fixture
def lifehold(tmp_path: Path) -> Iterator[Command]:
    command = Command(tmp_path)
    yield command
    command.end()


@pytest.fixture
def eventually() -> Callable[[Callable[[], object], str], None]:
    """Wait until a claim about other processes holds."""

    def wait(claim: Callable[[], object], what: str) -> None:
        until = time.monotonic() + PATIENCE
        while not claim():
            assert time.monotonic() < until, f"never: {what}"
            time.sleep(0.002)

    return wait


@pytest.fixture
def alive() -> Callable[[int], bool]:
    """Whether a process runs; a zombie does not."""

    def look(pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except (FileNotFoundError, ProcessLookupError):
            return False

    return look
