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
    of the data's own system; this function only holds the rule, `lifehold.fence` has the steps.
    """
    if token is None:
        raise no_token(name)
    if token < fence:
        raise stale(name, token, fence)
    return token


def stale(name: str, token: int, fence: int | None) -> StaleToken:
    """The refusal of a late writer. `fence`: the newest token seen, None when it was not read."""
    newer = "the newest one seen" if fence is None else str(fence)
    return StaleToken(
        f"{name!r}: write refused: its token {token} is older than {newer}, so another holder "
        f"came after this one. Stop, acquire the lock again and read the data anew.",
        name=name,
        token=token,
        fence=fence,
    )


def no_token(name: str, reason: str | None = None) -> StaleToken:
    """The refusal of a lock that carries no token; `reason`: why it does not."""
    why = f" ({reason})" if reason else ""
    return StaleToken(
        f"{name!r}: this lock carries no token{why}, so a late write cannot be told from a good "
        "one. Take a lock that carries one: its lease's `token` is a number, not None.",
        name=name,
        token=None,
        fence=None,
    )
