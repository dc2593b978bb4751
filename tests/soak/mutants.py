"""Faults put into the lock protocols, one at a time: which test finds each.

    python -m soak.mutants [ID ...] [--page docs/explanation/mutants.md] [--seconds 300]
    (in tests/)

A mutant is (qualified name of a function, its text before, its text after); the text is that of
`ast.unparse`, so it outlives moves between files and another layout. It is written into a copy of
the source, and its killers are run one after the other: tests, or claims of the explorer, which the
default tests play. Exit 1 when one survives that is not proven equivalent, or cannot be placed.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from soak.mutants_known import EQUIVALENT, MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "lifehold"
CLAIM = "claim: "
PLAY = """
import sys
from explore.claims import every
found = [claim for claim in every() if claim.name.startswith(sys.argv[1]) and not claim.soak]
assert found, "no such claim"
for claim in found:
    bad = {"MUTEX", "TOKEN", "LEAK", "STUCK", "WEDGED"} - claim.may_show
    report = claim.game().run(seconds=float(sys.argv[2]), stop_at=bad)
    if report.kinds - claim.may_show:
        print(claim.name, *sorted(report.kinds))
        raise SystemExit(1)
"""
PAGE = """# Faults that the tests find

A lock protocol is a few lines, and each of them is there for a reason. So they are taken out or
bent, one at a time, in a copy of the source, and the tests must notice. `make soak` does it; this
page is made by `python -m soak.mutants --page docs/explanation/mutants.md`, in `tests/`.

{summary}

| | fault | in | found by |
|---|---|---|---|
{rows}

{equivalent}
"""


class Place(NamedTuple):
    """A function in a file."""

    file: Path
    node: ast.AST
    text: str


def functions(tree: ast.AST, front: str = ""):
    """(qualified name, node) of every function."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = front + node.name
            if not isinstance(node, ast.ClassDef):
                yield name, node
            yield from functions(node, f"{name}.")
        elif isinstance(node, ast.If | ast.Try | ast.With):
            yield from functions(node, front)


def placed(mutant: Mutant) -> Place:
    """Where a mutant belongs. Raises LookupError."""
    found, word = [], mutant.where.rpartition(".")[2]
    for file in sorted(SOURCE.rglob("*.py")):
        text = file.read_text()
        if f"def {word}(" not in text:
            continue
        for name, node in functions(ast.parse(text)):
            if name == mutant.where and (plain := ast.unparse(node)).count(mutant.before) == 1:
                found.append(Place(file, node, plain))
    if len(found) != 1:
        raise LookupError(f"{mutant.id}: {len(found)} functions {mutant.where!r} have that text")
    return found[0]


def changed(place: Place, mutant: Mutant) -> str:
    """The file with the fault in it."""
    lines = place.file.read_text().splitlines(keepends=True)
    decorators = getattr(place.node, "decorator_list", [])
    first = min([place.node.lineno, *(each.lineno for each in decorators)])
    body = place.text.replace(mutant.before, mutant.after)
    indent = " " * place.node.col_offset
    new = "".join(f"{indent}{line}\n" for line in body.splitlines())
    text = "".join(lines[: first - 1]) + new + "".join(lines[place.node.end_lineno :])
    ast.parse(text)
    return text


def killed_by(mutant: Mutant, seconds: float) -> tuple[str, str]:
    """("killed" | "survived" | "time", by what)."""
    place = placed(mutant)
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        copy = Path(folder, "src", "lifehold")
        shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        (copy / place.file.relative_to(SOURCE)).write_text(changed(place, mutant))
        outcome = "survived"
        for killer in mutant.killers:
            code = run(killer, str(copy.parent), seconds)
            if code == 1:
                return "killed", killer
            if code != 0:
                outcome = "time" if code is None else f"status {code}"
        return outcome, ""


def run(killer: str, source: str, seconds: float) -> int | None:
    """The exit status of a killer; None when it took too long."""
    path = os.pathsep.join([source, str(ROOT / "tests")])
    env = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    if killer.startswith(CLAIM):
        command = [sys.executable, "-c", PLAY, killer.removeprefix(CLAIM), str(seconds)]
    else:
        plain = ["-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
        command = [sys.executable, *plain, *shlex.split(killer)]
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=env, timeout=seconds + 60, capture_output=True, check=False
        )
    except subprocess.TimeoutExpired:
        return None
    return done.returncode


def page(found: dict[str, tuple[str, str]]) -> str:
    """The table."""
    rows, states = [], list(found.values())
    for mutant in MUTANTS:
        if mutant.id in EQUIVALENT:
            by = "equivalent, see below"
        else:
            state, killer = found.get(mutant.id, ("not run", ""))
            by = f"`{killer}`" if state == "killed" else f"**{state}**"
        rows.append(f"| {mutant.id} | {mutant.what} | `{mutant.where}` | {by} |")
    killed = sum(state == "killed" for state, _ in states)
    summary = (
        f"{len(MUTANTS)} faults: {killed} found, {len(EQUIVALENT)} that change nothing which can "
        f"be observed, {len(MUTANTS) - killed - len(EQUIVALENT)} open."
    )
    reasons = "\n".join(f"- **{name}**: {why}" for name, why in EQUIVALENT.items())
    return PAGE.format(summary=summary, rows="\n".join(rows), equivalent=reasons)


def main() -> int:
    parser = argparse.ArgumentParser("soak.mutants", description=__doc__)
    parser.add_argument("ids", nargs="*", metavar="ID")
    parser.add_argument("--page", help="write the table there")
    parser.add_argument("--seconds", type=float, default=300.0, help="for each killer")
    parser.add_argument("--results", default=str(ROOT / "build" / "mutants.json"))
    options = parser.parse_args()
    results = Path(options.results)
    found = json.loads(results.read_text()) if results.exists() else {}
    open_ones = 0
    for mutant in MUTANTS:
        if (options.ids and mutant.id not in options.ids) or mutant.id in EQUIVALENT:
            continue
        began = time.monotonic()
        try:
            found[mutant.id] = killed_by(mutant, options.seconds)
        except LookupError as error:
            found[mutant.id] = ("cannot be placed", str(error))
        open_ones += found[mutant.id][0] != "killed"
        print(mutant.id, *found[mutant.id], f"{time.monotonic() - began:.0f} s", flush=True)
        results.parent.mkdir(exist_ok=True)
        results.write_text(json.dumps(found, indent=1))
    if options.page:
        (ROOT / options.page).write_text(page(found))
    return 1 if open_ones else 0


if __name__ == "__main__":
    raise SystemExit(main())
