"""The decision tree: every path ends, every end runs as printed, and the page shows the tree."""

from __future__ import annotations

import ast
import asyncio
import itertools
import sys
import threading
from pathlib import Path

import pytest

import lifehold
from lifehold.cli import choose as choosing
from lifehold.cli import options
from lifehold.cli.choose import choose, in_words
from lifehold.cli.choose_tree import ENDS, LATE_PAGE, QUESTIONS, end_of, is_asked

DOCS = Path(__file__).parents[2] / "docs"
IN_FILES = [end for end in ENDS if '"./data/' in end.python and "async" not in end.python]


def paths() -> list[dict[str, str]]:
    """Every way through the tree."""
    found = []
    for words in itertools.product(*(each.answers for each in QUESTIONS)):
        answers: dict[str, str] = {}
        for question, word in zip(QUESTIONS, words, strict=True):
            if is_asked(question, answers):
                answers[question.name] = word
        found.append(tuple(answers.items()))
    return [dict(each) for each in dict.fromkeys(found)]


def test_every_way_ends_and_every_end_is_reached():
    ends = [end_of(answers) for answers in paths()]
    assert {each.what + each.python for each in ends} == {e.what + e.python for e in ENDS}
    assert all(len(answers) <= 5 for answers in paths())


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.python or end.what)
def test_every_line_that_is_printed_is_code_and_every_page_is_there(end):
    assert (DOCS / end.page).is_file()
    assert (DOCS / LATE_PAGE).is_file()
    if "await" in end.python or "async " in end.python:
        tree = ast.parse(f"async def f():\n    {end.python}")
    else:
        tree = ast.parse(end.python)
    known = {"threading": threading, "asyncio": asyncio}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert getattr(lifehold, node.func.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            assert getattr(known[node.value.id], node.attr)
    if end.command:
        program, command, *words = end.command.split()
        assert program == "lifehold"
        row = options.COMMANDS[command]
        given, rest = options.arguments(row, words)
        assert given is not None
        assert rest


@pytest.mark.parametrize("end", IN_FILES, ids=lambda end: end.python)
def test_the_lines_about_files_run(end, tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path)
    taken: list[object] = []
    names = {name: getattr(lifehold, name) for name in lifehold.__all__}
    exec(end.python.replace("...", "taken.append(lease.check())"), names | {"taken": taken})
    assert taken == [None]


HEAD = "| machines | who takes part, or what the machines share | how many | take | more |"


def table() -> str:
    """The tree as the page shows it."""
    rows = [HEAD, "|---|---|---|---|---|"]
    for end in ENDS:
        given = end.given
        where = given.get("hosts") or ("several" if "place" in given else "one")
        who = given.get("who") or given.get("place") or "processes"
        take = f"`{end.python}`" if end.python else end.what
        name = Path(end.page).stem
        up = "" if end.page.startswith("explanation/") else "../"
        link = f"[{name}]({up}{end.page.removeprefix('explanation/')})"
        rows.append(f"| {where} | {who} | {given.get('how', '')} | {take} | {link} |")
    return "\n".join(rows)


def test_the_page_shows_the_tree():
    page = (DOCS / "explanation/choose.md").read_text()
    assert table() in page, f"write into the page:\n{table()}"
    assert "lifehold choose" in page


def test_the_answer_is_one_line_of_code_and_a_page(capsys):
    words = "--hosts several --place folder --how one --late yes".split()
    assert choose(words) == 0
    said = capsys.readouterr().out
    assert 'with Lock("/mnt/shared/job.lock", kind="generation", ttl=30)' in said
    assert "  page     explanation/generation-lock.md\n" in said  # as --json has it
    assert " how-to/late-writer.md\n" in said
    assert "docs/" not in said
    assert all(len(line) <= 110 for p in paths() for line in in_words(p).splitlines())


def test_what_is_left_open_without_a_terminal_is_refused_with_its_option(monkeypatch):
    with open("/dev/null") as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        with pytest.raises(options.Usage, match="--place: folder, database, redis, nothing"):
            choose(["--hosts", "2"])
        with pytest.raises(options.Usage, match="did you mean 'several'"):
            choose(["--hosts", "sevral"])


def test_at_a_terminal_it_asks_what_still_matters_until_it_is_answered(
    monkeypatch, capsys, tmp_path
):
    (tmp_path / "typed").write_text("1\ntreads\nthreads\n3\n")
    said: list[str] = []
    monkeypatch.setattr(choosing, "say", lambda text, prefix: said.append(text))
    monkeypatch.setattr(choosing.os, "isatty", lambda fd: True)
    monkeypatch.setattr(choosing.os, "write", lambda fd, text: len(text))
    with open(tmp_path / "typed") as typed:
        monkeypatch.setattr(sys, "stdin", typed)
        assert choose([]) == 0
    assert "threading.BoundedSemaphore(4)" in capsys.readouterr().out
    asked = [each.text for each in QUESTIONS if any(each.text in line for line in said)]
    assert asked == [each.text for each in QUESTIONS if each.name in ("hosts", "who", "how")]
    assert any("did you mean 'threads'?" in line for line in said)
