"""Kind of lock -> mechanism, imported only when it is asked for.

Third parties add kinds by entry point.

An entry point of the group `lifehold.kinds` names a class or function that is called as `kind(path,
runtime, exclusive=..., label=..., record=..., cleanup=..., mode=..., shared=...)` and answers a
`Mechanism` (core/ports.py) that also has `attempt`, `drop`, `taken` and `path`.
"""

from __future__ import annotations

import sys

from .core.errors import InvalidArgument
from .runtime import fork

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .core.ports import Runtime

KERNEL = (
    "lifehold.local.kernel_windows:WindowsKernelLock"
    if sys.platform == "win32"
    else "lifehold.local.kernel:KernelLock"
)
KINDS = {"auto": KERNEL, "kernel": KERNEL}
_made: dict[str, Any] = {}


def mechanism(kind: str, path: str, runtime: Runtime, **options: Any) -> Any:
    """The mechanism for one lock. Raises InvalidArgument for a kind that nobody offers."""
    make = _made.get(kind) or _find(kind)
    return make(path, runtime, **options)


def _find(kind: str) -> Any:
    where = KINDS.get(str(kind))
    if where is not None:
        module, _, name = where.partition(":")
        _made[kind] = found = getattr(fork.lazily(module), name)
        return found
    metadata: Any = fork.lazily("importlib.metadata")
    offered = {point.name: point for point in metadata.entry_points(group="lifehold.kinds")}
    if kind in offered:
        _made[kind] = found = offered[kind].load()
        return found
    known = ", ".join(sorted({*KINDS, *offered}))
    raise InvalidArgument(f"kind must be one of {known}, not {kind!r}")
