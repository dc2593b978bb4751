"""The terminal's foreground: lent to CMD's process group, and taken back.

Promise: Ctrl-C, Ctrl-Z, fg and bg work as they do without lifehold. Rule: the terminal is given
to CMD only while it is ours to give (our process group is in the foreground), and taken back only
while CMD's has it: whatever a shell has decided in between stays decided.
"""

from __future__ import annotations

import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
else:
    import _signal as signal  # without `enum`, which costs 4 ms


class Terminal:
    """The controlling terminal, if there is one. `home`: our process group."""

    __slots__ = ("_decided", "_fd", "home")

    def __init__(self) -> None:
        self.home = os.getpgrp()
        self._decided: bool | None = None
        try:
            self._fd = os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            self._fd = -1

    def __bool__(self) -> bool:
        """Whether there is one: without, nobody could continue who is stopped."""
        return self._fd >= 0

    def is_of(self, group: int) -> bool:
        """Whether `group` is the one in the foreground."""
        try:
            return self._fd >= 0 and os.tcgetpgrp(self._fd) == group
        except OSError:
            return False  # hung up

    def to_be_lent(self) -> bool:
        """Whether CMD is to have the foreground from its first instruction on.

        Not in a pipeline, `lifehold run x -- make | less`: there the others have a claim to it, and
        CMD gets it when it asks for it, by being stopped for reading.
        """
        if self._decided is not None:
            return self._decided and self.is_of(self.home)
        return self.is_of(self.home) and not _piped(0) and not _piped(1)

    def decide(self) -> None:
        """Whether it is to be lent is decided now: before stdout becomes a file."""
        self._decided = self.to_be_lent()

    def give(self, group: int) -> None:
        """Put `group` into the foreground."""
        # From the background that is allowed only to who blocks SIGTTOU.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
        try:
            os.tcsetpgrp(self._fd, group)
        except OSError:
            return  # hung up, or the group is gone: a terminal is never worth the lock
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def take_back(self, group: int) -> bool:
        """Put our own group into the foreground, if it is `group` that is there."""
        if not self.is_of(group):
            return False
        self.give(self.home)
        return True


def _piped(number: int) -> bool:
    try:
        mode = os.fstat(number).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
