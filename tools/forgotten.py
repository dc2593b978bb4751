"""Writes docs/reference/fork.md: what a forked child forgets, and in which order.

The page is read off the code: every `fork.in_child(...)` with the sentence beside it, which is the
comment of that line, or else the first sentence of the docstring of what is called. The hooks run
in the order of their registration. A module registers after the modules that it imports, so the
page lists modules in that order; what an object registers comes when the object is made.

    python tools/forgotten.py          # write the page
"""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src"
PAGE = ROOT / "docs" / "reference" / "fork.md"
LEFT_OUT = ("lifehold.testing", "lifehold.runtime.fork")
HEAD = """# What a forked child forgets

*Written by `tools/forgotten.py` from the source; a test compares the two.*

A child of `fork()` has copies of its parent's memory and descriptors, and one of its threads. It
holds none of the parent's locks (L9): a lease of the parent answers `NotHeld` in the child, and
closing the child's copies frees nothing. No fork happens between two steps that belong together:
`fork()` waits for the gate of `lifehold.runtime.fork`.

In the child, before any other code of lifehold runs, with the gate still shut:

1. `fork.generation` grows by one. Every handle carries the generation of its making, so what came
   from the parent is known as the parent's.
2. The hooks below are called, in the order in which they were registered. A module registers its
   hook when it is imported, after the modules that it imports; the table has them in the order of a
   program that imports all. A module that was never imported has nothing to forget. A hook of each
   object is registered when the object is made. A descriptor that was closed behind our back does
   not stop the next hook.
3. The gate opens.

A child that was made by C code, with no word to Python, does the same at its first call into
lifehold.

| | module of `lifehold` | registered | in a child |
|---|---|---|---|
"""
TAIL = """
Two modules talk to SQLite, and stop its statements around the fork by `os.register_at_fork`: the
store in `lifehold.store.sqlite.database`, and filelock's face in
`lifehold.compat.filelock.sqlite_file`. Their hooks open in the child what was shut before the fork.
"""


class Hook:
    """One registration: where it stands, what it calls, what it means."""

    def __init__(self, module: str, line: int, call: str, each: str, sentence: str) -> None:
        self.module, self.line, self.call = module, line, call
        self.each, self.sentence = each, sentence
        self.decorates = call.isidentifier()


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    return {
        ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__"): path
        for path in sorted((SRC / "lifehold").rglob("*.py"))
    }


def said(text: str) -> str:
    """The first sentence, without the number of the rule."""
    first = re.split(r"(?<=[.])\s", " ".join(text.split()) + " ")[0].rstrip(".: ")
    first = re.sub(r"^L\d+\s+|\s*\(L\d+\)", "", first)
    return first[:1].upper() + first[1:]


def hooks_of(module: str, path: Path) -> list[Hook]:
    """The registrations of one module, in the order of the text."""
    text = path.read_text()
    if "fork.in_child" not in text:
        return []
    lines, tree, found = text.splitlines(), ast.parse(text), []
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    told = {node.name: ast.get_docstring(node) or "" for node in functions}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            if "fork.in_child" in map(ast.unparse, node.decorator_list):
                found.append(Hook(module, node.lineno, node.name, "", said(told[node.name])))
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "fork.in_child":
            call = ast.unparse(node.args[0])
            (each,) = [
                kind.name for kind in classes if kind.lineno < node.lineno <= (kind.end_lineno or 0)
            ] or [""]
            comment = lines[node.lineno - 1].partition("#")[2]
            name = call.rpartition(".")[2]
            sentence = said(comment or told.get(name, ""))
            found.append(Hook(module, node.lineno, call, each, sentence))
    return sorted(found, key=lambda hook: hook.line)


def imported(module: str, path: Path, known: dict[str, Path]) -> list[str]:
    """The modules of ours that are imported with this one, in the order of the text."""
    found = []
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.level:
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            origin = ".".join([*above, *([node.module] if node.module else [])])
            for each in node.names:
                name = f"{origin}.{each.name}"
                found.append(name if name in known else origin)
    return found


@functools.cache
def in_order() -> list[Hook]:
    """All hooks, in the order in which a program that imports everything registers them."""
    known, done, order = modules(), set(), []

    def load(module: str) -> None:
        if module in done or module not in known:
            return
        done.add(module)
        for other in imported(module, known[module], known):
            load(other)
        order.append(module)

    for module in sorted(known, key=lambda name: (name != "lifehold", name)):
        load(module)
    return [
        hook for module in order if not module.startswith(LEFT_OUT)
        for hook in hooks_of(module, known[module])
    ]  # fmt: skip


def written() -> str:
    """The whole page."""
    rows = []
    for number, hook in enumerate(in_order(), 1):
        what = "with each object" if hook.each else "with the module"
        module = hook.module.removeprefix("lifehold.")
        rows.append(f"| {number} | `{module}` | {what} | {hook.sentence} |")
    return HEAD + "\n".join(rows) + "\n" + TAIL


if __name__ == "__main__":
    PAGE.write_text(written())
