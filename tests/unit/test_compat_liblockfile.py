"""`lifehold.compat.liblockfile`: its numbers and rules; where it is stricter than the original."""

from __future__ import annotations

import errno
import logging
import os
import pickle
import subprocess
import sys
import threading

import pytest

from ground import needs
from lifehold import Lock, WouldBlock
from lifehold.compat import liblockfile as lib
from lifehold.compat.liblockfile import calls, dotlock, mailbox, spool
from lifehold.compat.liblockfile.create import RetryTerms
from lifehold.compat.liblockfile.dotlock import DotLock
from lifehold.core.owner import ALIVE
from lifehold.core.owner import DEAD as DEAD_STATE
from lifehold.local.ground import MountInfo
from lifehold.local.record import read

pytestmark = needs("linux")
DEAD = 2**22 - 2


@pytest.fixture
def lock(tmp_path):
    return tmp_path / "box.lock"


def age(path, seconds):
    now = path.stat().st_mtime
    os.utime(path, (now - seconds, now - seconds))


def in_child(act):
    """`act()` in a forked child, which must end well."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            act()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_the_numbers_are_those_of_the_header():
    names = "SUCCESS NAMELEN TMPLOCK TMPWRITE MAXTRYS ERROR MANLOCK ORPHANED RMSTALE".split()
    assert [getattr(lib, f"L_{name}") for name in names] == list(range(9))
    assert (lib.L_PID, lib.L_PPID) == (16, 32)


def test_a_status_is_an_int_that_tells_why_and_survives_pickling():
    status = lib.Status(4, "held", errno.EAGAIN)
    again = pickle.loads(pickle.dumps(status))
    assert (again, again.why, again.errno, repr(again)) == (4, "held", 11, "<L_MAXTRYS: held>")


@pytest.mark.parametrize(
    ("flags", "line"),
    [(0, "0"), (lib.L_PID, str(os.getpid())), (lib.L_PPID, str(os.getppid())),
     (lib.L_PID | lib.L_PPID, str(os.getppid()))],
    ids=["nobody", "this process", "its parent", "its parent first"],
)  # fmt: skip
def test_a_lock_file_has_its_first_line_and_nothing_is_left_beside_it(lock, flags, line):
    assert lib.lockfile_create(lock, 0, flags) == lib.L_SUCCESS
    assert lock.read_text().partition("\n")[0] == line
    assert os.listdir(lock.parent) == ["box.lock"]
    assert lib.lockfile_check(lock, flags) == 0
    assert lib.lockfile_touch(lock) == 0
    assert lib.lockfile_remove(lock) == 0
    assert lib.lockfile_check(lock, flags) == -1
    assert lib.lockfile_touch(lock).errno == errno.ENOENT
    assert lib.lockfile_remove(lock) == 0


def test_the_first_process_of_a_container_is_no_orphan(lock, monkeypatch):
    monkeypatch.setattr(os, "getpid", lambda: 1)
    assert calls._whose(lib.L_PID, False) == (1, None)
    monkeypatch.setattr(os, "getppid", lambda: 1)
    assert lib.lockfile_create(lock, 0, lib.L_PPID) == lib.L_ORPHANED
    monkeypatch.setattr(os, "getppid", lambda: DEAD)
    assert lib.lockfile_create(lock, 0, lib.L_PPID) == lib.L_ORPHANED
    monkeypatch.setattr(os, "getppid", lambda: 0)  # in another PID namespace
    assert calls._whose(lib.L_PPID, False) == (0, None)


def test_a_held_lock_is_told_with_its_holder(lock):
    lib.lockfile_create(lock, 0, lib.L_PID)
    status = lib.lockfile_create(lock, 0, lib.L_PID)
    assert (status, status.errno) == (lib.L_MAXTRYS, errno.EAGAIN)
    assert f"pid {os.getpid()}" in status.why
    lib.lockfile_remove(lock)


def test_no_try_is_made_for_minus_one_retries(lock):
    assert lib.lockfile_create(lock, -1) == lib.L_MAXTRYS
    assert not lock.exists()


def test_on_a_file_server_its_clock_counts_and_no_process_number_is_written(lock):
    far = {"place": MountInfo("nfs4", "0:44")}
    grant = DotLock(str(lock), **far).once()
    assert read(lock.read_bytes()).ttl == 300.0
    assert lock.read_text().startswith("0\n")
    assert DotLock(str(lock), **far).standing().state == ALIVE
    age(lock, 301)
    assert DotLock(str(lock), **far).standing().state == DEAD_STATE
    assert os.listdir(lock.parent) == ["box.lock"]
    grant.handle.pop().close()


def test_unknown_flags_are_refused(lock):
    status = lib.lockfile_create(lock, 0, 64)
    assert (status, status.errno) == (lib.L_ERROR, errno.EINVAL)


def test_the_folder_must_be_there(tmp_path):
    assert lib.lockfile_create(tmp_path / "no" / "x", 0) == lib.L_TMPLOCK
    assert lib.lockfile_create("/proc/x", 0) == lib.L_TMPLOCK
    assert lib.lockfile_create(tmp_path / ("x" * 300), 0) == lib.L_MAXTRYS
    assert lib.lockfile_create(tmp_path / ("x/" * 3000), 0) == lib.L_NAMELEN


@pytest.mark.parametrize("odd", ["a\0b", "\ud800", b"a\0b", "x" * 300, "x/" * 3000, ""])
def test_what_names_no_file_is_an_answer_and_no_exception(tmp_path, monkeypatch, odd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MAIL", raising=False)
    for flags in (0, lib.L_PID):
        assert lib.lockfile_create(odd, 0, flags) > 0
    for call in (lib.lockfile_check, lib.lockfile_touch, lib.lockfile_remove):
        answer = call(odd)
        assert answer == -1 or (call is lib.lockfile_remove and answer == 0)
    if odd and isinstance(odd, str):
        assert lib.maillock(f"{odd}/x", 0) > 0
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("target", ["nowhere", "file"])
def test_a_symbolic_link_is_not_touched_and_that_is_told(tmp_path, target):
    link, file = tmp_path / "link", tmp_path / "file"
    file.touch()
    link.symlink_to(target)
    for each in (link, file):
        os.utime(each, (1, 1), follow_symlinks=False)
    answer = lib.lockfile_touch(link)
    assert (answer, answer.errno) == (-1, errno.ELOOP)
    assert link.lstat().st_mtime == file.stat().st_mtime == 1


def test_a_path_may_be_of_bytes_as_that_of_the_system_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert lib.lockfile_create(b"box.\xff", 0) == lib.L_SUCCESS
    assert os.listdir(b".") == [b"box.\xff"]
    assert lib.lockfile_check("box.\udcff") == 0
    assert lib.lockfile_touch(b"box.\xff") == 0
    assert lib.lockfile_remove(b"box.\xff") == 0
    assert os.listdir(tmp_path) == []


def test_the_pauses_grow_by_five_seconds_up_to_a_minute():
    assert [RetryTerms(20).pause(n) for n in (1, 2, 3, 12, 13)] == [5, 10, 15, 60, 60]
    assert [RetryTerms(20, 4).pause(n) for n in (1, 2, 3)] == [4, 4, 4]


@pytest.mark.parametrize(("seconds", "answer"), [(299, lib.L_MAXTRYS), (301, lib.L_SUCCESS)])
def test_five_minutes_without_a_touch_make_a_file_stale(lock, seconds, answer):
    lock.write_text("0\n")
    age(lock, seconds)
    assert lib.lockfile_check(lock) == (0 if answer else -1)
    assert lib.lockfile_create(lock, 0) == answer
    lib.lockfile_remove(lock)


def test_a_stale_file_is_taken_over_in_place(lock):
    lock.write_text("0\n" + "x" * 3000)
    age(lock, 301)
    before = lock.stat().st_ino
    assert lib.lockfile_create(lock, 0) == lib.L_SUCCESS
    assert lock.stat().st_ino == before
    assert lock.stat().st_size <= 1024
    lib.lockfile_remove(lock)


@needs("all processes")
def test_the_process_on_the_first_line_counts_only_when_asked_for(lock):
    lock.write_text(f"{DEAD}\n")
    assert lib.lockfile_check(lock) == 0
    assert lib.lockfile_check(lock, lib.L_PID) == -1
    assert lib.lockfile_create(lock, 0) == lib.L_MAXTRYS
    assert lib.lockfile_create(lock, 0, lib.L_PPID) == lib.L_SUCCESS
    lib.lockfile_remove(lock)


def test_who_is_proven_to_live_is_not_robbed_by_age(lock):
    lib.lockfile_create(lock, 0, lib.L_PID)
    age(lock, 3600)
    assert lib.lockfile_check(lock) == 0
    assert lib.lockfile_create(lock, 0) == lib.L_MAXTRYS
    lib.lockfile_remove(lock)


def test_a_holder_of_kind_link_with_a_witness_is_not_robbed_by_age(lock):
    with Lock(lock, kind="link"):
        age(lock, 3600)
        assert lib.lockfile_check(lock, lib.L_PID) == 0
        assert lib.lockfile_create(lock, 0) == lib.L_MAXTRYS


@pytest.mark.parametrize("flags", [0, lib.L_PID])
def test_kind_link_waits_for_a_lock_of_ours(lock, flags):
    lib.lockfile_create(lock, 0, flags)
    with pytest.raises(WouldBlock):
        Lock(lock, kind="link").acquire(0)
    lib.lockfile_remove(lock)
    Lock(lock, kind="link").acquire(0).release()


def test_the_lock_of_another_kind_is_never_taken_for_a_stale_file(lock):
    with Lock(lock):
        pass  # a kernel lock's file stays, and is not in use
    age(lock, 3600)
    assert lib.lockfile_create(lock, 0) == lib.L_MAXTRYS
    with Lock(lock, wait=0):
        pass


def test_links_and_folders_are_judged_and_never_removed(tmp_path):
    (tmp_path / "lost").symlink_to("nowhere")
    (tmp_path / "dir").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("dir", "pipe"):
        assert lib.lockfile_create(tmp_path / name, 0) == lib.L_MAXTRYS
        os.utime(tmp_path / name, (1, 1))
    for name in ("lost", "dir", "pipe"):
        assert lib.lockfile_check(tmp_path / name) == -1
        assert lib.lockfile_create(tmp_path / name, 0) == lib.L_RMSTALE
        assert lib.lockfile_remove(tmp_path / name) == -1
    assert sorted(os.listdir(tmp_path)) == ["dir", "lost", "pipe"]


def test_a_lock_that_was_taken_over_is_not_removed_and_that_is_told(lock, caplog):
    lib.lockfile_create(lock, 0)
    lock.write_text("4127\n")  # somebody adopted it
    with caplog.at_level(logging.WARNING, "lifehold"):
        assert lib.lockfile_remove(lock) == 0
    assert lock.read_text() == "4127\n"
    assert "not ours any more" in caplog.text


def create_elsewhere(lock):
    """What another process is answered that makes the lock."""
    ask = "import sys; from lifehold.compat import liblockfile as lib\n"
    ask += "print(int(lib.lockfile_create(sys.argv[1], 0)))"
    told = subprocess.run(
        [sys.executable, "-c", ask, str(lock)], stdout=subprocess.PIPE, check=True
    )
    return int(told.stdout)


@pytest.mark.parametrize(
    "spelling", ["box.lock", "./box.lock", "../lock/box.lock", "link/box.lock"]
)
def test_a_robbed_holder_neither_touches_nor_removes_the_lock_of_its_robber(
    tmp_path, monkeypatch, spelling
):
    (tmp_path / "lock").mkdir()
    (tmp_path / "lock" / "link").symlink_to(".")
    monkeypatch.chdir(tmp_path / "lock")
    lock = tmp_path / "lock" / "box.lock"
    assert lib.lockfile_create("box.lock", 0) == lib.L_SUCCESS
    age(lock, 900)
    assert create_elsewhere(lock) == lib.L_SUCCESS  # in place: the inode is the same
    age(lock, 100)
    before = lock.stat().st_mtime_ns, lock.read_bytes()
    assert lib.lockfile_touch(spelling).errno == errno.ESTALE
    assert lib.lockfile_remove(spelling).why == "somebody else has taken it over"
    assert (lock.stat().st_mtime_ns, lock.read_bytes()) == before


def test_a_removal_that_failed_robs_nobody_when_it_is_tried_again(lock, monkeypatch):
    def refused(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    assert lib.lockfile_create(lock, 0) == lib.L_SUCCESS
    with monkeypatch.context() as patch:
        patch.setattr(DotLock, "remove", refused)
        status = lib.lockfile_remove(lock)
        assert (status, status.errno) == (-1, errno.EIO)
    age(lock, 900)
    assert create_elsewhere(lock) == lib.L_SUCCESS
    assert lib.lockfile_touch(lock).errno == errno.ESTALE
    assert lib.lockfile_remove(lock).why == "somebody else has taken it over"
    assert lock.exists()


def test_a_lock_that_is_taken_over_while_it_is_removed_stays(lock, monkeypatch):
    real = DotLock._guard

    def late(self, ours):
        monkeypatch.undo()
        assert create_elsewhere(lock) == lib.L_SUCCESS  # in place: the inode is the same
        return real(self, ours)

    assert lib.lockfile_create(lock, 0) == lib.L_SUCCESS
    age(lock, 900)
    monkeypatch.setattr(DotLock, "_guard", late)
    assert lib.lockfile_remove(lock).why == "somebody else has taken it over"
    assert lock.exists()


@pytest.mark.parametrize("flags", [0, lib.L_PID])
def test_a_forked_child_removes_no_lock_of_its_parent(lock, flags):
    beside = lock.with_name("beside.lock")
    assert lib.lockfile_create(lock, 0, flags) == lib.L_SUCCESS

    def act():
        status = lib.lockfile_remove(lock)
        assert (status, status.errno) == (-1, errno.EPERM)
        assert "forked" in status.why
        assert lib.lockfile_touch(lock) == 0  # it may keep it young for its parent
        assert lib.lockfile_create(beside, 0, flags) == lib.L_SUCCESS
        assert lib.lockfile_remove(beside) == 0

    in_child(act)
    assert create_elsewhere(lock) == lib.L_MAXTRYS
    assert lib.lockfile_touch(lock) == 0
    assert lib.lockfile_remove(lock) == 0
    assert os.listdir(lock.parent) == []


def test_a_forked_child_clears_what_is_no_more_its_parents(lock):
    lib.lockfile_create(lock, 0)
    lock.write_text("4127\n")  # somebody adopted it
    in_child(lambda: lib.lockfile_remove(lock))
    assert not lock.exists()
    lib.lockfile_remove(lock)


@needs("all processes")
def test_a_daemon_removes_the_lock_that_its_ended_parent_made(lock):
    ready, go = os.pipe(), os.pipe()

    def daemon():
        os.write(ready[1], b".")
        os.read(go[0], 1)
        os.write(ready[1], b"%d" % lib.lockfile_remove(lock))

    def parent():
        assert lib.lockfile_create(lock, 0) == lib.L_SUCCESS
        if os.fork() == 0:
            try:
                daemon()
            finally:
                os._exit(0)
        os.read(ready[0], 1)

    in_child(parent)
    os.write(go[1], b".")
    assert os.read(ready[0], 2) == b"0"
    for fd in (*ready, *go):
        os.close(fd)
    assert not lock.exists()


def test_a_touch_of_what_is_another_file_by_now_is_refused(lock):
    lib.lockfile_create(lock, 0)
    (lock.parent / "new").write_text("0\n")
    os.rename(lock.parent / "new", lock)
    assert lib.lockfile_touch(lock).errno == errno.ESTALE
    lock.unlink()
    lock.symlink_to("elsewhere")
    assert lib.lockfile_touch(lock).errno == errno.ESTALE
    assert lib.lockfile_remove(lock) == -1
    assert lock.is_symlink()


@pytest.mark.parametrize("flags", [lib.L_PID, lib.L_PPID])
def test_process_numbers_are_refused_on_shared_file_systems(lock, flags, monkeypatch):
    monkeypatch.setattr(calls, "place_of_path", lambda _: MountInfo("nfs4", "0:44"))
    status = lib.lockfile_create(lock, 0, flags)
    assert (status, status.errno) == (lib.L_ERROR, errno.EOPNOTSUPP)
    assert "must not be used" in status.why
    assert lib.lockfile_check(lock, flags).errno == errno.EOPNOTSUPP
    assert not lock.exists()


@pytest.mark.parametrize(
    ("text", "number"),
    [(b"12\n", 12), (b" 7x", 7), (b"-1\n", -1), (b"", 0), (b"x", 0), (b"+3", 3),
     (b"1234567890123456789", 1234567890123456)],
)  # fmt: skip
def test_the_first_line_is_read_as_atoi_reads_sixteen_bytes(text, number):
    assert dotlock.first_number(text) == number


def test_threads_that_want_one_lock_get_it_one_by_one(lock):
    inside, wrong = [], []

    def work():
        for _ in range(3):
            while lib.lockfile_create(lock, 0) != lib.L_SUCCESS:
                pass
            inside.append(1)
            if len(inside) != 1:
                wrong.append(1)
            inside.pop()
            lib.lockfile_remove(lock)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert (wrong, inside, os.listdir(lock.parent)) == ([], [], [])


# ---- mailboxes


def test_the_lock_of_a_mailbox_is_beside_it(monkeypatch, tmp_path):
    monkeypatch.setenv("MAIL", str(tmp_path / "ana"))
    assert mailbox.mail_lock_of("ana") == f"{tmp_path}/ana.lock"
    assert mailbox.mail_lock_of("bob") == "/var/mail/bob.lock"
    monkeypatch.delenv("MAIL")
    assert mailbox.mail_lock_of("ana") == "/var/mail/ana.lock"


def test_a_mailbox_is_locked_once_for_the_thread_and_no_second_one(monkeypatch, tmp_path):
    monkeypatch.setenv("MAIL", str(tmp_path / "ana"))
    assert lib.maillock("ana", 0) == lib.maillock("ana", 0) == 0
    assert (tmp_path / "ana.lock").read_text().startswith("0\n")
    os.utime(tmp_path / "ana.lock", (1, 1))
    lib.touchlock()
    assert lib.lockfile_check(tmp_path / "ana.lock") == 0
    assert lib.maillock("bob", 0).errno == errno.EBUSY
    seen = []
    other = threading.Thread(target=lambda: seen.append(lib.maillock("ana", 0)))
    other.start()
    other.join(90)
    assert seen == [lib.L_MAXTRYS]
    lib.mailunlock()
    lib.mailunlock()
    assert os.listdir(tmp_path) == []


def test_the_mailbox_of_a_thread_that_has_ended_is_not_the_next_ones(monkeypatch, tmp_path):
    """Which may well have the same number."""
    monkeypatch.setenv("MAIL", str(tmp_path / "ana"))
    numbers, seen = [], []

    def lock():
        numbers.append(threading.get_ident())
        if len(seen) < 2 and numbers[-1] == numbers[0]:
            seen.append(lib.maillock("ana", 0))

    for _ in range(100):
        thread = threading.Thread(target=lock)
        thread.start()
        thread.join(90)
    assert seen == [0, lib.L_MAXTRYS]
    lib.mailunlock()
    assert os.listdir(tmp_path) == []


def test_a_thread_frees_and_touches_no_mailbox_of_another(monkeypatch, tmp_path):
    monkeypatch.setenv("MAIL", str(tmp_path / "ana"))
    assert lib.maillock("ana", 0) == 0
    age(tmp_path / "ana.lock", 100)
    before = (tmp_path / "ana.lock").stat().st_mtime_ns
    seen = []

    def other():
        try:
            seen.append(lib.maillock("ana", 0))
            lib.touchlock()
        finally:
            lib.mailunlock()

    thread = threading.Thread(target=other)
    thread.start()
    thread.join(90)
    assert seen == [lib.L_MAXTRYS]
    assert (tmp_path / "ana.lock").stat().st_mtime_ns == before
    assert lib.maillock("ana", 0) == 0  # it is this thread's still
    lib.mailunlock()
    assert os.listdir(tmp_path) == []


def test_only_a_set_gid_program_may_lock_in_the_spool(tmp_path):
    plain = tmp_path / "dotlockfile"
    plain.write_text("#!/bin/sh\necho $* >%s/asked; exit 4\n" % tmp_path)  # noqa: UP031
    plain.chmod(0o755)
    assert spool.set_gid_program([str(plain)]) is None
    plain.chmod(0o2755)
    found = spool.set_gid_program([str(tmp_path / "none"), str(plain)])
    assert found == (str(plain), plain.stat().st_gid)


def test_a_mailbox_lock_is_one_beside_our_own_file_in_a_folder_of_the_group(tmp_path):
    tmp_path.chmod(0o2770)
    path, group = str(tmp_path / "ana.lock"), tmp_path.stat().st_gid
    assert not spool.is_mailbox_lock(path, group)
    (tmp_path / "ana").write_text("")
    assert spool.is_mailbox_lock(path, group)
    assert not spool.is_mailbox_lock(path, group + 1)
    assert not spool.is_mailbox_lock(str(tmp_path / "ana.lck"), group)
    tmp_path.chmod(0o755)
    assert not spool.is_mailbox_lock(path, group)


def test_where_no_set_gid_program_is_that_is_said(tmp_path):
    tmp_path.chmod(0o2770)
    (tmp_path / "ana").write_text("")
    refused = lib.Status(lib.L_TMPLOCK, "no temporary file can be made", errno.EACCES)
    path = str(tmp_path / "ana.lock")
    status = spool.by_the_program("-l", path, refused, programs=["/nonexistent/dotlockfile"])
    assert status == lib.L_TMPLOCK
    assert "no set-gid dotlockfile" in status.why
    other = lib.Status(lib.L_TMPLOCK, "", errno.ENOSPC)
    assert spool.by_the_program("-l", path, other, programs=[]) is other


def test_the_set_gid_program_is_run_where_everybody_may_be(tmp_path, monkeypatch):
    # It goes back to the folder that it was started in, and fails where its group may not enter.
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool").chmod(0o2770)
    (tmp_path / "spool" / "ana").write_text("")
    program, told = tmp_path / "dotlockfile", tmp_path / "told"
    program.write_text(f'#!/bin/sh\n{{ pwd; echo "$@"; }} > {told}\n')
    program.chmod(0o2755)
    monkeypatch.chdir(tmp_path / "spool")
    monkeypatch.setattr(spool.os, "geteuid", lambda: 1000)  # as root it is better not run
    refused = lib.Status(lib.L_TMPLOCK, "no temporary file can be made", errno.EACCES)
    group = tmp_path.stat().st_gid
    monkeypatch.setattr(spool, "set_gid_program", lambda programs: (str(program), group))
    assert spool.by_the_program("-l", "ana.lock", refused) == lib.L_SUCCESS
    assert told.read_text() == f"/\n-l -r 0 -q -N {tmp_path}/spool/ana.lock\n"


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda path: lib.lockfile_create(path, "x"), "retrycnt must be an int, not str 'x'"),
        (lambda path: lib.lockfile_create(path, 0.5), "retrycnt must be an int, not float 0.5"),
        (lambda path: lib.lockfile_create(path, 0, "x"), "flags must be an int, not str 'x'"),
        (lambda path: lib.lockfile_check(path, None), "flags must be an int, not NoneType None"),
        (lambda path: lib.maillock(None), "name must be a str, not NoneType None"),
        (lambda path: lib.maillock("me", "x"), "retrycnt must be an int, not str 'x'"),
    ],
)
def test_what_is_no_number_or_no_name_is_refused_in_words(lock, call, told):
    with pytest.raises(TypeError) as caught:
        call(lock)
    assert str(caught.value) == told
    assert not lock.exists()
