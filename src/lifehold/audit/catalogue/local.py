"""The rules about lock files that are held by being there: LH101 to LH112, and LH116, LH122."""

from __future__ import annotations

from ..rule import Rule
from ..rules import create, kernel, refused, release, scope, stale

RULES = (
    Rule(
        code="LH101",
        slug="check-then-create",
        cwe=367,
        severity="error",
        confidence="high",
        default=True,
        check=create.check_then_create,
        about=frozenset("write ensure".split()),
        title="a lock file is looked for and then made, in two steps",
        why="Between the look and the creation another process can do the same. Both see nothing,"
        " both create, both work.",
        timeline="""\
A  exists("app.lock")  -> False
B  exists("app.lock")  -> False
A  open("app.lock", "w")    A works
B  open("app.lock", "w")    B works too""",
        bad="""\
import os

def acquire(lock_path):
    if os.path.exists(lock_path):
        return False
    with open(lock_path, "w") as file:
        file.write(str(os.getpid()))
    return True

def release(lock_path):
    with open(lock_path) as file:
        if int(file.read()) == os.getpid():
            os.remove(lock_path)
""",
        good="""\
from lifehold import Lock

def work(lock_path, build):
    with Lock(lock_path, wait=30):
        build()
""",
        fix="Let the kernel decide: flock the file and keep it, or create it with O_CREAT | O_EXCL"
        " in one step. `Lock(path)` does the first.",
    ),
    Rule(
        code="LH102",
        slug="ownerless-lock",
        cwe=459,
        severity="error",
        confidence="high",
        default=True,
        check=create.ownerless,
        about=frozenset("create write".split()),
        title="a lock that exists until it is removed, and does not say whose it is",
        why="`finally` does not run after SIGKILL, the OOM killer or a power cut. The file stays,"
        " and nobody can find out that its maker is gone.",
        timeline="""\
A  open("app.lock", "x")
A  killed: nothing is removed
B  FileExistsError, today, tomorrow, next week""",
        bad="""\
import os, time

class Guard:
    def acquire(self, lock_path, timeout):
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            try:
                os.close(os.open(lock_path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
                return True
            except FileExistsError:
                time.sleep(0.1)
        return False
""",
        good="""\
import fcntl, os

def acquire(lock_path):
    fd = os.open(lock_path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd
""",
        fix="Hold the lock by something that ends with the process: a kernel lock on a file that"
        " stays. Where that is impossible, write a record of the owner and judge it (LH104).",
    ),
    Rule(
        code="LH103",
        slug="unbounded-wait",
        cwe=833,
        severity="warning",
        confidence="high",
        default=True,
        check=create.unbounded_wait,
        about=frozenset("create exists redis_lock flock signal take acquire call".split()),
        title="a wait without an end, or a timeout that is never used",
        why="A holder that is dead or hung never lets go. A loop without a deadline then waits for"
        " ever and says nothing; a `timeout` that is ignored promises what does not happen.",
        timeline="""\
A  holds the lock and hangs
B  sleep, look, sleep, look, ...   no log line, no error, for days""",
        bad="""\
import fcntl

def locked(file, timeout=10):
    fcntl.flock(file, fcntl.LOCK_EX)
""",
        good="""\
import fcntl, time

def locked(file, timeout=10):
    deadline = time.monotonic() + timeout
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
""",
        fix="Carry an absolute deadline on the monotonic clock, and say who holds the lock while"
        " you wait. `Lock(path, wait=30)` does both.",
    ),
    Rule(
        code="LH104",
        slug="pid-only-liveness",
        cwe=362,
        severity="error",
        confidence="medium",
        default=True,
        check=stale.asks_by_number,
        about=frozenset("alive signal".split()),
        title="whether the holder lives is asked by its pid alone",
        why="Numbers are given out again: after a reboot, after some hours, and in every container"
        " from 1 on. A number proves neither that the holder lives nor that it is dead.",
        timeline="""\
A  pid 4127 writes its number and is killed
C  an editor starts and gets 4127
B  kill(4127, 0) succeeds: "held", for as long as the editor runs""",
        bad="""\
import os

def holder_of(pidfile):
    with open(pidfile) as file:
        pid = int(file.read())
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    return pid
""",
        good="""\
import fcntl

def is_held(pidfile):
    with open(pidfile) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False
""",
        fix="Ask a kernel lock that the holder keeps. Where there is none, compare start time, boot"
        " id and PID namespace besides the number, as `lifehold who PATH` does.",
    ),
    Rule(
        code="LH105",
        slug="eperm-is-dead",
        cwe=703,
        severity="error",
        confidence="high",
        default=True,
        check=stale.not_allowed_is_dead,
        title="a process of another user is taken for dead",
        why="`kill(pid, 0)` fails with EPERM when the process lives and belongs to somebody else."
        " Only ESRCH says that there is none.",
        timeline="""\
A  root holds the lock, pid 812
B  user ana: kill(812, 0) -> EPERM, taken for "gone"
B  removes the lock of a live process""",
        bad="""\
import os

def lock_holder_alive(pid):
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True
""",
        good="""\
import os

def process_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
""",
        fix='Catch ProcessLookupError for "gone"; PermissionError means that it lives.',
    ),
    Rule(
        code="LH106",
        slug="racy-stale-break",
        cwe=367,
        severity="error",
        confidence="high",
        default=True,
        check=stale.removes_by_name,
        about=frozenset("unlink write".split()),
        title="a lock is judged stale and then removed by its name",
        why="The name can lead to another file by then: two processes judge the same dead lock, one"
        " removes it and makes its own, and the other removes that. An empty file may be one whose"
        " maker has not written yet.",
        timeline="""\
A, B  both see that the holder is gone
A     unlink, create: A holds the lock
B     unlink removes A's lock, create: B holds it too""",
        bad="""\
import os

def remove_if_stale(lock_path, is_dead):
    with open(lock_path) as file:
        pid = int(file.read())
    if is_dead(pid):
        os.remove(lock_path)
""",
        good="""\
import fcntl, os

def take_over(lock_path):
    fd = os.open(lock_path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    os.ftruncate(fd, 0)
    os.write(fd, str(os.getpid()).encode())
    return fd
""",
        fix="Never remove what you only looked at. Take a kernel lock on the file you judged, look"
        " again that the path still leads to it, then replace it. `lifehold clear PATH` does so.",
    ),
    Rule(
        code="LH107",
        slug="age-only-break",
        cwe=362,
        severity="warning",
        confidence="medium",
        default=True,
        check=stale.breaks_by_age,
        about=frozenset("unlink write".split()),
        title="age alone makes a lock stale",
        why="Age says how long the holder has worked, not whether it is gone. Long work, a"
        " suspended laptop or a clock that steps makes a live lock look old.",
        timeline="""\
A  holds the lock, a job of 400 s
B  now - mtime > 300: "stale", removed
A, B  both work from here on""",
        bad="""\
import os, time

def clean(lock_path, max_age=300):
    age = time.time() - os.path.getmtime(lock_path)
    if age > max_age:
        os.remove(lock_path)
""",
        good="""\
from lifehold import Lock

def guarded(path, job):
    with Lock(path, wait=60) as lease:
        job(lease.token)
""",
        fix="Prove that the holder is gone (a free kernel lock). Where only time can decide, let"
        " the holder renew a lease and measure how long it has not changed, on a monotonic clock.",
    ),
    Rule(
        code="LH108",
        slug="unlink-flocked-file",
        cwe=362,
        severity="error",
        confidence="high",
        default=True,
        cured="safe",
        check=kernel.removes_flocked,
        about=frozenset("unlink".split()),
        title="a file is locked with flock, and unlinked",
        why="flock belongs to the inode, not to the name. Who waits has the old inode open and gets"
        " its lock; the next one makes a new file of the same name and locks that.",
        timeline="""\
A  holds the lock      B  waits on the same inode
A  unlock, unlink      B  has the lock, on a file without a name
C  open creates a new file, locks it: B and C both work""",
        bad="""\
import fcntl, os

class FileLock:
    def __init__(self, path):
        self.path = path

    def acquire(self):
        self.file = open(self.path, "a")
        fcntl.flock(self.file, fcntl.LOCK_EX)

    def release(self):
        if self.file is not None:
            fcntl.flock(self.file, fcntl.LOCK_UN)
            self.file.close()
            os.unlink(self.path)
""",
        good="""\
import fcntl

class FileLock:
    def __init__(self, path):
        self.path = path

    def acquire(self):
        self.file = open(self.path, "a")
        fcntl.flock(self.file, fcntl.LOCK_EX)

    def release(self):
        if self.file is not None:
            fcntl.flock(self.file, fcntl.LOCK_UN)
            self.file.close()
""",
        fix="Leave the file: an empty file costs nothing and is no lock. If it must go, unlink it"
        " under the lock, and let every acquirer compare fstat with stat after it has the lock.",
    ),
    Rule(
        code="LH109",
        slug="unowned-unlink",
        cwe=832,
        severity="error",
        confidence="medium",
        default=True,
        check=release.unowned_unlink,
        about=frozenset("unlink".split()),
        title="release removes the lock file, whoever's it is",
        why="After a failed acquire, a second release, or a takeover by somebody who thought us"
        " dead, the file under that name is another's lock.",
        timeline="""\
A  holds the lock          B  acquire fails
B  finally: os.remove(...)  removes A's lock
C  acquires: A and C both work""",
        bad="""\
import os

class SoftLock:
    def __init__(self, lock_path):
        self.lock_path = lock_path

    def acquire(self):
        fd = os.open(self.lock_path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        os.write(fd, str(os.getpid()).encode())
        os.close(fd)

    def owner(self):
        with open(self.lock_path) as file:
            return int(file.read())

    def release(self):
        os.unlink(self.lock_path)
""",
        good="""\
import os

class SoftLock:
    def __init__(self, lock_path):
        self.lock_path = lock_path

    def acquire(self):
        fd = os.open(self.lock_path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        os.write(fd, str(os.getpid()).encode())
        os.close(fd)

    def owner(self):
        with open(self.lock_path) as file:
            return int(file.read())

    def release(self):
        if self.owner() == os.getpid():
            os.unlink(self.lock_path)
""",
        fix="Remember that you acquired it, and compare a random value of yours with what the file"
        " holds before it goes. Release in `finally` only what the `try` acquired.",
    ),
    Rule(
        code="LH110",
        slug="release-skipped-by-error",
        cwe=772,
        severity="error",
        confidence="high",
        default=True,
        cured="safe",
        check=release.not_in_finally,
        about=frozenset("acquire call create write flock redis_lock redis_set".split()),
        title="an error between acquire and release leaves the lock",
        why="A plain call of release behind the work does not run when the work raises. In a"
        " context manager the error is raised at the `yield`.",
        timeline="""\
A  acquire
A  work raises
A  release is never reached: B waits""",
        bad="""\
from filelock import FileLock

def job(build):
    lock = FileLock("build.lock")
    lock.acquire(timeout=10)
    build()
    lock.release()
""",
        good="""\
from filelock import FileLock

def job(build):
    with FileLock("build.lock", timeout=10):
        build()
""",
        fix="Use `with`, or `try: ... finally: release()`. Around a `yield` too.",
    ),
    Rule(
        code="LH111",
        slug="cleanup-at-exit-only",
        cwe=459,
        severity="info",
        confidence="medium",
        default=True,
        check=release.only_at_exit,
        about=frozenset("at_exit at_signal create write".split()),
        title="only an exit handler removes the lock file",
        why="atexit, signal handlers and `__del__` do not run after SIGKILL, the OOM killer,"
        " os._exit or a power cut.",
        timeline="""\
A  open("app.lock", "x"), atexit.register(os.remove, "app.lock")
A  killed by the OOM killer
B  "already running", for ever""",
        bad="""\
import atexit, os, sys

def single_instance(lock_path):
    try:
        os.close(os.open(lock_path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        sys.exit("already running")
    atexit.register(os.remove, lock_path)
""",
        good="""\
import fcntl, sys

def single_instance(lock_path):
    file = open(lock_path, "a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit("already running")
    return file
""",
        fix="Hold a kernel lock: it ends with the process, however that ends.",
    ),
    Rule(
        code="LH112",
        slug="goes-on-without-lock",
        cwe=414,
        severity="error",
        confidence="high",
        default=True,
        check=refused.ignored_result,
        about=frozenset("acquire call redis_lock flock create take".split()),
        title="the lock was refused, and the work goes on",
        why="An acquire that answers False, or an error that is only logged, says that somebody"
        " else holds the lock. Whoever does not look works beside it.",
        timeline="""\
A  holds the lock
B  acquire() -> False, nobody looks
A, B  both work""",
        bad="""\
import fcntl

class Guard:
    def acquire(self):
        self.file = open("app.lock", "a")
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            return False

    def __enter__(self):
        self.acquire()
        return self
""",
        good="""\
import fcntl

class Guard:
    def acquire(self):
        self.file = open("app.lock", "a")
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            return False

    def __enter__(self):
        if not self.acquire():
            raise RuntimeError("another one is running")
        return self
""",
        fix="Raise, return or exit when the lock is refused. An error of the lock server is a"
        " refusal too: nobody knows who holds the lock then.",
    ),
    Rule(
        code="LH116",
        slug="fixed-name-in-tmp",
        cwe=377,
        severity="warning",
        confidence="high",
        default=True,
        check=create.in_shared_folder,
        about=frozenset("write open".split()),
        title="a lock file of a fixed name in a folder that everybody writes to",
        why="Whoever comes first makes the file. Another user can put a link there, so that `open`"
        " truncates a file of yours, or a file that you may not open, so that you never start.",
        timeline="""\
M  ln -s ~root/.ssh/authorized_keys /tmp/app.lock
A  root: open("/tmp/app.lock", "w") empties it""",
        bad="""\
import fcntl

def acquire():
    file = open("/tmp/app.lock", "w")
    fcntl.flock(file, fcntl.LOCK_EX)
    return file
""",
        good="""\
import fcntl, os

def acquire():
    path = os.path.join(os.environ["XDG_RUNTIME_DIR"], "app.lock")
    file = open(path, "a")
    fcntl.flock(file, fcntl.LOCK_EX)
    return file
""",
        fix="Use a folder of your own: $XDG_RUNTIME_DIR, /run/APP, $XDG_STATE_HOME. Where it must"
        " be /tmp, open with O_NOFOLLOW and without O_TRUNC.",
    ),
    Rule(
        code="LH122",
        slug="pid-read-too-early",
        cwe=667,
        severity="error",
        confidence="high",
        default=True,
        check=scope.pid_too_early,
        title="the pid is read when the function or class is defined",
        why="A default value is computed once, at import. After a fork every child writes the"
        " number of its parent into the lock.",
        timeline="""\
P  imports the module: pid=100
C  forked, pid 101, writes "100" into its lock
P  ends; the lock of C looks stale""",
        bad="""\
import os

class PidFile:
    def __init__(self, path, pid=os.getpid()):
        self.path = path
        self.pid = pid
""",
        good="""\
import os

class PidFile:
    def __init__(self, path, pid=None):
        self.path = path
        self.pid = os.getpid() if pid is None else pid
""",
        fix="Call os.getpid() where the lock is acquired.",
    ),
)
