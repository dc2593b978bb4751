"""With whose rights a lock is removed: with those of who could swap what its path leads to.

Promise (L13): who runs `clear` with the rights of root lends them to nobody. On each folder of a
path we ask who else may put another thing there. Nobody: we act as we are. One user: the removal is
done with that user's rights, so a swap can reach nothing that this user could not reach alone.
Everybody, in a folder of root's: with the rights of the file's owner. In a sticky folder only the
owner of an entry may swap it, so root's file there is removed by root, a user's by that user. All
else is refused by name.

A user's rights are the file system user id, group id and groups of one thread of ours, which ends
with the removal. They are set by raw system calls: the C library would set the groups of every
thread. The thread keeps root's process id and signals, so the user can neither stop nor trace it.
"""

from __future__ import annotations

import errno
import os
import stat
import sys

from ..core.errors import SystemRefused, pass_up
from ..core.value import value
from . import fork
from .process import user_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    import grp
    import pwd
    import threading
    from collections.abc import Callable
    from typing import TypeVar

    from ..core import explain

    T = TypeVar("T")
else:
    explain = fork.later("lifehold.core.explain", globals())
    grp = fork.later("grp", globals())
    pwd = fork.later("pwd", globals())
    threading = fork.later("threading", globals())

ANYBODY = -1  # in place of a user id
LINKS = 40  # symbolic links on one path, as in the kernel
ACL = "system.posix_acl_access"
# setgroups(2), setfsuid(2), setfsgid(2) with whole user ids, by machine.
CALLS: dict[str, tuple[int, int, int]] = (
    {
        "x86_64": (116, 122, 123),
        "aarch64": (159, 151, 152),
        "riscv64": (159, 151, 152),
        "loongarch64": (159, 151, 152),
        "ppc64": (81, 138, 139),
        "ppc64le": (81, 138, 139),
        "s390x": (206, 215, 216),
    }
    if sys.maxsize > 1 << 32
    else dict.fromkeys(
        ("i386", "i486", "i586", "i686", "x86_64", "armv6l", "armv7l", "armv8l", "aarch64"),
        (206, 215, 216),
    )
)
PR_GET_SECUREBITS, NO_SETUID_FIXUP = 27, 4


@value
class UserRights:
    """Whose rights are borrowed. `gid`: of the files that are made."""

    uid: int
    gid: int
    groups: tuple[int, ...]

    @property
    def name(self) -> str:
        """The login name, or the number."""
        return user_name(self.uid) or str(self.uid)


def actor_for(path: str, found: os.stat_result) -> UserRights | None:
    """Who is to remove what stands at `path`; None: this process as it is.

    `found`: its lstat(2). Raises SystemRefused, by name, where nobody can do it safely; OSError.
    """
    if os.name != "posix" or os.geteuid() != 0:
        return None  # no more rights than those of the caller
    inside = f"{path}/." if stat.S_ISDIR(found.st_mode) else path
    others = strangers(inside)
    if not others:
        return None
    users = others - {ANYBODY}
    if len(users) > 1:
        names = " and ".join(sorted(user_name(uid) or str(uid) for uid in users))
        raise _refused(path, f"{names} may each swap a folder on its path")
    uid = users.pop() if users else found.st_uid
    if uid == 0:
        raise _refused(path, "it is root's, in a folder where others may rename it (chmod +t)")
    folder = os.stat(os.path.dirname(path) or "/")
    as_group = not users and folder.st_mode & stat.S_IWGRP and not folder.st_mode & stat.S_IWOTH
    return _actor(uid, folder.st_gid if as_group and folder.st_uid == 0 else None, found.st_gid)


def writer_for(path: str) -> UserRights | None:
    """Who is to write the file at `path`, which need not be there; None: this process as it is.

    For a writer that follows no link and takes no file with a second name: then only the folder can
    be swapped. Raises SystemRefused, OSError.
    """
    if os.name != "posix" or os.geteuid() != 0:
        return None
    folder = os.path.dirname(path)
    others = strangers(folder)
    if not others:
        return None
    if len(others) > 1 or ANYBODY in others:
        raise _refused(path, "others may swap a folder on its path")
    return _actor(others.pop(), None, os.stat(folder).st_gid)


def _actor(uid: int, gid: int | None, default: int) -> UserRights:
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return UserRights(uid, default if gid is None else gid, ())
    own = entry.pw_gid if gid is None else gid
    return UserRights(uid, own, tuple(os.getgrouplist(entry.pw_name, entry.pw_gid)))


def _refused(path: str, why: str) -> SystemRefused:
    return SystemRefused(
        f"{explain.quote(path)} is not changed with the rights of root: {why}. Let its owner do it",
        name=path,
        errno=errno.EPERM,
        filename=path,
    )


# ---- who may swap it


def strangers(path: str) -> set[int]:
    """The users who may put something else at an absolute path, but for root and ourselves.

    ANYBODY among them: more than one user, or one that we cannot name. Raises OSError.
    """
    found: set[int] = set()
    rest, here, links = path.split("/")[::-1], "/", 0
    while rest:
        name = rest.pop()
        if name in ("", "."):
            if name and not rest:  # the inside of a folder: who may change its entries
                found |= _may_rename(here, None)
            continue
        if name == "..":
            here = os.path.dirname(here)
            continue
        entry = f"{here.rstrip('/')}/{name}"
        try:
            seen = os.lstat(entry)
        except FileNotFoundError:
            return (found | _may_rename(here, None)) - {0, os.geteuid()}
        found |= _may_rename(here, seen)
        if stat.S_ISLNK(seen.st_mode) and rest:
            links += 1
            if links > LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            target = os.readlink(entry)
            rest += target.split("/")[::-1]
            entry = "/" if target.startswith("/") else here
        here = entry
    return found - {0, os.geteuid()}


def _may_rename(folder: str, entry: os.stat_result | None) -> set[int]:
    """The users who may put something else in the place of an entry; of a new one, for None."""
    seen = os.lstat(folder)
    found = {seen.st_uid}
    mode = seen.st_mode
    if mode & stat.S_IWOTH or (mode & stat.S_IWGRP and _group_is_more(folder, seen)):
        found.add(entry.st_uid if mode & stat.S_ISVTX and entry is not None else ANYBODY)
    return found


def _group_is_more(folder: str, seen: os.stat_result) -> bool:
    """Whether a folder's group, or its list of rights, holds others than its owner and root."""
    try:
        if ACL in os.listxattr(folder, follow_symlinks=False):
            return True  # the bits of the group are then the most that anybody on the list has
    except (OSError, AttributeError) as error:
        pass_up(error)
    if seen.st_gid == 0:
        return False
    try:
        owner, group = pwd.getpwuid(seen.st_uid), grp.getgrgid(seen.st_gid)
    except KeyError:
        return True
    private = owner.pw_gid == group.gr_gid and owner.pw_name == group.gr_name
    return not (private and set(group.gr_mem) <= {owner.pw_name})


# ---- with their rights


def act(actor: UserRights | None, work: Callable[[], T]) -> T:
    """`work()` with the rights of `actor`, in a thread of its own. Raises what it raises.

    What it needs must be loaded: that user may not be able to read our modules. SystemRefused where
    rights cannot be borrowed.
    """
    if actor is None:
        return work()
    become = _becoming(actor)
    told: list[tuple[T | None, BaseException | None]] = []

    def run() -> None:
        try:
            become()
            told.append((work(), None))
        except BaseException as error:  # noqa: BLE001  raised below
            told.append((None, error))

    thread = threading.Thread(target=run, name="lifehold-rights")
    thread.start()
    try:
        thread.join()
    except BaseException:
        thread.join()  # a signal: the removal is ended first
        raise
    ((answer, error),) = told
    if error is not None:
        raise error
    return answer  # type: ignore[return-value]


def _becoming(actor: UserRights) -> Callable[[], None]:
    """What gives the calling thread the rights of `actor`, with everything it needs loaded."""
    numbers = CALLS.get(os.uname().machine) if sys.platform == "linux" else None
    try:
        ctypes = fork.lazily("ctypes")
        call = ctypes.CDLL(None, use_errno=True).syscall
        fixed = ctypes.CDLL(None).prctl(PR_GET_SECUREBITS, 0, 0, 0, 0) & NO_SETUID_FIXUP
    except (ImportError, OSError, AttributeError):
        numbers = None
    if numbers is None or fixed:
        raise SystemRefused(
            f"the rights of {actor.name} cannot be borrowed here: run it as that user",
            errno=errno.ENOSYS,
        )
    setgroups, setfsuid, setfsgid = numbers
    groups = (ctypes.c_uint32 * len(actor.groups))(*actor.groups)
    call.restype = ctypes.c_long
    numbered = [ctypes.c_long(each) for each in (actor.uid, actor.gid, -1, len(groups))]

    def become() -> None:
        uid, gid, ask, count = numbered
        if call(ctypes.c_long(setgroups), count, groups) != 0:
            raise OSError(ctypes.get_errno(), "its groups cannot be borrowed")
        call(ctypes.c_long(setfsgid), gid)
        call(ctypes.c_long(setfsuid), uid)  # last: the rights of root over files end here
        found = call(ctypes.c_long(setfsgid), ask), call(ctypes.c_long(setfsuid), ask)
        if found != (actor.gid, actor.uid):
            raise OSError(errno.EPERM, "the rights of the owner cannot be borrowed")

    return become
