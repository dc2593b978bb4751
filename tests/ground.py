"""What a test stands on: root, namespaces, a tool, a file system, a package, a server.

    from ground import needs

    @needs("root", "unshare")
    def test_a_killed_holder_of_another_pid_namespace_frees_the_lock(): ...

A test whose ground is missing is not run, and counted under that reason in the last lines of the
run; it never passes silently. Each piece of ground is tried once per run, by doing the thing
rather than by looking at versions. Besides the names in `TRIED` there are two families:
`command:NAME` (an executable on PATH) and `package:NAME` (a Python package).
Inside a test or a fixture, `require("strace")` does the same for what is only known there.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NOBODY = 65534


def needs(*names: str) -> pytest.MarkDecorator:
    """Mark a test as standing on all of `names`; an unknown name fails the test."""
    return pytest.mark.needs(*names)


def require(*names: str) -> None:
    """Skip the running test, for the counted reason, unless all of `names` are here."""
    for name in names:
        why = missing(name)
        if why is not None:
            pytest.skip(reason(name, why))


def reason(name: str, why: str) -> str:
    """The text under which a test that was not run is counted."""
    return f"needs {name}: {why}" if why else f"needs {name}"


@functools.cache
def missing(name: str) -> str | None:
    """Why `name` is not here, "" when its name says it all, None when it is here."""
    family, _, rest = name.partition(":")
    if family == "command" and rest:
        return None if shutil.which(rest) else "no such command"
    if family == "package" and rest:
        return None if _importable(rest) else "not installed"
    if name not in TRIED:
        raise LookupError(f"tests/ground.py knows no ground called {name!r}")
    return TRIED[name]()


def _importable(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # the parent of a dotted name is missing
        return False


def _runs(*command: str) -> str | None:
    """None when `command` ends with status 0; else the last thing it said."""
    if not shutil.which(command[0]):
        return f"no command {command[0]}"
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    except subprocess.TimeoutExpired:
        return f"{command[0]} did not end"
    said = (done.stderr or done.stdout).strip().splitlines()
    return None if done.returncode == 0 else (said[-1] if said else f"status {done.returncode}")


def _root() -> str | None:
    return None if hasattr(os, "geteuid") and os.geteuid() == 0 else ""


def _filelock(version: str) -> str | None:
    """The real one, of PYTHONPATH."""
    if not _importable("filelock"):
        return "not installed"
    found = importlib.metadata.version("filelock")
    return None if found.startswith(version) else f"it is {found}"


def _platform(*names: str) -> Callable[[], str | None]:
    return lambda: None if sys.platform.startswith(names) else f"this is {sys.platform}"


def _file_system(kind: str) -> Callable[[], str | None]:
    """Can this machine make a `kind` in a file and mount it?"""

    def mounts() -> str | None:
        if _root() is not None:
            return "needs root to mount"
        with tempfile.TemporaryDirectory(prefix="ground-") as folder:
            image, mount = Path(folder, "image"), Path(folder, "mount")
            mount.mkdir()
            with image.open("wb") as file:
                file.truncate(320 << 20)
            why = _runs(f"mkfs.{kind}", "-q", str(image)) or _runs(
                "mount", "-o", "loop", str(image), str(mount)
            )
            if why is None:
                subprocess.run(["umount", str(mount)], check=True)
            return why

    return mounts


def _tmpfs() -> str | None:
    if _root() is not None:
        return "needs root to mount"
    return _runs("unshare", "-m", "mount", "-t", "tmpfs", "none", tempfile.gettempdir())


def _fuse() -> str | None:
    """A FUSE file system in Python, mounted and read: a kernel, a device and a libfuse for it."""
    if _root() is not None:
        return "needs root to mount"
    if not _importable("mfusepy"):
        return "mfusepy is not installed"
    if "fuse" not in _file_systems() or not Path("/dev/fuse").exists():
        return "the kernel has no FUSE"
    tries = (sys.executable, str(HERE / "faults" / "lying_mount.py"), "--try")
    return _runs("unshare", "-m", *tries)


def _python_of_others() -> str | None:
    """May another user run this Python with lifehold in it? Not where it lies under /root."""
    if _root() is not None:
        return "needs root to be another user"
    other = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
    why = _runs(*other, sys.executable, "-c", "import json, logging, lifehold.cli.main")
    return why if why is None else f"another user may not run {sys.executable}"


def _strace() -> str | None:
    return _runs("strace", "-f", "-o", os.devnull, "-e", "trace=flock", "true")


def _file_systems() -> list[str]:
    path = Path("/proc/filesystems")
    return path.read_text().split() if path.exists() else []


def _memory_cgroup() -> str | None:
    if _root() is not None:
        return "needs root to limit"
    from faults.deaths import memory_cgroup

    return None if memory_cgroup() else "no memory cgroup can be made"


def _postgres() -> str | None:
    if not _importable("psycopg"):
        return "psycopg is not installed"
    from servers import postgres

    return postgres.missing()


def _pgbouncer() -> str | None:
    if _postgres() is not None:
        return _postgres()
    from servers import pgbouncer

    return pgbouncer.missing()


def _redis() -> str | None:
    if not _importable("redis"):
        return "the client redis is not installed"
    from servers import redis

    return redis.missing()


def _all_processes() -> str | None:
    from lifehold.runtime.process import sees_all_processes

    return None if sees_all_processes() else "some are hidden: a container, or hidepid"


def faketime() -> str | None:
    """The library that steps the clock of a program, None where there is none."""
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    return str(found[0]) if found else None


TRIED: dict[str, Callable[[], str | None]] = {
    "root": _root,
    "user": lambda: None if _root() == "" else "this is root",
    "linux": _platform("linux"),
    "libfaketime": lambda: None if faketime() else "not installed",
    "windows": _platform("win32", "cygwin"),
    "macos": _platform("darwin"),
    "fork": lambda: None if hasattr(os, "fork") else "",
    "proc": lambda: None if Path("/proc/self/stat").exists() else "/proc is not mounted",
    "all processes": _all_processes,
    "unshare": lambda: _runs("unshare", "-m", "-p", "-f", "--mount-proc", "true"),
    "user namespace": lambda: _runs("unshare", "--user", "--map-root-user", "true"),
    "timens": lambda: _runs("unshare", "-T", "--boottime", "100", "-f", "true"),
    "strace": _strace,
    "flock": lambda: _runs("flock", "--version"),
    "tmpfs": _tmpfs,
    "memory cgroup": _memory_cgroup,
    "overlay": lambda: None if "overlay" in _file_systems() else "the kernel has no overlay",
    "fuse": _fuse,
    "python of others": _python_of_others,
    "ext4": _file_system("ext4"),
    "xfs": _file_system("xfs"),
    "btrfs": _file_system("btrfs"),
    "filelock 3": lambda: _filelock("3."),
    "filelock 4": lambda: _filelock("4."),
    "postgres": _postgres,
    "pgbouncer": _pgbouncer,
    "redis": _redis,
    "two cpus": lambda: None if (os.cpu_count() or 1) >= 2 else "one only",
}
