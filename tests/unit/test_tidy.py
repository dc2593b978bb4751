"""House rules that a machine can see, each with a sample that breaks it.

A rule is a function from a source file to the places that break it. Every file under src/ passes
every rule, and every rule is shown one small file that it must refuse.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

import sources
from ground import needs
from soak.mutants import functions
from soak.mutants_known import MUTANTS

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "lifehold"
LINES_OF_A_FILE = 800  # 150 to 500 is the aim, 700 asks a reason, 800 is the wall
LINES_OF_A_FUNCTION = 50
COLUMNS = 100

# file::function -> why it may be longer than LINES_OF_A_FUNCTION. Meant to stay empty.
LONG_FOR_A_REASON: dict[str, str] = {}

HEAVY = set(
    "anyio argparse asyncio concurrent ctypes dataclasses enum importlib.metadata inspect json"
    " logging multiprocessing pathlib psutil re selectors signal socket subprocess tempfile"
    " threading trio typing".split()
)
CLOCKS = set(
    "time time_ns monotonic monotonic_ns perf_counter perf_counter_ns process_time thread_time"
    " clock_gettime clock_gettime_ns localtime gmtime ctime asctime".split()
)
# The invariants of the ground floor; each is cited where it is kept.
FLOOR = ["L1", "L3", "L4", "L5", "L6", "L7", "L9", "L10"]


@dataclass(frozen=True)
class Source:
    """One file: `where` is its path inside the package, of which it is a part or a sample."""

    where: str
    text: str
    shipped: bool = False

    @cached_property
    def tree(self) -> ast.Module:
        return sources.trees()[self.where] if self.shipped else ast.parse(self.text)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return sources.nodes()[self.where] if self.shipped else list(ast.walk(self.tree))

    def inside(self, *rooms: str) -> bool:
        return self.where.startswith(rooms)


Rule = Callable[[Source], Iterator[str]]


def a_file_is_one_idea(source: Source) -> Iterator[str]:
    lines = source.text.count("\n")
    if lines > LINES_OF_A_FILE:
        yield f"{lines} lines, the wall is {LINES_OF_A_FILE}"


def a_function_fits_a_screen(source: Source) -> Iterator[str]:
    for node in source.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or 0) - node.lineno + 1
            named = f"{source.where}::{node.name}"
            if lines > LINES_OF_A_FUNCTION and named not in LONG_FOR_A_REASON:
                yield f"{node.name} has {lines} lines, the wall is {LINES_OF_A_FUNCTION}"


def a_line_fits_the_page(source: Source) -> Iterator[str]:
    for number, line in enumerate(source.text.splitlines(), 1):
        if len(line) > COLUMNS:
            yield f"line {number} has {len(line)} columns"


def a_file_opens_with_its_promise(source: Source) -> Iterator[str]:
    if not ast.get_docstring(source.tree):
        yield "no docstring at the top"


def the_clock_is_read_in_one_room(source: Source) -> Iterator[str]:
    """runtime/ and the files seam read clocks; time.sleep and formatting are not reads."""
    if source.inside("runtime/", "local/files.py"):
        return
    for node in source.nodes:
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            for name in {alias.name for alias in node.names} & CLOCKS:
                yield f"line {node.lineno}: from time import {name}"
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id in {"time", "_time"} and node.attr in CLOCKS:
                yield f"line {node.lineno}: time.{node.attr}"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in {"now", "utcnow", "today"} and "date" in ast.dump(node.func):
                yield f"line {node.lineno}: {ast.unparse(node.func)}()"


def a_text_is_read_as_utf_8(source: Source) -> Iterator[str]:
    """No other codec is loaded at start: a child that is forked while one loads waits for ever."""
    for number, line in enumerate(source.text.splitlines(), 1):
        if re.search(r"\bencoding=['\"](?!utf-8)", line):
            yield f"line {number}: another codec than utf-8"


def printing_is_for_the_command(source: Source) -> Iterator[str]:
    if source.inside("cli/", "testing/"):
        return
    for node in source.nodes:
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print":
            yield f"line {node.lineno}: print"


def threads_start_in_one_room(source: Source) -> Iterator[str]:
    """runtime/ starts threads; so may testing/, which plays the contenders."""
    if source.inside("runtime/", "testing/"):
        return
    starters = {"Thread", "Timer", "ThreadPoolExecutor", "start_new_thread", "to_thread"}
    starters |= {"start_joinable_thread", "run_in_executor"}
    for node in source.nodes:
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", None) or getattr(node.func, "id", "")
            if name in starters:
                yield f"line {node.lineno}: {name}"


def nothing_is_left_for_later(source: Source) -> Iterator[str]:
    for number, line in enumerate(source.text.splitlines(), 1):
        # With words it is an answer, which the faces of other libraries promise.
        if re.search(r"\b(TODO|FIXME|XXX|HACK)\b|NotImplementedError(?!\(f?\")", line):
            yield f"line {number}: {line.strip()}"


def a_name_says_what_it_is(source: Source) -> Iterator[str]:
    words = {"manager", "helper", "helpers", "util", "utils", "base"}
    defined = [(1, Path(source.where).stem)]
    for node in source.nodes:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            defined.append((node.lineno, node.name))
    if source.where.startswith("compat/"):  # its public classes have the names of others
        defined = [each for each in defined if each[1][:1].islower()]
    for line, name in defined:
        if words & {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)}:
            yield f"line {line}: {name}"


def a_path_belongs_to_every_machine(source: Source) -> Iterator[str]:
    """An absolute path stands under a root that every Unix has."""
    roots = "proc|sys|dev|var|etc|usr|run|bin|sbin|lib|tmp|mnt|srv"
    for number, line in enumerate(source.text.splitlines(), 1):
        for found in re.finditer(r"(?:^|(?<=[\s\"'`(=]))/([a-z][\w.-]*)/", line):
            if not re.fullmatch(roots, found[1]):
                yield f"line {number}: {found[0]}"


def the_core_imports_nothing_heavy(source: Source) -> Iterator[str]:
    """At import, that is: neither inside functions nor under `if TYPE_CHECKING`.

    core/ports.py is imported by type checkers only.
    """
    if not source.inside("core/", "__init__.py", "lock.py") or source.where == "core/ports.py":
        return
    blocks = list(source.tree.body)
    while blocks:
        node = blocks.pop()
        if isinstance(node, ast.If):
            blocks += node.orelse if "TYPE_CHECKING" in ast.dump(node.test) else ast_body(node)
        elif isinstance(node, ast.Try | ast.With | ast.ClassDef):
            blocks += ast_body(node)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names]
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else names
            for name in names:
                if name in HEAVY or name.partition(".")[0] in HEAVY:
                    yield f"line {node.lineno}: {name}"


def ast_body(node: ast.AST) -> list[ast.stmt]:
    parts = (getattr(node, part, []) for part in ("body", "orelse", "finalbody"))
    handlers = [each for handler in getattr(node, "handlers", []) for each in handler.body]
    return [each for part in parts for each in part] + handlers


RULES: dict[str, tuple[Rule, str, str]] = {
    # rule: (the rule, a file it must refuse, where that file would stand)
    "long file": (a_file_is_one_idea, '"""."""\n' * 801, "lock.py"),
    "long function": (a_function_fits_a_screen, "def f():\n" + "    a = 1\n" * 50, "lock.py"),
    "long line": (a_line_fits_the_page, "a = " + "1" * 97, "lock.py"),
    "promise": (a_file_opens_with_its_promise, "import sys\n", "lock.py"),
    "clock": (the_clock_is_read_in_one_room, "import time\nt = time.time()", "lock.py"),
    "print": (printing_is_for_the_command, "print(1)", "ops/who.py"),
    "thread": (threads_start_in_one_room, "threading.Thread(target=f).start()", "lock.py"),
    "later": (nothing_is_left_for_later, "# " + "TO" + "DO: more", "lock.py"),
    "name": (a_name_says_what_it_is, "class LockManager: ...", "lock.py"),
    "codec": (a_text_is_read_as_utf_8, "open(p, encoding='ascii')", "local/kernel.py"),
    "path": (a_path_belongs_to_every_machine, "x = '/home/ana/x'", "lock.py"),
    "heavy": (the_core_imports_nothing_heavy, "try:\n    import re\nfinally: ...", "core/mask.py"),
}
MORE_SINS = [
    (the_clock_is_read_in_one_room, "from time import monotonic", "local/kernel.py"),
    (the_clock_is_read_in_one_room, "datetime.datetime.now(UTC)", "cli/look.py"),
    (the_core_imports_nothing_heavy, "from typing import Any", "lock.py"),
    (a_name_says_what_it_is, "", "local/utils.py"),
    (nothing_is_left_for_later, "raise NotImplemented" + "Error", "lock.py"),
    (threads_start_in_one_room, "_thread.start_new_thread(f, ())", "local/kernel.py"),
]
INNOCENT = [
    (
        the_clock_is_read_in_one_room,
        "import time\ntime.sleep(1)\ntime.strftime('%Y', t)",
        "cli/a.py",
    ),
    (the_clock_is_read_in_one_room, "import time\ntime.monotonic()", "runtime/clock.py"),
    (the_core_imports_nothing_heavy, "if TYPE_CHECKING:\n    from typing import Any", "lock.py"),
    (the_core_imports_nothing_heavy, "def f():\n    import json", "core/a.py"),
    (a_path_belongs_to_every_machine, "x = 'and/or'  # https://a/b /proc/self/stat", "lock.py"),
    (a_name_says_what_it_is, "class Database: ...", "lock.py"),
    (a_name_says_what_it_is, "class BaseFileLock: ...", "compat/filelock/api.py"),
]


@pytest.mark.parametrize("name", RULES)
def test_a_rule_refuses_the_file_that_breaks_it(name):
    rule, text, where = RULES[name]
    assert list(rule(Source(where, text)))


@pytest.mark.parametrize(("rule", "text", "where"), MORE_SINS)
def test_a_rule_refuses_the_less_obvious_form(rule, text, where):
    assert list(rule(Source(where, text)))


@pytest.mark.parametrize(("rule", "text", "where"), INNOCENT)
def test_a_rule_leaves_the_innocent_alone(rule, text, where):
    assert not list(rule(Source(where, text)))


SOURCES = [Source(str(p.relative_to(SRC)), p.read_text(), True) for p in sorted(SRC.rglob("*.py"))]


@needs("package:lifehold.core")
def test_the_rules_are_shown_the_whole_package():
    assert {source.where for source in SOURCES} >= {"__init__.py", "lock.py", "core/errors.py"}


@pytest.mark.parametrize("name", RULES)
def test_every_source_file_keeps_the_rule(name):
    rule = RULES[name][0]
    broken = [f"src/lifehold/{s.where}: {place}" for s in SOURCES for place in rule(s)]
    assert not broken, "\n".join(broken)


def test_a_function_excused_for_its_length_still_exists():
    functions = {
        f"{source.where}::{node.name}"
        for source in SOURCES
        for node in source.nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert set(LONG_FOR_A_REASON) <= functions
    assert all(LONG_FOR_A_REASON.values())


@needs("package:lifehold.local.kernel")
@pytest.mark.parametrize("invariant", FLOOR)
def test_an_invariant_of_the_floor_is_cited_where_it_is_kept(invariant):
    assert any(re.search(rf"\b{invariant}\b", source.text) for source in SOURCES)


@needs("package:lifehold.core")
def test_importing_the_package_loads_nothing_heavy():
    script = (
        "import sys; before = set(sys.modules); import lifehold;"
        f" print(*sorted((set(sys.modules) - before) & {HEAVY!r}))"
    )
    environ = {"PYTHONPATH": str(SRC.parent), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-S", "-c", script],
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.split() == []


# Every test whose failure is looked at twice (tests/unsteady.py) -> what of it is about time. A
# claim about exclusion, tokens, loss, leaks, hangs or crashes never stands here.
TIMED = {
    "tests/stores/test_waiters.py::"
    "test_fifty_in_line_are_served_in_order_by_two_requests_each": "order and number of requests",
}
NEVER_TIMED = "exclu token fenc lost lose lease leak hang crash kill dead double".split()


def claim_of(name: str) -> str:
    """The name of a test without its file's: tests/crash speaks of crashes in all of its paths."""
    return name.rpartition("::")[2]


def marked(node: ast.AST) -> bool:
    """By a decorator, or, as an assignment, for a whole file or a list of cases."""
    marks = [node.value] if isinstance(node, ast.Assign) else getattr(node, "decorator_list", [])
    parts = (part for mark in marks for part in ast.walk(mark))
    return any(isinstance(part, ast.Attribute) and part.attr == "timing" for part in parts)


def test_a_test_whose_failure_is_looked_at_twice_is_named_here_and_speaks_of_time():
    found = set()
    for path in sorted((ROOT / "tests").rglob("*.py")):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if "mark.timing" in text else ():
            if marked(node):
                name = getattr(node, "name", "") or ast.unparse(node.targets[0])
                found.add(f"{path.relative_to(ROOT)}::{name}")
    assert found == set(TIMED)
    assert all(TIMED.values())
    assert [name for name in found if any(word in claim_of(name) for word in NEVER_TIMED)] == []


def test_every_test_name_is_a_claim():
    vague = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                words = node.name.split("_")
                counted = (
                    len(words) < 5 and words[-1].isdigit()
                )  # test_lock_2: which claim is that?
                if words[0] == "test" and (len(words) < 4 or counted):
                    vague.append(f"{path.relative_to(ROOT)}: {node.name}")
    assert not vague, "a test's name says what holds:\n" + "\n".join(vague)


def test_every_fault_of_the_mutation_table_has_one_place():
    words = {f"def {fault.where.rpartition('.')[2]}(" for fault in MUTANTS}
    names, found = {fault.where for fault in MUTANTS}, {}
    for source in SOURCES:
        if any(word in source.text for word in words):
            for name, node in functions(source.tree):
                if name in names:
                    found.setdefault(name, []).append(ast.unparse(node))
    lost = [
        fault.id
        for fault in MUTANTS
        if sum(each.count(fault.before) == 1 for each in found.get(fault.where, [])) != 1
    ]
    assert not lost, "their functions have changed: " + ", ".join(lost)
