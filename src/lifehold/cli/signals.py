"""Signals as messages: blocked, then read one by one. No handler runs between two lines of ours.

Promise: a signal sent to the wrapper while CMD runs is neither lost nor fatal to the wrapper.
What the caller ignored (nohup, a shell's background job) stays ignored, here and in CMD.
Stopping is a message too: CMD is stopped first, and then we with it (cli/child.py).
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
else:
    import _signal as signal  # without `enum`, which costs 4 ms


def numbers(*names: str) -> tuple[int, ...]:
    """Those signals that this system has."""
    return tuple(
        int(getattr(signal, f"SIG{name}")) for name in names if hasattr(signal, f"SIG{name}")
    )


FORWARDED = numbers("TERM", "INT", "HUP", "QUIT", "TSTP", "CONT", "WINCH")  # to CMD's whole group
FOR_ONE = numbers(
    "USR1", "USR2"
)  # to CMD alone: fatal to those of its group who know nothing of it
SI_KERNEL = 128  # si_code of a signal that the terminal's driver made
# While CMD has the terminal we are in the background; under `stty tostop` a word of ours on stderr
# would stop us. Who blocks this may write.
SILENCED = numbers("TTOU")
# Python ignores these for itself; a command is to find them as they were.
RESTORED = numbers("PIPE", "XFSZ")


def end_by_interrupt() -> None:
    """Die of SIGINT, as a program does that knows nothing of it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    os.kill(os.getpid(), signal.SIGINT)


class SignalQueue:
    """The signals of this process, from its making on.

    `mask`: as it was before, for CMD; `interrupted`: Ctrl-C was typed.
    """

    def __init__(self) -> None:
        self.interrupted = False
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, it would reap CMD behind our back
        wanted = FORWARDED + FOR_ONE
        kept = {number for number in wanted if signal.getsignal(number) != signal.SIG_IGN}
        self.numbers = kept | {int(signal.SIGCHLD)}
        self.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {*self.numbers, *SILENCED})
        self._pipe = -1
        self._late: list[int] = []
        if not hasattr(signal, "sigtimedwait"):
            self._by_handler()

    def next(self, seconds: float) -> int | None:
        """The next signal, at most `seconds` from now; None when there was none."""
        if self._pipe >= 0:
            return self._late.pop(0) if self._late else self._read(seconds)
        found = signal.sigtimedwait(self.numbers, max(0.0, seconds))
        if found is None:
            return None
        typed = found.si_code == SI_KERNEL
        self.interrupted |= typed and found.si_signo == signal.SIGINT
        return found.si_signo

    def stop(self, number: int) -> bool:
        """Be stopped by a signal of job control, with our whole process group, as by the terminal.

        Comes back when we are continued. False: nobody could continue us (an orphaned group), and
        so the kernel did not stop us.
        """
        if signal.getsignal(number) == signal.SIG_IGN:
            return False
        self._was_continued()  # forget what came before
        if number in self.numbers and self._pipe >= 0:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(0, number)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._own_mask)
        if number in self.numbers and self._pipe >= 0:
            signal.signal(number, _nothing)
        return self._was_continued()

    def renew(self) -> None:
        """In a forked child that attends a process of its own: the wake-up pipe is not shared.

        From one pipe either would read the messages of the other.
        """
        if self._pipe >= 0:
            self._late.clear()
            self._by_handler()

    def close(self) -> None:
        """In a forked child that turns into CMD: the signals as they were."""
        if self._pipe >= 0:
            signal.set_wakeup_fd(-1)
        for number in {*RESTORED, *self.numbers, signal.SIGINT}:
            if number in RESTORED or signal.getsignal(number) not in (
                signal.SIG_IGN,
                signal.SIG_DFL,
            ):
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)

    def _was_continued(self) -> bool:
        if self._pipe < 0:
            return signal.sigtimedwait({signal.SIGCONT}, 0) is not None
        while (number := self._read(0)) is not None:
            self._late.append(number)
        found = signal.SIGCONT in self._late
        self._late = [number for number in self._late if number != signal.SIGCONT]
        return found

    @property
    def _own_mask(self) -> set[int]:
        ours = () if self._pipe >= 0 else self.numbers
        return {int(number) for number in (*self.mask, *ours, *SILENCED)}

    # ---- without sigtimedwait(2), as on macOS: empty handlers, and Python's wake-up pipe

    def _by_handler(self) -> None:
        self._pipe, put = os.pipe()
        os.set_blocking(put, False)
        signal.set_wakeup_fd(put)
        for number in self.numbers:
            signal.signal(number, _nothing)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._own_mask)

    def _read(self, seconds: float) -> int | None:
        import select

        ready = select.select([self._pipe], [], [], max(0.0, seconds))[0]
        if not ready:
            return None
        number = os.read(self._pipe, 1)[0]
        self.interrupted |= number == signal.SIGINT
        return number


def _nothing(*_: object) -> None:
    """Not SIG_IGN, which the kernel would not even tell us of."""
