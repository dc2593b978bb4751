"""What a placeholder of `clear` says: the words of the dead lock, with us in its holder's place.

Promise: a tool of that family which judges it finds a living holder, this process: by its number,
by its begin where the format has it (filelock), and by its PID namespace. So nobody takes it over
while it stands; and when we are killed, anybody may.
"""

from __future__ import annotations

import os

from ..core.owner import INITIAL_PID_NAMESPACE
from ..runtime import process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..core.owner import Owner

MARK = "?pidns-"  # of filelock, before the number of a PID namespace


def placeholder(words: bytes, dead: Owner | None, *, link: bool) -> bytes:
    """`words` as this process would have written them. `dead`: whom they name, as far as known."""
    if dead is None:
        return words or b"%d\n" % os.getpid()
    us = process.here()
    told = _replaced(words, str(dead.pid), str(us.pid), last=link)
    if (theirs := _begin(dead)) and (ours := _begin(us)):
        told = told.replace(theirs, ours, 1)
    if dead.pid_ns is not None and us.pid_ns is not None:
        told = told.replace(_mark(dead.pid_ns), _mark(us.pid_ns), 1)
    return told


def _replaced(words: bytes, old: str, new: str, *, last: bool) -> bytes:
    """A number that stands by itself; in a link it comes behind the name of the host."""
    at, found = -1, -1
    while (at := words.find(old.encode(), at + 1)) >= 0:
        around = words[max(0, at - 1) : at] + words[at + len(old) : at + len(old) + 1]
        if not any(chr(byte).isdigit() for byte in around):
            found = at
            if not last:
                break
    return words if found < 0 else words[:found] + new.encode() + words[found + len(old) :]


def _begin(owner: Owner) -> bytes:
    """As filelock writes it: the boot id before the ticks since that boot, as one number."""
    if owner.boot_id is None or owner.start_ticks is None:
        return b""
    return b"%d" % (int(owner.boot_id.replace("-", ""), 16) << 64 | owner.start_ticks)


def _mark(pid_ns: int) -> bytes:
    return b"" if pid_ns == INITIAL_PID_NAMESPACE else f"{MARK}{pid_ns:08x}".encode()
