"""Every kind of lock on files, one row each: all that is known of a kind outside of its own file.

That holds for a record that is a file, or an entry in a folder under such a name as `folder`,
`generation` or `directory` gives it. Another shape, or name, is also told to `local/identify.py`.

`registry` makes locks by it, `local/identify.py` and `ops/who.py` tell by it what a record is,
`ops/clear.py` what stays behind, `ops/doctor.py` where the kind is safe, `cli/completion.py` what
may be typed. The rows are in the order in which doctor prefers them. Nothing is imported by it.
"""

from __future__ import annotations

import sys

from ..core.value import value


@value
class KindRow:
    """One kind. `made_by`: module and class.

    `needs`: what must exclude in a folder for it, in the words of ops/doctor.py; `merit`: what is
    said of the kind where all of that does. `stays`: what a lock that was cleared leaves at its
    path, in words, "" for nothing. `is_record`: its record is the lock; that needs Unix.
    """

    made_by: str
    needs: tuple[str, ...]
    merit: str
    stays: str = ""
    is_record: bool = True


KERNEL = "lifehold.local.kernel:KernelLock"
if sys.platform == "win32":
    KERNEL = "lifehold.local.windows:WindowsKernelLock"
KINDS = {
    "kernel": KindRow(
        KERNEL,
        needs=("flock",),
        merit="free at once when its holder ends",
        is_record=False,
    ),
    "generation": KindRow(
        "lifehold.local.generation:GenerationLock",
        needs=("link", "rename"),
        merit="needs no kernel lock, only link(2); give it a ttl",
        stays="its folder stays, with a record that is free, for the next holder",
    ),
    "soft": KindRow(
        "lifehold.local.soft:SoftLock",
        needs=("link", "rename", "flock"),
        merit="a file whose presence is the lock, with a witness",
    ),
    "link": KindRow(
        "lifehold.local.link:LinkLock",
        needs=("link",),
        merit="as liblockfile's",
    ),
    "directory": KindRow(
        "lifehold.local.directory:DirectoryLock",
        needs=("rename", "mkdir"),
        merit="a folder whose presence is the lock",
    ),
    "folder": KindRow(
        "lifehold.local.folder:FolderLock",
        needs=("exclusive create", "rename"),
        merit="as lockfolder's",
        stays="its folder stays, without the dead bid, for the next holder",
    ),
}


def is_record(kind: str) -> bool:
    """Whether the record of this kind is the lock. Not of the kernel's; a word may be no kind."""
    row = KINDS.get(kind)
    return row is not None and row.is_record
