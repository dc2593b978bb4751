"""A comment that silences rules: which are understood, and what a typo in one does."""

from __future__ import annotations

from pathlib import Path

import pytest

from lifehold.audit import scan
from lifehold.audit.settings import Settings
from lifehold.audit.suppress import UNUSED, suppressions

FLAWED = """\
import os
def acquire(lock_path):
    if os.path.exists(lock_path): return False
    with open(lock_path, "w") as f: f.write(str(os.getpid()))  # COMMENT
"""
SCRIPT = """\
const fs = require("fs");
function acquire(lockPath) {
  if (fs.existsSync(lockPath)) return false;
  fs.writeFileSync(lockPath, String(process.pid)); // COMMENT
}
"""
TYPOS = (
    "lifehold: ignore[LH111",
    "lifehold: ignore[LH111 -- only one writes",
    "lifehold: ignore LH111",
    "lifehold: ignores(LH111)",
    "lifehold: ignore(LH111)",
    "lifehold: ignore-file[LH111 -- only one writes",
    "lifehold: ignore-file LH111",
    "lifehold: ignore-filesystem-errors",
    "lifehold: ignored-by-design-files",
    "lifehold: ignore[nonsense]",
    "lifehold: ignore[]",
)
RIGHT = (
    "lifehold: ignore",
    "lifehold: ignore -- only one writes",
    "lifehold: ignore--only one writes",
    "lifehold: ignore[LH111, LH109] -- only one writes",
    "lifehold: ignore [LH111, LH109]",
    "lifehold: ignore[LH111, LH109] only one writes",
    "lifehold: ignore-file",
    "lifehold: ignore-file[LH111,LH109]",
    "lifehold: ignore-file -- only one writes",
    "lifehold: ignore  # and another comment",
)


def found(text: str, name: str = "app.py") -> set[str]:
    return {each.code for each in scan.of_text(name, text, Settings())}


@pytest.mark.parametrize("comment", TYPOS)
def test_a_typo_silences_nothing_and_is_told(comment):
    plain = found(FLAWED)
    assert plain
    assert found(FLAWED.replace("COMMENT", comment)) == {*plain, UNUSED}


@pytest.mark.parametrize("comment", TYPOS)
def test_a_typo_in_javascript_is_told_too(comment):
    plain = found(SCRIPT, "app.js")
    assert plain
    assert found(SCRIPT.replace("COMMENT", comment), "app.js") == {*plain, UNUSED}


def test_a_string_of_javascript_silences_nothing():
    for comment in ("lifehold: ignore-file", "lifehold: ignore-file[LH401]"):
        text = f'const s = "// {comment}";\n{SCRIPT}'
        assert found(text, "app.js") >= found(SCRIPT, "app.js")


TEMPLATES = (
    "const help = `\n// COMMENT\n`;\n",
    "const help = `é\n// COMMENT\n`;\n",
    'const url = "https://COMMENT";\n',
    "const view = <p>\n// COMMENT\n</p>;\n",
)


@pytest.mark.parametrize("comment", ["lifehold: ignore-file", "lifehold: ignore -- why"])
@pytest.mark.parametrize("text", TEMPLATES)
def test_a_text_of_several_lines_in_javascript_silences_nothing(text, comment):
    text = text.replace("COMMENT", comment) + SCRIPT
    assert found(text, "app.jsx") == found(SCRIPT, "app.jsx") != set()


@pytest.mark.parametrize(
    "text", ["// COMMENT\n", "/* // COMMENT */\n", 'const s = "// lifehold: no"; // COMMENT\n']
)
def test_a_comment_of_javascript_silences_its_file(text):
    text = text.replace("COMMENT", "lifehold: ignore-file -- why")
    assert found(text + SCRIPT, "app.js") == set()


TAKES = """\
LOCK=/tmp/a.lock
if [ -f "$LOCK" ]; then exit 1; fi
touch "$LOCK"
"""
DOCUMENTS = (
    "cat <<EOF > page.md\nWrite \\`# COMMENT\\` to silence a file.\nEOF\n",
    "cat <<'EOT' > page.md\n# COMMENT\nEOT\n",
    "cat <<A <<-B > page.md\none\nA\n\t# COMMENT\n\tB\n",
    "echo 'one\n# COMMENT\n'\n",
    'echo "# COMMENT"\n',
    "echo https://COMMENT\n",
)


@pytest.mark.parametrize("text", DOCUMENTS)
def test_a_text_in_a_shell_script_silences_nothing(text):
    text = text.replace("COMMENT", "lifehold: ignore-file -- why") + TAKES
    assert found(text, "app.sh") == found(TAKES, "app.sh") != set()


@pytest.mark.parametrize(
    "text",
    [
        "# COMMENT\n",
        "cat <<EOF\ntext\nEOF\n# COMMENT\n",
        "true  # COMMENT\n",
        "x=$(\n  # COMMENT\n  date\n)\n",
        'echo "# lifehold: no"  # COMMENT\n',
        "if ((2 > 1)); then # COMMENT\n  true\nfi\n",
    ],
)
def test_a_comment_of_a_shell_script_silences_its_file(text):
    text = text.replace("COMMENT", "lifehold: ignore-file -- why")
    assert found(text + TAKES, "app.sh") == set()


@pytest.mark.parametrize("comment", RIGHT)
def test_what_is_spelled_right_is_understood(comment):
    (made,) = suppressions(f"x = 1  # {comment}\n")
    assert made.understood
    assert set(made.codes) in ({"LH111", "LH109"}, set())
    assert made.whole_file == ("ignore-file" in comment)


def test_the_message_tells_how_it_is_spelled():
    found = scan.of_text("app.py", "x = 1  # lifehold: ignore[LH111\n", Settings())
    assert "not understood" in found[0].message


def test_the_example_of_the_page_silences_a_finding():
    page = (Path(__file__).parents[2] / "docs/how-to/audit.md").read_text(encoding="utf-8")
    example = next(each for each in page.split("```") if "  # lifehold: ignore[LH109]" in each)
    example = example.removeprefix("python\n")
    comment = next(row for row in example.splitlines() if "# lifehold:" in row).partition("  #")
    assert found(example) == set()
    assert found(example.replace("".join(comment[1:]), "")) == {"LH109"}
