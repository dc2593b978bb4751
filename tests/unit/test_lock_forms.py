"""Live locks whose form or place hides their holder are never said to be free or stale."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import unit_formats as formats
from ground import needs
from lifehold.ops import clear, inventory
from lifehold.ops.answer import FREE, HELD, STALE, SUSPECT
from lifehold.ops.who import who

pytestmark = needs("linux", "proc", "all processes")


def asked(path):
    return who(str(path), str(path))


@pytest.fixture
def works():
    """Starts a process of some name that works somewhere, and ends with the test."""
    started = []

    def start(name, folder, *words, **env):
        told = [name, "-c", "import sys; print(flush=True); sys.stdin.read()", *words]
        child = subprocess.Popen(told, executable=sys.executable, stdin=subprocess.PIPE, cwd=folder,
                                 stdout=subprocess.PIPE, env={**os.environ, **env})  # fmt: skip
        started.append(child)
        child.stdout.readline()  # else it may be in the middle of execve(2), without its name
        return child.pid

    yield start
    for child in started:
        child.stdin.close()
        child.stdout.close()
        child.wait()


def test_the_lock_of_a_postgres_socket_is_held_by_its_server(tmp_path, works):
    server = works("postgres", tmp_path)
    text = f"{server}\n/var/lib/postgresql/data\n1795181314\n5432\n/tmp\n"
    path = formats.file(tmp_path, ".s.PGSQL.5432.lock", text, 0o600)
    answer = asked(path)
    assert (answer.family, answer.state, answer.holder.pid_here) == ("postgres", HELD, server)
    assert [each.state for each in inventory.of_folder(str(tmp_path))] == [HELD]


SHARED = {
    "lifehold.compat.filelock": "from lifehold.compat.filelock import SoftReadWriteLock",
    "filelock": "from filelock import SoftReadWriteLock",
}


@pytest.mark.parametrize("how", ["read", "write"])
@pytest.mark.parametrize("library", SHARED)
def test_a_reader_writer_lock_beside_its_path_is_asked_for_by_its_path(library, how, tmp_path):
    path = tmp_path / "x.lock"
    text = f"{SHARED[library]}\nl = SoftReadWriteLock({str(path)!r})\nl.acquire_{how}()\n"
    text += "print('in', flush=True)\ninput()\nl.release()"
    words = [sys.executable, "-c", text]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "in\n"
        answer = asked(path)
        assert (answer.state, answer.holder.pid_here) == (HELD, child.pid)
        assert [each.state for each in inventory.of_folder(str(tmp_path))] == [HELD]
        assert clear.clear(str(path)).action == clear.KEPT
        child.stdin.write("\n")
    assert asked(path).state == FREE
    child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with child:
        assert child.stdout.readline() == "in\n"
        child.kill()
    assert asked(path).state in (STALE, SUSPECT)
    assert clear.clear(str(path)).action == clear.KEPT


def test_an_empty_file_is_free_and_the_answer_says_what_it_cannot_tell(tmp_path):
    path = formats.file(tmp_path, "job.lock", "")
    answer = asked(path)
    assert answer.state == FREE
    assert "a tool that locks by presence would look the same" in answer.note
    assert clear.clear(str(path)).action == clear.NOTHING
    assert inventory.of_folder(str(tmp_path)) == []


def test_a_link_to_a_process_number_is_its_lock(tmp_path, works):
    held = works("job", tmp_path)
    path = formats.link(tmp_path, "x.lock", str(held))
    assert (asked(path).state, asked(path).holder.pid_here) == (HELD, held)
    assert [each.state for each in inventory.of_folder(str(tmp_path))] == [HELD]


def linked(folder):
    """A repository with a second working tree, and a third as a submodule."""
    index = formats.git(folder)
    (folder / "tree").mkdir()
    formats.file(folder, "r/.git/worktrees/tree/gitdir", f"{folder}/tree/.git\n")
    formats.file(folder, "r/.git/worktrees/tree/HEAD", "ref: refs/heads/x\n")
    for name in ("objects", "refs"):
        (folder / "r/.git/modules/sub" / name).mkdir(parents=True)
    (folder / "r/sub").mkdir()
    formats.file(folder, "r/.git/modules/sub/HEAD", "ref: refs/heads/main\n")
    formats.file(folder, "r/.git/modules/sub/config", "[core]\n\tworktree = ../../../sub\n")
    return index


WHERE = {
    "of a linked tree": ("r/.git/worktrees/tree/index.lock", "tree"),
    "of what is common to all trees": ("r/.git/packed-refs.lock", "tree"),
    "of a submodule": ("r/.git/modules/sub/index.lock", "r/sub"),
}


@pytest.mark.parametrize("which", WHERE)
def test_a_git_at_work_in_any_tree_of_a_repository_holds_its_lock(which, tmp_path, works):
    linked(tmp_path)
    lock, tree = WHERE[which]
    path = formats.file(tmp_path, lock, "")
    assert asked(path).state == SUSPECT
    git = works("git", tmp_path / tree)
    answer = asked(path)
    assert (answer.state, answer.holder.pid_here) == (HELD, git)


RESTIC = {
    "a relative path": (("-r", "repo"), {}),
    "a relative path as one word": (("--repo=./repo",), {}),
    "the environment": ((), {"RESTIC_REPOSITORY": "repo"}),
}


@pytest.mark.parametrize("told", RESTIC)
def test_a_restic_that_was_told_its_repository_otherwise_holds_its_lock(told, tmp_path, works):
    path = formats.restic(tmp_path)
    words, env = RESTIC[told]
    restic = works("restic", tmp_path, *words, **env)
    assert (asked(path).state, asked(path).holder.pid_here) == (HELD, restic)


def test_a_tool_that_runs_elsewhere_is_named_as_the_one_it_may_be(tmp_path, works):
    path = formats.restic(tmp_path)
    (tmp_path / "away").mkdir()
    restic = works("restic", tmp_path / "away")
    answer = asked(path)
    assert answer.state == SUSPECT
    assert f"it may be one of those that run: {restic} (restic)" in answer.holder.evidence
    assert answer.remedy == ("see who runs:  ps -fC restic",)


def test_no_reason_speaks_of_open_files_where_the_tool_keeps_none(tmp_path):
    for content, mode in (("0\n", 0o644), ("0", 0o444)):
        path = formats.file(tmp_path, f"m{mode}.lock", content, mode)
        assert "its tools do not keep it open" in asked(path).holder.evidence
