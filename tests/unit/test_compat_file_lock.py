"""`file_lock` and `StalenessChecker` of lifehold.compat.file_lock."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
import time

import pytest

from ground import needs
from lifehold.compat.file_lock import StalenessChecker, file_lock

pytestmark = needs("linux")


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "config.lock")


@pytest.fixture(scope="module")
def dead():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def old(path, content):
    with open(path, "w") as file:
        file.write(content)
    os.utime(path, (time.time() - 9000,) * 2)


def test_the_block_holds_the_file_and_leaves_none(path):
    with file_lock(path) as lease:
        lease.check()
        with pytest.raises(TimeoutError, match="held"), file_lock(path, timeout=0.02):
            pass
    assert not os.path.exists(path)


@pytest.mark.parametrize("spell", [str, lambda pid: json.dumps({"pid": pid, "created": 1.0})])
def test_a_file_of_a_dead_process_is_taken_over_at_once(path, dead, spell):
    old(path, spell(dead))
    with file_lock(path, timeout=30):
        pass


def test_a_file_that_is_not_there_is_not_stale(path):
    assert StalenessChecker().check(path) == {"stale": False, "exists": False}
    assert StalenessChecker().clean_if_stale(path) is False


def test_the_dead_ones_file_is_stale_and_goes(path, dead, caplog):
    old(path, json.dumps({"pid": dead, "created": 1.0}))
    found = StalenessChecker(max_age_seconds=300).check(path)
    assert found["stale"]
    assert found["age_seconds"] >= 9000
    with caplog.at_level(logging.WARNING, "lifehold"):
        assert StalenessChecker().clean_if_stale(path) is True
    assert "STALE LOCK REMOVED" in caplog.text
    assert not os.path.exists(path)


def test_old_and_not_proven_dead_is_reported_and_stays(path, caplog):
    old(path, json.dumps({"pid": os.getpid(), "created": 1.0}))
    found = StalenessChecker().check(path)
    assert (found["stale"], found["suspect"]) == (False, True)
    with caplog.at_level(logging.WARNING, "lifehold"):
        assert StalenessChecker().clean_if_stale(path) is False
    assert "SUSPECT" in caplog.text
    assert os.path.exists(path)


def test_a_live_holders_old_file_is_neither(path):
    with file_lock(path):
        os.utime(path, (time.time() - 9000,) * 2)
        found = StalenessChecker().check(path)
        assert (found["stale"], found["suspect"], found["alive"]) == (False, False, "alive")
        assert StalenessChecker().clean_if_stale(path) is False
        assert os.path.exists(path)


@pytest.mark.parametrize(
    "make",
    [os.mkdir, os.mkfifo, lambda path: os.symlink("nowhere", path)],
    ids=["folder", "fifo", "link"],
)
def test_what_is_no_file_is_told_as_an_error_of_the_system(path, make):
    make(path)
    for look in (StalenessChecker().check, StalenessChecker().clean_if_stale):
        with pytest.raises(OSError, match=re.escape(path)):
            look(path)
    assert os.path.lexists(path)
