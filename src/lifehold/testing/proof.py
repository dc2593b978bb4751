"""What a claim to the explorer is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.value import value

if TYPE_CHECKING:
    from collections.abc import Callable

    from .explore import Exploration


@value
class Claim:
    """A configuration and the kinds of violation it may show; `soak`: it takes long."""

    name: str
    game: Callable[[], Exploration]
    may_show: frozenset[str] = frozenset()
    soak: bool = False
