"""What a forked child has copies of: descriptors that lock, or that tell that somebody lives (L9).

The instant of each fork is forced, by the call that it comes in the middle of. The child lives on.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time

import pytest

from crash.scene import free, raised, until
from ground import needs
from lifehold import Lock
from lifehold.compat import liblockfile, lockfolder
from lifehold.compat.filelock import native as unix
from lifehold.local import kernel_holders
from lifehold.local.files import HOST
from lifehold.local.handles import TABLE, LockFile
from lifehold.local.record_handle import created
from lifehold.recipes.fence.http import MemoryTokens, RequestsInside
from lifehold.recipes.fence.objects import MemoryObjects
from lifehold.recipes.once_build import BuildFolder
from lifehold.runtime import fork, native, process, wakeup_pipes, watch_thread
from lifehold.testing.crash import Child, point

pytestmark = needs("linux", "fork")


class Forking:
    """Stands in front of `real`; before its function `name` another thread forks, once."""

    def __init__(self, real, name):
        self._real, self._name, self.child = real, name, 0

    def __getattr__(self, name):
        if name == self._name and not self.child:
            self.child = -1
            thread = threading.Thread(target=self._fork)
            thread.start()
            thread.join(0.3)  # it waits longer where no fork may come
        return getattr(self._real, name)

    def _fork(self):
        self.child = os.fork()
        if self.child == 0:
            signal.alarm(60)
            signal.pause()
            os._exit(0)

    @contextlib.contextmanager
    def living(self):
        """The child is there."""
        until(lambda: self.child > 0)
        try:
            yield
        finally:
            os.kill(self.child, signal.SIGKILL)
            os.waitpid(self.child, 0)


def is_taken(files, path, monkeypatch):
    monkeypatch.setattr(kernel_holders, "INITIAL_PID_NAMESPACE", 0)  # as in any other: it is tried
    return kernel_holders.is_taken(files, path)


def is_abandoned(files, path, monkeypatch):
    return not BuildFolder(files, path, lambda _: None)._abandoned(path)


def flock_is_missing(files, path, monkeypatch):
    monkeypatch.setattr(unix.TABLE, "files", files)
    return unix.flock_is_missing(path)


@pytest.mark.parametrize("question", [is_taken, is_abandoned, flock_is_missing])
def test_a_child_forked_while_it_is_asked_whether_a_lock_is_free_does_not_hold_it(
    question, tmp_path, monkeypatch
):
    path = str(tmp_path / "lock")
    Lock(path).acquire().release()
    files = Forking(HOST, "close")
    assert not question(files, path, monkeypatch)
    with files.living():
        until(lambda: free(path))  # once the fork is over


def test_a_child_forked_while_a_waiter_is_called_does_not_keep_it_alive(tmp_path, monkeypatch):
    folder = str(tmp_path / "bells")

    def waiter():
        rung = threading.Event()
        bell = wakeup_pipes.PipeWakeups(folder, False).listen("ab", rung.set)
        point("waits", bell)
        assert rung.wait(60)
        point("rung")

    ours = wakeup_pipes.PipeWakeups(folder, False)
    with Child(waiter) as child:
        bell = child.at("waits")
        child.go()
        calls = Forking(native, "write")
        monkeypatch.setattr(wakeup_pipes, "native", calls)
        assert ours.call(bell)
        monkeypatch.undo()
        with calls.living():
            child.at("rung")
            assert not ours.dead(bell)
            child.kill()
            until(lambda: ours.dead(bell))


def test_a_child_forked_while_a_waiter_begins_does_not_keep_it_alive(tmp_path, monkeypatch):
    folder = str(tmp_path / "bells")

    def waiter():
        calls = Forking(os, "fstat")
        wakeup_pipes.os = calls
        bell = wakeup_pipes.PipeWakeups(folder, False).listen("ab", print)
        until(lambda: calls.child > 0)
        point("waits", [bell, calls.child])

    with Child(waiter) as child:
        bell, grandchild = child.at("waits")
        child.kill()
        try:
            until(
                lambda: wakeup_pipes.PipeWakeups(folder, False).dead(bell)
            )  # once the fork is over
        finally:
            os.kill(grandchild, signal.SIGKILL)


@pytest.mark.parametrize("c_code", [False, True], ids=["python", "C code"])
def test_a_child_takes_no_living_waiter_of_its_parent_for_dead(c_code, tmp_path):
    rung = threading.Event()
    ours = wakeup_pipes.PipeWakeups(str(tmp_path / "bells"), False)
    bell = ours.listen("ab", rung.set)

    def seen():
        fork.here()  # as each step of a store does before it looks at the line
        assert not ours.dead(bell)
        assert not ours.ours(bell)
        assert ours.call(bell)

    try:
        assert outcome(seen, c_code) == "None"
        assert rung.wait(60)
    finally:
        ours.close()


# ---- what is closed in a child, by whom it is no more


def _forked_by_c_code():
    """No other thread asks for the interpreter meanwhile: a child would wait for it for ever."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    try:
        time.sleep(0.05)  # who asks already has its turn
        return ctypes.PyDLL(None).fork()
    finally:
        sys.setswitchinterval(usual)


def outcome(work, c_code=True):
    """What `work()` answers in a child that C code, or Python, forks."""
    here, there = os.pipe()
    pid = _forked_by_c_code() if c_code else os.fork()
    if pid == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(10)
        answer = raised(work)
        os.write(there, repr(answer).encode())
        os._exit(0)
    os.close(there)
    with os.fdopen(here, "rb") as file:
        said = file.read().decode()
    os.waitpid(pid, 0)
    return said or "it hangs"


@contextlib.contextmanager
def held_by_a_thread(lock):
    """Another thread of this process has it."""
    entered, leave = threading.Event(), threading.Event()

    def work():
        with lock:
            entered.set()
            leave.wait()

    thread = threading.Thread(target=work)
    thread.start()
    entered.wait()
    try:
        yield
    finally:
        leave.set()
        thread.join()


def forks():
    if os.fork() == 0:
        os._exit(0)
    os.wait()


def test_a_child_of_c_code_forked_while_a_thread_has_the_gate_goes_on(tmp_path):
    path = str(tmp_path / "lock")
    slot = LockFile(TABLE, path, None, False)
    works = [
        forks, lambda: fork.lazily("colorsys"), lambda: Lock(path).acquire(0), slot.close,
        lambda: __import__("lifehold").connect("memory://forked"),
    ]  # fmt: skip
    sys.modules.pop("colorsys", None)
    with held_by_a_thread(fork.gate):
        found = [outcome(work) for work in works]
    slot.close()
    assert found == ["None"] * len(works)


def test_a_stake_that_a_thread_of_the_parent_renews_is_nothing_to_a_child(tmp_path):
    stake = created(TABLE, str(tmp_path / "record"), 0o600)
    with held_by_a_thread(stake.mutex):
        found = outcome(stake.close, c_code=False)
    stake.close()
    assert found == "None"


def test_a_child_of_c_code_takes_no_watch_of_its_parent_away(tmp_path):
    rung = threading.Event()
    watch = watch_thread.watch(str(tmp_path / "a"), rung.set)
    number = next(iter(watch_thread.near.numbers))
    assert outcome(watch.close) == "None"
    assert number in [int(line.split("wd:")[1].split()[0], 16) for line in watches_of_the_kernel()]
    watch.close()


def watches_of_the_kernel():
    with open(f"/proc/self/fdinfo/{watch_thread.near.notifier.fd}") as file:
        return [line for line in file if line.startswith("inotify")]


def test_a_signal_in_the_middle_of_a_child_of_c_code_that_finds_itself_waits(tmp_path, monkeypatch):
    """Its handler acquires, and what it holds is not forgotten as its parent's."""
    path, held = str(tmp_path / "lock"), []

    def interrupted():
        if os.getpid() != parent:
            os.kill(os.getpid(), signal.SIGUSR1)

    def work():
        signal.signal(signal.SIGUSR1, lambda *_: held.append(Lock(path).acquire(0)))
        fork.here()
        held[0].check()
        assert not free(path)

    parent = os.getpid()
    monkeypatch.setattr(fork, "_callbacks", {interrupted: interrupted, **fork._callbacks})
    assert process.here().pid == parent
    assert outcome(work) == "None"


def test_the_collector_in_a_thread_that_a_hook_of_others_waits_for_does_not_stop_a_fork(tmp_path):
    """The hooks come last that were registered first: the fork gate is taken before them."""
    source = """
import gc, os, sys, threading, warnings
theirs, waits = threading.Lock(), threading.Event()
def before():
    waits.set()
    theirs.acquire()
os.register_at_fork(
    before=before, after_in_parent=theirs.release, after_in_child=theirs.release
)
from lifehold import Lock
warnings.simplefilter("ignore")
path, kind = sys.argv[1:]
def collects():
    leases = [Lock(path, kind=kind).acquire(0)]
    leases[0].lost.add_callback(print)
    with theirs:
        entered.set()
        waits.wait()
        leases.clear()
        gc.collect()
entered = threading.Event()
thread = threading.Thread(target=collects)
thread.start()
entered.wait()
if os.fork() == 0:
    os._exit(0)
os.wait()
thread.join()
Lock(path, kind=kind).acquire(60).release()
"""
    for kind in ("kernel", "soft", "link"):
        with Child.script(source, str(tmp_path / kind), kind) as child:
            end = child.end(10)
            assert end.well, (kind, end.error)


def test_a_child_may_ask_to_be_told_of_the_loss_of_what_its_parent_holds(tmp_path):
    """Forked while a thread of its parent asks the same."""
    lease = Lock(str(tmp_path / "lock")).acquire()
    lost, entered = lease.lost, threading.Event()

    class Slow(list):
        def append(self, _):
            entered.set()
            threading.Event().wait(0.3)

    lost._callbacks = Slow()
    thread = threading.Thread(target=lost.add_callback, args=(print,))
    thread.start()
    entered.wait()
    lost._callbacks = []
    assert outcome(lambda: lost.add_callback(print), c_code=False) == "None"
    thread.join()
    lease.release()


class Slow(str):
    """A name that takes its time, the first time."""

    __slots__ = ("entered",)
    __eq__ = str.__eq__

    def __hash__(self):
        if not self.entered.is_set():
            self.entered.set()
            threading.Event().wait(0.3)
        return str.__hash__(self)


@pytest.mark.parametrize(
    "fence",
    [
        MemoryTokens().admit,
        RequestsInside().enter,
        lambda name, token, locks=MemoryObjects(): locks.put_if(name, b"", token, None),
    ],
    ids=["tokens", "door", "objects"],
)
def test_a_child_does_not_wait_for_a_fence_that_a_thread_of_its_parent_is_asking(fence):
    name = Slow("a")
    name.entered = threading.Event()
    thread = threading.Thread(target=fence, args=(name, 7))
    thread.start()
    name.entered.wait()
    assert outcome(lambda: fence("a", 8), c_code=False) == "None"
    thread.join()


def test_a_child_of_c_code_has_no_folder_that_its_parent_locked(tmp_path):
    path = tmp_path / "bids"

    def work():
        assert not lockfolder.have_lock(path)
        assert not lockfolder.lock(path)
        lockfolder.unlock(path)

    assert lockfolder.lock(path)
    try:
        assert outcome(work) == "None"
        assert lockfolder.have_lock(path)
    finally:
        lockfolder.unlock(path)


def test_a_child_of_c_code_has_no_mailbox_that_its_parent_locked(tmp_path, monkeypatch):
    monkeypatch.setenv("MAIL", str(tmp_path / "ann"))

    def work():
        assert liblockfile.maillock("ann", 0) == liblockfile.L_MAXTRYS
        liblockfile.mailunlock()

    assert liblockfile.maillock("ann", 0) == liblockfile.L_SUCCESS
    try:
        assert outcome(work) == "None"
        assert (tmp_path / "ann.lock").exists()
    finally:
        liblockfile.mailunlock()
    assert not (tmp_path / "ann.lock").exists()
