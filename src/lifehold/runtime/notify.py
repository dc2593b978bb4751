"""Telling people, without harm to what it is about.

Promise: whatever the listener does, raising, hanging up, locking something itself, the wait goes on
and keeps its place in the queue. Rules: what a listener raises is reported and dropped; SIGPIPE
of a reader that has gone is held back, also where the program lets it kill; and who is told of a
wait from inside of a telling would never come to an end, so that wait is not told.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import sys

from ..core.events import report
from . import clock, fork
from .held_here import this_thread

TYPE_CHECKING = False
if TYPE_CHECKING:
    import logging
    from collections.abc import Callable
    from typing import Any

    from ..core import explain
    from ..core.events import Waiting
    from . import process
else:
    explain = fork.later("lifehold.core.explain", globals())
    process = fork.later("lifehold.runtime.process", globals())
    logging = fork.later("logging", globals())

_telling: set[int] = set()  # threads
fork.in_child(_telling.clear)  # no thread of a child is telling yet
_PIPE = getattr(_signal, "SIGPIPE", None) if hasattr(_signal, "sigtimedwait") else None


def unharmed(tell: Callable[[], object]) -> None:
    """Call `tell()`. Ctrl-C and other ends of the program pass, errors do not."""
    me = this_thread.key
    if me in _telling:  # a log handler that waits for a lock, and would be told by that handler
        return
    _telling.add(me)
    try:
        if _PIPE is None:
            _heard(tell)
        else:
            _without_sigpipe(tell)
    finally:
        _telling.discard(me)


def waiting(told: Waiting, *, quiet: bool = False) -> None:
    """L10  One WARNING of the logger `lifehold`; one DEBUG of a lock with `notify=False`.

    On by default, since logging prints warnings. Its facts are attributes of the log record.
    """
    if quiet and not _hears_debug():
        return
    holder = process.as_it_runs(told.holder)
    text = explain.waiting_text(told.name, holder, told.waited, clock.utc_now(), told.ahead)
    if told.beside:
        others = "1 other wait" if told.beside == 1 else f"{told.beside} other waits"
        text += f"; {others} of this process {'is' if told.beside == 1 else 'are'} for it too"
    facts = {
        "lock": told.name,
        "waited": told.waited,
        "holder": told.holder,
        "evidence": told.holder.evidence if told.holder else "",
        "ahead": told.ahead,
        "beside": told.beside,
    }
    unharmed(lambda: (debug if quiet else warn)(text, facts))


def warn(text: str, facts: dict[str, Any]) -> None:
    """One WARNING of the logger `lifehold`.

    Where nothing has imported `logging`, nothing has configured it, and it would print the bare
    text on stderr. So do we then, and spare a waiter 10 ms of imports.
    """
    if "logging" in sys.modules:
        logging.getLogger("lifehold").warning("%s", text, extra=facts)
    elif sys.stderr is not None:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


def _hears_debug() -> bool:
    """Whether anybody has asked for that level: else no text is made."""
    return "logging" in sys.modules and logging.getLogger("lifehold").isEnabledFor(logging.DEBUG)


def debug(text: str, facts: dict[str, Any]) -> None:
    """One DEBUG of the logger `lifehold`."""
    logging.getLogger("lifehold").debug("%s", text, extra=facts)


def _heard(tell: Callable[[], object]) -> None:
    try:
        tell()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is not the lock's
        report(error)


def _without_sigpipe(tell: Callable[[], object]) -> None:
    before = _signal.pthread_sigmask(_signal.SIG_BLOCK, [_PIPE])
    pending = _PIPE in before or _PIPE in _signal.sigpending()
    try:
        _heard(tell)
        if not pending and _PIPE in _signal.sigpending():
            _signal.sigtimedwait([_PIPE], 0)  # it was ours: writing has already failed with EPIPE
    finally:
        _signal.pthread_sigmask(_signal.SIG_SETMASK, before)
