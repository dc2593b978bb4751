"""CMD as a process: started in a group of its own, with the lock in its hands.

Promise: from the instant at which CMD exists, the lock has two owners. Its group is its own before
the first instruction of CMD, so that a signal to that group reaches CMD and nobody else, and the
group's end is the end of all that CMD started and that did not leave it.
"""

from __future__ import annotations

import errno
import os

from ..core.mask import printable
from . import exits
from .inbox import RESTORED, Inbox
from .render import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Sequence

    from .terminal import Terminal
else:
    import _signal as signal  # without `enum`, which costs 4 ms

SHELL = "/bin/sh"


class CannotStart(Exception):
    """exec(2) said no; `code`: the exit code for it."""

    def __init__(self, command: Sequence[str], error: OSError) -> None:
        missing = error.errno in (errno.ENOENT, errno.ENOTDIR)
        self.code = exits.NOT_FOUND if missing else exits.NOT_EXECUTABLE
        if error.errno in (errno.EAGAIN, errno.ENOMEM):
            self.code = exits.REFUSED
        reason = "not found" if missing else error.strerror
        if missing and os.path.lexists(command[0]) and "/" in command[0]:
            reason = "the program named in its first line (#!) was not found"
        if missing and command[0].startswith("-"):
            reason = "not found; options of lifehold stand before NAME"
        super().__init__(f"cannot run '{printable(command[0])}': {reason}")


def spawn(
    command: list[str], environment: dict[str, str], keep: Sequence[int], inbox: Inbox
) -> int:
    """Start CMD with the descriptors `keep` open, in one step; its pid. Raises CannotStart.

    posix_spawn runs no at-fork hook of ours, which would close the descriptors, and dup2 onto
    itself makes just these inheritable, just in the child: from the fork on the lock has two
    owners.
    """

    def start(program: str, words: list[str]) -> int:
        return os.posix_spawnp(
            program, words, environment, setpgroup=0,
            file_actions=[(os.POSIX_SPAWN_DUP2, number, number) for number in keep],
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


def spawn_at_terminal(
    command: list[str], environment: dict[str, str], keep: Sequence[int], inbox: Inbox,
    terminal: Terminal,
) -> int:  # fmt: skip
    """The same in two steps, with the terminal in CMD's hands before it can ask for it.

    Between the two the child holds the lock by duplicates, which the at-fork hook does not know
    and so does not close. The number of each stays what it was.
    """
    copies = [os.dup(number) for number in keep]
    heard, tell = os.pipe()
    try:
        child = os.fork()
    except OSError as error:
        raise CannotStart(command, error) from None
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
    said = os.read(heard, 16)  # nothing once CMD runs: exec has closed the other end
    os.close(heard)
    if not said:
        return child
    os.waitpid(child, 0)
    terminal.take_back(child)
    number = int(said)
    raise CannotStart(command, OSError(number, os.strerror(number)))


def lead(terminal: Terminal, *, lend: bool) -> None:
    """In a forked child that will be CMD: a group of its own, in the foreground if we had that."""
    os.setpgid(0, 0)
    if lend:
        terminal.give(os.getpid())


def become(command: list[str], environment: dict[str, str], inbox: Inbox | None) -> OSError:
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
    refused = CannotStart(command, error)
    say(str(refused))
    return refused.code
