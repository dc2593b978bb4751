"""`run -o`, and any lease: CMD does not inherit the lock, so another must hold it while CMD lives.

   > wrapper  acquires, waits, releases
   >     supervisor  holds duplicates of the descriptors; in a process group of its own
   >     CMD  leads another

kill -9 of the wrapper, or of its whole group: the supervisor stops CMD's group, reaps it, and
only then lets go. kill -9 of the supervisor: the kernel kills CMD, and the wrapper, its
subreaper, stops what is left of the group and waits for its end.

Rule 1. The at-fork hook closes every lock descriptor of ours in a forked child (L9). The
supervisor gets ones that the hook does not know: dup(2) makes a second number for the *same* open
file description, so it holds the same lock. It is close-on-exec: CMD has it until exec, no
longer. Rule 2. The supervisor learns of the wrapper's death from a pipe whose other end only the
wrapper has: the end of file cannot be missed, forged or reused. PDEATHSIG only makes it look at
once, also when it is stopped. Rule 3. CMD dies with the supervisor by PDEATHSIG, asked for before
exec; who was orphaned before that sees another parent, and does not exec. CMD's pid is in the
wrapper's hands before exec. Rule 4. The wrapper alone renews leases, so the supervisor is told
when the first of them ends, in memory that both share. Where that instant has passed, the wrapper
is stopped and CMD is not, the supervisor stops CMD. A wrapper that runs is left to see to it by
itself, but not when it hangs: half of the margin after the end it would have sent KILL.

Not covered: wrapper and supervisor stopped or killed in the same instant. Killed, they free the
lock some microseconds before the kernel kills CMD, and only CMD, not what it started; a
set-user-id CMD is not killed by the kernel. PDEATHSIG, subreaper and rule 4 are Linux's;
elsewhere rule 2 stands alone.
"""

from __future__ import annotations

import mmap
import os

from ..core.grant import STOPPED, TRACED
from ..runtime import clock, process
from . import exits, render
from .child import (
    CannotStart,
    ChildCare,
    attend,
    become,
    become_subreaper,
    is_proc_ours,
    lead,
    make_leader,
    members,
    prctl,
    refuse,
    unstartable,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Sequence
else:
    import _signal as signal  # without `enum`, which costs 4 ms

PR_SET_PDEATHSIG = 1
GONE, BY_SIGNAL = 1.0, 2.0
AGAIN = 0.1  # seconds between two looks at a wrapper whose leases are over
OVERDUE = 1.5  # of the time until its KILL: a wrapper that has not sent it by then hangs


def too_late(what: str) -> CannotStart:
    """The lease was over before CMD could begin."""
    return CannotStart(f"the lease was over before {what} began: it is not run", exits.LOST)


class LeaseEnd:
    """When the first lease ends, in memory that wrapper and supervisor share.

    And what the supervisor tells of its work. Each number is written whole.
    """

    def __init__(self, left: float) -> None:
        self._page = memoryview(mmap.mmap(-1, 24)).cast("d")
        self._page[0] = clock.now() + left

    def tell(self, left: float) -> None:
        """By the wrapper: so many seconds are left. Of one that is over the end stays."""
        at = clock.now() + left
        self._page[0] = at if left > 0 else min(self._page[0], at)

    @property
    def at(self) -> float:
        """The instant of our clock."""
        return self._page[0]

    def left(self) -> float:
        """Seconds until then."""
        return self.at - clock.now()

    @property
    def overdue(self) -> bool:
        """Whether the supervisor has stopped CMD for it."""
        return bool(self._page[1])

    @overdue.setter
    def overdue(self, yes: bool) -> None:
        self._page[1] = yes

    def tell_gone(self, by_signal: bool) -> None:
        """By the supervisor: nothing of CMD's group runs any more."""
        self._page[2] = BY_SIGNAL if by_signal else GONE

    @property
    def gone(self) -> bool:
        """Whether it has told so."""
        return bool(self._page[2])

    @property
    def by_signal(self) -> bool:
        """Whether a signal has ended CMD."""
        return self._page[2] == BY_SIGNAL


def _end_of_lease(care: ChildCare) -> LeaseEnd:
    """Known before CMD is, as the wrapper may be stopped then. Raises CannotStart if it came."""
    ends = LeaseEnd(care.look_in())
    if ends.left() <= 0:
        care.overdue = True
        raise too_late(care.what)
    return ends


def run_supervised(
    command: list[str],
    environment: dict[str, str],
    held: Sequence[int],
    care: ChildCare,
    grace: float,
    late: float,
) -> int:
    """Run CMD under a supervisor that holds the locks of descriptors `held`; CMD's exit code.

    KILL comes `grace` seconds after TERM when the wrapper is gone, who alone renews leases, and
    `late` seconds after the end of a lease at the latest. Raises CannotStart.
    """
    become_subreaper()
    me, look_in = os.getpid(), care.look_in
    try:
        ends = _end_of_lease(care)
        life, _alive = os.pipe()  # _alive stays open for as long as the wrapper lives
        news, tell = os.pipe()
        copies = [os.dup(number) for number in held]
        supervisor = os.fork()
    except OSError as error:
        raise unstartable(command, error) from None
    if supervisor == 0:
        code = exits.BUG
        try:
            os.close(_alive)
            code = Supervisor(care, ends, grace, late, life, me).run(command, environment, tell)
        except OSError as error:  # no process for CMD, most likely
            render.say(f"cannot run {care.what}: {error.strerror}")
            code = exits.REFUSED
        finally:
            os._exit(code)
    for number in (*copies, life, tell):
        os.close(number)

    def look_and_tell() -> float:
        left = look_in()
        ends.tell(left)
        return left / 2  # so that the supervisor is told of a renewal before the instant it knows

    care.look_in = look_and_tell
    code = attend(supervisor, care, group=False)
    care.overdue, care.by_signal = ends.overdue, ends.by_signal
    child = _told(news)
    if child and not ends.gone:  # the supervisor was killed; else the number may be another's now
        _end_group(child, care, code)
    return code


def _told(news: int) -> int:
    """CMD's pid, as its child told it before exec; 0 when there was none.

    Waited for, as a child whose supervisor was killed becomes CMD where no PDEATHSIG ends it (L8).
    """
    try:
        return int(os.read(news, 32) or 0)
    finally:
        os.close(news)


def _end_group(child: int, care: ChildCare, code: int) -> None:
    """Wait until nothing of CMD's group runs, whose supervisor has ended with `code`."""
    rest = ChildCare(
        care.what,
        care.inbox,
        care.terminal,
        0.0,
        lambda: "its supervisor was killed",
        lambda *_: "",
    )
    rest.held = care.held
    attend(child, rest, code=code)


class Supervisor:
    """The process between the wrapper and CMD. `ends`: when the first lease does."""

    def __init__(
        self,
        ours: ChildCare,
        ends: LeaseEnd,
        grace: float,
        late: float,
        life: int,
        wrapper: int,
    ) -> None:
        self.ours, self.ends, self.late, self.life, self.wrapper = ours, ends, late, life, wrapper
        self.child = 0
        self.care = ChildCare(
            ours.what,
            ours.inbox,
            ours.terminal,
            grace,
            self._why_stop,
            lambda reason, _: f"{reason}: stopping {ours.what}",
            look_in=self._look_in,
        )

    def run(self, command: list[str], environment: dict[str, str], tell: int) -> int:
        """Its life; its exit code is CMD's, whose pid goes to `tell`."""
        ours = self.ours
        os.setpgid(0, 0)
        ours.inbox.renew()
        prctl(PR_SET_PDEATHSIG, signal.SIGCONT)
        become_subreaper()
        os.set_blocking(self.life, False)
        if self._orphaned():
            return exits.SIGNAL + signal.SIGTERM
        me = os.getpid()
        lend = ours.terminal.to_be_lent()
        child = os.fork()
        if child == 0:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() == me:
                lead(ours.terminal, lend=lend)
                os.write(tell, b"%d" % os.getpid())
                if self.ends.left() <= 0:  # wrapper or supervisor were stopped until now
                    self.ends.overdue = True
                    render.say(str(too_late(ours.what)))
                    os._exit(exits.LOST)
                os._exit(refuse(command, become(command, environment, ours.inbox)))
            os._exit(exits.BUG)
        os.close(tell)
        make_leader(child)
        self.child = child
        code = attend(child, self.care)
        self.ends.tell_gone(self.care.by_signal)
        return code

    def _orphaned(self) -> bool:
        try:
            return not os.read(self.life, 1)
        except BlockingIOError:
            return False

    def _look_in(self) -> float:
        left = self.ends.left()
        if left > 0:
            return left
        patience = left + OVERDUE * self.late
        return min(AGAIN, patience) if patience > 0 else AGAIN

    def _why_stop(self) -> str | None:
        wrapper = f"process {self.wrapper} (lifehold run)"
        by = self.ends.at + self.late  # the wrapper may not have renewed for long before its end
        if self._orphaned():
            self.care.kill_by = by
            return f"{wrapper} is gone"
        left = self.ends.left()
        if left > 0:
            return None
        # L8  It hangs, or nobody tells whether it is stopped.
        late = left <= -OVERDUE * self.late or not is_proc_ours()
        if not late and not is_stopped(self.wrapper):
            return None
        if is_all_stopped(self.child):
            return None
        how = "is late" if late else "is stopped"
        self.care.kill_by, self.ends.overdue = by, True
        return f"{wrapper} {how}, and the lease that it does not renew is over"


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped, by a signal or by a debugger; False where that is not told."""
    return process.halted(pid) in (STOPPED, TRACED)


def is_all_stopped(group: int) -> bool:
    """Whether no process of a group runs, as each is stopped; False where that is not told."""
    states = set((members(group) or {}).values())
    return bool(states) and states <= {b"T", b"t"}
