"""Families of version control, builds, backups and editors; kernel locks, and symbolic links."""

from __future__ import annotations

import os

from ...core import explain
from ...local.files import HOST
from ...local.token_file import is_left_empty
from ..foreign_verdict import (
    LONGEST,
    Family,
    LockPath,
    StatedHolder,
    listed,
    number,
    read,
    together,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

REPOSITORY, OF_RESTIC = ("HEAD", "objects", "refs"), ("config", "keys", "snapshots")
HEX = frozenset("0123456789abcdef")
LONGEST_LIST = 1 << 20  # bytes of a list of holders that are read
TORCH, LONGEST_NINJA = b"-DTORCH_EXTENSION_NAME=", 1 << 16


def _json(content: bytes) -> Any:
    import json

    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def _list_of(sight: LockPath) -> Any:
    """What a list of holders says, which may be longer than other locks."""
    longer = sight.is_file and sight.found.st_size > LONGEST
    return _json(read(sight.path, LONGEST_LIST) if longer else sight.content)


def has_all(folder: str, names: tuple[str, ...]) -> bool:
    """Whether a folder contains all of these: asked for each lock, so it is never listed."""
    return all(os.path.lexists(os.path.join(folder, name)) for name in names)


def _git_folder(path: str) -> str:
    """The folder of the repository that a path lies in, "" for none."""
    folder = os.path.dirname(path)
    for _ in range(12):
        if folder.endswith("/.git") or has_all(folder, REPOSITORY):
            return folder
        folder, last = os.path.split(folder)
        if not last:
            break
    return ""


def _git(sight: LockPath) -> StatedHolder | None:
    """NAME.lock beside NAME: the new content of NAME, which names nobody."""
    if not sight.name.endswith(".lock") or not sight.is_file:
        return None
    known = sight.name in (
        "index.lock",
        "HEAD.lock",
        "config.lock",
        "packed-refs.lock",
        "shallow.lock",
        "ORIG_HEAD.lock",
        "FETCH_HEAD.lock",
    )
    if not known and not {"refs", ".git"} & set(sight.path.split("/")):
        return None
    folder = _git_folder(sight.path)
    if not folder:
        return None
    tree = os.path.dirname(folder) if folder.endswith("/.git") else folder
    programs = ("git", "git-lfs", "lazygit", "gitk", "tig")
    return StatedHolder(works_in=tree, also_in=_trees(folder), programs=programs)


def _trees(folder: str) -> tuple[str, ...]:
    """Where else one works in the repository of a folder: its linked trees, a submodule's tree.

    Their gits lock what is common to all of them too.
    """
    told = [
        read(f"{folder}/worktrees/{each}/gitdir", 4096) for each in listed(f"{folder}/worktrees")
    ]
    found = [os.path.dirname(os.fsdecode(each.strip())) for each in told]
    for line in read(f"{folder}/config", 1 << 16).decode(errors="replace").splitlines():
        key, _, path = line.partition("=")
        if key.strip() == "worktree" and "\0" not in path:
            found.append(os.path.normpath(os.path.join(folder, path.strip().strip('"'))))
    return tuple(each for each in found if os.path.isabs(each) and "\0" not in each)


def _git_gc(sight: LockPath) -> StatedHolder | None:
    """`pid host`."""
    pid, _, host = sight.text.strip().partition(" ")
    found = number(pid) if sight.name == "gc.pid" else None
    return None if found is None or not host else StatedHolder(found, host=host, programs=("git",))


def _terraform(sight: LockPath) -> StatedHolder | None:
    """Local state: the lock is an fcntl lock on the state; this file tells whose it is."""
    if not (sight.name.startswith(".") and sight.name.endswith(".lock.info")):
        return None
    told = _json(sight.content)
    if not isinstance(told, dict) or "ID" not in told or "Who" not in told:
        return None
    user, _, host = str(told["Who"]).rpartition("@")
    words = f"ID {told['ID']}, {told.get('Operation', '')}"
    return StatedHolder(
        user=user or None,
        host=host or None,
        since=_instant(str(told.get("Created", ""))),
        witness=sight.beside(sight.name[1 : -len(".lock.info")]),
        words=words,
    )


def _instant(text: str) -> float | None:
    """UTC seconds of `2026-11-22T02:40:00.123456789Z`."""
    from datetime import datetime

    day, _, rest = text.partition(".")
    zone = rest.lstrip("0123456789") if rest else ""
    try:
        return datetime.fromisoformat(day + zone).timestamp()
    except (ValueError, OverflowError, OSError):  # of the year 1
        return None


def _snakemake(sight: LockPath) -> StatedHolder | None:
    """.snakemake/locks, or a file of it: lists of files, which name nobody."""
    folder = sight.path if sight.is_folder else sight.folder
    if not folder.endswith("/.snakemake/locks"):
        return None
    if sight.is_folder and not any(name.endswith(".lock") for name in sight.names):
        return StatedHolder(frees=True)
    work = os.path.dirname(os.path.dirname(folder))
    stale = f"cd {explain.quote(work)} && snakemake --unlock"
    return StatedHolder(works_in=work, programs=("snakemake",), stale=stale)


def _dvc(sight: LockPath) -> StatedHolder | None:
    """.dvc/tmp/rwlock: JSON of who reads and writes which path."""
    if not sight.path.endswith("/.dvc/tmp/rwlock"):
        return None
    told = _list_of(sight)
    if not isinstance(told, dict):
        return None
    writes, reads = told.get("write"), told.get("read")
    found = [(who, path) for path, who in writes.items()] if isinstance(writes, dict) else []
    for path, people in reads.items() if isinstance(reads, dict) else ():
        found += [(who, path) for who in (people if isinstance(people, list) else ())]
    return together(
        StatedHolder(
            number(str(who.get("pid", ""))) if isinstance(who, dict) else None,
            words=f"{who.get('cmd', '') if isinstance(who, dict) else 'somebody'} on {path}",
            kept="DVC drops dead entries itself",
        )
        for who, path in found
    )


def _torch(sight: LockPath) -> StatedHolder | None:
    """A FileBaton: an empty file, open as long as it is held.

    Others leave an empty `lock` too and do not keep it open: so beside it must stand a build.ninja
    with the macro that torch gives to each extension.
    """
    if sight.name != "lock" or not sight.is_file or sight.found.st_size:
        return None
    if TORCH not in read(sight.beside("build.ninja"), LONGEST_NINJA):
        return None
    return StatedHolder(keeps_open=True)


def _restic(sight: LockPath) -> StatedHolder | None:
    """A file of a repository's `locks`: encrypted, and named by its content."""
    folder = sight.path if sight.is_folder else sight.folder
    if not keeps_restic_locks(folder):
        return None
    repository = os.path.dirname(folder)
    stale = f"restic -r {explain.quote(repository)} unlock"
    if sight.is_folder:
        locks = [each for each in sight.names if is_id(each)]
        if not locks:
            return StatedHolder(frees=True)
    elif not is_id(sight.name):
        return None
    return StatedHolder(
        works_in=repository, programs=("restic",), stale=stale, words="its content is encrypted"
    )


def keeps_restic_locks(folder: str) -> bool:
    """Whether a folder is the `locks` of a repository of restic."""
    repository, name = os.path.split(folder)
    return name == "locks" and has_all(repository, OF_RESTIC)


def is_id(name: str) -> bool:
    """Whether a file is named by a digest, as restic does; many others do so too."""
    return len(name) == 64 and HEX.issuperset(name)


def _borg(sight: LockPath) -> StatedHolder | None:
    """lock.exclusive, a folder with one entry `host@id.pid-thread`; lock.roster, JSON of all."""
    stale = f"borg break-lock {explain.quote(sight.folder)}"
    if sight.name == "lock.exclusive" and sight.is_folder:
        claims = [_borg_id(entry, stale) for entry in sight.names]
        if not sight.names:
            return StatedHolder(stale=stale)
        return together(claims) if any(each.pid is not None for each in claims) else None
    if sight.name != "lock.roster" or not sight.is_file:
        return None
    told = _list_of(sight)
    if not isinstance(told, dict):
        return None
    claims = []
    for mode in ("exclusive", "shared"):
        people = told.get(mode)
        for each in people if isinstance(people, list) else ():
            known = isinstance(each, list) and len(each) == 3
            text = f"{each[0]}.{each[1]}-{each[2]}" if known else f"{each!r:.100}"
            claims.append(_borg_id(text, stale))
    return together(claims)


def _borg_id(text: str, stale: str) -> StatedHolder:
    """One holder; one without a number for what cannot be read."""
    where, _, numbers = text.rpartition(".")
    host, at, _ = where.rpartition("@")
    pid = number(numbers.partition("-")[0])
    if pid is None or not at:
        return StatedHolder(words=f"an entry {text!r:.100} that cannot be read", stale=stale)
    return StatedHolder(pid, host=host, stale=stale)


def _office(sight: LockPath) -> StatedHolder | None:
    """.~lock.NAME#: `name,user,host,date,profile;`."""
    if not (sight.name.startswith(".~lock.") and sight.name.endswith("#")):
        return None
    fields = sight.text.strip().rstrip(";").split(",")
    if len(fields) < 4:
        return None
    return StatedHolder(
        user=fields[1] or fields[0] or None,
        host=fields[2] or None,
        works_in=sight.folder,
        programs=("soffice.bin", "soffice", "oosplash", "libreoffice"),
        words=f"since {fields[3]}",
    )


def _vim(sight: LockPath) -> StatedHolder | None:
    """.NAME.swp: number, user and host in its first block."""
    if sight.content[:3] != b"b0V" or len(sight.content) < 108:
        return None
    pid = int.from_bytes(sight.content[24:28], "little")
    user, host = (sight.content[at : at + 40].split(b"\0")[0] for at in (28, 68))
    return StatedHolder(
        number(str(pid)),
        user=user.decode(errors="replace") or None,
        host=host.decode(errors="replace") or None,
        programs=(
            "vim",
            "vi",
            "nvim",
            "view",
            "gvim",
            "vimdiff",
            "rvim",
            "rview",
            "ex",
            "vim.basic",
            "vim.tiny",
            "vim.nox",
            "vim.gtk",
            "vim.gtk3",
            "vim.athena",
            "vim.motif",
        ),
        kept="it has the text that was not saved: open the file with vim -r and delete it there",
    )


def _mkdir(sight: LockPath) -> StatedHolder | None:
    """An empty folder NAME.lock: proper-lockfile and scripts with mkdir."""
    if not sight.is_folder or not sight.name.endswith((".lock", ".lck", ".lockdir")):
        return None
    return None if sight.names or is_left_empty(HOST, sight.path) else StatedHolder()


FAMILIES = (
    Family("git", "git's lock of a file in a repository", _git, also_locks=False),
    Family("git-gc", "git gc's pid file", _git_gc, also_locks=False),
    Family("terraform", "terraform's lock of local state", _terraform, also_locks=False),
    Family("snakemake", "snakemake's locks of a folder", _snakemake, also_locks=False),
    Family("dvc", "DVC's list of readers and writers", _dvc, also_locks=False),
    Family("torch", "torch's FileBaton", _torch, also_locks=False),
    Family("restic", "restic's lock of a repository", _restic, also_locks=False),
    Family("borg", "borg's lock of a repository", _borg, also_locks=False),
    Family("libreoffice", "LibreOffice's lock of a document", _office, also_locks=False),
    Family("vim", "vim's swap file", _vim, also_locks=False),
    Family("mkdir", "a lock made by mkdir", _mkdir, also_locks=False),
)


# ------------------------------------------------------------------------------------------------
# Families whose lock is the kernel's, on a file of theirs: the file is never to be removed.


def _ending(*tails: str) -> Callable[[LockPath], StatedHolder | None]:
    """Who knows a file by the end of its path."""
    ends = tuple(f"/{tail.lstrip('/')}" for tail in tails)

    def read(sight: LockPath) -> StatedHolder | None:
        return StatedHolder() if sight.path.endswith(ends) and sight.is_file else None

    return read


def _sqlite(sight: LockPath) -> StatedHolder | None:
    return StatedHolder() if sight.content.startswith(b"SQLite format 3\0") else None


KERNELS = (
    Family(
        "dpkg",
        "a lock of dpkg",
        _ending("dpkg/lock", "dpkg/lock-frontend", "dpkg/triggers/Lock"),
        kernel=True,
    ),
    Family(
        "apt",
        "a lock of apt",
        _ending("apt/lists/lock", "apt/archives/lock", "apt/daily_lock"),
        kernel=True,
    ),
    Family("rpm", "a lock of rpm", _ending("/.rpm.lock"), kernel=True),
    Family("sqlite", "an SQLite database", _sqlite, kernel=True),
    Family(
        "lucene", "Lucene's lock of an index", _ending("/write.lock", "/node.lock"), kernel=True
    ),
    Family("dvc", "DVC's lock", _ending("/.dvc/tmp/lock"), kernel=True),
    Family("cargo", "a lock of cargo", _ending("/.cargo-lock", "/.package-cache"), kernel=True),
    Family("mongodb", "mongod's lock", _ending("/mongod.lock"), kernel=True),
    Family("firefox", "Firefox's lock of a profile", _ending("/.parentlock"), kernel=True),
)


# ------------------------------------------------------------------------------------------------
# Families whose lock is a symbolic link that leads nowhere: what it says is the holder.


def _chromium(sight: LockPath) -> StatedHolder | None:
    """`host-pid`; the host of a container is its id, and is another one after a restart."""
    if sight.name != "SingletonLock" or not sight.target:
        return None
    host, _, pid = sight.target.rpartition("-")
    found = number(pid)
    if not host or found is None:
        return None
    return StatedHolder(found, host=host)


def _firefox(sight: LockPath) -> StatedHolder | None:
    """`address:+pid`; the address is not looked at, since it is that of any network card."""
    if sight.name != "lock" or ":+" not in sight.target:
        return None
    address, _, pid = sight.target.rpartition(":+")
    found = number(pid)
    if found is None or "/" in address:
        return None
    return StatedHolder(
        found, works_in=sight.folder, programs=("firefox", "firefox-esr", "thunderbird")
    )


def _emacs(sight: LockPath) -> StatedHolder | None:
    """`user@host.pid:boot`; the boot is UTC seconds by a clock that may have been set."""
    if not sight.name.startswith(".#") or "@" not in sight.target:
        return None
    user, _, rest = sight.target.partition("@")
    host, _, numbers = rest.rpartition(".")
    pid = number(numbers.partition(":")[0])
    if pid is None or not host or "/" in sight.target:
        return None
    return StatedHolder(pid, host=host, user=user, programs=("emacs", "emacsclient"))


def _mercurial(sight: LockPath) -> StatedHolder | None:
    """`host/namespace:pid`, or `host:pid`."""
    if sight.name not in ("lock", "wlock") or "/.hg/" not in sight.path + "/":
        return None
    text = sight.target or sight.text.strip()
    where, _, pid = text.rpartition(":")
    host, _, space = where.partition("/")
    found = number(pid)
    if found is None or not host:
        return None
    try:
        pid_ns = int(space, 16) if space else None
    except ValueError:
        return None
    return StatedHolder(found, host=host, pid_ns=pid_ns)


def _numbered(sight: LockPath) -> StatedHolder | None:
    """`ln -s $$ NAME.lock`: the target is a process number, and leads nowhere."""
    if not sight.name.endswith((".lock", ".lck", ".lk", ".pid")):
        return None
    found = number(sight.target)
    return None if found is None or os.path.exists(sight.path) else StatedHolder(found)


LINKS = (
    Family("chromium", "Chromium's lock of a profile", _chromium, also_locks=False),
    Family("firefox", "Firefox's lock of a profile", _firefox, also_locks=False),
    Family("emacs", "Emacs' lock of a file", _emacs, also_locks=False),
    Family("mercurial", "Mercurial's lock of a repository", _mercurial, also_locks=False),
    Family("symlink", "a lock made by ln -s", _numbered, also_locks=False),
)
