"""CMD under a dot lock: touched while it runs, removed when it has ended.

Promise: INT, QUIT and HUP sent to us alone change nothing, as with the original; from a terminal
CMD gets them itself, since it stays in our process group. TERM is passed on to CMD; what CMD leaves
behind in our session gets it too, after 5 s KILL; then the lock is removed and we end by TERM. CMD
inherits the open lock file, a witness of ours: when we are killed, ours know that CMD lives, and
when it has ended. The original knows neither, and goes by the age or by our process number.
How it could fail: CMD stopped together with us for 300 s, or longer without -p: others may take the
lock, and we say so when we go on. Who has left our session (setsid) is not ended by TERM.
"""

from __future__ import annotations

import errno
import os
import sys

from ..compat.liblockfile import calls
from ..compat.liblockfile.status import L_ERROR
from ..core.mask import masked_urls
from ..runtime import clock
from .attend import become_subreaper
from .child import script_of
from .exits import NOT_FOUND, SIGNAL

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from typing import Any

    from ..compat.liblockfile.dotlock import DotLock
    from ..core.grant import Grant
    from .dotlockfile import Call
else:
    import _signal as signal  # without `enum`, which costs 4 ms

TOUCH = 30.0  # seconds
GRACE = 5.0  # from TERM to KILL
LOOK = 0.05  # seconds between two looks for what CMD left behind


def run(call: Call, lock: DotLock | None, grant: Grant | None, mask: Any) -> int:
    """The exit code."""
    held = Held(call, lock, grant)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, it would reap CMD behind our back
    heard = {int(signal.SIGCHLD), int(signal.SIGALRM)}
    if signal.getsignal(signal.SIGTERM) != signal.SIG_IGN:
        heard.add(int(signal.SIGTERM))
    signal.pthread_sigmask(signal.SIG_BLOCK, heard)
    try:
        child = _spawn(call.command, held.descriptor, mask)
    except OSError as error:
        held.release()
        return _cannot(call, error)
    signal.setitimer(signal.ITIMER_REAL, TOUCH, TOUCH)
    while True:
        number = signal.sigwait(heard)
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        if number == signal.SIGTERM:
            _stop_all(child)
            held.release()
            _end_by_term()
        elif number == signal.SIGALRM:
            held.touch()
    signal.setitimer(signal.ITIMER_REAL, 0)
    held.release()
    if signal.SIGTERM in signal.sigpending() and signal.SIGTERM in heard:
        _end_by_term()
    if "P" not in call.given:
        return 0
    return SIGNAL + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


class Held:
    """The lock while CMD runs: of our own, or one that the set-gid dotlockfile made for us."""

    def __init__(self, call: Call, lock: DotLock | None, grant: Grant | None) -> None:
        self.call, self.lock, self.grant, self.told = call, lock, grant, False
        stake = grant.handle[0] if grant is not None else None
        self.descriptor = stake.fd if stake is not None and stake.witness else None

    def touch(self) -> None:
        if self.lock is None or self.grant is None:
            calls.lockfile_touch(self.call.path)
        elif lost := self.lock._gone(self.grant.handle[0]):
            self._tell(lost.reason)
        else:
            self.lock._beat(self.grant.handle[0])

    def release(self) -> None:
        if self.lock is None or self.grant is None:
            calls.lockfile_remove(self.call.path)
            return
        stake = self.grant.handle.pop()
        if lost := self.lock._gone(stake):
            self._tell(lost.reason)
        stake.close()

    def _tell(self, reason: str) -> None:
        if not self.told and not self.call.quiet:
            print(f"dotlockfile: {masked_urls(self.call.path)}: {reason}", file=sys.stderr)
        self.told = True


def _spawn(command: list[str], descriptor: int | None, mask: Any) -> int:
    """Start CMD with the witness in its hands. Raises OSError."""
    actions = [] if descriptor is None else [(os.POSIX_SPAWN_DUP2, descriptor, descriptor)]

    def start(words: list[str]) -> int:
        return os.posix_spawnp(
            words[0], words, os.environ, file_actions=actions, setsigmask=mask,
            setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),
        )  # fmt: skip

    try:
        return start(command)
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
    return start(script_of(command))


def _cannot(call: Call, error: OSError) -> int:
    if not call.quiet:
        print(f"dotlockfile: {call.command[0]}: {error.strerror}", file=sys.stderr)
    if error.errno in (errno.EAGAIN, errno.ENOMEM):
        return L_ERROR
    return NOT_FOUND if "P" in call.given else 0


def _stop_all(child: int) -> None:
    """TERM to CMD, and to what it leaves to us; until nothing of our session is left."""
    become_subreaper()
    end, told, number = clock.now() + GRACE, set[int](), signal.SIGTERM
    while True:
        if clock.now() >= end:
            end, number = float("inf"), signal.SIGKILL
            told.clear()
        for pid in _ours(child):
            if pid not in told:
                told.add(pid)
                _send(pid, number)
                _send(pid, signal.SIGCONT)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                continue
        except ChildProcessError:
            return
        if not _ours(child):
            return
        clock.pause(LOOK if told else 0)


def _ours(child: int) -> list[int]:
    """Our children that share our session."""
    if not os.path.isdir("/proc/self"):
        return [child]
    me, session, found = os.getpid(), os.getsid(0), []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    _, parent, _, of = file.read().rpartition(b")")[2].split()[:4]
            except OSError:
                continue
            if int(parent) == me and int(of) == session:
                found.append(int(name))
    return found


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def _end_by_term() -> None:
    """Die of SIGTERM, as who asked for it expects."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    os.kill(os.getpid(), signal.SIGTERM)
