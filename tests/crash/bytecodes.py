"""Something happens between every two bytecodes of lifehold's own code.

Sys.settrace plays the signal.

CPython itself looks for signals only after calls, at the start of functions and at jumps back.
Before those bytecodes, the *real* ones, nothing may stay held even while the exception and all its
frames are kept; before all others it is enough that dropping the exception drops the lock.
"""

from __future__ import annotations

import dis
import gc
import sys
from pathlib import Path

import lifehold

PACKAGE = str(Path(lifehold.__file__).parent)
# Looks and words: nothing is held or let go of there.
ONLY_TELLS = ("explain.py", "kernel_holders.py", "process.py", "ground.py", "mask.py", "heartbeat.py",
              "errors.py", "value.py", "record.py", "events.py")  # fmt: skip
LOOKS = ("CALL", "RESUME", "JUMP_BACKWARD")  # beginnings of bytecodes that look for signals
BLIND = ("CALL_INTRINSIC", "JUMP_BACKWARD_NO_INTERRUPT")  # and of those that do not all the same


class Interrupted(KeyboardInterrupt):
    """What the signal handler raises.

    A loop of asyncio ends by this one and by SystemExit alone. Any other exception that comes in a
    timer's callback is reported there, the timer is lost, and who waits for it waits for ever.
    """


def interrupt(_):
    raise Interrupted


class Before:
    """Runs a call, with `act(frame)` before its bytecode `number`. `came`: it came so far.

    `only_real`: counts real bytecodes only; `inside`: how the files begin whose code counts.
    """

    def __init__(self, number, act, call, skip=ONLY_TELLS, only_real=False, inside=PACKAGE):
        self.left, self.act, self.skip, self.only_real = number, act, skip, only_real
        self.inside = inside
        self.real, self.where, self.last = False, "", {}
        self.answer = self.error = None
        old = sys.gettrace()
        sys._getframe().f_trace_opcodes = True  # CPython 3.12 asks for it once, before settrace
        sys.settrace(self.enter)
        try:
            for _ in self.apart(call):
                pass
        finally:
            sys.settrace(old)

    def apart(self, call):
        """A generator has a stack of its own of the exceptions that are being handled.

        One that comes just before a handler's end (POP_EXCEPT) leaves the handler's own on that
        stack. On the thread's stack it would be the context of all later errors of the process.
        """
        try:
            self.answer = call()
        except BaseException as raised:
            self.error = raised
        return
        yield

    @property
    def came(self):
        return self.left < 0

    def enter(self, frame, event, _):
        name = frame.f_code.co_filename
        if self.came or not name.startswith(self.inside) or name.endswith(self.skip):
            return None
        frame.f_trace = self.each  # CPython 3.13 heeds the next line only in a frame that is traced
        frame.f_trace_opcodes = True
        return self.each

    def each(self, frame, event, _):
        if event != "opcode" or self.came:
            return self.each
        before = self.last.get(frame)
        self.last[frame] = frame.f_lasti
        name = "RESUME" if before is None else dis.opname[frame.f_code.co_code[before]]
        self.real = name.startswith(LOOKS) and not name.startswith(BLIND)
        self.left -= self.real or not self.only_real
        if self.left < 0:
            self.where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {name}"
            self.last.clear()
            self.act(frame)
        return self.each

    def forget(self):
        """Drop the exception with its frames."""
        self.error = None
        gc.collect()


def every_bytecode(act, call, skip=ONLY_TELLS, step=1, only_real=False):
    """A `Before` for each bytecode of `call()`, until it runs through.

    `call` is made anew each time.
    """
    number = 0
    while (run := Before(number, act, call, skip, only_real)).came:
        yield run
        number += step
    assert number, "no bytecode of lifehold was run"
