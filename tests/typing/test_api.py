"""mypy and pyright agree with what tests/typing/api.py says of the public types."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.large
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


LATE = """
from lifehold.runtime import fork

TYPE_CHECKING = False
if TYPE_CHECKING:
    from lifehold.core import explain
else:
    explain = fork.later("lifehold.core.explain", globals())

explain.quote("x")
explain.qoute("x")
"""
CHECKERS = {
    "mypy": ["--strict", "--config-file=", "--follow-imports=silent"],
    "basedpyright": ["--level", "error", "--pythonpath", sys.executable],
}


@pytest.mark.large
@pytest.mark.parametrize(
    "checker", [pytest.param(each, marks=needs(f"package:{each}")) for each in CHECKERS]
)
def test_a_misspelt_name_of_a_module_that_is_loaded_late_is_an_error(tmp_path, checker):
    """tests/unit/test_house.py says that each of them is written so."""
    program, source = tmp_path / "late.py", str(Path(lifehold.__file__).parents[1])
    program.write_text(LATE)
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"extraPaths": [source]}))
    done = subprocess.run(
        [sys.executable, "-m", checker, *CHECKERS[checker], str(program)], cwd=tmp_path,
        env=os.environ | {"MYPYPATH": source}, capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip
    errors = [line for line in done.stdout.splitlines() if "late.py:" in line and "error" in line]
    assert done.returncode == 1
    assert len(errors) == 1, done.stdout
    assert f":{len(LATE.splitlines())}:" in errors[0]
    assert "qoute" in errors[0]


def test_the_package_says_that_it_is_typed():
    assert Path(lifehold.__file__).with_name("py.typed").exists()
