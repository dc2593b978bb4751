"""How waiters of this process hear the calls of a distant store: one thread on one connection.

Promise: who is called in the store, or let in, is rung here. One connection per process and store,
opened with the first waiter and closed a while after the last; a forked child has its own.

How it could fail, and what keeps it. A call that comes before we listen, or while the connection is
away, is lost: each new connection rings all who wait, and they ask. Who was let in and has gone
gives back what comes for it. Where no call comes, waiters look for themselves (waiter.py). How a
connection is opened, heard and found dead is of each store: postgres/notify.py, redis/publish.py.
"""

from __future__ import annotations

import _thread
import os

from ..core.backend import Given
from ..core.deadline import Backoff
from ..runtime import clock, fork, heartbeat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

LINGER = 5.0  # seconds for which the connection stays when nobody waits any more
LOOK = 0.5  # seconds after which the thread looks whether it is still wanted
AGAIN = Backoff(0.1, 5.0)  # seconds between two tries to connect
DISOWNED = 30.0  # seconds for which a lease may still come that nobody wants any more
LISTENING = "listening"


class ListeningThread:
    """The waiters of this process at one store. `state`: what became of the listening, in words.

    A store says how its channels begin, `_prefix`, and how it hears: `_serve`.
    """

    _prefix: str

    def __init__(self) -> None:
        self.state = "no waiter has needed it yet"
        self._begin()

    def _begin(self) -> None:
        self._generation = fork.here()
        self._mutex = _thread.RLock()  # the handler of a signal waits, too
        self._wakes: dict[str, Callable[..., object]] = {}
        self._disowned: dict[str, tuple[float, Callable[[], object]]] = {}
        self._runs = False
        self._listener: object = None  # the connection that listens, or its key
        self._idle_since: float | None = None
        self.channel = f"{self._prefix}{os.urandom(8).hex()}"

    def _serve(self) -> None:
        """Connect, and hear until `_unwanted()`. Raises what ended it."""
        raise TypeError(f"{type(self).__name__} hears nothing")

    def _wakeup(self) -> str:
        """What the store needs to reach us; "" where no call can come."""
        return self.channel

    def listen(self, nonce: str, wake: Callable[..., object]) -> str:
        """Ring when the store calls for `nonce`: `_wakeup()`."""
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
        return self._wakeup()

    def forget(self, nonce: str) -> None:
        """No more."""
        self._wakes.pop(nonce, None)

    def disown(self, nonce: str, undo: Callable[[], object]) -> None:
        """No more, and `undo()` if it is let in all the same."""
        self._disowned[nonce] = clock.now() + DISOWNED, undo
        self._wakes.pop(nonce, None)

    def told(self, text: str) -> None:
        """A call is a nonce. Of who is let in: nonce, handoff id, token, slot, since when, now.

        Raises ValueError for the words of somebody else.
        """
        nonce, *more = text.split(" ")
        if not more:
            self._wake(nonce)
            return
        handoff_id, number, slot, *instants = more
        acquired_at, now = map(float, instants[:2])  # L12  what a newer one says besides is its own
        given = Given(None if number == "-" else int(number), int(slot), acquired_at, now)
        self._wake(nonce, handoff_id, given)

    def _wake(self, nonce: str, *handed: object) -> None:
        wake = self._wakes.get(nonce)
        if wake is not None:
            wake(*handed)
        elif handed and (disowned := self._disowned.pop(nonce, None)):
            disowned[1]()

    # ---- the thread

    def _keep(self) -> None:
        tries = AGAIN.pauses()
        while not self._over():
            self._idle_since = None
            try:
                self._serve()
                return
            except Exception as error:  # noqa: BLE001 - told by ground(); waiters look themselves
                if self.state == LISTENING:
                    tries = AGAIN.pauses()
                self.state = f"not listening: {error}"
            clock.pause(next(tries))

    def _wake_all(self, listener: object) -> None:
        """It listens from now on. What was called before is lost: all ask."""
        self.state, self._listener = LISTENING, listener
        for nonce in list(self._wakes):
            self._wake(nonce)

    def _ended(self, listener: object) -> None:
        if self._listener is listener:  # else another one listens already
            self._listener = None

    def _unwanted(self, now: float) -> bool:
        """Whether nobody has waited for a while, so that the thread ends."""
        self._forget_disowned(now)
        if self._wakes:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now
        else:
            return now > self._idle_since + LINGER and self._over()
        return False

    def _forget_disowned(self, now: float) -> None:
        for nonce in [nonce for nonce, (until, _) in self._disowned.copy().items() if until < now]:
            self._disowned.pop(nonce, None)

    def _over(self) -> bool:
        """Whether nobody waits: then the thread ends, and the next waiter starts another."""
        if self._generation != fork.generation:
            return True
        with self._mutex:
            if not self._wakes:
                self._runs = False
            return not self._runs
