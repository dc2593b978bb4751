"""`connect("file:///FOLDER")`: locks by name, the same ones by whatever way they are named."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time

import pytest

from lifehold import InvalidArgument, Lock, NotAcquired, aconnect, connect
from lifehold.local import lock_names

NAMES = [
    "nightly",
    "payments/42",
    "..",
    ".",
    ".hidden",
    "a b",
    "ü",
    "100%",
    "x#1",
    "A",
    "a\nb",
    "~",
]


@pytest.fixture
def store(tmp_path):
    return connect(f"file://{tmp_path}/locks")


def test_a_lock_is_taken_by_its_name_and_by_its_url_alike(store):
    with store.lock("payments/42", wait=0) as lease:
        assert lease.token
        assert lease.name == f"{store.url}#payments/42"
        with pytest.raises(NotAcquired, match=r"payments/42.*held") as caught:
            Lock(f"{store.url}#payments/42", wait=0).acquire()
        assert caught.value.holder.owner.pid == os.getpid()
        with pytest.raises(NotAcquired):
            Lock(store.path("payments/42"), wait=0).acquire()
        assert store.inspect("payments/42").token == lease.token
    assert store.inspect("payments/42") is None


@pytest.mark.parametrize("name", NAMES)
def test_each_name_has_a_file_of_its_own_in_the_folder(store, name):
    with store.lock(name, wait=0), store.lock("other", wait=0):
        assert os.path.dirname(store.path(name)) == store.folder
        assert os.path.isfile(store.path(name))
    assert store.list() == sorted([name, "other"])


def test_two_names_never_share_a_file():
    assert len({lock_names.file_of(name) for name in NAMES}) == len(NAMES)
    assert [lock_names.name_of(lock_names.file_of(name)) for name in NAMES] == NAMES


@pytest.mark.parametrize(
    "file",
    ["x", "x#0.lock", "%2.lock", "%zz.lock", "%41.lock", ".a.lock", ".lock", "%FF.lock"],
)
def test_a_file_that_is_no_names_is_not_listed(store, file):
    os.makedirs(store.folder)
    open(os.path.join(store.folder, file), "w").close()
    assert store.list() == []


def test_the_list_is_of_those_that_begin_so(store):
    for name in ("jobs/b", "jobs/a", "config"):
        store.lock(name).acquire().release()
    assert store.list("jobs/") == ["jobs/a", "jobs/b"]
    assert connect(f"{store.url}/none").list() == []


def test_readers_and_slots_have_names_too(store):
    config = store.read_write("config")
    with config.reading(), store.read_write("config").reading(), pytest.raises(NotAcquired):
        store.read_write("config").acquire_write(0)
    with store.semaphore("gpu", 2) as one, store.semaphore("gpu", 2) as two:
        assert {one.slot, two.slot} == {0, 1}
        assert one.fences == f"{store.url}#gpu#{one.slot}"
    assert store.list() == ["config", "gpu"]


@pytest.mark.parametrize("kind", ["soft", "link", "generation", "directory", "folder"])
def test_a_lock_of_every_kind_is_listed_while_it_is_held_and_after(store, kind):
    with store.lock("nightly", kind=kind):
        assert store.list() == ["nightly"]
    assert store.list() == ([] if kind == "link" else ["nightly"])  # which leaves nothing


def test_readers_of_kind_soft_are_listed_and_nothing_that_stands_beside_is(store):
    with store.read_write("config", kind="soft").reading():
        assert store.list() == ["config"]
    with store.read_write("config", kind="soft").writing():
        assert store.list() == ["config"]
    assert store.list() == ["config"]


def test_who_waits_is_counted(store):
    code = f"from lifehold import connect; connect({store.url!r}).lock('a').acquire()"
    with store.lock("a"):
        waiter = subprocess.Popen([sys.executable, "-W", "ignore", "-c", code])
        until(lambda: store.waiters("a") == 1)
    assert waiter.wait(90) == 0
    assert store.waiters("a") == 0


def until(claim):
    end = time.monotonic() + 60
    while not claim():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_the_options_of_the_store_are_those_of_its_locks(tmp_path):
    store = connect(f"file://{tmp_path}", kind="soft", ttl=30, label="batch")
    with store.lock("a") as lease:
        assert 0 < lease.remaining() <= 30
        assert store.inspect("a").owner.label == "batch"
    with store.lock("b", kind="kernel", ttl=None) as lease:
        assert lease.remaining() is None


def test_the_ground_is_told_in_words(store, tmp_path):
    ground = store.ground()
    assert ground.kind == "kernel"
    assert ground.file_system in str(ground)
    assert store.folder in ground.words
    assert not os.path.exists(store.folder)  # asking makes nothing


def test_tasks_have_the_same_locks(tmp_path):
    async def main():
        store = await aconnect(f"file://{tmp_path}")
        async with store.lock("a", wait=0) as lease:
            assert (await store.inspect("a")).token == lease.token
            with pytest.raises(NotAcquired):
                connect(store.url).lock("a", wait=0).acquire()
            assert await store.waiters("a") == 0
        async with store.read_write("c").writing():
            pass
        async with store.semaphore("d", 2) as lease:
            assert lease.slot == 0
        assert await store.list() == ["a", "c", "d"]
        assert await store.ground() == connect(store.url).ground()

    asyncio.run(main())


def test_a_kernel_lock_cannot_be_broken(store):
    with store.lock("a"), pytest.raises(InvalidArgument, match="cannot be broken"):
        store.break_("a", "trying")


@pytest.mark.parametrize(
    ("url", "words"),
    [("/tmp/x", "named by a URL"), ("x", "named by a URL"), (None, "named by a URL"),
     ("nosuch://x", "no store for 'nosuch'"), ("file://x", "three slashes"),
     ("file://host/x", "three slashes"), ("file:///x?kind=soft", "takes no options"),
     ("file:///x%2", "hexadecimal"), ("file:///x%00", "NUL"), ("file:///x#name", "without a lock")],
)  # fmt: skip
def test_a_url_that_names_no_store_is_refused_with_the_remedy(url, words):
    with pytest.raises(InvalidArgument, match=words):
        connect(url)


@pytest.mark.parametrize(
    ("name", "words"),
    [("", "empty"), (3, "must be a str"), ("x" * 300, "too long"), ("\udc80", "cannot be")],
)
def test_a_name_that_cannot_be_is_refused(store, name, words):
    with pytest.raises(InvalidArgument, match=words):
        store.lock(name)


def test_a_folder_without_a_name_is_no_lock(store):
    with pytest.raises(InvalidArgument, match="behind a #"):
        Lock(store.url)


def test_a_blank_in_the_folder_is_written_as_the_url_wants_it(tmp_path):
    store = connect(f"file://{tmp_path}/a%20b")
    assert store.folder == f"{tmp_path}/a b"
    assert store.url.endswith("/a%20b")
    with store.lock("x"):
        assert connect(store.url).inspect("x")


def test_the_command_takes_a_url(store):
    store.lock("payments/41").acquire().release()  # the folders are made: nothing is to be told
    url = f"{store.url}#payments/42"
    run = [sys.executable, "-m", "lifehold", "run", "-n", url, "--"]
    inner = [sys.executable, "-m", "lifehold", "who", url]
    said = subprocess.run([*run, *inner], capture_output=True, text=True, check=False)
    assert (said.returncode, said.stderr) == (0, "")
    assert url in said.stdout
    assert os.path.isfile(store.path("payments/42"))


def test_stores_are_equal_that_are_the_same_folder(store):
    assert connect(store.url + "/") == store
    assert len({store, connect(store.url)}) == 1
    assert repr(store) == f"<FileStore {store.url}>"
