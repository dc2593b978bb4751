"""The import contracts of pyproject.toml hold, and would notice if they did not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ground import needs

pytestmark = pytest.mark.large

ROOT = Path(__file__).parents[2]
PYPROJECT = ROOT / "pyproject.toml"

# A house with one module in each room that the contracts speak of.
ROOMS = {
    "__init__": "from lifehold.lock import Lock",
    "__main__": "from lifehold.cli import main",
    "cli/__init__": "",
    "cli/main": "from lifehold import Lock\nfrom lifehold.testing import explore",
    "testing/__init__": "",
    "testing/explore": "from lifehold.local import files",
    "ops/__init__": "",
    "ops/who": "from lifehold.registry import find",
    "lock": "from lifehold import face\nfrom lifehold.runtime.clock import now\nLock = 1",
    "aio": "from lifehold import face, lock",
    "face": "from lifehold import lease, registry",
    "lease": "",
    "registry": "find = 'lifehold.local.kernel:Kernel'",
    "local/__init__": "",
    "local/files": "import os\nfrom lifehold.core import errors",
    "local/kernel": "from lifehold.local import files",
    "store/__init__": "",
    "store/settle": "",
    "store/sqlite": "from lifehold.store import settle",
    "store/redis": "from lifehold.store import settle",
    "runtime/__init__": "",
    "runtime/clock": "import time\nfrom lifehold.core import errors\nnow = time.monotonic",
    "core/__init__": "",
    "core/errors": "TYPE_CHECKING = False\nif TYPE_CHECKING:\n    import os\n",
    "audit/__init__": "import ast",
}

SINS = {
    "core_reads_a_clock": ("core/errors", "import time", "the core reads no clock"),
    "core_imports_late": ("core/errors", "def f():\n    import logging", "the core reads no clock"),
    "local_knows_the_face": ("local/kernel", "from lifehold import lock", "each layer knows"),
    "a_lease_knows_its_face": ("lease", "from lifehold import face", "each layer knows"),
    "core_knows_the_root": ("core/errors", "import lifehold", "each layer knows"),
    "ops_know_the_command": ("ops/who", "from lifehold import cli", "each layer knows"),
    "a_room_nobody_placed": ("attic", "", "each layer knows"),
    "a_store_knows_another": ("store/redis", "from lifehold.store import sqlite", "a store knows"),
    "audit_knows_the_core": ("audit/__init__", "from lifehold.core import errors", "audit stands"),
    "two_faces_in_a_circle": ("lock", "def f():\n    from lifehold import aio", "no circles"),
}


def contracts(source: Path) -> tuple[int, str]:
    """Run the contracts over `source`, a folder that holds the package."""
    environ = os.environ | {"PYTHONPATH": str(source), "COLUMNS": "200"}
    command = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    options = ["--config", str(PYPROJECT), "--no-cache"]
    done = subprocess.run(
        [sys.executable, "-c", command, *options],
        cwd=source,
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def build(source: Path, rooms: dict[str, str]) -> Path:
    for name, text in rooms.items():
        file = source / "lifehold" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    return source


@needs("package:lifehold.core")
def test_the_package_keeps_every_contract(tmp_path):
    shutil.copytree(ROOT / "src" / "lifehold", tmp_path / "lifehold")
    status, said = contracts(tmp_path)
    assert status == 0, said
    assert "Contracts: 5 kept, 0 broken." in said


def test_rooms_that_are_not_built_yet_break_no_contract(tmp_path):
    few = dict.fromkeys(("__init__", "core/__init__", "core/errors"), "")
    status, said = contracts(build(tmp_path, few))
    assert status == 0, said


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    return build(tmp_path_factory.mktemp("house"), ROOMS)


def test_a_house_in_order_keeps_every_contract(house):
    status, said = contracts(house)
    assert status == 0, said


@pytest.mark.parametrize("sin", SINS)
def test_each_sin_breaks_the_contract_that_forbids_it(sin, house, tmp_path):
    room, text, contract = SINS[sin]
    shutil.copytree(house, tmp_path, dirs_exist_ok=True)
    file = tmp_path / "lifehold" / f"{room}.py"
    file.write_text((file.read_text() if file.exists() else "") + text + "\n")
    status, said = contracts(tmp_path)
    assert status != 0, said
    assert any(line.startswith(contract) and "BROKEN" in line for line in said.splitlines()), said


@needs("package:lifehold.core")
def test_a_clock_seeded_into_the_real_core_is_seen(tmp_path):
    shutil.copytree(ROOT / "src" / "lifehold", tmp_path / "lifehold")
    (tmp_path / "lifehold" / "core" / "seeded.py").write_text("import time\n")
    status, said = contracts(tmp_path)
    assert status != 0, said
    assert "lifehold.core.seeded -> time" in said
