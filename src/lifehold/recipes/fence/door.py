"""What both middlewares decide: whether a request is let in, and what it is told when not.

Promise: of the requests that one middleware lets in for one name, none runs beside, or after, one
with a newer token. How it could fail, and what keeps it: a request is admitted, is slow, and writes
after a newer one has written. So a request enters `Passage` *before* its token is compared; a newer
one is compared, which shuts out all older ones that come later, and then waits for the older ones
that are inside. Between several processes of a service the registry compares and nobody waits:
there the handler must give the token on to the data (`lifehold.token` in its scope or environ).
"""

from __future__ import annotations

import json

from ...core.errors import InvalidArgument, StaleToken
from ...core.fence import LARGEST
from ...core.value import value
from ...runtime import fork
from .tokens import check_registry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from .tokens import Registry

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
class Problem:
    """An answer in the form of RFC 9457."""

    status: int
    body: bytes
    headers: tuple[tuple[str, str], ...]


def problem(status: int, detail: str, **more: Any) -> Problem:
    """The answer with one of our statuses."""
    word, title = TITLES[status]
    text = {"type": TYPE + word, "title": title, "status": status, "detail": detail} | more
    body = json.dumps(text).encode()
    headers = [("content-type", MEDIA), ("content-length", str(len(body)))]
    headers += [("cache-control", "no-store")]
    headers += [("retry-after", "1")] if status == 503 else []
    return Problem(status, body, tuple(headers))


class Door:
    """The rules of one middleware, and who is inside."""

    def __init__(
        self, name: str | Callable[[Any], str | None], registry: Registry,
        required: bool | Iterable[str], drain: float,
    ) -> None:  # fmt: skip
        if not callable(name) and not isinstance(name, str):
            raise InvalidArgument(f"name must be a str or a function, not {type(name).__name__}")
        if not drain >= 0:
            raise InvalidArgument(f"drain must be seconds, 0 or more, not {drain!r}")
        self._name, self._required, self.drain = name, required, drain
        if not isinstance(required, bool):
            self._required = frozenset(method.upper() for method in required)
        self.registry: Any = check_registry(registry)
        self.passage = Passage()

    def name_of(self, request: Any) -> str | None:
        """What the request is about to touch; None: nothing that is guarded."""
        return self._name(request) if callable(self._name) else self._name

    def token_of(self, method: str, headers: list[str]) -> int | Problem | None:
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

    def refusal(self, name: str, error: StaleToken) -> Problem:
        """What a late writer is told."""
        detail = "Stop, acquire the lock again and read the data anew."
        return problem(412, detail, name=name, token=error.token, fence=error.fence)

    def busy(self, name: str) -> Problem:
        """What is told when the older ones inside do not end."""
        return problem(503, f"It did not end within {self.drain:g} s; try again.", name=name)


class Passage:
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
