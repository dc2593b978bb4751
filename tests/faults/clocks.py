"""Faults of clocks: the wall clock of one side an hour off, or set while it holds; times of files.

The machine's own clock is not touched: one process reads another time than the rest.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from faults.cell import fault
from faults.rows import HEARTBEAT

HOUR = 3600


def off(scene, holder_by, other_by):
    holder, other, last = scene.party(), scene.party(), scene.party()
    for party, seconds in ((holder, holder_by), (other, other_by)):
        party.ready().ask("clock", seconds)
    if not scene.row.counter and holder_by > other_by:
        scene.clock_set_back = True
        scene.cell.note = "its token may repeat then, as its page says"
    scene.holds(holder)
    scene.is_refused(other)
    scene.is_robbed_never(other, 2 * HEARTBEAT)
    at = holder.kill()
    scene.recovers(other, at, scene.row.proof)
    scene.goes_on(other)
    scene.holds(last.ready())
    scene.goes_on(last)


@fault("wall clock of the holder an hour ahead")
def ahead(scene):
    off(scene, HOUR, 0)


@fault("wall clock of the holder an hour behind")
def behind(scene):
    off(scene, -HOUR, 0)


@fault("wall clock set by an hour and back while held")
def stepped(scene):
    holder, other = scene.party(), scene.party()
    scene.holds(holder.ready())
    other.ready()
    scene.clock_set_back = not scene.row.counter
    for seconds in (HOUR, -HOUR):
        for party in (holder, other):
            party.ask("clock", seconds)
        scene.is_robbed_never(other, 2 * HEARTBEAT)
        if "held" not in holder.ask("check"):
            scene.cell.complaints.append("the step of a wall clock took the lock away")
    at = holder.kill()
    scene.recovers(other, at, scene.row.proof)
    scene.goes_on(other)


@fault("times of its files an hour off")
def skewed(scene):
    """As of a file server whose clock is wrong: set on everything that the lock has there."""
    holder, other = scene.party(), scene.party()
    scene.holds(holder.ready())
    other.ready()
    for seconds in (-HOUR, HOUR):
        at = time.time() + seconds
        for each in [*Path(scene.folder).rglob("*")]:
            os.utime(each, (at, at))
        scene.is_robbed_never(other, 2 * HEARTBEAT)
    if "held" not in holder.ask("check"):
        scene.cell.complaints.append("a time of a file took the lock away")
    at = holder.kill()
    scene.recovers(other, at, scene.row.proof)
    scene.goes_on(other)
