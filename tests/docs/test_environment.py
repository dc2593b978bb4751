"""The page of variables and files names every one that the source has, and no other."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import sources
from lifehold.core import around
from lifehold.local import clean_up, lock_names, record, soft_readwrite, token_file
from lifehold.ops import history
from lifehold.recipes import once, once_build, once_results

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reference/environment.md").read_text()
NOT_READ = {
    "PATH_INFO": "of a WSGI request, no variable of the process",
    "REQUEST_METHOD": "of a WSGI request, no variable of the process",
}


def texts() -> set[str]:
    """Every string of the source, those in comments aside."""
    return {
        node.value for tree in sources.trees().values() for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }  # fmt: skip


def ours() -> set[str]:
    found = {name for text in texts() for name in re.findall(r"\bLIFEHOLD_[A-Z_]*[A-Z]\b", text)}
    assert around.VARIABLE in found
    return found


def of_others() -> set[str]:
    """The names by which anything called `environ` is asked."""
    found = set()
    for tree in sources.trees().values():
        for node in ast.walk(tree):
            asked: ast.AST | None = None
            if isinstance(node, ast.Subscript) and is_environ(node.value):
                asked = node.slice
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                if (is_environ(node.func.value) and node.args) or (
                    node.func.attr == "getenv" and node.args
                ):
                    asked = node.args[0]
            elif isinstance(node, ast.Compare) and is_environ(node.comparators[-1]):
                asked = node.left
            if isinstance(asked, ast.Constant) and isinstance(asked.value, str):
                found.add(asked.value)
    return found - {*NOT_READ}


def is_environ(node: ast.AST) -> bool:
    return "environ" in (getattr(node, "id", ""), getattr(node, "attr", ""))


def shown() -> set[str]:
    """What stands in code on the page, word by word."""
    return {
        word for text in re.findall(r"`([^`\n]+)`", PAGE) for word in re.findall(r"[\w$]+", text)
    }


def test_every_variable_of_ours_is_on_the_page_and_each_there_is_in_the_source():
    named = {word for word in shown() if word.startswith("LIFEHOLD_")}
    assert named == ours()


def test_every_variable_of_others_that_is_read_is_on_the_page():
    found = of_others()
    assert {"LIFEHOLD_DIR", "XDG_STATE_HOME", "NO_COLOR"} <= found
    assert found - shown() == set()


@pytest.mark.parametrize(
    "end",
    [
        lock_names.SUFFIX, clean_up.AUDIT, token_file.SUFFIX, soft_readwrite.SUFFIX, once.SUFFIX,
        once_build.LOCK, once_results.RUN, once_results.DONE, once_results.OUT, record.TEMPORARY,
        f".{history.LOG}.history", f".history{history.OLDER}", lock_names.MACHINE,
    ],
)  # fmt: skip
def test_every_file_that_is_made_beside_a_lock_is_on_the_page(end):
    assert re.search(rf"`[^`\n]*{re.escape(end)}[^`\n]*`", PAGE), end
