"""The locks held around a command: the environment variable LIFEHOLD_HELD.

It reads `nonce@path:nonce@path`, the outermost lock first. `lifehold run` adds its own and passes
the list on, so that who runs inside can tell "held by what runs me", which no waiting ends, from
"held by someone else". In a path `%` and `:` are percent-encoded; a nonce has neither.
"""

from __future__ import annotations

from .value import value

VARIABLE = "LIFEHOLD_HELD"


@value
class Around:
    """One lock of an ancestor: the nonce of its grant and the absolute path of its file."""

    nonce: str
    path: str


def parse(text: str) -> list[Around]:
    """The locks it names. Anybody may set it; what does not look like one is skipped."""
    found = []
    for item in text.split(":"):
        nonce, at, path = item.partition("@")
        if nonce and at and path:
            found.append(Around(nonce, path.replace("%3A", ":").replace("%25", "%")))
    return found


def added(text: str, nonce: str, path: str) -> str:
    """The variable's next value: `text` and one more lock, the innermost."""
    item = f"{nonce}@{path.replace('%', '%25').replace(':', '%3A')}"
    return f"{text}:{item}" if text else item
