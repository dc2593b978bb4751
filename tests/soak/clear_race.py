"""`clear` against fresh acquires: no live lock is ever lost.

    python tests/soak/clear_race.py [--without] 10000 [FORM...]

Two processes take and release a lock all the time, a third takes it again and again and is killed
with it (a death is a round), a fourth calls `clear` all the time. Who is inside makes a file that
nobody else may have made, and looks before it leaves whether the lock is still its own. FORM: see
clear_forms.py, by default all; a tool that is not there is named as not run. Prints one line per
form, and ends with 1 if two were inside at once, or a live lock was lost ("moved": it was away for
a moment, and came back). `--without`: nobody calls `clear`, to see what a tool does by itself.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from clear_forms import FORMS, TOOLS, held

from lifehold import NotAcquired
from lifehold.ops import clear as ops

REST = 0.004  # seconds at most: else the dead are taken over before anybody can clear them


class Race:
    """One form. `told`: what the processes found, one JSON line each."""

    def __init__(self, folder: Path, form: str) -> None:
        self.path, self.held = held(folder, form)
        self.inside, self.told = folder / "inside", folder / "told"

    def say(self, what: str, **more: object) -> None:
        with self.told.open("a") as file:
            file.write(json.dumps({"what": what, **more}) + "\n")

    def enter(self) -> None:
        """One acquire, and one look whether anybody else is inside."""
        try:
            with self.held() as check:
                try:
                    os.close(os.open(self.inside, os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    self.say("two inside")
                    return
                time.sleep(0.0002)
                try:
                    if said := check():
                        self.say(str(said))
                except Exception as error:
                    self.say("lost", why=repr(error))
                self.inside.unlink()
        except NotAcquired:
            self.say("late")
        except Exception as error:
            self.say("lost", why=repr(error))

    def warm(self) -> None:
        """Load what the children need, here and once."""
        with self.held():
            ops.clear(str(self.path))

    def acquire_for_ever(self) -> None:
        while True:
            self.enter()
            time.sleep(random.random() * REST)

    def die(self) -> None:
        """Take it and die of it."""
        try:
            held = self.held()
            held.__enter__()
        except NotAcquired:
            os._exit(1)
        os.kill(os.getpid(), signal.SIGKILL)

    def clear_for_ever(self) -> None:
        while True:
            try:
                done = ops.clear(str(self.path))
            except FileNotFoundError:
                continue
            except Exception as error:
                self.say("lost", why=f"clear itself: {error!r}")
                continue
            if done.action == ops.REMOVED:
                self.say("removed")
            elif done.why.startswith("not removed"):
                self.say("put back", why=done.why)


def start(work: Callable[[], None]) -> int:
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(0)
    return child


def play(form: str, rounds: int, *, without: bool = False) -> dict[str, int]:
    """The race, until so many have died with the lock."""
    with tempfile.TemporaryDirectory(prefix="clear-") as name:
        os.environ["LIFEHOLD_DIR"] = f"{name}/names"
        race = Race(Path(name), form)
        race.told.touch()
        race.warm()
        works = [race.acquire_for_ever, race.acquire_for_ever, race.clear_for_ever][: 3 - without]
        children = [start(work) for work in works]
        deaths = 0
        try:
            while deaths < rounds:
                _, status = os.waitpid(start(race.die), 0)
                deaths += os.WIFSIGNALED(status)
        finally:
            for end in (signal.SIGSTOP, signal.SIGKILL):  # who is killed inside leaves his file
                for child in children:
                    os.kill(child, end)
            for child in children:
                os.waitpid(child, 0)
        found = [json.loads(line) for line in race.told.read_text().splitlines()]
        counted: dict[str, int] = {"deaths": deaths}
        for line in found:
            counted[line["what"]] = counted.get(line["what"], 0) + 1
            if line["what"] == "lost":
                print(line, file=sys.stderr)
        return counted


def main(words: list[str]) -> int:
    without = words[:1] == ["--without"]
    words = words[without:]
    rounds, forms = int(words[0]), words[1:] or FORMS
    wrong = 0
    for form in forms:
        if form in TOOLS and find_spec(TOOLS[form]) is None:
            print(f"{form:<14} not run: {TOOLS[form]} is not in this interpreter", flush=True)
            continue
        began = time.monotonic()
        found = play(form, rounds, without=without)
        wrong += found.get("two inside", 0) + found.get("lost", 0)
        print(f"{form:<14} {found} {time.monotonic() - began:.0f} s", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
