"""The key of a session lock: the integer that `pg_advisory_lock` is asked for.

Promise: a name has the same key in every version, on every host, and in other tools. It is the
first 8 bytes of the SHA-256 of the name in UTF-8, as one signed integer, the highest byte first. In
SQL: ('x' || left(encode(sha256(convert_to('NAME', 'UTF8')), 'hex'), 16))::bit(64)::bigint
A name of the form `key:4711` is that integer itself, and `key:1,2` the pair of
`pg_advisory_lock(1, 2)`: so a lock that another tool takes by its number can be taken here.
"""

from __future__ import annotations

from ...core.errors import InvalidArgument
from ...core.mask import printable
from ...core.value import value
from ...runtime import fork
from ..naming import checked

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PREFIX = "key:"
EXAMPLES = "'key:4711' or 4711 for pg_advisory_lock(4711), 'key:1,2' or (1, 2) for a pair"


@value
class Key:
    """What is locked. `name`: as it was named; `numbers`: one of 64 bits, or two of 32 bits."""

    name: str
    numbers: tuple[int, ...]

    @property
    def text(self) -> str:
        """Equal for all names of one key: `key:4711`, `key:1,2`."""
        return PREFIX + ",".join(map(str, self.numbers))

    @property
    def in_pg_locks(self) -> tuple[int, int, int]:
        """Its `classid`, `objid` and `objsubid`."""
        if len(self.numbers) == 1:
            return self.numbers[0] >> 32 & 0xFFFFFFFF, self.numbers[0] & 0xFFFFFFFF, 1
        return self.numbers[0] & 0xFFFFFFFF, self.numbers[1] & 0xFFFFFFFF, 2


def key_of(given: object) -> Key:
    """The key of a name, a number or a pair of numbers. Raises InvalidArgument."""
    if type(given) is int:
        return Key(f"{PREFIX}{given}", (ranged(given, 64),))
    if isinstance(given, tuple):
        if len(given) != 2 or any(type(each) is not int for each in given):
            raise InvalidArgument(f"{given!r} is no key of an advisory lock: {EXAMPLES}")
        pair = tuple(ranged(each, 32) for each in given)
        return Key(f"{PREFIX}{pair[0]},{pair[1]}", pair)
    name = checked(given)
    if name.startswith(PREFIX):
        try:
            numbers = tuple(int(each) for each in name.removeprefix(PREFIX).split(","))
        except ValueError:
            numbers = ()
        if not 1 <= len(numbers) <= 2:
            raise InvalidArgument(
                f"{printable(name[:80])!r} is no key of an advisory lock: {EXAMPLES}"
            )
        return key_of(numbers[0] if len(numbers) == 1 else numbers)
    return Key(name, (derived(name),))


def derived(name: str) -> int:
    """The key of a name."""
    hashes: Any = fork.lazily("hashlib")
    first = hashes.sha256(name.encode()).digest()[:8]
    return int.from_bytes(first, "big", signed=True)


def ranged(number: int, bits: int) -> int:
    """A signed integer of so many bits. Raises InvalidArgument."""
    if not -(2 ** (bits - 1)) <= number < 2 ** (bits - 1):
        raise InvalidArgument(
            f"{number} is no key of an advisory lock: it has more than {bits} bits. {EXAMPLES}"
        )
    return number
