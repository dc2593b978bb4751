"""The blocking face: `Lock` and its `Lease`.

A lock object is only a description of what to lock. Each acquire makes a lease of its own, so one
object may be shared by threads: they exclude each other, as two objects and two processes do.
"""

from __future__ import annotations

import _thread
import os
from _weakref import ref

from . import registry
from .core import events
from .core.acquire import FIRST_NOTICE, Ask, acquire, look
from .core.deadline import deadline_of, seconds
from .core.errors import (
    AcquireCancelled,
    InvalidArgument,
    NotHeld,
    SelfDeadlock,
    SystemRefused,
    Timeout,
    WouldBlock,
)
from .core.grant import Grant, Held, Unknown
from .core.ports import is_begun, is_far, is_leased, is_named, is_remote
from .lease import Block, BlockEntry, Exit, Holding, begun, entering, unwound
from .runtime import clock, fork
from .runtime.blocking import BLOCKING, finish
from .runtime.held_here import asker, held_by, this_thread
from .runtime.native import get_ident

TYPE_CHECKING = False
if TYPE_CHECKING:
    import functools
    import inspect
    from collections.abc import Callable, Hashable
    from types import EllipsisType, TracebackType
    from typing import Any, ParamSpec, SupportsIndex, TypeVar

    from .core import address, explain
    from .core.acquire import Cancel
    from .core.deadline import Terms
    from .core.errors import LifeholdError, NotAcquired
    from .core.events import Waiting
    from .core.grant import Holder
    from .core.ports import Mechanism, Runtime
    from .local import handles, lock_names
    from .runtime import looks, notify, process

    P = ParamSpec("P")
    R = TypeVar("R")
else:
    functools = fork.later("functools", globals())
    address = fork.later("lifehold.core.address", globals())
    explain = fork.later("lifehold.core.explain", globals())
    lock_names = fork.later("lifehold.local.lock_names", globals())
    looks = fork.later("lifehold.runtime.looks", globals())
    notify = fork.later("lifehold.runtime.notify", globals())
    process = fork.later("lifehold.runtime.process", globals())
    handles = fork.later("lifehold.local.handles", globals())
    inspect = fork.later("inspect", globals())


# ------------------------------------------------------------------------------------------------
# `singleton=True`: one lock object for one file in this process, whoever makes it.
#
# Promise: two calls with the same path, however it is written, and the same options answer the same
# object, as long as somebody keeps it; other options are refused by name. So code in several places
# shares one object and, with `reentrant=True`, may nest. Rule: the object is found under its
# canonical path, without symbolic links in its folders; the file itself is never followed (L7).


_known: dict[tuple[type, str], tuple[ref[Any], tuple[Any, ...], dict[str, Any]]] = {}


def canonical(path: str) -> str:
    """The path without symbolic links in its folders; the file itself is never followed (L7)."""
    if "://" in path:
        return path  # the name of a store's lock
    if handles.leads_astray(path):
        return os.path.abspath(path)  # L13  a link that stands there for a moment is not believed
    folder, name = os.path.split(path)
    return os.path.join(os.path.realpath(folder), name)


class SingletonMeta(type):
    """The class of lock classes: looks for the one object when it is asked for it."""

    @property
    def __signature__(cls) -> Any:
        """For `help()`: that of `__init__`, not of `__call__`."""
        made = next(vars(each)["__init__"] for each in cls.__mro__ if "__init__" in vars(each))
        _, *parameters = inspect.signature(made).parameters.values()
        return inspect.Signature(parameters)

    if not TYPE_CHECKING:  # a class whose calls are of `__init__` for type checkers

        def __call__(cls, *given: Any, singleton: bool = False, **options: Any) -> Any:
            if singleton:
                return _the_one(cls, given, options)
            made = type.__call__(cls, *given, **options)
            made._given = given, options
            return made


class DescribedLock:
    """A base class of locks: what describes one, its path and options, can be copied and pickled.

    What it holds stays behind. The lock of a store has its connections with it, and perhaps a
    password: it is refused, in words.
    """

    __slots__ = ()

    def __reduce_ex__(self, _: SupportsIndex) -> Any:
        given, options = _description(self)
        return remade, (type(self), given, options)

    def __copy__(self) -> Any:
        try:
            given, options = _description(self)
        except TypeError:
            return self  # of a store: it describes the same lock
        return remade(type(self), given, options)

    def __deepcopy__(self, _: object) -> Any:
        return self.__copy__()


def remade(cls: Any, given: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """The lock that was pickled."""
    return cls(*given, **options)


def _description(one: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What makes the same lock anywhere on this machine. Raises TypeError."""
    kept: tuple[tuple[Any, ...], dict[str, Any]] = getattr(one, "_given", ((), {}))
    given, options = kept
    if "://" in one.path or not (given or options):
        raise TypeError(
            f"{one!r} cannot be pickled: its store is open in this process; hand on its URL, and "
            "connect there"
        )
    if options.get("cancel") is not None:
        raise TypeError(f"{one!r} cannot be pickled: its cancel= is of this process")
    if given:  # the path, wherever the working folder is then
        return (one.path, *given[1:]), options
    return given, {**options, "path": one.path}


def _the_one(cls: Any, given: tuple[Any, ...], options: dict[str, Any]) -> Any:
    made = type.__call__(cls, *given, **options)  # checks the arguments too
    made._given = given, {**options, "singleton": True}
    key = (cls, canonical(made.path))
    more = given[1:]
    fork.here()
    with fork.gate:
        found = _known.get(key)
        one = found[0]() if found is not None else None
        if found is None or one is None:
            for dead in [each for each, (kept, *_) in _known.items() if kept() is None]:
                del _known[dead]
            _known[key] = ref(made), more, options
            return made
    _refuse_others(cls, made.path, found[1:], (more, options))
    return one


def _refuse_others(
    cls: Any, path: str, first: tuple[Any, dict[str, Any]], now: tuple[Any, dict[str, Any]]
) -> None:
    defaults = cls.__init__.__kwdefaults__ or {}
    was, asked = ({**defaults, **options} for _, options in (first, now))
    differing = [name for name in asked if asked[name] != was.get(name) and name != "path"]
    if first[0] == now[0] and not differing:
        return
    words = ", ".join(f"{name}={was.get(name)!r} and not {asked[name]!r}" for name in differing)
    raise InvalidArgument(
        f"singleton=True: the {cls.__name__} of {path!r} exists already, with "
        f"{words or f'{first[0]!r} and not {now[0]!r}'}: give the same options everywhere, or "
        "leave out singleton=True for an object of its own",
        name=path,
    )


# ------------------------------------------------------------------------------------------------
# What both faces of a lock share: arguments, questions, and the words of a refusal.


# What helps who waits for a lock that it holds itself.
REENTRANT = "pass the lease along, or use one object with reentrant=True"
LONGEST_PATH = 4095  # bytes (PATH_MAX less the NUL); the system's own limit may be lower

REMEMBERED = 256  # absolute paths that have been looked at: a lock made per use costs less
_paths: dict[str, str] = {}


class LockFace(DescribedLock, metaclass=SingletonMeta):
    """Arguments checked, a mechanism chosen, and what can be asked without holding the lock."""

    __slots__ = (
        "__weakref__",
        "_cancel",
        "_far",
        "_given",
        "_leases",
        "_max_hold",
        "_mechanism",
        "_name",
        "_reentrant",
        "_terms",
        "_wait",
    )
    _runtime: Runtime
    _mechanism: Mechanism
    _in_loop = False  # whether its calls are made by the thread of an event loop

    def __init__(
        self, path: str | os.PathLike[str], *, kind: str = "auto", wait: float | None = None,
        cancel: Cancel | None = None, label: str = "", reentrant: bool = False,
        exclusive: bool = True, max_hold: float | None = None, record: bool = True,
        cleanup: bool = False, mode: int | None = None, shared: bool = False, fair: bool = False,
        ttl: float | None = None, heartbeat: float | None = None, margin: float | None = None,
        strict: bool = False, singleton: bool = False,  # `SingletonMeta` sees to the last one
    ) -> None:  # fmt: skip
        if not isinstance(path, str):  # what it is, if no path, lock_path will say
            path = os.fspath(path) if hasattr(path, "__fspath__") else lock_path(path)
        self._name: str = path
        self._wait = None if wait is None else seconds("wait", wait)
        self._max_hold = None if max_hold is None else seconds("max_hold", max_hold, zero=False)
        self._cancel, self._reentrant = cancel, reentrant
        if cancel is not None and self._in_loop:
            raise InvalidArgument("AsyncLock takes no cancel=: cancel the task that waits instead")
        self._leases: list[Any] = []
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
            _check_options(record, cleanup, exclusive)
        where = (type(path) is str and _paths.get(path)) or lock_path(path)
        options: dict[str, Any] = {}
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
        state = "held" if any(lease._here() for lease in self._leases.copy()) else "not held by it"
        return f"<{type(self).__name__} {self._name!r}: {state}>"

    def _tell_waiting(self, told: Waiting) -> None:
        notify.waiting(told)

    def _refuse_self_deadlock(self, key: Hashable, thread: int, task: object) -> None:
        """A wait without end for a lock that the asker holds itself is an error, not a hang."""
        if not held_by(key, thread, task):
            return
        who = "this task" if task is not None else "this thread"
        raise refusal(
            SelfDeadlock,
            self._name,
            self._mechanism,
            f"{who} holds it already and would wait for itself for ever",
            None,
            following=[REENTRANT],
        )

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
            nonce = found.hint.doubted if is_begun(found.hint) else ""
            return self._mechanism.unavailable(found.cause, nonce)
        kind: type[NotAcquired] = WouldBlock if patience == 0 else Timeout
        if ask.cancelled:
            kind = AcquireCancelled
        error = refusal(kind, self._name, self._mechanism, found.reason, waited, self._target)
        if held_by(found.key, this_thread.key, task := self._task()):
            who = "this task" if task is not None else "this thread"
            error.args = (f"{error.text}\n  note   {who} holds it itself: {REENTRANT}",)
        return error

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
        started = began_at(answer) or self._runtime.now()
        return Ask(self._name, deadline_of(patience, started), cancel, self._tell_waiting), started

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


def began_at(answer: object) -> float:
    """When a first try was sent that had no answer; 0.0 for one that was answered."""
    hint = answer.hint if isinstance(answer, Held) else None
    return hint.began if is_begun(hint) else 0.0


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
    facts: dict[str, Any] = {"name": name, "waited": waited or 0.0}
    try:
        if (waited or 0.0) < FIRST_NOTICE:
            holder, waiters = look(mechanism)
        else:  # there may be hundreds whose patience ends at this moment
            holder, waiters = looks.now(mechanism)
        holder = process.as_it_runs(holder)
        held_text, remedies = explain.held_text, explain.remedies  # loaded where it may fail
    except (ImportError, OSError) as error:  # in a signal handler; no descriptor left; EIO
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
            following or remedies(target or name, mechanism.option if is_named(mechanism) else ""),
        ),
        holder=holder,
        evidence=holder.evidence if holder else "",
        waiters=waiters,
        **facts,
    )


def lock_path(given: object) -> str:
    """`given` as an absolute path. Raises InvalidArgument for what can name no file."""
    if not isinstance(given, str):
        raise InvalidArgument(
            f"path must be a str or an os.PathLike of str, not {type(given).__name__} {given!r}"
        )
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


def is_coroutine_function(function: object) -> bool:
    """Whether calling it makes a coroutine."""
    return bool(_flags(function) & 0x80)  # CO_COROUTINE


def refuse_generators(function: object) -> None:
    """A decorated generator would hold the lock while it is made, and not while it runs."""
    if _flags(function) & (0x20 | 0x200):  # CO_GENERATOR, CO_ASYNC_GENERATOR
        name = getattr(function, "__name__", function)
        raise InvalidArgument(
            f"a lock on the generator function {name!r} would be held while the generator is made "
            "and not while it runs: use `with` inside of it"
        )


def _flags(function: Any) -> int:
    while type(function).__name__ == "partial":  # of functools; a mock has a `func` without end
        function = function.func
    return getattr(getattr(function, "__code__", None), "co_flags", 0)


def check_options(mode: object, shared: bool, label: object) -> None:
    """What every lock on a file may be given. Raises InvalidArgument."""
    if mode is not None and (type(mode) is not int or not 0 <= mode <= 0o777):
        raise InvalidArgument(f"mode must be a file mode from 0 to 0o777, not {mode!r}")
    if mode is not None and shared:
        raise InvalidArgument("give mode= or shared=True, which means mode 0o666, not both")
    if not isinstance(label, str):
        raise InvalidArgument(f"label must be a str, not {type(label).__name__} {label!r}")


def _check_options(record: bool, cleanup: bool, exclusive: bool) -> None:
    if cleanup and not (record and exclusive):
        raise InvalidArgument(
            "cleanup=True needs an exclusive lock with a record: only a file "
            "that is known to be lifehold's may be unlinked"
        )


def fill(
    lock: Any,
    name: str,
    mechanism: Mechanism,
    wait: float | None,
    cancel: Any,
    max_hold: float | None,
    reentrant: bool,
) -> None:
    """What LockFace.__init__ does, for a mechanism that is there already."""
    lock._name, lock._mechanism = name, mechanism
    lock._wait = None if wait is None else seconds("wait", wait)
    lock._max_hold = None if max_hold is None else seconds("max_hold", max_hold, zero=False)
    lock._cancel, lock._reentrant = cancel, reentrant
    lock._terms = mechanism.terms if is_leased(mechanism) else None
    lock._leases = []
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

    def release(self) -> None:
        """Let the lock go.

        Raises NotHeld when that was done before or belongs to a parent process, LeaseLost
        when the lock was lost meanwhile.
        """
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
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class Lock(LockFace):
    """A lock on a file, for threads, processes and containers of one machine.

    `path`: the lock file; it is made, with its folders, when it is not there, and it stays.
    `wait`: seconds that `acquire()` and `with` wait; None until acquired, 0 for one try.
    `kind`: "kernel", or "auto", which chooses it. `exclusive=False` locks shared: many may hold it
    at once.
    `label`: a word for people, shown to who waits. `reentrant`: the thread that holds it may take
    it again.
    `max_hold`: seconds after which a grant ends by itself and is lost. `record=False` writes
    nothing.
    `cleanup`: unlink the file at release. `mode`: of a new file, whatever the umask; `shared=True`:
    0666.
    `cancel`: a `Cancel` by which another thread ends a wait.
    `fair`: first come, first served among all who ask with `fair=True`.
    `singleton`: the same object for the same file in this process, as long as it is kept; other
    options are refused.

    Raises InvalidArgument for a path or a value that no lock can be made of. See
    docs/explanation/kernel-lock.md.
    """

    __slots__ = ()
    _runtime = BLOCKING
    _hand = Lease  # what an acquire puts into the caller's hand

    def acquire(
        self, wait: float | None | EllipsisType = ..., *, cancel: Cancel | None = None
    ) -> Lease:
        """The lease, once the lock is ours.

        `wait` in seconds: None until acquired, 0 for one try; left out: the lock's own.

        Raises Timeout or WouldBlock, which name the holder; AcquireCancelled; SelfDeadlock when
        this thread holds the lock itself and would wait for ever; SystemRefused, CorruptRecord,
        UnsafeGround.
        """
        me = this_thread.key if _thread.get_ident is get_ident else asker()
        block: Any = None
        asked: Any = wait
        if type(asked) is BlockEntry:
            wait, block = asked.wait, asked.block
            if block is None:
                block = this_thread.begun()
                if block is None or block.one is not self or block.lease is not None:
                    block = begun(self, block, me)
        patience = self._wait if wait is ... else seconds("wait", wait)
        if self._reentrant and (mine := self._of_thread(me)) is not None:
            mine._depth += 1
            if block is not None:
                block.lease = mine
            return mine
        answer: Any = None
        waited = 0.0
        try:
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

    def _contend(
        self, answer: Held | Unknown, patience: float | None, cancel: Cancel | None
    ) -> tuple[Grant, float]:
        """The wait of a lock that is held."""
        ask, started = self._asked(answer, patience, cancel)
        found: Grant | Held | Unknown = answer
        registry.refuse_mixed(self._mechanism)
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

    def release(self) -> None:
        """Release the lease of this thread, the last one that it took. Raises NotHeld for none.

        A lock that is passed on to another thread is released there by its lease (L5, L9).
        """
        lease = self._of_thread(this_thread.key)
        if lease is None:
            raise NotHeld(f"{self._name!r} is not held by this thread", name=self._name)
        lease.release()

    @property
    def lease(self) -> Lease | None:
        """The lease that this thread holds, the last one that it took; None for none."""
        return self._of_thread(this_thread.key)

    def _of_thread(self, me: int) -> Lease | None:
        found: Lease
        for found in self._leases[::-1]:
            if found._key == me and found._here():
                return found
        return None

    if TYPE_CHECKING:
        __enter__ = acquire

        def __exit__(
            self,
            kind: type[BaseException] | None,
            error: BaseException | None,
            trace: TracebackType | None,
        ) -> None: ...

    else:
        __enter__ = entering(acquire)
        __exit__ = Exit(Block)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Decorator: each call of `function` holds the lock. For coroutines: `AsyncLock`."""
        refuse_generators(function)
        if is_coroutine_function(function):
            name = getattr(function, "__name__", function)
            raise InvalidArgument(
                f"@Lock on the coroutine function {name!r} would lock its creation and not its "
                "run: use @AsyncLock"
            )

        def locked(*args: P.args, **kwargs: P.kwargs) -> R:
            with self:
                return function(*args, **kwargs)

        functools.update_wrapper(locked, function)
        return locked
