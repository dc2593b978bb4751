"""CMD as a process: started, attended until it is gone, stopped when it must be.

Promise: whoever attends a process comes back only when that process has been reaped. So the lock
that is let go of afterwards is never free beside a running CMD. First form: CMD stays in our
process group, and only CMD itself is waited for, not what it leaves behind.
"""

from __future__ import annotations

import errno
import os

from ..runtime import clock
from . import exits
from .inbox import FORWARDED, RESTORED, Inbox
from .render import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable
else:
    import _signal as signal  # without `enum`, which costs 4 ms

LOOK = 1.0  # seconds between two looks at the lock
GRACE = 5.0  # seconds from TERM to KILL
SHELL = "/bin/sh"


class CannotStart(Exception):
    """exec(2) said no; `code`: the exit code for it."""

    def __init__(self, command: list[str], error: OSError) -> None:
        missing = error.errno in (errno.ENOENT, errno.ENOTDIR)
        self.code = exits.NOT_FOUND if missing else exits.NOT_EXECUTABLE
        if error.errno in (errno.EAGAIN, errno.ENOMEM):
            self.code = exits.REFUSED
        reason = "not found" if missing else error.strerror
        if missing and os.path.lexists(command[0]) and "/" in command[0]:
            reason = "the program named in its first line (#!) was not found"
        if missing and command[0].startswith("-"):
            reason = "not found; options of lifehold stand before NAME"
        super().__init__(f"cannot run {command[0]!r}: {reason}")


def spawn(command: list[str], environment: dict[str, str], keep: int, inbox: Inbox) -> int:
    """Start CMD with the descriptor `keep` open, in one step; its pid. Raises CannotStart.

    posix_spawn runs no at-fork hook of ours, which would close the descriptor, and dup2 onto
    itself makes just this one inheritable, just in the child: from the fork on the lock has two
    owners.
    """

    def start(program: str, words: list[str]) -> int:
        return os.posix_spawnp(
            program, words, environment, file_actions=[(os.POSIX_SPAWN_DUP2, keep, keep)],
            setsigmask=inbox.mask, setsigdef=RESTORED,
        )  # fmt: skip

    try:
        return start(command[0], command)
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise CannotStart(command, error) from None
    script = script_of(command)
    try:
        return start(script[0], script)
    except OSError as error:
        raise CannotStart(command, error) from None


def become(command: list[str], environment: dict[str, str], inbox: Inbox) -> CannotStart:
    """In a forked child: turn into CMD. Comes back only when that cannot be."""
    for number in RESTORED:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, inbox.mask)
    for words in (command, script_of(command)):
        try:
            os.execvpe(words[0], words, environment)
        except OSError as error:
            refused = error
        if refused.errno != errno.ENOEXEC:
            break
    return CannotStart(command, refused)


def script_of(command: list[str]) -> list[str]:
    """A script without `#!`, as every shell and execvp(3) would run it."""
    program = command[0]
    if "/" not in program:
        found = (os.path.join(folder, program) for folder in os.get_exec_path())
        program = next((path for path in found if os.access(path, os.X_OK)), program)
    return [SHELL, program, *command[1:]]


def attend(
    pid: int, inbox: Inbox, why_stop: Callable[[], str | None], stopping: Callable[[str], None],
    heir: int = 0,
) -> int:  # fmt: skip
    """Pass signals on to a child until it has been reaped; its exit code, 128 + N for a signal.

    `why_stop` is asked every second and at each signal. When it has a reason, `stopping(reason)`
    is told and the child is ended: TERM, after a grace KILL. `heir`: another that is not to be
    reaped here.
    """
    kill_at, stopped = float("inf"), False
    typed_too = True  # what came before the child existed reached only us, whoever sent it
    while True:
        message = inbox.next(0 if typed_too else max(0.0, min(LOOK, kill_at - clock.now())))
        if message is None:
            typed_too = False
        code = reap(pid)
        if code is not None:
            return code
        bury(pid, heir)
        if not stopped and (reason := why_stop()):
            stopped, kill_at = True, clock.now() + GRACE
            stopping(reason)
            send(pid, signal.SIGTERM)
            send(pid, signal.SIGCONT)
        elif clock.now() >= kill_at:
            kill_at = float("inf")
            send(pid, signal.SIGKILL)
        elif message is not None and message[0] in FORWARDED and (typed_too or not message[1]):
            send(pid, message[0])


def reap(pid: int) -> int | None:
    """The exit code of an ended child, None while it runs."""
    done, status = os.waitpid(pid, os.WNOHANG)
    if done == 0:
        return None
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else exits.SIGNAL - code


def bury(*kept: int) -> None:
    """Reap the orphans that CMD leaves to us as their subreaper, or as process 1 of a container.

    Nobody else would, and each would keep a process number for as long as we live.
    """
    if not hasattr(os, "waitid"):  # macOS, where no orphan comes to us
        return
    try:
        while found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if found.si_pid in kept:
                return
            os.waitpid(found.si_pid, os.WNOHANG)
    except ChildProcessError:
        return


def send(pid: int, number: int) -> None:
    """A signal to a child that has not been reaped, so that its number is still its own."""
    try:
        os.kill(pid, number)
    except PermissionError:  # it has become another user: nothing but waiting is left
        say(f"signal {number} cannot be sent to process {pid}, which runs as another user")
