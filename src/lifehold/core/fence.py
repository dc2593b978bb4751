"""Fencing tokens.

Numbers that only grow, and the rule by which the data refuses a late writer (L4).

Between a holder's `check()` and its write anything may happen: a pause, a lost lease, a successor.
No lock can close that gap; the data can, by remembering the greatest token it has seen (Chubby's
sequencer, 2006).
"""

from __future__ import annotations

from .errors import StaleToken

LARGEST = 2**63 - 2  # tokens fit a signed 64-bit column, and one more can always be given


def next_token(stored: int, own_last: int, clock_us: int) -> int:
    """A token greater than every earlier one that is known, and not behind the clock (L4)."""
    token = clock_us
    if token <= stored:
        token = stored + 1
    if token <= own_last:
        token = own_last + 1
    return token


def admit(name: str, token: int | None, fence: int) -> int:
    """The new fence for a write under `token`. Raises StaleToken when a later holder has been here.

    The rule is `fence <= token`: one holder may write often. Compare and store in one atomic step
    of the data's own system; this function only holds the rule.
    """
    if token is None:
        raise StaleToken(
            f"{name!r}: this lock carries no token, so a late write cannot be told from a good one",
            name=name, token=None, fence=fence,
        )  # fmt: skip
    if token < fence:
        raise StaleToken(
            f"{name!r}: write refused: its token {token} is older than {fence}, so another holder "
            f"came after this one. Stop, acquire the lock again and read the data anew.",
            name=name, token=token, fence=fence,
        )  # fmt: skip
    return token
