"""The hazards of a kernel lock that were met while it was built: each has its test.

The table names where; what had none before stands below.
"""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import subprocess
import threading
import time

import pytest

from crash.scene import descriptors, free, hold, raised, until, waited_for
from ground import needs
from lifehold import AsyncLock, Lock, SystemRefused, WouldBlock
from lifehold.local.handles import TABLE
from lifehold.testing.crash import Child, point

HAZARDS = {
    1: ("a lazy import in a waiting thread, and a fork elsewhere",
        "crash.test_fork: a_child_forked_during_the_first_wait_of_a_thread_does_not_hang",
        "crash.test_fork: every_lazy_import_of_the_package_happens_under_the_fork_gate"),
    2: ("a fork between forgetting a descriptor and closing it",
        "crash.test_fork: forks_among_acquiring_threads_inherit_nothing_and_never_hang",
        "crash.test_hazards: no_fork_comes_between_forgetting_a_descriptor_and_closing_it"),
    3: ("a kept descriptor of a file that is gone",
        "crash.test_path: a_kept_descriptor_whose_old_file_is_held_does_not_make_the_lock_look_held",
        "crash.test_paths: held_by_the_file_of_before_does_not_mean_held"),
    4: ("a second release that unlocks the next owner",
        "crash.test_path: a_release_that_comes_late_does_not_touch_the_next_owner",
        "unit.test_seam: two_threads_that_release_one_grant_have_one_winner"),
    5: ("a child that inherits the descriptor of one who only looks",
        "crash.test_hazards: a_child_with_the_descriptor_of_one_who_only_looked_holds_nothing"),
    6: ("an interrupt that is swallowed by a finalizer",
        "crash.test_bytecodes: an_interrupt_of_a_wait_leaves_nothing_held_and_no_thread",
        "crash.test_signals: a_raising_handler_at_random_instants_never_leaves_the_lock_held"),
    7: ("signals of the program during a wait",
        "crash.test_signals: other_signals_reach_the_program_during_a_wait_and_do_not_end_it",
        "crash.test_fair: a_signal_or_a_notice_costs_a_fair_waiter_no_place"),
    8: ("a handler of the program's own for the signal that ends waits",
        "crash.test_signals: a_program_with_its_own_sigurg_handler_still_keeps_its_deadlines"),
    9: ("one thread with two objects",
        "crash.test_hazards: one_thread_that_would_wait_for_itself_is_told_fair_or_not"),
    10: ("a token that is lost, or a record that poisons it",
         "crash.test_path: a_deleted_file_and_a_clock_stepped_back_repeat_only_what_is_documented",
         "unit.test_content: a_poisoned_record_is_corrupt_and_nothing_is_held"),
    11: ("scripts that truncate the file as they begin to wait, or unlock without closing",
         "crash.test_path: a_script_that_truncates_at_open_hides_the_record_and_not_the_holder",
         "crash.test_hazards: an_unlock_that_closes_nothing_wakes_every_kind_of_waiter"),
    12: ("inode numbers that are not stable",
         "crash.test_path: unstable_inode_numbers_end_in_an_error_and_not_in_a_loop"),
    13: ("a fork behind Python's back",
         "crash.test_fork: a_fork_behind_pythons_back_keeps_the_lock_until_that_child_ends"),
    14: ("a file server where flock and byte ranges are one",
         "crash.test_fair: far_ground_is_refused"),
    15: ("no thread to be had",
         "crash.test_signals: a_thread_that_cannot_be_started_is_an_error_with_nothing_held",
         "crash.test_bad_input: no_thread_left_is_told_and_nothing_is_held"),
}  # fmt: skip


@pytest.fixture
def path(tmp_path):
    yield str(tmp_path / "lock")
    TABLE.close_idle()


@pytest.mark.parametrize("number", HAZARDS)
def test_every_hazard_has_its_test(number):
    what, *tests = HAZARDS[number]
    assert tests, what
    for where in tests:
        module, _, name = where.partition(": ")
        assert callable(getattr(importlib.import_module(module), f"test_{name}")), where


def test_no_fork_comes_between_forgetting_a_descriptor_and_closing_it(path, monkeypatch):
    """Hazard 2: a close that lets other threads run, while one of them forks."""
    files = TABLE.files
    close, inside, seen = files.close, threading.Event(), []

    def slow(fd):
        inside.set()
        time.sleep(0.02)
        close(fd)

    Lock(path).acquire().release()
    (mine,) = descriptors(path)
    with monkeypatch.context() as patch:
        patch.setattr(files, "close", slow)
        closer = threading.Thread(target=TABLE.close_idle)
        closer.start()
        inside.wait(60)
        child = os.fork()
        if not child:
            os._exit(1 if os.path.exists(f"/proc/self/fd/{mine}") and descriptors(path) else 0)
        seen.append(os.waitpid(child, 0)[1])
        closer.join()
    assert seen == [0]


def look_and_fork(path):
    looking = os.open(path, os.O_RDONLY)  # as `holder()` and `who` do, for a moment
    lease = Lock(path).acquire()
    child = os.fork()
    if not child:
        signal.alarm(20)
        os.fstat(looking)
        time.sleep(20)
        os._exit(0)
    point("forked", child)
    lease.release()


def test_a_child_with_the_descriptor_of_one_who_only_looked_holds_nothing(path):
    """Hazard 5."""
    Lock(path).acquire().release()
    with Child(look_and_fork, path) as parent:
        child = parent.at("forked")
        try:
            assert not free(path)
            parent.kill()
            until(lambda: free(path), 5)
            Lock(path).acquire(0).release()
        finally:
            os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("fair", [False, True])
def test_one_thread_that_would_wait_for_itself_is_told_fair_or_not(path, fair):
    """Hazard 9."""
    with Lock(path, fair=fair):
        error = raised(Lock(path, fair=fair).acquire)
        assert type(error).__name__ == "SelfDeadlock"
        with pytest.raises(WouldBlock):
            Lock(path, fair=fair).acquire(0)


def wait_for(path, kind):
    """Waits as one of the four kinds of waiter; how long it waited after the point "free"."""
    options = {"fair": kind.endswith("fair")}
    if kind.startswith("helper"):
        from lifehold.runtime import flock_wait

        flock_wait.has_timers = False
    if kind.startswith("task"):
        import asyncio

        async def main():
            async with AsyncLock(path, wait=20, **options):
                return time.monotonic()

        return asyncio.run(main())
    with Lock(path, wait=20, **options):
        return time.monotonic()


ENDS = {
    "unlock": 'exec 9>>"$0"; flock 9; echo; read x; flock -u 9; read x',
    "close": 'exec 9>>"$0"; flock 9; echo; read x; exec 9>&-; read x',
    "truncate": 'exec 9>"$0"; flock 9; echo; read x; flock -u 9; read x',
    "exit": 'exec 9>>"$0"; flock 9; echo; read x',
}


@needs("flock")
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("kind", ["own", "own fair", "helper", "helper fair", "task", "task fair"])
def test_an_unlock_that_closes_nothing_wakes_every_kind_of_waiter(path, kind, end):
    """Hazard 11: `flock -u 9` with the descriptor kept gives inotify no event at all."""
    Lock(path).acquire().release()
    script = subprocess.Popen(
        [shutil.which("sh"), "-c", ENDS[end], path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with script:
        script.stdout.readline()
        with Child(wait_for, path, kind) as waiter:
            until(lambda: waited_for(path))
            let_go = time.monotonic()
            script.stdin.write(b"\n")
            script.stdin.flush()
            ended = waiter.end()
            assert ended.well, ended.error
            assert ended.value - let_go < 1, "it was told by a notice, not by the kernel"
        script.kill()


def test_a_refused_thread_leaves_no_place_in_line(path, monkeypatch):
    """Hazard 15, for fair askers."""

    def refuse(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("lifehold.runtime.flock_wait.has_timers", False)
    monkeypatch.setattr("lifehold.runtime.flock_wait.native.start_new_thread", refuse)
    with Child(hold, path) as holder:
        holder.at("held")
        with pytest.raises(SystemRefused, match="no thread to wait in"):
            Lock(path, fair=True).acquire(5)
        holder.at("released")
        Lock(path, fair=True).acquire(0).release()
