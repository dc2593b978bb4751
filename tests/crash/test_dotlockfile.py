"""Beside the real dotlockfile(1): who excludes whom, who takes over what, what the file looks like."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time

import pytest

from crash.scene import hold
from ground import needs
from lifehold import Lock, WouldBlock
from lifehold.testing.crash import Child

pytestmark = needs("command:dotlockfile")


def dotlockfile(*arguments):
    return subprocess.run(["dotlockfile", *arguments], timeout=60, check=False).returncode


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
    began = time.monotonic()
    with Lock(path, kind="link", wait=5) as lease:
        lease.check()
    assert time.monotonic() - began < 2


def test_an_old_file_of_the_original_is_not_taken_by_its_age_alone(tmp_path):
    path = tmp_path / "box.lock"
    path.write_bytes(b"0\n")
    os.utime(path, (1, 1))
    with pytest.raises(WouldBlock):
        Lock(path, kind="link").acquire(0)
    assert path.read_bytes() == b"0\n"


OURS = textwrap.dedent("""
    import os, sys, time
    from lifehold import Lock
    path, canary, until = sys.argv[1], sys.argv[2], time.monotonic() + float(sys.argv[3])
    lock, count, overlaps = Lock(path, kind="link", strict=True, wait=20), 0, 0
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
