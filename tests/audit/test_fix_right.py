"""A right program runs after `--fix` as it did before; in doubt the cure is not offered as safe."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lifehold.audit import fix
from lifehold.audit.catalogue import RULES

EVERY = frozenset(RULES)


def cured(text: str, *, unsafe: bool = False) -> str:
    return fix.cured("app.py", text.encode(), EVERY, unsafe=unsafe).after.decode()


def codes(text: str) -> list[str]:
    return [hit[0] for hit in fix.findings("app.py", text.encode())]


def ran(folder: Path, text: str) -> tuple[int, str, str]:
    """The program in a folder of its own: its exit code, and what it printed."""
    folder.mkdir()
    (folder / "app.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "app.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


# --- LH108: a file that excludes by its presence -------------------------------------------------

EXCLUSIVE = """\
import fcntl, os
def job(lock_path):
    fd = OPEN
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        print("works")
    finally:
        os.unlink(lock_path)
        CLOSE
job("x.lock")
job("x.lock")
"""
OPENED = {
    "O_EXCL": ("os.open(lock_path, os.O_CREAT | os.O_EXCL | os.O_RDWR)", "os.close(fd)"),
    "x": ('open(lock_path, "x")', "fd.close()"),
    "mode=x": ('open(lock_path, mode="x+")', "fd.close()"),
}


@pytest.mark.parametrize("name", OPENED)
def test_a_file_that_is_made_exclusively_is_removed_to_release_it(name, tmp_path):
    opened, closed = OPENED[name]
    text = EXCLUSIVE.replace("OPEN", opened).replace("CLOSE", closed)
    assert "LH108" not in codes(text)
    before = ran(tmp_path / "before", text)
    assert before == (0, "works\nworks\n", "")
    assert ran(tmp_path / "after", cured(text, unsafe=True)) == before


MIXED = """\
import fcntl, os
def job(lock_path, flags=os.O_CREAT | os.O_EXCL | os.O_RDWR):
    try:
        fd = os.open(lock_path, flags)
    except FileExistsError:
        fd = os.open(lock_path, os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    os.unlink(lock_path)
    os.close(fd)
"""


def test_a_file_that_is_opened_in_both_ways_is_told_and_gets_no_cure():
    assert "LH108" in codes(MIXED)
    assert cured(MIXED, unsafe=True) == MIXED
