"""The package as the rules of the house read it: each file and its syntax, parsed once a process.

The trees are a million objects. They are frozen, so that the collector looks at none of them again:
else each `gc.collect()` of a later test in this process takes a second.
"""

from __future__ import annotations

import ast
import gc
from functools import cache
from pathlib import Path

SRC = Path(__file__).parents[1] / "src"


@cache
def trees() -> dict[str, ast.Module]:
    """The tree of every file, by its path inside the package."""
    package = SRC / "lifehold"
    found = {
        str(path.relative_to(package)): ast.parse(path.read_text())
        for path in sorted(package.rglob("*.py"))
    }
    gc.collect()  # what is frozen is never freed
    gc.freeze()
    return found


@cache
def nodes() -> dict[str, list[ast.AST]]:
    """Every node of a file, in the order of `ast.walk`."""
    found = {where: list(ast.walk(tree)) for where, tree in trees().items()}
    gc.collect()
    gc.freeze()
    return found
