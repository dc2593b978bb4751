"""A kind of lock is its own file and one row of `local/kinds.py`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import lifehold
from lifehold.cli.options import RUN
from lifehold.local.kinds import KINDS

SRC = Path(lifehold.__file__).parents[1]
TOY = """
from lifehold.local.judge import LivenessJudge
from lifehold.local.soft import SoftLock

class ToyLock(SoftLock):
    kind = "toy"

    def __init__(self, *arguments, evidence=LivenessJudge("toy"), **options):
        super().__init__(*arguments, evidence=evidence, **options)
"""
ROW = """
from lifehold.local.kinds import KINDS, KindRow
KINDS["toy"] = KindRow("toy_kind:ToyLock", needs=("link",), merit="a toy", stays="its box stays")
"""
USE = """
import json, os, sys
from lifehold import InvalidArgument, Lock, registry
from lifehold.cli.completion import SHELLS
from lifehold.cli.main import main
from lifehold.ops.clear import clear
from lifehold.ops.doctor import examine
from lifehold.ops.who import who

path = sys.argv[1]
with Lock(path, kind="toy") as lease:
    said = {"token": lease.token is not None, "held": [who(path, path).kind, who(path, path).state]}
if not os.fork():
    Lock(path, kind="toy").acquire()
    os._exit(0)
os.wait()
stale = who(path, path)
said["stale"] = [stale.kind, stale.state]
done = clear(path)
said["cleared"] = [done.action, done.why]
said["taken"] = os.path.exists(path)
said["doctor"] = [[each.verdict, each.why] for each in examine(os.path.dirname(path)).kinds
                  if each.name == "toy"]
said["completed"] = {shell: "toy" in made() for shell, made in SHELLS.items()}
try:
    Lock(path, kind="toi")
except InvalidArgument as error:
    said["near"] = str(error)
sys.platform = "win32"
try:
    registry.maker("toy")
except InvalidArgument as error:
    said["windows"] = str(error)
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What all parts of the package know of a kind that has nothing but its row."""
    folder = tmp_path_factory.mktemp("kind")
    (folder / "toy_kind.py").write_text(TOY)
    done = subprocess.run(
        [sys.executable, "-c", ROW + USE, str(folder / "a.lock")], capture_output=True, text=True,
        timeout=150, check=False, env={"PYTHONPATH": f"{SRC}:{folder}", "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_one_row_makes_a_kind_that_locks_and_is_told(said):
    assert said["token"]
    assert said["held"] == ["toy", "held"]
    assert said["stale"] == ["toy", "stale"]
    assert "did you mean 'toy'" in said["near"]
    assert "needs calls of Unix" in said["windows"]


def test_one_row_makes_a_kind_that_is_cleared_judged_and_completed(said):
    assert said["cleared"][0] == "freed"
    assert said["cleared"][1].endswith("; its box stays")
    assert not said["taken"]
    assert [why for _, why in said["doctor"]] == ["a toy"]
    assert said["completed"] == {"bash": True, "zsh": True, "fish": True}


def test_each_kind_stands_in_the_help_of_the_command_and_on_its_page():
    (option,) = (each for each in RUN.options if each.name == "kind")
    page = (SRC.parent / "docs" / "reference" / "lock.md").read_text()
    assert {*KINDS} <= {*re.findall(r"[\w-]+", option.help)}
    assert {*KINDS} <= {*re.findall(r"[\w-]+", page)}
