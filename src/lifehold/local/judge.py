"""What there is to know of a record that is in our way, and what it proves.

Rule (L2): the weaker of two views counts. A record names the file system that its writer saw and
whether its writer keeps a witness; we know what we see. Only where both saw a file system that one
kernel alone can mount does a free witness or a missing process prove a death. Else a lease must run
out: its ttl passes on *our* monotonic clock, from the first time we read that very record on. Each
renewal makes another record of it. No clock is compared with another, and no file's age counts.
"""

from __future__ import annotations

from ..core.deadline import NEVER
from ..core.errors import InvalidArgument
from ..core.grant import Holder
from ..core.owner import ALIVE, DEAD, UNKNOWN, LifeVerdict, ObserverView, judge
from ..core.value import replace, value
from ..runtime import process
from ..runtime.process import number_here
from .ground import LOCAL
from .record import CURRENT, FROM_NEWER, LIVE, OLDER, UNREADABLE, ParsedRecord, read
from .refusals import mixed_kinds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from ..core.owner import Owner
    from .ground import MountInfo
    from .record_handle import BorrowedRecord, RecordFile

    Found = RecordFile | BorrowedRecord

LIBLOCKFILES = 300.0  # seconds after which its files are stale, whoever made them
GRACE = 120.0  # seconds for which what names nobody is left alone, while it stays as it is
BEING_MOVED = (
    "somebody is in the middle of giving it back or of taking it over, and nobody can come "
    "between; if that lasts, its process is stopped: kill -CONT PID"
)
TOO_SLOW = "to acquire it took longer than its ttl"
MOST_SEEN = 1024  # sightings that are kept whatever their age
LATER = 600.0  # seconds for which one is kept beyond the end of what it waits for


class Sightings(dict[str, tuple["Hashable", float]]):
    """path -> the record that was seen there last, and since when. For all locks of the process.

    So a program that tries now and then, each time with a new Lock, sees a lease run out too.
    Rule: none is forgotten that somebody may be waiting by. What has run out, whoever waits takes
    at its next look; so what ran out LATER seconds ago is nobody's any more.
    """

    def __init__(self) -> None:
        self.ends_at: dict[str, float] = {}
        self.room = MOST_SEEN

    def note(self, path: str, record: Hashable, since: float, patience: float) -> None:
        """A record that is seen there for the first time, and counts for `patience` seconds."""
        if len(self) >= self.room:
            for old in [each for each, end in list(self.ends_at.items()) if end + LATER < since]:
                self.forget(old)
            self.room = max(MOST_SEEN, 2 * len(self))
        self.ends_at[path] = since + patience
        self[path] = record, since

    def forget(self, path: str) -> None:
        self.pop(path, None)
        self.ends_at.pop(path, None)


SEEN = Sightings()


@value
class Judgement:
    """A record and what we make of it.

    `due`: the instant at which time alone may change that; `why`: what stands in the way, when it
    is not simply a holder; `mixed`: why this is another kind's; `touched`: its time, where that
    counts.
    """

    state: str
    evidence: str
    marker: ParsedRecord
    key: Hashable
    lock: str
    due: float = NEVER
    why: str = ""
    mixed: str = ""
    touched: int = 0

    def holder(self, *, seek: bool = False) -> Holder:
        """As it is told to people. `seek`: by which number it is called here, which takes a while.

        A takeover does not ask: it has nobody to wait for, and others wait for it.
        """
        m = self.marker
        here = number_here(m.owner) if seek else None
        return Holder(
            m.owner, m.since, self.state, self.evidence, m.token, m.nonce, self.lock, here
        )


class LivenessJudge:
    """The judge of one kind of lock.

    `seen`: where it keeps since when it watches what; `foreign`: seconds after which another tool's
    own rule gives up what nobody touched, None when it has none.
    """

    __slots__ = ("foreign", "grace", "kind", "seen")

    def __init__(
        self,
        kind: str,
        seen: dict[str, tuple[Hashable, float]] | Sightings = SEEN,
        grace: float = GRACE,
        foreign: float | None = None,
    ) -> None:
        self.kind, self.seen, self.grace, self.foreign = kind, seen, grace, foreign

    def judged(
        self, path: str, found: Found, place: MountInfo, now: Callable[[], float]
    ) -> Judgement:
        """A record, opened afresh."""
        before = now()  # L2  what passes between two clock readings is not counted
        content = found.read()
        touched = found.touched()
        marker = read(content)
        if marker.state == CURRENT and marker.stage not in LIVE:
            return Judgement(DEAD, marker.stage, marker, found.key, "", touched=touched)
        lock = self.lock(path, marker, place)
        if marker.state == CURRENT and marker.kind not in (self.kind, ""):
            mixed = mixed_kinds(path, self.kind, marker.kind)
            return Judgement(UNKNOWN, mixed, marker, found.key, lock, mixed=mixed)
        verdict = self.verdict(marker, found, place)
        case = Judgement(verdict.state, verdict.evidence, marker, found.key, lock, touched=touched)
        if verdict.state == DEAD:
            return case
        patience = self._patience(case, found, place)
        if patience is None:
            if case.state != UNKNOWN:
                return case
            return replace(case, why=f"it is held, or so it looks: {case.evidence}")
        return self._timed(case, path, (found.key, content, touched), patience, before, now)

    def lock(self, path: str, marker: ParsedRecord, place: MountInfo) -> str:
        """Which lock it is, in words."""
        lease = f", a lease of {marker.ttl:g} s" if marker.ttl is not None else ""
        return f"{path} ({marker.kind or self.kind} lock, {_words(place)}{lease})"

    def verdict(self, marker: ParsedRecord, found: Found, place: MountInfo) -> LifeVerdict:
        """What can be proven at once: by its witness, else `without_witness`."""
        near = place.kind in LOCAL  # as we see it
        one_kernel = near and (marker.state == OLDER or marker.ground in LOCAL)  # and its writer
        witness = None
        if near and (marker.witness or marker.state != CURRENT):
            held = found.has_witness()
            if marker.state != CURRENT and held:
                return LifeVerdict(ALIVE, "somebody locks the file")
            if marker.witness and one_kernel:
                witness = held
        if marker.owner is None:
            return LifeVerdict(UNKNOWN, UNREAD[marker.state])
        if marker.ttl == LIBLOCKFILES and not marker.ground:
            return LifeVerdict(
                UNKNOWN, "a lock file without a process: it counts by its last touch"
            )
        if witness is not None:
            return judge(
                marker.owner, ObserverView(one_kernel, witness, marker.owner, False, process.look)
            )
        return self.without_witness(marker, one_kernel)

    def without_witness(self, marker: ParsedRecord, one_kernel: bool) -> LifeVerdict:
        """By the owner that a record names, where no witness tells."""
        assert marker.owner is not None
        return _by_identity(marker, marker.owner, one_kernel)

    def _patience(self, case: Judgement, found: Found, place: MountInfo) -> float | None:
        """Seconds for which it must stay as it is to have run out; None: it never does.

        L12  Of a newer version we know its ttl and its witness, and no more: where neither can
        speak, somebody holds it.
        """
        marker = case.marker
        if marker.state == CURRENT:
            return marker.ttl
        if case.state == ALIVE:  # somebody locks what we cannot read
            return None
        if marker.state == OLDER:
            return self.foreign
        if marker.state == FROM_NEWER and marker.ttl is not None:
            return max(self.grace, marker.ttl)
        if marker.state == FROM_NEWER and not (place.one_kernel and found.has_witness() is False):
            return None
        return self.grace

    def _timed(
        self,
        case: Judgement,
        path: str,
        record: Hashable,
        patience: float,
        before: float,
        now: Callable[[], float],
    ) -> Judgement:
        """What time says: DEAD once `patience` has passed since we saw it first."""
        known, since = self.seen.get(path, (None, 0.0))
        if known != record:
            since = now()
            if isinstance(self.seen, Sightings):
                self.seen.note(path, record, since, patience)
            else:
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
    FROM_NEWER: "its record was written by a newer lifehold than this one: upgrade lifehold here",
    OLDER: "",
    CURRENT: "its record names nobody",
}


def _by_identity(marker: ParsedRecord, owner: Owner, one_kernel: bool) -> LifeVerdict:
    """Without a witness: by process number and start, where those prove anything."""
    ground = process.ground(one_kernel, None)
    if marker.ttl is not None and None not in (boots := {owner.boot_id, ground.here.boot_id}):
        if len(boots) > 1:  # a container may show another one, and so may a restored machine
            return LifeVerdict(UNKNOWN, "another boot id, and no witness: its lease decides")
    if marker.state == OLDER and owner.host not in (None, ground.here.host):
        return LifeVerdict(UNKNOWN, f"it names process {owner.pid} of another host, {owner.host}")
    verdict = judge(owner, ground)
    if verdict.state == DEAD and marker.more:
        return LifeVerdict(UNKNOWN, f"{verdict.evidence}, but {MAY_BE_DATA}")
    return verdict


MAY_BE_DATA = "there is more in it than a lock's record: it may be somebody's data"


def no_guard(path: str, place: MountInfo) -> str:
    """Why a file system without any lock is refused."""
    return (
        f"{path!r} lies on {_words(place)}, which locks no file: nothing could be taken over "
        "safely there. Use kind='generation' with a ttl"
    )


def refuse_other_ttl(path: str, case: Judgement, ttl: float | None) -> None:
    """All who use a lease must mean the same by it."""
    theirs = case.marker.ttl
    if case.marker.state != CURRENT or theirs is None or ttl == theirs:
        return
    if case.marker.kind == "link" and theirs == LIBLOCKFILES:  # all who use that kind know it
        return
    ours = "no ttl" if ttl is None else f"ttl={ttl:g}"
    raise InvalidArgument(
        f"{path!r} is held under ttl={theirs:g}, and was asked for with {ours}: all who use one "
        f"lock must agree. Give ttl={theirs:g}, or wait until it is released",
        name=path,
    )


def _words(place: MountInfo) -> str:
    if place.kind in LOCAL:
        return place.kind
    known = f"{place.kind}, a shared file system" if place.far else place.kind
    return f"{known or 'an unknown file system'}, unproven"


# ------------------------------------------------------------------------------------------------
# Where one waiter is to look for a change: what its own last try has seen.


@value
class WaitHint:
    """Where a waiter is to look for a change, in `Held.hint`.

    Each has one of its own: of two who wait on one Lock object, one may have seen an older one.
    `at`: a path, "" for the kind's own; `due`: when time alone may change something;
    `pid`: a process whose end may; `pause`: seconds for which it listens to nothing, since its own
    look is told to all who wait: it has opened the record for writing.
    """

    due: float = NEVER
    pid: int | None = None
    at: str = ""
    pause: float = 0.0


NO_HINT = WaitHint()
PAUSE = 0.02  # seconds, of who has met somebody in the middle of a step
