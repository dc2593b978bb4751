"""`lifehold run --kind soft`."""

from __future__ import annotations

import json
import os

SOFT = ("run", "--kind", "soft")


def test_a_soft_run_holds_a_file_that_is_gone_afterwards(lifehold, tmp_path):
    script = "cat ./job.lock; echo $LIFEHOLD_TOKEN"
    done = lifehold(*SOFT, "--ttl", "30", "./job.lock", "--", "sh", "-c", script)
    record, token = done.stdout.strip().rsplit("\n", 1)
    pid, _, record = record.partition("\n")
    assert pid.isdigit()
    found = json.loads(record)
    assert (found["kind"], found["ttl"], found["token"]) == ("soft", 30.0, int(token))
    assert done.returncode == 0
    assert sorted(os.listdir(tmp_path)) == [".job.lock.history", "job.lock.token"]


def test_two_soft_runs_exclude_each_other(lifehold, tmp_path):
    add = "read n < count; sleep 0.02; echo $((n + 1)) > count"
    (tmp_path / "count").write_text("0\n")
    runs = [lifehold.start(*SOFT, "./job.lock", "--", "sh", "-c", add) for _ in range(6)]
    assert [run.wait(90) for run in runs] == [0] * 6
    assert (tmp_path / "count").read_text() == "6\n"


def test_who_does_not_get_it_is_told_who_has_it(lifehold, eventually, tmp_path):
    lifehold.start(*SOFT, "./job.lock", "--", "sleep", "60")
    eventually((tmp_path / "job.lock").exists, "the record is there")
    done = lifehold(*SOFT, "-n", "./job.lock", "--", "true")
    assert done.returncode == 75
    assert "(soft lock, " in done.stderr


def test_what_cannot_be_is_usage(lifehold):
    for words in (["--ttl", "30"], ["--kind", "soft", "-F", "--ttl", "30"], ["--kind", "spoon"]):
        done = lifehold("run", *words, "./job.lock", "--", "true")
        assert done.returncode == 64, (words, done.stderr)


def test_who_says_of_one_that_was_used_that_there_is_no_file(lifehold, tmp_path):
    lifehold(*SOFT, "./job.lock", "--", "true")
    assert lifehold("who", "./job.lock").stdout.startswith(
        "'./job.lock' is free: there is no file\n"
    )
    assert "nobody has used it yet" in lifehold("who", "other").stdout
