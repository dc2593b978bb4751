"""Whether a lock that was taken around us is still held: what scripts ask under `lifehold run`.

Promise: yes only while the kernel says that the lock is held and it is by that very grant: its
nonce stands in the record, or, for a grant that leaves none (a shared one), a process that we
descend from has the locked file open. L4, L5: a number proves nothing here; the nonce does.
L8  What a file server answers late says nothing: the lease may have run out while it was silent.
"""

from __future__ import annotations

import os

from ..core import around
from ..core.errors import InvalidArgument
from ..core.mask import printable
from ..core.owner import ALIVE, DEAD
from ..core.value import value
from ..local import identify, kernel_holders, lock_names
from ..local.files import HOST
from ..local.proc_locks import FLOCK, OpenFileScan
from ..runtime import clock, fork, process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..core.grant import Holder
    from . import stored
else:
    stored = fork.later("lifehold.ops.stored", globals())

LATE = 1.0  # seconds; a look that took longer is made again
TRIES = 3


@value
class HeldAnswer:
    """`valid`, and if not why; the lock's path and its holder now."""

    valid: bool
    path: str = ""
    reason: str = ""
    holder: Holder | None = None


def of_environment(path: str | None) -> HeldAnswer:
    """Whether we stand inside a `lifehold run` of the lock file at `path`, which still holds it.

    None: of the innermost lock around us.
    """
    outer = around.parse(os.environ.get(around.VARIABLE, ""))
    mine = [each for each in outer if path is None or _same(each.path, path)]
    if not mine:
        what = f"'{printable(path)}'" if path is not None else "any lock"
        return HeldAnswer(False, path or "", f"no `lifehold run` around this command holds {what}")
    return of_nonce(mine[-1].path, mine[-1].nonce)


def of_nonce(path: str, nonce: str) -> HeldAnswer:
    """Whether the grant with that nonce holds the lock file at `path`."""
    holder, late = _in_time(path)
    if late:
        return HeldAnswer(False, path, late, holder)
    if holder is None:
        return HeldAnswer(
            False, path, f"the lock is free: '{printable(path)}' was let go of or replaced"
        )
    if holder.nonce == nonce and holder.alive != DEAD:  # that very grant: nobody took it over
        return HeldAnswer(True, path, "", holder)
    if holder.alive == ALIVE and holder.nonce is None and _held_by_an_ancestor(path):
        return HeldAnswer(True, path, "", holder)
    return HeldAnswer(False, path, f"another holds '{printable(path)}' now", holder)


def of_token(path: str, token: int) -> HeldAnswer:
    """Whether the holder of the lock file at `path` has that fencing token."""
    holder, late = _in_time(path)
    path = lock_names.shown(path)
    shown = printable(path)
    if late:
        return HeldAnswer(False, path, late, holder)
    if holder is None:
        return HeldAnswer(False, path, f"nobody holds '{shown}'")
    if holder.token == token and holder.alive != DEAD:
        return HeldAnswer(True, path, "", holder)
    now = "no token" if holder.token is None else f"the token {holder.token}"
    return HeldAnswer(False, path, f"the holder of '{shown}' has {now}, not {token}", holder)


def _in_time(path: str) -> tuple[Holder | None, str]:
    """Who holds it, and why that is no answer: it came too late."""
    for _ in range(TRIES):
        began = clock.now()
        holder = _holder(path)
        took = clock.now() - began
        if took <= LATE:
            return holder, ""
    return holder, f"the look at '{printable(path)}' took {took:.1f} s: nobody knows if it holds"


def _holder(path: str) -> Holder | None:
    """Who holds it, whatever its kind."""
    if lock_names.is_store(path):
        return stored.holder_of(_reached(path))
    return identify.holder_at(HOST, path) or kernel_holders.holder_of(HOST, path, False)


def _reached(path: str) -> str:
    """The URL that leads to a lock in a store: the `run` around us was given it with its user."""
    typed = os.environ.get("LIFEHOLD_NAME", "")
    if "#" in typed and lock_names.is_store(typed):
        try:
            if path == stored.canonical(typed):
                return typed
        except InvalidArgument:
            pass  # somebody else's, and nothing that we could ask
    return path


def _same(one: str, other: str) -> bool:
    if one == other:
        return True
    try:
        return os.path.samestat(os.lstat(one), os.lstat(other))
    except OSError:
        return False


def _held_by_an_ancestor(path: str) -> bool:
    """Whether we, or a process that we descend from, have the file open with its lock."""
    pids, pid = [], os.getpid()
    while pid > 0 and pid not in pids:
        pids.append(pid)
        pid = process.parent_of(pid)
    key = kernel_holders.look_at(HOST, path).key
    return bool(OpenFileScan([os.path.basename(path)], pids).holding(key, FLOCK))
