"""Every exit code of the command, and that nothing is held or left behind after it."""

from __future__ import annotations

import os
import signal
import stat
from pathlib import Path

import pytest

from lifehold import (
    AcquireCancelled,
    CorruptRecord,
    InvalidArgument,
    LeaseLost,
    SelfDeadlock,
    StoreUnavailable,
    SystemRefused,
    Timeout,
    UnsafeGround,
    WouldBlock,
)
from lifehold.cli import exits
from lifehold.cli import main as front


def free(lifehold, name="job"):
    return lifehold("run", "-n", name, "--", "true").returncode == 0


@pytest.mark.parametrize("close", [[], ["-o"]])
@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 0", 0), ("exit 3", 3), ("exit 255", 255), ("exit 75", 75), ("kill -TERM $$", 143),
     ("kill -KILL $$", 137), ("kill -SEGV $$", 139)],
)  # fmt: skip
def test_the_exit_code_of_the_command_is_passed_on(lifehold, script, code, close):
    done = lifehold("run", *close, "job", "--", "sh", "-c", script)
    assert (done.returncode, done.stderr) == (code, "")
    assert free(lifehold)


@pytest.mark.parametrize("close", [[], ["-o"]])
def test_a_command_that_is_not_there_ends_with_127_and_holds_nothing(lifehold, close):
    done = lifehold("run", *close, "job", "--", "no-such-command")
    assert (done.returncode, done.stderr) == (
        127,
        "lifehold: cannot run 'no-such-command': not found\n",
    )
    assert free(lifehold)


@pytest.mark.parametrize("close", [[], ["-o"]])
def test_a_command_that_is_not_executable_ends_with_126_and_holds_nothing(
    lifehold, close, tmp_path
):
    plain = tmp_path / "plain"
    plain.write_text("echo no\n")
    done = lifehold("run", *close, "job", "--", str(plain))
    assert (done.returncode, done.stderr) == (
        126,
        f"lifehold: cannot run '{plain}': Permission denied\n",
    )
    assert lifehold("run", *close, "job", "--", str(tmp_path)).returncode == 126
    assert free(lifehold)


@pytest.mark.parametrize("close", [[], ["-o"]])
def test_a_script_without_a_first_line_is_run_as_a_shell_would(lifehold, close, tmp_path):
    script = tmp_path / "script"
    script.write_text('echo "given $1"; exit 5\n')
    script.chmod(0o755)
    done = lifehold("run", *close, "job", "--", str(script), "a b")
    assert (done.returncode, done.stdout) == (5, "given a b\n")
    by_path = lifehold(
        "run", "job", "script", "x", env={"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    )
    assert by_path.stdout == "given x\n"


def test_a_script_whose_interpreter_is_missing_says_so(lifehold, tmp_path):
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    done = lifehold("run", "job", "--", str(script))
    assert done.returncode == 127
    assert "the program named in its first line (#!) was not found" in done.stderr


def test_a_held_lock_ends_with_75_or_with_the_code_of_dash_e(lifehold):
    lifehold.holder("job")
    assert lifehold("run", "-n", "job", "--", "true").returncode == 75
    assert lifehold("run", "-w", "0.05", "job", "--", "true").returncode == 75
    assert lifehold("run", "-w", "0", "job", "--", "true").returncode == 75
    assert lifehold("run", "-n", "-E", "3", "job", "--", "true").returncode == 3
    assert lifehold("run", "-nE0", "job", "--", "true").returncode == 0


WRONG = [
    ["run"], ["run", "job"], ["run", "job", "--"], ["run", "-q", "job", "--", "true"],
    ["run", "-w"], ["run", "a", "b", "--", "true"],
    ["run", "-w", "soon", "job", "--", "true"], ["run", "-w", "nan", "job", "--", "true"],
    ["run", "-w", "-1", "job", "--", "true"], ["run", "-w", "9999999d", "job", "--", "true"],
    ["run", "-E", "256", "job", "--", "true"], ["run", "-E", "x", "job", "--", "true"],
    ["run", "", "--", "true"], ["run", "..", "--", "true"], ["run", "a\nb", "--", "true"],
    ["run", "x" * 251, "--", "true"], ["run", "nosuch://h/0#x", "--", "true"],
    ["run", "dir/", "--", "true"],
    ["run", "/dev/null", "--", "true"], ["run", "./" + "x" * 300, "--", "true"],
    ["who"], ["who", "--nope", "job"], ["who", "/dev/null"], ["demo", "more"], ["nope"], [],
]  # fmt: skip


def test_wrong_usage_ends_with_64_and_one_clear_text(lifehold, tmp_path):
    for words, done in zip(WRONG, lifehold.together(*map(tuple, WRONG)), strict=True):
        assert done.returncode == 64, words
        assert "Traceback" not in done.stderr
        assert done.stderr.startswith("lifehold: ") or (
            words == [] and done.stdout.startswith("usage: ")
        )
    assert list(tmp_path.iterdir()) == []


def test_a_corrupt_record_ends_with_65_and_holds_nothing(lifehold, tmp_path):
    assert free(lifehold)
    file = tmp_path / "job.lock"
    head = file.read_bytes().partition(b'"token":')[0]
    file.write_bytes(head + b'"token":' + b"9" * 20 + b"}\n")
    done = lifehold("run", "job", "--", "true")
    assert done.returncode == 65
    assert "no greater one would fit 64 bits" in done.stderr
    file.write_bytes(b"")
    assert free(lifehold)


def test_what_cannot_be_looked_at_ends_with_66(lifehold):
    done = lifehold("who", "/no/such/folder/x.lock")
    assert (done.returncode, done.stdout) == (66, "")
    assert done.stderr == "lifehold: '/no/such/folder/x.lock': '/no/such/folder' is not a folder\n"


def test_a_refusal_of_the_system_ends_with_71(lifehold):
    done = lifehold("run", "job", "--", "true", env={"LIFEHOLD_DIR": "/proc/lifehold"})
    assert done.returncode == 71
    assert done.stderr.startswith("lifehold: '/proc/lifehold")


@pytest.mark.parametrize(
    ("error", "code"),
    [(Timeout(), 75), (WouldBlock(), 75), (AcquireCancelled(), 75), (SelfDeadlock(), 75),
     (InvalidArgument(), 64), (CorruptRecord(), 65), (StoreUnavailable(), 69),
     (SystemRefused(), 71), (PermissionError(), 71),
     (LeaseLost(), 74), (UnsafeGround(), 78), (KeyboardInterrupt(), 130), (BrokenPipeError(), 141),
     (ZeroDivisionError(), 70)],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value),
)  # fmt: skip
def test_an_error_has_one_exit_code(error, code):
    assert exits.code_of(error) == code


def test_an_error_that_nobody_expected_keeps_its_traceback(monkeypatch, capsys):
    monkeypatch.setattr(front, "_command", lambda words: 1 / 0)
    assert front.main(["who", "x"]) == 70
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_ctrl_c_while_waiting_ends_with_130_and_nothing_started(lifehold, eventually):
    lifehold.holder("job")
    waiter = lifehold.start("run", "job", "--", "touch", "started")

    def queued() -> bool:
        lines = Path("/proc/locks").read_text().splitlines()
        return any("-> FLOCK" in line and str(waiter.pid) in line.split() for line in lines)

    eventually(queued, "it stands in the queue")
    waiter.send_signal(signal.SIGINT)
    assert waiter.wait(60) == -signal.SIGINT  # 130 to a shell, which ends its loop or script too
    assert waiter.stderr.read() == ""
    assert not (lifehold.folder / "started").exists()


def test_version_and_help_answer_on_stdout(lifehold):
    assert lifehold("--version").stdout.startswith("lifehold ")
    for words in (["--help"], ["run", "--help"], ["who", "-h"], ["demo", "--help"]):
        done = lifehold(*words)
        assert (done.returncode, done.stderr) == (0, "")
        examples = [
            line
            for line in done.stdout.splitlines()
            if "  lifehold " in line or "1 lifehold" in line
        ]
        assert len(examples) >= 3
        options = done.stdout.find("options:")
        assert options == -1 or done.stdout.index(examples[0]) < options
    help_of_run = lifehold("run", "-n", "--help").stdout
    for code in (127, 126, 75, 64, 65, 71, 74, 78):
        assert str(code) in help_of_run


def test_options_after_the_name_belong_to_the_command(lifehold):
    for words in (["job", "--", "echo", "-n", "--", "-w"], ["--", "job", "--", "echo", "-n"]):
        assert lifehold("run", *words).stdout == "-- -w"[: 6 * (words[-1] == "-w")]
    assert lifehold("run", "job", "echo", "-n", "x", "-w").stdout == "x -w"


def test_a_lock_file_is_left_as_the_umask_has_it(lifehold):
    path = lifehold.folder / "app" / "job.lock"  # in root's folder of names it is root's alone
    assert lifehold("run", str(path), "--", "true").returncode == 0
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask


@pytest.mark.parametrize("command", ["flock", "dotlockfile", "run", "who"])
def test_a_url_that_is_quoted_has_lost_its_password(lifehold, command):
    long = "x" * 5000 if command == "dotlockfile" else "x"
    for name in (
        f"postgresql://ana:hunter2@nowhere.invalid/db#{long}",
        f"x://ana:hunter2@h/{long}",
    ):
        run = lifehold(command, name, "true") if command != "who" else lifehold(command, name)
        assert run.returncode
        assert run.stderr
        assert "hunter2" not in run.stderr + run.stdout


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_an_answer_that_stdout_cannot_spell_is_told_in_escapes(lifehold, encoding):
    lifehold.environment["PYTHONIOENCODING"] = encoding
    for words in (["who", "ünï漢"], ["ls"], ["ls", "--names"]):
        lifehold("run", "ünï漢", "--", "true")
        done = lifehold(*words)
        assert "Traceback" not in done.stderr
        assert done.returncode in (0, 1)
        assert "\\u6f22" in done.stdout
