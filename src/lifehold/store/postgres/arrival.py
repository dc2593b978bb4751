"""Connections that are being opened, and forks in the middle of that (L9).

Promise: a child that is forked meanwhile keeps no copy of the socket. By a copy it would keep the
session alive behind its parent's death, and with the session all that it has locked.

Rule: psycopg opens a connection step by step, and names its socket before it waits in each; that is
noted, until the connection itself is (link.py). How it could fail: the steps are psycopg's own
affair, since 3.0; were they named otherwise, nothing would be noted.
"""

from __future__ import annotations

import os
from contextvars import ContextVar

from ...core.deadline import NEVER
from ...runtime import clock, fork
from ..settle import settle
from .link import keep

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Any

_coming: dict[object, tuple[int, int]] = {}  # the socket of each, and its inode
_kinds: dict[Any, Any] = {}
_until: ContextVar[float] = ContextVar("_until", default=NEVER)


@fork.in_child
def _leave_to_parent() -> None:
    for fd, inode in _coming.values():
        try:
            if os.fstat(fd).st_ino == inode:
                os.close(fd)
        except OSError:
            continue  # its connection has come, and was closed as such
    _coming.clear()


async def opened(kind: Any, until: float = NEVER, **known: Any) -> Any:
    """A new connection, `kind` a class of psycopg. Noted: to be given up by `link.drop`.

    `until`: the instant at which it has to be there; libpq counts whole seconds, 2 at the least.
    """
    before = _until.set(until)
    try:
        return keep(await settle(_step_by_step(kind).connect(**known)))
    finally:
        _until.reset(before)


def _step_by_step(kind: Any) -> Any:
    """The same class, whose steps are noted."""
    if kind not in _kinds:
        steps = getattr(kind, "_connect_gen", None)

        def noted(cls: Any, *given: Any, **named: Any) -> Any:
            assert steps is not None
            return _noted(steps.__func__(cls, *given, **named))

        more = {"_connect_gen": classmethod(noted), "__module__": kind.__module__}
        _kinds[kind] = kind if steps is None else type(kind.__name__, (kind,), more)
    return _kinds[kind]


def _noted(steps: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    me = object()
    try:
        asked = next(steps)
        while True:
            _coming[me] = asked[0], os.fstat(asked[0]).st_ino
            heard = yield asked
            if clock.now() >= _until.get():
                psycopg: Any = fork.lazily("psycopg")
                raise psycopg.OperationalError("connection timeout expired")
            asked = steps.send(heard)
    except StopIteration as came:
        return keep(came.value)
    finally:
        steps.close()
        _coming.pop(me, None)
