"""Each class of lifehold.compat.filelock beside the real one's, on one path: who keeps whom out."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from ground import needs
from lifehold.compat import filelock as ours

pytestmark = needs("filelock 4", "linux")

# Each line asked of it is one call: what it raised, or "done".
PEER = textwrap.dedent("""
    import importlib, sys, warnings
    warnings.simplefilter("ignore")
    module, name, path, options = sys.argv[1:]
    peer = importlib.import_module(module)
    lock = getattr(peer, name)(path, **eval(options))
    for line in sys.stdin:
        try:
            eval(line, {"lock": lock})
        except Exception as error:
            print(type(error).__name__, flush=True)
        else:
            print("done", flush=True)
""")
LEASE = {"lease_duration": 30.0}
PLAIN = [("MarkerSoftFileLock", {}), ("SoftFileLease", LEASE), ("StrictSoftFileLock", {})]
SHARED = [("ReadWriteLock", {"is_singleton": False})]
RECOVERING = PLAIN[:2]


class Peer:
    """A process of one side, which does what it is told."""

    def __init__(self, module, name, path, options):
        self.process = subprocess.Popen(
            [sys.executable, "-c", PEER, module, name, str(path), repr(options)], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def says(self, call):
        self.process.stdin.write(call + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def kill(self):
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def start():
    started = []

    def begin(*args):
        started.append(Peer(*args))
        return started[-1]

    yield begin
    for each in started:
        each.kill()


def both(start, name, path, options):
    return [start(module, name, path, options) for module in (ours.__name__, "filelock")]


@pytest.mark.parametrize(("name", "options"), PLAIN)
def test_a_holder_of_either_side_keeps_the_other_out_until_it_lets_go(
    tmp_path, start, name, options
):
    one, other = both(start, name, tmp_path / "shared.lock", options)
    for holder, contender in ((one, other), (other, one), (one, other)):
        assert holder.says("lock.acquire(timeout=60)") == "done"
        assert contender.says("lock.acquire(timeout=0.1)") == "Timeout"
        assert holder.says("lock.release()") == "done"


@pytest.mark.parametrize(("name", "options"), RECOVERING)
@pytest.mark.parametrize("killed", [0, 1], ids=["ours", "theirs"])
def test_a_killed_holder_of_one_side_is_followed_by_one_of_the_other(
    tmp_path, start, name, options, killed
):
    sides = both(start, name, tmp_path / "shared.lock", options)
    holder, contender = sides[killed], sides[1 - killed]
    assert holder.says("lock.acquire(timeout=60)") == "done"
    holder.kill()
    assert contender.says("lock.acquire(timeout=30)") == "done"


@pytest.mark.parametrize("killed", [0, 1], ids=["ours", "theirs"])
def test_a_killed_strict_holder_keeps_both_sides_out_until_its_claims_are_broken(
    tmp_path, start, killed
):
    path = tmp_path / "shared.lock"
    sides = both(start, "StrictSoftFileLock", path, {})
    holder, contender = sides[killed], sides[1 - killed]
    assert holder.says("lock.acquire(timeout=60)") == "done"
    holder.kill()
    assert contender.says("lock.acquire(timeout=0.1)") == "Timeout"
    assert contender.says("[lock.force_break(claim.name) for claim in lock.claims]") == "done"
    assert contender.says("lock.acquire(timeout=30)") == "done"


@pytest.mark.parametrize(("name", "options"), SHARED)
def test_readers_of_both_sides_go_together_and_writers_of_either_alone(
    tmp_path, start, name, options
):
    one, other = both(start, name, tmp_path / "shared.db", options)
    for first, second in ((one, other), (other, one)):
        assert first.says("lock.acquire_read(timeout=60)") == "done"
        assert second.says("lock.acquire_read(timeout=60)") == "done"
        assert second.says("lock.release()") == "done"
        assert second.says("lock.acquire_write(timeout=0.1)") == "Timeout"
        assert first.says("lock.release()") == "done"
        assert first.says("lock.acquire_write(timeout=60)") == "done"
        assert second.says("lock.acquire_read(timeout=0.1)") == "Timeout"
        assert second.says("lock.acquire_write(timeout=0.1)") == "Timeout"
        assert first.says("lock.release()") == "done"


@pytest.mark.parametrize(("name", "options"), SHARED)
@pytest.mark.parametrize("killed", [0, 1], ids=["ours", "theirs"])
def test_a_killed_writer_of_one_side_is_followed_by_one_of_the_other(
    tmp_path, start, name, options, killed
):
    sides = both(start, name, tmp_path / "shared.db", options)
    assert sides[killed].says("lock.acquire_write(timeout=60)") == "done"
    sides[killed].kill()
    assert sides[1 - killed].says("lock.acquire_write(timeout=30)") == "done"


def test_closing_ours_leaves_the_real_ones_lock_of_the_same_process(tmp_path, start):
    """POSIX locks of a process end with any close of the file; ours must not be that close."""
    path = tmp_path / "shared.db"
    code = (
        f"""__import__("lifehold.compat.filelock").compat.filelock.ReadWriteLock({str(path)!r})"""
    )
    holder = start("filelock", "ReadWriteLock", path, {"is_singleton": False})
    contender = start("filelock", "ReadWriteLock", path, {"is_singleton": False})
    assert holder.says("lock.acquire_write(timeout=60)") == "done"
    assert holder.says(f"{code}.acquire_read(timeout=0)") == "Timeout"
    assert contender.says("lock.acquire_read(timeout=0.1)") == "Timeout"
