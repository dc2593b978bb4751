"""A folder of bids, as lockfolder lays it out: their names, their text, who wrote them.

A bid is `<GUID>.json`, a JSON object with `PID` and `CREATED`, the second at which that process
began. Ours is a record of lifehold with these two members in it, so that lockfolder reads it too,
and its token is the ticket: its place in the line, 0 while it is being chosen.
Promise: a bid of ours is whole from the instant at which it has its name, which is used once.
L2  A bid of lockfolder has a bare process number: its process is gone when no process has it, or
    when the one that has it began after the bid was written. Only where all processes are seen.
"""

from __future__ import annotations

import errno
import os

from ..core.errors import InvalidArgument, UnsafeGround
from ..core.liveness import ALIVE, DEAD, UNKNOWN, Verdict
from ..core.owner import INITIAL_PID_NAMESPACE
from ..core.value import value
from ..runtime import fork, process
from ..runtime.boot import began_at
from ..runtime.process import here
from . import marker as form
from .files import READ_ONLY
from .marker import OURS, SIZE, WAITING, Marker
from .named import is_bid, is_entry
from .numbered import refuse_other_kind
from .record import MAGIC
from .refusals import is_number, mixed_kinds
from .stake import Stake

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .descriptors import Descriptors
    from .files import Files
    from .paper import Paper

EMPTY = "an empty bid: its writer was stopped, or died, in the middle"
UNREADABLE = (
    "it has the name of a bid and cannot be read as one: remove it, if nobody is just writing it"
)
END, ASIDE = ".json", ".lifehold-"


class Bid(Stake):
    """An open bid of ours. `at`, `pid`: what its waiter waits for.

    `last`: whose bid that is, when its witness tells of its end; `ahead`: that name and the bid,
    open, while we stand in the kernel's queue for its witness; `before`, `behind`: bids whose
    ticket, which does not change, is earlier or later; `choosing`, `unsure`: whether the one we
    wait for is being chosen, or cannot be judged.
    """

    __slots__ = ("ahead", "at", "before", "behind", "choosing", "last", "name", "pid", "unsure")

    def __init__(self, table: Descriptors, path: str, name: str, flags: int, mode: int) -> None:
        self.name, self.at, self.last = name, "", ""
        self.pid: int | None = None
        self.ahead: tuple[str, Paper] | None = None
        self.before: dict[str, int] = {}
        self.behind: frozenset[str] = frozenset()
        self.choosing = self.unsure = False
        super().__init__(table, path, flags, mode)


@value
class Found:
    """A bid as found. `ticket`: None of one that has none, 0 while it is being chosen."""

    name: str
    marker: Marker
    ticket: int | None = None
    pid: int | None = None
    created: int | None = None

    @property
    def is_empty(self) -> bool:
        """Nothing is in it, or what a power failure leaves of a text that was not on the disk."""
        return not self.marker.content.strip(b"\0")

    @property
    def place(self) -> int:
        """Its place in line, which does not change; 0 of one that has none yet, or no more."""
        waits = self.marker.state == OURS and self.marker.stage == WAITING
        return self.ticket or 0 if waits else 0

    def stands_before(self, mine: tuple[int, str]) -> bool:
        """Whether who wrote it, if it lives, has the lock or comes first."""
        if self.marker.state != OURS or self.marker.stage != WAITING:
            return True
        return not self.ticket or (self.ticket, self.name) < mine


def new_name() -> str:
    """The name of a bid: a random GUID of version 4."""
    digits = bytearray(os.urandom(16))
    digits[6] = digits[6] & 0x0F | 0x40
    digits[8] = digits[8] & 0x3F | 0x80
    text = digits.hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:])) + END


def aside(name: str) -> str:
    """The name of a bid before it is published: lockfolder reads whatever ends in .json."""
    return ASIDE + name.removesuffix(END)


def nonce_in(name: str) -> str:
    """The random digits of a name."""
    return name.removesuffix(END).replace("-", "")


def listed(files: Files, path: str) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """(the bids in a folder, the temporary names); None when there is no folder.

    What has another name is nobody's bid and left alone. Raises InvalidArgument for what is no
    folder, UnsafeGround for one of another kind.
    """
    try:
        names = files.listdir(path)
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        refuse_other_kind(files, path, "folder")
        raise InvalidArgument(
            f"{path!r} is a file, as kinds 'kernel', 'soft' and 'link' make one; kind 'folder' "
            "needs a folder of its own there, and the two do not exclude each other: use one kind "
            "everywhere, or another path",
            name=path,
        ) from None
    for name in names:
        if is_entry(name) or is_number(name):
            other = "directory" if is_entry(name) else "generation"
            raise UnsafeGround(mixed_kinds(path, "folder", other), name=path)
    left = tuple(name for name in names if name.startswith(ASIDE))
    return tuple(sorted(filter(is_bid, names))), left


def read(files: Files, fd: int, name: str) -> Found:
    """A bid, whoever wrote it."""
    marker = form.read(files.pread(fd, SIZE, 0))
    if marker.state == OURS:
        return Found(name, marker, marker.token or 0)
    if is_ours(marker):
        return Found(name, marker)
    json: Any = fork.lazily("json")
    try:
        found = json.loads(marker.content)
        pid, created = found["PID"], found["CREATED"]
        whole = type(pid) is int and type(created) is int
        if whole and 0 < pid < 1 << 31 and 0 <= created < 1 << 40:
            return Found(name, marker, pid=pid, created=created)
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    return Found(name, marker)


def is_ours(marker: Marker) -> bool:
    """Whether a lifehold wrote it, be it torn or of a version that this one does not know."""
    return marker.content.startswith(MAGIC)


def members() -> str:
    """What lockfolder looks for in a bid: this process, and when it began."""
    owner = here()
    began = None if owner.start_ticks is None else began_at(owner.start_ticks)
    return f',"PID":{owner.pid},"CREATED":{int(began or 0)}'


def verdict_of_foreign(seen: Found, written_at: float) -> Verdict:
    """Whether the writer of a bid of lockfolder lives. `written_at`: the file's mtime."""
    if seen.is_empty:
        return Verdict(UNKNOWN, EMPTY)
    if seen.pid is None or seen.created is None:
        return Verdict(UNKNOWN, f"{seen.name}: {UNREADABLE}")
    ground = process.ground(True, None)
    if ground.here.pid_ns != INITIAL_PID_NAMESPACE or not ground.sees_all:
        return Verdict(
            UNKNOWN, f"a bare process number {seen.pid}, and not all processes are visible here"
        )
    now = process.look(seen.pid)
    if not now.exists or now.is_zombie or now.is_thread:
        return Verdict(DEAD, f"no process {seen.pid} any more")
    began = None if now.start_ticks is None else began_at(now.start_ticks)
    if began is None:
        return Verdict(UNKNOWN, f"some process has the number {seen.pid}")
    if abs(began - seen.created) <= 1:
        return Verdict(ALIVE, f"process {seen.pid} runs, same start time")
    if began > max(seen.created, written_at) + 1:  # not so after the clock was set back
        return Verdict(DEAD, f"{seen.pid} was given to another process, after the bid was made")
    return Verdict(UNKNOWN, f"process {seen.pid} runs, and the clock was set since it began")


def opened(files: Files, path: str, name: str) -> int | None:
    """A descriptor of a bid; None when it is gone, -1 when it may not be read."""
    try:
        fd: int = files.open(f"{path}/{name}", READ_ONLY)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in (errno.EACCES, errno.ELOOP, errno.EISDIR, errno.ENXIO):
            return -1
        raise
    return fd


def unseen(name: str) -> Found:
    """A bid that may not be read."""
    return Found(name, Marker(form.UNREADABLE, b"?"))


def remove(files: Files, path: str, name: str) -> bool:
    """Remove a bid by its name, which no other grant has. False: it was gone."""
    try:
        files.unlink(f"{path}/{name}")
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise
        return False
    return True
