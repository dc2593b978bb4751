"""A lock that is a folder with one entry, which is named by who holds it.

Promise: at most one holder, with a token that grows, on any file system whose rename(2) puts a
folder in the place of nothing or of an empty folder and of nothing else; no flock is needed. A dead
holder is followed as soon as that is proven, else when its lease has run out. Rule: **a removal
names what was judged**: the entry bears the nonce of one grant, so neither a takeover nor a release
can hit who came later, however late it comes.

Acquire   1 Look at the folder. Nothing there, or empty and left by ours: 2. An entry: 3.
          2 Make a folder aside with a record named by a new nonce, and rename it to its place.
          3 Judge the record. Alive, or nobody can tell: wait, and 1. Else remove that entry: 1.
Release   Remove our entry, and the folder if it is empty.

An *exact* entry (no ttl, with a witness) is not removed by itself: for another program an empty
folder is a lock of mkdir(2). The whole folder is renamed away, by who holds the guard of the record
and has looked since that it is in there (L3); and a new one takes the place of nothing only.

L2  local/evidence.py. An empty folder without our mark, and one with other things in it, is a lock
    of somebody whom we do not know: UNKNOWN, waited for and never taken.
L4  local/counter.py: in a file beside the folder. L8  see `Present`.
L6  A folder in its place without a handle is taken back by its entry.
"""

from __future__ import annotations

import errno
from functools import partial

from ..core import events
from ..core.errors import UnsafeGround
from ..core.grant import Grant, Held
from ..core.liveness import DEAD
from ..core.value import replace
from ..runtime import clock
from . import named, residue
from .counter import draw
from .evidence import BEING_MOVED, Evidence, Judged
from .marker import LIVE, OURS
from .one_entry import EMPTY, OTHERS, OneEntry
from .refusals import asked_again, refused
from .seen import Seen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..core.grant import Holder
    from .marker import Marker
    from .named import Entry
    from .stake import Stake

TRIES = 16  # how often the folder may change under our hands in one attempt
# What rename(2) says when there is something; xfs says EEXIST. ENOENT: our folder was swept.
IN_THE_WAY = frozenset({errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.ENOENT})
MOVING = "it changes hands too fast"


class DirectoryLock(OneEntry):
    """The mechanism of one folder. Made once per Lock object."""

    kind = "directory"
    evidence = Evidence("directory")

    # ---- one try

    def _attempt(self) -> Grant | Held:
        return asked_again(self._turns)

    def _turns(self) -> Grant | Held:
        dead: Judged | None = None  # whom we follow
        for _ in range(TRIES):
            seen = named.look(self.files, self.path)
            answer: Grant | Held | Judged | None
            if seen is not None and seen[0]:
                answer = None if self._cleared(seen[0]) else self._contest(seen[0])
            else:
                answer = self._publish(seen is not None, seen is None or seen[1], dead)
            if isinstance(answer, Judged):
                dead = max(answer, dead, key=_token_of)
            elif answer is not None:
                return answer
        return self._soon(MOVING)

    def _publish(self, over: bool, ours: bool, dead: Judged | None) -> Grant | Held | None:
        """2. None: look again. `over`: an empty folder, of ours or not."""
        if not ours and self.near:
            return Held(EMPTY, self.key)
        mode = 0o666 if self.shared else 0o600 if self.mode is None else self.mode
        exactly = self.shared or self.mode is not None
        try:
            aside, entry = named.prepare(self.table, self.path, mode, exactly=exactly)
        except FileNotFoundError:
            return None
        try:
            self._write(entry, _token_of(dead), mark=entry.name[len(named.FRONT) :])
            entry.exact = self.terms is None and entry.witness
            marked = not entry.exact and named.mark(self.files, aside)
            if not ours and marked:
                return Held(EMPTY, self.key)  # ours would be marked on this ground
            entry.let_go = self._give_back  # L6  from here on it may be in its place
            if self._post(entry, aside, over):
                aside = ""
                return self._enter(entry, mode, exactly, dead)
            entry.let_go = None
        except BaseException:
            entry.close()
            raise
        finally:
            if aside:
                entry.close()
                named.discard(self.files, aside, entry.name)
        return None

    def _post(self, entry: Entry, aside: str, over: bool) -> bool:
        """Give the folder its place: one step of the kernel or of the file server (L1)."""
        refusal = None
        try:
            (self.files.rename if over else self.files.rename_new)(aside, self.path)
        except OSError as error:
            if error.errno not in IN_THE_WAY:
                raise
            refusal = error
        if self.near:
            return refusal is None
        return self._leads(entry)  # a file server's reply is not believed, nor is a success

    def _enter(
        self, entry: Entry, mode: int, exactly: bool, dead: Judged | None
    ) -> Grant | Held:  # fmt: skip
        """The lock is ours: the token, and the grant."""
        now, least = entry.stamp_ns // 1000, max(self._last, _token_of(dead))
        drawn = draw(self.files, self.path, least, now, mode, exactly, not self.near)
        if isinstance(drawn, int) and drawn != entry.sheet.number:
            entry.write(entry.sheet.renumbered(drawn, now), sync=not self.near)
        if dead is not None:  # a crash was seen
            entry.over = dead if dead.marker.stage in LIVE else None
            named.sweep(self.files, self.path, entry.fd)
        answer = self._granted(entry)
        if isinstance(answer, Grant) and not isinstance(drawn, int):
            return replace(answer, token=None, token_reason=drawn)
        return answer

    # ---- whoever stands there

    def _contest(self, names: list[str]) -> Held | Judged | None:
        """3. The dead holder whose entry is removed. None: look again."""
        name = next(filter(named.is_entry, names), None)
        if name is None:
            return Held(OTHERS, self.key)
        entry = self._opened(name)
        if entry is None:
            return None
        try:
            found = self._weigh(f"{self.path}/{name}", Seen(self.files, entry.fd))
            if found.state != DEAD:
                return self._held(found, beside=self.path)
            removed = self._remove(entry, found.marker, alone=len(names) == 1)
        finally:
            entry.close()
        if removed is None:
            return self._soon(BEING_MOVED)
        return found if removed else None

    def _remove(
        self, entry: Entry, marker: Marker, *, alone: bool, before: Callable[[], object] = tuple
    ) -> bool | None:
        """Remove the entry that was judged. False: it is gone. None: somebody is about to.

        `before` is called when all is ready for it.
        """
        exact = marker.state != OURS or (
            marker.ttl is None and marker.witness and marker.one_kernel
        )
        if exact and alone and self.near:
            guarded = self._guard(entry)
            if guarded is None:
                return None
            if guarded:
                return self._leads(entry) and self._move_away(entry, before)
        before()
        return self._take_out(entry)

    # ---- the end of a grant

    def _give_back(self, stake: Stake) -> None:
        assert isinstance(stake, named.Entry)
        if stake.exact:
            guarded = self._guard(stake)
            if guarded and self._leads(stake):
                self._move_away(stake)
            if guarded is not False:
                return  # else somebody breaks it: it is theirs
        self._take_out(stake)
        self._remove_empty()

    def _remove_empty(self) -> None:
        try:
            self.files.rmdir(self.path)
        except OSError:
            return  # there is none, or somebody is in it

    def break_(self, reason: str) -> Holder | None:
        """Take the lock from whoever holds it, by order. Who it was; None when it was free."""
        residue.refuse_no_reason(reason)
        try:
            self.ready()
            for _ in range(residue.TRIES):
                seen = named.look(self.files, self.path)
                if seen is None or (not seen[0] and seen[1]):
                    return None
                holder = self._evict(seen[0], reason)
                if holder is not None:
                    events.tell(events.Broken(self.path, holder, reason))
                    return holder
                clock.pause(residue.PAUSE)
        except OSError as error:
            raise refused(self.path, error) from error
        raise residue.not_to_be_kept_away(self.path)

    def _evict(self, names: list[str], reason: str) -> Holder | None:
        """None: it has changed, or somebody moves it at this moment."""
        name = next(filter(named.is_entry, names), None)
        if name is None:
            raise UnsafeGround(
                f"{self.path!r} is {OTHERS if names else EMPTY}: lifehold breaks its own locks "
                "alone. If nobody uses it any more, remove it by hand",
                name=self.path,
            )
        entry = self._opened(name)
        if entry is None:
            return None
        try:
            found = self.judged(f"{self.path}/{name}", Seen(self.files, entry.fd))
            holder = found.holder()
            mode = 0o666 if self.shared else 0o600 if self.mode is None else self.mode
            before = partial(residue.note, self, holder, reason, mode)
            removed = self._remove(entry, found.marker, alone=len(names) == 1, before=before)
        finally:
            entry.close()
        if not removed:
            return None
        self._remove_empty()
        return holder


def _token_of(dead: Judged | None) -> int:
    """Of whom we follow."""
    return 0 if dead is None else dead.marker.token or 0
