"""What is found in a tree, and named by nobody, is removed only where it cannot be data."""

from __future__ import annotations

import hashlib
import os

import pytest

import unit_formats as formats
from ground import needs
from lifehold.ops import clear, inventory
from lifehold.ops.answer import FREE
from lifehold.ops.who import who
from lifehold.runtime import process

pytestmark = needs("linux", "proc", "all processes")


@pytest.fixture(scope="module")
def gone() -> int:
    pid = 4_190_000
    while process.look(pid).exists:
        pid -= 1
    return pid


@pytest.fixture(autouse=True)
def names(tmp_path, monkeypatch):
    monkeypatch.setenv("LIFEHOLD_DIR", str(tmp_path / "names"))


def cleared(folder: object) -> list[clear.ClearOutcome]:
    """As `clear -R` and the watch do it."""
    found = [each for each in inventory.of_folder(str(folder), deep=True) if each.state != FREE]
    return [clear.clear(each.path, found=True) for each in found]


def blob(folder, gone):
    """An object of git-lfs, Bazel, an OCI layout: named by the digest of its content."""
    content = f"{gone}\n"
    name = hashlib.sha256(content.encode()).hexdigest()
    return formats.file(folder, f"cas/{name[:2]}/{name}", content)


DATA = {
    "a blob named by its digest": blob,
    "a blob in a folder called locks": lambda f, p: formats.file(f, f"locks/{'0a' * 32}", f"{p}"),
    "a version": lambda f, p: formats.file(f, "cas/version.lock", f"{p}"),
    "a port": lambda f, p: formats.file(f, "cas/pg.lock", f"{p}\n"),
    "a number in a tool's file": lambda f, p: formats.file(f, "x/.cargo-lock", f"{p}"),
    "an empty lock beside somebody's build.ninja": lambda f, p: (
        formats.file(f, "b/build.ninja", "rule cc\n") and formats.file(f, "b/lock", "")),
    "an empty lock of a folder called torch_extensions": lambda f, p: formats.file(
        f, "torch_extensions/x/lock", ""),
}  # fmt: skip


@pytest.mark.parametrize("kind", DATA)
def test_data_in_a_tree_is_never_removed(kind, tmp_path, gone):
    path = DATA[kind](tmp_path / "tree", gone)
    before = path.read_bytes()
    cleared(tmp_path / "tree")
    assert path.read_bytes() == before


def test_what_is_kept_in_a_tree_says_why_and_how_to_remove_it(tmp_path, gone):
    path = formats.file(tmp_path / "tree", "a.lock", f"{gone}\n")
    (outcome,) = cleared(tmp_path / "tree")
    assert (outcome.action, outcome.next) == (clear.KEPT, f"lifehold clear {path}")
    assert "it may be data" in outcome.why
    assert clear.clear(str(path)).action == clear.FREED  # somebody names it


LOCKS = {
    "a pid file": lambda f, p: formats.file(f, "app/server.pid", f"{p}\n"),
    "a mail box's lock": lambda f, p: (
        formats.file(f, "box/ana", "From") and formats.file(f, "box/ana.lock", f"{p}\n")),
    "a lock where locks lie": lambda f, p: formats.file(f, "run/lock/backup.lock", f"{p}\n"),
    "a serial line's": lambda f, p: formats.file(f, "LCK..ttyS0", f"{p:10d}\n"),
    "a browser's": lambda f, p: formats.link(f, "SingletonLock", f"{formats.HOST}-{p}"),
    "torch's": lambda f, p: formats.torch(f),
}  # fmt: skip


NUMBERS = {"a pid file", "a mail box's lock", "a lock where locks lie"}  # may be locked, too


@pytest.mark.parametrize("kind", LOCKS)
def test_a_dead_lock_of_a_known_family_in_a_tree_is_cleared(kind, tmp_path, gone):
    path = LOCKS[kind](tmp_path / "tree", gone)
    wanted = clear.FREED if kind in NUMBERS else clear.REMOVED
    assert [each.action for each in cleared(tmp_path / "tree")] == [wanted]
    assert path.read_bytes() == b"" if kind in NUMBERS else not os.path.lexists(path)


def test_an_empty_lock_beside_a_build_is_not_said_to_be_stale(tmp_path):
    formats.file(tmp_path, "build.ninja", "rule cc\n")
    path = str(formats.file(tmp_path, "lock", ""))
    assert who(path, path).state == FREE


def test_the_watch_clears_no_data_by_policy(tmp_path, gone):
    from lifehold.ops.watch import Config, Watch

    paths = [make(tmp_path / "tree", gone) for make in DATA.values()]
    Watch(Config((str(tmp_path / "tree"),), stale="clear"), lambda alert: None).round()
    assert all(path.exists() for path in paths)


def test_a_lock_of_restic_is_found_in_its_repository(tmp_path):
    path = formats.restic(tmp_path)
    assert str(path) in [each.path for each in inventory.of_folder(str(tmp_path), deep=True)]
