"""The kernel lock on real file systems: each is made, mounted and taken down here.

The claims on every one: processes exclude each other, the record tells the holder, tokens grow, a
loss is noticed, a full disk is told, and a file system can be made read-only only without us.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path

import pytest

from crash.scene import acquire_and_release, free, hold, next_token, until, waits_in_the_kernel
from crash.terrain import file_system, fill, in_a_child, mounted, refusal_of, result, sh
from ground import needs, require
from lifehold import LeaseLost, Lock, SystemRefused, WouldBlock
from lifehold.local import record as form
from lifehold.local.handles import TABLE
from lifehold.testing.crash import Child

pytestmark = needs("root")
SIZES = {"ext4": 16, "xfs": 320, "btrfs": 320, "tmpfs": 4}  # MiB, about the least there is


@contextlib.contextmanager
def overlay(base, *, lower_file):
    """An overlay on a small ext4 of its own; a lock file lies in the lower folder or not at all."""
    with file_system("ext4", 16, base) as disk:
        for name in ("lower", "upper", "work"):
            (disk / name).mkdir()
        if lower_file:
            (disk / "lower" / "lock").touch()
        options = f"lowerdir={disk}/lower,upperdir={disk}/upper,workdir={disk}/work"
        with mounted(base / "overlay", "-t", "overlay", "-o", options, "none") as where:
            yield where


@pytest.fixture(scope="module", params=[*SIZES, "overlay", "overlay, lower file"])
def ground(request, tmp_path_factory):
    kind = request.param
    base = tmp_path_factory.mktemp("ground")
    if kind.startswith("overlay"):
        require("ext4")
        made = overlay(base, lower_file="lower" in kind)
    else:
        require(kind)
        made = file_system(kind, SIZES[kind], base)
    try:
        with made as where:
            yield where
            TABLE.close_idle()
    except subprocess.CalledProcessError as error:
        pytest.skip(f"needs {kind}: {error}")


@pytest.fixture
def path(ground):
    """The lock file of the lower folder, where there is one."""
    yield str(ground / "lock")
    TABLE.close_idle()


def test_processes_exclude_each_other_and_the_record_tells_the_holder(ground, path):
    with Child(hold, path) as holder:
        token = holder.at("held")
        with pytest.raises(WouldBlock) as caught:
            Lock(path).acquire(0)
        found = caught.value.holder
        assert (found.owner.pid, found.token, found.evidence) == (
            holder.pid, token, "kernel witness",
        )  # fmt: skip
        assert Lock(path).locked()
        record = form.parse(Path(path).read_bytes())
        assert (record.token, record.owner.pid, record.torn) == (token, holder.pid, False)
        with Child(acquire_and_release, path, 20) as waiter:
            until(lambda: waits_in_the_kernel(waiter.pid))
            holder.kill()
            assert waiter.end().value > token
    assert not Lock(path).locked()


def test_readers_share_it_and_keep_writers_out(ground, path):
    token = next_token(path)

    def reads():
        hold(path, exclusive=False)

    with Child(reads) as one, Child(reads) as other:
        assert one.at("held") == other.at("held") == token
        with pytest.raises(WouldBlock):
            Lock(path).acquire(0)
        one.kill()
        with pytest.raises(WouldBlock):
            Lock(path).acquire(0)
    assert next_token(path) > token


@needs("flock")
def test_flock_of_the_shell_takes_part_also_with_a_file_opened_for_reading(ground, path):
    Lock(path).acquire().release()
    TABLE.close_idle()
    command = f"exec 9<{path}; flock -n 9 || exit 1"
    assert sh(command) == 0
    with Lock(path):
        assert sh(command) == 1
    with subprocess.Popen(
        ["sh", "-c", f"exec 9<{path}; flock 9; echo in; read line"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as holder:  # fmt: skip
        assert holder.stdout.readline() == b"in\n"
        with pytest.raises(WouldBlock):
            Lock(path).acquire(0)
        holder.communicate(b"\n", timeout=60)
    Lock(path).acquire(60).release()


@needs("flock")
def test_a_reader_of_the_file_from_before_our_first_write_is_excluded(ground):
    """On an overlay the first open for writing makes a copy: the lock must not stay behind."""
    path = str(ground / ("lock" if (ground / "lock").exists() else "fresh"))
    Path(path).touch(exist_ok=True)
    with subprocess.Popen(
        ["sh", "-c", f"exec 9<{path}; flock 9; echo in; read line"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as holder:  # fmt: skip
        assert holder.stdout.readline() == b"in\n"
        assert in_a_child(refusal_of, Lock(path).acquire, 0)[0] == "WouldBlock"
        holder.communicate(b"\n", timeout=60)
    assert next_token(path) > 0


@pytest.mark.parametrize("command", ["true", "rm lock", "mv lock away", "cp -a lock x; mv x lock",
                                     "truncate -s 0 lock", "cp lock x; cat x > lock"])  # fmt: skip
def test_tokens_grow_through_whatever_is_done_to_the_file(ground, path, command):
    tokens = [next_token(path)]
    for _ in range(2):
        assert sh(command, ground) == 0
        tokens += [next_token(path), next_token(path)]
    assert tokens == sorted(set(tokens))


@pytest.mark.parametrize("command", ["rm lock", "mv lock away", "cp -a lock x; mv x lock"])
def test_a_loss_is_noticed_and_a_truncation_is_none(ground, path, command):
    lease = Lock(path).acquire()
    os.truncate(path, 0)
    lease.check()
    assert form.parse(Path(path).read_bytes()).nonce == lease.nonce
    assert sh(command, ground) == 0
    with pytest.raises(LeaseLost):
        lease.check()
    assert next_token(path) > lease.token
    with pytest.raises(LeaseLost):
        lease.release()


def test_a_full_disk_is_told_and_an_old_lock_goes_on(ground, path):
    token = next_token(path)
    Lock(path).acquire().release()
    filler = fill(ground)
    try:
        new = str(ground / "new")
        found = None
        for number in range(100):  # the last blocks may be kept for the system itself
            found = found or refusal_of(acquire_and_release, f"{new}{number}")
        assert found
        assert found[0] == "SystemRefused"
        assert "No space left on device: free some space" in found[1]
        TABLE.close_idle()
        assert all(free(made) for made in ground.glob("new*"))
        if ground.name == "btrfs":  # copies on write: there even an old record needs room
            found = in_a_child(refusal_of, acquire_and_release, path)
            assert found is None or found[0] == "SystemRefused"
        else:
            assert next_token(path) > token
        assert free(path)
    finally:
        filler.unlink()
        for made in ground.glob("new*"):
            made.unlink()
    assert next_token(str(ground / "room")) > 0


def remount(ground, how):
    return subprocess.run(
        ["mount", "-o", f"remount,{how}", ground], capture_output=True, check=False, timeout=60
    ).returncode


def hold_and_keep(path):
    """Held, then idle with its descriptor kept."""
    hold(path)
    return refusal_of(Lock(path).acquire, 0)


def test_a_file_system_turns_read_only_beside_no_lock_and_is_locked_on_without_a_token(
    ground, path
):
    with Child(hold_and_keep, path) as holder:
        token = holder.at("held")
        for state in ("held", "released"):
            if state == "released":
                holder.at(state)
            assert remount(ground, "ro") != 0, "a lock file is open for writing"
        assert holder.end().value is None
    assert remount(ground, "ro") == 0
    try:
        for exclusive in (True, False):
            with Lock(path, exclusive=exclusive) as lease:
                assert lease.token == (None if exclusive else token_of_file(path))
                assert refused_to_others(path)
                lease.check()
        with pytest.raises(
            SystemRefused, match="Read-only file system: only a lock file that exists"
        ):
            Lock(ground / "never made").acquire()
    finally:
        TABLE.close_idle()
        assert remount(ground, "rw") == 0
    assert next_token(path) > token


def token_of_file(path):
    return form.parse(Path(path).read_bytes()).token


def refused_to_others(path):
    return result(Child(refusal_of, Lock(path).acquire, 0))[0] == "WouldBlock"
