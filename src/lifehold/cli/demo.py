"""`lifehold demo`: what a lock must do when things go wrong, shown with real processes and times.

Promise: everything happens in a temporary folder; no process and no file is left behind, however
it ends.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys

from ..core.explain import quote
from ..ops.who import who
from ..runtime import clock
from . import exits
from .demo_stage import FRAME, Part, Pen
from .options import DEMO, arguments
from .render import put

ROLE = "lifehold.cli.demo_part"


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
        self.folder, self.fast, self.pen = folder, fast, Pen()
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
        pen.title(1, "A lock is held: who waits for it is told who has it")
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
        holder.process.kill()
        said = [waiter.line(), waiter.line()]
        waiter.process.wait()  # then the record tells of its grant, and nobody holds the lock
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
        with open(data, encoding="ascii") as file:
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
        wrapper.process.kill()
        wrapper.process.wait()
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
        if self.orphan:
            os.kill(self.orphan, signal.SIGKILL)
        for part in self.parts:
            part.end()

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
