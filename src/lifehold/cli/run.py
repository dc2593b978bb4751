"""`lifehold run`: hold a lock while a command runs.

Promise: the lock is never free beside a running CMD, whichever of the processes is killed; CMD's
own exit code, output, input and terminal are left alone; who does not get the lock is told who has
it. Rule: CMD holds the lock itself, by inheriting the open file (cli/child.py); with -o a
supervisor does (cli/supervise.py), and with a lease: CMD cannot renew it, so CMD must not outlive
who does. When CMD and its process group are gone (cli/attend.py) the wrapper unlocks by hand, so
that what has left the group (setsid) does not go on holding the lock; only if the wrapper was
killed before, it does.
"""

from __future__ import annotations

import os

from ..core import around
from ..core.errors import LeaseLost, LifeholdError, NotAcquired, SystemRefused
from ..core.mask import printable
from ..local import lock_names
from ..runtime import clock
from . import exits
from .attend import Care, attend
from .child import CannotStart, become, spawn, spawn_at_terminal
from .inbox import Inbox
from .options_run import RUN, contradictions, names_and_command, quick
from .render import say
from .report import LOST, NOT_STARTED, RAN, REPLACED, Report
from .take import doubles_text, explain, let_go, locks_of, take
from .terminal import Terminal

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from typing import Any

    from ..lock import Lease
else:
    import _signal as signal  # without `enum`, which costs 4 ms

__all__ = ["doubles_text", "run"]


def run(words: list[str]) -> int:
    """The exit code of `lifehold run WORDS`."""
    given, rest = quick(RUN, words) or _thorough(words)
    names, command = names_and_command(given, rest)
    contradictions(given)
    if not hasattr(os, "posix_spawnp"):
        raise SystemRefused("`lifehold run` needs Unix; here use lifehold.Lock from Python")
    if given["skip_ok"] and given["wait"] is None:
        given["wait"] = 0.0
    locks = locks_of(names, given)
    report = Report(locks, command, given)
    try:
        leases = take(locks, given["wait"])
    except NotAcquired as error:
        code = exits.HELD if given["conflict"] is None else int(given["conflict"])
        code = exits.DONE if given["skip_ok"] else code
        report.refused(error, code)
        return code
    except LifeholdError as error:
        if report.failed(error, exits.code_of(error)):
            return exits.code_of(error)
        raise
    report.took(leases)
    if given["replace"]:
        return replace(leases, command, report, given["slot_env"])
    return Hold(leases, command, given, report).to_the_end()


def _thorough(words: list[str]) -> tuple[dict[str, Any], list[str]]:
    from .options import arguments  # the rows of all commands: a usual line does not need them

    return arguments(RUN, words)


class Hold:
    """CMD under its locks, from its start until they are let go of."""

    def __init__(
        self, leases: list[Lease], command: list[str], given: dict[str, Any], report: Report
    ) -> None:
        self.leases, self.command, self.given, self.report = leases, command, given, report
        self.lost = ""
        self.inbox, self.terminal = Inbox(), Terminal()
        self.max_hold: float | None = given["max_hold"]
        self.care = Care(
            f"'{printable(command[0])}'", self.inbox, self.terminal, given["grace"],
            self._why_stop, self._stopping,
            float("inf") if self.max_hold is None else clock.now() + self.max_hold,
        )  # fmt: skip

    def to_the_end(self) -> int:
        """The exit code."""
        lent = self.terminal.to_be_lent()
        child = None
        outcome = RAN
        try:
            code = child = self._run(lend=lent)
        except CannotStart as refused:
            say(str(refused))
            code, outcome = refused.code, NOT_STARTED
        code = self._let_go(code)
        if self.lost:
            outcome = LOST
        self.report.ended(code, child, self.lost, outcome)
        self._as_typed(code, lent)
        return code

    def _run(self, *, lend: bool) -> int:
        numbers = [lease.fileno() for lease in self.leases if is_lent(lease)]
        environment = environment_of(self.leases, self.given["slot_env"])
        ends = [end for lease in self.leases if (end := lease.remaining()) is not None]
        if self.given["close"] or ends:
            from .supervise import run_supervised

            # L8  Of a ttl two thirds are left when its renewals end, less the margin: CMD is gone
            # before anybody may take it over.
            grace = min([self.care.grace, *(end / 3 for end in ends)])
            return run_supervised(self.command, environment, numbers, self.care, grace)
        if lend:
            pid = spawn_at_terminal(self.command, environment, numbers, self.inbox, self.terminal)
        else:
            pid = spawn(self.command, environment, numbers, self.inbox)
        return attend(pid, self.care)

    def _why_stop(self) -> str | None:
        for lease in self.leases:
            # L8  A look may hang on a file server until long after the deadline, and CMD with it.
            # There the heartbeat looks, in a thread of its own, and here the clock alone is asked.
            if lease.remaining() and lease._lock._mechanism.far():
                continue
            try:
                lease.check()
            except LeaseLost as error:
                return error.text
        if clock.now() >= self.care.until:
            names = ", ".join(f"'{printable(lease.name)}'" for lease in self.leases)
            return f"{names}: held for {explain().span(self.max_hold)}, which is its --max-hold"
        return None

    def _stopping(self, reason: str) -> None:
        self.lost = reason
        say(
            f"{reason}\nlifehold: stopping {self.care.what}: TERM now, KILL after "
            f"{self.care.grace:g} s"
        )

    def _let_go(self, code: int) -> int:
        """Release the locks; the exit code, which changes when one of them turns out lost."""
        known = self.lost
        for lease in self.leases:
            try:
                lease.release()
            except LeaseLost as error:
                if not known:
                    self.lost = error.text
                    say(f"{error.text}; {self.care.what} had ended with {code} when that was "
                        "noticed")  # fmt: skip
            except LifeholdError as error:
                say(error.text)  # what CMD did is done, and a lease runs out by itself
        return exits.LOST if known or (self.lost and code == 0) else code

    def _as_typed(self, code: int, lent: bool) -> None:
        """Pass on what was typed to CMD alone, and ended it: to us, and to a script around us."""
        if code not in (exits.SIGNAL + signal.SIGINT, exits.SIGNAL + signal.SIGQUIT):
            return
        number = code - exits.SIGNAL
        if lent and self.terminal.is_of(self.terminal.home):
            os.kill(0, number)  # ours stays blocked
        if number == signal.SIGINT and (lent or self._interrupted()):
            raise KeyboardInterrupt

    def _interrupted(self) -> bool:
        """Whether Ctrl-C was typed, also if its message still waits behind that of CMD's end."""
        while not self.inbox.interrupted and self.inbox.next(0):
            pass
        return self.inbox.interrupted


def is_lent(lease: Lease) -> bool:
    """Whether a descriptor holds it, of which CMD's keeper gets a copy."""
    return not lock_names.is_store(lease.path) or lease._lock._mechanism.kind == "session"


def replace(
    leases: list[Lease], command: list[str], report: Report, variable: str | None = None
) -> int:
    """-F: become CMD, which holds the locks from then on. Comes back only when that cannot be."""
    for lease in leases:
        os.set_inheritable(lease.fileno(), True)
    report.ended(exits.DONE, None, outcome=REPLACED)
    error = CannotStart(command, become(command, environment_of(leases, variable), None))
    say(str(error))
    let_go(leases)
    report.ended(error.code, None, outcome=NOT_STARTED)
    return error.code


def environment_of(leases: list[Lease], variable: str | None = None) -> dict[str, str]:
    """What CMD finds in its environment: of several locks the first is told whole."""
    environment = dict(os.environ)
    first, held = leases[0], environment.get(around.VARIABLE, "")
    typed = getattr(first._lock, "typed", first.name)
    environment["LIFEHOLD_NAME"] = lock_names.shown(
        typed
    )  # L11  CMD finds a password where we found ours
    environment["LIFEHOLD_LOCK"] = first.path
    environment["LIFEHOLD_NONCE"] = first.nonce
    environment["LIFEHOLD_TOKEN"] = "" if first.token is None else str(first.token)
    for lease in leases:
        held = around.added(held, lease.nonce, lease.path)
    environment[around.VARIABLE] = held
    slots = getattr(first._lock, "environment", None)
    if slots is not None:
        environment |= slots(first, variable)
    return environment
