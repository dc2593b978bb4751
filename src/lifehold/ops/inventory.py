"""The locks of a folder: ours by their record, those of other tools by what the kernel shows.

Promise: one look at the kernel's table and one at each file that can be a lock; no file is opened
that cannot be ours, and a file that vanishes meanwhile is left out. Takes no lock, but for the
momentary try of `who` from inside a PID namespace.
"""

from __future__ import annotations

import itertools
import os
import stat

from ..core.errors import CorruptRecord, InvalidArgument, LifeholdError, SystemRefused
from ..core.grant import Holder
from ..core.mask import printable
from ..core.owner import ALIVE, INITIAL_PID_NAMESPACE
from ..core.value import value
from ..local import kernel_semaphore, lock_names, record, record_folders
from ..local.files import HOST, READ_ONLY
from ..local.ground import mounts_below, place_of_path
from ..local.kernel_holders import WITNESS, KernelWaiter, queue_in
from ..local.proc_locks import FLOCK, GONE, OFD, POSIX, OpenFile, OpenFileScan, by_file, key_of
from ..local.soft_readwrite import SUFFIX, is_marker
from ..runtime import fork, process
from . import families
from .answer import FREE, HELD, STALE, SUSPECT, LockAnswer
from .foreign import PATIENCE, ForeignFiles, inode_of, several
from .who import (
    FolderMissing,
    answer_existence,
    answer_present,
    answer_readers,
    as_it_runs,
    one_look,
    settled,
    unread,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..local.proc_locks import KernelLine, Key
    from . import stored
else:
    stored = fork.later("lifehold.ops.stored", globals())

ORDER = {STALE: 0, SUSPECT: 1, HELD: 2, FREE: 3}


def names_in(folder: str) -> list[str]:
    """The lock files of plain names in a folder, which may be missing."""
    try:
        with os.scandir(folder) as entries:
            found = {lock_of(e): e for e in entries}
            return [
                name
                for name, e in found.items()
                if name.endswith(lock_names.SUFFIX) and (is_plain(e) or is_kept_in(e))
            ]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise refused(folder, error) from error


def names() -> dict[str, str]:
    """The path of every lock with a plain name, and what to call it.

    In the folder in use it is called by its name, in others by its path.
    """
    paths = {}
    for number, folder in enumerate(lock_names.candidates()):
        try:
            files = names_in(folder)
        except SystemRefused:
            if number == 0:
                raise
            continue  # root's own, of no concern to other users' names
        for file in files:
            name, path = file.removesuffix(lock_names.SUFFIX), f"{folder}/{file}"
            usable = number == 0 and name.isprintable() and name[:1] not in ("", "-")
            paths[path] = name if usable else path
    return paths


def of_names() -> list[LockAnswer]:
    """Every lock with a plain name."""
    return of_paths(names(), every=True)


def of_folder(
    folder: str,
    *,
    deep: bool = False,
    left: bool = False,
    tell: Callable[[int], None] | None = None,
) -> list[LockAnswer]:
    """Every lock in `folder`, `deep`: and in all below it. Raises FolderMissing, SystemRefused.

    `left`: also what the dead have left under the names that records have before they are locks.
    Nobody waits for those; the next takeovers sweep them. `tell`: hears now and then how many files
    were seen.
    """
    if lock_names.is_store(folder):
        return stored.answers(folder)
    tree = LockTree(folder, tell)
    tree.read(folder, deep=deep)
    found = of_paths({path: path for path in tree.paths})
    found += [LockAnswer(each, each, SUSPECT, note=unread_folder(each)) for each in tree.unread]
    if left:
        of_left = of_paths({path: path for path in tree.left})
        found += [each for each in of_left if each.state == STALE]
    return found


def unread_folder(path: str) -> str:
    """What the answer for a folder says that could not be looked into."""
    return f"'{printable(path)}' could not be read"


def is_unread(answer: LockAnswer) -> bool:
    """Whether it is no lock, but a folder that could not be looked into."""
    return answer.note == unread_folder(answer.path)


def of_paths(paths: dict[str, str], *, every: bool = False) -> list[LockAnswer]:
    """The answer for each path with its name, without those that have vanished.

    `every`: each of them is a lock. Else what nobody locks and nobody knows is left out.
    """

    def ask(some: list[str]) -> list[LockAnswer | None]:
        return several(some, lambda at, files: _safe(paths[some[at]], some[at], files, every))

    return [as_it_runs(each) for each in settled(list(paths), ask) if each is not None]


def _safe(name: str, path: str, files: ForeignFiles, every: bool) -> LockAnswer | None:
    """L13  The same, whatever the file makes of it: one hostile file hides no other."""
    try:
        return _of(name, path, files, every)
    except FileNotFoundError:
        return None  # it went while we looked
    except Exception as error:  # noqa: BLE001
        return unread(name, path, error)


def _of(name: str, path: str, files: ForeignFiles, every: bool) -> LockAnswer | None:
    """The answer for one file; None when it has vanished."""
    if files.not_to_open and inode_of(path) in files.not_to_open:
        return _worth(_asked(name, path, files), every)
    if (answer := answer_present(name, path) or answer_readers(name, path)) is not None:
        return answer
    if (locked := files.inodes) is None:
        return _worth(_asked(name, path, ForeignFiles([path])), every)
    try:
        found = os.lstat(path)
        counted = (
            found.st_size == kernel_semaphore.LENGTH
        )  # a semaphore is held where its slots are
        if stat.S_ISREG(found.st_mode) and found.st_ino not in locked and not counted:
            return _unlocked(name, path, found, files, every)
    except FileNotFoundError:
        return None
    except OSError as error:
        return LockAnswer(name, path, SUSPECT, note=f"it cannot be read here: {error.strerror}")
    return _worth(_asked(name, path, files), every)


def _worth(answer: LockAnswer | None, every: bool) -> LockAnswer | None:
    """The answer, unless it is only that nobody locks what may be no lock at all."""
    if every or answer is None or answer.state != FREE or answer.last is not None:
        return answer
    if answer.family not in ("", "flock"):
        return answer
    return answer if answer.kind != "flock" or _ours(answer.path) else None


def _unlocked(
    name: str, path: str, found: os.stat_result, files: ForeignFiles, every: bool
) -> LockAnswer | None:
    """What no kernel lock is on: free, another tool's, or no lock at all."""
    last = _last(path) if found.st_size else None
    if last is None and found.st_size and _ours(path):  # L12  damaged, or of a newer version
        return _asked(name, path, files)
    if last is not None or every:
        return LockAnswer(name, path, FREE, last=last, family="lifehold")
    return answer_existence(name, path, files.eyes, found)


def _ours(path: str) -> bool:
    """Whether it bears a record of ours, damaged as it may be."""
    return families.LockPath(path).content.startswith(record.MAGIC)


def _asked(name: str, path: str, files: ForeignFiles) -> LockAnswer | None:
    """What `who` says of one file."""
    try:
        return one_look(name, path, False, files, False)
    except (FileNotFoundError, FolderMissing, InvalidArgument):
        return None  # it has gone, or become something else
    except CorruptRecord as error:
        return LockAnswer(name, path, SUSPECT, note=error.text)
    except OSError as error:
        return LockAnswer(name, path, SUSPECT, note=f"it cannot be read here: {error.strerror}")


def _last(path: str) -> Holder | None:
    """Whom the record of a free lock names; None also for one that is damaged or of others."""
    fd = os.open(path, READ_ONLY)
    try:
        found = record.parse(HOST.pread(fd, record.SIZE, 0))
    except CorruptRecord:
        return None
    finally:
        os.close(fd)
    return record.as_holder(found, "") if found is not None and not found.torn else None


# ------------------------------------------------------------------------------------------------
# The files of a folder, or of a whole tree, that can be locks.
#
# Promise: no symbolic link is followed, so no loop is entered; no other file system is: what hangs
# there holds nobody up. A folder that may not be read, or vanishes, is counted and left out. Of a
# file that cannot be a lock nothing but its name is read.


FIRST = 16  # names of a folder, by which it is known
STEP = 5_000  # files after which progress is told


class LockTree:
    """The paths that are worth a question. `unread`: folders that could not be read.

    `left`: records, and folders of them, that are not in their place: being made, or of the dead.
    """

    def __init__(self, folder: str, tell: Callable[[int], None] | None = None) -> None:
        self.paths: list[str] = []
        self.left: list[str] = []
        self.unread: list[str] = []
        self._kept: set[str] = set()  # folders that are one lock: their records are none
        self.seen = 0
        self._tell = tell
        self._locked = locked_in(folder)
        self._mounts: frozenset[str] = frozenset()

    def read(self, folder: str, *, deep: bool) -> None:
        """Raises FolderMissing, SystemRefused of the folder itself."""
        try:
            self._mounts = mounts_below(folder)
            inner = self._look(folder)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise FolderMissing(f"'{printable(folder)}' is not a folder") from error
        except OSError as error:
            raise refused(folder, error) from error
        while deep and inner:
            each = inner.pop()
            try:
                inner += self._look(each)
            except FileNotFoundError:
                continue
            except OSError:
                self.unread.append(each)

    def _look(self, folder: str) -> list[str]:
        """Notes what can be a lock; the folders in it, but for those of other file systems."""
        inner = []
        of_restic = families.keeps_restic_locks(folder)
        with os.scandir(folder) as entries:
            for entry in entries:
                self.seen += 1
                if self._tell is not None and self.seen % STEP == 0:
                    self._tell(self.seen)
                path = os.path.join(folder, entry.name)
                if is_folder(entry):
                    if path in self._mounts:
                        continue
                    if kept := is_kept_in(entry):
                        self._kept.add(path)
                    if kept and record.is_unpublished(entry.name):
                        self.left.append(path)
                        continue
                    inner.append(path)
                    if kept or families.may_be(entry.name):
                        self.paths.append(os.path.join(folder, lock_of(entry)))
                    continue
                of_lock = is_marker(entry.name) or record_folders.kind_of([entry.name])
                if of_lock and folder in self._kept:
                    continue
                locked = entry.inode() in self._locked
                named = families.may_be(entry.name) or (of_restic and families.is_id(entry.name))
                if entry.name.endswith("-shm") and os.path.lexists(path.removesuffix("-shm")):
                    continue  # of an SQLite database, whose answer tells of it
                if record.is_unpublished(entry.name) and has_record(entry):
                    self.left.append(path)
                elif locked or named or has_record(entry):
                    self.paths.append(path)
        return inner


def locked_in(folder: str) -> frozenset[int]:
    """The inodes of a folder's file system on which the kernel's table shows a lock."""
    table = by_file()
    if table is None:
        return frozenset()
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FolderMissing(f"'{printable(folder)}' is not a folder") from error
    except OSError as error:
        raise refused(folder, error) from error
    try:
        device = key_of(fd).device
    finally:
        os.close(fd)
    return frozenset(key.inode for key in table if key.device == device)


def is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False


def is_plain(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file(follow_symlinks=False)
    except OSError:
        return False


def is_kept_in(entry: os.DirEntry[str]) -> bool:
    """Whether it is a folder that is a lock, or that of a lock's readers, by its first names."""
    try:
        if not is_folder(entry):
            return False
        with os.scandir(entry.path) as inside:
            names = [each.name for each in itertools.islice(inside, FIRST)]
    except PermissionError:
        return entry.name.endswith(SUFFIX)  # by its own name: who is in cannot be read
    except OSError:
        return False
    if entry.name.endswith(SUFFIX):
        return any(map(is_marker, names))
    return record_folders.kind_of(names) != ""


def lock_of(entry: os.DirEntry[str]) -> str:
    """The name of the lock that a folder of readers belongs to; of all else its own."""
    front, mark, _ = entry.name.rpartition(SUFFIX)
    of_readers = mark and entry.name.endswith(mark) and front and is_kept_in(entry)
    return front if of_readers else entry.name


def has_record(entry: os.DirEntry[str]) -> bool:
    """Whether it begins as our records do; only files of their size are opened."""
    try:
        if not is_plain(entry):
            return False
        if not record.ROOM <= entry.stat(follow_symlinks=False).st_size <= record.READ_SIZE:
            return False
        fd = os.open(entry.path, READ_ONLY)
    except OSError:
        return False
    try:
        return record.MAGIC in HOST.pread(fd, len(record.MAGIC) + record.LINE, 0)
    except OSError:
        return False
    finally:
        os.close(fd)


def refused(folder: str, error: OSError) -> SystemRefused:
    return SystemRefused(
        f"the folder '{printable(folder)}' cannot be listed: {error.strerror}",
        errno=error.errno,
        filename=folder,
    )


# ------------------------------------------------------------------------------------------------
# Every lock of this machine: what the kernel's table shows, and what lies where locks usually lie.
#
# Promise: each lock of the table is listed, by its path where one is found, else by its number;
# what could not be seen is said. A locked file behind a file server is named and not asked: a
# server that does not answer would hold us up. Lock files that are no kernel locks are looked for
# in PLACES alone; anywhere else: `listing.of_folder`.


# Where lock files usually lie, and whether below it as well.
PLACES = (
    ("/run", True),
    ("/run/lock", True),
    ("/var/run", True),
    ("/var/lock", True),
    ("/var/spool", True),
    ("/var/lib/dpkg", False),
    ("/var/lib/apt/lists", False),
    ("/var/cache/apt/archives", False),
    ("/tmp", False),  # noqa: S108
    ("/dev/shm", False),  # noqa: S108
)
SESSIONS = "/run/user"  # each a file system of its own
KINDS = {FLOCK: "flock", POSIX: "fcntl", OFD: "ofd"}
NAMED = 3  # folders that are named; the others are counted
REMOVED = "the file was removed while it was locked: who locks its path now is not kept out"


@value
class Inventory:
    """What was found. `unseen`: what could not be seen, in words; `looked`: folders, for files."""

    answers: list[LockAnswer]
    unseen: list[str]
    looked: list[str]


def of_host(tell: Callable[[int], None] | None = None) -> Inventory:
    """Every lock of this machine. `tell`: hears now and then how many files were seen."""
    table = by_file()
    paths, unread, looked = _in_places(tell)
    keys = {} if table is None else table
    names = _plain_names()
    files = _files(keys, [*paths, *names])
    known = {*names, *map(os.path.realpath, names)}
    found = of_paths(names, every=True)
    asked = [path for path, _ in files.values() if path]
    rest = [path for path in dict.fromkeys((*paths, *asked)) if path not in known]
    found += of_paths({path: path for path in rest})
    unasked = [
        _by_table(key, keys[key], *files.get(key, ("", None)))
        for key in keys
        if not files.get(key, ("", None))[0]
    ]
    shown = [answer for answer in unasked if answer is not None]
    nameless = sum(not answer.path for answer in shown)
    if nameless:  # most of them were let go of while we looked
        held = {_nameless(key) for key in by_file() or ()}
        shown = [answer for answer in shown if answer.path or answer.name in held]
        nameless = sum(not answer.path for answer in shown)
    found += shown
    return Inventory(found, _unseen(table is None, nameless, unread), looked)


def _plain_names() -> dict[str, str]:
    """Of a user without a home there are none."""
    try:
        return names()
    except SystemRefused:
        return {}


def _in_places(tell: Callable[[int], None] | None) -> tuple[list[str], list[str], list[str]]:
    """Files that may be locks, folders that could not be read, and those that were."""
    paths: list[str] = []
    unread: list[str] = []
    looked: dict[str, bool] = {}
    seen = 0
    for folder, deep in (*PLACES, *((each, True) for each in _sessions())):
        real = os.path.realpath(folder)
        if os.path.isdir(real) and not place_of_path(real).far:
            looked[real] = looked.get(real, False) or deep
    for folder, deep in looked.items():
        try:
            tree = LockTree(folder, _further(tell, seen))
            tree.read(folder, deep=deep)
        except LifeholdError:
            unread.append(folder)
            continue
        seen += tree.seen
        paths += tree.paths
        unread += tree.unread
    return list(dict.fromkeys(paths)), unread, list(looked)


def _further(tell: Callable[[int], None] | None, before: int) -> Callable[[int], None] | None:
    """The same, told of what was seen in other folders too."""
    return None if tell is None else lambda seen: tell(before + seen)


def _sessions() -> list[str]:
    try:
        return [f"{SESSIONS}/{each}" for each in sorted(os.listdir(SESSIONS))]
    except OSError:
        return []


def _files(
    table: dict[Key, list[KernelLine]], paths: list[str]
) -> dict[Key, tuple[str, OpenFile | None]]:
    """Of each locked file a path by which it can be asked for, "" for none, and who has it open."""
    inodes: dict[int, list[Key]] = {}
    for key in table:
        inodes.setdefault(key.inode, []).append(key)
    found: dict[Key, tuple[str, OpenFile | None]] = {}
    for path in paths:
        for key in _keys_at(path, inodes):
            found.setdefault(key, (path, None))
    left = [key for key in table if key not in found]
    if not left:
        return found
    survey = OpenFileScan((), patience=PATIENCE)
    for key in left:
        kinds = dict.fromkeys(line.kind for line in table[key] if not line.waiting)
        opened = next((each for kind in kinds for each in survey.holding(key, kind)), None)
        if opened is None:
            continue
        link = _linked(opened, key)
        same = not link.endswith(GONE) and not place_of_path(link).far and _keys_at(link, inodes)
        found[key] = (link if same and key in same else "", opened)
    return found


def _linked(opened: OpenFile, key: Key) -> str:
    """Its link. Of a file that was made without a name, as soft locks are, where it stands now."""
    folder, name = os.path.split(opened.link.removesuffix(GONE))
    if name != f"#{key.inode}" or place_of_path(folder).far:
        return opened.link
    try:
        with os.scandir(folder) as entries:
            return next((e.path for e in entries if e.inode() == key.inode), opened.link)
    except OSError:
        return opened.link


def _keys_at(path: str, inodes: dict[int, list[Key]]) -> list[Key]:
    """Which of the locked files stands at a path: none or one. Nothing is opened for reading."""
    try:
        seen = os.lstat(path)
        for key in inodes.get(seen.st_ino, ()):
            if key.device == f"{os.major(seen.st_dev)}:{os.minor(seen.st_dev)}":
                return [key]
        fd = os.open(path, getattr(os, "O_PATH", 0) | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return []
    try:  # btrfs and overlayfs call it otherwise than lstat(2)
        own = key_of(fd)
    finally:
        os.close(fd)
    return [own] if own in inodes.get(own.inode, ()) else []


def _by_table(
    key: Key, lines: list[KernelLine], _: str, opened: OpenFile | None
) -> LockAnswer | None:
    """What the table alone tells; None for a place in a line of askers, which is no lock."""
    held = [line for line in lines if not line.waiting and not line.place]
    if not held:
        return None
    pid = opened.pid if opened is not None else held[0].pid if held[0].pid > 0 else None
    owner = process.owner_of(pid) if pid is not None else None
    here = pid if owner is not None else None
    link = opened.link if opened is not None else ""
    name = link.removesuffix(GONE) or _nameless(key)
    note = "the kernel shows it; its path cannot be seen from here"
    if opened is not None and opened.removed:
        note = REMOVED
    elif opened is not None and place_of_path(link).far:
        note = f"on a file server, which was not asked: lifehold who {printable(link)}"
    elif opened is not None:
        note = f"as process {pid} sees it, which is not as we do: in a container, it seems"
    holder = Holder(
        owner,
        None,
        ALIVE,
        WITNESS,
        lock=f"{name} ({KINDS.get(held[0].kind, 'kernel')} lock)",
        pid_here=here,
        began=process.started_at(here) if here else None,
    )
    queue = (
        *queue_in(lines, {}),
        *(
            KernelWaiter(each.pid, each.exclusive, each.kind)
            for each in lines
            if each.waiting and each.kind in (POSIX, OFD) and not each.place
        ),
    )
    kind = KINDS.get(held[0].kind, "flock")
    return LockAnswer(name, link, HELD, holder, note=note, kind=kind, family=kind, waiting=queue)


def _nameless(key: Key) -> str:
    return f"inode {key.inode} of device {key.device}"


def _unseen(no_table: bool, nameless: int, unread: list[str]) -> list[str]:
    told = []
    if no_table:
        told.append("this system shows no table of kernel locks: they are seen in files asked for")
    elif process.namespace("pid") != INITIAL_PID_NAMESPACE:
        told.append("this is a PID namespace of its own: kernel locks of others are not all shown")
    if nameless:
        locks = "1 lock has" if nameless == 1 else f"{nameless} locks have"
        why = "no process that is seen has the file open"
        if not process.sees_all_processes() or os.geteuid() != 0:
            why = "root may see the open files of all processes"
        told.append(f"{locks} no name here: {why}")
    return told + unread_folders(unread)


def unread_folders(paths: list[str]) -> list[str]:
    """One text that names some of them and counts the others; none where there are none."""
    named = ", ".join(f"'{printable(each)}'" for each in paths[:NAMED])
    more = f" and {len(paths) - NAMED} more folders" if len(paths) > NAMED else ""
    return [f"could not be read: {named}{more}"] if paths else []
