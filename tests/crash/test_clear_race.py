"""`clear` beside those who acquire, and one who dies of it again and again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ground import needs

RACE = Path(__file__).parents[1] / "soak" / "clear_race.py"


@needs("linux", "proc", "all processes")
@pytest.mark.parametrize("form", ["pid", "soft"])
def test_clear_never_loses_a_live_lock(form):
    done = subprocess.run(
        [sys.executable, RACE, "12", form], capture_output=True, text=True, timeout=180, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "'deaths': 12" in done.stdout
    if form == "pid":  # nobody else clears it
        assert "'removed': " in done.stdout
