"""The modelled file system answers as real ones do: random calls are played on both and compared.

Compared after each call: the answer or its errno, and of every name there is its kind, size, link
count and content, and which names lead to one inode. Inode numbers themselves differ, and so do
folder sizes. `SEQUENCES=20000 pytest tests/explore/test_filesystem.py` for a longer run.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ground import needs
from lifehold.local.files import (
    HOST,
    LOCK_EX,
    LOCK_NB,
    LOCK_SH,
    LOCK_UN,
    NAMELESS,
    READ_ONLY,
    READ_WRITE,
)
from lifehold.testing.explore import Model, World
from lifehold.testing.model import Error
from lifehold.testing.world import ROOT

SEQUENCES = int(os.environ.get("SEQUENCES", "120"))
LENGTH = 60
ROOT_NAMES = ["/a", "/b", "/d"]
NAMES = [*ROOT_NAMES, "/d/a", "/d/e", "/d/e/a", "/a/x"]
ME = 1
Call = tuple[Any, ...]


def calls(dice: random.Random, descriptors: list[int]) -> Call:
    """One call with random arguments."""
    path, other = dice.choice(NAMES), dice.choice(NAMES)
    fd = dice.choice(descriptors) if descriptors else 0
    on_names = [
        (
            "open",
            path,
            dice.choice([READ_WRITE, READ_ONLY, os.O_WRONLY, READ_ONLY | os.O_DIRECTORY]),
        ),
        ("open", path, READ_WRITE | os.O_CREAT, 0o644),
        ("open", path, READ_WRITE | os.O_CREAT | os.O_EXCL, 0o600),
        ("open", path, READ_WRITE | os.O_TRUNC),
        ("open", dice.choice(["/", path]), READ_WRITE | NAMELESS, 0o600),
        ("lstat", path),
        ("link", path, other),
        ("rename", path, other),
        ("unlink", path),
        ("mkdir", path),
        ("makedirs", path, True),
        ("rmdir", path),
        ("listdir", dice.choice(["/", path])),
        ("truncate", path, dice.choice([0, 3, 9])),
    ]
    on_descriptors = [
        ("close", fd),
        ("fstat", fd),
        ("flock", fd, dice.choice([LOCK_EX | LOCK_NB, LOCK_SH | LOCK_NB, LOCK_UN])),
        ("flock", fd, dice.choice([LOCK_EX | LOCK_NB, LOCK_SH | LOCK_NB])),
        ("pread", fd, dice.choice([4, 100]), dice.choice([0, 2, 50])),
        ("pwrite", fd, dice.choice([b"", b"xyz", b"0123456789"]), dice.choice([0, 2, 12])),
        ("truncate", fd, dice.choice([0, 5])),
        ("fchmod", fd, dice.choice([0o600, 0o666])),
        ("fsync", fd),
        ("guard", fd),
        ("guard", fd, False),
        ("link_fd", fd, path),
    ]
    return dice.choice(on_descriptors if descriptors and dice.random() < 0.5 else on_names)


class Real:
    """The operating system, under a folder that stands for "/", with the model's numbers."""

    def __init__(self, root: Path) -> None:
        self.root, self.fds = str(root), dict[int, int]()

    def play(self, call: Call) -> Any:
        op, *arguments = call
        given = [self.root + item if isinstance(item, str) else item for item in arguments]
        named = (
            "close",
            "fstat",
            "flock",
            "pread",
            "pwrite",
            "fchmod",
            "fsync",
            "guard",
            "link_fd",
        )
        if op in named or (op == "truncate" and isinstance(given[0], int)):
            given[0] = self.fds[given[0]]
        function = getattr(HOST, op, None) or getattr(os, op)
        try:
            if op == "makedirs":
                return function(given[0], exist_ok=given[1])
            return function(*given)
        except OSError as error:
            return Error(error.errno)

    def end(self) -> None:
        for fd in self.fds.values():
            os.close(fd)


def compared(call: Call, real: Any, modelled: Any) -> None:
    """The two answers are the same, as far as they can be."""
    op = call[0]
    if isinstance(real, Error) or isinstance(modelled, Error):
        assert real == modelled, (name_of(real), name_of(modelled))
    elif op in ("lstat", "fstat"):
        assert stat.S_IFMT(real.st_mode) == stat.S_IFMT(modelled.st_mode)
        if stat.S_ISREG(real.st_mode):
            assert real.st_mode == modelled.st_mode
            assert (real.st_nlink, real.st_size) == (modelled.st_nlink, modelled.st_size)
    elif op == "listdir":
        assert sorted(real) == list(modelled)
    elif op != "open":
        assert real == modelled


def name_of(answer: Any) -> Any:
    return errno.errorcode[answer.errno] if isinstance(answer, Error) else answer


def compared_trees(root: str, world: World) -> None:
    """Every name is on both sides, and leads to the same."""
    numbers: dict[int, int] = {ROOT: os.lstat(root).st_ino}
    there = {"/"}
    for folder, folders, files in os.walk(root):
        there |= {os.path.join(folder, name)[len(root) :] for name in (*folders, *files)}
    assert there == set(world.names)
    for name in sorted(there):
        found, ino = os.lstat(root + name), world.names[name]
        node = world.nodes[ino]
        assert numbers.setdefault(ino, found.st_ino) == found.st_ino, name
        if node.kind == stat.S_IFREG:
            assert Path(root + name).read_bytes() == node.data, name
            assert found.st_nlink == world.links(ino), name
    assert len(set(numbers.values())) == len(numbers)


class Xfs(Model):
    """Told apart from ext4 and tmpfs by one errno."""

    over_full_folder = errno.EEXIST


def play(seed: int, root: Path, model: Model) -> list[Call]:
    """One random sequence on both; returns what was played."""
    dice, world, real = random.Random(seed), World(), Real(root)
    played: list[Call] = []
    try:
        for _ in range(LENGTH):
            call = calls(dice, sorted(real.fds))
            played.append(call)
            ((modelled, world),) = model.outcomes(world, ME, call)
            answer = real.play(call)
            compared(call, answer, modelled)
            if call[0] == "open" and not isinstance(answer, Error):
                real.fds[modelled] = answer
            if call[0] == "close":
                del real.fds[call[1]]
            compared_trees(str(root), world)
        return played
    except AssertionError as error:
        raise AssertionError(f"seed {seed}, after {played}: {error}") from error
    finally:
        real.end()


def play_many(folder: Path) -> None:
    model = Xfs() if file_system(folder) == "xfs" else Model()
    old = os.umask(0o022)
    seen: set[str] = set()
    try:
        for seed in range(SEQUENCES):
            root = Path(tempfile.mkdtemp(dir=folder))
            seen |= {call[0] for call in play(seed, root, model)}
            shutil.rmtree(root)
    finally:
        os.umask(old)
    assert len(seen) == 19, seen


def file_system(path: Path | str) -> str:
    """The kind of file system a path is on."""
    done = subprocess.run(
        ["stat", "-f", "-c", "%T", str(path)], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@needs("linux", "root")
def test_the_model_answers_as_the_file_system_of_the_checkout_does():
    with tempfile.TemporaryDirectory(dir=Path(__file__).parent) as folder:
        play_many(Path(folder))


@needs("linux", "root")
@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="needs /dev/shm")
def test_the_model_answers_as_tmpfs_does():
    assert file_system("/dev/shm") == "tmpfs"
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        play_many(Path(folder))


@pytest.fixture(params=["ext4", "xfs"])
def image(request, tmp_path) -> Iterator[Path]:
    """A fresh file system of that kind in a file."""
    mount = tmp_path / "mount"
    mount.mkdir()
    with (tmp_path / "image").open("wb") as file:
        file.truncate(320 << 20)
    subprocess.run([f"mkfs.{request.param}", "-q", tmp_path / "image"], check=True)
    subprocess.run(["mount", "-o", "loop", tmp_path / "image", mount], check=True)
    yield mount
    subprocess.run(["umount", mount], check=True)


@needs("linux", "ext4", "xfs")
def test_the_model_answers_as_ext4_and_xfs_do(image):
    folder = image / "here"  # not the root, where lost+found is
    folder.mkdir()
    play_many(folder)
