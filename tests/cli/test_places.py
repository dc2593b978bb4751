"""Where plain names live: which folder, when it is made, and what is said of doubles."""

from __future__ import annotations

import os
import stat

import pytest

from ground import needs
from lifehold import InvalidArgument, SystemRefused
from lifehold.local import lock_names


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine of our own: the folder of its names, and a home."""
    monkeypatch.setattr(lock_names, "MACHINE", str(tmp_path / "machine" / "lifehold"))
    for name in ("LIFEHOLD_DIR", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path


def closed(monkeypatch, *folders):
    """As for a user who may not write there; root may everywhere."""
    real = os.access
    monkeypatch.setattr(
        os, "access", lambda path, mode: str(path) not in map(str, folders) and real(path, mode)
    )


def test_a_name_with_a_slash_is_a_path(machine):
    assert lock_names.address("./x") == lock_names.Address("./x")
    assert lock_names.address("/a/b.lock").path == "/a/b.lock"


def test_the_chosen_folder_comes_first(machine, monkeypatch):
    monkeypatch.setenv("LIFEHOLD_DIR", "/chosen/")
    assert lock_names.address("job").path == "/chosen/job.lock"


def test_the_folder_of_the_machine_is_used_when_it_may_be_written(machine):
    (machine / "machine").mkdir()
    assert lock_names.address("job").path == f"{machine}/machine/lifehold/job.lock"


def test_a_user_without_that_right_has_a_folder_of_its_own(machine, monkeypatch):
    (machine / "machine").mkdir()
    closed(monkeypatch, machine / "machine")
    assert lock_names.address("job").path == f"{machine}/home/.local/state/lifehold/job.lock"
    monkeypatch.setenv("XDG_STATE_HOME", "/state/")
    assert lock_names.address("job").path == "/state/lifehold/job.lock"
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert lock_names.address("job").path == f"{machine}/home/.local/state/lifehold/job.lock"


def test_cron_without_a_home_finds_the_same_folder(machine, monkeypatch):
    closed(monkeypatch, machine)
    import pwd

    home = pwd.getpwuid(os.getuid()).pw_dir
    monkeypatch.delenv("HOME")
    assert lock_names.address("job").path == f"{home}/.local/state/lifehold/job.lock"


def test_without_any_folder_the_remedy_is_named(machine, monkeypatch):
    closed(monkeypatch, machine)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    with pytest.raises(SystemRefused, match="Set LIFEHOLD_DIR to a folder, or give a path"):
        lock_names.address("job")


def test_a_relative_chosen_folder_is_refused(machine, monkeypatch):
    monkeypatch.setenv("LIFEHOLD_DIR", "locks")
    with pytest.raises(InvalidArgument, match="absolute"):
        lock_names.address("job")


def test_the_folder_of_the_machine_is_made_for_all_to_ask_and_its_owner_to_write(machine):
    (machine / "machine").mkdir()
    path = lock_names.address("job").path
    before = os.umask(0o077)
    try:
        lock_names.make_folder(path)
        lock_names.make_folder(path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(lock_names.MACHINE).st_mode) == 0o711
    assert not lock_names.address("job").shared


def test_the_folder_of_the_machine_is_the_same_when_a_run_in_a_store_makes_it(machine):
    (machine / "machine").mkdir()
    lock_names.make_folder("sqlite:////var/lib/x.db#job")
    assert stat.S_IMODE(os.stat(lock_names.MACHINE).st_mode) == 0o711


def test_a_folder_opened_to_all_has_locks_for_all(machine, lifehold):
    lifehold.folder.chmod(0o1777)
    assert lifehold("run", "job", "--", "true").returncode == 0
    assert stat.S_IMODE((lifehold.folder / "job.lock").stat().st_mode) == 0o666


def test_a_name_in_two_folders_is_reported(machine, monkeypatch, lifehold):
    (machine / "machine" / "lifehold").mkdir(parents=True)
    own = machine / "home" / ".local" / "state" / "lifehold"
    own.mkdir(parents=True)
    (own / "job.lock").touch()
    assert lock_names.address("job").doubles == (str(own / "job.lock"),)
    closed(monkeypatch, lock_names.MACHINE)
    assert lock_names.address("job").doubles == ()
    (machine / "machine" / "lifehold" / "job.lock").touch()
    assert lock_names.address("job").doubles == (f"{lock_names.MACHINE}/job.lock",)


ELSEWHERE = (
    "from lifehold.local import lock_names; lock_names.MACHINE = {!r}\n"
    "import sys; from lifehold.cli import main; sys.exit(main.main())"
)


def test_the_command_reports_a_double_and_runs(lifehold, tmp_path):
    machine, state = tmp_path / "machine", tmp_path / "state"
    for folder in (machine, state / "lifehold"):
        folder.mkdir(parents=True)
        (folder / "job.lock").touch(mode=0o600)
    env = {"XDG_STATE_HOME": str(state), "LIFEHOLD_DIR": ""}
    program = ("-c", ELSEWHERE.format(str(machine)))
    run = lifehold.start("run", "job", "--", "echo", "ran", env=env, program=program)
    out, err = run.communicate(timeout=60)
    assert (run.returncode, out) == (0, "ran\n")
    assert err == (
        "lifehold: 'job' exists in more than one folder, and these locks do not exclude each "
        f"other: using {machine}/job.lock, not {state}/lifehold/job.lock. Give all jobs "
        "the same LIFEHOLD_DIR, or remove the file that nobody uses\n"
    )
    who = lifehold.start("who", "job", env=env, program=program)
    assert "more than one folder" in who.communicate(timeout=60)[1]


def test_a_double_alone_is_told_as_what_it_is(lifehold, tmp_path):
    machine, state = tmp_path / "machine", tmp_path / "state"
    machine.mkdir()
    (state / "lifehold").mkdir(parents=True)
    (state / "lifehold" / "job.lock").touch(mode=0o600)
    env = {"XDG_STATE_HOME": str(state), "LIFEHOLD_DIR": ""}
    program = ("-c", ELSEWHERE.format(str(machine)))
    who = lifehold.start("who", "job", env=env, program=program)
    out, err = who.communicate(timeout=60)
    assert f"lock   {state}/lifehold/job.lock" in out
    assert err == (
        f"lifehold: 'job' exists as {state}/lifehold/job.lock; for you it is {machine}/job.lock, "
        "and these locks do not exclude each other. Give all jobs the same LIFEHOLD_DIR\n"
    )


def test_a_folder_of_names_that_cannot_be_one_is_told_once(lifehold):
    for command in ("who", "wait", "log"):
        done = lifehold(command, "job", env={"LIFEHOLD_DIR": "relative"})
        assert (done.returncode, done.stderr.count("must be an absolute path")) == (64, 1)


def test_who_has_chosen_the_folder_is_told_of_no_double(lifehold, tmp_path, machine, monkeypatch):
    state = tmp_path / "state"
    (state / "lifehold").mkdir(parents=True)
    (state / "lifehold" / "job.lock").touch()
    done = lifehold("run", "job", "--", "true", env={"XDG_STATE_HOME": str(state)})
    assert (done.returncode, done.stderr) == (0, "")
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    monkeypatch.setenv("LIFEHOLD_DIR", str(tmp_path))
    assert lock_names.address("job").doubles == ()


@pytest.mark.parametrize(
    "name", ["", ".", "..", "-x", "a\nb", "a\x1bb", "a\0b", "\udcff", "x" * 251, "ü" * 126]
)
def test_what_cannot_be_a_name_is_refused_with_a_remedy(name):
    with pytest.raises(InvalidArgument) as caught:
        lock_names.check_name(name)
    assert caught.value.text.isprintable()


@pytest.mark.parametrize("name", ["a", "x" * 250, "a b", "ünï", "...", "a.lock", "%", ":"])
def test_other_names_are_taken(name):
    lock_names.check_name(name)


@needs("root")
def test_root_names_are_roots_alone_and_what_was_open_is_closed_and_told_once(lifehold):
    lifehold.folder.chmod(0o755)
    names = ("old.lock", "slots.lock", "slots#0.lock", "for-all.lock")
    for name, mode in zip(names, (0o644, 0o644, 0o664, 0o666), strict=True):
        (lifehold.folder / name).touch()
        (lifehold.folder / name).chmod(mode)
    (lifehold.folder / "slots.lock").write_text("")

    def mode_of(name):
        return stat.S_IMODE((lifehold.folder / name).stat().st_mode)

    for words in (("new",), ("--slots", "a,b", "more")):
        done = lifehold("run", *words, "--", "true")
        assert (done.returncode, done.stderr) == (0, "")
    assert lifehold("once", "one", "--", "true").returncode == 0
    assert [mode_of(f"{name}.lock") for name in ("new", "more", "more#0", "one")] == [0o600] * 4
    for _ in range(2):
        assert lifehold("run", "for-all", "--", "true").stderr == ""
    told = [lifehold("run", "old", "--", "true").stderr for _ in range(2)]
    assert "each of whom could hold it for ever" in told[0]
    assert told[1] == ""
    lifehold("run", "--slots", "a", "slots", "--", "true")
    assert [mode_of(name) for name in names] == [0o600, 0o600, 0o600, 0o666]


@needs("root")
def test_the_folder_of_the_version_before_is_closed_to_lists_at_the_next_grant(machine):
    folder = machine / "machine" / "lifehold"
    folder.mkdir(parents=True)
    folder.chmod(0o755)
    (folder / "job.lock").touch(mode=0o644)
    assert "0600" in lock_names.make_folder(f"{folder}/job.lock")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o711
    assert lock_names.make_folder(f"{folder}/job.lock") == ""
    folder.chmod(0o1777)
    (folder / "job.lock").chmod(0o644)
    assert lock_names.make_folder(f"{folder}/job.lock") == "", "open to all, by order"
