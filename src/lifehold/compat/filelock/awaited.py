"""`BaseAsyncFileLock`: the locks of this face for tasks of asyncio, and of trio.

Promise: a task that is cancelled while it acquires holds nothing afterwards, and a release that was
begun is done. Rule: ours needs no thread pool. One try is plain code, the wait sleeps on an event
of the loop, and only what may wait for a file server goes to a helper thread. `executor` runs what
subclasses bring, and `on_acquired`; where the caller has given one, the first try and every release
too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

from ...core.grant import Grant
from ...runtime import fork
from ...runtime.eventloop import EVENT_LOOP, current_task
from . import brought, pollers, waits
from .errors import Timeout
from .exclusive import BaseFileLock, from_the_start
from .mechanical import Mechanical
from .meta import absolute
from .several import BODY, CANCELLED, RELEASE, Outcome, by_policy, grouped, raised
from .turns import Turn
from .waits import DEBUG, LOGGER

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

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
            self._still_there(hold.path or absolute(self._context.lock_file))

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
            hold.path = hold.path or absolute(self._context.lock_file)
            hold.counter = 1
            self._holds.add(hold)
            hold.mine = want.mine
            want.mine[id(hold)] = hold.path
            if LOGGER.isEnabledFor(DEBUG):
                LOGGER.debug("Lock %s acquired on %s", id(self), self.lock_file)
            if self._on_acquired is not None and hold.fd is not None:
                from_the_start(hold)
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
            if not isinstance(error, Exception):
                by_policy(self, CANCELLED, error, failed)
            raised(grouped(BODY, error, failed))
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
        if isinstance(self, Mechanical) and not self._brings("_acquire"):
            if pollers.expected:
                await self._let_pollers_in(want)
            if self._in_executor:
                answer = await self._aside(self._attempt, hold)
            else:
                answer = await self._tried(hold)
            if type(answer) is not Grant and not want.polled:
                await self._contend(hold, want, answer)
        else:
            await self._tried_theirs(hold)

    async def _tried_theirs(self, hold: Hold) -> None:
        """One `_acquire` of a subclass's. As `waits.tried`."""
        met = Outcome()
        brought.begins(hold)
        try:
            met.cancelled, met.failed = await self._ended_step(self._acquire)
            await self._noted(hold, met)
        finally:
            brought.ended(hold)
        met.tell(self)

    async def _noted(self, hold: Hold, met: Outcome) -> None:
        if hold.fd is not None:
            try:
                self._register_context_descriptor()
            except BaseException as error:  # noqa: BLE001 - told below
                met.unnoted = error
        if met.errors and hold.fd is not None:
            fd = hold.fd
            cancelled, met.stuck = await self._ended_step(self._release)
            met.cancelled = met.cancelled or cancelled
            if met.stuck is None:
                brought.forget(fd)
            else:
                hold.moving, hold.path = "stuck", self.lock_file  # a release may end it later

    async def _let_go_awaited(self, hold: Hold) -> None:
        if not isinstance(self, Mechanical) or self._brings("_release"):
            fd = hold.fd
            cancelled, failed = await self._ended_step(self._release)
            if failed is None:
                brought.forget(fd)
            told(self, RELEASE, cancelled, failed)
        elif self._in_executor:
            await self._aside(self._let_go, hold, text=RELEASE)
        elif self._afar:
            await EVENT_LOOP.shield(
                EVENT_LOOP.in_thread(lambda: self._let_go(hold), lambda _: None)
            )
        else:
            self._let_go(hold)

    def _let_go(self, hold: Hold) -> None:
        """Of a lock that is dropped where no loop runs: as much as can be done without."""
        inspect: Any = fork.lazily("inspect")
        if not inspect.iscoroutinefunction(self._release):
            super()._let_go(hold)
            return
        work, fd = cast("Coroutine[Any, Any, None]", self._release()), hold.fd
        try:
            work.send(None)
        except StopIteration:
            brought.forget(fd)
        finally:
            work.close()

    @property
    def _in_executor(self) -> bool:
        """Whether ours is done where the caller asks for: nowhere else by default."""
        return self._executor is not None and self._run_in_executor

    async def _aside(self, call: Callable[..., Any], *arguments: Any, text: str = CANCELLED) -> Any:
        """In the executor, or in a helper thread, or here when neither is wanted."""
        answer: list[Any] = []
        told(self, text, *await self._ended_step(lambda: answer.append(call(*arguments))))
        return answer[0]

    async def _ended_step(
        self, call: Callable[[], Any]
    ) -> tuple[BaseException | None, BaseException | None]:
        """Done, whatever is cancelled meanwhile: that, and the error of the step."""
        inspect: Any = fork.lazily("inspect")
        work: Any = None
        try:
            if inspect.iscoroutinefunction(call):
                work = call()
            elif not self._run_in_executor:
                call()
            elif self._executor is None:
                work = EVENT_LOOP.in_thread(call, lambda _: None)
            else:
                work = awaiting(self._executor.submit(call))
        except BaseException as error:  # noqa: BLE001 - told by who asked
            return None, error
        if work is None:
            return None, None
        answer: list[BaseException | None] = []
        try:
            await EVENT_LOOP.shield(caught(work, answer))
        except BaseException as cancelled:  # noqa: BLE001 - told by who asked
            return cancelled, answer[0] if answer else None
        return None, answer[0]


def told(
    lock: Any, text: str, cancelled: BaseException | None, failed: BaseException | None
) -> None:
    """Raise what a step has met, by the lock's policy."""
    if cancelled is not None and failed is not None:
        by_policy(lock, text, cancelled, failed)
    error = cancelled or failed
    if error is not None:
        raised(error)


async def awaiting(begun: Any) -> Any:
    """A step in an executor. Raises RuntimeError when that was closed before it began."""
    asyncio: Any = fork.lazily("asyncio")
    try:
        return await asyncio.wrap_future(begun)
    except asyncio.CancelledError:
        if not begun.cancelled():
            raise
        raise RuntimeError("the executor shut down before running a step of the lock") from None


async def caught(work: Any, answer: list[BaseException | None]) -> None:
    """`work`, with its exception as a value: a cancellation that it raises is not the caller's."""
    try:
        await work
    except BaseException as error:  # noqa: BLE001 - raised again by who asked
        answer.append(error)
    else:
        answer.append(None)
