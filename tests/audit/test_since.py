"""What is only told of changed lines, and what is looked at again and again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ground import needs
from lifehold.audit.catalogue import RULES
from lifehold.audit.finding import Finding, Span
from lifehold.audit.report import hunks, touches
from lifehold.cli.main import main

BAD = RULES["LH101"].bad
OTHER = RULES["LH115"].bad
ENV = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
    "GIT_AUTHOR_NAME": "me",
    "GIT_AUTHOR_EMAIL": "me@example.org",
    "GIT_COMMITTER_NAME": "me",
    "GIT_COMMITTER_EMAIL": "me@example.org",
}


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name, text in ENV.items():
        monkeypatch.setenv(name, text)

    def git(*words: str) -> None:
        subprocess.run(["git", *words], cwd=tmp_path, check=True, capture_output=True)

    git("init", "-q", "-b", "main", ".")
    (tmp_path / ".gitignore").write_text("cache\n")
    (tmp_path / "old.py").write_text(BAD)
    git("add", "-A")
    git("commit", "-qm", "old")
    return git


def told(capfd, *words: str) -> list[str]:
    """The places that are told."""
    assert main(["audit", "--format", "concise", *words]) in (0, 1)
    rows = capfd.readouterr().out.splitlines()[:-1]
    return sorted(row.split(": ")[0].rpartition(":")[0] for row in rows)


@needs("command:git")
def test_only_lines_that_changed_are_told(checkout, tmp_path, capfd):
    assert told(capfd, "--diff-base", "HEAD") == []
    (tmp_path / "old.py").write_text(BAD + "\n\n" + OTHER)
    line = len(BAD.splitlines()) + 2 + 4
    assert told(capfd, "--diff-base", "HEAD") == [f"old.py:{line}"]


@needs("command:git")
def test_a_file_that_git_does_not_know_is_new_as_a_whole(checkout, tmp_path, capfd):
    (tmp_path / "a new\tö.py").write_text(OTHER)
    (found,) = told(capfd, "--diff-base", "HEAD")
    assert found.endswith("ö.py:4")


@needs("command:git")
@pytest.mark.parametrize("attribute", ["-diff", "binary", "diff=other"])
def test_attributes_hide_no_line(checkout, tmp_path, capfd, attribute):
    (tmp_path / ".gitattributes").write_text(f"*.py {attribute}\n")
    (tmp_path / "old.py").write_text(BAD + "\n\n" + OTHER)
    line = len(BAD.splitlines()) + 2 + 4
    assert told(capfd, "--diff-base", "HEAD") == [f"old.py:{line}"]


@needs("command:git")
def test_an_ignored_file_is_new_when_it_or_its_folder_is_named(checkout, tmp_path, capfd):
    (tmp_path / ".gitignore").write_text("cache\nmade/\n")
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "one.py").write_text(OTHER)
    assert told(capfd, "--diff-base", "HEAD", "made/one.py", "old.py") == ["made/one.py:4"]
    assert told(capfd, "--diff-base", "HEAD", "made") == ["made/one.py:4"]
    assert told(capfd, "--diff-base", "HEAD", ".") == []


@needs("command:git")
def test_other_rights_change_no_line(checkout, tmp_path, capfd):
    (tmp_path / "old.py").chmod(0o755)
    assert told(capfd, "--diff-base", "HEAD") == []


@needs("command:git")
def test_a_renamed_file_is_known_by_its_lines(checkout, tmp_path, capfd):
    checkout("mv", "old.py", "moved.py")
    assert told(capfd, "--diff-base", "HEAD") == []


@needs("command:git")
def test_what_others_did_since_the_branch_left_is_no_change_of_ours(checkout, tmp_path, capfd):
    checkout("checkout", "-qb", "ours")
    checkout("checkout", "-q", "main")
    (tmp_path / "old.py").write_text("pass\n")
    checkout("commit", "-qam", "theirs")
    checkout("checkout", "-q", "ours")
    assert told(capfd, "--diff-base", "main") == []


@needs("command:git")
def test_a_second_place_that_changed_is_enough(checkout, tmp_path, capfd):
    rows = BAD.splitlines(keepends=True)
    number = next(n for n, row in enumerate(rows) if "exists" in row)
    rows[number] = rows[number].replace(":\n", ":  # quite\n")
    (tmp_path / "old.py").write_text("".join(rows))
    assert len(told(capfd, "--diff-base", "HEAD")) == 1


@needs("command:git")
@pytest.mark.parametrize("revision", ["nothing", "--help", "HEAD~7", ""])
def test_a_revision_that_is_none_is_said(checkout, tmp_path, capfd, revision):
    asked = ["audit", f"--diff-base={revision}"]
    if not revision:
        assert main(asked) == 1  # as without it
        return
    assert main(asked) == 2
    assert "git knows no revision" in capfd.readouterr().err


def test_a_folder_without_git_is_said(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    if any((each / ".git").exists() for each in (tmp_path, *tmp_path.parents)):
        pytest.skip("the folder for temporary files is a checkout")
    assert main(["audit", "--diff-base", "HEAD", "--no-cache"]) == 2
    assert "is in no checkout of git" in capfd.readouterr().err


def test_a_deletion_touches_the_lines_beside_it():
    assert hunks(b"@@ -5,2 +4,0 @@ x\n-a\n-b\n@@ -9 +7,2 @@\n") == [(4, 5), (7, 8)]
    at = Finding("a.py", 6, 1, 6, 2, "LH101", "", spans=(Span(3, ""),))
    assert not touches(at, [(4, 5), (7, 8)])
    assert touches(at, [(3, 3)])
    assert touches(at, [(6, 6)])
    assert touches(at, None)
    assert not touches(at, [])


@needs("fork")
def test_watching_looks_again_when_a_file_changes(tmp_path):
    (tmp_path / "a.py").write_text(OTHER)
    source = Path(__file__).parents[2] / "src"
    with subprocess.Popen(
        [sys.executable, "-u", "-m", "lifehold", "audit", "--watch", "--no-cache", "."],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(source)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as watching:
        try:
            assert watching.stdout is not None
            assert until(watching.stdout, "in 1 file").startswith("1 finding")
            (tmp_path / "a.py").write_text("import lifehold\n")
            assert "a.py" in until(watching.stdout, "changed: ")
            assert until(watching.stdout, "in 1 file").startswith("nothing found")
            watching.send_signal(signal.SIGINT)
            assert watching.wait(60) != 0
        finally:
            watching.kill()


def until(lines, text: str) -> str:
    """The first line that holds a text; the end of the program is a failure."""
    for line in lines:
        if text in line:
            return str(line)
    raise AssertionError(f"it ended without {text!r}")


def test_watching_writes_nothing(tmp_path, capfd):
    assert main(["audit", "--watch", "--fix", str(tmp_path)]) == 2
    assert "--watch only looks" in capfd.readouterr().err
