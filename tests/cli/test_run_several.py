"""Several locks for one command: all of them, or none."""

from __future__ import annotations

import json
import os
import sys
import time
from types import SimpleNamespace

import pytest

from lifehold import Lock, Timeout, WouldBlock
from lifehold.cli import locks as ours
from lifehold.cli.options_run import RUN
from lifehold.core.around import parse
from lifehold.ops import history

ENVIRONMENT = "import os, json; print(json.dumps(dict(os.environ)))"
LOCKED = "ls -l /proc/self/fd | grep -c '[.]lock$'"


def these(first, *others):
    """The words that name several locks."""
    return (*(word for name in others for word in ("--also", name)), first, "--")


def free(lifehold, *names):
    return [lifehold.free(name) for name in names]


@pytest.mark.parametrize("close", [[], ["-o"]])
def test_all_locks_are_held_while_the_command_runs_and_none_after_it(lifehold, close):
    run = lifehold.start("run", *close, *these("b", "./a", "c"), "sh", "-c", "echo in; read x",
                         stdin=-1)  # fmt: skip
    assert run.stdout.readline() == "in\n"
    assert free(lifehold, "./a", "b", "c", "d") == [False, False, False, True]
    run.stdin.write("\n")
    run.stdin.flush()
    assert run.wait(60) == 0
    assert free(lifehold, "./a", "b", "c") == [True] * 3


def test_the_command_inherits_all_of_them_unless_dash_o(lifehold):
    assert lifehold("run", *these("a", "b"), "sh", "-c", LOCKED).stdout == "2\n"
    assert lifehold("run", "-o", *these("a", "b"), "sh", "-c", LOCKED).stdout == "0\n"


@pytest.mark.parametrize("wait", [["-n"], ["-w", "0.2"]])
def test_one_that_is_held_is_named_and_the_others_are_let_go(lifehold, wait):
    lifehold.holder("b")
    done = lifehold("run", *wait, *these("a", "b", "c"), "echo", "never")
    assert (done.returncode, done.stdout) == (75, "")
    assert done.stderr.startswith("could not acquire 'b' ")
    assert "wait:  lifehold run --wait 1h --also b --also c a -- CMD\n" in done.stderr
    assert done.stderr.endswith(
        "  none   of the others is held by this run: 'a' had been taken, and was let go\n"
    )
    assert free(lifehold, "a", "c") == [True, True]
    assert [entry.event for entry in history.read(str(lifehold.folder / "b.lock"))] == [
        "skip" if wait == ["-n"] else "timeout"
    ]
    json_line = json.loads(
        lifehold("run", "--json", *wait, *these("a", "b"), "true").stderr.splitlines()[-1]
    )
    assert (json_line["outcome"], json_line["held_name"]) == ("held", "b")


def test_the_patience_is_for_all_of_them_together(lifehold):
    lifehold.holder("b")
    began = time.monotonic()
    assert lifehold("run", "-w", "0.6", *these("a", "b"), "true").returncode == 75
    assert 0.6 <= time.monotonic() - began < 60


def test_runs_that_name_them_in_other_orders_do_not_wait_for_each_other(lifehold):
    orders = [("a", "b", "c"), ("c", "b", "a"), ("b", "a", "c"), ("c", "a", "b")]
    runs = [
        lifehold.start("run", "-w", "60", *these(*order), "sleep", "0.01")
        for order in orders
        for _ in range(3)
    ]
    assert [run.wait(60) for run in runs] == [0] * len(runs)


def test_the_environment_tells_the_first_whole_and_lists_all(lifehold):
    done = lifehold("run", *these("z", "a"), sys.executable, "-c", ENVIRONMENT)
    given = json.loads(done.stdout)
    assert given["LIFEHOLD_NAME"] == "z"
    assert given["LIFEHOLD_LOCK"] == str(lifehold.folder / "z.lock")
    held = parse(given["LIFEHOLD_HELD"])
    assert [os.path.basename(entry.path) for entry in held] == ["z.lock", "a.lock"]
    assert held[0].nonce == given["LIFEHOLD_NONCE"]


def test_a_name_given_twice_is_one_lock(lifehold):
    (lifehold.folder / "link").symlink_to(lifehold.folder)
    (lifehold.folder / "a.lock").touch()
    os.link(lifehold.folder / "a.lock", lifehold.folder / "hard.lock")
    for names in (
        ["a", "a"], ["a", "./a.lock"], ["./link/a.lock", "a"], ["a", "hard"], ["hard", "b", "a"],
    ):  # fmt: skip
        done = lifehold("run", "-w", "60", *these(*names), "sh", "-c", LOCKED)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == f"{len({*names} - {'a', 'hard', './a.lock', './link/a.lock'}) + 1}\n"


def test_a_nested_run_of_one_of_them_is_an_error_and_lets_the_others_go(lifehold):
    words = f"{sys.executable} -m lifehold run --also b --also c a -- true"
    done = lifehold("run", "b", "--", "sh", "-c", words)
    assert done.returncode == 75
    assert "the `lifehold run` around this command holds it" in done.stderr
    assert "'a' had been taken, and was let go" in done.stderr


def test_each_of_them_has_a_line_in_its_history(lifehold):
    lifehold("run", *these("a", "b"), "sh", "-c", "exit 3")
    for name in ("a", "b"):
        (entry,) = history.read(str(lifehold.folder / f"{name}.lock"))
        record = json.loads((lifehold.folder / f"{name}.lock").read_text())
        assert (entry.name, entry.code, entry.token) == (name, 3, record["token"])


def test_the_loss_of_one_of_them_stops_the_command(lifehold):
    done = lifehold("run", *these("a", "b"), "sh", "-c", "rm b.lock; sleep 60")
    assert done.returncode == 74
    assert "'b' is lost: its lock file was removed" in done.stderr
    assert free(lifehold, "a", "b") == [True, True]


def test_words_that_could_be_locks_or_the_command_lock_nothing_and_run_nothing(lifehold):
    done = lifehold("run", "job", "git", "log", "--", "file")
    assert done.returncode == 64
    assert done.stderr == (
        "lifehold: 'git' stands between NAME and a --: is it CMD or a lock?\n"
        "  CMD    lifehold run job -- git ...\n"
        "  lock   lifehold run --also git --also log job -- CMD\n"
    )
    assert list(lifehold.folder.iterdir()) == []


def test_the_dashes_of_a_command_are_its_own_behind_those_of_lifehold(lifehold):
    assert lifehold("run", "job", "--", "echo", "log", "--", "file").stdout == "log -- file\n"
    assert [each.name for each in lifehold.folder.glob("*.lock")] == ["job.lock"]


def test_the_command_does_not_begin_without_one_that_was_lost_while_another_was_waited_for(
    lifehold, tmp_path
):
    first, second = (str(tmp_path / name) for name in ("a.soft", "b.soft"))
    ours = Lock(second, kind="soft").acquire()
    run = lifehold.start("run", "--kind", "soft", *these(second, first), "echo", "in")
    lock = Lock(first, kind="soft")
    while not lock.locked():
        time.sleep(0.01)
    lock.break_("by order")
    ours.release()
    out, err = run.communicate(timeout=60)
    assert (run.returncode, out) == (74, "")
    assert err.startswith(f"lifehold: '{first}' is lost: ")
    assert [Lock(path, kind="soft").locked() for path in (first, second)] == [False, False]


@pytest.mark.parametrize(("wait", "error"), [(5.0, Timeout), (0.0, WouldBlock)])
def test_a_patience_that_the_others_have_used_up_is_no_refusal_at_once(
    tmp_path, monkeypatch, wait, error
):
    """Its words and its history say how long was waited."""
    told = iter([0.0, 1.0])
    names = [f"{tmp_path}/a", f"{tmp_path}/b"]
    locks = ours.locks_of(names, {option.name: option.default for option in RUN.options})
    monkeypatch.setattr(ours, "clock", SimpleNamespace(now=lambda: next(told, 9.0)))
    with Lock(names[1]), pytest.raises(error):
        ours.take(locks, wait)
