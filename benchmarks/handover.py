"""A lock passed from hand to hand: how late the next one is, how even the turns, after a kill."""

from __future__ import annotations

import os
import signal
import struct
import tempfile
import time
from pathlib import Path

from . import rivals
from .contest import Match, percentile, play
from .measure import Line, Plan, quartiles
from .rivals import Rival

BUDGETS = {"lifehold": 4.0, "lifehold fair": 5.0}  # times blocking flock(2), half of all
LATE_MS = 5.0  # one in a hundred, of what has a budget
SOFT_MS = 1.0  # half of all, of the soft kinds
EVEN = {"lifehold fair": 1.5}
CRASH_MS = {"kernel": 5.0, "soft": 50.0}
SETTLE_MS = {"lifehold link": 50.0}  # waited on purpose after a takeover, so not counted
PATIENCE = 2.0  # seconds after which a rival who cannot recover is given up
Rivals = dict[str, Rival]


def handovers(plan: Plan) -> list[Line]:
    """Relays of two and of eight processes; soft kinds on tmpfs as well."""
    everybody = {**rivals.KERNEL, **rivals.SOFT}
    lines = []
    for processes in (2, 8):
        for system, folder in plan.folders:
            near = folder == plan.disk
            chosen = (
                everybody if near else {rivals.BASE: rivals.KERNEL[rivals.BASE], **_ours_soft()}
            )
            found = _matches(plan, chosen, processes, folder, relay=True)
            lines += _late(f"hand-over, {processes} processes, {system}", found)
    return lines


def fairness(plan: Plan) -> list[Line]:
    """Eight processes that hold it for 2 ms and come back at once."""
    chosen = {**rivals.KERNEL, **_ours_soft()}
    found = _matches(plan, chosen, 8, plan.disk, relay=False)
    lines = []
    for name, matches in found.items():
        summed = [sum(column) for column in zip(*(match.turns for match in matches), strict=True)]
        low, middle, high = quartiles([match.unevenness for match in matches])
        lines.append(Line("fairness, 8 processes: most turns over least", name, middle, "",
                          low=low, high=high, budget=EVEN.get(name), of="value",
                          count=sum(summed)))  # fmt: skip
    return lines


def crashes(plan: Plan) -> list[Line]:
    """From the kill of the holder to the return of the waiter's acquire."""
    lines = []
    for group, chosen in (("kernel", rivals.KERNEL), ("soft", rivals.SOFT)):
        present, _ = _present(chosen, plan.disk)
        for name, make in present.items():
            budget = CRASH_MS[group] if name.startswith("lifehold") else None
            late = [ns / 1e6 for ns in killed(make, plan.of(3, 40), plan.disk)]
            value = percentile(late, 0.5) - SETTLE_MS.get(name, 0.0)
            low, _, high = quartiles([each - SETTLE_MS.get(name, 0.0) for each in late])
            title = f"crash of the holder to the next grant, {group} locks"
            lines.append(Line(title, name, value, "ms", low=low, high=high, budget=budget,
                              of="value", count=len(late)))  # fmt: skip
    return lines


def killed(make: Rival, kills: int, base: Path) -> list[float]:
    """Nanoseconds of each kill; infinite, and no more kills, where nobody recovers."""
    found: list[float] = []
    with tempfile.TemporaryDirectory(prefix="lifehold-bench-", dir=base) as folder:
        while len(found) < kills and float("inf") not in found:
            found.append(_kill(make, f"{folder}/{len(found)}"))
    return found


def _kill(make: Rival, path: str) -> float:
    """The holder and the waiter are processes of their own, so that either can be given up."""
    here, there = os.pipe()
    holder = os.fork()
    if not holder:
        _hold(make, path, there)
    os.read(here, 1)
    waiter = os.fork()
    if not waiter:
        _wait(make, path, there)
    os.read(here, 1)
    time.sleep(0.03)  # it stands in the queue by now
    at = time.monotonic_ns()
    os.kill(holder, signal.SIGKILL)
    os.waitpid(holder, 0)
    os.set_blocking(here, False)
    came = b""
    while not came and time.monotonic_ns() < at + PATIENCE * 1e9:
        try:
            came = os.read(here, 8)
        except BlockingIOError:
            time.sleep(0.001)
    if not came:
        os.kill(waiter, signal.SIGKILL)
    os.waitpid(waiter, 0)
    os.close(here)
    os.close(there)
    return struct.unpack("q", came)[0] - at if came else float("inf")


def _hold(make: Rival, path: str, pipe: int) -> None:
    try:
        lock = make(path)
        lock.acquire()
        os.write(pipe, b"x")
        time.sleep(60)
    finally:
        os._exit(1)


def _wait(make: Rival, path: str, pipe: int) -> None:
    try:
        lock = make(path)
        os.write(pipe, b"x")
        came = lock.acquire() or time.monotonic_ns()
        os.write(pipe, struct.pack("q", came))
        lock.release()
    finally:
        os._exit(0)


def _ours_soft() -> Rivals:
    return {name: make for name, make in rivals.SOFT.items() if name.startswith("lifehold")}


def _present(chosen: Rivals, base: Path) -> tuple[Rivals, list[str]]:
    with tempfile.TemporaryDirectory(prefix="lifehold-bench-", dir=base) as folder:
        found, missing = rivals.present(chosen, folder)
    if missing:
        print(f"not installed, so not measured: {', '.join(missing)}")
    return found, missing


def _matches(
    plan: Plan, chosen: Rivals, processes: int, base: Path, *, relay: bool
) -> dict[str, list[Match]]:
    """In rounds: everybody has a turn in each."""
    present, _ = _present(chosen, base)
    found: dict[str, list[Match]] = {name: [] for name in present}
    for _ in range(plan.of(1, 5)):
        for name, make in present.items():
            match = play(make, processes, 0.3 if plan.quick else 1.0, base, relay=relay)
            found[name].append(match)
    return found


def _late(part: str, found: dict[str, list[Match]]) -> list[Line]:
    base = [percentile(match.handed_ns, 0.5) for match in found[rivals.BASE]]
    half, rest = [], []
    for name, matches in found.items():
        pooled = [ns for match in matches for ns in match.handed_ns]
        paired = [
            percentile(match.handed_ns, 0.5) / other
            for match, other in zip(matches, base, strict=True)
            if match.handed_ns
        ]
        low, ratio, high = quartiles(paired)
        soft = name in rivals.SOFT and name.startswith("lifehold")
        value = percentile(pooled, 0.5) / 1e6
        half.append(Line(
            f"{part}: median", name, value, "ms", ratio, rivals.BASE, low, high,
            SOFT_MS if soft else BUDGETS.get(name), "value" if soft else "ratio", len(pooled),
        ))  # fmt: skip
        rest.append(Line(
            f"{part}: 99th percentile", name, percentile(pooled, 0.99) / 1e6, "ms",
            budget=LATE_MS if name in BUDGETS else None, of="value", count=len(pooled),
        ))  # fmt: skip
    return half + rest
