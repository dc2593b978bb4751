"""Fixes: what is written, that it runs, that a second run writes nothing, what is left alone."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import sys
import types
from pathlib import Path

import pytest

from ground import needs
from lifehold.audit import cures, cures_redis, fix
from lifehold.audit.catalogue import RULES
from lifehold.cli.main import main

EVERY = frozenset(RULES)
CURES = {**cures.CURES, **cures_redis.CURES}
CASES = {
    "LH201: one request": (
        """\
import redis
client = redis.Redis()
def acquire(token):
    # who asks
    if client.setnx("lock:a", token):  # first
        # then
        client.expire("lock:a", 30)
        return True
    return False
""",
        """\
import redis
client = redis.Redis()
def acquire(token):
    # who asks
    if client.set("lock:a", token, nx=True, ex=30):  # first
        # then
        return True
    return False
""",
    ),
    "LH203: compare and delete": (
        """\
import redis
client = redis.Redis()
def run(token, work):
    if client.set("lock:a", token, nx=True, ex=30):
        try:
            work()
        finally:
            client.delete("lock:a")
""",
        '''\
import redis

RELEASE_OWN = """
if redis.call("get", KEYS[1]) == ARGV[1] then return redis.call("del", KEYS[1]) end
return 0
"""
client = redis.Redis()
def run(token, work):
    if client.set("lock:a", token, nx=True, ex=30):
        try:
            work()
        finally:
            client.eval(RELEASE_OWN, 1, "lock:a", token)
''',
    ),
    "LH204: compare and delete in one": (
        """\
import redis
client = redis.Redis()
def release(lock_key, token):
    if client.get(lock_key).decode() == token:
        client.delete(lock_key)
        return True
    return False
""",
        '''\
import redis

RELEASE_OWN = """
if redis.call("get", KEYS[1]) == ARGV[1] then return redis.call("del", KEYS[1]) end
return 0
"""
client = redis.Redis()
def release(lock_key, token):
    if token is not None and client.eval(RELEASE_OWN, 1, lock_key, token):
        return True
    return False
''',
    ),
    "LH108: the file stays": (
        """\
import fcntl, os
def job(lock_path, work):
    file = open(lock_path, "a")
    fcntl.flock(file, fcntl.LOCK_EX)
    try:
        work()
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)
        file.close()
        # tidy
        try:
            os.unlink(lock_path)
        except FileNotFoundError:
            pass  # gone
""",
        """\
import fcntl, os
def job(lock_path, work):
    file = open(lock_path, "a")
    fcntl.flock(file, fcntl.LOCK_EX)
    try:
        work()
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)
        file.close()
        # tidy
        # gone
""",
    ),
    "LH110: finally behind yield": (
        """\
import contextlib, os
@contextlib.contextmanager
def locked(lock_path):
    fd = os.open(lock_path, os.O_CREAT | os.O_EXCL)

    # the block
    yield fd

    # over
    os.close(fd)
    os.unlink(lock_path)
""",
        """\
import contextlib, os
@contextlib.contextmanager
def locked(lock_path):
    fd = os.open(lock_path, os.O_CREAT | os.O_EXCL)

    # the block
    try:
        yield fd
    finally:
        # over
        os.close(fd)
        os.unlink(lock_path)
""",
    ),
    "LH110: finally behind the work": (
        """\
from filelock import FileLock
def job(build):
    lock = FileLock("build.lock")
    lock.acquire(timeout=10)

    # the work
    build()
    print("done")  # told
    # over
    lock.release()
    return 1
""",
        """\
from filelock import FileLock
def job(build):
    lock = FileLock("build.lock")
    lock.acquire(timeout=10)

    # the work
    try:
        build()
        print("done")  # told
    finally:
        # over
        lock.release()
    return 1
""",
    ),
    "LH115: the file is kept": (
        """\
import fcntl
def ensure_single_instance():
    # one of us
    fcntl.flock(open("app.lock", "a"), fcntl.LOCK_EX | fcntl.LOCK_NB)
""",
        """\
import fcntl
def ensure_single_instance():
    global _lock_handle
    # one of us
    _lock_handle = open("app.lock", "a")
    fcntl.flock(_lock_handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
""",
    ),
    "LH113 unsafe: emptied after the lock": (
        """\
import fcntl, os
def acquire(pid_path):
    file = open(pid_path, "w")
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    file.write(str(os.getpid()))
    file.flush()
    return file
""",
        """\
import fcntl, os
def acquire(pid_path):
    file = open(pid_path, "a")
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    file.seek(0)
    file.truncate()
    file.write(str(os.getpid()))
    file.flush()
    return file
""",
    ),
    "LH201 unsafe: the answer is handed on": (
        """\
import redis
def acquire(client, lock_key, token):
    taken = client.setnx(lock_key, token)
    if taken:
        client.pexpire(lock_key, 30_000)
    return taken
""",
        """\
import redis
def acquire(client, lock_key, token):
    taken = client.set(lock_key, token, nx=True, px=30_000)
    if taken:
        pass
    return taken
""",
    ),
}


def cured(text: str, *, unsafe: bool = False) -> str:
    return fix.cured("app.py", text.encode(), EVERY, unsafe=unsafe).after.decode()


@pytest.mark.parametrize("name", CASES)
def test_a_cure_writes_what_is_expected_and_a_second_run_writes_nothing(name):
    before, after = CASES[name]
    unsafe = "unsafe" in name
    assert cured(before, unsafe=unsafe) == after
    assert cured(after, unsafe=unsafe) == after


@pytest.mark.parametrize("name", [name for name in CASES if "unsafe" in name])
def test_an_unsafe_cure_is_written_only_when_it_is_asked_for(name):
    made = fix.cured("app.py", CASES[name][0].encode(), EVERY, unsafe=False)
    assert made.after == made.before
    assert made.left == 1


def test_the_rules_say_which_of_them_have_a_cure():
    assert {code for code, rule in RULES.items() if rule.cured} == set(CURES)


@pytest.mark.parametrize("code", CURES)
def test_the_bad_example_of_a_rule_is_mended_twice_the_same(code):
    once = cured(RULES[code].bad, unsafe=True)
    assert once != RULES[code].bad
    assert cured(once, unsafe=True) == once
    assert not [hit for hit in fix.findings("app.py", once.encode()) if hit[0] == code]


@pytest.mark.parametrize("ending", ["\r\n", "\n", "mixed"])
def test_endings_tabs_and_every_other_byte_are_kept(ending):
    text = CASES["LH115: the file is kept"][0].replace("    ", "\t")
    if ending == "mixed":
        rows = text.splitlines()
        data = "".join(r + ("\r\n" if n % 2 else "\n") for n, r in enumerate(rows)).encode()
    else:
        data = text.replace("\n", ending).encode()
    data = b"\xef\xbb\xbf" + data + b"x = 'no end'"
    made = fix.cured("app.py", data, EVERY, unsafe=False)
    kept = [row for row in data.splitlines(keepends=True) if b"flock" not in row]
    assert made.codes == ["LH115"]
    rows = made.after.splitlines(keepends=True)
    assert [row for row in rows if row in kept] == kept
    assert b"\tglobal _lock_handle" in made.after


# --- the mended file is run ---------------------------------------------------------------------


class Server:
    """As much of a server as the mended files ask."""

    def __init__(self) -> None:
        self.keys: dict[str, str] = {}
        self.ends: dict[str, int] = {}

    def set(self, key, value, *, nx=False, ex=None, px=None):
        if nx and key in self.keys:
            return None
        self.keys[key], self.ends[key] = value, ex or px
        return True

    def eval(self, script, count, key, value):
        assert count == 1
        assert 'redis.call("del", KEYS[1])' in script
        return int(self.keys.get(key) == value and self.keys.pop(key) == value)


def loaded(tmp_path, monkeypatch, name: str, server: Server | None = None) -> types.ModuleType:
    monkeypatch.setitem(sys.modules, "redis", types.SimpleNamespace(Redis=lambda: server))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app.py").write_text(cured(CASES[name][0], unsafe="unsafe" in name))
    spec = importlib.util.spec_from_file_location("mended_app", tmp_path / "app.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_run_one_request_sets_the_end_with_the_key(tmp_path, monkeypatch):
    server = Server()
    app = loaded(tmp_path, monkeypatch, "LH201: one request", server)
    assert app.acquire("a") is True
    assert app.acquire("b") is False
    assert server.ends == {"lock:a": 30}


@pytest.mark.parametrize("name", ["LH203: compare and delete", "LH204: compare and delete in one"])
def test_run_only_the_owner_deletes(tmp_path, monkeypatch, name):
    server = Server()
    app = loaded(tmp_path, monkeypatch, name, server)
    if "LH204" in name:
        server.keys["lock:a"] = "mine"
        assert not app.release("lock:a", "another")
        assert app.release("lock:a", "mine")
    else:
        app.run("mine", lambda: server.keys.update({"lock:a": "the next holder's"}))
        assert server.keys == {"lock:a": "the next holder's"}
        server.keys.clear()
        app.run("mine", lambda: None)
    assert server.keys == {}


def test_run_the_locked_file_stays_and_is_free(tmp_path, monkeypatch):
    app = loaded(tmp_path, monkeypatch, "LH108: the file stays")
    app.job("a.lock", lambda: None)
    with open(tmp_path / "a.lock") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_run_a_raising_block_gives_the_lock_back(tmp_path, monkeypatch):
    app = loaded(tmp_path, monkeypatch, "LH110: finally behind yield")
    with pytest.raises(ZeroDivisionError), app.locked("a.lock"):
        raise ZeroDivisionError
    assert not Path("a.lock").exists()


def test_run_the_kept_file_stays_locked(tmp_path, monkeypatch):
    app = loaded(tmp_path, monkeypatch, "LH115: the file is kept")
    app.ensure_single_instance()
    with open("app.lock") as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    app._lock_handle.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_run_a_refused_attempt_erases_nothing(tmp_path, monkeypatch):
    app = loaded(tmp_path, monkeypatch, "LH113 unsafe: emptied after the lock")
    Path("a.pid").write_text("9999999999")
    held = app.acquire("a.pid")
    assert Path("a.pid").read_text() == str(os.getpid())
    with pytest.raises(BlockingIOError):
        app.acquire("a.pid")
    assert Path("a.pid").read_text() == str(os.getpid())
    held.close()


# --- the command --------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def run(*words: str) -> tuple[int, str, str]:
        code = main(["audit", *words])
        return code, *capfd.readouterr()

    return run


BEFORE, AFTER = CASES["LH115: the file is kept"]


def test_fix_writes_and_tells_what_is_left(run, tmp_path):
    app = tmp_path / "app.py"
    app.write_text(BEFORE)
    app.chmod(0o750)
    assert run("--fix")[::2] == (0, "lifehold: 1 finding mended in 1 file.\n")
    assert app.read_text() == AFTER
    assert app.stat().st_mode & 0o777 == 0o750
    assert run("--fix")[2] == "lifehold: 0 findings mended in 0 files.\n"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["app.py", "cache"]


def test_diff_shows_it_and_writes_nothing(run, tmp_path):
    (tmp_path / "app.py").write_text(BEFORE)
    code, out, _err = run("--diff")
    assert code == 1
    assert "+    global _lock_handle" in out
    assert (tmp_path / "app.py").read_text() == BEFORE
    (tmp_path / "app.py").write_text(AFTER)
    assert run("--diff")[:2] == (0, "")


def test_unsafe_fixes_are_named_and_written_when_asked(run, tmp_path):
    before, after = CASES["LH113 unsafe: emptied after the lock"]
    (tmp_path / "app.py").write_text(before)
    code, _out, err = run("--fix")
    assert (code, "1 more with --unsafe-fixes" in err) == (1, True)
    assert run("--fix", "--unsafe-fixes")[0] == 0
    assert (tmp_path / "app.py").read_text() == after
    assert run("--unsafe-fixes")[0] == 2


def test_what_is_suppressed_or_not_selected_is_not_mended(run, tmp_path):
    silent = BEFORE.replace("LOCK_NB)", "LOCK_NB)  # lifehold: ignore[LH115] -- why")
    (tmp_path / "app.py").write_text(silent)
    run("--fix")
    assert (tmp_path / "app.py").read_text() == silent
    (tmp_path / "app.py").write_text(BEFORE)
    run("--fix", "--ignore", "LH115")
    assert (tmp_path / "app.py").read_text() == BEFORE


def test_a_file_that_changes_while_it_is_mended_is_left_alone(tmp_path, monkeypatch):
    app = tmp_path / "app.py"
    app.write_text("x = 2\n")
    assert fix.put(app, b"x = 1\n", b"x = 3\n") == "it changed while it was mended"
    assert app.read_text() == "x = 2\n"
    os.link(app, tmp_path / "other.py")
    assert "hard links" in fix.put(app, b"x = 2\n", b"x = 3\n")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["app.py", "other.py"]


def test_a_link_is_followed_and_stays_a_link(tmp_path):
    (tmp_path / "real.py").write_text("x = 1\n")
    (tmp_path / "app.py").symlink_to("real.py")
    assert fix.put(tmp_path / "app.py", b"x = 1\n", b"x = 3\n") == ""
    assert (tmp_path / "app.py").is_symlink()
    assert (tmp_path / "real.py").read_text() == "x = 3\n"


def test_without_libcst_the_command_says_what_to_install(run, tmp_path, monkeypatch):
    (tmp_path / "app.py").write_text(BEFORE)
    monkeypatch.setitem(sys.modules, "libcst", None)
    code, _out, err = run("--fix")
    assert code == 2
    assert "pip install 'lifehold[audit]'" in err
    assert run("--statistics")[0] == 1


def test_a_file_that_cannot_be_mended_costs_itself_alone(run, tmp_path):
    (tmp_path / "old.py").write_text("print 'two'\n" + BEFORE)
    (tmp_path / "app.py").write_text(BEFORE)
    run("--fix")
    assert (tmp_path / "app.py").read_text() == AFTER


@needs("root")
def test_root_remembers_nothing_in_a_folder_of_another(run, tmp_path, monkeypatch):
    (tmp_path / "app.py").write_text(BEFORE)
    home, vault = tmp_path / "home", tmp_path / "vault"
    for each in (home, vault):
        each.mkdir()
    os.chown(home, 65534, 65534)
    (home / "lifehold").symlink_to(vault)
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    run("--diff")
    assert list(vault.iterdir()) == []
    os.chown(home, 0, 0)
    run("--diff")
    assert [each.name for each in vault.iterdir()] == ["audit"]
