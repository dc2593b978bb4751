"""Fixtures for the locks of a test suite; pytest finds them where lifehold is installed.

    def test_our_lock_survives_a_crash(crash_holder):
        crash_holder(factory, bound=2.0)        # see lifehold.testing.crash_test

    @pytest.mark.no_stale_locks("build/*.lock")
    def test_a_build(): ...                     # fails when it leaves such a file behind

`crash_holder(factory, **bounds)` fails the test with one line a fault. `no_stale_locks`, as a mark
or with `--no-stale-locks GLOB` for all tests, names what was left and who made it. Marks of a test,
its class and its module add up. A file counts that the test has made, made anew or touched. A
relative pattern is looked up in the folder where the test begins, wherever it goes, in the one to
which a fixture went before, and in its `tmp_path` if it has that fixture. Hidden files count.

Imported by every pytest run, so it loads nothing of lifehold until a test asks for it, and adds
nothing to a test without the mark. `-p no:lifehold.testing.pytest` leaves it out.
"""

from __future__ import annotations

import glob
import os
import stat
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .crash_test import CrashReport

MARK, LOOK = "no_stale_locks", "_no_stale_locks"
KINDS = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--no-stale-locks",
        metavar="GLOB",
        action="append",
        default=[],
        help="fail a test that leaves a file of this pattern behind",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", f"{MARK}(*patterns): fail when the test leaves such a file behind"
    )


@pytest.fixture
def crash_holder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., CrashReport]:
    """`crash_holder(factory, bound=, contenders=, stall=, double=)`: killed at each step."""
    from .crash_test import crash_test

    def run(factory: Any, **bounds: Any) -> CrashReport:
        __tracebackhide__ = True
        report = crash_test(factory, str(tmp_path_factory.mktemp("crash")), **bounds)
        if not report.ok:
            pytest.fail(report.text(), pytrace=False)
        return report

    return run


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The tests that are to leave no lock get a fixture that looks behind them."""
    for_all = bool(config.getoption("--no-stale-locks"))
    for item in items:
        names: list[str] = getattr(item, "fixturenames", [])
        if (for_all or item.get_closest_marker(MARK)) and LOOK not in names:
            names.insert(_first_of_a_test(item, names), LOOK)


def _first_of_a_test(item: pytest.Item, names: list[str]) -> int:
    """Behind the fixtures that other tests have too: what those make is not left by this one."""
    known = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {})
    for number, name in enumerate(names):
        if name not in known or known[name][-1].scope == "function":
            return number
    return len(names)


@pytest.fixture(name="_no_stale_locks")
def no_stale_locks(request: pytest.FixtureRequest) -> Iterator[None]:
    asked: list[str] | None = request.config.getoption("--no-stale-locks")
    look = StaleLook([*(asked or ()), *_marked(request.node)])
    look.into(look.here)
    if "tmp_path" in request.fixturenames:  # where a test that goes anywhere mostly goes
        look.into(str(request.getfixturevalue("tmp_path")))
    request.node.stash[LOOKS] = look
    yield
    if left := look.left():
        rows = "\n".join(f"{_shown(path, look.here)} ({maker(path)})" for path in left)
        pytest.fail(f"the test left locks behind:\n{rows}", pytrace=False)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """A fixture may have gone to another folder, in which the test begins then."""
    if (look := item.stash.get(LOOKS, None)) is not None:
        look.into(_here())


def _marked(node: pytest.Item) -> list[str]:
    """The patterns of a test, its class and its module. A mark that names none is a mistake."""
    patterns: list[str] = []
    for mark in node.iter_markers(MARK):
        right = all(isinstance(each, str | os.PathLike) for each in mark.args)
        if mark.kwargs or not mark.args or not right:
            given = [*map(repr, mark.args), *(f"{k}={v!r}" for k, v in mark.kwargs.items())]
            pytest.fail(
                f'{MARK}({", ".join(given)}): give patterns, as in {MARK}("*.lock", "*.pid")',
                pytrace=False,
            )
        patterns += map(os.fspath, mark.args)
    return patterns


class StaleLook:
    """What fits the patterns of a test, before it began."""

    def __init__(self, patterns: list[str]) -> None:
        self.patterns, self.here = patterns, _here()
        self.globs: list[str] = []
        self.before: dict[str, tuple[int, int, int]] = {}

    def into(self, folder: str) -> None:
        """Look into this folder too. What was seen from another one stays as it was seen."""
        globs = [os.path.join(glob.escape(folder), each) for each in self.patterns]
        if not set(globs) <= set(self.globs):
            known = found(self.globs)
            seen = found(globs).items()
            self.before.update({path: what for path, what in seen if path not in known})
            self.globs += globs

    def left(self) -> list[str]:
        """What was made anew or touched since."""
        now = found(self.globs).items()
        return sorted(path for path, what in now if self.before.get(path) != what)


LOOKS = pytest.StashKey[StaleLook]()


def _here() -> str:
    """The working folder; "" for one that is gone."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def _shown(path: str, here: str) -> str:
    """From the folder where the test began, if it is in there."""
    within = os.path.join(here, "")
    return path[len(within) :] if here and path.startswith(within) else path


def found(patterns: list[str]) -> dict[str, tuple[int, int, int]]:
    """What fits a pattern, each with what changes when it is made anew or touched.

    A folder is touched by whatever comes and goes in it, so it counts as made anew alone.
    """
    paths = {
        path
        for pattern in patterns
        for path in glob.glob(pattern, recursive=True, include_hidden=True)
    }
    seen = {}
    for path in paths:
        try:
            look = os.lstat(path)
        except OSError:
            continue  # gone meanwhile
        touched = 0 if stat.S_ISDIR(look.st_mode) else look.st_mtime_ns
        seen[path] = look.st_dev, look.st_ino, touched
    return seen


def maker(path: str) -> str:
    """Who made a lock file: what it holds, or its owner."""
    try:
        look = os.lstat(path)
        if stat.S_ISLNK(look.st_mode):
            return f"a link to {os.readlink(path)!r}"
        if not stat.S_ISREG(look.st_mode):
            what = KINDS.get(stat.S_IFMT(look.st_mode), "a device")
            return f"{what}, made by uid {look.st_uid}"
        text = _beginning(path).decode("utf-8", "replace")
    except OSError as error:
        return f"unreadable: {error.strerror}"
    plain = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return f"it holds {plain!r}" if plain else f"empty, made by uid {look.st_uid}"


def _beginning(path: str) -> bytes:
    """Of a file that may have become a FIFO meanwhile: opening one would wait for a writer."""
    wary = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    fd = os.open(path, os.O_RDONLY | wary)
    try:
        return os.read(fd, 200)
    finally:
        os.close(fd)
