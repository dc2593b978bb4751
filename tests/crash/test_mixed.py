"""One path shared with flock(1) and filelock: nobody is inside with anybody else, tokens grow.

Six seconds each, and longer where a party hardly got in: who is next on a path that others unlink
is chance, and a machine busy with other tests makes it worse. The long form is
`python -m tests.soak.mixed --seconds 60 A B`.
"""

from __future__ import annotations

import subprocess
import time

import pytest

from crash.scene import free
from ground import needs, reason
from soak import canary, mixed, parties

pytestmark = needs("linux", "fork")

SECONDS = (6.0, 20.0, 60.0)
FEWEST = 0.002  # of the acquisitions, on a busy machine; the soak asks for 5 %


@pytest.fixture(scope="session")
def package(tmp_path_factory):
    """Makes a folder with filelock of some version, for tests that stand on a package index."""
    had = {}

    def of(version):
        if version not in had:
            folder = tmp_path_factory.mktemp(f"filelock-{version}")
            had[version] = folder, mixed.fetch(version, folder)
        folder, why = had[version]
        if why:
            pytest.skip(reason(f"filelock {version} from a package index", "it gives none"))
        return folder

    return of


def no_overlap_and_no_hang(folder, run):
    """In runs of growing length, until one in which every party had its share."""
    for seconds in SECONDS:
        account = mixed.play(folder, run, seconds)
        safe(account)
        if account.least > FEWEST:
            return
    pytest.fail(f"a party starves: {list(mixed.report(account))}")


def safe(account):
    assert not account.overlaps
    assert canary.not_growing(account.tokens) == 0
    assert account.tokens
    assert not account.hanging
    assert not account.trouble


@needs("flock")
def test_ours_flock_of_the_shell_and_filelock_share_one_path(tmp_path, package):
    no_overlap_and_no_hang(tmp_path, mixed.run_a(package(mixed.FILELOCK)))
    assert free(tmp_path / "lock")


def test_ours_and_a_filelock_that_unlinks_on_release_share_one_path(tmp_path, package):
    found = package(mixed.UNLINKING)
    assert mixed.unlinks_on_release(found)
    no_overlap_and_no_hang(tmp_path, mixed.run_b(found))


def test_the_other_filelock_leaves_the_file(package):
    assert not mixed.unlinks_on_release(package(mixed.FILELOCK))


def test_a_party_that_never_looks_at_the_path_again_is_caught_by_the_canary(tmp_path, package):
    for seconds in (3.0, 10.0, 30.0):  # two must meet inside
        account = mixed.play(tmp_path, mixed.run_bad(package(mixed.UNLINKING)), seconds)
        kinds = {kind for pair in account.overlaps for kind in pair}
        if kinds:
            break
    assert "blind" in kinds
    assert not {("ours", "ours"), ("ours", "filelock"), ("filelock", "ours")} & {*account.overlaps}
    assert not account.hanging


def test_two_threads_with_one_descriptor_are_caught_by_the_canary(tmp_path):
    """Needs no package index: flock(2) does not exclude two uses of one open file."""
    for seconds in (1.0, 5.0, 20.0):  # two must meet inside
        account = mixed.play(tmp_path, [("one-fd", parties.one_descriptor)], seconds)
        if account.overlaps["one", "one"]:
            break
    assert account.overlaps["one", "one"] > 0


@needs("flock")
def test_the_section_of_the_shell_is_the_same_as_ours(tmp_path):
    def shell():
        script = canary.in_shell(tmp_path, "sh")
        subprocess.run(["sh", "-c", script], check=True, stderr=subprocess.DEVNULL)

    ours = canary.Canary(tmp_path, "ours")
    assert ours.enter(7)
    shell()
    ours.leave()
    shell()
    assert canary.overlaps(tmp_path) == [("ours", "sh")]
    assert canary.entries(tmp_path) == [(7, "ours"), (None, "sh")]
    assert ours.enter(8)


def test_a_party_that_does_not_come_home_is_reported_as_hanging(tmp_path, monkeypatch):
    def stuck(folder, name, end):
        time.sleep(600)

    monkeypatch.setattr(mixed, "HOME", 0.2)
    account = mixed.play(tmp_path, [("stuck", stuck)], 0.1)
    assert account.hanging == ["stuck"]
    assert not account.clean
