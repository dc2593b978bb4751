"""CMD as a process: started in a group of its own, with the lock in its hands, and attended.

Promise: from the instant at which CMD exists, the lock has two owners. Its group is its own before
the first instruction of CMD, so that a signal to that group reaches CMD and nobody else, and the
group's end is the end of all that CMD started and that did not leave it.
"""

from __future__ import annotations

import errno
import os
import sys

from ..core.errors import SystemRefused
from ..core.mask import printable
from ..runtime import clock, fork
from . import exits
from .signals import FOR_ONE, FORWARDED, RESTORED, SignalQueue

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Sequence

    from . import render
    from .terminal import Terminal
else:
    import _signal as signal  # without `enum`, which costs 4 ms

    render = fork.later("lifehold.cli.render", globals())

SHELL = "/bin/sh"


class CannotStart(Exception):
    """CMD was not begun, and why; `code`: the exit code for it."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


def unstartable(command: Sequence[str], error: OSError) -> CannotStart:
    """exec(2), or what comes before it, said no."""
    missing = error.errno in (errno.ENOENT, errno.ENOTDIR)
    code = exits.NOT_FOUND if missing else exits.NOT_EXECUTABLE
    if error.errno in (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE):
        code = exits.REFUSED
    reason = "not found" if missing else error.strerror
    if error.errno == errno.EACCES and "/" in command[0] and os.path.isdir(command[0]):
        reason = "it is a folder"
    if missing and _is_for_a_shell(command[0]):
        from ..core.explain import quote

        text = command[0] + " ..." * (len(command) > 1)  # L11  the rest may be a secret
        reason = f"not found; for a shell, write  -c {quote(text)}  instead of CMD, before NAME"
    if missing and os.path.lexists(command[0]) and "/" in command[0]:
        reason = "the program named in its first line (#!) was not found"
    if missing and command[0].startswith("-"):
        reason = "not found; options of lifehold stand before the --"
    return CannotStart(f"cannot run '{printable(command[0])}': {reason}", code)


SHELL_WORDS = "cd export source . alias unset set eval exec ulimit umask trap if for while [[ { !"


def _is_for_a_shell(word: str) -> bool:
    """Whether a program that is missing may be meant as a line or a word of a shell."""
    return word in SHELL_WORDS.split() or bool(set(word) & set(" \t\n|&;<>=$("))


def spawn(
    command: list[str], environment: dict[str, str], keep: Sequence[int], inbox: SignalQueue
) -> int:
    """Start CMD with the descriptors `keep` open, in one step; its pid. Raises CannotStart.

    posix_spawn runs no at-fork hook of ours, which would close the descriptors, and dup2 onto
    itself makes just these inheritable, just in the child: from the fork on the lock has two
    owners.
    """

    def start(program: str, words: list[str]) -> int:
        return os.posix_spawnp(
            program,
            words,
            environment,
            setpgroup=0,
            file_actions=[(os.POSIX_SPAWN_DUP2, number, number) for number in keep],
            setsigmask=inbox.mask,
            setsigdef=RESTORED,
        )

    try:
        return start(command[0], command)
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise unstartable(command, error) from None
    script = script_of(command)
    try:
        return start(script[0], script)
    except OSError as error:
        raise unstartable(command, error) from None


def spawn_at_terminal(
    command: list[str],
    environment: dict[str, str],
    keep: Sequence[int],
    inbox: SignalQueue,
    terminal: Terminal,
) -> tuple[int, int]:
    """The same in two steps, with the terminal in CMD's hands before it can ask for it.

    Between the two the child holds the lock by duplicates, which the at-fork hook does not know
    and so does not close. The number of each stays what it was. With its pid comes what tells in
    the end whether it became CMD (`see_refusal`): who waited for that would not see it stopped.
    """
    try:
        copies = [os.dup(number) for number in keep]
        heard, tell = os.pipe()
        child = os.fork()
    except OSError as error:
        raise unstartable(command, error) from None
    if child == 0:
        code = exits.BUG
        try:
            for copy, number in zip(copies, keep, strict=True):
                os.dup2(copy, number, inheritable=True)
            lead(terminal, lend=True)
            refused = become(command, environment, inbox)
            os.write(tell, b"%d" % (refused.errno or 0))
        finally:
            os._exit(code)
    for number in (*copies, tell):
        os.close(number)
    make_leader(child)
    return child, heard


def see_refusal(command: list[str], heard: int) -> None:
    """Of a child that has ended. Raises CannotStart when it did not become CMD."""
    said = os.read(heard, 16)  # nothing of CMD: exec has closed the other end
    os.close(heard)
    if said:
        raise unstartable(command, OSError(int(said), os.strerror(int(said))))


def make_leader(child: int) -> None:
    """Whoever of the two comes first: a signal must find the group."""
    try:
        os.setpgid(child, child)
    except OSError:
        pass  # it has become CMD, or is gone


def lead(terminal: Terminal, *, lend: bool) -> None:
    """In a forked child that will be CMD: a group of its own, in the foreground if we had that."""
    os.setpgid(0, 0)
    if lend:
        terminal.give(os.getpid())


def become(command: list[str], environment: dict[str, str], inbox: SignalQueue | None) -> OSError:
    """Turn into CMD. Comes back only when that cannot be. Without an inbox: no signal is ours."""
    if inbox is not None:
        inbox.close()
    for number in RESTORED:
        signal.signal(number, signal.SIG_DFL)
    for words in (command, script_of(command)):
        try:
            os.execvpe(words[0], words, environment)
        except OSError as error:
            refused = error
        if refused.errno != errno.ENOEXEC:
            break
    for number in RESTORED:
        signal.signal(number, signal.SIG_IGN)
    return refused


def script_of(command: list[str]) -> list[str]:
    """A script without `#!`, as every shell and execvp(3) would run it."""
    program = command[0]
    if "/" not in program:
        found = (os.path.join(folder, program) for folder in os.get_exec_path())
        program = next((path for path in found if os.access(path, os.X_OK)), program)
    return [SHELL, program, *command[1:]]


def refuse(command: list[str], error: OSError) -> int:
    """Say on stderr that CMD could not be started; the exit code."""
    refused = unstartable(command, error)
    render.say(str(refused))
    return refused.code


# ------------------------------------------------------------------------------------------------
# A child attended until it is gone: signals passed on, stops shared, an end made when it must be.
#
# Promise: `attend` comes back only when the child has been reaped, and with `group` when nothing of
# its process group runs any more. So the lock that is let go of afterwards is never free beside a
# running CMD. What has left the group (setsid, the jobs of an interactive shell) is not waited for.
#
# Job control. CMD's stop is ours: a shell waits for us, and must see it. We take the terminal back
# and stop by the same signal, with our whole group, as the terminal would have had it; continued,
# we give the terminal back and continue CMD. SIGSTOP is nobody's typing: who sent it to CMD will
# continue CMD, so we stay awake.


LOOK = 1.0  # seconds between two looks at the lock
LEAST = 0.01  # seconds between two of them, however soon a lease ends
SETTLED = 0.05  # seconds until we become a subreaper, away from a terminal: the call loads slowly
ASK = 0.25  # seconds between two looks at a group whose leader has ended, at most
TELL = 2.0  # seconds until who waits for such a group is told, then growing
WANTS_TERMINAL = (getattr(signal, "SIGTTIN", 0), getattr(signal, "SIGTTOU", 0))
PR_SET_CHILD_SUBREAPER = 36


class ChildCare:
    """What a child is attended with, and when it is to be stopped.

    `why_stop` is asked every second and at each signal. When it has a reason the child gets TERM,
    after `grace` seconds KILL; `stopping(reason, seconds until KILL)` has words for it. It may set
    `kill_by`, the instant of a KILL that cannot wait for the grace; what it finds later makes the
    end come sooner, never later. `until`: an instant to look at, too; `look_in()`: seconds until a
    look is needed; `held`: whether the lock is ours while it ends; `overdue`: a supervisor has
    stopped the child, as a lease was over; `by_signal`: a signal has ended CMD.
    """

    __slots__ = (
        "by_signal",
        "grace",
        "held",
        "inbox",
        "kill_by",
        "look_in",
        "overdue",
        "stopping",
        "terminal",
        "until",
        "what",
        "why_stop",
    )

    def __init__(
        self,
        what: str,
        inbox: SignalQueue,
        terminal: Terminal,
        grace: float,
        why_stop: Callable[[], str | None],
        stopping: Callable[[str, float], str],
        until: float = float("inf"),
        look_in: Callable[[], float] | None = None,
    ) -> None:
        self.what, self.inbox, self.terminal, self.grace = what, inbox, terminal, grace
        self.why_stop, self.stopping, self.until = why_stop, stopping, until
        self.look_in, self.kill_by = look_in or _never, float("inf")
        self.held, self.overdue, self.by_signal = True, False, False


def _never() -> float:
    return float("inf")


def attend(pid: int, care: ChildCare, *, group: bool = True, code: int | None = None) -> int:
    """The exit code of the child once it is gone, 128 + N for signal N. `code`: of a reaped one."""
    return _Attendance(pid, care, group, code).to_the_end()


class _Attendance:
    __slots__ = (
        "ask_in",
        "care",
        "code",
        "ended_at",
        "group",
        "kill_at",
        "killed",
        "pid",
        "stopping",
        "subreaper",
        "tell_at",
    )

    def __init__(self, pid: int, care: ChildCare, group: bool, code: int | None) -> None:
        self.pid, self.care, self.group, self.code = pid, care, group, code
        self.kill_at = float("inf")
        self.ended_at = self.tell_at = clock.now()  # of a child that has been reaped already
        self.ask_in = 0.001
        self.stopping = self.killed = self.subreaper = False

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

    def _until_look(self) -> float:
        """Seconds until there is something to be done or looked at."""
        now, care = clock.now(), self.care
        longest = min(LOOK, self.kill_at - now)
        if not self.stopping:
            longest = min(longest, care.until - now)
        if care.kill_by == float("inf"):  # a lease may end while the child is being stopped
            longest = min(longest, max(LEAST, care.look_in()))
        return max(0.0, longest)

    def _say(self, text: str) -> None:
        """Tell it, and be held up by a stderr that takes nothing until the next look at most."""
        mention(text, patience=self._until_look())

    def _patience(self) -> float:
        longest = self._until_look()
        if self.group and not self.subreaper:
            longest = min(longest, SETTLED)
        if self.code is not None:
            longest, self.ask_in = min(longest, self.ask_in), min(2 * self.ask_in, ASK)
        return longest

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
            self.care.by_signal = os.WIFSIGNALED(status)
            code = os.waitstatus_to_exitcode(status)
            self.code = code if code >= 0 else exits.SIGNAL - code
            self.ended_at = clock.now()
            self.tell_at = self.ended_at + TELL
        if self.code is not None and self.group:
            self._see_rest()
        bury(self.pid if self.code is None else 0)

    def _see_rest(self) -> None:
        """What those of the group do that its leader has left to us, their subreaper."""
        try:
            while (found := os.waitpid(-self.pid, os.WNOHANG | os.WUNTRACED))[0]:
                if os.WIFSTOPPED(found[1]):
                    self._stopped(os.WSTOPSIG(found[1]))
        except ChildProcessError:
            return

    def _gone(self) -> bool:
        """Whether nothing of the group runs any more. The child itself has been reaped."""
        if not self.group:
            return True
        try:
            os.kill(-self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass  # somebody else's by now, and waited for all the same
        now = clock.now()
        if now >= self.tell_at:
            left = members(self.pid)
            if left == {}:
                return True  # zombies whose parent does not care
            self.tell_at = now + max(TELL, now - self.ended_at)
            then = "the lock is held until they end (setsid keeps one out of this)"
            if not self.care.held:
                then = "they are waited for, and the lock is lost meanwhile"
            self._say(
                f"{self.care.what} has ended with {self.code}, and processes that it started run "
                f"on{_listed(left)}: {then}"
            )
        return False

    def _has_just_gone(self) -> bool:
        """Whether nothing is left to be stopped: it may have ended since the last look."""
        if self.code is None:
            self._reap()
        return self.code is not None and self._gone()

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
        care.look_in()  # a supervisor below us learns the end of the lease before it runs on
        self._judge(None)  # and a child whose lock is over by now does not run on at all
        if (had or wants) and self.group and terminal.is_of(terminal.home):
            terminal.give(self.pid)
        if wants and not continued:
            self._send(signal.SIGHUP)  # as the kernel does to a stopped group that nobody can wake
        self._send(signal.SIGCONT)

    # ---- what we do to it

    def _judge(self, message: int | None) -> None:
        care = self.care
        if not self.killed and (reason := care.why_stop()) and not self._has_just_gone():
            self._hurry(reason)
        if clock.now() >= self.kill_at:
            self.kill_at, self.killed = float("inf"), True
            self._send(signal.SIGKILL)
        elif message in FOR_ONE and self.code is None:
            self._send(message, one=True)
        elif message in FORWARDED:
            self._send(message)

    def _hurry(self, reason: str) -> None:
        """Stop the child for `reason`, or sooner for it than for an earlier one."""
        care, now = self.care, clock.now()
        kill_at = min(now + care.grace, care.kill_by)
        if self.stopping and kill_at >= self.kill_at:
            return
        begun, self.stopping, self.kill_at = self.stopping, True, kill_at
        if kill_at > now and not begun:
            self._send(signal.SIGTERM)  # before a word: nobody may be reading stderr
            self._send(signal.SIGCONT)
        elif kill_at <= now:  # and no CONT before: it may be stopped, and another is in
            self.kill_at, self.killed = float("inf"), True
            self._send(signal.SIGKILL)
        if text := care.stopping(reason, max(0.0, kill_at - now)):
            self._say(text)

    def _send(self, number: int | None, *, one: bool = False) -> None:
        """A signal to the group, or to the child: not reaped, so its number is still its own."""
        assert number is not None
        targets = [self.pid] if one or not self.group else [-self.pid]
        if targets == [-self.pid] and self.code is None and self._has_left():
            targets.append(self.pid)
        for target in targets:
            try:
                os.kill(target, number)
            except ProcessLookupError:
                continue
            except PermissionError:  # it has become another user: nothing but waiting is left
                self._say(
                    f"signal {number} cannot be sent to {self.care.what}, which runs as another "
                    "user"
                )

    def _has_left(self) -> bool:
        """Whether the child is in another group than its own: not yet there, or moved away."""
        try:
            return os.getpgid(self.pid) != self.pid
        except OSError:
            return False


def mention(text: str, patience: float = float("inf")) -> None:
    """Say it on stderr; where what says it cannot be loaded any more, see to CMD all the same."""
    try:
        render.say(text, patience=patience)
    except (ImportError, SystemRefused):
        return


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


def members(group: int) -> dict[int, bytes] | None:
    """The processes of a group that are no zombies, with their states; None if it is not told."""
    found = {}
    try:
        for name in os.listdir("/proc"):
            if name.isdigit():
                try:
                    with open(f"/proc/{name}/stat", "rb") as file:
                        state, _, pgrp = file.read().rpartition(b")")[2].split()[:3]
                except (FileNotFoundError, ProcessLookupError):
                    continue  # gone meanwhile
                if int(pgrp) == group and state not in (b"Z", b"X"):
                    found[int(name)] = state
    except OSError:
        return None  # no /proc, or one that hides the processes of others (hidepid)
    return found if is_proc_ours() and os.path.exists("/proc/1/stat") else None


def is_proc_ours() -> bool:
    """Whether /proc calls processes by our numbers: not that of another PID namespace."""
    try:
        return os.readlink("/proc/self") == str(os.getpid())
    except OSError:
        return False


def _listed(pids: dict[int, bytes] | None) -> str:
    if not pids:
        return ""
    more = ", ..." if len(pids) > 5 else ""
    return f" (pid {', '.join(map(str, sorted(pids)[:5]))}{more})"


def become_subreaper() -> None:
    """From now on CMD's orphans are ours to reap, and their ends wake us: where that can be had."""
    try:
        prctl(PR_SET_CHILD_SUBREAPER, 1)
    except SystemRefused:
        return  # no descriptor left: CMD, which may run by now, is attended all the same


def prctl(option: int, value: int) -> None:
    """Tell the kernel something about this process, where it is Linux. Raises SystemRefused."""
    if sys.platform != "linux":
        return
    try:
        ctypes = fork.lazily("ctypes")
    except (ImportError, SystemRefused):
        return  # Python was built without it, or its files are gone
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
