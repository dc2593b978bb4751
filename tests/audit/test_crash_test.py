"""The crash test for anybody's lock: it passes right ones, and says what is wrong with others."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from audit import other_locks
from ground import require
from lifehold import InvalidArgument
from lifehold.cli.main import main
from lifehold.testing import crash_test as crashing
from lifehold.testing import pytest as plugin
from lifehold.testing.crash_test import crash_test
from servers import redis

ROOT = Path(__file__).parents[2]
HAND = """
import os, time

def factory(path):
    def acquire(timeout):
        until = time.monotonic() + timeout
        while time.monotonic() < until:
            try:
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
                return True
            except FileExistsError:
                time.sleep(0.01)
        return False
    return acquire, lambda: os.unlink(path)
"""


def by_hand(path):
    space: dict = {}
    exec(HAND, space)
    return space["factory"](path)


def polled(path, *, unlink):
    """flock, polled; with `unlink` it removes the file when it releases."""
    held = []

    def acquire(timeout):
        until = time.monotonic() + timeout
        file = open(path, "a")  # noqa: SIM115 - for the lock's life
        while time.monotonic() < until:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(0.001)
            else:
                held.append(file)
                return True
        return False

    def release():
        if unlink and os.path.exists(path):
            os.unlink(path)
        held.pop().close()

    return acquire, release


def flocked(path):
    return polled(path, unlink=False)


def flocked_and_removed(path):
    return polled(path, unlink=True)


def is_there(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def never(path):
    return lambda timeout: False, lambda: None


def everybody(path):
    return lambda timeout: os.path.exists(path) or True, lambda: None, lambda: True


def test_a_kernel_lock_survives_every_step(tmp_path):
    report = crash_test(flocked, str(tmp_path), bound=5.0)
    assert report.text() == f"{report.trials} trials, 0 faults"
    once = ["acquire open", "acquire flock", "release close"]
    assert report.steps == [*once, "takeover open", "takeover flock"]


def test_a_lock_by_presence_is_blocked_for_ever_wherever_it_is_killed(tmp_path):
    report = crash_test(by_hand, str(tmp_path), bound=0.5, double=False)
    blocked = [fault.at for fault in report.faults if fault.claim == "blocked"]
    assert [at for at in blocked if "body" in at] == ["killed in the body"]
    assert any("behind open" in at for at in blocked)


def test_a_lock_that_lets_everybody_in_is_found_and_not_fenced(tmp_path):
    report = crash_test(everybody, str(tmp_path), bound=1.0, stall=0.05, double=False)
    assert {fault.claim for fault in report.faults} == {"two-holders", "not-fenced"}


def test_a_file_that_is_removed_after_flock_has_two_holders(tmp_path):
    report = crash_test(flocked_and_removed, str(tmp_path), bound=1.0, double=False)
    assert report.faults


def test_a_lock_that_nobody_gets_ends_the_test_at_once(tmp_path):
    report = crash_test(never, str(tmp_path), bound=0.2)
    assert (report.trials, report.faults[0].claim) == (1, "blocked")


def linked(path, *, takes_over):
    """A link to a process. Where that is dead: a guard, which may be left, or a refusal at once."""
    guard = path + ".guard"

    def acquire(timeout):
        until = time.monotonic() + timeout
        while time.monotonic() < until:
            with contextlib.suppress(FileExistsError):
                os.symlink(str(os.getpid()), path)
                return True
            with contextlib.suppress(FileNotFoundError, FileExistsError):
                if is_there(int(os.readlink(path))):
                    time.sleep(0.001)
                elif not takes_over or os.path.exists(guard):
                    return False
                else:
                    os.mkdir(guard)
                    os.unlink(path)
                    os.rmdir(guard)
        return False

    return acquire, lambda: os.unlink(path)


def taken_over(path):
    return linked(path, takes_over=True)


def left_for_ever(path):
    return linked(path, takes_over=False)


def test_a_successor_is_killed_at_the_steps_by_which_it_takes_over(tmp_path):
    report = crash_test(taken_over, str(tmp_path), bound=30.0, contenders=2)
    found = [fault.at for fault in report.faults if fault.claim == "blocked"]
    assert "killed in the body; the successor in acquire, behind mkdir (1)" in found


def many_steps(path):
    """Its 42nd of 43 steps leaves what nobody removes."""
    acquire, release = polled(path, unlink=False)
    left = path + ".left"

    def slowly(timeout):
        if not acquire(timeout):
            return False
        if os.path.exists(left):
            release()
            return False
        with open(path + ".data", "wb", buffering=0) as data:
            for _ in range(38):
                data.flush()
        os.mkdir(left)
        os.rmdir(left)
        return True

    return slowly, release


def test_of_many_steps_the_last_are_tried_and_the_others_are_told(tmp_path, monkeypatch):
    monkeypatch.setattr(crashing, "MOST", 6)
    report = crash_test(many_steps, str(tmp_path), bound=30.0, contenders=2, double=False)
    assert [fault.at for fault in report.faults] == ["killed in acquire, behind mkdir (42)"]
    assert report.untried == ["37 of the 43 steps of acquire"]
    assert "not tried: 37 of the 43 steps of acquire\n" in report.text()


def renamed(path):
    """Much that is called as a step is, of a str and of a list, and no step."""
    acquire, release = polled(path, unlink=False)

    def named(timeout):
        names = [f"{path}.new".replace("new", "old")]
        names.remove(f"{path}.old")
        return acquire(timeout)

    return named, release


def test_what_is_only_called_as_a_step_is_none(tmp_path):
    report = crash_test(renamed, str(tmp_path), bound=5.0, contenders=2, double=False)
    assert report.steps == ["acquire open", "acquire flock", "release close"]


def test_a_phase_of_which_no_step_is_seen_and_a_takeover_that_fails_are_told(tmp_path):
    report = crash_test(everybody, str(tmp_path), bound=0.5, contenders=2, double=False)
    told = [f"a death within {phase}: no step of it was seen" for phase in ("acquire", "release")]
    assert report.untried == told
    report = crash_test(left_for_ever, str(tmp_path), bound=30.0, contenders=2)
    assert report.untried == ["a death within the takeover: the successor did not acquire"]
    report = crash_test(never, str(tmp_path), bound=0.2, contenders=1)
    assert report.untried == ["two at once: there is one contender"]


@pytest.mark.parametrize(
    "bounds", [{"bound": float("nan")}, {"bound": -1.0}, {"stall": -1.0}, {"contenders": 0}]
)
def test_bounds_that_would_show_nothing_are_refused(bounds, tmp_path):
    with pytest.raises(InvalidArgument):
        crash_test(flocked, str(tmp_path), **bounds)


def test_the_fixture_fails_with_one_line_a_fault(pytester):
    pytester.makepyfile(
        HAND
        + """
def test_it(crash_holder):
    crash_holder(factory, bound=0.3, contenders=2, double=False)
"""
    )
    done = pytester.runpytest_inprocess("-p", "lifehold.testing.pytest", "-p", "no:cacheprovider")
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["*blocked: killed in the body: nobody acquires within 0.3 s*"])


def test_a_test_that_leaves_a_lock_behind_fails_and_the_lock_is_named(pytester):
    pytester.makepyfile(
        """
import pathlib, pytest

@pytest.mark.no_stale_locks("*.lock")
def test_left():
    pathlib.Path("a.lock").write_text("pid 7")

@pytest.mark.no_stale_locks("*.lock")
def test_right():
    pass
"""
    )
    done = pytester.runpytest_inprocess("-p", "lifehold.testing.pytest", "-p", "no:cacheprovider")
    done.assert_outcomes(passed=2, errors=1)
    done.stdout.fnmatch_lines(["*a.lock (it holds 'pid 7')*"])


LEAVING = """
import os, pathlib, pytest

@pytest.mark.no_stale_locks("*.lock")
def test_left():
    pathlib.Path("a.lock").touch()

@pytest.mark.no_stale_locks("*.lock")
def test_in_another_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pathlib.Path("b.lock").touch()

@pytest.mark.no_stale_locks("*.lock")
def test_in_its_own_folder(tmp_path):
    (tmp_path / "c.lock").touch()

@pytest.mark.no_stale_locks("**/*.lock")
def test_below_its_own_folder(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "d.lock").touch()

@pytest.mark.no_stale_locks("**/*.lock")
def test_in_a_hidden_folder(tmp_path):
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "index.lock").touch()

@pytest.fixture
def elsewhere(tmp_path_factory, monkeypatch):
    monkeypatch.chdir(tmp_path_factory.mktemp("y"))

@pytest.mark.no_stale_locks("*.lock")
def test_where_a_fixture_went(elsewhere):
    pathlib.Path("g.lock").touch()

@pytest.mark.no_stale_locks("*.lock")
class TestMarksAddUp:
    @pytest.mark.no_stale_locks("*.pid")
    def test_the_one_of_its_class(self, tmp_path):
        (tmp_path / "f.lock").touch()

@pytest.mark.no_stale_locks("*.lock")
def test_where_it_goes_without_a_way_back(tmp_path_factory):
    pathlib.Path("e.lock").touch()
    os.chdir(tmp_path_factory.mktemp("x"))
"""
LEAVING_NONE = """
import os, pathlib, pytest

@pytest.mark.no_stale_locks("*.lock", "/no/such/folder/*.lock")
def test_removed(tmp_path, monkeypatch):
    (tmp_path / "a.lock").touch()
    (tmp_path / "a.lock").unlink()
    monkeypatch.chdir(tmp_path)
    pathlib.Path("a.lock").mkdir()
    pathlib.Path("a.lock").rmdir()

@pytest.mark.no_stale_locks("*.lock")
def test_read():
    assert pathlib.Path("stood.lock").read_text() == "of another"

@pytest.fixture(scope="module")
def shared():
    pathlib.Path("shared.lock").touch()
    yield
    pathlib.Path("shared.lock").unlink()

@pytest.mark.no_stale_locks("*.lock")
def test_beside_a_file_of_its_module(shared):
    pass

@pytest.mark.no_stale_locks("build/**")
def test_in_a_folder_that_fits():
    pathlib.Path("build/part").touch()
    pathlib.Path("build/part").unlink()

@pytest.mark.no_stale_locks("*.lock")
def test_other_names(tmp_path):
    (tmp_path / "data").touch()

@pytest.mark.no_stale_locks("[a].lock")
def test_a_folder_with_a_star_in_its_name(tmp_path, monkeypatch):
    (tmp_path / "[x]*").mkdir()
    monkeypatch.chdir(tmp_path / "[x]*")
"""


def played(pytester):
    """Each time in a fresh interpreter, as runs are."""
    words = ("-p", "lifehold.testing.pytest", "-p", "no:cacheprovider")
    return pytester.runpytest_subprocess(*words, timeout=60)


def test_a_lock_is_left_behind_in_a_second_run_and_in_the_folder_of_the_test(pytester):
    pytester.makepyfile(LEAVING)
    for _ in range(2):
        done = played(pytester)
        done.assert_outcomes(passed=8, errors=8)
        left = ("a", "*/b", "*/c", "*/sub/d", "*/.git/index", "*/g", "*/f", "e")
        done.stdout.fnmatch_lines([f"{each}.lock (*" for each in left])


def test_what_was_removed_or_only_read_is_not_left_behind(pytester):
    Path("stood.lock").write_text("of another")
    Path("build").mkdir()
    pytester.makepyfile(LEAVING_NONE)
    for _ in range(2):
        played(pytester).assert_outcomes(passed=6)


def test_a_mark_that_names_no_patterns_is_told_in_a_line(pytester):
    pytester.makepyfile(
        """
        import pathlib, pytest

        @pytest.mark.no_stale_locks
        def test_none(): pass

        @pytest.mark.no_stale_locks(pattern="*.lock")
        def test_keyword(): pass

        @pytest.mark.no_stale_locks(["*.lock"])
        def test_list(): pass

        @pytest.mark.no_stale_locks(pathlib.Path("*.lock"))
        def test_path(): pass
        """
    )
    done = pytester.runpytest_inprocess("-p", "lifehold.testing.pytest", "-p", "no:cacheprovider")
    done.assert_outcomes(passed=1, errors=3)
    for given in ("", "pattern='[*].lock'", "[[]'[*].lock'[]]"):
        done.stdout.fnmatch_lines([f"no_stale_locks({given}): give patterns, as in *"])


def test_the_command_runs_the_same(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine_crash.py").write_text(
        "def factory(path):\n    return lambda timeout: False, lambda: None\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["audit", "--crash-test", "mine_crash:factory"]) == 1
    assert "blocked: nobody is killed" in capfd.readouterr().out
    assert main(["audit", "--crash-test", "mine_crash"]) == 2
    assert main(["audit", "--crash-test", "no_such_module:x"]) == 2


def test_every_pytest_run_has_the_plugin_and_who_names_it_has_it_once(pytester):
    """The entry point bears the name of the module: pytest knows it by that already."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())
    entries = table["project"]["entry-points"]["pytest11"]
    assert entries["lifehold.testing.pytest"] == "lifehold.testing.pytest"
    pytester.makeconftest('pytest_plugins = ["lifehold.testing.pytest"]')
    pytester.makepyfile("def test_it(crash_holder):\n    assert crash_holder\n")
    done = pytester.runpytest_inprocess("-p", "lifehold.testing.pytest", "-p", "no:cacheprovider")
    done.assert_outcomes(passed=1)


def test_a_test_without_the_mark_gets_nothing_from_the_plugin(pytester):
    pytester.makepyfile("def test_it(request):\n    assert request.fixturenames == ['request']\n")
    done = pytester.runpytest_inprocess("-p", "lifehold.testing.pytest", "-p", "no:cacheprovider")
    done.assert_outcomes(passed=1)


def test_the_pattern_on_the_command_line_is_for_all_tests(pytester):
    pytester.makepyfile("def test_it():\n    open('b.lock', 'w').close()\n")
    words = ("--no-stale-locks", "*.lock", "-p", "lifehold.testing.pytest")
    done = pytester.runpytest_inprocess(*words, "-p", "no:cacheprovider")
    done.assert_outcomes(passed=1, errors=1)


def test_what_is_no_file_is_named_and_not_opened(pytester):
    os.mkfifo("before.lock")  # opened for reading, it would wait for a writer
    pytester.makepyfile(
        """
        import os, socket

        def test_it():
            os.mkfifo("pipe.lock")
            os.symlink("before.lock", "link.lock")
            os.mkdir("folder.lock")
            socket.socket(socket.AF_UNIX).bind("socket.lock")
        """
    )
    words = ("--no-stale-locks", "*.lock", "-p", "lifehold.testing.pytest")
    done = pytester.runpytest_subprocess(*words, "-p", "no:cacheprovider", timeout=60)
    done.assert_outcomes(passed=1, errors=1)
    uid = os.getuid()
    done.stdout.fnmatch_lines(
        [
            f"folder.lock (a folder, made by uid {uid})",
            "link.lock (a link to 'before.lock')",
            f"pipe.lock (a FIFO, made by uid {uid})",
            f"socket.lock (a socket, made by uid {uid})",
        ]
    )
    done.stdout.no_fnmatch_line("before.lock*")


def test_a_file_that_turns_into_a_fifo_under_the_look_is_not_waited_for(tmp_path, monkeypatch):
    path = str(tmp_path / "a.lock")
    os.mkfifo(path)
    (tmp_path / "plain").touch()
    monkeypatch.setattr(plugin.os, "lstat", lambda _: os.stat(tmp_path / "plain"))
    assert plugin.maker(path).startswith("empty")
    writer = os.open(path, os.O_RDWR)
    try:
        assert plugin.maker(path).startswith("unreadable")
    finally:
        os.close(writer)


def test_the_plugin_loads_nothing_of_lifehold_that_is_heavy():
    code = (
        "import sys, pytest, lifehold.testing.once_per_run; before = set(sys.modules)\n"
        "import lifehold.testing.pytest\n"
        "print(sorted(m for m in set(sys.modules) - before if m.startswith('lifehold')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "['lifehold.testing.pytest']"


@pytest.mark.parametrize("factory", other_locks.ALL, ids=lambda factory: factory.__name__)
def test_the_locks_of_the_table_can_be_had_twice(factory, tmp_path, monkeypatch):
    """The adapters of the page do what their libraries mean: else their faults are ours."""
    package, _, rest = factory.__name__.partition("_")
    if rest in ("lock", "lockfile") or package == "filelock":
        require(f"package:{package}")
    with contextlib.ExitStack() as stack:
        if factory is other_locks.redis_lock:
            require("redis")
            url = stack.enter_context(redis.started()).url
            monkeypatch.setenv("LIFEHOLD_TEST_REDIS", url)
        acquire, release = factory(str(tmp_path / "a.lock"))[:2]
        for _ in range(2):
            assert acquire(5.0) is not False
            release()
