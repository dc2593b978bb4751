"""The public types, as a program sees them. Checked by mypy and pyright, never run."""

from __future__ import annotations

from collections.abc import Coroutine
from pathlib import Path
from types import EllipsisType
from typing import Any, assert_type

import lifehold
from lifehold import (
    AsyncLease,
    AsyncLock,
    AsyncReadWriteLock,
    AsyncSemaphore,
    Backoff,
    Cancel,
    Holder,
    Lease,
    Lock,
    NotAcquired,
    Owner,
    ReadWriteLock,
    Semaphore,
    StaleToken,
    SystemRefused,
    Timeout,
    WouldBlock,
    aconnect,
    connect,
    current_token,
    lock_all,
    once,
)
from lifehold.aio import AsyncReadWriteLease
from lifehold.aio import lock_all as lock_all_async
from lifehold.astores import AsyncFileStore, AsyncLeaseStore
from lifehold.core.ports import Mechanism, Runtime
from lifehold.fence import Fenced, FencedFile, FencedObject, MemoryObjects, RowFence, hooks
from lifehold.runtime.blocking import BLOCKING
from lifehold.runtime.eventloop import EVENT_LOOP
from lifehold.several import LeaseGroup
from lifehold.shapes import ReadWriteLease, SlotLease
from lifehold.stores import FileStore, LeaseStore
from lifehold.testing.clock import VirtualRuntime
from lifehold.testing.conformance import Case, Result, Subject, cases, check
from lifehold.testing.dict_lock import MemoryLock, MemoryLocks
from lifehold.typing import AnyLease, ClearOutcome, LockAnswer

assert_type(Lock("x"), Lock)
assert_type(Lock("x", singleton=True), Lock)
lock = Lock("a.lock", wait=30, kind="kernel", label="x", mode=0o600, reentrant=True, max_hold=1.5)
Lock(Path("a.lock"), cancel=Cancel(), record=False)

with lock as lease:
    assert_type(lease, Lease)
    assert_type(lease.token, int | None)
    assert_type(lease.token_reason, str | None)
    assert_type(lease.nonce, str)
    assert_type(lease.name, str)
    assert_type(lease.path, str)
    assert_type(lease.exclusive, bool)
    assert_type(lease.acquired_at, float)
    assert_type(lease.held, bool)
    assert_type(lease.remaining(), float | None)
    assert_type(lease.lost.is_set(), bool)
    assert_type(lease.lost.wait(1.0), bool)
    lease.lost.add_callback(lambda: None)
    lease.check()

assert_type(lock.acquire(), Lease)
assert_type(lock.acquire(0), Lease)
assert_type(lock.acquire(None, cancel=Cancel()), Lease)
with lock.acquire(wait=1.5) as lease:
    assert_type(lease, Lease)
assert_type(lock.try_acquire(), Lease | None)
with lock.attempt() as tried:
    assert_type(tried, Lease | None)
lock.acquire(timeout=3)  # type: ignore[call-arg]
Lock("a.lock", timeout=3)  # type: ignore[call-arg]
Lock("a.lock", notify=False)
Lock("a.lock", notify=5.0)
assert_type(Semaphore("a.lock", 2).try_acquire(), SlotLease | None)
assert_type(ReadWriteLock("a.lock").try_acquire_write(), ReadWriteLease | None)
assert_type(lock_all(["a.lock"]).try_acquire(), LeaseGroup | None)
with ReadWriteLock("a.lock").attempt_read() as tried_read:
    assert_type(tried_read, ReadWriteLease | None)


@ReadWriteLock("a.lock").reading()
def under_reading(value: int) -> str:
    return str(value)


@lock_all(["a.lock"])
def under_all(value: int) -> str:
    return str(value)


assert_type(under_reading(5), str)
assert_type(under_all(5), str)
under_reading("5")  # type: ignore[arg-type]


@Lock.per("user-{value}.lock", wait=5)
def under_per(value: int) -> str:
    return str(value)


@connect("memory:///a").per("user-{value}")
def under_store_per(value: int) -> str:
    return str(value)


@AsyncLock.per("user-{value}.lock")
async def under_async_per(value: int) -> str:
    return str(value)


assert_type(under_per(5), str)
assert_type(under_store_per(5), str)
under_per("5")  # type: ignore[arg-type]


with lifehold.locked_file("data.json", "r+", wait=5) as data:
    data.write("x")


assert_type(lifehold.look("a.lock"), LockAnswer)
assert_type(lifehold.clear("a.lock", dry_run=True), ClearOutcome)


def of_any(lease: AnyLease) -> int | None:
    return lease.token


class Overriding(Lock):
    def acquire(
        self, wait: float | None | EllipsisType = ..., *, cancel: Cancel | None = None
    ) -> Lease:
        return super().acquire(wait, cancel=cancel)


async def try_async() -> None:
    assert_type(await AsyncLock("a.lock").try_acquire(), AsyncLease | None)
    async with AsyncLock("a.lock").attempt() as lease:
        assert_type(lease, AsyncLease | None)
    assert_type(await AsyncReadWriteLock("a.lock").try_acquire_read(), AsyncReadWriteLease | None)


assert_type(lock.lease, Lease | None)
assert_type(lock.holder(), Holder | None)
assert_type(lock.locked(), bool)
assert_type(lock.path, str)
assert_type(current_token(), int | None)
assert_type(current_token("a.lock"), int | None)
assert_type(lifehold.__version__, str)


@lock
def protected(number: int, *, word: str = "") -> list[str]:
    return [word] * number


assert_type(protected(1, word="x"), list[str])
lease.chek()  # type: ignore[attr-defined]
protected("x")  # type: ignore[arg-type]
lock.acquire("x")  # type: ignore[arg-type]
Lock(5)  # type: ignore[arg-type]
Lock("x", knd="auto")  # type: ignore[call-arg]

alock = AsyncLock("a.lock", wait=30)


async def use() -> None:
    async with alock as lease:
        assert_type(lease, AsyncLease)
        assert_type(lease.token, int | None)
    assert_type(await alock.acquire(), AsyncLease)
    assert_type(await alock.acquire(wait=0), AsyncLease)
    assert_type(alock.lease, AsyncLease | None)
    await alock.release()
    async with AsyncReadWriteLock("a.lock").writing() as writer:
        assert_type(writer, AsyncReadWriteLease)
        await writer.downgrade()
    async with AsyncSemaphore("a.lock", 2) as permit:
        assert_type(permit.slot, int)
    async with lock_all_async(["a.lock"]) as leases:
        assert_type(leases[0], AsyncLease)
    astore = await aconnect("memory:///a")
    assert_type(astore, AsyncFileStore | AsyncLeaseStore)
    assert_type(astore.lock("a"), AsyncLock)
    assert_type(await astore.inspect("a"), Holder | None)


@alock
async def protected_too(number: int) -> str:
    return "x" * number


async def use_decorated() -> None:
    assert_type(await protected_too(1), str)
    work: Coroutine[Any, Any, str] = protected_too(number=1)
    assert_type(await work, str)
    protected_too("x")  # type: ignore[arg-type, unused-coroutine]


# Other shapes, and stores.
readwrite = ReadWriteLock("a.lock")
assert_type(readwrite, ReadWriteLock)
with readwrite.reading(wait=1) as reader:
    assert_type(reader, ReadWriteLease)
with readwrite.writing() as writer:
    writer.downgrade()
assert_type(readwrite.lease, ReadWriteLease | None)
with Semaphore("a.lock", 2) as permit:
    assert_type(permit.slot, int)
with lock_all(["a.lock", lock], wait=5) as leases:
    assert_type(leases.tokens, list[int | None])
    assert_type(leases[0], Lease)
    for each in leases:
        assert_type(each, Lease)
store = connect("memory:///a")
assert_type(store, FileStore | LeaseStore)
assert_type(store.lock("a"), Lock)
assert_type(store.read_write("a"), ReadWriteLock)
assert_type(store.semaphore("a", 2), Semaphore)
assert_type(store.inspect("a"), Holder | None)
assert_type(store.list(), list[str])
assert_type(once("a", lambda: 3), int)


def pay(lease: Lease | AsyncLease, holder: Holder) -> Owner | None:
    lease.check()
    return holder.owner


try:
    lock.acquire(0)
except (WouldBlock, Timeout) as refusal:
    assert_type(refusal.holder, Holder | None)
    assert_type(refusal.waited, float)
    assert_type(refusal.evidence, str)
    assert_type(refusal.code, str)
    assert_type(refusal.name, str | None)
except StaleToken as stale:
    assert_type(stale.token, int | None)
except SystemRefused as system:
    assert_type(system.errno, int | None)

refused: NotAcquired = WouldBlock("x")
assert_type(next(Backoff(0.1, 1.0, jitter=0.3).pauses()), float)

# Guards take a lease or its token.
assert_type(FencedFile("x", lease).read(), Fenced)
assert_type(FencedFile("x").read().data, bytes | None)
assert_type(FencedObject(MemoryObjects(), "x", 5).update(lambda data: data or b""), bytes)
assert_type(RowFence(object(), "account", lease).parameters, dict[str, int])
hooks(lease)

# The ports: what is shipped fits the Protocols.
runtimes: list[Runtime] = [BLOCKING, EVENT_LOOP, VirtualRuntime()]
mechanism: Mechanism = MemoryLock(MemoryLocks(), "x", BLOCKING)

subject = Subject("mine", lacks={"shared": "one at a time"}, lose=lambda name: None)
assert_type(cases(subject), list[Case])
assert_type(check(subject, faces=["blocking"]), list[Result])
