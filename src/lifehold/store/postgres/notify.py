"""How waiters of this process are woken by PostgreSQL: LISTEN, on the connection of listening.py.

Promise: who is called is rung within the time of one notification. While the connection is open it
holds an advisory lock of a random key, by which the store sees that somebody listens.

How it could fail, and what keeps it. The store learns of the new key when all ask, as each new
connection rings them. A connection that is dead without a word is found by TCP keepalive; until
then, and behind a pooler that hands on no notifications, waiters look for themselves.
"""

from __future__ import annotations

import os

from ...runtime import clock
from ...runtime.blocking import finish
from ..listening import LOOK, ListeningThread
from .wire import ServerConnection, drop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .connect import PostgresUrl


class NotifyWakeups(ListeningThread):
    """The waiters of this process at one database. The key of its advisory lock listens."""

    _prefix = "lifehold_"

    def __init__(self, plan: PostgresUrl) -> None:
        self._plan = plan
        super().__init__()

    @property
    def hands(self) -> bool:
        """Whether who waits here can be let in unasked."""
        return self._plan.hands and self._listener is not None

    def _wakeup(self) -> str:
        """Behind the channel the key of the listener."""
        key = self._listener
        channel = self.channel if key is None else f"{self.channel} {key}"
        return "" if self._plan.pooled else channel

    def _serve(self) -> None:
        connection = finish(self._plan.connect("Connection"))
        try:
            if not self._plan.pooled:
                self._hear(connection)
                return
            self.state = "not listening: a pooler stands between, which hands on no calls"
            while not self._over():
                clock.pause(LOOK)
        finally:
            drop(connection)

    def _hear(self, connection: Any) -> None:
        key = int.from_bytes(os.urandom(8), "big") >> 1
        connection.execute(f"LISTEN {self.channel}; SELECT pg_advisory_lock({key})")
        line = ServerConnection(connection)
        try:
            self._wake_all(key)
            while not self._unwanted(clock.now()):
                for text in finish(line.calls(LOOK)):
                    try:
                        self.told(text)
                    except ValueError:  # of somebody else: no call of ours
                        continue
        finally:
            self._ended(key)
