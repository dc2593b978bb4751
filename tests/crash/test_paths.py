"""Other hands on the path: removed, moved, replaced, re-pointed, truncated, restored, linked.

The claims: processes exclude each other by what the path leads to now; who lost the lock is told;
tokens keep growing; bytes that are not ours are never changed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from crash.scene import (
    descriptors,
    free,
    hold,
    next_token,
    raised,
    until,
    waits_in_the_kernel,
)
from crash.terrain import digest, in_a_child, lifehold, refusal_of, sh
from ground import needs
from lifehold import InvalidArgument, LeaseLost, Lock, SelfDeadlock, WouldBlock
from lifehold.core import acquire
from lifehold.local.files import Files
from lifehold.local.handles import TABLE, Descriptors
from lifehold.local.kernel import KernelLock
from lifehold.runtime.blocking import BLOCKING
from lifehold.testing.crash import Child, point

LOCKABLE = ("removed", "moved", "replaced", "folder renamed", "folder replaced", "re-pointed")
OTHERS = {"a symbolic link": "symlink", "a FIFO": "FIFO", "a directory": "directory"}
CHANGES = (*LOCKABLE, *OTHERS)


def deployed(tmp_path):
    """A lock file that is reached through a link, as in `current -> releases/1`."""
    (tmp_path / "releases" / "1").mkdir(parents=True)
    (tmp_path / "releases" / "2").mkdir()
    (tmp_path / "current").symlink_to("releases/1")
    return str(tmp_path / "current" / "lock")


def change(path, how):
    """What another tool does to the path."""
    folder = os.path.dirname(path)
    if how == "re-pointed":
        os.symlink("releases/2", f"{folder}.new")
        os.rename(f"{folder}.new", folder)
        return
    if how == "folder renamed":
        os.rename(folder, f"{folder}.away")
        return
    if how == "folder replaced":
        target = os.path.realpath(folder)
        os.rename(target, f"{target}.away")
        os.mkdir(target)
        Path(path).touch()
        return
    os.rename(path, f"{path}.away")
    if how == "removed":
        os.unlink(f"{path}.away")
    elif how == "replaced":
        Path(path).touch()
    elif how == "a symbolic link":
        os.symlink(f"{path}.away", path)
    elif how == "a FIFO":
        os.mkfifo(path)
    elif how == "a directory":
        os.mkdir(path)


def next_outcome(path, how, after):
    """The next process gets the lock under a greater token, or is told why it cannot."""
    if how in OTHERS:
        with pytest.raises(InvalidArgument, match=how):
            Lock(path).acquire(0)
    else:
        assert next_token(path) > after


# ---- the path changes


@pytest.mark.parametrize("how", CHANGES)
def test_a_holder_is_told_when_its_path_leads_elsewhere_and_the_next_is_in(tmp_path, how):
    path = deployed(tmp_path)
    lease = Lock(path).acquire()
    lease.check()
    change(path, how)
    next_outcome(path, how, lease.token)
    for _ in range(2):
        with pytest.raises(LeaseLost):
            lease.check()
    with pytest.raises(LeaseLost):
        lease.release()
    next_outcome(path, how, lease.token)


@pytest.mark.parametrize("how", CHANGES)
def test_a_kept_descriptor_never_grants_the_file_that_was_there_before(tmp_path, how):
    path = deployed(tmp_path)
    lock = Lock(path)
    with lock as lease:
        before = lease.token
    change(path, how)
    if how in OTHERS:
        next_outcome(path, how, before)
    else:
        with Child(hold, path) as other:
            assert other.at("held") > before
            with pytest.raises(WouldBlock):
                lock.acquire(0)
        with lock.acquire(0) as lease:
            assert lease.token > before
    assert all(os.path.samefile(path, f"/proc/self/fd/{fd}") for fd in descriptors(path))


@pytest.mark.parametrize("how", CHANGES)
def test_held_by_the_file_of_before_does_not_mean_held(tmp_path, how):
    """Who holds what the path led to once keeps nobody out of what it leads to now."""
    path = deployed(tmp_path)
    lock = Lock(path)
    lock.acquire().release()
    with Child(hold, path) as other:
        before = other.at("held")
        change(path, how)
        if how in OTHERS:
            next_outcome(path, how, before)
        else:
            with lock.acquire(0) as lease:
                assert lease.token > before


def wait_for(path):
    found = refusal_of(Lock(path, wait=120).acquire)
    return found and found[1]


@pytest.mark.parametrize("released", [True, False], ids=["at the release", "at the notice"])
def test_waiters_move_to_where_the_path_leads(tmp_path, released, monkeypatch):
    """All changes at once, since the first look at the path comes after 2 s of waiting."""
    if released:
        monkeypatch.setattr(acquire, "FIRST_NOTICE", 600.0)
    started, paths = [], []
    try:
        for how in CHANGES:
            path = deployed(tmp_path / how)
            holder = Child(hold, path)
            started.append(holder)
            holder.at("held")
            waiter = Child(wait_for, path)
            started.append(waiter)
            paths.append((how, path, holder, waiter))
        for how, path, holder, waiter in paths:
            until(lambda waiter=waiter: waits_in_the_kernel(waiter.pid))
            change(path, how)
            if released:
                holder.go()
        for how, _, _, waiter in paths:
            end = waiter.end(60)
            assert end.well, end.error
            assert how in end.value if how in OTHERS else end.value is None, (how, end)
    finally:
        for child in started:
            child.__exit__(None, None, None)


def test_a_folder_that_became_a_file_is_an_error_and_a_loss(tmp_path):
    path = deployed(tmp_path)
    lock = Lock(path)
    lease = lock.acquire()
    shutil.rmtree(tmp_path / "releases" / "1")
    (tmp_path / "releases" / "1").touch()
    with pytest.raises(LeaseLost):
        lease.check()
    with pytest.raises(LeaseLost):
        lease.release()
    with pytest.raises(InvalidArgument, match="is a file, not a folder"):
        lock.acquire(0)
    assert not descriptors(path)


@needs("flock")
@pytest.mark.parametrize("given", ["current/../lock", "{}/current/../lock", "./current/./../lock"])
def test_dots_after_a_link_lead_where_the_kernel_goes(tmp_path, monkeypatch, given):
    deployed(tmp_path)
    monkeypatch.chdir(tmp_path)
    given = given.format(tmp_path)
    with Lock(given) as lease:
        assert (tmp_path / "releases" / "lock").exists()
        assert not (tmp_path / "lock").exists()
        assert subprocess.run(["flock", "-n", given, "true"], check=False).returncode == 1
        with Child(refusal_of, Lock(given).acquire, 0) as other:
            assert other.end().value[0] == "WouldBlock"
        lease.check()


def test_dots_that_leave_no_link_are_folded(tmp_path, monkeypatch):
    (tmp_path / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a")
    assert Lock("../lock").path == Lock("b/../../lock").path == str(tmp_path / "lock")
    assert Lock("missing/../lock").path == str(tmp_path / "a" / "lock")


# ---- truncation


@pytest.mark.parametrize("command", [": > lock", "exec 9>lock; flock -n 9 && exit 9; exit 0"])
@needs("flock")
def test_a_shell_that_truncates_it_does_not_take_it_and_check_writes_it_again(tmp_path, command):
    path = str(tmp_path / "lock")
    with Lock(path) as lease:
        record = Path(path).read_bytes()
        for _ in range(2):
            assert sh(command, tmp_path) == 0
            assert Path(path).read_bytes() == b""
            lease.check()
            assert Path(path).read_bytes() == record
            assert not in_a_child(free, path)
            assert Lock(path).holder().nonce == lease.nonce
        token = lease.token
    assert next_token(path) > token


@needs("flock")
def test_tokens_grow_through_scripts_that_truncate_and_hold(tmp_path):
    path = str(tmp_path / "lock")
    lock, tokens = Lock(path), []
    for _ in range(3):
        tokens.append(lock.acquire().token)
        lock.release()
        assert sh("exec 9>lock; flock -n 9", tmp_path) == 0
        tokens.append(next_token(path))
        with lock:
            assert sh(": > lock", tmp_path) == 0
        tokens.append(next_token(path))
    assert tokens == sorted(set(tokens))


def test_a_script_that_leaves_its_pid_in_the_file_is_never_written_over(tmp_path):
    path = tmp_path / "lock"
    lease = Lock(path).acquire()
    assert sh("echo 4127 > lock", tmp_path) == 0
    lease.check()
    lease.release()
    with Lock(path) as lease:
        assert lease.token is None
        assert "somebody else's data" in lease.token_reason
    assert path.read_bytes() == b"4127\n"


# ---- restored, moved, made anew


RESTORED = {
    "copied over it": "cp -a old lock",
    "an old copy in its place": "cp -a old lock.new; mv lock.new lock",
    "moved there and back": "mv lock x; mv x lock",
    "moved away": "mv lock x$(date +%N)",
    "removed": "rm lock",
    "made anew": "rm lock; touch lock",
    "truncated": "truncate -s 0 lock",
    "cut": "truncate -s 300 lock",
    "grown": "truncate -s 5000 lock",
    "its folder restored": "cp -a . ../back; rm lock; cp -a ../back/lock lock; rm -r ../back",
}


def test_tokens_grow_whatever_is_restored_or_made_anew(tmp_path):
    folder = tmp_path / "f"
    path = str(folder / "lock")
    lock, tokens = Lock(path), [next_token(path)]
    sh("cp -a lock old", folder)
    for _ in range(2):
        for name, command in RESTORED.items():
            assert sh(command, folder) == 0, name
            with lock as lease:
                assert lease.token, name
                tokens.append(lease.token)
            assert sh(command, folder) == 0, name
            tokens.append(next_token(path))
            assert tokens[-3] < tokens[-2] < tokens[-1], name


class SteppedBack(Files):
    """A host whose clock was set back behind every token."""

    def clock_ns(self):
        return 10**15


def stepped_back(path):
    return KernelLock(str(path), BLOCKING, table=Descriptors(SteppedBack()))


def once(mechanism):
    grant = mechanism.attempt()
    mechanism.drop(grant)
    mechanism.table.close_idle()
    return grant.token


@pytest.mark.parametrize("command", ["true", "cp -a lock x; mv x lock", "truncate -s 300 lock"])
def test_the_stored_number_counts_where_the_clock_stepped_back(tmp_path, command):
    path = tmp_path / "lock"
    tokens = [next_token(str(path))]
    for _ in range(3):
        assert sh(command, tmp_path) == 0
        tokens.append(once(stepped_back(path)))
    assert tokens == list(range(tokens[0], tokens[0] + 4))


@pytest.mark.parametrize("command", ["rm lock", "truncate -s 0 lock", "cp -a old lock"])
def test_an_objects_own_last_counts_when_number_and_clock_are_lost(tmp_path, command):
    path = tmp_path / "lock"
    sh("touch old", tmp_path)
    next_token(str(path))
    mechanism = stepped_back(path)
    before = once(mechanism)
    assert sh(command, tmp_path) == 0
    assert once(mechanism) == before + 1
    assert sh(command, tmp_path) == 0
    assert once(stepped_back(path)) < before, "the documented exception: both lost, a new process"


# ---- names


AWKWARD = ["a\nb", "it's \"so\"", "$(touch x); `y`", "-rf", "Grüße 鍵 🔒", "\x1b[31mred", " ",
           "b\udcff\udc80", "\\n", "x" * 255, "ü" * 127, "%s{0}", "lock (deleted)"]  # fmt: skip


@pytest.mark.parametrize("name", AWKWARD)
def test_any_name_that_the_system_takes_is_a_lock(tmp_path, name):
    path = f"{tmp_path}/{name}"
    with Lock(path) as lease:
        assert os.listdir(tmp_path) == [name]
        with Child(refusal_of, Lock(path).acquire, 0) as other:
            kind, text, _ = other.end().value
        assert kind == "WouldBlock"
        assert f"pid {os.getpid()}" in text
        assert text.replace("\n", "").isprintable()
        assert Lock(path).holder().nonce == lease.nonce
        lease.check()
    assert next_token(path) > lease.token
    Path(path).write_bytes(b'{"lifehold":1,"token":99999999999999999999,"end":3}')
    remedy = str(raised(Lock(path).acquire, 0)).rpartition("begin anew: ")[2]
    assert sh(remedy, tmp_path, "bash") == 0
    assert os.path.getsize(path) == 0
    Lock(path).acquire(0).release()


def test_hard_links_are_one_lock(tmp_path):
    one, other = str(tmp_path / "one"), str(tmp_path / "other")
    lease = Lock(one).acquire()
    os.link(one, other)
    with pytest.raises(SelfDeadlock):
        Lock(other).acquire()
    with Child(refusal_of, Lock(other).acquire, 0) as child:
        assert child.end().value[0] == "WouldBlock"
    os.unlink(one)
    with pytest.raises(LeaseLost):
        lease.check()
    assert not in_a_child(free, other)
    with pytest.raises(LeaseLost):
        lease.release()
    tokens = [lease.token, next_token(other)]
    os.link(other, one)
    for path in (one, other, one):
        tokens.append(next_token(path))
    assert tokens == sorted(set(tokens))


def test_a_table_of_idle_descriptors_follows_a_swap_of_two_locks(tmp_path):
    paths = [str(tmp_path / name) for name in "ab"]
    for path in paths:
        Lock(path).acquire().release()
    os.rename(paths[0], tmp_path / "c")
    os.rename(paths[1], paths[0])
    os.rename(tmp_path / "c", paths[1])
    for path in paths:
        with Lock(path) as lease:
            assert not in_a_child(free, path)
            assert os.path.samefile(path, f"/proc/self/fd/{lease.fileno()}")
        fd = os.open(path, os.O_RDONLY)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(WouldBlock):
            Lock(path).acquire(0)
        os.close(fd)
    TABLE.close_idle()


# ---- bytes that are not ours


@pytest.mark.parametrize(
    "options", [{}, {"record": False}, {"exclusive": False}, {"label": "other"}], ids=repr
)
@pytest.mark.parametrize("taken", [False, True], ids=["data file free", "data file locked"])
def test_a_descriptor_that_other_code_closed_and_used_again_costs_neither_lock_nor_data(
    tmp_path, options, taken
):
    path, data = str(tmp_path / "lock"), tmp_path / "data"
    data.write_bytes(b"precious" * 1000)
    before = digest(data)
    lock = Lock(path, **options)
    lock.acquire().release()
    (number,) = descriptors(path)
    os.close(number)
    file = os.open(data, os.O_RDWR)
    assert file == number
    try:
        if taken:
            holder = Child(sleeper, str(data))
            holder.at("held")
        with lock.acquire(0) as lease:
            assert lease.fileno() != number
            assert not in_a_child(free, path)
            lease.check()
        assert os.path.samefile(data, f"/proc/self/fd/{number}"), "it was closed"
        if taken:
            with holder:
                assert not in_a_child(free, data)
        assert digest(data) == before
    finally:
        os.close(file)


def sleeper(path):
    fd = os.open(path, os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    point("held")
    os.close(fd)


def test_the_data_in_a_held_locks_number_is_not_written_by_check_or_release(tmp_path):
    path, data = str(tmp_path / "lock"), tmp_path / "data"
    data.write_bytes(b"precious" * 1000)
    before = digest(data)
    lock = Lock(path)
    lease = lock.acquire()
    number = lease.fileno()
    os.close(number)
    file = os.open(data, os.O_RDWR)
    assert file == number
    os.truncate(path, 0)
    lease.check()
    lease.release()
    with lock:
        assert not in_a_child(free, path)
    assert digest(data) == before
    assert os.path.samefile(data, f"/proc/self/fd/{number}")
    os.close(file)


def test_a_held_lock_whose_descriptor_was_closed_is_told_as_lost(tmp_path):
    lock = Lock(tmp_path / "lock")
    lease = lock.acquire()
    os.close(lease.fileno())
    with pytest.raises(LeaseLost, match="closed by other code"):
        lease.release()
    assert next_token(str(tmp_path / "lock")) > lease.token


BOILERPLATE = """#!/bin/sh
[ "$FLOCKER" != "$0" ] && exec env FLOCKER="$0" flock -en "$0" "$0" "$@"
echo in; read line
"""


@needs("flock")
def test_a_script_that_locks_itself_excludes_us_and_stays_as_it_is(tmp_path):
    script = tmp_path / "job.sh"
    script.write_text(BOILERPLATE)
    script.chmod(0o755)
    before = digest(script)
    lock = Lock(script)
    for _ in range(2):  # the second time with a descriptor that was kept
        with subprocess.Popen([script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as job:
            assert job.stdout.readline() == b"in\n"
            with pytest.raises(WouldBlock):
                lock.acquire(0)
            job.communicate(b"\n", timeout=60)
        with lock.acquire(60) as lease:
            assert lease.token is None
            assert "somebody else's data" in lease.token_reason
            assert subprocess.run([script], check=False).returncode == 1, "it found it locked"
            lease.check()
    assert digest(script) == before


def test_a_program_can_be_run_while_it_is_locked_and_locked_while_it_runs(tmp_path):
    program = tmp_path / "sleep"
    shutil.copy("/bin/sleep", program)
    before = digest(program)
    with Lock(program) as lease:
        assert lease.token is None
        running = subprocess.Popen([program, "30"])
    try:
        for exclusive in (True, False):
            with Lock(program, exclusive=exclusive) as lease:
                assert lease.token is None
                assert not in_a_child(free, program)
    finally:
        running.kill()
        running.wait()
    assert digest(program) == before


def test_run_locks_the_script_that_it_runs(tmp_path):
    script = tmp_path / "job.sh"
    script.write_text('#!/bin/sh\necho "<$LIFEHOLD_TOKEN>"\n')
    script.chmod(0o755)
    done = lifehold("run", script, "--", script, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "<>\n", "")


def test_a_lock_file_that_is_executable_by_its_mode_carries_tokens(tmp_path):
    path = str(tmp_path / "lock")
    tokens = []
    for _ in range(3):
        with Lock(path, mode=0o770) as lease:
            tokens.append(lease.token)
        TABLE.close_idle()
    assert tokens == sorted(set(tokens))


def test_a_sparse_file_of_100_megabytes_is_locked_and_not_touched(tmp_path):
    path = tmp_path / "disk.img"
    with path.open("wb") as file:
        file.truncate(100 << 20)
    before = path.stat()
    with Lock(path) as lease:
        assert "somebody else's data" in lease.token_reason
        assert not in_a_child(free, path)
        lease.check()
    after = path.stat()
    assert (before.st_size, before.st_blocks, before.st_mtime_ns) == (
        after.st_size, after.st_blocks, after.st_mtime_ns,
    )  # fmt: skip
    with path.open("rb") as file:
        assert not file.read(4096).strip(b"\0")


def test_a_lock_file_that_was_grown_to_100_megabytes_still_counts(tmp_path):
    path = str(tmp_path / "lock")
    tokens = [next_token(path)]
    os.truncate(path, 100 << 20)
    tokens += [next_token(path), next_token(path)]
    assert tokens == sorted(set(tokens))
    assert os.path.getsize(path) == 100 << 20
    assert os.stat(path).st_blocks * 512 < 1 << 20
