"""What both faces of a lock share: arguments, questions, and the words of a refusal."""

from __future__ import annotations

import os

from . import registry
from .core.acquire import FIRST_NOTICE, look
from .core.deadline import seconds
from .core.errors import (
    AcquireCancelled,
    InvalidArgument,
    SelfDeadlock,
    SystemRefused,
    Timeout,
    WouldBlock,
)
from .core.grant import Grant, Held, Unknown
from .core.ports import is_begun, is_far, is_leased, is_named, is_remote
from .lease import unwound
from .runtime import clock, fork
from .runtime.held_here import held_by, this_thread
from .single import Described, Single

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Hashable
    from typing import Any

    from .core import address, explain
    from .core.acquire import Ask, Cancel
    from .core.deadline import Terms
    from .core.errors import LifeholdError, NotAcquired
    from .core.events import Waiting
    from .core.grant import Holder
    from .core.ports import Mechanism, Runtime
    from .local import lock_names
    from .runtime import looks, notify, process
else:
    address = fork.later("lifehold.core.address", globals())
    explain = fork.later("lifehold.core.explain", globals())
    lock_names = fork.later("lifehold.local.lock_names", globals())
    looks = fork.later("lifehold.runtime.looks", globals())
    notify = fork.later("lifehold.runtime.notify", globals())
    process = fork.later("lifehold.runtime.process", globals())

# What helps who waits for a lock that it holds itself.
REENTRANT = "pass the lease along, or use one object with reentrant=True"
LONGEST_PATH = 4095  # bytes (PATH_MAX less the NUL); the system's own limit may be lower

REMEMBERED = 256  # absolute paths that have been looked at: a lock made per use costs less
_paths: dict[str, str] = {}


class LockFace(Described, metaclass=Single):
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
        strict: bool = False, singleton: bool = False,  # `Single` sees to the last one
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
            _check_options(mode, shared, label, record, cleanup, exclusive)
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


def _check_options(
    mode: object, shared: bool, label: object, record: bool, cleanup: bool, exclusive: bool
) -> None:
    if mode is not None and (type(mode) is not int or not 0 <= mode <= 0o777):
        raise InvalidArgument(f"mode must be a file mode from 0 to 0o777, not {mode!r}")
    if mode is not None and shared:
        raise InvalidArgument("give mode= or shared=True, which means mode 0o666, not both")
    if not isinstance(label, str):
        raise InvalidArgument(f"label must be a str, not {type(label).__name__} {label!r}")
    if cleanup and not (record and exclusive):
        raise InvalidArgument(
            "cleanup=True needs an exclusive lock with a record: only a file "
            "that is known to be lifehold's may be unlinked"
        )
