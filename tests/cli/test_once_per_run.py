"""The pytest fixture `once_per_run`, in runs of pytest of their own, with and without xdist."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path

import pytest

from ground import needs
from lifehold.testing.crash import Child, point
from lifehold.testing.once_per_run import WorkerRun

SOURCE = Path(__file__).parents[2] / "src"
PLUGIN = "lifehold.testing.once_per_run"
CONFTEST = """
import os, pathlib, pytest
LOG = pathlib.Path(__file__).with_name("log")

def note(*words):
    with LOG.open("a") as file:
        file.write(" ".join(map(str, words)) + "\\n")

@pytest.fixture(scope="session")
def database(once_per_run):
    def start():
        note("start", os.getpid())
        return {"url": "db://1"}
    def stop(value):
        note("stop", value["url"])
    return once_per_run("database", start, teardown=stop)
"""


@pytest.fixture
def suite(pytester, monkeypatch):
    """Runs pytest on a test file, and answers its result and the lines of its log."""
    monkeypatch.setenv("PYTHONPATH", str(SOURCE))
    for name in [
        name for name in os.environ if name.startswith(("PYTEST_XDIST", "PYTEST_ADDOPTS"))
    ]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # others cost more than the test
    pytester.makeconftest(CONFTEST)

    def run(tests: str, *words: str):
        pytester.makepyfile(tests)
        plugin = ("-p", PLUGIN, *(("-p", "xdist") if words[:1] and words[0][:2] == "-n" else ()))
        result = pytester.runpytest_subprocess(*plugin, "-p", "no:cacheprovider", *words)
        log = pytester.path / "log"
        return result, log.read_text().splitlines() if log.exists() else []

    return run


TESTS = """
import pytest
from conftest import note

@pytest.mark.parametrize("number", range(12))
def test_it(database, number):
    assert database == {"url": "db://1"}
    note("test", number)
"""


def kinds(log: list[str]) -> list[str]:
    return [line.split()[0] for line in log]


def test_without_xdist_it_is_set_up_and_torn_down_once(suite):
    result, log = suite(TESTS)
    result.assert_outcomes(passed=12)
    assert kinds(log) == ["start", *["test"] * 12, "stop"]


@needs("package:xdist")
def test_one_worker_sets_up_and_the_last_tears_down(suite):
    result, log = suite(TESTS, "-n3")
    result.assert_outcomes(passed=12)
    # A worker whose first test comes when all the others have ended sets up anew: one at a time.
    assert re.fullmatch(r"(start (test )+stop )+", " ".join([*kinds(log), ""]))
    assert kinds(log).count("test") == 12


LATE = """
import time

def pytest_collection_finish(session):
    # By now xdist has told the controller: its hook was registered later, and comes first.
    if os.environ.get("PYTEST_XDIST_WORKER") == "gw1" and "late" in os.environ["PLACE"]:
        time.sleep(1.5)

def pytest_collection_modifyitems(session):
    if os.environ.get("PYTEST_XDIST_WORKER") == "gw1" and "early" in os.environ["PLACE"]:
        time.sleep(1.5)
"""


@needs("package:xdist")
@pytest.mark.parametrize("place", ["late, when xdist knows that it has collected", "early"])
def test_a_worker_that_comes_late_is_waited_for_with_the_teardown(
    suite, pytester, monkeypatch, place
):
    monkeypatch.setenv("PLACE", place)
    pytester.makeconftest(CONFTEST + LATE)
    result, log = suite(TESTS, "-n2", "--dist", "load")
    result.assert_outcomes(passed=12)
    assert (kinds(log).count("start"), kinds(log).count("stop")) == (1, 1), log
    assert kinds(log)[-1] == "stop"


@pytest.mark.soak
@needs("package:xdist")
def test_a_worker_that_is_done_early_waits_with_the_teardown_for_the_others(suite):
    slow = """
        import time
        from conftest import note
        def test_with(database):
            note("test")
        def test_without():
            time.sleep(1)
            note("test")
    """
    result, log = suite(slow, "-n2", "--dist", "load")
    result.assert_outcomes(passed=2)
    assert kinds(log) == ["start", "test", "test", "stop"]


@needs("package:xdist")
def test_a_killed_worker_blocks_nobody_and_the_others_tear_down(suite):
    killed = (
        TESTS
        + """
import os, signal
def test_kill(database):
    note("kill")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    )
    result, log = suite(killed, "-n2", "--max-worker-restart", "2")
    result.assert_outcomes(passed=12, failed=1)
    assert sorted(kinds(log)) == ["kill", "start", "stop", *["test"] * 12]
    assert kinds(log)[-1] == "stop"


@pytest.mark.soak
@needs("package:xdist")
def test_a_worker_killed_while_it_sets_up_leaves_the_setup_to_another(suite, pytester):
    pytester.makeconftest(
        CONFTEST.replace(
            'return {"url"',
            'if not LOG.with_name("once").exists():\n'
            '            LOG.with_name("once").touch(); os.kill(os.getpid(), 9)\n'
            '        return {"url"',
        )
    )
    result, log = suite(TESTS, "-n2")
    assert result.parseoutcomes()["passed"] == 11
    assert sorted(kinds(log)) == ["start", "start", "stop", *["test"] * 11]
    assert kinds(log)[-1] == "stop"


def test_a_setup_that_fails_fails_every_test_and_runs_once(suite, pytester):
    pytester.makeconftest(
        CONFTEST.replace('return {"url"', 'raise OSError("no port")\n        {"url"')
    )
    options = ("-n2",) if _xdist() else ()
    result, log = suite(TESTS, *options)
    result.assert_outcomes(errors=12)
    assert kinds(log) == ["start"]
    result.stdout.fnmatch_lines(["*OnceFailed: *OSError: no port*"])


def _xdist() -> bool:
    return importlib.util.find_spec("xdist") is not None


def test_a_teardown_that_fails_is_reported_as_an_error(suite, pytester):
    pytester.makeconftest(CONFTEST.replace('note("stop", value["url"])', 'raise OSError("stuck")'))
    result, _ = suite(TESTS)
    result.assert_outcomes(passed=12, errors=1)
    result.stdout.fnmatch_lines(["*OSError: stuck*"])


def test_a_run_that_does_not_ask_for_it_locks_nothing_and_loads_nothing(suite, pytester):
    tests = """
        import sys
        def test_nothing(tmp_path_factory):
            assert "lifehold.recipes.once" not in sys.modules
            base = tmp_path_factory.getbasetemp()
            assert not [each for each in (*base.iterdir(), *base.parent.iterdir())
                        if each.name.startswith("lifehold")]
    """
    result, _ = suite(tests, *(("-n2",) if _xdist() else ()), f"--basetemp={pytester.path}/base")
    result.assert_outcomes(passed=1)


def test_what_cannot_be_set_up_once_is_refused_by_name(suite):
    result, _ = suite("""
        import pytest, lifehold
        @pytest.mark.parametrize("call", [("a/b", str), (5, str), ("", str), ("a", 5)])
        def test_it(once_per_run, call):
            with pytest.raises(lifehold.InvalidArgument):
                once_per_run(*call)
        def test_teardown(once_per_run):
            with pytest.raises(lifehold.InvalidArgument, match="teardown"):
                once_per_run("a", str, teardown=1)
    """)
    result.assert_outcomes(passed=5)


def test_no_name_of_a_value_is_that_of_our_own_lock(tmp_path):
    run = WorkerRun(tmp_path)
    assert run("present", lambda: 7) == 7
    run.leave()


def worker(folder, log, up):
    run = WorkerRun(folder)
    rules = {"unless": lambda: up.exists() and "made", "keep": 0.0}
    run("server", lambda: "made", teardown=lambda value: note(log, value), **rules)
    up.touch()
    point("present")
    run.leave()


def note(log, words):
    with log.open("a", encoding="utf-8") as file:
        file.write(words)


@needs("linux")
def test_a_teardown_runs_once_whatever_the_check_says_and_however_old_its_value_is(tmp_path):
    places = tmp_path / "run", tmp_path / "log", tmp_path / "up"
    places[0].mkdir()
    with Child(worker, *places) as first, Child(worker, *places) as second:
        for each in (first, second):
            each.at("present")
        for each in (first, second):
            each.go()
        assert all(each.end().well for each in (first, second))
    assert places[1].read_text("utf-8") == "made"
