"""Two names that change places in one step, as filelock's own breakers do it.

A breaker puts a complete file of its own under `<lock>.break.<pid>.<32 hex>`, exchanges it with the
lock, and looks at what it took. Was it the file that it had judged, that is removed and the lock is
the breaker's. Else somebody was faster: it is put back.

What may go wrong, and what keeps it:
- Two breakers nest: A has taken S, B has taken A's file for S. B's look tells it, and it gives A's
  file back. Until then the path leads to a file of a live process, so nobody else comes in.
- A breaker dies before it gives back: the path names a dead process, and the live holder's file
  lies under the breaker's name. So whoever finds a dead process at the path looks for such files
  first (`restored`), claims one by renaming it to `<lock>.restore.<pid>.<32 hex>`, and puts it
  back. Where two want to, one rename fails, and he waits.
- A release looks just before the exchange and unlinks just after it: it removes the breaker's own
  file. The breaker then waits for nobody, and removes what it took, which nobody holds any more.
  Not what it takes after that: somebody may have come in meanwhile, and gets his file back.
- A breaker gives up, and a live holder's file stays aside: what cannot be read is left in its place
  as long as there is such a file of a live process.
- A holder that releases while its file is taken must not leave a live record to be put back: it
  writes "released" into it (softfile.py), which ages out.
"""

from __future__ import annotations

import contextlib
import errno
import os
from typing import TYPE_CHECKING, Any

from ...runtime import clock as host_clock
from ...runtime import fork
from .whose import LONGEST, STRICT, Named, of_later, read

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...local.record_handle import Paper

AT_FDCWD, RENAME_EXCHANGE = -100, 2
NOT_OFFERED = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EXDEV)
STALL, GIVE_UP, STEP = 0.01, 2.0, 0.0005  # seconds of putting back


def exchange(one: str, other: str) -> bool:
    """Both names change places. False where the file system cannot. Raises OSError."""
    found = _load()
    if found is None:
        return False
    call, get_errno = found
    if not call(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE):
        return True
    code = get_errno()
    if code in NOT_OFFERED:
        return False
    raise OSError(code, os.strerror(code), one, None, other)


class _Call:
    loaded: Any = ()


def _load() -> Any:
    if _Call.loaded == ():
        rename: Any = fork.lazily("lifehold.local.files")
        _Call.loaded = rename._load()
    return _Call.loaded


def aside(path: str, pid: int, kind: str = "break") -> str:
    """A name beside a lock that says what it is there for, and whose it is."""
    return f"{path}.{kind}.{pid}.{os.urandom(16).hex()}"


def leads(files: Any, path: str, key: tuple[int, int]) -> bool | None:
    """Whether a name is of that file; None when it is of none."""
    found = where(files, path)
    return None if found is None else found == key


def give_back(
    files: Any, path: str, name: str, ours: Paper, clock: Any = host_clock
) -> None:  # fmt: skip
    """After an exchange that took the wrong file: until our own is under `name` again.

    Who has taken ours from the path will give it back within some system calls; who stalls is fed,
    which opens a ring of breakers; who is dead leaves it to `restored`.
    """
    key, begun = (ours.dev, ours.ino), clock.now()
    feed_at = begun + STALL
    taken = there = where(files, name)
    while there is not None and there != key:
        now, here = clock.now(), where(files, path)
        gone = not files.fstat(ours.fd).st_nlink
        if there == taken and (gone or here is None):
            break  # its release has removed what it found at the path: it is nobody's any more
        if now >= begun + GIVE_UP and (gone or here not in (None, key)):
            return
        try:
            if here is None:
                files.link(name, path)  # of one who came in after that release, and was taken
                break
            if gone or here == key or now >= feed_at:
                if not files.exchange(name, path):
                    return
                feed_at = now + STALL
            else:
                clock.pause(STEP)
        except (FileNotFoundError, FileExistsError):
            pass  # look again
        there = where(files, name)
    try:
        files.unlink(name)
    except FileNotFoundError:
        pass


def where(files: Any, path: str) -> tuple[int, int] | None:
    """Which file has a name; None for none."""
    try:
        found = files.lstat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def replaced(
    files: Any, path: str, judged: Paper, stamp: float, ours: Paper, clock: Any = host_clock
) -> bool:  # fmt: skip
    """Put `ours`, which has a name, in the place of `judged`. False: somebody was faster.

    `stamp`: its time of change when it was judged: a holder may have touched it since. Raises
    OSError; then nothing has changed.
    """
    key, name = (judged.dev, judged.ino, stamp), ours.name
    try:
        found = files.lstat(path)
        if (found.st_dev, found.st_ino, found.st_mtime) != key or not files.exchange(name, path):
            return False
    except FileNotFoundError:
        return False  # released meanwhile
    ours.name = ""  # what has that name now may be somebody's
    try:
        found = files.lstat(name)
        if (found.st_dev, found.st_ino, found.st_mtime) == key:
            files.unlink(name)
            return True
    except BaseException:
        give_back(files, path, name, ours, clock)
        raise
    give_back(files, path, name, ours, clock)
    return False


def restored(
    files: Any,
    path: str,
    dead: Paper,
    pids: tuple[int, int],
    lives: Callable[[Named], bool],
    gone: Any,
) -> bool:  # fmt: skip
    """Whether a live holder's file may lie aside, left by the dead breaker that the path names.

    True: the lock counts as held; when it could be, the file is back in its place. `pids`:
    the breaker's, and ours. `lives`: whether a record's process does, other than the breaker's own;
    `gone(pid)`: whether a claimant is dead. Breaker 0: any, as what is at the path names none.
    """
    pid, me = pids
    folder = os.path.dirname(path)
    for each, kind, number in stranded(files, path):
        if kind == "break" and number != pid:
            if not pid and _lives(files, os.path.join(folder, each), lives):
                return True  # taken by one who was stopped, or is at work, and not given back yet
            continue
        if kind == "restore" and number != me and not gone(number):
            return True  # somebody is at it
        claim, name = aside(path, me, "restore"), os.path.join(folder, each)
        try:
            files.rename(name, claim)
            content = _content(files, claim)
        except OSError:
            with contextlib.suppress(OSError):
                files.rename(claim, name)  # for who can read it
            return True
        named = read(content)
        kept = not content or content == STRICT or of_later(content)
        if not kept and (named is None or not lives(named)):
            files.unlink(claim)
            continue
        try:
            if leads(files, path, (dead.dev, dead.ino)) and files.exchange(claim, path):
                if leads(files, claim, (dead.dev, dead.ino)):
                    files.unlink(claim)
                    return True
                files.exchange(claim, path)  # a peer came between: what we took is its
        except OSError:
            return True
        files.rename(claim, aside(path, pid))
        return True
    return False


def _lives(files: Any, name: str, lives: Callable[[Named], bool]) -> bool:
    try:
        content = _content(files, name)
    except OSError:
        return True
    named = read(content)
    kept = not content or content == STRICT or of_later(content)
    return kept or (named is not None and lives(named))


def stranded(files: Any, path: str) -> list[tuple[str, str, int]]:
    """What breakers have beside a lock: file name, "break" or "restore", process number."""
    folder, name = os.path.split(path)
    found = []
    for each in files.listdir(folder or "/"):
        if each.startswith(name):
            parts = each[len(name) :].split(".")
            if len(parts) == 4 and not parts[0] and parts[1] in ("break", "restore"):
                if whole(parts[2], "0123456789") and whole(parts[3], "0123456789abcdef"):
                    if 0 < int(parts[2]) < 1 << 31:
                        found.append((each, parts[1], int(parts[2])))
    return sorted(found)


def whole(text: str, letters: str) -> bool:
    return 0 < len(text) <= 32 and not text.strip(letters)


def _content(files: Any, name: str) -> bytes:
    from ...local.files import READ_ONLY

    fd = files.open(name, READ_ONLY)
    try:
        content: bytes = files.pread(fd, LONGEST + 1, 0)
    finally:
        files.close(fd)
    return content
