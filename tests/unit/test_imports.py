"""`import lifehold` costs little (25 ms): counted in modules, since time is noise."""

from __future__ import annotations

import subprocess
import sys

import pytest

import lifehold
from ground import needs

MOST = 16  # modules beyond bare Python, ours included
MOST_OF_LOCK = 34  # the same of `from lifehold import Lock`
MOST_OF_RUN = 51  # and of a first `lifehold run` of a lock that is free
FORBIDDEN = set(
    "asyncio concurrent ctypes dataclasses datetime enum importlib.metadata inspect json logging"
    " multiprocessing pathlib psutil re selectors signal socket subprocess tempfile threading trio"
    " typing".split()
)


def modules_after(statement: str) -> set[str]:
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); before = set(sys.modules)\n"
        f"{statement}\nprint(*sorted(set(sys.modules) - before))"
    )
    source = lifehold.__file__.rpartition("/lifehold/")[0]
    command = [sys.executable, "-I", "-S", "-c", script, source]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=150)
    return set(done.stdout.split())


def test_the_import_brings_nothing_heavy_and_little_at_all():
    for statement, most in (("import lifehold", MOST), ("from lifehold import Lock", MOST_OF_LOCK)):
        found = modules_after(statement)
        assert not found & FORBIDDEN
        assert len(found) <= most, sorted(found)


def test_an_uncontended_lock_brings_nothing_heavy(tmp_path):
    path = str(tmp_path / "a.lock")
    found = modules_after(f"import lifehold\nwith lifehold.Lock({path!r}) as lease: lease.check()")
    assert not found & (FORBIDDEN - {"signal", "enum", "re"})


# What a wait, a lease that is renewed, or a message needs.
OF_WAITS = {"warnings", "heapq", "struct", "lifehold.core.explain", "lifehold.runtime.renewal",
            "lifehold.runtime.heartbeat", "lifehold.runtime.flock_wait", "lifehold.core.acquire",
            "lifehold.cli.render", "lifehold.lock", "lifehold.lease"}  # fmt: skip
RUN = """
from lifehold.cli import main
main._leave = lambda code, interrupted: None
sys.argv = ["lifehold", "run", "job", "--", "true"]
assert main.main() == 0
"""


@needs("linux")
def test_a_usual_run_brings_few_modules(tmp_path, monkeypatch):
    """What `lifehold run` waits for before its CMD begins."""
    monkeypatch.setenv("LIFEHOLD_DIR", str(tmp_path))
    found = modules_after(RUN)
    assert not found & (FORBIDDEN | {"argparse", "importlib", "difflib", "lifehold.cli.options"})
    assert not found & OF_WAITS
    assert len(found) <= MOST_OF_RUN, sorted(found)


def test_the_async_face_comes_on_demand():
    found = modules_after("import lifehold; lifehold.AsyncLock")
    assert "asyncio" in found
    assert "trio" not in found
    assert not found & {"logging.config", "psutil", "trio"}


def test_every_public_name_is_there_and_no_other_is_promised():
    for name in lifehold.__all__:
        assert getattr(lifehold, name) is not None
    assert len(lifehold.__all__) <= 38
    with pytest.raises(AttributeError, match="no attribute 'Lok'"):
        lifehold.Lok  # noqa: B018
    assert set(lifehold.__all__) <= set(dir(lifehold)) | {"AsyncLock"}


def test_the_documented_import_paths_lead_to_the_same_things():
    program = """
import lifehold.stores.migrations
from lifehold.stores import aconnect, connect, migrations
from lifehold.stores.migrations import downgrade, include_name, sql, upgrade
from lifehold.aio import (
    AsyncLease, AsyncLock, AsyncReadWriteLock, AsyncSemaphore, aonce, lock_all
)
import lifehold, lifehold.aio, lifehold.stores
assert lifehold.stores.migrations.upgrade is upgrade is migrations.upgrade
assert lifehold.stores.migrations is sys.modules["lifehold.stores.migrations"]
assert lifehold.connect is connect and lifehold.aconnect is aconnect is lifehold.aio.aconnect
assert lifehold.AsyncReadWriteLock is AsyncReadWriteLock
assert lifehold.lock_all is not lock_all
"""
    modules_after(program)


def test_the_records_of_events_have_a_public_path_and_keep_their_first_one():
    from lifehold import events
    from lifehold.core import events as first

    records = {each.__name__ for each in first.Event.__args__}
    assert set(events.__all__) == records | {"Event", "subscribe"}
    assert all(getattr(events, name) is getattr(first, name) for name in events.__all__)


@pytest.mark.parametrize("url", ["file:///tmp", "memory://", "sqlite:////tmp/none.db"])
def test_a_store_brings_nothing_of_other_stores(url):
    found = modules_after(f"import lifehold; lifehold.connect({url!r})")
    ours = {name for name in found if name.startswith("lifehold.store.")}
    assert url != "file:///tmp" or not ours, ours
    assert not [name for name in ours if "postgres" in name]
