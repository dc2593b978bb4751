"""The runner of the documentation's code: it fails wherever a page is untrue."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import snippets
from crash.scene import until

BESIDE = Path(sys.executable).parent


def page(*parts: tuple[str, str]) -> str:
    return "# A page\n\n" + "\n".join(f"Text.\n\n```{lang}\n{text}\n```\n" for lang, text in parts)


@pytest.fixture
def run(tmp_path):
    def run(text: str) -> subprocess.CompletedProcess[str]:
        file = tmp_path / "page.md"
        file.write_text(text)
        folder = tmp_path / "folder"
        folder.mkdir()
        return subprocess.run(
            [sys.executable, snippets.__file__, str(file)],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )

    return run


GOOD = {
    "blocks_share_a_namespace": [("python", "a = 1"), ("python", "assert a == 1")],
    "blocks_share_a_folder": [
        ("python", "open('x', 'w').write('hello\\n')"),
        ("console", "$ cat x\nhello"),
    ],
    "a_session_keeps_its_state": [("console", "$ x=1; cd /\n$ echo $x $PWD\n1 /")],
    "dots_stand_for_any_text": [("console", "$ echo pid 4127, alive\npid ..., alive")],
    "dots_stand_for_any_lines": [("console", "$ printf '1\\n2\\n3\\n4\\n'\n1\n...\n4")],
    "a_command_goes_on": [("console", "$ for i in 1 2; do\n>   echo $i\n> done\n1\n2")],
    "a_shown_status_is_checked": [("console", '$ false; echo "status $?"\nstatus 1')],
    "a_background_job_does_not_hang": [("console", "$ sleep 30 &\n$ echo on\non")],
    "standard_error_is_seen": [("console", "$ echo no >&2\nno")],
    "a_script_runs": [("bash", "x=1\n[ $x = 1 ]")],
    "this_python_comes_first": [
        ("console", f'$ [ "$(command -v python)" -ef {BESIDE}/python ]'),
    ],
    "other_languages_are_text": [("text", "$ false"), ("toml", "][")],
    "json_parses": [("json", '{"token":      12}')],
}
BAD = {
    "an_exception": ([("python", "x = 1\nx = 1 / 0")], 'page.md", line 7'),
    "a_syntax_error": ([("python", "x = = 1")], "page.md"),
    "an_exit": ([("python", "raise SystemExit(0)")], "page.md, line 6"),
    "a_status": ([("console", "$ false\n$ true")], "ended with status 1"),
    "other_output": ([("console", "$ echo two\none")], "the page shows:\none\nit printed:\ntwo"),
    "more_output": ([("console", "$ printf '1\\n2\\n'\n1")], "it printed:\n1\n2"),
    "less_output": ([("console", "$ echo 1\n1\n2")], "it printed:\n1"),
    "an_ended_shell": ([("console", "$ exit 0\n$ true")], "the shell ended before"),
    "output_before_a_command": ([("console", "hello\n$ true")], "begins with `$ `"),
    "a_failing_script": ([("bash", "false\ntrue")], "the script failed"),
    "a_late_block": ([("python", "a = 1"), ("python", "assert a == 2")], "AssertionError"),
    "broken_json": ([("json", "{")], "Expecting"),
}


@pytest.mark.parametrize("name", GOOD)
def test_a_true_page_passes(name, run):
    done = run(page(*GOOD[name]))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", BAD)
def test_an_untrue_page_fails_and_says_where(name, run):
    parts, words = BAD[name]
    done = run(page(*parts))
    assert done.returncode == 1
    assert words in done.stderr


def test_a_block_that_is_never_closed_fails(run):
    assert "never closed" in run("```python\na = 1\n").stderr


def test_an_indented_block_is_run_as_if_it_were_not():
    text = '=== "Tab"\n\n    ```python\n    if True:\n        a = 1\n    ```\n'
    assert snippets.blocks(text)[0].text == "if True:\n    a = 1\n"


def test_an_excused_block_is_not_run_and_keeps_its_reason(run):
    text = "<!-- not run: it takes a week -->\n```python\n1 / 0\n```\n"
    assert snippets.blocks(text)[0].excuse == "it takes a week"
    assert run(text).returncode == 0


def test_what_a_block_leaves_running_ends_with_it(run, tmp_path):
    run(page(("console", "$ sleep 300 & echo $! > pid")))
    pid = (tmp_path / "folder" / "pid").read_text().strip()
    until(lambda: is_over(pid), 60, f"process {pid} runs on")


def is_over(pid):
    """Whether it has ended: a signal that was sent takes its time to arrive."""
    try:
        return ") Z " in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
