"""Whether the holder that a foreign lock names lives. L2: only a proof makes DEAD.

A proof is one of these, each only on a file system that one kernel alone can mount, and with all
processes to be seen:
1. the kernel lock that its holder keeps on another file is free;
2. its holder keeps the file open, and nobody has it open;
3. its process is gone by identity, or its number is nobody's: in our PID namespace and in every
   other, since a container's process writes the number by which it is called there.
That a process of its number runs proves no life: it counts as the holder only when it has run since
before the lock was written, and when no other can be meant. A thread of the kernel writes no lock,
and a container's process writes the number that it has there. Neither a file's age nor the name of
a host proves anything.
"""

from __future__ import annotations

import os
import stat

from ..core.grant import Holder
from ..core.owner import ALIVE, DEAD, INITIAL_PID_NAMESPACE, UNKNOWN, LifeVerdict, Owner, judge
from ..core.value import replace, value
from ..local.files import HOST, READ_ONLY
from ..local.ground import MountInfo, ground_of
from ..local.proc_locks import (
    KERNEL_THREAD,
    is_kernel_thread,
    key_of,
    lines_of,
    processes,
    stat_fields,
)
from ..runtime import process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

NAMED = 5  # running programs
SLACK = 1.5  # seconds: a file's time is that of the last tick, and a process's begin is rounded


def judged(sight: LockPath, family: Family, claim: StatedHolder, eyes: ProcessTable) -> Holder:
    """The holder, with the verdict on it."""
    since = claim.since if claim.since is not None else sight.found.st_mtime
    owner = None
    if claim.pid is not None:
        owner = Owner(
            claim.pid,
            host=claim.host,
            user=claim.user,
            boot_id=claim.boot,
            pid_ns=claim.pid_ns,
            start_ticks=claim.ticks,
        )
    lock = f"{sight.path} ({family.title}, {sight.place.words})"
    holder = Holder(owner, since, UNKNOWN, "", lock=lock)
    verdict, pid = _verdict(sight, claim, eyes)
    if pid is not None:
        found = process.owner_of(pid)
        holder = replace(holder, owner=found, pid_here=pid)
    return replace(holder, alive=verdict.state, evidence=verdict.evidence)


def first_living(
    sight: LockPath, family: Family, claim: StatedHolder, eyes: ProcessTable
) -> tuple[Holder, StatedHolder]:
    """Of all whom a lock names one that lives, else one that may: it ends with its last holder.

    A dead one only where all are.
    """
    found = []
    for each in (claim, *claim.others):
        holder = judged(sight, family, each, eyes)
        found.append((holder, each))
        if holder.alive == ALIVE:
            return holder, each
    return next((each for each in found if each[0].alive != DEAD), found[0])


def _verdict(
    sight: LockPath, claim: StatedHolder, eyes: ProcessTable
) -> tuple[LifeVerdict, int | None]:
    """The verdict, and the process that is the holder, where it is found."""
    if claim.witness and (told := _by_witness(sight, claim)) is not None:
        return told
    if claim.pid is not None:
        return _by_number(sight, claim, eyes)
    if sight.is_file and (pids := eyes.having_open(sight.path)):
        return LifeVerdict(ALIVE, f"process {pids[0]} has the file open"), pids[0]
    if claim.works_in and (pids := _at_work(claim, eyes)):
        pid = pids[0]
        return LifeVerdict(
            ALIVE, f"process {pid} ({program_of(pid)}) works in {claim.works_in}"
        ), pid
    return _unnamed(sight, claim, eyes), None


def _unnamed(sight: LockPath, claim: StatedHolder, eyes: ProcessTable) -> LifeVerdict:
    """What names no process of this machine."""
    if claim.host is not None and not is_here(claim.host):
        return LifeVerdict(UNKNOWN, f"it names the host {claim.host}, and no process")
    if not sight.place.one_kernel:
        return LifeVerdict(UNKNOWN, "a shared file system, and it names no process")
    if claim.keeps_open and not _open_somewhere(sight):
        return LifeVerdict(
            DEAD, "its holder keeps it open, and the kernel says that nobody has it open"
        )
    hidden = eyes.hidden(claim.programs, _folders(claim))
    many = "es" * (hidden != 1)
    unseen = f"; {hidden} process{many} could not be looked into" if hidden else ""
    if not process.sees_all_processes():
        unseen += "; not all processes can be seen from here"
    if claim.keeps_open:
        return LifeVerdict(
            UNKNOWN, f"it names no process, and none is seen that has it open{unseen}"
        )
    return LifeVerdict(UNKNOWN, f"it names no process, and {_at_large(claim, eyes)}{unseen}")


def _at_work(claim: StatedHolder, eyes: ProcessTable) -> list[int]:
    return eyes.working_in(_folders(claim), claim.programs)


def _folders(claim: StatedHolder) -> tuple[str, ...]:
    return (claim.works_in, *claim.also_in)


def _at_large(claim: StatedHolder, eyes: ProcessTable) -> str:
    """What is seen of the programs that make such locks: each that runs may be the holder."""
    if not claim.programs:
        return claim.unseen or "nobody is seen who has it open"
    what = f"no {' or '.join(claim.programs[:2])} is seen at work there"
    running = eyes.running(claim.programs)
    shown = ", ".join(f"{each.pid} ({each.program})" for each in running[:NAMED])
    more = f" and {len(running) - NAMED} more" if len(running) > NAMED else ""
    return f"{what}, but it may be one of those that run: {shown}{more}" if running else what


def _open_somewhere(sight: LockPath) -> bool:
    """Asked of the kernel, by the inode: a name under which it is open may be another."""
    try:
        fd = os.open(sight.path, READ_ONLY) if sight.fd is None else sight.fd
    except OSError:
        return True
    try:
        same = os.path.samestat(os.fstat(fd), sight.found)
        return not same or bool(HOST.is_open_elsewhere(fd))
    finally:
        if sight.fd is None:
            os.close(fd)


def _by_witness(sight: LockPath, claim: StatedHolder) -> tuple[LifeVerdict, int | None] | None:
    """By the kernel lock on the file that the holder locks too; None where that says nothing."""
    try:
        fd = os.open(claim.witness, READ_ONLY)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        lines = lines_of([key_of(fd)])
    finally:
        os.close(fd)
    if lines is None:
        return None
    name = os.path.basename(claim.witness)
    held = [line for line in lines if not line.waiting]
    if held:
        pid = held[0].pid if held[0].pid > 0 and process.look(held[0].pid).exists else None
        return LifeVerdict(ALIVE, f"kernel witness: {name} is locked"), pid
    if sight.place.one_kernel and process.namespace("pid") == INITIAL_PID_NAMESPACE:
        return LifeVerdict(DEAD, f"its kernel witness is free: nobody locks {name}"), None
    return LifeVerdict(
        UNKNOWN, f"no lock is seen on {name}, but not all can be seen from here"
    ), None


def _by_number(
    sight: LockPath, claim: StatedHolder, eyes: ProcessTable
) -> tuple[LifeVerdict, int | None]:
    pid, place = claim.pid, sight.place
    assert pid is not None
    if claim.host is not None and not is_here(claim.host):
        return LifeVerdict(UNKNOWN, f"it names process {pid} of another host, {claim.host}"), None
    # One look at all processes serves all locks that are asked for together.
    ground = replace(
        process.ground(place.one_kernel, None),
        elsewhere=lambda number: next(iter(eyes.called(number)), None),
    )
    here = ground.here
    # L2  A process writes its begin as its own time namespace counts, which no foreign lock names:
    # only a process of our own time namespace can be told apart by it.
    time_ns = process.namespace("time", pid) if claim.ticks is not None else None
    owner = Owner(
        pid, boot_id=claim.boot, pid_ns=claim.pid_ns, start_ticks=claim.ticks, time_ns=time_ns
    )
    if claim.boot is not None and claim.pid_ns is None:
        owner = replace(owner, pid_ns=INITIAL_PID_NAMESPACE)
    verdict = judge(owner, ground)
    if verdict.state == ALIVE:
        return verdict, pid
    if verdict.state == DEAD:
        by_boot = claim.boot is not None and claim.boot != here.boot_id
        others = [] if by_boot else eyes.called(pid)
        if claim.works_in and (pids := _at_work(claim, eyes)):
            words = f"process {pid} is gone, and process {pids[0]} still works in {claim.works_in}"
            return LifeVerdict(ALIVE, words), pids[0]
        if claim.works_in and eyes.hidden(claim.programs, _folders(claim)):
            return LifeVerdict(
                UNKNOWN, f"{verdict.evidence}, but its children may not be seen"
            ), None
        if others:
            words = f"process {others[0]} is called {pid} in its own PID namespace: it may be meant"
            return LifeVerdict(UNKNOWN, words), None
        return verdict, None
    return _still_there(sight, claim, eyes, verdict)


def _still_there(
    sight: LockPath, claim: StatedHolder, eyes: ProcessTable, verdict: LifeVerdict
) -> tuple[LifeVerdict, int | None]:
    """Some process has the number, or not all can be seen."""
    pid = claim.pid
    assert pid is not None
    foreign = claim.pid_ns not in (None, process.namespace("pid"))
    if not sight.place.one_kernel or foreign:
        others = [
            each for each in eyes.called(pid) if process.namespace("pid", each) == claim.pid_ns
        ]
        if foreign and others:
            words = f"process {others[0]} is process {pid} of that PID namespace, and runs"
            return LifeVerdict(ALIVE, words), others[0]
        return verdict, None
    seen, began = process.look(pid), process.started_at(pid)
    if not seen.exists or seen.is_zombie or seen.is_thread or began is None:
        return verdict, None
    if is_kernel_thread(pid):
        words = f"process {pid} is a thread of the kernel: the number is another one's, it seems"
        return LifeVerdict(UNKNOWN, words), None
    if claim.created is not None:
        if abs(began - claim.created) <= SLACK:
            return LifeVerdict(ALIVE, f"process {pid} runs, begun when the lock says"), pid
        return LifeVerdict(UNKNOWN, f"process {pid} began at another time than the lock says"), None
    program = program_of(pid)
    if claim.programs and not is_one_of(program, claim.programs):
        words = (
            f"process {pid} is {program or 'another program'}: the number was given on, it seems"
        )
        return LifeVerdict(UNKNOWN, words), None
    if began >= sight.found.st_mtime + SLACK:
        words = f"process {pid} is younger than the file: the number was probably given on"
        return LifeVerdict(UNKNOWN, words), None
    if not process.sees_all_processes() and not claim.programs:
        return verdict, None
    if words := _another(sight, claim, eyes, program):
        return LifeVerdict(UNKNOWN, words), None
    return LifeVerdict(ALIVE, f"process {pid} runs since before the file was written"), pid


def _another(sight: LockPath, claim: StatedHolder, eyes: ProcessTable, program: str) -> str:
    """Which other process may be meant, in words; "" for none. `program`: of the one here.

    One that runs what the lock tells, by its family or by its name, is meant before one that
    does not.
    """
    pid = claim.pid
    assert pid is not None
    if pid == 1 and not claim.programs:
        return "process 1 is the first process, here and in each container: another may be meant"
    told = _is_named(sight, program)
    for other in eyes.called(pid):
        theirs, began = program_of(other), process.started_at(other)
        if other == pid or (claim.programs and not is_one_of(theirs, claim.programs)):
            continue
        if told and not _is_named(sight, theirs):
            continue
        if began is None or began < sight.found.st_mtime + SLACK:
            who = f"process {other} ({theirs})" if theirs else f"process {other}"
            return f"{who} is called {pid} in its own PID namespace: it may be meant"
    return ""


def _is_named(sight: LockPath, program: str) -> bool:
    """Whether a lock is called after a program: `nginx.pid`, `crond.pid` of cron."""
    name = sight.name.partition(".")[0]
    return bool(name) and (
        is_one_of(program, (name,)) or (len(program) > 2 and name.startswith(program))
    )


def is_here(host: str) -> bool:
    """Whether a host's name is ours: with its domain or without."""
    ours = process.host_name() or ""
    one, other = host.lower().rstrip("."), ours.lower()
    if one.partition(".")[0] == "localhost":  # what getfqdn(3) answers where no name is known
        return True
    return one == other or (
        one.partition(".")[0] == other.partition(".")[0] and not ("." in one and "." in other)
    )


# ------------------------------------------------------------------------------------------------
# What stands at a path, and what a family of locks makes of it.
#
# Promise: a symbolic link is read and not followed, a FIFO or device is not opened, and nothing is
# written or locked. What vanishes meanwhile is empty.


LONGEST = 4096  # bytes of a file that are read
MOST = 1000  # names of a folder that are read


class LockPath:
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
        self._place: MountInfo | None = None
        self._content: bytes | None = None
        self._names: list[str] | None = None

    @property
    def place(self) -> MountInfo:
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
class StatedHolder:
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
    `frees`: it is written over and not removed, and says now that nobody holds it; `others`: who
    holds it together with this one, each judged by itself.
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
    others: tuple[StatedHolder, ...] = ()


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
    read: Callable[[LockPath], StatedHolder | None]
    kernel: bool = False
    also_locks: bool = True
    doubt: Callable[[str], str] | None = None


def together(found: Iterable[StatedHolder]) -> StatedHolder:
    """The claim of all who hold one lock; that nobody does for none. Each is judged once."""
    each = list({(one.pid, one.host, one.pid_ns): one for one in found}.values())
    if not each:
        return StatedHolder(frees=True)
    many = () if len(each) <= MOST else (StatedHolder(words=f"there are {len(each)} holders"),)
    return replace(each[0], others=(*each[1:MOST], *many))


def number(text: str | bytes, largest: int = 1 << 22) -> int | None:
    """A process number, None for what cannot be one."""
    shown = text.strip()
    if not shown.isdigit() or not shown.isascii() or len(shown) > 10:
        return None
    found = int(shown)
    return found if 0 < found <= largest else None


# ------------------------------------------------------------------------------------------------
# All processes that can be seen, looked at once: what each has open, where it works, its numbers.
#
# Promise: what could not be looked into is counted, and nobody takes silence of those for absence.
# The links of a process name files of its own mount namespace: of another one they count only
# where they name the same file here.


VARIABLES = frozenset(
    "GIT_DIR GIT_WORK_TREE GIT_COMMON_DIR GIT_INDEX_FILE RESTIC_REPOSITORY BORG_REPO".split()
)


@value
class SeenProcess:
    """One process.

    `program`: the name that it runs under; `works_in`: its folder; `links`: of its open files;
    `numbers`: from here inwards; `hidden`: it may not be looked into; `words`: its command line;
    `elsewhere`: its mount namespace is not ours.
    """

    pid: int
    program: str
    works_in: str
    links: tuple[str, ...]
    numbers: tuple[int, ...]
    hidden: bool = False
    words: tuple[str, ...] = ()
    elsewhere: bool = False

    def shares(self, folder: str) -> bool:
        """Whether the path of a folder means to it what it means to us."""
        return not self.elsewhere or process.shares_path(self.pid, folder)


class ProcessTable:
    """One look, made when it is first asked."""

    def __init__(self) -> None:
        self._seen: list[SeenProcess] | None = None
        self._opened: dict[str, list[int]] | None = None
        self._numbered: dict[int, list[int]] | None = None

    @property
    def all(self) -> list[SeenProcess]:
        if self._seen is None:
            self._seen = [found for pid in processes() if (found := self._look(pid)) is not None]
        return self._seen

    def hidden(self, programs: Iterable[str] = (), folders: Iterable[str] = ()) -> int:
        """How many processes could do it unseen, of these programs, or of all.

        `folders`: where they would work; unseen are those too to whom such a path is another one.
        L2  What may not be looked into, and does not tell its program, may be any of them.
        """
        wanted, real = tuple(programs), {os.path.realpath(each) for each in folders if each}
        return sum(
            each.hidden or not all(map(each.shares, real))
            for each in self.all
            if not wanted or is_one_of(each.program, wanted) or (each.hidden and not each.program)
        )

    def _look(self, pid: int) -> SeenProcess | None:
        fields = stat_fields(pid)
        if len(fields) < 7 or int(fields[6]) & KERNEL_THREAD:
            return None
        if fields[0] in (b"Z", b"X") and process.look(pid).is_zombie:
            return None
        works_in, links, whole = _looked_into(pid)
        if not whole and _has_ended(pid):
            return None
        return SeenProcess(
            pid,
            program_of(pid),
            works_in,
            links,
            tuple(process.numbers_of(pid)),
            not whole,
            tuple(words_of(pid)),
            process.namespace("mnt", pid) != process.namespace("mnt"),
        )

    def having_open(self, path: str) -> list[int]:
        """Who has the file at this path open, but us."""
        real = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
        if self._opened is None:  # asked for each lock, by whoever made many of them
            self._opened = {}
            for each in self.all:
                for link in dict.fromkeys(each.links):
                    key = os.path.basename(link) if each.elsewhere else link
                    self._opened.setdefault(key, []).append(each.pid)
        others = dict.fromkeys(self._opened.get(os.path.basename(path), ()))
        found = [*self._opened.get(real, ()), *(pid for pid in others if _has_open(pid, path))]
        return [pid for pid in found if pid != os.getpid()]

    def running(self, programs: Iterable[str]) -> list[SeenProcess]:
        """Who runs one of these programs, wherever, but us."""
        wanted = tuple(programs)
        return [
            each for each in self.all if each.pid != os.getpid() and is_one_of(each.program, wanted)
        ]

    def working_in(self, folders: Iterable[str], programs: Iterable[str]) -> list[int]:
        """Who of these programs works in one of the folders.

        By its own folder, an open file, a word of its command or of its environment.
        """
        real = {os.path.realpath(each): each for each in folders if each}
        found = []
        for seen in self.running(programs):
            shared = [path for each in real.items() if seen.shares(each[0]) for path in each]
            inside = tuple(f"{each.rstrip('/')}/" for each in shared)
            if any(f"{place.rstrip('/')}/".startswith(inside) for place in _places(seen)) or any(
                _stands_in(seen.pid, folder) for folder in real
            ):
                found.append(seen.pid)
        return found

    def called(self, number: int) -> list[int]:
        """Who is called by this number in a PID namespace that is not ours."""
        if self._numbered is None:
            self._numbered = {}
            for each in self.all:
                for called in dict.fromkeys(each.numbers[1:]):
                    self._numbered.setdefault(called, []).append(each.pid)
        return self._numbered.get(number, [])


def _where(pid: int) -> str:
    """Where /proc tells of a process, also when its first thread has ended and others run on."""
    return process.living_thread(pid) or f"/proc/{pid}"


def _looked_into(pid: int) -> tuple[str, tuple[str, ...], bool]:
    """The folder of a process, the links of its open files, and whether all of these were read."""
    works_in, links, whole = "", [], True
    root = _where(pid)
    try:
        works_in = os.readlink(f"{root}/cwd")
    except OSError:
        whole = False
    try:
        numbers = os.listdir(f"{root}/fd")
    except OSError:
        numbers, whole = [], False
    for fd in numbers:
        try:
            link = os.readlink(f"{root}/fd/{fd}")
        except OSError as error:
            whole = whole and isinstance(error, FileNotFoundError)  # closed meanwhile
            continue
        if link[:1] == "/":
            links.append(link)
    return works_in, tuple(links), whole


def _has_ended(pid: int) -> bool:
    """L2  Only by its entry in /proc: what is not to be read of a process proves no end of it.

    The path of its folder may be too long for a link (ENAMETOOLONG).
    """
    seen = process.look(pid)
    return not seen.exists or seen.is_zombie


def _stands_in(pid: int, folder: str) -> bool:
    """Whether a process has this very folder as its own, whatever it calls it."""
    try:
        return os.path.samestat(os.stat(f"{_where(pid)}/cwd"), os.stat(folder))
    except OSError:
        return False


def _has_open(pid: int, path: str) -> bool:
    """Whether a process has the very file at `path` open, whatever it calls it."""
    name, root = os.path.basename(path), _where(pid)
    try:
        found, numbers = os.lstat(path), os.listdir(f"{root}/fd")
    except OSError:
        return False
    for fd in numbers:
        at = f"{root}/fd/{fd}"
        try:
            if os.path.basename(os.readlink(at)) == name and os.path.samestat(os.stat(at), found):
                return True
        except OSError:
            continue
    return False


def _places(seen: SeenProcess) -> list[str]:
    """The paths by which a process can be seen at work; a relative one is meant from its folder."""
    named = [word.partition("=")[2] for word in seen.words if word.startswith("-") and "=" in word]
    named += [*seen.words, *_environment(seen.pid)]
    here = seen.works_in
    told = (os.path.normpath(os.path.join(here, each)) for each in named if each)
    return [here, *seen.links, *told]


def _environment(pid: int) -> list[str]:
    """The repositories that a process was told by its environment, [] where it may not be read."""
    try:
        with open(f"{_where(pid)}/environ", "rb") as file:
            pairs = [os.fsdecode(each).partition("=") for each in file.read(1 << 17).split(b"\0")]
    except OSError:
        return []
    return [told for name, _, told in pairs if name in VARIABLES]


def is_one_of(program: str, programs: Iterable[str]) -> bool:
    """Whether a process runs one of the programs: `git-remote-https` and `python3.11` do too."""
    return any(
        program == name or program.startswith((f"{name}-", f"{name}:", f"{name} "))
        for name in programs
    )


def words_of(pid: int) -> list[str]:
    """The command line of a process, [] for what cannot be read."""
    try:
        with open(f"{_where(pid)}/cmdline", "rb") as file:
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
