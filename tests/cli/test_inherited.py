"""What a caller leaves behind for the command: blocked and ignored signals, closed streams."""

from __future__ import annotations

import fcntl
import re
import signal
import subprocess
import sys

import pytest

from ground import needs

pytestmark = needs("linux")
EXEC = "; os.execv(sys.executable, [sys.executable, '-m', 'lifehold', *sys.argv[1:]])"
BLOCKED = "import os, signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})"


@pytest.fixture
def held(lifehold):
    with (lifehold.folder / "job.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file


@pytest.mark.parametrize(
    ("words", "code"),
    [(("wait", "-w", "1", "job"), 75), (("flock", "-w", "1", "job.lock", "true"), 1)],
)
def test_a_wait_ends_in_time_for_a_caller_that_blocks_alarms(lifehold, held, words, code):
    assert lifehold(*words, program=("-c", BLOCKED + EXEC)).returncode == code


def test_an_alarm_that_came_while_it_was_blocked_does_not_end_the_wait(lifehold, held, eventually):
    script = f"{BLOCKED}; os.kill(os.getpid(), signal.SIGALRM)" + EXEC
    words = ("flock", "-w", "60", "job.lock", "grep", "SigBlk", "/proc/self/status")
    waiter = lifehold.start(*words, program=("-c", script))
    eventually(lambda: waiter.poll() is not None or lifehold.queued(), "it waits")
    fcntl.flock(held, fcntl.LOCK_UN)
    blocked, _ = waiter.communicate(timeout=90)
    assert waiter.returncode == 0
    assert int(blocked.split()[1], 16) >> (signal.SIGALRM - 1) & 1, "CMD finds them as they were"


IGNORED = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN)"


@pytest.mark.parametrize(
    ("words", "code", "out"),
    [
        (("flock", "file", "sh", "-c", "exit 7"), 7, ""),
        (("once", "--unless", "false", "job", "--", "echo", "ran"), 0, "ran\n"),
        (("once", "--unless", "true", "job", "--", "echo", "ran"), 0, ""),
    ],
)
def test_a_caller_that_ignores_the_end_of_its_children_gets_the_status_of_cmd(
    lifehold, words, code, out
):
    done = lifehold(*words, program=("-c", IGNORED + EXEC))
    assert (done.returncode, done.stdout, done.stderr) == (code, out, "")


@pytest.mark.parametrize("streams", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize(
    "words",
    [
        "flock file touch ran",
        "flock --verbose file touch ran",
        "flock --verbose -n job.lock touch ran",
        "flock file no-such-command",
        "flock --bogus",
        "dotlockfile -p -P other.lock touch ran",
        "dotlockfile -P other.lock no-such-command",
        "dotlockfile --bogus",
        "dotlockfile -l no/folder",
    ],
)
def test_a_closed_stream_changes_no_status_and_no_message_goes_elsewhere(
    lifehold, held, words, streams
):
    def said(redirected):
        line = f'"$0" -m lifehold {words} {redirected}; echo "status $?" >&3'
        done = subprocess.run(
            ["sh", "-c", f"exec 3>&1; {line}", sys.executable], env=lifehold.environment,
            cwd=lifehold.folder, capture_output=True, text=True, timeout=90, check=False,
        )  # fmt: skip
        ran = lifehold.folder / "ran"
        began = ran.exists()
        ran.unlink(missing_ok=True)
        *out, status = re.sub(r"\d+\.\d+", "N", done.stdout).splitlines()
        # How long ago the holder's process began is one second more at the next look.
        told = re.sub(r", [^,()]* ago\)", ", N ago)", done.stderr)
        return out, told, status, began

    out, err, status, began = said("")
    left = [] if ">&-" in streams.replace("2>&-", "") else out
    heard = "" if "2>&-" in streams else err
    assert said(streams) == (left, heard, status, began)


def test_a_watching_audit_goes_on_where_its_stdout_is_closed(lifehold):
    script = "import os, sys; os.close(1)" + EXEC
    watching = lifehold.start("audit", "--watch", str(lifehold.folder), program=("-c", script))
    assert "looking again" in watching.stderr.readline()


@needs("root", "unshare")
@pytest.mark.parametrize("streams", [">&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("words", ["run job --", "flock file"])
def test_a_closed_stream_where_there_is_no_dev_null_is_no_hindrance(lifehold, words, streams):
    line = f'mount -t tmpfs none /dev && "$0" -m lifehold {words} touch ran {streams}'
    done = subprocess.run(
        ["unshare", "-m", "--propagation", "private", "sh", "-c", line, sys.executable],
        env=lifehold.environment, cwd=lifehold.folder, capture_output=True, text=True, timeout=90,
        check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert (lifehold.folder / "ran").exists()


def test_an_alert_that_its_command_refused_is_not_told_where_children_are_ignored(lifehold):
    (lifehold.folder / "seen").mkdir()
    (lifehold.folder / "seen" / "SingletonLock").symlink_to("elsewhere-77")
    config = lifehold.folder / "watch.toml"
    config.write_text(
        f'folders = ["{lifehold.folder}/seen"]\nsuspect = "alert"\ncommand = ["false"]\n'
    )
    done = lifehold("watch", "--once", str(config), program=("-c", IGNORED + EXEC))
    assert "the command took no alert" in done.stderr
