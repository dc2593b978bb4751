"""What a fork must not tear apart (L9).

Promise: no fork happens between the two steps of anything done under `gate`; a child has a greater
`generation` than its parent, and whoever registered with `in_child` has been called in it before
any other code of ours runs. Lazy imports of the package go through `lazily`: a child forked while
another thread imports would wait for that thread's import lock for ever (seen: a child still
waiting after ten minutes).
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import os
from _thread import RLock

from ..core.errors import SystemRefused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

gate: Any = RLock()  # reentrant: a signal handler may fork, or acquire, while we are inside
generation = 0  # one more in every forked child
_callbacks: list[Callable[[], None]] = []


def in_child(callback: Callable[[], None]) -> Callable[[], None]:
    """Call `callback` in every forked child, at once after the fork."""
    _callbacks.append(callback)
    return callback


def lazily(module: str) -> ModuleType:
    """Import a module when it is first needed, with no fork in between."""
    import sys

    found = sys.modules.get(module)
    # A module that another thread is still importing is in sys.modules already, half made.
    if found is not None and not getattr(getattr(found, "__spec__", None), "_initializing", False):
        return found
    with gate:
        try:
            from importlib import import_module  # itself a first import, seen torn apart by a fork

            made = _undisturbed(import_module, module)
        except OSError as error:  # EMFILE
            raise SystemRefused(
                f"{module} could not be loaded: {error.strerror}: raise the limit of open files "
                "(ulimit -n), or import it before they run out",
                errno=error.errno, filename=module,
            ) from error  # fmt: skip
        if getattr(getattr(made, "__spec__", None), "_initializing", False):
            raise ImportError(f"{module} is just being imported by what a signal interrupted")
        return made


def _undisturbed(call: Callable[[str], ModuleType], module: str) -> ModuleType:
    """`call(module)` with all signals held back in this thread.

    A handler that acquires in the middle of an import would find the module half made.
    """
    if not hasattr(_signal, "pthread_sigmask"):
        return call(module)
    mask = _signal.pthread_sigmask(_signal.SIG_BLOCK, ())
    try:
        _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())
        return call(module)
    finally:
        _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)


def _after_in_child() -> None:
    global generation
    generation += 1
    for callback in _callbacks:
        try:
            callback()
        except OSError:
            continue  # a descriptor closed behind our back must not leave the gate shut
    gate.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=gate.acquire, after_in_parent=gate.release, after_in_child=_after_in_child
    )
