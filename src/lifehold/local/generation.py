"""A lock of numbered records: the highest number is the truth, and nobody ever takes a name away.

Promise: at most one holder, with a token that grows, on any shared folder whose link(2) refuses a
name that exists; no flock is needed. A dead holder is followed as soon as that is proven, else
when its lease has run out. Rule: to acquire is to link the next number, and a number is deleted
only after all below it, so *"the record that I went on from is still there"* proves that the next
number never existed before. That is a positive question, which a fresh open(2) answers even where
listings and stat(2) come from a cache.

L1  Of all who go on from record n, link(2) lets one have n + 1. Its reply is not believed: a fresh
    open of n + 1 shows whose it is.
L2  A record is gone on from when local/evidence.py says so, and is then the first of its number:
    a released one is, for only who passed the check below writes that; of a silent one its own
    predecessor must still be there. A void one is not: who comes late may make a number anew.
L3  The takeover is that same link(2).
L4  The token is max(predecessor's + 1, clock, own last + 1). Numbers begin at the clock, too.
L5  Release writes through its own descriptor and touches no name but those below its own.
"""

from __future__ import annotations

import errno
import os

from ..core.errors import InvalidArgument
from ..core.fence import next_token
from ..core.grant import Grant, Held, Lost
from ..core.value import replace
from ..runtime import fork
from ..runtime.process import here
from . import evidence, folder, presence
from .descriptors import TABLE, Descriptors
from .files import LOCK_EX, LOCK_NB, READ_ONLY
from .ground import is_far, place_of_path
from .presence import HELD, RELEASED, VOID, Sheet, Sight
from .record import SIZE
from .refusals import no_links, refused
from .stake import Stake, made
from .waiting import look_again

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..core.acquire import Ask
    from ..core.deadline import Terms
    from ..core.grant import Holder
    from ..core.ports import Runtime
    from .ground import Place

TRIES = 16  # how often the highest number may turn out not to be it, in one attempt
MOVING = "it changes hands faster than the listing of its folder shows"
OF_PARENT = "it belongs to the parent process, this one was forked from it"


class GenerationLock:
    """The mechanism of one folder of numbered records. Made once per Lock object."""

    kind = "generation"
    exclusive = True

    def __init__(
        self, path: str, runtime: Runtime, *, table: Descriptors = TABLE, exclusive: bool = True,
        label: str = "", record: bool = True, cleanup: bool = False, mode: int | None = None,
        shared: bool = False, terms: Terms | None = None, place: Place | None = None, **_: Any,
    ) -> None:  # fmt: skip
        folder.refuse_options(self.kind, exclusive=exclusive, record=record, cleanup=cleanup)
        self.path, self.runtime, self.table, self.files = path, runtime, table, table.files
        self.label, self.mode, self.shared, self.terms = label, mode, shared, terms
        self.place = place
        self.observer = evidence.Observer()
        self.key: object = None
        self.until: float | None = None  # when the lease of who holds it ends for us
        self.watched = path
        self._last = 0  # the greatest token this object was given

    # ---- one try, plain code

    def attempt(self) -> Grant | Held:
        """One try that does not wait."""
        try:
            if self.place is None:
                self.place = folder.ground_of(self.path, self.kind, self.terms)
            for _ in range(TRIES):
                answer = self._try()
                if answer is not None:
                    return answer
        except OSError as error:
            raise refused(self.path, error) from error
        return Held(MOVING, self.key)

    def _try(self) -> Grant | Held | None:
        """None: what was the highest number is not it any more. Look again."""
        numbers = self._numbers()
        if not numbers:
            return None  # a torn listing: the folder came with a record in it
        before = self.runtime.now()
        fd = self._open(numbers[-1])
        if fd is None:
            return None
        try:
            sight = presence.read(self.files.pread(fd, SIZE, 0))
            answer = self._judge(numbers, sight, fd, before)
        finally:
            self.files.close(fd)
        return self._take(numbers, sight) if answer is True else answer or None

    def _judge(self, numbers: list[int], sight: Sight, fd: int, before: float) -> Held | bool:
        """True: to be gone on from. False: look again."""
        assert self.place is not None
        if sight.ours and sight.state == VOID:
            return False
        number = numbers[-1]
        self.watched = self._name(number)
        released = sight.ours and sight.state == RELEASED
        verdict = evidence.RELEASED if released else self.verdict(sight, fd)
        found = evidence.weigh(
            sight, verdict, evidence.lease_of(sight), self.observer, (number, sight.content),
            before, self.runtime.now() if not released else before,
        )  # fmt: skip
        self.until = found.until
        if not found.free:
            return Held(found.evidence if found.evidence == evidence.NEWER else "", self.key)
        return released or self._is_first(number, sight)

    def verdict(self, sight: Sight, fd: int) -> Any:
        """Whether the writer of a record lives. The explorer puts its oracle here."""
        assert self.place is not None
        return evidence.verdict_of(self.files, sight, fd, self.place)

    def _is_first(self, number: int, sight: Sight) -> bool:
        """L2  Whether a record that is not released is the first of its number.

        One that cannot be read names no predecessor: any that is there will do.
        """
        return self._bears(number - 1, sight.after if sight.ours else None)

    def _take(self, numbers: list[int], sight: Sight) -> Grant | Held | None:
        """L1, L3  Link the next number, see whose it is, see that it never was before."""
        number = numbers[-1]
        stake = self._write_aside(number, sight)
        aside = self._name(f".{stake.sheet.mark}")  # type: ignore[union-attr]
        try:
            won = self._link(stake, aside, number + 1)
            self.files.unlink(aside)
            if won and not self._bears(number, sight.nonce if sight.ours else None):
                stake.let_go, won = _void, False
        except BaseException:
            stake.let_go = _void  # L6  whether it is linked or not: nobody holds it
            stake.close()
            self._forget(aside)
            raise
        if not won:
            stake.close()
            return None
        stake.below, stake.number = numbers, number + 1
        stake.let_go = self._let_go
        if stake.deadline is not None and self.runtime.now() >= stake.deadline:
            stake.close()  # it took us longer than the lease lasts
            return Held("to acquire it took longer than its ttl", self.key)
        sheet = stake.sheet
        assert sheet is not None
        self._last = sheet.number
        return Grant(self.path, sheet.mark, sheet.number, None, stake.stamp_ns, self.key, [stake],
                     stake.deadline)  # fmt: skip

    def _write_aside(self, number: int, sight: Sight) -> Stake:
        """Our record under a name of its own. Nobody can see it half written."""
