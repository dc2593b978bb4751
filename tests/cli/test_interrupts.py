"""Ctrl-C ends every command as it ends any program: by the signal, at once, without a traceback."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ground import needs
from lifehold import Lock
from lifehold.cli import options

from .shell import PROMPT, Shell

pytestmark = needs("command:bash", "proc")
STRUCK = """
import os, runpy, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
sys.argv = ["lifehold", *{words!r}]
runpy.run_module("lifehold", run_name="__main__", alter_sys=True)
"""


@pytest.fixture
def shell(lifehold):
    one = Shell(lifehold.folder, lifehold.environment)
    yield one
    one.end()


@pytest.mark.parametrize(
    ("line", "begun"),
    [
        ("wait -w 60 held", None),
        ("wait held", None),
        ("simulate --hours 1000 -n 40", None),
        ("ls --watch", "NAME"),
        ("demo", "four scenes"),
        ("who --json held >/dev/null; lifehold wait held", None),
        pytest.param(
            "who x >x; TERM=xterm lifehold top -d 60", "LOCK", marks=needs("package:rich")
        ),
    ],
)
def test_ctrl_c_ends_the_loop_around_any_command(shell, lifehold, line, begun):
    with Lock(lifehold.folder / "held.lock"):
        shell.type(f"for i in 1 2 3; do echo turn $i; lifehold {line}; done\n")
        shell.wait(begun or "turn 1\n")
        if begun is None:
            lifehold_is_at_work(shell, lifehold)
        shell.type("\x03")
        rest = shell.wait("(?s)(.*)" + re.escape(PROMPT))[1]
    assert "turn 2" not in rest
    assert "Traceback" not in rest


def lifehold_is_at_work(shell, lifehold):
    """Past its start: it has done with /proc what a look at the lock needs, or counts on."""
    time.sleep(1.5)


@needs("fork")
@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("lifehold.cli", ["who", "x"]),
        ("lifehold.cli.main", ["who", "x"]),
        ("lifehold.cli.exits", ["run", "x", "--", "true"]),
        ("lifehold.cli.render", ["ls"]),
        ("lifehold.cli.options", ["who", "x"]),
        ("lifehold.ops.who", ["who", "x"]),
        ("lifehold.cli.run", ["run", "x", "--", "true"]),
    ],
)
def test_ctrl_c_while_the_command_is_loaded_ends_it_without_a_word(lifehold, module, words):
    script = STRUCK.format(module=module, words=words)
    done = subprocess.run(
        [sys.executable, "-c", script], env=lifehold.environment, cwd=lifehold.folder,
        capture_output=True, text=True, timeout=150, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


# As the interpreter meets it: a finder that strikes when a module is looked for.
STRIKES = """
import os, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["STRUCK"]:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
"""
INSTALLED = ("-c", "import sys; from lifehold_command import main; sys.exit(main())")


@needs("fork")
@pytest.mark.parametrize("program", [("-m", "lifehold"), INSTALLED], ids=["-m", "installed"])
@pytest.mark.parametrize("module", ["core", "runtime.fork", "cli", "cli.run"])
def test_ctrl_c_while_the_package_itself_is_loaded_is_silent_too(
    lifehold, tmp_path, program, module
):
    (tmp_path / "sitecustomize.py").write_text(STRIKES)
    path = f"{tmp_path}:{lifehold.environment['PYTHONPATH']}"
    done = subprocess.run(
        [sys.executable, *program, "run", "x", "--", "true"],
        env=lifehold.environment | {"PYTHONPATH": path, "STRUCK": f"lifehold.{module}"},
        cwd=lifehold.folder, capture_output=True, text=True, timeout=150, check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


# The first thing that ours asks.
STRIKES_FIRST = """
import _signal, os
real = _signal.getsignal
def getsignal(number):
    _signal.getsignal = real
    os.kill(os.getpid(), number)
    return real(number)
_signal.getsignal = getsignal
"""


@needs("fork")
@pytest.mark.parametrize("program", [("-m", "lifehold"), INSTALLED], ids=["-m", "installed"])
def test_ctrl_c_in_the_very_lines_that_see_to_it_is_silent_too(lifehold, tmp_path, program):
    (tmp_path / "sitecustomize.py").write_text(STRIKES_FIRST)
    path = f"{tmp_path}:{lifehold.environment['PYTHONPATH']}"
    done = subprocess.run(
        [sys.executable, *program, "who", "x"],
        env=lifehold.environment | {"PYTHONPATH": path},
        cwd=lifehold.folder, capture_output=True, text=True, timeout=150, check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


PACKAGE = Path(options.__file__).parents[1]
OURS = (f'File "{PACKAGE}/', f'File "{PACKAGE.with_name("lifehold_command.py")}"')


@needs("fork")
@pytest.mark.parametrize("words", ["run x -- sleep 5", "who x"])
@pytest.mark.parametrize("milliseconds", [5, 15, 30, 50, 70])
def test_ctrl_c_in_the_first_moments_shows_no_line_of_ours(lifehold, words, milliseconds):
    """Python itself, until its first line of ours, tells of Ctrl-C in its own words."""
    command = [sys.executable, *INSTALLED, *words.split()]
    for _ in range(5):
        started = subprocess.Popen(
            command, env=lifehold.environment, cwd=lifehold.folder,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        time.sleep(milliseconds / 1000)
        started.send_signal(signal.SIGINT)
        _, told = started.communicate(timeout=150)
        assert not [each for each in OURS if each in told], told


def test_ctrl_c_in_the_middle_of_argparse_stays_ctrl_c(monkeypatch):
    def struck(_):
        raise KeyboardInterrupt

    monkeypatch.setattr("argparse.ArgumentParser.format_usage", struck)
    monkeypatch.setattr("argparse.ArgumentParser.parse_known_args", struck)
    with pytest.raises(KeyboardInterrupt):
        options.thorough(options.WHO, ["x"])


def test_who_imports_the_library_keeps_its_handler(lifehold):
    script = (
        "import signal; before = signal.getsignal(signal.SIGINT); import lifehold; "
        "assert signal.getsignal(signal.SIGINT) is before"
    )
    subprocess.run([sys.executable, "-c", script], env=lifehold.environment, check=True, timeout=90)


def test_who_ignores_interrupts_is_not_made_to_hear_them(lifehold):
    script = (
        "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); "
        "os.execv(sys.executable, [sys.executable, '-m', 'lifehold', 'run', 'x', '--', 'sh', '-c', "
        "'kill -INT $PPID; echo on'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=lifehold.environment, cwd=lifehold.folder,
        capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "on\n")


def test_a_program_that_imports_the_command_keeps_its_handler(lifehold):
    script = (
        "import signal; before = signal.getsignal(signal.SIGINT); import lifehold.cli.main as m; "
        "m.main(['--version']); assert signal.getsignal(signal.SIGINT) is before"
    )
    subprocess.run([sys.executable, "-c", script], env=lifehold.environment, check=True, timeout=90,
                   stdout=subprocess.DEVNULL)  # fmt: skip
