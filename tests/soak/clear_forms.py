"""The locks that `clear` is raced with, each as a context manager that tells whether it is kept.

Kinds of lifehold; locks of the real tools `filelock` (SoftFileLock) and `lockfolder`, each of which
is looked for in this interpreter; and bare forms of other tools (`pid`: a number in a file;
`link-name`: a symbolic link), which nobody but `clear` breaks here.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from lifehold import Lock, NotAcquired

Held = Callable[[], contextlib.AbstractContextManager[Callable[[], object]]]
KINDS = ("soft", "link", "directory", "generation", "folder")
TOOLS = {"filelock-soft": "filelock", "lockfolder": "lockfolder"}
FORMS = (*KINDS, "pid", "link-name", *TOOLS)
NAMES = {
    "pid": "LCK..pid",
    "link-name": "SingletonLock",
    "filelock-soft": "a.lock",
    "lockfolder": "bids",
}
PATIENCE, PAUSE, BACK = 5.0, 0.0002, 1.0  # seconds


def held(folder: Path, form: str) -> tuple[Path, Held]:
    """The lock's path, and how to take it."""
    path = folder / NAMES.get(form, "a.pid")
    if form in KINDS:
        return path, _of_kind(path, form)
    if form == "filelock-soft":
        return path, _filelock(path)
    if form == "lockfolder":
        path.mkdir()
        return path, _lockfolder(path)
    return path, _bare(path, form)


def _of_kind(path: Path, kind: str) -> Held:
    @contextlib.contextmanager
    def taken() -> Iterator[Callable[[], object]]:
        with Lock(path, kind=kind).acquire(wait=PATIENCE) as lease:
            yield lease.check
            lease.check()

    return taken


def _until(made: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not made():
        if time.monotonic() > until:
            raise NotAcquired("not in time")
        time.sleep(PAUSE)


def _unmoved(path: Path, words: Callable[[], object]) -> Callable[[], None]:
    """Raises when another file stands there, or other words."""
    mine, said = os.lstat(path), words()

    def check() -> None:
        now = os.lstat(path)
        if (now.st_ino, now.st_dev) != (mine.st_ino, mine.st_dev):
            raise RuntimeError("another lock stands there")
        if words() != said:
            raise RuntimeError("another process is named there")

    return check


def _bare(path: Path, form: str) -> Held:
    link = form == "link-name"

    def made() -> bool:
        text = f"{os.getpid()}"
        try:
            if link:
                path.symlink_to(f"{os.uname().nodename}-{text}")
            else:  # written before it has its name: a name without a number proves nothing
                aside = path.with_name(f"{path.name}.{text}")
                aside.write_text(text)
                try:
                    os.link(aside, path)
                finally:
                    aside.unlink()
        except FileExistsError:
            return False
        return True

    @contextlib.contextmanager
    def taken() -> Iterator[Callable[[], object]]:
        _until(made)
        check = _unmoved(path, lambda: os.readlink(path) if link else path.read_text())
        yield check
        check()
        path.unlink()

    return taken


def _filelock(path: Path) -> Held:
    """The real SoftFileLock, which takes over from the dead by itself."""
    import filelock

    @contextlib.contextmanager
    def taken() -> Iterator[Callable[[], object]]:
        lock = filelock.SoftFileLock(path, timeout=PATIENCE, poll_interval=PAUSE)
        try:
            lock.acquire()
        except filelock.Timeout as error:
            raise NotAcquired("not in time") from error
        mine = os.lstat(path)

        def check() -> str:
            """Who judged the dead before us may exchange ours for theirs, and puts it back."""
            until = time.monotonic() + BACK
            said = ""
            while True:
                now = os.lstat(path) if os.path.lexists(path) else None
                if now is not None and (now.st_ino, now.st_dev) == (mine.st_ino, mine.st_dev):
                    return said
                said = "moved"
                if time.monotonic() > until:
                    raise RuntimeError("another lock stands there")
                time.sleep(PAUSE)

        yield check
        check()
        lock.release()

    return taken


def _lockfolder(path: Path) -> Held:
    """The real lockfolder, which removes the bids of the dead by itself."""
    from lockfolder import lockfolder

    @contextlib.contextmanager
    def taken() -> Iterator[Callable[[], object]]:
        lockfolder.setup()

        def made() -> bool:
            try:
                return bool(lockfolder.lock(path))
            except (FileNotFoundError, ValueError):  # another's bid went, or is not yet written
                _withdraw(path, lockfolder)
                return False

        _until(made)

        def check() -> None:
            if not lockfolder.have_lock(path):
                raise RuntimeError("its bid has gone")

        yield check
        check()
        lockfolder.unlock(path)

    return taken


def _withdraw(path: Path, lockfolder: object) -> None:
    with contextlib.suppress(FileNotFoundError):
        lockfolder.unlock(path)  # type: ignore[attr-defined]
