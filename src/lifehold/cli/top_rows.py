"""What `lifehold top` shows: rows of locks, their order, and columns that fit the terminal.

Promise: every row fits the width that it is made for, in a terminal of 40 columns as well: columns
are left out before a name becomes unreadable, and of a path its end stays. Names and commands of
others are escaped, so they move no cursor.
"""

from __future__ import annotations

from ..core import explain
from ..core.mask import printable
from ..core.value import value
from ..ops import inventory
from ..ops.answer import FREE
from .width import columns, cut, tail, wrapped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..core.grant import Holder
    from ..ops.answer import LockAnswer

NARROW, WIDE = 72, 100  # columns: below the one no process is named, from the other on its user
GAP = 2  # columns between two cells
WIDTHS = {"STATE": 7, "FOR": 8, "WAIT": 4, "PID": 8, "USER": 10}
STATE, TIME, WAITERS, NAME = "state", "time", "waiters", "name"
DETAILS = 3  # lines about the chosen lock
MORE, MARGIN = 2, 6  # lines that one of them may take more, and where those begin


@value
class LockRow:
    """One lock. `length`: seconds for which it is held, -1.0 where that is not known."""

    answer: LockAnswer
    length: float
    exact: bool

    @property
    def key(self) -> str:
        """By which it is found again in the next table."""
        return self.answer.path or self.answer.name


class TerminalGone(Exception):
    """Nobody sees the screen any more."""


def rows_of(
    answers: list[LockAnswer], now: float, sort: str, *, reverse: bool = False, free: bool = False
) -> list[LockRow]:
    """The rows in their order. `free`: those of free locks too."""
    rows = [_row(answer, now) for answer in answers if free or answer.state != FREE]
    orders: dict[str, Callable[[LockRow], tuple[float, ...]]] = {
        STATE: lambda row: (inventory.ORDER[row.answer.state], -row.length),
        TIME: lambda row: (-row.length,),
        WAITERS: lambda row: (-len(row.answer.waiting), -row.length),
        NAME: lambda row: (),
    }
    rows.sort(key=lambda row: row.answer.name)
    rows.sort(key=orders[sort])
    return rows[::-1] if reverse else rows


def _row(answer: LockAnswer, now: float) -> LockRow:
    holder = _holder(answer)
    if holder is None or answer.state == FREE:
        return LockRow(answer, -1.0, exact=True)
    since = holder.since if holder.since is not None else holder.began
    length = -1.0 if since is None else max(0.0, now - since)
    return LockRow(answer, length, holder.since is not None)


def _holder(answer: LockAnswer) -> Holder | None:
    return answer.holder or (answer.removed[0] if answer.removed else answer.last)


def summary(host: str, rows: list[LockRow], sort: str, now: float, wide: int) -> str:
    """The first line: how many, and what needs a look."""
    count = {state: sum(row.answer.state == state for row in rows) for state in inventory.ORDER}
    waiting = sum(len(row.answer.waiting) for row in rows)
    parts = [f"{number} {state}" for state, number in count.items() if number]
    parts += [f"{waiting} waiting"] if waiting else []
    told = ", ".join(parts) or "no lock is in use"
    for text in (
        f"{told}   by {sort}   {host}   {explain.utc(now)}",
        f"{told}   by {sort}   {host}",
        f"{told}  by {sort}",
        told,
    ):
        if columns(text) <= wide:
            return text
    return cut(told, wide)


def widths(wide: int) -> dict[str, int]:
    """Which columns fit, and how wide each is."""
    names = ["STATE", "FOR", "WAIT"]
    names += ["PID"] if wide >= NARROW else []
    names += ["USER"] if wide >= WIDE else []
    left = wide - sum(WIDTHS[name] + GAP for name in names)
    if wide < NARROW:
        return {"LOCK": max(8, left), **{name: WIDTHS[name] for name in names}}
    lock = (left - GAP) * 11 // 20
    return {"LOCK": lock, **{name: WIDTHS[name] for name in names}, "COMMAND": left - GAP - lock}


def cells(row: LockRow, room: dict[str, int]) -> dict[str, str]:
    """The text of each column, none longer than its room."""
    answer, holder = row.answer, _holder(row.answer)
    owner = holder.owner if holder else None
    pid = (holder.pid_here or owner.pid) if holder and owner else None
    last = "last " if answer.state == FREE and owner else ""
    told = {
        "LOCK": tail(printable(answer.name), room["LOCK"]),
        "STATE": answer.state,
        "FOR": "-" if row.length < 0 else f"{'' if row.exact else '<'}{short_span(row.length)}",
        "WAIT": str(len(answer.waiting) or "-"),
        "PID": "-" if pid is None else f"({pid})" if holder and holder.pid_here == 0 else str(pid),
        "USER": printable(owner.user or str(owner.uid or "-")) if owner else "-",
        "COMMAND": last + printable(owner.command or "-") if owner else "-",
    }
    return {name: cut(told[name], space) for name, space in room.items()}


def short_span(seconds: float) -> str:
    """A length of time in seven columns at most: `9s`, `4m10s`, `11h34m`, `3d2h`."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    for unit, word, lesser, small in (
        (86400, "d", 3600, "h"),
        (3600, "h", 60, "m"),
        (60, "m", 1, "s"),
    ):
        if whole >= unit:
            rest = whole % unit // lesser
            return f"{whole // unit}{word}" + (f"{rest}{small}" if rest else "")
    raise AssertionError(whole)


def details(row: LockRow, wide: int, spare: int = 0) -> list[str]:
    """DETAILS lines about one lock: who has it, how we know, what to do.

    `spare`: how many more there may be, for what does not fit into its line.
    """
    answer, holder = row.answer, _holder(row.answer)
    lines = [f"lock  {tail(printable(answer.path or answer.name), wide - 6)}"]
    if holder is not None:
        halted = explain.HALTS.get(holder.halted, "")
        told = "; ".join(filter(None, (explain.by(holder), halted, holder.evidence or answer.note)))
        lines.append(f"by    {told}")
    else:
        lines.append(f"note  {answer.note}")
    lines.append(
        f"next  {answer.remedy[0]}"
        if answer.remedy
        else (f"next  look:  lifehold who {explain.quote(answer.path)}" if answer.path else "")
    )
    found: list[str] = []
    for at, line in enumerate(lines):
        left = spare - (len(found) - at)
        found += _folded(printable(line), wide, 1 + min(left, MORE))
    return found


def _folded(line: str, wide: int, most: int) -> list[str]:
    """`line` over `most` lines; what is too much for those is cut."""
    pieces = wrapped(line, wide, MARGIN)
    if len(pieces) > most:
        rest = [piece.strip() for piece in pieces[most:]]
        pieces = [*pieces[: most - 1], " ".join([pieces[most - 1], *rest])]
    return [cut(piece, wide) for piece in pieces]


def as_text(rows: list[LockRow], wide: int) -> str:
    """The table once, without colours and keys."""
    room = widths(wide)
    lines = [(" " * GAP).join(name.ljust(space) for name, space in room.items()).rstrip()]
    for row in rows:
        told = cells(row, room)
        parts = [told[name] + " " * (room[name] - columns(told[name])) for name in room]
        lines.append((" " * GAP).join(parts).rstrip())
    return "\n".join(lines)
