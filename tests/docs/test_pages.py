"""Every block of code in the documentation and the README does what its page says."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

import snippets
from ground import needs, require

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCKS = {str(page.relative_to(ROOT)): snippets.blocks(page.read_text()) for page in PAGES}
RECORD = ROOT / "docs" / "reference" / "record.schema.json"
# The whole list of blocks that are not run here, with the reason the page gives.
EXCUSED = {
    "README.md": {"the build runs these two commands themselves", "it needs a package index"},
    "docs/how-to/once.md": {"a conftest.py, for pytest to read"},
    "docs/tutorials/first-lock.md": {"it needs a package index"},
}


def code(name: str) -> list[snippets.Block]:
    return [block for block in BLOCKS[name] if block.language != "json"]


@needs("package:lifehold.cli.main")
@pytest.mark.parametrize("name", [name for name in BLOCKS if code(name)])
def test_the_code_of_a_page_runs_as_shown(name, tmp_path):
    lines = re.findall(r"^<!-- needs: (.+) -->$", (ROOT / name).read_text(), re.MULTILINE)
    wanted = [word for line in lines for word in line.split()]
    require(*wanted)
    with contextlib.ExitStack() as stack:
        surroundings = dict(os.environ)
        if "redis" in wanted:
            from servers import redis

            surroundings["REDIS_URL"] = stack.enter_context(redis.started()).url
            surroundings |= redis.programs()
        done = subprocess.run(
            [sys.executable, snippets.__file__, str(ROOT / name)],
            cwd=tmp_path,
            env=surroundings,
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
    assert done.returncode == 0, done.stderr


def test_every_block_that_is_not_run_has_a_known_reason():
    excuses = {
        name: {block.excuse for block in found if block.excuse} for name, found in BLOCKS.items()
    }
    assert {name: why for name, why in excuses.items() if why} == EXCUSED


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "SECURITY.md"])
def test_the_links_of_a_page_outside_the_site_lead_somewhere(name):
    """Inside docs/ the strict build looks at links."""
    targets = re.findall(r"\]\(([^)#:]+)[^)]*\)", (ROOT / name).read_text())
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_a_decision_record_is_at_most_sixty_lines():
    records = sorted((ROOT / "docs" / "adr").glob("[0-9]*.md"))
    assert records
    for record in records:
        text = record.read_text()
        assert text.count("\n") <= 60, record.name
        parts = ["## Context", "## Decision", "## What we gave up", "## The number that would show"]
        assert [part for part in parts if part not in text] == [], record.name


def test_the_record_on_its_page_fits_the_published_schema():
    schema = json.loads(RECORD.read_text())
    Draft202012Validator.check_schema(schema)
    records = [b for b in BLOCKS["docs/reference/record.md"] if b.language == "json"]
    assert records
    for block in records:
        Draft202012Validator(schema).validate(json.loads(block.text))


@pytest.mark.parametrize("change", [{"lifehold": "1"}, {"token": "x"}, {"nonce": "Z"}, {"pid": -1}])
def test_the_schema_refuses_a_record_that_is_not_one(change):
    schema = json.loads(RECORD.read_text())
    (block, *_) = [b for b in BLOCKS["docs/reference/record.md"] if b.language == "json"]
    record = json.loads(block.text) | change
    assert not Draft202012Validator(schema).is_valid(record)
