"""The known word that somebody may have meant by one that is not known."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

ALIKE = 0.65  # of 1.0, as difflib counts: `runn` is like `run`, `stats` is not like `watch`


def nearest(word: str, known: Iterable[str]) -> str:
    """The one of `known` that `word` is most like; "" when none is like it."""
    from difflib import get_close_matches  # rarely needed

    return next(iter(get_close_matches(word, list(known), 1, ALIKE)), "")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of a sentence that refuses `word`: `; did you mean 'kernel'?`, or ""."""
    found = nearest(word, known)
    return f"; did you mean '{found}'?" if found else ""
