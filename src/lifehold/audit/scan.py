"""From paths to a report: find the files, look at those that can hold a lock, remember the rest.

Every rule is asked of every candidate, and what was found is remembered by the content of the
file; what was selected is chosen from that. So a changed selection needs no second look.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import multiprocessing
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import javascript, shell, source, suppress, units, words
from .catalogue import RULES
from .finding import Edit, Finding, Notice, Span, fingerprint
from .forms import judged
from .model import Unfinished
from .rules import javascript as javascript_rules
from .rules.shell import look
from .settings import Settings, Unusable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from .judge import Judge

SUFFIXES = (".py", ".pyw", ".pyi", ".ipynb")
NAMED = (*SUFFIXES, *javascript.SUFFIXES)
SKIPPED = frozenset(
    ".git .hg .svn .venv venv .tox .nox node_modules __pycache__ .mypy_cache .ruff_cache"
    " .pytest_cache .eggs site-packages".split()
)
SMALL = 1_500_000  # bytes; below it one process is faster than several
TOLD = 500  # files after which progress is told
PORTION = 24  # files that a worker takes at once
UNABLE = "{} files of JavaScript were not looked at: pip install 'lifehold[audit]'"
PASSED = "passed over: a line is longer than 5,000 characters, as programs write them"
Result = dict[str, Any]


@dataclass(slots=True)
class AuditReport:
    """What an audit found. `known` counts what the baseline held, `unchanged` what git knew.

    `unread`: a file was not read, or not to its end. `missed`: so many of `files`. `narrowed`:
    findings were taken out by a baseline or by git. `fixes`: the safe cures of findings, by their
    fingerprints, where asked for.
    """

    findings: list[Finding] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)
    files: int = 0
    missed: int = 0
    looked_at: int = 0
    lines: int = 0
    from_cache: int = 0
    suppressed: int = 0
    known: int = 0
    unchanged: int = 0
    unread: bool = False
    narrowed: bool = False
    fixes: dict[str, tuple[Edit, ...]] = field(default_factory=dict)


def found_files(
    paths: Iterable[str], settings: Settings, notices: list[Notice]
) -> Iterator[tuple[str, int]]:
    """Each file once, with its size; in an order that is always the same."""
    seen: set[tuple[int, int]] = set()
    for text in paths:
        start = Path(text)
        if not start.exists() and not start.is_symlink():
            raise Unusable(f"there is no {text!r}")
        if not start.is_dir():
            yield from _file(text, seen, notices, given=True)
            continue
        for folder, folders, names in os.walk(
            text, onerror=lambda error: notices.append(_refused(error))
        ):
            folders[:] = sorted(
                name
                for name in folders
                if name not in SKIPPED and not settings.excluded(folder, name)
            )
            for name in sorted(names):
                if looked_at(folder, name) and not settings.excluded(folder, name):
                    yield from _file(os.path.join(folder, name), seen, notices, given=False)


def looked_at(folder: str, name: str) -> bool:
    """Is this a file of ours, by its name or, where that says nothing, by its first line?"""
    if name.endswith(NAMED):
        return True
    path = f"{folder}/{name}"
    if units.kind_of(path):
        return True
    return "." not in name and bool(units.kind_of(path, head_of(path)))


def head_of(path: str) -> bytes:
    try:
        return source.contents(path, 80)
    except OSError:
        return b""


def _refused(error: OSError) -> Notice:
    return Notice(str(error.filename), f"not read: {error.strerror}")


def _file(
    path: str, seen: set[tuple[int, int]], notices: list[Notice], *, given: bool
) -> Iterator[tuple[str, int]]:
    try:
        facts = os.stat(path)
    except OSError as error:
        notices.append(Notice(path, f"not read: {error.strerror}"))
        return
    if not stat.S_ISREG(facts.st_mode):
        if given:
            notices.append(Notice(path, "not read: it is no file"))
        return
    if (facts.st_dev, facts.st_ino) in seen:
        return
    seen.add((facts.st_dev, facts.st_ino))
    yield os.path.normpath(path), facts.st_size


def examined(path: str, known: dict[str, Result] | None, mounts: tuple[str, ...]) -> Result:
    """All that is to be said of one file, whatever is selected. It never raises.

    `known`: what was found before, by content; None where nothing is to be remembered.
    """
    notices: list[Notice] = []
    collecting = gc.isenabled()
    gc.disable()  # a tree and what is known of it live and die with this call
    try:
        return _examined(path, known, mounts, notices)
    except OSError as error:
        notices.append(Notice(path, f"not read: {error.strerror}"))
    except Unfinished as error:
        notices.append(Notice(path, f"not finished: {error}"))
    except Exception as error:  # noqa: BLE001  one file costs itself alone
        notices.append(Notice(path, f"not finished: {type(error).__name__}: {error}"))
    finally:
        if collecting:
            gc.enable()
    return {"path": path, "lines": 0, "notices": [(n.text, n.line) for n in notices], "failed": 1}


def of_text(path: str, text: str, settings: Settings) -> list[Finding]:
    """What is found in a text that an editor holds, under the name of its file."""
    report = AuditReport()
    words.learn(settings.vocabulary)
    _take(report, _examined(path, None, settings.shared_mounts, [], text.encode()), settings)
    return sorted(report.findings, key=lambda each: each.place)


def _examined(
    path: str,
    known: dict[str, Result] | None,
    mounts: tuple[str, ...],
    notices: list[Notice],
    given: bytes | None = None,
) -> Result:
    if given is None and os.path.getsize(path) > source.LARGEST:
        return _nothing(path, 0, [("not read: it is larger than 5 MB", 0)])
    data = source.contents(path) if given is None else given
    kind = "" if path.endswith(SUFFIXES) else units.kind_of(path, data[:80])
    kind = "javascript" if path.endswith(javascript.SUFFIXES) else kind
    digest = ""
    if known is not None:
        digest = digest_of(path, kind, data, mounts)
        if digest in known:
            return {**_nothing(path, 0, []), **known[digest], "digest": digest, "cached": True}
    lines = data.count(b"\n") + (data[-1:] not in (b"\n", b""))
    if not worth_it(kind, data):
        return {**_nothing(path, lines, []), "digest": digest}
    if kind:
        return {**_unit(path, kind, data, lines), "digest": digest}
    text = source.decoded(data, notices, path)
    if text is not None and path.endswith(".ipynb"):
        text = source.notebook(text)
        if text is None:
            notices.append(Notice(path, "not read: it is no notebook"))
    module = source.parsed(path, text, notices) if text is not None else None
    made = _nothing(path, lines, [])
    made["digest"] = digest
    if module is not None and text is not None:
        judge = judged(module, mounts)
        made["findings"] = list(hits(judge, text))
        judge.end()
        made["suppressions"] = _kept(suppress.suppressions(text))
    made["looked_at"] = True
    made["notices"] = [(n.text, n.line) for n in notices]
    return made


def worth_it(kind: str, data: bytes) -> bool:
    """Can a file of this content hold a finding, or a comment that silences one?"""
    if data[:2] in (b"\xff\xfe", b"\xfe\xff") or words.project() != words.NOTHING:
        return True
    if kind:
        may = javascript.may_hold_locks if kind == "javascript" else source.may_be_shell
        return may(data) or marked(data)
    if source.may_hold_locks(data) and source.speaks_of_locks(data):
        return True
    return source.may_hold_forms(data) or marked(data)


def marked(data: bytes) -> bool:
    return b"lifehold:" in data or b"noqa: LH" in data


def digest_of(path: str, kind: str, data: bytes, mounts: tuple[str, ...]) -> str:
    """Under what a result is remembered: the content, and all else that the rules look at."""
    hashed = hashlib.blake2b(data, digest_size=16)
    if words.project() != words.NOTHING:
        hashed.update(repr([sorted(each) for each in words.project()]).encode())
    hashed.update(repr((mounts, kind or path.endswith(".ipynb"), named(path, kind))).encode())
    return hashed.hexdigest()


def named(path: str, kind: str) -> tuple[str, bool]:
    """What the rules ask of the name of a file: of Python no more than whether it says lock."""
    if kind:
        return path.rpartition("/")[2], units.names_its_user(path)
    return "", words.file_speaks_of_lock(path)


def _kept(found: list[suppress.Suppression]) -> list[Any]:
    return [(s.line, s.last, s.column, s.codes, s.whole_file, s.text, s.understood) for s in found]


def _unit(path: str, kind: str, data: bytes, lines: int) -> Result:
    """A shell script, or a file that holds shell."""
    made = _nothing(path, lines, [])
    made["looked_at"] = True
    if b"\0" in data:
        made["notices"] = [("not read: it holds null bytes", 0)]
        return made
    text = data.decode("utf-8", "replace").replace("\r\n", "\n")
    if kind == "javascript":
        if javascript.missing():
            made["unable"] = True
            return made
        if max(map(len, text.split("\n"))) > javascript.LONGEST:
            made["passed_over"] = True  # written by a program, for programs
            return made
    if max(map(len, text.split("\n"))) > source.LONGEST_LINE:
        made["notices"] = [("not read: a line is longer than 200,000 characters", 0)]
        return made
    made["findings"] = list(hits_of_unit(path, kind, text))
    if "lifehold:" in text:
        made["suppressions"] = _kept(suppress.by_line(text, comments(path, kind, text)))
    return made


def comments(path: str, kind: str, text: str) -> Callable[[int], bool]:
    """Can a comment stand at an offset of this file? In a unit everywhere."""
    if kind == "javascript":
        return javascript.comments(path, text)
    return shell.comments(text) if kind == "shell" else lambda _at: True


def hits_of_unit(path: str, kind: str, text: str) -> Iterator[list[Any]]:
    """What the rules of shell, of units and of JavaScript find."""
    if kind == "javascript":
        yield from asked(javascript_rules.look(path, text), text, "javascript")
        return
    if kind == "shell":
        script = look(path, text)
        yield from asked(script, text, "shell")
        yield from asked(script, text, "unit")
        return
    unit = units.Unit(path, kind, text)
    yield from asked(unit, text, "unit")
    for script in units.scripts(unit):
        yield from asked(script, text, "shell")


def _nothing(path: str, lines: int, notices: list[tuple[str, int]]) -> Result:
    return {"path": path, "lines": lines, "notices": notices, "findings": [], "suppressions": []}


def hits(judge: Judge, text: str) -> Iterator[list[Any]]:
    """What all rules of Python find in a module, as plain values that can be kept."""
    yield from asked(judge, text, "python", judge.kinds)


def asked(
    subject: object, text: str, language: str, kinds: frozenset[str] = frozenset()
) -> Iterator[list[Any]]:
    """What all rules of a language find."""
    rows = text.split("\n")
    told: set[tuple[str, int]] = set()
    for code, rule in RULES.items():
        if rule.language != language or (rule.about and kinds.isdisjoint(rule.about)):
            continue
        for hit in rule.check(subject):
            node = hit.node
            line = getattr(node, "lineno", 1)
            if (code, line) in told:
                continue
            told.add((code, line))
            yield [
                code,
                line,
                getattr(node, "col_offset", 0) + 1,
                min(getattr(node, "end_lineno", line) or line, line + 200),
                (getattr(node, "end_col_offset", 0) or 0) + 1,
                hit.message,
                rows[line - 1] if line <= len(rows) else "",
                hit.function.title,
                [(span.line, span.text) for span in hit.spans],
            ]


# --- several processes, and what is remembered --------------------------------------------------

_known: dict[str, Result] | None = None
_mounts: tuple[str, ...] = ()


def _begin(
    known: dict[str, Result] | None, mounts: tuple[str, ...], vocabulary: words.Vocabulary
) -> None:
    global _known, _mounts
    _known, _mounts = known, mounts
    words.learn(vocabulary)


def _portion(path: str) -> Result:
    return examined(path, _known, _mounts)


def results(
    files: list[tuple[str, int]], known: dict[str, Result] | None, settings: Settings, jobs: int
) -> Iterator[Result]:
    """Every file examined, in the order of the files."""
    mounts = settings.shared_mounts
    words.learn(settings.vocabulary)
    if jobs <= 1 or sum(size for _path, size in files) < SMALL:
        for path, _size in files:
            yield examined(path, known, mounts)
        return
    forked = "fork" in multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("fork" if forked else "spawn")
    with context.Pool(jobs, _begin, (known, mounts, settings.vocabulary)) as pool:
        yield from pool.imap(_portion, [path for path, _size in files], PORTION)


def version() -> str:
    """Changes with every change of the audit itself, so that nothing old is remembered."""
    folder = Path(__file__).parent
    parts = []
    archives = [each for each in folder.parents if each.is_file()]  # lifehold.pyz
    for file in archives or sorted(folder.rglob("*.py")):
        facts = file.stat()
        parts.append(f"{file.name} {facts.st_size} {facts.st_mtime_ns}")
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=8).hexdigest()


def remembered(cache: Path | None) -> dict[str, Result]:
    """What was found before, by content. A cache that cannot be read is empty."""
    if cache is None:
        return {}
    try:
        data = json.loads((cache / f"{version()}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def remember(cache: Path | None, known: dict[str, Result]) -> None:
    """Put the cache into its place in one step; what cannot be written is not remembered."""
    if cache is None:
        return
    new = cache / f".{os.urandom(8).hex()}.new"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError), open(cache / ".gitignore", "x") as ignore:
            ignore.write("*\n")
        with open(new, "x", encoding="utf-8") as file:  # never through a link
            json.dump(known, file, separators=(",", ":"))
        for old in cache.glob("*.json"):
            if old.stem != version():
                old.unlink(missing_ok=True)
        new.replace(cache / f"{version()}.json")
    except OSError:
        with contextlib.suppress(OSError):
            new.unlink()


def audit(
    paths: Iterable[str],
    settings: Settings,
    *,
    jobs: int | None = None,
    cache: Path | None = None,
    tell: Callable[[int], None] | None = None,
) -> AuditReport:
    """Look at all Python files under these paths. Raises Unusable for a path that is none.

    `tell`: hears now and then how many files were looked at.
    """
    report = AuditReport()
    files = list(found_files(paths, settings, report.notices))
    known = remembered(cache)
    kept: dict[str, Result] = {}
    unable: list[str] = []
    passed: list[str] = []
    counted = jobs or len(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else "12")
    used = None if cache is None else known
    for seen, result in enumerate(results(files, used, settings, counted), 1):
        if tell is not None and seen % TOLD == 0:
            tell(seen)
        _take(report, result, settings)
        if result.get("unable"):
            unable.append(result["path"])
        if result.get("passed_over"):
            passed.append(result["path"])
        digest = result.get("digest")
        if digest and not result.get("failed") and not result.get("unable"):
            kept[digest] = {
                name: value
                for name, value in result.items()
                if value and name not in ("path", "digest", "cached", "looked_at")
            }
    if cache is not None and kept.keys() - known.keys():
        remember(cache, {**known, **kept} if len(known) < 50_000 else kept)
    if unable:
        report.notices.append(Notice(unable[0], UNABLE.format(len(unable))))
    if passed:
        more = f" (and {len(passed) - 1} more)" if passed[1:] else ""
        report.notices.append(Notice(passed[0], PASSED + more))
    report.unread = any(each.means_unread for each in report.notices)
    report.findings.sort(key=lambda each: each.place)
    _number(report)
    return report


def _take(report: AuditReport, result: Result, settings: Settings) -> None:
    told = (Notice("", text).means_unread for text, _line in result["notices"])
    missed = bool(result.get("unable")) or any(told)
    report.files += 1
    report.missed += missed
    report.lines += 0 if missed else result["lines"]
    report.looked_at += bool(result.get("looked_at"))
    report.from_cache += bool(result.get("cached"))
    if not (result["notices"] or result.get("findings") or result.get("suppressions")):
        return
    path = Path(result["path"])
    shown = path.as_posix()
    report.notices += [Notice(shown, text, line) for text, line in result["notices"]]
    asked = settings.codes_of(path)
    silent = [
        suppress.Suppression(line, last, column, tuple(codes), whole, text, understood)
        for line, last, column, codes, whole, text, understood in result.get("suppressions", ())
    ]
    for code, line, column, end, end_column, message, row, function, spans in result.get(
        "findings", ()
    ):
        if silenced(silent, code, line, end):
            report.suppressed += 1
        elif code in asked:
            more = tuple(Span(number, text) for number, text in spans)
            report.findings.append(
                Finding(shown, line, column, end, end_column, code, message, row, function, more)
            )
    if suppress.UNUSED in asked:
        report.findings += _unused(shown, silent)


def silenced(silent: list[suppress.Suppression], code: str, line: int, end: int) -> bool:
    for each in silent:
        if each.covers(code, line, line if each.whole_file else min(end, line)):
            each.used.add(code)
            return True
    return False


NOT_UNDERSTOOD = (
    "this comment is not understood and suppresses nothing: it is `lifehold: ignore`, or"
    " `ignore-file`, then [LH108] or nothing, then `-- reason`"
)


def _unused(path: str, silent: list[suppress.Suppression]) -> Iterator[Finding]:
    for each in silent:
        if (each.codes and set(each.codes) <= each.used) or (not each.codes and each.used):
            continue
        idle = ", ".join(sorted(set(each.codes) - each.used)) or "any rule"
        said = f"this comment suppresses {idle}, and nothing is found here"
        yield Finding(
            path,
            each.line,
            each.column + 1,
            each.line,
            each.column + 1 + len(each.text),
            suppress.UNUSED,
            said if each.understood else NOT_UNDERSTOOD,
            each.text,
        )


def _number(report: AuditReport) -> None:
    """Give each finding its fingerprint; equal lines of one function are counted."""
    counts: dict[str, int] = {}
    numbered = []
    for each in report.findings:
        first = fingerprint(each.path, each.code, each.function, each.source, 0)
        number = counts.get(first, 0)
        counts[first] = number + 1
        mark = fingerprint(each.path, each.code, each.function, each.source, number)
        numbered.append(
            Finding(
                each.path,
                each.line,
                each.column,
                each.end_line,
                each.end_column,
                each.code,
                each.message,
                each.source,
                each.function,
                each.spans,
                mark,
            )
        )
    report.findings = numbered
