"""The formats of a report, for people, pipelines and code hosts; the baseline; a rule in full.

A baseline holds what was there before, which is left out from then on. Its fingerprints are made of
path, rule, function and the text of the line, so that lines may move.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from xml.sax.saxutils import escape, quoteattr

from .catalogue import RULES
from .settings import Unusable
from .suppress import UNUSED

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .finding import Finding
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
            ends = each.end_column if each.end_line == each.line else len(row) + 1
            marks = "^" * max(1, min(ends, len(row) + 1) - each.column)
            out.append(f"{dim}{each.line:>{width + 2}} |{end} {printable(row)}")
            out.append(f"{dim}{'':>{width + 2}} |{end} {' ' * (each.column - 1)}{red}{marks}{end}")
        for span in each.spans:
            out.append(f"{dim}{span.line:>{width + 2}} |{end} {span.text}")
        if each.code in RULES:
            out.append(f"  fix: {RULES[each.code].fix}")
        out.append("")
    out.append(summary(report))
    return "\n".join(out)


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
    said += f" in {report.files} file{'' if report.files == 1 else 's'} ({report.lines} lines)"
    if report.suppressed:
        said += f", {report.suppressed} suppressed"
    if report.known:
        said += f", {report.known} in the baseline"
    return said + "."


def statistics(report: AuditReport) -> str:
    """How often each rule was broken, most first."""
    counts: dict[str, int] = {}
    for each in report.findings:
        counts[each.code] = counts.get(each.code, 0) + 1
    rows = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return "\n".join([*(f"{n:6} {code} {slug(code)}" for code, n in rows), summary(report)])


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
                "path": f.path,
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
        "notices": [{"path": n.path, "line": n.line, "text": n.text} for n in report.notices],
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
        text = data(text)
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
                "location": {"path": f.path, "lines": {"begin": f.line, "end": f.end_line}},
            }
            for f in report.findings
        ],
        indent=1,
        ensure_ascii=False,
    )


def sarif(report: AuditReport, version: str) -> str:
    """SARIF 2.1.0 with rules, fingerprints and, where there is a second place, a code flow."""
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
                "executionSuccessful": True,
                "toolExecutionNotifications": [
                    {
                        "level": "note",
                        "message": {"text": n.text},
                        "locations": [{"physicalLocation": {"artifactLocation": _uri(n.path)}}],
                    }
                    for n in report.notices[:1000]
                ],
            }
        ],
        "results": [_result(f, places) for f in report.findings[:MOST_IN_SARIF]],
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
        return {"uri": "file://" + quote(path)}
    return {"uri": quote(path.removeprefix("./")), "uriBaseId": "SRCROOT"}


def _place(f: Finding, line: int, text: str) -> dict[str, Any]:
    where = {"artifactLocation": _uri(f.path), "region": {"startLine": line}}
    return {"physicalLocation": where, "message": {"text": text}}


def _result(f: Finding, places: dict[str, int]) -> dict[str, Any]:
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
        {"fingerprint": f.fingerprint, "code": f.code, "path": f.path, "message": f.message}
        for f in findings
    ]
    return json.dumps({"schema": BASELINE, "findings": rows}, indent=1, ensure_ascii=False) + "\n"


def without(report: AuditReport, file: Path) -> None:
    """Take out of the report what the baseline holds. Raises Unusable."""
    marks = read(file)
    new = [each for each in report.findings if each.fingerprint not in marks]
    report.known += len(report.findings) - len(new)
    report.findings = new


def read(file: Path) -> frozenset[str]:
    """The fingerprints in a baseline. Raises Unusable for one of another version."""
    again = "write it anew with --write-baseline"
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
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
