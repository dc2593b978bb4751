"""`who` knows the locks of other tools, and says "stale" of none whose holder may live."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import threading
import types
from collections.abc import Iterator

import pytest

import unit_formats as formats
from ground import needs, require
from lifehold.local import proc_locks
from lifehold.ops import families, foreign_verdict
from lifehold.ops.answer import FREE, HELD, STALE, SUSPECT
from lifehold.ops.who import EMPTY, who
from lifehold.runtime import process
from patience import until

pytestmark = needs("linux", "proc")


@pytest.fixture
def sleeper() -> Iterator[object]:
    """Starts processes under any name, which end with the test."""
    started = []

    def start(name: str, folder: object = None) -> int:
        # It speaks first: in the middle of execve(2) a process has no name and no words yet, and
        # Python 3.13 and newer come back from posix_spawn then.
        words = [name, "-c", "import sys; print(flush=True); sys.stdin.read()"]
        child = subprocess.Popen(
            words,
            executable=sys.executable,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=folder,
        )
        started.append(child)
        child.stdout.readline()
        return child.pid

    yield start
    for child in started:
        child.stdin.close()
        child.stdout.close()
        child.wait()


@pytest.fixture(scope="module")
def gone() -> int:
    """A number that nobody has, here or in another PID namespace."""
    pid = 4_190_000
    while process.look(pid).exists:
        pid -= 1
    return pid


@pytest.fixture
def all_seen() -> None:
    require("all processes")


# One of each form; what is proven of a number does not depend on the family.
SOME = ("pidfile", "chromium", "filelock-soft", "filelock-strict", "borg", "postgres", "vim")


def asked(path: object):
    return who(str(path), str(path))


@pytest.mark.parametrize("family", formats.FORMATS)
def test_a_lock_of_a_process_that_is_gone_is_stale(family, tmp_path, gone, all_seen):
    answer = asked(formats.FORMATS[family](tmp_path, gone))
    assert (answer.family, answer.state) == (family, STALE), answer.holder
    assert answer.holder.owner.pid == gone


@pytest.mark.parametrize("family", formats.FORMATS)
def test_a_lock_of_a_process_that_runs_is_held(family, tmp_path, sleeper, all_seen):
    pid = sleeper(formats.PROGRAMS.get(family, "holder"))
    answer = asked(formats.FORMATS[family](tmp_path, pid))
    assert (answer.family, answer.state) == (family, HELD), answer.holder
    assert answer.holder.pid_here == pid


@pytest.mark.parametrize("family", SOME)
def test_a_number_that_a_container_uses_proves_no_death(family, tmp_path, gone, monkeypatch):
    """A process of another PID namespace is called so there: it may be the one that is meant."""
    seen = foreign_verdict.SeenProcess(os.getpid(), "x", "/", (), (os.getpid(), gone))
    monkeypatch.setattr(families.ProcessTable, "all", property(lambda self: [seen]))
    assert asked(formats.FORMATS[family](tmp_path, gone)).state != STALE


FIRST_THREAD_ENDS = """
import ctypes, sys, threading
file, libc = open(sys.argv[1], "a"), ctypes.CDLL(None)
threading.Thread(target=libc.pause).start()
print("in", flush=True)
libc.pthread_exit(None)
"""


def test_a_process_whose_first_thread_has_ended_is_seen_at_work(tmp_path):
    path, program = str(tmp_path / "data"), tmp_path / "firefox"
    program.write_text(FIRST_THREAD_ENDS)
    words = [sys.executable, str(program), path]
    with subprocess.Popen(words, stdout=subprocess.PIPE, cwd=tmp_path) as worker:
        try:
            assert worker.stdout.readline() == b"in\n"
            until(lambda: process.living_thread(worker.pid))
            seen = foreign_verdict.ProcessTable()
            assert seen.working_in([str(tmp_path)], ["firefox"]) == [worker.pid]
            assert seen.having_open(path) == [worker.pid]
        finally:
            worker.kill()


@pytest.mark.parametrize(("program", "unseen"), [("", 1), ("firefox", 1), ("git", 0)])
def test_what_tells_neither_its_files_nor_its_program_may_be_any(program, unseen):
    seen = foreign_verdict.ProcessTable()
    seen._seen = [foreign_verdict.SeenProcess(1, program, "", (), (1,), True)]
    assert seen.hidden(["firefox"]) == unseen


@pytest.mark.parametrize("family", SOME)
def test_a_number_proves_no_death_where_not_all_processes_are_seen(
    family, tmp_path, gone, monkeypatch
):
    monkeypatch.setattr(process, "sees_all_processes", lambda: False)
    answer = asked(formats.FORMATS[family](tmp_path, gone))
    named_with_its_boot = family in ("filelock-soft", "filelock-strict")
    assert answer.state == (STALE if named_with_its_boot else SUSPECT), answer.holder


@pytest.mark.parametrize("family", SOME)
def test_a_number_proves_no_death_on_a_shared_file_system(family, tmp_path, gone, monkeypatch):
    from lifehold.local.ground import MountInfo

    monkeypatch.setattr(families.LockPath, "place", MountInfo("nfs4", "0:99"))
    assert asked(formats.FORMATS[family](tmp_path, gone)).state == SUSPECT


@pytest.mark.parametrize("family", formats.NAMELESS)
def test_a_lock_that_names_no_process_is_recognised(family, tmp_path):
    answer = asked(formats.NAMELESS[family](tmp_path))
    assert answer.family == family
    assert answer.state == (STALE if family in ("terraform", "torch") else SUSPECT), answer.holder


@pytest.mark.parametrize("content", ["0", "0\n", "0\0", "0 \n"])
@pytest.mark.parametrize("name", ["box.lock", "inbox.lck", "Mailbox.LOCK", "mylock", "q.lk"])
def test_a_dotlockfile_without_a_number_is_not_free_and_not_proven_gone(name, content, tmp_path):
    path = formats.file(tmp_path, name, content)
    os.utime(path, (1, 1))  # of 1970: no age proves anything
    answer = asked(path)
    assert (answer.family, answer.state) == ("dotlockfile", SUSPECT)
    assert answer.remedy[0].startswith("wait for it:  lifehold dotlockfile -l -r -1 ")


def test_a_zero_in_another_file_is_no_lock(tmp_path):
    assert asked(formats.file(tmp_path, "count", "0\n")).state == FREE


@pytest.mark.parametrize(
    ("family", "program"), [("git", "git"), ("snakemake", "snakemake"), ("restic", "restic")]
)
def test_a_tool_at_work_in_the_folder_holds_its_lock(family, program, tmp_path, sleeper):
    path = formats.NAMELESS[family](tmp_path)
    pid = sleeper(program, verdict_folder(family, tmp_path))
    answer = asked(path)
    assert (answer.state, answer.holder.pid_here) == (HELD, pid)


def verdict_folder(family, folder):
    return folder / {"git": "r", "snakemake": "w", "restic": "repo"}[family]


def test_an_open_file_baton_is_no_stale_one_and_a_closed_one_is_proven_stale(tmp_path):
    path = formats.torch(tmp_path)
    with path.open():
        answer = asked(path)
        assert answer.state == SUSPECT  # it is ourselves who have it open
    assert asked(path).state == STALE


def test_terraform_is_judged_by_the_lock_on_its_state(tmp_path):
    path = formats.terraform(tmp_path)
    with (tmp_path / "terraform.tfstate").open("r+") as state:
        fcntl.fcntl(state, fcntl.F_OFD_SETLK, bytes([1, 0]).ljust(32, b"\0"))
        assert asked(path).state == HELD
    answer = asked(path)
    assert answer.state == STALE
    assert "kernel witness is free" in answer.holder.evidence
    assert answer.holder.since == pytest.approx(1795140004.1, abs=86400)


def test_children_of_a_killed_postgres_hold_its_data_folder(tmp_path, gone, sleeper, all_seen):
    path = formats.FORMATS["postgres"](tmp_path, gone)
    child = sleeper("postgres", tmp_path / "data")
    answer = asked(path)
    assert (answer.state, answer.holder.pid_here) == (HELD, child)


def test_a_number_given_on_to_another_program_is_not_the_holder(tmp_path, sleeper, all_seen):
    answer = asked(formats.FORMATS["gunicorn"](tmp_path, sleeper("nginx")))
    assert answer.state == SUSPECT
    assert "is nginx" in answer.holder.evidence


def a_kernel_thread() -> int:
    return next(pid for pid in proc_locks.processes() if proc_locks.is_kernel_thread(pid))


@pytest.mark.parametrize("family", ["pidfile", "dotlockfile", "uucp", "x-server", "gunicorn"])
def test_the_number_of_a_kernel_thread_is_no_holder(family, tmp_path, all_seen):
    """As a container left it, in which the number was another process's."""
    answer = asked(formats.FORMATS[family](tmp_path, a_kernel_thread()))
    assert (answer.family, answer.state) == (family, SUSPECT)
    assert answer.holder.pid_here is None
    assert "kernel" in answer.holder.evidence or family == "gunicorn"


@pytest.mark.parametrize("family", ["pidfile", "dotlockfile", "uucp", "x-server"])
def test_the_number_1_is_that_of_each_containers_first_process(family, tmp_path, all_seen):
    answer = asked(formats.FORMATS[family](tmp_path, 1))
    assert (answer.family, answer.state) == (family, SUSPECT)
    assert "first process" in answer.holder.evidence


def test_the_number_1_of_a_program_that_runs_as_the_first_process_holds(
    tmp_path, monkeypatch, all_seen
):
    # Another test's container may run just now, and its first process is called 1 too.
    programs = {1: "gunicorn"}
    monkeypatch.setattr(foreign_verdict, "program_of", lambda pid: programs.get(pid, "other"))
    assert asked(formats.FORMATS["gunicorn"](tmp_path, 1)).state == HELD


def also_called(monkeypatch, pid, other):
    """As when `other` runs in a container, where it is called `pid`."""
    plain = families.ProcessTable.called
    monkeypatch.setattr(
        families.ProcessTable,
        "called",
        lambda eyes, number: [other] if number == pid else plain(eyes, number),
    )


def test_a_number_that_a_container_uses_too_proves_no_life(
    tmp_path, sleeper, monkeypatch, all_seen
):
    pid, other = sleeper("holder"), sleeper("other")
    path = formats.FORMATS["pidfile"](tmp_path, pid)
    assert asked(path).state == HELD
    also_called(monkeypatch, pid, other)
    answer = asked(path)
    assert (answer.state, answer.holder.pid_here) == (SUSPECT, None)
    assert f"process {other} (other) is called {pid} in its own" in answer.holder.evidence


def test_the_same_process_by_both_readings_is_the_holder(tmp_path, sleeper, monkeypatch, all_seen):
    pid = sleeper("holder")
    also_called(monkeypatch, pid, pid)
    assert asked(formats.FORMATS["pidfile"](tmp_path, pid)).state == HELD


def test_a_daemon_is_the_holder_where_only_it_runs_what_the_lock_tells(
    tmp_path, sleeper, monkeypatch, all_seen
):
    """By the family's programs, or by the name of its pid file."""
    pid, other = sleeper("gunicorn"), sleeper("nginx")
    also_called(monkeypatch, pid, other)
    assert asked(formats.FORMATS["gunicorn"](tmp_path, pid)).state == HELD
    for name in ("gunicorn.d.pid", "gunicornd.pid"):
        assert asked(formats.file(tmp_path, name, f"{pid}\n")).state == HELD
    assert asked(formats.file(tmp_path, "nginx.pid", f"{pid}\n")).state == SUSPECT


def test_a_process_of_a_container_that_began_after_the_lock_is_not_meant(
    tmp_path, sleeper, monkeypatch, all_seen
):
    pid, other = sleeper("holder"), sleeper("other")
    also_called(monkeypatch, pid, other)
    path = formats.FORMATS["pidfile"](tmp_path, pid)
    plain = process.started_at
    later = {other: path.stat().st_mtime + 60}
    monkeypatch.setattr(process, "started_at", lambda each: later.get(each) or plain(each))
    assert asked(path).state == HELD


def test_a_lock_of_another_host_is_suspect_and_names_it(tmp_path):
    path = formats.link(tmp_path, "SingletonLock", "9f2c1a-31")
    answer = asked(path)
    assert answer.state == SUSPECT
    assert "another host, 9f2c1a" in answer.holder.evidence


@pytest.mark.parametrize("name", ["dpkg/lock", "apt/lists/lock", "index/write.lock"])
def test_a_file_of_a_kernel_lock_is_free_without_the_lock(name, tmp_path):
    path = formats.file(tmp_path, name, "")
    answer = asked(path)
    assert answer.state == FREE
    assert "never remove the file" in answer.note


def test_a_database_is_known_by_its_lock_and_by_its_content(tmp_path):
    require("command:sqlite3")
    path = tmp_path / "data.db"
    subprocess.run(["sqlite3", path, "create table t(x)"], check=True)
    assert (asked(path).family, asked(path).state) == ("sqlite", FREE)


@pytest.mark.parametrize("name", ["poetry.lock", "Cargo.lock", "yarn.lock", "package.txt"])
def test_lists_of_versions_are_no_locks(name, tmp_path):
    path = formats.file(tmp_path, name, "1234\n")
    assert families.recognised(families.LockPath(str(path))) is None or name == "package.txt"


@pytest.mark.parametrize(
    "content",
    [b"", b"\0" * 64, b"\xff" * 4096, b"9" * 60, b"-1\n", b"{", b"[" * 4000, b"1\n\x1b[31m\n2\n",
     b"a|b|c|d", b"filelock/2\n=\n=", b"b0VIM"],
)  # fmt: skip
@pytest.mark.parametrize(
    "name", ["x.lock", ".x.swp", "rwlock", ".a.lock.info", "lock.roster", ".~lock.x#", "gc.pid"]
)
def test_no_content_makes_a_recogniser_fail(name, content, tmp_path):
    path = formats.file(tmp_path, f".dvc/tmp/{name}", content)
    for family in families.known():
        family.read(families.LockPath(str(path)))
    assert asked(path).state in (FREE, SUSPECT, HELD, STALE)


def test_every_family_has_one_word_and_a_title():
    rows = families.known()
    assert all(row.name and " " not in row.name and row.title for row in rows)
    assert len({row.name for row in rows} | {"pidfile", "flock", "fcntl", "ofd"}) >= 30


def test_a_row_of_others_is_asked_first(tmp_path, monkeypatch):
    row = families.Family("mine", "my lock", lambda sight: families.StatedHolder(words="hello"))
    monkeypatch.setattr(families, "_others", [row])
    assert asked(formats.file(tmp_path, "x.lock", "1\n")).family == "mine"


def test_rows_of_others_that_are_none_are_left_out(monkeypatch):
    point = types.SimpleNamespace(load=lambda: 5)
    monkeypatch.setattr(families, "_others", None)
    monkeypatch.setattr(families, "_offered", lambda: [point])
    assert families.known() == families.OURS


def test_a_row_of_others_that_fails_is_left_out(tmp_path, monkeypatch, gone, all_seen):
    def broken(sight):
        raise ZeroDivisionError

    monkeypatch.setattr(families, "_others", [families.Family("bad", "bad", broken)])
    assert asked(formats.file(tmp_path, "x.lock", f"{gone}\n")).family == "dotlockfile"


def test_the_remedy_of_a_stale_lock_is_the_tools_own_where_it_has_one(tmp_path, gone, all_seen):
    answer = asked(formats.borg(tmp_path, gone))
    assert answer.remedy == (f"clear it:  borg break-lock {tmp_path}/repo",)
    assert foreign_verdict.is_here(formats.HOST)


def of_several(tool, folder, *pids):
    """A lock with several holders, as borg, DVC and filelock write it, and the path to ask for."""
    if tool == "borg":
        roster = {"exclusive": [], "shared": [[f"{formats.HOST}@123", pid, 0] for pid in pids]}
        return formats.file(folder, "repo/lock.roster", json.dumps(roster))
    if tool == "dvc":
        people = [{"pid": pid, "cmd": "dvc pull"} for pid in pids]
        content = json.dumps({"write": {}, "read": {"data": people}})
        return formats.file(folder, ".dvc/tmp/rwlock", content)
    formats.file(folder, "s.lock.rw/gen/HEAD", "1\n")
    for number, pid in enumerate(pids):
        record = f"filelock-rw/1\ntoken={number}\npid={pid}\nhost={formats.HOST}\nlease=90.0\n"
        formats.file(folder, f"s.lock.rw/holders/{number:032x}", record)
    return folder / "s.lock.rw"


SEVERAL = ("borg", "dvc", "filelock-rw")


@pytest.mark.parametrize("tool", SEVERAL)
def test_a_lock_of_several_is_held_while_one_of_them_runs(tool, tmp_path, gone, sleeper, all_seen):
    pid = sleeper("python3")
    path = of_several(tool, tmp_path, gone, pid, gone - 1)
    answer = asked(path)
    assert (answer.family, answer.state) == (tool, HELD), answer.holder
    assert (answer.holder.owner.pid, answer.holder.pid_here) == (pid, pid)
    assert not any("clear" in each or "break" in each for each in answer.remedy)


@pytest.mark.parametrize("tool", SEVERAL)
def test_a_lock_of_several_is_stale_when_all_of_them_are_gone(tool, tmp_path, gone, all_seen):
    answer = asked(of_several(tool, tmp_path, gone, gone - 1))
    assert (answer.family, answer.state) == (tool, STALE), answer.holder
    assert answer.holder.owner.pid == gone
    assert not any("lifehold clear" in each for each in answer.remedy)  # which would refuse


@pytest.mark.parametrize("tool", SEVERAL)
def test_one_of_several_who_cannot_be_judged_may_live(tool, tmp_path, gone, all_seen):
    answer = asked(of_several(tool, tmp_path, gone, "nobody"))
    assert (answer.family, answer.state) == (tool, SUSPECT), answer.holder


@pytest.mark.parametrize("tool", ["borg", "dvc"])
def test_a_long_list_of_holders_is_read_to_its_end(tool, tmp_path, gone, sleeper, all_seen):
    path = of_several(tool, tmp_path, *[gone] * 300, sleeper("python3"))
    assert os.stat(path).st_size > foreign_verdict.LONGEST
    assert (asked(path).family, asked(path).state) == (tool, HELD)


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("odd", ["text", 5, None, [], ["a@b", 1, 0, "new"]])
@pytest.mark.parametrize("tool", ["borg", "dvc"])
def test_an_entry_of_another_form_may_be_somebody_who_lives(
    tool, odd, alone, tmp_path, gone, all_seen
):
    path = of_several(tool, tmp_path, *[] if alone else [gone])
    told = json.loads(path.read_text())
    entries = told["shared"] if tool == "borg" else told["read"].setdefault("data", [])
    entries.append(odd)
    path.write_text(json.dumps(told))
    answer = asked(path)
    assert (answer.family, answer.state) == (tool, SUSPECT), answer.holder


def of_a_line(form: str, pid: int) -> bytes:
    """LCK..ttyS0 as its tools write it."""
    forms = {
        "minicom": b"%05d minicom ana\n" % pid,
        "lines": b"%10d\ncu\nana\n" % pid,
        "binary": pid.to_bytes(4, sys.byteorder),
    }
    return forms[form]


@pytest.mark.parametrize("form", ["minicom", "lines", "binary"])
def test_each_form_of_a_serial_line_s_lock_names_its_process(
    form, tmp_path, gone, sleeper, all_seen
):
    pid = sleeper("minicom")
    held = asked(formats.file(tmp_path, "LCK..ttyS0", of_a_line(form, pid)))
    assert (held.state, held.holder.pid_here) == (HELD, pid), held.holder
    left = asked(formats.file(tmp_path, "LCK..ttyS1", of_a_line(form, gone)))
    assert (left.state, left.holder.owner.pid) == (STALE, gone), left.holder


def test_an_int_whose_bytes_are_digits_is_no_text(tmp_path):
    pid = int.from_bytes(b"11\0\0", sys.byteorder) if sys.byteorder == "little" else 0x3131
    path = formats.file(tmp_path, "LCK..ttyS0", pid.to_bytes(4, sys.byteorder))
    assert asked(path).holder.owner.pid == pid


@pytest.mark.parametrize("content", [b"minicom\n", b"\xff" * 4, b"-12\n", b"12 x" * 40, b"0\n"])
def test_a_serial_line_s_lock_that_nobody_can_read_is_suspect(content, tmp_path):
    answer = asked(formats.file(tmp_path, "LCK..ttyS0", content))
    assert (answer.family, answer.state) == ("uucp", SUSPECT)
    assert "cannot be read" in answer.note


@pytest.mark.parametrize("content", ["12 host\n", "pid=12\n", "+12\n", "\ufeff12\n"])
@pytest.mark.parametrize("name", ["a.pid", ".X7-lock", "a.lock"])
def test_of_what_is_called_a_lock_and_says_nothing_the_answer_tells_that(content, name, tmp_path):
    answer = asked(formats.file(tmp_path, name, content))
    assert (answer.state, answer.note) == (FREE, EMPTY)


def test_the_number_of_a_thread_may_be_meant(tmp_path, all_seen):
    path = formats.file(tmp_path, "LCK..modem", "")
    ready, done = threading.Event(), threading.Event()

    def hold() -> None:
        path.write_text(f"{threading.get_native_id():10d}\n")
        ready.set()
        done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    ready.wait()
    answer = asked(path)
    done.set()
    thread.join()
    assert answer.state == SUSPECT
    assert f"the number of a thread of process {os.getpid()}:" in answer.holder.evidence
    assert asked(path).state == STALE
