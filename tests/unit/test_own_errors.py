"""A signal handler's own OSError comes out of a wait, whichever call of the system it falls on.

The classic handler of SIGALRM raises TimeoutError, which is an OSError without an errno. What
expects a refusal of the system must not take it for one: the wait would go on to its end.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections import Counter
from contextlib import suppress

import pytest

from ground import needs
from lifehold import Lock, WouldBlock
from lifehold.local.files import CALLS, HOST
from lifehold.runtime import native

pytestmark = needs("linux")
KINDS = ("kernel", "soft", "link", "generation", "directory", "folder")
# Neither asks the system whether something may be done.
NO_QUESTION = ("clock_ns", "glance", "pause")
BESIDE = ("eventfd", "fstatvfs", "listdir", "lstat", "open", "pidfd_open", "readlink", "stat")
MOST = 400


def is_beyond_us():
    """Whether it is the library that asks, or the collector: what those lose is lost."""
    frame = sys._getframe(2)
    if not frame.f_globals["__name__"].startswith("lifehold"):
        return True
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None


class Seam:
    """The calls of this thread, counted. At the `left`-th one a signal handler raises `error`."""

    def __init__(self, monkeypatch):
        self.left, self.after, self.where, self.error = -1, False, "", None
        self.thread, self.inside = native.get_ident(), False
        for name in CALLS:
            if name not in NO_QUESTION and (call := getattr(HOST, name)) is not None:
                monkeypatch.setattr(HOST, name, self.met(name, call))
        monkeypatch.setattr(HOST, "again", HOST.fstat)
        for name in BESIDE:
            if hasattr(os, name):
                monkeypatch.setattr(os, name, self.met(name, getattr(os, name)))
        monkeypatch.setattr(native, "write", self.met("write", native.write))

    def met(self, name, call):
        def counted(*given, **more):
            if self.inside or native.get_ident() != self.thread or is_beyond_us():
                return call(*given, **more)
            self.left -= 1
            if self.left != 0:
                return call(*given, **more)
            self.where, self.inside = name, True
            try:
                if name == "close" or self.after:  # a close that was not made would be a leak
                    with suppress(OSError):
                        answer = call(*given, **more)
                        if name in ("open", "eventfd", "pidfd_open"):
                            os.close(answer)  # as runtime/fork.py does
            finally:
                self.inside = False
            raise self.error

        return counted

    def at(self, number, after, error):
        self.left, self.after, self.where, self.error = number, after, "", error


def left_open(folder):
    """What a wait may have left open; the thread that watches keeps its own for two seconds."""
    names = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            names.append(os.readlink(f"/proc/self/fd/{number}"))
    return Counter(name for name in names if str(folder) in name or "pidfd" in name)


def passed(error):
    """Where it was lost."""
    frames = traceback.extract_tb(error.__traceback__)
    return " < ".join(f"{os.path.basename(f.filename)}:{f.lineno}" for f in frames)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_error_of_a_signal_handler_at_any_call_comes_out_of_a_wait_in_vain(
    tmp_path, monkeypatch, kind, after
):
    path = str(tmp_path / "build.lock")
    holder = Lock(path, kind=kind)
    lost, number = [], 0
    with holder:
        with pytest.raises(WouldBlock):
            Lock(path, kind=kind).acquire(0)  # what a refusal loads is loaded now
        before = left_open(tmp_path)
        seam = Seam(monkeypatch)
        for number in range(1, MOST):
            error = TimeoutError("the program's own")
            waiter = Lock(path, kind=kind)
            seam.at(number, after, error)
            try:
                waiter.acquire(0.001)
            except BaseException as raised:
                came = raised
            where, seam.left = seam.where, -1
            if not where:
                break
            if came is not error:
                lost.append(f"{number} {where}: {passed(error)}")
            came = waiter = None
            error.__traceback__ = None
        monkeypatch.undo()
        assert not lost, "\n".join(lost)
        assert 3 < number < MOST - 1
        assert left_open(tmp_path) <= before
    Lock(path, kind=kind).acquire(0).release()
    assert sys.exc_info()[0] is None
