"""The blocking face: `Lock` and its `Lease`.

A lock object is only a description of what to lock. Each acquire makes a lease of its own, so one
object may be shared by threads: they exclude each other, as two objects and two processes do.
"""

from __future__ import annotations

import _thread
import os
from _weakref import ref

from . import registry
from .checks import check_bool, check_cancel, check_flags, check_options, check_record, notify_of
from .core import events
from .core.acquire import FIRST_NOTICE, TURN, Ask, acquire, deadline_of, look, waiting
from .core.deadline import TRY, seconds
from .core.errors import (
    AcquireCancelled,
    InvalidArgument,
    SelfDeadlock,
    SystemRefused,
    Timeout,
    WouldBlock,
    pass_up,
)
from .core.grant import Grant, Held, Unknown
from .core.ports import is_far, is_leased, is_mixing, is_named, is_remote
from .described import (
    ASYNC,
    OF_LEASE,
    OF_LOCK,
    PLAIN,
    PLAIN_LEASE,
    DescribedLock,
    SingletonMeta,
    canonical,
    explained,
    strange,
)
from .lease import (
    Block,
    BlockEntry,
    Holding,
    begun,
    entering,
    exit_method,
    exiting,
    renamed,
    unwound,
)
from .runtime import clock, fork
from .runtime.blocking import BLOCKING, finish
from .runtime.held_here import asker, held_by, spelled_alike, this_thread
from .runtime.native import get_ident

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from contextlib import AbstractContextManager
    from types import EllipsisType
    from typing import Any, Never, ParamSpec, Self, TypeVar

    from . import attempts, decorated, words
    from . import per as args
    from .core import address, explain
    from .core.acquire import Cancel
    from .core.deadline import Terms
    from .core.errors import LifeholdError, NotAcquired
    from .core.events import Waiting
    from .core.grant import Holder
    from .core.ports import Mechanism, Runtime
    from .local import lock_names
    from .per import PerArguments
    from .runtime import holder_for_notices, notify, process

    P = ParamSpec("P")
    R = TypeVar("R")
else:
    address = fork.later("lifehold.core.address", globals())
    explain = fork.later("lifehold.core.explain", globals())
    lock_names = fork.later("lifehold.local.lock_names", globals())
    holder_for_notices = fork.later("lifehold.runtime.holder_for_notices", globals())
    attempts = fork.later("lifehold.attempts", globals())
    decorated = fork.later("lifehold.decorated", globals())
    args = fork.later("lifehold.per", globals(), "args")
    words = fork.later("lifehold.words", globals())
    notify = fork.later("lifehold.runtime.notify", globals())
    process = fork.later("lifehold.runtime.process", globals())


# ------------------------------------------------------------------------------------------------
# What both faces of a lock share: arguments, questions, and the words of a refusal.


# What helps who waits for a lock that it holds itself.
REENTRANT = "pass the lease along, or use one object with reentrant=True"
ALONG = "pass the lease along"
LONGEST_PATH = 4095  # bytes (PATH_MAX less the NUL); the system's own limit may be lower

REMEMBERED = 256  # absolute paths that have been looked at: a lock made per use costs less
_paths: dict[str, str] = {}


class LockFace(DescribedLock, metaclass=SingletonMeta):
    """Arguments checked, a mechanism chosen, and what can be asked without holding the lock."""

    __slots__ = (
        "__weakref__",
        "_cancel",
        "_cure",
        "_far",
        "_given",
        "_leases",
        "_max_hold",
        "_mechanism",
        "_name",
        "_notify",
        "_reentrant",
        "_terms",
        "_tried",
        "_wait",
    )
    _runtime: Runtime
    _mechanism: Mechanism
    _cure: str  # for who holds it itself, where that is not REENTRANT
    _in_loop = False  # whether its calls are made by the thread of an event loop
    if not TYPE_CHECKING:
        __enter__, __aenter__ = ASYNC, PLAIN

    def __init__(
        self, path: str | os.PathLike[str], *, kind: str = "auto", wait: float | None = None,
        cancel: Cancel | None = None, label: str = "", reentrant: bool = False,
        exclusive: bool = True, max_hold: float | None = None, record: bool = True,
        cleanup: bool = False, mode: int | None = None, shared: bool = False, fair: bool = False,
        ttl: float | None = None, heartbeat: float | None = None, margin: float | None = None,
        strict: bool = False, notify: float | None = None,
        singleton: bool = False,  # `SingletonMeta` sees to it
    ) -> None:  # fmt: skip
        if not isinstance(path, str):  # what it is, if no path, lock_path will say
            path = os.fspath(path) if hasattr(path, "__fspath__") else lock_path(path)
        self._name: str = path
        self._wait = None if wait is None else seconds("wait", wait)
        self._max_hold = None if max_hold is None else seconds("max_hold", max_hold, zero=False)
        self._cancel, self._reentrant = cancel, reentrant
        self._notify = None if notify is None else notify_of(notify)
        flags = reentrant, exclusive, record, cleanup, shared, fair, strict
        if cancel is not None or {*map(type, flags)} != {bool}:
            check_flags(locals())
        self._leases: list[Any] = []
        self._tried: list[ref[Any]] | None = None
        self._terms: Terms | None = None
        if registry.is_store(path):
            given = {"cleanup": cleanup, "shared": shared, "strict": strict, "mode": mode,
                     "record": record, "exclusive": exclusive, "ttl": ttl, "heartbeat": heartbeat,
                     "margin": margin}  # fmt: skip
            self._use(registry.store_lock(path, self._runtime, kind, label, given))
            self._name = self._mechanism.path  # L11  without its password
            return
        if mode is not None or label or shared or cleanup or not record or not exclusive:
            check_options(mode, shared, label)
            check_record(record, cleanup, exclusive)
        where = (type(path) is str and _paths.get(path)) or lock_path(path)
        options: dict[str, object] = {}
        if kind == "auto":
            kind, ttl = registry.choose(where, ttl)
        if strict:
            options["strict"] = registry.strict_for(kind)
        if ttl is not None or heartbeat is not None or margin is not None:
            options["terms"] = self._terms = registry.terms_of(kind, ttl, heartbeat, margin)
        self._use(
            (registry.fair_maker if fair else registry.maker)(kind)(
                where, self._runtime, exclusive=exclusive, label=label,
                record=record, cleanup=cleanup, mode=mode, shared=shared, **options,
            )
        )  # fmt: skip

    def _use(self, mechanism: Mechanism) -> None:
        self._mechanism = mechanism
        if self._terms is None and is_leased(mechanism):
            self._terms = mechanism.terms  # a lease anyway
        self._far = self._in_loop and is_far(mechanism)

    @property
    def path(self) -> str:
        """The lock file, absolute."""
        return self._mechanism.path

    @property
    def _target(self) -> str:
        """The lock as the command understands it, which takes a word without a slash for a name."""
        clear = "/" in self._name and self._name[0] != "-"
        return self._name if clear else self.path

    def holder(self) -> Holder | None:
        """Who holds the lock now, in this process or any other; None for nobody. Takes no lock."""
        return self._mechanism.inspect()

    def locked(self) -> bool:
        """Whether anybody holds the lock now. The answer may be out of date when it arrives.

        Takes no lock where the kernel shows all of them; inside a container it has to try, for a
        moment.
        """
        if any(lease.held for lease in self._leases.copy()):
            return True
        return self._mechanism.taken()

    def break_(self, reason: str) -> Holder | None:
        """Take the lock from its holder, who is told by `check()`; who that was, None for nobody.

        Noted in a file beside the lock. Raises InvalidArgument for kinds that cannot be broken.
        """
        return registry.breaker(self._mechanism)(reason)

    def _undo(self, answer: object, error: BaseException) -> None:
        """L6  A signal handler has raised between two steps: nothing stays behind without a handle.

        Closed at once, not left to the garbage collector: who keeps the exception keeps its frames.
        """
        unwound(error)
        if isinstance(answer, Grant):
            while answer.handle:
                close = getattr(answer.handle.pop(), "close", None)
                if close is not None:
                    close()
            for lease in self._leases.copy():
                if lease._grant is answer:
                    self._leases.remove(lease)

    def __repr__(self) -> str:
        state = "held" if any(lease._here() for lease in self._all()) else "not held by it"
        return f"<{type(self).__name__} {self._name!r}: {state}>"

    def _give_away(self, lease: Any) -> None:
        """A lease that is its caller's alone: when he drops it, it ends there and then."""
        if lease._depth or lease not in self._leases:
            return  # there is another who counts on it
        self._tried = [*(each for each in self._tried or () if each() is not None), ref(lease)]
        self._leases.remove(lease)

    def _all(self) -> list[Any]:
        """Its leases, those that were given away and are kept first."""
        away = [each() for each in self._tried or ()]
        return [*(lease for lease in away if lease is not None), *self._leases]

    def _tell_waiting(self, told: Waiting) -> None:
        notify.waiting(told)

    def _tell_quietly(self, told: Waiting) -> None:
        notify.waiting(told, quiet=True)

    def _found(self, key: Hashable, thread: int, task: object) -> Any:
        """The asker's lease of what is locked under `key`, by whatever name; None for none."""
        found = held_by(key, thread, task)
        for other in spelled_alike(key) if found is None and not self._far else ():
            if canonical(other[1]) == canonical(self.path):
                found = found or held_by(other, thread, task)
        return found

    def _holds(self, mine: Any) -> bool:
        """Whether this lease of the asker's keeps it out. None for none."""
        if mine is not None and not self._far:
            mine._why_not()  # what was lost is seen now
        return mine is not None and mine._keeps_out()

    def _refuse_self_deadlock(self, key: Hashable, thread: int, task: object) -> None:
        """A wait without end for a lock that the asker holds itself is an error, not a hang."""
        if not self._holds(self._found(key, thread, task)):
            return
        who = "this task" if task is not None else "this thread"
        raise refusal(
            SelfDeadlock,
            self._name,
            self._mechanism,
            f"{who} holds it already and would wait for itself for ever",
            None,
            following=[getattr(self, "_cure", REENTRANT)],
        )

    def _by_asker(self, key: Hashable) -> list[str] | None:
        """What to do next where the asker holds it itself: waiting cannot help."""
        task = self._task()
        if self._found(key, this_thread.key, task) is None:
            return None
        who = "this task" if task is not None else "this thread"
        return [f"{who} holds it itself: {getattr(self, '_cure', REENTRANT)}"]

    def _refusal(
        self, found: Held | Unknown, ask: Ask, patience: float | None, waited: float
    ) -> LifeholdError:
        """What the wait ended with, as the error that the caller gets."""
        if isinstance(found, Unknown):
            from .core.errors import StoreUnavailable

            return StoreUnavailable(
                f"could not learn whether {self._name!r} is ours "
                f"({found.cause}): treat it as unknown",
                name=self._name,
                nonce=found.nonce,
            )
        if found.cause is not None and is_remote(self._mechanism):
            return self._mechanism.unavailable(found.cause, ask.doubted or found.doubted)
        if patience is TRY:  # who asks needs no words, and no look for them
            return WouldBlock(f"could not acquire {self._name!r}: it is held", name=self._name)
        kind: type[NotAcquired] = WouldBlock if patience == 0 else Timeout
        if ask.cancelled:
            kind = AcquireCancelled
        mine, mechanism = self._by_asker(found.key), self._mechanism
        return refusal(kind, self._name, mechanism, found.reason, waited, self._target, mine)

    def _task(self) -> object:
        """Which task of its thread asks; None where there are none."""
        return None

    def _many(self) -> bool:
        """Whether one thread, or task, may hold it twice, by two leases."""
        return not self._mechanism.exclusive

    def _asked(
        self, answer: object, patience: float | None, cancel: Cancel | None
    ) -> tuple[Ask, float]:
        """The wait that begins with this answer, and the instant at which it began."""
        started = sent_at(answer) or self._runtime.now()
        tell = self._tell_quietly if self._notify is False else self._tell_waiting
        ask = Ask(self._name, deadline_of(patience, started), cancel, tell)
        if self._notify:
            ask.first_notice = self._notify
        return ask, started

    def _outcome(
        self, found: Grant | Held | Unknown, ask: Ask, patience: float | None, started: float
    ) -> tuple[Grant, float]:
        """What a wait ended with: the grant, and how long it took. Raises the refusal."""
        try:
            waited = self._runtime.now() - started
            if isinstance(found, Grant):
                return found, waited
        except BaseException as error:
            self._undo(found, error)
            raise
        raise self._refusal(found, ask, patience, waited)


strange(LockFace, OF_LOCK)


def sent_at(answer: object) -> float:
    """When a first try was sent that had no answer; 0.0 for one that was answered."""
    return answer.sent_at if isinstance(answer, Held) else 0.0


def out_of_reach(error: BaseException) -> bool:
    """Whether the code of a wait could not be loaded: its files are outside of a chroot by now."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ImportError):
        cause = cause.__cause__
    return cause is not None


async def polled(
    mechanism: Mechanism, runtime: Runtime, ask: Ask, answer: Held | Unknown
) -> Grant | Held | Unknown:
    """A wait that needs no more code than is here: a try now and then."""
    pause = 0.01
    found: Grant | Held | Unknown = answer
    while isinstance(found, Held) and runtime.now() < ask.deadline and not ask.cancelled:
        await runtime.sleep(min(pause, ask.deadline - runtime.now()))
        pause = min(2 * pause, 0.25)
        found = mechanism.attempt()
    return found


def refusal(
    kind: type[NotAcquired],
    name: str,
    mechanism: Mechanism,
    reason: str,
    waited: float | None,
    target: str = "",
    following: list[str] | None = None,
) -> NotAcquired:
    """NotAcquired in the one text for "held" (DESIGN 5), with its facts as attributes.

    What cannot be found out for the text does not turn it into another error.
    """
    if kind is AcquireCancelled:
        reason = "the wait was cancelled; " + (reason or "it is held")
    shown = 0.0 if kind is WouldBlock and waited else waited  # some microseconds are no wait
    facts: dict[str, object] = {"name": name, "waited": waited or 0.0}
    try:
        if (waited or 0.0) < FIRST_NOTICE:
            holder, waiters = look(mechanism)
        else:  # there may be hundreds whose patience ends at this moment
            holder, waiters = holder_for_notices.now(mechanism)
        holder = process.as_it_runs(holder)
        held_text, in_program = explain.held_text, explain.in_program  # loaded where it may fail
    except (ImportError, OSError) as error:  # in a signal handler; no descriptor left; EIO
        if not is_remote(mechanism):  # a client of a server has such errors of its own
            pass_up(error)
        text = f"could not acquire {name!r}: {reason or 'it is held'}. By whom cannot be told here"
        return kind(f"{text}: {error}", **facts)
    return kind(
        held_text(
            name,
            holder,
            shown,
            clock.utc_now(),
            reason,
            target,
            waiters,
            following
            or in_program(target or name, mechanism.option if is_named(mechanism) else ""),
        ),
        holder=holder,
        evidence=holder.evidence if holder else "",
        waiters=waiters,
        **facts,
    )


def lock_path(given: object) -> str:
    """`given` as an absolute path. Raises InvalidArgument for what can name no file."""
    if not isinstance(given, str):
        raise words.of_path(given)
    if not given:
        raise InvalidArgument("path must not be empty: name a lock file, for example 'build.lock'")
    if "\0" in given:
        raise InvalidArgument(f"path must not contain a NUL character: {given!r}")
    if ":" in given:
        address.refuse_lost_slash(given)
    if "://" in given:
        return lock_names.path_of(given)
    if given[0] == "~" and "/" in given:
        raise InvalidArgument(
            f"path {given!r} begins with ~, which only a shell replaces: use "
            f"os.path.expanduser({given!r}), or './{given}' for a folder of that name"
        )
    if given.endswith("/"):
        raise InvalidArgument(
            f"path {given!r} names a folder: name a lock file in it, for example {given + 'lock'!r}"
        )
    if len(given) > LONGEST_PATH // 4 and len(os.fsencode(given)) > LONGEST_PATH:
        raise InvalidArgument(
            f"path is too long: {len(os.fsencode(given))} bytes, {LONGEST_PATH} at most"
        )
    if not given.isascii():
        _check_encoding(given)
    if given[0] != "/" or "//" in given or "/." in given:
        return absolute(given)
    if len(_paths) >= REMEMBERED:
        _paths.clear()
    _paths[given] = given
    return given


def absolute(given: str) -> str:
    """The path from the root on, to the file that the kernel would open: `..` may leave a link."""
    try:
        path = os.path.abspath(given)
        folder = os.path.dirname(given)
        if ".." in folder.split("/"):
            if os.path.realpath(folder) != os.path.realpath(os.path.dirname(path)):
                return os.path.join(os.getcwd(), given)
    except FileNotFoundError as error:
        raise SystemRefused(
            f"{given!r}: the working folder has been removed: change into another, or give a path "
            "that begins with a slash",
            name=given,
            errno=error.errno,
            filename=given,
        ) from error
    return path


def _check_encoding(given: str) -> None:
    try:
        os.fsencode(given)
    except UnicodeEncodeError as error:
        raise InvalidArgument(
            f"path {given!r} cannot be a file name in {error.encoding}: {error.reason}"
        ) from error


def fill(
    lock: Any,
    name: str,
    mechanism: Mechanism,
    wait: float | None,
    cancel: Any,
    max_hold: float | None,
    reentrant: bool,
    notify: object = None,
) -> None:
    """What LockFace.__init__ does, for a mechanism that is there already."""
    lock._name, lock._mechanism = name, mechanism
    lock._notify = None if notify is None else notify_of(notify)
    check_cancel(cancel)
    check_bool("reentrant", reentrant)
    lock._wait = None if wait is None else seconds("wait", wait)
    lock._max_hold = None if max_hold is None else seconds("max_hold", max_hold, zero=False)
    lock._cancel, lock._reentrant = cancel, reentrant
    lock._terms = mechanism.terms if is_leased(mechanism) else None
    lock._leases, lock._tried = [], None
    lock._far = lock._in_loop and is_far(mechanism)


class Lease(Holding):
    """A lock in hand: its token, `check()`, `lost`, `release()`.

    Also a context manager that releases.
    """

    __slots__ = ()

    def verify(self) -> None:
        """`check()`, and where the lease is kept it is renewed first: one round trip of a store.

        Raises as `check()`; StoreUnavailable when no answer came: the lease may hold still, until
        its deadline.
        """
        cause = self._kept.verify() if self._kept is not None and self._here() else None
        self.check()
        if cause is not None:
            raise self._unanswered(cause) from cause

    def release(self, *more: Never, **unknown: Never) -> None:
        """Let the lock go. Raises NotHeld when that was done before, LeaseLost when it was lost.

        NotHeld also in a forked child, whose parent holds the lock.
        """
        if more or unknown:
            raise words.wrong("release()", more, unknown)
        if self._depth:
            self._depth -= 1
            return
        lock = self._lock
        try:
            lock._leases.remove(self)
        except ValueError:
            pass  # taken out by another thread
        kept = self._kept
        if kept is not None:
            kept.why_not()  # L5, L8  a deadline that passed unnoticed is told
            kept.stop()  # first: an interrupted release must not be renewed for ever
        try:
            found = lock._mechanism.drop(self._grant)
        except BaseException as error:
            unwound(error)
            if isinstance(error, SystemRefused):
                self._refused(error)
            raise
        told = self._lost or (kept is not None and (kept.reason or kept.lost))
        if told or found is not None or events.listeners:
            self._ended(found)

    def _leave(self, error: BaseException | None) -> None:
        """Release at the end of a block, which `error` has ended, or None."""
        try:
            self.release()
        except BaseException as other:
            if not self._excused(other, error):
                raise

    def __enter__(self) -> Lease:
        self._check_entry()
        return self

    if not TYPE_CHECKING:
        __aenter__ = PLAIN_LEASE

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._leave(error)


strange(Lease, OF_LEASE)


class Lock(LockFace):
    """A lock on a file, for threads, processes and containers of one machine.

    `path`: the lock file; it is made, with its folders, when it is not there, and it stays.
    `wait`: seconds that `acquire()` and `with` wait; None until acquired, 0 for one try.
    `kind`: "kernel", or "auto", which chooses it. `exclusive=False` locks shared: many may hold it
    at once.
    `label`: a word for people, shown to waiters. `reentrant`: the thread with it may take it again.
    `max_hold`: seconds after which a grant ends and is lost. `record=False` writes nothing.
    `cleanup`: unlink the file at release. `mode`: of a new file, whatever the umask; `shared=True`:
    0666.
    `cancel`: a `Cancel` by which another thread ends a wait.
    `fair`: first come, first served among all who ask with `fair=True`.
    `notify`: waiters are told after 2 s, then at growing intervals; a number: of seconds until
    the first time; False: at the level DEBUG alone.
    `singleton`: the same object for the same file in this process, as long as it is kept; other
    options are refused.

    Raises InvalidArgument for a path or a value that no lock can be made of. See
    docs/explanation/kernel-lock.md.
    """

    __slots__ = ()
    _runtime = BLOCKING
    _hand = Lease  # what an acquire puts into the caller's hand

    def _acquire(
        self,
        wait: float | None | EllipsisType = ...,
        *more: object,
        cancel: Cancel | None = None,
        **unknown: object,
    ) -> Lease:
        """The lease, once the lock is ours.

        `wait` in seconds: None until acquired, 0 for one try; left out: the lock's own.

        Raises Timeout or WouldBlock, which name the holder; AcquireCancelled; SelfDeadlock when
        this thread holds the lock itself and would wait for ever; SystemRefused, CorruptRecord,
        UnsafeGround.
        """
        if more or unknown:
            raise words.wrong("acquire()", more, unknown, ("wait", "cancel"), wait)
        if cancel is not None:
            check_cancel(cancel)
        me = this_thread.key if _thread.get_ident is get_ident else asker()
        block: Any = None
        asked: object = wait
        if type(asked) is BlockEntry:
            wait, block = asked.wait, asked.block
            if block is None:
                block = this_thread.begun()
                if block is None or block.one is not self or block.lease is not None:
                    block = begun(self, block, me)
        patience = self._wait if wait is ... else seconds("wait", wait)
        if self._reentrant and (mine := self._of_thread(me)) is not None and mine._lasts():
            mine._depth += 1
            if block is not None:
                block.lease = mine
            return mine
        answer: Any = None
        waited = 0.0
        try:
            if self._name in waiting and patience != 0 and _thread.get_ident is not get_ident:
                clock.pause(TURN)  # greenlets: those who wait come first, as in `AsyncLock`
            answer = self._mechanism.attempt()
            if type(answer) is not Grant:
                answer, waited = self._contend(answer, patience, cancel or self._cancel)
            lease = self._hand(self, answer, me, waited)
            if block is not None:
                lease._way, block.lease = block.way, lease
            self._leases.append(lease)
        except BaseException as error:
            self._undo(answer, error)
            raise
        return lease

    if TYPE_CHECKING:  # a class of a user's overrides this

        def acquire(
            self, wait: float | None | EllipsisType = ..., *, cancel: Cancel | None = None
        ) -> Lease:
            """The lease, once the lock is ours."""
            ...

    else:
        acquire = renamed(_acquire, "acquire")

    def try_acquire(self, *more: Never, **unknown: Never) -> Lease | None:
        """The lease when the lock is free, None when it is held: by others, or by ourselves.

        One try, which waits for nothing. All else raises as of `acquire`: a ground that is unsafe,
        a store that does not answer, a record that cannot be read. A lease that is dropped without
        `release()` lets go at once, with a ResourceWarning.
        """
        if more or unknown:
            raise words.of_try("try_acquire", unknown, more)
        try:
            got: Any = self.acquire(TRY)
        except WouldBlock:
            return None
        if not isinstance(got, Holding):  # a class of a user's
            got = self.lease
        self._give_away(got)
        return got  # type: ignore[no-any-return]

    def attempt(self, *more: Never, **unknown: Never) -> AbstractContextManager[Lease | None, None]:
        """`with lock.attempt() as lease: if lease:` the lease, or None when it is held.

        Raises as `try_acquire`. What was got ends with the block.
        """
        if more or unknown:
            raise words.of_try("attempt", unknown, more)
        return attempts.Attempt(self.acquire)

    @classmethod
    def on_file(
        cls,
        file: object,
        *more: Never,
        exclusive: bool = True,
        wait: float | None = None,
        cancel: Cancel | None = None,
        max_hold: float | None = None,
        notify: float | None = None,
        **unknown: Never,
    ) -> Self:
        """The lock of a file that is open already: an object with `fileno()`, or a descriptor.

        flock(2) on that very descriptor: whoever locks the file by flock is excluded. One grant at
        a time for one file and process; a forked child holds nothing. `release()` writes out the
        buffer first. A file that is closed meanwhile is a lock that is lost. Nothing is written
        into the file: `token` is None. Who waits looks every 50 ms at the least.
        """
        if more or unknown:
            raise words.wrong("on_file()", more, unknown, words.OF_FILE)
        check_bool("exclusive", exclusive)
        made, lock = registry.open_file(file, cls._runtime, exclusive=exclusive), cls.__new__(cls)
        fill(lock, made.path, made, wait, cancel, max_hold, False, notify)
        lock._cure = ALONG
        return lock

    @classmethod
    @explained("Lock.per()", "Lock.per('user-{user_id}.lock')")
    def per(cls, template: str, *more: Any, **options: Any) -> PerArguments:
        """`@Lock.per("user-{user_id}.lock")`: a lock for each value of an argument.

        `template`: the path, with the names of parameters in braces; their values are str, int or
        UUID, and are written into one name so that they stay apart. `options`: those of the lock.
        A lock file is left for each value that was ever used, unless `cleanup=True`.
        """
        return args.PerArguments(
            template,
            lambda name: cls(name, *more, **options),
            cls,
            keep=bool(options.get("reentrant")),
        )

    def _contend(
        self, answer: Held | Unknown, patience: float | None, cancel: Cancel | None
    ) -> tuple[Grant, float]:
        """The wait of a lock that is held."""
        ask, started = self._asked(answer, patience, cancel)
        found: Grant | Held | Unknown = answer
        if is_mixing(self._mechanism):
            self._mechanism.refuse_mixed()
        if patience != 0:
            if patience is None and isinstance(answer, Held):
                self._refuse_self_deadlock(answer.key, this_thread.key, None)
            try:
                found = finish(acquire(self._mechanism, self._runtime, ask, answer))
            except (ImportError, SystemRefused) as error:
                if not out_of_reach(error):
                    raise
                found = finish(polled(self._mechanism, self._runtime, ask, answer))
        return self._outcome(found, ask, patience, started)

    def release(self, *more: Never, **unknown: Never) -> None:
        """Release the lease of this thread, the last one that it took. Raises NotHeld for none.

        A lock that is passed on to another thread is released there by its lease (L5, L9).
        """
        if more or unknown:
            raise words.wrong("release()", more, unknown)
        lease = self._of_thread(this_thread.key)
        if lease is None:
            raise words.not_mine(self, "thread")
        lease.release()

    @property
    def lease(self) -> Lease | None:
        """The lease that this thread holds, the last one that it took; None for none."""
        return self._of_thread(this_thread.key)

    def _of_thread(self, me: int) -> Lease | None:
        found: Lease
        for found in (self._all() if self._tried else self._leases)[::-1]:
            if found._key == me and found._here():
                return found
        return None

    if TYPE_CHECKING:
        __enter__ = acquire
    else:
        __enter__ = entering(acquire)
    __exit__ = exiting(Block, exit_method)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Decorator: each call of `function` holds the lock. For coroutines: `AsyncLock`."""
        return decorated.blocking(function, lambda _, __: self, "Lock", "AsyncLock")
