"""CMD of a `lifehold once`, from its start until its result is published.

Promise: a result is published when CMD ended by itself, and never after it was ended from outside
or the lock was lost. The lock is let go of before the rest of the output is passed on.
"""

from __future__ import annotations

import json
import os

from ..core.errors import LeaseLost, LifeholdError
from ..core.mask import printable
from ..recipes.once_results import COMMAND, packed
from ..runtime import clock
from . import exits, once_report
from .render import say
from .report import LOST, RAN
from .run import Hold
from .spool import Follower
from .terminal import Terminal

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from typing import Any

    from ..lock import Lease
    from ..recipes.once_results import Run
    from .report import Report
else:
    import _signal as signal  # without `enum`, which costs 4 ms

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
# CMD's status after a signal from outside; a crash of its own (SEGV, ABRT ...) is a failure.
FROM_OUTSIDE = frozenset(exits.SIGNAL + int(number) for number in (*ENDING, signal.SIGKILL))


class Lent(Terminal):
    """The terminal, to be lent or not as it was decided before stdout became a file."""

    __slots__ = ("decided",)

    def __init__(self) -> None:
        super().__init__()
        self.decided = super().to_be_lent()

    def to_be_lent(self) -> bool:
        return self.decided and self.is_of(self.home)


class OnceHold(Hold):
    """One run. `spool`: the open file that is CMD's stdout."""

    def __init__(
        self, lease: Lease, command: list[str], given: dict[str, Any], report: Report,
        run: Run, spool: int,
    ) -> None:  # fmt: skip
        super().__init__([lease], command, given, report)
        self.once, self.spool = run, spool
        self.until = self.care.until
        self.asked_to_end = self.lent = False
        self.facts: dict[str, Any] = {}
        self.terminal = self.care.terminal = Lent()
        self.stdout = os.dup(1)
        self.follower = Follower(spool, self.stdout)
        self._note_signals()

    def _note_signals(self) -> None:
        plain = self.inbox.next

        def noted(seconds: float) -> int | None:
            found = plain(seconds)
            self.asked_to_end |= found in ENDING
            return found

        self.inbox.next = noted  # type: ignore[method-assign]

    def to_the_end(self) -> int:
        """The exit code."""
        self.lent = self.terminal.to_be_lent()
        self.care.until = clock.now()  # from the beginning on
        try:
            os.dup2(self.spool, 1)
            try:
                code = child = self._run(lend=self.lent)
            finally:
                os.dup2(self.stdout, 1)
            code = self._publish(code)
        finally:
            self.once.withdraw()  # unless it was published
        code = self._let_go(code)
        self.report.ended(code, child, self.lost, LOST if self.lost else RAN)
        return code

    def pass_on(self, code: int) -> int:
        """The rest of the output, with the lock let go of and signals as they were; the code."""
        signal.pthread_sigmask(signal.SIG_SETMASK, self.inbox.mask)
        self.follower.rest()
        error = self.follower.error
        if error is None or isinstance(error, BrokenPipeError):
            return code
        say(f"the output of {self.care.what} cannot be written to stdout: {error.strerror}")
        return code or exits.REFUSED

    def as_typed(self, code: int) -> None:
        """Raises KeyboardInterrupt when Ctrl-C was what ended CMD."""
        self._as_typed(code, self.lent)

    @property
    def outcome(self) -> str:
        """In the words of the report."""
        if self.lost:
            return once_report.LOST
        return once_report.RAN if self.once.published else once_report.ENDED

    def _why_stop(self) -> str | None:
        self.follower.pump()
        now = clock.now()
        self.care.until = self.until
        why = super()._why_stop()
        self.care.until = min(self.until, now + self.follower.pause)
        return why

    def _publish(self, code: int) -> int:
        """The exit code, which a result has from here on."""
        lease = self.leases[0]
        name = f"'{printable(lease.name)}'"
        if self.lost:
            return code
        if code in FROM_OUTSIDE or (self.asked_to_end and code):
            say(f"{name}: {self.care.what} was ended from outside ({code}): there is no result, "
                "and whoever waits runs it next")  # fmt: skip
            return code
        try:
            lease.check()
            code = self._made(code)
            os.fsync(self.spool)
            size = os.fstat(self.spool).st_size
            output = self.once.shelf.with_output(self.spool, size)
            content = packed(COMMAND, lease.token, output, code=code, size=size)
            self.facts = json.loads(content.partition(b"\n")[0])
            self.once.publish(content)
        except LeaseLost as error:
            self.lost = error.text
            say(f"{error.text}; {self.care.what} had ended with {code}")
        except (LifeholdError, OSError) as error:
            say(f"{name}: {self.care.what} ended with {code}, and its output cannot be kept for "
                f"the others: {error}")  # fmt: skip
        return code

    def _made(self, code: int) -> int:
        """What is to be there before the result is: for `lifehold once --build`."""
        return code
