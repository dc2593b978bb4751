"""What other packages offer by an entry point: what goes wrong there bears their name.

Promise: whatever such a package raises when it is loaded or called, but an OSError and our own
errors, comes as InvalidArgument with the entry point, its package and the error behind it.
"""

from __future__ import annotations

from .errors import InvalidArgument, LifeholdError
from .mask import masked_urls, printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.metadata import EntryPoint
    from typing import Any, TypeVar

    T = TypeVar("T")


def load(point: EntryPoint) -> Callable[..., Any]:
    """What an entry point names. Raises InvalidArgument."""
    found: Callable[..., Any] = called(point, "cannot be loaded", point.load)
    if not callable(found):
        raise wrong(point, f"is {type(found).__name__}, which cannot be called")
    return found


def called(point: EntryPoint, failed: str, call: Callable[[], T]) -> T:
    """The answer of what an entry point names. Raises InvalidArgument."""
    try:
        return call()
    except (LifeholdError, OSError):
        raise
    except (Exception, SystemExit) as error:
        raise wrong(point, f"{failed}: {said(error)}") from error


def said(error: BaseException) -> str:
    """An error in a line."""
    name = type(error).__name__
    return printable(masked_urls(f"{name}: {error}" if str(error) else name))


def wrong(point: EntryPoint, what: str) -> InvalidArgument:
    """The error, which names who is to mend it."""
    package = point.dist.name if point.dist else "an unknown package"
    named = f"entry point {point.name!r} = {point.value} of {package}"
    return InvalidArgument(f"the {printable(named)} {what}")
