"""`clear` against fresh acquires: no live lock is ever lost.

    python tests/soak/clear_race.py 10000 [FORM...]

Two processes take and release a lock all the time, a third takes it again and again and is killed
with it (a death is a round), a fourth calls `clear` all the time. Who is inside makes a file that
nobody else may have made, and looks before it leaves whether the lock is still its own. Forms:
kinds of lifehold, and the bare forms of other tools (`pid`: a number in a file made by O_EXCL;
`link`: a symbolic link), which nobody but `clear` breaks here. Prints one line per form, and ends
with 1 if two were inside at once, or a live lock was lost.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from lifehold import Lock, NotAcquired
from lifehold.ops import clear as ops

KINDS = ("soft", "link", "directory", "generation")
FORMS = (*KINDS, "pid", "link-name")


def of_kind(path: Path, kind: str) -> Callable[[], contextlib.AbstractContextManager[object]]:
    @contextlib.contextmanager
    def held() -> Iterator[object]:
        with Lock(path, kind=kind).acquire(wait=5) as lease:
            yield lease.check
            lease.check()

    return held


def bare(path: Path, form: str) -> Callable[[], contextlib.AbstractContextManager[object]]:
    def words() -> str:
        return os.readlink(path).partition("-")[2] if form == "link-name" else path.read_text()

    def made() -> bool:
        text = f"{os.getpid()}"
        try:
            if form == "link-name":
                path.symlink_to(f"{os.uname().nodename}-{text}")
            else:  # written before it has its name: a name without a number proves nothing
                aside = path.with_name(f"{path.name}.{text}")
                aside.write_text(text)
                try:
                    os.link(aside, path)
                finally:
                    aside.unlink()
        except FileExistsError:
            return False
        return True

    @contextlib.contextmanager
    def held() -> Iterator[object]:
        until = time.monotonic() + 5
        while not made():
            if time.monotonic() > until:
                raise NotAcquired("not in time")
            time.sleep(0.0002)
        mine = os.lstat(path)

        def check() -> None:
            now = os.lstat(path)
            if (now.st_ino, now.st_dev) != (mine.st_ino, mine.st_dev):
                raise RuntimeError("another lock stands there")
            if words() != str(os.getpid()):
                raise RuntimeError("another process is named there")

        yield check
        check()
        path.unlink()

    return held


class Race:
    """One form. `told`: what the processes found, one JSON line each."""

    def __init__(self, folder: Path, form: str) -> None:
        self.path = folder / ("SingletonLock" if form == "link-name" else "a.pid")
        self.inside, self.told = folder / "inside", folder / "told"
        self.held = of_kind(self.path, form) if form in KINDS else bare(self.path, form)

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
                    check()
                except Exception as error:
                    self.say("lost", why=repr(error))
                self.inside.unlink()
        except NotAcquired:
            self.say("late")
        except Exception as error:
            self.say("lost", why=repr(error))

    def acquire_for_ever(self) -> None:
        while True:
            self.enter()

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


def play(form: str, rounds: int) -> dict[str, int]:
    """The race, until so many have died with the lock."""
    with tempfile.TemporaryDirectory(prefix="clear-") as name:
        os.environ["LIFEHOLD_DIR"] = f"{name}/names"
        race = Race(Path(name), form)
        race.told.touch()
        works = (race.acquire_for_ever, race.acquire_for_ever, race.clear_for_ever)
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
    rounds, forms = int(words[0]), words[1:] or FORMS
    wrong = 0
    for form in forms:
        began = time.monotonic()
        found = play(form, rounds)
        wrong += found.get("two inside", 0) + found.get("lost", 0)
        print(f"{form:<12} {found} {time.monotonic() - began:.0f} s", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
