"""The recorded picture of the demo shows today's demo, and asks nobody's server for anything."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs" / "assets" / "demo.svg"
TEXT = "{http://www.w3.org/2000/svg}text"


@pytest.fixture(scope="module")
def picture():
    spec = importlib.util.spec_from_file_location("picture", ROOT / "tools" / "picture.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_picture_shows_the_scenes_that_the_demo_has_today():
    """`make picture` records it anew."""
    shown = [text.text or "" for text in ET.parse(PICTURE).iter(TEXT)]
    tree = ast.parse((ROOT / "src" / "lifehold" / "cli" / "demo.py").read_text())
    titles = [
        f"{node.args[0].value}  {node.args[1].value}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "title"
    ]
    assert len(titles) == 4
    assert [line for line in shown if line in titles] == sorted(titles)
    assert {"StaleToken", "LeaseLost"} <= set(shown)


def test_the_picture_needs_no_server_and_names_no_place_of_its_maker():
    text = PICTURE.read_text()
    assert set(re.findall(r"https?://[^\"\s)]+", text)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"@font-face|<script|url\(|/home/|\.venv", text)


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_picture_stands_on_the_first_page(page):
    (target,) = re.findall(r"!\[.+\]\((.+demo\.svg)\)", (ROOT / page).read_text())
    assert (ROOT / page).parent.joinpath(target) == PICTURE


def test_what_was_painted_over_and_what_is_coloured_is_drawn_as_it_was_seen(picture):
    program = (
        r"print('  0.1 s  ...\r\x1b[J\x1b[2m  0.2 s\x1b[0m  \x1b[31m<told> & \x1b[0mdone'); "
        "import sys; print(sys.stdout.isatty())"
    )
    lines = picture.record([sys.executable, "-c", program])
    root = ET.fromstring(picture.drawn(lines, "a & b"))
    texts = [(text.text, text.get("fill")) for text in root.iter(TEXT)][1:]
    assert texts == [
        ("0.2 s", picture.COLOURS["2"]), ("<told> &", picture.COLOURS["31"]), ("done", None),
        ("True", None),
    ]  # fmt: skip
