"""What the tests of paths, users and file systems share: folders, mounts, other users, the command.

Whatever is mounted or made here is gone at the end of its `with` block, come what may.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from lifehold.testing.crash import Child

SOURCE = Path(__file__).parents[2] / "src"
NOBODY = 65534
# A user who may not read our interpreter's own folder can import nothing any more.
NEEDED_BY_OTHERS = (
    "ctypes", "encodings.ascii", "json", "logging", "pwd", "lifehold.core.explain",
    "lifehold.local.kernel_holders", "lifehold.local.kernel",
)  # fmt: skip


@contextlib.contextmanager
def folder_for_all(mode=0o755):
    """A folder that other users reach too; pytest's own are closed to them."""
    folder = Path(tempfile.mkdtemp(prefix="lifehold-"))
    try:
        folder.chmod(mode)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def as_nobody(function, *args):
    """A `Child` that runs the function as a user without any rights."""
    for module in NEEDED_BY_OTHERS:
        importlib.import_module(module)

    def stripped(*args):
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        return function(*args)

    return Child(stripped, *args)


def result(child):
    """What the child's function returned."""
    with child:
        end = child.end()
    assert end.well, end.error
    return end.value


def in_a_child(function, *args):
    """What the function returns in a process of its own, whose limits and descriptors it may use
    up."""
    return result(Child(function, *args))


def refusal_of(call, *args, **named):
    """[class, text, errno] of what the call raised, None for nothing; fit to be told by a child."""
    try:
        call(*args, **named)
    except Exception as error:
        return [type(error).__name__, str(error), getattr(error, "errno", None)]
    return None


def lifehold(*words, cwd, under=(), **environment):
    """The command, run to its end in `cwd`, where its plain names live too."""
    known = {k: v for k, v in os.environ.items() if not k.startswith("LIFEHOLD_")}
    known |= {"PYTHONPATH": str(SOURCE), "LIFEHOLD_DIR": str(cwd)} | environment
    return subprocess.run(
        [*under, sys.executable, "-m", "lifehold", *map(os.fspath, words)], cwd=cwd, env=known,
        capture_output=True, text=True, errors="surrogateescape", timeout=90, check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip


def tree(folder):
    """Every name under the folder, with its kind and size."""
    found = sorted(Path(folder).rglob("*"))
    return [(str(path), path.lstat().st_mode, path.lstat().st_size) for path in found]


def digest(path):
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def sh(command, cwd=None, shell="sh"):
    """The status of a shell's command."""
    return subprocess.run(
        [shell, "-c", command], cwd=cwd, timeout=150, check=False, capture_output=True
    ).returncode


# ---- file systems


@contextlib.contextmanager
def mounted(where, *options):
    """`mount OPTIONS where`."""
    where = Path(where)
    where.mkdir(exist_ok=True)
    subprocess.run(["mount", *map(str, options), str(where)], check=True, timeout=150)
    try:
        yield where
    finally:
        if subprocess.run(["umount", where], capture_output=True, check=False).returncode:
            subprocess.run(["umount", "-l", where], check=False)


@contextlib.contextmanager
def file_system(kind, mebibytes, base):
    """An empty file system of that kind, made in a sparse file under `base`; "tmpfs" in memory."""
    base = Path(base)
    if kind == "tmpfs":
        with mounted(base / kind, "-t", kind, "-o", f"size={mebibytes}m", "none") as where:
            yield where
        return
    image = base / f"{kind}.image"
    with image.open("wb") as file:
        file.truncate(mebibytes << 20)
    try:
        subprocess.run([f"mkfs.{kind}", "-q", image], check=True, timeout=90, capture_output=True)
        with mounted(base / kind, "-o", "loop", image) as where:
            yield where
    finally:
        image.unlink()


def fill(folder):
    """Take every block that is left; the file that has them."""
    filler = Path(folder, "filler")
    with filler.open("wb") as file:
        size = 1 << 28
        at = 0
        while size >= 1024:
            try:
                os.posix_fallocate(file.fileno(), at, size)
                at += size
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                size >>= 1
        with contextlib.suppress(OSError):  # what was reserved for the fallocate itself
            while os.pwrite(file.fileno(), b"x" * 1024, at):
                at += 1024
                os.fsync(file.fileno())
    return filler
