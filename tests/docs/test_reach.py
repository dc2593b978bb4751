"""A reader finds every page: within two clicks of the first, and by the search."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from posixpath import dirname, join, normpath

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
CONFIGURED, _, NAV = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")
PAGES = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}


def entries() -> list[tuple[int, str]]:
    """Each entry of the navigation: how deep it stands, and its page; "" for a group."""
    found = re.findall(r"^( *)- (.+)$", NAV, re.MULTILINE)
    return [
        (len(indent) // 4, (re.findall(r"\S+\.md$", text) or [""])[0]) for indent, text in found
    ]


def links(page: str, text: str) -> set[str]:
    """The pages of the documentation that `page` leads to."""
    found = re.findall(r"\]\(([^)#:\s]+\.md)[^)]*\)", text)
    return {normpath(join(dirname(page), target)) for target in found}


def linked(page: str) -> set[str]:
    return links(page, (DOCS / page).read_text())


@pytest.fixture
def tabs() -> list[list[str]]:
    """The pages of each tab. A click on a tab opens its first page and shows the names of all."""
    found: list[list[str]] = []
    for depth, page in entries():
        if depth == 0:
            found.append([])
        found[-1] += [page] if page else []
    return found


def test_the_site_shows_all_pages_of_a_tab_at_once_and_has_a_search():
    for line in ("- navigation.tabs", "- navigation.sections", "plugins:\n  - search"):
        assert f"{line}\n" in CONFIGURED + "\n" or f"{line} #" in CONFIGURED, line


def test_every_page_is_two_clicks_from_the_first(tabs):
    assert tabs[0] == ["index.md"]
    first = linked("index.md") | {tab[0] for tab in tabs}
    by_tab = {page for tab in tabs for page in tab}  # one click on the tab, one on the page
    by_links = {page for one in first for page in linked(one)}
    assert PAGES - first - by_tab - by_links == set()


@pytest.mark.parametrize("page", sorted(page for page in PAGES if not page.startswith("adr/")))
def test_a_page_begins_with_a_paragraph_that_says_what_it_is_for(page):
    text = re.sub(r"<!--.*?-->\n?", "", (DOCS / page).read_text(), flags=re.DOTALL)
    _, first, *_ = (block for block in text.split("\n\n") if block.strip())
    assert re.match(r"[A-Za-z`*\[\"]", first.lstrip()), first
    assert not first.lstrip().startswith("```"), first


def test_no_group_stands_in_a_group():
    """It would be folded in: a third click."""
    assert [page for depth, page in entries() if depth > 2 or (depth == 2 and not page)] == []


def test_nothing_stands_below_a_page():
    """YAML would not be read: a page has no pages of its own."""
    rows = pairwise(entries())
    assert [above for (depth, above), (next_, _) in rows if above and next_ > depth] == []


def test_the_readme_answers_the_same_questions_as_the_first_page():
    def questions(text: str) -> list[str]:
        (table,) = re.findall(r"\| you ask \|.*?\n\n", text, re.DOTALL)
        return re.findall(r"^\| ([^|]+[.?]) \|", table, re.MULTILINE)

    asked = questions((ROOT / "README.md").read_text())
    assert len(asked) >= 5
    assert set(asked) <= set(questions((DOCS / "index.md").read_text() + "\n"))
