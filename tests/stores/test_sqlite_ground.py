"""What a store in SQLite refuses, and says: URLs, places, files, versions, disks."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sqlite3
import stat
import subprocess
import sys

import pytest

from crash.terrain import as_nobody, folder_for_all, mounted, result
from ground import needs
from lifehold import (
    InvalidArgument,
    LeaseLost,
    Lock,
    StoreUnavailable,
    SystemRefused,
    UnsafeGround,
    WouldBlock,
    connect,
)
from lifehold.core import events
from lifehold.core.errors import CorruptRecord
from lifehold.local.ground import MountInfo
from lifehold.runtime import heartbeat
from lifehold.store.sqlite import database, schema
from lifehold.store.sqlite.backend import check
from lifehold.testing.crash import Child


def url_of(path):
    return f"sqlite:///{path}"


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("sqlite://", "memory://"),
        ("sqlite:///:memory:", "memory://"),
        ("sqlite://host/x.db", "three slashes or four"),
        ("sqlite:///folder/", "names no file"),
        ("sqlite:///x.db?synchronous=off", "'normal' or 'full'"),
        ("sqlite:///x.db?busy_timeout=-1", "seconds from 0"),
        ("sqlite:///x.db?shared=maybe", "True or False"),
        ("sqlite:///x.db?cache=shared", "no cache"),
        ("sqlite:///x.db", None),
    ],
)
def test_a_url_is_one_file_or_a_clear_error(url, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if words is None:
        assert connect(url).url == f"sqlite:///{tmp_path}/x.db"
        return
    with pytest.raises(InvalidArgument, match=words):
        connect(url)


def test_a_relative_path_is_of_the_folder_that_was_the_working_one(tmp_path, monkeypatch):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        with Lock("sqlite:///x.db#job"):
            pass
        assert (tmp_path / name / "x.db").is_file()
    store = connect("sqlite:///x.db")
    monkeypatch.chdir(tmp_path)
    assert store.list() == ["job"]
    assert not (tmp_path / "x.db").exists()


def test_two_spellings_are_one_store(tmp_path):
    plain, spelled = connect(url_of(tmp_path / "a b.db")), connect(url_of(f"{tmp_path}/./a%20b.db"))
    assert plain == spelled


def test_the_file_is_for_its_owner_alone_unless_shared(tmp_path):
    old = os.umask(0o022)
    try:
        for name, mode in (("x.db", 0o600), ("y.db?shared=1", 0o644)):
            with connect(url_of(tmp_path / name)).lock("a"):
                pass
            assert stat.S_IMODE(os.stat(tmp_path / name.partition("?")[0]).st_mode) == mode
    finally:
        os.umask(old)
    assert [name for name in os.listdir(tmp_path) if name.endswith(".new")] == []


def test_a_link_is_refused_with_what_it_leads_to(tmp_path):
    (tmp_path / "link.db").symlink_to(tmp_path / "x.db")
    with pytest.raises(UnsafeGround, match=r"symbolic link.*x\.db"):
        connect(url_of(tmp_path / "link.db")).list()
    assert not (tmp_path / "x.db").exists()


def test_a_second_name_of_the_file_is_refused(tmp_path):
    with connect(url_of(tmp_path / "x.db")).lock("a"):
        pass
    os.link(tmp_path / "x.db", tmp_path / "y.db")
    with pytest.raises(UnsafeGround, match="hard links"):
        connect(url_of(tmp_path / "y.db")).list()


def test_the_second_name_that_a_killed_maker_left_is_removed(tmp_path):
    (tmp_path / "x.db").touch()
    os.link(tmp_path / "x.db", tmp_path / "x.db.0123456789ab.new")
    with connect(url_of(tmp_path / "x.db")).lock("job"):
        assert not (tmp_path / "x.db.0123456789ab.new").exists()


def test_many_processes_may_open_a_new_store_at_once(tmp_path):
    program = "import sys; from lifehold import Lock\nwith Lock(sys.argv[1] + '#a', wait=50): pass"
    for number in range(5):
        words = [sys.executable, "-c", program, url_of(tmp_path / f"{number}.db")]
        runs = [subprocess.Popen(words, stderr=subprocess.PIPE) for _ in range(6)]
        assert [run.communicate(timeout=60)[1] for run in runs] == [b""] * 6
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".new")]


def test_what_another_kernel_may_mount_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(database, "place_of_path", lambda path: MountInfo("nfs4", "0:40"))
    with pytest.raises(UnsafeGround, match=r"nfs4.*postgresql://"):
        connect(url_of(tmp_path / "x.db")).list()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("what", ["text", "folder", "old journal"])
def test_what_is_no_database_is_left_alone(what, tmp_path):
    path = tmp_path / "x.db"
    if what == "folder":
        path.mkdir()
        kind = UnsafeGround
    else:
        path.write_bytes(b"these are my notes, and no database\n" * 50)
        kind = CorruptRecord
    before = None if what == "folder" else path.read_bytes()
    with pytest.raises(kind, match=r"x\.db"):
        connect(url_of(path)).list()
    assert before is None or path.read_bytes() == before


def test_a_damaged_database_is_an_error_that_says_so(tmp_path):
    path = tmp_path / "x.db"
    store = connect(url_of(path))
    for number in range(200):
        with store.lock(f"name-{number:04}"):
            pass
    store._site.backend.close()
    size = path.stat().st_size
    with path.open("r+b") as file:
        for page in range(1, size // 4096):
            file.seek(page * 4096)
            file.write(b"\xa5" * 4096)
    with pytest.raises((StoreUnavailable, CorruptRecord), match=r"damaged|no database"):
        store.lock("name-0001", wait=0).acquire()


def test_tables_that_became_newer_under_a_holder_are_told_of_once(tmp_path, monkeypatch):
    store, unheard = connect(url_of(tmp_path / "x.db")), []
    lease = store.lock("x", wait=0, ttl=10).acquire()
    with contextlib.closing(sqlite3.connect(tmp_path / "x.db")) as db, db:
        db.execute("UPDATE lifehold_meta SET version = 9, least = 9")
    monkeypatch.setattr(heartbeat, "apart", lambda call: call())
    monkeypatch.setattr(events, "report", unheard.append)
    monkeypatch.setattr(sys, "unraisablehook", unheard.append)
    with pytest.raises(UnsafeGround, match="newer lifehold"):
        lease.release()
    assert not unheard


def test_tables_of_a_newer_version_are_left_alone(tmp_path):
    path = tmp_path / "x.db"
    store = connect(url_of(path))
    with store.lock("a"):
        pass
    with sqlite3.connect(path) as db:
        db.execute("UPDATE lifehold_meta SET version = 9, least = 9")
    db.close()
    with pytest.raises(UnsafeGround, match="newer lifehold"):  # under a connection that was open
        store.lock("a", wait=0).acquire()
    store._site.backend.close()
    with pytest.raises(UnsafeGround, match="newer lifehold"):
        store.lock("a", wait=0).acquire()
    with sqlite3.connect(path) as db:
        db.execute("UPDATE lifehold_meta SET least = ?", (schema.VERSION,))
    db.close()
    with store.lock("a", wait=0):
        pass


NEWER = [
    "ALTER TABLE lifehold_chairs ADD COLUMN mood TEXT NOT NULL DEFAULT 'calm'",
    "ALTER TABLE lifehold_names ADD COLUMN zone INTEGER",
    "ALTER TABLE lifehold_line ADD COLUMN mood TEXT NOT NULL DEFAULT 'calm'",
    "ALTER TABLE lifehold_meta ADD COLUMN mood TEXT NOT NULL DEFAULT 'calm'",
    "CREATE TABLE lifehold_moods (mood TEXT)",
    "UPDATE lifehold_meta SET version = version + 1",
]


def test_this_version_and_the_next_exclude_each_other(tmp_path, monkeypatch):
    """The next one adds columns with defaults; this one neither sees nor disturbs them."""
    path = tmp_path / "x.db"
    store = connect(url_of(path))
    held = store.lock("a").acquire()
    with sqlite3.connect(path) as db:
        for change in NEWER:
            db.execute(change)
    db.close()

    def newer(url):
        monkeypatch.setattr(schema, "VERSION", schema.VERSION + 1)
        with pytest.raises(WouldBlock):
            connect(url).lock("a", wait=0).acquire()
        with connect(url).lock("b") as lease:
            return lease.token

    with Child(newer, url_of(path)) as child:
        end = child.end()
        assert end.well, end.error
    assert store.inspect("a").token == held.token
    with store.lock("b") as lease:
        assert lease.token > end.value
    held.release()


def test_a_file_that_was_replaced_is_noticed_and_the_holder_told(tmp_path):
    path = tmp_path / "x.db"
    store = connect(url_of(path))
    lease = store.lock("a", ttl=60).acquire()
    for name in os.listdir(tmp_path):
        if name.startswith("x.db") and not name.endswith("-bells"):
            (tmp_path / name).unlink()
    with connect(url_of(path)).lock("a", wait=0) as other:
        assert other.token > lease.token
    assert path.is_file()
    with pytest.raises(LeaseLost):
        lease.verify()
    with pytest.raises(LeaseLost):
        lease.release()


def test_a_folder_that_was_removed_is_not_made_again_by_who_leaves(tmp_path):
    path = tmp_path / "gone" / "x.db"
    store = connect(url_of(path))
    leases = [store.lock(name, ttl=60).acquire() for name in "ab"]
    shutil.rmtree(path.parent)
    with pytest.raises(LeaseLost):
        leases[0].verify()  # by a renewal
    for lease in leases:
        with pytest.raises(LeaseLost):
            lease.release()
    assert not path.parent.exists()
    with store.lock("a", wait=0):
        assert path.exists()


def test_the_database_of_a_program_is_shared_with_it(tmp_path):
    path = tmp_path / "app.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, what TEXT)")
        db.execute("INSERT INTO orders (what) VALUES ('tea')")
    with connect(url_of(path)).lock("orders"):
        db.execute("INSERT INTO orders (what) VALUES ('milk')")
        db.commit()
        assert db.execute("SELECT count(*) FROM orders").fetchone() == (2,)
    db.close()


@pytest.mark.parametrize("encoding", ["UTF-16le", "UTF-16be"])
def test_the_database_of_a_program_in_another_encoding_is_refused(encoding, tmp_path):
    path = tmp_path / "app.db"
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA encoding = '{encoding}'")
        db.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, what TEXT)")
        db.commit()
        store, before = connect(url_of(path)), path.read_bytes()
        assert store.list() == []  # no lock was ever taken there
        with pytest.raises(UnsafeGround, match=encoding):
            store.lock("orders", wait=0).acquire()
        assert path.read_bytes() == before
        for statement in (*schema.TABLES, schema.FIRST.replace("?", "1")):  # of an older lifehold
            db.execute(statement)
        db.execute("INSERT INTO lifehold_names VALUES ('x', 1, 1)")
        db.commit()
    for ask in (store.list, store.states, lambda: store.prune(60), lambda: store.inspect("x")):
        with pytest.raises(UnsafeGround, match=encoding):
            ask()


def fill(filler):
    """Leave no room on the disk."""
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)


def take_many(store, wait=0):
    for number in range(500):
        store.lock(f"a-{number}-{wait}", wait=wait).acquire().release()


@needs("root", "tmpfs")
def test_a_full_disk_is_told_and_nothing_is_held(tmp_path):
    with mounted(tmp_path / "m", "-t", "tmpfs", "-o", "size=256k", "none") as where:
        store = connect(url_of(where / "x.db"))
        with store.lock("a"):
            pass
        filler = where / "filler"
        fill(filler)
        with pytest.raises(StoreUnavailable, match=r"disk is full|disk failed"):
            take_many(store)
        with pytest.raises(StoreUnavailable, match=r"cannot do it.* disk (is full|failed)"):
            take_many(store, wait=None)  # nobody is to wait for people in silence
        filler.unlink()
        assert [state.name for state in store.states() if state.holders] == []
        with store.lock("a", wait=0):
            pass
        store._site.backend.close()


@needs("root", "tmpfs")
def test_a_disk_without_room_for_a_database_is_told(tmp_path):
    disk = mounted(tmp_path / "m", "-t", "tmpfs", "-o", "size=8k", "none")
    with disk as where, pytest.raises((SystemRefused, StoreUnavailable), match="full"):
        connect(url_of(where / "x.db")).lock("a").acquire()


@needs("root", "tmpfs")
def test_a_read_only_disk_is_told(tmp_path):
    with mounted(tmp_path / "m", "-t", "tmpfs", "none") as where:
        store = connect(url_of(where / "x.db"))
        with store.lock("a"):
            pass
        store._site.backend.close()
        subprocess.run(["mount", "-o", "remount,ro", where], check=True, timeout=150)
        for name in ("x.db", "y.db"):
            with pytest.raises(SystemRefused, match=r"cannot be (opened for writing|made)"):
                connect(url_of(where / name)).lock("a").acquire()
        assert store.list() == ["a"]
        assert connect(url_of(where / "y.db")).list() == []


@needs("root")
def test_a_file_of_another_user_is_told():
    with folder_for_all(0o777) as folder:
        with connect(url_of(folder / "x.db")).lock("a"):
            pass
        connect(url_of(folder / "x.db"))._site.backend.close()

        def stranger(path):
            try:
                connect(url_of(path)).lock("a").acquire()
            except SystemRefused as error:
                return str(error)

        assert "cannot be opened" in result(as_nobody(stranger, folder / "x.db"))


def test_a_store_on_a_path_of_any_bytes(tmp_path):
    folder = tmp_path / "ü ?#%41"
    folder.mkdir()
    path = os.fsencode(folder) + b"/\xff.db"
    url = database.url_of(os.fsdecode(path))
    with connect(url).lock("a") as lease:
        assert lease.token
    assert os.path.exists(path)
    connect(url)._site.backend.close()
    shutil.rmtree(folder)


def test_without_a_lock_nothing_of_sqlite_is_imported():
    code = (
        "import sys, lifehold; lifehold.connect('sqlite:///x.db')\n"
        "print('sqlite3' in sys.modules, 'asyncio' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


@needs("root")
@pytest.mark.parametrize("below", ["", "sub/deep/"], ids=["there", "below"])
def test_a_check_tells_that_this_user_may_not_make_the_file(below):
    def checked(url):
        (found,) = check(url).findings
        return found.verdict, found.why

    with folder_for_all(0o755) as closed:
        url = f"sqlite:///{closed}/{below}x.db"
        verdict, why = checked(url)
        assert (verdict, "not there yet" in why) == ("note", True)
        verdict, why = result(as_nobody(checked, url))
        assert verdict == "bad"
        assert f"'{closed}' is not theirs to write to" in why
        assert not os.listdir(closed)


@pytest.mark.parametrize("looks", [False, True])
def test_a_path_that_is_too_long_for_sqlite_is_told_as_such(tmp_path, looks):
    folder = tmp_path
    while len(str(folder)) < 400:
        folder = folder / ("m" * 80)
    store = connect(url_of(folder / ("x" * (510 - len(str(folder))))))
    if looks:
        folder.mkdir(parents=True)
        (folder / ("x" * (510 - len(str(folder))))).write_bytes(b"SQLite")
    with pytest.raises(SystemRefused, match="511 bytes, and SQLite opens no longer path") as told:
        store.list() if looks else store.lock("a").acquire()
    assert told.value.errno == errno.ENAMETOOLONG


@pytest.mark.parametrize("name", ["ttl", "label"])
def test_what_is_given_to_connect_beside_the_url_is_told_so(tmp_path, name):
    with pytest.raises(InvalidArgument, match=rf"no URL of sqlite://: connect\(url, {name}="):
        connect(f"{url_of(tmp_path / 'x.db')}?{name}=5")
