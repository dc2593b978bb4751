"""Children that stop at named points, to be killed, paused or let go there.

Crash tests without luck.

    def holder(path):
        lease = Lock(path).acquire()
        point("held", lease.token)              # in an ordinary process this does nothing
        lease.release()

    with Child(holder, path) as child:          # a fork of this process
        token = child.at("held")                # it has come there, and it stays there
        child.kill()                            # SIGKILL between two statements
    with Child.script(SOURCE, path, under=["unshare", "-pf", "--mount-proc"]) as child:
        child.at("held")                        # a fresh interpreter, here with PID 1

Rule: nothing here sleeps and hopes. A point reports over a socket and waits for the answer, and the
kernel itself writes the sender's process number into the report, translated into our PID namespace;
so `kill()` hits the process that stands at the point, whatever wraps it (unshare, strace, sh).
A child whose parent is gone ends at its next point. Linux only.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import traceback
from dataclasses import dataclass

from ..local.files import HOST
from ..runtime import clock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType
    from typing import Any

__all__ = ["Child", "ChildEnd", "ChildEnded", "point", "points_at_calls"]

PATIENCE = 30.0  # seconds after which a child that does not come is a failure
_ours: set[socket.socket] = set()  # to our children, in a parent


@dataclass(frozen=True, slots=True)
class ChildEnd:
    """How a child ended. `value`: what its function returned; `error`: its traceback or stderr."""

    code: int | None
    signal: int | None
    value: Any
    error: str

    @property
    def well(self) -> bool:
        """Whether it ended by itself and without an error."""
        return self.code == 0


class ChildEnded(AssertionError):
    """A child ended, or did not come, where it should have reached a point."""


class Child:
    """A process that runs `function(*args)` and stops at its points.

    Killed and reaped at the block's end.
    """

    def __init__(self, function: Callable[..., object], *args: object) -> None:
        self._open()
        mine, theirs = self._socket, self._theirs
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            mine.close()
            _run(theirs, function, args)
        self._started()

    @classmethod
    def script(
        cls,
        source: str,
        *args: object,
        under: Sequence[str] = (),
        python: str = sys.executable,
        env: dict[str, str] | None = None,
    ) -> Child:
        """A fresh interpreter that runs `source`, under a wrapping command.

        It finds `args` in `sys.argv[1:]`.
        """
        self = cls.__new__(cls)
        self._open()
        number = self._theirs.fileno()
        paths = os.pathsep.join(path for path in sys.path if path)
        known = {"PYTHONPATH": paths} | dict(os.environ) | (env or {}) | {LINE: str(number)}
        self._process = subprocess.Popen(
            [*under, python, "-c", source, *map(str, args)],
            pass_fds=[number],
            env=known,
            stdin=subprocess.DEVNULL,
            stderr=self._stderr,
        )
        self.pid = self._process.pid
        self._started()
        return self

    def _open(self) -> None:
        self._socket, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - for the child's whole life
        self._process: subprocess.Popen[bytes] | None = None
        self._end: ChildEnd | None = None
        self._report: dict[str, Any] = {}
        self._waiting = False  # the child stands at a point

    def _started(self) -> None:
        self._theirs.close()
        self._pidfd = os.pidfd_open(self.pid)
        _ours.add(self._socket)
        self.victim = self.pid  # who sent the last report
        self.passed: list[str] = []  # the points so far

    # ---- where it is
    # -----------------------------------------------------------------------------------

    def step(self, within: float = PATIENCE) -> str | None:
        """Let it go on to its next point, whatever that is.

        The name, None when it ended instead.
        """
        self.go()
        watched: list[Any] = [self._socket, self._pidfd]
        ready = select.select(watched, [], [], within)[0]
        if not ready:
            raise ChildEnded(f"{within:g} s after {self.passed[-1:] or 'its start'} it is nowhere")
        if self._socket not in ready and not select.select([self._socket], [], [], 0)[0]:
            # It is gone, though a child of its own may keep the line open. Its last word was sent
            # before its end was seen, and so would be here.
            return None
        text, credentials, _, _ = self._socket.recvmsg(1 << 20, socket.CMSG_SPACE(12))
        if not text:
            return None
        if credentials:
            self.victim = struct.unpack("3i", credentials[0][2])[0] or self.victim
        self._report = json.loads(text)
        if "at" not in self._report:
            return None  # its last word
        self._waiting = True
        self.passed.append(self._report["at"])
        return self.passed[-1]

    def at(self, name: str, within: float = PATIENCE) -> Any:
        """Wait until it stands at the point `name`, letting it pass all others.

        The point's value.
        """
        until = clock.now() + within
        while (found := self.step(max(0.001, until - clock.now()))) != name:
            if found is None:
                raise ChildEnded(f"it ended before {name!r}, after {self.passed}: {self.end()}")
        return self.value

    @property
    def value(self) -> Any:
        """What it told at the point where it stands."""
        return self._report.get("value")

    def go(self) -> None:
        """Let it go on from the point where it stands."""
        if self._waiting:
            self._waiting = False
            try:
                self._socket.send(b"g")
            except OSError:
                pass  # it was killed where it stood

    # ---- what is done to it
    # ----------------------------------------------------------------------------

    def kill(self, within: float = PATIENCE) -> ChildEnd:
        """SIGKILL to the process that stands at the point, or stood at the last one.

        Then its end.
        """
        self.signal(signal.SIGKILL)
        return self.end(within)

    def signal(self, number: int) -> None:
        """Send a signal to the process that reported last."""
        try:
            os.kill(self.victim, number)
        except ProcessLookupError:
            pass

    def stop(self) -> None:
        """SIGSTOP, and wait until it does stand still."""
        self.signal(signal.SIGSTOP)
        until = clock.now() + PATIENCE
        while _state(self.victim) not in ("T", "t", "Z", "?"):
            if clock.now() > until:
                raise ChildEnded(f"process {self.victim} does not stop")
            clock.pause(0.001)

    def resume(self) -> None:
        """SIGCONT."""
        self.signal(signal.SIGCONT)

    def end(self, within: float = PATIENCE) -> ChildEnd:
        """Let it run to its end, passing every point, and reap it."""
        if self._end is not None:
            return self._end
        until = clock.now() + within
        try:
            while self.step(max(0.001, until - clock.now())) is not None:
                pass
        except (ChildEnded, OSError):
            pass  # killed, or stopped where no point is: waited for below
        while (done := os.waitpid(self.pid, os.WNOHANG))[0] == 0:
            if clock.now() > until:
                raise ChildEnded(
                    f"process {self.pid} has not ended within {within:g} s, after {self.passed}"
                )
            clock.pause(0.001)
        code = os.waitstatus_to_exitcode(done[1])
        if self._process is not None:
            self._process.returncode = code
        self._stderr.seek(0)
        error = self._report.get("error") or self._stderr.read().decode(errors="replace")
        value = self._report.get("returned")
        self._end = ChildEnd(code if code >= 0 else None, -code if code < 0 else None, value, error)
        return self._end

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if self._end is None:
                for pid in {self.victim, self.pid}:
                    try:
                        os.kill(pid, signal.SIGKILL)
                    except ProcessLookupError:
                        pass
                self.end()
        finally:
            _ours.discard(self._socket)
            self._socket.close()
            self._stderr.close()
            os.close(self._pidfd)


def _run(line: socket.socket, function: Callable[..., object], args: tuple[object, ...]) -> None:
    """The whole life of a forked child."""
    code = 1
    try:
        report_to(line)
        for other in _ours:
            other.close()  # else the siblings would not notice that their parent is gone
        _ours.clear()
        word: dict[str, object] = {"returned": function(*args)}
        code = 0
    except SystemExit as exit_:
        word, code = {}, exit_.code if isinstance(exit_.code, int) else 1
    except BaseException:
        word = {"error": traceback.format_exc()}
    try:
        line.send(json.dumps(word, default=repr).encode())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _state(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0].decode()
    except OSError:
        return "?"


# ------------------------------------------------------------------------------------------------
# The child's side: named points at which it stops until its parent says go on.


LINE = "LIFEHOLD_TESTING_LINE"  # environment variable: the descriptor on which a script reports
CALLS = tuple("open close flock lstat fstat pread pwrite fchmod unlink makedirs".split())
ORPHAN = 86  # exit code of a child that found its parent gone

_line: socket.socket | None = None  # to our parent, in a child


def report_to(line: socket.socket) -> None:
    """From now on points of this process are reported there."""
    global _line
    _line = line


def point(name: str, value: object = None) -> None:
    """Stop here until the parent says go on. Does nothing in a process that no `Child` started."""
    line = _line or _inherited_line()
    if line is None:
        return
    line.send(json.dumps({"at": name, "value": value}).encode())
    if not line.recv(1):
        os._exit(ORPHAN)


def points_at_calls(names: Sequence[str] = CALLS) -> None:
    """Make each call that this process's locks make a point before and one after it.

    The points are called "before pwrite", "after pwrite" and so on; `names` chooses the calls.
    """
    for name in names:
        setattr(HOST, name, _between_points(name, getattr(HOST, name)))


def _between_points(name: str, call: Callable[..., object]) -> Callable[..., object]:
    def stopped(*args: object, **named: object) -> Any:
        point(f"before {name}")
        try:
            return call(*args, **named)
        finally:
            point(f"after {name}")

    return stopped


def _inherited_line() -> socket.socket | None:
    global _line
    number = os.environ.get(LINE)
    if number is not None:
        del os.environ[LINE]  # children of this process are not the ones who were asked
        _line = socket.socket(fileno=int(number))
        _line.set_inheritable(False)
    return _line
