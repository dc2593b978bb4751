"""What a fork does to stores: connections, steps that are under way, a waiter's turn (L9)."""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from crash.scene import raised, until
from ground import needs
from lifehold import StoreUnavailable, connect
from lifehold.core.backend import Unreachable
from lifehold.runtime import fork
from lifehold.store.postgres import wire
from lifehold.store.sqlite.database import Database
from lifehold.testing.crash import Child, point

pytestmark = needs("fork")


def database(tmp_path, busy=10.0):
    made = Database(str(tmp_path / "s.db"), busy=busy, synchronous="normal", shared=False)
    made.step(lambda db: db.execute("CREATE TABLE mine (who)"))
    return made


def said_by(child):
    """What a forked child wrote into `child`, a pipe, and its exit status."""
    pid, pipe = child
    with os.fdopen(pipe, "rb") as file:
        text = file.read().decode()
    return text, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def forked(work, by=os.fork):
    """A child that runs `work()` and writes its answer, or what it raised."""
    here, there = os.pipe()
    pid = by()
    if pid == 0:
        signal.alarm(20)
        try:
            answer = str(work())
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(there, answer.encode())
        os._exit(0)
    os.close(there)
    return pid, here


def test_a_child_forked_in_the_middle_of_a_step_writes_nothing(tmp_path):
    """A signal handler forks, and both go on: what the child wrote took the parent's place."""
    file, parent = database(tmp_path), os.getpid()
    here, there = os.pipe()
    child = 0

    def work(db):
        nonlocal child
        db.execute("INSERT INTO mine VALUES ('before')")
        child = os.fork()
        db.execute("INSERT INTO mine VALUES (?)", ("parent" if child else "child",))

    try:
        file.step(work)
    except Unreachable as error:
        assert os.getpid() != parent
        os.write(there, str(error).encode())
    finally:
        if os.getpid() != parent:
            os._exit(0)
    os.close(there)
    said, code = said_by((child, here))
    rows = file.step(lambda db: db.execute("SELECT who FROM mine").fetchall(), write=False)
    assert rows == [("before",), ("parent",)]
    assert "forked in the middle of the step" in said
    assert code == 0


def test_a_child_does_not_wait_for_a_step_of_a_thread_that_it_does_not_have(tmp_path):
    file = database(tmp_path, busy=0.2)
    begun, go = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: file.step(lambda _: (begun.set(), go.wait())))
    thread.start()
    begun.wait()
    said, _ = said_by(forked(lambda: file.step(lambda db: db.execute("SELECT 1"))))
    go.set()
    thread.join()
    assert "this process was forked while the database was open" in said


class Mutex:
    """In place of that of a database: behind its first release `other` starts, and takes it."""

    def __init__(self, other):
        self._mutex, self._other, self._parent = threading.RLock(), other, os.getpid()
        self._is_owned, self._taken = self._mutex._is_owned, threading.Event()

    def acquire(self, **given):
        got = self._mutex.acquire(**given)
        if threading.current_thread() is self._other:
            self._taken.set()
        return got

    def release(self):
        self._mutex.release()
        if os.getpid() == self._parent and not self._taken.is_set():
            self._other.start()
            self._taken.wait()


def forks():
    if os.fork() == 0:
        os._exit(0)
    os.wait()


def test_two_threads_that_fork_one_behind_the_other_leave_the_database_open(tmp_path):
    """The first gave back what the second had just taken, and the second kept it for ever.

    In a Python of its own: a module that is loaded after ours may hold a lock over each fork too.
    """
    words = "import sys; from crash import test_fork_store as here; here.one_behind(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", words, str(tmp_path)], cwd=Path(__file__).parents[1],
        capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def one_behind(folder):
    file, other = database(Path(folder), busy=1.0), threading.Thread(target=forks)
    file._mutex = Mutex(other)
    forks()
    other.join()
    assert free_of(file._mutex._mutex)
    file.step(lambda db: db.execute("SELECT 1"))


def test_a_fork_inside_of_the_gate_does_not_wait_for_one_that_waits_for_the_gate(tmp_path):
    """As by a signal handler that comes there. In a Python of its own, as above."""
    words = "import sys; from crash import test_fork_store as here; here.twice(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", words, str(tmp_path)], cwd=Path(__file__).parents[1],
        capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def twice(folder):
    file = database(Path(folder), busy=60.0)
    other = threading.Thread(target=forks)
    with fork.gate:
        other.start()
        until(lambda: not free_of(file._mutex))
        forks()
    other.join()


def test_a_fork_inside_of_the_gate_waits_for_the_step_of_another_thread(tmp_path):
    """Else its child could not use the store."""
    file, begun = database(tmp_path), threading.Event()

    def step(_):
        begun.set()
        threading.Event().wait(0.2)

    thread = threading.Thread(target=lambda: file.step(step))
    thread.start()
    begun.wait()
    with fork.gate:
        child = forked(lambda: file.step(lambda db: db.execute("SELECT 7").fetchone()))
    thread.join()
    assert said_by(child) == ("(7,)", 0)


def free_of(mutex):
    taken = mutex.acquire(blocking=False)
    if taken:
        mutex.release()
    return taken


def test_a_child_forked_in_a_wait_does_not_come_in_by_its_parents_turn(tmp_path):
    """The store gave it the parent's grant, by the mark that both had, and took it at its word."""
    url = f"sqlite:///{tmp_path}/s.db"

    def holder():
        lease = connect(url).lock("a", ttl=60).acquire()
        point("held")
        lease.release()

    def waiter():
        child = 0

        def handler(*_):
            nonlocal child
            child = os.fork()
            if child:
                point("forked", child)

        signal.signal(signal.SIGALRM, handler)
        parent = os.getpid()
        with connect(url).lock("a", ttl=60, wait=20) as lease:
            if os.getpid() != parent:
                os._exit(7)
            nonce = lease.nonce
            point("in", nonce)
            lease.check()
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    store = connect(url)
    with Child(holder) as first:
        first.at("held")
        with Child(waiter) as second:
            until(lambda: store.waiters("a") == 1)
            second.signal(signal.SIGALRM)
            child = second.at("forked")
            second.go()
            first.go()
            assert first.end().well
            nonce = second.at("in")
            until(lambda: store.waiters("a") == 1)  # the child, by a mark of its own
            assert store.inspect("a").nonce == nonce
            second.go()
            end = second.end()
            assert end.value == 7, end.error
            assert child


def peers():
    """Where the sockets of this process lead to: port by descriptor."""
    found = {}
    for fd in map(int, os.listdir("/proc/self/fd")):
        try:
            with socket.socket(fileno=os.dup(fd)) as copy:
                found[fd] = copy.getpeername()[1]
        except (OSError, IndexError):
            continue
    return found


@pytest.mark.parametrize("kind", ["auto", "session"])
@needs("linux", "package:psycopg")
def test_a_child_forked_while_a_connection_is_opened_keeps_no_copy_of_it(kind):
    """With one it would keep the session, and its locks, behind the death of its parent."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        store = connect(f"postgresql://u@127.0.0.1:{port}/d?sslmode=disable")
        found = []
        asks = lambda: found.append(raised(store.lock("a", kind=kind).acquire, 0))  # noqa: E731
        thread = threading.Thread(target=asks)
        thread.start()
        client, _ = server.accept()
        assert client.recv(1)  # so it waits for an answer
        until(lambda: port in peers().values())
        said, _ = said_by(forked(lambda: port in peers().values()))
        client.close()
        thread.join()
    assert said == "False"
    assert isinstance(found[0], StoreUnavailable)


@needs("linux", "package:psycopg")
def test_the_end_of_a_child_that_c_code_has_forked_says_no_good_bye_for_its_parent():
    own = socket.socket()

    class Connection:
        pgconn = property(lambda self: self)
        fileno = own.fileno
        ends = False

        def finish(self):
            self.ends = True

    ours = wire.keep(Connection())

    def ends():
        atexit._run_exitfuncs()
        return ours.ends

    try:
        said, _ = said_by(forked(ends, ctypes.PyDLL(None).fork))
    finally:
        wire.drop(ours)
        own.close()
    assert said == "False"
    assert ours.ends


@needs("linux", "package:psycopg")
def test_a_child_does_not_wait_for_a_link_that_a_thread_of_its_parent_is_using():
    ours = wire.ConnectionPool(
        lambda _: None, lambda: None, SimpleNamespace(known={}, limit=1.0), 1
    )
    line = wire.ServerConnection()

    def works():
        ours._put(line, False)
        ours.close()

    with ours._mutex:
        assert said_by(forked(works)) == ("None", 0)
