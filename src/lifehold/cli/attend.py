"""A child attended until it is gone: signals passed on, stops shared, an end made when it must be.

Promise: `attend` comes back only when the child has been reaped, and with `group` when nothing of
its process group runs any more. So the lock that is let go of afterwards is never free beside a
running CMD. What has left the group (setsid, the jobs of an interactive shell) is not waited for.

Job control. CMD's stop is ours: a shell waits for us, and must see it. We take the terminal back
and stop by the same signal, with our whole group, as the terminal would have had it; continued, we
give the terminal back and continue CMD. SIGSTOP is nobody's typing: who sent it to CMD will
continue CMD, so we stay awake.
"""

from __future__ import annotations

import os
import sys

from ..runtime import clock, fork
from . import exits
from .inbox import FOR_ONE, FORWARDED, Inbox
from .render import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable
    from typing import Any

    from .terminal import Terminal
else:
    import _signal as signal  # without `enum`, which costs 4 ms

LOOK = 1.0  # seconds between two looks at the lock
SETTLED = 0.05  # seconds until we become a subreaper: loading the call costs more than `true` does
ASK = 0.25  # seconds between two looks at a group whose leader has ended, at most
TELL = 2.0  # seconds until who waits for such a group is told, then growing
WANTS_TERMINAL = (getattr(signal, "SIGTTIN", 0), getattr(signal, "SIGTTOU", 0))
PR_SET_CHILD_SUBREAPER = 36


class Care:
    """What a child is attended with, and when it is to be stopped.

    `why_stop` is asked every second and at each signal. When it has a reason `stopping(reason)` is
    told, and the child gets TERM, after `grace` seconds KILL. `until`: an instant to look at, too.
    """

    __slots__ = ("grace", "inbox", "stopping", "terminal", "until", "what", "why_stop")

    def __init__(
        self, what: str, inbox: Inbox, terminal: Terminal, grace: float,
        why_stop: Callable[[], str | None], stopping: Callable[[str], None],
        until: float = float("inf"),
    ) -> None:  # fmt: skip
        self.what, self.inbox, self.terminal, self.grace = what, inbox, terminal, grace
        self.why_stop, self.stopping, self.until = why_stop, stopping, until


def attend(pid: int, care: Care, *, group: bool = True, code: int | None = None) -> int:
    """The exit code of the child once it is gone, 128 + N for signal N. `code`: of a reaped one."""
    return _Attendance(pid, care, group, code).to_the_end()


class _Attendance:
    __slots__ = ("ask_in", "care", "code", "ended_at", "group", "kill_at", "pid", "stopping",
                 "subreaper", "tell_at")  # fmt: skip

    def __init__(self, pid: int, care: Care, group: bool, code: int | None) -> None:
        self.pid, self.care, self.group, self.code = pid, care, group, code
        self.kill_at = float("inf")
        self.ended_at = self.tell_at = clock.now()  # of a child that has been reaped already
        self.ask_in = 0.001
        self.stopping = self.subreaper = False

    def to_the_end(self) -> int:
        inbox = self.care.inbox
        while True:
            message = inbox.next(self._patience())
            self._reap()
            if self.code is not None and self._gone():
                if self.group:
                    self.care.terminal.take_back(self.pid)
                return self.code
            if message is None and self.group and not self.subreaper:
                self.subreaper = True
                become_subreaper()
            self._judge(message)

    def _patience(self) -> float:
        now, care = clock.now(), self.care
        longest = min(LOOK, self.kill_at - now)
        if not self.stopping:
            longest = min(longest, care.until - now)
        if self.group and not self.subreaper:
            longest = min(longest, SETTLED)
        if self.code is not None:
            longest, self.ask_in = min(longest, self.ask_in), min(2 * self.ask_in, ASK)
        return max(0.0, longest)

    # ---- what the child did

    def _reap(self) -> None:
        """See to whatever children have done since."""
        while self.code is None:
            done, status = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED)
            if not done:
                break
            if os.WIFSTOPPED(status):
                self._stopped(os.WSTOPSIG(status))
                continue
            code = os.waitstatus_to_exitcode(status)
            self.code = code if code >= 0 else exits.SIGNAL - code
            self.ended_at = clock.now()
            self.tell_at = self.ended_at + TELL
        bury(self.pid if self.code is None else 0)

    def _gone(self) -> bool:
        """Whether nothing of the group runs any more. The child itself has been reaped."""
        if not self.group:
            return True
        try:
            os.kill(-self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False  # somebody else's by now
        now = clock.now()
        if now >= self.tell_at:
            left = members(self.pid)
            if left == []:
                return True  # zombies whose parent does not care
            self.tell_at = now + max(TELL, now - self.ended_at)
            say(
                f"{self.care.what} has ended with {self.code}, and processes that it started run "
                f"on{_listed(left)}: the lock is held until they end (setsid keeps one out of this)"
            )
        return False

    def _stopped(self, number: int) -> None:
        """Be stopped with it, as a shell expects of its job."""
        care = self.care
        terminal = care.terminal
        wants = number in WANTS_TERMINAL
        if not terminal or number == signal.SIGSTOP:
            return
        if wants and self.group and terminal.is_of(terminal.home):
            terminal.give(self.pid)
            self._send(signal.SIGCONT)
            return
        had = self.group and terminal.take_back(self.pid)
        continued = care.inbox.stop(number)
        if (had or wants) and self.group and terminal.is_of(terminal.home):
            terminal.give(self.pid)
        if wants and not continued:
            self._send(signal.SIGHUP)  # as the kernel does to a stopped group that nobody can wake
        self._send(signal.SIGCONT)

    # ---- what we do to it

    def _judge(self, message: int | None) -> None:
        care = self.care
        if not self.stopping and (reason := care.why_stop()):
            self.stopping, self.kill_at = True, clock.now() + care.grace
            care.stopping(reason)
            self._send(signal.SIGTERM)
            self._send(signal.SIGCONT)
        elif clock.now() >= self.kill_at:
            self.kill_at = float("inf")
            self._send(signal.SIGKILL)
        elif message in FOR_ONE and self.code is None:
            self._send(message, one=True)
        elif message in FORWARDED:
            self._send(message)

    def _send(self, number: int | None, *, one: bool = False) -> None:
        """A signal to the group, or to the child: not reaped, so its number is still its own."""
        assert number is not None
        try:
            os.kill(-self.pid if self.group and not one else self.pid, number)
        except ProcessLookupError:
            return
        except PermissionError:  # it has become another user: nothing but waiting is left
            say(f"signal {number} cannot be sent to {self.care.what}, which runs as another user")


def bury(kept: int) -> None:
    """Reap the orphans that CMD leaves to us as their subreaper, or as process 1 of a container.

    Nobody else would, and each would keep a process number for as long as we live.
    """
    if not hasattr(os, "waitid"):  # macOS, where no orphan comes to us
        return
    try:
        while found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if found.si_pid == kept:
                return
            os.waitpid(found.si_pid, os.WNOHANG)
    except ChildProcessError:
        return


def members(group: int) -> list[int] | None:
    """The processes of a group that are no zombies; None where that cannot be seen."""
    found = []
    try:
        for name in os.listdir("/proc"):
            if name.isdigit():
                try:
                    with open(f"/proc/{name}/stat", "rb") as file:
                        state, _, pgrp = file.read().rpartition(b")")[2].split()[:3]
                except (FileNotFoundError, ProcessLookupError):
                    continue  # gone meanwhile
                if int(pgrp) == group and state not in (b"Z", b"X"):
                    found.append(int(name))
    except OSError:
        return None  # no /proc, or one that hides the processes of others (hidepid)
    return found if os.path.exists("/proc/1/stat") else None


def _listed(pids: list[int] | None) -> str:
    if not pids:
        return ""
    more = ", ..." if len(pids) > 5 else ""
    return f" (pid {', '.join(map(str, sorted(pids)[:5]))}{more})"


def become_subreaper() -> None:
    """From now on CMD's orphans are ours to reap, and their ends wake us."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def prctl(option: int, value: int) -> None:
    """Tell the kernel something about this process, where it is Linux."""
    if sys.platform != "linux":
        return
    ctypes: Any = fork.lazily("ctypes")
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
