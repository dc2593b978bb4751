"""What `who` says of a lock whose record is the lock, its kind being found, not told."""

from __future__ import annotations

from ..core.owner import UNKNOWN
from ..core.value import replace
from ..local import identify
from ..local.files import HOST
from ..local.record import FROM_NEWER, OLDER, UNREADABLE
from .answer import FREE, Answer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..local.judge import Judged

WHY = {
    FROM_NEWER: "its record was written by a newer lifehold than this one: upgrade lifehold here",
    UNREADABLE: "its record is damaged; whoever waits for it leaves it alone for a while",
}


def answer(name: str, path: str, fd: int | None = None) -> Answer | None:
    """The answer for `soft`, `link` and `generation`; None when no such record is there.

    `fd`: of the path, when it is open for reading already.
    """
    try:
        found = identify.standing(HOST, path, fd)
    except OSError:
        return None
    if found is None:
        return None
    kind = found.marker.kind
    if found.marker.state == OLDER and kind not in identify.KINDS:
        kind = "pidfile"
    holder = identify.holder_of(found)
    if identify.is_free(found):
        return Answer(name, path, FREE, last=replace(holder, lock=""), kind=kind)
    state, note = identify.STATES[found.state], _note(found)
    return Answer(name, path, state, holder, note=note, kind=kind or _kind(found))


def _note(found: Judged) -> str:
    marker = found.marker
    if marker.state in WHY:
        return WHY[marker.state]
    if found.state == UNKNOWN and marker.ttl is not None:
        return (
            f"a lease: whoever waits takes it when it was not renewed for {marker.ttl:g} s; "
            "whether its holder lives cannot be seen from here"
        )
    return ""


def _kind(found: Judged) -> str:
    """Of a record that cannot be read: as it was judged."""
    return next(kind for kind in identify.KINDS if f"({kind} lock" in found.lock)
