"""`lifehold.compat.install`: programs that import filelock get lifehold's face."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from ground import needs
from lifehold import InvalidArgument
from lifehold.compat import install

pytestmark = needs("linux")


def run(code, *args):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, args)],
        capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip


def test_a_program_that_imports_filelock_gets_the_face(tmp_path):
    done = run(
        """
        import sys
        from lifehold.compat import install
        assert install("filelock") is install("filelock")
        import filelock, filelock.asyncio
        from filelock import FileLock, SoftFileLock, Timeout
        from filelock._error import Timeout as Same
        from filelock._api import BaseFileLock
        from filelock.asyncio import AsyncFileLock
        import lifehold.compat.filelock as ours
        assert FileLock is ours.FileLock and Same is Timeout is ours.Timeout
        assert issubclass(FileLock, BaseFileLock) and AsyncFileLock is ours.AsyncFileLock
        with FileLock(sys.argv[1]) as lock:
            print(filelock.__version__, lock.lease.token > 0)
        """,
        tmp_path / "a.lock",
    )
    assert (done.stdout, done.stderr) == ("4.2.11 True\n", "")


@pytest.mark.parametrize("name", ["filelock.kernel", "filelock.unix", "filelock.swap"])
def test_no_file_of_ours_is_loaded_a_second_time(name):
    done = run(f"""
        from lifehold.compat import install
        install("filelock")
        try:
            import {name}
        except ModuleNotFoundError:
            print("refused")
    """)
    assert done.stdout == "refused\n"


def test_a_package_that_is_in_use_is_not_replaced(tmp_path):
    (tmp_path / "filelock.py").write_text("FileLock = 'the real one'\n")
    done = run(
        """
        import sys
        sys.path.insert(0, sys.argv[1])
        import filelock
        from lifehold.compat import install
        try:
            install("filelock")
        except ImportError as error:
            print(error, type(error).__name__)
        assert sys.modules["filelock"].FileLock == "the real one"
        """,
        tmp_path,
    )
    assert "imported already" in done.stdout, done.stderr
    assert done.stdout.endswith("AlreadyImported\n")


def test_a_name_without_a_face_is_refused():
    with pytest.raises(InvalidArgument, match="filelock"):
        install("json")
