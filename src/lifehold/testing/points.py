"""The child's side of crash.py: named points at which it stops until its parent says go on."""

from __future__ import annotations

import json
import os
import socket

from ..local.files import HOST

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

LINE = "LIFEHOLD_TESTING_LINE"  # environment variable: the descriptor on which a script reports
CALLS = tuple("open close flock lstat fstat pread pwrite fchmod unlink makedirs".split())
ORPHAN = 86  # exit code of a child that found its parent gone

_line: socket.socket | None = None  # to our parent, in a child


def report_to(line: socket.socket) -> None:
    """From now on points of this process are reported there."""
    global _line
    _line = line


def point(name: str, value: object = None) -> None:
    """Stop here until the parent says go on. Does nothing in a process that no `Child` started."""
    line = _line or _inherited_line()
    if line is None:
        return
    line.send(json.dumps({"at": name, "value": value}).encode())
    if not line.recv(1):
        os._exit(ORPHAN)


def points_at_calls(names: Sequence[str] = CALLS) -> None:
    """Make each call that this process's locks make a point before and one after it.

    The points are called "before pwrite", "after pwrite" and so on; `names` chooses the calls.
    """
    for name in names:
        setattr(HOST, name, _between_points(name, getattr(HOST, name)))


def _between_points(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def stopped(*args: Any, **named: Any) -> Any:
        point(f"before {name}")
        try:
            return call(*args, **named)
        finally:
            point(f"after {name}")

    return stopped


def _inherited_line() -> socket.socket | None:
    global _line
    number = os.environ.get(LINE)
    if number is not None:
        del os.environ[LINE]  # children of this process are not the ones who were asked
        _line = socket.socket(fileno=int(number))
        _line.set_inheritable(False)
    return _line
