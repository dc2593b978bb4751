"""How an acquire of this face waits: by an event, or by trying again and again when told to."""

from __future__ import annotations

import logging
import math
import os
from typing import Any

from ...runtime import clock, fork
from . import brought, options
from .calls import ANCHORED
from .errors import Timeout
from .meta import absolute, canonical
from .several import BODY, Outcome, grouped, raised
from .state import Hold, held_here

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

LOGGER = logging.getLogger("filelock")
DEBUG = logging.DEBUG


class Want:
    """What one acquire asks for: patience, pause, and who may end it."""

    asked: Callable[[], bool] | None = None
    cancel: Callable[[], bool] | None = None
    cancelled = said = False
    tries = 0
    deadline = math.inf
    mine: dict[int, str]  # the paths that the asking thread, or task, holds

    def __init__(
        self, context: Any, timeout: float | None, poll_interval: float | None,
        blocking: bool | None, cancel: Callable[[], bool] | None,
    ) -> None:  # fmt: skip
        patience = context.timeout if timeout is None else options.seconds("timeout", timeout)
        if blocking is None:
            blocking = context.blocking
        else:
            options.boolean("blocking", blocking)
        if poll_interval is None:
            self.pause = context.poll_interval
        else:
            self.pause = options.poll(poll_interval)
        if cancel is not None:
            self.asked, self.cancel = cancel, self._ask
        self.mine = held_here.holds
        self.blocking = blocking and patience != 0
        if self.blocking and not (patience < 0 or patience == math.inf):
            if patience != patience:
                raise ValueError("timeout must be a number of seconds, not nan")
            self.deadline = clock.now() + patience

    def _ask(self) -> bool:
        if self.asked is not None:
            self.cancelled = bool(self.asked())
        return bool(self.cancelled)

    @property
    def polled(self) -> bool:
        """Whether it is to try again and again."""
        return bool(self.pause != options.DEFAULT_POLL)

    @property
    def endless(self) -> bool:
        return bool(self.blocking) and self.deadline == math.inf

    def pass_gate(self, gate: Any) -> bool:
        """Wait until no other thread is in the middle of an acquire or release of this object."""
        if gate.acquire(blocking=False):
            return True
        while self.blocking:
            left = self.deadline - clock.now()
            if left <= 0 or (self.cancel is not None and self.cancel()):
                return False
            if gate.acquire(timeout=min(left, max(self.pause, 0.01))):
                return True
        return False


def refuse_self(hold: Hold, path: str, want: Want) -> None:
    """A wait without end for what this thread holds by another object is an error, not a hang."""
    if not want.endless:
        return
    mine = want.mine
    if mine and canonical(path) in {canonical(held) for held in mine.values()}:
        raise RuntimeError(
            f"Deadlock: lock {path!r} is already held by a different FileLock instance in this "
            "thread. Use is_singleton=True to share one instance, or pass the lock along"
        )


async def by_polling(lock: Any, hold: Hold, want: Want) -> None:
    """Try, pause, try again: when told to, and for subclasses that bring a lock of their own."""
    path = absolute(lock.lock_file)
    try:
        while True:
            tried(lock, hold)
            if hold.fd is not None:
                hold.path = path
                return
            ANCHORED[id(want)] = os.path.dirname(path)
            refuse_self(hold, path, want)
            await lock._runtime.sleep(pause_or_refuse(lock, want))
            lock._still_there(path)
    finally:
        ANCHORED.pop(id(want), None)


def tried(lock: Any, hold: Hold) -> None:
    """One `_acquire` of a subclass's; after an exception nothing is held, or it is still noted."""
    met = Outcome()
    brought.begins(hold)
    try:
        try:
            lock._acquire()
            lock._refuse_child()  # it has forked: this is the child
        except BaseException as error:  # noqa: BLE001 - told below
            met.failed = error
        _noted(lock, hold, met)
    finally:
        brought.ended(hold)
    met.tell()


def _noted(lock: Any, hold: Hold, met: Outcome) -> None:
    if hold.fd is not None and hold.grant is None:
        try:
            lock._register_context_descriptor()
        except BaseException as error:  # noqa: BLE001 - told below
            met.unnoted = error
    if met.errors and hold.fd is not None:
        fd = hold.fd
        try:
            lock._release()
        except BaseException as error:  # noqa: BLE001 - told below
            met.stuck = error
            hold.moving, hold.path = "stuck", lock.lock_file  # a release may end it later
        else:
            brought.forget(fd)


def undone(lock: Any, hold: Hold, error: BaseException) -> None:
    """After an exception of an acquire: nothing is held, or what the system did not let go of."""
    failed: BaseException | None = None
    if hold.moving != "stuck" and hold.fd is not None:
        try:
            lock._let_go(hold)
        except BaseException as met:  # noqa: BLE001 - raised below, with the other
            failed = met
    if hold.fd is None:
        lock._forget(hold)
    else:
        hold.counter = 1
        lock._holds.add(hold)
    if failed is not None:
        raised(grouped(BODY, error, failed))


def pause_or_refuse(lock: Any, want: Want) -> float:
    """Seconds until the next try. Raises Timeout when there is none to come."""
    path = lock.lock_file
    if want.cancel is not None and want.blocking and want.cancel():
        LOGGER.debug("Cancellation requested for lock %s on %s", id(lock), path)
        raise Timeout(path)
    left = want.deadline - clock.now()
    if not want.blocking or left <= 0:
        LOGGER.debug("Timeout on acquiring lock %s on %s", id(lock), path)
        raise lock._refused(0.0)
    pause: float = min(widened(lock, want), left)
    if LOGGER.isEnabledFor(DEBUG):
        text = "Lock %s not acquired on %s, waiting %s seconds ..."
        LOGGER.debug(text, id(lock), path, pause)
    return pause


def widened(lock: Any, want: Want) -> float:
    """The pause that was asked for; at random up to twice the last one for a lock of many files.

    Those who publish several files for each try would otherwise meet at every one.
    """
    want.tries += 1
    if want.pause >= lock._widest:
        return want.pause  # type: ignore[no-any-return]
    window = min(lock._widest, want.pause * 2 ** min(want.tries, 16))
    chance: Any = fork.lazily("secrets")
    drawn: float = max(want.pause, chance.randbelow(int(window * 1e6) + 1) / 1e6)
    return drawn


def refuse_reentry(lock: Any, hold: Hold) -> None:
    """A signal handler asks again in the middle of what it interrupted: waiting would never end."""
    doing = "acquire of it waits" if hold.moving == "acquire" else "release of it runs"
    raise RuntimeError(
        f"{lock.lock_file!r} was acquired again while this thread's {doing}: a signal handler "
        "cannot wait for what it interrupted"
    )
