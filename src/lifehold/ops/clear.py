"""Removing stale locks: only existence locks, only on proof, and never by a bare path.

Promise: a lock is removed only while its holder is proven gone (L2), as the one that was judged
(L3), and after a line about it was written to the audit log. A kernel lock's file is never removed
(L7): the lock is free as soon as its holder ends, and two files under one name are two locks. A
live or a suspect lock is removed only by who types the word that names that very lock.

Our own kinds are cleared by taking the lock, which is their takeover, and giving it back. Others'
files and links: removal.py. What a tool clears by itself, or only it can clear, is left to it.
"""

from __future__ import annotations

import os

from ..core import events, explain
from ..core.errors import LifeholdError, SystemRefused
from ..core.mask import printable
from ..core.value import replace, value
from ..face import absolute
from ..local import places, standing
from ..local.files import HOST
from ..runtime import boot, clock, fork, process
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
LOG = "cleared"  # beside the locks of plain names, hidden as a history is


@value
class Outcome:
    """What became of one path.

    `action`: REMOVED, WOULD (a dry run), KEPT or NOTHING; `why` in words; `word`: what must be
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
        return self.action == WOULD or (
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
    if places.is_store(path):
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
    if dry_run:
        return Outcome(path, WOULD, why, answer)
    return _removed(path, answer, why, forced and answer.state != STALE)


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


def _removed(path: str, answer: Answer, why: str, forced: bool) -> Outcome:
    found, words = os.lstat(path), b""
    owner = answer.holder.owner if answer.holder else None
    if answer.kind not in OURS:
        words = removal.words_of(path)
        again = who(path, path, plain=True)  # the proof, of what was read
        if not forced and again.state != STALE:
            return _unproven(path, again, word_of(path), "")
    _note(path, answer, why, history.CLEAR)
    try:
        if answer.kind in OURS:
            _take_and_release(path, answer.kind, why if forced else "")
        else:
            removal.remove(path, found, words, owner)
    except (removal.Changed, LifeholdError, OSError) as error:
        text = error.text if isinstance(error, LifeholdError) else str(error)
        if isinstance(error, OSError) and error.strerror and not isinstance(error, LifeholdError):
            text = f"the system refused: {error.strerror}"
        _note(path, answer, text, history.KEPT)
        return Outcome(path, KEPT, f"not removed: {text.partition(chr(10))[0]}", answer)
    events.tell(events.Cleared(path, answer.holder, why))
    return Outcome(path, REMOVED, why, replace(answer, state=FREE))


def _take_and_release(path: str, kind: str, order: str) -> None:
    """By the lock's own takeover, or by order."""
    lock: Any = fork.lazily("lifehold.lock")
    standing_now = standing.standing(HOST, path)
    ttl = standing_now.marker.ttl if standing_now is not None else None
    terms = {} if ttl is None else {"ttl": ttl}
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
    if not history.append(log_path(), entry):
        raise SystemRefused(
            f"the audit log '{printable(history.path_of(log_path()))}' cannot be written: nothing "
            "was removed. Set LIFEHOLD_DIR to a folder that can be written",
        )


def log_path() -> str:
    """What `history` calls the audit log; its folder is made."""
    folder = places.candidates()[0]
    places.make_folder(f"{folder}/{LOG}")
    os.makedirs(folder, exist_ok=True)
    return f"{folder}/{LOG}"


def logged() -> list[history.Entry]:
    """What was removed, the oldest first. Raises OSError."""
    return history.read(f"{places.candidates()[0]}/{LOG}")
