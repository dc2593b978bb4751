"""Looking at locks where the kernel shows less: no /proc, hidepid, overlayfs, btrfs, a bind mount,
and holders that come and go while we look."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import struct
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from ground import needs, require
from lifehold import Lock, NotAcquired
from lifehold.cli.main import main
from lifehold.local.files import HOST
from lifehold.local.kernel_holders import holder_of
from lifehold.runtime import process

SOURCE = Path(__file__).parents[2] / "src"
pytestmark = needs("linux", "proc", "flock")


def asked(script: str, path: Path, *, status: int = 0) -> dict:
    """The answer of `lifehold who --json` in a mount namespace that `script` has prepared."""
    who = f"{sys.executable} -m lifehold who --json {path}"
    text = f"set -e; {script}" if "WHO" in script else f"set -e; {script}; WHO"
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", text.replace("WHO", who)],
        capture_output=True, text=True, timeout=60, env=os.environ | {"PYTHONPATH": str(SOURCE)},
        check=False,
    )  # fmt: skip
    assert done.returncode == status, done.stderr
    return json.loads(done.stdout)["locks"][0]


@needs("unshare", "root")
def test_without_proc_the_lock_itself_tells_that_it_is_held_and_the_record_by_whom(tmp_path):
    path = tmp_path / "x.lock"
    with Lock(path) as lease:
        found = asked("umount -l /proc", path)
    assert (found["state"], found["holder"]["nonce"]) == ("held", lease.nonce)
    assert asked("umount -l /proc", path, status=1)["state"] == "free"


UNSEEN = {
    "another PID namespace": "unshare -pf --mount-proc",
    "the /proc of another PID namespace": "unshare -pf mount -t proc proc /proc;",
    "subset=pid": "mount -t proc -o subset=pid proc /proc;",
    "no /proc": "umount -l /proc;",
}
LOCKED = {
    "fcntl": lambda file: fcntl.lockf(file, fcntl.LOCK_EX),
    "fcntl-shared": lambda file: fcntl.lockf(file, fcntl.LOCK_SH),
    "fcntl-bytes": lambda file: fcntl.lockf(file, fcntl.LOCK_EX, 1, 100),
    "ofd-shared": lambda file: fcntl.fcntl(
        file, fcntl.F_OFD_SETLK, struct.pack("hhqqi", fcntl.F_RDLCK, 0, 7, 1, 0)
    ),
    "flock": lambda file: fcntl.flock(file, fcntl.LOCK_EX),
    "flock-shared": lambda file: fcntl.flock(file, fcntl.LOCK_SH),
    "free": lambda file: None,
}


ASKS = """
import sys
from lifehold.cli.main import main
main(["who", "--json", *sys.argv[1:]])
print(*(main(["wait", "-w", "0", each]) for each in sys.argv[1:]), file=sys.stderr)
"""


@needs("unshare", "root")
@pytest.mark.parametrize("ground", UNSEEN)
def test_a_lock_that_the_table_does_not_show_is_held_all_the_same(ground, tmp_path):
    paths = {name: tmp_path / name for name in LOCKED}
    asks = tmp_path / "asks.py"
    asks.write_text(ASKS, encoding="utf-8")
    named = " ".join(map(str, paths.values()))
    script = f"{UNSEEN[ground]} {sys.executable} {asks} {named}"
    with contextlib.ExitStack() as opened:
        for name, path in paths.items():
            LOCKED[name](opened.enter_context(path.open("w+", encoding="utf-8")))
        done = subprocess.run(
            ["unshare", "-m", "sh", "-c", script],
            capture_output=True,
            text=True,
            timeout=120,
            env=os.environ | {"PYTHONPATH": str(SOURCE)},
            check=False,
        )
    found = {Path(each["path"]).name: each for each in json.loads(done.stdout)["locks"]}
    for name, each in found.items():
        kind = "flock" if name == "free" else name.partition("-")[0]
        assert (each["state"], each["kind"]) == ("free" if name == "free" else "held", kind), name
        if each["holder"]:
            assert ("shared" in each["holder"]["evidence"]) == ("shared" in name), name
    assert done.stderr.splitlines()[-1] == "75 75 75 75 75 75 0"


@needs("unshare", "root")
def test_a_lock_shared_unseen_is_not_that_of_who_held_it_alone_before(tmp_path):
    path = tmp_path / "x.lock"
    Lock(path, label="long gone").acquire().release()
    with path.open("r+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        found = asked("unshare -pf --mount-proc WHO", path)
    assert (found["state"], found["holder"]["owner"]) == ("held", None)


@needs("unshare", "root")
@pytest.mark.parametrize("how", ["fcntl-shared", "flock-shared"])
def test_who_waits_where_the_holder_is_unseen_is_served_when_it_lets_go(how, tmp_path):
    path = tmp_path / "x.lock"
    command = ("unshare", "-pf", "--mount-proc", sys.executable, "-m", "lifehold", "wait", path)
    with path.open("w+", encoding="utf-8") as file:
        LOCKED[how](file)
        environ = os.environ | {"PYTHONPATH": str(SOURCE)}
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environ) as waiter:
            assert "has it" in waiter.stderr.readline() or waiter.stderr.readline()
            assert waiter.poll() is None
            file.close()
            assert waiter.wait(60) == 0


@pytest.fixture
def folder_for_all():
    """Not below tmp_path: any other run of pytest that begins meanwhile closes that to others."""
    with tempfile.TemporaryDirectory(prefix="lifehold-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@needs("unshare", "root", "command:setpriv", "python of others")
def test_with_hidepid_another_users_holder_is_named_by_its_record(folder_for_all):
    path = folder_for_all / "x.lock"
    script = "mount -t proc -o hidepid=2 proc /proc; setpriv --reuid=54321 --clear-groups WHO"
    with Lock(path, label="mine") as lease:
        found = asked(script, path)
    assert found["holder"]["nonce"] == lease.nonce
    assert found["holder"]["owner"]["label"] == "mine"


@needs("unshare", "root")
def test_on_overlayfs_a_lock_of_another_tool_is_found_by_the_kernels_own_numbers(tmp_path):
    for name in ("lower", "upper", "work", "merged"):
        (tmp_path / name).mkdir()
    (tmp_path / "lower/x.lock").touch()
    script = (
        f"cd {tmp_path}; mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work "
        "merged; flock merged/x.lock sleep 3 >/dev/null 2>&1 & sleep 0.3; WHO"
    )
    found = asked(script, tmp_path / "merged/x.lock")
    assert (found["state"], found["holder"]["owner"]["command"].split()[0]) == ("held", "flock")


@needs("btrfs", "unshare")
def test_on_btrfs_a_lock_is_found_although_stat_tells_another_device(tmp_path):
    (tmp_path / "mount").mkdir()
    script = (
        f"cd {tmp_path}; truncate -s 320M image; mkfs.btrfs -q image >/dev/null 2>&1; mount -o loop image mount; "
        "flock mount/x.lock sleep 3 >/dev/null 2>&1 & sleep 0.5; WHO"
    )
    found = asked(script, tmp_path / "mount/x.lock")
    assert (found["state"], found["holder"]["owner"]["command"].split()[0]) == ("held", "flock")


@needs("unshare", "root")
def test_a_file_mounted_elsewhere_is_the_same_lock_also_when_its_setter_is_gone(tmp_path):
    one, other = tmp_path / "x.lock", tmp_path / "y.lock"
    one.touch()
    other.touch()
    script = (
        f"mount --bind {one} {other}; exec 9>{one}; flock 9; (flock {one} true)& "
        "sleep 0.2; WHO; kill $!"
    )
    found = asked(script, other)
    assert found["state"] == "held"
    assert found["holder"]["pid_here"] is not None
    assert "inherited its open file" in found["holder"]["evidence"]
    assert len(found["waiting"]) == 1


@needs("unshare", "root", "tmpfs", "all processes")
@pytest.mark.parametrize("folder", ["./link", "in/.."])
def test_a_tree_behind_a_link_ends_where_another_file_system_begins(folder, tmp_path):
    """Nothing of it is listed, told or cleared."""
    for each in ("real/m", "real/d"):
        (tmp_path / each).mkdir(parents=True)
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "in").symlink_to("real/d")
    (tmp_path / "watch.toml").write_text(f"folders = ['{tmp_path}/{folder}']\nstale = 'clear'\n")
    dead = 4_190_000
    while process.look(dead).exists:
        dead -= 1
    ours = f"{sys.executable} -m lifehold"
    script = (
        f"set -e; cd {tmp_path}; mount -t tmpfs none real/m; echo {dead} > real/m/server.pid; "
        f"{ours} ls -R {folder} >&2; {ours} clear -R {folder}/. >&2; "
        f"{ours} watch --once watch.toml; cat real/m/server.pid"
    )
    environ = os.environ | {"PYTHONPATH": str(SOURCE), "LIFEHOLD_DIR": str(tmp_path / "names")}
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script],
        capture_output=True,
        text=True,
        timeout=90,
        env=environ,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, f"{dead}\n"), done.stderr
    assert "server.pid" not in done.stderr


def test_holders_that_come_and_go_are_never_misnamed_and_raise_nothing(tmp_path, capfd):
    """Every answer is: nobody, or one who did hold it at some time during the look."""
    path = str(tmp_path / "x.lock")
    script = (
        "import sys, time\nfrom lifehold import Lock\nwhile True:\n"
        "    with Lock(sys.argv[1]): time.sleep(0.003); print('.', end='', flush=True)"
    )
    environ = os.environ | {"PYTHONPATH": str(SOURCE)}
    busy = [
        subprocess.Popen([sys.executable, "-c", script, path], env=environ, stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    pids = {each.pid for each in busy}
    try:
        for each in busy:
            each.stdout.read(1)
        named = set()
        for _ in range(150):
            found = holder_of(HOST, path, False)
            if found is None or found.owner is None:
                continue
            named.add(found.owner.pid)
            assert found.owner.command is None or "lifehold" in found.owner.command
            assert found.since is None or found.token is not None
        assert named <= pids
        assert named
        for _ in range(20):
            assert main(["who", path]) in (0, 1)
    finally:
        for each in busy:
            each.kill()
            each.wait()
            each.stdout.close()
    assert "Traceback" not in capfd.readouterr().err


def test_a_holder_killed_between_any_two_looks_is_told_without_an_exception(tmp_path):
    path = str(tmp_path / "x.lock")
    stop = threading.Event()
    errors: list[BaseException] = []

    def look():
        try:
            while not stop.is_set():
                holder_of(HOST, path, False)
        except BaseException as error:
            errors.append(error)

    looker = threading.Thread(target=look)
    looker.start()
    for _ in range(25):
        with subprocess.Popen(["flock", path, "sleep", "60"], start_new_session=True) as holder:
            for _ in range(200):
                if holder_of(HOST, path, False):
                    break
            os.killpg(holder.pid, 9)
    stop.set()
    looker.join()
    assert errors == []
    with pytest.raises(NotAcquired), open(path) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        Lock(path).acquire(wait=0)


FILELOCKS = {
    "soft": "from lifehold.compat.filelock import SoftFileLock as L",
    "marker": "from lifehold.compat.filelock import MarkerSoftFileLock as L",
    "lease": "from lifehold.compat.filelock import SoftFileLease as L",
    "strict": "from lifehold.compat.filelock import StrictSoftFileLock as L",
    "real soft": "from filelock import SoftFileLock as L",
    "real strict": "from filelock import StrictSoftFileLock as L",
}


@needs("unshare", "root")
@pytest.mark.parametrize("observer", [True, False], ids=["observer", "holder"])
@pytest.mark.parametrize("kind", FILELOCKS)
def test_a_live_lock_is_never_stale_from_another_time_namespace(kind, observer, tmp_path):
    """Each counts the begin of a process from another zero."""
    if kind.startswith("real"):
        require("package:filelock")
    path, apart = tmp_path / "x.lock", ["unshare", "-T", "--boottime", "100000"]
    env = os.environ | {"PYTHONPATH": str(SOURCE)}
    text = f"{FILELOCKS[kind]}\nl = L({str(path)!r})\nl.acquire()\nprint('in', flush=True)\ninput()"
    holder = subprocess.Popen(
        [*([] if observer else [*apart, "--fork"]), sys.executable, "-c", text],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env,
    )  # fmt: skip
    with holder:
        if holder.stdout.readline() != "in\n":
            pytest.skip("no time namespace to be had")
        who = [sys.executable, "-m", "lifehold", "who", "--json", str(path)]
        done = subprocess.run(
            [*(apart if observer else []), *who], capture_output=True, text=True, env=env,
            check=False,
        )  # fmt: skip
        holder.stdin.write("\n")
    found = json.loads(done.stdout)["locks"][0]
    assert found["state"] in ("held", "suspect"), found["holder"]
    assert found["holder"]["owner"]["pid"] == holder.pid or not observer


@needs("unshare", "root")
def test_a_lock_made_for_a_process_of_another_time_namespace_is_not_stale_there(tmp_path):
    """Its begin is counted by who made the lock, and says so."""
    from lifehold.compat.liblockfile.calls import _owner
    from lifehold.runtime import process

    words = ["unshare", "-T", "--boottime", "100000", "--fork", "sh", "-c", "echo $$; read x"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        pid = int(other.stdout.readline() or 0)
        if not pid:
            pytest.skip("no time namespace to be had")
        owner = _owner(pid)
        assert owner.time_ns == process.here().time_ns
        assert owner.start_ticks == process.look(pid).start_ticks
        other.stdin.write("\n")


def seen_under(option, rights, folder):
    """Whether all processes are seen with such a /proc by a process with such rights."""
    code = "from lifehold.runtime import process; print(process.sees_all_processes())"
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c",
         f"mount -t proc -o hidepid={option} proc /proc && exec {rights} {sys.executable} -c '{code}'"],
        capture_output=True, text=True, timeout=60, env=os.environ | {"PYTHONPATH": str(SOURCE)},
        cwd=folder, check=False,
    )  # fmt: skip
    return done.stdout.strip() or done.stderr


@needs("unshare", "root", "command:setpriv", "all processes")
@pytest.mark.parametrize("option", [1, 2])
def test_root_sees_all_processes_whatever_hidepid_says(option, tmp_path):
    assert seen_under(option, "", tmp_path) == "True"


@needs("unshare", "root", "command:setpriv", "all processes")
@pytest.mark.parametrize("option", [1, 2, 4])
def test_root_without_the_right_that_hidepid_heeds_believes_no_absence(option, tmp_path):
    weak = "setpriv --bounding-set -sys_ptrace --inh-caps -sys_ptrace"
    assert seen_under(option, weak, tmp_path) == "False"
    assert seen_under(option, "unshare --user --map-root-user", tmp_path) == "False"


@needs("unshare", "root", "all processes")
def test_a_process_that_something_hides_all_the_same_is_noticed(monkeypatch):
    """A security module may refuse even root: what counts is what is seen."""
    from lifehold.runtime import process

    monkeypatch.setattr(process, "_all_seen", (False, 0.0))
    assert process._sees_what_is_hidden()
    monkeypatch.setattr(process, "_all_seen", (False, 0.0))
    seen = process._threads_seen
    monkeypatch.setattr(process, "_threads_seen", lambda: seen() - 1000)
    assert not process._sees_what_is_hidden()


@needs("unshare", "root", "all processes")
def test_root_clears_a_dead_pid_file_on_a_host_with_hidepid(tmp_path):
    path = tmp_path / "x.pid"
    path.write_text("4190000\n")
    found = asked("mount -t proc -o hidepid=2 proc /proc", path, status=3)
    assert (found["state"], found["holder"]["alive"]) == ("stale", "dead")
