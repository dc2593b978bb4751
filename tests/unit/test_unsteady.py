"""The rule for timed tests: what is excused, what never is, and what the run says of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PLUGIN = Path(__file__).parents[1] / "unsteady.py"
# Without those that make the end of a run slow: they collect garbage five times, or import much.
SLOW = ("unraisableexception", "threadexception", "hypothesispytest", "xdist")
PLUGINS = ("-p", "unsteady", *(word for name in SLOW for word in ("-p", f"no:{name}")))
COUNTED = """
    import pytest, unsteady
    from pathlib import Path

    def times():
        file = Path("times")
        count = 1 + (int(file.read_text()) if file.exists() else 0)
        file.write_text(str(count))
        return count
"""


@pytest.fixture
def run(pytester):
    """Run tests, of which `times()` tells how often it was asked until now."""

    def runs(text, *options, to="now"):
        pytester.makepyfile(test_it=COUNTED + text)
        to = (f"--unsteady-to={to}",) if to else ()
        return pytester.runpytest(*PLUGINS, *to, *options)

    runs.folder = pytester.path
    return runs


def noted(run):
    file = run.folder / "now"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def timed(body, name="test_it_is_soon"):
    return f"""
    @pytest.mark.timing("a load of 8")
    def {name}():
        {body}
"""


ONCE = 'assert times() != 1, "the first time"'


def test_a_timed_test_that_passes_twice_afterwards_is_unsteady_and_fails_nothing(run):
    ended = run(timed(ONCE))
    ended.assert_outcomes(passed=1)
    assert ended.ret == 0
    assert (run.folder / "times").read_text() == "3"
    (each,) = noted(run)
    assert each["test"] == "test_it.py::test_it_is_soon"
    assert each["bears"] == "a load of 8"
    assert "def test_it_is_soon" in each["why"], "the first failure is kept in full"
    assert "AssertionError: the first time" in each["why"]
    ended.stdout.fnmatch_lines(["*unsteady: test_it.py::test_it_is_soon (load *a load of 8)"])


@pytest.mark.parametrize("wrong", ["(1, 2)", "(1, 3)", "(1, 2, 3)"])
def test_a_timed_test_that_fails_twice_fails_the_run(run, wrong):
    ended = run(timed(f"assert times() not in {wrong}"))
    ended.assert_outcomes(failed=1)
    assert ended.ret == 1
    assert not noted(run)
    ended.stdout.fnmatch_lines(["*run again under the same load it failed too*"])


def test_a_timed_test_that_passes_is_run_once(run):
    assert run(timed("times()")).ret == 0
    assert (run.folder / "times").read_text() == "1"


def test_a_test_without_the_mark_is_never_run_again(run):
    ended = run("\n    def test_it_holds_always():\n        " + ONCE)
    assert (ended.ret, noted(run)) == (1, [])


def test_without_the_option_a_timed_test_fails_as_any_other(run):
    assert run(timed(ONCE), to=None).ret == 1


@pytest.mark.parametrize(
    "error", ["unsteady.Certain('two held it')", "RuntimeError('lost')", "TimeoutError('hangs')"]
)
def test_what_no_load_excuses_fails_the_run_at_once(run, error):
    ended = run(timed(f"if times() == 1: raise {error}"))
    assert (ended.ret, noted(run)) == (1, [])
    assert (run.folder / "times").read_text() == "1"


def test_an_assertion_in_teardown_is_not_excused(run):
    leaks = """
    @pytest.fixture
    def watched():
        yield
        assert times() != 1, "a thread is left"

    @pytest.mark.timing("a load of 8")
    def test_it_is_soon(watched): pass
"""
    ended = run(leaks)
    ended.assert_outcomes(passed=1, errors=1)
    assert (ended.ret, noted(run)) == (1, [])


def test_each_time_has_fixtures_of_its_own(run):
    fresh = """
    @pytest.fixture
    def given():
        return []

    @pytest.mark.timing("a load of 8")
    def test_it_is_soon(given):
        assert not given
        given.append(1)
        assert times() != 1
"""
    assert run(fresh).ret == 0
    assert len(noted(run)) == 1


def test_three_unsteady_tests_fail_the_run_and_two_do_not(run):
    each = 'file = Path("{0}"); first = not file.exists(); file.touch(); assert not first'
    tests = [timed(each.format(name), f"test_{name}_is_soon") for name in "abc"]
    assert run("".join(tests[:2])).ret == 0
    ended = run(tests[2])  # another run that shares the file, as the streams of `make test` do
    assert ended.ret == 1
    ended.assert_outcomes(passed=1)
    ended.stdout.fnmatch_lines(["FAILED: 3 tests are unsteady, and 3 are too many"])


def test_one_that_was_unsteady_in_the_run_before_fails_the_run(run):
    (run.folder / "before").write_text(json.dumps({"test": "test_it.py::test_it_is_soon"}) + "\n")
    ended = run(timed(ONCE), "--unsteady-before=before")
    assert ended.ret == 1
    ended.stdout.fnmatch_lines(["FAILED: *test_it_is_soon was unsteady in the run before too"])


def test_a_record_of_the_run_before_that_is_not_there_accuses_nobody(run):
    assert run(timed(ONCE), "--unsteady-before=before").ret == 0


@pytest.mark.parametrize("mark", ["timing", "timing()", "timing(' ')"])
def test_a_mark_that_states_no_load_is_refused(run, mark):
    ended = run(f"\n    @pytest.mark.{mark}\n    def test_it_is_soon(): pass\n")
    assert ended.ret == pytest.ExitCode.USAGE_ERROR
    ended.stderr.fnmatch_lines(["*timing() states the load the test bears*"])


def test_the_closing_lines_name_what_was_unsteady(run):
    run(timed(ONCE))
    words = [sys.executable, str(PLUGIN), str(run.folder / "now")]
    told = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert told.startswith("unsteady: test_it.py::test_it_is_soon (load ")
    assert len(told.splitlines()) == 1
