"""`lifehold.look` and `lifehold.clear`: what the command says of a lock, in a program.

Promise: the verdict is that of `lifehold who`, and what is removed is what `lifehold clear` removes
without `--force`: a lock whose holder is proven dead, in one step with its proof (L2, L3), noted in
the same history. A bare word is a path, as everywhere in Python.
"""

from __future__ import annotations

import os

from ..checks import check_bool
from ..core import nearest
from ..core.errors import InvalidArgument, UnknownArgument
from ..described import DescribedLock, explained
from ..lock import lock_path
from ..registry import is_store
from . import clear as removing
from . import who as asking

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Never

    from .answer import ClearOutcome, LockAnswer


@explained("look()", "look('build.lock')")
def look(path: str | os.PathLike[str]) -> LockAnswer:
    """What is known of the lock at `path`: `state` is held, free, suspect or stale.

    `path`: a lock file, of whatever tool, a lock folder, or the URL of a lock in a store. Takes no
    lock and changes nothing. `holder` says who has it, since when, and by which evidence it lives;
    `remedy` what to do next. The answer may be out of date when it arrives.

    Raises InvalidArgument for what is no lock; SystemRefused; CorruptRecord; StoreUnavailable.
    """
    where = _where(path)
    return asking.who(where, where, plain=True)


@explained("clear()", "clear('build.lock')", others="one lock a call")
def clear(path: str | os.PathLike[str], *, dry_run: bool = False, **unknown: Never) -> ClearOutcome:
    """Remove the lock at `path` if its holder is proven dead; what became of it, and why.

    `action`: "removed", "freed" (its file stays, and is nobody's lock), "kept" or "nothing"; with
    `dry_run=True` "would remove" or "would free", and nothing is changed. What is held or cannot be
    judged is kept: only a person may remove that, by `lifehold clear --force`.

    Raises what `look` raises.
    """
    if unknown and "force" not in unknown:
        raise nearest.strange("clear()", unknown, ("dry_run", "path"), _ALIKE)
    if unknown:
        raise UnknownArgument(
            f"clear() takes no {', '.join(f'{key}={unknown[key]!r}' for key in unknown)}: "
            "what is held or cannot be judged is removed by a person alone, by "
            "`lifehold clear --force`"
        )
    check_bool("dry_run", dry_run)
    return removing.clear(_where(path), dry_run=dry_run)


_ALIKE: Mapping[str, str] = {
    **dict.fromkeys("dry dryrun simulate check noop no_act".split(), "dry_run")
}


def _where(path: str | os.PathLike[str]) -> str:
    given = os.fspath(path) if isinstance(path, os.PathLike) else path
    if isinstance(given, DescribedLock):
        raise InvalidArgument(
            f"path must be a str or an os.PathLike of str, not {given!r}: give lock.path"
        )
    return given if is_store(given) else lock_path(given)
