"""Kind of lock -> mechanism, imported only when it is asked for.

Third parties add kinds by an entry point of the group `lifehold.kinds`, or by `offer`.

A kind is a class or function that is called as `kind(path, runtime, exclusive=..., label=...,
record=..., cleanup=..., mode=..., shared=...)` and answers a `Mechanism` (core/ports.py) that also
has `path` and `exclusive`, and in plain code `attempt()`, one try; `drop(grant)`, its release;
`taken()`, whether anybody holds it. `fair=True` is offered by the kernel lock alone. The handle of
its grants is a list of one part that has the `generation` of runtime/fork.py at the time of the
grant; whoever pops it ends the grant (L5), and when the part is garbage it lets go. A kind whose
attribute `leased` is true also takes `terms=` (core/deadline.py) of a lock made with a ttl: its
grants then have a `deadline`, and the heartbeat thread calls its `renew`.
`lifehold.testing.conformance` says whether all that is right; `lifehold.testing.dict_lock` is the
smallest example. A kind of our own is a row of `local/kinds.py` besides.
"""

from __future__ import annotations

import sys

from .core.deadline import terms
from .core.errors import InvalidArgument
from .core.ports import is_breakable, makes_leases
from .runtime import fork

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib import metadata
    from importlib.metadata import EntryPoint
    from typing import Any

    from .core import nearest, offered
    from .core.deadline import Terms
    from .core.grant import Holder
    from .core.ports import Maker, Mechanism, Runtime
    from .local import ground, kinds
    from .runtime import renewal
    from .store import opening
    from .store.site import Site
else:
    ground = fork.later("lifehold.local.ground", globals())
    kinds = fork.later("lifehold.local.kinds", globals())
    nearest = fork.later("lifehold.core.nearest", globals())
    offered = fork.later("lifehold.core.offered", globals())
    opening = fork.later("lifehold.store.opening", globals())
    renewal = fork.later("lifehold.runtime.renewal", globals())
    metadata = fork.later("importlib.metadata", globals())


AUTO = "kernel"  # what "auto" is, but for file servers: see `choose`
ON_A_FILE_SERVER = "generation"  # what "auto" takes there: a lease, which needs no flock
DEFAULT_TTL = 30.0  # seconds, of "auto" where no death can be proven
STORES = {  # schemes of URLs -> what opens such a store: `open(url, **options)`, a Site
    "memory": "lifehold.store.opening:memory",
    "sqlite": "lifehold.store.sqlite.backend:site",
    "postgresql": "lifehold.store.postgres.opening:site",
    "postgres": "lifehold.store.postgres.opening:site",
    "redis": "lifehold.store.redis.opening:site",
    "rediss": "lifehold.store.redis.opening:site",
    "unix": "lifehold.store.redis.opening:site",
    "redis+sentinel": "lifehold.store.redis.opening:group",
    "redis+cluster": "lifehold.store.redis.opening:group",
    "redis+quorum": "lifehold.store.redis.quorum_servers:quorum_site",
}
OPEN_FILE = "lifehold.local.open_file:OpenFileLock"
FAIR = {
    "auto": "lifehold.local.kernel:FairKernelLock",
    "kernel": "lifehold.local.kernel:FairKernelLock",
}
_made: dict[str, Maker] = {}


def maker(kind: str) -> Maker:
    """What makes the mechanism of a lock. Raises InvalidArgument for a kind nobody offers."""
    if not isinstance(kind, str):
        raise InvalidArgument(f"kind must be a str, not {type(kind).__name__} {kind!r}")
    if sys.platform == "win32" and kinds.is_record(kind):
        raise InvalidArgument(
            f"kind={kind!r} needs calls of Unix that Windows has not: kind='kernel', or 'auto', is "
            "offered there"
        )
    return _made.get(kind) or _find(kind)


def choose(path: str, ttl: float | None) -> tuple[str, float | None]:
    """What `auto` means for a path: (kind, ttl).

    L2  On a file server a kernel lock is the server's to lose, and no process can be proven dead;
    of a type that we do not know neither is known.
    """
    if not ground.is_unproven(path):
        return "kernel", ttl
    return ON_A_FILE_SERVER, DEFAULT_TTL if ttl is None else ttl


def terms_of(kind: str, ttl: object, heartbeat: object, margin: object) -> Terms | None:
    """The terms of a lease of this kind. Raises InvalidArgument."""
    given = terms(ttl, heartbeat, margin)
    if makes_leases(maker(kind)):
        if given is not None:
            _ = renewal.RenewedLease  # loaded now: with a grant in hand nothing is to fail
        return given
    if kind == "kernel":
        raise InvalidArgument(
            f"kind='kernel' takes no ttl: the kernel frees the lock with its holder, at once. To "
            f"bound a holder that hangs use max_hold={ttl!r}; for a lease use kind='soft'"
        )
    raise InvalidArgument(f"kind={kind!r} takes no ttl: its grants do not end by themselves")


def fair_maker(kind: str) -> Maker:
    """The same for `fair=True`. Raises InvalidArgument for a kind that has no line to stand in."""
    maker(kind)  # there is such a kind
    if sys.platform == "win32" or kind not in FAIR:
        raise InvalidArgument(
            f"fair=True is not offered for kind {kind!r} here: the kernel lock on Linux has it"
        )
    return _load(FAIR[kind])


def open_file(file: object, runtime: Runtime, *, exclusive: bool) -> Mechanism:
    """The mechanism of a file that is open already. Raises InvalidArgument."""
    if sys.platform == "win32":
        raise InvalidArgument("on_file() needs flock(2), which Windows has not: use Lock(path)")
    module, _, name = OPEN_FILE.partition(":")
    made: Mechanism = getattr(fork.lazily(module), name)(file, runtime, exclusive=exclusive)
    return made


def breaker(mechanism: Mechanism) -> Callable[..., Holder | None]:
    """`break_` of a mechanism. Raises InvalidArgument where it has none."""
    if not is_breakable(mechanism):
        raise InvalidArgument(
            f"{mechanism.path!r} cannot be broken: it is held by a process that lives; end the "
            "process, which frees it at once"
        )
    return mechanism.break_


def strict_for(kind: str) -> bool:
    """Whether this kind knows strict=True. Raises InvalidArgument."""
    if kind != "link":
        raise InvalidArgument(f"strict=True is for kind 'link', not {kind!r}")
    return True


def is_store(path: object) -> bool:
    """Whether this is the URL of a store, or of a lock in one."""
    return isinstance(path, str) and "://" in path and not path.startswith("file:")


def store_at(url: str, **options: object) -> Site:
    """The store of a URL, opened once per process. Raises InvalidArgument, StoreUnavailable."""
    return opening.site(url, STORES, **options)


def store_lock(
    url: str, runtime: Runtime, kind: str, label: str, given: dict[str, Any]
) -> Mechanism:
    """The mechanism of one name in a store: `sqlite:////var/lib/locks.db#nightly`.

    `given`: what a lock in a file may be asked for, and a store has not. Raises InvalidArgument.
    """
    return opening.lock(url, STORES, runtime, kind, label, given)


def offer(kind: str, make: Maker) -> Callable[[], None]:
    """Make a kind known to `Lock(kind=...)` in this process; the answer withdraws it.

    Raises InvalidArgument for a name that is taken.
    """
    if kind in ("auto", *kinds.KINDS) or kind in _made:
        raise InvalidArgument(f"kind {kind!r} exists already: choose another name")
    _made[kind] = make

    def withdraw() -> None:
        if _made.get(kind) is make:
            del _made[kind]

    return withdraw


def _load(where: str) -> Maker:
    module, _, name = where.partition(":")
    found: Maker = getattr(fork.lazily(module), name)
    return found


class OfferedMaker:
    """A kind of a package that is not ours. Raises InvalidArgument where that does it wrong."""

    def __init__(self, point: EntryPoint) -> None:
        self.point, self.make = point, offered.load(point)
        self.leased = bool(getattr(self.make, "leased", False))

    def __call__(self, path: str, runtime: Runtime, **options: Any) -> Mechanism:
        make = self.make
        made: Mechanism = offered.called(
            self.point, "failed", lambda: make(path, runtime, **options)
        )
        if not hasattr(made, "attempt"):
            raise offered.wrong(self.point, f"answered a {type(made).__name__} and no mechanism")
        return made


def _find(kind: str) -> Maker:
    row = kinds.KINDS.get(AUTO if kind == "auto" else kind)
    if row is not None:
        _made[kind] = found = _load(row.made_by)
        return found
    points = {point.name: point for point in metadata.entry_points(group="lifehold.kinds")}
    if kind in points:
        _made[kind] = found = OfferedMaker(points[kind])
        return found
    if kind == "session":
        raise InvalidArgument(
            "kind='session' is a lock of PostgreSQL: name it by a URL, postgresql://HOST/DB#NAME"
        )
    known = sorted({"auto", *kinds.KINDS, *_made, *points})
    near = nearest.did_you_mean(kind, known)
    near = "; flock(2) is kind='kernel'" if kind == "flock" else near
    raise InvalidArgument(f"kind must be one of {', '.join(known)}, not {kind!r}{near}")
