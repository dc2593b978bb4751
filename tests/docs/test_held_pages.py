"""A page that catches a refusal is run where the lock is held: its `except` has to be right."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import snippets
from lifehold import Lock

PAGES = Path(__file__).parents[2] / "docs" / "how-to" / "migrate"
SOFT = {"flufl-lock.md"}  # pages whose locks are not the kernel's


def tries(page: Path) -> list[tuple[str, list[str]]]:
    """Each top-level `try` of a page as a program of its own, and the lock files it names."""
    found = []
    before: list[ast.stmt] = []
    for block in snippets.blocks(page.read_text()):
        if block.language != "python" or block.excuse:
            continue
        for node in ast.parse(block.text).body:
            if isinstance(node, ast.Import | ast.ImportFrom | ast.Assign):
                before.append(node)
            elif isinstance(node, ast.Try) and (paths := locks(node) or locks(*before)):
                found.append((ast.unparse(ast.Module([*before, node], [])), paths))
    return found


def locks(*nodes: ast.AST) -> list[str]:
    return sorted(
        {
            each.value
            for node in nodes
            for each in ast.walk(node)
            if isinstance(each, ast.Constant) and str(each.value).endswith(".lock")
        }
    )


CASES = [
    pytest.param(page.name, text, paths, id=f"{page.name}-{number}")
    for page in sorted(PAGES.glob("*.md"))
    for number, (text, paths) in enumerate(tries(page))
]


@pytest.mark.parametrize(("page", "text", "paths"), CASES)
def test_a_page_catches_the_refusal_of_a_held_lock(page, text, paths, tmp_path):
    kind = {"kind": "soft", "ttl": 30} if page in SOFT else {}
    leases = [Lock(str(tmp_path / path), **kind).acquire() for path in paths]
    try:
        done = subprocess.run(
            [sys.executable, "-c", text],
            cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False,
        )  # fmt: skip
    finally:
        for lease in leases:
            lease.release()
    assert done.returncode == 0, done.stderr
    assert paths[0] in done.stdout  # it was refused, and says so


def test_some_pages_catch_a_refusal():
    assert {case.values[0] for case in CASES} >= {
        "zc-lockfile.md",
        "portalocker.md",
        "fasteners.md",
    }
