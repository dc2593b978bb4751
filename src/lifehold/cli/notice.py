"""How `lifehold run` tells on stderr that it waits.

Promise: on a terminal one line, rewritten in place, which is gone when the wait ends; anywhere else
(a log, a mail of cron, TERM=dumb, a job in the background) a line per notice, and not one control
character. Either way stdout is not touched, and nothing that happens to stderr touches the wait.
Rule: the cursor rests at the line's beginning, so that a terminal that was made narrower, whether
it folds the line or cuts it, is clean after "erase to the end of the screen". The clock in the line
is kept by the heartbeat thread, once a second, and only while there is such a line.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _thread
import os
import select

from ..core.events import Waiting
from ..runtime import clock, fork, heartbeat, process
from . import width
from .render import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any

    from ..core import explain, mask
    from ..core.grant import Holder

    Look = Callable[[], tuple[Holder | None, int | None]]
else:
    explain = fork.later("lifehold.core.explain", globals())
    mask = fork.later("lifehold.core.mask", globals())

TICK = 1.0  # seconds between two paintings
FRESH = 10.0  # seconds between two looks at the holder, which may have become another
SHARE = 200  # and this many times what a look has taken, where there are many processes to look at
ERASE = b"\r\x1b[J"
ENDS = tuple(
    number
    for name in ("SIGTERM", "SIGHUP", "SIGQUIT", "SIGTSTP")
    if (number := getattr(_signal, name, None)) is not None
)
LIFE = {"alive": ("good", "alive"), "dead": ("bad", "gone"), "unknown": ("open", "alive or not")}
STYLES = {"bold": "\x1b[1m", "good": "\x1b[32m", "bad": "\x1b[31m", "open": "\x1b[33m"}


def on_terminal() -> bool:
    """Whether stderr is a terminal that can rewrite a line, and is ours to write on just now."""
    if not os.isatty(2) or os.environ.get("TERM", "dumb") in ("", "dumb"):
        return False
    try:
        return os.tcgetpgrp(2) == os.getpgrp()
    except (OSError, AttributeError):
        return True  # not our controlling terminal, so there is no foreground to be in


class WaitNotice:
    """What one wait says. `look`: who holds the lock, and how many wait before us, now."""

    def __init__(self, look: Look | None = None) -> None:
        self._look = look
        self._mutex = _thread.RLock()  # reentrant: the handler of a signal erases the line too
        self._latest: Waiting | None = None
        self._began = self._seen = 0.0
        self._look_at = 0.0  # when the holder is looked at again
        self._chosen: dict[str, int] = {}
        self._painted = self._over = False
        self._strike: Callable[[], None] | None = None
        self._usual: dict[int, Any] = {}

    def tell(self, told: Waiting) -> None:
        """A notice of the wait loop."""
        with self._mutex:
            now = clock.now()
            self._latest, self._began, self._seen = told, now - told.waited, now
            self._look_at, self._chosen = now + FRESH, {}
            if on_terminal():
                self._catch()
                if self._strike is None:  # else the next painting comes within a second
                    self._paint()
                    self._next()
                return
        say(
            explain.waiting_text(
                told.name, process.as_it_runs(told.holder), told.waited, clock.utc_now(), told.ahead
            )
        )

    def end(self) -> None:
        """The wait is over: nothing is painted any more, and nothing is left of it."""
        with self._mutex:
            self._over = True
            self._erase()
        if self._strike is not None:
            self._strike()
        for number, handler in self._usual.items():
            _signal.signal(number, handler)
        self._usual.clear()

    # ---- the clock of the line

    def _next(self) -> None:
        began = self._began + int(clock.now() - self._began)
        try:
            self._strike = heartbeat.at(began + TICK, self._tick)
        except RuntimeError:
            return  # no thread to be had: the line is painted at the notices only

    def _tick(self) -> None:
        fresh, began = None, clock.now()
        if self._look is not None and began >= self._look_at and not self._over:
            try:
                fresh = self._look()
            except Exception:  # noqa: BLE001 - what was seen last is shown on, with its age
                fresh = None
            now = clock.now()
            self._look_at = now + max(FRESH, SHARE * (now - began))
        with self._mutex:
            if self._over or self._latest is None:
                return
            if fresh is not None:
                self._seen = clock.now()
                self._latest = Waiting(self._latest.name, self._latest.waited, *fresh)
                self._chosen = {}
            if on_terminal():
                self._paint()
            else:
                self._painted = False  # in the background by now: the screen is the shell's
            self._next()

    # ---- the line

    def _paint(self) -> None:
        assert self._latest is not None
        now = clock.now()
        try:
            room = os.get_terminal_size(2).columns or 80
        except OSError:
            room = 80
        parts = fitting(
            self._latest,
            now - self._began,
            now - self._seen,
            clock.utc_now(),
            room - 1,
            self._chosen,
        )
        if os.environ.get("NO_COLOR"):
            text = "".join(part for _, part in parts)
        else:
            text = "".join(
                f"{STYLES[style]}{part}\x1b[0m" if style else part for style, part in parts
            )
        self._painted = True  # before it is, since a signal may come in between
        self._write(ERASE + text.encode("utf-8", "backslashreplace") + b"\r")

    def _erase(self) -> None:
        if self._painted and on_terminal():
            self._write(ERASE)
        self._painted = False

    def _write(self, line: bytes) -> None:
        try:
            # Ctrl-S: who has stopped the terminal must not stop the wait, nor the heartbeat.
            if select.select([], [2], [], 0)[1]:
                os.write(2, line)
        except (OSError, ValueError):
            return  # nobody looks

    # ---- a signal that ends or stops us must not leave half a line to the shell

    def _catch(self) -> None:
        for number in ENDS:
            try:
                if number not in self._usual and _signal.getsignal(number) == _signal.SIG_DFL:
                    self._usual[number] = _signal.signal(number, self._struck)
            except ValueError:
                return  # not the main thread, which alone may

    def _struck(self, number: int, _: FrameType | None) -> None:
        with self._mutex:
            self._erase()
        _signal.signal(number, _signal.SIG_DFL)
        os.kill(os.getpid(), number)
        _signal.signal(number, self._struck)  # stopped by Ctrl-Z, and here again


# What a line may have besides the bare facts, in the order in which a wider terminal gets it. The
# number of a command is that of its characters.
DETAILS: tuple[tuple[str, int], ...] = (
    ("command", 24),
    ("age", 1),
    ("evidence", 1),
    ("command", 40),
    ("user", 1),
    ("instant", 1),
    ("command", 120),
    ("host", 1),
)


def fitting(
    told: Waiting,
    waited: float,
    age: float,
    now: float,
    room: int,
    chosen: dict[str, int] | None = None,
) -> list[tuple[str, str]]:
    """The line as (style, text), as rich in detail as `room` columns allow.

    `waited`, `age`: seconds of the wait, and since the holder was looked at; `now`: UTC seconds;
    `chosen`: kept between two calls, the details and the room for which they were chosen.
    """
    chosen = {} if chosen is None else chosen
    if chosen.get("room") == room:
        parts = _line(told, waited, age, now, chosen)
        if width.columns("".join(text for _, text in parts)) <= room:
            return parts
    chosen.clear()
    chosen["room"] = room
    parts = _line(told, waited, age, now, chosen)
    for name, amount in DETAILS:
        richer = _line(told, waited, age, now, chosen | {name: amount})
        if width.columns("".join(text for _, text in richer)) > room:
            continue
        chosen[name], parts = amount, richer
    bare = "".join(text for _, text in parts)
    return parts if width.columns(bare) <= room else [("", width.cut(bare, room))]


def _line(
    told: Waiting, waited: float, age: float, now: float, chosen: dict[str, int]
) -> list[tuple[str, str]]:
    head = [
        ("bold", f"waiting {explain.span(int(waited))}"),
        ("", f" for '{mask.printable(told.name)}': "),
    ]
    holder = told.holder
    who = f"held, {explain.unnamed(holder)}"
    if holder is not None and holder.owner is not None:
        user, host = bool(chosen.get("user")), bool(chosen.get("host"))
        who = "held by " + explain.by(
            holder, user=user, host=host, command=chosen.get("command", 0)
        )
    if holder is not None and holder.since is not None:
        if chosen.get("instant"):
            who += f", since {explain.since(holder, now)}"
        elif chosen.get("age"):
            who += f", for {explain.span(max(0, int(now - holder.since)))}"
    tail = f"; {told.ahead} ahead of us" if told.ahead else ""
    if holder is None or (holder.owner is None and holder.alive == "unknown"):
        return [*head, ("", who + tail)]
    how = ""
    if chosen.get("evidence"):
        how = ", checked now" if age < 2 else f", checked {explain.span(int(age))} ago"
        how += f" ({mask.printable(holder.evidence)})" if holder.evidence else ""
    return [*head, ("", f"{who}, "), LIFE[holder.alive], ("", how + tail)]
