"""How waiters of this process are woken by PostgreSQL: LISTEN, in one thread on one connection.

Promise: who is called in the store, or let in, is rung here, within the time of one notification;
one connection per process and store, opened with the first waiter and closed a while after the
last. While it is open it holds an advisory lock of a random key, by which the store sees that.

How it could fail, and what keeps it. A call that comes before LISTEN was heard, or while the
connection is away, is lost: each new connection rings all who wait, and they ask. That is also how
the store learns of the new key. Who was let in and has gone gives back what comes for it. A
connection that is dead without a word is found by TCP keepalive; until then, and behind a pooler
that hands on no notifications, waiters look for themselves (waiter.py).
"""

from __future__ import annotations

import _thread
import os

from ...core.backend import Given
from ...core.deadline import Backoff
from ...runtime import clock, fork, heartbeat
from ...runtime.blocking import finish
from .wire import ServerConnection, drop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .connect import PostgresUrl

LINGER = 5.0  # seconds for which the connection stays when nobody waits any more
LOOK = 0.5  # seconds after which the thread looks whether it is still wanted
AGAIN = Backoff(0.1, 5.0)  # seconds between two tries to connect
DISOWNED = 30.0  # seconds for which a lease may still come that nobody wants any more


class NotifyWakeups:
    """The waiters of this process at one store. `state`: what became of the listening, in words."""

    def __init__(self, plan: PostgresUrl) -> None:
        self._plan = plan
        self.state = "no waiter has needed it yet"
        self._begin()

    def _begin(self) -> None:
        self._generation = fork.here()
        self._mutex = _thread.RLock()  # the handler of a signal waits, too
        self._wakes: dict[str, Callable[..., object]] = {}
        self._disowned: dict[str, tuple[float, Callable[[], object]]] = {}
        self._runs = False
        self._key: int | None = None  # of the advisory lock that the open connection has
        self.channel = f"lifehold_{os.urandom(8).hex()}"

    @property
    def hands(self) -> bool:
        """Whether who waits here can be let in unasked."""
        return self._plan.hands and self._key is not None

    def listen(self, nonce: str, wake: Callable[..., object]) -> str:
        """Ring when the store calls for `nonce`: the channel, or "" where no call can come.

        Behind the channel the key of the listener.
        """
        if self._generation != fork.here():
            self._begin()
        starts = False
        try:
            with self._mutex:
                self._wakes[nonce] = wake
                starts, self._runs = not self._runs, True
            if starts:
                heartbeat.thread(self._keep)
        except BaseException as error:  # no thread to be had, or a signal handler has raised
            if starts:
                self._runs = False  # the next one tries again; this one looks by itself
            if not isinstance(error, RuntimeError):
                raise
            self.state = f"not listening: {error}"
        key = self._key
        channel = self.channel if key is None else f"{self.channel} {key}"
        return "" if self._plan.pooled else channel

    def forget(self, nonce: str) -> None:
        """No more."""
        self._wakes.pop(nonce, None)

    def disown(self, nonce: str, undo: Callable[[], object]) -> None:
        """No more, and `undo()` if it is let in all the same."""
        self._disowned[nonce] = clock.now() + DISOWNED, undo
        self._wakes.pop(nonce, None)

    def _wake(self, nonce: str, *handed: object) -> None:
        wake = self._wakes.get(nonce)
        if wake is not None:
            wake(*handed)
        elif handed and (disowned := self._disowned.pop(nonce, None)):
            disowned[1]()

    def _told(self, text: str) -> None:
        """A call is a nonce. Of who is let in: nonce, word, token, slot, since when, and when."""
        nonce, *more = text.split(" ")
        if not more:
            self._wake(nonce)
            return
        handoff_id, number, slot, *instants = more
        acquired_at, now = map(float, instants[:2])  # L12  what a newer one says besides is its own
        given = Given(None if number == "-" else int(number), int(slot), acquired_at, now)
        self._wake(nonce, handoff_id, given)

    # ---- the thread

    def _keep(self) -> None:
        tries = AGAIN.pauses()
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
        key = int.from_bytes(os.urandom(8), "big") >> 1
        connection.execute(f"LISTEN {self.channel}; SELECT pg_advisory_lock({key})")
        self.state, self._key = "listening", key
        try:
            self._tell(ServerConnection(connection))
        finally:
            if self._key == key:  # else another one listens already
                self._key = None

    def _tell(self, line: ServerConnection) -> None:
        """Until nobody waits any more."""
        for nonce in list(self._wakes):
            self._wake(nonce)
        idle_since = None
        while True:
            for text in finish(line.calls(LOOK)):
                try:
                    self._told(text)
                except ValueError:  # of somebody else: no call of ours
                    continue
            self._forget_disowned()
            if self._wakes:
                idle_since = None
            elif idle_since is None:
                idle_since = clock.now()
            elif clock.now() > idle_since + LINGER and self._over():
                return

    def _forget_disowned(self) -> None:
        now = clock.now()
        for nonce in [nonce for nonce, (until, _) in self._disowned.copy().items() if until < now]:
            self._disowned.pop(nonce, None)

    def _rest(self) -> None:
        while self._wakes:
            clock.pause(LOOK)

    def _over(self) -> bool:
        """Whether nobody waits: then the thread ends, and the next waiter starts another."""
        if self._generation != fork.generation:
            return True
        with self._mutex:
            if not self._wakes:
                self._runs = False
            return not self._runs
