"""The threads that the package runs beside the program's, and how they call the program's code.

Promise: a listener or callback that raises anything, `SystemExit` too, ends no thread of ours, and
disturbs no lock. It finds the signal mask of the program, and so does a process that it starts
(L13).
Rule: our threads hold all signals back: a signal is for the thread that knows of it. Around code of
the program they set the mask that was there before them. A thread that one of ours starts is ours.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]

from ..core import events
from . import fork, native

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_masks: dict[int, Any] = {}  # of each thread of ours, by ident: the program's; None: its own is
fork.in_child(_masks.clear)  # L9  none of them is there, or it is the child's first thread now


def start(call: Callable[[], object]) -> None:
    """`call()` in a thread of ours. Raises RuntimeError when there is none to be had."""
    mask = _masks.get(native.get_ident())

    def run() -> None:
        me = native.get_ident()
        _masks[me] = mask
        try:
            call()
        finally:
            _masks.pop(me, None)

    native.start_new_thread(run, ())


def is_here() -> bool:
    """Whether a thread of ours calls."""
    return native.get_ident() in _masks


def hold_signals() -> None:
    """From now on the calling thread, which is ours, hears no signal."""
    if hasattr(_signal, "pthread_sigmask"):
        before = _signal.pthread_sigmask(_signal.SIG_SETMASK, _signal.valid_signals())
        me = native.get_ident()
        if _masks[me] is None:  # else it is of the thread that has started this one
            _masks[me] = before


def _run(theirs: Callable[..., object], given: tuple[object, ...]) -> bool:
    """Call code of the program. False: this thread is the program's own."""
    me = native.get_ident()
    if me not in _masks:
        return False
    mask, held = _masks[me], None
    if mask is not None:
        held = _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)
    try:
        theirs(*given)
    except BaseException as error:
        if me not in _masks:  # a child that it has forked
            raise
        events.report(error)
    finally:
        if held is not None and me in _masks:
            _signal.pthread_sigmask(_signal.SIG_SETMASK, held)
    return True


events.in_own_thread = _run
