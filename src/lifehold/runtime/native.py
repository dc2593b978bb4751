"""The system's own threads, mutexes and pauses, whatever a library has put in their place.

gevent and eventlet replace those of the standard library by greenlets of the calling thread. A
thread of ours blocks in the kernel, keeps leases alive while the program computes and has all its
signals blocked: as a greenlet it would stop the whole program, and nobody could end it but by kill
-9. So what runs beside the program is made of these. How its greenlets wait: runtime/greenlets.py.
"""

from __future__ import annotations

import _thread
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def real(where: Any, name: str) -> Any:
    """What a module calls `name` where nobody has replaced it; None where it has no such thing."""
    module, found = where.__name__, getattr(where, name, None)
    if getattr(found, "__module__", None) == module:
        return found
    gevent, eventlet = sys.modules.get("gevent.monkey"), sys.modules.get("eventlet.patcher")
    if gevent is not None and gevent.is_module_patched(module):
        try:
            return gevent.get_original(module, name)
        except AttributeError:
            return None
    if eventlet is not None:
        return getattr(eventlet.original(module), name, None)
    return found


start_new_thread = real(_thread, "start_new_thread")
allocate_lock = real(_thread, "allocate_lock")
get_ident = real(_thread, "get_ident")
get_native_id = _thread.get_native_id  # neither replaces it, nor the next one
RLock = _thread.RLock
local: Any = real(_thread, "_local")
sleep = real(time, "sleep")
read, write = real(sys.modules[os.name], "read"), real(sys.modules[os.name], "write")


class _Anything:
    def method(self) -> None: ...


# A call with its first argument, without a frame of its own: types.MethodType, not imported.
bound: Any = type(_Anything().method)


def is_replaced() -> bool:
    """Whether the program's threads are greenlets now. A library may do so at any time."""
    return _thread.get_ident is not get_ident


def beside(call: Callable[[], object], seconds: float) -> Any:
    """Begin `call()`, which raises nothing, in a thread of its own, and wait `seconds` for its end.

    The thread hears no signal: those are for who waits. None when it has ended, or when there is
    no thread to be had; else a lock that is free at its end.
    """
    import _signal  # type: ignore[import-not-found]

    ended = allocate_lock()
    ended.acquire()

    def run() -> None:
        try:
            call()
        finally:
            ended.release()

    mask = _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())
    try:
        start_new_thread(run, ())
    except RuntimeError:
        return None
    finally:
        _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)
    return None if ended.acquire(timeout=seconds) else ended
