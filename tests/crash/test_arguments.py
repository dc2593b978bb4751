"""Bad input: one clear error each, which names the input and the remedy.

Nothing held or left behind.
"""

from __future__ import annotations

import os
import resource
import socket
from pathlib import Path

import pytest

from crash.scene import descriptors, free, hold, next_token, open_files, raised
from crash.terrain import as_nobody, folder_for_all, result
from ground import needs
from lifehold import (
    CorruptRecord,
    InvalidArgument,
    Lock,
    NotAcquired,
    SystemRefused,
    Timeout,
    WouldBlock,
)  # fmt: skip
from lifehold.testing.crash import Child


def refused(kind, path, *words, make=lambda p: None, **options):
    """Locking `path` raises `kind` with these words; the exception is kept and leaks nothing."""
    before = open_files()
    lock = make(path) or Lock(path, **options)
    error = raised(lock.acquire, 0)
    assert type(error) is kind, repr(error)
    for word in words:
        assert word in str(error), str(error)
    assert open_files() == before
    assert lock.lease is None
    return error


CONSTRUCTED = {
    "empty": ("", "path must not be empty"),
    "NUL": ("a\0b", "NUL"),
    "bytes": (b"lock", "bytes"),
    "number": (3, "int"),
    "nothing": (None, "NoneType"),
    "over-long": ("x/" * 3000 + "lock", "too long"),
    "over-long in bytes": ("é" * 2500, "too long"),
    "trailing slash": ("folder/", "folder"),
    "URL": ("nosuch://host:2379/0#name", "URL"),
    "lone surrogate": ("\ud800.lock", "path"),
}


@pytest.mark.parametrize("what", CONSTRUCTED)
def test_a_path_that_can_name_no_file_is_refused_before_anything_is_opened(
    what, tmp_path, monkeypatch
):
    path, words = CONSTRUCTED[what]
    monkeypatch.chdir(tmp_path)
    error = raised(Lock, path)
    assert type(error) is InvalidArgument, repr(error)
    assert words in str(error)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "value", [-1, -0.001, float("nan"), float("inf"), "3", True, b"1", [], 1e300]
)
@pytest.mark.parametrize("held", [False, True])
def test_a_wait_that_is_no_length_of_time_is_refused_held_or_not(tmp_path, value, held):
    path = tmp_path / "lock"
    error = raised(Lock, path, wait=value)
    assert type(error) is InvalidArgument
    assert "wait" in str(error)
    holder = Lock(path).acquire() if held else None
    lock = Lock(path)
    error = raised(lock.acquire, value)
    assert type(error) is InvalidArgument, repr(error)
    assert repr(value) in str(error)
    assert lock.lease is None
    if holder:
        holder.release()


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"kind": "soft!"}, "kind"), ({"kind": None}, "kind"), ({"kind": ["auto"]}, "kind"),
        ({"mode": 0o1777}, "mode"), ({"mode": True}, "mode"), ({"mode": 0o600, "shared": True}, "mode"),
        ({"label": 3}, "label"), ({"max_hold": 0}, "max_hold"), ({"max_hold": "1"}, "max_hold"),
        ({"cleanup": True, "exclusive": False}, "cleanup"), ({"cleanup": True, "record": False}, "cleanup"),
    ],
)  # fmt: skip
def test_an_option_that_makes_no_lock_is_refused_by_name(tmp_path, options, word):
    error = raised(Lock, tmp_path / "lock", **options)
    assert type(error) is InvalidArgument, repr(error)
    assert word in str(error)
    assert list(tmp_path.iterdir()) == []


def _socket(path):
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


NOT_FILES = {
    "directory": (Path.mkdir, "a directory"),
    "FIFO": (os.mkfifo, "a FIFO"),
    "socket": (_socket, "a socket"),
    "dangling symlink": (lambda p: p.symlink_to("nowhere"), "a symbolic link"),
    "symlink to a file": (
        lambda p: (p.with_name("f").touch(), p.symlink_to("f")),
        "a symbolic link",
    ),
    "symlink to a folder": (lambda p: p.symlink_to("."), "a symbolic link"),
}


@pytest.mark.parametrize("what", NOT_FILES)
def test_what_is_no_regular_file_is_neither_followed_nor_replaced(tmp_path, what):
    make, words = NOT_FILES[what]
    path = tmp_path / "lock"
    make(path)
    before = os.lstat(path)
    remedy = "lock its target" if "link" in words else ".lock'"
    refused(InvalidArgument, path, words, str(path), remedy)
    assert os.lstat(path).st_ino == before.st_ino
    assert not (tmp_path / "nowhere").exists()


def test_a_device_is_refused_and_not_kept_open():
    refused(InvalidArgument, "/dev/null", "a device", "lock a regular file")


def test_a_name_the_file_system_cannot_hold_is_refused_with_the_remedy(tmp_path):
    refused(InvalidArgument, tmp_path / ("x" * 300), "shorter name")


def test_a_path_through_a_file_or_in_circles_is_refused_with_the_reason(tmp_path):
    (tmp_path / "file").touch()
    refused(InvalidArgument, tmp_path / "file" / "lock", "not a folder")
    (tmp_path / "loop").symlink_to("loop")
    refused(InvalidArgument, tmp_path / "loop" / "lock", "in circles")


@pytest.mark.parametrize("text", ["9" * 20, "9223372036854775807"])
def test_a_token_that_lifehold_cannot_have_written_is_a_corrupt_record(tmp_path, text):
    path = tmp_path / "lock"
    next_token(str(path))
    ours = path.read_bytes()
    head = ours.index(b'"token":') + len(b'"token":')
    path.write_bytes(ours[:head] + text.rjust(20).encode() + ours[head + 20 :])
    error = refused(CorruptRecord, path, str(path), text, "truncate -s 0")
    assert free(path)
    path.write_bytes(b"")
    del error
    assert next_token(str(path)) > 0


@pytest.mark.parametrize("cut", [1, 11, 12, 30, 60, 500, 1023])
def test_a_torn_record_never_stops_an_acquire_nor_the_growth_of_tokens(tmp_path, cut):
    path = tmp_path / "lock"
    before = next_token(str(path))
    path.write_bytes(path.read_bytes()[:cut])
    with Lock(path, wait=0) as lease:
        assert lease.token is None or lease.token > before


def newer(path):
    """Make the record one of a later format."""
    ours = path.read_bytes()
    path.write_bytes(ours.replace(b'{"lifehold":1,', b'{"lifehold":2,'))


def test_a_newer_record_means_held_and_says_upgrade(tmp_path):
    path = tmp_path / "lock"
    next_token(str(path))
    newer(path)
    before = path.read_bytes()
    refused(WouldBlock, path, "version 2", "Upgrade lifehold")
    error = raised(Lock(path).acquire, 0.3)
    assert type(error) is Timeout
    assert 0.3 <= error.waited < 30
    assert "Upgrade" in str(error)
    assert path.read_bytes() == before
    assert free(path)


def test_a_record_of_a_live_process_of_another_namespace_does_not_hold_a_free_lock(tmp_path):
    path = tmp_path / "lock"
    before = next_token(str(path))
    ours = path.read_bytes()
    at = ours.index(b'"pid_ns":') + len(b'"pid_ns":')
    path.write_bytes(ours[:at] + b"4026539999" + ours[at + 10 :])
    assert Lock(path).holder() is None
    assert not Lock(path).locked()
    assert next_token(str(path), 0) > before


def test_a_record_cut_short_by_a_limit_is_taken_back_and_the_lock_is_usable_after(tmp_path):
    path = tmp_path / "lock"

    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (5, resource.RLIM_INFINITY))
        error = raised(Lock(path).acquire, 0)
        return [type(error).__name__, str(error), path.stat().st_size]

    with Child(limited) as child:
        kind, text, size = child.end().value
    assert kind == "SystemRefused"
    assert "could not be written" in text
    assert size == 0
    with Lock(path, wait=0) as lease:
        assert lease.token > 0


def test_too_many_open_files_is_one_error_and_held_is_still_said(tmp_path):
    def limited():
        kept = []
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        error = None
        while error is None:
            lock = Lock(tmp_path / str(len(kept)))
            try:
                kept.append(lock.acquire(0))
            except SystemRefused as trouble:
                error = trouble
        again = raised(Lock(tmp_path / "0").acquire, 0)
        first = [str(error), len(kept), type(again).__name__]
        for lease in kept:
            lease.check()
            lease.release()
        Lock(tmp_path / "last").acquire(0).release()
        return first

    with Child(limited) as child:
        end = child.end()
    text, held, again = end.value or pytest.fail(end.error)
    assert "ulimit -n" in text
    assert held > 40
    assert again in ("WouldBlock", "SystemRefused")


@needs("root")
def test_idle_descriptors_give_way_when_files_run_out(tmp_path):
    def limited():
        resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
        for number in range(60):
            Lock(tmp_path / str(number)).acquire(0).release()
        return open_files()

    with Child(limited) as child:
        end = child.end()
    assert end.well, end.error
    assert end.value <= 40


def of_nobody(call):
    """`call()` in a child of another user: its answer."""
    return result(as_nobody(call))


def tried(path, **options):
    def run():
        lock = Lock(path, wait=0, **options)
        try:
            lease = lock.acquire()
        except (NotAcquired, SystemRefused, InvalidArgument) as error:
            return [type(error).__name__, str(error), len(descriptors(path))]
        found = [lease.token, lease.token_reason]
        lease.release()
        return found

    return run


@pytest.fixture
def open_folder():
    """A folder that every user may enter."""
    with folder_for_all() as folder:
        yield folder


@needs("root")
def test_a_missing_permission_is_one_error_with_the_remedy(open_folder):
    path = open_folder / "lock"
    Lock(path, mode=0o600).acquire().release()
    kind, text, left = of_nobody(tried(path))
    assert (kind, left) == ("NotPermitted", 0)
    assert "right to read it" in text
    kind, text, left = of_nobody(tried(open_folder / "new"))
    assert (kind, left) == ("NotPermitted", 0)
    kind, text, left = of_nobody(tried(open_folder / "deep" / "er" / "lock"))
    assert (kind, left) == ("NotPermitted", 0)
    assert not (open_folder / "deep").exists()


@needs("root")
def test_a_file_that_cannot_be_looked_at_is_not_called_free(open_folder):
    path = open_folder / "lock"
    with Lock(path, mode=0o600):
        looks = Lock(path).holder, Lock(path).locked
        kind = of_nobody(lambda: [type(raised(look)).__name__ for look in looks])
        assert kind == ["NotPermitted", "NotPermitted"]


@needs("root")
@pytest.mark.parametrize("exclusive", [True, False])
def test_a_file_that_may_only_be_read_is_locked_with_no_token(open_folder, exclusive):
    path = open_folder / "lock"
    last = next_token(str(path))
    os.chmod(path, 0o444)
    token, reason = of_nobody(tried(path, exclusive=exclusive))
    if exclusive:
        assert token is None
        assert "only be read" in reason
    else:
        assert token == last  # readers carry the writer generation
    with Child(hold, str(path)) as holder:
        holder.at("held")
        assert of_nobody(tried(path, exclusive=exclusive))[0] == "WouldBlock"


@needs("root")
def test_shared_lets_two_users_lock_under_any_umask(open_folder):
    os.chmod(open_folder, 0o1777)
    path = open_folder / "lock"
    old = os.umask(0o077)
    try:
        first = Lock(path, shared=True).acquire()
        assert path.stat().st_mode & 0o777 == 0o666
        assert of_nobody(tried(path, shared=True))[0] == "WouldBlock"
        first.release()
    finally:
        os.umask(old)
    token, _ = of_nobody(tried(path, shared=True))
    assert token > first.token
    assert next_token(str(path)) > token


def test_mode_is_exact_whatever_the_umask_is(tmp_path):
    old = os.umask(0o077)
    try:
        for mode in (0o600, 0o640, 0o666):
            path = tmp_path / f"{mode:o}"
            Lock(path, mode=mode).acquire().release()
            assert path.stat().st_mode & 0o777 == mode
        Lock(tmp_path / "plain").acquire().release()
        assert (tmp_path / "plain").stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(old)
