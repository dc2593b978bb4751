"""The recipes of the pattern texts: what each block must show, and that it shows nothing else.

Looked at: every block of Python of the five texts. Not looked at: C (liblockfile's manual), the two
greps and the sentences, Lua that stands outside of Python.
"""

from __future__ import annotations

import ast

import pytest

from lifehold.audit import scan
from lifehold.audit.forms import judged
from lifehold.audit.model import Module

BY_HAND = """
def update_config(new_data: dict):
    lock_path = "config.lock"
    while os.path.exists(lock_path):
        time.sleep(0.1)
    open(lock_path, "w").close()

    try:
        with open("config.json", "w") as f:
            json.dump(new_data, f)
    finally:
        os.remove(lock_path)
"""
CRASH_TEST = """
import os, signal, multiprocessing, time

def test_lock_survives_crash():
    def crashable_writer(lock_path):
        open(lock_path, "w").close()
        os.kill(os.getpid(), signal.SIGTERM)

    lock_path = "/tmp/test.lock"
    if os.path.exists(lock_path):
        os.remove(lock_path)

    p = multiprocessing.Process(target=crashable_writer, args=(lock_path,))
    p.start()
    p.join(timeout=5)
    time.sleep(1)
    stale = os.path.exists(lock_path)
    if stale:
        os.remove(lock_path)
    assert not stale
"""
CHECKER = """
import os, time, logging
from pathlib import Path

class LockStalenessChecker:
    def __init__(self, max_age_seconds: int = 300):
        self.max_age = max_age_seconds

    def check(self, lock_path: str) -> dict:
        path = Path(lock_path)
        if not path.exists():
            return {"stale": False, "exists": False}
        age = time.time() - path.stat().st_mtime
        if age > self.max_age:
            return {"stale": True, "age_seconds": round(age), "message": f"{lock_path} {age}"}
        return {"stale": False, "age_seconds": round(age)}

    def clean_if_stale(self, lock_path: str) -> bool:
        result = self.check(lock_path)
        if result.get("stale"):
            os.remove(lock_path)
            logging.warning(f"STALE LOCK REMOVED: {result['message']}")
            return True
        return False
"""
IMMEDIATE = """
import os, time, json

LOCK_TTL_SECONDS = 120

def acquire_lock(lock_path: str, timeout: int = 30) -> bool:
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if os.path.exists(lock_path):
            age = time.time() - os.path.getmtime(lock_path)
            if age > LOCK_TTL_SECONDS:
                os.remove(lock_path)
                continue
        try:
            fd = os.open(lock_path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
            os.write(fd, str(os.getpid()).encode())
            os.close(fd)
            return True
        except FileExistsError:
            time.sleep(0.1)
    return False

def release_lock(lock_path: str):
    try:
        os.remove(lock_path)
    except FileNotFoundError:
        pass
"""
ROBUST = """
import os, time, json
from contextlib import contextmanager

@contextmanager
def file_lock(lock_path: str, ttl: int = 120, timeout: int = 30):
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if os.path.exists(lock_path):
            try:
                with open(lock_path) as f:
                    info = json.load(f)
                pid = info.get("pid", -1)
                created = info.get("created", 0)
                if pid > 0:
                    try:
                        os.kill(pid, 0)
                    except OSError:
                        os.remove(lock_path)
                        continue
                if time.time() - created > ttl:
                    os.remove(lock_path)
                    continue
            except (json.JSONDecodeError, OSError):
                os.remove(lock_path)
                continue
        try:
            fd = os.open(lock_path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
            with os.fdopen(fd, "w") as f:
                json.dump({"pid": os.getpid(), "created": time.time()}, f)
            break
        except FileExistsError:
            time.sleep(0.1)
    else:
        raise TimeoutError(f"Could not acquire lock {lock_path} in {timeout}s")
    try:
        yield
    finally:
        try:
            os.remove(lock_path)
        except FileNotFoundError:
            pass

with file_lock("config.lock"):
    update_config(new_data)
"""
FOLDER = """
import pathlib
from lockfolder import lockfolder

lockfolder.init()
p = pathlib.Path("path/to/lockfolder")
if lockfolder.lock(p):
    print("aquired lock")
    lockfolder.unlock(p)
else:
    print("failed to aquire lock")
"""
TWO_INSTANCES = """
from filelock import FileLock
lock_a = FileLock("work.lock")
lock_b = FileLock("work.lock")
with lock_a:
    with lock_b:
        pass
"""
TOCTOU = """
if os.path.exists("sensitive.txt"):
    data = open("sensitive.txt").read()
"""
ON_THE_DATA = """
from filelock import FileLock
lock = FileLock("data.txt")
with lock:
    data = open("data.txt").read()
"""
COMPANION = ON_THE_DATA.replace('FileLock("data.txt")', 'FileLock("data.txt.lock")')
WITHOUT_LOCK = """
with lock:
    open("data.txt").write("A")
"""
BLOCKS = {
    "000, 3: the dangerous pattern": (BY_HAND, {"LH101", "LH102", "LH103"}),
    "000, 4.2: the crash test": (CRASH_TEST, {"LH106"}),
    "000, 4.3: the staleness checker": (CHECKER, {"LH106", "LH107"}),
    "000, 5.1: the immediate fix": (IMMEDIATE, {"LH106", "LH107", "LH109"}),
    "000, 5.2: the robust fix": (ROBUST, {"LH104", "LH105", "LH106", "LH107", "LH109"}),
    "001: how to use it": (FOLDER, set()),
    "004: two instances": (TWO_INSTANCES, {"LH119"}),
    "004: TOCTOU, of data and no lock": (TOCTOU, set()),
    "004: a lock on the resource": (ON_THE_DATA, {"LH114"}),
    "004: a separate lock file": (COMPANION, set()),
    "004: who does not lock": (WITHOUT_LOCK, set()),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_a_recipe_of_the_texts_shows_its_defects_and_nothing_else(name):
    text, expected = BLOCKS[name]
    judge = judged(Module("recipe.py", text, ast.parse(text)))
    assert {hit[0] for hit in scan.hits(judge, text)} == expected
