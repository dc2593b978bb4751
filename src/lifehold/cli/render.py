"""Words to stderr and stdout.

stdout of `run` belongs to its CMD, so what we have to say goes to stderr, by write(2) in one piece:
lines of several processes do not mix, and a closed or full stderr never ends a run. Names and
commands of others were escaped where their text was made.
"""

from __future__ import annotations

import os
import sys

from ..core.errors import SystemRefused
from ..core.mask import printable
from ..core.value import as_dict
from ..runtime import native, process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..core.grant import Holder
    from ..local.kernel_holders import KernelWaiter
    from ..ops.who import LockAnswer

PREFIX = "lifehold: "
LEAST = 12  # columns of a table's last cell, else it is left out
PIECE = 4096  # bytes that a pipe takes at once when it takes any (PIPE_BUF)
PATIENCE = 1.0  # seconds for a stderr that takes nothing just now
_unsaid: Any = None  # the lock of a thread that still writes
FIRST = 16  # columns that its first cell keeps, where others must go


def say(text: str, prefix: str = PREFIX, patience: float = PATIENCE) -> None:
    """One message on stderr. Who holds a lock, or waits for one, is not held up by it.

    `patience`: seconds for a stderr that takes nothing just now, PATIENCE at most.
    """
    text = prefix + text
    if "\n  " in text and (room := _room(2)):
        text = _width().folded(text, room)
    left = f"{text}\n".encode("utf-8", "backslashreplace")
    try:
        while left and _takes_more():
            left = left[os.write(2, left[:PIECE]) :]
    except OSError:
        return  # nobody listens; the exit code still tells
    if left:
        _say_beside(left, min(patience, PATIENCE))


def _takes_more() -> bool:
    """Whether a piece can be written to stderr at once. Raises OSError."""
    try:
        import select
    except ImportError:  # outside of a chroot by now, or not ours to read
        return True
    if sys.platform == "win32":  # it can ask that of sockets alone
        return True
    return bool(select.select([], [2], [], 0)[1])


def _say_beside(left: bytes, patience: float) -> None:
    """A pipe is full, or a terminal stopped by Ctrl-S: a thread writes, and we wait a moment.

    While it is still at it, what else we would say is dropped.
    """
    global _unsaid

    def write() -> None:
        nonlocal left
        try:
            while left:
                left = left[os.write(2, left) :]
        except OSError:
            return

    if _unsaid is None or _unsaid.acquire(blocking=False):
        _unsaid = native.beside(write, patience)


class progress:  # noqa: N801
    """Between its begin and its end, a line on the terminal of stderr says how far a scan has come.

    What is entered is to be called with the number of files; None where stderr is no terminal. The
    line is written over, and gone at the end.
    """

    def __enter__(self) -> Callable[[int], None] | None:
        self._shown = False
        dumb = os.environ.get("TERM", "dumb") in ("", "dumb")
        return None if dumb or not os.isatty(2) else self._tell

    def _tell(self, seen: int) -> None:
        self._shown = True
        os.write(2, f"\r{PREFIX}{seen:,} files ...\x1b[K\r".encode())

    def __exit__(self, *_: object) -> None:
        if self._shown:
            os.write(2, b"\r\x1b[K")


def put(text: str, *, fold: bool = False, margin: int = 9) -> None:
    """An answer on stdout. `fold`: facts in words, `margin` columns from the left, are to fit.

    Raises BrokenPipeError when the reader has gone; SystemRefused.
    """
    if sys.stdout is None:
        return
    if fold and (room := _room(1)):
        text = _width().folded(text, room, margin)
    text = text if text.endswith("\n") else text + "\n"
    try:
        try:
            sys.stdout.write(text)
        except UnicodeEncodeError as error:  # a terminal that cannot show it: as an escape
            sys.stdout.write(text.encode(error.encoding, "backslashreplace").decode(error.encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        forget_stdout()
        raise SystemRefused(
            f"the answer cannot be written to stdout: {error.strerror}", errno=error.errno
        ) from error


def show_help(text: str) -> None:
    """A help text on stdout, as wide as the terminal where that has less than 80 columns."""
    room = _room(1)
    put(_width().narrowed(text, room) if 0 < room < 80 else text)


def forget_stdout() -> None:
    """Python would flush stdout once more at its end, and complain that this fails again."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)


def table(rows: list[list[str]], *, whole: bool = False, headed: bool = True) -> str:
    """Rows of cells in columns, as wide as they need. `headed`: the first row says what they are.

    A terminal gets what fits it: the last cell is shortened, or left out where next to nothing is
    left, or, `whole`, gone on with below. Where that is not enough the first cell is shortened to
    FIRST columns (not when `whole`), then columns are left out from the right on; two remain.
    States have colours.
    """
    width, colour = _width(), _colour()
    heads = rows[0] if headed else [""] * len(rows[0])
    room, last = _room(1), len(heads) - 1
    widths = [max(map(width.columns, column)) for column in zip(*rows, strict=True)]
    shown = last
    if room and not whole:
        shown = _fitting(widths, room)
        used = sum(widths[1:shown]) + 2 * (shown - 1)
        widths[0] = min(widths[0], max(1, room - used))
    while room and whole and shown > 2 and sum(widths[:shown]) + 2 * (shown - 1) > room:
        shown -= 1
    left = room - sum(widths[:last]) - 2 * last if shown == last else 0
    lines: list[str] = []
    for row in rows:
        cells = []
        for at, cell in enumerate(row[:shown]):
            short = width.tail(cell, widths[at]) if room and not whole and at == 0 else cell
            gap = " " * (widths[at] - width.columns(short))
            cells.append(_coloured(short, heads[at], row is heads, colour) + gap)
        if whole or not room or left >= LEAST:
            end = row[last] if whole or not room else width.cut(row[last], left)
            cells.append(_coloured(end, heads[last], row is heads, colour))
        line = "  ".join(cells).rstrip()
        lines += width.wrapped(line, room, 4) if room and whole else [line]
    return "\n".join(lines)


def _fitting(widths: list[int], room: int) -> int:
    """How many columns from the left fit `room`, the last one of a table aside; 2 at least."""
    shown = len(widths) - 1
    while shown > 2 and min(widths[0], FIRST) + sum(widths[1:shown]) + 2 * (shown - 1) > room:
        shown -= 1
    return shown


def _coloured(cell: str, head: str, is_head: bool, colour: Any) -> str:
    if is_head:
        return str(colour.styled(cell, colour.BOLD)) if colour.wanted() else cell
    return str(colour.painted(cell)) if head in colour.COLUMNS else cell


def _room(fd: int) -> int:
    """Columns, 0 for what is no terminal."""
    try:
        return os.get_terminal_size(fd).columns if os.isatty(fd) else 0
    except OSError:
        return 0


def columns_of(fd: int) -> tuple[int, int]:
    """Columns and lines of a terminal, 80 and 24 where it does not tell."""
    try:
        size = os.get_terminal_size(fd)
    except OSError:
        return 80, 24
    return size.columns or 80, size.lines or 24


def _width() -> Any:
    from . import width

    return width


def _colour() -> Any:
    from . import colour

    return colour


# ------------------------------------------------------------------------------------------------
# Answers about locks as text for people and as JSON for programs; `who` and `ls` share them.


COLUMN = 72  # characters of a command in a table
SHOWN = 10  # of others, waiters and holders of removed files; the rest are counted
REMOVED = (
    "the file that stood here was removed while it was locked; its holder and\n"
    "         whoever locks the path now do not exclude each other"
)


def in_words(answer: LockAnswer, now: float) -> str:
    """One lock over several lines."""
    from ..core import explain

    name = printable(answer.name)
    lock = answer.holder.lock if answer.holder and answer.holder.lock else answer.path
    lines = [f"'{name}' is {_colour().painted(answer.state)}"]
    if not answer.exists:
        # The file of kind "soft" goes with its holder; that of "link" does, and leaves no token.
        used = answer.removed or "/" in name or os.path.lexists(f"{answer.path}.token")
        why = "there is no file" if used else "nobody has used it yet"
        lines[0] += f": {'its store knows no such name' if answer.kind == 'lease' else why}"
    if answer.holder is not None:
        lines += facts(answer.holder, now)
        lines.append(f"  alive  {explain.alive(answer.holder)}")
    if answer.last is not None:
        lines[0] += "; held last"
        lines += facts(answer.last, now)
    lines += _list("also", [explain.by(each) for each in answer.others])
    lines += _list("queue", [_waits(each) for each in answer.waiting])
    lines += _list(
        "old", [f"{explain.by(each)}, since {explain.since(each, now)}" for each in answer.removed]
    )
    if answer.removed:
        lines.append(f"  note   {REMOVED}")
    if answer.note:
        lines.append(f"  note   {printable(answer.note)}")
    lines += [
        f"  {'next' if at == 0 else '':<5}  {printable(each)}"
        for at, each in enumerate(answer.remedy)
    ]
    return "\n".join([*lines, f"  lock   {printable(lock)}"])


def facts(holder: Holder, now: float) -> list[str]:
    """Who, since when, and what else is known of the grant."""
    from ..core import explain

    lines = [f"  by     {explain.by(holder)}"]
    numbers = process.numbers_of(holder.pid_here) if holder.pid_here else []
    if len(numbers) > 1 and holder.owner and holder.owner.pid == holder.pid_here:  # else it is told
        lines.append(f"  pid    {numbers[0]} here, {numbers[-1]} in its own PID namespace")
    lines.append(f"  since  {explain.since(holder, now)}")
    return lines + ([f"  token  {holder.token}"] if holder.token is not None else [])


def _list(word: str, items: list[str]) -> list[str]:
    """One line each, the first with its word; what is too much is counted."""
    shown = items[:SHOWN]
    if len(items) > SHOWN:
        shown.append(f"and {len(items) - SHOWN} more")
    return [f"  {word if not at else '':<5}  {item}" for at, item in enumerate(shown)]


def _waits(waiting: KernelWaiter) -> str:
    what = "" if waiting.exclusive else ", shared"
    kind = {"FLOCK": "", "FAIR": ", in the fair line", "CLAIM": "", "LEASE": ""}.get(
        waiting.kind, f", {kind_of(waiting)} lock"
    )
    if waiting.pid <= 0:
        return f"a process whose number is not visible from here{what}{kind}"
    command = waiting.command
    shown = f" ({printable(command)})" if command else ""
    return f"pid {waiting.pid}{shown}{what}{kind}"


def kind_of(waiting: KernelWaiter) -> str:
    names = {
        "FLOCK": "flock",
        "POSIX": "fcntl",
        "OFDLCK": "ofd",
        "FAIR": "fair",
        "CLAIM": "claim",
        "LEASE": "lease",
    }
    return names.get(waiting.kind, "other")


def as_table(answers: list[LockAnswer], now: float, *, last: bool = False) -> str:
    """One line each. `last`: of a free lock tell who held it last."""
    from ..core import explain

    rows = [["NAME", "STATE", "PID", "USER", "SINCE", "COMMAND"]]
    for answer in answers:
        holder = answer.holder or (answer.removed[0] if answer.removed else None)
        if holder is None and last and answer.last is not None:
            rows.append(_row(answer, answer.last, f"last {explain.since(answer.last, now)}"))
        else:
            since = explain.since(holder, now) if holder else "-"
            since = "unknown" if holder and holder.since is None else since
            rows.append(_row(answer, holder, since))
    return table(rows)


def _row(answer: LockAnswer, holder: Holder | None, since: str) -> list[str]:
    from ..core import explain

    owner = holder.owner if holder else None
    return [
        printable(answer.name),
        answer.state,
        _pids(holder) if holder else "-",
        printable(owner.user or str(owner.uid or "-")) if owner else "-",
        since,
        explain.short(printable(owner.command or "-"), COLUMN) if owner else "-",
    ]


def _pids(holder: Holder) -> str:
    """Its number here, and in brackets that of its container: alone where it has none here."""
    owner, here = holder.owner, holder.pid_here
    if not here:
        number = str(owner.pid) if owner else "-"
        return f"({number})" if here == 0 else number
    inside = owner.pid if owner and owner.pid != here else process.numbers_of(here)[-1]
    return str(here) if inside == here else f"{here} ({inside})"


def as_json(
    schema: str, answers: list[LockAnswer], now: float, unseen: list[str] | None = None
) -> str:
    """One object; times are seconds since 1970, UTC. `unseen`: what could not be seen, in words."""
    import json

    more = {} if unseen is None else {"unseen": unseen}
    locks = [one(answer) for answer in answers]
    return json.dumps({"schema": schema, "at": now, **more, "locks": locks}, indent=2)


def one(answer: LockAnswer) -> dict[str, Any]:
    """One lock, for JSON."""
    return {
        "name": answer.name,
        "path": answer.path,
        "kind": answer.kind,
        "state": answer.state,
        "exists": answer.exists,
        "holder": _holder(answer.holder),
        "others": [_holder(each) for each in answer.others],
        "waiting": [_waiting(each) for each in answer.waiting],
        "removed": [_holder(each) for each in answer.removed],
        "last": _holder(answer.last),
        "note": answer.note,
        "family": answer.family,
        "remedy": list(answer.remedy),
    }


def _holder(holder: Holder | None) -> dict[str, Any] | None:
    if holder is None:
        return None
    owner = as_dict(holder.owner) if holder.owner else None
    pids = process.numbers_of(holder.pid_here) if holder.pid_here else []
    return as_dict(holder) | {"owner": owner, "pids": pids}


def _waiting(waiting: KernelWaiter) -> dict[str, Any]:
    return {
        "pid": waiting.pid if waiting.pid > 0 else None,
        "kind": kind_of(waiting),
        "exclusive": waiting.exclusive,
        "command": waiting.command,
    }


# ------------------------------------------------------------------------------------------------
# An answer in words: a head, and lines of a name and its text.


MARGIN = 14  # columns before the text of a line


class Page:
    """`lines`: as they are printed."""

    def __init__(self, head: str) -> None:
        self.lines = [head]

    def add(self, name: str, *parts: str) -> None:
        """One more, its parts joined by spaces."""
        self.lines.append(f"  {name:<{MARGIN - 2}}{' '.join(parts)}")
