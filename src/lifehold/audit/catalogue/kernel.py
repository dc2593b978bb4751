"""The rules about kernel locks and what undoes them: LH113 to LH121."""

from __future__ import annotations

from ..rule import Rule
from ..rules import kernel, scope

RULES = (
    Rule(
        code="LH113",
        slug="truncate-before-lock",
        cwe=667,
        severity="error",
        confidence="high",
        default=True,
        cured="unsafe",
        check=kernel.truncates_first,
        about=frozenset("flock".split()),
        title="the file is emptied before it is locked",
        why='open(path, "w") truncates at once. A refused attempt has then already erased the'
        " holder's pid or data.",
        timeline="""\
A  holds the lock, its pid is in the file
B  open("app.pid", "w"): the file is empty
B  flock -> refused; nobody can tell any more who holds it""",
        bad="""\
import fcntl, os

def acquire(path):
    file = open(path, "w")
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    file.write(str(os.getpid()))
    return file
""",
        good="""\
import fcntl, os

def acquire(path):
    file = open(path, "a+")
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    file.seek(0)
    file.truncate()
    file.write(str(os.getpid()))
    return file
""",
        fix='Open with "a+" or "r+", lock, then seek(0) and truncate().',
    ),
    Rule(
        code="LH114",
        slug="lock-on-the-data",
        cwe=413,
        severity="info",
        confidence="medium",
        default=True,
        check=kernel.locks_the_data,
        title="the lock is on the data file itself",
        why="Whoever replaces the file (an editor, an atomic write, a backup that is restored)"
        " takes the lock away with the old inode: old and new are locked apart.",
        timeline="""\
A  flock(data.json), writes data.new, replaces data.json
B  waited on the old inode: has its lock now
C  opens the new data.json, locks that: B and C both write""",
        bad="""\
import fcntl, json, os

def update(path, change):
    with open(path, "r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        data = change(json.load(file))
        with open(path + ".new", "w") as new:
            json.dump(data, new)
        os.replace(path + ".new", path)
""",
        good="""\
import fcntl, json, os

def update(path, change):
    with open(path + ".lock", "a") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        with open(path) as file:
            data = change(json.load(file))
        with open(path + ".new", "w") as new:
            json.dump(data, new)
        os.replace(path + ".new", path)
""",
        fix="Lock a companion, `PATH.lock`, that is never replaced.",
    ),
    Rule(
        code="LH115",
        slug="handle-dropped",
        cwe=672,
        severity="error",
        confidence="high",
        default=True,
        cured="safe",
        check=kernel.drops_handle,
        about=frozenset("flock library_lock".split()),
        title="the locked file is closed as soon as nobody refers to it",
        why="Python closes a file whose last name is gone, and close gives the lock back.",
        timeline="""\
A  fcntl.flock(open("app.lock", "w"), LOCK_EX): locked
A  the file object is collected: closed, unlocked
B  locks it: A and B both work""",
        bad="""\
import fcntl

def ensure_single_instance():
    fcntl.flock(open("app.lock", "a"), fcntl.LOCK_EX | fcntl.LOCK_NB)
""",
        good="""\
import fcntl

def ensure_single_instance():
    file = open("app.lock", "a")
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return file
""",
        fix="Keep the file in a name that lives as long as the lock: return it, or make it an"
        " attribute.",
    ),
    Rule(
        code="LH117",
        slug="posix-lock-lost-on-close",
        cwe=667,
        severity="warning",
        confidence="high",
        default=True,
        check=kernel.lost_by_close,
        about=frozenset("flock".split()),
        title="a second handle of a file that is locked by lockf",
        why="A POSIX lock belongs to process and file. Closing any handle of that file drops it,"
        " also one that a library opened to read it.",
        timeline="""\
A  lockf(f): locked
A  with open(same path) as g: ...   close(g) drops the lock of f
B  locks it: A and B both work""",
        bad="""\
import fcntl

def update(path):
    file = open(path, "r+")
    fcntl.lockf(file, fcntl.LOCK_EX)
    with open(path) as again:
        text = again.read()
    file.write(text)
    file.close()
""",
        good="""\
import fcntl

def update(path):
    file = open(path, "r+")
    fcntl.lockf(file, fcntl.LOCK_EX)
    text = file.read()
    file.write(text)
    file.close()
""",
        fix="Use flock, or an open file description lock (F_OFD_SETLK), or read through the locked"
        " handle.",
    ),
    Rule(
        code="LH118",
        slug="lock-across-fork",
        cwe=667,
        severity="error",
        confidence="high",
        default=True,
        check=kernel.forked,
        about=frozenset("flock".split()),
        title="a lock is taken before a fork, and its kind does not survive that as meant",
        why="A child does not inherit a POSIX lock (lockf): a daemon that locks and then forks has"
        " none. A flock does pass to a child that inherits the handle: it stays locked after its"
        " holder ended.",
        timeline="""\
A  lockf(pidfile), daemonize()
A' the child works; the parent ends, and the lock with it
B  starts a second daemon""",
        bad="""\
import fcntl, os

def start(path):
    file = open(path, "a")
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    if os.fork():
        os._exit(0)
    return file
""",
        good="""\
import fcntl, os

def start(path):
    if os.fork():
        os._exit(0)
    file = open(path, "a")
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return file
""",
        fix="Lock after the last fork. Start children with close_fds=True (the default).",
    ),
    Rule(
        code="LH119",
        slug="second-instance",
        cwe=833,
        severity="error",
        confidence="high",
        default=True,
        check=scope.second_instance,
        title="a lock is taken again through a second object in the same thread",
        why="Reentrancy is a property of one object. A second one of the same path waits for the"
        " first, which waits for it: until the timeout, or for ever.",
        timeline="""\
A  with FileLock(p):          held
A     with FileLock(p): ...   waits for itself""",
        bad="""\
from filelock import FileLock

def load(path):
    with FileLock(f"{path}.lock"):
        return path.read_text()

def update(path):
    with FileLock(f"{path}.lock"):
        return load(path)
""",
        good="""\
from filelock import FileLock

def read(path):
    return path.read_text()

def update(path):
    with FileLock(f"{path}.lock"):
        return read(path)
""",
        fix="Lock in the outermost function alone, or hand the held lock down.",
    ),
    Rule(
        code="LH120",
        slug="thread-lock-between-processes",
        cwe=662,
        severity="error",
        confidence="medium",
        default=True,
        check=scope.for_threads_only,
        title="a lock between threads guards processes",
        why="Each process has its own copy of a threading.Lock: none waits for another.",
        timeline="""\
P1  with lock: ...   its own copy
P2  with lock: ...   its own copy; both work""",
        bad="""\
import multiprocessing, threading

lock = threading.Lock()

def worker(job):
    with lock:
        job()

def main(job):
    multiprocessing.Process(target=worker, args=(job,)).start()
""",
        good="""\
import multiprocessing

def worker(lock, job):
    with lock:
        job()

def main(job):
    lock = multiprocessing.Lock()
    multiprocessing.Process(target=worker, args=(lock, job)).start()
""",
        fix="Hand a multiprocessing.Lock to the children, or lock a file.",
    ),
    Rule(
        code="LH121",
        slug="kernel-lock-on-network-mount",
        cwe=667,
        severity="warning",
        confidence="medium",
        default=True,
        check=kernel.on_network,
        title="a kernel lock on a network file system",
        why="On NFS, SMB and their like a kernel lock is the server's promise, or holds on this"
        " host alone. A host that is cut off loses it and works on.",
        timeline="""\
A  host 1 holds the lock, the network breaks
S  the server gives the lock to host 2
A  works on: two holders""",
        bad="""\
from filelock import FileLock

def job(build):
    with FileLock("/mnt/nfs/build.lock"):
        build()
""",
        good="""\
from filelock import FileLock

def job(build):
    with FileLock("/var/lib/app/build.lock"):
        build()
""",
        fix="Ask `lifehold doctor DIR`. Use a lease with a fencing token between hosts.",
    ),
)
