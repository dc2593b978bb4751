"""The wheel and the source archive: what is in them, and that one makes the other."""

from __future__ import annotations

import configparser
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from ground import needs
from lifehold.cli.options import COMMANDS

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
pytestmark = needs("package:hatchling", "linux")


def build(root: Path, folder: Path, *targets: str) -> None:
    words = [word for target in targets for word in ("-t", target)]
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", *words, "-d", str(folder)],
        cwd=root, check=True, capture_output=True, timeout=120,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    build(ROOT, folder, "wheel", "sdist")
    return folder


def names_in(folder: Path) -> set[str]:
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        return set(wheel.namelist())


def test_the_wheel_has_a_page_for_each_command_and_each_shell_its_completion(made):
    names = {name.partition("/data/share/")[2] for name in names_in(made)}
    pages = {f"man/man1/lifehold-{command}.1" for command in COMMANDS} | {"man/man1/lifehold.1"}
    shells = {"bash-completion/completions/lifehold", "zsh/site-functions/_lifehold",
              "fish/vendor_completions.d/lifehold.fish"}  # fmt: skip
    units = {name for name in names if name.startswith("lifehold/")}
    assert names - {""} == pages | shells | units
    assert len(units) == 3


def test_the_wheel_has_the_package_and_nothing_that_only_its_tests_need(made):
    tops = {name.partition("/")[0] for name in names_in(made)}
    version = PROJECT["version"]
    assert tops == {"lifehold", "lifehold_command.py", f"lifehold-{version}.data",
                    f"lifehold-{version}.dist-info"}  # fmt: skip
    ends = {Path(name).suffix for name in names_in(made) if name.startswith("lifehold/")}
    assert ends <= {".py", ".typed", ".html", ".json", ".sql", ".js", ".css", ".txt", ".toml", ""}


def test_the_command_of_the_wheel_loads_no_more_than_it_needs(made, tmp_path):
    with zipfile.ZipFile(next(made.glob("*.whl"))) as wheel:
        name = next(each for each in wheel.namelist() if each.endswith("/entry_points.txt"))
        points = configparser.ConfigParser()
        points.read_string(wheel.read(name).decode())
    module, _, function = points["console_scripts"]["lifehold"].partition(":")
    script = tmp_path / "lifehold"
    script.write_text(f"import sys\nfrom {module} import {function}\nsys.exit({function}())\n")
    done = subprocess.run(
        [sys.executable, "-S", "-X", "importtime", script, "run", "job", "--", "true"],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src"), "LIFEHOLD_DIR": str(tmp_path)},
        check=True, capture_output=True, text=True, timeout=150,
    )  # fmt: skip
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "lifehold.cli.run" in loaded
    assert not loaded & {"re", "enum", "importlib.metadata"}


def test_an_index_shows_a_readme_without_a_dead_link(made):
    with zipfile.ZipFile(next(made.glob("*.whl"))) as wheel:
        name = next(each for each in wheel.namelist() if each.endswith("/METADATA"))
        facts = Parser().parsestr(wheel.read(name).decode())
    text = facts.get_payload()
    assert facts["Description-Content-Type"] == "text/markdown"
    assert text.startswith("# lifehold")
    links = re.findall(r"\]\(([^)\s]*)\)", text)
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
    assert "docs/assets" not in text  # nor a picture
    assert "$ pip install lifehold\n" in text
    assert "pip install .\n" not in text
    assert "lie in the folder docs/ of the source" in text
    for url in facts.get_all("Project-URL") or []:
        assert "https://" in url


def test_the_source_archive_has_all_that_is_tracked_and_makes_the_same_wheel(made, tmp_path):
    with tarfile.open(next(made.glob("*.tar.gz"))) as archive:
        archive.extractall(tmp_path, filter="data")
    (root,) = tmp_path.iterdir()
    wanted = "Makefile tests/conftest.py docs/index.md newsfragments benchmarks .ci/run"
    for name in [*wanted.split(), ".github/workflows", "packaging/debian/rules", "hatch_build.py"]:
        assert (root / name).exists(), name
    build(root, tmp_path / "again", "wheel")
    assert names_in(tmp_path / "again") == names_in(made)


@pytest.mark.parametrize(
    ("file", "pattern"),
    [
        ("packaging/conda/recipe.yaml", r'version: "([^"]+)"'),
        ("packaging/debian/changelog", r"^lifehold \(([^)]+)-1\)"),
        ("src/lifehold/__init__.py", r'^__version__ = "([^"]+)"'),
    ],
)
def test_every_place_has_the_same_version(file, pattern):
    found = re.search(pattern, (ROOT / file).read_text(), re.MULTILINE)
    assert found
    assert found[1] == PROJECT["version"]
