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


@pytest.mark.parametrize("name", ["FileLock", "SoftFileLock"])
def test_ours_and_the_real_one_exclude_each_other(tmp_path, name):
    counts, overlaps = play(tmp_path, name)
    assert overlaps == 0
    assert min(counts.values()) >= 0.05 * sum(counts.values()), counts


# One process of a side: forks two holders, kills one of them every now and then, and forks another.
STORM = textwrap.dedent("""
    import importlib, os, random, signal, sys, time
    module, name, path, canary, seconds, log = sys.argv[1:]
    made = getattr(importlib.import_module(module), name)
    side, said = module.partition(".")[0], os.open(log, os.O_WRONLY | os.O_APPEND)

    def lives(pid):
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
        except OSError:
            return False

    def enter():
        ours = f"{canary}.{os.getpid()}"
        with open(ours, "w") as file:
            file.write(str(os.getpid()))
        try:
            os.link(ours, canary)
        except FileExistsError:
            with open(canary) as file:
                other = int(file.read())
            if lives(other):
                time.sleep(0.3)  # a process that is being killed lets go before it is gone
                if lives(other):
                    os.write(said, f"overlap {side} {other}\\n".encode())
            os.replace(ours, canary)
        else:
            os.unlink(ours)

    def work(pause):
        lock = made(path)
        while True:
            with lock.acquire(timeout=30):
                enter()
                os.write(said, f"in {side}\\n".encode())
                time.sleep(0.001)
                os.unlink(canary)
            time.sleep(pause)

    def child():
        pid = os.fork()
        if pid == 0:
            try:
                work(0.02 if side == "lifehold" else 0.001)
            except BaseException as error:
                os.write(said, f"error {side} {error!r}\\n".encode())
            os._exit(1)
        return pid

    print("ready", flush=True)
    sys.stdin.readline()
    until, children = time.monotonic() + float(seconds), [child(), child()]
    while time.monotonic() < until:
        time.sleep(random.uniform(0.02, 0.2))
        one = children.pop(0)
        os.kill(one, signal.SIGKILL)
        os.waitpid(one, 0)
        children.append(child())
    for one in children:
        os.kill(one, signal.SIGKILL)
        os.waitpid(one, 0)
""").replace("\\\\n", "\\n")


@pytest.mark.parametrize("name", ["SoftFileLock"])
def test_killed_holders_of_either_side_are_followed_by_one_of_either(tmp_path, name):
    path, canary, log = (str(tmp_path / each) for each in ("shared.lock", "canary", "log"))
    (tmp_path / "log").touch()
    parties = [
        subprocess.Popen(
            [sys.executable, "-c", STORM, module, name, path, canary, "4", log],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for module in (ours.__name__, "filelock")
    ]
    try:
        assert [each.stdout.readline() for each in parties] == ["ready\n"] * 2
        for each in parties:
            each.stdin.write("\n")
            each.stdin.flush()
        assert [each.wait(60) for each in parties] == [0, 0]
    finally:
        for each in parties:
            each.kill()
            each.communicate()
    lines = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    assert not [line for line in lines if line[0] != "in"]
    assert lines.count(["in", "lifehold"]) > 0  # on a busy machine; 46 to 93 on a quiet one
    assert lines.count(["in", "filelock"]) > 0
