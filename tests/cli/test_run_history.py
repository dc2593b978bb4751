"""What a run leaves behind of itself: its line in the history, and its line of JSON."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from pathlib import Path

import jsonschema
import pytest

from lifehold.ops import history

SCHEMA = json.loads(
    (Path(__file__).parents[2] / "docs" / "reference" / "run.schema.json").read_text()
)


def entries(lifehold, name="job"):
    return history.read(str(lifehold.folder / f"{name}.lock"))


def told(done):
    """The JSON line, which is the last one on stderr."""
    line = json.loads(done.stderr.splitlines()[-1])
    jsonschema.validate(line, SCHEMA)
    return line


def test_a_run_that_ended_leaves_a_line_with_its_code_and_its_token(lifehold):
    lifehold("run", "--label", "month", "job", "--", "sh", "-c", "exit 3", "--token", "hunter2")
    (entry,) = entries(lifehold)
    record = json.loads((lifehold.folder / "job.lock").read_text())
    assert (entry.event, entry.name, entry.code) == ("hold", "job", 3)
    assert (entry.token, entry.pid) == (record["token"], record["pid"])
    assert entry.command == "sh -c exit 3 --token ***"
    assert (entry.label, entry.user, entry.host) == ("month", record["user"], record["host"])
    assert 0 < entry.held < 20
    assert abs(entry.at - os.stat(lifehold.folder / "job.lock").st_mtime) < 60


@pytest.mark.parametrize(
    ("words", "event", "code"),
    [(["-n"], "skip", 75), (["-w", "0.1"], "timeout", 75), (["--skip-ok"], "skip", 0),
     (["-n", "-E", "4"], "skip", 4), (["--skip-ok", "-w", "0.1"], "skip", 0)],
)  # fmt: skip
def test_a_run_that_did_not_get_the_lock_leaves_a_line_with_who_had_it(
    lifehold, words, event, code
):
    holder = lifehold.holder("job")
    done = lifehold("run", *words, "job", "--", "true")
    assert done.returncode == code
    (entry,) = entries(lifehold)
    assert (entry.event, entry.code, entry.holder_pid) == (event, code, holder.pid)
    assert entry.holder.startswith(f"pid {holder.pid} (lifehold run job -- sh -c ")
    assert entry.holder_since < entry.at
    assert (entry.waited >= 0.1) == ("-w" in words)


def test_a_skip_that_is_no_failure_is_said_on_stderr_all_the_same(lifehold):
    lifehold.holder("job")
    done = lifehold("run", "--skip-ok", "job", "--", "echo", "never")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith("could not acquire 'job' at once: it is held\n")
    assert done.stderr.endswith("lifehold: skipped, which --skip-ok calls no failure: status 0\n")


def test_a_lost_lock_leaves_a_line_with_the_reason(lifehold):
    lifehold("run", "job", "sh", "-c", 'rm "$LIFEHOLD_LOCK"; sleep 30')
    (entry,) = entries(lifehold)
    assert (entry.event, entry.code) == ("loss", 74)
    assert "was removed or renamed" in entry.reason


def test_a_command_that_did_not_start_leaves_a_line_too(lifehold):
    lifehold("run", "job", "--", "no-such-command")
    assert [(entry.event, entry.code) for entry in entries(lifehold)] == [("hold", 127)]


def test_a_history_that_cannot_be_written_fails_no_run(lifehold):
    place = Path(history.path_of(str(lifehold.folder / "job.lock")))
    place.mkdir()
    done = lifehold("run", "job", "--", "sh", "-c", "exit 3")
    assert (done.returncode, done.stderr) == (3, "")


def test_the_history_is_private_unless_the_folder_is_open_to_all(lifehold):
    lifehold("run", "job", "--", "true")
    place = Path(history.path_of(str(lifehold.folder / "job.lock")))
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    place.unlink()
    lifehold.folder.chmod(0o1777)
    lifehold("run", "job", "--", "true")
    assert stat.S_IMODE(place.stat().st_mode) == 0o666


def test_no_history_means_no_file(lifehold):
    lifehold("run", "--no-history", "job", "--", "true")
    assert [entry.name for entry in lifehold.folder.iterdir()] == ["job.lock"]


def test_escapes_of_a_label_reach_neither_the_history_nor_a_terminal(lifehold):
    label = "month's \x1b[31mend\x07\n"
    lifehold("run", "--label", label, "job", "--", "echo", "\x1b]0;x\x07")
    text = Path(history.path_of(str(lifehold.folder / "job.lock"))).read_text()
    assert text.rstrip("\n").isprintable()
    assert entries(lifehold)[0].label == "month's \\x1b[31mend\\x07\\n"
    lifehold.holder("--label", label, "job")
    done = lifehold("run", "-n", "-v", "job", "--", "echo", "\x1b]0;x\x07")
    assert done.stderr.replace("\n", "").isprintable()
    missing = lifehold("run", "other", "--", "./\x1b[31m")
    assert missing.stderr == "lifehold: cannot run './\\x1b[31m': not found\n"


def test_an_empty_label_is_no_label(lifehold):
    assert lifehold("run", "--label", "", "job", "--", "true").returncode == 0
    assert entries(lifehold)[0].label == ""


def test_json_tells_that_the_command_ran_and_its_code(lifehold):
    for close in ([], ["-o"]):
        done = lifehold("run", *close, "--json", "job", "--", "sh", "-c", "echo out; exit 75")
        line = told(done)
        assert (line["outcome"], line["code"], line["child"]) == ("ran", 75, 75)
        assert line["schema"] == "lifehold.run/1"
        assert line["locks"][0]["path"] == str(lifehold.folder / "job.lock")
        assert done.stdout == "out\n"
        assert done.stderr.count("\n") == 1


def test_json_tells_who_held_the_lock(lifehold):
    holder = lifehold.holder("job")
    for words, outcome, code in (
        (["-n"], "held", 75), (["-E3", "-w.1"], "held", 3), (["--skip-ok"], "skipped", 0),
    ):  # fmt: skip
        done = lifehold("run", "--json", *words, "job", "--", "true")
        line = told(done)
        assert (line["outcome"], line["code"], done.returncode) == (outcome, code, code)
        assert (line["held_name"], line["child"]) == ("job", None)
        assert line["holder"]["owner"]["pid"] == holder.pid
        assert line["text"].startswith("could not acquire 'job'")
        assert done.stderr.count("\n") == 1


def test_json_tells_of_a_loss_of_a_missing_command_and_of_a_refusal(lifehold):
    lost = lifehold("run", "--json", "job", "sh", "-c", 'rm "$LIFEHOLD_LOCK"; sleep 30')
    assert (told(lost)["outcome"], told(lost)["code"], told(lost)["child"]) == ("lost", 74, 143)
    missing = lifehold("run", "--json", "job", "no-such-command")
    assert (told(missing)["outcome"], told(missing)["code"]) == ("not_started", 127)
    refused = lifehold("run", "--json", "./no/\0".rstrip("\0") + "x", "true", env={})
    assert told(refused)["outcome"] == "ran"
    refused = lifehold("run", "--json", "/proc/x.lock", "true")
    assert (told(refused)["outcome"], refused.returncode) == ("error", 71)
    replaced = lifehold("run", "--json", "-F", "job", "true")
    assert (told(replaced)["outcome"], told(replaced)["held"]) == ("replaced", None)


def test_verbose_says_what_happens_and_masks_the_command(lifehold):
    done = lifehold("run", "-v", "job", "--", "true", "--password=hunter2")
    record = json.loads((lifehold.folder / "job.lock").read_text())
    assert done.stderr.splitlines()[:2] == [
        f"lifehold: 'job' is ours, token {record['token']}: '{lifehold.folder}/job.lock'",
        "lifehold: running true --password=***",
    ]
    assert "CMD has ended with 0 after " in done.stderr.splitlines()[2]
    assert lifehold("run", "job", "--", "true").stderr == ""


def test_a_reader_of_stderr_who_has_gone_does_not_end_the_run(lifehold, tmp_path):
    get, put = os.pipe()
    os.close(get)
    try:
        run = lifehold.start("run", "-v", "--json", "job", "sh", "-c", "exit 3", stderr=put)
        assert run.wait(60) == 3
        lifehold.holder("other")
        run = lifehold.start("run", "-n", "other", "true", stderr=put)
        assert run.wait(60) == 75
    finally:
        os.close(put)


@pytest.mark.parametrize("kind", ["soft", "link", "generation"])
def test_a_lock_taken_over_from_a_dead_run_leaves_a_line_with_the_proof(lifehold, kind):
    command = ("run", "--kind", kind, "job", "--", "sh", "-c", "echo up; read until")
    victim = lifehold.start(*command, stdin=subprocess.PIPE)
    assert victim.stdout.readline() == "up\n"
    victim.kill()
    victim.stdin.close()  # so that its CMD, which holds the lock too, ends
    assert lifehold("run", "-w", "60", "--kind", kind, "job", "--", "true").returncode == 0
    taken, held = entries(lifehold)
    assert (taken.event, held.event, held.code) == ("takeover", "hold", 0)
    assert (taken.token, taken.nonce) == (held.token, held.nonce)
    assert taken.reason == "its kernel witness is free"
    assert taken.holder.startswith(f"pid {taken.holder_pid} (lifehold run --kind {kind} job -- sh ")
    shown = lifehold("log", "--event", "takeover", "job").stdout
    assert f"true: taken over from pid {taken.holder_pid} " in shown
    assert lifehold("run", "--kind", kind, "job", "--", "true").returncode == 0
    assert [entry.event for entry in entries(lifehold)] == ["takeover", "hold", "hold"]
