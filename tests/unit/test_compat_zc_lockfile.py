"""`lifehold.compat.zc_lockfile`: its names, the same file and content, and forks."""

from __future__ import annotations

import fcntl
import gc
import os
import socket

import pytest

from ground import needs, require
from lifehold.compat.zc_lockfile import LockError, LockFile, SimpleLockFile
from lifehold.local.open_file import OpenFileLock

pytestmark = needs("linux")


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "server.lock")


def content(path):
    with open(path) as file:
        return file.read()


def is_free(path):
    """As zc.lockfile asks: flock(2) on a file of its own."""
    with open(path, "r+") as other:
        try:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def test_the_file_has_the_number_of_the_process_and_stays(path):
    with open(path, "w") as file:
        file.write(" 123456789012\nand more\n")
    lock = LockFile(path)
    assert content(path) == f" {os.getpid()}\n"
    assert not is_free(path)
    with pytest.raises(LockError, match=r"server\.lock"):
        LockFile(path)
    assert content(path) == f" {os.getpid()}\n"
    lock.close()
    lock.close()  # safe to repeat
    assert is_free(path)
    LockFile(path).close()


def test_a_template_says_more(path):
    lock = LockFile(path, content_template="{pid};{hostname}")
    assert content(path) == f" {os.getpid()};{socket.gethostname()}\n"
    lock.close()
    with pytest.raises(KeyError):
        LockFile(path, content_template="{nothing}")
    assert is_free(path)


def test_a_simple_lock_writes_nothing_and_a_subclass_what_it_likes(path):
    class Noted(SimpleLockFile):
        def _on_lock(self):
            self._fp.write("mine")

    SimpleLockFile(path).close()
    assert content(path) == ""
    lock = Noted(path)
    assert content(path) == "mine"
    lock.close()


def test_flock_keeps_ours_out(path):
    with open(path, "w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(LockError):
            LockFile(path)
    LockFile(path).close()


def test_what_a_link_leads_to_is_neither_written_nor_made(path, tmp_path):
    data, missing = tmp_path / "data", tmp_path / "missing"
    data.write_text("important")
    for target in (data, missing):
        os.symlink(target, path)
        with pytest.raises(LockError, match=r"server\.lock") as caught:
            LockFile(path)
        assert "is a symbolic link" in str(caught.value.__cause__)
        os.unlink(path)
    assert os.listdir(tmp_path) == ["data"]
    assert data.read_text() == "important"


def test_a_file_that_was_replaced_before_the_lock_came_is_left(path, monkeypatch):
    real, calls = OpenFileLock.attempt, []

    def replaced(self):
        if not calls:
            os.rename(path, path + ".old")
            open(path, "w").close()
        calls.append(self)
        return real(self)

    monkeypatch.setattr(OpenFileLock, "attempt", replaced)
    lock = LockFile(path)
    assert len(calls) == 2
    assert (is_free(path), is_free(path + ".old")) == (False, True)
    lock.close()


@needs("fork")
def test_a_forked_child_leaves_the_lock_to_its_parent(path):
    lock = LockFile(path)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            lock.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert not is_free(path)
    lock.close()
    assert is_free(path)


def test_who_keeps_the_open_file_has_the_lock(path):
    kept = []

    class Keeping(SimpleLockFile):
        def _on_lock(self):
            kept.append(self._fp)

    Keeping(path)
    gc.collect()
    assert not is_free(path)
    with pytest.raises(LockError):
        LockFile(path)
    kept.pop().close()
    assert is_free(path)


def test_it_and_the_real_one_exclude_each_other(path):
    require("package:zc.lockfile")
    import zc.lockfile as real

    lock = LockFile(path)
    with pytest.raises(real.LockError):
        real.LockFile(path)
    lock.close()
    theirs = real.LockFile(path)
    assert content(path) == f" {os.getpid()}\n"
    with pytest.raises(LockError):
        LockFile(path)
    theirs.close()


@pytest.mark.parametrize("bad", [None, 0, True])
def test_the_number_of_a_descriptor_is_refused_and_stays_open(bad):
    with pytest.raises(TypeError):
        LockFile(bad)
    os.fstat(0 if bad is None else int(bad))
