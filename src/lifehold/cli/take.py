"""The locks of one `lifehold run`: all of them, or none.

Promise: who gets past `take` holds every lock it named; on any other way out none is held. Two runs
that name the same locks in different orders do not wait for each other: each takes them in the
order of their canonical paths. One file under two names is one lock. Nested: a lock that the run
around us holds is an error at once, since only our own end could free it.
"""

from __future__ import annotations

import os

from ..core import acquire as waiting
from ..core import around
from ..core.errors import InvalidArgument, NotAcquired, WouldBlock
from ..face import refusal
from ..local import lock_names
from ..lock import Lock
from ..runtime import clock, fork
from ..single import canonical
from . import target
from .options_run import SLOTS
from .render import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..core.events import Waiting
    from ..lock import Lease


class Told:
    """Called by what the user typed; tells who waits on stderr instead of in a log."""

    __slots__ = ()

    notices: Any
    for_all: bool
    typed: str

    def called(self: Any, typed: str, address: lock_names.Address) -> None:
        self.typed, self._name = typed, lock_names.shown(typed)
        self.for_all = address.shared
        self.notices = None  # made when there is something to tell, which is rare

    @property
    def _target(self: Any) -> str:
        return self._name  # type: ignore[no-any-return]

    def _tell_waiting(self: Any, told: Waiting) -> None:
        if self.notices is None:
            live: Any = fork.lazily("lifehold.cli.live")
            far = self._mechanism.far()
            self.notices = live.Notices(None if far else lambda: waiting.look(self._mechanism))
        self.notices.tell(told)


class CommandLock(Told, Lock):
    """The lock of a name."""

    __slots__ = ("for_all", "notices", "typed")

    def __init__(self, typed: str, address: lock_names.Address, given: dict[str, Any]) -> None:
        more: dict[str, Any] = {"fair": True} if given["fair"] else {}
        more |= {"ttl": given["ttl"]} if given["ttl"] else {}
        super().__init__(
            address.path, wait=given["wait"], label=given["label"], exclusive=given["exclusive"],
            shared=address.shared, mode=address.mode, kind=given["kind"], **more,
        )  # fmt: skip
        self.called(typed, address)


def locks_of(names: list[str], given: dict[str, Any]) -> list[CommandLock]:
    """A lock for each name, in the order typed; none twice."""
    found: dict[str, CommandLock] = {}
    for name in names:
        address = lock_names.address(name)
        if name.startswith("memory:"):
            raise InvalidArgument(
                f"{name!r}: a store in memory is of one process, and would keep nobody out of a "
                "command: use sqlite:////PATH.db#NAME"
            )
        if address.doubles:
            say(doubles_text(name, address))
        make: Any = CommandLock
        if given["slots"]:
            if lock_names.is_store(address.path):
                raise InvalidArgument(f"{name!r} is in a store, and --slots is not: {SLOTS}")
            make = fork.lazily("lifehold.cli.slots").CommandSemaphore
        lock = make(name, address, given)
        found.setdefault(canonical(lock.path), lock)
    return list(found.values())


def take(locks: list[CommandLock], wait: float | None) -> list[Lease]:
    """Their leases, in the order of `locks`. Raises NotAcquired for the first that is held."""
    if len(locks) == 1:
        make_folder(locks[0].path)
        return [acquire(locks[0], wait)]
    leases: dict[CommandLock, Lease] = {}
    until = None if wait is None else clock.now() + wait
    try:
        for lock in sorted(locks, key=lambda each: canonical(each.path)):
            if any(_same_file(other.path, lock.path) for other in leases):
                continue  # a hard link
            make_folder(lock.path)
            left = None if until is None else max(0.0, until - clock.now())
            leases[lock] = acquire(lock, left)
    except BaseException as error:
        let_go(list(leases.values()))
        if isinstance(error, NotAcquired):
            _told_of_all(error, locks, list(leases))
        raise
    return [leases[lock] for lock in locks if lock in leases]


def make_folder(path: str) -> None:
    """The folder of names, where it is missing; what was changed there is told."""
    told = lock_names.make_folder(path)
    if told:
        say(told)


def let_go(leases: list[Lease]) -> None:
    """Release them on the way out with another error, which matters more than theirs."""
    for lease in leases:
        try:
            lease.release()
        except Exception as error:  # noqa: BLE001 - its own text
            say(str(error))


def _told_of_all(error: NotAcquired, locks: list[CommandLock], ours: list[CommandLock]) -> None:
    """The error names the lock that was held; the remedy and a line more tell of the others."""
    words = explain()
    first, *more = (words.quote(lock._name) for lock in locks)
    all_of_them = " ".join([*(f"--also {name}" for name in more), first])
    one = words.quote(error.name or "")
    text = error.text.replace(f" {one} -- CMD", f" {all_of_them} -- CMD")
    if ours:
        had = ", ".join(f"'{words.printable(lock._name)}'" for lock in ours)
        text += (
            f"\n  none   of the others is held by this run: {had} had been taken, and was let go"
        )
    error.args = (text,)


def acquire(lock: CommandLock, wait: float | None) -> Lease:
    """The lease. Raises NotAcquired, at once when only the end of ourselves could free the lock."""
    missing = target.first_missing(lock.typed, lock.path)
    outer = ancestor_of(lock.path)
    if outer is not None:
        try:
            return lock.acquire(wait=0)
        except WouldBlock:
            if still_held(outer, lock):
                raise nested(lock) from None
    asked_at = clock.now()
    try:
        lease = lock.acquire(wait)
    finally:
        if lock.notices is not None:
            lock.notices.end()
    if missing:
        target.tell_made(missing)
    if lock.notices is not None:
        words = explain()
        say(f"'{words.printable(lease.name)}' is ours after {words.span(clock.now() - asked_at)}")
    return lease


# ---- a lock that the run around us holds ------------------------------------------------------


def ancestor_of(path: str) -> around.Around | None:
    """The entry of LIFEHOLD_HELD for the file at `path`, under whatever name it is reached."""
    text = os.environ.get(around.VARIABLE)
    for outer in around.parse(text) if text else ():
        if outer.path == path or _same_file(outer.path, path):
            return outer
    return None


def _same_file(one: str, other: str) -> bool:
    try:
        return os.path.samestat(os.lstat(one), os.lstat(other))
    except OSError:
        return False


def still_held(outer: around.Around, lock: CommandLock) -> bool:
    """Whether what holds the lock is the grant named in LIFEHOLD_HELD.

    Nothing in the file tells a grant without a record from another: then the environment is
    believed. A wrong belief is an error at once; the other, a hang.
    """
    holder = lock.holder()
    return holder is not None and holder.nonce in (None, outer.nonce)


def nested(lock: CommandLock) -> NotAcquired:
    why = (
        "the `lifehold run` around this command holds it, until this command has ended: to wait "
        "would be to wait for ever"
    )
    remedy = "run the inner command without `lifehold run`, or under another name"
    return refusal(WouldBlock, lock._name, lock._mechanism, why, None, following=[remedy])


def doubles_text(name: str, address: lock_names.Address) -> str:
    quote = explain().quote
    others = " and ".join(quote(path) for path in address.doubles)
    return (
        f"'{name}' exists in more than one folder, and these locks do not exclude each "
        f"other: using {quote(address.path)}, not {others}. Give all jobs the same "
        "LIFEHOLD_DIR, or remove the file that nobody uses"
    )


def explain() -> Any:
    """The module of our texts. A run that gets its lock needs none: importing it takes 2 ms."""
    return fork.lazily("lifehold.core.explain")
