"""`build_once`: a folder that is built by one, and is there as a whole for all.

Promise: whoever comes back from `build_once(path, build)` finds at `path` all that one `build`
made; a crash at any instant leaves nothing there, and the next one builds. Rule: `once` decides who
builds and tells the others; recipes/once_build_site.py puts the folder in its place.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Any

from ..core.errors import InvalidArgument, LeaseLost, SystemRefused
from ..face import lock_path
from ..local.descriptors import files_for
from ..local.refusals import make_folders
from ..runtime import fork
from .once import once
from .once_build_site import Site

if TYPE_CHECKING:
    from collections.abc import Callable

    from .once_build_site import Staging

LOCK = ".lock"  # behind the path of the folder


def build_once(
    path: str | os.PathLike[str], build: Callable[[str], object], *, flush: bool = True,
    keep_failure: float | None = 0.0, **options: Any,
) -> str:  # fmt: skip
    """The absolute path of a folder that `build` has made, in this process or in another.

    `build(staging)`: fills an empty folder beside `path`, which is then renamed to `path`. A folder
    with something in it that is there already is the answer, at once and without a lock, whoever
    made it. `flush`: have all of it on the disk before it can be seen, so that power loss leaves no
    half of it.
    `keep_failure`: seconds for which a failure counts for those who did not wait, by default 0.
    `options`: of the `Lock`, which is the file `path` + ".lock".

    Raises OnceFailed when `build` raised an Exception, here or there; LeaseLost when our lock was
    lost and nothing is there; what `Lock.acquire` raises. Not promised: that `build` never runs
    twice; of two results the first stays.
    """
    if not callable(build):
        raise InvalidArgument(f"build must be callable, not {type(build).__name__} {build!r}")
    if not hasattr(os, "fwalk"):
        raise SystemRefused("build_once needs Unix, where a folder can be renamed over another")
    target = target_of(path)
    site = Site(files_for(target), target, remove)
    if site.published():
        return target
    make_folders(site.files, target)

    def run() -> str:
        nonce = os.urandom(8).hex()
        site.clear(nonce)
        staging = site.begin(nonce)
        pid = os.getpid()
        try:
            build(staging.path)
            put_in_place(site, staging, flush)
        finally:
            if os.getpid() == pid and os.path.isdir(staging.path):
                remove(staging.path)
            staging.close()
        return target

    there = {"unless": lambda: site.published() and target, "keep_failure": keep_failure}
    try:
        return str(once(target + LOCK, run, **there, **options))
    except LeaseLost:
        if site.published():
            return target  # by whoever took over, or by us before
        raise


def target_of(path: Any) -> str:
    given = os.fspath(path) if isinstance(path, os.PathLike) else path
    if isinstance(given, str) and given.strip("/") in ("", ".", ".."):
        raise InvalidArgument(f"path must name the folder to be built, not {given!r}")
    if not isinstance(given, str):
        return lock_path(given)  # says what it may be
    return lock_path(given.rstrip("/") + LOCK).removesuffix(LOCK)


def put_in_place(site: Site, staging: Staging, flush: bool) -> None:
    try:
        empty = not os.listdir(staging.path)
        if flush:
            _flush(staging.path)
    except FileNotFoundError:
        empty = False  # cleared away; publish() tells
    if empty:
        raise InvalidArgument(
            f"build left nothing in the folder that becomes {site.target!r}: an empty folder "
            "cannot be told from one that is yet to be built",
            name=site.target,
        )
    if staging.publish() and flush:
        _flush_one(site.folder)


def _flush(path: str) -> None:
    """All files and folders in there, to the disk. What we may not open is left to sync(2)."""
    hidden = False
    for _, _, names, fd in os.fwalk(path):
        for name in names:
            if stat.S_ISREG(os.lstat(name, dir_fd=fd).st_mode):
                try:
                    file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
                except PermissionError:
                    hidden = True
                    continue
                try:
                    os.fsync(file)
                finally:
                    os.close(file)
        os.fsync(fd)
    if hidden:
        os.sync()


def _flush_one(folder: str) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def remove(path: str) -> None:
    """A folder with all that is in it, also where a build took away the right to write.

    What cannot be removed is left to the next one.
    """
    shutil: Any = fork.lazily("shutil")
    try:
        for _, _, _, fd in os.fwalk(path):
            os.fchmod(fd, 0o700)
        shutil.rmtree(path, ignore_errors=True)
    except OSError:
        return
