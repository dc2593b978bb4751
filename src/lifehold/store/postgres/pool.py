"""Requests over a connection pool of the caller's: psycopg_pool, blocking or asynchronous.

Promise: a connection is given back as it was. Renewals do not go through it, since a pool that the
program has emptied would cost it its leases: they have connections of their own, opened by the same
`conninfo` and `kwargs`.
"""

from __future__ import annotations

from ...core.deadline import NEVER
from ...core.errors import InvalidArgument
from ...core.storage import Unreachable
from ...runtime import clock
from ..settle import settle
from . import wire
from .link import SHORTEST, told
from .words import said

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from .open import Plan


def parts(pool: Any) -> tuple[str, dict[str, Any], bool]:
    """The conninfo and options of a pool, and whether it is to be awaited."""
    conninfo = getattr(pool, "conninfo", None)
    if not isinstance(conninfo, str) or not hasattr(pool, "getconn"):
        raise InvalidArgument(
            "pool= takes a psycopg_pool.ConnectionPool or AsyncConnectionPool with a conninfo, not "
            f"{type(pool).__name__}"
        )
    known = dict(getattr(pool, "kwargs", None) or {})
    for ours in ("autocommit", "cursor_factory", "row_factory", "context", "prepare_threshold"):
        known.pop(ours, None)
    return conninfo, known, hasattr(pool, "__aenter__")


class PoolLink:
    """In place of a Link (link.py). `awaited`: the pool is asynchronous."""

    prepared = False

    def __init__(self, pool: Any, plan: Plan, awaited: bool) -> None:
        self._pool, self._plan, self._awaited = pool, plan, awaited
        self.known, self.limit = plan.known, plan.limit

    async def ask(
        self, query: str | Callable[[], tuple[str, bool]], given: Sequence[Any] = (),
        until: float = NEVER,
    ) -> list[tuple[Any, ...]]:  # fmt: skip
        """One statement, in one round trip, a transaction of its own. Raises as Link.ask."""
        began = clock.now()
        until = min(until, began + self.limit)
        await self._plan.look_once(self._awaited, until)
        try:
            left = max(SHORTEST, until - clock.now())
            connection = await settle(self._pool.getconn(timeout=left))
        except Exception as error:
            if not hasattr(error, "sqlstate"):
                raise
            raise Unreachable(f"the pool of the program: {said(error, self.known)}") from error
        line = wire.Line(connection)
        try:
            text, _ = (query, False) if isinstance(query, str) else query()
            left = max(SHORTEST, until - clock.now())
            return await line.ask(text, given, left, lent=True)
        except Exception as error:
            if not line.goes_on(error):
                connection.pgconn.finish()  # its answer may still come: the pool drops it
            raise told(error, self.known, clock.now() - began) from error
        except BaseException as error:
            if isinstance(error, GeneratorExit) or not await line.hear_out():
                connection.pgconn.finish()
            raise
        finally:
            await settle(self._pool.putconn(connection))
