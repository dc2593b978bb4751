"""How a grant ends: by who holds it, once, with an answer or a doubt.

L5  The claim is spent first, so of all who would end a grant one does; the store knows the grant by
its mark. L6  A lost answer is asked for again: a second "not here" then means done.
"""

from __future__ import annotations

from ..core.deadline import NEVER
from ..core.grant import Lost, Unknown
from ..runtime import fork
from ..runtime.blocking import finish
from .leaving import FAILURES, Leaving
from .site import within

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from ..core.grant import Grant

FORKED = "it belongs to the parent process"


class Ending(Leaving):
    """The part of `StoreLock` (engine.py) that lets go."""

    def drop(self, grant: Grant) -> Lost | Unknown | None:
        """Let it go, by the calling thread."""
        leave, doubt = self.site.leave_free, None
        try:
            if (not_ours := self._spend(grant)) is not None:
                return not_ours
            try:
                if leave is not None and leave(self.name, grant.mark):
                    return None
            except FAILURES as error:  # asked in full
                doubt = error
            return finish(self._let_go(grant, self.site.beside, doubt))
        except BaseException:
            self._interrupted(grant)
            raise

    async def release(self, grant: Grant) -> Lost | Unknown | None:
        """The same, awaited."""
        try:
            return self._spend(grant) or await self._let_go(grant, self._send)
        except BaseException:
            self._interrupted(grant)
            raise

    def _spend(self, grant: Grant) -> Lost | None:
        for claim in grant.handle:
            if claim.generation != fork.here():
                return Lost(FORKED)
        try:
            grant.handle.pop().spent = True
        except IndexError:
            return Lost("released already")
        return None

    def _interrupted(self, grant: Grant) -> None:
        """L6  In the middle of a release: the claim may be spent, and nobody else would."""
        if not grant.handle:
            self.site.post(lambda backend: backend.release(self.name, grant.mark), here=False)

    def _leaves(self, grant: Grant, until: float) -> Callable[[Any], Coroutine[Any, Any, Any]]:
        return lambda backend: within(backend, until).release(self.name, grant.mark)

    async def _let_go(
        self, grant: Grant, send: Any, doubt: Exception | None = None
    ) -> Lost | Unknown | None:
        until, over = self.now() + self.site.limit, NEVER
        for _ in range(2):
            try:
                was_in = await send(self._leaves(grant, over))
            except FAILURES as error:
                doubt, over = error, until
                if self.now() >= until:
                    break
                continue
            if was_in or doubt is not None:  # the first request may have been carried out
                return None
            return Lost("others may have been in: the store had let it go", gone=True)
        assert doubt is not None
        self.site.undo(self.name, grant.mark, self.terms.ttl)
        return Unknown(grant.nonce, doubt)
