"""Senders: the token of a lease on every HTTP request, and the service's refusal as StaleToken.

    httpx.Client(event_hooks=hooks(lease))
    httpx.AsyncClient(event_hooks=ahooks(lease))
    requests.get(url, auth=LeaseAuth(lease))        # or session.auth = ...

Promise: `lease.check()` comes before each request that is made, so a lease that is known to be lost
sends nothing; and each carries the token, since between that check and the service's write anything
may happen. An answer 412 of our own type raises StaleToken; any other answer is left alone. Neither
library is imported here: both call what they are given. With `hooks` a redirected request is
checked anew; requests repeats the header.
"""

from __future__ import annotations

import json

from ...core.fence import stale
from ...runtime import fork
from .door import HEADER, MEDIA, TITLES, TYPE
from .rule import token_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Any

    from .rule import Carrier

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
    """`event_hooks` for an `httpx.AsyncClient`."""
    token_of(lease, "request")

    async def before(request: Any) -> None:
        _mark(request.headers, lease)

    async def after(response: Any) -> None:
        if _is_refusal(response.status_code, response.headers):
            await response.aread()
            _refuse(response.content, lease)

    return {"request": [before], "response": [after]}


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
            auth: Any = fork.lazily("requests.auth")
            then = auth.HTTPBasicAuth(*then)
        if then is not None:
            request = then(request)
        _mark(request.headers, self._lease)
        request.register_hook("response", self._after)
        return request

    def _after(self, response: Any, **_: Any) -> None:
        if _is_refusal(response.status_code, response.headers):
            _refuse(response.content, self._lease)


def _mark(headers: Any, lease: Any) -> None:
    check = getattr(lease, "check", None)
    if check is not None:
        check()
    headers[HEADER] = str(token_of(lease, "request"))


def _is_refusal(status: int, headers: Any) -> bool:
    media = headers.get("content-type", "").partition(";")[0].strip().lower()
    return status == 412 and media == MEDIA


def _refuse(body: bytes, lease: Any) -> None:
    """Raise the StaleToken that a 412 of our type stands for."""
    try:
        told = json.loads(body)
        ours = told["type"] == TYPE + TITLES[412][0]
    except (ValueError, TypeError, KeyError):
        return
    if not ours:
        return
    fence, name = told.get("fence"), told.get("name")
    token = token_of(lease, "request")
    named = name if isinstance(name, str) else "request"
    raise stale(named, token, fence if isinstance(fence, int) else None)
