"""One claim, three ways to run it: threads, asyncio, trio.

Promise: an `async def` that reaches locks, workers and time only through a `Face` runs unchanged
under each of them. There is one source of every claim and there are no three copies. Rule that
keeps it: under the blocking face nothing awaited ever suspends, so `finish` runs the claim in the
calling thread, and each worker in a thread of its own. It is the trick of the library itself.
"""

from __future__ import annotations

import asyncio
import importlib.util
import threading
import time
from typing import TYPE_CHECKING, Any, Protocol

from ..aio import AsyncLock
from ..core.acquire import Cancel
from ..core.errors import AcquireCancelled
from ..lock import Lock
from ..runtime.blocking import finish

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from types import EllipsisType

    Work = Callable[[], Coroutine[object, None, Any]]

PATIENCE = 60.0  # seconds after which a worker counts as stuck; nothing right takes a tenth of it
CANCELLED = "cancelled"  # the result of a worker whose wait was cancelled


class WorkerStuck(AssertionError):
    """A worker did not come to its end: the lock hangs, or was never passed on."""


class Worker(Protocol):
    """Something that runs beside the claim: a thread or a task."""

    def cancel(self) -> None:
        """End its wait: by a `Cancel` token in a thread, by cancellation of the task elsewhere."""
        ...

    async def result(self, within: float = PATIENCE) -> Any:
        """What it returned, `CANCELLED` when its wait was cancelled, or its error, raised."""
        ...


class Face(Protocol):
    """What a claim may use."""

    name: str

    def run(self, work: Work) -> None:
        """Run a claim to its end and raise what it raises."""
        ...

    def lock(self, path: str, **options: object) -> object:
        """`Lock` or `AsyncLock`."""
        ...

    async def acquire(self, lock: object, wait: float | None | EllipsisType = ...) -> Any:
        """A lease."""
        ...

    async def release(self, held: object) -> None:
        """Release a lease, or the lease of a lock."""
        ...

    def held(self, lock: object) -> Any:
        """`async with face.held(lock) as lease`."""
        ...

    async def call(self, function: Callable[[], Any]) -> object:
        """Call what `decorate` made."""
        ...

    def decorate(self, lock: object, body: Callable[[], object]) -> Callable[[], object]:
        """`body`, a plain function, under `@lock` in this face's form."""
        ...

    def start(self, work: Work) -> Worker:
        """Run `work` beside the claim."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class _Thread:
    """A worker of the blocking face."""

    here = threading.local()

    def __init__(self, work: Work) -> None:
        self.token = Cancel()
        self._work = work
        self._value: object = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self.here.worker = self
        try:
            self._value = finish(self._work())
        except AcquireCancelled:
            self._value = CANCELLED
        except BaseException as error:
            self._error = error

    def cancel(self) -> None:
        self.token.cancel()

    async def result(self, within: float = PATIENCE) -> object:
        self._thread.join(within)
        if self._thread.is_alive():
            raise WorkerStuck(f"a thread was not done after {within:g} s")
        return _answer(self._value, self._error)


class Blocking:
    """`Lock`, threads, `Cancel`."""

    name = "blocking"

    def run(self, work: Work) -> None:
        finish(work())

    def lock(self, path: str, **options: Any) -> object:
        return Lock(path, **options)

    async def acquire(self, lock: Any, wait: float | None | EllipsisType = ...) -> object:
        worker = getattr(_Thread.here, "worker", None)
        return lock.acquire(wait, cancel=worker and worker.token)

    async def release(self, held: Any) -> None:
        held.release()

    def held(self, lock: object) -> object:
        return _Entered(lock)

    async def call(self, function: Callable[[], object]) -> object:
        return function()

    def decorate(self, lock: Any, body: Callable[[], Any]) -> Callable[[], object]:
        return lock(body)  # type: ignore[no-any-return]

    def start(self, work: Work) -> Worker:
        return _Thread(work)

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class _Entered:
    """A `with` block, written as `async with`."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock

    async def __aenter__(self) -> object:
        return self._lock.__enter__()

    async def __aexit__(self, *error: object) -> object:
        return self._lock.__exit__(*error)


class _Async:
    """What asyncio and trio have in common: the face itself."""

    def lock(self, path: str, **options: Any) -> object:
        return AsyncLock(path, **options)

    async def acquire(self, lock: Any, wait: float | None | EllipsisType = ...) -> Any:
        return await lock.acquire(wait)

    async def release(self, held: Any) -> None:
        await held.release()

    def held(self, lock: object) -> object:
        return lock

    async def call(self, function: Callable[[], Awaitable[object]]) -> object:
        return await function()

    def decorate(self, lock: Any, body: Callable[[], object]) -> Callable[[], object]:
        async def asynchronous() -> object:
            return body()

        asynchronous.__name__ = body.__name__
        return lock(asynchronous)  # type: ignore[no-any-return]


class Asyncio(_Async):
    """`AsyncLock` under asyncio."""

    name = "asyncio"

    def run(self, work: Work) -> None:
        asyncio.run(work())

    def start(self, work: Work) -> Worker:
        return _AsyncioTask(work)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class _AsyncioTask:
    def __init__(self, work: Work) -> None:
        self._task = asyncio.get_running_loop().create_task(work())

    def cancel(self) -> None:
        self._task.cancel()

    async def result(self, within: float = PATIENCE) -> object:
        await asyncio.wait({self._task}, timeout=within)
        if not self._task.done():
            self._task.cancel()
            raise WorkerStuck(f"a task was not done after {within:g} s")
        return CANCELLED if self._task.cancelled() else self._task.result()


class Trio(_Async):
    """`AsyncLock` under trio."""

    name = "trio"

    def __init__(self) -> None:
        import trio

        self.trio = trio
        self._nursery: Any = None

    def run(self, work: Work) -> None:
        async def main() -> BaseException | None:
            async with self.trio.open_nursery() as self._nursery:
                try:
                    await work()
                except Exception as error:
                    return error
                finally:
                    self._nursery.cancel_scope.cancel()
            return None

        error = self.trio.run(main)
        if error is not None:
            raise error

    def start(self, work: Work) -> Worker:
        worker = _TrioTask(self.trio, work)
        self._nursery.start_soon(worker.run)
        return worker

    async def sleep(self, seconds: float) -> None:
        await self.trio.sleep(seconds)


class _TrioTask:
    def __init__(self, trio: Any, work: Work) -> None:
        self._trio, self._work = trio, work
        self._scope, self._over = trio.CancelScope(), trio.Event()
        self._value = CANCELLED
        self._error: BaseException | None = None

    async def run(self) -> None:
        try:
            with self._scope:
                self._value = await self._work()
        except Exception as error:
            self._error = error
        finally:
            self._over.set()

    def cancel(self) -> None:
        self._scope.cancel()

    async def result(self, within: float = PATIENCE) -> object:
        with self._trio.move_on_after(within):
            await self._over.wait()
        if not self._over.is_set():
            raise WorkerStuck(f"a task was not done after {within:g} s")
        return _answer(self._value, self._error)


def _answer(value: object, error: BaseException | None) -> object:
    if error is not None:
        raise error
    return value


FACES: dict[str, Callable[[], Face]] = {"blocking": Blocking, "asyncio": Asyncio, "trio": Trio}


def missing(name: str) -> str | None:
    """Why a face cannot be run here, None when it can."""
    if name == "trio" and importlib.util.find_spec("trio") is None:
        return "trio is not installed"
    return None
