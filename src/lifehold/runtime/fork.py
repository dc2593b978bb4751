"""What a fork must not tear apart (L9).

Promise: no fork happens between the two steps of anything done under `gate`; a child has a greater
`generation` than its parent, and whoever registered with `in_child` has been called in it before
any other code of ours runs. Lazy imports of the package go through `later` and `lazily`: a child
forked while another thread imports would wait for that thread's import lock for ever (seen: a child
still waiting after ten minutes).

C code may fork without a word to Python. The kernel tells of it: the first byte of `page` is zero
in every child. So whoever decides by `generation` looks there first, or asks `here()`; what the
hooks would have done is done then. Until then such a child has copies of its parent's descriptors.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _weakref
import os

from ..core.errors import SystemRefused, pass_up
from . import native

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

gate: Any = native.RLock()  # reentrant: a signal handler may fork, or acquire, while we are inside
generation = 0  # one more in every forked child
MADV_WIPEONFORK = 18  # of Linux since 4.14; the mmap module does not name it
_callbacks: dict[Any, Callable[..., None]] = {}  # by itself, or by whose method it is
_forking: set[int] = set()  # threads that are about to fork


def in_child(callback: Callable[[], None]) -> Callable[[], None]:
    """Call `callback` in every forked child, at once after the fork.

    A method of an object is called for as long as there is the object: it is not kept for this.
    """
    function = getattr(callback, "__func__", None)
    if function is None:
        _callbacks[callback] = callback
    else:  # no bytecode of ours runs when it goes: a signal handler could raise in that
        _callbacks[Whose(getattr(callback, "__self__"), _callbacks.pop)] = function  # noqa: B009
    return callback


class Whose(_weakref.ref):  # type: ignore[type-arg]
    """Where the object of a hook is. Two of one object are two."""

    __slots__ = ()
    __eq__, __hash__ = object.__eq__, object.__hash__


def here() -> int:
    """The generation, looked after first."""
    if not page[0]:
        catch_up()
    return generation


def catch_up() -> None:
    """To be called where `page[0]` is false: C code has forked, and we are the child (L9).

    Before each use of the gate: a thread of the parent may have it. Signals are held back: a
    handler that acquires would find half of what is the parent's forgotten.
    """
    _undisturbed(_awake)


def _awake() -> None:
    with _waking:
        if page[0]:
            return  # another thread of ours was faster
        if not gate._is_owned():  # else by who was interrupted by the signal that forked
            gate._at_fork_reinit()
        gate.acquire()
        _after_in_child()


def collected(close: Callable[[], object]) -> None:
    """`close()`, which takes the gate, for the garbage collector.

    It comes in any thread, also in one that has a lock which some hook of others waits for before a
    fork, when the gate is taken already: so that is waited for in a thread of its own.
    """
    if _forking and native.get_ident() not in _forking:
        try:
            native.start_new_thread(close, ())
        except RuntimeError:
            pass  # no thread to be had
        else:
            return
    close()


class _Pid:
    """In place of the page where the kernel wipes none."""

    def __init__(self) -> None:
        self.pid = os.getpid()

    def __getitem__(self, _: int) -> bool:
        return os.getpid() == self.pid

    def __setitem__(self, *_: int) -> None:
        self.pid = os.getpid()


def _wiped_by_fork() -> Any:
    """Memory whose first byte is 1, and 0 in every child of ours."""
    if not hasattr(os, "fork"):
        return b"\1"
    try:
        import mmap

        made = mmap.mmap(-1, 1, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        made.madvise(MADV_WIPEONFORK)
    except (ImportError, AttributeError, OSError, ValueError):
        return _Pid()
    made[0] = 1
    return made


_waking = native.allocate_lock()
page: Any = _wiped_by_fork()


def descriptor(call: Callable[..., int], *given: object) -> int:
    """What `call(*given)` opened. A signal handler that raises just then does not lose it (L6).

    CPython looks for signals after each call that it makes, and not inside of `extend`.
    """
    found: list[int] = []
    try:
        found.extend(map(call, *((each,) for each in given)))
        return found[0]
    except BaseException:
        for number in found:
            os.close(number)
        raise


def lazily(module: str) -> ModuleType:
    """Import a module when it is first needed, with no fork in between."""
    import sys

    found = sys.modules.get(module)
    # A module that another thread is still importing is in sys.modules already, half made.
    if found is not None and not getattr(getattr(found, "__spec__", None), "_initializing", False):
        return found
    here()
    with gate:
        try:
            # Not importlib.import_module: that is one module more, and seen torn apart by a fork.
            _undisturbed(__import__, module)
            made: ModuleType = sys.modules[module]
        except ModuleNotFoundError as error:
            name = str(error.name)
            if not name.startswith("lifehold.") and not _is_of_python_and_away(name):
                raise  # an optional package, or Python was built without it
            raise SystemRefused(
                f"{module} could not be loaded: its files cannot be reached any more, as after a "
                "chroot or when rights were given up: import it before",
                errno=2,
                filename=module,
            ) from error
        except OSError as error:  # EMFILE
            pass_up(error)
            raise SystemRefused(
                f"{module} could not be loaded: {error.strerror}: raise the limit of open files "
                "(ulimit -n), or import it before they run out",
                errno=error.errno,
                filename=module,
            ) from error
        if getattr(getattr(made, "__spec__", None), "_initializing", False):
            raise ImportError(f"{module} is just being imported by what a signal interrupted")
        return made


def _is_of_python_and_away(module: str) -> bool:
    """Whether it belongs to Python, whose library cannot be reached by now."""
    import sys

    if module.partition(".")[0] not in sys.stdlib_module_names:
        return False
    try:
        os.stat(os.__file__)
    except OSError:
        return True
    return False


class later:  # noqa: N801
    """The module `module`, loaded by `lazily` when something of it is first asked for.

    It stands under `name` in `place`, the globals of who uses it, and gives its place to the module
    itself: what is asked afterwards costs no call. Type checkers read the import beside it:

        if TYPE_CHECKING:
            from ..core import explain
        else:
            explain = fork.later("lifehold.core.explain", globals())
    """

    __slots__ = ("__module", "__name", "__place")

    def __init__(self, module: str, place: dict[str, Any], name: str = "") -> None:
        self.__module, self.__place = module, place
        self.__name = name or module.rpartition(".")[2]

    def __getattr__(self, asked: str) -> object:
        made = lazily(self.__module)
        self.__place[self.__name] = made
        return getattr(made, asked)


def _undisturbed(call: Callable[..., object], *given: str) -> Any:
    """`call(*given)` with all signals held back in this thread.

    A handler that acquires in the middle of an import would find the module half made.
    """
    if not hasattr(_signal, "pthread_sigmask"):
        return call(*given)
    mask = _signal.pthread_sigmask(_signal.SIG_BLOCK, ())
    try:
        _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())
        return call(*given)
    finally:
        _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)


def _after_in_child() -> None:
    global generation
    generation += 1
    page[0] = 1
    for whose, callback in _callbacks.copy().items():  # one may go meanwhile, with its object
        try:
            if whose is callback:
                callback()
            elif (thing := whose()) is not None:
                callback(thing)
        except OSError:
            continue  # a descriptor closed behind our back must not leave the gate shut
    gate.release()


def _before() -> None:
    here()
    _forking.add(native.get_ident())


def _after() -> None:
    _forking.discard(native.get_ident())


def _forked() -> None:
    global _waking
    _forking.clear()
    _waking = native.allocate_lock()  # a thread that is not here may be just leaving it
    _after_in_child()


if hasattr(os, "register_at_fork"):
    # Without a bytecode of ours around the gate, where a signal handler could raise.
    os.register_at_fork(before=gate.acquire, after_in_parent=gate.release, after_in_child=_forked)
    os.register_at_fork(before=_before, after_in_parent=_after)  # before: the last is the first
