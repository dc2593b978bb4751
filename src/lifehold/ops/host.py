"""Every lock of this machine: what the kernel's table shows, and what lies where locks usually lie.

Promise: each lock of the table is listed, by its path where one is found, else by its number; what
could not be seen is said. A locked file behind a file server is named and not asked: a server that
does not answer would hold us up. Lock files that are no kernel locks are looked for in PLACES
alone; anywhere else: `listing.of_folder`.
"""

from __future__ import annotations

import os

from ..core.errors import LifeholdError, SystemRefused
from ..core.grant import Holder
from ..core.mask import printable
from ..core.owner import ALIVE, INITIAL_PID_NAMESPACE
from ..core.value import value
from ..local.ground import place_of_path
from ..local.kernel_holders import WITNESS, Waiting, queue_in
from ..local.proc_locks import FLOCK, GONE, OFD, POSIX, OpenFile, Survey, by_file, key_of
from ..runtime import process
from . import listing
from .answer import HELD, Answer
from .foreign import PATIENCE
from .tree import Tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..local.proc_locks import KernelLine, Key

# Where lock files usually lie, and whether below it as well.
PLACES = (
    ("/run", True), ("/run/lock", True), ("/var/run", True), ("/var/lock", True),
    ("/var/spool", True), ("/var/lib/dpkg", False), ("/var/lib/apt/lists", False),
    ("/var/cache/apt/archives", False), ("/tmp", False), ("/dev/shm", False),  # noqa: S108
)  # fmt: skip
SESSIONS = "/run/user"  # each a file system of its own
KINDS = {FLOCK: "flock", POSIX: "fcntl", OFD: "ofd"}
NAMED = 3  # folders that are named; the others are counted
REMOVED = "the file was removed while it was locked: who locks its path now is not kept out"


@value
class View:
    """What was found. `unseen`: what could not be seen, in words; `looked`: folders, for files."""

    answers: list[Answer]
    unseen: list[str]
    looked: list[str]


def of_host(tell: Callable[[int], None] | None = None) -> View:
    """Every lock of this machine. `tell`: hears now and then how many files were seen."""
    table = by_file()
    paths, unread, looked = _in_places(tell)
    keys = {} if table is None else table
    files = _files(keys, paths)
    names = _plain_names()
    known = {*names, *map(os.path.realpath, names)}
    found = listing.of_paths(names, every=True)
    asked = [path for path, _ in files.values() if path]
    rest = [path for path in dict.fromkeys((*paths, *asked)) if path not in known]
    found += listing.of_paths({path: path for path in rest})
    unasked = [_by_table(key, keys[key], *files.get(key, ("", None))) for key in keys
               if not files.get(key, ("", None))[0]]  # fmt: skip
    shown = [answer for answer in unasked if answer is not None]
    nameless = sum(not answer.path for answer in shown)
    if nameless:  # most of them were let go of while we looked
        held = {_nameless(key) for key in by_file() or ()}
        shown = [answer for answer in shown if answer.path or answer.name in held]
        nameless = sum(not answer.path for answer in shown)
    found += shown
    return View(found, _unseen(table is None, nameless, unread), looked)


def _plain_names() -> dict[str, str]:
    """Of a user without a home there are none."""
    try:
        return listing.names()
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
            tree = Tree(folder, _further(tell, seen))
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
    survey = Survey((), patience=PATIENCE)
    for key in left:
        kinds = dict.fromkeys(line.kind for line in table[key] if not line.waiting)
        opened = next((each for kind in kinds for each in survey.holding(key, kind)), None)
        if opened is None:
            continue
        link = opened.link
        same = not opened.removed and not place_of_path(link).far and _keys_at(link, inodes)
        found[key] = (link if same and key in same else "", opened)
    return found


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


def _by_table(key: Key, lines: list[KernelLine], _: str, opened: OpenFile | None) -> Answer | None:
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
        owner, None, ALIVE, WITNESS, lock=f"{name} ({KINDS.get(held[0].kind, 'kernel')} lock)",
        pid_here=here, began=process.started_at(here) if here else None,
    )  # fmt: skip
    queue = (
        *queue_in(lines, {}),
        *(Waiting(each.pid, each.exclusive, each.kind) for each in lines
          if each.waiting and each.kind in (POSIX, OFD) and not each.place),
    )  # fmt: skip
    kind = KINDS.get(held[0].kind, "flock")
    return Answer(name, link, HELD, holder, note=note, kind=kind, family=kind, waiting=queue)


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
    if unread:
        named = ", ".join(f"'{printable(each)}'" for each in unread[:NAMED])
        more = f" and {len(unread) - NAMED} more folders" if len(unread) > NAMED else ""
        told.append(f"could not be read: {named}{more}")
    return told
