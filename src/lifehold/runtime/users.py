"""The login name of a user id.

L9  The C library looks it up under a lock of its own. A fork in the middle of that would leave the
lock shut in the child, which then waits for it for ever (seen). So it is done under the fork gate,
and once: a child has its parent's answer.
"""

from __future__ import annotations

import os

from . import fork

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_names: dict[int, str | None] = {}


def user_name(uid: int | None) -> str | None:
    """The login name of a user id, None when there is none."""
    if uid is None:
        return os.environ.get("USERNAME")
    if uid not in _names:
        _names[uid] = _looked_up(uid)
    return _names[uid]


def _looked_up(uid: int) -> str | None:
    pwd: Any = fork.lazily("pwd")
    fork.here()
    with fork.gate:
        try:
            return pwd.getpwuid(uid).pw_name  # type: ignore[no-any-return]
        except KeyError:
            return None
