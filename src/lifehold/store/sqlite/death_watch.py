"""Who among the holders and waiters of a name is proven dead, and who is watched for it.

L2  (a)  On a file system that one kernel alone can mount, a process gone by identity is dead
(core/owner.py), and so is a waiter whose pipe nobody reads. A holder with a lock delay is not
followed before its lease and the delay are over: who asks for a delay fears what it has sent.
L3  Judged between two steps, so that nobody waits for that; the second one ends whom the proof
named, by its nonce: the dead do not come back, and a nonce is one grant's.

The first waiter in line watches the processes of the holders, every other the process of the one
before it: so a death wakes one waiter, within milliseconds, and no other.
"""

from __future__ import annotations

import os

from ...core.owner import DEAD, ObserverView, judge
from ...runtime import clock, fork, process
from . import schema as sql
from .rows import decoded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from sqlite3 import Connection
    from typing import Any

    from ...core.backend import Request
    from ...core.owner import LifeVerdict, Owner
    from ...runtime import watch_thread
    from ...runtime.wakeup_pipes import PipeWakeups
    from ..rules import LockState
else:
    watch_thread = fork.later("lifehold.runtime.watch_thread", globals())

MOST = 512  # processes that one waiter judges, of those that hold
WATCHED = 64  # holders whose processes the first in line watches
FRESH = 0.2  # seconds for which a process that was seen alive is, to one who will watch it


class ProvenDead:
    """Who is proven dead: holders by their nonces, waiters by their wakeups.

    A waiter that has left the line may hold the lock by now: its holder is not meant.
    """

    __slots__ = ("holders", "waiters")

    def __init__(self, holders: set[str], waiters: set[str]) -> None:
        self.holders, self.waiters = holders, waiters

    def leave(self, db: Connection, name: str, wakeups: PipeWakeups) -> None:
        """End the places: of a dead process all that it has here."""
        for wakeup in self.waiters:
            pipe, _, nonce = wakeup.partition(":")
            if wakeups.ours(wakeup):
                db.execute(sql.WITHOUT_MARK, (name, nonce))
            else:
                db.execute(sql.WITHOUT_PIPE, (name, len(pipe) + 1, f"{pipe}:"))

    def rise(self, lock: LockState) -> None:
        """End the holders."""
        for holder in lock.holders:
            if holder.nonce in self.holders:
                holder.ends_at, holder.clock = float("-inf"), lock.clock


class Suspects:
    """Who stood in the way of a request: holders by their records, waiters by their wakeups."""

    __slots__ = ("holders", "waiters")

    def __init__(self, lock: LockState, asked: Request) -> None:
        self.holders: dict[str, tuple[str, list[str]]] = {}  # by process: a record, the nonces
        self.waiters: list[str] = []
        for holder in lock.holders:
            if holder.nonce != asked.nonce and not holder.delay:
                text = getattr(holder, "text", "")
                process_of = text.partition(',"thread":')[0]
                if process_of in self.holders or len(self.holders) < MOST:
                    self.holders.setdefault(process_of, (text, []))[1].append(holder.nonce)
        for entry in lock.queue:
            if entry.nonce == asked.nonce:
                break
            self.waiters.append(entry.wakeup)

    def dead(self, wakeups: PipeWakeups, watched: bool) -> ProvenDead | None:
        """Those that are proven dead, None if nobody is."""
        ground = ground_here()
        holders: set[str] = set()
        for process_of, (text, nonces) in self.holders.items():
            if _gone(process_of, text, ground, watched):
                holders.update(nonces)
        waiters = set()
        for wakeup in self.waiters:
            if not wakeups.dead(wakeup):
                break  # behind one who lives nobody is in the way
            waiters.add(wakeup)
        return ProvenDead(holders, waiters) if holders or waiters else None


def ground_here() -> ObserverView:
    """One kernel alone may mount it; processes of other namespaces may be hidden."""
    return ObserverView(True, None, process.here(), False, process.look)


def proven_gone(holders: Iterable[tuple[str, str, str]]) -> list[tuple[str, str]]:
    """Of holders by name, nonce and record those whose process is gone."""
    ground = ground_here()
    return [
        (name, nonce)
        for name, nonce, text in holders
        if (owner := decoded(text)) is not None and judge(owner, ground).state == DEAD
    ]


def judge_process(owner: Owner) -> LifeVerdict:
    """Whether a holder's process is gone by identity."""
    return judge(owner, ground_here())


_alive: dict[str, float] = {}  # processes, and until when


def _gone(process_of: str, text: str, ground: ObserverView, watched: bool) -> bool:
    now = clock.now()
    if watched and _alive.get(process_of, 0.0) > now:
        return False
    owner = decoded(text)
    if owner is None or judge(owner, ground).state == DEAD:
        return owner is not None
    if len(_alive) >= MOST:
        _alive.clear()
    _alive[process_of] = now + FRESH
    return False


def to_watch(lock: LockState, nonce: str) -> set[int]:
    """The processes whose death lets this waiter go on, as far as we can watch them."""
    me = process.here()
    before = None
    for entry in lock.queue:
        if entry.nonce == nonce:
            break
        before = entry
    if before is not None:
        pid, _, rest = before.wakeup.partition(".")
        space = rest.partition(".")[0]
        found = {int(pid)} if pid.isdecimal() and space == str(me.pid_ns or 0) else set()
    else:
        owners = [holder.owner for holder in lock.holders[:WATCHED] if not holder.delay]
        found = {
            owner.pid
            for owner in owners
            if owner is not None and owner.pid_ns == me.pid_ns and owner.boot_id == me.boot_id
        }
    return found - {os.getpid()}


class DeathWatch:
    """The processes that the waiters of this process watch."""

    def __init__(self) -> None:
        self._watches: dict[str, dict[int, Any]] = {}
        fork.in_child(self._forget)  # the processes that the parent watches

    def _forget(self) -> None:
        self._watches.clear()

    def keep(self, nonce: str, pids: Iterable[int], ring: Callable[[], object]) -> None:
        """Ring once when one of them has ended.

        Who was watched before and has ended is not again: that was told, and proved nothing.
        """
        mine = self._watches.setdefault(nonce, {})
        wanted = set(pids)
        for pid in [pid for pid in mine if pid not in wanted]:
            mine.pop(pid).close()

        def ended() -> None:
            _alive.clear()  # whoever was alive a moment ago is to be judged again
            ring()

        for pid in wanted - set(mine):
            mine[pid] = watch = watch_thread.ProcessWatch(pid, ended)
            try:
                watch.start()
            except RuntimeError:
                pass  # no thread to be had: it looks by itself

    def drop(self, nonce: str) -> None:
        """No more."""
        for watch in self._watches.pop(nonce, {}).values():
            watch.close()
