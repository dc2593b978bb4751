"""A signal handler raises in an acquire or a release while some kept frame has the open file too.

Who keeps an exception keeps frames, and a frame may have the open file of a lock among its locals.
That file is used again by later grants, so nothing may rest on its last reference being gone (L6).
"""

from __future__ import annotations

import contextlib
import sys

import pytest

from crash.scene import free
from lifehold import LeaseLost, Lock, NotHeld
from lifehold import lease as lease_module
from lifehold.local.handles import TABLE
from lifehold.local.kernel import KernelLock
from lifehold.local.open_file import OpenFileClaim, OpenFileLock


class Boom(Exception):
    """What the handler raises."""


def slot_of(lease):
    return lease._grant.handle[0]


def raising_at(code, number):
    """A trace function that raises before the bytecode `number` of `code`; what it has counted."""
    seen = []

    def trace(frame, event, _):
        if frame.f_code is not code:
            return trace if event == "call" else None
        frame.f_trace_opcodes = True
        if event == "opcode":
            seen.append(frame.f_lasti)
            if len(seen) == number:
                raise Boom
        return trace

    return trace, seen


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_release_that_is_interrupted_at_any_bytecode_frees_the_lock_though_its_file_is_kept(
    tmp_path,
):
    path, number, ended = str(tmp_path / "lock"), 0, False
    before = sys.gettrace()
    while not ended:
        number += 1
        held = Lock(path).acquire(30)
        kept = slot_of(held)
        trace, seen = raising_at(KernelLock.drop.__code__, number)
        sys.settrace(trace)
        try:
            held.release()
            ended = True
        except Boom:
            pass
        finally:
            sys.settrace(before)
        with contextlib.suppress(
            NotHeld, LeaseLost
        ):  # before the lock was let go of, who has it may again
            held.release()
        assert free(path), f"held behind bytecode {number}, at {seen[-1]}"
        kept.close()
    assert number > 20
    TABLE.close_idle()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_an_acquire_that_is_interrupted_at_its_end_frees_the_lock_though_its_file_is_kept(
    tmp_path, monkeypatch
):
    path, kept = str(tmp_path / "lock"), []

    def note(grant, *_):
        kept.extend(grant.handle)
        raise Boom

    with monkeypatch.context() as patch:
        patch.setattr(lease_module, "note", note)
        with pytest.raises(Boom):
            Lock(path).acquire(30)
    assert len(kept) == 1
    assert free(path)
    TABLE.close_idle()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize(
    "step",
    [
        OpenFileLock.attempt,
        OpenFileLock.drop,
        OpenFileLock.leads_here,
        OpenFileClaim.close,
    ],
)
def test_a_lock_on_an_open_file_that_is_interrupted_at_any_bytecode_is_free(step, tmp_path):
    number, ended, kept = 0, False, []
    begins = step is OpenFileLock.attempt
    before = sys.gettrace()
    with (tmp_path / "data").open("w") as file:
        while not ended:
            number += 1
            held = None
            trace, seen = raising_at(step.__code__, number)
            try:
                if begins:
                    sys.settrace(trace)
                held = Lock.on_file(file).acquire(0)
                kept = list(held._grant.handle)
                sys.settrace(before if begins else trace)
                held.release()
                ended = True
            except Boom:
                pass
            finally:
                sys.settrace(before)
            if held is not None:
                with contextlib.suppress(NotHeld):
                    held.release()
            assert free(file.name), f"held behind bytecode {number}, at {seen[-1]}"
            with Lock.on_file(file).acquire(0):
                assert not free(file.name)
    assert number > 20
    assert kept
