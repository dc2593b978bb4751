"""The tests that portalocker and zc.lockfile bring, run with our faces in their place.

    python -m soak.flock_peers [--portalocker SOURCE] [--zc SOURCE]   (in tests/, src on the path)

SOURCE: a checkout, or its bare repository. The interpreter needs pytest, and zope.testing for
zc.lockfile's. Each suite runs twice: with the peer's own locks, the control, and with ours. Then
processes of both sides use one file for a while, and a canary inside. Nothing of it is kept here.
Exit 1 when a test fails with ours that is not in KNOWN, or two were inside at once.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

# What the face has names for. The others are of Redis, Windows, `PidFileLock`, `open_atomic`, the
# choice of another system call (`LOCKER`), and of how portalocker is packed.
FILES = [
    f"portalocker_tests/test_{name}.py"
    for name in ("core_locking", "lock_flags", "mechanisms", "multiprocess", "release_errors",
                 "rlock_behaviour", "semaphore", "temporary_file_lock", "timeout_behaviour")
]  # fmt: skip
# They put a stand-in into `fh`, or replace functions inside of portalocker, and look at what it
# does with them; choose another system call; or use `PidFileLock`.
INSIDE = "test_release_errors.py::"
KNOWN = {
    "test_core_locking.py::test_exception",
    "test_mechanisms.py::test_locker_mechanism[lockf]",
    "test_multiprocess.py::test_temporary_lock_waiters_converge_on_current_inode[pid]",
    "test_temporary_file_lock.py::test_temporaryfilelock_unlinks_before_unlock",
}
PORTALOCKER = """
import fcntl, sys, types as kinds, typing
from lifehold.compat.portalocker import *
from lifehold.compat.portalocker import AlreadyLocked, LockException, exceptions
import lifehold.compat.portalocker as utils
portalocker = kinds.ModuleType("portalocker.portalocker")
portalocker.lock, portalocker.unlock, portalocker.LOCKER = utils.lock, utils.unlock, fcntl.flock
portalocker.LockerType = object
types = kinds.ModuleType("portalocker.types")
types.IO = typing.IO
sys.modules.update({"portalocker.utils": utils, "portalocker.portalocker": portalocker,
                    "portalocker.types": types, "portalocker.exceptions": exceptions})
"""
ZC = """
from lifehold.compat.zc_lockfile import LockError, LockFile, SimpleLockFile
LockError.__module__ = "zc.lockfile"  # its doctests print the whole name
"""
ZC_RUN = """
import sys, unittest
from zc.lockfile import tests
ended = unittest.TextTestRunner().run(tests.test_suite())
print("RAN", ended.testsRun, len(ended.failures) + len(ended.errors))
"""
# One process of a mixed run: so many times in and out, with a file made by O_EXCL inside.
PARTY = """
import os, sys, time
where, path, rounds, how = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
sys.path.insert(0, where)
if how == "zc":
    from NAME import LockError, LockFile
    def enter():
        while True:
            try:
                return LockFile(path).close
            except LockError:
                time.sleep(0.0005)
else:
    import NAME as peer
    def enter():
        made = (peer.BoundedSemaphore(1, "s", directory=os.path.dirname(path), timeout=600)
                if how == "BoundedSemaphore" else
                getattr(peer, how)(path, timeout=600, fail_when_locked=False, check_interval=0.001))
        made.acquire()
        return made.release
print("READY", flush=True)
sys.stdin.readline()
for _ in range(rounds):
    leave = enter()
    try:
        os.close(os.open(path + ".canary", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        print("OVERLAP")
    else:
        time.sleep(0.0005)
        os.unlink(path + ".canary")
    leave()
"""
SRC = str(Path(__file__).parents[2] / "src")


def unpacked(source: Path, folder: Path, *names: str) -> None:
    """Folders of the newest commit there."""
    words = ["git", "-C", str(source), "archive", "HEAD", *names]
    made = subprocess.run(words, check=True, capture_output=True).stdout
    subprocess.run(["tar", "x", "-C", str(folder)], input=made, check=True)


def replaced(folder: Path, text: str) -> None:
    """Our face as the only module of the package in `folder`; its tests stay."""
    for each in folder.glob("*.py"):
        if each.name != "tests.py":
            each.unlink()
    (folder / "__init__.py").write_text(text)


def python(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], cwd=folder, text=True, capture_output=True, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([SRC, str(folder), *sys.path])},
    )  # fmt: skip


def of_portalocker(folder: Path) -> tuple[int, set[str]]:
    """How many passed, and which failed."""
    done = python(folder, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rfE", *FILES)
    found = re.findall(r"^(?:FAILED|ERROR) \w+/(\S+)", done.stdout, re.MULTILINE)
    passed = re.search(r"(\d+) passed", done.stdout)
    if passed is None:
        print(done.stdout, done.stderr)
    return int(passed[1]) if passed else 0, set(found)


def of_zc(folder: Path) -> tuple[int, int]:
    """How many ran, and how many failed."""
    done = python(folder, "-c", ZC_RUN)
    found = re.search(r"RAN (\d+) (\d+)", done.stdout)
    if found is None or found[2] != "0":
        print(done.stdout, done.stderr)
    return (int(found[1]), int(found[2])) if found else (0, 1)


def mixed(folder: Path, theirs: str, ours: str, how: str, rounds: int) -> int:
    """How often somebody came in while somebody was in: two processes of either side."""
    path, home = folder / f"{how}.lock", str(folder)
    parties = [
        subprocess.Popen(
            [sys.executable, "-c", PARTY.replace("NAME", name), where, path, str(rounds), how],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for where, name in ((home, theirs), (SRC, ours)) * 2
    ]  # fmt: skip
    for each in parties:
        assert each.stdout is not None, "a pipe"
        each.stdout.readline()
    for each in parties:
        assert each.stdin is not None, "a pipe"
        each.stdin.write("\n")
        each.stdin.flush()
    said = [each.communicate()[0] for each in parties]
    ended = [each.returncode for each in parties]
    overlaps = "".join(said).count("OVERLAP")
    print(f"mixed, {how}: 4 processes, {rounds} rounds each, {overlaps} overlaps, ended {ended}")
    return overlaps + sum(map(abs, ended))


def portalocker(source: Path, rounds: int) -> int:
    with tempfile.TemporaryDirectory(prefix="portalocker-") as name:
        folder = Path(name)
        unpacked(source, folder, "portalocker", "portalocker_tests")
        passed, failed = of_portalocker(folder)
        print(f"portalocker's own: {passed} passed, {len(failed)} failed")
        bad = 0
        for how in ("Lock", "TemporaryFileLock", "BoundedSemaphore"):
            bad += mixed(folder, "portalocker", "lifehold.compat.portalocker", how, rounds)
        replaced(folder / "portalocker", PORTALOCKER)
        passed, failed = of_portalocker(folder)
        print(f"ours: {passed} passed, {len(failed)} failed")
        new = {each for each in failed - KNOWN if not each.startswith(INSIDE)}
        for each in sorted(failed):
            print(f"  {each}{'   NEW' if each in new else ''}")
    return bad + len(new) + (not passed)


def zc(source: Path, rounds: int) -> int:
    with tempfile.TemporaryDirectory(prefix="zc-lockfile-") as name:
        unpacked(source, Path(name), "src/zc")
        folder = Path(name, "src")
        ran, failed = of_zc(folder)
        print(f"zc.lockfile's own: {ran} ran, {failed} failed")
        bad = mixed(folder, "zc.lockfile", "lifehold.compat.zc_lockfile", "zc", rounds)
        replaced(folder / "zc" / "lockfile", ZC)
        ran, failed = of_zc(folder)
        print(f"ours: {ran} ran, {failed} failed")
    return bad + failed + (not ran)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--portalocker", type=Path)
    parser.add_argument("--zc", type=Path)
    parser.add_argument("--rounds", type=int, default=500)
    options = parser.parse_args()
    bad = portalocker(options.portalocker, options.rounds) if options.portalocker else 0
    bad += zc(options.zc, options.rounds) if options.zc else 0
    return int(bad > 0)


if __name__ == "__main__":
    raise SystemExit(main())
