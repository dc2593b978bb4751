"""`lock_all`: several locks at once, all of them or none.

    with lock_all(["accounts/7.lock", "accounts/9.lock"], wait=5) as leases: ...

Promise: whoever gets past it holds every lock it named; on any other way out none is held. Two
who name the same locks in different orders do not wait for each other: each takes them in the
order of their canonical paths. It does not promise that between programs that see the same files
under different paths (containers): give those a `wait`.
"""

from __future__ import annotations

import os

from .attempts import Attempt
from .checks import check_cancel
from .core.deadline import TRY, seconds
from .core.errors import InvalidArgument, NotAcquired, NotHeld, WouldBlock
from .described import PLAIN, SingletonMeta, canonical, explained
from .lease import BlockEntry, OfShape, exit_method, exiting, of_shape, part
from .lock import Lock, LockFace
from .runtime import clock, fork

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager
    from types import EllipsisType, TracebackType
    from typing import Any, Never, ParamSpec, Self, TypeVar

    from . import decorated, words
    from .core import mask
    from .core.acquire import Cancel
    from .lease import Block
    from .lock import Lease

    P = ParamSpec("P")
    R = TypeVar("R")
    Name = str | os.PathLike[str] | Lock
else:
    decorated = fork.later("lifehold.decorated", globals())
    mask = fork.later("lifehold.core.mask", globals())
    words = fork.later("lifehold.words", globals())


LEAST = 1e-9  # seconds: of a wait that is used up, whose end is a Timeout; 0 asks for one try


class LeaseGroup:
    """The leases of several locks, in the order in which those were named."""

    __slots__ = ("_leases", "_left")

    def __init__(self, leases: list[Any]) -> None:
        self._leases = leases
        self._left = leases.copy()  # whose one level, of perhaps several, was not given back yet

    def check(self) -> None:
        """Raises LeaseLost or NotHeld as soon as one of them is not held any more."""
        for lease in self._leases:
            lease.check()
        for lease in self._leases:  # L8  the look at another may have hung meanwhile
            if (why := lease._why_over()) is not None:
                raise lease._error(why)

    @property
    def held(self) -> bool:
        """Whether all of them are held."""
        if not all(lease.held for lease in self._leases):
            return False
        return all(lease._why_over() is None for lease in self._leases)  # L8  as in `check`

    @property
    def tokens(self) -> list[int | None]:
        """The fencing token of each."""
        return [lease.token for lease in self._leases]

    def release(self, **unknown: Never) -> None:
        """Let all of them go. Raises the first error, when all have been seen to."""
        if unknown:
            raise words.unknown("release()", unknown)
        first: BaseException | None = None
        try:
            for lease in self._leases[::-1]:
                try:
                    if lease._depth and lease in self._left:
                        lease._depth -= 1  # no call in between, where a signal could come
                        self._left.remove(lease)
                    else:
                        lease.release()
                except BaseException as error:  # noqa: BLE001 - raised when the others are free
                    first = first or error
            if first is not None:
                raise first
        except BaseException as error:
            if not isinstance(error, Exception):
                self._give_up(error)
            raise

    def _give_up(self, error: BaseException) -> None:
        """L6  The release was interrupted: nobody comes back to what is left.

        A lease that an outer block holds too loses our level alone.
        """
        while self._left:
            lease = self._left[-1]
            if lease._depth:
                lease._depth -= 1
            elif not lease._of_parent():
                lease._lock._undo(lease._grant, error)
            del self._left[-1:]

    def __len__(self) -> int:
        return len(self._leases)

    def __getitem__(self, index: int) -> Lease:
        return self._leases[index]  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[Lease]:
        return iter(self._leases)

    def _begin(self) -> Self:
        """No body runs without one of the locks. Raises NotHeld, LeaseLost."""
        for lease in self._leases:
            lease._check_entry()
        return self

    def __enter__(self) -> Self:
        return self._begin()

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        try:
            self.release()
        except Exception as other:
            if not self._excused(other, error):
                raise

    def _excused(self, other: Exception, error: BaseException | None) -> bool:
        """Whether a block that `error` has ended, or None, passes over what its release raised."""
        if isinstance(other, NotHeld) and all(lease._of_parent() for lease in self._leases):
            return True  # a forked child leaves the block; the locks are its parent's
        if error is not None:
            error.add_note(str(other))  # what the block raised matters more
        return error is not None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {', '.join(repr(each.name) for each in self._leases)}>"


def locks_of(
    names: Iterable[object], make: Callable[..., Any], options: dict[str, Any]
) -> list[Any]:
    """A lock for each name. Raises InvalidArgument for none, and for one file named twice."""
    if isinstance(names, (str, bytes, os.PathLike, LockFace)):
        raise InvalidArgument(f"give the names in a list: lock_all([{names!r}])")
    if not hasattr(names, "__iter__") or hasattr(names, "read"):
        raise InvalidArgument(
            f"names must be a list of paths or locks, not {type(names).__name__} {names!r}"
        )
    known = {*(LockFace.__init__.__kwdefaults__ or ())}
    if strange := {key: options[key] for key in options if key not in known}:
        raise words.unknown("lock_all()", strange, known)
    locks = []
    for name in names:
        if isinstance(name, LockFace):
            if not isinstance(name, make):  # type: ignore[arg-type]
                raise InvalidArgument(f"{name!r} is of the other face: give names, or {make!r}")
            if options:
                raise InvalidArgument(f"{name!r} has its own options: {', '.join(options)} is lost")
            locks.append(name)
        elif isinstance(type(name), SingletonMeta):
            raise InvalidArgument(f"a reader/writer lock cannot be in lock_all, as {name!r}")
        else:
            locks.append(make(name, **options))
    if not locks:
        raise InvalidArgument("lock_all needs one name at least")
    seen: dict[object, tuple[int, Any]] = {}
    for number, lock in enumerate(locks):
        for key in _keys(lock.path):
            if (found := seen.setdefault(key, (number, lock)))[0] != number:
                other = found[1]
                raise InvalidArgument(
                    f"{other._name!r} and {lock._name!r} are one lock: name it once",
                    name=lock._name,
                )
    return locks


def _keys(path: str) -> list[object]:
    keys: list[object] = [canonical(path)]
    try:
        found = os.lstat(path)
        keys.append((found.st_dev, found.st_ino))  # a hard link
    except OSError:
        pass  # not there yet
    return keys


def in_order(locks: list[Any]) -> list[Any]:
    """The order in which everybody takes them."""
    return sorted(locks, key=lambda lock: canonical(lock.path))


def of_all(error: NotAcquired, locks: list[Any], had: list[Any]) -> None:
    """The error names the lock that was held; this adds what became of the others."""
    if had:
        names = ", ".join(f"'{mask.printable(lock._name)}'" for lock in had)
        lost = f"  none   of the others is held: {names} had been taken, and was let go"
        error.args = (f"{error.text}\n{lost}",)


@explained(
    "lock_all()",
    "lock_all(['a.lock', 'b.lock'])",
    "name it, for example lock_all([...], wait={value})",
    "give the names in a list, lock_all([{all}])",
)
def lock_all(
    names: Iterable[Name],
    *,
    wait: float | None = None,
    cancel: Cancel | None = None,
    **options: Any,
) -> All:
    """A lock on all of `names`, which are paths or `Lock` objects; `options` are those of `Lock`.

    `with lock_all(...) as leases:`, or `.acquire()`. `wait`: seconds for all of them together.
    Raises InvalidArgument, also for one file that is named twice.
    """
    return All(locks_of(names, Lock, options), wait, cancel)


class OfAll(OfShape):
    """One block of several locks."""

    __slots__ = ()

    def leases(self) -> list[Any]:
        """What it holds."""
        return [] if self.lease is None else list(self.lease._left)

    def undo(self, error: BaseException) -> None:
        """L6  Nothing of it stays held."""
        if self.lease is not None:
            self.lease._give_up(error)
        self.lease = None

    def ended(self, asker: object) -> Any:
        """The leases that end with this block."""
        if self.lease is None and self.one._blind:
            self.lease = self.one._blind.pop().given()
        return self.lease

    def leave(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> Any:
        """What stands for `__exit__`."""
        leases = None
        try:
            leases = self.ended(None)
            if leases is not None:
                leases.release()
            self.lease = None  # else it is ended once more when this block is dropped
        except Exception as other:
            if leases is not None:
                self.lease = None  # all of them have been seen to
            if leases is None or not leases._excused(other, error):
                raise
        except BaseException as other:
            self.undo(other)
            raise


class AllAttempt(Attempt):
    """What `attempt()` of several locks answers: `with` it."""

    __slots__ = ()
    _kind = OfAll
    __exit__ = exiting(OfAll, exit_method)


class All:
    """Several locks that are taken together."""

    __slots__ = ("_blind", "_cancel", "_locks", "_wait")

    def __init__(self, locks: list[Lock], wait: float | None, cancel: Cancel | None) -> None:
        check_cancel(cancel)
        self._locks, self._cancel = locks, cancel
        self._wait = None if wait is None else seconds("wait", wait)
        self._blind: list[OfAll] = []

    def acquire(self, wait: float | None | EllipsisType = ..., **unknown: Never) -> LeaseGroup:
        """The leases of all.

        Raises NotAcquired, which names the first that is held; LeaseLost when one was lost while
        another was waited for. Then none is held.
        """
        if unknown:
            raise words.unknown("acquire()", unknown, ("wait",))
        return self._taken(wait, None)

    def try_acquire(self, **unknown: Never) -> LeaseGroup | None:
        """The leases of all, None when one of them is held. As `Lock.try_acquire`."""
        if unknown:
            raise words.of_try("try_acquire", unknown)
        try:
            leases = self._taken(TRY, None)
        except WouldBlock:
            return None
        for lease in leases:
            lease._lock._give_away(lease)
        return leases

    def attempt(self, **unknown: Never) -> AbstractContextManager[LeaseGroup | None, None]:
        """`with lock_all(names).attempt() as leases: if leases:` all of them, or None."""
        if unknown:
            raise words.of_try("attempt", unknown)
        return AllAttempt(lambda entry: self._taken(entry.wait, entry.block))

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Decorator: each call of `function` holds all of them. For coroutines: `alock_all`."""
        return decorated.blocking(
            function, lambda _, __: self, "lock_all", "lock_all of lifehold.aio"
        )

    if not TYPE_CHECKING:
        __aenter__ = PLAIN

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._locks, self._wait, self._cancel)

    def _taken(self, wait: float | None | EllipsisType, block: OfAll | None) -> LeaseGroup:
        patience = self._wait if wait is ... else seconds("wait", wait)
        until = None if patience is None else clock.now() + patience
        parts = {lock: part() for lock in in_order(self._locks)}
        try:
            for lock, each in parts.items():
                left = None if until is None else max(LEAST, until - clock.now())
                entry = BlockEntry(left if patience else patience, each)
                lock.acquire(entry, cancel=self._cancel)
            leases = LeaseGroup([parts[lock].lease for lock in self._locks])
            leases.check()  # L8  one may have been lost while another was waited for
            if block is not None:
                block.lease = leases
            return leases
        except BaseException as error:
            try:
                taken = had(parts)
                let_go(parts, error)
            finally:
                undo(parts, error)
            if isinstance(error, NotAcquired):
                of_all(error, self._locks, taken)
            raise

    def release(self, **unknown: Never) -> None:
        """Release what this thread holds of these locks. Raises NotHeld for nothing."""
        if unknown:
            raise words.unknown("release()", unknown)
        LeaseGroup(held(self._locks)).release()

    def __enter__(self) -> LeaseGroup:
        block = of_shape(self, OfAll)
        try:
            self._taken(..., block)
            return block.lease  # type: ignore[no-any-return]
        except BaseException as error:
            block.undo(error)
            raise

    __exit__ = exiting(OfAll, exit_method)


def held(locks: list[Any]) -> list[object]:
    """The leases that the asker has of these locks. Raises NotHeld for none."""
    found = [lease for lock in locks if (lease := lock.lease) is not None]
    if not found:
        names = ", ".join(repr(lock._name) for lock in locks)
        raise NotHeld(f"none of {names} is held by this thread or task")
    return found


def let_go(parts: dict[object, Block], error: BaseException) -> None:
    """Not all could be had: those that were taken are let go of."""
    for each in list(parts.values())[::-1]:
        try:
            lease = each.lease
            if lease is not None and lease._depth:
                lease._depth -= 1  # no call in between, where a signal could come
                each.lease = None  # it is an outer block's alone
            elif lease is not None:
                lease.release()
        except Exception as other:  # noqa: BLE001 - the first error matters more
            error.add_note(str(other))


def undo(parts: dict[object, Block], error: BaseException) -> None:
    """L6  One may have been interrupted before its lock knew of it, or while it was let go of."""
    for each in parts.values():
        each.undo(error)


def had(parts: dict[object, Block]) -> list[object]:
    """The locks that were taken."""
    return [lock for lock, each in parts.items() if each.lease is not None]
