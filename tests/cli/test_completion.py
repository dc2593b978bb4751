"""Completion and man pages, made from the table of options: the shells and roff understand them."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys

import pytest

from ground import needs
from lifehold.cli import completion
from lifehold.cli.completion import SHELLS
from lifehold.cli.options import COMMANDS

from .shell import Shell


@pytest.fixture
def script(lifehold, tmp_path):
    """The script of a shell, and an environment in which `lifehold` is this one."""
    for name in ("nightly report", "nightly-sync", "weekly"):
        (tmp_path / f"{name}.lock").touch()
    command = tmp_path / "here" / "bin" / "lifehold"
    command.parent.mkdir(parents=True)
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m lifehold "$@"\n')
    command.chmod(0o755)
    path = f"{command.parent}:{os.environ['PATH']}"
    environ = lifehold.environment | {"PATH": path, "HOME": str(tmp_path)}
    environ |= {"XDG_CONFIG_HOME": str(tmp_path), "TERM": "dumb"}

    def make(shell):
        file = tmp_path / f"completion.{shell}"
        file.write_text(lifehold("completion", shell).stdout)
        return file, environ

    return make


def said(words, environ, **more):
    done = subprocess.run(
        words, env=environ, capture_output=True, text=True, timeout=150, check=False, **more
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@needs("command:bash")
def test_bash_completes_commands_options_names_and_the_command_behind_the_dashes(script, tmp_path):
    file, environ = script("bash")

    def completed(*words):
        array = " ".join(map(shlex.quote, ["lifehold", *words]))
        text = (
            f"source {file}; COMP_WORDS=({array}); COMP_CWORD={len(words)}; _lifehold 2>/dev/null; "
            'printf "%s\\n" "${COMPREPLY[@]}"'
        )
        return said(["bash", "-c", text], environ, cwd=tmp_path / "here")

    assert completed("w") == ["wait", "who", "watch"]
    assert completed("store", "") == ["migrate", "check", "prune"]
    assert completed("help", "cl") == ["clear"]
    assert completed("ver") == ["version"]
    assert completed("store", "migrate", "--g") == ["--grant"]
    assert {"--label", "--wait", "-n", "--help"} <= set(completed("run", "-"))
    assert completed("who", "nightly") == [r"nightly\ report", "nightly-sync"]
    assert completed("who", r"nightly\ r") == [r"nightly\ report"]
    assert completed("who", '"nightly r') == completed("who", "'nightly r") == ["nightly report"]
    assert completed("run", "-n", "week") == ["weekly"]
    assert completed("run", "-w", "") == [""]
    assert completed("log", "--event", "t") == ["timeout", "takeover"]
    assert completed("completion", "z") == ["zsh"]
    assert completed("ls", "b") == ["./bin"]  # where a folder is meant, as the command takes it
    assert completed("clear", "b") == completed("who", "b") == ["./bin"]
    assert completed("who", "./b") == ["./bin"]
    for command in ("audit", "flock", "dotlockfile"):
        assert completed(command, "b") == ["bin"]  # files, and no name of a lock
    assert completed("log", "--event", "take") == ["takeover"]
    assert completed("run", "--kind", "gen") == ["generation"]
    assert completed("top", "--sort", "w") == ["waiters"]
    assert completed("run", "--also", "week") == ["weekly"]
    assert completed("run", "--also", "weekly", "--wait", "=", "5m", "nightly-s") == [
        "nightly-sync"
    ]
    for words in (["job", "--"], ["job"], ["-w", "5m", "--also", "weekly", "--", "job", "--"]):
        assert "mkdir" in completed("run", *words, "mkd")
    assert completed("run", "job", "--")[0] == "--"


@needs("command:bash")
def test_a_lock_with_an_evil_name_runs_nothing_when_bash_completes_it(script, tmp_path):
    file, environ = script("bash")
    evil = "x$(touch pwned)`touch pwned`*"
    (tmp_path / f"{evil}.lock").touch()
    text = (
        f"source {file}; COMP_WORDS=(lifehold who x); COMP_CWORD=2; _lifehold 2>/dev/null; "
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    (offered,) = said(["bash", "-c", text], environ, cwd=tmp_path / "here")
    assert shlex.split(offered) == [evil]
    assert not (tmp_path / "here" / "pwned").exists()


TYPED = {
    "odd": "odd name",
    r"odd\ n": "odd name",
    '"odd': "odd name",
    "'odd": "odd name",
    "semi": "semi;true",
    r"semi\;t": "semi;true",
    "'semi": "semi;true",
    "bang": "bang!!x",
    "'bang": "bang!!x",
    "evil": "evil$(touch pwned)`touch pwned`*'\"",
    "it": "it's",
    "'cost": "cost$(touch pwned)",
    '"cost\t"': "cost",  # no way to complete it there
    "'it\t'": "it",
}


@needs("command:bash")
def test_a_name_that_bash_completes_is_one_word_of_the_line_and_runs_nothing(script, tmp_path):
    file, environ = script("bash")
    for name in {*TYPED.values()} - {"cost", "it"}:
        (tmp_path / f"{name}.lock").touch()
    with file.open("a") as more:  # ours shows what it was called with
        more.write('lifehold() { [[ $1 != ls ]] || { command lifehold "$@"; return; }; ')
        more.write("printf '<%s>' \"$@\"; echo '<''end>'; }\n")
    (tmp_path / "there").mkdir()
    shell = Shell(tmp_path / "there", environ, editing=True)
    try:
        shell.run(f"source {file}")
        for typed, meant in TYPED.items():
            shell.type(f"lifehold who {typed}\t\n")
            assert shell.wait("(?s)<who>(.*?)<end>")[1] == f"<{meant}>"
    finally:
        shell.end()
    assert not list(tmp_path.rglob("pwned"))


@needs("command:fish")
def test_fish_completes_commands_options_names_and_the_command_behind_the_dashes(script, tmp_path):
    file, environ = script("fish")

    def completed(line):
        text = f"source {file}; complete -C {shlex.quote(line)}"
        return [
            one.partition("\t")[0]
            for one in said(["fish", "-c", text], environ, cwd=tmp_path / "here")
        ]

    assert {"who", "wait"} <= set(completed("lifehold w"))
    assert {"--label", "--wait"} <= set(completed("lifehold run --"))
    assert {"nightly report", "nightly-sync"} <= set(completed("lifehold who nightly"))
    assert completed("lifehold log --event t") == ["takeover", "timeout"]
    assert completed("lifehold ls ./b") == ["./bin/"]
    assert "./bin/" in completed("lifehold who ./b")
    assert "bin/" not in completed("lifehold who b")
    assert completed("lifehold completion z") == ["zsh"]
    assert completed("lifehold store p") == ["prune"]
    assert completed("lifehold help simu") == ["simulate"]
    assert "weekly" in completed("lifehold run --also week")
    assert "mkdir" in completed("lifehold run job -- mkd")


@needs("command:zsh")
def test_zsh_completes_commands_and_names(script, tmp_path):
    file, environ = script("zsh")
    said(["zsh", "-n", str(file)], environ)
    play = f"""
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell 'PS1=READY; unsetopt zle_bracketed_paste; zstyle ":completion:*" list-colors ""'
zpty -w shell 'autoload -U compinit; compinit -u -D; source {file}; cd {tmp_path}'
zpty -w shell 'bindkey "^I" complete-word; zstyle ":completion:*" menu no; echo SET UP'
zpty -r -m shell line '*SET UP*READY*'
zpty -n -w shell $'lifehold who week\\t'
zpty -r -m shell line '*weekly*' && print -r -- "name: $line"
zpty -n -w shell $'\\C-ulifehold compl\\t'
zpty -r -m shell line '*completion*' && print -r -- "command: $line"
zpty -n -w shell $'\\C-ulifehold help simu\\t'
zpty -r -m shell line '*help simulate*' && print -r -- "help: $line"
zpty -n -w shell $'\\C-ulifehold run --also week\\t'
zpty -r -m shell line '*also weekly*' && print -r -- "another: $line"
zpty -n -w shell $'\\C-ulifehold run weekly mkdi\\t'
zpty -r -m shell line '*weekly mkdir*' && print -r -- "behind: $line"
zpty -n -w shell $'\\C-ulifehold run weekly -- mkdi\\t'
zpty -r -m shell line '*-- mkdir*' && print -r -- "dashes: $line"
"""
    text = "\n".join(said(["timeout", "30", "zsh", "-f", "-c", play], environ))
    for word in ("name:", "command:", "help:", "another:", "behind:", "dashes:"):
        assert word in text


def test_a_shell_that_is_not_known_is_refused_by_name(lifehold):
    done = lifehold("completion", "csh")
    assert done.returncode == 64
    assert "bash, zsh, fish" in done.stderr


@pytest.mark.parametrize("shell", SHELLS)
def test_every_command_and_long_option_is_in_the_script_of_each_shell(shell):
    text = SHELLS[shell]()
    for command in COMMANDS.values():
        assert re.search(rf"\b{command.name}\b", text)
        for option in command.options:
            assert option.flags[-1].lstrip("-") in text


@pytest.mark.parametrize("name", ["lifehold", *COMMANDS])
def test_a_man_page_has_what_the_table_has_and_no_roff_of_its_own(name):
    text = completion.front() if name == "lifehold" else completion.page(COMMANDS[name])
    command = COMMANDS.get(name)
    for option in command.options if command else ():
        for flag in option.flags:
            assert completion.escaped(flag) in text
    known = (".TH", ".nh", ".ad", ".SH", ".B", ".BR", ".I", ".nf", ".fi", ".TP", ".PP")
    assert all(line.split()[0] in known for line in text.splitlines() if line.startswith("."))


@needs("command:groff")
def test_man_pages_are_formatted_without_a_warning(tmp_path):
    completion.main(str(tmp_path / "man"))
    pages = sorted(map(str, (tmp_path / "man").iterdir()))
    assert len(pages) == len(COMMANDS) + 1
    done = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww", *pages],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    plain = re.sub(r"\x1b\[[0-9;]*m|.\x08", "", done.stdout)
    assert "lifehold wait nightly-report" in plain
    assert "75 still held" in plain


@needs("command:mandoc")
def test_man_pages_please_mandoc_as_well(tmp_path):
    completion.main(str(tmp_path))
    done = subprocess.run(
        ["mandoc", "-T", "lint", "-W", "warning", *map(str, tmp_path.iterdir())],
        capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip
    assert [line for line in done.stdout.splitlines() if "missing date" not in line] == []


def test_every_help_begins_with_its_usage_and_three_examples(lifehold):
    for command in COMMANDS.values():
        lines = command.examples.splitlines()
        assert len(lines) >= 3, command.name
        assert all("lifehold" in line for line in lines)
