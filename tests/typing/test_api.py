"""mypy and pyright agree with what tests/typing/api.py says of the public types."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import lifehold
from ground import needs

API = Path(__file__).with_name("api.py")
NAMES = API.with_name("filelock_names.py")


@needs("package:mypy")
def test_the_public_types_are_what_programs_rely_on(tmp_path):
    source = str(Path(lifehold.__file__).parents[1])
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--warn-unreachable",
        "--python-version=3.11",
    ]
    command += [
        "--config-file=",
        f"--cache-dir={tmp_path}",
        "--follow-imports=silent",
        str(API),
        str(NAMES),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False,
        env={"MYPYPATH": source, "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@needs("package:basedpyright")
def test_pyright_sees_the_same_types(tmp_path):
    """What pyright and Pylance show; each refused line of the file must be refused by it too."""
    settings = {
        "include": [str(API)], "extraPaths": [str(Path(lifehold.__file__).parents[1])],
        "pythonVersion": "3.11", "typeCheckingMode": "standard",
        "reportUnnecessaryTypeIgnoreComment": "error", "enableTypeIgnoreComments": True,
    }  # fmt: skip
    project = tmp_path / "pyrightconfig.json"
    project.write_text(json.dumps(settings))
    command = [sys.executable, "-m", "basedpyright", "--project", str(project)]
    command += ["--pythonpath", sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_package_says_that_it_is_typed():
    assert Path(lifehold.__file__).with_name("py.typed").exists()
