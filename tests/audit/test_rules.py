"""Each rule finds its own bad example, and no rule finds anything in a good one."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from lifehold.audit import report, scan
from lifehold.audit.catalogue import RULES
from lifehold.audit.forms import judged
from lifehold.audit.model import Module
from lifehold.audit.rule import Rule
from lifehold.audit.suppress import UNUSED

ROOT = Path(__file__).parents[2]


def codes(text: str) -> list[str]:
    judge = judged(Module("example.py", text, ast.parse(text)))
    return [hit[0] for hit in scan.hits(judge, text)]


def codes_of(rule: Rule, text: str) -> list[str]:
    if rule.language == "python":
        return codes(text)
    if rule.language == "javascript":
        return [hit[0] for hit in scan.hits_of_unit("example.js", "javascript", text)]
    kind = "shell" if rule.language == "shell" else "docker" if "FROM" in text else "compose"
    return [hit[0] for hit in scan.hits_of_unit(f"example.{kind}", kind, text)]


@pytest.mark.parametrize("code", RULES)
def test_the_bad_example_of_a_rule_is_found_by_it(code):
    assert code in codes_of(RULES[code], RULES[code].bad)


@pytest.mark.parametrize("code", RULES)
def test_the_good_example_of_a_rule_is_found_by_none(code):
    assert codes_of(RULES[code], RULES[code].good) == []


@pytest.mark.parametrize("code", RULES)
def test_a_rule_says_all_that_a_page_needs(code):
    rule = RULES[code]
    assert rule.why
    assert rule.timeline
    assert rule.fix
    assert rule.cwe > 0
    assert rule.title[0].islower()
    assert not rule.title.endswith(".")


def test_codes_and_slugs_of_rules_are_there_once():
    assert list(RULES) == sorted(RULES)
    assert len({rule.slug for rule in RULES.values()}) == len(RULES)
    assert UNUSED not in RULES


def test_the_page_of_the_rules_is_what_the_rules_write():
    assert (ROOT / "docs/reference/audit/rules.md").read_text() == report.page()


def test_a_message_names_the_variable_and_the_other_line():
    text = RULES["LH101"].bad
    judge = judged(Module("example.py", text, ast.parse(text)))
    (hit,) = RULES["LH101"].check(judge)
    assert "`lock_path`" in hit.message
    assert "line 4" in hit.message
    assert [span.line for span in hit.spans] == [4]
