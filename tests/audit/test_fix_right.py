"""A right program runs after `--fix` as it did before; in doubt the cure is not offered as safe."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lifehold.audit import fix
from lifehold.audit.catalogue import RULES

EVERY = frozenset(RULES)


def cured(text: str, *, unsafe: bool = False) -> str:
    return fix.cured("app.py", text.encode(), EVERY, unsafe=unsafe).after.decode()


def codes(text: str) -> list[str]:
    return [hit[0] for hit in fix.findings("app.py", text.encode())]


def ran(folder: Path, text: str, redis: str = "") -> tuple[int, str, str]:
    """The program in a folder of its own: its exit code, and what it printed."""
    folder.mkdir()
    if redis:
        (folder / "redis.py").write_text(redis)
    (folder / "app.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "app.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


# --- LH108: a file that excludes by its presence -------------------------------------------------

EXCLUSIVE = """\
import fcntl, os
def job(lock_path):
    fd = OPEN
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        print("works")
    finally:
        os.unlink(lock_path)
        CLOSE
job("x.lock")
job("x.lock")
"""
OPENED = {
    "O_EXCL": ("os.open(lock_path, os.O_CREAT | os.O_EXCL | os.O_RDWR)", "os.close(fd)"),
    "x": ('open(lock_path, "x")', "fd.close()"),
    "mode=x": ('open(lock_path, mode="x+")', "fd.close()"),
}


@pytest.mark.parametrize("name", OPENED)
def test_a_file_that_is_made_exclusively_is_removed_to_release_it(name, tmp_path):
    opened, closed = OPENED[name]
    text = EXCLUSIVE.replace("OPEN", opened).replace("CLOSE", closed)
    assert "LH108" not in codes(text)
    before = ran(tmp_path / "before", text)
    assert before == (0, "works\nworks\n", "")
    assert ran(tmp_path / "after", cured(text, unsafe=True)) == before


MIXED = """\
import fcntl, os
def job(lock_path, flags=os.O_CREAT | os.O_EXCL | os.O_RDWR):
    try:
        fd = os.open(lock_path, flags)
    except FileExistsError:
        fd = os.open(lock_path, os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    os.unlink(lock_path)
    os.close(fd)
"""


def test_a_file_that_is_opened_in_both_ways_is_told_and_gets_no_cure():
    assert "LH108" in codes(MIXED)
    assert cured(MIXED, unsafe=True) == MIXED


# --- LH110: a lock that a handler gives back already ---------------------------------------------

STEP = """\
import subprocess, sys
from filelock import FileLock
lock = FileLock("x.lock")
def step(work):
BODY
def bad():
    raise ValueError("no")
with lock:
    try:
        step(bad)
    except ValueError:
        pass
    held = subprocess.call(["flock", "-n", "x.lock", "true"]) == 1
    print("the outer holder still holds:", held)
"""
HANDLED = {
    "a handler": """\
    try:
        lock.acquire()
        work()
        work()
        lock.release()
    except ValueError:
        lock.release()
        raise
""",
    "a finally around": """\
    ended = False
    try:
        lock.acquire()
        work()
        work()
        lock.release()
        ended = True
    finally:
        if not ended:
            lock.release()
""",
    "a statement behind the try": """\
    failed = True
    try:
        lock.acquire()
        work()
        work()
        lock.release()
        failed = False
    except ValueError:
        pass
    if failed:
        lock.release()
""",
}


@pytest.mark.parametrize("name", HANDLED)
def test_an_outer_holder_keeps_its_lock(name, tmp_path):
    text = STEP.replace("BODY\n", HANDLED[name])
    before = ran(tmp_path / "before", text)
    assert before == (0, "the outer holder still holds: True\n", "")
    assert cured(text, unsafe=True) == text


CALLER = """\
from filelock import FileLock
lock = FileLock("x.lock")
def step(work):
    lock.acquire()
    work()
    work()
    lock.release()
def main(work):
    try:
        step(work)
    except ValueError:
        lock.release()
"""


def test_a_caller_that_gives_the_lock_back_makes_the_cure_unsafe():
    assert "LH110" in codes(CALLER)
    assert cured(CALLER) == CALLER
    assert cured(CALLER, unsafe=True) != CALLER


YIELDED = """\
import contextlib, os
@contextlib.contextmanager
def locked(lock_path):
    try:
        fd = os.open(lock_path, os.O_CREAT | os.O_EXCL)
        yield fd
        os.close(fd)
        os.unlink(lock_path)
    except ValueError:
        os.close(fd)
        os.unlink(lock_path)
        raise
try:
    with locked("x.lock"):
        raise ValueError("no")
except ValueError as error:
    print(error)
"""


def test_a_block_whose_handler_gives_back_is_left_as_it_is(tmp_path):
    before = ran(tmp_path / "before", YIELDED)
    assert before == (0, "no\n", "")
    assert ran(tmp_path / "after", cured(YIELDED, unsafe=True)) == before


# --- LH115: where the file that is kept has no room ----------------------------------------------

JOB = """\
import enum, fcntl
from dataclasses import dataclass
from typing import NamedTuple
class Rooted:
    __slots__ = ()
CLASS
    def lock(self):
        fcntl.flock(open(self.path, "a"), fcntl.LOCK_EX|fcntl.LOCK_NB)
Job("j.lock").lock()
print("ran")
"""
INIT = "    def __init__(self, path):\n        self.path = path\n"
CLOSED = {
    "slots": 'class Job:\n    __slots__ = ("path",)\n' + INIT,
    "a frozen dataclass": "@dataclass(frozen=True)\nclass Job:\n    path: str",
    "a dataclass with slots": "@dataclass(slots=True)\nclass Job:\n    path: str",
    "a NamedTuple": "class Job(NamedTuple):\n    path: str",
    "a base of the module": "class Job(Rooted):\n    __slots__ = ('path',)\n" + INIT,
}


@pytest.mark.parametrize("name", CLOSED)
def test_no_attribute_is_set_where_none_can_be(name, tmp_path):
    text = JOB.replace("CLASS", CLOSED[name].rstrip())
    assert "LH115" in codes(text)
    assert ran(tmp_path / "before", text) == (0, "ran\n", "")
    assert ran(tmp_path / "after", cured(text, unsafe=True)) == (0, "ran\n", "")


def test_a_plain_class_still_keeps_its_file():
    text = JOB.replace("CLASS", "class Job:\n" + INIT.rstrip())
    assert "self._lock_handle = open(self.path" in cured(text)


SEVERAL = {
    "a parameter": (
        "def lock(path):\n    fcntl.flock(open(path, 'a'), fcntl.LOCK_EX|fcntl.LOCK_NB)\n"
    ),
    "made of a parameter": (
        "def lock(name):\n    path = f'/run/{name}.lock'\n"
        "    fcntl.flock(open(path, 'a'), fcntl.LOCK_EX|fcntl.LOCK_NB)\n"
    ),
    "a loop": (
        "for path in ('a.lock', 'b'):\n"
        "    fcntl.flock(open(path, 'a'), fcntl.LOCK_EX|fcntl.LOCK_NB)\n"
    ),
    "an attribute that is set anew": (
        "class Job:\n    def __init__(self, path):\n        self.path = path\n"
        "    def go(self, path):\n        self.path = path\n"
        "    def lock(self):\n"
        "        fcntl.flock(open(self.path, 'a'), fcntl.LOCK_EX|fcntl.LOCK_NB)\n"
    ),
}


@pytest.mark.parametrize("name", SEVERAL)
def test_a_helper_for_several_paths_gets_no_single_name(name):
    text = "import fcntl\n" + SEVERAL[name]
    assert "LH115" in codes(text)
    assert cured(text, unsafe=True) == text


def test_a_path_that_is_locked_elsewhere_too_makes_the_cure_unsafe():
    one = 'def a{0}():\n    fcntl.flock(open("app.lock", "a"), fcntl.LOCK_EX|fcntl.LOCK_NB)\n'
    text = "import fcntl\n" + one.format(1) + one.format(2)  # kept by the one, waited for by two
    assert "LH115" in codes(text)
    assert cured(text) == text


def test_six_dropped_files_get_six_names():
    one = 'def a{0}():\n    fcntl.flock(open("a{0}.lock", "a"), fcntl.LOCK_EX|fcntl.LOCK_NB)\n'
    text = "import fcntl\n" + "".join(one.format(number) for number in range(6))
    after = cured(text)
    names = [row.split()[0] for row in after.splitlines() if " = open(" in row]
    assert len(set(names)) == 6
    assert codes(after) == []


BARRIER = """\
import fcntl
def wait_for_the_lock_of_a_writer():
    fcntl.flock(open("write.lock", "a"), FLAGS)
wait_for_the_lock_of_a_writer()
with open("write" + ".lock", "a") as writer:
    fcntl.flock(writer, fcntl.LOCK_EX | fcntl.LOCK_NB)
print("written")
"""


@pytest.mark.parametrize("flags", ["fcntl.LOCK_SH", "fcntl.LOCK_EX", "fcntl.LOCK_SH|fcntl.LOCK_NB"])
def test_who_waits_until_nobody_holds_it_holds_nothing_then(flags, tmp_path):
    text = BARRIER.replace("FLAGS", flags)
    assert "LH115" in codes(text)
    before = ran(tmp_path / "before", text)
    assert before == (0, "written\n", "")
    assert ran(tmp_path / "after", cured(text)) == before
    assert "_lock_handle" in cured(text, unsafe=True)


# --- LH108: what goes by whether the file is there -----------------------------------------------

TIDY = """\
import fcntl, glob, os
LOCK = "work.d/job.lock"
BEFORE
def job():
    os.makedirs("work.d", exist_ok=True)
    with open(LOCK, "a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        os.unlink(LOCK)
    AFTER
job()
print("ran")
"""
READ = """\
def running():
    try:
        ASK
    except OSError:
        return False
    return True
"""
ASKING = {
    "rmdir": ("", 'os.rmdir("work.d")'),
    "stat": (READ.replace("ASK", "os.stat(LOCK)"), "print(running())"),
    "lstat": (READ.replace("ASK", "os.lstat(LOCK)"), "print(running())"),
    "open": (READ.replace("ASK", "open(LOCK).close()"), "print(running())"),
    "os.open": (READ.replace("ASK", "os.open(LOCK, os.O_RDONLY)"), "print(running())"),
    "access": ("", "print(os.access(LOCK, os.F_OK))"),
    "listdir": ("", 'print(os.listdir("work.d"))'),
    "scandir": ("", 'print(len(list(os.scandir("work.d"))))'),
    "glob": ("", 'print(glob.glob("work.d/*"))'),
    "x": ("", 'open(f"work.d/{\'job\'}.lock", "x").close()'),
}


@pytest.mark.parametrize("name", ASKING)
def test_a_file_is_not_kept_where_something_goes_by_its_absence(name, tmp_path):
    text = TIDY.replace("BEFORE", ASKING[name][0]).replace("AFTER", ASKING[name][1])
    assert "LH108" in codes(text)
    before = ran(tmp_path / "before", text)
    assert before[0] == 0
    assert ran(tmp_path / "after", cured(text)) == before


def test_without_one_the_file_is_kept():
    text = TIDY.replace("BEFORE", "").replace("AFTER", "")
    assert "os.unlink" not in cured(text)


# --- LH108: a locked file that holds data ---------------------------------------------------------

DRAIN = """\
import fcntl, os
def sent(line):
    print("sent", line)
def show(path):
    os.system("cat " + path)
def drain_lock(lock_path):
    with open(lock_path, "a+") as spool:
        fcntl.flock(spool, fcntl.LOCK_EX)
        STEP
        os.remove(lock_path)
with open("spool.lock", "a") as file:
    file.write("a")
drain_lock("spool.lock")
with open("spool.lock", "a") as file:
    file.write("b")
drain_lock("spool.lock")
"""
FILLED = {
    "iterated": "spool.seek(0); [sent(line) for line in spool]",
    "read": "spool.seek(0); sent(spool.read())",
    "handed on": "spool.seek(0); sent(list(spool))",
    "by its number": "fd = spool.fileno(); os.lseek(fd, 0, 0); sent(os.read(fd, 9))",
    "its path handed on": "show(lock_path)",
    "written": 'spool.write("more"); spool.flush(); os.system("cat spool.lock")',
    "printed": 'print("x", file=spool, flush=True); os.system("cat spool.lock")',
}


@pytest.mark.parametrize("name", FILLED)
def test_a_locked_file_that_holds_data_is_not_kept(name, tmp_path):
    text = DRAIN.replace("STEP", FILLED[name])
    assert "LH108" in codes(text)
    before = ran(tmp_path / "before", text)
    assert before[0] == 0
    assert ran(tmp_path / "after", cured(text)) == before
    assert fix.cured("app.py", text.encode(), EVERY, unsafe=False).left == 1


LOCKING = {
    "nothing": "pass",
    "its pid": "spool.seek(0); spool.truncate(); spool.write(str(os.getpid())); spool.flush()",
    "told": 'print("locked", lock_path)',
    "by its number": "fd = spool.fileno(); os.ftruncate(fd, 0); os.write(fd, b'%d' % os.getpid())",
}


@pytest.mark.parametrize("name", LOCKING)
def test_a_file_that_only_locks_is_kept(name):
    text = DRAIN.replace("STEP", LOCKING[name])
    assert "LH108" in codes(text)
    assert "os.remove" not in cured(text)


# --- LH203, LH204: where the script stands, and what it is handed ---------------------------------

REDIS = """\
class Redis:
    keys = {}
    def get(self, key):
        return self.keys.get(key)
    def set(self, key, value, nx, ex):
        return None if key in self.keys else self.keys.update({key: value}) or True
    def delete(self, key):
        self.keys.pop(key, None)
    def eval(self, script, count, key, value):
        if not isinstance(value, (bytes, str, int, float)):
            raise TypeError("DataError: convert to bytes, string, int or float first")
        return self.delete(key) or 1 if self.keys.get(key) == value else 0
"""
NIGHTLY = '''\
"""The jobs of the night."""
import redis
import os
r = redis.Redis()
def main(job_lock):
    token = os.urandom(8).hex()
    if r.set(job_lock, token, nx=True, ex=30):
        try:
            print("work")
        finally:
            r.delete(job_lock)
main("lock:job")
LATE
print(r.get("lock:job"))
'''


@pytest.mark.parametrize(
    "late", ["import sys", "pass", "from json import loads", "import sys; sys"]
)
def test_the_script_stands_before_what_uses_it(late, tmp_path):
    text = NIGHTLY.replace("LATE", late)
    assert "LH203" in codes(text)
    assert "r.eval(RELEASE_OWN" in cured(text)
    before = ran(tmp_path / "before", text, REDIS)
    assert before == (0, "work\nNone\n", "")
    assert ran(tmp_path / "after", cured(text), REDIS) == before


def test_the_script_stands_behind_the_imports_at_the_head():
    text = NIGHTLY.replace("import redis", "from __future__ import annotations\nimport redis", 1)
    rows = cured(text).splitlines()
    assert rows.index("import os") + 2 == rows.index('RELEASE_OWN = """')


REFUSED = """\
import redis
class Lock:
    def __init__(self, lock_key):
        self.client = redis.Redis()
        self.lock_key = lock_key
        self.token = None
    def acquire(self):
        token = "mine"
        if self.client.set(self.lock_key, token, nx=True, ex=30):
            self.token = token
            return True
        return False
    def release(self):
        if self.client.get(self.lock_key) == self.token:
            self.client.delete(self.lock_key)
held, refused = Lock("lock:a"), Lock("lock:a")
print(held.acquire(), refused.acquire())
refused.release()
print(held.client.get("lock:a"))
held.release()
print(held.client.get("lock:a"))
"""


def test_who_was_refused_gives_nothing_back_and_no_error(tmp_path):
    assert "LH204" in codes(REFUSED)
    assert ".eval(" in cured(REFUSED)
    before = ran(tmp_path / "before", REFUSED, REDIS)
    assert before == (0, "True False\nmine\nNone\n", "")
    assert ran(tmp_path / "after", cured(REFUSED), REDIS) == before


@pytest.mark.parametrize(
    ("given", "guarded"),
    [
        ("token: str", False),
        ("token: bytes = b'1'", False),
        ("token: str = None", True),
        ("token: str | None", True),
        ("token", True),
    ],
)
def test_a_value_that_is_never_none_is_not_asked(given, guarded):
    text = CLIENT + (
        f"def release(lock_key, {given}):\n"
        "    if r.get(lock_key) == token:\n        r.delete(lock_key)\n"
    )
    assert "LH204" in codes(text)
    assert ".eval(" in cured(text)
    assert ("token is not None and" in cured(text)) == guarded


# --- LH201: an end that not every key gets -------------------------------------------------------

CLIENT = "import redis\nr = redis.Redis()\n"
SOMETIMES = {
    "an `if` of its own": """\
def take(lock_key, ttl=0):
    if not r.setnx(lock_key, "1"):
        return False
    if ttl:
        r.expire(lock_key, ttl)
    return True
""",
    "the branch of a refusal": """\
def take(lock_key, ttl):
    if not r.setnx(lock_key, "1"):
        r.expire(lock_key, ttl)
        return False
    return True
""",
    "a try that undoes it": """\
def take(lock_key, ttl):
    if not r.setnx(lock_key, "1"):
        return False
    try:
        r.expire(lock_key, ttl)
    except redis.RedisError:
        r.delete(lock_key)
        raise
    return True
""",
    "another condition beside it": """\
def take(lock_key, ttl):
    if r.setnx(lock_key, "1") and ttl:
        r.expire(lock_key, ttl)
        return True
    return False
""",
    "a way out before it": """\
def take(lock_key, ttl):
    got = r.setnx(lock_key, "1")
    if not ttl:
        return
    if got:
        r.expire(lock_key, ttl)
""",
    "a way out behind the test": """\
def take(lock_key, ttl):
    if r.setnx(lock_key, "1"):
        if not ttl:
            return True
        r.expire(lock_key, ttl)
        return True
    return False
""",
    "a loop that gives up": """\
def take(lock_key, ttl):
    while not r.setnx(lock_key, "1"):
        if ttl > 9:
            break
    r.expire(lock_key, ttl)
""",
}
ALWAYS = {
    "then": 'if r.setnx(lock_key, "1"):\n        r.expire(lock_key, 9)\n        return 1',
    "not": 'if not r.setnx(lock_key, "1"):\n        return\n    r.expire(lock_key, 9)',
    "named": 'got = r.setnx(lock_key, "1")\n    if got:\n        r.expire(lock_key, 9)',
    "while": 'while not r.setnx(lock_key, "1"):\n        pass\n    r.expire(lock_key, 9)',
    "else": 'if not r.setnx(lock_key, "1"):\n        x()\n    else:\n        r.expire(lock_key, 9)',
    "and": 'if x() and r.setnx(lock_key, "1"):\n        r.expire(lock_key, 9)\n        return 1',
}


@pytest.mark.parametrize("name", SOMETIMES)
def test_an_end_that_not_every_key_gets_stays_where_it_is(name):
    text = CLIENT + SOMETIMES[name]
    assert cured(text, unsafe=True) == text


@pytest.mark.parametrize("name", ALWAYS)
def test_an_end_that_every_key_gets_goes_into_the_request(name):
    text = CLIENT + f"def take(lock_key):\n    {ALWAYS[name]}\n"
    assert 'r.set(lock_key, "1", nx=True, ex=9)' in cured(text)


# --- LH203, LH204: what is no client of Redis ----------------------------------------------------

JOB_OF_CACHE = """\
import uuid
IMPORTS
from redis.exceptions import ConnectionError
def job(lock_key):
    token = uuid.uuid4().hex
    if not cache.set(lock_key, token, nx=True, timeout=30):
        return
    try:
        print("works")
    finally:
        cache.delete(lock_key)
def free(lock_key, token):
    if cache.get(lock_key) == token:
        cache.delete(lock_key)
def take(lock_key):
    if cache.setnx(lock_key, "1"):
        cache.expire(lock_key, 30)
        return True
    return False
"""
OF_CACHE = {
    "cache": "from django.core.cache import cache",
    "caches": "from django.core.cache import caches\ncache = caches['locks']",
    "renamed": "from django.core.cache import cache as other\ncache = other",
    "handed out": "from django.core.cache import caches\ncache = made(caches)",
}


@pytest.mark.parametrize("name", OF_CACHE)
def test_a_cache_of_django_is_never_asked_to_eval(name):
    text = JOB_OF_CACHE.replace("IMPORTS", OF_CACHE[name])
    assert {"LH203", "LH204"} & set(codes(text))
    assert cured(text, unsafe=True) == text


BOUND = {
    "safe": (
        "import redis\nr = redis.Redis()",
        "import redis\nr = redis.Redis.from_url('redis://h')",
        "from redis import StrictRedis as Redis\nr = Redis()",
        "from redis.asyncio import Redis\nr: Redis = Redis()",
        "import redis.asyncio as redis\nr = redis.from_url('redis://h')",
        "import fakeredis\nr = None\nr = fakeredis.FakeStrictRedis()",
        "import redis\nclass Mine(redis.Redis):\n    pass\nr = Mine()",
        "from django.core.cache import cache\nfrom redis import Redis\nr = Redis()",
    ),
    "unsafe": (
        "import redis\nfrom .clients import r",
        "import redis\nr = made()",
        "import redis\nr = Store()",
        "import redis\nr = redis.Redis()\nr = made()",
    ),
}


@pytest.mark.parametrize(("kind", "bound"), [(k, b) for k, each in BOUND.items() for b in each])
def test_a_script_is_safe_for_what_is_bound_to_a_client(kind, bound):
    text = f"{bound}\ndef free(lock_key, token):\n    if r.get(lock_key) == token:\n"
    text += "        r.delete(lock_key)\n"
    assert "LH204" in codes(text)
    assert ("r.eval(" in cured(text)) == (kind == "safe")
    assert "r.eval(" in cured(text, unsafe=True)


def test_a_parameter_is_a_client_by_its_annotation():
    text = "import redis\ndef free(r{}, lock_key, token):\n    if r.get(lock_key) == token:\n"
    text += "        r.delete(lock_key)\n"
    assert "r.eval(" in cured(text.format(": redis.Redis"))
    assert "r.eval(" in cured(text.format(": redis.Redis | None"))
    assert "r.eval(" in cured(text.format(": 'redis.Redis[bytes]'"))
    assert "r.eval(" not in cured(text.format(""))
    assert "r.eval(" not in cured(text.format(": Store"))


# --- LH203: a key that holds something else by then ----------------------------------------------

WRITTEN = """\
import redis, uuid
r = redis.Redis()
def job(lock_key, work):
    token = uuid.uuid4().hex
    if not r.set(lock_key, token, nx=True, ex=30):
        return
    STEP
    try:
        work()
    finally:
        r.delete(lock_key)
"""


@pytest.mark.parametrize(
    ("step", "kinds"),
    [
        ("r.get(lock_key)", {False, True}),
        ("r.expire(lock_key, 60)", {False, True}),
        ('r.set(lock_key, "step 2 by " + token, xx=True, ex=3600)', set()),
        ('r.append(lock_key, "2")', set()),
        ("r.setex(lock_key, 60, work)", set()),
        ("work.begin(lock_key)", {True}),
    ],
)
def test_a_key_that_is_written_again_is_not_compared_with_the_first_value(step, kinds):
    text = WRITTEN.replace("STEP", step)
    assert "LH203" in codes(text)
    for unsafe in (False, True):
        assert ("r.eval(" in cured(text, unsafe=unsafe)) == (unsafe in kinds)


# --- LH108: a statement that does more than to remove --------------------------------------------

REMOVED = """\
import fcntl, os
from pathlib import Path
seen = []
def told(path):
    seen.append(path)
    return path
def job(lock_path):
    with open(lock_path, "a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        REMOVE
    print(seen, sorted(set(locals()) - {"handle", "lock_path"}))
job("job.lock")
"""
DOES_MORE = (
    "os.unlink(gone := lock_path)",
    "if os.path.exists(gone := lock_path): os.unlink(lock_path)",
    "os.unlink(told(lock_path))",
    "os.unlink(lock_path if told(lock_path) else lock_path)",
)


@pytest.mark.parametrize("removed", DOES_MORE)
def test_a_removal_in_which_more_is_done_is_left_as_it_is(removed, tmp_path):
    text = REMOVED.replace("REMOVE", removed)
    before = ran(tmp_path / "before", text)
    assert before[0] == 0
    assert ran(tmp_path / "after", cured(text, unsafe=True)) == before


def test_a_removal_that_only_spells_its_path_is_still_dropped():
    text = REMOVED.replace("REMOVE", "os.unlink(str(Path(lock_path)))")
    assert "LH108" in codes(text)
    assert "os.unlink" not in cured(text, unsafe=True)


# --- LH110: what is done before the release, after a success alone -------------------------------

SPOOL = """\
import contextlib, os
from filelock import FileLock
lock = FileLock("db.lock")
@contextlib.contextmanager
def transaction(journal):
    lock.acquire()
    with open(journal, "w") as file:
        file.write("begun")
    yield
    STEPS
try:
    with transaction("db.journal"):
        raise ValueError("no")
except ValueError:
    pass
print(os.path.exists("db.journal"))
with transaction("db.journal"):
    pass
print(os.path.exists("db.journal"), lock.is_locked)
"""
FREED = """\
import sys, types
class FileLock:
    is_locked = 0
    def __init__(self, path): pass
    def acquire(self): self.is_locked += 1
    def release(self): self.is_locked -= 1
sys.modules["filelock"] = types.SimpleNamespace(FileLock=FileLock)
"""


def test_a_journal_that_a_success_removes_outlives_an_error(tmp_path):
    text = SPOOL.replace("STEPS", "os.remove(journal)\n    lock.release()")
    assert "LH110" in codes(text)
    assert ran(tmp_path / "before", FREED + text) == (0, "True\nFalse 1\n", "")
    after = cured(text)
    assert "finally:\n        lock.release()\n" in after
    assert ran(tmp_path / "after", FREED + after) == (0, "True\nFalse 0\n", "")


BEHIND = (
    "lock.release()\n    os.remove(journal)",
    "lock.release()\n    if os.path.exists(journal):\n        os.remove(journal)",
    "done = True\n    os.remove(journal)\n    lock.release()",
)


@pytest.mark.parametrize("steps", BEHIND)
def test_where_the_removal_cannot_stay_before_the_release_nothing_is_written(steps):
    text = SPOOL.replace("STEPS", steps)
    assert "LH110" in codes(text)
    assert cured(text, unsafe=True) == text


PERHAPS = """\
import contextlib, os
@contextlib.contextmanager
def locked(lock_path):
    MAKE
    yield
    os.unlink(lock_path)
"""
NOT_SURE = {
    "a branch": "if busy():\n        os.close(os.open(lock_path, os.O_CREAT | os.O_EXCL))",
    "an error that is passed over": (
        "try:\n        os.close(os.open(lock_path, os.O_CREAT | os.O_EXCL))\n"
        "    except FileExistsError:\n        pass"
    ),
}
SURE = {
    "a statement": "os.close(os.open(lock_path, os.O_CREAT | os.O_EXCL))",
    "an error that is told": (
        "try:\n        os.close(os.open(lock_path, os.O_CREAT | os.O_EXCL))\n"
        "    except FileExistsError:\n        raise RuntimeError(lock_path)"
    ),
}


@pytest.mark.parametrize("name", NOT_SURE)
def test_a_lock_that_was_perhaps_never_made_is_not_removed_after_an_error(name):
    text = PERHAPS.replace("MAKE", NOT_SURE[name])
    assert "LH110" in codes(text)
    assert cured(text, unsafe=True) == text


@pytest.mark.parametrize("name", SURE)
def test_a_lock_that_was_made_is_removed_after_an_error(name):
    text = PERHAPS.replace("MAKE", SURE[name])
    assert "LH110" in codes(text)
    assert "finally:\n        os.unlink(lock_path)" in cured(text)
