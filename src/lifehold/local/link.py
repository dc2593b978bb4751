"""A lock file as liblockfile and dotlockfile(1) make it: link(2) of a file of one's own.

Promise: among lifehold's own holders exclusion as strict as the ground allows, beside the original
as strict as its own rules allow: ours never removes or overwrites a live lock, of ours or theirs.
Rule: a stale file is *adopted in place*, never unlinked or renamed. The original decides by what it
read and then unlinks by name, whoever is there by then; who touches no name can rob nobody. After
that we wait as long as such a breaker may be under way (`SETTLE`), and look whether the path still
leads to our file. `strict=True` does so at every acquisition.

L1  link(2) lets one win. Its reply is not believed: an open, asked anew, shows whose it is.
L2  A dead holder is one that local/judge.py calls so. Of a file of the original the age is
    measured on our own clock: 300 s unchanged.
L3  Adopting and removing a file happen under the guard (record_handle.py) of that very inode.
flock(2) on it is the holder's witness, which a paused one keeps while its lease runs out.
L4  On a disk of one kernel the token is the clock; elsewhere token_file.py carries it over.
L5  Removed is only a file that the path leads to and that bears our nonce, under that flock.
L8  The original takes over what was not touched for 300 s, so we touch, and stop before that.
"""

from __future__ import annotations

import errno
import os

from ..core.deadline import Terms
from ..core.errors import InvalidArgument, UnsafeGround, pass_up
from ..core.fence import next_token
from ..core.grant import Lost
from ..core.owner import DEAD, INITIAL_PID_NAMESPACE
from ..runtime import fork
from ..runtime.process import here, user_id
from .files import GUARD_APART, LOCK_UN, READ_ONLY
from .judge import BEING_MOVED, SEEN, LivenessJudge
from .record import READ_SIZE, UNREADABLE, read
from .record_handle import BorrowedRecord, RecordFile, created, look
from .record_lock import TOO_LATE, RecordLock
from .refusals import (
    ENOTSUPP,
    another_users,
    make_folders,
    no_links,
    no_locks,
    refuse_read_only,
)
from .token_file import counter_of, draw

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..core.grant import Grant, Held
    from ..core.owner import Owner
    from .judge import Judgement


# ------------------------------------------------------------------------------------------------
# A lock that is one file: how it is opened, looked at and recognised. What `link` stands on.


AGE = 300.0  # seconds after which liblockfile takes an untouched file for stale
TOUCH = Terms(ttl=AGE, heartbeat=60.0, margin=30.0)  # of a holder that was given no ttl
SETTLE = 0.05  # seconds in which a foreign breaker must come from its look to its unlink
LONGEST_NAME = 31  # bytes of the original's temporary names
COARSE_NS, TICK = 1_000_000_000, 0.02  # of times; seconds until the kernel's stamp moves on
LEAST_COARSE = 6.0  # seconds of ttl: 3 of the coarsest, which have 2 s
TRIES = 16
MOVING = "it changes hands too fast"
TAKEN = "somebody else's record is in its file: others may be in"


class LinkLock(RecordLock):
    """The mechanism of one lock file of liblockfile's kind. Made once per Lock object."""

    kind, in_folder = "link", False
    evidence = LivenessJudge("link", SEEN, AGE, AGE)
    noun = home = "lock file"

    def __init__(self, *arguments: Any, strict: bool = False, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._strict, self._timed = strict, self.terms is not None
        self._owner: tuple[tuple[int, int | None], Owner] | None = None
        self._fine = self._given  # whether two beats are seen to differ here
        if self.terms is None:
            self.terms = TOUCH
        elif self.terms.ttl > AGE:
            raise InvalidArgument(
                f"kind 'link' takes no ttl over {AGE:g} s: liblockfile takes over what was not "
                f"touched for so long. Not {self.terms.ttl:g}"
            )

    # ---- one try

    def _attempt(self) -> Grant | Held:
        stale = None
        for _ in range(TRIES):
            try:
                try:
                    ours = self._open(write=False)
                except OSError as error:  # over NFS what was there is removed: link(2) asks anew
                    if error.errno != errno.ESTALE:
                        raise
                    ours = None
                answer = None if ours is None else self._contest(ours)
            except OSError as error:  # the same of an open file
                if error.errno != errno.ESTALE:
                    raise
                stale = error
                continue
            stale = None
            if ours is None:
                answer = self._publish()
            if isinstance(answer, RecordFile):
                return self._granted(answer)
            if answer is not None:
                return answer
        if stale is not None:
            raise stale
        return self._soon(MOVING)

    def _publish(self) -> RecordFile | None:
        """The steps of lockfile_create(3). None: somebody was faster, or robbed us at once."""
        aside, ours = self._write_aside()
        try:
            self._refuse_coarse(ours)
            self._write(ours, 0, line=self._line())
            ours.let_go = self._give_back  # L6  from here on it may be at the path
            won = self._link(aside, ours)
            self._forget(aside)
        except BaseException:
            self._forget(aside)
            ours.close()
            raise
        try:
            if won:
                if (not self._strict or self._settled(ours)) and self._number_anew(ours):
                    return ours
            else:
                ours.let_go = None
        except BaseException:
            ours.close()
            raise
        ours.close()
        return None

    def _number_anew(self, ours: RecordFile) -> bool:
        """L4  Others may have come and gone between the choice of a token and the link.

        False: our lease had run out before we came to it, and somebody took the file over.
        """
        guarded: bool | None = False
        if self._timed or not ours.witness:  # else nobody takes it for dead
            guarded = self._guard(ours)
            if guarded is None or not self._bears(ours):
                return False
        if self._is_counted():
            self._draw(ours)
        else:
            ours.stamp_ns = now = self.files.clock_ns()
            token = next_token(ours.sheet.number, self._last, now // 1000)
            ours.write(ours.sheet.renumbered(token, now // 1000), sync=not self.near)
        if guarded:
            self._unguard(ours)
        return True

    def _is_counted(self) -> bool:
        """L4  Whether a counter beside the file carries the token over, which goes with its holder.

        Where one kernel alone mounts the disk its clock chose all before; elsewhere the clocks of
        several machines do. A counter that is there is heeded everywhere.
        """
        if not self.near:
            return True
        try:
            return bool(self.files.there(counter_of(self.path)))
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:
                raise
            return False

    def _draw(self, ours: RecordFile) -> None:
        """L4  The next token by that counter, into our record. Nobody else is in."""
        ours.stamp_ns = now = self.files.clock_ns()
        drawn = draw(
            self.files,
            self.path,
            max(ours.sheet.number, self._last),
            now // 1000,
            self.mode,
            self._exactly,
            not self.near,
        )
        if isinstance(drawn, int):
            ours.write(ours.sheet.renumbered(drawn, now // 1000), sync=not self.near)
        else:
            ours.untold = drawn

    def _write_aside(self) -> tuple[str, RecordFile]:
        """A unique file under the original's kind of name: .lk, process, second, host."""
        folder, us = self.path[: self.path.rindex("/")], self._us()
        front = f".lk{us.pid:05d}{self.files.clock_ns() // 1_000_000_000 & 15:x}"
        for own in (False, True):
            end = os.urandom(8).hex() if own else (us.host or "").partition(".")[0]
            aside = f"{folder}/{(front + end)[:LONGEST_NAME]}"
            try:
                return aside, self._made(aside)
            except FileExistsError:  # of another thread, or of a container with our host name
                continue
            except FileNotFoundError:
                make_folders(self.files, self.path)
                return aside, self._made(aside)
        raise OSError(errno.EEXIST, "no name for a temporary file is free", self.path)

    def _made(self, aside: str) -> RecordFile:
        mode = self.mode if self._exactly else 0o644  # as the original: its users must read it
        return created(self.table, aside, mode, self._exactly)

    def _refuse_coarse(self, ours: RecordFile) -> None:
        """L1  A beat is a touch: where times have whole seconds, two of one second look alike.

        `ours`: a file that nobody else looks at. Raises UnsafeGround where the ttl is too short.
        """
        assert self.terms is not None
        if self._fine or not self._timed:
            return
        for again in (True, False):
            if self.files.fstat(ours.fd).st_mtime_ns % COARSE_NS:
                break
            if again:  # it may have been made at a full second
                self.files.pause(TICK)
                self.files.utime(ours.fd)
        else:
            if self.terms.ttl < LEAST_COARSE:
                raise UnsafeGround(
                    f"{self.path!r} lies on {self.place.words}, whose files carry times of whole "
                    f"seconds: the renewals of ttl={self.terms.ttl:g} could not be told apart, and "
                    f"a live holder would be taken for dead. Give ttl={LEAST_COARSE:g} or more, or "
                    "use kind='soft', which writes its renewals",
                    name=self.path,
                )
        self._fine = True

    def _line(self) -> bytes:
        """Our process number where every peer may look it up; else 0, by which only age counts."""
        us = self._us()
        plain = self.near and us.pid_ns == INITIAL_PID_NAMESPACE
        return b"%d\n" % (us.pid if plain and not self._timed else 0)

    def _us(self) -> Owner:
        """Who we are; read once for a process and its user."""
        key, known = (fork.generation, user_id()), self._owner
        if known is None or known[0] != key:
            known = self._owner = key, here()
        return known[1]

    def _link(self, aside: str, ours: RecordFile) -> bool:
        refusal, one_kernel = None, self.near
        try:
            self.files.link(aside, self.path)
            if one_kernel:
                return True
        except OSError as error:
            pass_up(error)
            refusal = error
        # A file server's reply is not believed, nor is a success.
        found = None if one_kernel else self._leads(ours)
        if found is None and refusal is not None:
            if refusal.errno in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, ENOTSUPP):
                raise no_links(self.path, self.kind) from refusal
            if refusal.errno not in (errno.EEXIST, errno.ENOENT):
                raise refusal
        if not found and self.files.fstat(ours.fd).st_nlink > 1 and refusal is None:
            raise no_links(self.path, self.kind)  # two names, yet another file: numbers lie here
        return bool(found)

    def _bear_witness(self, ours: RecordFile) -> bool:
        """L2  With a ttl too, so that no boot id and no process number is needed for a proof."""
        if self._timed and not GUARD_APART:
            return False  # a paused holder's would keep out who comes by the lease
        try:
            return super()._bear_witness(ours)
        except FileNotFoundError:
            return False  # adopted from one who is paused, and has it still

    def _ttl(self) -> float | None:
        """As the record tells it. Among ours a witness needs none, whatever the original does."""
        assert self.terms is not None
        return self.terms.ttl if self._timed or not self.near else None

    # ---- the file that is there already

    def _contest(self, seen: RecordFile) -> RecordFile | Held | None:
        """None: the path leads elsewhere by now. Look again."""
        over, answer = None, None
        try:
            found = self._weigh(self.path, BorrowedRecord(self.files, seen.fd, by_touch=True))
            if found.state != DEAD:
                return self._held(found)
            over = self._open(write=True)  # while the other is open: numbers are used again
            if over is not None and over.key == seen.key:
                answer = self._take_over(over, found)
            return answer
        finally:
            seen.close()
            if over is not None and answer is not over:
                over.close()

    def _take_over(self, ours: RecordFile, found: Judgement) -> RecordFile | Held | None:
        if not ours.writable:
            refuse_read_only(self.files, self.path, self.path)
            raise another_users(self.path)
        guarded = self._guard(ours)
        if guarded is None:
            return self._soon(BEING_MOVED)
        if not guarded:
            raise no_locks(self.path, self.kind)
        again = BorrowedRecord(self.files, ours.fd, by_touch=True)
        content = again.read()  # L3  with other breakers kept out
        touched = again.touched()
        if (content, touched) != (found.marker.content, found.touched) or not self._leads(ours):
            return None
        if self.near and not self._timed and self._lock(ours) is None:
            return self._soon(BEING_MOVED)  # a judge tries it at this moment, or who opened it
        if not self._adopt(ours, found):
            return None
        ours.over = found
        return ours

    def _adopt(self, ours: RecordFile, found: Judgement) -> bool:
        """L3  Under its flock: write our record into the file. No name is touched."""
        if self._timed and not self._fine:
            aside, probe = self._write_aside()
            try:
                self._refuse_coarse(probe)
            finally:
                self._forget(aside)
                probe.close()
        self._write(ours, found.marker.token or 0, line=self._line())
        ours.let_go = self._give_back  # from here on it says that we hold it
        if len(found.marker.content) > len(ours.sheet.text):
            self.files.truncate(ours.fd, len(ours.sheet.text))
        if not self._settled(ours):
            return False
        if self._is_counted():
            self._draw(ours)
        self._unguard(ours)
        return True

    def _settled(self, ours: RecordFile) -> bool:
        """Whether it is ours still, after every breaker of before has gone on."""
        self.files.pause(SETTLE)
        return self._leads(ours) is True

    # ---- the life and the end of a grant

    def _gone(self, ours: RecordFile) -> Lost | None:
        """L5  Who takes it over writes into the same file: the inode alone proves nothing."""
        gone = super()._gone(ours)
        if gone is not None:
            return gone
        try:
            if not self.near:
                self.files.anew(self.path)
            bears = self._bears(ours)
        except OSError as error:
            pass_up(error)
            return Lost(f"its lock file cannot be read any more ({error.strerror})", gone=True)
        return None if bears else Lost(TAKEN, gone=True)

    def _beat(self, ours: RecordFile) -> None:
        """A touch: it moves no byte, so one that comes too late cannot hurt a successor."""
        self.files.utime(ours.fd)

    def _give_back(self, ours: RecordFile) -> bool:
        """Whether it was ours."""
        if self._guard(ours) is None:
            return False  # somebody takes it over, or breaks it by order: it is theirs
        # Nobody writes over the record of one who has no ttl and lives: see `_contest`.
        sure = ours.witness and not self._timed
        if not (sure or self._bears(ours) or self._damaged(ours)) or not self._leads(ours):
            return False
        try:
            self.files.unlink(self.path)
        except FileNotFoundError:
            pass  # over NFS also when it was done
        return True

    def _damaged(self, ours: RecordFile) -> bool:
        """L8  Nobody's record is in it, and our lease runs: so nobody has taken it over."""
        content = self.files.pread(ours.fd, READ_SIZE, 0)
        return not self._late(ours) and read(content).state == UNREADABLE

    def _ended(self, ours: RecordFile) -> Lost | None:
        late = self._late(ours)
        if not self._give_back(ours):
            return self._why_lost(ours) or Lost(TAKEN, gone=True)
        return Lost(TOO_LATE, gone=True) if late else None

    # --------------------------------------------------------------------------------------------
    # What is asked of the file at `path`.

    def _where(self, ours: RecordFile) -> str:
        return self.path

    def _open(self, *, write: bool) -> RecordFile | None:
        """The file that is there, to be judged; None for none. Raises for what is no lock file.

        `write`: to be taken over. Who only looks does not: the kernel tells all who wait of the
        closing of what was open for writing, the one who looked among them.
        """
        return look(self.table, self.path, write=write, lock=self.kind)

    def _bears(self, ours: RecordFile) -> bool:
        """Whether it is our own record that stands in the file."""
        content = self.files.pread(ours.fd, READ_SIZE, 0)
        if content == ours.sheet.text:
            return True
        # By its mark: the token is another where an error came between its choice and the write.
        return bool((read(content).nonce or "").partition("-")[0] == ours.sheet.mark)

    def _leads(self, ours: RecordFile) -> bool | None:
        """Whether the path leads to this very file; None when to nothing.

        A file server is asked anew for the names in the folder, and for the file by an open.
        """
        if self.near:
            try:
                found = self.files.lstat(self.path)
            except FileNotFoundError:
                return None
            return ours.is_of(found)
        try:
            self._ask_anew()
            fd = self.files.open(self.path, READ_ONLY)
        except FileNotFoundError:
            return None
        except OSError as error:
            pass_up(error)
            return False  # a symbolic link, somebody's private file: not ours
        try:
            found = self.files.fstat(fd)
        finally:
            self.files.close(fd)
        return ours.is_of(found)

    def _forget(self, aside: str) -> None:
        try:
            self.files.unlink(aside)
        except FileNotFoundError:
            pass

    def _unguard(self, ours: RecordFile) -> None:
        self.files.guard(ours.fd, False)
        if not GUARD_APART and not ours.witness:
            self.files.flock(ours.fd, LOCK_UN)

    def _look(self) -> Judgement | None:
        try:
            fd = self.files.open(self.path, READ_ONLY)
        except FileNotFoundError:
            return None
        try:
            return self.judged(self.path, BorrowedRecord(self.files, fd, by_touch=True))
        finally:
            self.files.close(fd)

    def _lock(self, ours: RecordFile) -> bool | None:
        """True: it is ours. None: somebody else has it. False: no locks here."""
        try:
            return ours.bear_witness()
        except FileNotFoundError:
            return None
