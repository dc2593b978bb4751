"""Judging what really happened: histories that processes wrote while they held a lock.

Promise: `judge` names every pair of grants that may not have been: two inside that exclude each
other, one too many, one slot twice, a token that did not grow, a reader with the token of another
generation, a late write that the data took. It needs no trust in the lock: each process notes when
it came in, *after* its acquire returned, and when it goes, *before* its release, on the one
monotonic clock of the machine; so an overlap of two notes is an overlap of two holders.

Rule for the dead: who is killed holds at least until the kill was sent, which the killer notes
before it kills. A turn without an end and without a kill proves its first instant only. What a dead
process did between its grant and its first note is not seen: tokens may have gaps, never steps
back.

    with Diary(folder, "config", "w3") as diary:            in each process
        with lock.writing() as lease, diary.turn(WRITE, lease.token):
            ...
    turns = read(folder)                                    afterwards
    assert not judge(turns["config"])
"""

from __future__ import annotations

import heapq
import json
import os
from bisect import bisect_right
from collections import defaultdict
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..core.errors import InvalidArgument
from ..core.value import replace, value
from ..runtime import clock

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable
    from pathlib import Path

WRITE, READ, SLOT = "write", "read", "slot"
MUTEX, PERMITS, TOKEN = "MUTEX", "PERMITS", "TOKEN"  # kinds of findings
GENERATION, FENCE = "GENERATION", "FENCE"
NEVER = 1 << 62

Key = tuple[str, str, int]  # who, which of its diaries, which turn in it


@value
class Turn:
    """One grant, as its process noted it. Instants in ns of the machine's monotonic clock.

    `what`: WRITE (a mutex is one with writers only), READ or SLOT; `left`: None when it was never
    noted; `stored`: when the data took writes of this turn, in their order.
    """

    who: str
    what: str
    asked: int
    entered: int
    left: int | None = None
    token: int | None = None
    slot: int | None = None
    stored: tuple[int, ...] = ()


@value
class HistoryFinding:
    """Something that may not have been: its kind, and the turns that show it."""

    kind: str
    turns: tuple[Turn, ...]

    def __str__(self) -> str:
        return f"{self.kind}: " + " beside ".join(
            f"{t.what} of {t.who}, {t.entered} to {t.left}, token {t.token}, slot {t.slot}"
            for t in self.turns
        )


def stamp() -> int:
    """Now, on the clock that all processes of the machine share, in ns."""
    return int(clock.now() * 1e9)


# ---- writing ------------------------------------------------------------------------------------


class Diary:
    """The notes of one process on one lock: a line of JSON each, whole or not there at all.

    Its file goes by `who`. Several may share it: for other locks, or after a restart.
    """

    def __init__(self, folder: Path | str, name: str, who: str) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._fd = os.open(os.path.join(folder, f"{who}.diary"), flags, 0o600)
        self.name, self.who, self._count = name, who, 0
        self._id = os.urandom(8).hex()

    def note(self, event: str, **facts: object) -> None:
        """One line; the clock is read here."""
        line = {"name": self.name, "diary": self._id, "event": event, "at": stamp(), **facts}
        os.write(self._fd, json.dumps(line).encode() + b"\n")

    @contextmanager
    def turn(
        self, what: str, token: int | None, slot: int | None = None, asked: int = 0
    ) -> Generator[int]:
        """Noted as inside for the time of the block.

        Raises InvalidArgument for a turn of which `judge` could say nothing.
        """
        if what not in (WRITE, READ, SLOT):
            raise InvalidArgument(f"what is {WRITE!r}, {READ!r} or {SLOT!r}, not {what!r}")
        if what == SLOT and slot is None:
            raise InvalidArgument("a turn in a slot says in which: give slot=")
        self._count += 1
        number, entered = self._count, stamp()
        facts = {"what": what, "token": token, "slot": slot, "asked": asked or entered}
        self.note("in", turn=number, **facts)
        try:
            yield number
        finally:
            self.note("out", turn=number)

    def stored(self, turn: int) -> None:
        """The data took a write of this turn."""
        self.note("stored", turn=turn)

    def close(self) -> None:
        os.close(self._fd)

    def __enter__(self) -> Diary:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read(folder: Path | str) -> dict[str, list[Turn]]:
    """All turns in the diaries of a folder, by the name of the lock.

    A killer's diary has events `killed` with the `who` it killed.
    """
    turns: dict[Key, Turn] = {}
    names: dict[Key, str] = {}
    killed: dict[str, list[int]] = defaultdict(list)
    for file in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if not file.name.endswith(".diary"):
            continue
        who = file.name.removesuffix(".diary")
        with open(file.path, "rb") as lines:
            for line in lines:
                if not line.endswith(b"\n"):
                    break  # cut off by a kill
                _enter(json.loads(line), who, turns, names, killed)
    found: dict[str, list[Turn]] = defaultdict(list)
    for key, turn in turns.items():
        left = turn.left
        if left is None:
            left = min((at for at in killed[turn.who] if at >= turn.entered), default=None)
        found[names[key]].append(replace(turn, left=left))
    return dict(found)


def _enter(
    told: dict[str, Any],
    who: str,
    turns: dict[Key, Turn],
    names: dict[Key, str],
    killed: dict[str, list[int]],
) -> None:
    if told["event"] == "killed":
        killed[told["who"]].append(told["at"])
        return
    key = (who, told.get("diary", ""), told["turn"])
    if told["event"] == "in":
        names[key] = told["name"]
        turns[key] = Turn(
            who, told["what"], told["asked"], told["at"], token=told["token"], slot=told["slot"]
        )
    elif told["event"] == "out":
        turns[key] = replace(turns[key], left=told["at"])
    elif told["event"] == "stored":
        turns[key] = replace(turns[key], stored=(*turns[key].stored, told["at"]))


# ---- judging ------------------------------------------------------------------------------------


def judge(turns: Iterable[Turn], permits: int | None = None) -> list[HistoryFinding]:
    """What may not have been in the history of one lock. `permits`: of a semaphore."""
    ordered = sorted(turns, key=lambda turn: (turn.entered, _end(turn)))
    found = _overlaps(ordered, permits)
    exclusive = [turn for turn in ordered if turn.what == WRITE]
    found += _growing(exclusive)
    for slot in sorted({turn.slot for turn in ordered if turn.slot is not None}):
        found += _growing([turn for turn in ordered if turn.slot == slot])
    found += _generations(ordered)
    found += _fenced(ordered)
    return found


def _end(turn: Turn) -> int:
    return turn.entered if turn.left is None else turn.left


def _overlaps(ordered: list[Turn], permits: int | None) -> list[HistoryFinding]:
    """Two inside that exclude each other."""
    found: list[HistoryFinding] = []
    inside: list[tuple[int, int, Turn]] = []  # by the end of the turn
    for number, turn in enumerate(ordered):
        while inside and inside[0][0] <= turn.entered:
            heapq.heappop(inside)
        others = [other for _, _, other in inside]
        for other in others:
            beside = turn.what == other.what == READ
            slots = turn.what == other.what == SLOT and turn.slot != other.slot
            if not beside and not slots:
                found.append(HistoryFinding(MUTEX, (other, turn)))
        holding = [other for other in others if other.what == SLOT]
        if permits is not None and turn.what == SLOT:
            odd = turn.slot is None or not 0 <= turn.slot < permits
            if len(holding) >= permits or odd:
                found.append(HistoryFinding(PERMITS, (*holding, turn)))
        heapq.heappush(inside, (_end(turn), number, turn))
    return found


def _growing(ordered: list[Turn]) -> list[HistoryFinding]:
    """L4  Each exclusive grant's token is greater than all before it."""
    found, last = [], None
    for turn in ordered:
        if turn.token is None:
            continue
        if last is not None and turn.token <= (last.token or 0):
            found.append(HistoryFinding(TOKEN, (last, turn)))
        else:
            last = turn
    return found


def _generations(ordered: list[Turn]) -> list[HistoryFinding]:
    """A reader carries the token of the last writer before it, and of no later one.

    A writer that was killed before its first note, or that drew a token and gave up, may stand
    between the two: greater is right, as long as the next writer's is greater still. So a reader's
    is never less than that of a reader who was in when it asked.
    """
    found, last = [], None
    reading: list[Turn] = []  # since that writer, by entry
    tops: list[Turn] = []  # the greatest of each and all before it
    for turn in ordered:
        if turn.token is None:
            continue
        if turn.what == READ:
            known = bisect_right(reading, turn.asked, key=lambda one: one.entered)
            before = tops[known - 1 : known] + ([] if last is None else [last])
            top = max(before, key=_token, default=turn)
            if turn.token < _token(top):
                found.append(HistoryFinding(GENERATION, (top, turn)))
            reading.append(turn)
            tops.append(max([turn, *tops[-1:]], key=_token))
        elif turn.what == WRITE:
            late = [one for one in reading if _token(one) >= turn.token]
            found += [HistoryFinding(GENERATION, (one, turn)) for one in late]
            reading, tops, last = [], [], turn
    return found


def _token(turn: Turn) -> int:
    return turn.token or 0


def _fenced(ordered: list[Turn]) -> list[HistoryFinding]:
    """What the data took: a write under an older token than one that it took before."""
    stored = [(at, turn) for turn in ordered if turn.token is not None for at in turn.stored]
    stored.sort(key=lambda each: each[0])
    found: list[HistoryFinding] = []
    greatest: dict[int | None, Turn] = {}
    for _, turn in stored:
        before = greatest.get(turn.slot)
        if before is not None and (turn.token or 0) < (before.token or 0):
            found.append(HistoryFinding(FENCE, (before, turn)))
        else:
            greatest[turn.slot] = turn
    return found


def longest_wait(turns: Iterable[Turn], what: str) -> float:
    """Seconds from asking to being inside, of the one that waited longest; 0.0 for none."""
    return max((turn.entered - turn.asked for turn in turns if turn.what == what), default=0) / 1e9
