"""What kind of file system a path lies on, and whether one kernel alone can mount it (L2).

A process at its limit of open files cannot look. That is no answer: what locks keep open for the
next acquire is closed, and where even that makes no room, the limit is named. Nothing is concluded
from it, and nothing remembered.
"""

from __future__ import annotations

import errno
import os

from ..core.errors import pass_up
from ..core.value import value
from ..runtime import clock
from .refusals import refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from typing import Any, Protocol, TextIO

    class HasDescriptor(Protocol):
        """An open file: its descriptor, and the number of its device."""

        @property
        def fd(self) -> int: ...
        @property
        def dev(self) -> int: ...


# File systems behind which another machine, or another kernel, may stand.
SHARED = frozenset(
    "nfs nfs4 cifs smb3 smbfs 9p virtiofs ceph lustre gpfs ocfs2 gfs2 afs beegfs glusterfs "
    "orangefs pvfs2 vboxsf vmhgfs prl_fs davfs".split()
)
LOCAL = frozenset(
    "ext2 ext3 ext4 xfs btrfs tmpfs ramfs overlay f2fs zfs bcachefs jfs reiserfs vfat exfat ntfs3 "
    "devtmpfs hugetlbfs rootfs squashfs erofs iso9660 udf ubifs jffs2 nilfs2 minix msdos ntfs hfs "
    "hfsplus".split()
)


@value
class MountInfo:
    """Where a file lies.

    `kind` of file system, "" if unknown; `device`: "major:minor" as in /proc/locks.
    """

    kind: str
    device: str

    @property
    def one_kernel(self) -> bool:
        """Whether ids and process numbers can prove anything here. Unknown kinds cannot."""
        return self.kind in LOCAL

    @property
    def shared(self) -> bool:
        """Whether another kernel may use it too, or we do not know: then only leases count."""
        return not self.one_kernel

    @property
    def far(self) -> bool:
        """Whether a call may have to wait for another machine or process."""
        return self.kind in SHARED or self.kind.startswith("fuse")

    @property
    def words(self) -> str:
        if self.far:
            return f"{self.kind}: the lock is the file server's lease"
        return self.kind or "unknown file system"


# ---- looking, also at the limit of open files --------------------------------------------------

AT_LIMIT = (errno.EMFILE, errno.ENFILE)
make_room: list[Callable[[], bool]] = []  # close what nobody uses; whether there was anything


def _with_room(about: str | int, call: Callable[..., Any], *given: Any) -> Any:
    """What `call(*given)` opens. Raises OSError; at the limit SystemRefused, which says so.

    `about`: the path, or descriptor, that is looked at.
    """
    while True:
        try:
            return call(*given)
        except OSError as error:
            if error.errno not in AT_LIMIT:
                raise
            if not any(close() for close in make_room):
                path = about if isinstance(about, str) else _name_of(about)
                raise refused(path, error) from error


def _read(about: str | int, name: str, errors: str = "replace") -> TextIO:
    """A file of /proc/self, for a look at `about`. The caller closes it."""

    def call() -> TextIO:
        return open(f"/proc/self/{name}", encoding="utf-8", errors=errors)

    file: TextIO = _with_room(about, call)
    return file


def _name_of(fd: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError as error:
        pass_up(error)
        return f"descriptor {fd}"


def _raise_limit(error: Exception) -> None:
    """All other errors mean that it cannot be seen here: no /proc, another form of its files."""
    pass_up(error)
    if isinstance(error, OSError) and error.errno in AT_LIMIT:
        raise error


def place_of(fd: int) -> MountInfo:
    """The file system of an open file, by its mount id. Raises SystemRefused at a limit.

    `st_dev` is not the device of /proc/locks on btrfs.
    """
    try:
        with _read(fd, f"fdinfo/{fd}") as file:
            ids = [line.split()[1] for line in file if line.startswith("mnt_id:")]
        with _read(fd, "mountinfo") as file:
            for line in file:
                fields = line.split()
                if fields[0] in ids:
                    return MountInfo(fields[fields.index("-") + 1], fields[2])
    except (OSError, ValueError, IndexError) as error:
        _raise_limit(error)
    device = os.fstat(fd).st_dev
    return MountInfo("", f"{os.major(device)}:{os.minor(device)}" if hasattr(os, "major") else "")


def mount_of(folder: str) -> tuple[MountInfo, str]:
    """Where a folder lies, and the options of that mount, "" where they cannot be read."""
    fd = _with_room(folder, os.open, folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        place = place_of(fd)
        with _read(folder, f"fdinfo/{fd}") as file:
            ids = [line.split()[1] for line in file if line.startswith("mnt_id:")]
    except OSError as error:
        _raise_limit(error)
        return place, ""
    finally:
        os.close(fd)
    with _read(folder, "mountinfo") as mounts:
        for line in mounts:
            fields = line.split()
            if fields[0] in ids:
                return place, ",".join(dict.fromkeys(f"{fields[5]},{fields[-1]}".split(",")))
    return place, ""


def place_of_path(path: str) -> MountInfo:
    """The file system that an absolute path lies on, by its name alone: a dead server is not asked.

    Symbolic links are not followed, so one that leads into another file system is not seen.
    """
    found, longest = MountInfo("", ""), ""
    try:
        with _read(path, "mountinfo", "surrogateescape") as file:
            for line in file:
                fields = line.split()
                point = _unescaped(fields[4])
                inside = path == point or path.startswith(point.rstrip("/") + "/")
                if inside and len(point) >= len(longest):  # the last of several mounts there counts
                    longest = point
                    found = MountInfo(fields[fields.index("-") + 1], fields[2])
    except (OSError, ValueError, IndexError) as error:
        _raise_limit(error)
    return found


def mount_points() -> list[str]:
    """Where file systems are mounted, as seen from here; [] where that cannot be read."""
    try:
        with _read("/proc/self/mountinfo", "mountinfo", "surrogateescape") as file:
            return [_unescaped(line.split()[4]) for line in file]
    except (OSError, IndexError) as error:
        _raise_limit(error)
        return []


def mounts_below(folder: str) -> frozenset[str]:
    """Where file systems are mounted below a folder, by paths that begin as `folder` does.

    The kernel names them without links, so of the folder alone links are followed: no mount is
    asked. Raises OSError for a relative path where the working folder was removed.
    """
    within = os.path.join(os.path.realpath(folder), "")
    points = [point for point in mount_points() if point.startswith(within) and point != within]
    return frozenset(os.path.join(folder, point[len(within) :]) for point in points)


def ground_of(path: str) -> MountInfo:
    """The file system that a lock at `path` lies on, through symbolic links.

    By the folder that is there, or the nearest one above it. Raises OSError for none that may be
    looked at.
    """
    folder, flags = path, getattr(os, "O_PATH", os.O_RDONLY) | os.O_CLOEXEC
    while True:
        try:
            fd = _with_room(folder, os.open, folder, flags)
        except (FileNotFoundError, NotADirectoryError):
            if folder == (above := os.path.dirname(folder)):
                raise
            folder = above
            continue
        try:
            return place_of(fd)
        finally:
            os.close(fd)


# ---- remembered, for a moment ------------------------------------------------------------------
#
# L2  A mount comes and goes under a program that lives long, and the number of its device is given
#     to the next one. So what a number or a name stood for is believed for a moment only; and of a
#     device by whose kind deaths are proven, while the file system tells the same of itself.

MOMENT = 2.0  # seconds
_of_folders: dict[str, tuple[MountInfo, float]] = {}
_of_devices: dict[int, tuple[MountInfo, float, Hashable]] = {}


def place_at(found: HasDescriptor) -> MountInfo:
    """The file system of an open record."""
    now = clock.now()
    known = _of_devices.get(found.dev)
    if known is not None and now < known[1]:
        if not known[0].one_kernel or known[2] == _says(found.fd):
            return known[0]
    if len(_of_devices) >= 256:
        _of_devices.clear()
    place = place_of(found.fd)
    _of_devices[found.dev] = place, now + MOMENT, place.one_kernel and _says(found.fd)
    return place


def _says(fd: int) -> Hashable:
    """What a file system tells of itself: its id, which a mount gets anew, and how it is made."""
    try:
        told = os.fstatvfs(fd)
    except (OSError, AttributeError) as error:
        pass_up(error)
        return None
    return told.f_fsid, told.f_bsize, told.f_frsize, told.f_namemax


def _known(path: str) -> MountInfo:
    """The file system of a path by its folder's name."""
    folder, now = path.rpartition("/")[0], clock.now()
    known = _of_folders.get(folder)
    if known is None or now >= known[1]:
        if len(_of_folders) >= 256:
            _of_folders.clear()
        known = _of_folders[folder] = place_of_path(path), now + MOMENT
    return known[0]


def is_far(path: str) -> bool:
    """Whether calls on this path may have to wait for another machine."""
    return _known(path).far


def is_unproven(path: str) -> bool:
    """Whether the system names a type of file system there that others may mount.

    Where it names none (no /proc; other systems than Linux), nothing speaks against a disk.
    """
    place = _known(path)
    return place.kind != "" and not place.one_kernel


def _unescaped(field: str) -> str:
    """A path of mountinfo, in which blanks and backslashes stand as octal numbers."""
    for code, char in (("040", " "), ("011", "\t"), ("012", "\n"), ("134", "\\")):
        field = field.replace("\\" + code, char)
    return field
