"""What looks like a defect and is none is left alone; what is one is found in other clothes."""

from __future__ import annotations

import ast

import pytest

from lifehold.audit import scan
from lifehold.audit.forms import judged
from lifehold.audit.model import Module

CLEAN = {
    "an attempt that is asked by its lock": """
from lifehold import Lock
lock = Lock("report.lock")
def job(work):
    with lock.attempt():
        if lock.lease:
            work()
""",
    "an attempt that is asked": """
from lifehold import Lock
def job(work):
    with Lock("report.lock").attempt() as lease:
        if lease:
            work()
""",
    "an attempt of another library": """
from tenacity import Retrying
def job(work):
    for attempt in Retrying():
        with attempt.attempt():
            work()
""",
    "a folder of work that is made where it is not, and swept": """
import os, shutil
def work(folder):
    try:
        os.mkdir(folder)
    except FileExistsError:
        pass
    fill(folder)
    shutil.rmtree(folder)
""",
    "a mark that says what is done": """
import os
def once(folder):
    done = os.path.join(folder, "step.done")
    if os.path.exists(done):
        return
    step(folder)
    open(done, "w").close()
def reset(folder):
    os.unlink(os.path.join(folder, "step.done"))
""",
    "a text that is written beside its place and moved there": """
import os
def save(path, text):
    fresh = path + ".new"
    try:
        with open(fresh, "x") as file:
            file.write(text)
    except FileExistsError:
        raise RuntimeError(fresh)
    os.replace(fresh, path)
""",
    "a wish to stop, which another command writes down": """
import os
def run(folder, jobs):
    wish = os.path.join(folder, "stop")
    for job in jobs:
        if os.path.exists(wish):
            break
        job()
def ask_to_stop(folder):
    open(os.path.join(folder, "stop"), "w").close()
""",
    "a value that is kept, and forgotten when it is wrong": """
from django.core.cache import cache
def rate(code):
    key = f"rate:{code}"
    found = cache.get(key)
    if found is not None:
        return found
    found = fetch(code)
    cache.set(key, found, 60)
    return found
def forget(code):
    cache.delete(f"rate:{code}")
""",
    "a lock between the threads of one process": """
import threading
guard = threading.Lock()
def note(line):
    with guard:
        with open("notes.txt", "a") as file:
            file.write(line)
""",
    "a link to data": """
import os
def publish(build, current):
    try:
        os.symlink(build, current)
    except FileExistsError:
        os.unlink(current)
        os.symlink(build, current)
""",
    "what a client answered is no client": """
from datetime import datetime
def is_locked(self, name):
    held = self.s3.meta.client.head_object(Bucket=self.bucket, Key=name)
    until = held.get("ObjectLockRetainUntilDate")
    if until and until > datetime.now(until.tzinfo):
        return True
    return False
import redis
""",
    "an acquire that is told to raise": """
import fcntl
class LockFile:
    def acquire(self, raise_if_fail=False):
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError:
            if raise_if_fail:
                raise
            return False
    def owner(self):
        try:
            self.acquire(raise_if_fail=True)
        except OSError:
            return self.read()
        self.work()
""",
    "a lock between threads is armed, and then waited for": """
import threading
wait = threading.Lock()
def get(queue):
    while not queue:
        wait.acquire(blocking=False)
        wait.acquire()
    return queue.pop()
""",
    "a queue that is put to asks no store for a lock": """
import os
def _get_root(q, lock):
    folder = os.getcwd()
    while True:
        if os.path.isdir(folder + "/.hg"):
            q.put(folder)
            break
        folder = os.path.dirname(folder)
        if folder == "/":
            return False
""",
    "the parent's number is kept, to be asked later": """
import os, signal
LOCK = "x.lock"
def handler(signum, frame, parentpid=os.getpid()):
    if os.getpid() == parentpid:
        os._exit(2)
signal.signal(signal.SIGTERM, handler)
os.kill(os.getppid(), 0)
""",
    "a recipe that is handed its client listens to nothing": """
from kazoo.exceptions import CancelledError
class Election:
    def __init__(self, client, path):
        self.lock = client.Lock(path, "me")
""",
    "a class of the project locks a companion": """
from pathlib import Path
from app.util import FileLock
CACHE = "vars.json"
def read():
    p = Path(CACHE)
    with FileLock(CACHE, timeout=5), p.open("r") as f:
        try:
            return parse(f)
        except ValueError:
            p.unlink()
""",
    "made and looked for under a lock that is made elsewhere": """
import json
from filelock import FileLock
class Locked:
    def __init__(self, folder):
        self.guard = FileLock(folder / "guard.lock")
        self.lock_data = folder / "lock.json"
    def acquire(self, me):
        with self.guard:
            if self.lock_data.exists():
                return False
            self.lock_data.write_text(me)
            return True
    def release(self, me):
        with self.guard:
            if self.lock_data.read_text() == me:
                self.lock_data.unlink()
""",
    "a held job gives way to the next": """
def worker(queue, redis):
    while True:
        job = queue.get()
        if not redis.set(f"lock:{job.id}", "1", nx=True, ex=60):
            continue
        handle(job)
""",
    "a first value is set where there is none": """
def settings(redis):
    redis.set("config:lock_timeout", 30, nx=True)
    return int(redis.get("config:lock_timeout"))
""",
    "loop for a stale lock alone, and a held one is an error": """
import os
def acquire(path):
    while True:
        try:
            with open(path, "x") as file:
                return file.write("%d" % os.getpid())
        except FileExistsError:
            if holder_lives(path):
                raise RuntimeError(path)
            take_aside(path)
""",
    "long work behind the release": """
import redis, time
r = redis.Redis()
def job(fetch):
    lock = r.lock("lock:fetch", timeout=10)
    if not lock.acquire(blocking_timeout=5):
        return
    try:
        fetch("https://example.org", timeout=3)
    finally:
        lock.release()
    time.sleep(60)
""",
    "a lease that is extended in time": """
import redis
r = redis.Redis()
def job(parts):
    lock = r.lock("lock:parts", timeout=10)
    if not lock.acquire(blocking_timeout=5):
        return
    try:
        for part in parts:
            part(timeout=10)
            lock.extend(10, replace_ttl=True)
    finally:
        lock.release()
""",
    "a folder for locks is made when it is not there": """
import os
def prepare(lock_dir):
    if not os.path.exists(lock_dir):
        os.makedirs(lock_dir)
""",
    "a data file is made when it is not there": """
import os
def prepare(path):
    if not os.path.exists(path):
        with open(path, "w") as file:
            file.write("[]")
""",
    "the lock file of a package tool is data": """
from pathlib import Path
def write(folder, text):
    lockfile = Path(folder) / "poetry.lock"
    if lockfile.exists():
        lockfile.unlink()
    lockfile.write_text(text)
""",
    "a block, a clock and an unlock are no locks": """
import os
def store(block_path, clock):
    if not os.path.exists(block_path):
        open(block_path, "w").close()
    os.remove(block_path)
""",
    "a new file is written beside and put into place": """
import os
def save(path, text):
    with open(path + ".tmp", "x") as file:
        file.write(text)
    os.replace(path + ".tmp", path)
""",
    "setnx counts": """
def count(redis):
    redis.setnx("visits", 0)
    redis.incr("visits")
""",
    "a job is recorded once": """
def enqueue(redis, job):
    if redis.set(f"job:{job.id}", "queued", nx=True, ex=3600):
        job.start()
""",
    "a break on purpose says so": """
class RedisLock:
    def break_lock(self):
        self.redis.delete(self.lock_key)
""",
    "the inode is looked at after the lock": """
import fcntl, os
class FileLock:
    def acquire(self):
        while True:
            self.fd = os.open(self.path, os.O_CREAT | os.O_RDWR)
            fcntl.flock(self.fd, fcntl.LOCK_EX)
            if os.fstat(self.fd).st_ino == os.stat(self.path).st_ino:
                return
            os.close(self.fd)
    def release(self):
        os.unlink(self.path)
        os.close(self.fd)
""",
    "an empty file may be opened to be written": """
import fcntl
def acquire(lock_path):
    file = open(lock_path, "w")
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return file
""",
    "a lock in Lua with owner and end": '''
ACQUIRE_LOCK = "return redis.call('set', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])"
UNLOCK = """
if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end
"""
REMOVE_JOB = "redis.call('del', KEYS[1])"
''',
    "the server's clock": """
def take_lock(db, name):
    db.execute("UPDATE locks SET owner = ? WHERE expires_at < now()", (name,))
""",
    "another record is deleted on an error": """
def handle(redis, job):
    try:
        job()
    except Exception:
        redis.delete(f"result:{job.id}")
        raise
""",
    "a completion that compares": """
def complete(db, key):
    db.execute(
        "UPDATE idempotency SET status = 'completed' WHERE id = ? AND status = 'processing'", (key,)
    )
""",
    "a redis lock under WATCH": """
def release(redis, lock_key, token):
    with redis.pipeline() as pipe:
        pipe.watch(lock_key)
        if pipe.get(lock_key) == token:
            pipe.multi()
            pipe.delete(lock_key)
            pipe.execute()
""",
    "a threading lock without a bound": """
import threading
lock = threading.Lock()
def work(job):
    lock.acquire()
    try:
        job()
    finally:
        lock.release()
""",
    "a flocked file is given back by its handle alone": """
import fcntl
def release_lock(handle, lock_path):
    if handle:
        fcntl.flock(handle, fcntl.LOCK_UN)
        handle.close()
""",
    "a delete that comes surely before the end": """
import time
def release(redis, lock_key, ends_at):
    if time.monotonic() < ends_at - 5:
        redis.delete(lock_key)
def acquire(redis, lock_key):
    return redis.set(lock_key, "1", nx=True, ex=60)
""",
    "a lock that somebody else made the rules of": """
def lock_for(redis, *words, **options):
    return redis.lock(*words, **options)
""",
    "what was judged by age is what is removed": """
import os, time
def clean(lock_path, seen):
    facts = os.lstat(lock_path)
    if time.time() - facts.st_mtime > 300 and facts.st_ino == seen.st_ino:
        os.unlink(lock_path)
""",
    "a dictionary is no store": """
def read(cache, name):
    if cache.get(name) is None:
        cache[name] = 1
    return cache.get(name)
""",
    "a process is asked for with its start time": """
import os, psutil
def lock_holder_alive(pid, started):
    return psutil.pid_exists(pid) and psutil.Process(pid).create_time() == started
""",
    "a lock that is released by what it acquired": """
import os
def guarded(lock_path, work):
    fd = os.open(lock_path, os.O_CREAT | os.O_EXCL)
    os.write(fd, b"x")
    mine = True
    try:
        work()
    finally:
        if mine and open(lock_path).read() == "x":
            os.unlink(lock_path)
""",
    "a file that is waited for is opened when it is there": """
import os, time
def join(lock_path):
    while not os.path.exists(lock_path):
        time.sleep(0.1)
    with open(lock_path, "w") as file:
        file.write(str(os.getpid()))
""",
    "a loop that ends by the clock asks no age": """
import os, time
def hammer(lock_path, stop_at):
    while time.monotonic() < stop_at:
        os.remove(lock_path)
""",
    "the number of a parent is no holder's": """
import os, time
def follow(parent_pid, lock_path):
    for _ in range(100):
        if not os.path.exists(lock_path):
            return
        try:
            os.kill(parent_pid, 0)
        except ProcessLookupError:
            os._exit(1)
        time.sleep(1)
""",
    "a number that is looked for is nobody's": """
import os
def free_number_for_pidfile():
    for candidate in (4194303, 4194302):
        try:
            os.kill(candidate, 0)
        except ProcessLookupError:
            return candidate
    raise RuntimeError
""",
    "a value that is read and set within a transaction": """
def acquire_lock(cache, lock_key):
    with cache.transact(retry=True):
        value = cache.get(lock_key, default=1)
        if value > 0:
            cache.set(lock_key, value - 1, expire=60)
            return True
    return False
""",
    "a helper asks whose the pid file is": """
import os
class PidLock:
    def __init__(self, path):
        self.path = path
    def read_pid(self):
        with open(self.path) as file:
            return int(file.read())
    def is_ours(self):
        return os.getpid() == self.read_pid()
    def release(self):
        if not self.is_ours():
            raise RuntimeError("it is another's")
        os.unlink(self.path)
""",
    "a helper asks whose the link is": """
import os
class LinkLock:
    def __init__(self, path, me):
        self.path, self.me = path, me
    def here(self):
        return os.path.islink(self.path)
    def by_this_one(self):
        return self.here() and os.readlink(self.path) == self.me
    def release(self):
        if not self.here():
            raise RuntimeError("it is free")
        elif not self.by_this_one():
            raise RuntimeError("it is another's")
        os.unlink(self.path)
""",
    "a helper asks whose the record is": """
import json, os
class FolderLocks:
    def whose(self, lock_path):
        with open(lock_path) as file:
            return json.load(file)
    def holds(self, lock_path, holder):
        return self.whose(lock_path)["holder"] == holder
    def release(self, lock_path, holder):
        if self.holds(lock_path, holder):
            os.unlink(lock_path)
        else:
            raise ValueError(holder)
""",
    "a row that is deleted by the name of its holder": """
import sqlite3
def release(db, me, expires_at):
    db.execute("delete from locks where unique_name = ?", (me,))
""",
    "Windows refuses to unlink what is open": """
import os, sys
class Single:
    def __init__(self, lock_path):
        self.lock_path = lock_path
        if sys.platform == "win32":
            if os.path.exists(self.lock_path):
                os.unlink(self.lock_path)
            self.fd = os.open(self.lock_path, os.O_CREAT | os.O_EXCL | os.O_RDWR)
""",
    "a child of one's own is ended": """
import os, signal, time
def stop_locked(proc):
    while proc.is_alive():
        proc.terminate()
        time.sleep(0.1)
        os.kill(proc.pid, signal.SIGKILL)
""",
    "another module tells whether the holder runs": """
import errno, os
from app.processes import os_is_running
from app.files import fopen
def acquire_lock(lock_path):
    try:
        fd = os.open(lock_path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        os.write(fd, str(os.getpid()).encode())
        os.close(fd)
    except OSError as error:
        if error.errno == errno.EEXIST:
            with fopen(lock_path) as file:
                pid = int(file.readline())
            if not os_is_running(pid):
                raise RuntimeError("left behind") from error
        return False
    return True
def release_lock(lock_path, mine):
    if mine == "token":
        os.remove(lock_path)
""",
}

FOUND = {
    "a flag that is called anything": (
        "LH101",
        """
import os
def export(folder):
    busy = os.path.join(folder, "export.at.work")
    if os.path.exists(busy):
        return
    open(busy, "w").close()
    try:
        dump(folder)
    finally:
        os.unlink(busy)
""",
    ),
    "a file of any name, made with O_EXCL and waited for": (
        "LH103",
        """
import os, time
def build(target):
    turn = target + ".turn"
    while True:
        try:
            os.close(os.open(turn, os.O_CREAT | os.O_EXCL))
            break
        except FileExistsError:
            time.sleep(1)
    try:
        make(target)
    finally:
        os.unlink(turn)
""",
    ),
    "a key of any name, read and set and deleted": (
        "LH207",
        """
import redis
r = redis.Redis()
def rebuild(site):
    key = f"site:{site}:work"
    if r.get(key):
        return False
    r.set(key, "1", ex=60)
    try:
        build(site)
    finally:
        r.delete(key)
    return True
""",
    ),
    "a lock of threads in a task of several workers": (
        "LH120",
        """
import threading
from celery import Celery
app = Celery("x")
mutex = threading.Lock()
@app.task
def note(line):
    with mutex:
        with open("/srv/notes.txt", "a") as file:
            file.write(line)
""",
    ),
    "one helper's lock, entered twice": (
        "LH119",
        """
import contextlib, fcntl
@contextlib.contextmanager
def alone(folder):
    with open(folder + "/.mutex", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
def drop(folder, name):
    with alone(folder):
        remove(name)
def swap(folder, name):
    with alone(folder):
        drop(folder, name)
""",
    ),
    "an advisory lock of two numbers": (
        "LH209",
        """
def run(con, name, job):
    con.execute("SELECT pg_advisory_lock(%s)", (crc(name),))
    try:
        job()
    finally:
        con.execute("SELECT pg_advisory_unlock(%s)", (adler(name),))
""",
    ),
    "a refusal in one branch, and a creation behind it": (
        "LH101",
        """
import os
def start(path_to_pidfile, alive):
    if os.path.exists(path_to_pidfile):
        if alive(path_to_pidfile):
            raise SystemExit
    with open(path_to_pidfile, "w") as file:
        file.write(str(os.getpid()))
""",
    ),
    "a handle that a function forgets": (
        "LH115",
        """
import fcntl
def lock_instance(path):
    handle = open(path, "a")
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise SystemExit("running")
""",
    ),
    "a client of a short name": (
        "LH204",
        """
import redis
def connected():
    return redis.Redis()
def free(lock_name, token):
    c = connected()
    value = c.get(lock_name)
    if value == token:
        c.delete(lock_name)
""",
    ),
    "a helper that runs in a process of its own": (
        "LH106",
        """
import multiprocessing, os
def child(lock_path):
    open(lock_path, "w").close()
def main(lock_path):
    if os.path.exists(lock_path):
        os.remove(lock_path)
    multiprocessing.Process(target=child, args=(lock_path,)).start()
""",
    ),
    "through a helper of the module": (
        "LH101",
        """
import os
def free(path):
    return not os.path.exists(path)
def make(path):
    open(path, "w").close()
def start(pidfile):
    if not free(pidfile):
        return False
    make(pidfile)
    return True
""",
    ),
    "through pathlib, an f-string and an attribute": (
        "LH108",
        """
import fcntl
from pathlib import Path
class Runner:
    def __init__(self, folder):
        self._guard = Path(folder) / "runner.lock"
    def begin(self):
        self._file = open(str(self._guard), "a")
        fcntl.flock(self._file.fileno(), fcntl.LOCK_EX)
    def end(self):
        self._file.close()
        self._guard.unlink(missing_ok=True)
""",
    ),
    "under another import name": (
        "LH115",
        """
from fcntl import flock as grab, LOCK_EX
def acquire_lock(path):
    grab(open(path, "a"), LOCK_EX)
""",
    ),
    "in an async function": (
        "LH204",
        """
async def release(redis, lock_key, token):
    value = await redis.get(lock_key)
    if value is not None and value.decode() == token:
        await redis.delete(lock_key)
""",
    ),
    "at the top of a script": (
        "LH101",
        """
import os, sys
PIDFILE = "/run/app.pid"
if os.path.isfile(PIDFILE):
    sys.exit(1)
with open(PIDFILE, "w") as file:
    file.write(str(os.getpid()))
""",
    ),
    "in Lua, without an owner": (
        "LH203",
        """
UNLOCK = "-- free it\\nredis.call('del', KEYS[1])"
""",
    ),
    "in Lua, without an end": (
        "LH202",
        """
class RedisLock:
    def take(self):
        return self.redis.eval("return redis.call('SET', KEYS[1], ARGV[1], 'NX')", 1, self.key, 1)
""",
    ),
    "a condition by the clock of a host": (
        "LH206",
        """
import boto3, time
def acquire_lock(table, name, me):
    table.put_item(
        Item={"lock_id": name, "owner": me},
        ConditionExpression="attribute_not_exists(lock_id) OR lock_expiry < :now",
        ExpressionAttributeValues={":now": int(time.time())},
    )
""",
    ),
    "a statement by the clock of a host": (
        "LH206",
        """
import time, redis
def take_lock(redis_client, db, name):
    redis_client.get(name)
    db.execute("UPDATE locks SET owner = ? WHERE expires_at < ?", (name, time.time()))
""",
    ),
    "an item that is deleted on an error": (
        "LH216",
        """
import boto3
def handle(table, request, pay):
    try:
        pay(request)
    except Exception:
        table.delete_item(Key={"idempotency_key": request.id})
        raise
""",
    ),
    "a lease without a name": (
        "LH219",
        """
import lifehold
async def job(work):
    store = await lifehold.aconnect("postgresql:///x")
    await store.lock("report").acquire()
    await work()
""",
    ),
    "an attempt whose answer nobody has": (
        "LH219",
        """
from lifehold import Lock
lock = Lock("report.lock")
def job(work):
    with lock.attempt():
        work()
""",
    ),
    "an attempt to read whose answer no task has": (
        "LH219",
        """
from lifehold import AsyncReadWriteLock
async def job(work):
    async with AsyncReadWriteLock("report.lock").attempt_read():
        await work()
""",
    ),
    "work longer than the lease, taken and given by hand": (
        "LH210",
        """
import redis, time
r = redis.Redis()
def job(fetch):
    lock = r.lock("lock:fetch", timeout=10)
    lock.acquire(blocking_timeout=5)
    try:
        fetch("https://example.org", timeout=60)
    finally:
        lock.release()
""",
    ),
    "the lock of a job": (
        "LH202",
        """
import redis
r = redis.Redis()
def begin(name):
    return r.set("lock:job:" + name, "me", nx=True)
""",
    ),
    "behind a walrus": (
        "LH207",
        """
def begin(redis_client, job):
    lock_key = f"lock:{job}"
    if (holder := redis_client.get(lock_key)) is not None:
        return holder
    redis_client.set(lock_key, "me", ex=30)
""",
    ),
    "a stop that waits knows the number alone": (
        "LH104",
        """
import os, signal, time
def stop(pidfile):
    with open(pidfile) as file:
        pid = int(file.read())
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        return 1
    while True:
        try:
            os.kill(pid, 0)
        except OSError:
            return 0
        time.sleep(1)
""",
    ),
    "an instant in the value, and nobody who looks at it": (
        "LH202",
        """
import time
def acquire_lock(redis, lock_key):
    return redis.setnx(lock_key, time.time() + 30)
""",
    ),
}


def codes(text: str) -> set[str]:
    judge = judged(Module("example.py", text, ast.parse(text)))
    return {hit[0] for hit in scan.hits(judge, text)}


@pytest.mark.parametrize("name", CLEAN)
def test_what_only_looks_like_a_defect_is_left_alone(name):
    assert codes(CLEAN[name]) == set()


@pytest.mark.parametrize("name", FOUND)
def test_a_defect_is_found_in_other_clothes(name):
    code, text = FOUND[name]
    assert code in codes(text)


def test_a_signal_that_went_through_is_not_refused_a_moment_later():
    assert "LH105" not in codes(FOUND["a stop that waits knows the number alone"][1])


def test_an_instant_that_others_look_at_is_the_end_of_the_lock():
    found = codes("""
import time
def acquire_lock(redis, lock_key):
    if redis.setnx(lock_key, time.time() + 30):
        return True
    ends = float(redis.get(lock_key))
    if time.time() > ends:
        return redis.getset(lock_key, time.time() + 30) == ends
    return False
""")
    assert "LH206" in found
    assert "LH202" not in found


def test_a_break_by_age_is_told_where_it_is_and_not_at_each_caller():
    text = """
import os, time
class Locks:
    def is_locked(self, lock_path):
        if time.time() - os.path.getmtime(lock_path) > 60:
            os.unlink(lock_path)
            return False
        return True
    def wait_for(self, lock_path, timeout):
        while self.is_locked(lock_path):
            timeout -= 1
            if timeout < 0:
                return False
            time.sleep(1)
        return True
    def acquire(self, lock_path):
        if self.is_locked(lock_path):
            if not self.wait_for(lock_path, 10):
                return False
        return True
"""
    judge = judged(Module("example.py", text, ast.parse(text)))
    found = [(hit[0], hit[1]) for hit in scan.hits(judge, text)]
    assert [line for code, line in found if code == "LH107"] == [6]
