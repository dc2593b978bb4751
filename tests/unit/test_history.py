"""The history beside a lock: whole lines, a bound, and nothing that can fail a run."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from ground import needs
from lifehold.ops import history
from lifehold.ops.history import HistoryEntry, append, entry_of, line_of, path_of, read

SOURCE = Path(__file__).parents[2] / "src"
FULL = HistoryEntry(
    "skip", "job", 1763600000.25, 75, 1.5, 2.0, 7, "ab-7", 41, "ana", "web-3", "make all", "month",
    "it is held", "pid 4127 (python x.py)", 4127, 1763500000.0,
)  # fmt: skip


def test_what_is_written_is_read_again(tmp_path):
    lock = str(tmp_path / "job.lock")
    short = HistoryEntry("hold", "job", 3.0, 0)
    assert append(lock, FULL)
    assert append(lock, short)
    assert read(lock) == [FULL, short]
    assert stat.S_IMODE(os.stat(path_of(lock)).st_mode) == 0o600
    lines = Path(path_of(lock)).read_text().splitlines()
    assert json.loads(lines[1]) == {
        "history": 1, "event": "hold", "name": "job", "at": 3.0, "code": 0, "waited": 0.0
    }  # fmt: skip


def at(*times, name="job"):
    return [HistoryEntry("hold", name, float(each)) for each in times]


def test_a_line_of_a_clock_that_stood_ahead_keeps_its_place_among_others(monkeypatch):
    monkeypatch.setattr(history.clock, "utc_now", lambda: 1000.0)
    one, other = at(100, 1e9, 300), at(50, 200, 400, name="other")
    found = history.merged(one, other)
    assert [each.at for each in found] == [50, 100, 1e9, 200, 300, 400]
    assert [each.at for each in history.merged(at(1e9, 1000), at(1060))] == [1e9, 1000, 1060]


def test_the_order_of_one_file_stands_whatever_its_clock_said(monkeypatch):
    monkeypatch.setattr(history.clock, "utc_now", lambda: 1000.0)
    for times in ((5, 3, 4), (1e9, 2, 1e8, 1), (7, 7, 7)):
        assert history.merged(at(*times)) == at(*times)


def test_a_lock_without_a_history_has_an_empty_one(tmp_path):
    assert read(str(tmp_path / "job.lock")) == []


def test_the_history_of_a_lock_for_all_users_is_for_all_users(tmp_path):
    before = os.umask(0o077)
    try:
        assert append(str(tmp_path / "job.lock"), FULL, shared=True)
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(path_of(str(tmp_path / "job.lock"))).st_mode) == 0o666


def test_the_history_is_bounded_and_keeps_the_latest(tmp_path, monkeypatch):
    monkeypatch.setattr(history, "LIMIT", 2000)
    lock = str(tmp_path / "job.lock")
    for number in range(200):
        assert append(lock, HistoryEntry("hold", "job", float(number)))
    kept = [entry.at for entry in read(lock)]
    assert kept == [float(number) for number in range(200 - len(kept), 200)]
    assert 20 < len(kept) < 60
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 3 * 2000
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        ".job.lock.history", ".job.lock.history.1"
    ]  # fmt: skip


def test_a_file_that_cannot_be_renamed_is_bounded_too(tmp_path, monkeypatch):
    monkeypatch.setattr(history, "LIMIT", 2000)

    def refuse(*_: object) -> None:
        raise PermissionError(1, "sticky")

    monkeypatch.setattr(os, "rename", refuse)
    lock = str(tmp_path / "job.lock")
    for number in range(200):
        assert append(lock, HistoryEntry("hold", "job", float(number)))
        assert os.stat(path_of(lock)).st_size < 3 * 2000
    assert read(lock)[-1].at == 199


@pytest.mark.parametrize("older", [True, False], ids=["with an older one", "with none"])
@pytest.mark.parametrize("turns", [1, 2, 3])
def test_a_reader_loses_nothing_while_the_file_is_renamed(tmp_path, monkeypatch, turns, older):
    lock, opened = str(tmp_path / "job.lock"), []
    written = iter(range(1000))

    def write(count):
        for _ in range(count):
            assert append(lock, HistoryEntry("hold", "job", float(next(written))))

    def full():
        while os.path.exists(path_of(lock)):
            write(1)

    monkeypatch.setattr(history, "LIMIT", 2000)
    if older:
        write(1)
        full()
    write(3)
    really = os.open

    def opens(path, flags, *more, **terms):
        if not flags & os.O_WRONLY:
            opened.append(path)
            if len(opened) == 2:  # between the two files
                for _ in range(turns):
                    write(1)
                    full()
                write(2)
        return really(path, flags, *more, **terms)

    monkeypatch.setattr(os, "open", opens)
    seen = [int(entry.at) for entry in read(lock)]
    monkeypatch.undo()
    assert seen == [int(entry.at) for entry in read(lock)]
    assert seen == list(range(seen[0], next(written)))


def test_a_reader_ends_though_the_file_is_renamed_again_and_again(tmp_path, monkeypatch):
    lock = str(tmp_path / "job.lock")
    assert append(lock, FULL)
    really = os.open

    def opens(path, flags, *more, **terms):
        fd = really(path, flags, *more, **terms)
        if path == path_of(lock) and not flags & os.O_WRONLY:
            os.rename(path, path + ".1")
            assert append(lock, FULL)
        return fd

    monkeypatch.setattr(os, "open", opens)
    assert FULL in read(lock)


WRITER = """
import sys; from lifehold.ops import history
history.LIMIT = int(sys.argv[3])
for number in range(int(sys.argv[4])):
    entry = history.HistoryEntry("hold", sys.argv[2], float(number), label="x" * 300)
    history.append(sys.argv[1], entry)
"""


def writers(lock: Path, count: int, limit: int, lines: int) -> None:
    env = os.environ | {"PYTHONPATH": str(SOURCE)}
    words = [sys.executable, "-c", WRITER, str(lock)]
    started = [
        subprocess.Popen([*words, f"w{one}", str(limit), str(lines)], env=env)
        for one in range(count)
    ]
    assert [each.wait(60) for each in started] == [0] * count


def test_writers_at_the_same_time_lose_no_line_and_tear_none(tmp_path, monkeypatch):
    monkeypatch.setattr(history, "LIMIT", 600_000)
    lock = tmp_path / "job.lock"
    writers(lock, 4, 600_000, 400)  # about 660 kB in all: one rotation in the midst of it
    assert Path(path_of(str(lock)) + ".1").exists()
    seen = [(entry.name, entry.at) for entry in read(str(lock))]
    assert sorted(seen) == [(f"w{one}", float(at)) for one in range(4) for at in range(400)]


def test_writers_at_the_same_time_never_rename_a_file_that_is_not_full(tmp_path):
    lock = tmp_path / "job.lock"
    writers(lock, 4, 20_000, 300)
    assert Path(path_of(str(lock)) + ".1").stat().st_size > 20_000
    seen = read(str(lock))
    for one in range(4):  # of each writer the latest, in order
        mine = [entry.at for entry in seen if entry.name == f"w{one}"]
        assert mine == sorted(mine)


@given(some.text(), some.text(), some.text(), some.integers(0, 255))
def test_any_text_makes_one_line_that_plays_no_tricks(name, command, label, code):
    name, command, label = name * 3, command * 50, label * 50
    line = line_of(HistoryEntry("hold", name, 1.0, code, command=command, label=label))
    assert len(line) <= 4096
    assert line.count(b"\n") == 1
    assert line.decode().rstrip("\n").isprintable()
    entry = entry_of(line)
    assert (entry.event, entry.code) == ("hold", code)
    assert entry.label.isprintable()


def test_a_long_command_is_cut_and_its_line_stays_whole():
    line = line_of(
        HistoryEntry("hold", "job", 1.0, command="\x1b" * 10_000, label="\N{FIRE}" * 9999)
    )
    assert len(line) <= history.LINE
    assert entry_of(line).command.endswith("...")


@pytest.mark.parametrize(
    "line",
    [b"", b"x", b'{"history":1', b'{"history":1}', b"[1]", b'{"history":1,"at":"x"}', b"\xff\xfe",
     b'{"history":1,"event":1,"name":"job","at":1}', b"null"],
)  # fmt: skip
def test_what_is_no_line_of_a_history_is_skipped(tmp_path, line):
    lock = str(tmp_path / "job.lock")
    Path(path_of(lock)).write_bytes(line + b"\n")
    assert read(lock) == []
    assert append(lock, FULL)
    assert read(lock) == [FULL]


def test_a_line_after_a_torn_one_and_a_line_of_a_newer_version_are_read(tmp_path):
    lock = str(tmp_path / "job.lock")
    newer = b'{"history":2,"event":"hold","name":"job","at":2,"mood":["fine"]}\n'
    Path(path_of(lock)).write_bytes(line_of(FULL)[:40] + line_of(FULL) + newer)
    assert read(lock) == [FULL, HistoryEntry("hold", "job", 2)]


def test_links_fifos_and_folders_in_its_place_are_left_alone(tmp_path):
    target = tmp_path / "precious"
    target.write_text("data")
    lock = str(tmp_path / "job.lock")
    place = Path(path_of(lock))
    for make in (
        lambda: place.symlink_to(target), lambda: os.link(target, place),
        lambda: os.mkfifo(place), place.mkdir,
    ):  # fmt: skip
        make()
        assert not append(lock, FULL)
        assert target.read_text() == "data"
        place.rmdir() if place.is_dir() and not place.is_symlink() else place.unlink()


@needs("user")
def test_a_folder_that_must_not_be_written_fails_nobody(tmp_path):
    tmp_path.chmod(0o500)
    assert not append(str(tmp_path / "job.lock"), FULL)


def test_a_folder_that_is_gone_fails_nobody(tmp_path):
    assert not append(str(tmp_path / "gone" / "job.lock"), FULL)


@pytest.mark.parametrize("name", ["x" * 255, "ü" * 127, "x" * 245])
def test_the_longest_names_have_a_history_of_their_own(tmp_path, name):
    one, other = str(tmp_path / name), str(tmp_path / (name[:-1] + "y"))
    assert append(one, FULL)
    assert read(one) == [FULL]
    assert read(other) == []
