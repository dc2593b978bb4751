"""`BaseAsyncFileLock`: the locks of this face for tasks of asyncio, and of trio.

Promise: a task that is cancelled while it acquires holds nothing afterwards, and a release that was
begun is done. Rule: ours needs no thread pool. One try is plain code, the wait sleeps on an event
of the loop, and only what may wait for a file server goes to a helper thread. `executor` runs what
subclasses bring, and `on_acquired`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from ...core.grant import Grant
from ...runtime import fork
from ...runtime.eventloop import EVENT_LOOP, current_task
from . import brought, waits
from .errors import Timeout
from .exclusive import BaseFileLock
from .mechanical import Mechanical
from .meta import absolute
from .proxy import STEP, both_failed
from .turns import Turn
from .waits import DEBUG, LOGGER

if TYPE_CHECKING:
    from collections.abc import Callable

    from .state import Hold

_of_tasks: WeakKeyDictionary[Any, dict[int, str]] = WeakKeyDictionary()


def held_by_task() -> dict[int, str]:
    """The paths that the running task holds: a wait for oneself never ends."""
    task = current_task()
    return {} if task is None else _of_tasks.setdefault(task, {})


class Awaited(BaseFileLock):
    """Acquire and release as coroutines. The constructor is that of `BaseAsyncFileLock`."""

    _runtime = EVENT_LOOP
    _executor: Any
    _run_in_executor: bool

    async def _acquired(self, want: waits.Want) -> None:
        hold = self._context.hold
        turn = hold.turn = hold.turn or Turn()
        while True:
            if not await turn.take(want):
                raise Timeout(self.lock_file)
            try:
                if hold.counter and hold.fd is not None:
                    if not self._pinned:
                        absolute(self._context.lock_file)
                    hold.counter += 1
                    return
                if not hold.counter and not self._first_line_said(want):
                    LOGGER.debug("Attempting to acquire lock %s on %s", id(self), self.lock_file)
                if await self._taken_first(hold, want):
                    return
            finally:
                turn.give()
            # Between two tries others may have their turn; what they get is then ours too.
            await EVENT_LOOP.sleep(waits.pause_or_refuse(self, want))

    @staticmethod
    def _first_line_said(want: waits.Want) -> bool:
        said, want.said = want.said, True
        return said or not LOGGER.isEnabledFor(DEBUG)

    async def _taken_first(self, hold: Hold, want: waits.Want) -> bool:
        """Whether the lock is held now. False: try again after a pause."""
        try:
            await self._take_awaited(hold, want)
            if hold.fd is None:
                waits.refuse_self(hold, hold.path or absolute(self._context.lock_file), want)
                return False
            hold.path = hold.path or self._pinned or absolute(self._context.lock_file)
            hold.counter = 1
            self._holds.add(hold)
            hold.mine = want.mine
            want.mine[id(hold)] = hold.path
            if LOGGER.isEnabledFor(DEBUG):
                LOGGER.debug("Lock %s acquired on %s", id(self), self.lock_file)
            if self._on_acquired is not None and hold.fd is not None:
                await self._aside(self._on_acquired, hold.fd)
        except BaseException as error:
            await EVENT_LOOP.shield(self._undone(hold, error))
            raise
        return True

    async def _undone(self, hold: Hold, error: BaseException) -> None:
        """Nothing is held after an exception; what goes wrong in that goes with it, by policy."""
        if hold.moving == "stuck":
            hold.moving, hold.counter = "", 1
            self._holds.add(hold)
            return
        if hold.fd is None:
            hold.counter, hold.path = 0, ""
            return
        try:
            await self._let_go_awaited(hold)
        except BaseException as failed:  # noqa: BLE001 - raised, with the other
            both_failed(self, "lock acquire and rollback both failed", error, failed)
        finally:
            kept: int | None = hold.fd
            if kept is None:
                self._forget(hold)
            else:
                hold.counter = 1  # the system did not let go of it

    async def _released(self, force: bool) -> None:
        hold = self._context.hold
        if self._generation != fork.here():
            return
        if hold.counter and hold.fd is not None and hold.moving != "release":
            if hold.counter > 1 and not force:
                hold.counter -= 1
            else:
                await self._ended(hold)
        if force:
            for other in [each for each in self._holds if each.orphaned]:
                await self._ended(other)

    async def _ended(self, hold: Hold) -> None:
        debug = LOGGER.isEnabledFor(DEBUG)
        hold.moving = "release"
        try:
            if debug:
                LOGGER.debug("Attempting to release lock %s on %s", id(self), self.lock_file)
            try:
                await self._let_go_awaited(hold)
            finally:
                if hold.fd is None:
                    self._forget(hold)
            if debug:
                LOGGER.debug("Lock %s released on %s", id(self), self.lock_file)
        finally:
            hold.moving = ""

    # ---- ours by its mechanism, and what a subclass brings by its `_acquire` and `_release`

    async def _take_awaited(self, hold: Hold, want: waits.Want) -> None:
        if isinstance(self, Mechanical) and type(self)._acquire is Mechanical._acquire:
            answer = await self._tried(hold)
            if type(answer) is not Grant and not want.polled:
                await self._contend(hold, want, answer)
        else:
            await self._tried_theirs(hold)

    async def _tried_theirs(self, hold: Hold) -> None:
        """One `_acquire` of a subclass's. As `waits.tried`."""
        errors: list[BaseException] = []
        try:
            await self._brought(self._acquire)
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)
        if hold.fd is not None:
            try:
                brought.note(hold.fd)
            except BaseException as error:  # noqa: BLE001 - raised below
                errors.append(error)
        if errors and hold.fd is not None:
            fd = hold.fd
            try:
                await self._brought(self._release)
            except BaseException as error:  # noqa: BLE001 - raised below
                errors.append(error)
                hold.moving, hold.path = "stuck", self.lock_file  # a release may end it later
            else:
                brought.forget(fd)
        if len(errors) > 1:
            raise BaseExceptionGroup(waits.BOTH, errors) from None
        if errors:
            raise errors[0]

    async def _let_go_awaited(self, hold: Hold) -> None:
        if not isinstance(self, Mechanical) or type(self)._release is not Mechanical._release:
            fd = hold.fd
            await self._brought(self._release)
            brought.forget(fd)
        elif self._afar:
            await EVENT_LOOP.shield(
                EVENT_LOOP.in_thread(lambda: self._let_go(hold), lambda _: None)
            )
        else:
            self._let_go(hold)

    async def _brought(self, call: Callable[[], Any]) -> None:
        """A subclass's own step."""
        inspect: Any = fork.lazily("inspect")
        if inspect.iscoroutinefunction(call):
            await self._to_end(call())
        else:
            await self._aside(call)

    async def _aside(self, call: Callable[..., Any], *arguments: Any) -> None:
        """In the executor, or in a helper thread, or here when neither is wanted."""
        if not self._run_in_executor:
            call(*arguments)
        elif self._executor is None:
            await self._to_end(EVENT_LOOP.in_thread(lambda: call(*arguments), lambda _: None))
        else:
            asyncio: Any = fork.lazily("asyncio")
            begun = self._executor.submit(call, *arguments)
            await self._to_end(awaiting(asyncio.wrap_future(begun)))

    async def _to_end(self, work: Any) -> None:
        """Whatever is cancelled meanwhile; then the cancellation and its error, by policy."""
        answer: list[BaseException | None] = []
        try:
            await EVENT_LOOP.shield(caught(work, answer))
        except BaseException as cancelled:
            if not answer or answer[0] is None:
                raise
            both_failed(self, STEP, cancelled, answer[0])
        if answer[0] is not None:
            raise answer[0]


async def awaiting(future: Any) -> Any:
    return await future


async def caught(work: Any, answer: list[BaseException | None]) -> None:
    """`work`, with its exception as a value: a cancellation that it raises is not the caller's."""
    try:
        await work
    except BaseException as error:  # noqa: BLE001 - raised again by who asked
        answer.append(error)
    else:
        answer.append(None)
