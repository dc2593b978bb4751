"""What no lock can be made of, and a system that says no: one clear error each, and nothing left.

Nothing left means: the folder lists as before, the process has as many descriptors as before, and
another process gets the lock at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
import subprocess
import sys

import pytest

from crash.scene import acquire_and_release, free, hold, next_token, open_files, raised
from crash.terrain import (
    as_nobody,
    file_system,
    folder_for_all,
    in_a_child,
    lifehold,
    mounted,
    refusal_of,
    result,
    tree,
)
from ground import needs
from lifehold import InvalidArgument, Lock, ReadWriteLock, SystemRefused, Timeout, WouldBlock
from lifehold.cli import exits
from lifehold.local import record as form
from lifehold.runtime.process import here
from lifehold.testing.crash import Child, point

# ---- paths that cannot be


def loop(folder):
    (folder / "a").symlink_to("b")
    (folder / "b").symlink_to("a")


def bound(folder):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "socket"))


# name: (what is made before, the path in the folder, what the text must say)
PATHS = {
    "a folder": (lambda d: (d / "x").mkdir(), "x", "is a directory"),
    "a folder with a slash": (lambda d: (d / "x").mkdir(), "x/", "names a folder"),
    "a dead link": (lambda d: (d / "x").symlink_to("gone"), "x", "is a symbolic link"),
    "a link to a file": (lambda d: (d / "x").symlink_to("/etc/passwd"), "x", "a symbolic link"),
    "a link to a folder": (lambda d: (d / "x").symlink_to("/etc"), "x", "is a symbolic link"),
    "a link to itself": (loop, "a", "is a symbolic link"),
    "behind a loop of links": (loop, "a/lock", "runs in circles through symbolic links"),
    "behind a dead link": (lambda d: (d / "x").symlink_to("gone"), "x/lock", "leads nowhere"),
    "far behind a dead link": (
        lambda d: (d / "x").symlink_to("gone"), "x/y/z/lock", "leads nowhere: make the folder",
    ),
    "below a file": (lambda d: (d / "x").touch(), "x/lock", "is a file, not a folder"),
    "far below a file": (lambda d: (d / "x").touch(), "x/y/lock", "is a file, not a folder"),
    "a FIFO": (lambda d: os.mkfifo(d / "x"), "x", "is a FIFO"),
    "a socket": (bound, "socket", "is a socket"),
    "a device": (None, "/dev/null", "is a device"),
    "a terminal": (None, "/dev/tty", "/dev/tty"),
    "a name of 256 bytes": (None, "x" * 256, "choose a shorter name"),
    "a name of 129 umlauts": (None, "ü" * 129, "choose a shorter name"),
    "a long name in missing folders": (None, "n/e/w/" + "x" * 256, "choose a shorter name"),
    "a folder with too long a name": (None, "n/" + "x" * 256 + "/lock", "choose a shorter name"),
    "a path of 4096 bytes": (None, "x/" * 2047 + "yy", ""),
    "a URL": (None, "nosuch://host:2379/0#job", "is a URL"),
}  # fmt: skip


def prepared(tmp_path, name):
    make, path, text = PATHS[name]
    if make:
        make(tmp_path)
    path = path if path.startswith("/") or "://" in path else f"{tmp_path}/{path}"
    return path, text


@pytest.mark.parametrize("name", PATHS)
@pytest.mark.parametrize(
    "options", [{}, {"exclusive": False}, {"record": False, "wait": 1}, {"cleanup": True}], ids=str
)
def test_a_path_that_cannot_be_a_lock_is_refused_in_words(tmp_path, name, options):
    path, text = prepared(tmp_path, name)
    before, open_before = tree(tmp_path), open_files()
    error = raised(lambda: Lock(path, **options).acquire())
    if name == "a terminal" and isinstance(error, SystemRefused):
        pytest.skip("needs a terminal")
    assert isinstance(error, InvalidArgument), repr(error)
    assert text in str(error)
    if name != "a path of 4096 bytes":
        assert path.rstrip("/") in str(error)
    assert tree(tmp_path) == before
    assert open_files() == open_before


@pytest.mark.parametrize(
    "name", [name for name in PATHS if name not in ("a device", "a terminal", "a URL")]
)
def test_the_command_refuses_such_a_path_with_64_and_one_text(tmp_path, name):
    folder = tmp_path / "f"
    folder.mkdir()
    path, text = prepared(folder, name)
    before = tree(folder)
    done = lifehold("run", "-n", path, "--", "touch", folder / "ran", cwd=folder)
    assert done.returncode == exits.USAGE
    assert done.stderr.startswith("lifehold: ")
    assert text in done.stderr
    assert done.stderr.count("\n") == 1
    assert tree(folder) == before


class Bytes:
    def __fspath__(self):
        return b"a.lock"


@pytest.mark.parametrize(
    "given", ["", "\0", "a\0b", b"a.lock", 3, None, True, ["a"], Bytes(), object, "a\ud800",
              "x" * 5000, ".", "..", "a/..", "./", "//"], ids=lambda given: repr(given)[:20],
)  # fmt: skip
def test_what_is_no_path_is_refused_where_the_lock_is_made_or_taken(tmp_path, monkeypatch, given):
    monkeypatch.chdir(tmp_path)
    before = open_files()
    with pytest.raises(InvalidArgument) as caught:
        Lock(given).acquire(0)
    assert str(caught.value)
    assert list(tmp_path.iterdir()) == []
    assert open_files() == before


def test_a_working_folder_that_was_removed_is_told(tmp_path):
    def play():
        (tmp_path / "gone").mkdir()
        os.chdir(tmp_path / "gone")
        os.rmdir(tmp_path / "gone")
        return refusal_of(lambda: Lock("a.lock"))

    kind, text, _ = in_a_child(play)
    assert kind == "NoSuchFile"
    assert "'a.lock': the working folder has been removed: change into another" in text


@pytest.mark.parametrize(
    "options",
    [{"kind": kind} for kind in ("", "Kernel", "redis", "kernel ", None, 3, [], {}, b"kernel")]
    + [{"wait": wait} for wait in (-1, float("nan"), float("inf"), "1", True, [], 1e300)]
    + [{"max_hold": bound} for bound in (0, -1, float("nan"), "1", False)]
    + [{"mode": mode} for mode in (-1, 0o1000, "600", 6.0, True)]
    + [{"label": b"x"}, {"label": None, "shared": True}, {"mode": 0o600, "shared": True}],
    ids=str,
)
def test_an_option_that_means_nothing_is_named_and_makes_nothing(tmp_path, options):
    with pytest.raises(InvalidArgument) as caught:
        Lock(tmp_path / "lock", **options)
    assert next(iter(options)) in str(caught.value)
    for wait in (options["wait"],) if "wait" in options else ():
        with pytest.raises(InvalidArgument, match=r"^wait must be"):
            Lock(tmp_path / "lock").acquire(wait)
    assert list(tmp_path.iterdir()) == []


# ---- records that cannot be


def record_of(path, token=5, **others):
    path.touch()
    parts = form.parts(path.stat().st_ino, "ab" * 8, here())
    found = json.loads(form.numbered(parts, token, 1)) | others
    return json.dumps(found, separators=(",", ":")).encode()


HARMLESS = {
    "empty": lambda path: b"",
    "blank": lambda path: b"\0" * 1024,
    "of another file": lambda path: record_of(path, ino=1),
    "cut": lambda path: record_of(path)[:200],
    "half garbage": lambda path: record_of(path)[:100] + os.urandom(900),
    "our mark and garbage": lambda path: form.MAGIC + b"1," + os.urandom(1000),
    "our mark and braces": lambda path: form.MAGIC + b"{" * 1000,
    "of a live pid of another namespace": lambda path: record_of(path, pid=1, pid_ns=4),
    "of a live pid of this namespace": lambda path: record_of(path, pid=os.getppid()),
    "of another host": lambda path: record_of(path, host="h", machine_id="m", boot_id="b"),
    "endless": lambda path: record_of(path) + b"x" * (5 << 20),
}
FOREIGN = {
    "binary": lambda path: os.urandom(4096),
    "huge": lambda path: b"x" * (20 << 20),
    "a pid": lambda path: b"4127\n",
    "other JSON": lambda path: b'{"pid": 1}',
    "our mark further down": lambda path: b" " + form.MAGIC,
}


@pytest.mark.parametrize("name", HARMLESS)
def test_a_record_never_keeps_anybody_out_of_a_free_lock(tmp_path, name):
    path = tmp_path / "lock"
    path.write_bytes(HARMLESS[name](path))
    with Lock(path, exclusive=False):
        pass
    with Lock(path).acquire(0) as lease:
        assert lease.token > 5
        assert form.parse(path.read_bytes()).nonce == lease.nonce
    assert next_token(str(path)) > lease.token


@pytest.mark.parametrize("name", FOREIGN)
@pytest.mark.parametrize("exclusive", [True, False])
def test_foreign_content_is_locked_by_all_and_never_changed(tmp_path, name, exclusive):
    path = tmp_path / "lock"
    content = FOREIGN[name](path)
    path.write_bytes(content)
    with Lock(path, exclusive=exclusive) as lease:
        assert lease.token is None
        assert "somebody else's data" in lease.token_reason
        assert not in_a_child(free, path)
    assert path.read_bytes() == content


@pytest.mark.parametrize("options", [{}, {"exclusive": False}, {"cleanup": True}], ids=str)
def test_a_newer_record_keeps_writers_and_readers_out_and_says_upgrade(tmp_path, options):
    path = tmp_path / "lock"
    path.write_bytes(b'{"lifehold":7,"what":"ever"}\n')
    before = open_files()
    for wait, kind in ((0, WouldBlock), (0.3, Timeout)):
        with pytest.raises(kind, match=r"version 7, .*Upgrade lifehold here") as caught:
            Lock(path, **options).acquire(wait)
        assert caught.value.waited < 30
    assert in_a_child(free, path)
    assert open_files() <= before + 1, "the idle one"
    done = lifehold("run", "-n", path, "--", "true", cwd=tmp_path)
    assert done.returncode == exits.HELD
    assert "Upgrade lifehold here" in done.stderr
    assert path.read_bytes() == b'{"lifehold":7,"what":"ever"}\n'


# ---- no permission


@needs("root")
@pytest.mark.parametrize("exclusive", [True, False])
def test_no_permission_is_told_with_the_path_and_a_remedy_and_leaves_nothing(exclusive):
    with folder_for_all() as folder:
        for name, mode in (("closed", 0o600), ("written", 0o622)):
            (folder / name).touch()
            (folder / name).chmod(mode)
        (folder / "private").mkdir(mode=0o700)
        before = tree(folder)

        def play():
            answers = []
            for name in ("closed", "new", "private/lock", "new/sub/lock"):
                opened = open_files()
                lock = Lock(folder / name, exclusive=exclusive)
                answers.append(refusal_of(lock.acquire, 5))
                assert open_files() == opened
            return answers

        for kind, text, number in result(as_nobody(play)):
            assert (kind, number) == ("NotPermitted", 13)
            assert text.startswith(f"'{folder}")
            assert "ask its owner for the right" in text or "you may not make it there" in text
        assert tree(folder) == before
        assert free(folder / "closed")


@needs("root")
def test_a_file_that_may_only_be_read_is_locked_against_its_writers():
    with folder_for_all() as folder:
        path = str(folder / "lock")
        before = next_token(path)
        for exclusive in (True, False):
            with as_nobody(hold_plainly, path, exclusive) as child:
                token, reason = child.at("held")
                assert (token, reason) == (
                    (None, "the file can only be read here, so it can carry no record")
                    if exclusive
                    else (before, None)
                )
                with pytest.raises(WouldBlock) as caught:
                    Lock(path).acquire(0)
                assert caught.value.holder.alive == "alive"
        assert next_token(path) > before


def hold_plainly(path, exclusive):
    with Lock(path, exclusive=exclusive) as lease:
        point("held", [lease.token, lease.token_reason])


# ---- a full disk, a read-only one


@contextlib.contextmanager
def full(base, what):
    """A file system with an old lock on it and no room for a new one; how to make room."""
    inodes = "nr_inodes=4" if what == "inodes" else "nr_inodes=100"
    with mounted(base / "tmp", "-t", "tmpfs", "-o", f"size=8k,{inodes}", "none") as where:
        next_token(str(where / "old"))
        filler = where / "filler"
        if what == "inodes":
            filler.mkdir()
            (where / "last").touch()
        else:
            filler.write_bytes(b"x" * 4096)
        yield where


@needs("root", "tmpfs")
@pytest.mark.parametrize("what", ["blocks", "inodes"])
def test_a_full_file_system_is_told_and_holds_nothing(tmp_path, what):
    with full(tmp_path, what) as where:
        path, old = str(where / "new"), str(where / "old")
        before = open_files()
        for wait in (0, None):
            with pytest.raises(SystemRefused, match=r"No space left.*free some space") as caught:
                Lock(path).acquire(wait)
            assert caught.value.filename == path
            assert open_files() == before
        done = lifehold("run", path, "--", "true", cwd=tmp_path)
        assert done.returncode == exits.REFUSED
        assert path in done.stderr
        assert "free some space or inodes" in done.stderr
        left = [name for name in os.listdir(where) if name.startswith("new")]
        assert left == ([] if what == "inodes" else ["new"])
        assert not left or (os.path.getsize(path) == 0 and free(path))
        assert next_token(old) < next_token(old), "a record that is there is written in its place"
        if what == "blocks":
            with Lock(path, record=False):  # a lock alone needs no room
                assert not in_a_child(free, path)
        os.remove(where / "last") if what == "inodes" else os.remove(where / "filler")
        assert next_token(path) > 0


@needs("root", "tmpfs")
@pytest.mark.parametrize("kind", ["soft", "link", "directory", "generation", "folder", "writing"])
def test_a_dead_lock_on_a_read_only_mount_is_refused_at_once(tmp_path, kind):
    """No patience helps where nobody can write."""
    with mounted(tmp_path / "m", "-t", "tmpfs", "none") as where:
        path = str(where / "lock")

        def wanted():
            if kind == "writing":
                return ReadWriteLock(path, kind="soft", wait=60).writing()
            return Lock(path, kind=kind, wait=60)

        def holder():
            wanted().__enter__()
            point("held")

        with Child(holder) as child:
            child.at("held")
            child.kill()
        subprocess.run(["mount", "-o", "remount,ro", where], check=True)
        refusal = raised(wanted().__enter__)
        assert isinstance(refusal, SystemRefused), refusal
        assert path in refusal.text
        assert "only a lock file that exists already can be locked here" in refusal.text


@needs("root", "tmpfs")
def test_a_read_only_mount_is_locked_shared_and_exclusive_without_a_token(tmp_path):
    with mounted(tmp_path / "m", "-t", "tmpfs", "none") as where:
        path = str(where / "lock")
        token = next_token(path)
        subprocess.run(["mount", "-o", "remount,ro", where], check=True)
        for exclusive in (True, False):
            with Lock(path, exclusive=exclusive) as lease:
                assert lease.token == (None if exclusive else token)
                assert not in_a_child(free, path)
                lease.check()
        with Child(hold, path) as holder:
            assert holder.at("held") is None
            for exclusive in (True, False):
                with pytest.raises(WouldBlock):
                    Lock(path, exclusive=exclusive).acquire(0)
        done = lifehold("run", path, "--", "sh", "-c", 'echo "<$LIFEHOLD_TOKEN>"', cwd=tmp_path)
        assert (done.returncode, done.stdout) == (0, "<>\n")
        before = open_files()
        with pytest.raises(
            SystemRefused, match="Read-only file system: only a lock file that exists"
        ) as caught:
            Lock(where / "new").acquire()
        assert caught.value.filename == str(where / "new")
        with pytest.raises(
            SystemRefused, match="Read-only file system: only a lock file that exists"
        ):
            Lock(where / "new" / "sub" / "lock").acquire()
        assert open_files() == before
        done = lifehold("run", where / "new", "--", "true", cwd=tmp_path)
        assert done.returncode == exits.REFUSED


# ---- limits


def use_up_descriptors(but=0):
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    taken = []
    with contextlib.suppress(OSError):
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    for _ in range(but):
        os.close(taken.pop())
    return taken


def test_the_last_descriptor_is_told_and_no_lock_is_left(tmp_path):
    def play():
        path = str(tmp_path / "lock")
        lock, held = Lock(path), []
        lock.acquire().release()
        taken = use_up_descriptors(but=3)
        before = open_files()
        error = None
        while error is None:
            try:
                held.append(Lock(f"{path}{len(held)}").acquire())
            except SystemRefused as refused:
                error = refused
        text, number = str(error), len(held)
        for lease in held:
            lease.release()
        os.close(taken.pop())
        lock.acquire().release()
        return [text, number, before]

    text, number, _ = in_a_child(play)
    assert "Too many open files: raise the limit of open files (ulimit -n)" in text
    assert str(tmp_path / "lock") in text
    assert number == 4, "three, and the idle one that was closed for the fourth"
    assert not (tmp_path / f"lock{number}").exists()
    assert all(free(path) for path in tmp_path.iterdir())


@pytest.mark.parametrize("wait", [0, 0.05])
def test_where_no_descriptor_is_left_to_load_its_words_an_error_of_ours_is_raised(tmp_path, wait):
    path = str(tmp_path / "lock")
    lock = Lock(path)
    lock.acquire().release()

    def play():
        lock.acquire().release()
        point("ready")
        sys.modules.pop("lifehold.core.explain", None)
        taken = use_up_descriptors()
        answers = [refusal_of(lock.acquire, wait) for _ in range(2)]
        for fd in taken:
            os.close(fd)
        return [*answers, refusal_of(lock.acquire, 0)]

    with Child(play) as child:
        child.at("ready")
        with Child(hold, path) as holder:
            holder.at("held")
            end = child.end()
            assert end.well, end.error
            *without, last = end.value
            for kind, text, _ in without:  # the end of a wait gives one descriptor back
                assert kind == ("Timeout" if wait else "WouldBlock")
                assert "raise the limit of open files" in text or "next   in Python:" in text
            assert last[0] == "WouldBlock"
        assert free(path)


@pytest.mark.parametrize("limit", [0, 500])
@pytest.mark.parametrize("old", [False, True], ids=["new file", "old file"])
def test_a_limit_of_file_size_is_told_and_the_token_is_not_lost(tmp_path, limit, old):
    path = str(tmp_path / "lock")
    before = next_token(path) if old else 0

    def play():
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        opened = open_files()
        found = refusal_of(Lock(path).acquire)
        assert open_files() == opened
        return found

    kind, text, number = in_a_child(play)
    assert (kind, number) == ("SystemRefused", 27)
    assert path in text
    assert "raise the limit of file size (ulimit -f)" in text
    assert free(path)
    assert next_token(path) > before


@needs("root")
@pytest.mark.parametrize("options", [{"wait": 5}, {"wait": 0, "max_hold": 60}], ids=str)
def test_no_thread_left_is_told_and_nothing_is_held(options):
    """A wait needs a thread, and so does the end of max_hold."""
    with folder_for_all(0o777) as folder:
        path = str(folder / "lock")

        def play():
            resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
            error = raised(Lock(path, **options).acquire)
            return [type(error).__name__, str(error), error.errno, options["wait"] or free(path)]

        with contextlib.ExitStack() as stack:
            if options["wait"]:
                stack.enter_context(Child(hold, path)).at("held")
                os.chmod(path, 0o666)
            with as_nobody(play) as child:
                end = child.end()
        assert end.well, end.error
        kind, text, number, nothing_held = end.value
        assert (kind, number) == ("SystemRefused", 11)
        assert path in text
        assert "raise the limit of processes (ulimit -u)" in text
        assert nothing_held
        assert next_token(path) > 0


@needs("root", "ext4")
def test_an_ext4_that_stops_at_an_error_is_locked_on_without_a_token(tmp_path):
    """errors=remount-ro: our descriptors stay writable, and every write is refused."""
    with file_system("ext4", 16, tmp_path) as where:
        path = str(where / "lock")
        lock = Lock(path)
        token = lock.acquire().token
        lock.release()
        lease = Lock(where / "held").acquire()
        if subprocess.run(["mount", "-o", "remount,abort", where], check=False).returncode:
            pytest.skip("needs mount -o remount,abort")
        lease.check()
        with lock as read_only:
            assert read_only.token is None
            assert "can only be read" in read_only.token_reason
            assert not in_a_child(free, path)
        assert result(Child(acquire_and_release, path)) is None
        lease.release()
        with Lock(path, exclusive=False) as reader:
            assert reader.token == token
