"""A program whose threads are greenlets: gevent and eventlet, with all of their patches in place.

What waits for a lock there must not stop the others, nor outlive a Timeout, a kill or a signal.
"""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from crash.scene import free, hold, until, waits_in_the_kernel
from ground import needs, require
from lifehold.testing.crash import Child
from patience import steadily
from warm import Warm

LIBRARIES = ["gevent", "eventlet"]
PATCH = {
    "gevent": "from gevent import monkey; monkey.patch_all()\n",
    "eventlet": "import warnings; warnings.simplefilter('ignore')\n"
    "import eventlet; eventlet.monkey_patch()\n",
}
SCENE = """
import faulthandler, sys, threading, time
faulthandler.dump_traceback_later(80, exit=True)
import lifehold
from lifehold import Lock, NotAcquired, Timeout

def all_of(*calls):
    threads = [threading.Thread(target=call) for call in calls]
    for each in threads: each.start()
    for each in threads: each.join()

class Hub:
    # The longest time for which no other greenlet came to run.
    worst = 0.0
    over = False
    def __enter__(self):
        self.beats = threading.Thread(target=self.beat)
        self.beats.start()
        return self
    def __exit__(self, *_):
        self.over = True
        self.beats.join()
    def beat(self):
        while not self.over:
            before = time.monotonic()
            time.sleep(0.01)
            self.worst = max(self.worst, time.monotonic() - before - 0.01)
"""
TURNS = """
inside, most, done = 0, 0, 0
def work(make=lambda: made):
    global inside, most, done
    with make():
        inside += 1
        most = max(most, inside)
        time.sleep(0.01)
        inside -= 1
        done += 1
"""


def program(library: str, script: str, *, late: bool = False) -> list[str]:
    """A Python process of that library. `late`: it is patched after lifehold was imported."""
    require(f"package:{library}")
    first = "from lifehold import Lock\nimport lifehold.lock\n" if late else ""
    text = first + PATCH[library] + SCENE + textwrap.dedent(script)
    return [sys.executable, "-c", text]


PATCHED: dict[str, Warm] = {}


@pytest.fixture(scope="module", autouse=True)
def patched():
    """For each library an interpreter that it has patched, without lifehold, and without a hub."""
    yield
    while PATCHED:
        PATCHED.popitem()[1].close()


def said(library: str, script: str, cwd: Path, *, late: bool = False) -> str:
    """What such a process says, which must come to its end."""
    require(f"package:{library}")
    if late:
        command = program(library, script, late=True)
        done = subprocess.run(
            command, cwd=cwd, capture_output=True, text=True, timeout=120, check=False
        )
    else:
        if library not in PATCHED:
            PATCHED[library] = Warm(PATCH[library])
        done = PATCHED[library].run(SCENE + textwrap.dedent(script), cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("library", LIBRARIES)
def test_twenty_greenlets_exclude_each_other_and_all_come_in(tmp_path, library, late):
    script = TURNS + "made = Lock('lock')\nall_of(*[work] * 20)\nprint(most, done)"
    assert said(library, script, tmp_path, late=late) == "1 20"


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("kind", ["soft", "link", "generation", "directory"])
def test_greenlets_exclude_each_other_in_every_kind(tmp_path, library, kind):
    script = TURNS + f"made = Lock('lock', kind={kind!r})\nall_of(*[work] * 8)\nprint(most, done)"
    assert said(library, script, tmp_path) == "1 8"


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("kind", ["kernel", "soft", "link", "generation", "directory"])
def test_no_greenlet_that_lets_go_and_asks_again_keeps_the_others_out(tmp_path, library, kind):
    script = f"""
turns = [0, 0, 0]
def work(me):
    while max(turns) < 40:
        with Lock('lock', kind={kind!r}, notify=False):
            turns[me] += 1
            time.sleep(0.001)
all_of(*[lambda me=me: work(me) for me in range(3)])
print(min(turns) > 1, turns)
"""
    assert said(library, script, tmp_path).startswith("True")


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(
    "made",
    [
        "lifehold.connect('sqlite:///store.db').lock('x', ttl=5)",
        "lifehold.connect('memory://').lock('x', ttl=5)",
        "lifehold.ReadWriteLock('rw').writing()",
        "lifehold.Semaphore('sem', 1)",
        "Lock('fair', fair=True)",
    ],
)
def test_greenlets_exclude_each_other_in_stores_and_other_shapes(tmp_path, library, made):
    script = f"{TURNS}\nmade = {made}\nall_of(*[work] * 8)\nprint(most, done)"
    assert said(library, script, tmp_path) == "1 8"


@pytest.mark.parametrize("library", LIBRARIES)
def test_greenlets_exclude_each_other_by_the_faces_of_filelock(tmp_path, library):
    script = (
        TURNS
        + """
from lifehold.compat.filelock import FileLock, SoftFileLock
for kind in FileLock, SoftFileLock:
    made = kind(f"{kind.__name__}.lock")
    all_of(*[work] * 4, *[lambda: work(lambda: kind(f"{kind.__name__}.lock"))] * 4)
    print(most, done)
"""
    )
    assert said(library, script, tmp_path) == "1 8\n1 16"


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("kind", ["kernel", "soft"])
def test_a_wait_of_a_greenlet_ends_in_time_and_stops_no_other(tmp_path, library, kind):
    script = f"""
def wait():
    began = time.monotonic()
    try:
        Lock('lock', kind={kind!r}).acquire(3)
    except Timeout:
        print('Timeout', time.monotonic() - began, end=' ')
with Hub() as hub:
    all_of(wait)
print(hub.worst)
"""

    def judge():
        word, waited, worst = said(library, script, tmp_path).split()
        assert word == "Timeout"
        assert float(waited) >= 3
        assert float(worst) < 1.5

    with Child(lambda: hold(str(tmp_path / "lock"), kind=kind)) as holder:
        holder.at("held")
        steadily(judge)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_program_whose_greenlet_waits(tmp_path, library, number):
    script = "print('waits', flush=True)\nall_of(lambda: Lock('lock').acquire())\n"
    with Child(hold, str(tmp_path / "lock")) as holder:
        holder.at("held")
        command = program(library, script)
        with subprocess.Popen(
            command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            try:
                assert process.stdout.readline() == "waits\n"
                process.stderr.readline()  # the first notice
                until(lambda: waits_in_the_kernel(process.pid))  # a thread of ours, from then on
                process.send_signal(number)
                process.wait(60)
            finally:
                process.kill()
    assert free(tmp_path / "lock")


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_greenlet_that_is_killed_while_it_waits_holds_nothing(tmp_path, library):
    script = f"""
import {library} as library
lease = Lock('lock').acquire()
ended = []
def wait():
    try:
        Lock('lock').acquire()
    finally:
        ended.append(1)
waiting = library.spawn(wait)
time.sleep(2.5)
waiting.kill()
lease.release()
Lock('lock').acquire(0).release()
print(len(ended))
"""
    assert said(library, script, tmp_path) == "1"


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_reentrant_lock_is_taken_again_by_its_own_greenlet_alone(tmp_path, library, late):
    script = (
        TURNS
        + """
made = Lock('lock', reentrant=True)
def twice():
    with made:
        work()
all_of(*[twice] * 6)
print(most, done)
"""
    )
    assert said(library, script, tmp_path, late=late) == "1 6"


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_greenlet_that_waits_for_itself_is_told_so_and_no_other(tmp_path, library):
    script = """
def other():
    with Lock('lock'):
        told.append('in')
told = []
with Lock('lock'):
    waiting = threading.Thread(target=other)
    waiting.start()
    time.sleep(0.1)
    try:
        Lock('lock').acquire()
    except lifehold.SelfDeadlock:
        told.append('self')
waiting.join()
print(*told)
"""
    assert said(library, script, tmp_path) == "self in"


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_lease_is_renewed_while_a_greenlet_computes(tmp_path, library):
    script = """
with Lock('lock', kind='soft', ttl=3) as lease:
    until = time.monotonic() + 3.5  # more than its ttl
    while time.monotonic() < until:
        pass
    lease.check()
    print('held')
"""
    assert said(library, script, tmp_path) == "held"


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_loss_is_told_to_a_greenlet_that_waits_for_it(tmp_path, library):
    script = """
import os
told = []
lease = Lock('lock').acquire()
lease.lost.add_callback(lambda: told.append('callback'))
def wait():
    if lease.lost.wait(60):
        told.append('waiter')
waiting = threading.Thread(target=wait)
waiting.start()
time.sleep(0.2)
os.unlink('lock')
waiting.join()
until = time.monotonic() + 60
while len(told) < 2 and time.monotonic() < until:
    time.sleep(0.01)
print(*sorted(told))
"""
    assert said(library, script, tmp_path) == "callback waiter"


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_child_forked_while_greenlets_wait_asks_for_itself(tmp_path, library):
    script = """
import os
lease = Lock('lock').acquire()
got = []
def wait():
    with Lock('lock'):
        got.append(os.getpid())
waiting = threading.Thread(target=wait)
waiting.start()
time.sleep(0.3)
child = os.fork()
if child == 0:
    try:
        lease.check()
    except lifehold.NotHeld:
        try:
            Lock('lock').acquire(0.2)
        except NotAcquired:
            os._exit(7)
    os._exit(1)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
lease.release()
waiting.join()
print(status, got == [os.getpid()])
"""
    assert said(library, script, tmp_path) == "7 True"


SERVED = """
import lifehold, time
inside = most = done = 0
def application(environ, start_response):
    global inside, most, done
    if environ["PATH_INFO"] == "/lock":
        with lifehold.Lock("lock"):
            inside += 1
            most = max(most, inside)
            time.sleep(0.01)
            inside -= 1
            done += 1
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [f"{most} {done}".encode()]
"""


class Beside(http.client.HTTPConnection):
    """To a server on a socket in the file system."""

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(60)
        self.sock.connect(self.host)


def get(path: str, where: str) -> str:
    connection = Beside(path)
    try:
        connection.request("GET", where)
        return connection.getresponse().read().decode()
    finally:
        connection.close()


@needs("package:gunicorn", "package:gevent")
@pytest.mark.parametrize("preload", [False, True])
def test_workers_of_gunicorn_answer_while_requests_wait_for_a_lock(tmp_path, preload):
    (tmp_path / "served.py").write_text(SERVED)
    options = ["-k", "gevent", "-w", "1", "-b", "unix:http", "--graceful-timeout", "5"]
    options += ["--preload"] if preload else []
    command = [sys.executable, "-m", "gunicorn", *options, "served:application"]
    http = os.path.relpath(tmp_path / "http")
    server = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL)
    try:
        until((tmp_path / "http").exists, 60)
        with ThreadPoolExecutor(20) as pool:
            with Child(hold, str(tmp_path / "lock")) as holder:
                holder.at("held")
                asked = [pool.submit(get, http, "/lock") for _ in range(20)]
                until(lambda: waits_in_the_kernel_of_a_child(server.pid), 60)
                assert get(http, "/") == "0 0"  # nobody is in, and it answers
            assert {each.result().split()[0] for each in asked} == {"1"}
        assert get(http, "/") == "1 20"
        server.terminate()
        assert server.wait(90) == 0
    finally:
        server.kill()
        server.wait()


def waits_in_the_kernel_of_a_child(pid: int) -> bool:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return any(waits_in_the_kernel(child) for child in children)


TASKS = """
from celery import Celery
import lifehold, time
folders = dict(data_folder_in="queue", data_folder_out="queue", control_folder="control")
app = Celery("tasks", broker="filesystem://")
app.conf.update(broker_transport_options=folders, task_ignore_result=True)
inside = most = 0
@app.task
def locked():
    global inside, most
    with lifehold.Lock("lock"):
        inside += 1
        most = max(most, inside)
        time.sleep(0.01)
        inside -= 1
        with open("done", "a") as file:
            file.write(f"{most} ")
"""


@needs("package:celery", "package:gevent")
def test_tasks_of_celery_take_turns_and_its_worker_ends_in_order(tmp_path):
    (tmp_path / "tasks.py").write_text(TASKS)
    for folder in "queue", "control":
        (tmp_path / folder).mkdir()
    send = "import tasks\nfor _ in range(20): tasks.locked.delay()"
    subprocess.run([sys.executable, "-c", send], cwd=tmp_path, check=True, timeout=120)
    options = ["-P", "gevent", "-c", "20", "--without-gossip", "--without-mingle", "-l", "ERROR"]
    command = [sys.executable, "-W", "ignore", "-m", "celery", "-A", "tasks", "worker", *options]
    with Child(hold, str(tmp_path / "lock")) as holder:
        holder.at("held")
        worker = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL)
        try:
            until(lambda: waits_in_the_kernel(worker.pid), 60)
            holder.go()
            done = tmp_path / "done"
            until(lambda: done.exists() and len(done.read_text().split()) == 20, 60)
            assert set(done.read_text().split()) == {"1"}
            worker.terminate()
            assert worker.wait(90) == 0
        finally:
            worker.kill()
            worker.wait()
