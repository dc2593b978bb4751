"""The locks of one run: all of them, or none.

Promise: who gets past `take` holds every lock it named; on any other way out none is held. Two
runs that name the same locks in different orders do not wait for each other: each takes them in
the order of their canonical paths. One file under two names is one lock. Nested: a lock that the
run around us holds is an error at once, since only our own end could free it.
"""

from __future__ import annotations

import os

from ..core import around
from ..core.errors import InvalidArgument, NotAcquired, WouldBlock
from ..described import canonical
from ..local import lock_names
from ..lock import Lock, refusal
from ..runtime import clock, fork
from . import target
from .options_run import SLOTS
from .render import say
from .target import NoticedLock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..core import explain, mask
    from ..lock import Lease
    from ..ops import who
    from . import slots as slot_runs
    from .run import Leases
else:
    explain = fork.later("lifehold.core.explain", globals())
    mask = fork.later("lifehold.core.mask", globals())
    slot_runs = fork.later("lifehold.cli.slots", globals(), "slot_runs")
    who = fork.later("lifehold.ops.who", globals())


LEAST = 1e-9  # seconds: of a wait that is used up, whose end is a Timeout; 0 asks for one try


class CommandLock(NoticedLock, Lock):
    """The lock of a name."""

    __slots__ = ("for_all", "notices", "typed")

    def __init__(self, typed: str, address: lock_names.Address, given: dict[str, Any]) -> None:
        more: dict[str, Any] = {"fair": True} if given["fair"] else {}
        more |= {"ttl": given["ttl"]} if given["ttl"] else {}
        super().__init__(
            address.path,
            wait=given["wait"],
            label=given["label"],
            exclusive=given["exclusive"],
            shared=address.shared,
            mode=address.mode,
            kind=given["kind"],
            **more,
        )
        self.called(typed, address)

    def parts(self) -> list[Any]:
        """The mechanisms of which one that is free lets it in."""
        return [self._mechanism]


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
            make = slot_runs.CommandSemaphore
        lock = make(name, address, given)
        found.setdefault(canonical(lock.path), lock)
    return list(found.values())


def take(locks: list[CommandLock], wait: float | None) -> list[Lease]:
    """Their leases, in the order of `locks`.

    Raises NotAcquired for the first that is held, LeaseLost for one that was lost meanwhile.
    """
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
            left = wait if until is None or not wait else max(LEAST, until - clock.now())
            leases[lock] = acquire(lock, left)
        for lease in leases.values():
            lease.check()  # L8  one may have been lost while another was waited for
    except BaseException as error:
        let_go([*leases.values()])
        if isinstance(error, NotAcquired):
            _told_of_all(error, locks, list(leases))
        raise
    return [leases[lock] for lock in locks if lock in leases]


def make_folder(path: str) -> None:
    """The folder of names, where it is missing; what was changed there is told."""
    told = lock_names.make_folder(path)
    if told:
        say(told)


def let_go(leases: Leases) -> None:
    """Release them on the way out with another error, which matters more than theirs."""
    for lease in leases:
        try:
            lease.release()
        except Exception as error:  # noqa: BLE001 - its own text
            say(str(error))


def _told_of_all(error: NotAcquired, locks: list[CommandLock], ours: list[CommandLock]) -> None:
    """The error names the lock that was held; the remedy and a line more tell of the others."""
    first, *more = (explain.quote(lock._name) for lock in locks)
    all_of_them = " ".join([*(f"--also {name}" for name in more), first])
    one = explain.quote(error.name or "")
    text = error.text.replace(f" {one} -- CMD", f" {all_of_them} -- CMD")
    if ours:
        had = ", ".join(f"'{mask.printable(lock._name)}'" for lock in ours)
        text += (
            f"\n  none   of the others is held by this run: {had} had been taken, and was let go"
        )
    error.args = (text,)


def acquire(lock: CommandLock, wait: float | None) -> Lease:
    """The lease. Raises NotAcquired, at once when only the end of ourselves could free the lock."""
    missing = target.first_missing(lock.typed, lock.path)
    outer = ancestors_of(lock)
    if outer:
        try:
            return lock.acquire(wait=0)
        except WouldBlock:
            if all(still_held(each, part) for each, part in outer):
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
        after = explain.span(clock.now() - asked_at)
        say(f"'{mask.printable(lease.name)}' is ours after {after}")
    return lease


def ancestors_of(lock: CommandLock) -> list[tuple[around.Around, Any]]:
    """Who around us holds all of a lock, and what each holds; none where a part is another's."""
    own = ancestor_of(lock.path)
    if own is not None:
        return [(own, lock._mechanism)]
    found = []
    for part in lock.parts() if os.environ.get(around.VARIABLE) else ():
        outer = ancestor_of(part.path)
        if outer is None:
            return []
        found.append((outer, part))
    return found


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


def still_held(outer: around.Around, part: Any) -> bool:
    """Whether what holds a part of the lock is the grant named in LIFEHOLD_HELD.

    Nothing in the file tells a grant without a record from another: then the environment is
    believed. A wrong belief is an error at once; the other, a hang.
    """
    holder = part.inspect()
    return holder is not None and holder.nonce in (None, outer.nonce)


def nested(lock: CommandLock) -> NotAcquired:
    why = (
        "the `lifehold run` around this command holds it, until this command has ended: to wait "
        "would be to wait for ever"
    )
    remedy = "run the inner command without `lifehold run`, or under another name"
    return refusal(WouldBlock, lock._name, lock._mechanism, why, None, following=[remedy])


def doubles_text(name: str, address: lock_names.Address) -> str:
    quote = explain.quote
    others = " and ".join(quote(path) for path in address.doubles)
    if not os.path.lexists(address.path):
        return (
            f"'{name}' exists as {others}; for you it is {quote(address.path)}, and these locks "
            "do not exclude each other. Give all jobs the same LIFEHOLD_DIR"
        )
    return (
        f"'{name}' exists in more than one folder, and these locks do not exclude each "
        f"other: using {quote(address.path)}, not {others}. Give all jobs the same "
        "LIFEHOLD_DIR, or remove the file that nobody uses"
    )


def tell_presence(leases: Leases) -> None:
    """That a living process holds one of the files by its presence, which no kernel lock excludes.

    A grant without a token is a look away: the file has the content of another program.
    """
    for lease in leases:
        if lease.token is not None or lock_names.is_store(lease.path):
            continue
        from ..ops.families import ProcessTable

        found = who.answer_existence(lease.name, lease.path, ProcessTable())
        if found is not None and found.state == who.HELD and found.holder is not None:
            say(
                f"{_named(lease.name)} is held by its presence, by {explain.by(found.holder)}: "
                "the kernel lock that CMD has now does not exclude that process"
            )


def _named(text: str) -> str:
    return f"'{mask.printable(text)}'"
