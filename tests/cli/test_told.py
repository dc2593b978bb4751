"""Every state in which one waits or fails is told, by library and command alike, in one text.

A waiter of the library (its WARNING goes to stderr, since nobody has configured logging) and one of
the command (first notice after 0.1 s instead of 2) stand before the same holder.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from ground import needs

HOLD = "import sys, time; from lifehold import Lock; lease = Lock({path!r}{more}).acquire(); "
READY = "print('held', flush=True); time.sleep(600)"
LIBRARY = """
import sys
from lifehold import Lock, Timeout
from lifehold.core import acquire
acquire.FIRST_NOTICE = 0.1
try:
    Lock(sys.argv[1]).acquire(0.25)
except Timeout as error:
    print(error)
"""
NOTICE = r"waiting for '{name}' for [\d.]+ s: {said}"
BEGAN = r"unknown \(its process began \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC, \d+ s ago\)"
UTC = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC \(\d+ s\)"


class Scene:
    """One lock file, and whoever is to hold it."""

    def __init__(self, lifehold, folder: Path) -> None:
        self.lifehold, self.folder = lifehold, folder
        self.path = str(folder / "told.lock")

    def start(self, *words: str, first: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        """A process that says a line when it holds the lock."""
        process = subprocess.Popen(
            [*first, *words], env=self.lifehold.environment, cwd=self.folder, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        self.lifehold.started.append(process)
        line = process.stdout.readline()
        process.word = line.strip()
        return process

    def ours(self, more: str = "", first: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        program = HOLD.format(path=self.path, more=more) + READY
        return self.start(sys.executable, "-c", program, first=first)

    def told(self, first: tuple[str, ...] = ()) -> tuple[str, str, str, str]:
        """Notice and refusal of the library, notice and refusal of the command."""
        out = []
        quick = ("-m", "lifehold.cli.demo", "run", "0.1", "run", "-w", "0.25")
        for words in (("-c", LIBRARY, self.path), (*quick, self.path, "--", "true")):
            for _ in range(5):
                done = subprocess.run(
                    [*first, sys.executable, *words], env=self.lifehold.environment,
                    cwd=self.folder, capture_output=True, text=True, timeout=120, check=False,
                )  # fmt: skip
                if "waiting for " in done.stderr:
                    break  # else the machine has paused until its patience was over
            notice, _, rest = done.stderr.partition("\n")
            out += [notice.removeprefix("lifehold: "), (rest + done.stdout).rstrip("\n")]
        return out[0], out[1], out[2], out[3]

    def expect(self, by: str, since: str, alive: str, *, said: str = "", queue: str = "",
               first: tuple[str, ...] = ()) -> None:  # fmt: skip
        """Regular expressions of the lines; `said`: of the notice, where it is not made of them."""
        noticed, refused, command_noticed, command_refused = self.told(first)
        name = re.escape(self.path)
        said = said or f"held by {by}, since {since}, alive: {alive}"
        more = rf"; {queue} before us" if queue else ""
        for notice in (noticed, command_noticed):
            assert re.fullmatch(NOTICE.format(name=name, said=said) + more, notice), notice
        wait, look = rf"wait:  lifehold run --wait 1h {name} -- CMD", rf"look:  lifehold who {name}"
        steps = (  # more patience of a program is an argument
            ["  next   in Python:  give wait=60, in seconds", " " * 9 + wait, " " * 9 + look],
            [f"  next   {wait}", " " * 9 + look],
        )
        lines = [
            rf"could not acquire '{name}' within [\d.]+ s: it is held",
            f"  by     {by}", f"  since  {since}", f"  alive  {alive}",
            *([f"  queue  {queue} for it too"] if queue else []),
        ]  # fmt: skip
        lock = rf"  lock   {name} \(kernel lock, \w+\)"
        for refusal, step in zip((refused, command_refused), steps, strict=True):
            assert re.fullmatch("\n".join([*lines, *step, lock]), refusal), refusal


@pytest.fixture
def scene(lifehold, tmp_path):
    folder = tmp_path / "app"  # not the folder of names, where root's files are root's alone
    folder.mkdir()
    return Scene(lifehold, folder)


PYTHON = r".*python.* -c .*, user \w+, host .+"


def test_a_lock_of_ours_is_told_with_all_that_its_record_knows(scene):
    holder = scene.ours(", label='nightly'")
    by = rf"pid {holder.pid} \({PYTHON}, label nightly"
    scene.expect(by, UTC, r"yes, checked now \(kernel witness\)")


@needs("flock")
def test_a_lock_of_flock_is_told_with_its_process(scene):
    holder = scene.start("flock", scene.path, "sh", "-c", "echo; sleep 600")
    by = rf"pid {holder.pid} \(flock .*told\.lock sh -c .*\), user \w+, host .+"
    scene.expect(by, BEGAN, r"yes, checked now \(kernel witness; it left no record\)")


@needs("package:filelock")
def test_a_lock_of_filelock_is_told_with_its_process(scene):
    import filelock

    where = str(Path(filelock.__file__).parents[1])
    program = (
        f"import sys, time; sys.path.append({where!r}); import filelock; "
        f"lock = filelock.FileLock({scene.path!r}); lock.acquire(); "
    )
    holder = scene.start(sys.executable, "-c", program + READY)
    alive = r"yes, checked now \(kernel witness; it left no record\)"
    scene.expect(rf"pid {holder.pid} \({PYTHON}", BEGAN, alive)


@needs("flock")
def test_a_child_that_inherited_a_lock_is_told_and_not_its_dead_parent(scene):
    script = f"exec 9>{scene.path}; flock 9; sleep 600 >&- & echo $!"
    shell = scene.start("sh", "-c", script)
    child = shell.word
    shell.wait()
    by = rf"pid {child} \(sleep 600\), user \w+, host .+"
    scene.expect(by, BEGAN, r"yes, checked now \(kernel witness; .*inherited.*\)")


def test_a_command_whose_wrapper_was_killed_is_told(scene):
    words = ("-m", "lifehold", "run", scene.path, "--", "sh", "-c", "echo $$; exec sleep 600 >&-")
    wrapper = scene.start(sys.executable, *words)
    os.kill(wrapper.pid, signal.SIGKILL)
    wrapper.wait()
    alive = r"yes, checked now \(kernel witness; .*inherited.*\)"
    scene.expect(rf"pid {wrapper.word} \(sleep 600\).*", ".+", alive)


@needs("root", "command:setpriv", "python of others")
@pytest.mark.parametrize("looker", [(), ("--reuid", "1", "--regid", "1")], ids=["root", "other"])
def test_a_lock_of_another_user_is_told_to_root_and_to_others(lifehold, for_all, looker):
    for_all.chmod(0o777)
    scene = Scene(lifehold, for_all)
    first = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups")
    holder = scene.ours(", shared=True", first=first)
    by = rf"pid {holder.pid} \(.*python.* -c .*\), user (nobody|65534), host .+"
    first = ("setpriv", *looker, "--clear-groups") if looker else ()
    scene.expect(by, UTC, r"yes, checked now \(kernel witness\)", first=first)


@needs("unshare")
def test_a_lock_of_another_container_is_told_from_both_sides(scene):
    unshare = ("unshare", "--kill-child", "-pf", "--mount-proc")
    inside = scene.ours(first=unshare)
    note = r"yes, checked now \(kernel witness.*\)"
    by = r"pid (?!1 )\d+ \(.*python.* -c .*\), pid 1 in its container, user \w+, host .+"
    scene.expect(by, UTC, note)
    os.killpg(inside.pid, signal.SIGKILL)
    inside.wait()
    outside = scene.ours()
    note = r"yes, checked now \(kernel witness; its process is not visible from here\)"
    by = rf"pid {outside.pid} of another PID namespace \({PYTHON}"
    scene.expect(by, UTC, note, first=unshare)


@needs("unshare")
def test_a_soft_lock_of_another_container_is_told_by_both_its_numbers(scene):
    unshare = ("unshare", "--kill-child", "-pf", "--mount-proc")
    words = (
        "run",
        "--kind",
        "soft",
        "--ttl",
        "30",
        scene.path,
        "--",
        "sh",
        "-c",
        "echo; sleep 600",
    )
    scene.start(*unshare, sys.executable, "-m", "lifehold", *words)
    program = "import sys; from lifehold.cli.main import main; sys.exit(main(sys.argv[1:]))"
    ask = ("run", "--kind", "soft", "--ttl", "30", "-n", scene.path, "--", "true")
    for first, by in (
        ((), r"pid (?!1 )\d+ \(.*lifehold.*\), pid 1 in its container, user"),
        (unshare, r"pid 1 of another PID namespace \(.*lifehold.*\), user"),
    ):
        done = subprocess.run(
            [*first, sys.executable, "-c", program, *ask], env=scene.lifehold.environment,
            capture_output=True, text=True, timeout=90, check=False,
        )  # fmt: skip
        assert done.returncode == 75
        assert re.search(rf"\n  by     {by}", done.stderr), done.stderr


@needs("unshare", "flock")
def test_a_holder_that_left_no_trace_is_told_to_have_left_none(scene):
    scene.start("flock", scene.path, "sh", "-c", "echo; sleep 600")
    note = r"yes, checked now \(kernel witness; its process is not visible from here\)"
    scene.expect(
        "unknown: the holder left no trace", "unknown", note,
        said=f"held, the holder left no trace, alive: {note}",
        first=("unshare", "--kill-child", "-pf", "--mount-proc"),
    )  # fmt: skip


@needs("flock")
def test_those_who_wait_before_us_are_counted(scene, eventually):
    holder = scene.ours()
    for count in (1, 2):
        waiter = subprocess.Popen(["flock", scene.path, "true"], start_new_session=True)
        scene.lifehold.started.append(waiter)
        eventually(lambda: _waiting() >= count, "a waiter in the queue")  # noqa: B023
        queue = "1 other waits" if count == 1 else "2 others wait"
        scene.expect(rf"pid {holder.pid} .*", UTC, r"yes.*\)", queue=queue)


def _waiting() -> int:
    pids = {
        line.split()[5] for line in Path("/proc/locks").read_text().splitlines() if "->" in line
    }
    commands = [Path(f"/proc/{pid}/cmdline") for pid in pids]
    return sum(b"told.lock" in path.read_bytes() for path in commands if path.exists())


def test_no_escape_of_a_label_or_a_command_reaches_the_terminal(scene):
    evil = "x\x1b[31m\n\u202e\x9b"
    words = (
        "run",
        "--label",
        evil,
        scene.path,
        "--",
        "sh",
        "-c",
        "echo; sleep 600; : '\x1b]0;x\x07'",
    )
    scene.start(sys.executable, "-m", "lifehold", *words)
    for text in scene.told():
        assert "x\\x1b[31m\\n\\u202e\\u009b" in text
        assert all(line.isprintable() for line in text.split("\n"))


def in_python(scene: Scene, program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), scene.path],
        env=scene.lifehold.environment, capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.rstrip("\n")


HEAD = r"could not acquire '.*told\.lock'"
TAIL = rf"""
  by     pid \d+ .*
  since  {UTC}
  alive  yes, checked now \(kernel witness\)
"""


def test_a_self_deadlock_is_told_with_its_remedy(scene):
    text = in_python(scene, """
        import sys
        from lifehold import Lock, SelfDeadlock
        with Lock(sys.argv[1]):
            try:
                Lock(sys.argv[1]).acquire()
            except SelfDeadlock as error:
                print(error)
                assert error.holder and error.evidence == "kernel witness"
        """)  # fmt: skip
    why = ": this thread holds it already and would wait for itself for ever"
    remedy = "  next   pass the lease along, or use one object with reentrant=True"
    assert re.fullmatch(rf"{HEAD}{why}{TAIL}{remedy}\n  lock   .*", text), text


def test_a_cancelled_wait_is_told_with_the_holder(scene):
    scene.ours()
    text = in_python(scene, """
        import sys, threading
        from lifehold import AcquireCancelled, Cancel, Lock
        cancel = Cancel()
        threading.Timer(0.1, cancel.cancel).start()
        try:
            Lock(sys.argv[1], cancel=cancel).acquire()
        except AcquireCancelled as error:
            print(error)
        """)  # fmt: skip
    assert re.match(rf"{HEAD} within .* s: the wait was cancelled; it is held{TAIL}", text), text


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("os.unlink(path)", "its lock file was removed or renamed"),
        ("time.sleep(0.3)", r"max_hold of 0\.1 s has passed"),
    ],
)
def test_a_loss_is_told_with_its_cause(scene, how, why):
    text = in_python(scene, f"""
        import os, sys, time
        from lifehold import LeaseLost, Lock
        path = sys.argv[1]
        lease = Lock(path, max_hold=0.1 if "sleep" in {how!r} else None).acquire()
        {how}
        try:
            lease.check()
        except LeaseLost as error:
            print(error)
        """)  # fmt: skip
    said = rf"'.*told\.lock' is lost: {why}: others may be in"
    assert re.fullmatch(said, text), text


def test_a_nested_run_is_told_at_once_with_its_remedy(scene):
    run = (sys.executable, "-m", "lifehold", "run", "job", "--")
    done = scene.lifehold("run", "job", "--", *run, "true")
    assert done.returncode == 75
    why = ": the `lifehold run` around this command holds it, until .* wait for ever"
    remedy = "  next   run the inner command without `lifehold run`, or under another name"
    assert re.fullmatch(rf"could not acquire 'job'{why}{TAIL}{remedy}\n  lock   .*\n", done.stderr)


def test_every_remedy_runs_as_printed(scene):
    scene.path = str(scene.folder / "a 'b' $c.lock")
    holder = scene.ours()
    shim = scene.folder / "lifehold"
    shim.write_text(f'#!/bin/sh\nexec {sys.executable} -m lifehold "$@"\n')
    shim.chmod(0o755)
    environment = scene.lifehold.environment | {"PATH": f"{scene.folder}:{os.environ['PATH']}"}

    def by_shell(line: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["sh", "-c", line], env=environment, capture_output=True, text=True,
                              timeout=90, check=False)  # fmt: skip

    texts = scene.told()
    os.killpg(holder.pid, signal.SIGKILL)
    for text in (texts[1], texts[3]):
        wait, look = re.findall(r"(?:wait|look):  (lifehold .*)", text)
        assert by_shell(wait.replace(" CMD", " echo in")).stdout == "in\n"
        assert by_shell(look).returncode == 1


KINDS = {
    **{kind: f"Lock('x.lock', kind={kind!r}{{wait}})" for kind in ("soft", "link", "folder")},
    "reader": "Lock('x.lock', exclusive='wait' not in '{wait}'{wait})",
    "soft lease": "Lock('x.lock', kind='soft', ttl=30{wait})",
    "generation": "Lock('x.lock', kind='generation', ttl=30{wait})",
    "directory": "Lock('x.lock', kind='directory', ttl=30{wait})",
    "soft writer": "ReadWriteLock('x.lock', kind='soft', ttl=30{wait}).writing()",
    "semaphore": "Semaphore('x.lock', 1{wait})",
    "store": "connect('sqlite:///x.db').lock('a'{wait})",
    "store writer": "connect('sqlite:///x.db').read_write('a'{wait}).writing()",
    "store permits": "connect('sqlite:///x.db').semaphore('a', 1{wait})",
}
REFUSED = """
from threading import Thread
from lifehold import Lock, ReadWriteLock, Semaphore, Timeout, connect
def refused():
    try:
        with {want}: pass
    except Timeout as error:
        print(error, flush=True)
with {hold}:
    thread = Thread(target=refused); thread.start(); thread.join()
    print("---", flush=True); input()
"""


@pytest.mark.parametrize("kind", KINDS)
def test_the_remedy_for_each_kind_takes_or_awaits_the_same_lock(scene, kind):
    text = KINDS[kind]
    program = REFUSED.format(hold=text.format(wait=""), want=text.format(wait=", wait=0.1"))
    holder = subprocess.Popen(
        [sys.executable, "-c", program], env=scene.lifehold.environment, cwd=scene.lifehold.folder,
        text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    scene.lifehold.started.append(holder)
    told = "".join(iter(holder.stdout.readline, "---\n"))
    wait, look = re.findall(r"(?:wait|look):  lifehold (.*)", told)
    words = shlex.split(re.sub(r"(--wait|-w) 1h", r"\1 0.1", wait).replace(" CMD", " echo in"))
    held = scene.lifehold(*words)
    assert held.returncode == 75, (wait, held.stderr)
    assert scene.lifehold(*shlex.split(look)).returncode == 0
    holder.communicate("\n", timeout=60)
    free = scene.lifehold(*words)
    assert (free.returncode, free.stdout) == (0, "in\n" if words[0] == "run" else "")


def test_doctor_says_under_its_verdict_why_a_folder_is_unsafe(lifehold):
    lifehold.folder.chmod(0o777)
    done = lifehold("doctor", str(lifehold.folder))
    verdict, why, *_ = done.stdout.splitlines()
    assert done.returncode == 78
    assert " is unsafe for locks " in verdict
    assert why.startswith("  why    rights: 0777: every user can remove your lock files")
