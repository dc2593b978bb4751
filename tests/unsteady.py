"""A test that speaks of time and fails on a busy machine is run again, and told.

    @pytest.mark.timing("fifty threads of one process on a CPU that four others want too")
    def test_fifty_in_line_are_served_by_two_requests_each(): ...

The mark states the load that the test bears. With `--unsteady-to=FILE` such a test that fails is
run twice more at once, so under the same load. Passing both times it counts as passed and as
*unsteady*: FILE gets a line of JSON with its first failure in full. The run fails all the same
when three tests were unsteady, over every run of pytest that shares FILE, or when one of them is
in `--unsteady-before=FILE`, the record of the run before.

Only a failed assertion of the test's own call is excused. Any other exception, and whatever fails
in setup or teardown, fails the run at once. So does `Certain`: what a timed test finds about
exclusion, tokens, loss, leaks, hangs or crashes is raised as that. tests/unit/test_tidy.py holds
the list of the marked tests.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol

TIMES_MORE = 2
TOO_MANY = 3


class Certain(AssertionError):
    """A claim has failed that no load excuses."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("unsteady", "timed tests on a busy machine")
    group.addoption("--unsteady-to", metavar="FILE", help="run failed timed tests again; note them")
    group.addoption("--unsteady-before", metavar="FILE", help="what was noted by the run before")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "timing(load): it speaks of lengths of time and bears this load"
    )
    if config.getoption("--unsteady-to"):
        config.pluginmanager.register(Again(config), "lifehold-unsteady")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for mark in item.iter_markers("timing"):
            if len(mark.args) != 1 or not str(mark.args[0]).strip():
                raise pytest.UsageError(f"{item.nodeid}: timing() states the load the test bears")


class Again:
    """Runs what failed again, and judges the whole at the end."""

    def __init__(self, config: pytest.Config) -> None:
        self.ledger = Path(config.getoption("--unsteady-to"))
        before = config.getoption("--unsteady-before")
        self.before = {each["test"] for each in read(Path(before))} if before else set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        error = call.excinfo and call.excinfo.value
        excused = isinstance(error, AssertionError) and not isinstance(error, Certain)
        report.excused = excused and call.when == "call"  # type: ignore[attr-defined]
        return report

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> object:
        mark = item.get_closest_marker("timing")
        if mark is None:
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        reports = self.judged(item, nextitem, str(mark.args[0]))
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def judged(
        self, item: pytest.Item, nextitem: pytest.Item | None, load: str
    ) -> list[pytest.TestReport]:
        """The reports that count: of the first run, or of the last when all others passed."""
        first = runtestprotocol(item, log=False, nextitem=nextitem)
        wrong = [report for report in first if report.failed]
        if not wrong or not all(getattr(report, "excused", False) for report in wrong):
            return first
        busy = os.getloadavg()[0]
        for number in range(1, TIMES_MORE + 1):
            again = runtestprotocol(item, log=False, nextitem=nextitem)
            if not all(report.passed for report in again):
                said = f"run again under the same load it failed too (time {number + 1})"
                wrong[0].sections.append(("not excused", said))
                return first
        note(self.ledger, test=item.nodeid, bears=load, load=busy, why=in_full(wrong[0]))
        return again

    def verdicts(self) -> list[str]:
        """Why unsteady tests fail this run after all."""
        tests = {each["test"] for each in read(self.ledger)}
        found = [
            f"{test} was unsteady in the run before too" for test in sorted(tests & self.before)
        ]
        if len(tests) >= TOO_MANY:
            found.append(f"{len(tests)} tests are unsteady, and {TOO_MANY} are too many")
        return found

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.verdicts() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        noted = read(self.ledger)
        if not noted:
            return
        terminalreporter.section("unsteady", sep="-")
        for each in noted:
            terminalreporter.write_line(line(each))
            terminalreporter.write_line(each["why"])
        for verdict in self.verdicts():
            terminalreporter.write_line(f"FAILED: {verdict}")


def in_full(report: pytest.TestReport) -> str:
    parts = [report.longreprtext, *(f"--- {name}\n{text}" for name, text in report.sections)]
    return "\n".join(parts)


def note(ledger: Path, **facts: object) -> None:
    """Append them. Streams that run side by side share the file."""
    with ledger.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(json.dumps(facts) + "\n")


def read(ledger: Path) -> list[dict[str, str]]:
    with contextlib.suppress(FileNotFoundError):
        return [json.loads(each) for each in ledger.read_text().splitlines()]
    return []


def line(noted: dict[str, str]) -> str:
    load = float(noted["load"])
    return f"unsteady: {noted['test']} (load {load:.1f}; it is to bear: {noted['bears']})"


if __name__ == "__main__":  # python tests/unsteady.py FILE: the closing lines of a run
    for each in read(Path(sys.argv[1])):
        print(line(each))
