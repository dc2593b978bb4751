"""Which tool's lock stands at a path: a table of recognisers, one row each.

Promise: the first row that reads the path as its own says what it claims; who judges the claim is
ops/foreign_verdict.py, alone (L2). Others add rows by the entry point group `lifehold.families`:
each names a `Family` or a tuple of them, asked before ours. A row that raises is left out, and
never asked again in this process.
"""

from __future__ import annotations

from ...runtime import fork
from ..foreign_verdict import Family, LockPath, ProcessTable, StatedHolder, first_living, judged
from . import numbers, tools
from .numbers import PID_FILE
from .tools import is_id, keeps_restic_locks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib import metadata
    from typing import Any
else:
    metadata = fork.later("importlib.metadata", globals())

__all__ = [
    "PID_FILE",
    "Claim",
    "Family",
    "LockPath",
    "ProcessTable",
    "Processes",
    "Sight",
    "StatedHolder",
    "also_locks",
    "doubt_of",
    "first_living",
    "is_id",
    "judged",
    "keeps_restic_locks",
    "known",
    "may_be",
    "recognised",
]
GROUP = "lifehold.families"
Claim, Processes, Sight = StatedHolder, ProcessTable, LockPath  # as rows of others call them
OURS = (
    *tools.KERNELS,
    *tools.LINKS,
    *tools.FAMILIES,
    *numbers.FILELOCKS,
    *numbers.FAMILIES,
)
UNREAD = "what it says cannot be read"
_others: list[Family] | None = None

# By name alone: what `ls` opens in a folder of many files. `who` asks every row.
ENDS = (".lock", ".lck", ".lk", ".pid", "-lock", ".lock.info", ".lockdir", ".swp", ".rw")
NAMES = frozenset(
    "SingletonLock lock wlock Lock lock-frontend write.lock node.lock lock.exclusive lock.roster "
    "rwlock locks mongod.lock .cargo-lock .package-cache .parentlock daily_lock".split()
)
# Files of these names end like locks and are lists of versions.
NO_LOCKS = frozenset(
    "poetry.lock Cargo.lock yarn.lock Gemfile.lock flake.lock uv.lock composer.lock Pipfile.lock "
    "pdm.lock Podfile.lock mix.lock pubspec.lock pixi.lock deno.lock bun.lock packages.lock "
    "conda-lock.lock .terraform.lock.hcl".split()
)


def known() -> tuple[Family, ...]:
    """All rows, those of others first."""
    global _others
    if _others is None:
        _others = []
        for point in _offered():
            try:
                rows = point.load()
                one = isinstance(rows, Family)  # which is a tuple itself
                _others += [row for row in ((rows,) if one else rows) if isinstance(row, Family)]
            except Exception:  # noqa: BLE001, S112  a broken plugin must not hide a lock
                continue
    return (*_others, *OURS)


def _offered() -> Any:
    try:
        return metadata.entry_points(group=GROUP)
    except (ImportError, OSError):
        return ()  # a user who may not read the library


def recognised(sight: LockPath) -> tuple[Family, StatedHolder] | None:
    """Whose lock it is, and what it claims; None when nobody knows it."""
    if sight.name in NO_LOCKS:
        return None
    for family in known():
        try:
            claim = family.read(sight)
        except Exception:  # noqa: BLE001  whatever the file makes of it, it costs itself alone
            if _others is not None and family in _others:
                _others.remove(family)
                continue
            return family, StatedHolder(words="its content makes no sense", kept=UNREAD)
        if claim is not None:
            return family, claim
    claim = PID_FILE.read(sight) if sight.is_file else None
    return None if claim is None else (PID_FILE, claim)


def also_locks(name: str) -> bool:
    """Whether a file of the family of that name may be locked by the kernel as well."""
    rows = [row for row in known() if row.name == name and not row.kernel]
    return not rows or any(row.also_locks for row in rows)


def may_be(name: str) -> bool:
    """Whether a file of this name is worth a look."""
    if name in NO_LOCKS:
        return False
    return name.endswith(ENDS) or name in NAMES or name.startswith((".#", ".~lock.", "LCK.."))


def doubt_of(name: str, path: str) -> str:
    """Why a lock of the family called `name`, found in a tree, may be somebody's data; "" else."""
    for family in (*known(), PID_FILE):
        if family.name == name:
            return family.doubt(path) if family.doubt is not None else ""
    return ""
