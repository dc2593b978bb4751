"""`aconnect(url)`: the stores for tasks of asyncio and trio.

Questions about files are asked in a helper thread; a store's client is awaited where it can be.
"""

from __future__ import annotations

from .aio import AsyncLock, AsyncReadWriteLock, AsyncSemaphore
from .core.backend import NoReply, Unreachable
from .described import ASYNC, explained
from .runtime import fork
from .runtime.blocking import finish
from .runtime.eventloop import EVENT_LOOP
from .stores import (
    OF_BREAK,
    OF_LOCK,
    OF_READ_WRITE,
    OF_SEMAPHORE,
    FileStore,
    FileStoreFace,
    FolderGround,
    LeaseGround,
    LeaseStoreFace,
    age_of,
    broken,
    grounded,
    least_of,
    permits_of,
    prefix_of,
    reason_of,
    refuse_strange,
    several,
    url_of,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence
    from typing import Any, TypeVar

    from . import per as args
    from .core.backend import State
    from .core.errors import StoreUnavailable
    from .core.grant import Holder
    from .per import AsyncPerArguments, AsyncReadWritePer
    from .store import site as sites

    T = TypeVar("T")
else:
    args = fork.later("lifehold.per", globals(), "args")
    sites = fork.later("lifehold.store.site", globals(), "sites")


@explained(
    "aconnect()",
    "await aconnect('file:///var/lib/jobs')",
    others="one store a call; its options by name, as in aconnect(URL, label='batch')",
)
async def aconnect(
    url: str | os.PathLike[str] | None = None,
    *,
    quorum: Sequence[str] | None = None,
    **options: Any,
) -> AsyncFileStore | AsyncLeaseStore:
    """As `connect`, for tasks: its locks are used with `async with`, its questions are awaited."""
    where = url_of(url) if quorum is None else several(url, quorum, options)
    if where.startswith("file:"):
        refuse_strange(options)
        return AsyncFileStore(where, **options)
    return AsyncLeaseStore(where, **options)


class AsyncNamedLocks:
    """The locks of a store that are named by arguments, for coroutine functions."""

    __slots__ = ()
    if TYPE_CHECKING:

        def lock(self, name: str, **options: Any) -> AsyncLock: ...
        def read_write(self, name: str, **options: Any) -> AsyncReadWriteLock: ...
        def semaphore(self, name: str, permits: int, **options: Any) -> AsyncSemaphore: ...

    @explained("store.per()", "store.per('user-{user_id}')")
    def per(self, template: str, **options: Any) -> AsyncPerArguments:
        """`@store.per("user-{user_id}")`: a lock for each value of an argument. As `Lock.per`."""
        return args.AsyncPerArguments(
            template,
            lambda name: self.lock(name, **options),
            "aconnect",
            keep=bool(options.get("reentrant")),
        )

    @explained("store.read_write_per()", "store.read_write_per('config-{name}')")
    def read_write_per(self, template: str, **options: Any) -> AsyncReadWritePer:
        """`@store.read_write_per("config-{name}").reading()`. As `ReadWriteLock.per`."""
        return args.AsyncReadWritePer(
            template,
            lambda name: self.read_write(name, **options),
            "aconnect",
            call="read_write_per",
            keep=bool(options.get("reentrant")),
        )

    @explained("store.semaphore_per()", "store.semaphore_per('gpu-{host}', 4)")
    def semaphore_per(self, template: str, permits: int, **options: Any) -> AsyncPerArguments:
        """`@store.semaphore_per("gpu-{host}", 4)`: so many permits for each value."""
        return args.AsyncPerArguments(
            template,
            lambda name: self.semaphore(name, permits, **options),
            "aconnect",
            call="semaphore_per",
        )


class AsyncFileStore(FileStoreFace, AsyncNamedLocks):
    """What `await aconnect("file:///FOLDER")` answers."""

    __slots__ = ()

    @OF_LOCK
    def lock(self, name: str, **options: Any) -> AsyncLock:
        """One holder at a time. Options as of `AsyncLock`."""
        return AsyncLock(self.address(name), **self._options(options))

    @OF_READ_WRITE
    def read_write(self, name: str, **options: object) -> AsyncReadWriteLock:
        """Many readers or one writer. Options as of `AsyncReadWriteLock`."""
        return AsyncReadWriteLock(self.address(name), **self._options(options))

    @OF_SEMAPHORE
    def semaphore(self, name: str, permits: int, **options: object) -> AsyncSemaphore:
        """`permits` holders at once. Options as of `AsyncSemaphore`."""
        return AsyncSemaphore(self.address(name), permits, **self._options(options, leased=False))

    async def close(self) -> None:
        """Nothing is kept open between two calls: for `async with` alike."""

    if not TYPE_CHECKING:
        __enter__ = ASYNC

    async def __aenter__(self) -> AsyncFileStore:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def inspect(self, name: str, **options: object) -> Holder | None:
        """Who holds a lock, None for nobody. Takes nothing. `kind`: of a lock that names one."""
        return await _aside(lambda: self._blocking().inspect(name, **options))

    async def list(self, prefix: str = "") -> list[str]:
        """The names of the locks here, held or not, that begin with `prefix`, in order."""
        return await _aside(lambda: self._listed(prefix))

    async def waiters(self, name: str, **options: object) -> int | None:
        """How many wait for a lock; None where that cannot be seen."""
        return await _aside(lambda: self._blocking().waiters(name, **options))

    @OF_BREAK
    async def break_(self, name: str, reason: str, **options: object) -> Holder | None:
        """Take a lock from its holder, who is told; who that was. Noted beside the lock."""
        return await _aside(lambda: self._blocking().break_(name, reason, **options))

    async def ground(self) -> FolderGround:
        """What these locks stand on, in words. Raises SystemRefused."""
        return await _aside(self._ground)

    def _blocking(self) -> FileStore:
        return FileStore(
            self.url, kind=self.kind, ttl=self.ttl, label=self.label, shared=self.shared
        )


async def _aside(call: Callable[[], T]) -> T:
    """A call that may read files, not made by the thread of the event loop."""
    return await EVENT_LOOP.in_thread(call, lambda _: None)


# ------------------------------------------------------------------------------------------------
# `AsyncLeaseStore`: leases by name in a store, for tasks of asyncio and trio.


class AsyncLeaseStore(LeaseStoreFace, AsyncNamedLocks):
    """What `await aconnect(url)` answers for a store of leases. As `LeaseStore`, awaited."""

    __slots__ = ()
    _runtime = EVENT_LOOP

    @OF_LOCK
    def lock(
        self,
        name: str,
        *,
        wait: float | None = None,
        max_hold: float | None = None,
        reentrant: bool = False,
        **options: Any,
    ) -> AsyncLock:
        """One holder at a time."""
        made: AsyncLock = self._made(AsyncLock, name, options, wait, None, max_hold, reentrant)
        return made

    @OF_READ_WRITE
    def read_write(
        self,
        name: str,
        *,
        wait: float | None = None,
        max_hold: float | None = None,
        reentrant: bool = False,
        **options: Any,
    ) -> AsyncReadWriteLock:
        """Many readers or one writer, first come, first served."""
        made: AsyncReadWriteLock = self._pair(
            AsyncReadWriteLock, name, options, wait, None, max_hold, reentrant
        )
        return made

    @OF_SEMAPHORE
    def semaphore(
        self,
        name: str,
        permits: int,
        *,
        wait: float | None = None,
        max_hold: float | None = None,
        **options: Any,
    ) -> AsyncSemaphore:
        """`permits` holders at once, each with a slot of its own."""
        capacity = permits_of(permits)
        made: AsyncSemaphore = self._made(
            AsyncSemaphore, name, options, wait, None, max_hold, False, capacity=capacity
        )
        return made

    async def close(self) -> None:
        """Give back what nobody uses now. Leases in hand stay; what is asked later opens anew."""
        await EVENT_LOOP.in_thread(self._site.close, lambda _: None)

    if not TYPE_CHECKING:
        __enter__ = ASYNC

    async def __aenter__(self) -> AsyncLeaseStore:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def inspect(self, name: str) -> Holder | None:
        """Who holds a lock, None for nobody. Takes nothing."""
        holders = await self.holders(name)
        return holders[0] if holders else None

    async def holders(self, name: str) -> list[Holder]:
        """All who hold it: readers, or those with a permit."""
        state = await self._state(sites.checked(name))
        if state and state.holders:
            return [self._site.holder(held, name) for held in state.holders]
        return [holder for each in await self._seen(name) for holder in each.holders]

    async def list(self, prefix: str = "") -> list[str]:
        """The names of all locks that were ever taken here and begin with `prefix`, in order."""
        prefix = prefix_of(prefix)
        names: list[str] = []
        while some := await self._ask(
            self._site.page_of(prefix, names[-1] if names else "", bare=True)
        ):
            names += [state.name for state in some]
        return names

    async def prune(self, older_than: float) -> int:
        """Forget names that nobody has used for `older_than` seconds; how many those were."""
        idle = age_of(older_than)
        gone: int = await EVENT_LOOP.in_thread(lambda: self._site.prune(idle), lambda _: None)
        return gone

    async def waiters(self, name: str) -> int:
        """How many wait for a lock."""
        state = await self._state(sites.checked(name))
        line = sum(len(each.line) for each in await self._seen(name))
        return (len(state.waiters) if state else 0) + line

    @OF_BREAK
    async def break_(self, name: str, reason: str) -> Holder | None:
        """Take a lock from its holders, who are told; who that was. Noted in the store."""
        sites.checked(name), reason_of(reason, "break_")
        found: Holder | None = await EVENT_LOOP.in_thread(
            lambda: broken(self._site, name, reason), lambda _: None
        )
        return found

    async def bump(self, name: str, least: int = 0, reason: str = "") -> int:
        """Raise the token of a name, to `least` at the least, and answer it."""
        sites.checked(name), reason_of(reason), least_of(least)
        await EVENT_LOOP.in_thread(
            lambda: self._site.order("bump", name, reason, least), lambda _: None
        )
        state = await self._state(name)
        return int(state.token) if state and state.token else 0

    async def ground(self) -> LeaseGround:
        """What these leases stand on, in words. Raises StoreUnavailable."""
        return grounded(self._site, await self._ask(self._site.ground))

    async def _state(self, name: str) -> State | None:
        found = await self._ask(lambda backend: backend.look((name,)))
        return found[0] if found else None

    async def _seen(self, name: str) -> tuple[Any, ...]:
        return await self._ask(  # type: ignore[no-any-return]
            lambda backend: self._site.by_session(backend, name)
        )

    async def _ask(self, make: Any) -> Any:
        """One question: awaited where the client can be, else by a helper thread."""
        swift = self._site.swift(EVENT_LOOP)
        try:
            if swift is not None:
                return await make(swift)
            backend = self._site.backend
            return await EVENT_LOOP.in_thread(lambda: finish(make(backend)), lambda _: None)
        except (Unreachable, NoReply) as error:
            unavailable: StoreUnavailable = self._site.unavailable(error)
            raise unavailable from error
