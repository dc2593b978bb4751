"""Signals as messages: blocked, then read one by one. No handler runs between two lines of ours.

Promise: a signal sent to the wrapper while CMD runs is neither lost nor fatal to the wrapper.
What the caller ignored (nohup, a shell's background job) stays ignored, here and in CMD.
A signal of the terminal goes to CMD as well, which is in our process group: `typed` says not to
repeat it.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
else:
    import _signal as signal  # without `enum`, which costs 4 ms

FORWARDED = tuple(
    getattr(signal, name)
    for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")
    if hasattr(signal, name)
)
SI_KERNEL = 128  # si_code of a signal that the terminal's driver made
# Python ignores these for itself; a command is to find them as they were.
RESTORED = tuple(getattr(signal, name) for name in ("SIGPIPE", "SIGXFSZ") if hasattr(signal, name))


def end_by_interrupt() -> None:
    """Die of SIGINT, as a program does that knows nothing of it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    os.kill(os.getpid(), signal.SIGINT)


class Inbox:
    """The signals of this process, from its making on.

    `mask`: as it was before, for CMD; `interrupted`: Ctrl-C was typed.
    """

    def __init__(self) -> None:
        self.interrupted = False
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, it would reap CMD behind our back
        kept = {number for number in FORWARDED if signal.getsignal(number) != signal.SIG_IGN}
        self._numbers = kept | {signal.SIGCHLD}
        self.mask = signal.pthread_sigmask(signal.SIG_BLOCK, self._numbers)
        self._pipe = None if hasattr(signal, "sigtimedwait") else self._by_handler()

    def next(self, seconds: float) -> tuple[int, bool] | None:
        """(signal, typed) of the next one, at most `seconds` from now; None when there was none."""
        if self._pipe is not None:
            import select

            ready = select.select([self._pipe], [], [], seconds)[0]
            return (os.read(self._pipe, 1)[0], False) if ready else None
        found = signal.sigtimedwait(self._numbers, seconds)
        if found is None:
            return None
        typed = found.si_code == SI_KERNEL
        self.interrupted |= typed and found.si_signo == signal.SIGINT
        return found.si_signo, typed

    def _by_handler(self) -> int:
        """Without sigtimedwait(2), as on macOS: empty handlers, and Python's wake-up pipe."""
        get, put = os.pipe()
        os.set_blocking(put, False)
        signal.set_wakeup_fd(put)
        for number in self._numbers:
            signal.signal(number, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)
        return get
