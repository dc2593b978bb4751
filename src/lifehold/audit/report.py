"""The formats of a report, for people, pipelines and code hosts; the baseline; a rule in full.

A baseline holds what was there before, which is left out from then on. Its fingerprints are made of
path, rule, function and the text of the line, so that lines may move. `changed_since` keeps what
stands on lines that a branch has changed, as git tells it.
"""

from __future__ import annotations

import bisect
import json
import os
import re
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from xml.sax.saxutils import escape, quoteattr

from . import source
from .catalogue import RULES
from .settings import Unusable
from .suppress import UNUSED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .finding import Edit, Finding
    from .rule import Rule
    from .scan import AuditReport

SCHEMA = "lifehold.audit/1"
BASELINE = "lifehold.audit-baseline/1"
SARIF = "https://json.schemastore.org/sarif-2.1.0.json"
MOST_IN_SARIF = 25_000  # what a code host takes of one run
SECURITY = {"error": "7.0", "warning": "5.0", "info": "3.0"}
LEVELS = {"error": "error", "warning": "warning", "info": "note"}


def severity(code: str) -> str:
    return "warning" if code == UNUSED else RULES[code].severity


def slug(code: str) -> str:
    return "unused-suppression" if code == UNUSED else RULES[code].slug


def printable(text: str) -> str:
    """No control characters: a hostile file name must not write to the terminal."""
    return "".join(c if c.isprintable() or c == "\t" else "�" for c in text)


def full(report: AuditReport, version: str, *, colour: bool = False) -> str:
    """Each finding with its line, a caret, the second places and the fix."""
    red, dim, bold, end = ("\x1b[31m", "\x1b[2m", "\x1b[1m", "\x1b[0m") if colour else [""] * 4
    out = []
    for each in report.findings:
        place = printable(f"{each.path}:{each.line}:{each.column}")
        out.append(
            f"{bold}{place}{end}: {red}{each.code}{end} {slug(each.code)} [{severity(each.code)}]"
        )
        out.append(f"  {printable(each.message)}")
        row = each.source.replace("\t", " ")
        width = len(str(max([each.line, *(span.line for span in each.spans)])))
        if row.strip():
            ends = each.end_column if each.end_line == each.line else len(row.encode()) + 1
            before = cells(row, each.column - 1)
            marks = "^" * max(1, cells(row, ends - 1) - before)
            out.append(f"{dim}{each.line:>{width + 2}} |{end} {printable(row)}")
            out.append(f"{dim}{'':>{width + 2}} |{end} {' ' * before}{red}{marks}{end}")
        for span in each.spans:
            out.append(f"{dim}{span.line:>{width + 2}} |{end} {span.text}")
        if each.code in RULES:
            out.append(f"  fix: {RULES[each.code].fix}")
        out.append("")
    out.append(summary(report))
    return "\n".join(out)


def cells(row: str, count: int) -> int:
    """How many columns of a terminal the first bytes of a row take."""
    shown = printable(row.encode()[:count].decode(errors="ignore"))
    wide = sum(unicodedata.east_asian_width(sign) in "WF" for sign in shown)
    return len(shown) + wide - sum(unicodedata.combining(sign) > 0 for sign in shown)


def concise(report: AuditReport, version: str) -> str:
    """One line a finding."""
    rows = [
        printable(f"{f.path}:{f.line}:{f.column}: {f.code} {f.message}") for f in report.findings
    ]
    return "\n".join([*rows, summary(report)])


def summary(report: AuditReport) -> str:
    """How much was found, in how much."""
    count = len(report.findings)
    said = f"{count} finding{'' if count == 1 else 's'}" if count else "nothing found"
    read = f"{report.files - report.missed} of " if report.missed else ""
    said += f" in {read}{report.files} file{'' if report.files == 1 else 's'} "
    said += f"({report.lines} line{'' if report.lines == 1 else 's'})"
    if report.suppressed:
        said += f", {report.suppressed} suppressed"
    if report.known:
        said += f", {report.known} in the baseline"
    if report.unchanged:
        said += f", {report.unchanged} on lines that did not change"
    return said + "."


def statistics(report: AuditReport) -> str:
    """How often each rule was broken, most first."""
    counts: dict[str, int] = {}
    for each in report.findings:
        counts[each.code] = counts.get(each.code, 0) + 1
    rows = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return "\n".join([*(f"{n:6} {code} {slug(code)}" for code, n in rows), summary(report)])


def readable(text: str) -> str:
    """Bytes of a name that are no UTF-8 become marks: no reader of JSON takes half a character."""
    return text.encode(errors="surrogateescape").decode(errors="replace")


def as_json(report: AuditReport, version: str) -> str:
    data = {
        "schema": SCHEMA,
        "version": version,
        "files": report.files,
        "lines": report.lines,
        "looked_at": report.looked_at,
        "from_cache": report.from_cache,
        "suppressed": report.suppressed,
        "known": report.known,
        "findings": [
            {
                "path": readable(f.path),
                "line": f.line,
                "column": f.column,
                "end_line": f.end_line,
                "end_column": f.end_column,
                "code": f.code,
                "slug": slug(f.code),
                "severity": severity(f.code),
                "message": f.message,
                "function": f.function,
                "fingerprint": f.fingerprint,
                "spans": [{"line": s.line, "text": s.text} for s in f.spans],
            }
            for f in report.findings
        ],
        "notices": [
            {"path": readable(n.path), "line": n.line, "text": n.text} for n in report.notices
        ],
    }
    return json.dumps(data, indent=1, ensure_ascii=False)


def clean_xml(text: str) -> str:
    """Characters that XML 1.0 has not become question marks."""
    return "".join(
        c if c in "\t\n\r" or " " <= c <= "\ud7ff" or "\ue000" <= c <= "�" or c > "\uffff" else "?"
        for c in text
    )


def junit(report: AuditReport, version: str) -> str:
    files: dict[str, list[Finding]] = {}
    for each in report.findings:
        files.setdefault(each.path, []).append(each)
    count = len(report.findings)
    out = [
        '<?xml version="1.0" encoding="utf-8"?>',
        f'<testsuites name="lifehold audit" tests="{max(count, 1)}" failures="{count}">',
    ]
    for path, found in files.items():
        name = quoteattr(clean_xml(path))
        out.append(f'<testsuite name={name} tests="{len(found)}" failures="{len(found)}">')
        for f in found:
            case = quoteattr(f"{f.code} {slug(f.code)} line {f.line}")
            message = quoteattr(clean_xml(f.message))
            text = escape(clean_xml(f"{f.path}:{f.line}:{f.column}: {f.message}"))
            out.append(
                f'<testcase name={case} classname={name} file={name} line="{f.line}">'
                f"<failure type={quoteattr(f.code)} message={message}>{text}</failure></testcase>"
            )
        out.append("</testsuite>")
    if not files:
        out.append('<testsuite name="lifehold audit" tests="1" failures="0">')
        out.append('<testcase name="nothing found" classname="lifehold audit"/></testsuite>')
    return "\n".join([*out, "</testsuites>"])


def github(report: AuditReport, version: str) -> str:
    """Workflow commands, which become annotations."""
    kinds = {"error": "error", "warning": "warning", "info": "notice"}

    def value(text: str) -> str:
        text = data(readable(text))
        return text.replace(":", "%3A").replace(",", "%2C")

    def data(text: str) -> str:
        return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")

    return "\n".join(
        f"::{kinds[severity(f.code)]} file={value(f.path)},line={f.line},endLine={f.end_line},"
        f"col={f.column},title={value(f'{f.code} {slug(f.code)}')}::{data(f.message)}"
        for f in report.findings
    )


def gitlab(report: AuditReport, version: str) -> str:
    """A code quality report."""
    grave = {"error": "major", "warning": "minor", "info": "info"}
    return json.dumps(
        [
            {
                "description": f"{f.code} {f.message}",
                "check_name": f.code,
                "fingerprint": f.fingerprint,
                "severity": grave[severity(f.code)],
                "location": {
                    "path": readable(f.path),
                    "lines": {"begin": f.line, "end": f.end_line},
                },
            }
            for f in report.findings
        ],
        indent=1,
        ensure_ascii=False,
    )


def sarif(report: AuditReport, version: str) -> str:
    """SARIF 2.1.0 with rules, fingerprints, safe fixes, and code flows where there are spans."""
    used = sorted({f.code for f in report.findings if f.code in RULES})
    places = {code: number for number, code in enumerate(used)}
    run = {
        "tool": {
            "driver": {
                "name": "lifehold audit",
                "semanticVersion": version,
                "informationUri": "https://pypi.org/project/lifehold/",
                "rules": [_rule(code) for code in used],
            }
        },
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {"SRCROOT": {"description": {"text": "where the audit was run"}}},
        "invocations": [
            {
                "executionSuccessful": not report.unread,
                "toolExecutionNotifications": [
                    {
                        "level": "error" if n.means_unread else "note",
                        "message": {"text": n.text},
                        "locations": [{"physicalLocation": {"artifactLocation": _uri(n.path)}}],
                    }
                    for n in report.notices[:1000]
                ],
            }
        ],
        "results": [_result(f, places, report.fixes) for f in report.findings[:MOST_IN_SARIF]],
    }
    return json.dumps({"$schema": SARIF, "version": "2.1.0", "runs": [run]}, indent=1)


def _rule(code: str) -> dict[str, Any]:
    rule = RULES[code]
    return {
        "id": code,
        "name": "".join(word.capitalize() for word in rule.slug.split("-")),
        "shortDescription": {"text": rule.title},
        "fullDescription": {"text": rule.why},
        "help": {"text": f"{rule.why}\n\n{rule.timeline}\n\n{rule.fix}"},
        "defaultConfiguration": {"level": LEVELS[rule.severity]},
        "properties": {
            "tags": ["security", f"external/cwe/cwe-{rule.cwe}"],
            "precision": "very-high" if rule.confidence == "high" else "high",
            "security-severity": SECURITY[rule.severity],
        },
    }


def _uri(path: str) -> dict[str, str]:
    if path.startswith("/"):
        return {"uri": "file://" + quote(path, errors="surrogateescape")}
    shown = quote(path.removeprefix("./"), errors="surrogateescape")
    return {"uri": shown, "uriBaseId": "SRCROOT"}


def _place(f: Finding, line: int, text: str) -> dict[str, Any]:
    where = {"artifactLocation": _uri(f.path), "region": {"startLine": line}}
    return {"physicalLocation": where, "message": {"text": text}}


def _mend(f: Finding, edits: tuple[Edit, ...]) -> dict[str, Any]:
    """One cure as SARIF has it: regions of the file, and the text that comes into their place."""
    replaced = [
        {
            "deletedRegion": {
                "startLine": each.line,
                "startColumn": 1,
                "endLine": each.end_line,
                "endColumn": each.end_column,
            },
            "insertedContent": {"text": each.text},
        }
        for each in edits
    ]
    return {
        "description": {"text": RULES[f.code].fix},
        "artifactChanges": [{"artifactLocation": _uri(f.path), "replacements": replaced}],
    }


def _result(
    f: Finding, places: dict[str, int], fixes: dict[str, tuple[Edit, ...]]
) -> dict[str, Any]:
    region: dict[str, Any] = {"startLine": f.line, "startColumn": f.column, "endLine": f.end_line}
    region["endColumn"] = max(f.end_column, f.column + 1 if f.end_line == f.line else 1)
    if f.source:
        region["snippet"] = {"text": f.source}
    made: dict[str, Any] = {
        "ruleId": f.code,
        "level": LEVELS[severity(f.code)],
        "message": {"text": f.message},
        "locations": [{"physicalLocation": {"artifactLocation": _uri(f.path), "region": region}}],
        "partialFingerprints": {"lifehold/v1": f.fingerprint},
    }
    if f.code in places:
        made["ruleIndex"] = places[f.code]
    if f.fingerprint in fixes:
        made["fixes"] = [_mend(f, fixes[f.fingerprint])]
    if f.spans:
        steps = [(s.line, s.text) for s in f.spans] + [(f.line, f.message)]
        flow = [{"location": _place(f, line, text)} for line, text in sorted(steps)]
        made["codeFlows"] = [{"threadFlows": [{"locations": flow}]}]
        made["relatedLocations"] = [
            {"id": number, **_place(f, s.line, s.text)} for number, s in enumerate(f.spans, 1)
        ]
    return made


FORMATS: dict[str, Callable[[AuditReport, str], str]] = {
    "full": full,
    "concise": concise,
    "json": as_json,
    "junit": junit,
    "github": github,
    "gitlab": gitlab,
    "sarif": sarif,
}


# --- what was there before --------------------------------------------------------------------


def written(findings: list[Finding]) -> str:
    """The text of a baseline that holds these findings."""
    rows = [
        {
            "fingerprint": f.fingerprint,
            "code": f.code,
            "path": readable(f.path),
            "message": f.message,
        }
        for f in findings
    ]
    return json.dumps({"schema": BASELINE, "findings": rows}, indent=1, ensure_ascii=False) + "\n"


def without(report: AuditReport, file: Path) -> None:
    """Take out of the report what the baseline holds. Raises Unusable."""
    marks = read(file)
    new = [each for each in report.findings if each.fingerprint not in marks]
    report.known += len(report.findings) - len(new)
    report.narrowed = True
    report.findings = new


def read(file: Path) -> frozenset[str]:
    """The fingerprints in a baseline. Raises Unusable for one of another version."""
    again = "remove it and write it anew with --write-baseline"
    try:
        data = json.loads(source.contents(str(file)).decode())
    except OSError as error:
        raise Unusable(f"the baseline {file} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise Unusable(f"the baseline {file} is no JSON: {again}") from None
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema != BASELINE:
        raise Unusable(f"the baseline {file} is of version {schema!r}, not {BASELINE!r}: {again}")
    rows = data.get("findings")
    if not isinstance(rows, list) or not all(
        isinstance(row, dict) and isinstance(row.get("fingerprint"), str) for row in rows
    ):
        raise Unusable(f"the baseline {file} is damaged: {again}")
    return frozenset(row["fingerprint"] for row in rows)


def is_baseline(data: bytes) -> bool:
    """Was this written as a baseline, of whatever version? An empty file holds nothing to lose."""
    try:
        told = json.loads(data) if data.strip() else {"schema": BASELINE}
    except (ValueError, RecursionError):
        return False
    schema = told.get("schema") if isinstance(told, dict) else None
    return isinstance(schema, str) and schema.startswith(BASELINE.partition("/")[0] + "/")


# --- what a branch has changed -----------------------------------------------------------------

HUNK = re.compile(rb"^@@ -\d+(?:,\d+)? \+(\d+)(?:,(\d+))? @@", re.MULTILINE)
OTHERS = ("ls-files", "--others", "-z")
Lines = list[tuple[int, int]]  # first and last, in order
Checkouts = dict[Path, dict[str, Lines | None]]  # the changed lines of each file in each


def checkouts(paths: Iterable[str], revision: str) -> Checkouts:
    """Those that hold these paths, with what changed since `revision`. Raises Unusable."""
    found: Checkouts = {}
    named: dict[Path, list[str]] = {}
    for path in paths:
        top = checkout_of(Path(path), revision, found)
        named.setdefault(top, []).append(Path(path).resolve().relative_to(top).as_posix())
    for top, names in named.items():
        found[top].update(dict.fromkeys(ignored(top, names)))
    return found


def ignored(top: Path, names: list[str]) -> list[str]:
    """The files under these names that git ignores: who names them asks for them."""
    whole = "\0".join(f"./{name}" for name in names)  # no name is read as a pattern
    told = git(top, "--no-literal-pathspecs", "check-ignore", "-z", "--stdin", given=whole)
    if not told:
        return []
    asked = map(os.fsdecode, told.rstrip(b"\0").split(b"\0"))
    return list(map(os.fsdecode, (git(top, *OTHERS, "--", *asked) or b"").split(b"\0")))


def changed_since(report: AuditReport, revision: str, known: Checkouts) -> None:
    """Leave what touches lines that changed since this branch left `revision`. Raises Unusable.

    A finding touches a line by its own place or by a second one. Where lines went away, those
    beside the gap have changed. Files that git does not know yet are new as a whole, and so are
    ignored ones, if they or their folder are named.
    """
    new = []
    for each in report.findings:
        top = checkout_of(Path(each.path), revision, known)
        changes = known[top]
        name = Path(each.path).resolve().relative_to(top).as_posix()
        if name in changes and touches(each, changes[name]):
            new.append(each)
    report.unchanged += len(report.findings) - len(new)
    report.narrowed = True
    report.findings = new


def touches(each: Finding, lines: Lines | None) -> bool:
    """Does a finding stand on one of these lines? None means all of the file."""
    if lines is None:
        return True
    places = [(each.line, max(each.line, each.end_line)), *((s.line, s.line) for s in each.spans)]
    for first, last in places:
        number = bisect.bisect_right(lines, (last, 1 << 62)) - 1
        if number >= 0 and lines[number][1] >= first:
            return True
    return False


def checkout_of(path: Path, revision: str, known: Checkouts) -> Path:
    """The top of the checkout that holds a path; from now on it is known what changed in it."""
    folder = path.resolve() if path.is_dir() else path.resolve().parent
    for each in (folder, *folder.parents):
        if each in known or (each / ".git").exists():
            if each not in known:
                known[each] = changed_lines(each, revision)
            return each
    raise Unusable(f"--diff-base: {str(path)!r} is in no checkout of git")


def changed_lines(top: Path, revision: str) -> dict[str, Lines | None]:
    """The lines of each file that changed since the branch here left this revision."""
    named = git(top, "rev-parse", "--verify", "--quiet", "--end-of-options", revision + "^{commit}")
    if named is None:
        raise Unusable(f"--diff-base: git knows no revision {revision!r} in {str(top)!r}")
    start = (git(top, "merge-base", named.decode().strip(), "HEAD") or named).decode().strip()
    diff = ("diff", "--no-ext-diff", "--no-textconv", "--no-color", "-M", "--ignore-submodules")
    told = git(top, *diff, "--name-status", "-z", start)
    new = git(top, *OTHERS, "--exclude-standard")
    if told is None or new is None:
        raise Unusable(f"--diff-base: git cannot compare {str(top)!r} with {revision!r}")
    changes: dict[str, Lines | None] = dict.fromkeys(map(os.fsdecode, new.split(b"\0")))
    words = iter(map(os.fsdecode, told.split(b"\0")))
    for kind in words:
        if not kind:
            break
        names = [next(words)] if kind[0] not in "RC" else [next(words), next(words)]
        if kind[0] == "A":
            changes[names[-1]] = None
        elif kind[0] != "D":
            text = git(top, *diff, "--text", "--unified=0", start, "--", *names)
            lines = hunks(text) if text is not None else None
            told_all = lines or kind[0] == "R" or b"\nnew mode " in (text or b"")
            changes[names[-1]] = lines if told_all else None
    return changes


def hunks(text: bytes) -> Lines:
    """The new lines of a diff without context; around a deletion, the two beside it."""
    found = []
    for hunk in HUNK.finditer(text):
        first, count = int(hunk[1]), int(hunk[2] or b"1")
        found.append((first, first + count - 1) if count else (first, first + 1))
    return found


def git(top: Path, *words: str, given: str = "") -> bytes | None:
    """What git says, in a checkout; None when it refuses. Raises Unusable where there is none."""
    import subprocess

    env = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_LITERAL_PATHSPECS": "1"}
    try:
        done = subprocess.run(  # noqa: S603
            ["git", "-C", str(top), *words],  # noqa: S607  the git of whoever asks
            input=os.fsencode(given),
            capture_output=True,
            env=env,
            check=False,
        )
    except FileNotFoundError:
        raise Unusable("--diff-base: git is not installed") from None
    return done.stdout if done.returncode == 0 else None


# --- a rule told in full ----------------------------------------------------------------------


def explained(rule: Rule) -> str:
    """For a terminal."""
    usual = "asked by default" if rule.default else "asked when selected"
    return "\n".join(
        (
            f"{rule.code} {rule.slug}",
            "",
            f"{rule.title[:1].upper()}{rule.title[1:]}.",
            f"{rule.severity}, confidence {rule.confidence}, CWE-{rule.cwe}, {usual}",
            "",
            rule.why,
            "",
            "How it fails:",
            *(f"    {line}" for line in rule.timeline.splitlines()),
            "",
            "Found:",
            *(f"    {line}".rstrip() for line in rule.bad.splitlines()),
            "",
            "Clean:",
            *(f"    {line}".rstrip() for line in rule.good.splitlines()),
            "",
            f"Fix: {rule.fix}",
            *((CURED[rule.cured],) if rule.cured else ()),
        )
    )


FENCES = {"python": "py", "shell": "shell", "unit": "text", "javascript": "js"}
CURED = {
    "safe": "`lifehold audit --fix` writes it where that is safe.",
    "unsafe": "`lifehold audit --fix --unsafe-fixes` writes it; read what it wrote.",
}


def row(rule: Rule) -> str:
    """One line of the list of all rules."""
    return f"{rule.code} {rule.slug:32} {rule.severity:8} {rule.title}"


def page() -> str:
    """The page of all rules, in Markdown."""
    out = [
        "# The rules of the audit",
        "",
        "<!-- Written by `python -m lifehold.audit.report`; a test compares. -->",
        "",
        "`lifehold audit explain CODE` tells the same in a terminal. Every example on this page is",
        "run by a test: the first is found, the second is clean. How to use them:",
        "[find stale locks in your code](../how-to/audit.md).",
        "",
        "| code | name | severity | what is wrong |",
        "|---|---|---|---|",
    ]
    for rule in RULES.values():
        mark = "" if rule.default else " (when selected)"
        link = f"[`{rule.code}`](#{rule.code.lower()}-{rule.slug})"
        out.append(f"| {link} | {rule.slug} | {rule.severity}{mark} | {rule.title} |")
    out.append("| `LH001` | unused-suppression | warning | a comment suppresses nothing |")
    for rule in RULES.values():
        out += [
            "",
            f"## {rule.code} {rule.slug}",
            "",
            (
                f"{rule.severity}, confidence {rule.confidence},"
                f" [CWE-{rule.cwe}](https://cwe.mitre.org/data/definitions/{rule.cwe}.html)"
            ),
            "",
            rule.why,
            "",
            "```text",
            rule.timeline,
            "```",
            "",
            "Found:",
            "",
            f"```{FENCES[rule.language]}",
            rule.bad.rstrip(),
            "```",
            "",
            "Clean:",
            "",
            f"```{FENCES[rule.language]}",
            rule.good.rstrip(),
            "```",
            "",
            f"**Fix.** {rule.fix}" + (f" {CURED[rule.cured]}" if rule.cured else ""),
        ]
    return "\n".join(out) + "\n"


if __name__ == "__main__":
    import sys

    sys.stdout.write(page())
