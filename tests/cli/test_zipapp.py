"""`make pyz`: the command as one file, for a machine on which nothing can be installed."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from ground import needs

ROOT = Path(__file__).parents[2]
pytestmark = needs("command:make", "linux")


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("pyz")
    words = ["make", "-C", str(ROOT), "pyz", f"PYTHON={sys.executable}",
             f"BUILD={folder}/build", f"DIST={folder}/dist"]  # fmt: skip
    subprocess.run(words, check=True, capture_output=True, timeout=120, umask=0o022)
    assert [file.name for file in (folder / "dist").iterdir()] == ["lifehold.pyz"]
    moved = folder / "elsewhere" / "lifehold"
    moved.parent.mkdir()
    (folder / "dist" / "lifehold.pyz").rename(moved)
    return moved


def call(made: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
           "LIFEHOLD_DIR": str(folder), "HOME": str(folder)}  # fmt: skip
    return subprocess.run([str(made), *words], env=env, cwd=folder, capture_output=True, text=True,
                          timeout=150, check=False)  # fmt: skip


def test_the_one_file_runs_by_itself_and_holds_locks(made, tmp_path):
    for close in ([], ["-o"]):
        inner = f"{made} run -n job -- true; echo $?; exit 3"
        done = call(made, tmp_path, "run", *close, "job", "--", "sh", "-c", inner)
        assert (done.returncode, done.stdout) == (3, "75\n")
        assert "the `lifehold run` around this command holds it" in done.stderr
    who = call(made, tmp_path, "who", "job")
    assert (who.returncode, who.stdout.startswith("'job' is free; held last")) == (1, True)
    assert "lifehold run" in call(made, tmp_path, "--help").stdout


def test_every_user_may_run_the_one_file(made, tmp_path):
    assert made.stat().st_mode & 0o777 == 0o755
    words = ["make", "-C", str(ROOT), "pyz", f"PYTHON={sys.executable}",
             f"BUILD={tmp_path}/build", f"DIST={tmp_path}/dist"]  # fmt: skip
    subprocess.run(words, check=True, capture_output=True, timeout=120, umask=0o077)
    assert (tmp_path / "dist" / "lifehold.pyz").stat().st_mode & 0o777 == 0o755


def test_the_demo_is_told_from_the_one_file(made, tmp_path):
    bare = [sys.executable, "-S", "-E", str(made), "demo", "--fast"]  # no lifehold installed
    done = subprocess.run(
        bare, cwd=tmp_path, capture_output=True, text=True, timeout=150, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_one_file_is_compiled_for_the_python_that_made_it(made):
    """Else each start compiles all of it: five times as long."""
    code = f"import sys; sys.path[:0] = [{str(made)!r}]; import lifehold; print(lifehold.__file__)"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr) == (f"{made}/lifehold/__init__.pyc\n", "")


def test_the_directory_that_each_start_reads_is_short(made):
    """zipimport reads it in Python: of 600 entries it was two thirds of a bare Python's start."""
    with zipfile.ZipFile(made) as archive:
        assert len(archive.namelist()) <= 8


def test_another_python_compiles_the_sources(made, tmp_path):
    older = tmp_path / "older.pyz"
    with zipfile.ZipFile(made) as before, zipfile.ZipFile(older, "w") as after:
        for name in before.namelist():
            if not name.endswith(".pyc"):
                after.writestr(name, before.read(name))
    done = subprocess.run(
        [sys.executable, older, "run", "job", "--", "echo", "ran"], text=True, check=True,
        env=os.environ | {"LIFEHOLD_DIR": str(tmp_path)}, capture_output=True, timeout=60,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("ran\n", "")


def test_a_traceback_out_of_the_one_file_shows_the_line(made):
    code = f"""
import sys, traceback
sys.path[:0] = [{str(made)!r}]
import lifehold
try:
    lifehold.Lock(1)
except lifehold.InvalidArgument:
    traceback.print_exc()
"""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert "raise words.of_path(" in done.stderr


def test_another_file_in_its_place_does_not_disturb_a_run(made, tmp_path):
    mine = tmp_path / "mine.pyz"
    mine.write_bytes(made.read_bytes())
    mine.chmod(0o755)
    swap = f"echo other > {tmp_path}/other; mv {tmp_path}/other {mine}; rm {tmp_path}/job.lock"
    done = call(mine, tmp_path, "run", "job", "--", "sh", "-c", swap)  # a loss needs more modules
    assert done.returncode == 74
    assert done.stderr.startswith("lifehold: 'job' is lost: its lock file was removed")
    assert '"event":"loss"' in (tmp_path / ".job.lock.history").read_text()


@pytest.mark.parametrize("closed", ["", "<&-", "<&- >&- 2>&-"])
def test_what_it_runs_has_no_descriptor_of_it(made, tmp_path, closed):
    script = tmp_path / "script"
    script.write_text(f'{made} run job -- sh -c "ls -l /proc/self/fd > {tmp_path}/seen" {closed}')
    done = call(Path("/bin/sh"), tmp_path, str(script))
    assert done.returncode == 0
    assert str(made) not in (tmp_path / "seen").read_text()


def test_what_it_runs_finds_no_trace_of_it_in_its_environment(made, tmp_path):
    done = call(made, tmp_path, "run", "job", "--", "env")
    assert "PYTHONPATH" not in done.stdout
    assert str(made) not in done.stdout
    missing = call(made, tmp_path, "run", "job", "--", "nope")
    assert (missing.returncode, missing.stderr) == (127, "lifehold: cannot run 'nope': not found\n")


def test_another_edition_of_the_one_file_forgets_what_the_audit_remembered(made, tmp_path):
    copy = tmp_path / "copy.pyz"
    copy.write_bytes(made.read_bytes())
    code = f"""
import os, sys
sys.path[:0] = [{str(copy)!r}]
from lifehold.audit import scan
before = scan.version()
os.utime({str(copy)!r}, (1, 1))
assert scan.version() != before
"""
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True, timeout=60)
