"""CONTRIBUTING says where a change goes: each file and each symbol that it names is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "lifehold"
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
ROWS = [
    line for line in PAGE.partition("## Where a change goes")[2].splitlines()
    if line.startswith("| ") and "`" in line
]  # fmt: skip


def spans(row):
    return re.findall(r"`([^`]+)`", row)


def file_of(span):
    """The file or folder that a span of code names; None for a symbol."""
    if "/" not in span and not span.endswith((".py", ".toml")):
        return None
    return (ROOT if span.startswith(("tests/", "docs/", "pyproject", ".ci/")) else SRC) / span


def test_each_file_of_the_table_of_changes_is_there():
    named = {span: file_of(span) for row in ROWS for span in spans(row) if "NAME" not in span}
    files = {span: path for span, path in named.items() if path is not None}
    assert len(files) > 30
    assert not [span for span, path in files.items() if not path.exists()]


def test_each_symbol_of_the_table_of_changes_is_in_the_file_before_it():
    lost, looked = [], 0
    for row in ROWS:
        text = ""
        for span in spans(row):
            path = file_of(span)
            if path is not None:
                text = path.read_text() if path.is_file() else ""
            elif span.startswith("registry."):
                text = f"registry {(SRC / 'registry.py').read_text()}"
            words = [] if path or not text else re.findall(r"\w+", span)
            looked += len(words)
            lost += [f"{word}: {row}" for word in words if not re.search(rf"\b{word}\b", text)]
    assert looked > 40
    assert not lost


def test_each_layer_of_the_contracts_is_said_to_newcomers():
    contract = (ROOT / "pyproject.toml").read_text().partition("\nlayers = [")[2].partition("]")[0]
    layers = [re.findall(r"\((\w+)\)", line) for line in contract.splitlines()]
    said = {span for line in PAGE.partition("## Layers")[2].splitlines() for span in spans(line)}
    assert len(layers) > 15
    unsaid = [names for names in layers if names and not said & {*names}]
    assert unsaid == [["__main__"]]
