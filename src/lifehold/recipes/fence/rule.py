"""What a guard takes from a lease: its token, now, or a clear refusal.

Promise: a guard never compares a number that does not order writers. A shared lease carries the
token of the last writer, so it may not write; a permit of a semaphore may, where nothing but its
own slot is compared (`lease.fences`). A lock without a token is refused with the reason.
The rule itself, `fence <= token`, is in core/fence.py.
"""

from __future__ import annotations

from ...core.errors import InvalidArgument
from ...core.fence import LARGEST, no_token

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    class Carrier(Protocol):
        """A lease: whatever has a fencing token."""

        @property
        def token(self) -> int | None: ...


def token_of(lease: Carrier | int | None, name: str) -> int:
    """The token of a lease, or the integer given in its stead, for a write to `name`.

    Raises StaleToken for a lock that carries none, InvalidArgument for what is no token.
    """
    if lease is None:
        raise InvalidArgument(
            f"{name!r}: a write needs the lease, or its token: give it as `lease=`", name=name
        )
    carrier = lease
    token = lease if isinstance(lease, int) else getattr(carrier, "token", lease)
    if token is None:
        raise no_token(name, getattr(carrier, "token_reason", None))
    if not isinstance(token, int) or isinstance(token, bool):
        raise InvalidArgument(
            f"{name!r}: a token is an int, or a lease that carries one, not "
            f"{type(token).__name__} {token!r}",
            name=name,
        )
    if not 0 <= token <= LARGEST + 1:
        raise InvalidArgument(
            f"{name!r}: {token} is no token: it must lie between 0 and 2**63 - 1", name=name
        )
    if getattr(carrier, "exclusive", True) is False and not hasattr(carrier, "fences"):
        raise InvalidArgument(
            f"{name!r}: a shared lease carries the token of the last writer, which does not order "
            "readers among themselves: write under an exclusive lease",
            name=name,
        )
    return token


def check_name(name: object) -> str:
    """The name of what is guarded: short text without NUL. Raises InvalidArgument."""
    if not isinstance(name, str) or not name or len(name) > 500 or "\0" in name:
        raise InvalidArgument(
            f"the name of what is guarded is a str of 1 to 500 characters without NUL, not {name!r}"
        )
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"the name {name!r} cannot be written as UTF-8") from error
    return name
