"""`lifehold top`: a live table of locks. Without a terminal it is one table.

Promise: the terminal is left as it was found, however we end: q, Ctrl-C, TERM, Ctrl-Z or an error.
It looks again at a change and each `--delay`, at the pace of ops/changes.py; keys are obeyed
meanwhile. rich draws it; only the live table needs it.
"""

from __future__ import annotations

import os
import shutil
import signal

from ..core.errors import LifeholdError, SystemRefused
from ..core.mask import printable
from ..ops import inventory
from ..ops.changes import Changes, pace
from ..runtime import clock, process
from . import exits, render, top_rows
from .look import in_stores, watched
from .options import SORTS, TOP, arguments
from .render import columns_of, put, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

    from ..ops.answer import LockAnswer
    from ..ops.changes import LookPace

SCHEMA = "lifehold.top/1"
WIDEST = 4096  # columns
MISSING = (
    "the live table needs the package rich: pip install 'lifehold[top]'. Without it: "
    "lifehold top --once"
)
UP, DOWN, PAGE_UP, PAGE_DOWN = "up", "down", "page up", "page down"
SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP, signal.SIGWINCH, signal.SIGCONT)
KEYS = {
    b"\x1b[A": UP,
    b"\x1bOA": UP,
    b"k": UP,
    b"\x1b[B": DOWN,
    b"\x1bOB": DOWN,
    b"j": DOWN,
    b"\x1b[5~": PAGE_UP,
    b"\x1b[6~": PAGE_DOWN,
    b" ": PAGE_DOWN,
}


def top(words: list[str]) -> int:
    """The exit code of `lifehold top WORDS`."""
    given, folders = arguments(TOP, words)
    draws = os.isatty(1) and os.environ.get("TERM", "dumb") not in ("", "dumb", "unknown")
    if given["once"] or given["json"] or not draws:
        return _once(given, folders)
    screen: Any = None
    try:
        from . import top_screen as screen
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "rich":
            raise
        raise SystemRefused(MISSING) from None
    look(folders)  # what is wrong with a folder is told before the screen is taken
    return TopLoop(given, folders, screen.Screen()).run()


def look(folders: list[str]) -> tuple[list[LockAnswer], list[str], list[str]]:
    """The locks, what could not be seen, and in which folders was looked. Raises FolderMissing."""
    if not folders:
        view = inventory.of_host()
        return view.answers, view.unseen, view.looked
    answers: dict[str, LockAnswer] = {}
    for folder in folders:
        for answer in inventory.of_folder(folder, deep=True):
            answers[answer.path] = answer
    return list(answers.values()), [], folders


def _once(given: dict[str, Any], folders: list[str]) -> int:
    answers, unseen, _ = look(folders)
    now = clock.utc_now()
    rows = top_rows.rows_of(answers, now, given["sort"])
    if given["json"]:
        put(render.as_json(SCHEMA, [row.answer for row in rows], now, unseen))
        return exits.DONE
    wide = columns_of(1)[0] if os.isatty(1) else shutil.get_terminal_size((120, 24)).columns
    wide = min(wide, WIDEST)  # $COLUMNS is any number
    put(top_rows.as_text(rows, wide) if rows else "no lock is in use")
    for text in unseen:
        say(f"not seen: {text}")
    return exits.DONE


class TopLoop:
    """The loop: look, draw, wait for a change, a key or a signal."""

    def __init__(self, given: dict[str, Any], folders: list[str], screen: Any) -> None:
        self._folders, self._screen, self._delay = folders, screen, given["delay"]
        self._sort: str = given["sort"]
        self._reverse = self._free = self._stops = False
        self._looks = self._interrupted = False
        self._ends: int | None = None
        self._chosen = ""  # the key of the row that is chosen
        self._rows: list[top_rows.LockRow] = []
        self._answers: list[LockAnswer] = []
        self._notes: list[str] = []

    def run(self) -> int:
        """Until q or a signal."""
        changes = Changes()
        # A KeyboardInterrupt while the screen is taken or given back would leave it half so.
        heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        numbers = (*SIGNALS, signal.SIGINT) if heard else SIGNALS
        old = {number: signal.signal(number, self._struck) for number in numbers}
        wakeup = signal.set_wakeup_fd(changes.wakeup, warn_on_full_buffer=False)
        try:
            with self._screen:
                self._live(changes)
        except top_rows.TerminalGone:
            render.forget_stdout()
            self._ends = exits.SIGNAL + signal.SIGHUP
        finally:
            signal.set_wakeup_fd(wakeup)
            for number, handler in old.items():
                signal.signal(number, handler)
            changes.close()
        if self._interrupted:
            raise KeyboardInterrupt
        return self._ends or exits.DONE

    def _live(self, changes: Changes) -> None:
        keys = [0] if self._screen.keys else []
        when = self._look(changes)
        due = when.latest
        while self._ends is None:
            if clock.now() >= due:
                when = self._look(changes)
                due = when.latest
            self._draw()
            wait = due - clock.now()
            deaf = due == when.soonest or in_stores(self._folders)
            changed, given = changes.wait(wait, keys, deaf=deaf)
            if given:
                self._pressed(self._screen.read())
            if changed:
                due = when.soonest
            if self._stops:
                self._stops = False
                self._screen.pause()
                due = 0.0

    def _struck(self, number: int, _: FrameType | None) -> None:
        if number == signal.SIGTSTP:
            self._stops = True
        elif number == signal.SIGINT:
            self._interrupted, self._ends = True, exits.SIGNAL + number
            if self._looks:  # it may take long
                raise KeyboardInterrupt
        elif number in (signal.SIGTERM, signal.SIGHUP):
            self._ends = exits.SIGNAL + number

    def _look(self, changes: Changes) -> LookPace:
        """See what there is, and when to look again."""
        began = clock.now()
        try:
            self._looks = True
            self._answers, self._notes, looked = look(self._folders)
        except LifeholdError as error:  # a folder has gone: it may come again
            self._answers, self._notes, looked = [], [error.text], self._folders
        finally:
            self._looks = False
        changes.follow(watched(self._folders, looked, self._answers))
        return pace(began, self._delay)

    def _draw(self) -> None:
        now = clock.utc_now()
        self._rows = top_rows.rows_of(
            self._answers, now, self._sort, reverse=self._reverse, free=self._free
        )
        at = next((n for n, row in enumerate(self._rows) if row.key == self._chosen), 0)
        self._chosen = self._rows[at].key if self._rows else ""
        self._screen.show(
            self._rows,
            at,
            sort=self._sort,
            notes=self._notes,
            now=now,
            host=printable(process.host_name() or ""),
        )

    def _pressed(self, data: bytes) -> None:
        while data:
            key = next((each for each in KEYS if data.startswith(each)), data[:1])
            data = data[len(key) :]
            self._obey(KEYS.get(key, key.decode("ascii", "replace")))

    def _obey(self, key: str) -> None:
        at = next((n for n, row in enumerate(self._rows) if row.key == self._chosen), 0)
        steps = {UP: -1, DOWN: 1, PAGE_UP: -self._screen.page, PAGE_DOWN: self._screen.page}
        if key in steps and self._rows:
            at = min(max(0, at + steps[key]), len(self._rows) - 1)
            self._chosen = self._rows[at].key
        elif key in ("q", "Q"):
            self._ends = exits.DONE
        elif key == "s":
            self._sort = SORTS[(SORTS.index(self._sort) + 1) % len(SORTS)]
        elif key == "r":
            self._reverse = not self._reverse
        elif key == "f":
            self._free = not self._free
