"""A word that lifehold does not know is answered with the one that was meant."""

from __future__ import annotations

import re

import pytest

from lifehold import InvalidArgument, Lock, SystemRefused
from lifehold.cli import main, mistaken, options
from lifehold.cli.row import HelpAsked, Usage


def said(words: list[str]) -> str:
    with pytest.raises((Usage, InvalidArgument, SystemRefused, HelpAsked)) as caught:
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
        ("watch nothere/", "nothere/': `lifehold help watch`"),
        ("--version extra", "--version takes nothing behind it, and there is 'extra'"),
        ("run -n -w 1 a b", "give -n or -w, not both"), ("once -nw5 a b", "give -n or -w, not"),
        ("run a -w 5 -n -- b", "give -n or -w, not both"),
        ("run --mode 0644 a b", "run takes no --mode: the umask decides"),
        ("once --mode=0644 a b", "once takes no --mode: the umask decides"),
        ("run -t 5 a b", "write -w 5\n"), ("wait -t5m a", "write -w 5m\n"),
        ("run -t a b", "write -w TIME\n"), ("wait -n a", "lifehold who NAME, and -w 0"),
        ("wait --nonblock a", "lifehold who NAME, and -w 0"), ("clear -r ./a", "mean '-R'?"),
        ("clear -f ./a", "write --force WORD: `lifehold clear PATH` prints it"),
        ("run --ttl -5s a b", "--ttl takes a length of time, not -5s"),
        ("run -w -n a b", "-w takes a length of time, not -n"),
        ("log --last -5x a", "--last takes N, not -5x"), ("run -E -x a b", "-E takes N, not -x"),
        ("wait -w", "-w takes a length of time: 30s, 5m, 1h, 2d"),
        ("run --label -x a b", "--label takes TEXT; for one with a dash in front write --label=-x"),
        ("run --label", "--label takes TEXT\n"),
        ("run --json=hunter2 a b", "--json takes no value"),
        ("wait x y", "wait takes one NAME, and 'y' stands behind 'x'\n"),
        ("wait 5 x", "to give up after 5:  lifehold wait -w 5 x"),
        ("wait ./x --json 5m", "to give up after 5m:  lifehold wait -w 5m ./x"),
        ("doctor a b", "doctor takes one DIR, and 'b' stands behind 'a'"),
        ("log -- a b", "log takes one NAME, and 'b' stands behind 'a'"),
        ("choose nope", "choose takes options alone, and 'nope' is none"),
        ("store check sqlite:////a b", "store takes one ACT and one URL, and 'b' stands behind"),
        ("clear --force x", 'is the one that "lifehold clear x" prints'),
        ("clear --force 12ab34cd", "the lock is missing behind the WORD: --force 12ab34cd PATH"),
        ("run 9", "'9' is the NAME; for descriptor 9:  lifehold flock 9"),
        ("run -- true", "no NAME before --; write  lifehold run NAME -- true"),
        ("run -- job", "no NAME before --"), ("run job --", "'job' is the NAME"),
        ("run --label x job", "no command to run: 'job' is the NAME\n"),
        ("run --name a --", "no command to run: 'a' is the NAME\n"),
        ("run --label x -- true",
         "no NAME before --: --label took 'x'; write  lifehold run --label x NAME -- true"),
        ("run -n --also x -- true", "took 'x'; write  lifehold run -n --also x NAME -- true"),
        ("run --slots x -- true", "no NAME before --: --slots took 'x'"),
        ("once --unless x -- true", "took 'x'; write  lifehold once --unless x NAME -- true"),
        ("run -- nice make all", "no NAME before --; write  lifehold run NAME -- nice make all"),
        ("once -- ls -l", "no NAME before --"), ("run -- ls -l", "NAME -- ls -l"),
        ("run -n -- git log -- file", "write  lifehold run -n NAME -- git log -- file"),
        ("once -- nice make", "no NAME before --; write  lifehold once NAME -- nice make"),
        ("once --label x -- nice make", "took 'x'; write  lifehold once --label x NAME -- nice"),
        ("once --build no/d no-such-x -- true", "instead of NAME: leave out 'no-such-x'"),
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
        ("once x", 64, "no command to run: 'x' is the NAME"),
        ("store chek", 64, "did you mean 'check'?"),
        ("store check", 64, "for example:  lifehold store check sqlite:////"),
        ("who sqlite:////x.db", 64, "it follows a #, as in URL#NAME"),
        ("watch no.toml", 71, "`lifehold help watch` says what"),
        ("clear --force ./x", 64, "the WORD is missing"),
        ("clear -R data", 64, "write ./data for the folder"),
        ("clear data", 0, "'data' is the NAME; for the folder here write ./data"),
    ],
)
def test_a_mistake_is_answered_in_words_of_the_command(lifehold, line, code, told):
    (lifehold.folder / "data").mkdir()
    done = lifehold(*line.split())
    assert (done.returncode, told in done.stderr) == (code, True), done.stderr
    assert not re.search(r"\b(kind|ttl|margin|max_hold)=", done.stderr)


@pytest.mark.parametrize(
    ("words", "empty"),
    [
        (["doctor", ""], "DIR is empty"), (["ls", ""], "DIR is empty"),
        (["top", ""], "DIR is empty"), (["watch", ""], "CONFIG is empty"),
        (["clear", "--force", "", "x"], "WORD is empty behind --force"),
    ],
)  # fmt: skip
def test_an_empty_word_is_called_empty(words, empty):
    assert said(words) == f"{empty}: an unset variable?"


def test_clear_of_what_is_not_there_says_just_that(lifehold):
    done = lifehold("clear", "./nothing.pid")
    told = f"lifehold: there is no '{lifehold.folder}/nothing.pid': nothing to clear\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, "", told)
    assert '"why": "no such file' in lifehold("clear", "--json", "./nothing.pid").stdout


def test_a_word_for_what_no_word_removes_is_said_to_change_nothing(lifehold):
    lifehold.holder("job")
    done = lifehold("clear", "--force", "wrong", "job")
    assert done.returncode == 1
    assert done.stderr == (
        "lifehold: --force wrong changes nothing: no WORD lets this be removed\n"
    )


@pytest.mark.parametrize("how", [[], ["-F"], ["-o"]])
def test_a_folder_in_the_place_of_cmd_is_called_a_folder(lifehold, how):
    done = lifehold("run", *how, "job", "--", "/")
    assert (done.returncode, done.stderr) == (126, "lifehold: cannot run '/': it is a folder\n")


def test_build_with_two_dashes_of_the_command_itself_is_right(lifehold):
    script = 'touch "$LIFEHOLD_BUILD/$1"'
    made = lifehold("once", "--build", "d", "env", "--", "sh", "-c", script, "x", "made")
    assert (made.returncode, (lifehold.folder / "d/made").exists()) == (0, True)
    assert lifehold("once", "--build", "d", "no-such-x", "--", "true").returncode == 0  # is there


def test_a_folder_that_is_free_is_told_with_where_its_locks_are(lifehold):
    """flock(1) locks folders, so it is an answer; and an empty one may be the lock of mkdir(1)."""
    (lifehold.folder / "full/below").mkdir(parents=True)
    full = lifehold("who", "./full")
    assert (full.returncode, full.stdout.splitlines()[0]) == (1, "'./full' is free")
    assert full.stderr == (
        "lifehold: './full' is a folder: as a lock it is free; the locks in it:  "
        f"lifehold ls {lifehold.folder}/full\n"
    )
    empty = lifehold("who", "./full/below")
    assert (empty.returncode, empty.stderr) == (1, "")
    assert "a tool that locks by presence would look the same" in empty.stdout
    assert lifehold("run", "--kind", "generation", "./ours", "true").returncode == 0
    assert lifehold("who", "./ours").stderr == ""


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


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["echo hi"], "'echo hi'"),
        (["--", "echo hi | cat"], "'echo hi | cat'"),
        (["--", "cd", "hunter2"], "'cd ...'"),
        (["--", "A=1", "true"], "'A=1 ...'"),
        (["-o", "--", "source", "x"], "'source ...'"),
        (["-F", "--", "export"], "export"),
    ],
)
def test_a_line_for_a_shell_is_told_where_it_stands(lifehold, words, text):
    done = lifehold("run", "x", *words, env={"PATH": "/none"})
    what = next(word for word in words if word[:1] != "-")
    why = f"not found; for a shell, write  -c {text}  instead of CMD, before NAME"
    assert (done.returncode, done.stderr) == (127, f"lifehold: cannot run '{what}': {why}\n")


def test_such_a_line_runs_with_dash_c_and_a_plain_word_gets_no_advice(lifehold):
    assert lifehold("run", "-c", "echo hi | cat", "x").stdout == "hi\n"
    assert lifehold("run", "x", "nope").stderr == "lifehold: cannot run 'nope': not found\n"
