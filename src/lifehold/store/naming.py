"""Names of locks in a store, and the URL of one: `sqlite:////var/lib/locks.db#payments/42`.

Behind the `#` stands the name itself; a `%` in it is written `%25`, and what else was
percent-encoded is understood. So an address that is shown can be typed.
"""

from __future__ import annotations

from ..core.errors import InvalidArgument
from ..core.mask import printable
from ..runtime import fork

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LONGEST_NAME = 512  # characters


def address(store: str, name: str) -> str:
    """The URL of a lock in a store."""
    return f"{store}#{name.replace('%', '%25')}"


def decoded(name: str) -> str:
    """The name behind the # of a URL. Raises InvalidArgument for bytes that are no text."""
    if "%" not in name:
        return name
    parse: Any = fork.lazily("urllib.parse")
    try:
        return parse.unquote(name, errors="strict")  # type: ignore[no-any-return]
    except UnicodeDecodeError:
        raise InvalidArgument(
            f"the name {printable(name[:80])!r} is no UTF-8 once its % are decoded: write a % that "
            "belongs to the name as %25"
        ) from None


def checked(name: object) -> str:
    """A name that a store can keep. Raises InvalidArgument."""
    if not isinstance(name, str):
        raise InvalidArgument(f"a lock's name must be a str, not {type(name).__name__} {name!r}")
    if not name:
        raise InvalidArgument("a lock's name must not be empty")
    if len(name) > LONGEST_NAME:
        raise InvalidArgument(
            f"a lock's name is too long: {len(name)} characters, {LONGEST_NAME} at most: "
            f"{printable(name[:40])!r}..."
        )
    if not name.isprintable():
        raise InvalidArgument(
            f"a lock's name must be printable text, which {printable(name[:80])!r} is not"
        )
    return name
