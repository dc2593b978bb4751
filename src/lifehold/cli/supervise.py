"""`run -o`, and any lease: CMD does not inherit the lock, so another must hold it while CMD lives.

    wrapper         acquires, waits, releases
      supervisor    holds duplicates of the descriptors; in a process group of its own
        CMD         leads another

kill -9 of the wrapper, or of its whole group: the supervisor stops CMD's group, reaps it, and only
then lets go. kill -9 of the supervisor: the kernel kills CMD, and the wrapper, its subreaper, stops
what is left of the group and waits for its end.

Rule 1. The at-fork hook closes every lock descriptor of ours in a forked child (L9). The supervisor
gets ones that the hook does not know: dup(2) makes a second number for the *same* open file
description, so it holds the same lock. It is close-on-exec: CMD has it until exec, no longer.
Rule 2. The supervisor learns of the wrapper's death from a pipe whose other end only the wrapper
has: the end of file cannot be missed, forged or reused. PDEATHSIG only makes it look at once.
Rule 3. CMD dies with the supervisor by PDEATHSIG, asked for before exec; who was orphaned before
that sees another parent, and does not exec. CMD's pid is in the wrapper's hands before exec.

Not covered: wrapper and supervisor killed in the same instant free the lock some microseconds
before the kernel kills CMD, and only CMD, not what it started; a set-user-id CMD is not killed by
the kernel. PDEATHSIG and subreaper are Linux's; elsewhere rule 2 stands alone.
"""

from __future__ import annotations

import os

from . import exits
from .attend import Care, attend, become_subreaper, prctl
from .child import become, lead, refuse
from .render import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Sequence
else:
    import _signal as signal  # without `enum`, which costs 4 ms

PR_SET_PDEATHSIG = 1


def run_supervised(
    command: list[str], environment: dict[str, str], held: Sequence[int], care: Care,
    grace: float,
) -> int:  # fmt: skip
    """Run CMD under a supervisor that holds the locks of descriptors `held`; CMD's exit code.

    `grace`: seconds from TERM to KILL when the wrapper is gone, who alone renews leases.
    """
    become_subreaper()
    life, _alive = os.pipe()  # _alive stays open for as long as the wrapper lives
    news, tell = os.pipe()
    copies = [os.dup(number) for number in held]
    me = os.getpid()
    supervisor = os.fork()
    if supervisor == 0:
        code = exits.BUG
        try:
            os.close(_alive)
            code = _supervise(command, environment, care, grace, life, tell, me)
        except OSError as error:  # no process for CMD, most likely
            say(f"cannot run {care.what}: {error.strerror}")
            code = exits.REFUSED
        finally:
            os._exit(code)
    for number in (*copies, life, tell):
        os.close(number)
    child = int(os.read(news, 32) or 0)  # nothing, when the supervisor ended before it was there
    os.close(news)
    code = attend(supervisor, care, group=False)
    if child:  # gone with its group, as it should be, unless the supervisor was killed
        rest = Care(care.what, care.inbox, care.terminal, 0.0, lambda: "its supervisor was killed",
                    lambda _: None)  # fmt: skip
        attend(child, rest, code=code)
    return code


def _supervise(
    command: list[str], environment: dict[str, str], ours: Care, grace: float, life: int, tell: int,
    wrapper: int,
) -> int:  # fmt: skip
    """The life of the supervisor; its exit code is CMD's."""
    os.setpgid(0, 0)
    ours.inbox.renew()
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    become_subreaper()
    os.set_blocking(life, False)

    def orphaned() -> str | None:
        try:
            return None if os.read(life, 1) else f"process {wrapper} (lifehold run) is gone"
        except BlockingIOError:
            return None

    if orphaned():
        return exits.SIGNAL + signal.SIGTERM
    me = os.getpid()
    lend = ours.terminal.to_be_lent()
    child = os.fork()
    if child == 0:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == me:
            lead(ours.terminal, lend=lend)
            os.write(tell, b"%d" % os.getpid())
            os._exit(refuse(command, become(command, environment, ours.inbox)))
        os._exit(exits.BUG)
    os.close(tell)
    try:
        os.setpgid(child, child)  # whoever of the two comes first: a signal must find the group
    except OSError:
        pass  # it has become CMD, or is gone
    care = Care(
        ours.what, ours.inbox, ours.terminal, grace, orphaned,
        lambda reason: say(f"{reason}: stopping {ours.what}"),
    )  # fmt: skip
    return attend(child, care)
