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

L2  local/judge.py. An empty folder without our mark, and one with other things in it, is a lock
    of somebody whom we do not know: UNKNOWN, waited for and never taken.
L4  local/token_file.py: in a file beside the folder. L8  see `RecordLock`.
L6  A folder in its place without a handle is taken back by its entry.
"""

from __future__ import annotations

import errno
import os
from functools import partial

from ..core.errors import UnsafeGround, pass_up
from ..core.grant import Grant, Held, is_grant_of
from ..core.owner import DEAD, UNKNOWN
from ..core.value import replace
from . import clean_up, record_folders
from .files import READ_ONLY, READ_WRITE
from .judge import BEING_MOVED, Judgement, LivenessJudge
from .record import CURRENT, LIVE, UNREADABLE, ParsedRecord
from .record_handle import BorrowedRecord
from .record_lock import RecordLock
from .refusals import asked_again, refuse_read_only
from .token_file import draw

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..core.grant import Holder
    from .record_folders import FolderEntry
    from .record_handle import RecordFile


# ------------------------------------------------------------------------------------------------
# A lock that is a folder with one entry: how that is opened, looked at, guarded and removed.
#
# What `directory` stands on. Each removal names an entry, or happens under its guard.


EMPTY = "an empty folder, as mkdir(1) makes one: another program's lock, or left by one"
OTHERS = "a folder with things in it that are not lifehold's: another program's lock, or data"
# What a file server's client makes of a name that is removed while it has the file open. They stay
# behind when that machine fails before it closes it.
REMAINS = (".nfs", ".fuse_hidden")


TRIES = 16  # how often the folder may change under our hands in one attempt
# What rename(2) says when there is something; xfs says EEXIST. ENOENT: our folder was swept.
IN_THE_WAY = frozenset({errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.ENOENT})
MOVING = "it changes hands too fast"


class DirectoryLock(RecordLock):
    """The mechanism of one folder. Made once per Lock object."""

    kind = "directory"
    evidence = LivenessJudge("directory")

    # ---- one try

    def _attempt(self) -> Grant | Held:
        return asked_again(self._turns)

    def _turns(self) -> Grant | Held:
        dead: Judgement | None = None  # whom we follow
        for _ in range(TRIES):
            seen = record_folders.look(self.files, self.path)
            answer: Grant | Held | Judgement | None
            if seen is not None and seen[0]:
                answer = None if self._cleared(seen[0]) else self._contest(seen[0])
            else:
                answer = self._publish(seen is not None, seen is None or seen[1], dead)
            if isinstance(answer, Judgement):
                dead = max(answer, dead, key=_token_of)
            elif answer is not None:
                return answer
        return self._soon(MOVING)

    def _publish(self, over: bool, ours: bool, dead: Judgement | None) -> Grant | Held | None:
        """2. None: look again. `over`: an empty folder, of ours or not."""
        if not ours and self.near:
            return Held(EMPTY, self.key)
        try:
            aside, entry = record_folders.prepare(
                self.table, self.path, self.mode, exactly=self._exactly
            )
        except FileNotFoundError:
            return None
        try:
            self._write(entry, _token_of(dead), mark=entry.name[len(record_folders.FRONT) :])
            entry.exact = self.terms is None and entry.witness
            marked = not entry.exact and record_folders.mark(self.files, aside)
            if not ours and marked:
                return Held(EMPTY, self.key)  # ours would be marked on this ground
            entry.let_go = self._give_back  # L6  from here on it may be in its place
            if self._post(entry, aside, over):
                aside = ""
                return self._enter(entry, dead)
            entry.let_go = None
        except BaseException:
            entry.close()
            raise
        finally:
            if aside:
                entry.close()
                record_folders.discard(self.files, aside, entry.name)
        return None

    def _post(self, entry: FolderEntry, aside: str, over: bool) -> bool:
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

    def _enter(self, entry: FolderEntry, dead: Judgement | None) -> Grant | Held:
        """The lock is ours: the token, and the grant."""
        now, least = entry.stamp_ns // 1000, max(self._last, _token_of(dead))
        drawn = draw(self.files, self.path, least, now, self.mode, self._exactly, not self.near)
        if isinstance(drawn, int) and drawn != entry.sheet.number:
            entry.write(entry.sheet.renumbered(drawn, now), sync=not self.near)
        if dead is not None:  # a crash was seen
            entry.over = dead if dead.marker.stage in LIVE else None
            record_folders.sweep(self.files, self.path, entry.fd)
        answer = self._granted(entry)
        if isinstance(answer, Grant) and not isinstance(drawn, int):
            return replace(answer, token=None, token_reason=drawn)
        return answer

    # ---- whoever stands there

    def _contest(self, names: list[str]) -> Held | Judgement | None:
        """3. The dead holder whose entry is removed. None: look again."""
        name = next(filter(record_folders.is_entry, names), None)
        if name is None:
            return Held(OTHERS, self.key)
        seen = self._opened(name, READ_ONLY)
        if seen is None:
            return None
        try:
            found = self._weigh(f"{self.path}/{name}", BorrowedRecord(self.files, seen.fd))
            if found.state != DEAD:
                return self._held(found, beside=self.path)
            entry = self._opened(name)  # while the other is open: numbers are used again
        finally:
            seen.close()
        if entry is None:
            return None
        try:
            if entry.key != seen.key:
                return None  # somebody who may write there has put another in its place
            removed = self._take_over(entry, found.marker, alone=len(names) == 1)
        finally:
            entry.close()
        if removed is None:
            return self._soon(BEING_MOVED)
        return found if removed else None

    def _take_over(
        self,
        entry: FolderEntry,
        marker: ParsedRecord,
        *,
        alone: bool,
        before: Callable[[], object] = tuple,
    ) -> bool | None:
        """Remove the entry that was judged. False: it is gone. None: somebody is about to.

        `before` is called when all is ready for it.
        """
        exact = marker.state != CURRENT or (
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

    def _give_back(self, ours: RecordFile) -> None:
        assert isinstance(ours, record_folders.FolderEntry)
        if ours.exact:
            guarded = self._guard(ours)
            if guarded and self._leads(ours):
                self._move_away(ours)
            if guarded is not False:
                return  # else somebody breaks it: it is theirs
        self._take_out(ours)
        self._remove_empty()

    def _remove_empty(self) -> None:
        try:
            self.files.rmdir(self.path)
        except OSError as error:
            pass_up(error)
            return  # there is none, or somebody is in it

    def break_(self, reason: str, whom: Holder | None = None) -> Holder | None:
        """Take the lock from whoever holds it, by order. Who it was; None when it was free.

        `whom`: the one that is meant; None when it is another's by now.
        """
        return clean_up.by_order(self, reason, lambda: self._broken(reason, whom))

    def _broken(self, reason: str, whom: Holder | None) -> Holder | bool:
        """True: nobody is to be broken. False: it has changed, or somebody moves it just now."""
        seen = record_folders.look(self.files, self.path)
        if seen is None or (not seen[0] and seen[1]):
            return True
        return self._evict(seen[0], reason, whom)

    def _evict(self, names: list[str], reason: str, whom: Holder | None) -> Holder | bool:
        name = next(filter(record_folders.is_entry, names), None)
        if name is None:
            raise UnsafeGround(
                f"{self.path!r} is {OTHERS if names else EMPTY}: lifehold breaks its own locks "
                "alone. If nobody uses it any more, remove it by hand",
                name=self.path,
            )
        entry = self._opened(name)
        if entry is None:
            return False
        try:
            found = self.judged(f"{self.path}/{name}", BorrowedRecord(self.files, entry.fd))
            holder = found.holder()
            if not is_grant_of(holder, whom):
                return True
            before = partial(clean_up.note, self, holder, reason, self.mode)
            removed = self._take_over(entry, found.marker, alone=len(names) == 1, before=before)
        finally:
            entry.close()
        if not removed:
            return False
        self._remove_empty()
        return holder

    # --------------------------------------------------------------------------------------------
    # What is asked of the folder at `path`.

    @property
    def watched(self) -> tuple[str, Callable[[], bool]]:
        """The path whose change may mean a loss, and whether another machine may change it."""
        return self.at, self.far

    @property
    def at(self) -> str:
        return f"{self.path}/"

    def _opened(self, name: str, *modes: int) -> FolderEntry | None:
        """An entry, to be guarded; one of another user may be read only, and cannot be.

        Who only looks opens it READ_ONLY: the kernel tells all who wait of the closing of what was
        open for writing.
        """
        for flags in modes or (READ_WRITE, READ_ONLY):
            try:
                entry = record_folders.open_entry(self.table, self.path, name, flags)
            except (FileNotFoundError, NotADirectoryError):
                return None
            except OSError as error:
                if error.errno not in (errno.EACCES, errno.EROFS) or flags is READ_ONLY:
                    raise
            else:
                entry.writable = flags is READ_WRITE
                return entry
        raise AssertionError

    def _cleared(self, names: list[str]) -> bool:
        """Whether nothing but remains of removed files was there, which are removed again."""
        if not all(name.startswith(REMAINS) for name in names):
            return False
        for name in names:
            try:
                self.files.unlink(f"{self.path}/{name}")
            except OSError as error:
                pass_up(error)
                return False  # in use: wait
        return True

    def _guard(self, found: RecordFile) -> bool | None:
        """L3  Keep others from moving the folder. None: somebody does. False: not to be had."""
        if not found.writable:
            refuse_read_only(self.files, self.path, f"{self.path}/{found.name}")
            return None
        return super()._guard(found)

    def _move_away(self, entry: FolderEntry, before: Callable[[], object] = tuple) -> bool:
        """L3  Under the guard of its entry, which was seen to be in there: the whole folder."""
        before()
        aside = record_folders.beside(self.path, os.urandom(record_folders.NONCE // 2).hex())
        self.files.rename(self.path, aside)
        record_folders.discard(self.files, aside, entry.name)
        return True

    def _take_out(self, entry: FolderEntry) -> bool:
        """Remove one entry by its name, which no other grant ever has."""
        try:
            self.files.unlink(f"{self.path}/{entry.name}")
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def _ask_anew(self) -> None:
        """Where the path leads, and what is in there: else a client says what it remembers."""
        self.files.anew(self.path[: self.path.rindex("/")] or "/")
        self.files.anew(self.path)

    def _leads(self, entry: FolderEntry) -> bool:
        """Whether the path leads to this entry. A file server is asked anew."""
        where = f"{self.path}/{entry.name}"
        try:
            if self.near:
                found = self.files.lstat(where)
            else:
                self._ask_anew()
                fd = self.files.open(where, READ_ONLY)
                try:
                    found = self.files.fstat(fd)
                finally:
                    self.files.close(fd)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return entry.is_of(found)

    def _look(self) -> Judgement | None:
        seen = record_folders.look(self.files, self.path)
        if seen is None or (not seen[0] and seen[1]):
            return None
        name = next(filter(record_folders.is_entry, seen[0]), None)
        if name is None:
            why = OTHERS if seen[0] else EMPTY
            return Judgement(UNKNOWN, why, ParsedRecord(UNREADABLE, b""), None, self.path)
        entry = self._opened(name, READ_ONLY)
        if entry is None:
            return None
        try:
            return self.judged(f"{self.path}/{name}", BorrowedRecord(self.files, entry.fd))
        finally:
            entry.close()


def _token_of(dead: Judgement | None) -> int:
    """Of whom we follow."""
    return 0 if dead is None else dead.marker.token or 0
