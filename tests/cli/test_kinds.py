"""`run`, `who`, `wait`, `check`, `touch`, `log` and `ls` on locks whose record is the lock: their
kind is found, not told."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import jsonschema
import pytest

from lifehold import Lock
from lifehold.cli.main import main
from lifehold.core.owner import Owner
from lifehold.local.ground import MountInfo
from lifehold.local.record import RecordTemplate, WrittenRecord

KINDS = ["soft", "link", "generation"]
SCHEMA = json.loads(
    (Path(__file__).parents[2] / "docs/reference/who.schema.json").read_text(encoding="utf-8")
)
INSIDE = "{python} -m lifehold check && {python} -m lifehold touch ./job && {python} -m lifehold check ./job --token $LIFEHOLD_TOKEN"  # noqa: E501


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def asked(capfd):
    """What a command of this process says: (status, stdout)."""

    def ask(*words: str) -> tuple[int, str]:
        capfd.readouterr()
        code = main(list(words))
        return code, capfd.readouterr().out

    return ask


def who(asked, path, status):
    code, out = asked("who", "--json", str(path))
    found = json.loads(out)
    jsonschema.validate(found, SCHEMA)
    assert code == status, out
    return found["locks"][0]


def test_a_run_knows_that_it_holds_the_lock_and_says_so_to_all_who_ask(
    lifehold, kind, asked, tmp_path
):
    script = INSIDE.format(python=sys.executable)
    done = lifehold("run", "--kind", kind, "--ttl", "30", "./job", "--", "sh", "-c", script)
    assert (done.returncode, done.stderr) == (0, "")
    path = lifehold.folder / "job"
    with Lock(path, kind=kind, ttl=30) as lease:
        found = who(asked, path, 0)
        holder = found["holder"]
        assert (found["kind"], found["state"], holder["token"]) == (kind, "held", lease.token)
        assert (holder["pid_here"], holder["alive"]) == (os.getpid(), "alive")
        assert abs(holder["since"] - time.time()) < 60
        words = asked("who", str(path))[1]
        assert f"{kind} lock, " in words
        assert "a lease of 30 s" in words
        assert "alive  yes, checked now (" in words
        assert asked("wait", "-w", "0.1", str(path))[0] == 75
        assert asked("ls", str(path.parent), "--held", "--names")[1].strip() == str(path)
    assert who(asked, path, 1)["state"] == "free"
    assert asked("wait", "-w", "0", str(path))[0] == 0
    assert "hold" in asked("log", str(path))[1]


def test_wait_ends_with_the_release_and_with_the_death_of_the_holder(lifehold, kind, eventually):
    for ends in ("release", "death"):
        holder = lifehold.holder("--kind", kind, "./job")
        waits = lifehold.start("wait", "-w", "1h", "./job")
        began = time.monotonic()
        os.kill(holder.child, 15) if ends == "release" else lifehold.kill(holder)
        assert waits.wait(60) == 0
        assert time.monotonic() - began < 60
        holder.wait(60)


def test_a_dead_holder_is_stale_and_a_lease_that_nobody_can_see_is_suspect(kind, asked, tmp_path):
    path, place = tmp_path / "job", MountInfo("nfs4", "0:9")
    if kind == "generation":
        path.mkdir()
    file = path / f"{7:020d}" if kind == "generation" else path
    for ground, status, state in ((MountInfo("ext4", "8:1"), 3, "stale"), (place, 3, "suspect")):
        words = RecordTemplate(kind, Owner(1, boot_id="another"), 30.0, ground, witness=True)
        file.write_bytes(WrittenRecord(words, 1, 7, 7).text)
        found = who(asked, path, status)
        assert (found["kind"], found["state"], found["holder"]["owner"]["pid"]) == (kind, state, 1)


@pytest.mark.parametrize(
    "content", [b'{"lifehold":9,"kind":"%s","ttl":5}', b'{"lifehold":1,"kind":"%s"']
)
def test_a_newer_or_damaged_record_is_suspect_with_the_reason(kind, asked, tmp_path, content):
    path = tmp_path / "job"
    if kind == "generation":
        path.mkdir()
    file = path / f"{7:020d}" if kind == "generation" else path
    file.write_bytes(content % kind.encode())
    found = who(asked, path, 3)
    assert found["state"] == "suspect"
    assert "newer lifehold" in found["note"] or "damaged" in found["note"]
