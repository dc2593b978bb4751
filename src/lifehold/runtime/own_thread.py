"""The threads that the package runs beside the program's, and how they call the program's code.

Promise: a listener or callback that raises anything, `SystemExit` too, ends no thread of ours, and
disturbs no lock.
Rule: a thread that one of ours starts is ours.
"""

from __future__ import annotations

from ..core import events
from . import fork, native

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_ours: set[int] = set()  # threads, by ident
fork.in_child(_ours.clear)  # L9  none of them is there, or it is the child's first thread now


def start(call: Callable[[], object]) -> None:
    """`call()` in a thread of ours. Raises RuntimeError when there is none to be had."""

    def run() -> None:
        me = native.get_ident()
        _ours.add(me)
        try:
            call()
        finally:
            _ours.discard(me)

    native.start_new_thread(run, ())


def is_here() -> bool:
    """Whether a thread of ours calls."""
    return native.get_ident() in _ours


def _run(theirs: Callable[..., object], given: tuple[object, ...]) -> bool:
    """Call code of the program. False: this thread is the program's own."""
    me = native.get_ident()
    if me not in _ours:
        return False
    try:
        theirs(*given)
    except BaseException as error:
        if me not in _ours:  # a child that it has forked
            raise
        events.report(error)
    return True


events.in_own_thread = _run
