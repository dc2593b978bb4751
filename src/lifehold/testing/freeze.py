"""The local state of running code as a value: where each frame stands, and everything it can reach.

Promise: two pauses with equal keys go on alike, given the same answers. It is kept by what goes
in (code, position, locals, closures, the exception being handled, objects by content and by who
shares them) and controlled by the audit of locals.py, because one thing cannot be read from here:
operands that wait on the interpreter's own stack, as the first answer in `(read(a), read(b))`.
A class whose content is no state of the algorithm says so by a method `__freeze__`, which returns
what is.
"""

from __future__ import annotations

import opcode
import sys
import types
import weakref
from _thread import RLock, allocate_lock
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Hashable

PRECALL = opcode.opmap.get("PRECALL", -1)
CALL_AFTER = 4  # bytes
PLAIN = (int, str, bytes, type(None))
CONSTANT = (types.ModuleType, types.BuiltinFunctionType, type(RLock()), type(allocate_lock()))
SUSPENDED = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)


def local_state(first: types.FrameType | None, last: types.CodeType) -> Hashable:
    """A key of the frames from `first` up to, and without, the one that runs `last`."""
    seen: dict[int, int] = {}
    alive: list[Any] = []  # what was given a number must not be freed and its id used again
    key: list[Hashable] = []
    frame = first
    while frame is not None and frame.f_code is not last:
        key.append(_frame(frame, seen, alive))
        frame = frame.f_back
    return (*key, freeze(sys.exc_info()[1], seen, alive))


def _frame(frame: types.FrameType, seen: dict[int, int], alive: list[Any]) -> Hashable:
    code = frame.f_code
    names = tuple((name, freeze(item, seen, alive)) for name, item in frame.f_locals.items())
    return (code.co_qualname, code.co_filename, code.co_firstlineno, _position(frame), names)


def _position(frame: types.FrameType) -> int:
    """Where a frame stands. A call is two instructions in Python 3.11, one once it is hot."""
    at = frame.f_lasti
    return at + CALL_AFTER if at >= 0 and frame.f_code.co_code[at] == PRECALL else at


def freeze(thing: Any, seen: dict[int, int], alive: list[Any]) -> Hashable:
    """`thing` by content; what may be changed, when met again, by the number it had at first."""
    kind: type[Any] = type(thing)
    if kind in PLAIN:
        return thing  # type: ignore[no-any-return]
    if kind is bool or kind is float:
        return (kind.__name__, thing)
    if isinstance(thing, type):
        return ("class", thing.__module__, thing.__qualname__)
    if isinstance(thing, CONSTANT):
        return ("constant", kind.__name__, getattr(thing, "__name__", ""))
    if isinstance(thing, weakref.ref):
        return ("weak", freeze(thing(), seen, alive))
    if isinstance(thing, types.MethodType):
        return ("method", thing.__func__.__qualname__, freeze(thing.__self__, seen, alive))
    if issubclass(kind, tuple):
        return (kind.__name__, *(freeze(item, seen, alive) for item in thing))
    if id(thing) in seen:
        return ("again", seen[id(thing)])
    seen[id(thing)] = len(seen)
    alive.append(thing)
    return (kind.__qualname__, *(freeze(part, seen, alive) for part in _parts(thing)))


def _parts(thing: Any) -> tuple[Any, ...]:
    """All that makes up something which may be changed."""
    if hasattr(thing, "__freeze__"):
        return (thing.__freeze__(),)
    if isinstance(thing, types.FunctionType):
        cells = [cell.cell_contents for cell in thing.__closure__ or () if not _is_empty(cell)]
        return (thing.__module__, thing.__qualname__, *cells)
    kind: type[Any] = type(thing)
    if issubclass(kind, dict):
        return (*thing.items(), *_fields(thing))
    if issubclass(kind, set | frozenset):
        return tuple(sorted(thing, key=repr))
    if issubclass(kind, list):
        return (*thing, *_fields(thing))
    if issubclass(kind, BaseException):
        return (*thing.args, getattr(thing, "errno", None), thing.__context__, *_fields(thing))
    if issubclass(kind, SUSPENDED):
        return _suspended(thing)
    return _by_reduction(thing)


def _fields(thing: Any) -> tuple[Any, ...]:
    """What a subclass of a container or an exception adds to it."""
    return tuple(getattr(thing, "__dict__", {}).items())


def _suspended(thing: Any) -> tuple[Any, ...]:
    for prefix in ("gi", "cr", "ag"):
        if hasattr(thing, f"{prefix}_frame"):
            frame, code = getattr(thing, f"{prefix}_frame"), getattr(thing, f"{prefix}_code")
            if frame is None or getattr(thing, f"{prefix}_running"):
                return (code.co_qualname, "over" if frame is None else "running")
            return (code.co_qualname, _position(frame), tuple(frame.f_locals.items()))
    return ()


def _by_reduction(thing: Any) -> tuple[Any, ...]:
    """By what pickle would keep: attributes, slots, and the position of iterators of C."""
    try:
        reduced: Any = thing.__reduce_ex__(2)
    except TypeError as error:
        raise TypeError(
            f"the explorer cannot compare two objects of {type(thing)!r}, which a client can "
            "reach: give its owner a method __freeze__, or keep it out of the client"
        ) from error
    return (reduced,)


def _is_empty(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is cell  # only the look-up matters: it fails when empty
    except ValueError:
        return True
