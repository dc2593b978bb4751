"""`lifehold run --slots`: as many commands at once as there are slots, each with its own."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from lifehold import Semaphore, WouldBlock

SHOW = 'echo "$CARD $LIFEHOLD_SLOT $LIFEHOLD_LOCK"; read x; true'
SLOTS = ("--slots", "a,b", "--slot-env", "CARD")


def start(lifehold):
    run = lifehold.start("run", *SLOTS, "gpu", "--", "sh", "-c", SHOW, stdin=-1)
    return run, run.stdout.readline().split()


def end(run):
    run.stdin.close()
    assert run.wait(60) == 0


def test_each_command_is_told_a_slot_of_its_own(lifehold):
    (one, first), (two, second) = start(lifehold), start(lifehold)
    assert {first[0], second[0]} == {"a", "b"}
    for number, words in zip("01", sorted([first, second]), strict=True):
        assert words[0] == words[1]
        assert words[2] == str(lifehold.folder / f"gpu#{number}.lock")
    refused = lifehold("run", "-n", *SLOTS, "gpu", "--", "echo", "never")
    assert (refused.returncode, refused.stdout) == (75, "")
    assert "lifehold run --wait 1h --slots a,b gpu -- CMD" in refused.stderr
    end(one)
    third, words = start(lifehold)
    assert words[0] == first[0]
    end(third)
    end(two)


def test_a_killed_run_frees_its_slot_when_its_command_has_ended(lifehold):
    run, words = start(lifehold)
    lifehold.kill(run)
    run.wait(60)
    again = lifehold("run", "-w", "60", *SLOTS, "gpu", "--", "sh", "-c", "echo $CARD")
    assert again.stdout == words[0] + "\n"


def test_who_tells_all_that_hold_and_how_many_there_may_be(lifehold):
    assert lifehold("who", "gpu").returncode == 1
    run, _ = start(lifehold)
    told = lifehold("who", "gpu")
    assert told.returncode == 0
    assert "'gpu' is held" in told.stdout
    assert "1 of its 2 slots is taken" in told.stdout
    other, _ = start(lifehold)
    told = lifehold("who", "--json", "gpu")
    lock = json.loads(told.stdout)["locks"][0]
    assert (lock["state"], len(lock["others"])) == ("held", 1)
    rows = lifehold("ls").stdout.splitlines()
    assert sorted(row.split()[0] for row in rows[1:]) == ["gpu", "gpu#0", "gpu#1"]
    assert all(row.split()[1] == "held" for row in rows[1:])
    end(run)
    end(other)
    told = lifehold("who", "gpu")
    assert told.returncode == 1


def test_another_number_of_slots_is_refused_while_one_is_held(lifehold):
    run, _ = start(lifehold)
    refused = lifehold("run", "--slots", "a,b,c", "gpu", "--", "true")
    assert refused.returncode == 64
    assert "has 2 permits, not 3" in refused.stderr
    end(run)
    assert lifehold("run", "--slots", "a,b,c", "gpu", "--", "true").returncode == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--slots", "0,0", "gpu"], "slot '0' is named twice"),
        (["--slots", "0,,1", "gpu"], "a word for each slot"),
        (["--slots", "", "gpu"], "a word for each slot"),
        (["--slot-env", "X", "gpu"], "give --slots too"),
        (["--slots", "0", "--slot-env", "1X", "gpu"], "cannot be the name of an environment"),
        (
            ["--slots", "4", "gpu"],
            "for 4 write --slots 0,1,2,3; for one slot of that name --slots 4,\n",
        ),
        (["--slots", "64", "gpu"], 'for 64 write --slots "$(seq -s, 0 63)"; for one'),
        (["--slots", "0", "--also", "other", "gpu"], "--also names another"),
        (["-s", "--slots", "0", "gpu"], "--slots and -s"),
        (["--fair", "--slots", "0", "gpu"], "--slots and --fair"),
        (["--kind", "soft", "--slots", "0", "gpu"], "--slots and --kind"),
    ],
)
def test_slots_that_make_no_sense_are_refused(lifehold, words, told):
    done = lifehold("run", *words, "--", "echo", "never")
    assert (done.returncode, done.stdout) == (64, "")
    assert told in done.stderr


@pytest.mark.parametrize(
    ("slots", "word"), [("4,", "4"), ("0", "0"), ("1", "1"), ("a", "a"), ("00", "00")]
)
def test_one_slot_has_the_word_it_was_given_and_its_remedy_runs_as_printed(lifehold, slots, word):
    words = ("--slots", slots, "gpu", "--")
    line = (
        "run",
        *words,
        "sh",
        "-c",
        "echo $LIFEHOLD_SLOT; read x; true",
    )
    run = lifehold.start(*line, stdin=-1)
    assert run.stdout.readline() == f"{word}\n"
    told = lifehold("run", "-n", *words, "true").stderr
    (wait,) = (row.partition("lifehold ")[2] for row in told.splitlines() if "--wait 1h" in row)
    end(run)
    assert lifehold(*wait.replace(" CMD", " echo in").split()).stdout == "in\n"


def test_the_command_inherits_its_slot_and_keeps_it_when_lifehold_is_killed(lifehold):
    run, words = start(lifehold)
    run.kill()
    run.wait(60)
    other, more = start(lifehold)
    assert more[0] != words[0]
    assert lifehold("run", "-n", *SLOTS, "gpu", "--", "true").returncode == 75
    run.stdin.close()
    end(other)


@pytest.mark.parametrize("where", [("--store", "{}", "gpu"), ("{}#gpu",)], ids=["store", "url"])
def test_slots_are_not_for_a_store_and_what_is_is_told(lifehold, tmp_path, where):
    words = [word.format(f"sqlite:///{tmp_path}/x.db") for word in where]
    run = lifehold("run", *SLOTS, *words, "--", "true")
    assert run.returncode == 64
    assert "connect(URL).semaphore(NAME, PERMITS)" in run.stderr


def test_a_first_waiter_that_is_stopped_is_named_as_nobody_passes_it(lifehold, tmp_path):
    path = str(tmp_path / "gpu.lock")
    leases = [Semaphore(path, 2).acquire() for _ in range(2)]
    first = lifehold.start("run", "--slots", "0,1", path, "--", "echo", "in")
    inode, locks = f":{os.stat(path).st_ino} ", Path("/proc/locks")
    while not any(
        inode in line and f" {first.pid} " in line for line in locks.read_text().splitlines()
    ):
        assert first.poll() is None
        time.sleep(0.01)
    os.kill(first.pid, signal.SIGSTOP)
    for lease in leases:
        lease.release()
    with pytest.raises(WouldBlock) as caught:
        Semaphore(path, 2).acquire(0)
    told = lifehold("who", path)
    for words in (str(caught.value), told.stdout):
        assert f"pid {first.pid}" in words
        assert "but stopped by a signal" in words
        assert f"kill -CONT {first.pid}" in words
    assert lifehold("wait", "-w", "0.1", path).returncode == 75
    os.kill(first.pid, signal.SIGCONT)
    assert first.communicate(timeout=60)[0] == "in\n"
    assert lifehold("wait", "-w", "0.1", path).returncode == 0


def test_a_nested_run_is_an_error_where_each_slot_is_held_by_a_run_around_it(lifehold):
    """Only their own end could free one; where another is free, it is taken."""

    def nested(slots, times):
        run = [sys.executable, "-m", "lifehold", "run", "--slots", slots, "gpu", "--"]
        return lifehold(*run[3:], *(run * (times - 1)), "sh", "-c", "echo $LIFEHOLD_SLOT")

    for slots, times in (("a", 2), ("a,b", 3)):
        done = nested(slots, times)
        assert (done.returncode, done.stdout) == (75, "")
        assert "the `lifehold run` around this command holds it" in done.stderr
    assert nested("a,b", 2).stdout in ("a\n", "b\n")


def test_a_run_waits_for_a_slot_that_another_holds(lifehold):
    """Though one is held by the run around it, and an old list names the other."""
    (run, _), (other, _) = start(lifehold), start(lifehold)
    held = ":".join(f"nonce-1@{lifehold.folder}/gpu#{number}.lock" for number in "01")
    refused = lifehold("run", "-n", *SLOTS, "gpu", "--", "true", env={"LIFEHOLD_HELD": held})
    assert refused.returncode == 75
    assert "around this command" not in refused.stderr
    end(run)
    end(other)
