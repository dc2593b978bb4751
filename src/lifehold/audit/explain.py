"""A rule told in full: for `lifehold audit explain`, and as the page of the rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .catalogue import RULES

if TYPE_CHECKING:
    from .rule import Rule


def text(rule: Rule) -> str:
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
        "<!-- Written by `python -m lifehold.audit.explain`; a test compares. -->",
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
            "```py",
            rule.bad.rstrip(),
            "```",
            "",
            "Clean:",
            "",
            "```py",
            rule.good.rstrip(),
            "```",
            "",
            f"**Fix.** {rule.fix}" + (f" {CURED[rule.cured]}" if rule.cured else ""),
        ]
    return "\n".join(out) + "\n"


if __name__ == "__main__":
    import sys

    sys.stdout.write(page())
