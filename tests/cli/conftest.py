"""The command as a user calls it: a process of its own, with a folder of its own for plain
names."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
PATIENCE = 90.0
MARK = "TEST_OF_LIFEHOLD"  # in the environment of all that a test starts


class Command:
    """Calls `lifehold`; whatever it started is gone when the test ends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        ours = ("LIFEHOLD_", "XDG_", "COLUMNS", "LINES")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
        self.environment = kept | {"LIFEHOLD_DIR": str(folder), "PYTHONPATH": str(SOURCE)}
        self.environment[MARK] = str(folder)
        self.started: list[subprocess.Popen[str]] = []

    def __call__(self, *words: str, **more: object) -> subprocess.CompletedProcess[str]:
        """Run it to its end."""
        process = self.start(*words, **more)
        out, err = process.communicate(timeout=PATIENCE)
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    def together(self, *lines: tuple[str, ...]) -> list[subprocess.CompletedProcess[str]]:
        """Run each line to its end, side by side."""
        started = [self.start(*words) for words in lines]
        said = [process.communicate(timeout=PATIENCE) for process in started]
        return [
            subprocess.CompletedProcess(words, process.returncode, out, err)
            for words, process, (out, err) in zip(lines, started, said, strict=True)
        ]

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
            [sys.executable, *program, *words], env=self.environment | (env or {}),
            cwd=self.folder, start_new_session=True, **more,
        )  # fmt: skip
        self.started.append(process)
        return process

    def holder(self, *words: str) -> subprocess.Popen[str]:
        """`lifehold run WORDS -- CMD` whose CMD is running: it says so and sleeps until it is
        killed."""
        process = self.start("run", *words, "--", "sh", "-c", "echo $$; exec sleep 600")
        assert process.stdout is not None
        line = process.stdout.readline()
        process.child = int(line or 0)  # type: ignore[attr-defined]
        return process

    def free(self, name: str = "job") -> bool:
        """Whether the kernel gives the lock, by a plain name or a path, to who asks now."""
        path = self.folder / (name if "/" in name else f"{name}.lock")
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return True
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            os.close(fd)
        return True

    def queued(self, name: str = "job") -> int:
        """How many wait for the lock, as the kernel shows it; others' waiters do not count."""
        inode = f":{(self.folder / f'{name}.lock').stat().st_ino} "
        lines = Path("/proc/locks").read_text().splitlines()
        return sum("-> " in line and inode in line for line in lines)

    def kill(self, process: subprocess.Popen[str]) -> None:
        """kill -9 of its whole session: CMD leads a process group of its own."""
        kill_all(process.pid)

    def end(self) -> None:
        """Nothing that it started runs any more, in whatever process group or session."""
        for process in self.started:
            if process.returncode is None:
                kill_all(process.pid)
        kill_all(marked=f"{MARK}={self.folder}".encode())
        for process in self.started:
            process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe:
                    pipe.close()


def kill_all(session: int = 0, *, marked: bytes = b"") -> None:
    """kill -9 of a whole session, or of all that have `marked` in their environment."""
    for _ in range(3):  # who was being forked just then
        found = [
            int(entry.name)
            for entry in Path("/proc").iterdir()
            if entry.name.isdigit() and (_is_marked(entry, marked) if marked else
                                         _session(entry) == session)
        ]  # fmt: skip
        if not found:
            return
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def _is_marked(entry: Path, mark: bytes) -> bool:
    try:
        return mark in (entry / "environ").read_bytes().split(b"\0")
    except OSError:
        return False


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
def for_all() -> Iterator[Path]:
    """A folder that every user can reach.

    Not below `tmp_path`: any other run of pytest that begins meanwhile closes that to others.
    """
    with tempfile.TemporaryDirectory(prefix="lifehold-", dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


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
