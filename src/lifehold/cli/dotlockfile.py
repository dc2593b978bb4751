"""`lifehold dotlockfile`: dotlockfile(1) of liblockfile, for scripts that name it.

Promise: the same options, exit codes and lock files; a link of that name calls it too. What ours
adds: no two winners of a stale file, no symbolic link removed, the answer of the first look, no
lock and no CMD left behind by SIGTERM; on a terminal a long wait says who holds the lock.
Signals: while a try is made they are held back, so that it is made whole or not at all; while we
wait they end us as any program, with nothing to clean up. One that came too late to stop a lock
from being made lets it be undone, and ends us.
How it could fail: kill -9 within a try, which takes milliseconds, may leave a `.lk` file, or the
lock. CMD is supervised by cli/dotlockfile.py.
"""

from __future__ import annotations

import errno
import os

from ..compat.liblockfile import calls
from ..compat.liblockfile.create import RetryTerms
from ..compat.liblockfile.mailbox import MAILDIR
from ..compat.liblockfile.status import (
    L_ERROR,
    L_MAXTRYS,
    L_NAMELEN,
    L_PID,
    L_PPID,
    L_SUCCESS,
    Status,
)
from ..core.deadline import FIRST_NOTICE, next_gap
from ..core.mask import masked_urls
from ..runtime import clock, fork
from .child import become_subreaper, script_of
from .exits import NOT_FOUND, SIGNAL
from .options_dotlockfile import DOTLOCKFILE, USAGE, BadValue, parsed
from .row import Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from typing import Any

    from ..compat.liblockfile.dotlock import DotLock
    from ..core.grant import Grant
    from ..runtime.blocking import ThreadWakeup
    from . import render
else:
    import _signal as signal  # without `enum`, which costs 4 ms

    render = fork.later("lifehold.cli.render", globals())

RETRIES = 5
SLICE = 5.0  # seconds between two looks whether who called us lives; 1 with -i
LONG = "the name is too long"
ENDING = ("HUP", "INT", "QUIT", "TERM", "PIPE")


def dotlockfile(words: list[str]) -> int:
    """The exit code of `lifehold dotlockfile WORDS`."""
    if words[:1] in (["--help"], ["-h"]):
        from .options import help_of

        render.show_help(help_of(DOTLOCKFILE))
        return 0
    try:
        given, rest = parsed(words)
        call = DotlockCall(given, rest)
    except Usage as error:
        _warn(f"{error.text}\nusage: {DOTLOCKFILE.usage}")
        return USAGE
    except BadValue as error:
        _warn(str(error))
        return L_ERROR
    return call.run()


class DotlockCall:
    """One call."""

    def __init__(self, given: dict[str, Any], rest: list[str]) -> None:
        self.given, self.quiet = given, "q" in given
        if "m" in given:
            path = _own_mailbox()
        elif rest:
            path = rest.pop(0)
        else:
            raise Usage("no lock file is named")
        self.path, self.command = path, rest
        asked = [letter for letter in "tcu" if letter in given]
        if asked and (rest or "l" in given):
            raise Usage(f"-{asked[0]} goes with neither -l nor a command")
        self.flags = 0
        if "p" in given:
            self.flags = L_PID if rest else L_PPID

    def run(self) -> int:
        if len(os.fsencode(self.path)) >= calls.LONGEST_PATH:
            return self._said(Status(L_NAMELEN, f"{masked_urls(self.path)[:40]!r}...: {LONG}"))
        folder = os.path.dirname(self.path) or "."
        if not os.path.isdir(folder):
            return self._said(Status(L_ERROR, f"{folder!r} is no folder, or cannot be reached"))
        if "c" in self.given:
            found = calls.lockfile_check(self.path, self.flags)
            unfit = calls.no_processes_there(self._absolute, self.flags)
            return self._said(unfit) if unfit is not None else int(found < 0)
        if "t" in self.given:
            return self._no(calls.lockfile_touch(self.path))
        if "u" in self.given:
            return self._no(calls.lockfile_remove(self.path))
        return self._lock()

    @property
    def _absolute(self) -> str:
        return calls.absolute(self.path)

    # ---- make it

    def _lock(self) -> int:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        if signal.getsignal(signal.SIGINT) == signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # as any other program: ended by it
        numbers = (int(getattr(signal, f"SIG{name}")) for name in ENDING)
        ending = {number for number in numbers if signal.getsignal(number) != signal.SIG_IGN}
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, ending)
        patience = SignalledWait(self, mask)
        status, lock, grant = calls.make(
            self._absolute, self.flags, patience, keep=bool(self.command)
        )
        if status != L_SUCCESS:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            return self._said(status)
        if ending & set(signal.sigpending()):
            self._undo(grant)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)  # ends us
            return L_ERROR
        if self.command:
            return run(self, lock, grant, mask)
        if grant is not None:
            stake = grant.handle.pop()
            stake.let_go = None  # it stays: that it is there is the lock
            stake.shut()
        return L_SUCCESS

    def _undo(self, grant: Grant | None) -> None:
        if grant is not None:
            grant.handle.pop().close()
        else:
            calls.lockfile_remove(self.path)

    # ---- words

    def _said(self, status: Status) -> int:
        """A status as the exit code; "held" is told to people only."""
        if status.why and not self.quiet and (status != L_MAXTRYS or os.isatty(2)):
            _warn(status.why)
        return int(status)

    def _no(self, status: Status) -> int:
        """0 or 1."""
        if status < 0 and status.why and not self.quiet and os.isatty(2):
            _warn(status.why)
        return int(status != 0)


class SignalledWait(RetryTerms):
    """Waits as a program does that signals may end, and that ends with who called it."""

    def __init__(self, call: DotlockCall, mask: Any) -> None:
        given = call.given
        super().__init__(given.get("r", RETRIES), given.get("i"), 1.0 if "i" in given else SLICE)
        self.call, self.mask, self.parent = call, mask, os.getppid()
        if "i" in given:  # kept to the second, whatever the start of an interpreter takes
            self.head = _age()
        self.begun = clock.now()
        self.notice_at = self.begun + FIRST_NOTICE if self._wants_words() else float("inf")
        self.gap = FIRST_NOTICE

    def _wants_words(self) -> bool:
        return os.isatty(2) and not self.call.quiet

    def sleep(self, wakeup: ThreadWakeup, seconds: float) -> None:
        held_back = signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)
        try:
            wakeup.wait(min(seconds, max(0.0, self.notice_at - clock.now())))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, held_back)
        if clock.now() >= self.notice_at:
            self.gap = next_gap(self.gap)
            self.notice_at = clock.now() + self.gap
            _tell(self.call._absolute, clock.now() - self.begun)

    def stop(self) -> Status | None:
        if os.getppid() == self.parent:
            return None
        return Status(L_ERROR, "whoever called us is gone, so nobody waits any more")


def _age() -> float:
    """Seconds since this process began."""
    from ..runtime.process import look

    ticks = look(os.getpid()).start_ticks
    return 0.0 if ticks is None else max(0.0, clock.now() - ticks / os.sysconf("SC_CLK_TCK"))


def _own_mailbox() -> str:
    """The lock file of -m. Raises Bad."""
    if mail := os.environ.get("MAIL"):
        return f"{mail}.lock"
    from ..runtime.process import user_name

    name = user_name(os.geteuid())
    if name is None:
        raise BadValue(f"-m: user {os.geteuid()} has no name, and so no mailbox: set MAIL")
    return f"{MAILDIR}{name}.lock"


def _tell(path: str, waited: float) -> None:
    """Who holds it, in the words of all commands."""
    from ..core import explain
    from ..local import identify
    from ..local.files import HOST
    from ..runtime import process

    holder = process.as_it_runs(identify.holder_at(HOST, path))
    _warn(explain.waiting_text(path, holder, waited, clock.utc_now(), None))


def _warn(text: str) -> None:
    render.say(masked_urls(text), prefix="dotlockfile: ")  # L11  it may quote what was typed


# ------------------------------------------------------------------------------------------------
# CMD under a dot lock: touched while it runs, removed when it has ended.
#
# Promise: INT, QUIT and HUP sent to us alone change nothing, as with the original; from a terminal
# CMD gets them itself, since it stays in our process group. TERM is passed on to CMD; what CMD
# leaves behind in our session gets it too, after 5 s KILL; then the lock is removed and we end by
# TERM. CMD inherits the open lock file, a witness of ours: when we are killed, ours know that CMD
# lives, and when it has ended. The original knows neither, and goes by the age or by our process
# number. How it could fail: CMD stopped together with us for 300 s, or longer without -p: others
# may take the lock, and we say so when we go on. What CMD leaves behind in another session (setsid)
# is not ended by TERM.


TOUCH = 30.0  # seconds
GRACE = 5.0  # from TERM to KILL
LOOK = 0.05  # seconds between two looks for what CMD left behind


def run(call: DotlockCall, lock: DotLock | None, grant: Grant | None, mask: object) -> int:
    """The exit code."""
    held = HeldDotlock(call, lock, grant)
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


class HeldDotlock:
    """The lock while CMD runs: of our own, or one that the set-gid dotlockfile made for us."""

    def __init__(self, call: DotlockCall, lock: DotLock | None, grant: Grant | None) -> None:
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
            _warn(f"{self.call.path}: {reason}")
        self.told = True


def _spawn(command: list[str], descriptor: int | None, mask: Any) -> int:
    """Start CMD with the witness in its hands. Raises OSError."""
    actions = [] if descriptor is None else [(os.POSIX_SPAWN_DUP2, descriptor, descriptor)]

    def start(words: list[str]) -> int:
        return os.posix_spawnp(
            words[0],
            words,
            os.environ,
            file_actions=actions,
            setsigmask=mask,
            setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),
        )

    if not command[0]:  # Python starts no program without a name, and raises ValueError
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    try:
        return start(command)
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
    return start(script_of(command))


def _cannot(call: DotlockCall, error: OSError) -> int:
    if not call.quiet:
        _warn(f"{call.command[0] or repr('')}: {error.strerror}")
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
    """CMD, and our children that share our session."""
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
            if int(parent) == me and (int(of) == session or int(name) == child):
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
    os._exit(SIGNAL + signal.SIGTERM)  # the kernel ends no process 1 of a PID namespace so
