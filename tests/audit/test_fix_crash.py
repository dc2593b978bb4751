"""The crash test passes a lock that was mended and fails the one before, where a crash is meant.

Where an error, a second holder or a lease that ran out is meant, just that is played.

No time is in it: the server ends a key that has an end as soon as its maker is dead, and never
one that has none, so who waits for such a key of a dead maker gives up at once.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import sys
import threading
import types
from contextlib import closing, suppress

import pytest

from audit.other_locks import patiently
from audit.test_fix import CASES, Server, cured
from lifehold.testing.crash_test import crash_test

TABLE = "CREATE TABLE IF NOT EXISTS held (name PRIMARY KEY, value, maker, ends)"
TAKE = """REPLACE INTO held SELECT :key, :value, :maker, :ends WHERE NOT EXISTS (
  SELECT 1 FROM held WHERE name = :key AND NOT (ends IS NOT NULL AND gone(maker)))"""


class SharedServer:
    """As much of a server as the locks below ask, between processes; each request is one step."""

    def __init__(self, path):
        self.path = path
        self.asked(TABLE, {})

    def asked(self, statement, given):
        with closing(sqlite3.connect(self.path, timeout=60, isolation_level=None)) as db:
            db.create_function("gone", 1, gone)
            db.executescript("PRAGMA synchronous = OFF; PRAGMA journal_mode = MEMORY")
            found = db.execute(statement, given)
            return found.fetchall() or found.rowcount

    def set(self, key, value, *, nx, ex=None):
        given = {"key": key, "value": value, "maker": os.getpid(), "ends": ex}
        return True if self.asked(TAKE, given) == 1 else None

    def setnx(self, key, value):
        return bool(self.set(key, value, nx=True))

    def expire(self, key, seconds):
        self.asked("UPDATE held SET ends = :ends WHERE name = :key", {"ends": seconds, "key": key})

    def blocked(self):
        """Is there a key that nobody will ever remove?"""
        return self.asked("SELECT 1 FROM held WHERE ends IS NULL AND gone(maker)", {}) == [(1,)]

    def remove(self, value):
        self.asked("DELETE FROM held WHERE value = :value", {"value": value})


def gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def app_of(text):
    space: dict = {}
    exec(compile(text, "app.py", "exec"), space)
    return space


@pytest.fixture
def setnx_and_expire(monkeypatch):
    """LH201 as a factory of the text that is given."""

    def made(text):
        def factory(path):
            server = SharedServer(path + ".db")
            stub = types.SimpleNamespace(Redis=lambda: server)
            monkeypatch.setitem(sys.modules, "redis", stub)
            app, token = app_of(text), str(os.getpid())

            def acquire(timeout):
                tried = patiently(lambda: app["acquire"](token) or server.blocked())
                return tried(timeout) and not server.blocked()

            return acquire, lambda: server.remove(token)

        return factory

    return made


def test_a_key_that_gets_its_end_apart_is_blocked_by_a_crash_and_mended_it_is_not(
    setnx_and_expire, tmp_path
):
    before = CASES["LH201: one request"][0]
    bounds = {"bound": 30.0, "contenders": 1, "double": False}
    found = crash_test(setnx_and_expire(before), str(tmp_path), **bounds).faults
    assert {fault.claim for fault in found} == {"blocked"}
    assert any("killed in acquire, behind execute" in fault.at for fault in found)
    assert not any("in the body" in fault.at for fault in found)
    after = crash_test(setnx_and_expire(cured(before)), str(tmp_path), **bounds)
    assert not after.faults, after.text()


def test_a_lock_whose_handle_is_dropped_is_taken_from_a_stopped_holder_and_mended_it_is_not(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)

    def single(text):
        def factory(path):
            app = app_of(text)

            def once():
                try:
                    app["ensure_single_instance"]()
                except OSError:
                    return False
                return True

            def release():
                if "_lock_handle" in app:
                    app["_lock_handle"].close()

            return patiently(once), release

        return factory

    before = CASES["LH115: the file is kept"][0]
    bounds = {"contenders": 1, "double": False, "stall": 0.01}
    found = crash_test(single(before), str(tmp_path), bound=30.0, **bounds).faults
    assert [fault.claim for fault in found] == ["not-fenced"]
    after = crash_test(single(cured(before)), str(tmp_path), bound=1.0, **bounds)
    assert not after.faults, after.text()


# --- without a crash: what the rule says is played, step by step, in one process ------------------


def held_twice(app, path):
    """One waits behind the holder, which ends; does a third get the lock while that one works?"""
    waits, ended, third = threading.Event(), threading.Event(), []

    def opened(*given):
        file = open(*given)  # noqa: SIM115  the app closes it
        if threading.current_thread() is waiter:
            waits.set()
        return file

    def second():
        assert ended.wait(60)
        with open(path, "a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            third.append("it got the lock too")

    def first():
        waiter.start()
        assert waits.wait(60)

    app["open"] = opened
    waiter = threading.Thread(target=app["job"], args=(path, second), daemon=True)
    app["job"](path, first)
    ended.set()
    waiter.join(60)
    assert not waiter.is_alive()
    return bool(third)


def kept_by_an_error(app, path):
    """The block raises; is the next one refused?"""
    with suppress(ZeroDivisionError), app["locked"](path):
        raise ZeroDivisionError
    try:
        with app["locked"](path):
            return False
    except FileExistsError:
        return True


def never_released(app, _path):
    """The work raises; does the lock stay?"""

    def build():
        raise ZeroDivisionError

    with suppress(ZeroDivisionError):
        app["job"](build)
    return app["FileLock"].held


def robs_the_next(app, _path):
    """The lease runs out in the work, and another process takes the lock; is it still its own?"""
    keys = app["client"].keys
    app["run"]("mine", lambda: keys.update({"lock:a": "another"}))
    return keys != {"lock:a": "another"}


def robs_between(app, _path):
    """The lease runs out behind the comparison, and another process takes the lock."""
    keys = app["client"].keys
    keys["lock:a"] = "mine"
    app["client"].behind_get = lambda: keys.update({"lock:a": "another"})
    app["release"]("lock:a", "mine")
    return app["client"].robbed


class OneServer(Server):
    """The server of the mended texts, with what the texts before ask of it."""

    robbed = False
    behind_get = staticmethod(lambda: None)

    def get(self, key):
        found = self.keys[key].encode()
        self.behind_get()
        return found

    def delete(self, key):
        self.robbed = self.keys.pop(key) == "another"


class OneLock:
    held = False

    def __init__(self, path):
        assert path

    def acquire(self, timeout):
        assert timeout
        OneLock.held = True

    def release(self):
        OneLock.held = False


PLAYED = {
    "LH108: the file stays": held_twice,
    "LH110: finally behind yield": kept_by_an_error,
    "LH110: finally behind the work": never_released,
    "LH203: compare and delete": robs_the_next,
    "LH204: compare and delete in one": robs_between,
}


def test_every_safe_cure_is_played():
    played = [*PLAYED, "LH201: one request", "LH115: the file is kept"]
    assert sorted(played) == sorted(name for name in CASES if "unsafe" not in name)


@pytest.mark.parametrize("name", PLAYED)
def test_the_fault_that_a_rule_tells_is_there_before_its_cure_and_not_behind(
    name, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, "redis", types.SimpleNamespace(Redis=OneServer))
    monkeypatch.setitem(sys.modules, "filelock", types.SimpleNamespace(FileLock=OneLock))
    monkeypatch.setattr(OneLock, "held", False)
    before = CASES[name][0]
    assert PLAYED[name](app_of(before), str(tmp_path / "before.lock"))
    OneLock.held = False
    assert not PLAYED[name](app_of(cured(before)), str(tmp_path / "after.lock"))
