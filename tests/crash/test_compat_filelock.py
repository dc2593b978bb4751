"""Beside the real filelock, on the same files: nobody of one side is inside with the other."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from ground import needs
from lifehold.compat import filelock as ours

pytestmark = needs("package:filelock", "linux")

SECONDS = 3.0
# Ours is paced: the real one looks twenty times a second, and a file that is never free starves it.
PARTY = textwrap.dedent("""
    import importlib, os, sys, time, warnings
    module, name, path, canary, seconds, pause = sys.argv[1:]
    warnings.simplefilter("ignore")
    lock = getattr(importlib.import_module(module), name)(path)
    with lock:
        pass
    print("ready", flush=True)
    sys.stdin.readline()
    until, count, overlaps = time.monotonic() + float(seconds), 0, 0
    while time.monotonic() < until:
        with lock.acquire(timeout=30):
            count += 1
            try:
                os.close(os.open(canary, os.O_CREAT | os.O_EXCL))
                time.sleep(0.001)
                os.unlink(canary)
            except OSError:
                overlaps += 1
        time.sleep(float(pause))
    print(count, overlaps, flush=True)
""")


def party(module, name, path, canary, pause):
    command = [sys.executable, "-c", PARTY, module, name, path, canary, str(SECONDS), str(pause)]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def play(tmp_path, name):
    """Two processes of each side: how often each side was in, and how often not alone."""
    path, canary = str(tmp_path / "shared.lock"), str(tmp_path / "canary")
    sides = [(ours.__name__, 0.02)] * 2 + [("filelock", 0.001)] * 2
    parties = [party(module, name, path, canary, pause) for module, pause in sides]
    try:
        assert [each.stdout.readline() for each in parties] == ["ready\n"] * 4
        for each in parties:
            each.stdin.write("\n")
            each.stdin.flush()
        said = [each.communicate(timeout=60) for each in parties]
    finally:
        for each in parties:
            each.kill()
            each.wait()
    assert all(each.returncode == 0 for each in parties), said
    found = [[int(number) for number in out.split()] for out, _ in said]
    counts = {"ours": found[0][0] + found[1][0], "theirs": found[2][0] + found[3][0]}
    return counts, sum(overlaps for _, overlaps in found)


@pytest.mark.parametrize("name", ["FileLock"])
def test_ours_and_the_real_one_exclude_each_other(tmp_path, name):
    counts, overlaps = play(tmp_path, name)
    assert overlaps == 0
    assert min(counts.values()) >= 0.05 * sum(counts.values()), counts
