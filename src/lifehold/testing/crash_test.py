"""The crash test for anybody's lock: killed at every step, by its holder and by its successor.

    def factory(path):
        lock = filelock.FileLock(path)
        return lambda timeout: lock.acquire(timeout=timeout), lock.release

    report = crash_test(factory, folder)
    assert report.ok, report.text()

`factory(path)` returns `(acquire, release)`, or `(acquire, release, held)`: `acquire(timeout)`
raises or returns False when it did not get the lock, `held()` says whether it still does. It is
called anew in each process. What is looked at:

- killed: SIGKILL behind each step of acquire, in the body, behind each step of release. The next
  process acquires within `bound`; of `contenders` processes each gets its turn, and no two at once.
- twice: the successor is killed too, behind each step by which it takes the lock over.
- stopped: a holder that stands still for `stall` seconds and goes on does not work beside another.

A step is a call of the kernel or of a file that Python code makes through a C function: open,
write, flock, unlink and their like. Linux and macOS: processes are forked.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import tempfile
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ..core.errors import InvalidArgument
from ..runtime import clock

if TYPE_CHECKING:
    from collections.abc import Callable

    Factory = Callable[[str], tuple[Callable[..., object], ...]]

STEPS = frozenset(
    "open write writelines flush close flock lockf fcntl unlink remove rename replace mkdir rmdir"
    " link symlink ftruncate truncate fsync utime pwrite send sendall commit execute".split()
)
OF_OS = frozenset(("remove", "replace"))  # those of a list and of a str are no steps
REFUSED = 75  # how a child ends that did not get the lock
MOST = 40  # steps of one phase that are tried: a lock that polls makes no end of them
TURNS = 3  # of each contender


@dataclass(frozen=True, slots=True)
class CrashFault:
    """What a lock did wrong, and where it was killed before."""

    claim: str  # blocked, two-holders, starved, not-fenced, broken
    at: str
    text: str


@dataclass(slots=True)
class CrashReport:
    """What was tried and what came of it."""

    trials: int = 0
    steps: list[str] = field(default_factory=list)
    faults: list[CrashFault] = field(default_factory=list)
    untried: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.faults

    def text(self) -> str:
        """One line a fault, and what was tried and was not."""
        rows = [f"{fault.claim}: {fault.at}: {fault.text}" for fault in self.faults]
        rows += [f"not tried: {each}" for each in self.untried]
        return "\n".join([*rows, f"{self.trials} trials, {len(self.faults)} faults"])

    def numbered(self, phase: str, steps: list[str]) -> list[tuple[int, str]]:
        """The steps of a phase that are to be tried, by their numbers; the others are noted."""
        tried = list(enumerate(steps, 1))
        if not tried:
            self.untried.append(f"a death within {phase}: no step of it was seen")
        if len(tried) > MOST:
            self.untried.append(f"{len(tried) - MOST} of the {len(tried)} steps of {phase}")
            tried = (
                tried[: MOST // 2] + tried[-(MOST // 2) :]
            )  # a takeover comes behind the polling
        self.steps += [f"{phase} {name}" for _, name in tried]
        return tried


@dataclass(frozen=True, slots=True)
class Bounds:
    """Seconds, and how many."""

    bound: float = 3.0
    contenders: int = 4
    stall: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.bound < math.inf or not 0 <= self.stall < math.inf:
            raise InvalidArgument(f"seconds, not bound={self.bound!r}, stall={self.stall!r}")
        if self.contenders < 1:
            raise InvalidArgument(f"contenders={self.contenders!r}: there is at least one")


def is_step(what: object) -> bool:
    """Whether a C function asks the kernel, or writes a file."""
    name, owner = getattr(what, "__name__", ""), getattr(what, "__self__", None)
    return name in STEPS and (name not in OF_OS or owner is sys.modules.get("posix"))


def steps_until(kill_at: int, seen: list[str]) -> Callable[[Any, str, Any], None]:
    """A profiler that counts the steps and kills this process behind one of them."""

    def profile(_frame: object, event: str, what: Any) -> None:
        if event == "c_return" and is_step(what):
            seen.append(what.__name__)
            if len(seen) == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    return profile


def forked(work: Callable[[], int]) -> int:
    """A child that runs this and ends with its answer; its number."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            code = work()
        except BaseException:
            code = 70
        finally:
            os._exit(code)
    return pid


def ended(pid: int, within: float) -> int | None:
    """The status of a child; None when it had to be killed, as it did not end in time."""
    until = clock.now() + within
    while (done := os.waitpid(pid, os.WNOHANG))[0] == 0:
        if clock.now() > until:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return None
        clock.pause(0.002)
    return os.waitstatus_to_exitcode(done[1])


def taken(acquire: Callable[..., object], timeout: float) -> bool:
    """Did it acquire? A refusal is False or an exception."""
    try:
        return acquire(timeout) is not False
    except Exception:
        return False


class Trial:
    """One lock in one folder, with nothing from the trials before."""

    def __init__(self, factory: Factory, folder: str, bounds: Bounds) -> None:
        self.factory = factory
        self.bounds = bounds
        self.path = os.path.join(tempfile.mkdtemp(dir=folder), "app.lock")
        self.log = self.path + ".holds"

    def life(self, phase: str, kill_at: int) -> int | None:
        """A holder that is killed behind a step of a phase; without one it lives to its end."""

        def work() -> int:
            acquire, release = self.factory(self.path)[:2]
            seen: list[str] = []
            profile = steps_until(kill_at, seen)
            if phase == "acquire":
                sys.setprofile(profile)
            got = taken(acquire, self.bounds.bound)
            sys.setprofile(None)
            if phase == "body" and got:
                os.kill(os.getpid(), signal.SIGKILL)
            if got and phase == "release":
                sys.setprofile(profile)
            if got:
                release()
            sys.setprofile(None)
            with open(f"{self.path}.{phase}.steps", "w") as file:
                json.dump(seen, file)
            return 0 if got else REFUSED

        return ended(forked(work), self.bounds.bound * 3 + 5)

    def steps(self, phase: str) -> list[str] | None:
        """Those of a life to its end; None of one that did not get the lock."""
        if self.life(phase, 0) != 0:
            return None
        with open(f"{self.path}.{phase}.steps") as file:
            return [str(each) for each in json.load(file)]

    def contend(self) -> list[tuple[str, str]]:
        """Some processes at once: each is to have its turn, and no two the same time.

        They begin together: else a slow fork of the last one comes when the first is done.
        """
        ready, go = os.pipe()

        def work() -> int:
            acquire, release = self.factory(self.path)[:2]
            os.close(go)
            os.read(ready, 1)  # its end: all have been forked
            log = os.open(self.log, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
            for _turn in range(TURNS):
                if not taken(acquire, self.bounds.bound):
                    return REFUSED
                begun = clock.now()
                clock.pause(0.01)
                os.write(log, f"{begun} {clock.now()}\n".encode())
                release()
            return 0

        try:
            pids = [forked(work) for _ in range(self.bounds.contenders)]
        finally:
            os.close(go)
            os.close(ready)
        codes = [ended(pid, self.bounds.bound * 2 + 5) for pid in pids]
        served = codes.count(0)
        if served == 0 and REFUSED in codes:
            return [("blocked", f"nobody acquires within {self.bounds.bound:g} s")]
        faults = []
        missed = codes.count(REFUSED) + codes.count(None)
        if missed:
            faults.append(("starved", f"{missed} of {len(codes)} did not get their turn"))
        if served + missed < len(codes):
            raised = len(codes) - served - missed
            faults.append(("broken", f"{raised} of {len(codes)} ended with an error"))
        if self.overlaps():
            faults.append(("two-holders", "two processes held the lock at the same time"))
        return faults

    def overlaps(self) -> bool:
        if not os.path.exists(self.log):
            return False  # nobody held it to the end
        with open(self.log) as file:
            spans = sorted(tuple(map(float, row.split())) for row in file)
        return any(b[0] < a[1] for a, b in pairwise(spans))

    def stalled(self) -> list[tuple[str, str]]:
        """A holder stands still, another one tries, the first goes on."""

        def work() -> int:
            made = self.factory(self.path)
            if not taken(made[0], self.bounds.bound):
                return REFUSED
            os.kill(os.getpid(), signal.SIGSTOP)
            return 0 if len(made) < 3 or made[2]() else 1

        def try_it() -> int:
            return 0 if taken(self.factory(self.path)[0], self.bounds.bound) else REFUSED

        holder = forked(work)
        _pid, status = os.waitpid(holder, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            return [("broken", "it did not get the lock that nobody holds")]
        clock.pause(self.bounds.stall)
        got = ended(forked(try_it), self.bounds.bound + 5) == 0
        os.kill(holder, signal.SIGCONT)
        goes_on = ended(holder, 5) == 0
        if got and goes_on:
            return [("not-fenced", "it was taken over while it stood still, and it goes on")]
        return []


def taking_over(
    factory: Factory, folder: str, bounds: Bounds, report: CrashReport
) -> list[tuple[int, str]]:
    """The steps of who acquires behind a death: often others than where nobody has been."""
    trial = Trial(factory, folder, bounds)
    trial.life("body", 0)
    steps = trial.steps("acquire")
    if steps is None:
        report.untried.append("a death within the takeover: the successor did not acquire")
        return []
    return report.numbered("takeover", steps)


def crash_test(
    factory: Factory,
    folder: str,
    *,
    bound: float = 3.0,
    contenders: int = 4,
    stall: float = 0.0,
    double: bool = True,
) -> CrashReport:
    """Kill the lock of `factory` at each of its steps; what came of it.

    `bound`: seconds within which a successor must acquire, a lease's ttl included. `stall`: how
    long a stopped holder stands still; 0 leaves that out. `double`: kill the successors too.
    """
    bounds = Bounds(bound, contenders, stall)
    report = CrashReport()
    if contenders == 1:
        report.untried.append("two at once: there is one contender")

    def judged(at: str, *lives: tuple[str, int]) -> None:
        trial = Trial(factory, folder, bounds)
        for phase, kill_at in lives:
            trial.life(phase, kill_at)
        report.trials += 1
        report.faults += [CrashFault(claim, at, text) for claim, text in trial.contend()]

    judged("nobody is killed")
    if any(fault.claim == "blocked" for fault in report.faults):
        return report  # it does not work at all
    acquiring = report.numbered("acquire", Trial(factory, folder, bounds).steps("acquire") or [])
    releasing = report.numbered("release", Trial(factory, folder, bounds).steps("release") or [])
    for number, name in acquiring:
        judged(f"killed in acquire, behind {name} ({number})", ("acquire", number))
    judged("killed in the body", ("body", 0))
    for number, name in releasing:
        judged(f"killed in release, behind {name} ({number})", ("release", number))
    for number, name in taking_over(factory, folder, bounds, report) if double else ():
        at = f"killed in the body; the successor in acquire, behind {name} ({number})"
        judged(at, ("body", 0), ("acquire", number))
    if stall:
        report.trials += 1
        found = Trial(factory, folder, bounds).stalled()
        report.faults += [CrashFault(claim, "stopped in the body", text) for claim, text in found]
    return report


def loaded(name: str) -> Factory:
    """The factory at `module:name`. Raises ValueError, ImportError or AttributeError."""
    import importlib

    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        raise ValueError(f"a factory is module:name, not {name!r}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    found: Factory = getattr(importlib.import_module(module), attribute)
    return found
