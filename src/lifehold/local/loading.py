"""JSON as records hold it, read without the package `json`.

Promise: the same values and the same kinds of errors as `json.loads` of bytes. Rule: the scanner is
the one that `json` itself uses; the package around it is imported where there is no such scanner,
or when it is there already. It costs 5 to 9 ms, of `re` most, and a waiter first reads a record
when its first notice is due.
"""

from __future__ import annotations

import sys

from ..runtime import fork

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SPACE = " \t\n\r"


class _Rules:
    """What the scanner asks for: the defaults of `json.loads`."""

    strict, object_hook, object_pairs_hook = True, None, None
    parse_float, parse_int = float, int
    parse_constant = staticmethod(float)  # NaN, Infinity, -Infinity


try:
    import _json

    _module: Any = _json
    _scan = _module.make_scanner(_Rules)
except (ImportError, AttributeError):
    _scan = None


def loads(content: bytes | str) -> Any:
    """The value. Raises ValueError, RecursionError."""
    if _scan is None or "json" in sys.modules:
        return fork.lazily("json").loads(content)
    text = content if isinstance(content, str) else content.decode("utf-8", "surrogatepass")
    text = text.strip(SPACE)
    try:
        found, end = _scan(text, 0)
    except (StopIteration, SystemError):
        # No JSON. Without the package the scanner of CPython 3.11 cannot say so.
        return fork.lazily("json").loads(content)
    if end != len(text):
        raise ValueError("more than one value")
    return found
