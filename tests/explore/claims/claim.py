"""What a claim to the explorer is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lifehold.core.value import value

if TYPE_CHECKING:
    from collections.abc import Callable

    from lifehold.testing.explore import Exploration


@value
class Claim:
    """A configuration and the kinds of violation it may show; `soak`: it takes long."""

    name: str
    game: Callable[[], Exploration]
    may_show: frozenset[str] = frozenset()
    soak: bool = False


def kept(claim: Claim, kinds: set[str], exhaustive: bool) -> bool:
    """Whether a report shows what the claim says."""
    return exhaustive and kinds <= claim.may_show
