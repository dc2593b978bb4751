"""The closing account itself: a missing ground is counted, never silent."""

from __future__ import annotations

from pathlib import Path

import pytest

import ground

TESTS = Path(__file__).parents[1]


@pytest.fixture
def run(pytester: pytest.Pytester):
    """Run test files under our conftest, as if they lay in tests/<layer>/."""
    pytester.makeini(
        "[pytest]\nmarkers = needs(*ground): x\nlayer_minutes =\n    unit 1\n    crash 0.0001\n"
    )
    pytester.makeconftest((TESTS / "conftest.py").read_text())
    pytester.syspathinsert(TESTS)

    def run(*options: str, **layers: str) -> pytest.RunResult:
        for layer, text in layers.items():
            folder = pytester.path / layer
            folder.mkdir()
            (folder / f"test_{layer}.py").write_text("from ground import needs, require\n" + text)
        return pytester.runpytest_inprocess(*options)

    return run


def test_tests_without_their_ground_are_counted_per_reason(run, monkeypatch):
    monkeypatch.setitem(ground.TRIED, "the moon", lambda: "it is day")
    monkeypatch.setitem(ground.TRIED, "a giant", lambda: "")
    ground.missing.cache_clear()
    result = run(
        unit="@needs('the moon')\ndef test_one(): 1/0\n@needs('the moon')\ndef test_two(): 1/0\n"
        "def test_three(): require('a giant'); 1/0\ndef test_four(): pass\n"
    )
    result.assert_outcomes(passed=1, skipped=3)
    result.stdout.fnmatch_lines(
        [
            "*not run, and why*",
            "    2 tests not run: needs the moon: it is day",
            "    1 test not run: needs a giant",
            "*time of each layer*",
            "        unit * s of   60 s  1 passed, 3 not run",
            "=*1 passed, 3 skipped*",
        ]
    )


def test_a_run_with_all_its_ground_says_that_nothing_was_skipped(run):
    result = run(unit="@needs('command:sh', 'package:pytest')\ndef test_one(): pass\n")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["nothing was skipped"])


def test_a_skip_without_declared_ground_is_counted_too(run):
    result = run(
        unit="import pytest\ndef test_one(): pytest.skip('mood')\n"
        "@pytest.mark.xfail(reason='known')\ndef test_two(): 1/0\n",
        crash="import pytest\npytest.skip('no luck', allow_module_level=True)\n",
    )
    result.stdout.fnmatch_lines_random(
        [
            "    1 test not run: mood",
            "    1 test not run: expected to fail: known",
            "    1 test not run: no luck",
        ]
    )


def test_unknown_ground_fails_the_test_that_names_it(run):
    result = run(unit="@needs('unicorns')\ndef test_one(): pass\n")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*knows no ground called 'unicorns'*"])


def test_a_layer_over_its_budget_is_named(run, tmp_path):
    slow = "import time\ndef test_one(): time.sleep(0.05)\ndef test_two(): 1/0\n"
    result = run(f"--times-to={tmp_path}/times", crash=slow)
    result.stdout.fnmatch_lines(["       crash * s of    0 s  1 passed, 1 FAILED  OVER BUDGET"])
    layer, budget, seconds, passed, failed, not_run = (tmp_path / "times").read_text().split()
    assert (layer, budget, passed, failed, not_run) == ("crash", "0.006", "1", "1", "0")
    assert float(seconds) >= 0.05


def test_the_slowest_tests_are_written_down_for_the_closing_lines(run, tmp_path):
    slow = "import time\ndef test_one(): pass\ndef test_two(): time.sleep(0.05)\n"
    run(f"--slowest-to={tmp_path}/slowest", unit=slow)
    first, second = (tmp_path / "slowest").read_text().splitlines()
    assert first.endswith("\tunit/test_unit.py::test_two")
    assert float(first.split()[0]) >= float(second.split()[0])


@pytest.mark.parametrize("name", sorted(ground.TRIED))
def test_every_ground_answers_with_a_reason_or_none(name):
    assert ground.missing(name) is None or isinstance(ground.missing(name), str)
