"""The page "Mixed tools": every cell of its table is played, in both orders of events."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
import uuid
from pathlib import Path

import pytest

from ground import needs
from lifehold import InvalidArgument, Lock, NotAcquired, ReadWriteLock, Semaphore, UnsafeGround
from lifehold.core.errors import SystemRefused

pytestmark = needs("linux")
PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "mixed.md"
IN, OUT, REFUSED = "in", "out", "refused"


def kind(name, **options):
    return lambda path: Lock(path, kind=name, **options).acquire(0)


OURS = {
    "`kernel`": kind("kernel"),
    "`kernel`, `exclusive=False`": kind("kernel", exclusive=False),
    "`ReadWriteLock`, a writer": lambda path: ReadWriteLock(path).acquire_write(0),
    "`ReadWriteLock`, a reader": lambda path: ReadWriteLock(path).acquire_read(0),
    "`Semaphore`": lambda path: Semaphore(path, 1).acquire(0),
    "`soft`": kind("soft"),
    "`link`": kind("link"),
    "soft `ReadWriteLock`": lambda path: ReadWriteLock(path, kind="soft").acquire_read(0),
    "`generation`": kind("generation"),
    "`directory`": kind("directory"),
    "`folder`": kind("folder"),
}


def opened(path, call, operation):
    """What a tool does that locks an open file."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        call(fd, operation | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise
    return lambda: os.close(fd)


def made_file(path):
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    os.write(fd, b"%d\n" % os.getpid())
    os.close(fd)
    return lambda: os.unlink(path)


def made_folder(path):
    os.mkdir(path)
    return lambda: os.rmdir(path)


def bid(path):
    """As lockfolder: somebody else's bid is in the way. Of a process that lives."""
    os.makedirs(path, exist_ok=True)
    if any(name.endswith(".json") for name in os.listdir(path)):
        raise FileExistsError(path)
    name = f"{path}/{uuid.uuid4()}.json"
    Path(name).write_text(json.dumps({"PID": os.getppid(), "CREATED": time.time()}))
    return lambda: os.unlink(name)


THEIRS = {
    "flock(2), exclusive": lambda path: opened(path, fcntl.flock, fcntl.LOCK_EX),
    "flock(2), shared": lambda path: opened(path, fcntl.flock, fcntl.LOCK_SH),
    "fcntl(2), lockf(3)": lambda path: opened(path, fcntl.lockf, fcntl.LOCK_EX),
    "a file, by O_EXCL or link(2)": made_file,
    "mkdir(2)": made_folder,
    "lockfolder": bid,
}
# Where both orders keep the other out, and a third one does not: see below.
REMOVED = {(row, col) for row in ("`soft`", "`link`") for col in THEIRS if col.startswith("flock")}


def table():
    """(ours, theirs) -> the word of the page."""
    lines = iter(PAGE.read_text().splitlines())
    head = next(line for line in lines if line.startswith("| ours |"))
    columns = [cell.strip() for cell in head.strip("|").split("|")][1:]
    next(lines)
    found = {}
    for line in lines:
        if not line:
            break
        name, *words = (cell.strip() for cell in line.strip("|").split("|"))
        found |= {(name, column): word for column, word in zip(columns, words, strict=True)}
    return found


def theirs_beside(ours, theirs, path):
    """What the other tool meets while ours is held."""
    lease = ours(path)
    try:
        theirs(path)()
    except OSError:
        return OUT
    else:
        return IN
    finally:
        with contextlib.suppress(Exception):  # a tool that puts things into our folder
            lease.release()


def ours_beside(ours, theirs, path):
    """And what ours meets while it holds."""
    let_go = theirs(path)
    try:
        ours(path).release()
    except NotAcquired:
        return OUT
    except (InvalidArgument, UnsafeGround, SystemRefused):
        return REFUSED
    else:
        return IN
    finally:
        with contextlib.suppress(OSError):
            let_go()


def test_the_table_has_a_cell_for_each_of_ours_and_of_theirs():
    assert set(table()) == {(row, column) for row in OURS for column in THEIRS}


@pytest.mark.parametrize("row", OURS)
@pytest.mark.parametrize("column", THEIRS)
def test_a_cell_says_what_happens(tmp_path, row, column):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    said = table()[row, column]
    found = (
        theirs_beside(OURS[row], THEIRS[column], str(tmp_path / "one" / "lock")),
        ours_beside(OURS[row], THEIRS[column], str(tmp_path / "two" / "lock")),
    )
    meant = {
        (OUT, OUT): "no" if (row, column) in REMOVED else "yes",
        (OUT, REFUSED): "refused",
        (IN, IN): "together" if column.endswith("shared") else "no",
    }.get(found, "no")
    assert said == meant, found
    if said in ("yes", "together"):  # and each goes on when the other has let go
        THEIRS[column](str(tmp_path / "one" / "lock"))()
        OURS[row](str(tmp_path / "two" / "lock")).release()


@pytest.mark.parametrize("row", ["`soft`", "`link`"])
def test_a_waiting_flock_has_locked_a_file_that_went_away_with_our_release(tmp_path, row):
    path = str(tmp_path / "lock")
    lease = OURS[row](path)
    fd = os.open(path, os.O_RDWR)  # it has opened the file, and waits
    lease.release()
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # and is in
    OURS[row](path).release()  # so are we
    os.close(fd)
