"""A URL becomes a store, once per process, and a URL with a name one lock of it.

`memory://`, `sqlite:///path`, `postgresql://host/db`, `redis://host/0`; others by an entry point of
the group `lifehold.stores`, called as `open(url, **options)`, which answers a `Site` (site.py). The
name of a lock stands behind the `#`, percent-encoded where it has to be.
"""

from __future__ import annotations

import _weakref

from ..core.address import refuse_torn
from ..core.deadline import terms
from ..core.errors import InvalidArgument, LifeholdError
from ..core.mask import MASK, masked_url, printable
from ..runtime import fork
from .engine import StoreLock
from .memory import named
from .site import OF_ALL, Opener, Site, checked, decoded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib import metadata
    from importlib.metadata import EntryPoint
    from typing import Any

    from ..core import nearest, offered
    from ..core.deadline import Terms
    from ..core.ports import Mechanism, Runtime
else:
    nearest = fork.later("lifehold.core.nearest", globals())
    offered = fork.later("lifehold.core.offered", globals())
    metadata = fork.later("importlib.metadata", globals())

DEFAULT_TTL = 30.0  # seconds
LONGEST_TTL = 86400.0 * 365
PLAIN = frozenset((bool, bytes, float, int, str, type(None)))
NEWEST = 4
_sites: dict[tuple[object, ...], Site] = {}  # by the URL and the options, by their names
# Those over a client or pool of the caller's, who may make many: kept by who uses them, and a few
# because who connects for each use would else open all their connections each time.
_lent: dict[tuple[object, ...], Callable[[], Site | None]] = {}
_newest: list[Site] = []


@fork.in_child
def _forget() -> None:
    """A child opens its own: two processes on one connection would read each other's answers."""
    _sites.clear()
    _lent.clear()
    _newest.clear()


def memory(url: str, **options: object) -> Site:
    """`memory://` and `memory://NAME`."""
    if options:
        raise nearest.strange("memory://", options, OF_ALL)
    if masked_url(url) != url.replace(" ", "%20"):
        raise InvalidArgument(
            f"{printable(masked_url(url))!r} has a password, and a store in memory takes none: it "
            "is of this process alone. Write memory://NAME"
        )
    return Site(url, backend := named(url.partition("://")[2]), backend)


def site(url: str, known: dict[str, str], **options: object) -> Site:
    """The one Site of this URL and these options in this process. Raises InvalidArgument."""
    refuse_torn(url)
    try:
        return _site(opener(url, known).settled(url), known, options)
    except LifeholdError:
        raise
    except ValueError as error:  # of who takes a URL apart
        shown = printable(masked_url(url))
        why = "" if "@" in url or MASK in shown else f": {printable(str(error))}"
        raise InvalidArgument(f"{shown!r} cannot be read as a URL{why}") from None


def _site(url: str, known: dict[str, str], options: dict[str, object]) -> Site:
    lent = [value for value in options.values() if not is_plain(value)]
    if lent:
        return _over(url, known, options, lent)
    key = (url, *sorted(options.items()))
    found = _sites.get(key)
    if found is None:
        fork.here()
        with fork.gate:  # of two threads that ask one opens it
            found = _sites.get(key)
            if found is None:
                found = _sites[key] = opener(url, known)(url, **options)
    return found


def _over(url: str, known: dict[str, str], options: dict[str, object], lent: list[object]) -> Site:
    """The Site over a client or pool of the caller's, which is known by itself."""
    told = ((name, it if is_plain(it) else id(it)) for name, it in options.items())
    key = (url, *sorted(told))
    fork.here()
    with fork.gate:  # as above
        for gone in [each for each, where in _lent.items() if where() is None]:
            del _lent[gone]
        found = _lent[key]() if key in _lent else None
        if found is None:
            found = opener(url, known)(url, **options)
            found.lent = [*found.lent, *lent]  # as long as they are there, none has their numbers
            _lent[key] = _weakref.ref(found)
        _newest[:] = [found, *(each for each in _newest if each is not found)][:NEWEST]
    return found


def is_plain(value: object) -> bool:
    """Whether an option is what it says, and no object of the caller's."""
    parts = value if type(value) is tuple else (value,)
    return all(type(each) in PLAIN for each in parts)


def opener(url: str, known: dict[str, str]) -> Opener:
    """What opens stores of this scheme. Raises InvalidArgument for a scheme that nobody offers."""
    scheme = url.partition("://")[0]
    where = known.get(scheme)
    if where is not None:
        module, _, name = where.partition(":")
        return _as_opener(getattr(fork.lazily(module), name))
    points = {point.name: point for point in metadata.entry_points(group="lifehold.stores")}
    if scheme in points:
        return OfferedOpener(points[scheme])
    schemes = sorted({"file", *known, *points})
    meant = nearest.nearest(scheme.lower(), schemes)
    raise InvalidArgument(
        f"{printable(masked_url(url))!r} is a URL, and there is no store for "
        f"{printable(scheme)!r} here; there is one for: {', '.join(schemes)}"
        + (f"; did you mean {meant}://?" if meant else "")
    )


class OfferedOpener(Opener):
    """A store of a package that is not ours. Raises InvalidArgument where that does it wrong."""

    __slots__ = ("_point",)

    def __init__(self, point: EntryPoint) -> None:
        found = _as_opener(offered.load(point))
        super().__init__(found._open, settled=found.settled, upkeep=found.upkeep)
        self._point = point

    def __call__(self, url: str, **options: object) -> Site:
        try:
            found: object = super().__call__(url, **options)
        except (LifeholdError, OSError, ValueError):
            raise
        except (Exception, SystemExit) as error:
            why = type(error).__name__ if "@" in url else offered.said(error)
            raise offered.wrong(self._point, f"failed: {why}") from error
        if not isinstance(found, Site):
            raise offered.wrong(self._point, f"answered a {type(found).__name__} and no Site")
        return found


def _as_opener(found: Any) -> Opener:
    """Whatever is called with a URL may stand in the table: a plain function too."""
    return found if isinstance(found, Opener) else Opener(found)


def lock(
    url: str,
    known: dict[str, str],
    runtime: Runtime,
    kind: str,
    label: str,
    given: dict[str, object],
) -> Mechanism:
    """The lock that a URL with a name stands for. Raises InvalidArgument."""
    refuse_torn(url)
    where, mark, name = url.partition("#")
    if not mark:
        raise InvalidArgument(
            f"{printable(masked_url(where))!r} names a store and no lock: put the name behind a "
            "#, for example #nightly"
        )
    opener(url, known)  # there is such a store
    if kind not in ("auto", "session"):
        raise InvalidArgument(
            f"kind={kind!r} is for locks in files: a lock in a store is a lease, or in PostgreSQL "
            "of kind='session'"
        )
    if not isinstance(label, str):
        raise InvalidArgument(f"label must be a str, not {type(label).__name__} {label!r}")
    for option in ("cleanup", "shared", "strict", "mode"):
        if given.get(option):
            raise InvalidArgument(
                f"{option}= is for locks in files, and {masked_url(where)!r} is none"
            )
    if not given.get("record", True):
        raise InvalidArgument("record=False is for locks in files: a lease always has a record")
    if not given.get("exclusive", True):
        raise InvalidArgument("exclusive=False: use read_write() of the store, whose readers share")
    lease = lease_terms(given.get("ttl"), given.get("heartbeat"), given.get("margin"))
    return mechanism(site(where, known), kind, decoded(name), runtime, lease, label=label)


def mechanism(
    site: Site, kind: str, name: object, runtime: Runtime, lease: Terms, **more: Any
) -> Mechanism:
    """A lock of one name: a lease, or what kind="session" means here. Raises InvalidArgument."""
    if kind == "auto":
        return StoreLock(site, checked(name), runtime, lease, **more)
    site.sessions()  # it has such
    assert site.session_locks is not None
    return site.session_locks.lock(site, name, runtime, lease, **more)


def lease_terms(ttl: object, heartbeat: object, margin: object) -> Terms:
    """The terms of a lease in a store, whose ttl is 30 s unless given. Raises InvalidArgument."""
    length = DEFAULT_TTL if ttl is None else ttl
    made = terms(length, heartbeat, margin)
    assert made is not None
    if made.ttl > LONGEST_TTL:
        raise InvalidArgument(
            f"ttl={made.ttl:g} s is longer than a year: a holder that dies would block the others "
            "for as long. Leases are renewed: a short ttl does not end a long run"
        )
    return made
