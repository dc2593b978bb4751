"""All processes that can be seen, looked at once: what each has open, where it works, its numbers.

Promise: what could not be looked into is counted, and nobody takes silence of those for absence.
"""

from __future__ import annotations

import os

from ...core.value import value
from ...local.proc_locks import KERNEL_THREAD, processes, stat_fields
from ...runtime import process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


VARIABLES = frozenset(
    "GIT_DIR GIT_WORK_TREE GIT_COMMON_DIR GIT_INDEX_FILE RESTIC_REPOSITORY BORG_REPO".split()
)


@value
class Seen:
    """One process.

    `program`: the name that it runs under; `works_in`: its folder; `links`: of its open files;
    `numbers`: from here inwards; `hidden`: it may not be looked into; `words`: its command line.
    """

    pid: int
    program: str
    works_in: str
    links: tuple[str, ...]
    numbers: tuple[int, ...]
    hidden: bool = False
    words: tuple[str, ...] = ()


class Processes:
    """One look, made when it is first asked."""

    def __init__(self) -> None:
        self._seen: list[Seen] | None = None
        self._opened: dict[str, list[int]] | None = None
        self._numbered: dict[int, list[int]] | None = None

    @property
    def all(self) -> list[Seen]:
        if self._seen is None:
            self._seen = [found for pid in processes() if (found := self._look(pid)) is not None]
        return self._seen

    def hidden(self, programs: Iterable[str] = ()) -> int:
        """How many processes could do it unseen, of these programs, or of all."""
        wanted = tuple(programs)
        return sum(
            each.hidden and (not wanted or is_one_of(each.program, wanted)) for each in self.all
        )

    def _look(self, pid: int) -> Seen | None:
        folder = f"/proc/{pid}"
        fields = stat_fields(pid)
        if len(fields) < 7 or int(fields[6]) & KERNEL_THREAD:
            return None
        if fields[0] in (b"Z", b"X") and process.look(pid).is_zombie:
            return None
        links: list[str] = []
        hidden = False
        works_in = ""
        try:
            numbers = os.listdir(f"{folder}/fd")
            works_in = os.readlink(f"{folder}/cwd")
        except PermissionError:
            hidden, numbers = True, []
        except OSError:
            return None  # it has ended
        for fd in numbers:
            try:
                link = os.readlink(f"{folder}/fd/{fd}")
            except OSError:
                continue
            if link[:1] == "/":
                links.append(link)
        return Seen(
            pid, program_of(pid), works_in, tuple(links), tuple(process.numbers_of(pid)), hidden,
            tuple(words_of(pid)),
        )  # fmt: skip

    def having_open(self, path: str) -> list[int]:
        """Who has the file at this path open, but us."""
        real = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
        if self._opened is None:  # asked for each lock, by whoever made many of them
            self._opened = {}
            for each in self.all:
                for link in dict.fromkeys(each.links):
                    self._opened.setdefault(link, []).append(each.pid)
        return [pid for pid in self._opened.get(real, ()) if pid != os.getpid()]

    def running(self, programs: Iterable[str]) -> list[Seen]:
        """Who runs one of these programs, wherever, but us."""
        wanted = tuple(programs)
        return [each for each in self.all
                if each.pid != os.getpid() and is_one_of(each.program, wanted)]  # fmt: skip

    def working_in(self, folders: Iterable[str], programs: Iterable[str]) -> list[int]:
        """Who of these programs works in one of the folders.

        By its own folder, an open file, a word of its command or of its environment.
        """
        real = [path for each in folders if each for path in (each, os.path.realpath(each))]
        inside = tuple(f"{each.rstrip('/')}/" for each in real)
        return [
            each.pid for each in self.running(programs)
            if any(place in real or place.startswith(inside) for place in _places(each))
        ]  # fmt: skip

    def called(self, number: int) -> list[int]:
        """Who is called by this number in a PID namespace that is not ours."""
        if self._numbered is None:
            self._numbered = {}
            for each in self.all:
                for called in dict.fromkeys(each.numbers[1:]):
                    self._numbered.setdefault(called, []).append(each.pid)
        return self._numbered.get(number, [])


def _places(seen: Seen) -> list[str]:
    """The paths by which a process can be seen at work; a relative one is meant from its folder."""
    named = [word.partition("=")[2] for word in seen.words if word.startswith("-") and "=" in word]
    named += [*seen.words, *_environment(seen.pid)]
    here = seen.works_in
    told = (os.path.normpath(os.path.join(here, each)) for each in named if each)
    return [here, *seen.links, *told]


def _environment(pid: int) -> list[str]:
    """The repositories that a process was told by its environment, [] where it may not be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            pairs = [os.fsdecode(each).partition("=") for each in file.read(1 << 17).split(b"\0")]
    except OSError:
        return []
    return [told for name, _, told in pairs if name in VARIABLES]


def is_one_of(program: str, programs: Iterable[str]) -> bool:
    """Whether a process runs one of the programs: `git-remote-https` and `python3.11` do too."""
    return any(program == name or program.startswith((f"{name}-", f"{name}:", f"{name} "))
               for name in programs)  # fmt: skip


def words_of(pid: int) -> list[str]:
    """The command line of a process, [] for what cannot be read."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return os.fsdecode(file.read(4096)).split("\0")
    except OSError:
        return []


def program_of(pid: int) -> str:
    """What a process runs: of an interpreter, its script; "" for what cannot be told."""
    words = words_of(pid)
    if not words:
        return ""
    name = os.path.basename(words[0])
    rest = words[1:]
    if name.rstrip("0123456789.") in ("python", "ruby", "perl", "node", "java", "sh", "bash"):
        while rest and rest[0].startswith("-"):
            if rest.pop(0) == "-m":
                break
        if rest and rest[0]:
            name = os.path.basename(rest[0])
    return name.partition(" ")[0].rstrip(":").removesuffix(".py")
