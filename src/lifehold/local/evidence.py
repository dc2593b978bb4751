"""What there is to know of a record that is in our way, and what it proves.

Rule (L2): the weaker of two views counts. A record names the file system that its writer saw and
whether its writer keeps a witness; we know what we see. Only where both saw a file system that one
kernel alone can mount does a free witness or a missing process prove a death. Else a lease must run
out: its ttl passes on *our* monotonic clock, from the first time we read that very record on. Each
renewal makes another record of it. No clock is compared with another, and no file's age counts.
"""

from __future__ import annotations

from ..core.deadline import NEVER, Terms
from ..core.errors import InvalidArgument
from ..core.grant import Holder
from ..core.liveness import ALIVE, DEAD, UNKNOWN, Ground, Verdict, judge
from ..core.value import replace, value
from ..runtime import process
from ..runtime.elsewhere import number_here
from .ground import Place, place_of
from .marker import NEWER, OLDER, OURS, UNREADABLE, Marker, read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from ..core.owner import Owner
    from .paper import Paper

GRACE = 120.0  # seconds for which what names nobody is left alone, while it stays as it is
RETRY = 0.25  # seconds between two looks where neither an event nor a lease will help
# path -> the record that we saw there last, and since when. For all locks of the process: a
# program that tries now and then, each time with a new Lock, sees a lease run out too.
SEEN: dict[str, tuple[Hashable, float]] = {}
MOST_SEEN = 1024
_places: dict[int, Place] = {}


@value
class Judged:
    """A record and what we make of it.

    `due`: the instant at which time alone may change that; `why`: what stands in the way, when it
    is not simply a holder; `mixed`: why this is another kind's.
    """

    state: str
    evidence: str
    marker: Marker
    key: Hashable
    lock: str
    due: float = NEVER
    why: str = ""
    mixed: str = ""

    def holder(self, *, seek: bool = False) -> Holder:
        """As it is told to people. `seek`: by which number it is called here, which takes a while.

        A takeover does not ask: it has nobody to wait for, and others wait for it.
        """
        m = self.marker
        here = number_here(m.owner) if seek else None
        return Holder(
            m.owner, m.since, self.state, self.evidence, m.token, m.nonce, self.lock, here
        )


class Evidence:
    """The judge of one kind of lock. `seen`: where it keeps since when it watches what."""

    __slots__ = ("grace", "kind", "seen")

    def __init__(
        self, kind: str, seen: dict[str, tuple[Hashable, float]] = SEEN, grace: float = GRACE
    ) -> None:
        self.kind, self.seen, self.grace = kind, seen, grace

    def judged(self, path: str, found: Paper, place: Place, now: Callable[[], float]) -> Judged:
        """A record, opened afresh."""
        before = now()  # L2  what passes between two clock readings is not counted
        marker = read(found.read())
        lock = f"{path} ({marker.kind or self.kind} lock, {_words(place)})"
        if marker.state == OURS and marker.kind != self.kind:
            mixed = mixed_kinds(path, marker.kind, self.kind)
            return Judged(UNKNOWN, mixed, marker, found.key, lock, mixed=mixed)
        verdict = self.verdict(marker, found, place)
        case = Judged(verdict.state, verdict.evidence, marker, found.key, lock)
        if verdict.state == DEAD:
            return case
        return self._timed(case, path, found, before, now)

    def verdict(self, marker: Marker, found: Paper, place: Place) -> Verdict:
        """What can be proven at once."""
        one_kernel = place.one_kernel and marker.one_kernel
        witness = None
        if place.one_kernel and (marker.witness or marker.state != OURS):
            held = found.has_witness()
            if marker.state != OURS and held:
                return Verdict(ALIVE, "somebody locks the file")
            if marker.witness and one_kernel:
                witness = held
        if marker.owner is None:
            return Verdict(UNKNOWN, UNREAD[marker.state])
        return self.judge(marker, one_kernel, witness)

    def judge(self, marker: Marker, one_kernel: bool, witness: bool | None) -> Verdict:
        """By the owner that a record names."""
        owner = marker.owner
        assert owner is not None
        if witness is not None:
            return judge(owner, Ground(one_kernel, witness, owner, False, process.look))
        return _by_identity(marker, owner, one_kernel)

    def _timed(
        self, case: Judged, path: str, found: Paper, before: float, now: Callable[[], float]
    ) -> Judged:
        """What time says: DEAD once the record's own ttl has passed since we saw it first."""
        patience = case.marker.ttl
        if case.marker.state in (UNREADABLE, NEWER):
            patience = None if case.state == ALIVE else self.grace
        if patience is None:
            unsure = case.state == UNKNOWN
            return replace(
                case, why=f"it is held, or so it looks: {case.evidence}" if unsure else ""
            )
        record = (found.key, case.marker.content)
        known, since = self.seen.get(path, (None, 0.0))
        if known != record:
            since = now()
            if len(self.seen) >= MOST_SEEN:
                self.seen.clear()
            self.seen[path] = record, since
        due = since + patience
        if before >= due:
            what = "its lease" if case.marker.owner else "what is there"
            evidence = f"{what} was left unchanged for {patience:g} s while we watched"
            return replace(case, state=DEAD, evidence=evidence)
        why = "" if case.marker.owner else f"{case.evidence}; left alone for {patience:g} s"
        return replace(case, due=due, why=why)


UNREAD = {
    UNREADABLE: "what is there cannot be read as a lock's record",
    NEWER: "its record was written by a newer lifehold than this one: upgrade lifehold here",
    OLDER: "",
    OURS: "its record names nobody",
}


def _by_identity(marker: Marker, owner: Owner, one_kernel: bool) -> Verdict:
    """Without a witness: by process number and start, where those prove anything."""
    ground = process.ground(one_kernel, None)
    if marker.state == OLDER and owner.host not in (None, ground.here.host):
        return Verdict(UNKNOWN, f"it names process {owner.pid} of another host, {owner.host}")
    return judge(owner, ground)


def near_pid(owner: Owner | None, *, one_kernel: bool) -> int | None:
    """Its process number where it is one of our own PID namespace, and so can be followed."""
    if owner is None or owner.pid_ns is None or not one_kernel:
        return None
    return owner.pid if owner.pid_ns == process.namespace("pid") else None


# ---- in words ----------------------------------------------------------------------------------


def mixed_kinds(path: str, theirs: str, ours: str) -> str:
    """Two kinds on one path do not exclude each other."""
    return (
        f"{path!r} is a lock of kind={theirs!r}, and was asked for as kind={ours!r}: the two would "
        "not exclude each other. Use one kind for one path; if nobody uses it any more, remove it"
    )


def no_ttl(path: str, place: Place) -> str:
    """Why a record without a lease is refused where no death can be proven."""
    return (
        f"{path!r} lies on {_words(place)}: no process can be proven dead there, so a lock without "
        "a ttl would stay for ever after a crash. Give ttl=30"
    )


def no_guard(path: str, place: Place) -> str:
    """Why a file system without any lock is refused."""
    return (
        f"{path!r} lies on {_words(place)}, which locks no file: nothing could be taken over "
        "safely there. Use kind='generation' with a ttl"
    )


def refuse_other_ttl(path: str, case: Judged, terms: Terms | None) -> None:
    """All who use a lease must mean the same by it."""
    theirs = case.marker.ttl
    if case.marker.state != OURS or theirs is None or (terms and terms.ttl == theirs):
        return
    ours = "no ttl" if terms is None else f"ttl={terms.ttl:g}"
    raise InvalidArgument(
        f"{path!r} is held under ttl={theirs:g}, and was asked for with {ours}: all who use one "
        f"lock must agree. Give ttl={theirs:g}, or wait until it is released",
        name=path,
    )


def _words(place: Place) -> str:
    if place.far:
        return f"{place.kind}, a shared file system"
    return place.kind or "an unknown file system"


# ---- the ground --------------------------------------------------------------------------------


def place_at(found: Paper) -> Place:
    """The file system of an open record, looked up once for a device."""
    known = _places.get(found.dev)
    if known is None:
        if len(_places) >= 256:
            _places.clear()
        known = _places[found.dev] = place_of(found.fd)
    return known
