"""`lifehold who` on the locks of any tool: flock, fcntl, OFD, inherited, removed, queues, pid
files, other users and other PID namespaces."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shlex
import struct
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from ground import needs
from lifehold import LeaseLost, Lock, ReadWriteLock, Semaphore, look
from lifehold.cli.main import main
from lifehold.core.value import replace
from lifehold.local import kernel_holders, record_handle
from lifehold.local.files import HOST
from lifehold.local.kernel_holders import waiters_of
from lifehold.ops import inventory

pytestmark = needs("linux", "proc")

F_OFD_SETLK = 37
RECORDS = ["soft", "link", "directory", "generation", "folder"]  # whose record is the lock
SCHEMA = json.loads(
    (Path(__file__).parents[2] / "docs/reference/who.schema.json").read_text(encoding="utf-8")
)
LEAVES_A_CHILD = """
import fcntl, os, subprocess, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.set_inheritable(fd, True)
fcntl.flock(fd, fcntl.LOCK_EX)
print(subprocess.Popen(["sleep", "60"], close_fds=False).pid, flush=True)
"""


@pytest.fixture
def path(lifehold):
    return lifehold.folder / "x.lock"


@pytest.fixture
def said(path, capfd):
    """What `who` says about the path, in words; its answer for programs keeps the schema.

    In this process: a new interpreter for each question would take most of the time."""

    def ask(status: int | None = 0) -> tuple[str, dict]:
        capfd.readouterr()
        code = main(["who", str(path)])
        words = capfd.readouterr()
        assert (code, words.err) == (code if status is None else status, "")
        main(["who", "--json", str(path)])
        answer = json.loads(capfd.readouterr().out)
        jsonschema.validate(answer, SCHEMA)
        return words.out, answer["locks"][0]

    return ask


@pytest.fixture
def running():
    """Start processes that are killed when the test ends."""
    started = []

    def start(*words, **more):
        process = subprocess.Popen([str(word) for word in words], text=True, **more)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()


def locked(path, mode=os.O_RDWR | os.O_CREAT):
    fd = os.open(path, mode)
    fcntl.flock(fd, fcntl.LOCK_EX)
    return fd


def test_a_free_file_keeps_the_schema(said, path):
    path.touch()
    text, found = said(1)
    assert found["state"] == "free"
    assert text.endswith(f"  lock   {path}\n")


def test_an_fcntl_lock_names_its_process_and_bytes(said, path):
    with open(path, "w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX, 100, 10)
        text, found = said()
    assert f"by     pid {os.getpid()} " in text
    assert f"lock   {path} (fcntl lock on bytes 10 to 109, " in text
    assert (found["kind"], found["holder"]["pid_here"]) == ("fcntl", os.getpid())
    assert "which to read it would drop" in found["note"]


def test_an_ofd_lock_which_the_kernel_shows_as_minus_one_names_its_process(said, path):
    with open(path, "w") as file:
        fcntl.fcntl(file, F_OFD_SETLK, struct.pack("hhqqi", fcntl.F_WRLCK, 0, 0, 0, 0))
        text, found = said()
    assert f"by     pid {os.getpid()} " in text
    assert f"lock   {path} (OFD lock, " in text
    assert (found["kind"], found["holder"]["pids"][0]) == ("ofd", os.getpid())


def test_the_child_of_a_dead_holder_is_named(said, path, running, eventually):
    parent = running(sys.executable, "-c", LEAVES_A_CHILD, path, stdout=subprocess.PIPE)
    child = int(parent.stdout.readline())
    parent.wait()
    # exec(2) lets the parent go before the command line of its child can be read.
    words = Path(f"/proc/{child}/cmdline")
    eventually(lambda: words.read_bytes() == b"sleep\x0060\0", "it is what it was started as")
    try:
        text, found = said()
        assert f"by     pid {child} (sleep 60)" in text
        assert f"process {parent.pid} locked it and is gone, this one inherited" in text
        assert found["holder"]["pid_here"] == child
    finally:
        os.kill(child, 9)


@pytest.mark.parametrize("kind", sorted({*RECORDS} - {"link"}))  # its record is open in no child
def test_the_child_that_inherited_a_killed_holder_s_open_record_is_named(
    lifehold, said, path, eventually, kind
):
    wrapper = lifehold.holder("--kind", kind, str(path))
    os.kill(wrapper.pid, 9)
    wrapper.wait()
    child, words = wrapper.child, Path(f"/proc/{wrapper.child}/cmdline")
    eventually(lambda: words.read_bytes() == b"sleep\x00600\0", "it is what it was started as")
    text, found = said(None)
    assert found["state"] == "held"
    gone = f"process {wrapper.pid} is gone, and what inherited its open record holds on"
    assert f"{gone}: pid {child} (sleep 600)" in text
    word = json.loads(lifehold("clear", "--json", str(path)).stdout)["outcomes"][0]["word"]
    assert lifehold("clear", "--force", word, str(path)).returncode == 0


def test_all_holders_of_a_shared_lock_are_named(said, path, running, eventually):
    shared = [running("flock", "-s", path, "sleep", "60") for _ in range(2)]
    eventually(lambda: len(said(None)[1]["others"]) == 1, "both hold it")
    text, found = said()
    named = {found["holder"]["pid_here"], found["others"][0]["pid_here"]}
    assert named == {each.pid for each in shared}
    assert re.search(r"\n  also   pid \d+ \(flock -s ", text)
    assert ", shared; it left no record" in text


def test_who_waits_is_listed_in_the_order_of_the_queue(said, path, running, eventually):
    fd = locked(path)
    first = running("flock", path, "true")
    eventually(lambda: len(said(None)[1]["waiting"]) == 1, "the first waits")
    second = running("flock", "-s", path, "true")
    eventually(lambda: len(said(None)[1]["waiting"]) == 2, "both wait")
    text, found = said()
    os.close(fd)
    assert [each["pid"] for each in found["waiting"]] == [first.pid, second.pid]
    assert [each["exclusive"] for each in found["waiting"]] == [True, False]
    assert f"\n  queue  pid {first.pid} (flock {path} true)\n" in text
    assert f"\n         pid {second.pid} (flock -s {path} true), shared\n" in text


def test_fair_askers_are_waiters_in_their_order_and_no_holders(
    said, lifehold, path, running, eventually
):
    fd = locked(path)
    quiet = "import os, sys; os.dup2(os.open(os.devnull, 1), 2)\n"  # else it says that it waits
    script = quiet + "from lifehold import Lock; Lock(sys.argv[1], fair=True).acquire()"
    came = []
    for _ in range(3):
        waits = running(sys.executable, "-c", script, path, env=lifehold.environment)
        came.append(waits.pid)
        eventually(lambda: len(said(None)[1]["waiting"]) == len(came), "it waits")
    text, found = said()
    ahead = [waiting.pid for waiting in waiters_of(HOST, str(path))]
    os.close(fd)
    assert [each["pid"] for each in found["waiting"]] == came
    assert [each["kind"] for each in found["waiting"]] == ["flock", "fair", "fair"]
    assert (found["holder"]["pid_here"], found["others"]) == (os.getpid(), [])
    assert text.count(", in the fair line\n") == 2
    assert ahead == [came[0], -1, -1]


@pytest.mark.parametrize("replaced", [False, True])
def test_a_lock_on_a_file_that_was_removed_is_suspect_and_names_its_holder(said, path, replaced):
    fd = locked(path)
    path.unlink()
    if replaced:
        path.touch()
    text, found = said(3)
    os.close(fd)
    assert text.startswith(f"'{path}' is suspect")
    assert f"\n  old    pid {os.getpid()} " in text
    assert "do not exclude each other" in text
    assert (found["exists"], found["removed"][0]["pid_here"]) == (replaced, os.getpid())
    assert said(1)[1]["removed"] == []


@pytest.mark.parametrize("times", [1, 2])
def test_a_file_that_goes_between_two_looks_is_free_as_a_release_leaves_it(
    path, monkeypatch, times
):
    """`lifehold wait` ended with 71 when a soft holder let go while it was looked at."""
    left = times

    def opened(asked, *given):
        nonlocal left
        if os.fspath(asked) == str(path) and left:
            left -= 1
            path.unlink()
            if left:
                path.touch()
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return plain(asked, *given)

    plain = HOST.open
    path.touch()
    monkeypatch.setattr(HOST, "open", opened)
    before = len(os.listdir("/proc/self/fd"))
    answer = look(path)
    assert (answer.state, answer.exists, answer.note) == ("free", False, "")
    assert left == 0
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("asked", ["look", "ls", "holder"])
@pytest.mark.parametrize("kind", RECORDS)
def test_a_holder_that_releases_while_it_is_looked_at_is_not_called_dead(
    path, monkeypatch, kind, asked
):
    """Its record was read already, and its witness is asked for: `stale`, one look in ten."""
    Lock(path, kind=kind).acquire().release()
    left = look(path).state  # of a folder that may be one of mkdir(1): suspect
    lease = Lock(path, kind=kind).acquire()
    monkeypatch.setattr(record_handle, "is_witnessed", releasing(let_go := [lease]))
    if asked == "look":
        assert look(path).state == left
    elif asked == "ls":
        answers = inventory.of_folder(str(path.parent))
        assert {answer.state for answer in answers} <= {left}
    else:
        assert Lock(path, kind=kind).holder() is None
    assert not let_go


@pytest.mark.parametrize("kind", ["kernel", *RECORDS])
def test_who_is_refused_by_a_holder_that_has_released_since_hears_that(path, kind):
    """And not that the holder left no trace, or that its file cannot be read."""
    options = {"cleanup": True} if kind == "kernel" else {"kind": kind}
    mechanism = Lock(path, **options)._mechanism
    Lock(path, **options).acquire().release()
    told = mechanism.inspect(held=True)
    assert (told.alive, told.evidence) == (
        "unknown",
        "it was held a moment ago, and is free by now",
    )


def test_the_same_of_a_semaphore_and_of_a_reader_whose_writer_is_not_there(path):
    slots = Semaphore(path, 2)
    slots.acquire().release()
    told = slots._mechanism.inspect(held=True)
    assert told.evidence == "it was held a moment ago, and is free by now"
    shared = ReadWriteLock(f"{path}.rw", kind="soft")
    with shared.reading():
        told = shared._writes._mechanism.inspect(held=True)
        assert (told.alive, told.owner.pid) == ("alive", os.getpid())
    assert shared._writes._mechanism.inspect() is None


@pytest.mark.parametrize("kind", RECORDS)
def test_what_next_says_of_a_killed_holder_s_record_clears_it(lifehold, path, said, kind):
    taken = "import os, sys; from lifehold import Lock; Lock(sys.argv[1], kind=sys.argv[2])"
    killed = [sys.executable, "-c", f"{taken}.acquire(); os.kill(os.getpid(), 9)", path, kind]
    assert subprocess.run(killed, check=False).returncode == -9
    words, answer = said(3)
    assert (answer["state"], answer["kind"]) == ("stale", kind)
    (remedy,) = answer["remedy"]
    assert f"  next   {remedy}\n" in words
    told, _, command = remedy.partition(":  ")
    assert told == "leave it to the next holder, or clear it"
    assert lifehold(*shlex.split(command)[1:]).returncode == 0
    assert said(None)[1]["state"] == "free"


@pytest.mark.parametrize("shared", [False, True])
def test_what_next_says_of_a_killed_reader_or_writer_is_that_nothing_is_to_do(path, said, shared):
    rule = "import os, sys; from lifehold import ReadWriteLock; lock = ReadWriteLock(sys.argv[1],"
    way = "reading" if shared else "writing"
    killed = f"{rule} kind='soft'); lock.{way}().__enter__(); os.kill(os.getpid(), 9)"
    assert subprocess.run([sys.executable, "-c", killed, path], check=False).returncode == -9
    words, answer = said(3)
    assert (answer["state"], len(answer["remedy"])) == ("stale", 1)
    assert "  next   nothing to do:  the next to come removes what the dead have left\n" in words


@pytest.mark.parametrize("kind", RECORDS)
def test_who_is_refused_by_a_holder_that_releases_just_then_hears_who_it_was(
    path, monkeypatch, kind
):
    mechanism = Lock(path, kind=kind)._mechanism
    monkeypatch.setattr(
        record_handle, "is_witnessed", releasing(left := [Lock(path, kind=kind).acquire()])
    )
    told = mechanism.inspect(held=True)
    assert not left
    assert (told.alive, told.owner.pid) == ("alive", os.getpid())
    assert told.evidence == "it was held a moment ago"


def releasing(left):
    """`is_witnessed`, that of a holder which lets go just before it is first asked."""
    plain = record_handle.is_witnessed

    def witness(files, fd):
        if left:
            left.pop().release()
        return plain(files, fd)

    return witness


def test_a_removed_file_of_ours_still_tells_since_when(said, path):
    lease = Lock(path).acquire()
    path.unlink()
    text, found = said(3)
    assert re.search(r"old    pid \d+ \(.*, since 20\d\d-", text)
    assert found["removed"][0]["token"] == lease.token
    with pytest.raises(LeaseLost):
        lease.release()


def test_a_pid_file_of_a_living_process_is_held(said, path):
    path.write_text(f"{os.getpid()}\n")
    text, found = said()
    assert (found["kind"], found["holder"]["pid_here"]) == ("pidfile", os.getpid())
    assert f"process {os.getpid()} runs since before the file was written" in text


def test_a_pid_file_of_a_dead_process_is_stale(said, path):
    gone = subprocess.Popen(["true"])
    gone.wait()
    path.write_text(str(gone.pid))
    text, found = said(3)
    assert found["state"] == "stale"
    assert f"alive  no (no process {gone.pid} any more)" in text


def test_a_holder_that_lets_go_and_takes_it_again_passed_its_file_to_nobody(path, monkeypatch):
    scan = kernel_holders.OpenFileScan

    def between(names, pids=None, **more):
        """Of the first survey, which meets it between two grants."""
        return scan(names, pids if pids is None else [], **more)

    monkeypatch.setattr(kernel_holders, "OpenFileScan", between)
    with Lock(path):
        assert kernel_holders.holder_of(HOST, str(path), False).evidence == "kernel witness"


@pytest.mark.parametrize(
    "ask", [lambda path: kernel_holders.holder_of(HOST, path, True), lambda path: look(path).holder]
)
def test_a_record_of_somebody_else_is_read_again_before_it_is_called_none(path, monkeypatch, ask):
    """The lock went to another and came back, while its record was read."""
    looks, look_at = [], kernel_holders.look_at

    def crossed(*given, **named):
        seen = look_at(*given, **named)
        looks.append(seen)
        if len(looks) > 1:
            return seen
        other = replace(seen.record.owner, pid=seen.record.owner.pid + 1)
        return replace(seen, record=replace(seen.record, owner=other))

    monkeypatch.setattr(kernel_holders, "look_at", crossed)
    with Lock(path) as lease:
        found = ask(str(path))
        assert (found.evidence, found.nonce) == ("kernel witness", lease.nonce)


def test_a_pid_file_older_than_the_process_of_its_number_proves_nothing(said, path):
    path.write_text(f"{os.getpid()}\n")
    os.utime(path, (0, 0))
    text, found = said(3)
    assert found["state"] == "suspect"
    assert "is younger than the file: the number was probably given on" in text


@pytest.mark.parametrize("content", ["0", "99999999999", "12x", "-4", "12 13", "\u0661", ""])
def test_what_is_no_process_number_makes_no_pid_file(said, path, content):
    path.write_text(content)  # a bare 0 may be a lock of dotlockfile: suspect
    assert said(3 if content == "0" else 1)[1]["kind"] == (
        "existence" if content == "0" else "flock"
    )


HAS_A_LEASE = """
import fcntl, sys
file = open(sys.argv[1], "w+")
fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print("in", flush=True)
input()
"""


def test_who_has_a_lease_on_a_file_is_told_and_not_killed_by_looking(said, path):
    """Its file is not opened: the signal that tells it of that ends a process without a handler."""
    words = [sys.executable, "-c", HAS_A_LEASE, path]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout.readline() == "in\n"
        text, found = said(3)
        assert (found["state"], found["holder"]["pid_here"]) == ("suspect", holder.pid)
        assert "file lease" in text
        (listed,) = inventory.of_folder(str(path.parent))
        assert (listed.state, listed.holder.pid_here) == ("suspect", holder.pid)
        assert main(["wait", "-w", "0", str(path)]) == 75
        assert main(["clear", str(path)]) == 1
        holder.communicate("\n")
        assert holder.returncode == 0
    assert said(1)[1]["state"] == "free"


@needs("root", "unshare", "flock")
def test_a_holder_in_a_container_is_named_by_both_its_numbers(said, path, running, eventually):
    running("unshare", "-pf", "--mount-proc", "--kill-child", "flock", path, "sleep", "60")
    eventually(path.exists, "it is there")
    eventually(lambda: said(None)[1]["holder"] is not None, "it is held")
    text, found = said()
    here, inside = found["holder"]["pids"]
    assert inside == 1
    assert f"pid    {here} here, 1 in its own PID namespace" in text


@needs("root", "unshare")
def test_a_run_in_a_container_is_called_by_the_number_that_is_right_here(
    lifehold, said, path, running, eventually
):
    running(
        "unshare", "-pf", "--mount-proc", "--kill-child", sys.executable, "-m", "lifehold", "run",
        path, "--", "sleep", "60", env=lifehold.environment,
    )  # fmt: skip
    eventually(lambda: path.exists() and b'"nonce"' in path.read_bytes(), "it has its record")
    text, found = said()
    here, inside = found["holder"]["pids"]
    assert (found["holder"]["owner"]["pid"], found["holder"]["pid_here"]) == (inside, here)
    row = lifehold("who", str(path), "never").stdout.splitlines()[1]
    assert row.split()[2:4] == [str(here), "(1)"]
    assert f"'pids': [{here}, {inside}]" in str(found)
    assert "own PID namespace" not in text, "it stands in the first line already"
    assert f"by     pid {here} (" in text
    assert ", pid 1 in its container, " in text


@needs("root", "unshare")
@pytest.mark.parametrize("kind", RECORDS)
def test_a_record_of_a_container_is_told_by_the_number_that_is_right_here(
    lifehold, said, path, running, eventually, kind
):
    command = "import pathlib, sys, time; pathlib.Path(sys.argv[1]).touch(); time.sleep(60)"
    begun = lifehold.folder / "begun"
    container = running(
        "unshare",
        "-pf",
        "--mount-proc",
        "--kill-child",
        sys.executable,
        "-m",
        "lifehold",
        "run",
        "--kind",
        kind,
        path,
        "--",
        sys.executable,
        "-c",
        command,
        begun,
        env=lifehold.environment,
    )
    eventually(begun.exists, "it is held")
    text, found = said()
    here, inside = found["holder"]["pids"]
    assert (found["holder"]["owner"]["pid"], found["holder"]["pid_here"]) == (inside, here)
    assert f"by     pid {here} (" in text
    assert f", pid {inside} in its container, " in text
    (answer,) = inventory.of_paths({str(path): "x"})
    assert answer.holder.pid_here == here
    row = lifehold("ls", str(path.parent)).stdout.splitlines()[1]
    assert row.split()[2:4] == [str(here), f"({inside})"]
    container.kill()
    eventually(lambda: said(None)[1]["holder"]["alive"] == "dead", "it is dead")
    assert said(3)[1]["holder"]["pid_here"] == 0


@needs("root", "unshare")
@pytest.mark.parametrize("kind", RECORDS)
def test_from_a_container_a_record_of_another_one_has_no_number(lifehold, path, kind):
    under = ("unshare", "-pf", "--mount-proc", "--kill-child", sys.executable, "-m", "lifehold")
    with Lock(path, kind=kind):
        done = subprocess.run(
            [*under, "who", "--json", path],
            env=lifehold.environment,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
    holder = json.loads(done.stdout)["locks"][0]["holder"]
    assert (holder["owner"]["pid"], holder["pid_here"]) == (os.getpid(), 0)


@needs("root")
def test_what_another_user_may_not_see_is_said(lifehold, for_all, running):
    """As an ordinary user: a dead setter's child belongs to root, whose open files are closed."""
    path = for_all / "x.lock"
    parent = running(sys.executable, "-c", LEAVES_A_CHILD, path, stdout=subprocess.PIPE)
    child = int(parent.stdout.readline())
    parent.wait()
    path.chmod(0o644)
    script = (
        "import os, sys; from lifehold.cli.main import main; main(['who', 'a']); print('---')\n"
        "os.setgroups([]); os.setuid(54321); sys.exit(main(sys.argv[1:]))"
    )
    try:
        process = lifehold.start("who", str(path), program=("-c", script))
        out, err = process.communicate(timeout=90)
    finally:
        os.kill(child, 9)
    text = out.partition("---\n")[2]
    assert (process.returncode, err) == (0, "")
    assert f"by     pid {parent.pid}\n" in text
    assert re.search(r"the open files of \d+ processes may not be read from here", text)


def test_names_of_others_cannot_play_with_the_terminal(lifehold, path, running, eventually):
    evil = path.parent / "\x1b[2Jx\n.lock"
    fd = locked(evil)
    waits = running("flock", evil, "true")
    eventually(lambda: str(waits.pid) in lifehold("who", str(evil)).stdout, "it waits")
    for words in ([str(evil)], [str(evil), "never"], ["--json", str(evil)]):
        out = lifehold("who", *words).stdout
        assert all(line.isprintable() for line in out.splitlines())
    os.close(fd)
    assert len(lifehold("who", str(evil), "never").stdout.splitlines()) == 3
