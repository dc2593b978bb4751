"""`lifehold demo`: what a lock must do when things go wrong, shown with real processes and times.

Promise: everything happens in a temporary folder; no process and no file is left behind, however
it ends.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import textwrap

from ..core.explain import quote
from ..ops.who import who
from ..runtime import clock
from . import demo_part, exits
from .options import DEMO, arguments
from .render import put

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

WIDEST, NARROWEST = 100, 40  # columns
INDENT = 18
PATIENCE = 30.0  # seconds for a line of a part: then something is broken, and we say so
STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "cyan": "36"}


def demo(words: list[str]) -> int:
    """The exit code of `lifehold demo WORDS`."""
    given, _ = arguments(DEMO, words)
    import tempfile

    def terminated(*_: object) -> None:
        raise SystemExit(exits.SIGNAL + signal.SIGTERM)

    signal.signal(signal.SIGTERM, terminated)
    with tempfile.TemporaryDirectory(prefix="lifehold-demo-") as folder:
        story = Story(folder, fast=given["fast"])
        try:
            story.tell()
        finally:
            story.end()
    return exits.DONE


def called() -> str:
    """The command, as it can be called from where the user stands."""
    if shutil.which("lifehold"):
        return "lifehold"
    if os.path.basename(sys.argv[0]) == "lifehold":
        return quote(sys.argv[0])
    return f"{quote(sys.executable)} -m lifehold"


class Part:
    """One process of the story, in a session of its own, so that Ctrl-C is ours to deal with."""

    def __init__(self, *words: str, folder: str) -> None:
        environment = os.environ | {"LIFEHOLD_DIR": folder}
        for name in [
            name for name in environment if name.startswith("LIFEHOLD_") and name != "LIFEHOLD_DIR"
        ]:
            del environment[name]
        self.process = subprocess.Popen(
            [sys.executable, "-m", *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, cwd=folder, env=environment, start_new_session=True,
        )  # fmt: skip
        self.pid = self.process.pid
        self._rest = b""

    def line(self) -> str:
        """Its next line of output. Raises RuntimeError when none comes."""
        assert self.process.stdout is not None
        number = self.process.stdout.fileno()
        until = clock.now() + PATIENCE
        while b"\n" not in self._rest:
            if not select.select([number], [], [], max(0.0, until - clock.now()))[0]:
                raise RuntimeError(f"process {self.pid} said nothing for {PATIENCE:g} s")
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
        """Whatever state it is in. KILL also ends what is stopped."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


class Story:
    """The four scenes, and the pen."""

    def __init__(self, folder: str, *, fast: bool) -> None:
        self.folder, self.fast = folder, fast
        self.parts: list[Part] = []
        self.started_at = clock.now()
        self.width = max(NARROWEST, min(WIDEST, shutil.get_terminal_size().columns))
        self.colours = (
            sys.stdout is not None and sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        )

    def tell(self) -> None:
        first = f"lifehold demo: real processes, real locks, real times, in {self.folder}"
        name = "lifehold demo"
        self._write("\n".join(self._wrapped(first)).replace(name, self._in("bold", name), 1))
        holder = self._first_scene()
        waiter = self._second_scene(holder)
        self._third_scene(holder, waiter)
        self._fourth_scene()
        self._write(f"\nYour turn:  {called()} run nightly-report -- echo 'my turn'")
        self._write(f"            {called()} run --help")

    def _first_scene(self) -> Part:
        self._title("1", "A process takes the lock and works")
        holder = self._part("lifehold.cli.demo_part", "holder", "nightly-report.lock")
        token = holder.line()
        self._note("holder", f"pid {holder.pid} holds 'nightly-report', token {token}")
        self._pause(1.5)
        return holder

    def _second_scene(self, holder: Part) -> Part:
        self._title("2", "Another one wants it too: it waits, and is told for whom")
        command = ["run", "nightly-report", "--", "echo", "the lock is mine"]
        self._note("you", f"$ lifehold run nightly-report -- echo {command[-1]!r}")
        quick = ["lifehold.cli.demo_part", "run", "0.3"] if self.fast else ["lifehold"]
        waiter = self._part(*quick, *command)
        told = waiter.line()
        while "waiting for" not in told:  # the name exists in the user's own folder too
            told = waiter.line()
        self._note("waiter", told)
        self._pause(2.5)
        return waiter

    def _third_scene(self, holder: Part, waiter: Part) -> None:
        self._title("3", "kill -9: the holder cleans nothing up, and nobody has to")
        self._note("you", f"$ kill -9 {holder.pid}")
        killed_at = clock.utc_now()
        holder.process.kill()
        said = [waiter.line(), waiter.line()]
        found = who("nightly-report", f"{self.folder}/nightly-report.lock")
        winner = found.holder or found.last
        for line in said:
            self._note("waiter", line)
        assert winner is not None
        assert winner.since is not None
        passed = f"{(winner.since - killed_at) * 1000:.1f} ms"
        self._note("", f"from kill -9 to the waiter's grant: {passed}", good=passed)
        self._pause(3.0)

    def _fourth_scene(self) -> None:
        import sqlite3

        self._title(
            "4", "A paused holder loses its lock and writes too late: the data refuses its token"
        )
        path, database = "account.lock", os.path.join(self.folder, "bank.sqlite")
        rows = sqlite3.connect(database, isolation_level=None)
        rows.execute(
            "create table account (id integer primary key, balance integer, token integer)"
        )
        rows.execute("insert into account values (1, 0, 0)")
        try:
            self._late_writer(path, database)
            balance, token = rows.execute("select balance, token from account").fetchone()
        finally:
            rows.close()
        good = f"balance {balance}, token {token}"
        self._note("", f"the row in the end: {good}: B's write stands", good=good)

    def _late_writer(self, path: str, database: str) -> None:
        first = self._part("lifehold.cli.demo_part", "writer", path, database, "100")
        token = first.line()
        self._note(
            "A",
            f"pid {first.pid} holds 'account', token {token}; next: balance = 100",
        )
        self._pause(1.0)
        os.kill(first.pid, signal.SIGSTOP)
        self._note(
            "you",
            f"$ kill -STOP {first.pid}   (a long pause)",
        )
        os.unlink(f"{self.folder}/{path}")
        self._note("you", "$ rm account.lock   (somebody cleans up)")
        self._pause(1.0)
        second = self._part("lifehold.cli.demo_part", "writer", path, database, "200")
        token = second.line()
        self._note("B", f"pid {second.pid} holds 'account', token {token}: greater")
        second.go()
        self._note("B", f"{demo_part.GUARD}: {self._rows(second.line())} (balance = 200)")
        self._note("B", second.line())
        self._pause(2.0)
        os.kill(first.pid, signal.SIGCONT)
        first.go()
        self._note("you", f"$ kill -CONT {first.pid}   (A goes on, knowing nothing)")
        self._note("A", f"the same statement, balance = 100: {self._rows(first.line())}")
        self._note("A", first.line(), "red")
        self._note("A", first.line(), "red")
        self._pause(1.0)

    def end(self) -> None:
        """No process is left behind, even if Ctrl-C comes twice."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for part in self.parts:
            part.end()

    # ---- the pen
    # ---------------------------------------------------------------------------------------

    def _part(self, *words: str) -> Part:
        # A Ctrl-C between the start of a process and its entry in the list would leave it behind.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        try:
            self.parts.append(Part(*words, folder=self.folder))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return self.parts[-1]

    def _rows(self, count: str) -> str:
        return f"{count} {'row' if count == '1' else 'rows'} changed"

    def _pause(self, seconds: float) -> None:
        if not self.fast:
            clock.pause(seconds)

    def _title(self, number: str, text: str) -> None:
        self._write("")
        for line in self._wrapped(f"{number}  {text}", indent=3):
            self._write(self._in("bold", line))

    def _note(self, role: str, text: str, colour: str = "", *, good: str = "") -> None:
        """One thing that happened, when, and whose doing; `good`: what is good of it."""
        head = f"{clock.now() - self.started_at:6.2f} s  "
        lines = self._wrapped(text, self.width - INDENT)
        if good:
            lines = [line.replace(good, self._in("green", good)) for line in lines]
        shown = (
            f"{self._in('dim', head)}{self._in('cyan', f'{role:<7}')} {self._in(colour, lines[0])}"
        )
        self._write(shown)
        for line in lines[1:]:
            self._write(" " * INDENT + self._in(colour, line))

    def _wrapped(self, text: str, width: int = 0, *, indent: int = 0) -> list[str]:
        return textwrap.wrap(
            text, width or self.width, subsequent_indent=" " * indent, break_on_hyphens=False
        )

    def _in(self, style: str, text: str) -> str:
        return f"\033[{STYLES[style]}m{text}\033[0m" if style and self.colours else text

    def _write(self, text: Any) -> None:
        put(text)
