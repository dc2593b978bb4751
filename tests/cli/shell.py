"""A real shell at a real terminal: types, reads, and keeps what was seen."""

from __future__ import annotations

import fcntl
import os
import re
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

PATIENCE = 60.0
PROMPT = "ready> "
# The session's leader becomes the terminal's owner by opening it.
LOGIN = (
    "import os, sys; os.setsid(); fd = os.open(sys.argv[1], os.O_RDWR)\n"
    "for number in (0, 1, 2): os.dup2(fd, number)\n"
    "os.execvp(sys.argv[2], sys.argv[2:])"
)
COMMAND = (
    "#!{python}\nimport sys\nfrom lifehold.cli.main import main\n"
    "if __name__ == '__main__':\n    sys.exit(main())\n"
)


class Shell:
    """`bash -i` with job control; `lifehold` is on its PATH, as an installed script is.

    `editing`: with readline, so that it completes what is typed.
    """

    def __init__(self, folder: Path, environment: dict[str, str], *, editing: bool = False) -> None:
        binaries = folder / "bin"
        binaries.mkdir()
        (binaries / "lifehold").write_text(COMMAND.format(python=sys.executable))
        (binaries / "lifehold").chmod(0o755)
        self.seen, self._from = "", 0
        self._keyboard, terminal = os.openpty()
        self.resize(24, 300)
        env = environment | {
            "PS1": PROMPT, "TERM": "dumb", "HOME": str(folder), "LC_ALL": "C",
            "PATH": f"{binaries}:{os.environ['PATH']}",
        }  # fmt: skip
        self._shell = subprocess.Popen(
            [sys.executable, "-c", LOGIN, os.ttyname(terminal), "bash", "--norc", "--noprofile",
             *([] if editing else ["--noediting"]), "-i"], env=env, cwd=folder,
        )  # fmt: skip
        self._terminal = terminal  # open until the end: without a user it would hang up
        self.wait(re.escape(PROMPT))

    def type(self, text: str) -> None:
        os.write(self._keyboard, text.encode())

    def run(self, line: str) -> str:
        """Type a line; what was shown until the next prompt."""
        self.type(line + "\n")
        return self.wait("(?s)(.*)" + re.escape(PROMPT))[1]

    def wait(self, pattern: str) -> re.Match[str]:
        """Until `pattern` appears after what was waited for last."""
        until = time.monotonic() + PATIENCE
        while not (found := re.search(pattern, self.seen[self._from :])):
            left = until - time.monotonic()
            assert left > 0, f"never came: {pattern!r}; seen:\n{self.seen}"
            if select.select([self._keyboard], [], [], left)[0]:
                self.seen += os.read(self._keyboard, 65536).decode().replace("\r\n", "\n")
        self._from += found.end()
        return found

    def resize(self, rows: int, columns: int) -> None:
        size = struct.pack("HHHH", rows, columns, 0, 0)
        fcntl.ioctl(self._keyboard, termios.TIOCSWINSZ, size)

    def foreground(self) -> int:
        return os.tcgetpgrp(self._keyboard)

    def fg(self, child: int) -> None:
        """`fg`, until the job runs in the foreground: a key typed before that is the shell's."""
        self.type("fg\n")
        self.wait(r"lifehold run .*\n")
        until = time.monotonic() + PATIENCE
        while self.foreground() == self._shell.pid or state(child) == "T":
            assert time.monotonic() < until, f"fg has no effect; seen:\n{self.seen}"
            time.sleep(0.002)

    def end(self) -> None:
        from .conftest import kill_all

        kill_all(self._shell.pid)
        self._shell.wait()
        os.close(self._keyboard)
        os.close(self._terminal)


def pid_of(file: Path) -> int:
    """The number that a command writes into `file` as soon as it runs."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        try:
            return int(file.read_text())
        except (FileNotFoundError, ValueError):
            time.sleep(0.005)
    raise AssertionError(f"{file} was never written")


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
