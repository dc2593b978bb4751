"""The linter of the pages' English finds bad sentences, leaves good ones alone, and is quick."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def prose():
    spec = importlib.util.spec_from_file_location("prose", ROOT / "tools" / "prose.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["prose"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["prose"]


LONG = "A word " * 15 + "and one more."
BAD = {
    "who-as-subject": "Who is silent for its `ttl` may be replaced.",
    "who-as-subject, ever": "Whoever must not stop you must not be able to read the file.",
    "and-who": "A lock is free; who waits, is called.",
    "of-whom": "Two processes, of whom one waits.",
    "is-said": "More is said on the page of stores.",
    "needs-not": "The option needs it not.",
    "gone-by": "Looked at, and gone by.",
    "behind-your-back": "A lease is renewed behind your back.",
    "timeout-of-lease": "The timeout of the lease is 30 s.",
    "nonce-token": "Each holder writes a random token.",
    "zombie": "A zombie holder writes late.",
    "simply": "You can simply remove it.",
    "etc": "Locks, leases etc. are kept.",
    "utilise": "Use a lock in order to wait.",
    "long-sentence": LONG,
}
GOOD = [
    "If a holder stops renewing for `ttl` seconds, others may take the lock.",
    "Who holds the lock?",
    "A waiter is told who holds the lock.",
    "A process that is gone by its identity is dead.",
    "`lifehold who` names the process; the token of the lease grows.",
    "It survives kill -9 at any step; " + "a pause of the machine; " * 8 + "a full disk.",
    "First sentence of ten words that is not very long. " * 4,
    "See [a page with a very long title that goes on and on](page.md#an-anchor-of-it).",
    "Run `" + "word " * 40 + "` once.",
    "A file is made, e.g. A.lock, and stays.",
]


@pytest.mark.parametrize("name", BAD)
def test_a_bad_sentence_is_found_by_its_rule(name, prose):
    assert [found.rule for found in prose.look(BAD[name])] == [name.partition(",")[0]]


@pytest.mark.parametrize("text", GOOD)
def test_a_good_sentence_is_left_alone(text, prose):
    assert prose.look(text) == []


@pytest.mark.parametrize(
    "page",
    [
        "```text\nWho waits is told.\n```",
        "````\n```\nWho waits is told.\n```\n````",
        "# Who waits is told",
        "<!-- figures: a table -->\n\nWho waits is told.\n\n<!-- end -->",
        "<!-- prose: off -->\nWho waits is told.\n<!-- prose: on -->",
        "| who waits | is told |\n|---|---|\n| it | does |",
    ],
)
def test_what_is_no_prose_is_not_looked_at(page, prose):
    assert prose.look(page) == []


def test_a_breach_is_told_with_its_line_and_a_remedy(prose):
    page = "# Title\n\nGood.\n\n- a list, whose\n  item goes on. Who waits is told.\n"
    (found,) = prose.look(page, "page.md")
    assert str(found).startswith("page.md:5: who-as-subject: 'Who waits is told.': name the thing")


def test_a_list_is_as_long_as_its_longest_part(prose):
    item = "a pause of the whole machine for some minutes"
    assert prose.words(f"It survives {item}; {item}; {item}; {item}.") < prose.LONGEST
    assert prose.words(f"It survives {item}, {item}, {item}, {item}.") > prose.LONGEST


def test_the_pages_that_are_held_to_it_are_there(prose):
    held = prose.held()
    assert len(held) > 50
    assert [page for page in held if not page.is_file()] == []
    assert {page.name for page in held} >= {"README.md", "choose.md", "glossary.md", "hangs.md"}


def test_every_word_that_the_linter_forbids_has_a_remedy(prose):
    assert [rule.name for rule in prose.RULES if not rule.remedy] == []
    assert len({rule.name for rule in prose.RULES}) == len(prose.RULES)
