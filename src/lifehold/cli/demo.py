"""`lifehold demo`: what a lock must do when things go wrong, shown with real processes and times.

Promise: everything happens in a temporary folder; no process and no file is left behind, however
it ends.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import textwrap

from ..core.errors import LifeholdError
from ..core.explain import quote
from ..core.fence import admit
from ..lock import Lock
from ..ops.who import who
from ..runtime import clock
from . import colour, exits
from .notice import ERASE
from .options import DEMO, arguments
from .render import put

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

ROLE = "lifehold.cli.demo"


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
    if os.path.isfile(sys.argv[0]) and sys.argv[0].endswith(".pyz"):
        return f"{quote(sys.executable)} {quote(os.path.abspath(sys.argv[0]))}"
    return f"{quote(sys.executable)} -m lifehold"


class Story:
    """The four scenes."""

    def __init__(self, folder: str, *, fast: bool) -> None:
        self.folder, self.fast, self.pen = folder, fast, StoryWriter()
        self.parts: list[Part] = []
        self.orphan = 0  # the command of a killed wrapper

    def tell(self) -> None:
        pen = self.pen
        first = "lifehold demo: four scenes with real processes, real locks and real times"
        put("\n".join(pen.wrapped(first)).replace("lifehold", pen.styled("bold", "lifehold"), 1))
        holder, waiter = self._who_waits_is_told()
        self._a_killed_holder_frees_the_lock(holder, waiter)
        self._a_late_writer_is_refused()
        self._a_lock_is_never_free_beside_its_command()
        passed = f"{clock.now() - pen.started_at:.0f}"
        put("")
        for line in pen.wrapped(f"Four scenes in {passed} s, and nothing is left of them."):
            put(line)
        put(f"Your turn:  {called()} run nightly-report -- echo 'my turn'")
        put(f"            {called()} run --help")

    def _who_waits_is_told(self) -> tuple[Part, Part]:
        pen = self.pen
        pen.title(1, "A lock is held: a waiter is told who has it")
        holder = self._part(ROLE, "holder", "nightly-report.lock")
        token = holder.line()
        pen.note("holder", f"pid {holder.pid} holds 'nightly-report', token {token}")
        self._pause(0.8)
        command = ["run", "nightly-report", "--", "echo", "the lock is mine"]
        pen.note("you", f"$ lifehold run nightly-report -- echo {command[-1]!r}")
        waiter = self._part(ROLE, "run", "0.3" if self.fast else "2", *command)
        told = self._line(waiter, "waiter")
        while "waiting for" not in told:  # the name exists in the user's own folder too
            told = self._line(waiter, "waiter")
        alive = "alive: yes, checked now"
        pen.note("waiter", told.removeprefix("lifehold: "), good=alive)
        self._pause(2.2)
        return holder, waiter

    def _a_killed_holder_frees_the_lock(self, holder: Part, waiter: Part) -> None:
        pen = self.pen
        pen.title(2, "kill -9: the holder cleans nothing up, and nobody has to")
        pen.note("you", f"$ kill -9 {holder.pid}")
        killed_at = clock.utc_now()
        holder.kill()
        said = [waiter.line(), waiter.line()]
        waiter.wait(PATIENCE)  # then the record tells of its grant, and nobody holds it
        found = who("nightly-report", f"{self.folder}/nightly-report.lock")
        winner = found.last
        for line in said:
            pen.note("waiter", line.removeprefix("lifehold: "))
        assert winner is not None
        assert winner.since is not None
        passed = f"{(winner.since - killed_at) * 1000:.1f} ms"
        pen.note("", f"from kill -9 to the waiter's grant: {passed}", good=passed)
        self._pause(2.0)

    def _a_late_writer_is_refused(self) -> None:
        pen, lock, data = self.pen, "account.lock", f"{self.folder}/account.json"
        pen.title(3, "A paused holder wakes up too late: the data refuses its old token")
        first = self._part(ROLE, "writer", lock, data, "100")
        pen.note("A", f"pid {first.pid} holds 'account', token {first.line()}; next: balance = 100")
        self._pause(0.6)
        os.kill(first.pid, signal.SIGSTOP)
        pen.note("you", f"$ kill -STOP {first.pid}   (a long pause)")
        self._pause(0.6)
        os.unlink(f"{self.folder}/{lock}")
        pen.note("you", "$ rm account.lock   (somebody cleans up)")
        self._pause(0.6)
        second = self._part(ROLE, "writer", lock, data, "200")
        pen.note("B", f"pid {second.pid} holds 'account', token {second.line()}: greater")
        second.go()
        pen.note("B", f"balance = 200: {second.line()}", good="written")
        self._pause(1.0)
        os.kill(first.pid, signal.SIGCONT)
        first.go()
        pen.note("you", f"$ kill -CONT {first.pid}   (A goes on, knowing nothing)")
        pen.note("A", f"balance = 100: {first.line()}", bad="StaleToken")
        pen.note("A", f"check(): {first.line()}", bad="LeaseLost")
        with open(data, encoding="utf-8") as file:
            content = file.read().strip()
        pen.note("", f"account.json in the end: {content}", good='"balance": 200')
        self._pause(2.0)

    def _a_lock_is_never_free_beside_its_command(self) -> None:
        pen = self.pen
        pen.title(4, "The wrapper is killed and its command runs on: so the lock stays held")
        wrapper = self._part(
            "lifehold", "run", "backup", "--", "sh", "-c", "echo $$; exec sleep 60"
        )
        self.orphan = command = int(wrapper.line())
        pen.note(
            "you", f"$ lifehold run backup -- sleep 60 &   (pid {wrapper.pid}, sleep {command})"
        )
        self._pause(0.6)
        wrapper.kill()
        wrapper.wait(PATIENCE)
        pen.note("you", f"$ kill -9 {wrapper.pid}   (the wrapper, not the command)")
        self._pause(0.6)
        pen.note("you", "$ lifehold run -n backup -- echo in")
        refused = self._part("lifehold", "run", "-n", "backup", "--", "echo", "in")
        told = [self._line(refused, "next") for _ in range(4)]
        pen.note("next", told[0], bad="could not acquire")
        for line in (told[1], told[3]):
            pen.note("", " ".join(line.split()), good=f"pid {command}")
        self._pause(1.2)
        os.kill(command, signal.SIGTERM)
        self.orphan = 0
        pen.note("you", f"$ kill {command}   (the command itself)")
        pen.note("you", "$ lifehold run backup -- echo 'in at once'")
        following = self._part("lifehold", "run", "backup", "--", "echo", "in at once")
        pen.note("next", self._line(following, "next"), "green")
        self._pause(0.8)

    def end(self) -> None:
        """No process is left behind, even if Ctrl-C comes twice."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for part in self.parts:
            part.end()
        if self.orphan:
            try:
                os.kill(self.orphan, signal.SIGKILL)
            except ProcessLookupError:
                return  # it was ended, and we were interrupted before we could note it

    def _part(self, *words: str) -> Part:
        # A Ctrl-C between the start of a process and its entry in the list would leave it behind.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        try:
            self.parts.append(Part(*words, folder=self.folder, mask=before))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return self.parts[-1]

    def _line(self, part: Part, role: str) -> str:
        """Its next line, with a running clock until it comes."""
        return part.line(lambda: self.pen.clock(role, "..."))

    def _pause(self, seconds: float) -> None:
        """For the reader."""
        if not self.fast:
            clock.pause(max(seconds, FRAME))


# ------------------------------------------------------------------------------------------------
# The other processes of `lifehold demo`: `python -m lifehold.cli.demo ROLE ...`.
#
# holder PATH                   takes the lock and works until its input ends writer PATH DATA
# AMOUNT       takes the lock; at a line of input writes AMOUNT, guarded by its token run SECONDS
# WORDS...          `lifehold WORDS`, told after SECONDS who holds the lock (for --fast)


def holder(path: str) -> int:
    """Scenes 1 and 2."""
    with Lock(path) as lease:
        print(lease.token, flush=True)
        sys.stdin.read()
    return 0


def guarded_write(path: str, name: str, balance: int, token: int) -> None:
    """Scene 3: what every program should do whose data can remember a token.

    The data keeps the token of who wrote it last, and refuses an older one. Raises StaleToken.
    """
    with open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # compare and write are one step
        content = file.read()
        admit(name, token, json.loads(content)["token"] if content else 0)
        file.seek(0)
        file.truncate()
        file.write(json.dumps({"balance": balance, "token": token}) + "\n")


def writer(path: str, data: str, balance: str) -> int:
    """Scene 3."""
    lease = Lock(path).acquire()
    print(lease.token, flush=True)
    sys.stdin.readline()
    try:
        assert lease.token is not None
        guarded_write(data, lease.name, int(balance), lease.token)
        print("written, under its token", flush=True)
    except LifeholdError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        try:
            lease.check()
        except LifeholdError as lost:
            print(f"{type(lost).__name__}: {lost}", flush=True)
    sys.stdin.read()
    return 0


def run(seconds: str, *words: str) -> int:
    """The command, in less of a hurry to be slow."""
    from ..core import acquire
    from .main import main

    acquire.FIRST_NOTICE = float(seconds)
    sys.argv[1:] = words
    return main()


if __name__ == "__main__":
    role, *rest = sys.argv[1:]
    sys.orig_argv[:] = ["lifehold", "demo", role]
    roles: dict[str, Callable[..., int]] = {"holder": holder, "writer": writer, "run": run}
    sys.exit(roles[role](*rest))


# ------------------------------------------------------------------------------------------------
# The stage of `lifehold demo`: its processes, and the pen that writes down what they do.
#
# Promise: every process is one of ours, started in a session of its own and ended with the story; a
# line is never wider than the terminal; where stdout is no terminal there is not one control
# character in it.


WIDEST, NARROWEST = 100, 40  # columns
INDENT, LITTLE = 17, 3  # columns before a text; in a narrow terminal only its first line has more
NARROW = 60
PATIENCE = 30.0  # seconds for a line of a part: then something is broken, and we say so
GRACE = 2.0  # seconds to end by oneself
TICK = 0.002  # seconds between two looks whether a part has ended
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
            [sys.executable, "-m", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=environment,
            start_new_session=True,
            preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, mask),  # noqa: PLW1509
        )
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

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def wait(self, seconds: float) -> bool:
        """Whether it has ended, `seconds` from now at the latest.

        Popen's own methods have a lock that a Ctrl-C between two of their lines leaves taken for
        ever (CPython 3.13 and before): so nothing is asked of them.
        """
        until = clock.now() + seconds
        while self.process.returncode is None:
            try:
                done = os.waitpid(self.pid, os.WNOHANG)[0]
            except ChildProcessError:
                done = self.pid  # Ctrl-C came before we could note it
            if done:
                self.process.returncode = 0
            elif clock.now() >= until:
                return False
            else:
                clock.pause(TICK)
        return True

    def end(self) -> None:
        """Whatever state it is in: TERM, so that a wrapper takes its command along, then KILL.

        One that was waited for is gone, and its number may be another's already.
        """
        over = self.process.returncode is not None
        for number in () if over else (signal.SIGTERM, signal.SIGCONT, signal.SIGKILL):
            try:
                os.killpg(self.pid, number)
            except ProcessLookupError:
                break
            if number == signal.SIGCONT and self.wait(GRACE):
                break
        self.wait(PATIENCE)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


class StoryWriter:
    """Writes what happened, when, and whose doing it was."""

    def __init__(self) -> None:
        self.started_at = clock.now()
        self.width = max(NARROWEST, min(WIDEST, shutil.get_terminal_size().columns))
        terminal = sys.stdout is not None and sys.stdout.isatty()
        self.colours = colour.wanted()
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
            text,
            self.width,
            initial_indent=" " * len(f"{time}{who}"),
            subsequent_indent=" " * (LITTLE if narrow else INDENT),
            break_on_hyphens=False,
        )
        for mark, tint in ((good, "green"), (bad, "red")):
            if mark:
                lines = [line.replace(mark, self.styled(tint, mark)) for line in lines]
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
