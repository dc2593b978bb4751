"""`run -o`: CMD does not inherit the lock, so somebody else must hold it for as long as CMD lives.

    wrapper         acquires, waits, releases
      supervisor    holds a duplicate of the descriptor
        CMD

kill -9 of the wrapper: the supervisor stops CMD, reaps it, and only then lets go. kill -9 of the
supervisor: the kernel kills CMD, and the wrapper, its subreaper, waits for its end.

Rule 1. The at-fork hook closes every lock descriptor of ours in a forked child (L9). The supervisor
gets one that the hook does not know: dup(2) makes a second number for the *same* open file
description, so it holds the same lock. It is close-on-exec: CMD has it until exec, no longer.
Rule 2. The supervisor learns of the wrapper's death from a pipe whose other end only the wrapper
has: the end of file cannot be missed, forged or reused. PDEATHSIG only makes it look at once.
Rule 3. CMD dies with the supervisor by PDEATHSIG, asked for before exec; who was orphaned before
that sees another parent, and does not exec. CMD's pid is in the wrapper's hands before exec.

Not covered: wrapper and supervisor killed in the same instant free the lock some microseconds
before the kernel kills CMD; a set-user-id CMD is not killed by the kernel. PDEATHSIG and subreaper
are Linux's; elsewhere rule 2 stands alone.
"""

from __future__ import annotations

import os
import sys

from ..runtime import fork
from . import exits
from .child import attend, become
from .render import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable
    from typing import Any

    from .inbox import Inbox
else:
    import _signal as signal  # without `enum`, which costs 4 ms

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def run_supervised(
    command: list[str], environment: dict[str, str], held: int, inbox: Inbox,
    why_stop: Callable[[], str | None], stopping: Callable[[str], None],
) -> int:  # fmt: skip
    """Run CMD under a supervisor that holds the lock of descriptor `held`; CMD's exit code."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    life, _alive = os.pipe()  # _alive stays open for as long as the wrapper lives
    news, tell = os.pipe()
    copy = os.dup(held)
    me = os.getpid()
    supervisor = os.fork()
    if supervisor == 0:
        code = exits.BUG
        try:
            os.close(_alive)
            code = _supervise(command, environment, inbox, life, tell, me)
        except OSError as error:  # no process for CMD, most likely
            say(f"cannot run {command[0]!r}: {error.strerror}")
            code = exits.REFUSED
        finally:
            os._exit(code)
    for number in (copy, life, tell):
        os.close(number)
    child = int(os.read(news, 32) or 0)  # nothing, when the supervisor ended before it was there
    code = attend(supervisor, inbox, why_stop, stopping, heir=child)
    if not child:
        return code
    try:
        return attend(child, inbox, lambda: "its supervisor was killed", lambda _: None)
    except ChildProcessError:
        return code  # the supervisor has reaped it, as it should


def _supervise(
    command: list[str],
    environment: dict[str, str],
    inbox: Inbox,
    life: int,
    tell: int,
    wrapper: int,
) -> int:
    """The life of the supervisor; its exit code is CMD's."""
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    os.set_blocking(life, False)

    def orphaned() -> str | None:
        try:
            return None if os.read(life, 1) else f"process {wrapper} (lifehold run) is gone"
        except BlockingIOError:
            return None

    if orphaned():
        return exits.SIGNAL + signal.SIGTERM
    me = os.getpid()
    child = os.fork()
    if child == 0:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == me:
            os.write(tell, b"%d" % os.getpid())
            refused = become(command, environment, inbox)
            say(str(refused))
            os._exit(refused.code)
        os._exit(exits.BUG)
    os.close(tell)
    return attend(child, inbox, orphaned, lambda reason: say(f"{reason}: stopping {command[0]!r}"))


def prctl(option: int, value: int) -> None:
    """Tell the kernel something about this process, where it is Linux."""
    if sys.platform != "linux":
        return
    ctypes: Any = fork.lazily("ctypes")
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
