"""strace kills, or fails, every system call by which a lock is taken, looked at, renewed, let go.

Afterwards the next one gets it as soon as it should, though the process that met the error lives on
with all it has open; the error is one of lifehold's own. In every run of the tests a few calls of
each cell have their turn, in the long ones all of them.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import time

from faults.cell import fault
from faults.making import made
from faults.party import Gone
from faults.vault import write
from lifehold.testing.crash import Child, point
from soak import canary

CALLS = (
    "openat open flock fcntl pread64 pwrite64 newfstatat fstat lstat stat statx link "
    "linkat unlink unlinkat rename renameat renameat2 mkdir mkdirat rmdir getdents64 ftruncate "
    "truncate utimensat fsync fdatasync chmod fchmod fchmodat close"
).split()
FEW = 3  # points of a cell in every run
NEW, USED, STALE = "new", "used", "stale"  # what the victim finds at the path
_known: dict[tuple[str, str], list[tuple[str, int, str]]] = {}


def prepare(scene, state, following):
    """Nothing at the path; what a holder that has let go leaves there; or what a dead one does."""
    if state == NEW:
        shutil.rmtree(scene.folder)
        scene.folder.mkdir()
        return
    scene.holds(following)
    scene.goes_on(following)
    if state == STALE:
        with Child(hold, scene.row.make, str(scene.path)) as child:
            child.at("held")
            child.kill()


def hold(make, path):
    lease = made(make, path).acquire(60)
    point("held", lease.token)


def traced(scene, *words):
    """The victim under strace, and where that writes."""
    trace = scene.base / f"trace{time.monotonic_ns()}"
    return trace, scene.party(
        "strace", "-f", "-qq", "-o", trace, *words, script="victim"
    )  # fmt: skip


def one_grant(victim):
    """Let it have its grant, judged by us; what it says at the end. Raises Gone when it dies."""
    judge = canary.Canary(victim.yard, victim.name)
    token = victim.ask("go", within=60)["got"]
    if token is not None:
        inside = judge.enter(token)
        write(victim.yard, token, victim.name)
        try:
            victim.ask("go", within=60)
        finally:
            if inside:
                judge.leave()
    return victim.ask("go", within=60)


def calls_of(scene, state, following):
    """(name, how often it was called by then in its thread, text) of each call of the lock."""
    if (known := _known.get((scene.row.name, state))) is not None:
        return known
    prepare(scene, state, following)
    trace, victim = traced(scene)
    one_grant(victim.ready())
    victim.__exit__()
    seen, found, inside = {}, [], set()
    for line in trace.read_text().splitlines():
        thread, _, text = line.partition(" ")
        name = text.strip().partition("(")[0]
        if not name.isidentifier():
            continue
        seen[thread, name] = number = seen.get((thread, name), 0) + 1
        if name == "access" and '"/begin"' in text:
            inside.add(thread)
        elif name == "access" and '"/end"' in text:
            inside.discard(thread)
        elif thread in inside and name in CALLS and '"/proc' not in text:
            found.append((name, number, re.sub(r"\s+", " ", text.strip())[:70]))
    assert len(found) > 8, "the victim made no calls"
    _known[scene.row.name, state] = found
    return found


def turns(scene, states, following):
    """(state, name, number, text) of those that have their turn.

    All of them, or a few, other ones for each fault and kind.
    """
    found = [(state, *call) for state in states for call in calls_of(scene, state, following)]
    if scene.whole:
        return found
    offset = sum(map(ord, scene.cell.fault + scene.row.name))
    step = max(1, len(found) // FEW)
    return found[offset % step :: step][:FEW]


def killed_at(scene, *states):
    """kill -9 at each; the one after that is in at once."""
    following = scene.ready()
    points, met = turns(scene, states, following), 0
    for state, name, number, text in points:
        prepare(scene, state, following)
        if not killed_in(scene, name, number):
            continue
        met += 1
        if scene.recovers(following, time.monotonic(), scene.row.proof) is None:
            scene.cell.note = f"killed at {text}, {state}"
            return
        scene.goes_on(following)
    if not met:
        scene.cell.complaints.append("no call was met")
    scene.cell.note = scene.cell.note or f"{met} calls"


def killed_in(scene, name, number):
    """Let a victim die there. False: it died before the lock had its turn, three times.

    Who looks now and then makes more or fewer calls in another run.
    """
    for _ in range(3):
        trace, victim = traced(
            scene, f"--trace={name}", f"--inject={name}:signal=KILL:when={number}"
        )
        ready = False
        with contextlib.suppress(Gone):
            victim.ready()
            ready = True
            canary.killed(victim.yard, victim.name)
            one_grant(victim)
        victim.__exit__()
        trace.unlink()
        if ready:
            return True
    return False


def threaded(row):
    return "here its calls are another thread's; tests/crash kills it" if row.kind == "once" else ""


@fault("kill -9 at every system call", "strace", unless=threaded)
def kill_anywhere(scene):
    killed_at(scene, NEW, USED)


@fault("kill -9 at every system call of a takeover", "strace", unless=threaded)
def kill_in_a_takeover(scene):
    """The holder is dead, and so is who came to take its place."""
    killed_at(scene, STALE)


def failed_at(scene, errno):
    following = scene.ready()
    points = turns(scene, (NEW, USED), following)
    for state, name, number, text in points:
        if name == "close":
            continue
        prepare(scene, state, following)
        trace, victim = traced(
            scene,
            "--seccomp-bpf",
            f"--trace={name}",
            f"--inject={name}:error={errno}:when={number}",
        )
        said = one_grant(victim.ready())
        for error in said["errors"]:
            if not error["ours"]:
                what = f"{errno} at {text}, {state}: {error['error']} {error['text']}"
                scene.cell.complaints.append(what)
        bound = scene.row.proof_by(witness=bool(said["errors"]))
        told = f"{errno} at {text}, {state}"
        if scene.recovers(following, time.monotonic(), bound, after=told) is None:
            told = [f"{error['text']} ({error['where']})" for error in said["errors"]]
            scene.cell.note = f"{errno} at {text}, {state}: {told}"
            return
        scene.goes_on(following)
        victim.__exit__()
        trace.unlink()
    scene.cell.note = scene.cell.note or f"{len(points)} calls"


for _errno in ("EIO", "ENOSPC", "EINTR", "ESTALE"):

    @fault(f"{_errno} at every system call", "strace", unless=threaded)
    def fail_anywhere(scene, errno=_errno):
        failed_at(scene, errno)
