"""Whoever looks at a store in SQLite makes and changes nothing, and needs no right to write."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest

import lifehold
from crash.terrain import as_nobody, folder_for_all, result
from ground import needs
from lifehold import LeaseLost, Lock, StoreUnavailable, SystemRefused, connect
from lifehold.ops import stored
from lifehold.store.check_report import NOTE
from lifehold.store.sqlite.database import Database
from lifehold.testing.crash import Child


def url_of(path):
    return f"sqlite:///{path}"


def contents(folder):
    """All that stands in a folder, to the byte."""
    return {
        entry.name: None if entry.is_dir() else (folder / entry.name).read_bytes()
        for entry in os.scandir(folder)
    }


def nothing(folder):
    """There is no file, and not even its folder."""
    return folder / "sub" / "x.db"


def empty(folder):
    """As flock(1) makes its file."""
    path = folder / "x.db"
    path.touch()
    return path


def of_an_application(folder, mode="delete"):
    """A database that another program uses for what it likes."""
    path = folder / "x.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA journal_mode = {mode}")
        db.execute("CREATE TABLE invoices (number INTEGER)")
        db.commit()
    return path


def of_an_application_with_a_log(folder):
    """The same in WAL mode, while nobody has it open."""
    return of_an_application(folder, "wal")


WITHOUT = [nothing, empty, of_an_application, of_an_application_with_a_log]


def all_looks(url):
    """What each way to look answers, and to tidy where nothing is to be tidied."""
    store = connect(url)
    return {
        "look": lifehold.look(f"{url}#job").state,
        "holder": Lock(f"{url}#job").holder(),
        "inspect": store.inspect("job"),
        "list": store.list(),
        "waiters": store.waiters("job"),
        "answers": stored.answers(url),
        "dry": lifehold.clear(f"{url}#job", dry_run=True).action,
        "clear": lifehold.clear(f"{url}#job").action,
        "prune": stored.prune(url, 3600.0)[1],
        "break": store.break_("job", "to see"),
        "ground": bool(store.ground().words),
        "ready": all(each.verdict == NOTE for each in stored.check(url).findings),
    }


@pytest.mark.parametrize("make", WITHOUT)
def test_a_look_where_no_lock_was_ever_makes_and_changes_nothing(make, tmp_path):
    path = make(tmp_path)
    before = contents(tmp_path)
    answers = all_looks(url_of(path))
    assert contents(tmp_path) == before
    assert answers == {
        "look": "free",
        "holder": None,
        "inspect": None,
        "list": [],
        "waiters": 0,
        "answers": [],
        "dry": "nothing",
        "clear": "nothing",
        "prune": 0,
        "break": None,
        "ground": True,
        "ready": True,
    }
    with Lock(f"{url_of(path)}#job") as lease:  # who takes one makes all that it needs
        assert lease.token


def hold_and_end(path, name="job"):
    """As a program that ends in order: SQLite removes the log when nobody has it open."""
    with Lock(f"{url_of(path)}#{name}"):
        pass
    connect(url_of(path)).close()


def test_a_look_at_a_store_that_nobody_has_open_makes_no_files_beside_it(tmp_path):
    result(Child(hold_and_end, tmp_path / "x.db"))
    before = contents(tmp_path)
    assert sorted(before) == ["x.db"]
    url = url_of(tmp_path / "x.db")
    assert connect(url).list() == ["job"]
    assert lifehold.look(f"{url}#job").state == "free"
    assert stored.prune(url, 3600.0)[1] == 0
    assert connect(url).ground().words
    assert contents(tmp_path) == before


def test_a_rollback_journal_stays_one_when_a_store_is_looked_at(tmp_path):
    path = tmp_path / "x.db"
    result(Child(hold_and_end, path))
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA journal_mode = DELETE").fetchone() == ("delete",)
    before = contents(tmp_path)
    assert connect(url_of(path)).list() == ["job"]
    assert contents(tmp_path) == before


def test_what_another_process_wrote_meanwhile_is_read_again(tmp_path):
    path = tmp_path / "x.db"
    result(Child(hold_and_end, path))
    seen = []

    def work(db):
        if not seen:
            result(Child(hold_and_end, path, "other"))
        seen.append([name for (name,) in db.execute("SELECT name FROM lifehold_names")])
        return seen[-1]

    file = Database(str(path), busy=30.0, synchronous="normal", shared=False)
    assert file.look(work, []) == ["job", "other"]
    assert len(seen) == 2


def test_a_log_without_its_shared_memory_is_refused_and_none_is_made(tmp_path):
    path = tmp_path / "x.db"
    with connect(url_of(path)).lock("job"):
        for end in ("", "-wal"):
            shutil.copy(f"{path}{end}", f"{tmp_path}/copy.db{end}")
    before = contents(tmp_path)
    with pytest.raises(StoreUnavailable, match="whoever takes a lock there"):
        connect(url_of(tmp_path / "copy.db")).list()
    after = contents(tmp_path)
    assert sorted(after) == sorted(before)


def test_an_order_that_breaks_still_breaks(tmp_path):
    store = connect(url_of(tmp_path / "x.db"))
    lease = store.lock("job").acquire()
    assert store.break_("job", "its host is gone").token == lease.token
    assert store.inspect("job") is None
    with pytest.raises(LeaseLost):
        lease.release()


HOLD = """
import os, sys
from lifehold import Lock
os.umask(0o022)
with Lock(sys.argv[1]) as lease:
    print(lease.token, flush=True)
    sys.stdin.read()
"""


@needs("root")
def test_who_may_only_read_is_answered():
    with folder_for_all() as folder:
        url = f"{url_of(folder / 'x.db')}?shared=1"
        command = [sys.executable, "-c", HOLD, f"{url}#job"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, **pipes) as holder:
            token = int(holder.stdout.readline())
            before = contents(folder)
            assert {"x.db", "x.db-wal", "x.db-shm"} <= before.keys()
            told = result(as_nobody(seen_by_a_reader, url))
            assert told == ["held", token, ["job"], 0]
            assert contents(folder) == before
            holder.communicate()
        before = contents(folder)
        assert "x.db-wal" not in before
        assert result(as_nobody(seen_by_a_reader, url)) == ["free", None, ["job"], 0]
        assert contents(folder) == before


def seen_by_a_reader(url):
    found = lifehold.look(f"{url}#job")
    token = found.holder.token if found.holder else None
    return found.state, token, connect(url).list(), stored.prune(url, 3600.0)[1]


@needs("root")
def test_who_may_not_read_is_told_so():
    with folder_for_all() as folder:
        path = folder / "x.db"
        with connect(url_of(path)).lock("job"):
            pass
        assert "cannot be read" in result(as_nobody(refusal, url_of(path)))


def refusal(url):
    try:
        connect(url).list()
    except SystemRefused as error:
        return str(error)
    return ""


@needs("root")
def test_root_that_looks_first_keeps_nobody_from_the_folder_that_is_theirs():
    with folder_for_all(0o777) as folder:
        url = url_of(folder / "x.db")
        assert connect(url).list() == []
        assert lifehold.look(f"{url}#job").state == "free"
        result(as_nobody(hold_and_end, folder / "x.db"))
        assert connect(url).list() == ["job"]
        result(as_nobody(hold_and_end, folder / "x.db"))
