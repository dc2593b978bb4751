"""Whether the record that stands in our way may be gone on from: the only place that decides it.

L2  Free is a record that says so itself, one whose holder is proven dead on a file system that one
    kernel alone can mount in the writer's view *and* in ours, and one whose lease has run out: it
    has not changed for its whole ttl on our own monotonic clock since we first saw it. Never by
    its age, its mtime, or a number that another kernel may have given.
    The clock is read *after* the first look and *before* the last one, so the span lies inside of
    what we saw: a renewal that lands after our last look lands after its writer's deadline (L8).
"""

from __future__ import annotations

from ..core.errors import InvalidArgument
from ..core.grant import Holder
from ..core.liveness import ALIVE, DEAD, UNKNOWN, Verdict, judge
from ..core.owner import Owner
from ..core.value import replace, value
from ..runtime import process
from ..runtime.elsewhere import number_here
from .files import LOCK_NB, LOCK_SH, LOCK_UN
from .record import as_holder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from .files import Files
    from .ground import Place
    from .sheet import Sight

UNREADABLE_TTL = 300.0  # seconds that a record which cannot be read must stay as it is
NEWER = "its record is of a newer lifehold than this one: treated as held. Upgrade lifehold here"


@value
class Judgement:
    """Whether a record may be gone on from, and what is known of its holder.

    `until`: the instant of the runtime's clock at which its lease will have run out for us, None
    when it has none.
    """

    free: bool
    state: str
    evidence: str
    until: float | None = None


SAYS_SO = Judgement(True, DEAD, "released")


class Observer:
    """What one observer saw last, and since when by its own clock."""

    __slots__ = ("since", "what")

    def __init__(self) -> None:
        self.what: Hashable = None
        self.since = 0.0


def lease_of(sight: Sight, foreign_ttl: float | None = None) -> float | None:
    """Seconds for which this record must stay unchanged to have run out; None: it never does."""
    if sight.newer:
        return None
    if sight.ours:
        return sight.ttl
    return foreign_ttl or UNREADABLE_TTL


def weigh(
    sight: Sight, verdict: Verdict, lease: float | None, observer: Observer, what: Hashable,
    clock: Callable[[], float], again: Callable[[], Hashable],
) -> Judgement:  # fmt: skip
    """The judgement on a record whose holder has not released it.

    `what` was seen, `again` looks whether it is there still.
    """
    if sight.newer:
        return Judgement(False, ALIVE, NEWER)
    if verdict.state == DEAD:
        return Judgement(True, DEAD, verdict.evidence)
    if lease is None:
        return Judgement(False, verdict.state, verdict.evidence)
    now = clock()
    if observer.what != what:
        observer.what, observer.since = what, now
        return Judgement(False, verdict.state, verdict.evidence, now + lease)
    until = observer.since + lease
    if again() != what:
        observer.what = None
        return Judgement(False, ALIVE, "renewed just now", now + lease)
    if now >= until:
        return Judgement(True, DEAD, f"not renewed for {lease:g} s by our own clock", until)
    return Judgement(False, verdict.state, verdict.evidence, until)


def refuse_other_ttl(path: str, sight: Sight, ttl: float | None) -> None:
    """All who use a lease must mean the same by it. Raises InvalidArgument."""
    if not sight.ours or sight.newer or sight.ttl is None or sight.ttl == ttl:
        return
    ours = "no ttl" if ttl is None else f"ttl={ttl:g}"
    raise InvalidArgument(
        f"{path!r} is held under ttl={sight.ttl:g}, and was asked for with {ours}: all who use one "
        f"lock must agree. Give ttl={sight.ttl:g}, or wait until it is released",
        name=path,
    )


def verdict_of(files: Files, sight: Sight, fd: int, place: Place) -> Verdict:
    """Whether its writer lives. The weaker of both views counts: its writer's and ours."""
    owner = sight.record.owner if sight.record is not None else None
    if sight.ours and owner is not None:
        one_kernel = place.one_kernel and sight.one_kernel
        if one_kernel and sight.witness:
            if witness_is_held(files, fd):
                return Verdict(ALIVE, "kernel witness")
            return Verdict(DEAD, "its kernel witness is free")
        return judge(owner, process.ground(one_kernel, None))
    if sight.pid is not None and sight.record is None:
        return judge(Owner(pid=sight.pid), process.ground(place.one_kernel, None))
    return Verdict(UNKNOWN, "its record cannot be read" if sight.content else "its record is empty")


def witness_is_held(files: Files, fd: int) -> bool:
    """Tries the kernel lock of the record, shared, and lets go at once: judges do not meet."""
    try:
        files.flock(fd, LOCK_SH | LOCK_NB)
    except BlockingIOError:
        return True
    files.flock(fd, LOCK_UN)
    return False


def as_seen(sight: Sight, state: str, evidence: str, lock: str) -> Holder:
    """A record and what is known of its holder, for people."""
    if sight.record is None:
        owner = Owner(pid=sight.pid) if sight.pid is not None else None
        return Holder(owner, alive=state, evidence=evidence, lock=lock)
    here = number_here(sight.record.owner)
    left = as_holder(sight.record, lock)
    return replace(left, alive=state, evidence=evidence, pid_here=here)
