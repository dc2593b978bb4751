"""Beside the real dotlockfile(1): who excludes whom, who takes over what, what the file looks like."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import textwrap
import traceback
from pathlib import Path

import pytest

from crash.scene import hold
from ground import needs, require
from lifehold import Lock, WouldBlock
from lifehold.compat.liblockfile import (
    L_MAXTRYS,
    L_PID,
    L_SUCCESS,
    L_TMPLOCK,
    lockfile_check,
    lockfile_create,
    lockfile_remove,
    lockfile_touch,
)
from lifehold.compat.liblockfile.spool import set_gid_program
from lifehold.testing.crash import Child

pytestmark = needs("command:dotlockfile")


def dotlockfile(*arguments):
    return subprocess.run(["dotlockfile", *arguments], timeout=150, check=False).returncode


def hold_link(path):
    hold(path, kind="link")


def test_each_sees_the_others_lock(tmp_path):
    path = str(tmp_path / "box.lock")
    with Lock(path, kind="link"):
        assert dotlockfile("-r", "0", path) == 4
        assert dotlockfile("-c", path) == 0
        assert dotlockfile("-p", "-c", path) == 0
    assert not os.path.exists(path)
    assert dotlockfile("-r", "0", path) == 0
    with pytest.raises(WouldBlock):
        Lock(path, kind="link").acquire(0)
    assert dotlockfile("-u", path) == 0
    Lock(path, kind="link").acquire(0).release()
    assert os.listdir(tmp_path) == []


def test_the_first_line_is_the_process_and_the_record_follows(tmp_path):
    path = tmp_path / "box.lock"
    with Lock(path, kind="link"):
        first, record = path.read_text().split("\n")[:2]
        assert first == str(os.getpid())
        assert record.startswith('{"lifehold":1,')


def test_the_original_takes_a_dead_holders_lock_and_we_take_the_originals(tmp_path):
    path = str(tmp_path / "box.lock")
    with Child(hold_link, path) as holder:
        holder.at("held")
        holder.kill()
    assert dotlockfile("-p", "-c", path) == 1
    assert dotlockfile("-p", "-r", "0", path) == 0  # the pid of a test that lives on: ours
    assert dotlockfile("-u", path) == 0
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], check=True,
                          capture_output=True).stdout  # fmt: skip
    (tmp_path / "box.lock").write_bytes(dead)
    with Lock(path, kind="link", wait=60) as lease:  # its peers let minutes pass
        lease.check()


def test_an_old_file_of_the_original_is_not_taken_by_its_age_alone(tmp_path):
    path = tmp_path / "box.lock"
    path.write_bytes(b"0\n")
    os.utime(path, (1, 1))
    with pytest.raises(WouldBlock):
        Lock(path, kind="link").acquire(0)
    assert path.read_bytes() == b"0\n"


@pytest.fixture
def spool():
    """A mail spool: group mail may write it, nobody else; in it a mailbox of user nobody."""
    require("root")
    found = set_gid_program()
    if found is None:
        pytest.skip("needs a set-gid dotlockfile")
    with tempfile.TemporaryDirectory(prefix="spool-", dir="/tmp") as name:
        folder = Path(name)
        os.chown(folder, 0, found[1])
        folder.chmod(0o2775)
        (folder / "ana").touch()
        os.chown(folder / "ana", NOBODY, NOBODY)
        yield folder


NOBODY = 65534


def as_nobody(work):
    """What `work` answers, done by a process of that user."""
    heard, tell = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os.write(tell, json.dumps(work()).encode())
        except BaseException:
            os.write(tell, json.dumps(traceback.format_exc()).encode())
        finally:
            os._exit(0)
    os.close(tell)
    os.waitpid(child, 0)
    with open(heard, "rb") as file:
        return json.loads(file.read())


def test_in_the_mail_spool_the_set_gid_program_of_the_system_is_run(spool):
    path, other = str(spool / "ana.lock"), str(spool / "bob.lock")

    def work():
        made = lockfile_create(path, 0), Path(path).read_text(), lockfile_create(path, 0)
        return [*made, lockfile_check(path), lockfile_touch(path), lockfile_remove(path),
                lockfile_create(other, 0)]  # fmt: skip

    assert as_nobody(work) == [L_SUCCESS, "0\n", L_MAXTRYS, 0, 0, 0, L_TMPLOCK]
    assert os.listdir(spool) == ["ana"]


def test_of_its_own_process_the_set_gid_program_is_told(spool):
    path = str(spool / "ana.lock")

    def work():
        return [lockfile_create(path, 0, L_PID), Path(path).read_text() == f"{os.getpid()}\n",
                lockfile_check(path, L_PID), lockfile_remove(path)]  # fmt: skip

    assert as_nobody(work) == [0, True, 0, 0]


def test_a_stale_file_of_another_user_is_taken_away_where_it_cannot_be_written(spool):
    spool.chmod(0o777)
    (spool / "lock").write_text("0\n")
    os.utime(spool / "lock", (1, 1))

    def work():
        return [lockfile_create(str(spool / "lock"), 0), os.stat(spool / "lock").st_uid]

    assert as_nobody(work) == [0, NOBODY]


OURS = textwrap.dedent("""
    import os, sys, time
    from lifehold import Lock
    path, canary, until = sys.argv[1], sys.argv[2], time.monotonic() + float(sys.argv[3])
    lock, count, overlaps = Lock(path, kind="link", strict=True, wait=120), 0, 0
    while time.monotonic() < until:
        with lock:
            try:
                os.close(os.open(canary, os.O_CREAT | os.O_EXCL))
                time.sleep(0.001)
                os.unlink(canary)
            except OSError:
                overlaps += 1
            count += 1
        time.sleep(0.05)
    print(count, overlaps)
""")
THEIRS = (
    "end=$(($(date +%s)+$3)); n=0; o=0; while [ $(date +%s) -lt $end ]; do "
    'if dotlockfile -r 0 -p "$1"; then if mkdir "$2" 2>/dev/null; then rmdir "$2"; '
    'else o=$((o+1)); fi; n=$((n+1)); dotlockfile -u "$1"; fi; sleep 0.02; done; echo $n $o'
)


def mixed(folder, seconds, each=2):
    """(acquisitions of ours, of theirs, overlaps)."""
    path, canary = str(folder / "box.lock"), str(folder / "canary")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ours = [[sys.executable, "-c", OURS, path, canary, str(seconds)] for _ in range(each)]
    theirs = [["sh", "-c", THEIRS, "sh", path, canary, str(seconds)] for _ in range(each)]
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        for command in ours + theirs
    ]
    said = [tuple(map(int, process.communicate(timeout=seconds + 90)[0].split()))
            for process in running]  # fmt: skip
    return (sum(n for n, _ in said[:each]), sum(n for n, _ in said[each:]),
            sum(o for _, o in said))  # fmt: skip


def test_ours_and_the_originals_are_never_inside_together(tmp_path):
    ours, theirs, overlaps = mixed(tmp_path, 4)
    assert overlaps == 0
    assert min(ours, theirs) > 0


if __name__ == "__main__":
    import pathlib
    import tempfile

    print(mixed(pathlib.Path(tempfile.mkdtemp()), int(sys.argv[1]), 4))
