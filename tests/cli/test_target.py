"""NAME or PATH: one rule for every command, and what may surprise is told on stderr."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys

import pytest

from ground import needs
from lifehold import Lock
from lifehold.cli import options, target
from lifehold.cli.main import main
from lifehold.local import lock_names

TAKES_A_LOCK = {
    "run": ("-n", "{}", "--", "true"),
    "also": ("-n", "--also", "{}", "other", "--", "true"),
    "once": ("-n", "{}", "--", "true"),
    "who": ("{}",),
    "wait": ("-w", "0", "{}"),
    "check": ("{}",),
    "touch": ("{}",),
    "log": ("{}",),
    "clear": ("{}",),
}
TAKES_A_FOLDER = {"ls": (), "doctor": (), "top": ("--once",)}


@pytest.fixture
def here(tmp_path, lifehold):
    """A working folder apart from that of the names."""
    folder = tmp_path / "here"
    folder.mkdir()

    def call(name, *words):
        done = subprocess.run(
            [sys.executable, "-m", "lifehold", {"also": "run"}.get(name, name), *words], cwd=folder,
            env=lifehold.environment, capture_output=True, text=True, timeout=150, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout, done.stderr

    call.folder = folder
    return call


def with_word(name, word):
    return tuple(part.format(word) for part in TAKES_A_LOCK[name])


@pytest.mark.parametrize("end", ["lock", "lck", "pid"])
@pytest.mark.parametrize("name", TAKES_A_LOCK)
def test_a_bare_word_that_ends_like_a_lock_file_is_refused_with_both_spellings(here, name, end):
    word = f"orders.{end}"
    with Lock(here.folder / word):
        code, out, err = here(name, *with_word(name, word))
    assert (code, out) == (64, "")
    assert f"write ./{word} for the file, or --name {word} for the NAME" in err
    assert os.listdir(here.folder) == [word], "nothing was made"


@pytest.mark.parametrize("name", TAKES_A_LOCK)
def test_such_a_word_is_the_name_where_that_name_is_in_use_and_it_is_told(here, lifehold, name):
    (lifehold.folder / "orders.lock.lock").touch()
    code, _, err = here(name, *with_word(name, "orders.lock"))
    assert code != 64
    said = f"'orders.lock' is the NAME, which has the lock file {lifehold.folder}/orders.lock.lock"
    assert err.count(said) == 1
    assert "write ./orders.lock" in err


def test_the_file_that_was_meant_is_the_one_that_is_asked_run_and_waited_for(here):
    with Lock(here.folder / "orders.lock"):
        assert here("who", "./orders.lock")[0] == 0
        assert here("wait", "-w", "0", "./orders.lock")[0] == 75
        assert here("run", "-n", "./orders.lock", "--", "true")[0] == 75
        assert here("once", "-n", "./orders.lock", "--", "true")[0] == 75


@pytest.mark.parametrize("name", ["run", "once"])
def test_name_names_the_lock_of_a_command(here, lifehold, name):
    flag = ("-n", "--name", "orders.lock")
    assert here(name, *flag, "--", "sh", "-c", "echo here")[1] == "here\n"
    assert (lifehold.folder / "orders.lock.lock").exists()
    second = "here\n" if name == "once" else "there\n"
    assert here(name, *flag, "-c", "echo there")[:2] == (0, second)
    with Lock(lifehold.folder / "orders.lock.lock"):
        assert here("run", *flag, "true")[0] == 75
    assert here("run", *flag)[0] == 64


def test_name_may_be_repeated_where_several_locks_are_named(here):
    code, out, _ = here("who", "--json", "--name", "a.lock", "--name", "b.pid", "c")
    assert [each["name"] for each in json.loads(out)["locks"]] == ["a.lock", "b.pid", "c"]
    code, out, _ = here(
        "run", "-n", "--name", "a.lock", "--name", "b.lock", "--", "sh", "-c", "echo $LIFEHOLD_HELD"
    )
    assert (code, out.count("@")) == (0, 2)
    for words in (["wait", "-w", "0"], ["check"], ["touch"], ["log"]):
        name, *more = words
        code, _, err = here(name, *more, "--name", "a", "b")
        assert (code, "one lock is asked for, and 2 are named" in err) == (64, True)
    assert here("once", "--name", "a", "--name", "b", "--", "true")[0] == 64


@pytest.mark.parametrize("word", ["a/b", "./a", "sqlite:////x.db#a"])
def test_a_path_is_no_name(here, word):
    code, _, err = here("who", "--name", word)
    assert (code, "a NAME has no slash" in err) == (64, True)


def test_any_other_bare_word_is_a_name_and_a_lock_of_this_folder_is_told(here, lifehold):
    (here.folder / "deploy").touch()
    (here.folder / "data").write_text("no lock")
    for name in TAKES_A_LOCK:
        _, _, err = here(name, *with_word(name, "deploy"))
        line = "'deploy' is the NAME; for the lock in this folder write ./deploy"
        assert err.count(line) == 1, name
        assert "is the NAME" not in here(name, *with_word(name, "data"))[2], name
    assert (lifehold.folder / "deploy.lock").exists()


def test_a_folder_of_this_name_is_not_what_clear_means(here, lifehold):
    (here.folder / "cl").mkdir()
    dead = here.folder / "cl" / "x.pid"
    dead.write_text("4194000\n")
    assert here("clear", "cl")[0] == 0
    assert dead.exists()


@pytest.mark.parametrize("name", TAKES_A_FOLDER)
def test_where_a_folder_is_meant_a_bare_word_is_refused_with_both_spellings(here, name):
    (here.folder / "srv").mkdir()
    code, _, err = here(name, *TAKES_A_FOLDER[name], "srv")
    assert code == 64
    assert f"`lifehold {name}` takes a folder: write ./srv for the folder" in err
    assert "lifehold who --name srv" in err
    for word in ("./srv", "."):
        assert here(name, *TAKES_A_FOLDER[name], word)[0] in (0, 3)


@needs("flock")
def test_the_clones_keep_the_rule_of_their_originals(here):
    assert here("flock", "-n", "orders.lock", "true")[0] == 0
    assert here("dotlockfile", "-l", "-r", "0", "box.lock")[0] == 0
    assert sorted(os.listdir(here.folder)) == ["box.lock", "orders.lock"]


@pytest.mark.parametrize("word", ["~/m.lock", "~ana/m.lock"])
def test_a_tilde_that_the_shell_has_left_is_refused(here, word):
    for name in TAKES_A_LOCK:
        code, _, err = here(name, *with_word(name, word))
        assert (code, "begins with a ~" in err) == (64, True), name
    assert os.listdir(here.folder) == []
    assert here("run", f"./{word}", "--", "true")[0] == 0


def test_a_folder_that_is_made_on_the_way_is_told_once(here):
    line = f"lifehold: the folder {here.folder}/a was not there, and has been made\n"
    assert here("run", "./a/b/x.lock", "--", "true") == (0, "", line)
    assert here("run", "./a/b/x.lock", "--", "true") == (0, "", "")
    both = here("run", "--also", "./c/x", "./c/y", "--", "true")[2]
    assert both == line.replace("/a ", "/c ")
    assert "has been made" in here("once", "./d/x", "--", "true")[2]
    assert "has been made" in here("run", f"sqlite:///{here.folder}/e/x.db#a", "--", "true")[2]
    assert here("run", "plain", "--", "true")[2] == ""


def test_a_relative_url_of_sqlite_is_told(here):
    for words in (["sqlite:///x.db#a"], ["--store", "sqlite:///x.db", "a"]):
        code, _, err = here("run", *words, "--", "true")
        assert code == 0
        assert err.count(f"here sqlite:///{here.folder}/x.db is meant") == 1
    assert here("run", f"sqlite:///{here.folder}/x.db#a", "--", "true")[2] == ""


@needs("root")
def test_root_is_told_of_users_locks_of_the_same_name(tmp_path, monkeypatch, capfd):
    home = tmp_path / "ana"
    file = home / ".local/state/lifehold/deploy.lock"
    file.parent.mkdir(parents=True)
    file.touch()
    ana = pwd.struct_passwd(("ana", "x", 1000, 1000, "", str(home), "/bin/sh"))
    monkeypatch.setattr(pwd, "getpwall", lambda: [ana, pwd.getpwuid(0)])
    monkeypatch.setattr(lock_names, "MACHINE", str(tmp_path / "machine"))
    monkeypatch.delenv("LIFEHOLD_DIR", raising=False)
    for words in (["who", "deploy"], ["wait", "-w", "0", "deploy"]):
        main(words)
        said = "user ana has a lock of this name too, which excludes nobody here"
        assert f"{said}:  lifehold who {file}" in capfd.readouterr().err
    main(["who", "other"])
    assert "user ana" not in capfd.readouterr().err


def test_every_help_states_the_rule():
    for name in ("run", "once", "who", "wait", "check", "touch", "log", "clear"):
        assert target.RULE in options.help_of(options.COMMANDS[name]), name
    for name in ("flock", "dotlockfile"):
        assert "is a path, as with" in options.help_of(options.COMMANDS[name])
