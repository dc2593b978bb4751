"""What a caller leaves behind for the command: blocked and ignored signals."""

from __future__ import annotations

import fcntl
import signal

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
