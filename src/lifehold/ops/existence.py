"""What `who` says of the locks of other tools: the family, the verdict, and what to do next.

Promise: `stale` is said only of what verdict.py proves (L2); a remedy is safe for that family, and
runs as printed.
"""

from __future__ import annotations

import os
import stat

from ..core import explain
from ..core.owner import ALIVE, DEAD, UNKNOWN
from ..core.value import replace
from ..runtime import process
from . import families
from .answer import FREE, HELD, STALE, SUSPECT, Answer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..core.grant import Holder
    from .families import Claim, Family, Processes

STATES = {ALIVE: HELD, UNKNOWN: SUSPECT, DEAD: STALE}
NOTHING = "nothing to do"
KERNEL = "the lock is the kernel's and ends with its holder: never remove the file"


def answer(
    name: str,
    path: str,
    eyes: Processes,
    found: os.stat_result | None = None,
    fd: int | None = None,
) -> Answer | None:
    """The answer for a lock that no kernel lock holds; None for what no family knows."""
    sight = families.Sight(path, found, fd)
    known = families.recognised(sight)
    if known is None:
        return None
    family, claim = known
    empty = Answer(name, path, FREE, kind="existence", family=family.name)
    if family.kernel:
        return replace(empty, kind="flock", note=KERNEL)
    if claim.frees:
        return replace(empty, note=f"{family.title}, which says itself that nobody holds it")
    holder = families.judged(sight, family, claim, eyes)
    state = STATES[holder.alive]
    kind = "existence" if families.numbers.pid_of(sight) is None else "pidfile"
    return replace(
        empty, state=state, holder=holder, kind=kind, note=_note(family, claim),
        remedy=_remedies(path, state, holder, claim),
    )  # fmt: skip


def beside(name: str, path: str, eyes: Processes) -> Answer | None:
    """Of filelock's SoftReadWriteLock, whose state is a folder beside its path; None for no such.

    The answer's path is that of the folder.
    """
    folder = f"{path}.rw"
    try:
        found = os.lstat(folder)
    except OSError:
        return None
    told = answer(name, folder, eyes, found) if stat.S_ISDIR(found.st_mode) else None
    return told if told is not None and told.family == "filelock-rw" else None


def family_of(path: str, found: Answer, *, readable: bool) -> Answer:
    """An answer about a kernel lock, or about one of ours, with its family.

    `readable`: whether the file may be opened, which drops our own fcntl locks.
    """
    holder = found.holder or found.last
    if holder is not None and holder.nonce is not None:
        return replace(found, family="lifehold")
    if found.kind == "folder" and holder is not None:
        return replace(found, family="lockfolder")
    known = None
    if readable and found.exists and found.kind in ("flock", "fcntl", "ofd"):
        try:
            known = families.recognised(families.Sight(path))
        except OSError:
            known = None
    return replace(found, family=known[0].name if known else found.kind)


def _note(family: Family, claim: Claim) -> str:
    if family is families.PID_FILE:
        return "a pid file: no kernel lock is held on it, only its number can be judged"
    parts = [f"{family.title}: no kernel lock is held on it, what it says is judged"]
    if claim.words:
        parts.append(claim.words)
    return "; ".join(parts)


def _remedies(path: str, state: str, holder: Holder, claim: Claim) -> tuple[str, ...]:
    """What to do next, each a command behind its word."""
    quoted = explain.quote(path)
    if state == HELD:
        end = f"see it:  ps -fp {holder.pid_here}" if holder.pid_here else ""
        return tuple(filter(None, (end,)))
    if state == SUSPECT and claim.waits:
        return (f"wait for it:  {claim.waits}",)
    if state == SUSPECT:
        if os.name == "posix" and os.geteuid() != 0 and not process.sees_all_processes():
            return (f"look as root:  sudo lifehold who {quoted}",)
        return (f"see who runs:  ps -fC {','.join(claim.programs)}",) if claim.programs else ()
    if claim.takes_over:
        return (f"{NOTHING}:  its next holder takes it over at once, by the same proof",)
    if claim.kept:
        return (f"keep it:  {claim.kept}",)
    return (f"clear it:  {claim.stale or f'lifehold clear {quoted}'}",)
