"""`lifehold who`: what it says of held, free, foreign and unreadable locks, to people and to
programs."""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess

import pytest

from ground import needs
from lifehold import Lock


def test_a_held_lock_is_told_with_its_holder_and_status_0(lifehold):
    holder = lifehold.holder("--label", "nightly", "job")
    done = lifehold("who", "job")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(
        rf"'job' is held\n  by     pid {holder.pid} \(lifehold run --label nightly job .*\), "
        r"user .*, host .*, label nightly\n  since  .* UTC \(.* s\)\n  token  \d+\n"
        r"  alive  yes, checked now \(kernel witness\)\n"
        rf"  lock   {lifehold.folder}/job.lock \(kernel lock, \w+\)\n", done.stdout
    )  # fmt: skip


def test_a_free_lock_tells_who_held_it_last_and_status_1(lifehold):
    lifehold("run", "job", "--", "true")
    done = lifehold("who", "job")
    assert done.returncode == 1
    assert re.match(
        r"'job' is free; held last\n  by     pid \d+ \(lifehold run job -- true\)", done.stdout
    )


def test_a_lock_that_was_never_used_is_free(lifehold, tmp_path):
    done = lifehold("who", "job", env={"LIFEHOLD_DIR": str(tmp_path / "later")})
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("'job' is free: nobody has used it yet\n")
    assert not (tmp_path / "later").exists()
    assert lifehold("who", "./x.lock").returncode == 1


@needs("flock")
def test_a_lock_of_another_tool_is_told_from_the_kernel(lifehold, eventually):
    path = lifehold.folder / "job.lock"
    other = subprocess.Popen(["flock", path, "sleep", "60"])
    try:
        eventually(lambda: lifehold("who", "job").returncode == 0, "flock(1) has its lock")
        said = lifehold("who", "job").stdout
        assert re.search(rf"by     pid {other.pid} \(flock .*\)", said)
        assert "it left no record" in said
    finally:
        subprocess.run(["pkill", "-P", str(other.pid)], check=False)
        other.kill()
        other.wait()


def test_asking_takes_no_lock_and_changes_nothing(lifehold):
    lifehold("run", "job", "--", "true")
    path = lifehold.folder / "job.lock"
    before = path.read_bytes()
    with Lock(path):
        assert lifehold("who", "job").returncode == 0
    fd = os.open(path, os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    assert lifehold("who", "job").returncode == 0
    os.close(fd)
    assert path.read_bytes()[:20] == before[:20]


def test_several_locks_are_a_table_and_busy_goes_before_free(lifehold):
    lifehold.holder("job")
    lifehold("run", "other", "--", "true")
    done = lifehold("who", "other", "job", "never")
    lines = done.stdout.splitlines()
    assert done.returncode == 0
    assert lines[0].split() == ["NAME", "STATE", "PID", "USER", "SINCE", "COMMAND"]
    assert [line.split()[:2] for line in lines[1:]] == [
        ["other", "free"],
        ["job", "held"],
        ["never", "free"],
    ]
    assert lifehold("who", "other", "never").returncode == 1


def test_a_folder_that_flock_holds_is_told_like_a_file(lifehold):
    (lifehold.folder / "dir").mkdir()
    folder = os.open(lifehold.folder / "dir", os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    held = lifehold("who", "./dir")
    os.close(folder)
    free = lifehold("who", "./dir")
    assert (held.returncode, held.stderr) == (0, "")
    assert f"by     pid {os.getpid()} " in held.stdout
    assert (free.returncode, free.stdout.splitlines()[0]) == (1, "'./dir' is free")


def test_an_error_says_once_what_it_is_about(lifehold):
    (lifehold.folder / "link").symlink_to("target")
    for name in ("a\nb", "./link"):
        told = lifehold("who", name).stderr
        assert told.startswith("lifehold: '")
        assert "': '" not in told


@needs("linux")
def test_an_answer_that_cannot_be_written_is_one_line_and_71(lifehold):
    with open("/dev/full", "w") as full:
        done = lifehold("who", "job", stdout=full)
    assert done.returncode == 71
    assert done.stderr == (
        "lifehold: the answer cannot be written to stdout: No space left on device\n"
    )


def test_an_error_among_several_wins_and_the_others_are_answered(lifehold):
    lifehold.holder("job")
    done = lifehold("who", "job", "/no/such/folder/x")
    assert done.returncode == 66
    assert "job" in done.stdout
    assert "is not a folder" in done.stderr


def test_the_answer_for_programs_has_a_schema_and_all_facts(lifehold):
    holder = lifehold.holder("job")
    answer = json.loads(lifehold("who", "--json", "job", "never").stdout)
    assert answer["schema"] == "lifehold.who/1"
    held, free = answer["locks"]
    assert (held["name"], held["state"], held["path"]) == (
        "job",
        "held",
        str(lifehold.folder / "job.lock"),
    )
    assert held["holder"]["owner"]["pid"] == holder.pid
    assert held["holder"]["alive"] == "alive"
    assert isinstance(held["holder"]["token"], int)
    assert (free["state"], free["exists"], free["holder"], free["last"]) == (
        "free",
        False,
        None,
        None,
    )


def test_a_record_of_a_newer_version_is_suspect(lifehold):
    lifehold("run", "job", "--", "true")
    path = lifehold.folder / "job.lock"
    path.write_bytes(path.read_bytes().replace(b'{"lifehold":1,', b'{"lifehold":9,'))
    done = lifehold("who", "job")
    assert done.returncode == 3
    assert "'job' is suspect" in done.stdout
    assert "version 9" in done.stdout
    path.write_bytes(b'{"lifehold":9,"other":[')
    assert lifehold("who", "job").returncode == 3


def test_a_damaged_record_ends_with_65(lifehold):
    lifehold("run", "job", "--", "true")
    path = lifehold.folder / "job.lock"
    path.write_bytes(path.read_bytes()[:100])
    done = lifehold("who", "job")
    assert done.returncode == 65
    assert "damaged" in done.stderr


@pytest.mark.parametrize("content", [b"", b"\0" * 1024, b"some data\n", os.urandom(4096)])
def test_a_file_without_a_record_is_just_free(lifehold, content):
    (lifehold.folder / "job.lock").write_bytes(content)
    done = lifehold("who", "job")
    assert (done.returncode, done.stderr) == (1, "")


def test_a_symbolic_link_is_refused_and_its_target_named(lifehold):
    (lifehold.folder / "job.lock").symlink_to("target")
    done = lifehold("who", "job")
    assert done.returncode == 64
    assert f"ask for its target, '{lifehold.folder}/target'" in done.stderr


def test_terminal_escapes_in_a_record_are_written_out(lifehold):
    with Lock(lifehold.folder / "job.lock", label="\x1b]0;title\x07"):
        for words in (["job"], ["job", "never"]):
            assert "\x1b" not in lifehold("who", *words).stdout
    assert lifehold("who", "./\x1b[2J/x").stderr.strip().isprintable()


@needs("root")
def test_a_file_that_may_not_be_read_is_told_from_the_kernels_table(lifehold, for_all):
    path = for_all / "job.lock"
    # Once as root first: the interpreter itself may lie where only root can read.
    script = (
        "import os, sys; from lifehold.cli.main import main; main(sys.argv[1:]); print('---')\n"
        "os.setuid(54321); sys.exit(main(sys.argv[1:]))"
    )
    with Lock(path, mode=0o600):
        held = lifehold.start("who", str(path), program=("-c", script))
        assert (
            held.communicate(timeout=60)[0].partition("---\n")[2].startswith(f"'{path}' is held\n")
        )
        assert held.returncode == 0
    free = lifehold.start("who", str(path), program=("-c", script))
    assert "cannot be read here: Permission denied" in free.communicate(timeout=60)[0]
    assert free.returncode == 3


@needs("root", "proc", "all processes")
def test_ls_of_files_that_may_not_be_read_goes_by_the_kernels_table_too(lifehold, for_all):
    script = (
        "import os, sys; from lifehold.cli.main import main; main(sys.argv[1:]); print('---')\n"
        "os.setuid(54321); sys.exit(main(sys.argv[1:]))"
    )
    (for_all / "empty.lock").touch(mode=0o600)
    with Lock(for_all / "held.lock", mode=0o600), Lock(for_all / "left.lock", mode=0o600) as left:
        left.release()
        how = {"program": ("-c", script), "env": {"LIFEHOLD_DIR": str(for_all)}}
        ls = lifehold.start("ls", f"{for_all}/", **how)
        seen = ls.communicate(timeout=60)[0].partition("---\n")[2].splitlines()[1:]
        ls = lifehold.start("ls", **how)
        names = ls.communicate(timeout=60)[0].partition("---\n")[2].splitlines()[1:]
    states = {line.split()[0]: line.split()[1] for line in [*seen, *names]}
    assert states == {
        f"{for_all}/held.lock": "held",
        f"{for_all}/left.lock": "suspect",
        "empty": "free",
        "held": "held",
        "left": "suspect",
    }
    path = str(for_all / "empty.lock")
    who = lifehold.start("who", path, program=("-c", script))
    told = who.communicate(timeout=60)[0].partition("---\n")[2]
    assert (who.returncode, told.splitlines()[0]) == (1, f"'{path}' is free")


@needs("unshare")
def test_inside_a_pid_namespace_held_and_free_are_still_told_apart(lifehold):
    unshare = "['unshare', '-p', '-f', '--mount-proc', sys.executable, '-m', 'lifehold']"
    inside = ("-c", f"import os, sys; os.execvp('unshare', {unshare} + sys.argv[1:])")
    holder = lifehold.holder("job")
    process = lifehold.start("who", "job", program=inside)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert f"pid {holder.pid} " in out
    lifehold.kill(holder)
    holder.wait()
    process = lifehold.start("who", "job", program=inside)
    process.communicate(timeout=60)
    assert process.returncode == 1


def test_a_reader_that_goes_away_is_no_error(lifehold):
    get, put = os.pipe()
    os.close(get)
    process = lifehold.start("who", "job", stdout=put)
    os.close(put)
    assert process.communicate(timeout=60)[1] == ""
    assert process.returncode == 141
