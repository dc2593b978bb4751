"""Who we are and who lives, asked of real processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ground import needs
from lifehold.core.owner import ALIVE, DEAD, INITIAL_PID_NAMESPACE, Sighting, judge
from lifehold.core.value import replace
from lifehold.runtime import fork, process

linux = needs("linux", "proc")
IDS = "0123456789abcdef" * 4


@contextlib.contextmanager
def sleeper(*command):
    """A process that waits for its standard input to close."""
    ours = (sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()")
    started = subprocess.Popen(command or ours, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        if not command:
            started.stdout.readline()  # while exec(2) is under way its command line is empty
        yield started
    finally:
        started.kill()
        started.communicate()


@linux
def test_we_know_who_we_are():
    us = process.here("nightly")
    assert (us.pid, us.label, us.thread) == (os.getpid(), "nightly", threading.get_ident())
    assert us.host == os.uname().nodename
    assert us.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert us.pid_ns == os.stat("/proc/self/ns/pid").st_ino
    assert us.uid == os.getuid()
    assert us.start_ticks == process.look(os.getpid()).start_ticks
    assert Path(sys.executable).name[:6] in us.command
    assert judge(us, process.ground(True, None)).state == ALIVE


@linux
def test_identity_is_of_the_thread_that_asks():
    found = []
    thread = threading.Thread(target=lambda: found.append(process.here()))
    thread.start()
    thread.join()
    assert found[0].thread != process.here().thread
    assert replace(found[0], thread=None) == replace(process.here(), thread=None)


@linux
def test_a_running_process_and_a_dead_one_are_told_apart():
    with sleeper() as other:
        seen = process.look(other.pid)
        assert (seen.exists, seen.is_thread, seen.is_zombie) == (True, False, False)
        assert seen.start_ticks > 0
        assert "sys.stdin.read()" in seen.command
        owner = process.owner_of(other.pid)
        assert (owner.uid, owner.pid_ns) == (os.getuid(), process.namespace("pid"))
        assert "sys.stdin.read()" in owner.command
        ours = replace(process.here(), pid=other.pid, start_ticks=seen.start_ticks,
                       pidfd_ino=seen.pidfd_ino)  # fmt: skip
        assert judge(ours, process.ground(True, None)).state == ALIVE
    assert process.look(other.pid) == Sighting(exists=False)
    assert judge(ours, process.ground(True, None)).state == DEAD


@linux
def test_a_zombie_is_not_alive():
    with sleeper() as other:
        other.kill()
        os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
        assert process.look(other.pid).is_zombie


@linux
def test_a_leader_that_left_its_threads_behind_is_no_zombie():
    script = (
        "import ctypes, os, threading, time\n"
        "threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "os.write(1, b'x')\n"
        "ctypes.CDLL(None).pthread_exit(None)"
    )
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as other:
        try:
            other.stdout.read(1)
            for _ in range(2000):
                state = Path(f"/proc/{other.pid}/stat").read_text().rpartition(")")[2].split()[0]
                if state == "Z":
                    break
                threading.Event().wait(0.005)
            assert state == "Z"
            assert not process.look(other.pid).is_zombie
        finally:
            other.kill()


@linux
def test_a_thread_id_names_no_process():
    ready, done, ids = threading.Event(), threading.Event(), []

    def work():
        ids.append(threading.get_native_id())
        ready.set()
        done.wait(60)

    thread = threading.Thread(target=work)
    thread.start()
    ready.wait(60)
    os.kill(ids[0], 0)  # this is why kill(2) proves nothing
    seen = Sighting(exists=True, is_thread=True, thread_of=os.getpid())
    assert process.look(ids[0]) == seen
    done.set()
    thread.join()
    assert judge(replace(process.here(), pid=ids[0]), process.ground(True, None)).state == DEAD


@linux
@needs("root")
def test_a_pid_that_was_given_away_is_seen_by_its_start():
    with sleeper() as first:
        before = process.look(first.pid)
        owner = replace(process.here(), pid=first.pid, start_ticks=before.start_ticks,
                        pidfd_ino=before.pidfd_ino)  # fmt: skip
    for _ in range(50):
        try:
            Path("/proc/sys/kernel/ns_last_pid").write_text(str(first.pid - 1))
        except OSError as error:
            pytest.skip(f"needs root: ns_last_pid cannot be written ({error.strerror})")
        with sleeper("/bin/cat") as second:
            if second.pid != first.pid:
                continue
            verdict = judge(owner, process.ground(True, None))
            assert verdict.state == DEAD
            assert "given to another process" in verdict.evidence
            verdict = judge(replace(owner, pidfd_ino=None), process.ground(True, None))
            assert (
                verdict.state == DEAD or process.look(first.pid).start_ticks == before.start_ticks
            )
            return
    pytest.skip("needs root: another process was always faster")


def test_numbers_that_no_process_can_have_do_not_exist():
    for pid in (2**22 + 1, 2**31 - 1, 2**40, 2**70):
        assert process.look(pid).exists in (False, True)
    assert not process.look(2**22 + 1).exists


CGROUPS = {
    f"0::/system.slice/docker-{IDS}.scope": IDS,
    f"12:cpu:/docker/{IDS}": IDS,
    f"0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-{IDS}.scope": IDS,
    f"0::/machine.slice/libpod-{IDS}.scope/container": IDS,
    f"1:name=systemd:/kubepods/besteffort/pod-x/{IDS}": IDS,
    f"0::/x/{IDS[:-1]}": None,
    f"0::/x/{IDS}0": None,
    "0::/": None,
    "0::/user.slice/user-1000.slice": None,
}


@pytest.mark.parametrize("line", CGROUPS, ids=range(len(CGROUPS)))
def test_a_container_is_found_in_the_line_of_its_cgroup(line):
    assert process._long_id(line + "\n") == CGROUPS[line]


def test_without_proc_everything_unknown_is_none(monkeypatch):
    """As on macOS: no /proc, no O_NOATIME, no pidfd."""
    real_open, real_stat, real_dir = open, os.stat, os.path.isdir

    def hidden(path):
        return str(path).startswith(("/proc", "/etc/machine-id", "/var/lib/dbus"))

    def guarded(call):
        def guard(path, *args, **more):
            if hidden(path):
                raise FileNotFoundError(2, "hidden", path)
            return call(path, *args, **more)

        return guard

    monkeypatch.setattr("builtins.open", guarded(real_open))
    monkeypatch.setattr(os, "stat", guarded(real_stat))
    monkeypatch.setattr(os.path, "isdir", lambda path: not hidden(path) and real_dir(path))
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    monkeypatch.setattr(process, "_look_elsewhere", lambda pid: Sighting(True, start_ticks=7))
    owner = process._read_self()
    assert (owner.pid, owner.start_ticks) == (os.getpid(), 7)
    assert (owner.boot_id, owner.pid_ns, owner.machine_id, owner.pidfd_ino) == (None,) * 4
    assert owner.host
    assert not process.sees_all_processes()
    assert process.command_of(os.getpid()) is None


def test_without_proc_psutil_is_asked(monkeypatch):
    class NoSuchProcess(Exception):
        pass

    class AccessDenied(Exception):
        pass

    class Process:
        def __init__(self, pid):
            if pid > 9:
                raise {10: NoSuchProcess, 11: AccessDenied}[pid]
            self.pid = pid

        def status(self):
            return "zombie" if self.pid == 3 else "running"

        def create_time(self):
            return 12.34

        def cmdline(self):
            return ["x", "--password=hunter2"]

    fake = type(sys)("psutil")
    fake.Process, fake.NoSuchProcess, fake.AccessDenied = Process, NoSuchProcess, AccessDenied
    fake.STATUS_ZOMBIE = "zombie"
    monkeypatch.setitem(sys.modules, "psutil", fake)
    found = process._look_elsewhere(1)
    assert found == Sighting(True, False, False, 1234, None, "x --password=***")
    assert process._look_elsewhere(3).is_zombie
    assert process._look_elsewhere(10) == Sighting(exists=False)
    assert process._look_elsewhere(11) == Sighting(exists=True)


@linux
@pytest.mark.parametrize(
    ("mounts", "answer"),
    [
        ("proc /proc proc rw,nosuid 0 0\n", True),
        ("proc /proc proc rw,hidepid=2 0 0\n", False),
        ("proc /proc proc rw,hidepid=invisible 0 0\n", False),
        ("proc /proc proc rw,hidepid=noaccess 0 0\n", False),
        ("proc /proc proc rw,hidepid=off 0 0\n", True),
        ("proc /proc proc rw 0 0\nproc /proc proc rw,hidepid=ptraceable 0 0\n", False),
        ("tmpfs /tmp tmpfs rw 0 0\n", False),
        ("broken\n", False),
    ],
)
def test_hidden_processes_are_noticed(mounts, answer, tmp_path, monkeypatch):
    file = tmp_path / "mounts"
    file.write_text(mounts)
    real_open = open
    monkeypatch.setattr(
        "builtins.open",
        lambda path, *a, **m: real_open(file if path == "/proc/mounts" else path, *a, **m),
    )
    monkeypatch.setattr(process, "namespace", lambda kind, pid="self": INITIAL_PID_NAMESPACE)
    assert process.sees_all_processes() is answer
    monkeypatch.setattr(process, "namespace", lambda kind, pid="self": 5)
    assert not process.sees_all_processes()


@linux
def test_a_process_hidden_from_proc_is_not_called_gone():
    assert process._look_hidden(os.getpid()) == Sighting(exists=True)
    assert process._look_hidden(2**22 + 1) == Sighting(exists=False)
    assert process._look_hidden(2**70) == Sighting(exists=True)


def test_a_user_without_a_name_has_none(monkeypatch):
    assert process.user_name(os.getuid() if hasattr(os, "getuid") else None) or True
    assert process.user_name(3_999_999_999) is None
    monkeypatch.setenv("USERNAME", "ana")
    assert process.user_name(None) == "ana"


@linux
def test_a_kernel_thread_is_shown_by_its_name():
    names = [process.command_of(2)]
    assert names == [None] or names[0].startswith("[") or "kthreadd" not in names[0]


@linux
def test_a_forked_child_knows_that_it_is_another():
    before = process.here()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        ours = process.here()
        right = (ours.pid, ours.start_ticks) == (os.getpid(), process.look(os.getpid()).start_ticks)
        os.write(writing, b"+" if right and ours.pid != before.pid else b"-")
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        assert pipe.read() == b"+"
    os.waitpid(pid, 0)
    assert signal.SIGCHLD  # reaped, no zombie is left


@needs("fork")
def test_a_name_is_looked_up_with_no_fork_in_between_and_a_child_has_the_answer(monkeypatch):
    """The C library's own lock would stay shut in a child that was forked in the middle."""
    asked = []

    def look_up(uid):
        asked.append((uid, fork.gate._is_owned()))
        raise KeyError(uid)

    monkeypatch.setattr("pwd.getpwuid", look_up)
    assert process.user_name(3_999_999_998) is None
    assert asked == [(3_999_999_998, True)]
    pid = os.fork()
    if pid == 0:
        process.user_name(3_999_999_998)
        os._exit(len(asked))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
