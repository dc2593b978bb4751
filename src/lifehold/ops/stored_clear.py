"""`clear` on a lock in a store: nothing stale is there to remove, but a live one can be broken.

Promise: a lease, or a session that holds a lock, is ended before its time only by who types the
word that names this very grant; its holder is told at its next renewal, its token is behind every
later one, and the store notes who did it and why.
"""

from __future__ import annotations

from ..stores.leases import broken
from .answer import FREE, STALE
from .clear import KEPT, NOTHING, REMOVED, WOULD, Outcome
from .stored import answer, parted

LETTERS = 8  # of the grant's mark, to be typed; of another tool's session the process


def clear(url: str, *, force: str = "", dry_run: bool = False) -> Outcome:
    """What became of the lock of a URL. Raises InvalidArgument, StoreUnavailable."""
    found = answer(url, url)
    if found.state == FREE or found.holder is None:
        return Outcome(found.path, NOTHING, "it is free", found)
    if found.state == STALE:
        why = f"{found.holder.evidence}: whoever asks next gets it at once"
        return Outcome(found.path, NOTHING, why, found)
    owner = found.holder.owner
    word = (found.holder.nonce or str(owner.pid if owner else found.holder.evidence))[:LETTERS]
    evidence = found.holder.evidence
    if force != word:
        why = f"a {found.kind} ends by itself: {evidence}"
        if force:
            why = f"the word {force!r} is not of the grant that holds it now; {why}"
        return Outcome(found.path, KEPT, why, found, word)
    why = f"by order, although {evidence}"
    if dry_run:
        return Outcome(found.path, WOULD, why, found)
    site, key = parted(url)
    broken(site, key, "lifehold clear --force")
    return Outcome(found.path, REMOVED, why, found)
