"""A forked child never holds its parent's locks, and never keeps them from others (L9)."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import lifehold
from crash.scene import (
    acquire_and_release,
    descriptors,
    free,
    hold,
    next_token,
    raised,
    until,
    waits_in_the_kernel,
)  # fmt: skip
from lifehold import Lock, NotHeld, Semaphore, WouldBlock
from lifehold.core import acquire, events
from lifehold.core.events import Waiting
from lifehold.runtime import flock_wait
from lifehold.runtime.blocking import ThreadWakeup
from lifehold.runtime.watch_table import Poller
from lifehold.testing.crash import Child, point


def test_a_child_forked_while_held_can_neither_release_nor_check_it(tmp_path):
    path = str(tmp_path / "lock")
    lease = Lock(path).acquire()

    def child():
        release, check = raised(lease.release), raised(lease.check)
        return [type(release).__name__, type(check).__name__, lease.held, descriptors(path)]

    with Child(child) as forked:
        assert forked.end().value == ["NotHeld", "NotHeld", False, []]
    lease.check()
    assert not free(path)
    lease.release()


def test_a_child_that_leaves_the_block_is_silent_and_frees_nothing(tmp_path):
    path = str(tmp_path / "lock")

    def holder():
        with Lock(path) as lease:
            if os.fork() == 0:
                point("child inside")
                lease = None
            else:
                point("parent inside")
                os.wait()
        if lease is None:
            os._exit(0)
        return "left"

    # Both stand at points on one line: the answers go to whoever asked first, which is enough here.
    with Child(holder) as child:
        child.step()
        child.step()
        end = child.end()
        assert end.value == "left", end.error
        assert end.error == ""
    assert free(path)


def test_a_child_is_excluded_by_its_parent_and_excludes_it_in_turn(tmp_path):
    path = str(tmp_path / "lock")
    lock = Lock(path)

    def child():
        refused = raised(lock.acquire, 0)
        point("refused", type(refused).__name__)
        mine = lock.acquire(60)
        point("held", mine.token)
        mine.release()

    with lock as lease, Child(child) as forked:
        assert forked.at("refused") == "WouldBlock"
        before = lease.token
        lease.release()
        assert forked.at("held") > before
        assert isinstance(raised(lock.acquire, 0), WouldBlock)
        assert forked.end().well
    assert lock.acquire(0).release() is None


def test_a_child_forked_from_an_idle_lock_has_descriptors_of_its_own(tmp_path):
    path = str(tmp_path / "lock")
    lock = Lock(path)
    lock.acquire().release()
    assert descriptors(path)

    def child():
        inherited = descriptors(path)
        lease = lock.acquire(0)
        point("held", inherited)
        lease.release()

    with Child(child) as forked:
        assert forked.at("held") == []
        assert isinstance(raised(lock.acquire, 0), WouldBlock)
        assert forked.end().well
    lock.acquire(0).release()


def test_a_killed_parent_frees_the_lock_though_its_child_lives_on(tmp_path):
    path = str(tmp_path / "lock")

    def parent():
        lease = Lock(path).acquire()
        pid = os.fork()
        if pid == 0:
            time.sleep(60)
            os._exit(0)
        point("held", [lease.token, pid])

    with Child(parent) as child:
        token, grandchild = child.at("held")
        child.kill()
        try:
            assert next_token(path, 1) > token
            os.kill(grandchild, 0)
        finally:
            os.kill(grandchild, signal.SIGKILL)


def test_a_released_lock_is_free_at_once_though_a_child_lives_on(tmp_path):
    path = str(tmp_path / "lock")
    lease = Lock(path).acquire()
    with Child(time.sleep, 60):
        lease.release()
        assert free(path)
        assert next_token(path, 0) > lease.token


def test_a_fork_behind_pythons_back_keeps_the_lock_until_that_child_ends(tmp_path):
    path = str(tmp_path / "lock")

    def parent():
        import ctypes

        Lock(path).acquire().release()
        lease = Lock(path).acquire()
        pid = ctypes.CDLL(None).fork()  # no at-fork hooks
        if pid == 0:
            time.sleep(60)
            os._exit(0)
        point("held", [lease.token, pid])

    with Child(parent) as child:
        token, grandchild = child.at("held")
        child.kill()
        assert isinstance(raised(Lock(path).acquire, 0), WouldBlock)
        assert "inherited" in Lock(path).holder().evidence
        os.kill(grandchild, signal.SIGKILL)
        assert next_token(path, 5) > token


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_multiprocessing_children_are_excluded_and_hold_nothing(tmp_path, method):
    path = str(tmp_path / "lock")
    source = f"""
import multiprocessing, sys
from lifehold import Lock, NotHeld, WouldBlock
def work(path, queue):
    try:
        Lock(path).acquire(0)
        queue.put("in")
    except WouldBlock as refused:
        queue.put(refused.holder.owner.pid)
if __name__ == "__main__":
    context = multiprocessing.get_context({method!r})
    import os
    with Lock({path!r}) as lease:
        queue = context.Queue()
        child = context.Process(target=work, args=({path!r}, queue))
        child.start()
        assert queue.get(timeout=60) == os.getpid()
        child.join(60)
        assert child.exitcode == 0
        lease.check()
"""
    script = tmp_path / "main.py"
    script.write_text(source)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, script], env=env, capture_output=True, text=True, timeout=150, check=False
    )
    assert done.returncode == 0, done.stderr
    assert free(path)


def test_a_command_started_with_open_descriptors_does_not_hold_the_lock(tmp_path):
    path = str(tmp_path / "lock")
    lease = Lock(path).acquire()
    command = subprocess.Popen(["sleep", "60"], close_fds=False)
    try:
        lease.release()
        assert descriptors(path, command.pid) == []
        assert free(path)
    finally:
        command.kill()
        command.wait()


def test_forks_among_acquiring_threads_inherit_nothing_and_never_hang(tmp_path):
    path = str(tmp_path / "lock")

    def family():
        stop = threading.Event()

        def contend():
            lock = Lock(path)
            while not stop.is_set():
                try:
                    lock.acquire(0.01).release()
                except TimeoutError:
                    pass

        def grandchild():
            left = descriptors(path)
            Lock(path).acquire(60).release()
            return left

        threads = [threading.Thread(target=contend) for _ in range(3)]
        for thread in threads:
            thread.start()
        found = []
        for _ in range(60):
            with Child(grandchild) as child:
                found.append(child.end().value)
        stop.set()
        for thread in threads:
            thread.join()
        return found

    with Child(family) as child:
        end = child.end(60)
    assert end.value == [[]] * 60, end.error


def test_a_child_forked_during_the_first_wait_of_a_thread_does_not_hang(tmp_path):
    """Hazard 1: the waiting thread imports lazily, and a fork tears its import lock apart."""
    path = str(tmp_path / "lock")
    source = """
import os, sys, threading, time
from lifehold import Lock
def wait():
    try: Lock(sys.argv[1]).acquire(0.2)
    except TimeoutError: pass
thread = threading.Thread(target=wait)
thread.start()
time.sleep(float(sys.argv[2]))      # another instant of the imports each time
pid = os.fork()
if pid == 0:
    import faulthandler
    faulthandler.dump_traceback_later(50, exit=True)
    try: Lock(sys.argv[1]).acquire(0.01)
    except TimeoutError: os._exit(7)
    os._exit(8)
end = time.monotonic() + 60
while not (done := os.waitpid(pid, os.WNOHANG))[0]:
    if time.monotonic() > end:
        os.kill(pid, 9)
        sys.exit("the child hangs")
    time.sleep(0.001)
thread.join()
sys.exit(os.waitstatus_to_exitcode(done[1]))
"""
    with Child(hold, path) as holder:
        holder.at("held")
        for number in range(20):
            with Child.script(source, path, number * 0.0007) as child:
                end = child.end()
                assert end.code == 7, end.error


def test_a_child_forked_while_a_thread_arms_the_signal_can_give_up(tmp_path):
    """Hazard: signal(2) sets SA_RESTART, siginterrupt(3) takes it back; a fork comes in between."""
    path = str(tmp_path / "lock")
    source = """
import os, sys, threading, time
from lifehold import Lock
from lifehold.runtime import flock_wait
def wait():
    try: Lock(sys.argv[1]).acquire(0.2)
    except TimeoutError: pass
def child():
    pid = os.fork()
    if pid:
        ended.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        return
    import faulthandler
    faulthandler.dump_traceback_later(5, exit=True)
    try: Lock(sys.argv[1]).acquire(0.01)
    except TimeoutError: os._exit(7)
    os._exit(8)
class Signal:
    def __getattr__(self, name): return getattr(real, name)
    def siginterrupt(self, number, flag):
        if not forks:
            forks.append(threading.Thread(target=child))
            forks[0].start()
            forks[0].join(0.3)
        real.siginterrupt(number, flag)
real, forks, ended = flock_wait._signal, [], []
flock_wait._signal = Signal()
wait()
forks[0].join()
sys.exit(ended[0])
"""
    with Child(hold, path) as holder:
        holder.at("held")
        with Child.script(source, path) as child:
            end = child.end(20)
            assert end.code == 7, end.error


def test_every_lazy_import_of_the_package_happens_under_the_fork_gate():
    """Hazard 1, for all of them: `fork.lazily(...)`, or a module that is there from the start."""
    package = Path(lifehold.__file__).parent
    known = subprocess.run(
        [sys.executable, "-S", "-c", "import lifehold.local.kernel, sys; print(*sys.modules)"],
        env={"PYTHONPATH": str(package.parent)}, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    bare = []
    for path in package.rglob("*.py"):
        where = str(path.relative_to(package))
        if where.startswith(("testing/", "cli/", "ops/", "audit/")) or where == "runtime/fork.py":
            continue
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                for node in ast.walk(function):
                    if isinstance(node, ast.Import):
                        names = [alias.name for alias in node.names]
                        bare += [f"{where}: {name}" for name in names if name not in known]
                    elif isinstance(node, ast.ImportFrom) and not node.level:
                        bare += [f"{where}: {node.module}"] if node.module not in known else []
    # Of kinds that poll, and of the refusal of a word: no kernel lock comes there.
    assert sorted(bare) == ["core/deadline.py: random", "core/nearest.py: difflib"]


def test_a_fork_in_a_signal_handler_of_a_waiting_thread_leaves_no_hanging_child(tmp_path):
    """The child comes back from the handler into a wait whose helper thread it does not have."""
    path = str(tmp_path / "lock")

    def waiter():
        children = []

        def handler(*_):
            pid = os.fork()
            if pid:
                children.append(pid)
            else:
                children.clear()

        signal.signal(signal.SIGUSR1, handler)
        lease = Lock(path).acquire(30)
        mine = os.getpid()
        lease.check()
        lease.release()
        if not children:
            os._exit(0)  # the child: it got the lock by a wait of its own
        return [mine, [os.waitpid(pid, 0)[1] for pid in children]]

    with Child(hold, path) as holder:
        holder.at("held")
        with Child(waiter) as child:
            until(lambda: waits_in_the_kernel(child.pid))
            child.signal(signal.SIGUSR1)
            until(lambda: Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text())
            holder.at("released")
            end = child.end(15)
            assert end.well, end.error
            assert end.value == [child.pid, [0]]


def test_a_lease_of_the_parent_stays_valid_through_many_forks(tmp_path):
    path = str(tmp_path / "lock")
    with Lock(path) as lease:
        for _ in range(20):
            with Child(acquire_and_release, path) as child:
                assert "WouldBlock" in child.end().error
        lease.check()
    with pytest.raises(NotHeld):
        lease.release()


def sleeps_in_the_kernel(process):
    """Whether its main thread slept all through a look of 50 ms.

    A signal that comes just before a system call does not end it: CPython calls no handler then.
    """

    def seen():
        words = Path(f"/proc/{process}/task/{process}/status").read_text()
        return [line for line in words.splitlines() if "State" in line or "ctxt" in line]

    before = seen()
    time.sleep(0.05)
    return before == seen() and "sleeping" in before[0]


@pytest.mark.parametrize("kind", ["kernel", "soft"])
def test_a_child_forked_behind_the_first_notice_does_not_sleep_until_the_next(tmp_path, kind):
    """Its parent's helper thread, or watch, is not there to wake it."""
    path = str(tmp_path / "lock")

    def waiter():
        told, forks = [], []

        def handler(*_):
            forks.append(os.fork())
            if forks[0]:
                point("forked", forks[0])

        signal.signal(signal.SIGALRM, handler)
        parent = os.getpid()
        events.listeners.append(lambda event: told.append(1) if type(event) is Waiting else None)
        main, asleep = threading.get_ident(), (ThreadWakeup.wait.__code__, Poller.wait.__code__)

        def sleeps():
            there = told and sys._current_frames()[main].f_code in asleep
            return there and sleeps_in_the_kernel(parent)

        threading.Thread(target=lambda: until(sleeps) and point("sleeps"), daemon=True).start()
        with Lock(path, kind=kind):
            if os.getpid() != parent:
                os._exit(7 if len(told) == 1 else 8)
        return os.waitstatus_to_exitcode(os.waitpid(forks[0], 0)[1])

    with Child(lambda: hold(path, kind=kind)) as holder:
        holder.at("held")
        with Child(waiter) as child:
            child.at("sleeps")
            child.go()
            child.signal(signal.SIGALRM)
            child.at("forked")
            child.go()
            holder.at("released")
            end = child.end(20)
            assert end.value == 7, end.error


WAITS = {
    "kernel": ("block", "wait", "_stand", "start"),
    "helper": ("block", "wait", "start", "__init__"),
    "soft": ("changed", "rung", "slept"),
    "semaphore": ("block", "start"),
}
ROOMS = ("runtime/flock_wait.py", "runtime/blocking.py", "runtime/watch_thread.py")


def forks_in(functions, every):
    """Fork before one of `every` bytecodes of those functions. The children, as they come."""
    me, children, seen = os.getpid(), [], set()

    def at_bytecode(frame, event, _):
        where = frame.f_code, frame.f_lasti
        if event == "opcode" and os.getpid() == me and where not in seen:
            seen.add(where)
            if len(seen) % every == 0:
                children.append(os.fork())
                if not children[-1]:
                    sys.settrace(None)
                    signal.alarm(120)
        return at_bytecode

    def entered(frame, event, _):
        code = frame.f_code
        if code.co_name in functions and code.co_filename.endswith(ROOMS):
            frame.f_trace, frame.f_trace_opcodes = at_bytecode, True
            return at_bytecode
        return None

    sys._getframe().f_trace_opcodes = True  # CPython 3.12 asks for it once, before settrace
    sys.settrace(entered)
    return children


def children_of(pid):
    return len(Path(f"/proc/{pid}/task/{pid}/children").read_text().split())


@pytest.mark.parametrize("kind", WAITS)
def test_a_child_forked_at_any_bytecode_of_a_wait_is_in_without_a_notice(tmp_path, kind):
    """Its parent's helper thread, watch and descriptors are not there to end its wait."""
    path = str(tmp_path / "lock")

    def wanted():
        if kind == "semaphore":
            return Semaphore(path, 1)
        return Lock(path, kind="soft" if kind == "soft" else "kernel")

    def waiter():
        acquire.FIRST_NOTICE = 600.0  # no child that sleeps for nothing is in before
        flock_wait.has_timers = flock_wait.has_timers and kind != "helper"
        me, lock = os.getpid(), wanted()
        children = forks_in(WAITS[kind], 3)
        try:
            lock.acquire().release()
        finally:
            sys.settrace(None)
            if os.getpid() != me:
                os._exit(0 if sys.exc_info()[0] is None else 9)
        return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]

    def holder():
        with wanted().acquire():
            point("held")

    with Child(holder) as first:
        first.at("held")
        with Child(waiter) as child:
            until(lambda: children_of(child.pid) > 8 and sleeps_in_the_kernel(child.pid))
            first.go()
            end = child.end(300)
            assert len(end.value) > 10, end.error
            assert set(end.value) == {0}, end.error
