"""Removing stale locks: only existence locks, only on proof, and never by a bare path.

Promise: a lock is removed only while its holder is proven gone (L2), as the one that was judged
(L3), and after a line about it was written to the audit log. A file that a kernel lock may be taken
on is never removed (L7): the lock is free as soon as its holder ends, and two files under one name
are two locks. Where its words stand in the way, it is emptied. A live or a suspect lock is removed
only by who types the word that names that very lock. Root does all this with the rights of who owns
the place (rights.py), and what is left there stays theirs (L13).

Our own kinds are cleared by taking the lock, which is their takeover, and giving it back. Others'
files and links: removal.py. What a tool clears by itself, or only it can clear, is left to it.
"""

from __future__ import annotations

import os
import stat

from .. import registry
from ..core import events, explain
from ..core.errors import LifeholdError, SystemRefused
from ..core.mask import printable
from ..core.value import replace, value
from ..face import absolute
from ..local import identify, lock_names
from ..local.files import HOST
from ..runtime import clock, fork, process, rights
from ..runtime import process as boot
from . import existence, families, history, removal
from .answer import FREE, HELD, STALE, SUSPECT
from .who import who

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .answer import Answer

OURS = ("soft", "link", "generation", "directory", "folder")
KERNEL = ("flock", "fcntl", "ofd")
REMOVED, WOULD, KEPT, NOTHING = "removed", "would remove", "kept", "nothing"
FREED, WOULD_FREE = "freed", "would free"
LOG = "cleared"  # beside the locks of plain names, hidden as a history is


@value
class Outcome:
    """What became of one path.

    `action`: REMOVED, FREED (a file or folder stays there, which is nobody's lock), WOULD or
    WOULD_FREE (a dry run), KEPT or NOTHING; `why` in words; `word`: what must be
    typed to remove it all the same, "" where nobody may; `next`: a command that is better.
    """

    path: str
    action: str
    why: str
    answer: Answer
    word: str = ""
    next: str = ""

    @property
    def left(self) -> bool:
        """Whether something is left that stands in the way, and is not simply held."""
        return self.action in (WOULD, WOULD_FREE) or (
            self.action == KEPT and self.answer.state in (STALE, SUSPECT)
        )


def clear(
    path: str, *, dry_run: bool = False, force: str = "", earlier_boot: bool = False,
    found: bool = False,
) -> Outcome:  # fmt: skip
    """Remove the lock at `path` if it is stale. `force`: the word of this very lock.

    `earlier_boot`: only if an earlier boot of this machine has left it; `found`: in a tree, nobody
    has named it: what may be data as well is kept. Raises what `who` raises;
    SystemRefused when the audit log cannot be written.
    """
    if lock_names.is_store(path):
        stored: Any = fork.lazily("lifehold.ops.stored_clear")
        return stored.clear(path, dry_run=dry_run, force=force)  # type: ignore[no-any-return]
    path = absolute(path)
    answer = who(path, path, plain=True)
    path = answer.path  # of one whose state stands beside it, that
    kept = _never(path, answer)
    if kept is not None:
        return kept
    if found and answer.state == STALE and (why := families.doubt_of(answer.family, path)):
        return Outcome(path, KEPT, why, answer, next=f"lifehold clear {explain.quote(path)}")
    if earlier_boot and answer.state == STALE and not _is_of_earlier_boot(path, answer):
        why = "its holder is gone, but it was made since this machine has started"
        return Outcome(path, KEPT, why, answer, next=f"lifehold clear {explain.quote(path)}")
    word = word_of(path)
    forced = bool(force) and force == word
    if answer.state != STALE and not forced:
        return _unproven(path, answer, word, force)
    evidence = answer.holder.evidence if answer.holder else ""
    why = f"by order, although {evidence}" if forced and answer.state != STALE else evidence
    try:
        case = Case.of(path, answer)
    except SystemRefused as error:
        return Outcome(path, KEPT, error.text, answer)
    if dry_run:
        return Outcome(path, WOULD_FREE if case.stays else WOULD, why, answer)
    return _removed(path, answer, why, forced and answer.state != STALE, case)


@value
class Case:
    """How one lock is cleared. `actor`: with whose rights; `found`: its lstat(2).

    `emptied`: its words go, and the file stays; `stays`: what stays, in words, "" for nothing.
    """

    found: os.stat_result
    actor: rights.Actor | None
    emptied: bool
    stays: str

    @classmethod
    def of(cls, path: str, answer: Answer) -> Case:
        """Raises SystemRefused where it cannot be done safely."""
        found = os.lstat(path)
        emptied = (answer.kind not in OURS and stat.S_ISREG(found.st_mode)
                   and families.also_locks(answer.family))  # fmt: skip
        stays = MAY_BE_LOCKED if emptied else STAYS.get(answer.kind, "")
        return cls(found, rights.actor_for(path, found), emptied, stays)


def word_of(path: str) -> str:
    """The word of the lock that stands there now: another lock, or another content, has another."""
    import hashlib

    try:
        found = os.lstat(path)
        said = b"" if os.path.isdir(path) else removal.words_of(path)
    except OSError:
        return ""
    key = f"{found.st_dev} {found.st_ino} {found.st_ctime_ns} ".encode() + said
    return hashlib.sha256(key).hexdigest()[:8]


def _never(path: str, answer: Answer) -> Outcome | None:
    """What is not removed by anybody's order."""
    if not answer.exists:
        return Outcome(path, NOTHING, "there is nothing", answer)
    if answer.kind in KERNEL or (answer.kind not in (*OURS, "existence", "pidfile")):
        if answer.family not in ("", "flock") or answer.holder is not None:
            why = "a kernel lock's file: removed, it would let a second holder in"
        elif answer.last is not None:
            why = "a kernel lock's file, which is free: nothing is in anybody's way"
        else:
            why = "it is free, and not known as a lock that a file makes by being there"
        return Outcome(path, NOTHING if answer.state == FREE else KEPT, why, answer)
    if answer.state == FREE:
        return Outcome(path, NOTHING, "it is free", answer)
    for each in answer.remedy:
        what, _, command = each.partition(":  ")
        if what == existence.NOTHING:
            return Outcome(path, NOTHING, command, answer)
        if what == "keep it":
            return Outcome(path, KEPT, command, answer)
        if what == "clear it" and not command.startswith("lifehold "):
            return Outcome(path, KEPT, "its own tool clears it", answer, next=command)
    if answer.kind == "existence" and os.path.isdir(path) and not os.path.islink(path):
        return Outcome(path, KEPT, "a folder, which its own tool must clear", answer)
    return None


def _is_of_earlier_boot(path: str, answer: Answer) -> bool:
    """By the boot that its record names; else by its time, which proves nothing and only narrows.

    That its holder is gone is proven already, without any clock.
    """
    owner = answer.holder.owner if answer.holder else None
    if owner is not None and owner.boot_id is not None:
        return owner.boot_id != process.here().boot_id
    began = boot.began_at(0)
    try:
        return began is not None and os.lstat(path).st_ctime < began
    except FileNotFoundError:
        return False


def _unproven(path: str, answer: Answer, word: str, force: str) -> Outcome:
    evidence = answer.holder.evidence if answer.holder else answer.note
    why = f"{'it is held' if answer.state == HELD else 'no proof that its holder is gone'}: "
    why += evidence
    if force:
        why = f"the word {printable(force)!r} is not of the lock that stands there now; {why}"
    return Outcome(path, KEPT, why, answer, word)


def _removed(path: str, answer: Answer, why: str, forced: bool, case: Case) -> Outcome:
    words = b""
    owner = answer.holder.owner if answer.holder else None
    if answer.kind not in OURS:
        words = removal.words_of(path)
        again = who(path, path, plain=True)  # the proof, of what was read
        if not forced and again.state != STALE:
            return _unproven(path, again, word_of(path), "")
    note = f"{why} (with the rights of {case.actor.name})" if case.actor else why
    _note(path, answer, note, history.CLEAR)
    try:
        if answer.kind in OURS:
            order, kind = why if forced else "", answer.kind
            _load(kind)
            rights.act(case.actor, lambda: _take_and_release(path, kind, order, case.found))
        elif case.emptied:
            rights.act(case.actor, lambda: removal.empty(path, case.found, words))
        else:
            rights.act(case.actor, lambda: removal.remove(path, case.found, words, owner))
    except (removal.Changed, LifeholdError, OSError) as error:
        text = error.text if isinstance(error, LifeholdError) else str(error)
        if isinstance(error, OSError) and error.strerror and not isinstance(error, LifeholdError):
            text = f"the system refused: {error.strerror}"
            text += f" (tried with the rights of {case.actor.name})" if case.actor else ""
        _note(path, answer, text, history.KEPT)
        return Outcome(path, KEPT, f"not removed: {text.partition(chr(10))[0]}", answer)
    events.tell(events.Cleared(path, answer.holder, why))
    freed = replace(answer, state=FREE)
    if case.stays:
        remove = f"rm -- {explain.quote(path)}" if case.emptied else ""
        return Outcome(path, FREED, f"{why}; {case.stays}", freed, next=remove)
    return Outcome(path, REMOVED, why, freed)


MAY_BE_LOCKED = (
    "the file stays, emptied, since its program may lock it by the kernel too. Only if that "
    "program takes its mere presence as the lock, remove it"
)
STAYS = {  # of our kinds
    "generation": "its folder stays, with a record that is free, for the next holder",
    "folder": "its folder stays, without the dead bid, for the next holder",
}


# What a takeover may load on its way: who owns the place may not be able to read our modules.
NEEDED = (
    "ctypes", "functools", "json", "logging", "pwd", "select", "encodings.ascii", "lifehold.lock",
    "lifehold.core.explain", "lifehold.local.ground", "lifehold.local.ground_probe",
    "lifehold.local.kernel_holders", "lifehold.local.takeover", "lifehold.local.folder",
    "lifehold.runtime.flock_wait", "lifehold.runtime.process", "lifehold.runtime.inotify",
    "lifehold.runtime.change_wait", "lifehold.runtime.watch_thread", "lifehold.runtime.notify",
    "lifehold.runtime.watch_thread", "lifehold.runtime.watch_thread",
)  # fmt: skip


def _load(kind: str) -> None:
    for module in NEEDED:
        fork.lazily(module)
    registry.maker(kind)
    process.here()


def _take_and_release(path: str, kind: str, order: str, found: os.stat_result) -> None:
    """By the lock's own takeover, or by order. What it makes has the rights of what was there."""
    lock: Any = fork.lazily("lifehold.lock")
    standing_now = identify.standing(HOST, path)
    ttl = standing_now.marker.ttl if standing_now is not None else None
    terms: dict[str, Any] = {} if ttl is None else {"ttl": ttl}
    if stat.S_IMODE(found.st_mode) & 0o066 == 0o066:
        terms["shared"] = True
    made = lock.Lock(path, kind=kind, **terms)
    if order:
        made.break_(order)
        return
    with made.acquire(wait=0):
        return


def _note(path: str, answer: Answer, why: str, event: str) -> None:
    """One line, written before it is done. Raises SystemRefused."""
    us = process.here()
    holder = answer.holder
    entry = history.Entry(
        event, path, clock.utc_now(), pid=us.pid, user=us.user, host=us.host,
        command=us.command or "", reason=why, label=answer.family,
        holder=explain.by(holder) if holder else "",
        holder_pid=holder.owner.pid if holder and holder.owner else None,
        holder_since=holder.since if holder else None,
    )  # fmt: skip
    if not history.append(log_path(), entry, own=True):
        raise SystemRefused(
            f"the audit log '{printable(history.path_of(log_path()))}' cannot be written: nothing "
            "was removed. Set LIFEHOLD_DIR to a folder that can be written",
        )


def log_path() -> str:
    """What `history` calls the audit log; its folder is made. Raises SystemRefused."""
    folder = _log_folder()
    lock_names.make_folder(f"{folder}/{LOG}")
    os.makedirs(folder, exist_ok=True)
    return f"{folder}/{LOG}"


def _log_folder() -> str:
    """L13  The first folder where nobody else may make or swap the audit log of this user."""
    folders = lock_names.private_folders()
    if os.name != "posix":
        return folders[0]
    for folder in folders:
        try:
            if not rights.strangers(f"{folder}/{LOG}"):
                return folder
        except OSError:
            continue
    if os.geteuid() != 0:
        return folders[0]  # its file must be this user's: `own=True`
    raise SystemRefused(
        "there is no folder for the audit log which root alone may write to: nothing was removed. "
        f"Make one: install -d -m 755 {lock_names.MACHINE}",
    )


def logged() -> list[history.Entry]:
    """What was removed, the oldest first. Raises OSError."""
    found = []
    for folder in dict.fromkeys((_log_folder(), lock_names.candidates()[0])):
        lock = f"{folder}/{LOG}"
        try:
            known = os.lstat(history.path_of(lock))
        except FileNotFoundError:
            continue
        if os.name != "posix" or known.st_uid == os.geteuid():
            found += history.read(lock)
    return sorted(found, key=lambda entry: entry.at)
