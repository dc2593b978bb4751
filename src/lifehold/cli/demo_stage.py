"""The stage of `lifehold demo`: its processes, and the pen that writes down what they do.

Promise: every process is one of ours, started in a session of its own and ended with the story; a
line is never wider than the terminal; where stdout is no terminal there is not one control
character in it.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import textwrap

from ..runtime import clock
from .live import ERASE
from .render import put

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

WIDEST, NARROWEST = 100, 40  # columns
INDENT, LITTLE = 17, 3  # columns before a text; in a narrow terminal only its first line has more
NARROW = 60
PATIENCE = 30.0  # seconds for a line of a part: then something is broken, and we say so
GRACE = 2.0  # seconds to end by oneself
FRAME = 0.1  # seconds between two pictures of a running clock
STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
ROLES = {"you": "bold", "waiter": "cyan", "B": "cyan", "next": "cyan"}  # who holds: yellow


class Part:
    """One process of the story, in a session of its own, so that Ctrl-C is ours to deal with."""

    def __init__(self, *words: str, folder: str, mask: Iterable[int]) -> None:
        environment = os.environ | {"LIFEHOLD_DIR": folder}
        for name in [
            name for name in environment if name.startswith("LIFEHOLD_") and name != "LIFEHOLD_DIR"
        ]:
            del environment[name]
        package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        if os.path.isfile(package):  # one file, lifehold.pyz: its other processes come out of it
            environment["PYTHONPATH"] = package
        self.process = subprocess.Popen(
            [sys.executable, "-m", *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, cwd=folder, env=environment, start_new_session=True,
            preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, mask),  # noqa: PLW1509
        )  # fmt: skip
        self.pid = self.process.pid
        self._rest = b""

    def line(self, meanwhile: Callable[[], None] | None = None) -> str:
        """Its next line of output; `meanwhile` is called while there is none.

        Raises RuntimeError when none comes.
        """
        assert self.process.stdout is not None
        number = self.process.stdout.fileno()
        until = clock.now() + PATIENCE
        while b"\n" not in self._rest:
            left = max(0.0, until - clock.now())
            if not select.select([number], [], [], left if meanwhile is None else FRAME)[0]:
                if not left:
                    raise RuntimeError(f"process {self.pid} said nothing for {PATIENCE:g} s")
                if meanwhile is not None:
                    meanwhile()
                continue
            got = os.read(number, 4096)
            if not got:
                raise RuntimeError(
                    f"process {self.pid} ended: {self._rest.decode(errors='replace')}"
                )
            self._rest += got
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode(errors="replace")

    def go(self) -> None:
        """Let it take its next step."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    def end(self) -> None:
        """Whatever state it is in: TERM, so that a wrapper takes its command along, then KILL."""
        for number in (signal.SIGTERM, signal.SIGCONT, signal.SIGKILL):
            try:
                os.killpg(self.pid, number)
                if number == signal.SIGCONT:
                    self.process.wait(GRACE)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


class Pen:
    """Writes what happened, when, and whose doing it was."""

    def __init__(self) -> None:
        self.started_at = clock.now()
        self.width = max(NARROWEST, min(WIDEST, shutil.get_terminal_size().columns))
        terminal = sys.stdout is not None and sys.stdout.isatty()
        self.colours = terminal and not os.environ.get("NO_COLOR")
        self.moving = terminal and os.environ.get("TERM", "dumb") != "dumb"
        self._shown = False  # whether a line is there that is to be rewritten

    def title(self, number: int, text: str) -> None:
        """The head of a scene."""
        put("")
        for line in self.wrapped(f"{number}  {text}", indent=3):
            put(self.styled("bold", line))

    def note(self, role: str, text: str, style: str = "", *, good: str = "", bad: str = "") -> None:
        """One thing that happened; `good`, `bad`: what of it is."""
        self._erase()
        time, who = self._head(role)
        narrow = self.width < NARROW
        lines = textwrap.wrap(
            text, self.width, initial_indent=" " * len(f"{time}{who}"),
            subsequent_indent=" " * (LITTLE if narrow else INDENT), break_on_hyphens=False,
        )  # fmt: skip
        for mark, colour in ((good, "green"), (bad, "red")):
            if mark:
                lines = [line.replace(mark, self.styled(colour, mark)) for line in lines]
        style = style or ("bold" if text.startswith("$ ") else "")
        for at, line in enumerate(lines):
            words = line.lstrip(" ")
            indent = self._painted(time, who, role) if at == 0 else line[: -len(words)]
            put(indent + self.styled(style, words))

    def clock(self, role: str, text: str) -> None:
        """On a terminal: the same line again, with the time that it is now."""
        if self.moving:
            # Written here and not by put(), which ends a line.
            time, who = self._head(role)
            line = self._painted(time, who, role) + self.styled("dim", text)
            sys.stdout.write(f"{ERASE.decode()}{line}\r")
            sys.stdout.flush()
            self._shown = True

    def wrapped(self, text: str, width: int = 0, *, indent: int = 0) -> list[str]:
        return textwrap.wrap(
            text, width or self.width, subsequent_indent=" " * indent, break_on_hyphens=False
        ) or [""]

    def styled(self, style: str, text: str) -> str:
        return f"\033[{STYLES[style]}m{text}\033[0m" if style and self.colours else text

    def _head(self, role: str) -> tuple[str, str]:
        seconds = clock.now() - self.started_at
        if self.width < NARROW:
            return f"{seconds:.2f} s ", f"{role} " if role else ""
        return f"{seconds:6.2f} s  ", f"{role:<6} "

    def _painted(self, time: str, who: str, role: str) -> str:
        return self.styled("dim", time) + self.styled(ROLES.get(role, "yellow"), who)

    def _erase(self) -> None:
        if self._shown:
            sys.stdout.write(ERASE.decode())
            self._shown = False
