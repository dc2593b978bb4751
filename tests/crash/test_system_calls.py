"""strace kills, or fails, every single system call of an acquire and release, and of a try in vain.

Afterwards a fresh process acquires at once and its token grows; an error is one of lifehold's own
and leaves nothing held, even while the exception and its frames are kept.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from crash.scene import hold, next_token
from ground import needs
from lifehold import LifeholdError
from lifehold.core import errors
from lifehold.testing.crash import Child

pytestmark = needs("strace", "linux")

# A cold pair reads /proc for the owner record; of that, one errno per call is enough.
# Without memory the interpreter itself ends; what a thread does at its start and end is not ours.
NOT_OURS = ("brk", "mmap", "munmap", "mprotect", "mremap", "madvise", "futex", "exit", "exit_group",
            "rt_sigreturn", "rseq", "set_robust_list", "clock_nanosleep", "restart_syscall",
            "getpid", "gettid", "tgkill")  # fmt: skip
ERRNOS = ("EIO", "ENOSPC", "EINTR", "ESTALE", "ENOLCK", "EBADF", "EACCES")
OF_THE_LOCK = ("openat", "flock", "pread64", "pwrite64", "newfstatat", "fstat", "mkdir")
VICTIM = """
import fcntl, json, os, sys
from lifehold import LifeholdError, Lock
path, warm, wait = sys.argv[1], sys.argv[2] == "warm", json.loads(sys.argv[3])
lock = Lock(path, wait=wait)
if warm:
    try:
        lock.acquire().release()
    except LifeholdError:
        pass  # held: what a refusal imports is imported now
token = error = lease = None
os.access("/begin", 0)
try:
    lease = lock.acquire()
    token = lease.token
    lease.release()
except BaseException as kept:
    error = kept
os.access("/end", 0)
def free():
    if wait is not None:
        return None  # held by another in these runs
    fd = os.open(path, os.O_RDONLY | os.O_CREAT)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True
print(json.dumps([token, error and type(error).__name__, str(error), free()]))
"""


def run(folder, path, state, wait, *inject):
    trace = folder / "trace"
    only = [f"--trace={each.partition(':')[0]}" for each in inject]
    if "error=" in "".join(inject):
        only.append("--seccomp-bpf")  # the others run at full speed; strace 6.1 would lose signals
    said = subprocess.run(
        ["strace", "-f", "-qq", "-o", trace, *only,
         *(f"--inject={each}" for each in inject),
         sys.executable, "-S", "-c", VICTIM, path, state, json.dumps(wait)],
        env={"PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "PATH": os.environ["PATH"]},
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    return said, trace.read_text().splitlines()


def calls(folder, path, state, wait=None):
    """(name, how often it was called so far in its thread) of each call between the two marks.

    Of a second run: the first may write what it has compiled, and so make calls that no other makes.
    """
    run(folder, path, state, wait)
    if state == "cold":
        os.unlink(path)
    _, lines = run(folder, path, state, wait)
    seen, found, inside = {}, [], False
    for line in lines:
        thread, _, text = line.partition(" ")
        name = text.strip().partition("(")[0]
        if not name.isidentifier() or "resumed" in text[:12]:
            continue
        seen[thread, name] = number = seen.get((thread, name), 0) + 1
        if name == "access" and '"/begin"' in text:
            inside = True
        elif name == "access" and '"/end"' in text:
            return found
        elif inside and name not in NOT_OURS:
            found.append((name, number, text))
    raise AssertionError("the victim never came to its end")


def prepared(folder, state):
    path = str(folder / "lock")
    before = next_token(path) if state == "warm" else 0
    return path, before


def judged(said, path, before, what, own):
    assert said.stdout, f"{what}: {said.stderr}"
    token, error, text, is_free = json.loads(said.stdout)
    assert is_free, f"{what}: left held after {error}: {text}"
    if error is not None:
        kind = getattr(errors, error, None)
        assert isinstance(kind, type), f"{what}: {error}: {text}"
        assert issubclass(kind, LifeholdError), f"{what}: {error}: {text}"
        assert not own or path in text or os.path.dirname(path) in text, f"{what}: {text}"
    assert next_token(path, 0) > max(before, token or 0), what


@pytest.mark.parametrize("state", ["warm", "cold"])
def test_a_kill_at_any_system_call_leaves_the_lock_free_and_tokens_growing(tmp_path, state):
    path, _ = prepared(tmp_path, state)
    lines = calls(tmp_path, path, state)
    found = [(n, k) for n, k, text in lines if n in OF_THE_LOCK and "/proc" not in text]
    assert {"flock", "pwrite64"} <= {name for name, _ in found}
    os.unlink(path)
    for name, number in found:
        path, before = prepared(tmp_path, state)
        said, _ = run(tmp_path, path, state, None, f"{name}:signal=KILL:when={number}")
        assert said.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL), (name, number, said)
        assert next_token(path, 0) > before, (name, number)
        os.unlink(path)


@pytest.mark.parametrize("state", ["warm", "cold"])
def test_an_error_of_any_system_call_is_one_lifehold_error_with_nothing_held(tmp_path, state):
    path, _ = prepared(tmp_path, state)
    found = calls(tmp_path, path, state)
    os.unlink(path)
    for name, number, text in found:
        mine = name in OF_THE_LOCK and "/proc" not in text
        if not mine and state == "cold" and name not in ("openat", "newfstatat", "getrandom"):
            continue  # what is done with those files once they are open is read in the same breath
        for errno in (
            ERRNOS if state == "warm" else ("EIO", "EINTR", "ENOSPC") if mine else ("EIO",)
        ):
            path, before = prepared(tmp_path, state)
            said, _ = run(tmp_path, path, state, None, f"{name}:error={errno}:when={number}")
            judged(
                said, path, before, f"{errno} at {text}", name in ("flock", "pread64", "pwrite64")
            )
            os.unlink(path)


@pytest.mark.parametrize("wait", [0, 0.02])
def test_an_error_during_a_try_in_vain_is_one_lifehold_error(tmp_path, wait):
    path = str(tmp_path / "lock")
    with Child(hold, path) as holder:
        before = holder.at("held")
        raw = []
        for name, number, text in calls(tmp_path, path, "warm", wait):
            if name not in (*OF_THE_LOCK, "clone3", "clone", "rt_sigaction"):
                continue  # reads of /proc and their ends
            said, _ = run(tmp_path, path, "warm", wait, f"{name}:error=EIO:when={number}")
            assert said.stdout, f"EIO at {text}: {said.stderr}"
            _, error, told, _ = json.loads(said.stdout)
            kind = getattr(errors, error, None)
            if not isinstance(kind, type) or not issubclass(kind, LifeholdError):
                raw.append(f"EIO at {text}: {error}: {told}")
        assert not raw, "\n".join(raw)
        holder.at("released")
    assert next_token(path, 0) > before
