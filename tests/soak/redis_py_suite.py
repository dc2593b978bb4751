"""The tests that redis-py brings for its own Lock, run with ours in its place.

    python -m soak.redis_py_suite SOURCE [--keep FOLDER]      (in tests/, src on the path)

SOURCE: a checkout of redis-py, or its bare repository, from which the folder `tests` is taken. A
private Redis is started. The interpreter needs pytest-asyncio, pytest-timeout and numpy besides.
Each file runs twice: with redis-py's own Lock, the control, and with ours. Nothing of it is kept
here. Exit 1 when one fails with ours that is not in KNOWN.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from servers import redis

FILES = ("tests/test_lock.py", "tests/test_asyncio/test_lock.py")
# They replace the clock inside of redis-py's module, and count how often it sleeps there.
KNOWN = {
    "tests/test_lock.py::TestLock::test_blocking_timeout",
    "tests/test_lock.py::TestLock::test_context_manager_blocking_timeout",
    "tests/test_asyncio/test_lock.py::TestLock::test_blocking_timeout[single]",
    "tests/test_asyncio/test_lock.py::TestLock::test_blocking_timeout[pool]",
}
STAND_IN = """
import redis.asyncio.lock
import redis.lock
from lifehold.compat.redis_lock import Lock
from lifehold.compat.redis_lock.asyncio import Lock as AsyncLock
redis.lock.Lock, redis.asyncio.lock.Lock = Lock, AsyncLock
"""


def unpacked(source: Path, folder: Path) -> None:
    """The folder `tests` of the newest commit there."""
    words = ["git", "-C", str(source), "archive", "HEAD", "tests"]
    made = subprocess.run(words, check=True, capture_output=True).stdout
    subprocess.run(["tar", "x", "-C", str(folder)], input=made, check=True)


def run(folder: Path, url: str, *plugin: str) -> tuple[int, set[str]]:
    """How many passed, and which failed."""
    words = [sys.executable, "-m", "pytest", "-q", *plugin, "--redis-url", url, "-o", "addopts=",
             "-o", "asyncio_mode=auto", "--timeout", "60", "-rf", *FILES]  # fmt: skip
    source = Path(__file__).parents[2] / "src"
    done = subprocess.run(
        words, cwd=folder, text=True, capture_output=True, check=False,
        env={**os.environ, "PYTHONPATH": f"{source}:{folder}"},
    )  # fmt: skip
    failed = {line.split()[1] for line in done.stdout.splitlines() if line.startswith("FAILED ")}
    passed = re.search(r"(\d+) passed", done.stdout)
    if passed is None:
        print(done.stdout, done.stderr)
    return int(passed[1]) if passed else 0, failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="redis-py-") as name, redis.started() as server:
        folder = options.keep or Path(name)
        folder.mkdir(exist_ok=True)
        unpacked(options.source, folder)
        (folder / "stand_in.py").write_text(STAND_IN)
        passed, failed = run(folder, server.url)
        print(f"redis-py's own: {passed} passed, {len(failed)} failed")
        passed, failed = run(folder, server.url, "-p", "stand_in")
        print(f"ours: {passed} passed, {len(failed)} failed")
        for each in sorted(failed):
            print(f"  {each}{'' if each in KNOWN else '   NEW'}")
    return int(bool(failed - KNOWN) or not passed)


if __name__ == "__main__":
    raise SystemExit(main())
