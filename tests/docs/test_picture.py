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
ASSETS = ROOT / "docs" / "assets"
PICTURES = [ASSETS / "demo.svg", ASSETS / "demo-phone.svg"]
SVG = "{http://www.w3.org/2000/svg}"
TEXT, GROUP = f"{SVG}text", f"{SVG}g"


@pytest.fixture(scope="module")
def picture():
    spec = importlib.util.spec_from_file_location("picture", ROOT / "tools" / "picture.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def words(part) -> str:
    return " ".join((text.text or "") for text in part.iter(TEXT))


@pytest.mark.parametrize("picture", PICTURES, ids=lambda file: file.name)
def test_the_picture_shows_the_scenes_that_the_demo_has_today(picture):
    """`make picture` records it anew."""
    root = ET.parse(picture).getroot()
    tree = ast.parse((ROOT / "src" / "lifehold" / "cli" / "demo.py").read_text())
    titles = [
        f"{node.args[0].value}  {node.args[1].value}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "title"
    ]
    assert len(titles) == 4
    still, *scenes = root.iter(GROUP)
    scenes = [scene for scene in scenes if scene.get("class") == "scene"]
    for title, scene in zip(sorted(titles), scenes, strict=True):
        assert words(scene).startswith(title)
        assert title in words(still)
    assert "StaleToken" in words(still)
    assert "LeaseLost" in words(root)


@pytest.mark.parametrize("picture", PICTURES, ids=lambda file: file.name)
def test_the_first_frame_is_still_and_stays_where_nothing_may_move(picture):
    """Every rule that moves or hides something is for who has nothing against motion."""
    root = ET.parse(picture).getroot()
    still, *groups = root.iter(GROUP)
    assert (still.get("id"), still.get("opacity")) == ("still", None)
    scenes = [group for group in groups if group.get("class") == "scene"]
    assert {scene.get("opacity") for scene in scenes} == {"0"}
    for style in root.iter(f"{SVG}style"):
        assert style.text.strip().startswith("@media (prefers-reduced-motion: no-preference) {")
        assert style.text.strip().endswith("}")


@pytest.mark.parametrize("picture", PICTURES, ids=lambda file: file.name)
def test_the_picture_needs_no_server_and_names_no_place_of_its_maker(picture):
    text = picture.read_text()
    assert set(re.findall(r"https?://[^\"\s)]+", text)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"@font-face|<script|url\(|/home/|\.venv", text)


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_picture_stands_on_the_first_page(page):
    text = (ROOT / page).read_text()
    for picture, pattern in zip(
        PICTURES, (r"!\[.+\]\((.+demo\.svg)\)", r"srcset=\"(\S+)\""), strict=True
    ):
        (target,) = re.findall(pattern, text)
        assert (ROOT / page).parent.joinpath(target) == picture


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
