"""generation, link and directory in real processes: killed, stopped, robbed, fed with rubbish, two users."""

from __future__ import annotations

import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from crash.scene import hold
from crash.terrain import folder_for_all
from ground import needs
from lifehold import (
    InvalidArgument,
    LeaseLost,
    LifeholdError,
    Lock,
    SystemRefused,
    Timeout,
    WouldBlock,
)
from lifehold.core import acquire
from lifehold.local import record
from lifehold.local.record_lock import RecordLock
from lifehold.local.soft import SoftLock
from lifehold.testing.crash import Child

GROUP = 65534
KINDS = ["generation", "link", "directory"]
OTHERS = {"generation": "is a file", "link": "is a directory", "kernel": "is a directory"}


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "the lock")


def hold_as(path, kind, **options):
    hold(path, kind=kind, **options)


def test_a_killed_holder_is_followed_at_once_with_a_greater_token(kind, path):
    seconds, last = [], 0
    soon = 0.05 + 0.06 * (kind == "link")  # it settles for 50 ms
    while len(seconds) < 2 or (min(seconds) >= soon and len(seconds) < 20):
        with Child(hold_as, path, kind) as holder:
            token = holder.at("held")
            assert token > last
            with pytest.raises(WouldBlock) as caught:
                Lock(path, kind=kind).acquire(0)
            assert (caught.value.holder.owner.pid, caught.value.evidence) == (
                holder.pid, "kernel witness",
            )  # fmt: skip
            holder.kill()
        began = time.monotonic()
        with Lock(path, kind=kind, wait=60) as lease:
            seconds.append(time.monotonic() - began)
            assert lease.token > token
            last = lease.token
    assert min(seconds) < soon


def test_a_waiter_is_there_when_the_holder_is_killed(kind, path):
    with Child(hold_as, path, kind) as holder, Child(take, path, kind) as waiter:
        holder.at("held")
        time.sleep(0.1)
        holder.kill()
        assert waiter.end().value > 0


def take(path, kind):
    with Lock(path, kind=kind, wait=120) as lease:
        return lease.token


@pytest.mark.parametrize("kind", [*KINDS, "soft"])
def test_a_look_wakes_nobody_who_waits(path, kind, monkeypatch):
    """A file that was open for writing is told of when it is closed, to the one who looked too."""
    looks = []
    for home, call in ((RecordLock, "attempt"), (SoftLock, "_try")):
        original = getattr(home, call)
        monkeypatch.setattr(home, call, lambda self, at=original: (looks.append(1), at(self))[1])
    with Child(hold_as, path, kind) as holder:
        holder.at("held")
        with pytest.raises(Timeout):
            Lock(path, kind=kind).acquire(1.0)
    assert 1 < len(looks) < 15


def test_a_stopped_holder_is_followed_after_its_ttl_and_is_told(kind, path):
    with Child(hold_for_a_ttl, path, kind) as holder:
        holder.at("held")
        os.kill(holder.pid, signal.SIGSTOP)
        with Lock(path, kind=kind, ttl=3.0, wait=60) as lease:
            os.kill(holder.pid, signal.SIGCONT)
            assert "its ttl" in holder.end().value
            lease.check()  # what it did when it woke did not hurt us
        with Lock(path, kind=kind, ttl=3.0, wait=0) as another:
            assert another.token > lease.token


def hold_for_a_ttl(path, kind):
    from lifehold.testing.crash import point

    lease = Lock(path, kind=kind, ttl=3.0).acquire()
    point("held", lease.token)
    while True:
        time.sleep(0.02)
        try:
            lease.check()
        except LeaseLost as lost:
            try:
                lease.release()
            except LeaseLost:
                return str(lost)


def test_another_ttl_than_that_of_a_live_lease_is_refused(kind, path):
    with Lock(path, kind=kind, ttl=20), pytest.raises(InvalidArgument, match="ttl=20"):
        Lock(path, kind=kind, ttl=30).acquire(0)
    with Lock(path, kind=kind, ttl=30, wait=0) as lease:
        lease.check()


def test_another_pid_namespace_is_no_proof_but_the_witness_is(kind, path, monkeypatch):
    monkeypatch.setattr(acquire, "FIRST_NOTICE", 600.0)
    shell = "unshare"
    if shutil.which(shell) is None:
        pytest.skip("needs unshare")
    program = f"""
from lifehold import Lock
import time
Lock({path!r}, kind={kind!r}).acquire()
print('held', flush=True)
time.sleep(600)
"""
    holder = subprocess.Popen(
        [shell, "-pf", "--kill-child", sys.executable, "-c", program], stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    try:
        if holder.stdout.readline() != b"held\n":
            pytest.skip("needs unshare -p")
        with pytest.raises(WouldBlock):
            Lock(path, kind=kind).acquire(0)
        with Child(take, path, kind) as waiter:  # its events come by no process, only by the file
            time.sleep(0.3)
            holder.kill()
            assert waiter.end().value > 0  # and not at its first notice
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()


RUBBISH = [b"", b"\0" * 1024, b"{", b'{"lifehold":1}', b'{"lifehold":2,"token":1}', b"\xff" * 99,
           b"-1\n", b"0\n", b"99999999999999999999\n", b'{"lifehold":1,' + b"[" * 5000]  # fmt: skip


def test_rubbish_in_the_record_is_never_stale_at_once(kind, path):
    dice = random.Random(4)
    with Lock(path, kind=kind) as lease:
        good = record_of(path, kind).read_bytes()
    for content in [*RUBBISH, *(damaged(good, dice) for _ in range(60))]:
        record_of(path, kind).write_bytes(content)
        seen = record.read(content)
        if seen.stage == "released":
            continue
        try:
            Lock(path, kind=kind).acquire(0).release()
        except LifeholdError:
            continue
        # gone on from: only what names a process that is proven gone, or says that it is released
        assert seen.state == record.CURRENT or seen.owner is not None, content
    assert lease.token


def record_of(path, kind):
    if kind == "link":
        return Path(path)
    Path(path).mkdir(exist_ok=True)
    return max(Path(path).iterdir(), default=Path(path, "owner-" + "7" * 32))


def damaged(good, dice):
    changed = bytearray(good)
    for _ in range(dice.randint(1, 6)):
        changed[dice.randrange(min(len(changed), 700))] = dice.randrange(256)
    return bytes(changed[: dice.choice([1, 40, 300, len(changed)])])


@pytest.mark.parametrize("thing", ["symlink", "fifo", "directory", "file"])
def test_what_is_no_lock_of_this_kind_is_refused_and_left_alone(kind, path, thing):
    {
        "symlink": lambda: os.symlink("nowhere", path),
        "fifo": lambda: os.mkfifo(path),
        "directory": lambda: (os.mkdir(path), Path(path, "data").write_text("x")),
        "file": lambda: Path(path).write_text("name,amount\n"),
    }[thing]()
    before = os.lstat(path)
    with pytest.raises((InvalidArgument, SystemRefused, WouldBlock)):
        Lock(path, kind=kind).acquire(0)
    after = os.lstat(path)
    assert (before.st_ino, before.st_mode, before.st_size) == (
        after.st_ino, after.st_mode, after.st_size,
    )  # fmt: skip


@pytest.mark.parametrize("thing", ["removed", "symlink", "fifo", "directory"])
def test_what_takes_its_place_while_held_is_told(kind, path, thing):
    lease = Lock(path, kind=kind).acquire()
    shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)
    if thing == "symlink":
        os.symlink("nowhere", path)
    elif thing == "fifo":
        os.mkfifo(path)
    elif thing == "directory":
        os.mkdir(path)
    with pytest.raises(LeaseLost):
        lease.check()
    with pytest.raises(LeaseLost):
        lease.release()
    assert os.path.lexists(path) == (thing != "removed")


def test_a_name_as_long_as_can_be_has_room_for_its_temporary(kind, tmp_path):
    length = 255 - len(".token") * (kind == "directory")
    path = str(tmp_path / ("n" * length))
    with Lock(path, kind=kind, wait=0) as lease:
        lease.check()
    with pytest.raises(InvalidArgument, match="shorter"):
        Lock(path + "n", kind=kind).acquire(0)
    assert not os.path.exists(path + "n")


@needs("root", "tmpfs")
def test_a_read_only_mount_is_told_with_a_remedy(kind, tmp_path):
    where = tmp_path / "mount"
    where.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "none", where], check=True)
    try:
        with pytest.raises(SystemRefused, match="read-only|Read-only"):
            Lock(where / "lock", kind=kind).acquire(0)
    finally:
        subprocess.run(["umount", where], check=True)


@needs("root")
def test_two_users_share_it_in_a_set_group_id_folder_under_umask_022(kind):
    with folder_for_all() as folder:
        os.chown(folder, 0, GROUP)
        os.chmod(folder, 0o2777)
        shared_by_two_users(str(folder / "lock"), kind)


def shared_by_two_users(path, kind):
    for _ in range(2):
        for user in (65534, 1):
            with Child(as_user, user, path, kind) as child:
                token = child.at("held")
                with pytest.raises(WouldBlock):
                    Lock(path, kind=kind, shared=True).acquire(0)
                child.kill()
            with Lock(path, kind=kind, shared=True, wait=60) as lease:
                assert lease.token > token
    if kind == "generation":
        assert stat.S_IMODE(os.stat(path).st_mode) & ~stat.S_ISUID == 0o2777  # that bit: ours


def as_user(user, path, kind):
    os.umask(0o022)
    os.setgid(GROUP)
    os.setuid(user)
    hold(path, kind=kind, shared=True)


@pytest.mark.parametrize("ttl", [None, 30])
def test_an_emptied_folder_is_begun_anew_and_its_tokens_go_on(tmp_path, ttl):
    path = tmp_path / "lock"
    lock = Lock(path, kind="generation", ttl=ttl)
    lease = lock.acquire(0)
    first = lease.token
    lease.release()
    for each in (lock, Lock(path, kind="generation", ttl=ttl)):
        for left in list(path.iterdir()):
            left.unlink()
        (path / ".lifehold-0011223344556677").write_bytes(b"left by a crash")
        assert each.holder() is None
        with each.acquire(0) as lease:
            assert lease.token > first
            first = lease.token


def test_who_held_an_emptied_folder_is_told(tmp_path):
    path = tmp_path / "lock"
    lease = Lock(path, kind="generation").acquire(0)
    for left in path.iterdir():
        left.unlink()
    with Lock(path, kind="generation").acquire(0) as other:
        assert other.held
        with pytest.raises(LeaseLost):
            lease.check()
    with pytest.raises(LeaseLost):
        lease.release()


def test_a_symbolic_link_is_told_as_one_by_generation(tmp_path):
    path = tmp_path / "lock"
    path.symlink_to(tmp_path / "nothing")
    with pytest.raises(InvalidArgument, match="is a symbolic link"):
        Lock(path, kind="generation").acquire(0)


def test_a_killed_maker_leaves_a_folder_that_the_next_one_uses(tmp_path):
    path = str(tmp_path / "lock")
    os.mkdir(path)  # another program's lock
    with pytest.raises(SystemRefused, match="empty folder"):
        Lock(path, kind="generation").acquire(0)
    os.rmdir(path)
    Lock(path, kind="generation").acquire(0).release()
    left = Path(path, ".lifehold-0011223344556677")
    left.write_bytes(b"x")
    Lock(path, kind="generation").acquire(0).release()
    assert left.exists()  # it may be somebody's who is at work
    os.utime(left, (1, 1))
    Lock(path, kind="generation").acquire(0).release()
    assert not left.exists()
    assert len(os.listdir(path)) == 1


def test_many_processes_never_meet_inside(kind, path):
    with Child(count, path, kind) as one, Child(count, path, kind) as two:
        done = one.end(), two.end()
    assert [end.value[1] for end in done] == [0, 0], done
    tokens = [token for end in done for token in end.value[0]]
    assert len(set(tokens)) == len(tokens)


def count(path, kind):
    tokens, overlaps = [], 0
    lock = Lock(path, kind=kind, wait=120)
    for _ in range(60):
        with lock as lease:
            try:
                os.close(os.open(path + ".canary", os.O_CREAT | os.O_EXCL))
                os.unlink(path + ".canary")
            except FileExistsError:
                overlaps += 1
            tokens.append(lease.token)
    return [tokens, overlaps]
