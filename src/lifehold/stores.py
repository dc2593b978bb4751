"""`connect(url)`: locks by name, wherever they are kept.

store = connect("file:///var/lib/jobs")
with store.lock("payments/42", wait=5) as lease: ...
with store.read_write("config").reading(): ...
with store.semaphore("gpu", 4) as lease: lease.slot

What a store offers is the same whatever it stands on: files, or leases in memory, SQLite,
PostgreSQL and Redis. Others add stores by an entry point of the group `lifehold.stores` under the
name of their scheme (store/opening.py).
"""

from __future__ import annotations

import os
import sys

from .checks import check_bool
from .core.backend import MOST, WHOLE
from .core.deadline import seconds
from .core.errors import CorruptRecord, InvalidArgument, SystemRefused
from .core.ports import is_queued
from .core.value import value
from .described import PLAIN, explained
from .local import lock_names
from .local.ground import ground_of
from .lock import Lock, fill
from .registry import breaker, choose, store_at
from .runtime import fork
from .runtime.blocking import BLOCKING
from .shapes import ReadWriteLock, Semaphore

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from . import per as args
    from . import words
    from .astores import aconnect as aconnect  # noqa: PLC0414
    from .core import address
    from .core.acquire import Cancel
    from .core.backend import State
    from .core.grant import Holder
    from .per import PerArguments, ReadWritePer
    from .store import opening
    from .store import site as sites
    from .store.postgres import migrations as migrations  # noqa: PLC0414
    from .store.site import Site
else:
    args = fork.later("lifehold.per", globals(), "args")
    words = fork.later("lifehold.words", globals())
    address = fork.later("lifehold.core.address", globals())
    migrations = fork.later("lifehold.store.postgres.migrations", globals())
    sites = fork.later("lifehold.store.site", globals(), "sites")
    opening = fork.later("lifehold.store.opening", globals())
    # `import lifehold.stores.migrations` finds it too, where it was in the first release.
    _OLD = f"{__name__}.migrations"
    sys.modules.setdefault(
        _OLD, fork.later("lifehold.store.postgres.migrations", sys.modules, _OLD)
    )


@explained(
    "connect()",
    "connect('file:///var/lib/jobs')",
    others="one store a call; its options by name, as in connect(URL, label='batch')",
)
def connect(
    url: str | os.PathLike[str] | None = None,
    *,
    quorum: Sequence[str] | None = None,
    **options: Any,
) -> FileStore | LeaseStore:
    """The store at `url`, for threads and processes.

    `file:///FOLDER`: locks in the files of a folder, which is made when the first lock is; a
    `FileStore`, whose options are `kind`, `ttl`, `label`, `shared`, as of `Lock`.
    `memory://`, `sqlite:////var/lib/locks.db`, `postgresql://HOST/DB`, `redis://HOST/0`: leases; a
    `LeaseStore`, whose options are `ttl` and `label` of all its locks, and those of its client
    (docs/reference/store.md).
    `quorum`: in place of a URL those of three or more independent Redis servers, a majority of
    which gives a lease (docs/explanation/redis.md).

    It is opened at the first question, once per process. Raises InvalidArgument.
    """
    where = url_of(url) if quorum is None else several(url, quorum, options)
    if where.startswith("file:"):
        refuse_strange(options)
        return FileStore(where, **options)
    return LeaseStore(where, **options)


def several(url: object, quorum: Any, options: dict[str, object]) -> str:
    """The URL in place of several ones, which become an option. Raises InvalidArgument."""
    if url is not None:
        raise InvalidArgument("connect() takes a URL, or quorum=[URL, URL, URL], and not both")
    if isinstance(quorum, str) or not hasattr(quorum, "__iter__"):
        raise InvalidArgument(
            f"quorum must be a list of URLs, not {type(quorum).__name__}: "
            "connect(quorum=['redis://a', 'redis://b', 'redis://c'])"
        )
    options["quorum"] = tuple(quorum)
    return QUORUM_URL


def refuse_strange(options: dict[str, object]) -> None:
    """Raises UnknownArgument for what a store of files is not made with."""
    if strange := {key: options[key] for key in options if key not in OF_FOLDER}:
        raise words.unknown("a store of files", strange, OF_FOLDER)


def url_of(url: Any) -> str:
    """The URL of a store. Raises InvalidArgument for what is none."""
    text = url if isinstance(url, str) else ""
    if "://" not in text:
        address.refuse_lost_slash(os.fspath(url) if hasattr(url, "__fspath__") else text)
        shown = address.shown_torn(text) if text else url
        cure = f": for a folder write 'file://{text}'" if text[:1] == "/" else ""
        raise InvalidArgument(
            f"a store is named by a URL, for example 'file:///var/lib/jobs', not {shown!r}{cure}"
        )
    return text


# ------------------------------------------------------------------------------------------------
# What both faces of a store in files share: its folder, its options, and what can be asked.
#
# Rule: a lock of a store is the lock at the path that its URL names (local/lock_names.py). So
# `Lock(path)`, `Lock(url)`, the command and a store are always speaking of the same lock.


QUORUM_URL = "redis+quorum://"
# What stands beside a lock: its last token, its readers, who was broken.
BESIDE = frozenset({"token", "readers", "audit"})


@value
class FolderGround:
    """What the locks of a store stand on.

    `file_system`: its type, "" if unknown; `one_kernel`: whether one machine alone can mount it, so
    that the death of a holder can be proven at once; `kind`, `ttl`: of locks that name none;
    `words`: all that, for people.
    """

    file_system: str
    one_kernel: bool
    kind: str
    ttl: float | None
    words: str

    def __str__(self) -> str:
        return self.words


OF_LOCK = explained("store.lock()", "store.lock('jobs')", "name it, store.lock(.., ttl={value})")
OF_READ_WRITE = explained(
    "store.read_write()", "store.read_write('conf')", "name it, store.read_write(.., ttl={value})"
)
OF_SEMAPHORE = explained(
    "store.semaphore()", "store.semaphore('gpu', 4)", "name it, store.semaphore(.., ttl={value})"
)
OF_BREAK = explained("store.break_()", "store.break_('jobs', 'its host is gone')")


class FileStoreFace:
    """A store in files. `FileStore` and `AsyncFileStore` add how its locks are used."""

    __slots__ = ("folder", "kind", "label", "shared", "ttl", "url")

    def __init__(
        self,
        url: str,
        *,
        kind: str = "auto",
        ttl: float | None = None,
        label: str = "",
        shared: bool = False,
    ) -> None:
        if "#" in url:
            raise InvalidArgument(
                f"a store is named without a lock: {url.partition('#')[0]!r}; give the name to its "
                "lock(), or the whole URL to Lock()"
            )
        check_bool("shared", shared)
        label_of(label)
        seconds("ttl", ttl, zero=False)
        self.folder = lock_names.folder_of(url)
        self.url = lock_names.url_of(self.folder)
        self.kind, self.ttl, self.label, self.shared = kind, ttl, label, shared

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.url == self.url

    def __hash__(self) -> int:
        return hash(self.url)

    def address(self, name: str) -> str:
        """The URL of a lock: what `Lock` and the command take for it. Raises InvalidArgument."""
        lock_names.file_of(name)
        return f"{self.url}#{name}"

    def path(self, name: str) -> str:
        """The file of a lock."""
        return os.path.join(self.folder, lock_names.file_of(name))

    def _options(self, given: dict[str, object], *, leased: bool = True) -> dict[str, Any]:
        """The store's own, under those of the call."""
        usual: dict[str, object] = {"label": self.label, "shared": self.shared}
        if leased:
            usual["kind"] = self.kind
            if self.ttl is not None:
                usual["ttl"] = self.ttl
                self._refuse_ttl(given)
        if "mode" in given:
            del usual["shared"]
        return usual | given

    def _refuse_ttl(self, given: dict[str, object]) -> None:
        """The ttl of `connect()` where locks are no leases. Raises InvalidArgument."""
        kind = given.get("kind", self.kind)
        if kind == "auto":
            kind = choose(self.path("x"), self.ttl)[0]
        if kind == "kernel" and "ttl" not in given:
            raise InvalidArgument(
                f"connect({self.url!r}, ttl={self.ttl:g}): a kernel lock takes no ttl, since the "
                "kernel frees it with its holder, at once: give connect() kind='soft' as well, or "
                "leave out the ttl"
            )

    def _listed(self, prefix: str) -> list[str]:
        """The names of all locks that were ever taken here, in order."""
        try:
            with os.scandir(self.folder) as entries:
                files = [entry.name for entry in entries]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise SystemRefused(
                f"{self.folder!r} cannot be listed: {error.strerror}",
                errno=error.errno,
                filename=self.folder,
            ) from error
        names = {
            name for file in map(_lock_of, files) if (name := lock_names.name_of(file)) is not None
        }
        return sorted(name for name in names if name.startswith(prefix))

    def _ground(self) -> FolderGround:
        try:
            place = ground_of(self.folder)
        except OSError as error:
            raise SystemRefused(
                f"{self.folder!r} cannot be looked at: {error.strerror}",
                errno=error.errno,
                filename=self.folder,
            ) from error
        kind, ttl = self.kind, self.ttl
        if kind == "auto":
            kind, ttl = choose(self.path("x"), ttl)
        proof = (
            "one machine alone can mount it: a dead holder is proven dead at once"
            if place.one_kernel
            else "other machines may mount it: only a lease that has run out frees a dead holder's "
            "lock, and whether the file system excludes between machines is unproven from here"
        )
        lease = "no lease" if ttl is None else f"leases of {ttl:g} s"
        words = f"{self.folder} on {place.kind or 'an unknown file system'}; {proof}; "
        return FolderGround(place.kind, place.one_kernel, kind, ttl, f"{words}kind {kind}, {lease}")


def _lock_of(file: str) -> str:
    """The lock that a file stands beside: it stays when the lock itself is let go of."""
    front, dot, end = file.rpartition(".")
    return front if dot and end in BESIDE else file


class NamedLocks:
    """The locks of a store that are named by arguments, of each shape."""

    __slots__ = ()
    if TYPE_CHECKING:

        def lock(self, name: str, **options: Any) -> Lock: ...
        def read_write(self, name: str, **options: Any) -> ReadWriteLock: ...
        def semaphore(self, name: str, permits: int, **options: Any) -> Semaphore: ...

    @explained("store.per()", "store.per('user-{user_id}')")
    def per(self, template: str, **options: Any) -> PerArguments:
        """`@store.per("user-{user_id}")`: a lock for each value of an argument. As `Lock.per`."""
        return args.PerArguments(
            template,
            lambda name: self.lock(name, **options),
            "connect",
            keep=bool(options.get("reentrant")),
        )

    @explained("store.read_write_per()", "store.read_write_per('config-{name}')")
    def read_write_per(self, template: str, **options: Any) -> ReadWritePer:
        """`@store.read_write_per("config-{name}").reading()`. As `ReadWriteLock.per`."""
        return args.ReadWritePer(
            template,
            lambda name: self.read_write(name, **options),
            "connect",
            call="read_write_per",
            keep=bool(options.get("reentrant")),
        )

    @explained("store.semaphore_per()", "store.semaphore_per('gpu-{host}', 4)")
    def semaphore_per(self, template: str, permits: int, **options: Any) -> PerArguments:
        """`@store.semaphore_per("gpu-{host}", 4)`: so many permits for each value."""
        return args.PerArguments(
            template,
            lambda name: self.semaphore(name, permits, **options),
            "connect",
            call="semaphore_per",
        )


# ------------------------------------------------------------------------------------------------
# `FileStore`: locks by name in the files of a folder, for threads and processes.


class FileStore(FileStoreFace, NamedLocks):
    """What `connect("file:///FOLDER")` answers.

    A lock is only a description: it is made each time, and costs nothing until it is acquired.
    """

    __slots__ = ()

    @OF_LOCK
    def lock(self, name: str, **options: Any) -> Lock:
        """One holder at a time. Options as of `Lock`: `wait`, `ttl`, `kind`, `label` ..."""
        return Lock(self.address(name), **self._options(options))

    @OF_READ_WRITE
    def read_write(self, name: str, **options: Any) -> ReadWriteLock:
        """Many readers or one writer. Options as of `ReadWriteLock`."""
        return ReadWriteLock(self.address(name), **self._options(options))

    @OF_SEMAPHORE
    def semaphore(self, name: str, permits: int, **options: Any) -> Semaphore:
        """`permits` holders at once. Options as of `Semaphore`."""
        return Semaphore(self.address(name), permits, **self._options(options, leased=False))

    def close(self) -> None:
        """Nothing is kept open between two calls: for `with connect(url) as store:` alike."""

    if not TYPE_CHECKING:
        __aenter__ = PLAIN

    def __enter__(self) -> FileStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def inspect(self, name: str, **options: Any) -> Holder | None:
        """Who holds a lock, None for nobody. Takes nothing. `kind`: of a lock that names one."""
        return self.lock(name, **options).holder()

    def list(self, prefix: str = "") -> list[str]:
        """The names of the locks here, held or not, that begin with `prefix`, in order."""
        return self._listed(prefix_of(prefix))

    def waiters(self, name: str, **options: Any) -> int | None:
        """How many wait for a lock; None where that cannot be seen."""
        mechanism = self.lock(name, **options)._mechanism
        return mechanism.waiters() if is_queued(mechanism) else None

    @OF_BREAK
    def break_(self, name: str, reason: str, **options: Any) -> Holder | None:
        """Take a lock from its holder, who is told; who that was. Noted beside the lock.

        Raises InvalidArgument for a kind that cannot be broken: a kernel lock goes with its holder.
        """
        return self.lock(name, **options).break_(reason)

    def ground(self) -> FolderGround:
        """What these locks stand on, in words. Raises SystemRefused."""
        return self._ground()


# ------------------------------------------------------------------------------------------------
# `LeaseStore`: leases by name in a store, for threads and processes.
#
# Rule: a lock of a store is the lock that its URL with the name stands for, so `Lock(url)`, the
# command and a store are always speaking of the same lock. What is asked here is answered by the
# store; what it cannot say, it does not guess.


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


class LeaseStoreFace:
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
        opening.lease_terms(ttl, None, None)
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

    def _mechanism(self, name: Any, given: dict[str, Any], **shape: object) -> Any:
        ttl, heartbeat, margin = (given.pop(key, None) for key in ("ttl", "heartbeat", "margin"))
        lease = opening.lease_terms(self.ttl if ttl is None else ttl, heartbeat, margin)
        label = label_of(given.pop("label", self.label))
        kind = given.pop("kind", "auto")
        if kind != "auto":
            refuse_more(kind, given, shape)
            return opening.mechanism(self._site, kind, name, self._runtime, lease, label=label)
        fair = given.pop("fair", ...)
        if fair is not ...:
            check_bool("fair", fair)
        delay = seconds("lock_delay", given.pop("lock_delay", None)) or 0.0
        if fair is True:
            self._site.refuse_lacking("queue", "fair=True")
        if delay:
            self._site.refuse_lacking("lock_delay", "lock_delay=")
        if shape.get("capacity") is not None:
            self._site.refuse_lacking("readers" if shape["capacity"] == WHOLE else "permits", name)
        if given:
            raise words.unknown("a lock in a store", given, OPTIONS)
        return opening.mechanism(
            self._site,
            kind,
            name,
            self._runtime,
            lease,
            label=label,
            fair=fair is not False,  # the best that the store can do
            delay=delay,
            **shape,
        )

    def _made(
        self,
        kind: Any,
        name: str,
        options: dict[str, object],
        wait: float | None,
        cancel: Cancel | None,
        max_hold: float | None,
        reentrant: bool,
        **shape: object,
    ) -> Any:
        """A lock of this kind over a name of the store."""
        notify = options.pop("notify", None)
        made = self._mechanism(name, options, **shape)
        lock = object.__new__(kind)
        fill(lock, made.path, made, wait, cancel, max_hold, reentrant, notify)
        return lock

    def _pair(
        self,
        kind: Any,
        name: str,
        options: dict[str, object],
        wait: float | None,
        cancel: Cancel | None,
        max_hold: float | None,
        reentrant: bool,
    ) -> Any:
        """A reader/writer lock: two sides of one name, which know one another."""
        notify = options.pop("notify", None)
        shapes = {"weight": 1, "shared": True}, {"weight": WHOLE}
        reads, writes = (
            self._mechanism(name, options.copy(), capacity=WHOLE, **shape) for shape in shapes
        )
        lock = object.__new__(kind)
        lock._stand_on(reads.path, reads, writes, wait, cancel, max_hold, reentrant, notify)
        return lock


OF_FOLDER = ("kind", "ttl", "label", "shared")  # what a store of files may be given
# What a lock of a store of leases may be given.
OPTIONS = tuple(
    "wait cancel max_hold reentrant notify ttl heartbeat margin label kind fair lock_delay".split()
)


def label_of(given: object) -> str:
    """A word for people. Raises InvalidArgument."""
    if not isinstance(given, str):
        raise InvalidArgument(f"label must be a str, not {type(given).__name__} {given!r}")
    return given


def refuse_more(kind: object, given: dict[str, object], shape: dict[str, object]) -> None:
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
    if not given.isprintable():  # as every name is; a store would fail on what no text encodes
        raise InvalidArgument(f"prefix must be printable text, which {given!r} is not")
    return given


def reason_of(given: object, of: str = "") -> str:
    """Why an order is given, for its audit; one `of` this name needs it. Raises InvalidArgument."""
    if not isinstance(given, str) or not given.isprintable():
        raise InvalidArgument(f"reason must be a line of printable text, not {given!r}")
    if of and not given.strip():
        raise InvalidArgument(f"{of} needs a reason in words: it is noted, with who gave it")
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


class LeaseStore(LeaseStoreFace, NamedLocks):
    """What `connect(url)` answers for a store of leases.

    Options of its locks: `wait`, `ttl` (30 s), `heartbeat`, `margin`, `label`, `max_hold`,
    `reentrant`, `cancel`, `notify`, as of `Lock`; `fair=False` lets newcomers overtake who waits;
    `lock_delay`: seconds for which a lease that ran out still keeps others out.
    """

    __slots__ = ()

    @OF_LOCK
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

    @OF_READ_WRITE
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
            ReadWriteLock, name, options, wait, cancel, max_hold, reentrant
        )
        return made

    @OF_SEMAPHORE
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

    if not TYPE_CHECKING:
        __aenter__ = PLAIN

    def __enter__(self) -> LeaseStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def inspect(self, name: str) -> Holder | None:
        """Who holds a lock, of whatever kind; None for nobody. Takes nothing."""
        return next(iter(self.holders(name)), None)

    def holders(self, name: str) -> list[Holder]:
        """All who hold it: readers, or those with a permit."""
        state = self._site.state(sites.checked(name))
        if state and state.holders:
            return [self._site.holder(held, name) for held in state.holders]
        return [holder for each in seen_of(self._site, name) for holder in each.holders]

    def waiters(self, name: str) -> int:
        """How many wait for a lock."""
        state = self._site.state(sites.checked(name))
        seen = seen_of(self._site, name)
        return (len(state.waiters) if state else 0) + sum(len(each.line) for each in seen)

    @OF_BREAK
    def break_(self, name: str, reason: str) -> Holder | None:
        """Take a lock from its holders, who are told; who that was. Noted in the store.

        The next token is above theirs, so guards at the data refuse what they still write.
        """
        return broken(self._site, sites.checked(name), reason_of(reason, "break_"))

    def bump(self, name: str, least: int = 0, reason: str = "") -> int:
        """Raise the token of a name, to `least` at the least, and answer it.

        The repair where a store has lost its last tokens: a backup restored, a standby that was
        behind. Holders keep their leases; guards at the data then admit the next ones alone.
        """
        self._site.order("bump", sites.checked(name), reason_of(reason), least_of(least))
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


def broken(site: Site, name: str, reason: str, whom: Holder | None = None) -> Holder | None:
    """End whoever holds a name, by a lease or by a session. `whom`: that one alone."""
    try:
        state = site.state(name)
    except CorruptRecord:  # which the order removes
        if whom is not None:
            raise
        return site.break_(name, reason)
    if (state is None or not state.holders) and any(each.holders for each in seen_of(site, name)):
        session = opening.mechanism(
            site, "session", name, BLOCKING, opening.lease_terms(None, None, None)
        )
        return breaker(session)(reason, whom)
    return site.break_(name, reason, whom)


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


if not TYPE_CHECKING:  # a type checker would take any name for granted

    def __getattr__(name: str) -> object:
        """`aconnect`, under the name that it has in `lifehold`: its stores stand on these."""
        if name == "aconnect":
            return getattr(sys.modules["lifehold"], name)
        raise AttributeError(f"module 'lifehold.stores' has no attribute {name!r}")
