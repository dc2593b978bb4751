"""`--adopt`: each lock once, right or wrong, with a line that can stand in its place."""

from __future__ import annotations

import ast

import pytest

from lifehold.audit.adopt import sites_of
from lifehold.audit.catalogue import RULES
from lifehold.cli.main import main

PYTHON = """\
import fcntl, os, filelock, fasteners, portalocker, redis
from filelock import SoftFileLock

r = redis.Redis()

def kernel(path):
    handle = open(path + ".lock", "a")
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return handle

def shared(path):
    with open(path, "a") as handle:
        fcntl.flock(handle, fcntl.LOCK_SH)

def patient(handle, until):
    while clock() < until:
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            pause()

def present(lock_path):
    os.close(os.open(lock_path, os.O_CREAT | os.O_EXCL))
    work()
    os.unlink(lock_path)

class Kept:
    def __init__(self, name):
        self.lock = fasteners.InterProcessLock(name, timeout=3)
        self.other = portalocker.Lock("y.lock", timeout=2)
        self.face = filelock.FileLock("z.lock")
        self.soft = SoftFileLock("z.lock")

async def key(name):
    if await r.set(f"lock:{name}", "me", nx=True, px=5000):
        pass

def looked(lock_file):
    if not os.path.exists(lock_file):
        with open(lock_file, "w") as file:
            file.write(str(os.getpid()))

def advisory(session):
    session.execute("SELECT pg_advisory_lock(%s)", 7)
"""
AFTER = [
    'with Lock(path + ".lock", wait=0) as lease:',
    "with Lock(path, exclusive=False) as lease:",
    "with Lock(PATH) as lease:",
    "with Lock(lock_path) as lease:",
    "self.lock = Lock(name, wait=3)",
    'self.other = Lock("y.lock", wait=2)',
    "import lifehold.compat.filelock as filelock",
    "from lifehold.compat.filelock import SoftFileLock",
    'async with store.lock(f"lock:{name}", ttl=5000 / 1000) as lease:',
    "with Lock(lock_file) as lease:",
    "with store.lock(7) as lease:",
]
SHELL = """\
#!/bin/sh
exec 9>/run/lock/x.lock
flock -n 9 || exit 1
mkdir /srv/a/lock || exit 1
work
"""


def test_each_lock_is_shown_with_the_line_that_takes_its_place():
    found = sites_of("app.py", PYTHON.encode(), [])
    assert [each.after for each in found] == AFTER
    assert [each.excludes.split()[0].rstrip(",:") for each in found] == (
        "yes yes no no no yes yes yes no no no".split()
    )


def test_the_line_is_python_where_the_old_one_was():
    for each in sites_of("app.py", PYTHON.encode(), []):
        text = each.after + " pass" * each.after.endswith(":")
        ast.parse(f"async def f():\n    {text}\n" if "async" in text else text)


def test_scripts_and_units_are_told_in_their_own_words():
    first, second = sites_of("job.sh", SHELL.encode(), [])
    assert (first.line, first.after) == (3, "lifehold flock -n 9 || exit 1")
    assert second.after == 'exec 9>>"/srv/a/lock.lock"; lifehold flock -n 9 || exit 75'


@pytest.mark.parametrize(
    "text",
    ["lock = 1\n", "def f(:\n", "\0", "x.unlock()\nimport fcntl\n", "uv = 'uv.lock'"],
)
def test_what_takes_no_lock_is_not_shown(text):
    assert sites_of("app.py", text.encode(), []) == []


def test_right_locks_are_shown_too():
    good = RULES["LH108"].good
    assert sites_of("app.py", good.encode(), [])


def test_the_command_writes_nothing_and_ends_with_0(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app.py").write_text(PYTHON)
    (tmp_path / "job.sh").write_text(SHELL)
    assert main(["audit", "--adopt"]) == 0
    out = capfd.readouterr().out
    assert 'app.py:8: flock on path + ".lock"\n' in out
    assert out.endswith("13 locks in 2 files, 2 looked at.\n")
    assert (tmp_path / "app.py").read_text() == PYTHON
    assert sorted(each.name for each in tmp_path.iterdir()) == ["app.py", "job.sh"]
