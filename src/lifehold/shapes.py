"""Locks of other shapes than one holder: readers and a writer, and N at once.

Each is made of the faces `Lock` and `AsyncLock` over mechanisms of its own, so waiting, telling,
cancelling, `max_hold`, forks and leases are theirs.
"""

from __future__ import annotations

import os

from . import registry
from .checks import check_bool, check_cancel, check_options
from .core.deadline import seconds, terms
from .core.errors import (
    InvalidArgument,
    LeaseLost,
    LifeholdError,
    SelfDeadlock,
    StoreUnavailable,
)
from .core.grant import Bound, Lost, Unknown
from .core.ports import is_downgradable, is_slotted
from .described import OF_SIDES, PLAIN, DescribedLock, OtherFace, SingletonMeta, strange
from .lease import BlockEntry, Holding, OfShape, exit_method, exiting, of_shape
from .lock import (
    REENTRANT,
    Lease,
    Lock,
    LockFace,
    fill,
    lock_path,
    refusal,
)
from .runtime import fork
from .runtime.blocking import BLOCKING
from .runtime.held_here import held_by, this_thread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from contextlib import AbstractContextManager
    from types import EllipsisType
    from typing import Any, Never, ParamSpec, TypeVar

    from . import attempts, decorated, words
    from . import per as args
    from .core.acquire import Ask, Cancel
    from .core.grant import Grant, Held, Holder
    from .core.ports import Downgradable, Mechanism, Permit, Slotted
    from .local import kernel_semaphore
    from .per import ReadWritePer

    P = ParamSpec("P")
    R = TypeVar("R")
else:
    attempts = fork.later("lifehold.attempts", globals())
    decorated = fork.later("lifehold.decorated", globals())
    args = fork.later("lifehold.per", globals(), "args")
    words = fork.later("lifehold.words", globals())
    kernel_semaphore = fork.later("lifehold.local.kernel_semaphore", globals())


# ------------------------------------------------------------------------------------------------
# The two sides of a reader/writer lock, as far as the blocking and the async face share them.
#
# Rule: a side is a `Lock` over a mechanism that knows readers; what is added here is refusing, at
# once and by name, what could never come true: a writer that reads, a reader that writes.


KINDS = {
    "kernel": "lifehold.local.kernel_readwrite:side",
    "soft": "lifehold.local.soft_readwrite:side",
}
UPGRADE = (
    "{who} holds it for reading already, and a reader does not become the writer: two that tried "
    "would wait for each other for ever"
)
UPGRADE_REMEDY = "release the read lease, acquire for writing, and read again what you read"
TWICE = f"{UPGRADE_REMEDY}; to write twice, use one object with reentrant=True"
READ_BESIDE_WRITE = "{who} holds it for writing already, and would wait for itself for ever"
READ_REMEDY = "call `downgrade()` of the write lease, which turns it into a reader in one step"


def mechanisms(
    path: Any, runtime: Any, kind: str, label: str, mode: int | None, shared: bool, given: Any
) -> tuple[str, Any, object]:
    """(the name as given, the mechanism of readers, that of writers). Raises InvalidArgument."""
    name = path if isinstance(path, str) else os.fspath(path) if _is_path(path) else path
    where = lock_path(name)
    _check(label, mode, shared, kind)
    if kind == "auto":
        far = "soft" in KINDS and registry.choose(where, None)[0] != "kernel"
        kind = "soft" if far else "kernel"
        if far and given[0] is None:
            given = (registry.DEFAULT_TTL, *given[1:])
    options: dict[str, object] = {"label": label, "mode": mode, "shared": shared}
    if any(each is not None for each in given):
        if kind == "kernel":
            raise InvalidArgument(
                "kind='kernel' takes no ttl: the kernel frees the lock with its holder, at once. "
                "To bound a holder that hangs use max_hold="
            )
        options["terms"] = terms(*given)
    module, _, make = KINDS[kind].partition(":")
    side = getattr(fork.lazily(module), make)
    reads, writes = (side(where, runtime, exclusive=each, **options) for each in (False, True))
    return name, reads, writes


def _is_path(given: object) -> bool:
    return hasattr(given, "__fspath__")


def _check(label: object, mode: object, shared: bool, kind: object) -> None:
    if not isinstance(kind, str) or kind not in ("auto", *KINDS):
        raise InvalidArgument(
            f"kind must be one of auto, {', '.join(KINDS)} for a reader/writer lock, not {kind!r}"
        )
    check_options(mode, shared, label)


def refuse_oneself(
    side: Any, answer: Held | Unknown, patience: float | None, thread: int, task: object
) -> None:
    """Raises SelfDeadlock at once when a reader asks to write, or a writer to read.

    That a writer asks to write again is told as of a `Lock`; and that one try by another object
    is refused, by WouldBlock.
    """
    mine = side._holds(side._other._of_asker(thread, task))
    reads = not side._mechanism.exclusive
    key = getattr(answer, "key", None)
    if not mine and not (reads and patience != 0 and side._holds(side._found(key, thread, task))):
        return
    who = "this task" if task is not None else "this thread"
    why, remedy = (READ_BESIDE_WRITE, READ_REMEDY) if reads else (UPGRADE, UPGRADE_REMEDY)
    raise refusal(
        SelfDeadlock, side._name, side._mechanism, why.format(who=who), None, following=[remedy]
    )


def cure_of(side: LockFace) -> str:
    """For who reads or writes already: by this object, or by another one."""
    if not side._mechanism.exclusive:
        return READ_REMEDY
    return REENTRANT if any(lease._here() for lease in side._leases) else TWICE


def block_wait(call: str, wait: object) -> float | None:
    """The `wait` of a block that reads or writes. Raises InvalidArgument before it begins."""
    if callable(wait):
        raise words.not_called(call, wait)
    return seconds("wait", wait)


def moved(lease: Any, found: Grant | Lost | Unknown) -> None:
    """After a downgrade: the lease is its reading side's from here on, or lost, which is raised.

    L6  Where no answer came it is a reader's too, since others may read by now; that is raised.
    """
    if isinstance(found, Lost):
        lease._forget()
        if found.gone:
            lease._lose(found.reason)
        raise lease._error(found.reason)
    if not isinstance(found, Unknown):
        lease._grant = found
    _become_reader(lease)
    why = lease._why_not()  # its bound may have passed while the grant was out of hand
    if why is not None:
        lease._grant.handle.clear()
        raise lease._error(why)
    if isinstance(found, Unknown):
        raise StoreUnavailable(
            f"{lease.name!r}: could not learn whether it was downgraded ({found.cause}): it counts "
            "as a reader's from here on, and others may read; until its release the store may keep "
            "them out",
            name=lease.name,
            nonce=found.nonce,
        )


def _become_reader(lease: Any) -> None:
    """L6  Of one side of the two at every moment: its block ends it, wherever it is interrupted."""
    writes = lease._lock
    writes._other._leases.append(lease)
    lease._lock = writes._other
    try:
        writes._leases.remove(lease)
    except ValueError:
        pass  # by another thread


def interrupted(lease: Any, error: BaseException) -> None:
    """After a downgrade that raised. What was let go of is forgotten, so no block ends it again.

    L1  Of what is still in hand nobody knows whether others read by now: it is a reader's.
    """
    if not lease._grant.handle:
        lease._forget()
    elif not isinstance(error, LifeholdError) and lease._lock._mechanism.exclusive:
        _become_reader(lease)


def downgradable(lease: Any) -> Downgradable:
    """The mechanism that turns a writer into a reader. Raises LeaseLost, NotHeld."""
    lock = lease._lock
    if not lock._mechanism.exclusive:
        raise InvalidArgument(f"{lease.name!r} is held for reading: there is nothing to downgrade")
    if lease._depth:
        raise InvalidArgument(
            f"{lease.name!r} is held for writing more than once: the outer block counts on it"
        )
    if isinstance(lost := lease._lost and lease._lost.reason, str):
        raise LeaseLost(f"{lease.name!r} is lost: {lost}", name=lease.name, reason=lost)
    mechanism: Mechanism = lock._mechanism
    assert is_downgradable(mechanism), "the writers' side of a reader/writer lock"
    return mechanism


# ------------------------------------------------------------------------------------------------
# `ReadWriteLock`: many readers or one writer, for threads, processes and containers.
#
#    > lock = ReadWriteLock("config.lock")
#    > with lock.reading() as lease: ...
#    > with lock.writing() as lease: ...  # lease.downgrade() makes a reader of it
#
# The object is only a description, as a `Lock` is: each acquire makes a lease of its own.


class ReadWriteLease(Lease):
    """A reader's or a writer's lock in hand. `lease.exclusive` tells which."""

    __slots__ = ()

    def downgrade(self) -> None:
        """Turn a writer into a reader, in one step: no other writer comes in between.

        The lease, its token and its release stay the same; `exclusive` is False from here on.
        Raises LeaseLost when it was lost before or, on systems that cannot convert in one step,
        meanwhile; NotHeld; InvalidArgument for a reader; StoreUnavailable when a store gave no
        answer: the lease is a reader's all the same, since others may read by now. So it is after
        an interrupt, if it is still held.
        """
        mechanism = downgradable(self)
        try:
            moved(self, mechanism.downgrade(self._grant))
        except BaseException as error:
            interrupted(self, error)
            raise


class LockSide(Lock):
    """The readers, or the writers, of one `ReadWriteLock`."""

    __slots__ = ("_other",)
    _hand = ReadWriteLease
    _other: LockSide
    if not TYPE_CHECKING:
        _cure = property(cure_of)

    def __init__(self, *parts: Any) -> None:
        fill(self, *parts)

    def _contend(
        self, answer: Held | Unknown, patience: float | None, cancel: Cancel | None
    ) -> tuple[Grant, float]:
        refuse_oneself(self, answer, patience, this_thread.key, None)
        return super()._contend(answer, patience, cancel)

    def _of_asker(self, thread: int, _task: object) -> Lease | None:
        return self._of_thread(thread)


class ReadWriteBlock(Bound):
    """What `reading()` and `writing()` answer: `with` it. Each block ends its own lease."""

    __slots__ = ("_blind", "_cancel", "_side", "_wait")
    _refusal = "a block cannot be copied or pickled: hand on the lock"

    def __init__(
        self, side: LockSide, wait: float | None | EllipsisType, cancel: Cancel | None
    ) -> None:
        self._side, self._wait, self._cancel = side, wait, cancel
        self._blind: list[OfShape] = []

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Decorator: each call of `function` is made in a block of its own."""
        given = self._side, self._wait, self._cancel
        return decorated.blocking(
            function, lambda _, __: ReadWriteBlock(*given), "ReadWriteLock", "AsyncReadWriteLock"
        )

    if not TYPE_CHECKING:
        __aenter__ = PLAIN

    def __enter__(self) -> ReadWriteLease:
        block = of_shape(self)
        entry: Any = BlockEntry(self._wait, block)
        try:
            lease: Any = self._side.acquire(entry, cancel=self._cancel)
            return lease  # type: ignore[no-any-return]
        except BaseException as error:
            block.undo(error)
            raise

    __exit__ = exiting(OfShape, exit_method)


class ReadWriteFace(DescribedLock, metaclass=SingletonMeta):
    """Two sides of one name, and what can be asked without holding either."""

    __slots__ = ("__weakref__", "_given", "_reads", "_writes")
    _side: Callable[..., object]
    _reads: Any
    _writes: Any
    if not TYPE_CHECKING:
        __enter__ = __aenter__ = OtherFace(
            "a block of it reads or writes: use its `reading()` or `writing()`"
        )
        acquire = try_acquire = attempt = OtherFace(
            "it is read or written: say which, as in acquire_read(), try_acquire_write()"
        )
        __call__ = OtherFace("a function reads or writes: write @lock.reading() or @lock.writing()")

    def _stand_on(
        self,
        name: str,
        reads: object,
        writes: object,
        wait: float | None,
        cancel: Cancel | None,
        max_hold: float | None,
        reentrant: bool,
        notify: object = None,
    ) -> None:
        """`reentrant`: whether a writer may write again; a reader always may, read."""
        check_bool("reentrant", reentrant)
        side, terms = type(self)._side, (wait, cancel, max_hold)
        self._reads = side(name, reads, *terms, True, notify)
        self._writes = side(name, writes, *terms, reentrant, notify)
        self._reads._other, self._writes._other = self._writes, self._reads

    @property
    def path(self) -> str:
        """The lock file, absolute."""
        return self._writes.path  # type: ignore[no-any-return]

    def holder(self) -> Holder | None:
        """The writer, or one of the readers; None for nobody. Takes no lock."""
        return self._writes.holder()  # type: ignore[no-any-return]

    def locked(self) -> bool:
        """Whether anybody reads or writes now."""
        return self._reads.locked() or self._writes.locked()  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        reads, writes = (len(side._leases) for side in (self._reads, self._writes))
        return f"<{type(self).__name__} {self._writes._name!r}: {reads} reading, {writes} writing>"


strange(ReadWriteFace, OF_SIDES)


class ReadWriteLock(ReadWriteFace):
    """Many readers or one writer, on a file.

    Who comes first goes first: a waiting writer keeps later readers out, and waits for no later
    one; readers wait for no later writer.

    `path`: the lock file; it is made, with its folders, when it is not there, and it stays.
    `kind`: "kernel" (one machine), "soft" (records instead of kernel locks, also on file servers
    with a `ttl`), or "auto", which chooses by the file system.
    `wait`: seconds that an acquire waits; None until acquired, 0 for one try.
    `reentrant`: the thread that writes may take the write lock again. Readers always may, read.
    `label`, `max_hold`, `mode`, `shared`, `cancel`, `notify`, `singleton`: as of `Lock`.
    `ttl`, `heartbeat` and `margin`: of the leases of kind "soft".

    Raises InvalidArgument. See docs/explanation/readwrite-lock.md.
    """

    __slots__ = ()
    _runtime = BLOCKING
    _side = LockSide
    _reads: LockSide
    _writes: LockSide

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        kind: str = "auto",
        wait: float | None = None,
        cancel: Cancel | None = None,
        label: str = "",
        reentrant: bool = False,
        max_hold: float | None = None,
        mode: int | None = None,
        shared: bool = False,
        ttl: float | None = None,
        heartbeat: float | None = None,
        margin: float | None = None,
        notify: float | None = None,
        singleton: bool = False,
    ) -> None:
        terms = ttl, heartbeat, margin
        name, reads, writes = mechanisms(path, BLOCKING, kind, label, mode, shared, terms)
        self._stand_on(name, reads, writes, wait, cancel, max_hold, reentrant, notify)

    def reading(
        self,
        wait: float | None | EllipsisType = ...,
        *more: Never,
        cancel: Cancel | None = None,
        **unknown: Never,
    ) -> ReadWriteBlock:
        """`with lock.reading() as lease:` beside other readers, without a writer.

        Its errors are those of `acquire_read`.
        """
        if more or unknown:
            raise words.wrong("reading()", more, unknown, ("wait", "cancel"), wait)
        if wait is not ...:
            wait = block_wait("reading", wait)
        if cancel is not None:
            check_cancel(cancel)
        return ReadWriteBlock(self._reads, wait, cancel)

    def writing(
        self,
        wait: float | None | EllipsisType = ...,
        *more: Never,
        cancel: Cancel | None = None,
        **unknown: Never,
    ) -> ReadWriteBlock:
        """`with lock.writing() as lease:` alone. Its errors are those of `acquire_write`."""
        if more or unknown:
            raise words.wrong("writing()", more, unknown, ("wait", "cancel"), wait)
        if wait is not ...:
            wait = block_wait("writing", wait)
        if cancel is not None:
            check_cancel(cancel)
        return ReadWriteBlock(self._writes, wait, cancel)

    def acquire_read(
        self,
        wait: float | None | EllipsisType = ...,
        *more: Never,
        cancel: Cancel | None = None,
        **unknown: Never,
    ) -> ReadWriteLease:
        """A reader's lease. Its token is that of the last writer; None before the first.

        A thread that reads already gets the lease that it has: release it as often.
        Raises Timeout or WouldBlock, which name a holder; SelfDeadlock, at once, when this thread
        writes; AcquireCancelled; SystemRefused, CorruptRecord, UnsafeGround.
        """
        if more or unknown:
            raise words.wrong("acquire_read()", more, unknown, ("wait", "cancel"), wait)
        return self._reads.acquire(wait, cancel=cancel)  # type: ignore[return-value]

    def acquire_write(
        self,
        wait: float | None | EllipsisType = ...,
        *more: Never,
        cancel: Cancel | None = None,
        **unknown: Never,
    ) -> ReadWriteLease:
        """The writer's lease; its token grows with each.

        Raises as `acquire_read`; SelfDeadlock, at once, when this thread reads or writes.
        """
        if more or unknown:
            raise words.wrong("acquire_write()", more, unknown, ("wait", "cancel"), wait)
        return self._writes.acquire(wait, cancel=cancel)  # type: ignore[return-value]

    @classmethod
    def per(cls, template: str, **options: Any) -> ReadWritePer:
        """`@ReadWriteLock.per("config-{name}.lock").reading()`: one per value. As `Lock.per`."""
        return args.ReadWritePer(
            template,
            lambda name: cls(name, **options),
            cls,
            keep=bool(options.get("reentrant")),
        )

    def try_acquire_read(self, *more: Never, **unknown: Never) -> ReadWriteLease | None:
        """A reader's lease, or None while somebody writes or waits to. As `Lock.try_acquire`.

        Raises SelfDeadlock when this thread writes.
        """
        if more or unknown:
            raise words.of_try("try_acquire_read", unknown, more)
        return self._reads.try_acquire()  # type: ignore[return-value]

    def try_acquire_write(self, *more: Never, **unknown: Never) -> ReadWriteLease | None:
        """The writer's lease, or None while somebody reads or writes. As `Lock.try_acquire`.

        Raises SelfDeadlock when this thread reads.
        """
        if more or unknown:
            raise words.of_try("try_acquire_write", unknown, more)
        return self._writes.try_acquire()  # type: ignore[return-value]

    def attempt_read(
        self, *more: Never, **unknown: Never
    ) -> AbstractContextManager[ReadWriteLease | None, None]:
        """`with lock.attempt_read() as lease: if lease:` beside other readers."""
        if more or unknown:
            raise words.of_try("attempt_read", unknown, more)
        return attempts.Attempt(self._reads.acquire)

    def attempt_write(
        self, *more: Never, **unknown: Never
    ) -> AbstractContextManager[ReadWriteLease | None, None]:
        """`with lock.attempt_write() as lease: if lease:` alone."""
        if more or unknown:
            raise words.of_try("attempt_write", unknown, more)
        return attempts.Attempt(self._writes.acquire)

    @property
    def lease(self) -> ReadWriteLease | None:
        """The lease that this thread holds, to write or to read; None for none."""
        return self._writes.lease or self._reads.lease  # type: ignore[return-value]

    def release(self, *more: Never, **unknown: Never) -> None:
        """Release the lease of this thread. Raises NotHeld for none."""
        if more or unknown:
            raise words.wrong("release()", more, unknown)
        (self._reads if self._writes.lease is None else self._writes).release()


# ------------------------------------------------------------------------------------------------
# `with Semaphore("gpu.lock", 4) as lease:` has `lease.slot`, 0 to 3: nobody else has it meanwhile.


REMEDY = "release one of its leases first, or pass a lease along"


def mechanism(
    path: Any, runtime: Any, permits: Any, label: str, mode: int | None, shared: bool
) -> tuple[str, Any]:
    """(the name as given, the mechanism). Raises InvalidArgument, UnsafeGround."""
    name = path if isinstance(path, str) else os.fspath(path) if _is_path(path) else path
    if isinstance(path, int) and isinstance(permits, str | os.PathLike):
        raise words.of_turned(path, permits)
    where = lock_path(name)
    _check(label, mode, shared, "kernel")
    made = kernel_semaphore.KernelSemaphore(
        where, runtime, permits, label=label, mode=mode, shared=shared
    )
    return name, made


def slotted(mechanism: Mechanism) -> Slotted:
    """The mechanism of a semaphore."""
    assert is_slotted(mechanism), "a semaphore has slots"
    return mechanism


def _key_of(slot: Permit) -> str:
    """What is locked by who holds a slot: the slot itself of a store, a file by its identity."""
    if "://" in slot.path:
        return slot.path
    try:
        found = os.lstat(slot.path)
    except OSError:
        return ""
    return f"{found.st_dev}:{found.st_ino}"


def refuse_holder_of_all(semaphore: Any, thread: int, task: object) -> None:
    """Raises SelfDeadlock when the asker holds every slot itself and would wait without end."""
    for slot in slotted(semaphore._mechanism).slots:
        if held_by(_key_of(slot), thread, task) is None:
            return
    who = "this task" if task is not None else "this thread"
    raise refusal(
        SelfDeadlock,
        semaphore._name,
        semaphore._mechanism,
        f"{who} holds all of its permits already and would wait for itself for ever",
        None,
        following=[REMEDY],
    )


class SlotHolding(Holding):
    """What a lease of one of the N permits knows of its slot."""

    __slots__ = ()

    @property
    def slot(self) -> int:
        """Which of the slots it is, from 0. Nobody else has it meanwhile."""
        return slotted(self._lock._mechanism).slot_of(self._grant)

    @property
    def path(self) -> str:
        """The file of the slot."""
        return slotted(self._lock._mechanism).slots[self.slot].path

    @property
    def fences(self) -> str:
        """`name#slot`: the name under which guards compare the token, which grows per slot."""
        return f"{self.name}#{self.slot}"


class SemaphoreFace(LockFace):
    """What both semaphores share: how they are made, and what they refuse."""

    __slots__ = ()

    @property
    def permits(self) -> int:
        """How many may hold it at once."""
        return slotted(self._mechanism).permits

    def _many(self) -> bool:
        return True

    def _refuse_self_deadlock(self, key: Hashable, thread: int, task: object) -> None:
        refuse_holder_of_all(self, thread, task)

    def _by_asker(self, key: Hashable) -> list[str] | None:
        """Others may give theirs back: waiting may help."""

    def _slot_of_asker(self) -> str:
        """What this thread or task can do at once; "" when it has no slot."""
        task = self._task()
        slots = slotted(self._mechanism).slots
        if not any(held_by(_key_of(slot), this_thread.key, task) for slot in slots):
            return ""
        who = "this task" if task is not None else "this thread"
        return f"{who} has a slot already: give that one back\n         "

    def _words(self) -> list[str]:
        """What the slots are called on a command line."""
        return [str(slot) for slot in range(self.permits)]

    def _refusal(
        self, found: Held | Unknown, ask: Ask, patience: float | None, waited: float
    ) -> LifeholdError:
        error = super()._refusal(found, ask, patience, waited)
        next_step = "  next   "
        error.args = (error.text.replace(next_step, next_step + self._slot_of_asker(), 1),)
        if "://" not in self.path:  # the command in its text names the slots: it runs as printed
            told = f"lifehold run --wait 1h --slots {','.join(self._words())} "
            error.args = (error.text.replace("lifehold run --wait 1h ", told),)
        return error


class SlotLease(SlotHolding, Lease):
    """One of the N permits in hand."""

    __slots__ = ()


class Semaphore(SemaphoreFace, Lock):
    """At most `permits` holders at once, among threads, processes and containers of one machine.

    `path`: the semaphore's file; beside it one for each slot, `gpu#0.lock` for `gpu.lock`.
    `permits`: 1 to 512; all who use the path must give the same number, which changes only while
    nobody holds or waits. The other arguments are those of `Lock`.

    First come, first served among those who wait. Raises InvalidArgument; UnsafeGround on a file
    server. See docs/explanation/semaphore.md.
    """

    __slots__ = ()
    _hand = SlotLease
    if not TYPE_CHECKING:
        on_file = OtherFace("its permits are files of its own: one open file has Lock.on_file()")

    def __init__(
        self,
        path: str | os.PathLike[str],
        permits: int,
        *,
        wait: float | None = None,
        cancel: Cancel | None = None,
        label: str = "",
        max_hold: float | None = None,
        mode: int | None = None,
        shared: bool = False,
        notify: float | None = None,
        singleton: bool = False,
    ) -> None:
        made = mechanism(path, BLOCKING, permits, label, mode, shared)
        fill(self, *made, wait, cancel, max_hold, False, notify)

    if TYPE_CHECKING:

        def acquire(
            self, wait: float | None | EllipsisType = ..., *, cancel: Cancel | None = None
        ) -> SlotLease: ...

        def try_acquire(self, *more: Never, **unknown: Never) -> SlotLease | None: ...

        def attempt(
            self, *more: Never, **unknown: Never
        ) -> AbstractContextManager[SlotLease | None, None]: ...

        @property
        def lease(self) -> SlotLease | None: ...

        __enter__ = acquire
