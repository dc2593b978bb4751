"""`lifehold clear`: what it says, what it ends with, and what the log keeps."""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from ground import needs, require
from lifehold import Lock, look
from lifehold.cli.main import main
from lifehold.local.files import born_ns
from lifehold.ops import inventory
from lifehold.ops.who import FolderMissing
from lifehold.runtime import process

pytestmark = needs("linux", "proc")


@pytest.fixture
def gone():
    require("all processes")
    pid = 4_190_000
    while process.look(pid).exists:
        pid -= 1
    return pid


def test_of_a_lock_that_is_held_the_advice_is_to_wait_and_an_order_is_called_robbing(lifehold):
    wrapper = lifehold.holder("--kind", "soft", "./live")
    path = lifehold.folder / "live"
    kept = lifehold("clear", "./live")
    _, why, wait, end, force = kept.stdout.splitlines()
    assert (kept.returncode, why.strip()) == (0, "it is held: kernel witness")
    assert wait == f"              next:  lifehold wait {path}"
    assert end.startswith(f"              or end:  pid {wrapper.pid} (lifehold run --kind soft")
    assert force.startswith(
        "              robs its holder, which may be at work:  lifehold clear --f"
    )
    (told,) = json.loads(lifehold("clear", "--json", "./live").stdout)["outcomes"]
    assert (told["word"] in force, told["next"]) == (True, f"lifehold wait {path}")


def test_a_dry_run_explains_each_and_the_clear_notes_who_and_why(lifehold, gone):
    folder = lifehold.folder / "app" / "run"
    folder.mkdir(parents=True)
    (folder / "server.pid").write_text(f"{gone}\n")
    (folder / "mine.pid").write_text(f"{os.getpid()}\n")
    (folder / "SingletonLock").symlink_to("elsewhere-12")
    dry = lifehold("clear", "--dry-run", "-R", "./app")
    assert dry.returncode == 1
    assert f"would free    {folder}/server.pid (pidfile)" in dry.stdout
    assert f"no process {gone} any more" in dry.stdout
    assert "mine.pid" not in dry.stdout  # it is held, and nothing is wrong with that
    done = lifehold("clear", "-R", "./app")
    assert done.returncode == 1  # one is suspect
    assert (folder / "server.pid").read_bytes() == b""
    assert (folder / "mine.pid").read_text() == f"{os.getpid()}\n"
    assert f"next:  rm -- {folder}/server.pid" in done.stdout
    assert "all the same:  lifehold clear --force " in done.stdout
    log = lifehold("log")
    assert log.returncode == 0
    (line,) = log.stdout.splitlines()[1:]
    assert f"{folder}/server.pid" in log.stdout
    assert " clear " in line
    assert json.loads(lifehold("log", "--json").stdout)["entries"][0]["holder_pid"] == gone
    assert f"no process {gone} any more" in lifehold("log", "./app/run/server.pid").stdout


def test_the_remedy_of_a_dotlockfile_without_a_number_frees_it_as_printed(lifehold):
    path = lifehold.folder / "my box.lock"
    path.write_text("0\n")
    os.utime(path, (1, 1))
    (line,) = json.loads(lifehold("who", "--json", f"{path}").stdout)["locks"][0]["remedy"]
    for command in line.partition(":  ")[2].split(" && "):
        done = lifehold(*shlex.split(command)[1:])
        assert (done.returncode, done.stderr) == (0, "")
    assert not path.exists()


def test_the_printed_word_removes_that_one_lock(lifehold):
    path = lifehold.folder / "SingletonLock"
    path.symlink_to("elsewhere-12")
    told = lifehold("clear", "./SingletonLock").stdout
    command = next(
        line.partition("lifehold ")[2] for line in told.splitlines() if "--force" in line
    )
    done = lifehold(*command.split())
    assert (done.returncode, done.stdout.split()[0]) == (0, "removed")
    assert not path.is_symlink()


def test_a_folder_that_was_a_lock_and_was_released_meanwhile_is_nothing_to_clear(
    tmp_path, monkeypatch, capfd
):
    (tmp_path / "job").mkdir()  # as of kind "directory"

    def of_folder(path, **_):
        os.rmdir(path)
        raise FolderMissing(f"'{path}' is not a folder")

    monkeypatch.setattr(inventory, "of_folder", of_folder)
    assert main(["clear", str(tmp_path / "job")]) == 0
    assert "nothing to clear" in capfd.readouterr().err


def test_a_held_lock_and_the_file_of_a_kernel_lock_stay(lifehold):
    lifehold.holder("job")
    done = lifehold("clear", "job")
    assert done.returncode == 0
    assert done.stdout.startswith("kept  ")
    assert "it would let a second holder in" in done.stdout
    assert (lifehold.folder / "job.lock").exists()
    assert lifehold("clear", "--force", "x", ".").returncode == 64
    assert lifehold("clear", "/no/such/folder/x").returncode == 0


def test_the_answer_for_programs_has_each_outcome_with_its_lock(lifehold, gone):
    (lifehold.folder / "a.pid").write_text(f"{gone}\n")
    (found,) = json.loads(lifehold("clear", "--json", "./a.pid").stdout)["outcomes"]
    assert (found["action"], found["lock"]["family"]) == ("freed", "pidfile")


def test_a_clear_that_cannot_be_noted_removes_nothing(lifehold, gone):
    (lifehold.folder / "a.pid").write_text(f"{gone}\n")
    (lifehold.folder / ".cleared.history").mkdir()
    done = lifehold("clear", "./a.pid")
    assert done.returncode == 71
    assert "audit log" in done.stderr
    assert (lifehold.folder / "a.pid").exists()


PACKAGING = Path(__file__).parents[2] / "packaging"


def test_at_boot_without_a_folder_it_looks_at_the_plain_names(lifehold, gone):
    (lifehold.folder / "server.pid").write_text(f"{gone}\n")
    done = lifehold("clear", "--boot")
    assert (done.returncode, (lifehold.folder / "server.pid").exists()) == (1, True)
    assert "since this machine has started" in done.stdout
    assert lifehold("clear").returncode == 64
    assert lifehold("clear", "--boot", "--force", "x").returncode == 64


@needs("command:systemd-analyze")
def test_systemd_understands_the_units_that_are_shipped(tmp_path):
    units = sorted(PACKAGING.glob("systemd/*.service"))
    assert len(units) == 2
    for unit in units:
        copy = tmp_path / unit.name
        copy.write_text(unit.read_text().replace("/usr/bin/lifehold", "/bin/true"))
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", copy], capture_output=True, text=True,
            timeout=150, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@needs("root", "command:systemd-tmpfiles")
def test_systemd_tmpfiles_spares_what_the_example_lists_and_what_is_locked(tmp_path):
    """And nothing else: that a lock file is held does not spare it, as the page says."""
    root, rules = tmp_path / "root", tmp_path / "rules.conf"
    for name in ("listed", "locked", "neither"):
        (root / name).mkdir(parents=True)
        (root / name / "a.lock").touch()
    example = (PACKAGING / "tmpfiles.d/lifehold.conf").read_text()
    line = next(line for line in example.splitlines() if line.startswith("#x ")).split()
    rules.write_text(f"d {root} 0755 root root 0\n{line[0][1:]} {root}/listed\n")
    folder = os.open(root / "locked", os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_SH)
        with open(root / "neither" / "a.lock") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            subprocess.run(["systemd-tmpfiles", "--clean", rules], check=True, timeout=150)
    finally:
        os.close(folder)
    assert sorted(str(each.relative_to(root)) for each in root.rglob("*.lock")) == [
        "listed/a.lock", "locked/a.lock"
    ]  # fmt: skip


def test_the_page_shows_the_files_that_are_shipped():
    page = (PACKAGING.parent / "docs/how-to/stale-locks.md").read_text()
    for file in (*PACKAGING.glob("systemd/*"), *PACKAGING.glob("tmpfiles.d/*")):
        assert f"\n{file.read_text()}```" in page, file


def test_a_clear_by_force_that_leaves_the_lock_ends_with_1(lifehold, gone):
    """A script that goes on after it would meet the lock that it wanted to be rid of."""
    path = lifehold.folder / "mine.pid"
    path.write_text(f"{os.getpid()}\n")
    done = lifehold("clear", "--force", "wrong", str(path))
    assert (done.returncode, done.stdout.split()[0]) == (1, "kept")
    assert lifehold("clear", str(path)).returncode == 0  # held, and nothing is wrong with that
    path.write_text(f"{gone}\n")
    assert lifehold("clear", str(path)).returncode == 0


@needs("root")
def test_a_folder_that_may_not_be_read_is_kept_for_that_reason(lifehold, for_all):
    (for_all / "closed").mkdir(mode=0o700)
    script = (
        "import os, sys; from lifehold.cli.main import main; main(sys.argv[1:]); print('---')\n"
        "os.setuid(54321); sys.exit(main(sys.argv[1:]))"
    )
    clear = lifehold.start("clear", "-R", f"{for_all}/", program=("-c", script))
    told = clear.communicate(timeout=60)[0].partition("---\n")[2]
    assert clear.returncode == 1
    assert told.splitlines()[0] == f"kept          {for_all}/closed"
    assert "cannot be read here: what lies in it was not looked at" in told


DIES = """
import os, sys
from lifehold import Lock

path, kind = sys.argv[1:]
if kind == "generation":
    with Lock(path, kind=kind):
        pass
lock = Lock(path, kind=kind)
files = lock._mechanism.table.files

class Dying:
    def __getattr__(self, name):
        if name in ("link", "rename", "rename_new"):
            os._exit(0)
        return getattr(files, name)

lock._mechanism.table.files = lock._mechanism.files = Dying()
lock.acquire()
"""


@pytest.mark.parametrize("kind", ["generation", "folder", "directory", "link"])
def test_what_a_killed_process_had_prepared_is_no_lock_and_is_cleared(tmp_path, capfd, kind):
    path = tmp_path / "job.lock"
    subprocess.run([sys.executable, "-c", DIES, path, kind], check=True)
    left = list(tmp_path.rglob(".l*"))
    assert left
    capfd.readouterr()
    main(["ls", "-R", str(tmp_path)])
    assert ".l" not in capfd.readouterr().out.replace(str(tmp_path), "").replace("job.lock", "")
    main(["clear", "-R", "--dry-run", str(tmp_path)])
    said = capfd.readouterr().out
    assert "would remove" in said
    assert "was killed before it had the lock" in said
    main(["clear", "-R", str(tmp_path)])
    assert "not removed" not in capfd.readouterr().out
    assert not list(tmp_path.rglob(".l*"))


@pytest.mark.parametrize("kind", ["generation", "folder", "directory"])
def test_a_lock_that_is_a_folder_is_one_lock_in_the_list(tmp_path, capfd, kind):
    with Lock(tmp_path / "job.lock", kind=kind):
        capfd.readouterr()
        assert main(["ls", "-R", "--json", str(tmp_path)]) == 0
        (answer,) = json.loads(capfd.readouterr().out)["locks"]
    assert (answer["path"], answer["kind"]) == (str(tmp_path / "job.lock"), kind)


def test_a_free_folder_of_bids_is_free_and_a_folder_of_mkdir_is_not(tmp_path):
    path = tmp_path / "job.lock"
    if born_ns(str(tmp_path)) is None:
        pytest.skip("needs times of birth: this file system has none")
    for _ in range(1000):  # the clock of a file system moves on in ticks
        with Lock(path, kind="folder"):
            pass
        if look(path).state == "free":
            break
    assert look(path).state == "free"
    path.rmdir()
    path.mkdir()
    assert look(path).state == "suspect"


@pytest.mark.parametrize("side", ["reading", "writing"])
def test_of_readers_and_writers_the_next_one_removes_what_the_dead_have_left(tmp_path, capfd, side):
    path = tmp_path / "data.lock"
    dies = "import os, sys; from lifehold import ReadWriteLock as L; "
    dies += "getattr(L(sys.argv[1], kind='soft'), sys.argv[2])().__enter__(); os._exit(0)"
    subprocess.run([sys.executable, "-c", dies, path, side], check=True)
    capfd.readouterr()
    assert main(["ls", "-R", str(tmp_path)]) == 0
    assert capfd.readouterr().out.count("stale") == 1
    assert main(["clear", "-R", str(tmp_path)]) == 0
    said = capfd.readouterr().out
    assert said.startswith(f"nothing       {path}")
    assert "the next" in said
    assert "kernel" not in said


def test_a_folder_with_more_in_it_than_a_record_stays_and_so_does_a_lock_named_like_ours(
    tmp_path, capfd
):
    path = tmp_path / "job.lock"
    subprocess.run([sys.executable, "-c", DIES, path, "directory"], check=True)
    (left,) = tmp_path.rglob(".lifehold-*")
    (left / "data").write_text("mine")
    capfd.readouterr()
    assert main(["clear", "-R", str(tmp_path)]) == 1
    assert "there is more in it than a record" in capfd.readouterr().out
    assert (left / "data").read_text() == "mine"
    for name in (".lifehold-build", ".lkjob"):
        with Lock(tmp_path / name, kind="soft"):
            assert main(["ls", "-R", str(tmp_path)]) == 0
            assert name in capfd.readouterr().out
