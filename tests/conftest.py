"""The run's own account: what was not run and why, and the time of each layer.

Every run ends with both tables, so that a green line never hides a test that could not stand on
this machine. A layer is a folder of tests/; its budget of minutes is in pyproject.toml.
"""

from __future__ import annotations

import contextlib
import gc
import signal
from collections import Counter
from pathlib import Path

import pytest

import ground
from huge_pages import HugePages

pytest_plugins = ("unsteady",)
HERE = Path(__file__).parent
SLOWEST = 10
ACCOUNT = pytest.StashKey["Account"]()
HUGE_PAGES = HugePages()
COLLECTS = "explore"  # the layer whose every test collects garbage, twice
# A shell starts what it puts into the background with these ignored, and nohup with HUP: every
# process of these tests would inherit that, and so would the CMD of `run`, as it should.
for _number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM):
    if signal.getsignal(_number) == signal.SIG_IGN:
        usual = signal.default_int_handler if _number == signal.SIGINT else signal.SIG_DFL
        signal.signal(_number, usual)


class Account:
    """Seconds, outcomes and reasons, gathered while the tests run."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.passed: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.not_run: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.tests: Counter[str] = Counter()

    def note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        layer = layer_of(report.nodeid)
        self.seconds[layer] += getattr(report, "duration", 0.0)
        self.tests[report.nodeid] += getattr(report, "duration", 0.0)
        if report.skipped:
            self.not_run[layer] += 1
            self.reasons[why_skipped(report)] += 1
        elif report.failed:
            self.failed[layer] += 1
        elif report.when == "call":
            self.passed[layer] += 1

    def layers(self, budgets: dict[str, float]) -> list[str]:
        """The layers of this run: those of the budget in its order, then any other."""
        seen = {*self.passed, *self.failed, *self.not_run}
        return [*(name for name in budgets if name in seen), *sorted(seen - {*budgets})]


def layer_of(nodeid: str) -> str:
    """`tests/crash/test_kill.py::test_x` -> `crash`; a test outside any folder: `other`."""
    parts = nodeid.partition("::")[0].split("/")
    folders = parts[1:-1] if parts[0] == HERE.name else parts[:-1]
    return folders[0] if folders else "other"


def why_skipped(report: pytest.TestReport | pytest.CollectReport) -> str:
    """The reason as counted; an expected failure says so."""
    expected = getattr(report, "wasxfail", None)
    if expected is not None:
        return f"expected to fail: {expected or 'no reason given'}"
    longrepr = report.longrepr
    text = str(longrepr[2]) if isinstance(longrepr, tuple) else str(longrepr)
    return text.removeprefix("Skipped: ") or "no reason given"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("layer_minutes", "lines `layer minutes`: the budget of each layer", "linelist")
    parser.addoption("--times-to", metavar="FILE", help="append the time of each layer as TSV")
    parser.addoption("--slowest-to", metavar="FILE", help="append the slowest tests, as TSV")


def pytest_configure(config: pytest.Config) -> None:
    with contextlib.suppress(ImportError):  # a slow machine, or another seed, is no fault
        from hypothesis import HealthCheck, settings

        settings.register_profile(
            "lifehold",
            deadline=None,
            derandomize="soak" not in str(config.getoption("markexpr")),
            suppress_health_check=[HealthCheck.too_slow],
        )
        settings.load_profile("lifehold")
    config.stash[ACCOUNT] = Account()
    config.pluginmanager.register(Listener(config.stash[ACCOUNT]), "lifehold-account")


class Listener:
    """Feeds the account; an object, because the report hooks carry no config."""

    def __init__(self, account: Account) -> None:
        self.account = account

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.account.note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if not report.passed:
            self.account.note(report)


def pytest_collection() -> None:
    """What is collected stays: to look for garbage meanwhile takes a fifth of the time."""
    gc.disable()


def pytest_collection_finish() -> None:
    """A `gc.collect()` of a test does not look through what all collected tests are made of."""
    with contextlib.suppress(ImportError):
        import hypothesis  # noqa: F401  when it is loaded it asks the collector who refers to what
    gc.collect()
    gc.freeze()  # for good: a test may freeze more, and thaws nothing
    gc.enable()
    HUGE_PAGES.renew()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    HUGE_PAGES.renew()
    if layer_of(item.nodeid) == COLLECTS:
        gc.collect()
        gc.freeze()  # what other tests have left alive is not looked through again
    for mark in item.iter_markers("needs"):
        ground.require(*mark.args)


def budgets_of(config: pytest.Config) -> dict[str, float]:
    """Seconds each layer may take."""
    lines = (line.split() for line in config.getini("layer_minutes"))
    return {name: float(minutes) * 60 for name, minutes in lines}


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    account, budgets = config.stash[ACCOUNT], budgets_of(config)
    write = terminalreporter.write_line
    alone = not hasattr(config, "workerinput")  # else one that hears of all workers has them too
    terminalreporter.section("not run, and why", sep="-")
    for why, count in account.reasons.most_common():
        write(f"{count:5d} {'test' if count == 1 else 'tests'} not run: {why}")
    if not account.reasons:
        write("nothing was skipped")
    terminalreporter.section("time of each layer", sep="-")
    rows = []
    for layer in account.layers(budgets):
        budget, seconds = budgets.get(layer, 0.0), account.seconds[layer]
        counts = account.passed[layer], account.failed[layer], account.not_run[layer]
        over = "  OVER BUDGET" if 0 < budget < seconds else ""
        write(f"{layer:>12} {seconds:7.1f} s of {budget:4.0f} s  {say(*counts)}{over}")
        rows.append("\t".join(map(str, (layer, f"{budget:g}", f"{seconds:.1f}", *counts))))
    if alone and config.getoption("--times-to"):
        with Path(config.getoption("--times-to")).open("a") as file:  # two runs may share it
            file.write("".join(f"{row}\n" for row in rows))
    if alone and config.getoption("--slowest-to"):
        with Path(config.getoption("--slowest-to")).open("a") as file:
            slowest = account.tests.most_common(SLOWEST)
            file.write("".join(f"{seconds:.1f}\t{test}\n" for test, seconds in slowest))


def say(passed: int, failed: int, not_run: int) -> str:
    """Counts in words, the zeros left out."""
    words = [f"{passed} passed"]
    words += [f"{failed} FAILED"] if failed else []
    words += [f"{not_run} not run"] if not_run else []
    return ", ".join(words)
