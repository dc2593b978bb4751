"""kind="session" between processes that are killed, stopped and forked, and beside a stranger."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from ground import needs
from lifehold import Timeout, connect
from patience import SOON, until

pytestmark = needs("postgres")
WAITING = """SELECT pid FROM pg_locks JOIN pg_database d ON d.oid = database
    WHERE locktype = 'advisory' AND d.datname = current_database() AND NOT granted"""


@pytest.fixture
def store(pg_url):
    return connect(pg_url)


@pytest.fixture
def ask(pg_server, pg_url):
    return lambda text: pg_server.execute(text, pg_url.rpartition("/")[2])


def session(store, name, **options):
    return store.lock(name, kind="session", **options)


HOLDER = """
import sys, time
from lifehold import Lock
lease = Lock(sys.argv[1], kind="session", wait=30).acquire()
print(lease.token, flush=True)
time.sleep(600)
"""
WAITER = """
import os, signal, sys, time
from lifehold import Lock
def handler(*_):
    global child
    child = os.fork()
    if child:
        print(child, flush=True)
parent, child = os.getpid(), 0
signal.signal(signal.SIGUSR1, handler)
lock = Lock(sys.argv[1], wait=60, **({"kind": "session"} if sys.argv[2:] else {}))
print(parent, flush=True)
with lock as lease:
    who = 1 if os.getpid() == parent else 2
    print(who, flush=True)
    sys.stdin.readline()
    lease.check()
if who == 2:
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
FORKING = """
import os, sys, time
from lifehold import Lock
lease = Lock(sys.argv[1], kind="session", wait=30).acquire()
child = os.fork()
if child:
    print(child, flush=True)
time.sleep(600)
"""


@pytest.fixture
def process(pg_url):
    """Another process; the first line that it says."""
    started = []

    def start(script, name):
        one = subprocess.Popen(
            [sys.executable, "-c", script, f"{pg_url}#{name}"], stdout=subprocess.PIPE, text=True
        )
        started.append(one)
        return one, int(one.stdout.readline())

    yield start
    for one in started:
        one.kill()
        one.wait(SOON)
        one.stdout.close()


def test_a_holder_that_is_killed_lets_go_at_once(store, process):
    one, token = process(HOLDER, "killed")
    came = []

    def wait():
        with session(store, "killed", wait=SOON, ttl=3600):  # the ttl has no part in it
            came.append(0)

    thread = threading.Thread(target=wait)
    thread.start()
    until(lambda: store.waiters("killed") == 1)
    assert store.inspect("killed").owner.pid == one.pid
    one.kill()
    thread.join(SOON)
    assert came == [0]
    with session(store, "killed", wait=0) as after:
        assert after.token > token


def test_a_waiter_that_is_killed_is_passed(store, process, pg_url, ask):
    with session(store, "dead waiter", wait=0):
        script = HOLDER.replace("lease =", "print(1, flush=True); lease =")
        one, _ = process(script, "dead waiter")
        until(lambda: ask(WAITING))
        one.kill()
        one.wait(SOON)
    with session(store, "dead waiter", wait=SOON):
        pass


def test_a_forked_child_does_not_keep_it_when_its_parent_is_killed(store, process):
    one, child = process(FORKING, "forked")
    one.kill()
    try:
        with session(store, "forked", wait=SOON):
            os.kill(child, 0)  # it lives, and keeps nothing
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_paused_holder_keeps_it_and_is_told_when_it_was_paused_too_long(pg_url, store, process):
    script = HOLDER.replace("wait=30", "wait=30, ttl=1.0").replace(
        "time.sleep(600)", "print(int(lease.lost.wait(60)), flush=True)"
    )
    one, _ = process(script, "paused")
    os.kill(one.pid, signal.SIGSTOP)
    with pytest.raises(Timeout):  # its kernel answers for it
        session(store, "paused", wait=2.5).acquire()
    os.kill(one.pid, signal.SIGCONT)
    assert one.stdout.readline() == "1\n"
    with session(store, "paused", wait=SOON):
        pass


CONTENDER = """
import os, sys
from lifehold import Lock, connect
url, folder, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
lock = Lock(url, kind="session", wait=60)
for _ in range(rounds):
    with lock as lease:
        os.close(os.open(f"{folder}/inside", os.O_CREAT | os.O_EXCL))
        with open(f"{folder}/tokens", "a") as told:
            told.write(f"{lease.token}\\n")
        os.unlink(f"{folder}/inside")
"""
STRANGER = """
import os, sys, psycopg
url, folder, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
with psycopg.connect(url.partition("#")[0], autocommit=True) as one:
    for _ in range(rounds):
        one.execute("SELECT pg_advisory_lock(4711)")
        os.close(os.open(f"{folder}/inside", os.O_CREAT | os.O_EXCL))
        os.unlink(f"{folder}/inside")
        one.execute("SELECT pg_advisory_unlock(4711)")
"""


def test_processes_are_never_inside_together_nor_with_a_stranger(pg_url, tmp_path):
    crowd = [
        subprocess.Popen([sys.executable, "-c", script, f"{pg_url}#key:4711", tmp_path, "100"])
        for script in (CONTENDER, CONTENDER, CONTENDER, STRANGER)
    ]
    assert [one.wait(4 * SOON) for one in crowd] == [0] * 4
    tokens = [int(line) for line in (tmp_path / "tokens").read_text().split()]
    assert len(tokens) == 300
    assert tokens == sorted({*tokens})


def test_run_holds_it_for_as_long_as_its_command_lives(pg_url, store, tmp_path):
    file = tmp_path / "pid"
    slow = f"trap '' TERM; echo $$ > {file}.new; mv {file}.new {file}; sleep 600 & wait; wait"
    wrapper = subprocess.Popen(
        [sys.executable, "-m", "lifehold", "run", "--store", pg_url, "--kind", "session",
         "--kill-grace", "1", "migrate", "--", "sh", "-c", slow],
    )  # fmt: skip
    until(file.exists)
    command = int(file.read_text())
    assert "lifehold run" in store.inspect("migrate").owner.command
    wrapper.kill()
    wrapper.wait(SOON)
    with session(store, "migrate", wait=SOON), pytest.raises(ProcessLookupError):
        os.kill(command, 0)


@pytest.mark.parametrize("kind", ["auto", "session"])
def test_a_child_forked_in_a_wait_stands_in_line_by_itself(store, pg_url, kind):
    """By the place of its parent it came in beside it, or kept its parent waiting."""
    given = [f"{pg_url}#both", *(["session"] if kind == "session" else [])]
    with store.lock("both", kind=kind) as first:
        waiter = subprocess.Popen(
            [sys.executable, "-c", WAITER, *given], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        waiter.stdout.readline()
        until(lambda: store.waiters("both") == 1)
        waiter.send_signal(signal.SIGUSR1)
        assert int(waiter.stdout.readline())
        until(lambda: store.waiters("both") == 2)
        first.check()
    came = [waiter.stdout.readline()]
    until(lambda: store.waiters("both") == 1)
    waiter.stdin.write("go\n")
    waiter.stdin.flush()
    came.append(waiter.stdout.readline())
    until(lambda: store.waiters("both") == 0)
    waiter.stdin.write("go\n")
    waiter.stdin.flush()
    assert waiter.wait(SOON) == 0
    assert sorted(came) == ["1\n", "2\n"]
    waiter.stdin.close()
    waiter.stdout.close()
