"""ASGI and WSGI middleware that refuses requests of a holder that came too late.

    app = FenceASGI(app, name="payments", registry=MemoryTokens())
    app = FenceWSGI(app, name=lambda environ: environ["PATH_INFO"], registry=FileTokens("tokens"))

A request carries the token of its lease in the header `Lifehold-Token`. Answers, as problem+json of
RFC 9457: 412 when a newer token has been seen, 428 when a writing request has none, 400 when it is
malformed, 503 when an older request does not end. A reading request with a token advances the fence
(that is `guard.advance()` over HTTP). The wrapped application finds the token under
`lifehold.token`. What is promised, and by which rule: door.py.
"""

from __future__ import annotations

from ...core.errors import StaleToken
from ...runtime import clock, fork
from ...runtime.blocking import Bell
from .door import DRAIN, HEADER, KEY, Door, Problem

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    from .tokens import Registry

__all__ = ["FenceASGI", "FenceWSGI"]

FIELD = HEADER.lower().encode()
VARIABLE = "HTTP_" + HEADER.upper().replace("-", "_")
REASONS = {400: "Bad Request", 412: "Precondition Failed", 428: "Precondition Required",
           503: "Service Unavailable"}  # fmt: skip


class FenceASGI:
    """An ASGI 3 application around another; under asyncio and trio.

    `name`: of what is guarded, or a function of the scope; None from it lets the request through.
    `registry`: where the newest token is remembered. `required`: whether a writing request must
    have a token (all but GET, HEAD, OPTIONS, TRACE), or the methods that must. `drain`: seconds to
    wait for older requests inside. Other than `http` scopes are passed on unguarded.
    """

    def __init__(
        self, app: Any, *, name: str | Callable[[Any], str | None], registry: Registry,
        required: bool | Iterable[str] = True, drain: float = DRAIN,
    ) -> None:  # fmt: skip
        self._app, self._door = app, Door(name, registry, required, drain)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        door = self._door
        name = door.name_of(scope) if scope["type"] == "http" else None
        if name is None:
            await self._app(scope, receive, send)
            return
        fields = [text.decode("latin-1") for key, text in scope["headers"] if key.lower() == FIELD]
        token = door.token_of(scope["method"], fields)
        if isinstance(token, Problem):
            await _tell(send, token)
        elif token is None:
            await self._app(scope, receive, send)
        else:
            door.passage.enter(name, token)
            try:
                refusal = await self._let_in(name, token)
                if refusal is None:
                    await self._app({**scope, KEY: token}, receive, send)
                else:
                    await _tell(send, refusal)
            finally:
                door.passage.leave(name, token)

    async def _let_in(self, name: str, token: int) -> Problem | None:
        door, loop = self._door, fork.lazily("lifehold.runtime.eventloop")
        try:
            if getattr(door.registry, "blocks", True):
                await loop.EVENT_LOOP.in_thread(
                    lambda: door.registry.admit(name, token), lambda _: None
                )
            elif (pending := door.registry.admit(name, token)) is not None:
                await pending
        except StaleToken as error:
            return door.refusal(name, error)
        until = clock.now() + door.drain
        while True:
            signal = loop.Signal()
            if door.passage.clear(name, token, signal.ring):
                return None
            if (left := until - clock.now()) <= 0:
                return door.busy(name)
            await signal.wait(left)


async def _tell(send: Any, answer: Problem) -> None:
    headers = [(key.encode(), text.encode()) for key, text in answer.headers]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})


class FenceWSGI:
    """A WSGI application around another; for threads. Arguments as of `FenceASGI`.

    `name`, as a function, gets the environ. A request is inside until its answer is closed.
    """

    def __init__(
        self, app: Any, *, name: str | Callable[[Any], str | None], registry: Registry,
        required: bool | Iterable[str] = True, drain: float = DRAIN,
    ) -> None:  # fmt: skip
        self._app, self._door = app, Door(name, registry, required, drain)

    def __call__(self, environ: Any, start_response: Any) -> Any:
        door = self._door
        name = door.name_of(environ)
        if name is None:
            return self._app(environ, start_response)
        fields = [environ[VARIABLE]] if VARIABLE in environ else []
        token = door.token_of(environ["REQUEST_METHOD"], fields)
        if isinstance(token, Problem):
            return _told(start_response, token)
        if token is None:
            return self._app(environ, start_response)
        inside = _Inside(door, name, token)
        try:
            refusal = self._let_in(name, token)
            if refusal is None:
                environ[KEY] = token
                return inside.around(self._app(environ, start_response))
        except BaseException:
            inside.close()
            raise
        inside.close()
        return _told(start_response, refusal)

    def _let_in(self, name: str, token: int) -> Problem | None:
        door = self._door
        try:
            door.registry.admit(name, token)
        except StaleToken as error:
            return door.refusal(name, error)
        until = clock.now() + door.drain
        while True:
            bell = Bell()
            if door.passage.clear(name, token, bell.ring):
                return None
            if (left := until - clock.now()) <= 0:
                return door.busy(name)
            bell.wait(left)


def _told(start_response: Any, answer: Problem) -> list[bytes]:
    start_response(f"{answer.status} {REASONS[answer.status]}", list(answer.headers))
    return [answer.body]


class _Inside:
    """One request in the passage, until its answer is closed; and that answer."""

    def __init__(self, door: Door, name: str, token: int) -> None:
        door.passage.enter(name, token)
        self._leave: Callable[[], None] | None = lambda: door.passage.leave(name, token)
        self._body: Any = ()

    def around(self, body: Any) -> _Inside:
        self._body = body
        return self

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._body)

    def close(self) -> None:
        """Called by the server, whatever becomes of the answer (PEP 3333)."""
        try:
            getattr(self._body, "close", lambda: None)()
        finally:
            leave, self._leave = self._leave, None
            if leave is not None:
                leave()

    def __del__(self) -> None:
        if getattr(self, "_leave", None) is not None:
            self.close()
