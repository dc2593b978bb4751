"""`lifehold flock`: flock(1) of util-linux, for scripts that name it.

Promise: the same lock, options, messages and exit codes, and no byte of the file is touched: it is
opened for reading, locked by flock(2), and inherited by CMD, which then holds it too. What ours
adds: on a terminal a long wait says who holds the lock.
How it could fail: a signal while CMD runs (it ends us alone, and CMD keeps the lock, as with
flock(1)); -o and a wrapper killed (the lock is free beside CMD, as the man page of flock(1) warns).
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
from typing import TYPE_CHECKING, Any, NoReturn

from ..core.deadline import FIRST_NOTICE, next_gap
from ..core.mask import masked_urls
from ..runtime import clock, fork, heartbeat
from .options_flock import (
    CONFLICT,
    CREATE,
    DATA,
    FLOCK,
    INPUT,
    SYSTEM,
    UNAVAILABLE,
    WrongValue,
    conflict,
    parsed,
    timeout,
    whole,
)
from .row import Usage

if TYPE_CHECKING:
    from collections.abc import Callable

    from . import render
else:
    render = fork.later("lifehold.cli.render", globals())

AGES, TOO_LONG = 1e9, 2.0**63  # seconds of a timer; what the system takes no more
AGAIN = 0.05  # seconds: an alarm that comes just before the system call is lost, so it is repeated


class WaitOver(Exception):
    """The patience has ended."""


def flock(words: list[str]) -> int:
    """The exit code of `lifehold flock WORDS`."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # as any other program: ended by it
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        given, rest = parsed(words)
        if "h" in given:
            return _help()
        if "V" in given:
            from .. import __version__

            render.put(f"flock from lifehold {__version__}")
            return 0
        patience = timeout(given["w"]) if "w" in given else None
        code = conflict(given["E"]) if "E" in given else CONFLICT
        return Flock(given, rest, patience, code).run()
    except Usage as error:
        wrong = isinstance(error, WrongValue)
        hint = "" if wrong else "\nTry 'lifehold flock --help' for more information."
        _warn(f"{error}{hint}")
        return 64


class Flock:
    """One call."""

    def __init__(
        self, given: dict[str, Any], rest: list[str], patience: float | None, code: int
    ) -> None:
        self.given, self.patience, self.code = given, patience, code
        self.verbose, self.armed = "verbose" in given, False
        if not rest:
            known = WrongValue("requires file descriptor, file or directory")
            raise known if given else Usage("not enough arguments")
        self.command = _command(rest[1:])
        self.path = rest[0] if self.command else None
        self.number = -1 if self.command else _number(rest[0])
        if "F" in given and "o" in given:
            raise WrongValue("the --no-fork and --close options are incompatible")
        if patience is not None and not 0 <= patience < TOO_LONG:
            _warn("cannot set up timer: Invalid argument")
            raise SystemExit(SYSTEM)

    def run(self) -> int:
        fd = self.number if self.path is None else self._open(self.path, os.O_RDONLY)
        begun = clock.now()
        fd = self._lock(fd)
        if self.verbose:
            render.put(f"flock: getting lock took {clock.now() - begun:.6f} seconds")
        if not self.command:
            return 0
        if self.verbose:
            render.put(f"flock: executing {self.command[0]}")
        return self._run(fd)

    # ---- the file

    def _open(self, path: str, how: int) -> int:
        flags = how | os.O_NOCTTY | os.O_CREAT
        for each in (flags, flags & ~os.O_CREAT):  # a directory cannot be opened with O_CREAT
            try:
                return os.open(path, each, 0o666)
            except IsADirectoryError:
                continue
            except OSError as error:
                _warn(f"cannot open lock file {path}: {error.strerror}")
                if error.errno in (errno.ENOMEM, errno.EMFILE, errno.ENFILE):
                    raise SystemExit(SYSTEM) from None
                none = error.errno in (errno.EROFS, errno.ENOSPC)
                raise SystemExit(CREATE if none else INPUT) from None
        raise SystemExit(INPUT)

    # ---- the lock

    def _lock(self, fd: int) -> int:
        operation = fcntl.LOCK_SH if "s" in self.given else fcntl.LOCK_EX
        if "u" in self.given:
            operation = fcntl.LOCK_UN
        reopened = False
        if fd < 0:  # fcntl.flock raises ValueError
            self._refused(fd, OSError(errno.EBADF, os.strerror(errno.EBADF)))
        while True:
            try:
                fcntl.flock(fd, operation | fcntl.LOCK_NB)
                return fd
            except BlockingIOError:
                break
            except OSError as error:
                # Over NFS an exclusive lock needs a descriptor that may write.
                retry = error.errno in (errno.EIO, errno.EBADF) and self.path and not reopened
                if not (retry and self.path and os.access(self.path, os.W_OK)):
                    self._refused(fd, error)
                os.close(fd)
                fd, reopened = self._open(self.path, os.O_RDWR), True
        if "n" in self.given or self.patience == 0:
            self._in_vain("failed to get lock")
        self._wait(fd, operation)
        return fd

    def _wait(self, fd: int, operation: int) -> None:
        """In the kernel's queue; another thread tells who holds it, so that our place is kept."""
        signal.signal(signal.SIGALRM, signal.SIG_IGN)  # forgets one that is pending
        unblocked = set() if self.patience is None else {signal.SIGALRM}
        mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, unblocked)  # CMD finds it as it was
        signal.signal(signal.SIGALRM, self._too_late)
        told = FlockNotice(f"/proc/self/fd/{fd}" if self.path is None else self.path)
        if self.verbose or os.isatty(2):
            told.later()
        try:
            self.armed = True  # of an alarm of our caller's too
            if self.patience is not None:
                signal.setitimer(signal.ITIMER_REAL, min(self.patience, AGES), AGAIN)
            fcntl.flock(fd, operation)
            self.armed = False
        except WaitOver:
            self._at_last(fd, operation)
        except OSError as error:
            self._refused(fd, error)
        finally:
            self.armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            told.stop()
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def _too_late(self, _number: int, _frame: object) -> None:
        if self.armed:
            self.armed = False
            raise WaitOver

    def _at_last(self, fd: int, operation: int) -> None:
        """The alarm may come when the lock is ours already: of our caller's open file it stays."""
        try:
            fcntl.flock(fd, operation | fcntl.LOCK_NB)
        except OSError:
            self._in_vain("timeout while waiting to get lock")

    def _in_vain(self, text: str) -> NoReturn:
        if self.verbose:
            _warn(text)
            if told := _held(self.path, None) if self.path else "":
                _warn(told)
        raise SystemExit(self.code)

    def _refused(self, fd: int, error: OSError) -> NoReturn:
        _warn(f"{self.path or fd}: {error.strerror}")
        system = error.errno in (errno.ENOLCK, errno.ENOMEM)
        raise SystemExit(SYSTEM if system else DATA)

    # ---- CMD

    def _run(self, fd: int) -> int:
        if "o" not in self.given:
            os.set_inheritable(fd, True)
        if not self.command[0]:  # Python starts no program without a name, and raises ValueError
            return _cannot("", OSError(errno.ENOENT, os.strerror(errno.ENOENT)))
        if "F" not in self.given:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # it would reap CMD behind our back
        try:
            child = self._begun(self.command)
        except OSError as error:
            return _cannot(self.command[0], error)
        status = os.waitpid(child, 0)[1]
        return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)

    def _begun(self, command: list[str]) -> int:
        """CMD's pid; with -F we become CMD. Raises OSError."""
        try:
            if "F" in self.given:
                os.execvp(command[0], command)
            return os.posix_spawnp(
                command[0],
                command,
                os.environ,
                setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),
            )
        except OSError as error:
            if error.errno != errno.ENOEXEC or command is not self.command:
                raise
        from .child import script_of

        return self._begun(script_of(command))


class FlockNotice:
    """Says who holds the lock, after two seconds and then at growing intervals."""

    def __init__(self, path: str) -> None:
        self.path, self.begun, self.gap = path, clock.now(), FIRST_NOTICE
        self.end: Callable[[], None] | None = None
        self.over = False

    def later(self) -> None:
        self.end = heartbeat.at(clock.now() + self.gap, self._tell)

    def stop(self) -> None:
        self.over = True
        if self.end is not None:
            self.end()

    def _tell(self) -> None:
        text = _held(self.path, clock.now() - self.begun)
        if text and not self.over:
            _warn(text)
        if not self.over:
            self.gap = next_gap(self.gap)
            self.later()


def _command(rest: list[str]) -> list[str]:
    """CMD, if there is one."""
    if not rest or rest[0] not in ("-c", "--command"):
        return rest
    if len(rest) != 2:
        raise WrongValue(f"{rest[0]} requires exactly one command argument")
    return [os.environ.get("SHELL") or "/bin/sh", "-c", rest[1]]


def _number(text: str) -> int:
    found = whole(text)
    if found is None:
        raise WrongValue(f"bad file descriptor: '{text}'")
    if not -(1 << 31) <= found < 1 << 31:
        raise WrongValue(f"bad file descriptor: '{text}': {os.strerror(errno.ERANGE)}")
    return found


def _cannot(name: str, error: OSError) -> int:
    _warn(f"failed to execute {name}: {error.strerror}")
    return SYSTEM if error.errno == errno.ENOMEM else UNAVAILABLE


def _held(path: str, waited: float | None) -> str:
    """Who holds it, in the words of all commands; empty when that cannot be found out."""
    from ..core import explain
    from ..local import kernel_holders
    from ..local.files import HOST
    from ..runtime import clock, process

    try:
        holder = process.as_it_runs(kernel_holders.holder_of(HOST, os.path.realpath(path), True))
    except (OSError, ValueError):
        return ""
    path = path if "/" in path else f"./{path}"  # a word without a slash would be a name
    if waited is None:
        return explain.held_text(path, holder, None, clock.utc_now(), "", path, None, None)
    return explain.waiting_text(path, holder, waited, clock.utc_now(), None)


def _warn(text: str) -> None:
    render.say(masked_urls(text), prefix="flock: ")  # L11  it may quote what was typed


def _help() -> int:
    from .options import help_of

    render.show_help(help_of(FLOCK))
    return 0
