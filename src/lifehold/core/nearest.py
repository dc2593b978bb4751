"""The known word that somebody may have meant by one that is not known."""

from __future__ import annotations

from . import mask
from .errors import UnknownArgument

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

ALIKE = 0.65  # of 1.0, as difflib counts: `runn` is like `run`, `stats` is not like `watch`


def nearest(word: str, known: Iterable[str]) -> str:
    """The one of `known` that `word` is most like; "" when none is like it."""
    from difflib import get_close_matches  # rarely needed

    return next(iter(get_close_matches(word, list(known), 1, ALIKE)), "")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of a sentence that refuses `word`: `; did you mean 'kernel'?`, or ""."""
    found = nearest(word, known)
    return f"; did you mean '{found}'?" if found else ""


def strange(
    call: str,
    given: Mapping[str, object],
    known: Iterable[str],
    alike: Mapping[str, str] | None = None,
) -> UnknownArgument:
    """The error for arguments that `call` does not take, whose own are `known`.

    `alike`: what others call it -> the same here.
    """
    own, parts = sorted(known), []
    for name, value in given.items():
        shown = "..." if mask.names_a_secret(name) else mask.masked_urls(repr(value))[:60]  # L11
        meant = (alike or {}).get(name) or nearest(name, own)
        parts.append(f"{name}={shown}" + (f": did you mean {meant}={shown}?" if meant else ""))
    text = f"{call} takes no {'; and no '.join(parts)}"
    so = " Its" if text.endswith("?") else ": its"
    are = "arguments are" if len(own) > 1 else "one argument is"
    return UnknownArgument(f"{text}{so} {are} {', '.join(own)}")
