"""What stands at a path, and what a family of locks makes of it.

Promise: a symbolic link is read and not followed, a FIFO or device is not opened, and nothing is
written or locked. What vanishes meanwhile is empty.
"""

from __future__ import annotations

import os
import stat

from ...core.value import value
from ...local.files import HOST, READ_ONLY
from ...local.ground import Place, ground_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

LONGEST = 4096  # bytes of a file that are read
MOST = 1000  # names of a folder that are read


class Sight:
    """A path, looked at once.

    `found`: its lstat(2); `place`: the file system that it lies on; `fd`: of the file, when it is
    open already.
    """

    def __init__(
        self, path: str, found: os.stat_result | None = None, fd: int | None = None
    ) -> None:
        self.path, self.fd = path, fd
        self.found = os.lstat(path) if found is None else found
        self.folder, self.name = os.path.split(path.rstrip("/"))
        self._place: Place | None = None
        self._content: bytes | None = None
        self._names: list[str] | None = None

    @property
    def place(self) -> Place:
        if self._place is None:
            self._place = ground_of(self.folder or "/")
        return self._place

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.found.st_mode)

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.found.st_mode)

    @property
    def target(self) -> str:
        """Where a symbolic link leads, "" for what is none."""
        if not stat.S_ISLNK(self.found.st_mode):
            return ""
        try:
            return os.readlink(self.path)
        except OSError:
            return ""

    @property
    def content(self) -> bytes:
        """The first bytes of a regular file; nothing where it must not be read."""
        if self._content is None:
            self._content = read(self.path, LONGEST) if self.is_file else b""
        return self._content

    @property
    def text(self) -> str:
        """The same as text, "" for what is none."""
        try:
            text = self.content.decode()
        except UnicodeDecodeError:
            return ""
        return "" if "\0" in text else text

    @property
    def names(self) -> list[str]:
        """What a folder contains, the first names of it."""
        if self._names is None:
            self._names = listed(self.path) if self.is_folder else []
        return self._names

    def beside(self, name: str) -> str:
        """The path of a neighbour."""
        return os.path.join(self.folder, name)


def read(path: str, longest: int) -> bytes:
    """The beginning of a regular file, b"" for what cannot be read."""
    try:
        fd = os.open(path, READ_ONLY)
    except OSError:
        return b""
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return b""
        content: bytes = HOST.pread(fd, longest, 0)
        return content
    except OSError:
        return b""
    finally:
        os.close(fd)


def listed(folder: str) -> list[str]:
    """Some names of a folder, in order; [] for what is none."""
    names = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                names.append(entry.name)
                if len(names) >= MOST:
                    break
    except OSError:
        return []
    return sorted(names)


@value
class Claim:
    """What a lock says of its holder, before anybody judges it.

    `pid`, `host`, `user`, `since` (UTC seconds): as written there, None for what is not; `ticks`,
    `boot`, `pid_ns`: of its process, where the format has them; `created`: UTC seconds of its
    process's begin, as written; `witness`: the path whose kernel lock its holder keeps;
    `keeps_open`: its holder has the file open as long as it holds it; `works_in`: a folder that its
    holder works in, or `also_in` one of these; `programs`: the names of those who take such locks;
    `words`: what else it tells; `stale`: the family's own command that clears it safely, "" for
    ours; `unseen`: why nobody can be seen who holds it, where it is not by an open file;
    `waits`: a command that waits for it by the rule of its family, and leaves it free; `kept`: why
    nobody may remove it;
    `takes_over`: whoever wants it next proves the death itself, and takes it over in one step;
    `frees`: it is written over and not removed, and says now that nobody holds it.
    """

    pid: int | None = None
    host: str | None = None
    user: str | None = None
    since: float | None = None
    ticks: int | None = None
    boot: str | None = None
    pid_ns: int | None = None
    created: float | None = None
    witness: str = ""
    keeps_open: bool = False
    works_in: str = ""
    also_in: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    words: str = ""
    unseen: str = ""
    stale: str = ""
    waits: str = ""
    kept: str = ""
    takes_over: bool = False
    frees: bool = False


@value
class Family:
    """One kind of lock of other tools.

    `name`: one word, for programs; `title`: for people; `read`: the claim of what is there, None
    when it is not of this family; `kernel`: its lock is the kernel's, the file is nothing without;
    `also_locks`: a program that writes such a file may lock it by the kernel as well, so `clear`
    empties it and never removes it (L7). False only of families that lock by presence alone.
    `doubt`: why one that is found in a tree may be no lock but data, "" for no doubt. None: what
    `read` asks for is never data.
    """

    name: str
    title: str
    read: Callable[[Sight], Claim | None]
    kernel: bool = False
    also_locks: bool = True
    doubt: Callable[[str], str] | None = None


def number(text: str | bytes, largest: int = 1 << 22) -> int | None:
    """A process number, None for what cannot be one."""
    shown = text.strip()
    if not shown.isdigit() or not shown.isascii() or len(shown) > 10:
        return None
    found = int(shown)
    return found if 0 < found <= largest else None
