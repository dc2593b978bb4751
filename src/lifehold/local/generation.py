"""A lock of numbered records: the highest number is the truth, and nobody ever takes it away.

Promise: at most one holder, with a token that grows, on any shared folder whose link(2) refuses a
name that exists; no flock is needed. A dead holder is followed as soon as that is proven, else
when its lease has run out. Rule: to acquire is to link the next number, and a number is deleted
only after all below it, so *"the record that I went on from is still there"* proves that the next
number never existed before. That is a positive question, which a file server is asked anew
(files.py): listings, stat(2) and even open(2) may come from its client's memory.

L1  Of all who go on from record n, link(2) lets one have n + 1. Its reply is not believed: an open
    of n + 1, asked anew, shows whose it is.
L2  A record is gone on from when local/judge.py says so *and* it is the first of its number. A
    released one is: only who passed the check writes that. Of a silent or burnt one the predecessor
    must still be there, since who comes late may make a deleted number anew, and die.
L3  The takeover is that same link(2).
L4  The token is max(predecessor's + 1, its own number, clock, own last + 1).
L5  Release writes through its own descriptor, and touches no names but those below its own.
"""

from __future__ import annotations

import errno
import os
from stat import S_ISDIR

from ..core.errors import pass_up
from ..core.grant import Held, Lost, is_grant_of
from ..core.owner import DEAD
from . import clean_up, record_folders
from .files import READ_ONLY
from .handles import key_of
from .judge import LivenessJudge
from .record import CURRENT, READ_SIZE, RELEASED, VOID, given_back, read
from .record_folders import begin_numbered, listed, name_of, refuse_empty, sweep_numbered
from .record_handle import BorrowedRecord, RecordFile, created
from .record_lock import RecordLock
from .refusals import no_links, not_lockable, two_numbers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..core.grant import Grant, Holder
    from .judge import Judgement
    from .record import ParsedRecord


# ------------------------------------------------------------------------------------------------
# A lock that is a folder of numbered records: how these are named, opened, looked at.
#
# What `generation` stands on. A file server is asked anew for the names in the folder (files.py),
# and for the file by a fresh open(2); a disk of our own kernel by lstat(2).


LISTED_EACH = 64  # numbers: the folder is listed anew at each so many, and swept of what is left
TRIES = 16  # how often the highest number may turn out not to be it, in one attempt
MOVING = "it changes hands faster than the listing of its folder shows"


class GenerationLock(RecordLock):
    """The mechanism of one folder of numbered records. Made once per Lock object."""

    kind = "generation"
    keeps = "what it leaves behind is what keeps its tokens growing"
    evidence = LivenessJudge("generation")
    _top = 0  # the last number that was ours, until the next try

    def _attempt(self) -> Grant | Held:
        # Asked of once: a waiter that went on from a number which is passed would write a record
        # at each look, and be woken by it.
        top, self._top = self._top, 0
        if top and top % LISTED_EACH:
            answer = self._try(top, listed_now=False)
            if isinstance(answer, RecordFile):
                return self._entered(answer, (top,))
        for _ in range(TRIES):
            numbers, aside = self._listed()
            if numbers:  # else a torn listing: the folder came with a record in it
                answer = self._try(numbers[-1])
                if isinstance(answer, Held):
                    return answer
                if answer is not None:
                    if aside:
                        sweep_numbered(self.files, self.path, aside, answer.fd)
                    return self._entered(answer, tuple(numbers))
        if numbers:
            return self._soon(MOVING)
        mode = self.files.lstat(self.path).st_mode
        raise refuse_empty(self.path) if S_ISDIR(mode) else not_lockable(self.path, mode, self.kind)

    def _entered(self, ours: RecordFile, below: tuple[int, ...]) -> Grant | Held:
        ours.below, self._top = below, ours.number
        return self._granted(ours)

    def _listed(self) -> tuple[list[int], list[str]]:
        """The numbers, in order, and the temporary names. Begins the folder when there is none.

        And when it was emptied: the rename that begins one puts it in the place of an empty folder
        and of nothing else, so a torn listing does no harm. Only one that we have marked: another
        may be somebody's lock of mkdir(2).
        """
        found = listed(self.files, self.path)
        if found is None or (not found[0] and self._emptied(found[1])):
            begin_numbered(
                self.files,
                self.path,
                self.place,
                self.mode,
                os.urandom(8).hex(),
                record_folders.mark,
            )
            found = listed(self.files, self.path) or ([], [])
        return found

    def _emptied(self, aside: list[str]) -> bool:
        """Whether this is our folder, without what crashes have left in it."""
        if not self.files.lstat(self.path).st_mode & record_folders.MARK:
            return False
        for name in aside:
            self._forget(f"{self.path}/{name}")
        return True

    def _try(self, number: int, *, listed_now: bool = True) -> RecordFile | Held | None:
        """None: what was the highest number is not it any more. Look again.

        Not `listed_now`: it was the highest when we looked last, which may be long ago. So may be
        any listing by the time that it is acted on; but it is not said of it that it is held.
        """
        fd = self._open(number)
        if fd is None:
            return None
        try:
            answer = self._contest(number, fd, listed_now)
        except OSError as error:  # over NFS an open file that was removed is gone
            if error.errno not in (errno.ESTALE, errno.ENOENT):
                raise
            answer = None
        finally:
            self.files.close(fd)
        return answer

    def _contest(self, number: int, fd: int, listed_now: bool) -> RecordFile | Held | None:
        """Judge the record of that number, and go on from it. None: look again."""
        if not listed_now:
            free = given_back(self.files.pread(fd, READ_SIZE, 0), self.kind)
            return None if free is None else self._publish(number, *free, self._key_of(fd))
        found = self._weigh(self._name(number), seen := BorrowedRecord(self.files, fd))
        if found.state != DEAD:
            return self._held(found)
        if found.marker.stage != RELEASED and not self._is_first(number, found.marker):
            return None
        ours = self._publish(number, found.marker.token, found.marker.nonce, seen.key)
        if ours is not None and found.marker.stage not in (RELEASED, VOID):
            ours.over = found
        return ours

    def _is_first(self, number: int, marker: ParsedRecord) -> bool:
        """L2  Whether a record that is not released is the first of its number.

        On a disk of our own kernel a power failure may have kept its writer's release from the
        disk and not the removal of its predecessor: there a fresh listing is the truth.
        """
        if marker.state != CURRENT and not self.place.one_kernel:
            return True  # it has been the highest for all the time that we gave it
        fd = self._open(number - 1)
        if fd is not None:
            try:
                other = read(self.files.pread(fd, READ_SIZE, 0))
            finally:
                self.files.close(fd)
            if other.nonce == marker.after:
                return True
        return self.near and self._listed()[0][-1:] == [number]

    def _publish(
        self, number: int, token: int | None, nonce: str | None, before: str
    ) -> RecordFile | None:
        """L1, L3  Link the next number, see whose it is, see that it never was before."""
        mark = os.urandom(8).hex()
        aside = f"{self.path}/.lifehold-{mark}"
        ours = created(self.table, aside, self.mode, self._exactly)
        ours.let_go = self._void  # L6  linked or not: nobody holds it
        try:
            if os.name == "posix" and os.geteuid() == 0:
                self._leave_to_owner(ours, number)
            self._write(ours, max(number, token or 0), after=nonce or "", mark=mark)
            won = self._link(ours, aside, number)
            self._forget(aside)
            won = won and self._leads(number, before) is True
        except BaseException:
            self._forget(aside)
            ours.close()
            raise
        if won:
            ours.number = number + 1
            return ours
        ours.close()
        return None

    def _leave_to_owner(self, ours: RecordFile, number: int) -> None:
        """L13  What root adds to the folder of another is as the record before it.

        Else that user could not read the highest number any more, and were refused for ever.
        """
        try:
            before, folder = self.files.lstat(self._name(number)), self.files.lstat(self.path)
        except FileNotFoundError:
            return
        owner = getattr(before, "st_uid", 0)
        if owner != 0 and owner == folder.st_uid:
            os.fchown(ours.fd, owner, before.st_gid)
            self.files.fchmod(ours.fd, before.st_mode & 0o666)

    def _link(self, ours: RecordFile, aside: str, number: int) -> bool:
        refusal, one_kernel = None, self.near
        try:
            self.files.link(aside, self._name(number + 1))
            if one_kernel:
                return True
        except OSError as error:
            pass_up(error)
            refusal = error
        # A file server's reply is not believed, nor is a success.
        found = None if one_kernel else self._leads(number + 1, ours.key)
        if found is None and refusal is not None:
            if refusal.errno in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
                raise no_links(self.path, self.kind) from refusal
            if refusal.errno not in (errno.EEXIST, errno.ENOENT):
                raise refusal
        if not found and refusal is None and self.files.fstat(ours.fd).st_nlink > 1:
            raise two_numbers(self.path, self.kind)
        return found is True

    def break_(self, reason: str, whom: Holder | None = None) -> Holder | None:
        """Take the lock from whoever holds it, by order. Who it was; None when it was free.

        Who is broken finds the next number, which is released at once. `whom`: the one that is
        meant; None when it is another's by now.
        """
        return clean_up.by_order(self, reason, lambda: self._broken(reason, whom))

    def _broken(self, reason: str, whom: Holder | None) -> Holder | bool:
        numbers, _ = listed(self.files, self.path) or ([], [])
        fd = self._open(numbers[-1]) if numbers else None
        if fd is None:
            return not numbers
        try:
            name = self._name(numbers[-1])
            case = self.judged(name, BorrowedRecord(self.files, fd))
            if case.marker.stage == RELEASED:
                return True
            if case.state == DEAD and not self._is_first(numbers[-1], case.marker):
                return False
            if not is_grant_of(case.holder(), whom):
                return True
            clean_up.note(self, case.holder(), reason, self.mode)
            marker = case.marker
            ours = self._publish(numbers[-1], marker.token, marker.nonce, self._key_of(fd))
        finally:
            self.files.close(fd)
        if ours is None:
            return False
        ours.let_go = self._give_back
        ours.close()
        return case.holder()

    # ---- the end of a grant

    def _void(self, ours: RecordFile) -> None:
        """Give a number up that was not ours to take. It is never unlinked: it is burnt."""
        if ours.sheet is not None:
            ours.write(ours.sheet.now(VOID), sync=not self.near)

    def _give_back(self, ours: RecordFile) -> None:
        # The whole record: whatever became of it meanwhile, the next one can read that it is over.
        ours.write(ours.sheet.now(RELEASED), sync=not self.near)
        for number in ours.below:  # in order, and only while each is surely gone
            try:
                self.files.unlink(self._name(number))
            except FileNotFoundError:
                continue
            except OSError as error:
                pass_up(error)
                return  # not ours to remove: whoever comes next and may will do it

    # --------------------------------------------------------------------------------------------
    # What is asked of the folder at `path`.

    @property
    def at(self) -> str:
        return f"{self.path}/"

    def _gone(self, ours: RecordFile) -> Lost | None:
        """Two looks: at the next number, which only a successor makes, and at our own."""
        try:
            if not self.near:
                self.files.anew(self.path)
            self.files.lstat(self._name(ours.number + 1))
            return Lost("it was taken over: others may be in", gone=True)
        except FileNotFoundError:
            pass
        except OSError as error:
            pass_up(error)
            return Lost(f"its folder cannot be looked at any more ({error.strerror})", gone=True)
        try:
            found = self.files.lstat(self._name(ours.number))
        except OSError as error:
            pass_up(error)
            return Lost("its record was removed: others may be in", gone=True)
        if not ours.is_of(found):
            return Lost("its record was replaced by another: others may be in", gone=True)
        return None

    def _name(self, number: int) -> str:
        return f"{self.path}/{name_of(number)}"

    def _open(self, number: int) -> int | None:
        """A descriptor of its own for each look, which asks the server what is in the file."""
        try:
            fd: int = self.files.open(self._name(number), READ_ONLY)
        except FileNotFoundError:
            return None
        return fd

    def _key_of(self, fd: int) -> str:
        return key_of(self.files.fstat(fd))

    def _leads(self, number: int, key: str) -> bool | None:
        """Whether a number leads to this very file; None when there is no such number.

        A file server is asked anew: its client opens what it remembers.
        """
        if self.near:
            try:
                found = self.files.lstat(self._name(number))
            except FileNotFoundError:
                return None
            return key_of(found) == key
        self.files.anew(self.path)
        fd = self._open(number)
        if fd is None:
            return None
        try:
            same = self._key_of(fd) == key
        finally:
            self.files.close(fd)
        return same

    def _forget(self, aside: str) -> None:
        try:
            self.files.unlink(aside)
        except FileNotFoundError:
            pass

    def _look(self) -> Judgement | None:
        numbers, _ = listed(self.files, self.path) or ([], [])
        fd = self._open(numbers[-1]) if numbers else None
        if fd is None:
            return None
        try:
            case = self.judged(self._name(numbers[-1]), BorrowedRecord(self.files, fd))
            return None if case.marker.stage in (RELEASED, VOID) else case
        finally:
            self.files.close(fd)
