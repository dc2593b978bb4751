"""ASGI and WSGI middleware that refuses requests of a holder that came too late.

    app = FenceASGI(app, name="payments", registry=MemoryTokens())
    app = FenceWSGI(app, name=lambda environ: environ["PATH_INFO"], registry=FileTokens("tokens"))

A request carries the token of its lease in the header `Lifehold-Token`. Answers, as problem+json of
RFC 9457: 412 when a newer token has been seen, 428 when a writing request has none, 400 when it is
malformed, 503 when an older request does not end. A reading request with a token advances the fence
(that is `guard.advance()` over HTTP). The wrapped application finds the token under
`lifehold.token`. What is promised, and by which rule: http.py.
"""

from __future__ import annotations

import hashlib
import json
import os
import re

from ...core.errors import InvalidArgument, StaleToken
from ...core.fence import LARGEST, admit, stale
from ...core.value import value
from ...decorated import is_coroutine_function
from ...local.handles import files_for
from ...local.refusals import make_folders, refused
from ...runtime import clock, fork
from ...runtime.blocking import ThreadWakeup
from .file import FencedFile
from .rule import check_name, token_of
from .sql import TABLE, AsyncSqlFence, SqlFence

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import (
        Awaitable,
        Callable,
        Generator,
        Iterable,
        Iterator,
        Mapping,
        MutableMapping,
    )
    from typing import Any, Protocol

    from ...runtime import eventloop
    from .rule import Carrier

    class Registry(Protocol):
        """The newest token of each name. `blocks`: a call may hold up an event loop."""

        blocks: bool

        def admit(self, name: str, token: int) -> Awaitable[object] | None:
            """Store the token, unless a newer one has been seen: then StaleToken."""
            ...
else:
    eventloop = fork.later("lifehold.runtime.eventloop", globals())

HEADER = "Lifehold-Token"
KEY = "lifehold.token"  # in an ASGI scope or a WSGI environ
MEDIA = "application/problem+json"
TYPE = "urn:lifehold:problem:"
READING = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
DRAIN = 30.0  # seconds that a request waits for older ones that are still inside
TITLES = {
    400: ("malformed-token", "The fencing token is malformed"),
    412: ("stale-token", "A later holder has been here"),
    428: ("token-required", "A fencing token is required"),
    503: ("busy", "A request with an older token is still at work"),
}


@value
class ProblemAnswer:
    """An answer in the form of RFC 9457."""

    status: int
    body: bytes
    headers: tuple[tuple[str, str], ...]


def problem(status: int, detail: str, **more: object) -> ProblemAnswer:
    """The answer with one of our statuses."""
    word, title = TITLES[status]
    text = {"type": TYPE + word, "title": title, "status": status, "detail": detail} | more
    body = json.dumps(text).encode()
    headers = [("content-type", MEDIA), ("content-length", str(len(body)))]
    headers += [("cache-control", "no-store")]
    headers += [("retry-after", "1")] if status == 503 else []
    return ProblemAnswer(status, body, tuple(headers))


class HttpAdmission:
    """The rules of one middleware, and who is inside."""

    def __init__(
        self,
        name: str | Callable[[Any], str | None],
        registry: Registry,
        required: bool | Iterable[str],
        drain: float,
    ) -> None:
        if not callable(name) and not isinstance(name, str):
            raise InvalidArgument(f"name must be a str or a function, not {type(name).__name__}")
        self._name, self.drain = name, drain_of(drain)
        self._required = required if isinstance(required, bool) else methods_of(required)
        self.registry = check_registry(registry)
        self.requests = RequestsInside()

    def name_of(self, request: Any) -> str | None:
        """What the request is about to touch; None: nothing that is guarded."""
        return self._name(request) if callable(self._name) else self._name

    def token_of(self, method: str, headers: list[str]) -> int | ProblemAnswer | None:
        """The token of a request; None: it has none and needs none."""
        if not headers:
            needed = self._required
            if isinstance(needed, frozenset):
                needed = method.upper() in needed
            elif needed:
                needed = method.upper() not in READING
            detail = f"{method} needs the header {HEADER}, the fencing token of the caller's lease"
            return problem(428, detail) if needed else None
        (text, *more) = (header.strip(" \t") for header in headers)
        if more or not (text.isascii() and text.isdigit() and len(text) <= 19):
            return problem(400, f"{HEADER} must be one number of 1 to 19 digits")
        if int(text) > LARGEST + 1:
            return problem(400, f"{HEADER} must be less than 2**63")
        return int(text)

    def refusal(self, name: str, error: StaleToken) -> ProblemAnswer:
        """What a late writer is told."""
        detail = "Stop, acquire the lock again and read the data anew."
        return problem(412, detail, name=name, token=error.token, fence=error.fence)

    def busy(self, name: str) -> ProblemAnswer:
        """What is told when the older ones inside do not end."""
        return problem(503, f"It did not end within {self.drain:g} s; try again.", name=name)


def drain_of(given: object) -> float:
    """Seconds, also without end. Raises InvalidArgument."""
    if isinstance(given, bool) or not isinstance(given, int | float) or not given >= 0:
        raise InvalidArgument(f"drain must be seconds, 0 or more, not {given!r}")
    return given


def methods_of(given: str | Iterable[str]) -> frozenset[str]:
    """The methods that need a token. Raises InvalidArgument."""
    methods = [given] if isinstance(given, str) else given
    try:
        named = frozenset(method.upper() for method in methods)
        fit = all(re.fullmatch(r"[A-Z0-9_-]+", method) for method in named)
    except (TypeError, AttributeError):
        fit = False
    if not fit:
        raise InvalidArgument(
            "required must be True, False, or the methods that need a token, as ['PUT', 'POST'], "
            f"not {given!r}"
        )
    return named


class RequestsInside:
    """Who is inside, by name and token. May be asked from any thread."""

    def __init__(self) -> None:
        self._inside: dict[str, dict[int, int]] = {}
        self._rings: list[Callable[[], None]] = []

    def enter(self, name: str, token: int) -> None:
        with fork.gate:
            tokens = self._inside.setdefault(name, {})
            tokens[token] = tokens.get(token, 0) + 1

    def clear(self, name: str, token: int, ring: Callable[[], None]) -> bool:
        """Whether no older one is inside; else `ring()` is called when somebody has left."""
        with fork.gate:
            if all(other >= token for other in self._inside.get(name, ())):
                return True
            self._rings.append(ring)
            return False

    def leave(self, name: str, token: int) -> None:
        with fork.gate:
            tokens = self._inside[name]
            tokens[token] -= 1
            if not tokens[token]:
                del tokens[token]
            if not tokens:
                del self._inside[name]
            rings, self._rings = self._rings, []
        for ring in rings:
            ring()


__all__ = ["FenceASGI", "FenceWSGI"]

FIELD = HEADER.lower().encode()
VARIABLE = "HTTP_" + HEADER.upper().replace("-", "_")
UNRUN = frozenset({"generator", "async_generator"})  # what a function with a `yield` answers
REASONS = {
    400: "Bad Request",
    412: "Precondition Failed",
    428: "Precondition Required",
    503: "Service Unavailable",
}


class FenceASGI:
    """An ASGI 3 application around another; under asyncio and trio.

    `name`: of what is guarded, or a function of the scope; None from it lets the request through.
    `registry`: where the newest token is remembered. `required`: whether a writing request must
    have a token (all but GET, HEAD, OPTIONS, TRACE), or the methods that must. `drain`: seconds to
    wait for older requests inside. Other than `http` scopes are passed on unguarded.
    """

    def __init__(
        self,
        app: Any,
        *,
        name: str | Callable[[Any], str | None],
        registry: Registry,
        required: bool | Iterable[str] = True,
        drain: float = DRAIN,
    ) -> None:
        self._app, self._admission = app, HttpAdmission(name, registry, required, drain)

    async def __call__(self, scope: Any, receive: object, send: Any) -> None:
        admission = self._admission
        name = admission.name_of(scope) if scope["type"] == "http" else None
        if name is None:
            await self._app(scope, receive, send)
            return
        fields = [text.decode("latin-1") for key, text in scope["headers"] if key.lower() == FIELD]
        token = admission.token_of(scope["method"], fields)
        if isinstance(token, ProblemAnswer):
            await _tell(send, token)
        elif token is None:
            await self._app(scope, receive, send)
        else:
            admission.requests.enter(name, token)
            try:
                refusal = await self._let_in(name, token)
                if refusal is None:
                    await self._app({**scope, KEY: token}, receive, send)
                else:
                    await _tell(send, refusal)
            finally:
                admission.requests.leave(name, token)

    async def _let_in(self, name: str, token: int) -> ProblemAnswer | None:
        admission = self._admission
        try:
            await _ask(admission.registry, name, token)
        except StaleToken as error:
            return admission.refusal(name, error)
        until = clock.now() + admission.drain
        while True:
            signal = eventloop.Signal()
            if admission.requests.clear(name, token, signal.ring):
                return None
            if (left := until - clock.now()) <= 0:
                return admission.busy(name)
            await signal.wait(left)


async def _ask(registry: Registry, name: str, token: int) -> None:
    """Raises StaleToken. Its coroutine is awaited, whatever it says of `blocks`."""
    if getattr(registry, "blocks", True) and not is_coroutine_function(registry.admit):
        in_thread = eventloop.EVENT_LOOP.in_thread
        said = await in_thread(lambda: registry.admit(name, token), _drop)
    else:
        said = registry.admit(name, token)
    _refuse_unrun(await said if said is not None and hasattr(said, "__await__") else said)


async def _tell(
    send: Callable[[dict[str, object]], Awaitable[None]], answer: ProblemAnswer
) -> None:
    headers = [(key.encode(), text.encode()) for key, text in answer.headers]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})


class FenceWSGI:
    """A WSGI application around another; for threads. Arguments as of `FenceASGI`.

    `name`, as a function, gets the environ. A request is inside until its answer is closed.
    """

    def __init__(
        self,
        app: Any,
        *,
        name: str | Callable[[Any], str | None],
        registry: Registry,
        required: bool | Iterable[str] = True,
        drain: float = DRAIN,
    ) -> None:
        self._app, self._admission = app, HttpAdmission(name, registry, required, drain)
        if is_coroutine_function(registry.admit):
            raise InvalidArgument(
                f"registry.admit of {type(registry).__name__} is a coroutine function, which "
                "nobody would await here: FenceWSGI takes a plain one, as of SqlTokens; FenceASGI "
                "takes both"
            )

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., object]) -> Any:
        admission = self._admission
        name = admission.name_of(environ)
        if name is None:
            return self._app(environ, start_response)
        fields = [environ[VARIABLE]] if VARIABLE in environ else []
        token = admission.token_of(environ["REQUEST_METHOD"], fields)
        if isinstance(token, ProblemAnswer):
            return _told(start_response, token)
        if token is None:
            return self._app(environ, start_response)
        inside = _Inside(admission, name, token)
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

    def _let_in(self, name: str, token: int) -> ProblemAnswer | None:
        admission = self._admission
        try:
            _refuse_unrun(admission.registry.admit(name, token))
        except StaleToken as error:
            return admission.refusal(name, error)
        until = clock.now() + admission.drain
        while True:
            wakeup = ThreadWakeup()
            if admission.requests.clear(name, token, wakeup.ring):
                return None
            if (left := until - clock.now()) <= 0:
                return admission.busy(name)
            wakeup.wait(left)


def _told(start_response: Callable[..., object], answer: ProblemAnswer) -> list[bytes]:
    start_response(f"{answer.status} {REASONS[answer.status]}", list(answer.headers))
    return [answer.body]


def _refuse_unrun(said: object) -> None:
    """Raises InvalidArgument for an answer of `admit` that has not run: nothing was compared."""
    if hasattr(said, "__await__") or type(said).__name__ in UNRUN:
        _drop(said)
        raise InvalidArgument(
            f"registry.admit answered a {type(said).__name__}, which has compared nothing: "
            "FenceWSGI takes a plain function, FenceASGI a coroutine function too"
        )


def _drop(said: object) -> None:
    """Nobody awaits it any more."""
    getattr(said, "close", lambda: None)()


class _Inside:
    """One request in the requests, until its answer is closed; and that answer."""

    def __init__(self, admission: HttpAdmission, name: str, token: int) -> None:
        admission.requests.enter(name, token)
        self._leave: Callable[[], None] | None = lambda: admission.requests.leave(name, token)
        self._body: Any = ()

    def around(self, body: object) -> _Inside:
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


__all__ = ["LeaseAuth", "ahooks", "hooks"]


def hooks(lease: Carrier | int) -> dict[str, list[Callable[[Any], None]]]:
    """`event_hooks` for an `httpx.Client`. Raises StaleToken for a lease without a token."""
    token_of(lease, "request")

    def before(request: Any) -> None:
        _mark(request.headers, lease)

    def after(response: Any) -> None:
        if _is_refusal(response.status_code, response.headers):
            response.read()
            _refuse(response.content, lease)

    return {"request": [before], "response": [after]}


def ahooks(lease: Carrier | int) -> dict[str, list[Callable[[Any], Awaitable[None]]]]:
    """`event_hooks` for an `httpx.AsyncClient`, and for a blocking one, which awaits nothing.

    So their work is done when they are called, where it needs no await.
    """
    token_of(lease, "request")

    async def told(response: Any) -> None:
        await response.aread()
        _refuse(response.content, lease)

    def before(request: Any) -> Awaitable[None]:
        _mark(request.headers, lease)
        return _Done()

    def after(response: Any) -> Awaitable[None]:
        if _is_refusal(response.status_code, response.headers):
            if hasattr(response.stream, "__aiter__"):
                return told(response)
            response.read()
            _refuse(response.content, lease)
        return _Done()

    return {"request": [before], "response": [after]}


class _Done:
    """To be awaited, or not."""

    def __await__(self) -> Generator[None, None, None]:
        yield from ()


class LeaseAuth:
    """`auth=` for requests. `then`: the auth that the service wants besides, (user, password) too.

    Raises StaleToken for a lease without a token.
    """

    def __init__(self, lease: Carrier | int, then: Any = None) -> None:
        token_of(lease, "request")
        self._lease, self._then = lease, then

    def __call__(self, request: Any) -> Any:
        then = self._then
        if isinstance(then, tuple):
            auth = fork.lazily("requests.auth")
            then = auth.HTTPBasicAuth(*then)
        if then is not None:
            request = then(request)
        _mark(request.headers, self._lease)
        request.register_hook("response", self._after)
        return request

    def _after(self, response: Any, **_: object) -> None:
        if _is_refusal(response.status_code, response.headers):
            _refuse(response.content, self._lease)


def _mark(headers: MutableMapping[str, str], lease: Carrier | int) -> None:
    check = getattr(lease, "check", None)
    if check is not None:
        check()
    headers[HEADER] = str(token_of(lease, "request"))


def _is_refusal(status: int, headers: Mapping[str, str]) -> bool:
    media = headers.get("content-type", "").partition(";")[0].strip().lower()
    return status == 412 and media == MEDIA


def _refuse(body: bytes, lease: Carrier | int) -> None:
    """Raise the StaleToken that a 412 of our type stands for."""
    try:
        told = json.loads(body)
        ours = told["type"] == TYPE + TITLES[412][0]
    except (ValueError, TypeError, KeyError, RecursionError):
        return
    if not ours:
        return
    fence, name = told.get("fence"), told.get("name")
    token = token_of(lease, "request")
    named = name if isinstance(name, str) else "request"
    raise stale(named, token, fence if type(fence) is int else None)


# ------------------------------------------------------------------------------------------------
# Registries: where an HTTP service remembers the newest token of each name.
#
#    > MemoryTokens()  one process, gone with it
#    > FileTokens("/var/lib/app/tokens")  the processes of one machine
#    > SqlTokens(lambda: sqlite3.connect("t.db"))  SQLite, PostgreSQL, or a pool's `connection`
#    > AsyncSqlTokens(pool.connection)  the same for tasks
#
# Promise: `admit` compares and stores in one step; once it has returned, older tokens are refused
# by everybody who shares the registry. One method, so that your own is quickly written.


class MemoryTokens:
    """In the memory of this process, and forgotten with it.

    After a restart older tokens pass until a newer one comes.
    """

    blocks = False

    def __init__(self) -> None:
        self._tokens: dict[str, int] = {}

    def admit(self, name: str, token: int) -> None:
        with fork.gate:
            fence = self._tokens.get(name, 0)
            self._tokens[name] = admit(check_name(name), token_of(token, name), fence)


class FileTokens:
    """In a folder, a file for each name, on the disk before a request is let in.

    `options`: of `FencedFile`: `durable`, `mode`, `shared`, `server_locks`, `wait`. With
    `shared=True` a folder that it makes is open to all users, as its files are.
    """

    blocks = True

    def __init__(self, folder: str | os.PathLike[str], **options: Any) -> None:
        self._folder, self._options = os.path.abspath(os.fspath(folder)), options

    def admit(self, name: str, token: int) -> None:
        digest = hashlib.sha256(check_name(name).encode()).hexdigest()
        guard = FencedFile(f"{self._folder}/{digest}", token, **self._options)
        if self._options.get("shared"):
            self._make_folder()
        guard.advance()

    def _make_folder(self) -> None:
        """For all users, whatever the umask: each of them replaces files of the others."""
        files = files_for(self._folder)
        make_folders(files, self._folder)  # those above it
        try:
            files.mkdir(self._folder, 0o777)
            files.chmod(self._folder, 0o777)
        except FileExistsError:
            return  # it keeps its rights
        except OSError as error:
            raise refused(self._folder, error, making=True) from error


class SqlTokens:
    """In a table of SQLite or PostgreSQL, made by `create_table`.

    `connect`: called for each request; a connection, which is closed then, or a context manager
    that lends one, as `pool.connection` of psycopg_pool.
    """

    blocks = True

    def __init__(self, connect: Callable[[], Any], *, table: str = TABLE) -> None:
        self._connect, self._table = connect, table

    def admit(self, name: str, token: int) -> None:
        made = self._connect()
        if not hasattr(made, "cursor"):
            with made as connection:
                self._advance(connection, name, token)
            return
        try:
            self._advance(made, name, token)
        finally:
            made.close()

    def _advance(self, connection: Any, name: str, token: int) -> None:
        try:
            SqlFence(connection, name, token, table=self._table).advance()
        except BaseException:
            connection.rollback()
            raise
        connection.commit()


class AsyncSqlTokens:
    """The same with an async connection.

    `connect`: answers an awaitable (`psycopg.AsyncConnection.connect(...)`) or an async context
    manager that lends one (`pool.connection()`, `aiosqlite.connect(...)`).
    """

    blocks = False

    def __init__(self, connect: Callable[[], Any], *, table: str = TABLE) -> None:
        self._connect, self._table = connect, table

    async def admit(self, name: str, token: int) -> None:
        made = self._connect()
        if hasattr(made, "__aenter__"):
            async with made as connection:
                await self._advance(connection, name, token)
            return
        connection = await made
        try:
            await self._advance(connection, name, token)
        finally:
            await connection.close()

    async def _advance(self, connection: Any, name: str, token: int) -> None:
        try:
            await AsyncSqlFence(connection, name, token, table=self._table).advance()
        except BaseException:
            await connection.rollback()
            raise
        await connection.commit()


def check_registry(registry: Registry) -> Registry:
    """Raises InvalidArgument for what has no `admit`."""
    if not callable(getattr(registry, "admit", None)):
        raise InvalidArgument(
            "registry must have a method admit(name, token), as MemoryTokens() has, not "
            f"{registry!r}"
        )
    return registry
