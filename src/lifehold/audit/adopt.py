"""`--adopt`: every lock that is found, right ones included, with the one line that takes its place.

Rule: nothing is written and nothing is judged. A site is where a lock is taken: a kernel lock, a
file that is made exclusively or after a look, a constructor of a lock library, a key with NX, an
advisory lock of a database. Each says whether the processes of before are excluded by the new
line, as their pages of migration measure it.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from . import javascript, scan, source, units, words
from .finding import Notice
from .forms import judged
from .report import printable
from .rules import create, leases
from .rules import shell as shell_rules

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from .events import Event
    from .judge import Judge
    from .model import Function
    from .settings import Settings
    from .shell import Script, ShellCommand

YES = "yes, on the same file"
POSIX = "no: POSIX locks and flock do not see each other"
PRESENCE = "no: they look whether the file is there"
STORE = "no: the lease stands in another store"
FACES = ("FileLock", "SoftFileLock", "UnixFileLock", "AsyncFileLock", "AsyncSoftFileLock")
FLOCK = re.compile(r"(?<![\w/-])(/usr/bin/)?flock(?=\s)")
# Classes of other libraries: whether they exclude ours on the same file.
MAKERS = {
    "portalocker.Lock": YES,
    "portalocker.RLock": YES,
    "zc.lockfile.LockFile": YES,
    "fasteners.InterProcessLock": POSIX,
    "fasteners.process_lock.InterProcessLock": POSIX,
    "fasteners.InterProcessReaderWriterLock": POSIX,
    "oslo_concurrency.lockutils.external_lock": POSIX,
    "lockfile.LockFile": PRESENCE,
    "lockfile.MkdirLockFile": PRESENCE,
    "lockfile.pidlockfile.PIDLockFile": PRESENCE,
    "flufl.lock.Lock": PRESENCE,
    "pid.PidFile": YES,
}


@dataclass(frozen=True, slots=True)
class LockSite:
    """One place where a lock is taken: the line there, and the line that takes its place."""

    path: str
    line: int
    what: str
    before: str
    after: str
    excludes: str


class Adoption(NamedTuple):
    """All sites, and what was not read."""

    sites: list[LockSite]
    notices: list[Notice]
    files: int


def adopted(paths: Iterable[str], settings: Settings) -> Adoption:
    """Every lock below these paths. Raises Unusable for a path that is none."""
    notices: list[Notice] = []
    found: list[LockSite] = []
    count = 0
    words.learn(settings.vocabulary)
    for path, _size in scan.found_files(paths, settings, notices):
        count += 1
        try:
            found += sites_of(path, Path(path).read_bytes(), notices)
        except Exception as error:  # noqa: BLE001  one file costs itself alone
            notices.append(Notice(path, f"not finished: {type(error).__name__}: {error}"))
    return Adoption(found, notices, count)


def sites_of(path: str, data: bytes, notices: list[Notice]) -> list[LockSite]:
    """The locks of one file, in the order of their lines, one for each."""
    kind = "" if path.endswith(scan.SUFFIXES) else units.kind_of(path, data[:80])
    found: dict[int, LockSite] = {}
    shown = Path(path).as_posix()
    if len(data) > source.LARGEST:
        return []
    if kind and not path.endswith(javascript.SUFFIXES):
        text = data.decode("utf-8", "replace").replace("\r\n", "\n")
        scripts = (
            [shell_rules.look(path, text)]
            if kind == "shell"
            else units.scripts(units.Unit(path, kind, text))
        )
        for script in scripts:
            for site in in_script(shown, script, text.split("\n")):
                found.setdefault(site.line, site)
    elif path.endswith(scan.SUFFIXES) and source.may_hold_locks(data):
        text_of = source.decoded(data, notices, path)
        if text_of is not None and path.endswith(".ipynb"):
            text_of = source.notebook(text_of)
        module = source.parsed(path, text_of, notices) if text_of is not None else None
        if module is not None and text_of is not None:
            rows = text_of.split("\n")
            for site in in_module(shown, judged(module), rows):
                found.setdefault(site.line, site)
    return [found[line] for line in sorted(found)]


# --- Python -------------------------------------------------------------------------------------


def in_module(path: str, judge: Judge, rows: list[str]) -> Iterator[LockSite]:
    """The locks of a module."""
    for function in judge.functions:
        for event in judge.own(function):
            made = taken(judge, function, event)
            if made is not None:
                what, after, excludes = made
                after = statement(function, event, after)
                yield site(path, event.line, rows, what, after, excludes)
    for hit in create.check_then_create(judge):
        line = getattr(hit.node, "lineno", 1)
        function = next(f for f in judge.functions if f.title == hit.function.title)
        event = next(e for e in judge.own(function) if e.site is hit.node)
        after = statement(function, event, f"Lock({text(judge, event.expr)})")
        yield site(path, line, rows, f"a file that is looked for, {event.name}", after, PRESENCE)


def site(path: str, line: int, rows: list[str], what: str, after: str, excludes: str) -> LockSite:
    before = rows[line - 1].strip() if line <= len(rows) else ""
    return LockSite(path, line, what, before, after, excludes)


def statement(function: Function, event: Event, lock: str) -> str:
    """The `with` of a lock, as the function around it can have it; an object that is kept is."""
    stmt = event.facts.get("statement")
    if lock.startswith(("import ", "from ")):
        return lock
    made = event.kind in ("other", "library_lock")
    if made and isinstance(stmt, ast.Assign) and stmt.value is event.site:
        return f"{ast.unparse(stmt.targets[0])} = {lock}"
    if isinstance(function.node, ast.AsyncFunctionDef):
        lock = re.sub(r"^(Lock)\(", r"Async\1(", lock)
        return f"async with {lock} as lease:"
    return f"with {lock} as lease:"


def text(judge: Judge, node: ast.expr | None, name: str = "PATH") -> str:
    """An expression as it stands, on one line."""
    if node is None:
        return name
    if node.lineno == node.end_lineno:
        row = judge.module.text.split("\n")[node.lineno - 1].encode()
        return row[node.col_offset : node.end_col_offset].decode(errors="replace")
    return " ".join(ast.unparse(node).split())


def taken(judge: Judge, function: Function, event: Event) -> tuple[str, str, str] | None:
    """What lock this act takes: its words, its new expression, whom that excludes."""
    called = event.facts.get("called")
    if event.kind == "flock":
        return flocked(judge, function, event)
    if event.kind == "create" and create.is_lock(judge, function, event):
        return (
            f"a file held by being there, {event.name}",
            f"Lock({text(judge, event.expr)})",
            PRESENCE,
        )
    if event.kind in ("redis_lock", "make_lock") and event.lockish:
        return f"a key of a store, {event.name}", leased(judge, event), STORE
    if called is None:
        return None
    name = judge.module.dotted(called.func)
    last = name.rpartition(".")[2]
    first = called.args[0] if called.args else next(iter(called.keywords.values()), None)
    if name.startswith("filelock.") and last in FACES:
        whole = ast.unparse(called.func).startswith("filelock.")
        after = "import {} as filelock" if whole else f"from {{}} import {last}"
        return f"{last} of filelock", after.format("lifehold.compat.filelock"), YES
    if name in MAKERS:
        library = name.partition(".")[0]
        return (
            f"{last} of {library}",
            f"Lock({text(judge, first)}{waits(judge, event)})",
            MAKERS[name],
        )
    if called.args and any(
        leases.SESSION_LOCK.search(each) for each in function.texts(called.args[0])[:8]
    ):
        key = text(judge, called.args[1], "KEY") if len(called.args) > 1 else "NAME"
        return "an advisory lock of the database", f"store.lock({key})", STORE
    return None


def flocked(judge: Judge, function: Function, event: Event) -> tuple[str, str, str]:
    """The lock of the file that this kernel lock is on."""
    opened = judge.reader.opened(function, event.facts["handle_expr"])
    paths = {text(judge, each.expr) for each in opened}
    path = paths.pop() if len(paths) == 1 else "PATH"
    shared = ", exclusive=False" if event.facts["shared"] else ""
    once = ", wait=0" if event.facts["nonblocking"] and not judge.loops(event) else ""
    call = "lockf" if event.facts["posix"] else "flock"
    excludes = POSIX if event.facts["posix"] else YES
    return f"{call} on {path}", f"Lock({path}{shared}{once})", excludes


def waits(judge: Judge, event: Event) -> str:
    """The patience of a constructor, in our word."""
    given = event.facts["called"].keywords.get("timeout")
    return f", wait={text(judge, given)}" if given is not None else ""


def leased(judge: Judge, event: Event) -> str:
    """`store.lock(NAME, ttl=...)`, with the seconds that stand there."""
    keywords = event.facts["called"].keywords
    seconds = next(
        (
            text(judge, keywords[each])
            for each in ("ex", "timeout", "ttl", "expire")
            if each in keywords
        ),
        "",
    )
    if not seconds and "px" in keywords:
        seconds = f"{text(judge, keywords['px'])} / 1000"
    patience = keywords.get("blocking_timeout")
    wait = f", wait={text(judge, patience)}" if patience is not None else ""
    return f"store.lock({text(judge, event.expr, 'NAME')}, ttl={seconds or 30}{wait})"


# --- shell --------------------------------------------------------------------------------------


def in_script(path: str, script: Script, rows: list[str]) -> Iterator[LockSite]:
    """The locks of a script."""
    for command in script.commands:
        if command.name == "flock":
            after = re.sub(
                r"(?<![\w/-])(/usr/bin/)?flock(?=\s)", "lifehold flock", row(command, rows)
            )
            yield site(path, command.line, rows, "flock(1)", after, YES)
    for command, word in shell_rules.held_by_presence(script):
        target = word if word.endswith((".lock", ".lck", ".pid")) else f"{word}.lock"
        after = f'exec 9>>"{target}"; lifehold flock -n 9 || exit 75'
        yield site(path, command.line, rows, f"held by being there, {word}", after, PRESENCE)


def row(command: ShellCommand, rows: list[str]) -> str:
    return rows[command.line - 1].strip() if command.line <= len(rows) else "flock"


# --- what is told -------------------------------------------------------------------------------


def told(adoption: Adoption) -> str:
    """All sites for a terminal: the old line, the new one, and whom that excludes."""
    out = []
    for each in adoption.sites:
        out += [
            f"{each.path}:{each.line}: {each.what}",
            f"  - {each.before}",
            f"  + {each.after}",
            f"  excludes processes of before: {each.excludes}",
            "",
        ]
    count, places = len(adoption.sites), len({each.path for each in adoption.sites})
    if count:
        out += ["from lifehold import Lock, AsyncLock, connect  # store = connect(URL)", ""]
    plural = "s" * (count != 1), "s" * (places != 1)
    out.append(f"{count} lock{plural[0]} in {places} file{plural[1]}, {adoption.files} looked at.")
    return "\n".join(map(printable, out))
