"""A word that lifehold does not know is answered with the one that was meant."""

from __future__ import annotations

import re

import pytest

from lifehold import InvalidArgument, Lock
from lifehold.cli import main, mistaken, options
from lifehold.cli.row import HelpAsked, Usage


def said(words: list[str]) -> str:
    with pytest.raises((Usage, InvalidArgument, HelpAsked)) as caught:
        main._command(words)
    return str(caught.value)


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("runn a b", "did you mean 'run'?"), ("whoo", "did you mean 'who'?"),
        ("Clear x", "did you mean 'clear'?"), ("setlock a b", "lifehold run NAME -- CMD"),
        ("lockrun", "lifehold run NAME -- CMD"), ("solo", "lifehold run NAME -- CMD"),
        ("force-unlock x", "lifehold clear PATH"), ("status x", "lifehold who NAME"),
        ("lockfile-create x", "lifehold dotlockfile -l PATH"), ("xyzzy", "All commands"),
        ("./a.lock ls", "lifehold run ./a.lock -- CMD"), ("-n a b", "lifehold run -n NAME -- CMD"),
        ("run --nonblok a b", "'--nonblok'; did you mean '--nonblock'?"),
        ("run a --timeout 5 -- b", "did you mean '--wait'?"),
        ("run -timeout=5 a b", "did you mean '--wait'?"), ("run -wait 5 a b", "argument -w"),
        ("run --lockfile x b", "as NAME or ./PATH"), ("run -q a b", "lifehold run --help"),
        ("once --kepp 5 a -- b", "did you mean '--keep'?"), ("who --jsno x", "'--json'?"),
        ("ls --dryrun", "All options: lifehold ls --help"), ("top --sort tme", "mean 'time'?"),
        ("simulate --shape semaphor", "mean 'semaphore'?"), ("completion zhs", "mean 'zsh'?"),
        ("log --event takover", "mean 'takeover'?"),
        ("run --pasword=hunter2 a b", "'--pasword'"),
        ("doctor", "DIR is missing; for example:  lifehold doctor "),
        ("wait", "NAME is missing; for example:  lifehold wait nightly-report"),
        ("simulate --hours x", "not 'x'"), ("simulate --hours=", "not ''"),
        ("watch /", "'/' is a folder, and CONFIG a TOML file"),
    ],
)  # fmt: skip
def test_a_wrong_word_is_answered_with_what_was_meant(line, meant):
    text = said(line.split())
    assert meant in text
    assert "hunter2" not in text


def test_a_wrong_kind_is_answered_by_the_lock_itself():
    with pytest.raises(InvalidArgument, match=r"not 'kernl'; did you mean 'kernel'\?"):
        Lock("x", kind="kernl")


def test_every_line_that_is_advised_is_one_of_ours():
    for line, names in mistaken.INSTEAD.items():
        program, command, *_ = line.split()
        assert (program, command in options.COMMANDS) == ("lifehold", True), line
        assert not {*names.split()} & {*options.COMMANDS}
    flags = {flag for row in options.COMMANDS.values() for each in row.options
             for flag in each.flags}  # fmt: skip
    assert {*mistaken.OPTIONS} - {""} <= flags


@pytest.mark.parametrize(
    ("line", "code", "told"),
    [
        ("run --kind kernel --ttl 5 x true", 64, "use --max-hold 5.0; for a lease use --kind soft"),
        ("run --kind session x true", 64, "--kind session is a lock of PostgreSQL"),
        ("simulate --ttl 1 --margin 2", 64, "Give --ttl 20 or more, or --margin 0.1"),
        ("run -- true", 64, "no command to run: 'true' is the NAME"),
        ("once x", 64, "no command to run: 'x' is the NAME"),
        ("store chek", 64, "did you mean 'check'?"),
        ("store check", 64, "for example:  lifehold store check sqlite:////"),
        ("who sqlite:////x.db", 64, "it follows a #, as in URL#NAME"),
        ("watch no.toml", 71, "`lifehold help watch` says what"),
        ("clear --force ./x", 64, "--force takes a WORD, and then the lock"),
        ("clear -R data", 64, "write ./data for the folder"),
        ("clear data", 0, "'data' is the NAME; for the folder here write ./data"),
    ],
)
def test_a_mistake_is_answered_in_words_of_the_command(lifehold, line, code, told):
    (lifehold.folder / "data").mkdir()
    done = lifehold(*line.split())
    assert (done.returncode, told in done.stderr) == (code, True), done.stderr
    assert not re.search(r"\b(kind|ttl|margin|max_hold)=", done.stderr)


def test_clear_of_what_is_not_there_says_just_that(lifehold):
    out = lifehold("clear", "./nothing.pid").stdout
    path = lifehold.folder / "nothing.pid"
    assert out == f"nothing       {path}\n              no such file or folder\n"


def test_help_of_a_command_and_the_version_are_words_too(lifehold):
    helped = lifehold("help", "run")
    assert (helped.returncode, helped.stdout) == (0, lifehold("run", "--help").stdout)
    version = lifehold("version")
    assert (version.returncode, version.stdout) == (0, lifehold("--version").stdout)


@pytest.mark.parametrize("line", ["run --help", "help who", "--help", "--version"])
def test_help_that_cannot_be_written_says_so(lifehold, line):
    with open("/dev/full", "w") as full:
        process = lifehold.start(*line.split(), stdout=full)
        err = process.communicate(timeout=60)[1]
    said = "lifehold: the answer cannot be written to stdout: No space left on device\n"
    assert (process.returncode, err) == (71, said)


def test_a_name_that_nobody_used_is_told_the_one_that_is_like_it(lifehold):
    assert lifehold("run", "nightly", "--", "true").stderr == ""
    for command in ("who", "wait", "log"):
        assert "did you mean 'nightly'?" in lifehold(command, "nigthly").stderr
        assert "did you mean" not in lifehold(command, "nightly").stderr
        assert "did you mean" not in lifehold(command, "weekly").stderr


def test_options_directly_behind_the_name_are_ours_and_those_of_the_command_are_not(lifehold):
    holder = lifehold.holder("job")
    held = lifehold("run", "job", "-E", "9", "--wait", "0", "--", "true")
    assert held.returncode == 9
    assert lifehold("run", "-n", "job", "-E", "8", "true").returncode == 8
    holder.kill()
    own = lifehold("run", "other", "-n", "--", "sh", "-c", "printf '%s %s' $0 $1", "-n", "--wait")
    assert (own.returncode, own.stdout) == (0, "-n --wait")
    both = lifehold("once", "kept", "--keep", "1h", "--", "echo", "-n", "x")
    assert (both.returncode, both.stdout) == (0, "x")


def test_options_of_a_command_without_a_cmd_stand_anywhere(lifehold):
    for words in (
        ("who", "a", "--json", "b"),
        ("who", "--json", "a", "b"),
        ("who", "a", "b", "--json"),
    ):
        assert lifehold(*words).stdout.count('"name"') == 2
