"""The power cut: what its disk keeps and loses, what its judge finds wrong, and one run of it."""

from __future__ import annotations

import pytest

import ground
from faults.rows import BY_NAME
from soak.powercut import Tally, play
from soak.powercut_disk import HEAD, Disk

SIZE = 4096


@pytest.fixture
def disk(tmp_path):
    """Four writes of one block each, with a flush after the second."""
    before, log = tmp_path / "before", tmp_path / "log"
    before.write_bytes(b"." * SIZE * 4)
    with log.open("wb") as file:
        for number, letter in enumerate("ab|cd"):
            length = 0 if letter == "|" else SIZE
            kind, offset = (
                (b"W", min(number, number - (number > 2)) * SIZE) if length else (b"F", 0)
            )
            file.write(HEAD.pack(kind, number, offset, length) + letter.encode() * length)
    return Disk(before, log, tmp_path / "then")


def blocks(path):
    content = path.read_bytes()
    return "".join(chr(content[n]) for n in range(0, len(content), SIZE))


def test_a_disk_that_loses_nothing_has_all_writes_before_the_cut(disk, tmp_path):
    seen = []
    for number in range(6):
        disk.cut(number, tmp_path / "made")
        seen.append(blocks(tmp_path / "made"))
    assert seen == ["....", "a...", "ab..", "ab..", "abc.", "abcd"]


def test_a_disk_that_loses_what_was_not_flushed_keeps_what_was(disk, tmp_path):
    seen = set()
    for seed in range(1, 40):
        disk.cut(5, tmp_path / "made", seed)
        seen.add(blocks(tmp_path / "made"))
    assert seen == {"ab..", "abc.", "ab.d", "abcd"}


def test_the_last_write_may_be_torn(disk, tmp_path):
    sizes = set()
    for seed in range(1, 40):
        disk.cut(5, tmp_path / "made", seed)
        sizes.add((tmp_path / "made").read_bytes().count(b"d"))
    assert len(sizes) > 4
    assert all(size % 512 == 0 for size in sizes)


SAID = {"took": 0.1, "token": 8, "next": 9, "alone": True}


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        (SAID, ""),
        (SAID | {"token": 7}, "tokens 7, 9 after 7 was granted"),
        (SAID | {"next": 8}, "tokens 8, 8"),
        (SAID | {"alone": False}, "1 double holders"),
        (SAID | {"took": 1.9}, "recovered only after"),
        (SAID | {"took": 2.1}, ""),
        (SAID | {"took": 5.0}, "left alone for 5.0 s"),
        ({"error": {"error": "Timeout", "text": "held"}}, "wedged"),
    ],
)
def test_the_judge_finds_what_is_wrong_after_a_cut(said, wrong):
    tally = Tally(BY_NAME["soft"], "ext4")
    tally.add(said, 7, "a cut")
    found = "; ".join(tally.end().wrong)
    assert wrong in found
    assert bool(found) == bool(wrong)


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_no_lock_is_wedged_by_a_power_cut_and_no_token_repeats(kind):
    ground.require("root", "fuse", kind)
    for cell in play(cuts=10, seconds=6, kind=kind):
        assert not cell.wrong, f"{cell.row}: {cell.wrong}"
