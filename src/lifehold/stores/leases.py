"""`LeaseStore`: leases by name in a store, for threads and processes.

Rule: a lock of a store is the lock that its URL with the name stands for, so `Lock(url)`, the
command and a store are always speaking of the same lock. What is asked here is answered by the
store; what it cannot say, it does not guess.
"""

from __future__ import annotations

from ..core.backend import MOST, WHOLE
from ..core.deadline import seconds
from ..core.errors import InvalidArgument
from ..core.value import value
from ..lock import Lock
from ..registry import breaker, store_at
from ..runtime.blocking import BLOCKING
from ..shapes.readwrite import ReadWriteLock, Side
from ..shapes.semaphore import Semaphore
from ..shapes.sides import fill
from ..store.opening import lease_terms, mechanism
from ..store.site import checked

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from ..core.acquire import Cancel
    from ..core.backend import State
    from ..core.grant import Holder
    from ..store.site import Site


HIGHEST_BUMP = 2**62  # leaves room for more tokens than there is time


@value
class LeaseGround:
    """What the leases of a store stand on.

    `url`: without its password; `sentences`: what this store promises and what not;
    `drift_percentage`: how much faster its clock ran than ours at the last renewals, None before.
    """

    url: str
    sentences: tuple[str, ...]
    drift_percentage: float | None
    words: str

    def __str__(self) -> str:
        return self.words


class Leases:
    """What both faces of a store of leases share."""

    __slots__ = ("_site", "label", "ttl")
    _runtime: Any = BLOCKING

    def __init__(
        self, url: str, *, ttl: float | None = None, label: str = "", **options: Any
    ) -> None:
        if "#" in url:
            raise InvalidArgument(
                "a store is named without a lock: leave out the # and what follows, and give the "
                "name to its lock(), or the whole URL to Lock()"
            )
        lease_terms(ttl, None, None)
        self._site = store_at(url, **options)
        self.ttl, self.label = ttl, label_of(label)

    @property
    def url(self) -> str:
        """Where it is, without its password."""
        return self._site.url

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other._site is self._site

    def __hash__(self) -> int:
        return hash(id(self._site))

    def _mechanism(self, name: Any, given: dict[str, Any], **shape: Any) -> Any:
        ttl, heartbeat, margin = (given.pop(key, None) for key in ("ttl", "heartbeat", "margin"))
        lease = lease_terms(self.ttl if ttl is None else ttl, heartbeat, margin)
        label = label_of(given.pop("label", self.label))
        kind = given.pop("kind", "auto")
        if kind != "auto":
            refuse_more(kind, given, shape)
            return mechanism(self._site, kind, name, self._runtime, lease, label=label)
        fair = given.pop("fair", None)
        delay = seconds("lock_delay", given.pop("lock_delay", None)) or 0.0
        if fair:
            self._site.refuse_lacking("queue", "fair=True")
        if delay:
            self._site.refuse_lacking("lock_delay", "lock_delay=")
        if shape.get("capacity") is not None:
            self._site.refuse_lacking("readers" if shape["capacity"] == WHOLE else "permits", name)
        if given:
            raise InvalidArgument(f"a lock in a store takes no {', '.join(given)}")
        return mechanism(
            self._site,
            kind,
            name,
            self._runtime,
            lease,
            label=label,
            fair=fair is None or bool(fair),  # the best that the store can do
            delay=delay,
            **shape,
        )

    def _made(
        self,
        kind: Any,
        name: str,
        options: dict[str, Any],
        wait: float | None,
        cancel: Cancel | None,
        max_hold: float | None,
        reentrant: bool,
        **shape: Any,
    ) -> Any:
        """A lock of this kind over a name of the store."""
        made = self._mechanism(name, options, **shape)
        lock = object.__new__(kind)
        fill(lock, made.path, made, wait, cancel, max_hold, reentrant)
        return lock

    def _pair(
        self,
        kind: Any,
        side: Any,
        name: str,
        options: dict[str, Any],
        wait: float | None,
        cancel: Cancel | None,
        max_hold: float | None,
        reentrant: bool,
    ) -> Any:
        """A reader/writer lock: two sides of one name, which know one another."""
        shapes = {"weight": 1, "shared": True}, {"weight": WHOLE}
        reads, writes = (
            self._mechanism(name, options.copy(), capacity=WHOLE, **shape) for shape in shapes
        )
        lock = object.__new__(kind)
        lock._reads = side(reads.path, reads, wait, cancel, max_hold, True)
        lock._writes = side(writes.path, writes, wait, cancel, max_hold, reentrant)
        lock._reads._other, lock._writes._other = lock._writes, lock._reads
        return lock


def label_of(given: object) -> str:
    """A word for people. Raises InvalidArgument."""
    if not isinstance(given, str):
        raise InvalidArgument(f"label must be a str, not {type(given).__name__} {given!r}")
    return given


def refuse_more(kind: object, given: dict[str, Any], shape: dict[str, Any]) -> None:
    """What a session lock has not, and other kinds. Raises InvalidArgument."""
    if kind != "session":
        raise InvalidArgument(
            f"a lock in a store takes no kind={kind!r}: it is a lease, or in PostgreSQL of "
            "kind='session'"
        )
    if shape:
        raise InvalidArgument(
            "kind='session' is for a lock of one holder: readers, writers and permits are leases"
        )
    if given:
        raise InvalidArgument(f"kind='session' takes no {', '.join(given)}")


def permits_of(given: object) -> int:
    """A number of permits. Raises InvalidArgument."""
    if type(given) is not int or not 1 <= given <= MOST:
        raise InvalidArgument(f"permits must be a whole number from 1 to {MOST}, not {given!r}")
    return given


def prefix_of(given: object) -> str:
    """What names begin with. Raises InvalidArgument."""
    if not isinstance(given, str):
        raise InvalidArgument(f"prefix must be a str, not {type(given).__name__} {given!r}")
    return given


def reason_of(given: object) -> str:
    """Why an order is given, for its audit. Raises InvalidArgument."""
    if not isinstance(given, str) or not given.isprintable():
        raise InvalidArgument(f"reason must be a line of printable text, not {given!r}")
    return given


def age_of(given: object) -> float:
    """For how long a name was not used. Raises InvalidArgument."""
    if isinstance(given, bool) or not isinstance(given, int | float) or not 60 <= given <= 1e10:
        raise InvalidArgument(
            f"older_than must be seconds, 60 at the least, not {given!r}: the clock of a store may "
            "be set back by less than that without harm"
        )
    return float(given)


def least_of(given: object) -> int:
    """A token that is to be passed. Raises InvalidArgument."""
    if type(given) is not int or not 0 <= given <= HIGHEST_BUMP:
        raise InvalidArgument(
            f"least must be a token, a whole number from 0 to {HIGHEST_BUMP}, not {given!r}: "
            "tokens only grow, and none may come near the end of 63 bits"
        )
    return given


class LeaseStore(Leases):
    """What `connect(url)` answers for a store of leases.

    Options of its locks: `wait`, `ttl` (30 s), `heartbeat`, `margin`, `label`, `max_hold`,
    `reentrant`, `cancel`, as of `Lock`; `fair=False` lets newcomers overtake who waits;
    `lock_delay`: seconds for which a lease that ran out still keeps others out.
    """

    __slots__ = ()

    def lock(
        self,
        name: str,
        *,
        wait: float | None = None,
        cancel: Cancel | None = None,
        max_hold: float | None = None,
        reentrant: bool = False,
        **options: Any,
    ) -> Lock:
        """One holder at a time."""
        made: Lock = self._made(Lock, name, options, wait, cancel, max_hold, reentrant)
        return made

    def read_write(
        self,
        name: str,
        *,
        wait: float | None = None,
        cancel: Cancel | None = None,
        max_hold: float | None = None,
        reentrant: bool = False,
        **options: Any,
    ) -> ReadWriteLock:
        """Many readers or one writer, first come, first served."""
        made: ReadWriteLock = self._pair(
            ReadWriteLock, Side, name, options, wait, cancel, max_hold, reentrant
        )
        return made

    def semaphore(
        self,
        name: str,
        permits: int,
        *,
        wait: float | None = None,
        cancel: Cancel | None = None,
        max_hold: float | None = None,
        **options: Any,
    ) -> Semaphore:
        """`permits` holders at once, each with a slot of its own."""
        capacity = permits_of(permits)
        made: Semaphore = self._made(
            Semaphore, name, options, wait, cancel, max_hold, False, capacity=capacity
        )
        return made

    def close(self) -> None:
        """Give back the connections, descriptors and pipes that nobody uses now.

        Leases in hand stay, and are renewed; whatever is asked later opens anew. All objects of one
        URL share them.
        """
        self._site.close()

    def __enter__(self) -> LeaseStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def inspect(self, name: str) -> Holder | None:
        """Who holds a lock, of whatever kind; None for nobody. Takes nothing."""
        return next(iter(self.holders(name)), None)

    def holders(self, name: str) -> list[Holder]:
        """All who hold it: readers, or those with a permit."""
        state = self._site.state(checked(name))
        if state and state.holders:
            return [self._site.holder(seat, name) for seat in state.holders]
        return [holder for each in seen_of(self._site, name) for holder in each.holders]

    def waiters(self, name: str) -> int:
        """How many wait for a lock."""
        state = self._site.state(checked(name))
        seen = seen_of(self._site, name)
        return (len(state.waiters) if state else 0) + sum(len(each.line) for each in seen)

    def break_(self, name: str, reason: str) -> Holder | None:
        """Take a lock from its holders, who are told; who that was. Noted in the store.

        The next token is above theirs, so guards at the data refuse what they still write.
        """
        return broken(self._site, checked(name), reason_of(reason))

    def bump(self, name: str, least: int = 0, reason: str = "") -> int:
        """Raise the token of a name, to `least` at the least, and answer it.

        The repair where a store has lost its last tokens: a backup restored, a standby that was
        behind. Holders keep their leases; guards at the data then admit the next ones alone.
        """
        self._site.order("bump", checked(name), reason_of(reason), least_of(least))
        state = self._site.state(name)
        return int(state.token) if state and state.token else 0

    def states(self, prefix: str = "") -> tuple[State, ...]:
        """All that the store knows of the names that begin with `prefix`, in order."""
        return tuple(self.walk(prefix))

    def walk(self, prefix: str = "") -> Iterator[State]:
        """The same, one after the other: the store is asked for the next page when it is needed."""
        for page in self._site.pages(prefix_of(prefix)):
            yield from page

    def list(self, prefix: str = "") -> list[str]:
        """The names of all locks that were ever taken here and begin with `prefix`, in order."""
        pages = self._site.pages(prefix_of(prefix), bare=True)
        return [state.name for page in pages for state in page]

    def prune(self, older_than: float) -> int:
        """Forget names that nobody has used for `older_than` seconds; how many those were.

        With a name its last token is forgotten. The next one is not behind the store's clock, so it
        is greater all the same, unless that clock is set back by more than `older_than`.
        """
        return int(self._site.prune(age_of(older_than)))

    def ground(self) -> LeaseGround:
        """What these leases stand on, in words. Raises StoreUnavailable."""
        return grounded(self._site, self._site.ask(self._site.ground))


def broken(site: Site, name: str, reason: str) -> Holder | None:
    """End whoever holds a name, by a lease or by a session."""
    state = site.state(name)
    if (state is None or not state.holders) and any(each.holders for each in seen_of(site, name)):
        session = mechanism(site, "session", name, BLOCKING, lease_terms(None, None, None))
        return breaker(session)(reason)
    return site.break_(name, reason)


def seen_of(site: Site, name: str) -> tuple[Any, ...]:
    """What is held of a name by sessions."""
    return site.ask(lambda backend: site.by_session(backend, name))  # type: ignore[no-any-return]


def grounded(site: Site, sentences: tuple[str, ...]) -> LeaseGround:
    """What a store says of itself, and what we measured of its clock."""
    drift = site.drift.percentage
    told = list(sentences)
    if drift is not None:
        told.append(f"its clock runs {abs(drift):.3f} % {'fast' if drift > 0 else 'slow'}")
    if site.drift.steps:
        told.append(f"its clock was seen to go backwards {site.drift.steps} times")
    return LeaseGround(site.url, sentences, drift, f"{site.url}: {'; '.join(told)}")
