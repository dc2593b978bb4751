"""One file of any user ends no command and keeps none busy: it costs itself alone (L13)."""

from __future__ import annotations

import json
import os
import time

import pytest

from ground import needs
from lifehold import LifeholdError, Lock
from lifehold.local import record
from lifehold.ops import families, history, inventory
from lifehold.ops import who as slots
from lifehold.ops.answer import SUSPECT
from lifehold.ops.watch import SKIPPED, UNREAD, Config, Watch
from lifehold.ops.who import who

pytestmark = needs("linux", "proc")
KINDS = ("soft", "link", "generation", "directory")


def written(folder, kind, /, **members):
    """A live record of ours of that kind, with other members; its path."""
    path = f"{folder}/x.lock"
    with Lock(path, kind=kind):
        file = path
        if os.path.isdir(path):
            file = max(f"{path}/{name}" for name in os.listdir(path))
        with open(file, "rb") as whole:
            content = whole.read()
    head, _, rest = content.partition(b"{")
    text = json.dumps(json.loads(b"{" + rest) | {"state": "held"} | members, separators=(",", ":"))
    if not os.path.exists(file):
        os.makedirs(os.path.dirname(file), exist_ok=True)
    with open(file, "wb") as whole:
        whole.write(head + text.encode().ljust(len(content) - len(head) - 1) + b"\n")
    return path


def commands(lifehold, path):
    """What each command that looks ends with. 70 would be a traceback."""
    folder = os.path.dirname(path)
    told = {}
    for words in (
        ["who", path], ["who", "--json", path], ["ls", "-R", folder], ["ls", "--json", folder],
        ["clear", "-n", "-R", folder], ["top", "--once", folder], ["wait", "-w", "0", path],
        ["check", "--token", "5", path],
    ):  # fmt: skip
        done = lifehold(*words)
        assert done.returncode != 70, done.stderr
        assert "Traceback" not in done.stderr
        told[words[0]] = done
    return told


ODD = ([], {}, 5, True, None, 10**30, -1, "x" * 300, [[1]])
MEMBERS = ("ground", "nonce", "pid", "ttl", "kind", "host", "witness", "end", "start_ticks")


@pytest.mark.parametrize("kind", KINDS)
def test_no_member_of_a_record_makes_a_lock_raise_what_no_page_names(kind, tmp_path):
    for number, (key, odd) in enumerate((key, odd) for key in MEMBERS for odd in ODD):
        folder = tmp_path / str(number)
        folder.mkdir()
        path = written(str(folder), kind, **{key: odd})
        try:
            Lock(path, kind=kind, wait=0).acquire().release()
        except LifeholdError:
            pass
        assert who(path, path).note != "what is there cannot be judged"


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_whose_ground_is_a_list_ends_no_command(kind, lifehold):
    commands(lifehold, written(str(lifehold.folder), kind, ground=[]))


def test_a_roster_of_anything_ends_no_command(lifehold):
    for number, content in enumerate(
        ['{"exclusive": 5}', '{"exclusive": {"a": 1}}', "[" * 20_000, '{"shared": [[1]]}']
    ):
        folder = lifehold.folder / f"{number}"
        folder.mkdir()
        (folder / "lock.roster").write_text(content)
        done = lifehold("ls", "-R", str(folder))
        assert (done.returncode, "Traceback" in done.stderr) == (0, False)


def test_34_bytes_keep_no_command_busy(lifehold):
    path = str(lifehold.folder / "x.lock")
    with open(path, "w") as file:
        file.write('{"lifehold":1,"kind":"semaphore","permits":999999}\n')
    began = time.monotonic()
    told = commands(lifehold, path)
    assert time.monotonic() - began < 60  # 8 commands; a semaphore of 999999 took minutes each
    assert "0 of its 999999 slots are taken" in told["who"].stdout


def test_the_slots_that_are_there_are_looked_at_and_no_others(tmp_path):
    for name in ("x#0.lock", "x#7.lock", "x#٣.lock", "x#07.lock", "x#1000000.lock", "y#1.lock"):
        (tmp_path / name).touch()
    assert slots.numbers_of(f"{tmp_path}/x.lock", 999_999) == [0, 7]
    assert slots.numbers_of(f"{tmp_path}/x.lock", 5) == [0]


LINES = {
    "minus infinity": b'{"history":1,"event":"hold","name":"x","at":-Infinity}',
    "a googol": b'{"history":1,"event":"hold","name":"x","at":1' + b"0" * 400 + b"}",
    "20,000 digits": b'{"history":1,"event":"hold","name":"x","at":1' + b"0" * 20_000 + b"}",
    "no number": b'{"history":1,"event":"hold","name":"x","at":5,"waited":NaN}',
    "deep lists": b'{"history":1,"event":"hold","name":"x","at":5,"x":' + b"[" * 20_000,
    "deep tables": b'{"history":1,"event":"hold","name":"x","at":5,"x":' + b'{"a":' * 20_000,
}


@pytest.mark.parametrize("line", LINES)
def test_a_line_of_a_history_ends_neither_the_log_nor_a_round(line, lifehold):
    folder = lifehold.folder / "w"
    folder.mkdir()
    good = b'{"history":1,"event":"skip","name":"x","at":5}'
    (folder / ".x.lock.history").write_bytes(LINES[line] + b"\n" + good + b"\n")
    for words in (["log"], ["log", "--json"], ["log", "-l", "1"]):
        done = lifehold(*words, str(folder / "x.lock"))
        assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
        if "--json" in words:
            kept = json.loads(done.stdout, parse_constant=pytest.fail)["entries"]
            assert [each["event"] for each in kept] == ["skip"]
    told = []
    Watch(Config((str(folder),), skips=1, silent=1.0), told.append).round()
    assert [each.what for each in told] == [SKIPPED]


def test_a_history_that_cannot_be_read_costs_itself_alone(tmp_path, monkeypatch):
    for name in ("a", "b"):
        line = b'{"history":1,"event":"skip","name":"x","at":5}\n'
        (tmp_path / f".{name}.history").write_bytes(line)

    def read(lock, real=history.read):
        if lock.endswith("a"):
            raise PermissionError(13, "no", lock)
        return real(lock)

    monkeypatch.setattr(history, "read", read)
    told = []
    Watch(Config((str(tmp_path),), skips=1), told.append).round()
    assert {(each.what, each.path[-1]) for each in told} == {(UNREAD, "a"), (SKIPPED, "b")}


def test_what_nobody_foresaw_in_one_lock_hides_no_other(tmp_path, monkeypatch):
    """The last line of defence, whatever a row of ours makes of a file."""
    (tmp_path / "bad.pid").write_text("5\n")
    (tmp_path / "good.pid").write_text("6\n")

    def judged(sight, *rest, real=families.first_living):
        if sight.name == "bad.pid":
            raise ZeroDivisionError("hostile")
        return real(sight, *rest)

    monkeypatch.setattr(families, "first_living", judged)
    found = {os.path.basename(each.path): each for each in inventory.of_folder(str(tmp_path))}
    assert found["bad.pid"].state == SUSPECT
    assert "cannot be judged: ZeroDivisionError" in found["bad.pid"].note
    assert found["good.pid"].holder is not None
    assert who("x", f"{tmp_path}/bad.pid").state == SUSPECT
    told = []
    Watch(Config((str(tmp_path),), suspect="alert"), told.append).round()
    assert any(each.path.endswith("bad.pid") for each in told)


def test_a_judgement_that_fails_ends_no_round(tmp_path, monkeypatch):
    told = []
    skip = history.HistoryEntry("skip", "x", 5.0)
    watch = Watch(Config((str(tmp_path), "/w"), skips=1), told.append, lambda folder: [],
                  lambda folder: [(f"{folder}/x", [skip])])  # fmt: skip
    monkeypatch.setattr(watch, "_judge_runs", lambda *rest: 1 // 0)
    assert watch.round().failures == 2
    assert {each.what for each in told} == {UNREAD}


def test_a_record_keeps_its_numbers_in_bounds():
    whole = {"token": 5, "end": 5, "acquired_at_us": 5, "pid": 7, "nonce": "ab"}
    assert record.of_members(whole).owner.pid == 7
    for key in ("pid", "thread", "start_ticks", "uid"):
        with pytest.raises(ValueError, match="numbers that are none"):
            record.of_members(whole | {key: 10**30})
