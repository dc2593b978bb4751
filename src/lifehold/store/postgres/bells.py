"""How waiters of this process are woken by PostgreSQL: LISTEN, in one thread on one connection.

Promise: who is called in the store is rung here, within the time of one notification; one
connection per process and store, opened with the first waiter and closed a while after the last.

How it could fail, and what keeps it. A call that comes before LISTEN was heard, or while the
connection is away, is in the waiter's row still: each new connection asks once for those who were
called meanwhile. A connection that is dead without a word is found by TCP keepalive; until then,
and behind a pooler that hands on no notifications, waiters look for themselves (turn.py).
"""

from __future__ import annotations

import _thread
import os

from ...core.backoff import Backoff
from ...runtime import clock, fork, heartbeat
from ...runtime.blocking import finish
from .link import drop
from .wire import Line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .open import Plan

LINGER = 5.0  # seconds for which the connection stays when nobody waits any more
LOOK = 0.5  # seconds after which the thread looks whether it is still wanted
AGAIN = Backoff(0.1, 5.0)  # seconds between two tries to connect
MISSED = "SELECT mark FROM lifehold_waiter WHERE bell = $1 AND called_at IS NOT NULL"


class Bells:
    """The waiters of this process at one store. `tell`: what became of the listening, in words."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.state = "no waiter has needed it yet"
        self._begin()

    def _begin(self) -> None:
        self._generation = fork.here()
        self._mutex = _thread.allocate_lock()
        self._rings: dict[str, Callable[[], object]] = {}
        self._runs = False
        self.channel = f"lifehold_{os.urandom(8).hex()}"

    def listen(self, mark: str, ring: Callable[[], object]) -> str:
        """Ring when the store calls for `mark`: the channel, or "" where no call can come."""
        if self._generation != fork.here():
            self._begin()
        with self._mutex:
            self._rings[mark] = ring
            starts, self._runs = not self._runs, True
        if starts:
            heartbeat.apart(self._keep)
        return "" if self._plan.pooled else self.channel

    def forget(self, mark: str) -> None:
        """No more."""
        self._rings.pop(mark, None)

    def _ring(self, mark: str) -> None:
        ring = self._rings.get(mark)
        if ring is not None:
            ring()

    # ---- the thread

    def _keep(self) -> None:
        tries: Any = AGAIN.pauses()
        while not self._over():
            try:
                connection = finish(self._plan.connect("Connection"))
            except Exception as error:  # noqa: BLE001 - told by ground(); waiters look themselves
                self.state = f"not listening: {error}"
                clock.pause(next(tries))
                continue
            try:
                if self._plan.pooled:
                    self.state = "not listening: a pooler stands between, which hands on no calls"
                    self._rest()
                else:
                    tries = AGAIN.pauses()
                    self._hear(connection)
                    return
            except Exception as error:  # noqa: BLE001
                self.state = f"not listening: {error}"
            finally:
                drop(connection)
            clock.pause(next(tries))

    def _hear(self, connection: Any) -> None:
        connection.execute(f"LISTEN {self.channel}")
        line = Line(connection)
        self.state = "listening"
        for (mark,) in finish(line.ask(MISSED, (self.channel,), self._plan.limit)):
            self._ring(mark)
        idle_since = None
        while True:
            for mark in finish(line.calls(LOOK)):
                self._ring(mark)
            if self._rings:
                idle_since = None
            elif idle_since is None:
                idle_since = clock.now()
            elif clock.now() > idle_since + LINGER and self._over():
                return

    def _rest(self) -> None:
        while self._rings:
            clock.pause(LOOK)

    def _over(self) -> bool:
        """Whether nobody waits: then the thread ends, and the next waiter starts another."""
        if self._generation != fork.generation:
            return True
        with self._mutex:
            if not self._rings:
                self._runs = False
            return not self._runs
