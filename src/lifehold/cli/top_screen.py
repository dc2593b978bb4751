"""The screen of `lifehold top`: the terminal's other page, drawn by rich, and its keys.

Promise: whoever leaves it finds the terminal as it was, its page, its cursor and its keys. Texts
are drawn as they are: nothing in a name of others is read as a style.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
import termios

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..ops.answer import FREE, HELD, STALE, SUSPECT
from . import top_rows
from .width import columns, cut

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

STYLES = {STALE: "bold red", SUSPECT: "yellow", HELD: "green", FREE: "dim"}
HELP = (
    "q quit  s sort  r reverse  f free locks too  arrows choose",
    "q quit  s sort  r reverse  f free",
    "q s r f",
)
ABOVE, BELOW = 2, top_rows.DETAILS + 2  # lines that are no rows
KEYS_AT_ONCE = 1024


@contextlib.contextmanager
def _at_the_terminal() -> Iterator[None]:
    """Raises TerminalGone where it has hung up."""
    try:
        yield
    except (OSError, termios.error) as error:
        if error.args[0] != errno.EIO:
            raise
        raise top_rows.TerminalGone from error


class Screen:
    """Between `__enter__` and `__exit__` it is ours. `keys`: whether there are any to be read.

    It raises TerminalGone; no KeyboardInterrupt may come within.
    """

    def __init__(self) -> None:
        self._console = Console(highlight=False, markup=False, emoji=False)
        self._live: Live | None = None
        self._before: list[Any] | None = None
        self.keys = os.isatty(0)
        self.page = 1
        self._first = 0  # the row that stands on top

    def __enter__(self) -> Screen:
        try:
            self._take()
        except BaseException:
            self._give_back()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._give_back()

    @_at_the_terminal()
    def _take(self) -> None:
        if self.keys:
            self._before = termios.tcgetattr(0)
            now = termios.tcgetattr(0)
            now[3] &= ~(termios.ICANON | termios.ECHO)  # keys at once and unseen; Ctrl-C as ever
            termios.tcsetattr(0, termios.TCSADRAIN, now)
        self._live = Live(
            console=self._console,
            screen=True,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start()

    @_at_the_terminal()
    def _give_back(self) -> None:
        live, self._live = self._live, None
        try:
            if live is not None:
                live.stop()
        finally:
            if self._before is not None:
                termios.tcsetattr(0, termios.TCSADRAIN, self._before)
                self._before = None

    def pause(self) -> None:
        """Ctrl-Z: be stopped with the terminal in order; go on when we are continued."""
        self._give_back()
        sys.stdout.flush()
        ours = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, ours)
        self._take()

    def read(self) -> bytes:
        """The keys that were pressed; `q` when nobody can press any more."""
        try:
            found = os.read(0, KEYS_AT_ONCE)
        except OSError:
            found = b""
        return found or b"q"

    def show(
        self,
        rows: list[top_rows.LockRow],
        at: int,
        *,
        sort: str,
        notes: list[str],
        now: float,
        host: str,
    ) -> None:
        """Draw the rows around the chosen one, `at`, and what is known of that."""
        size = self._console.size
        wide, high = size.width, size.height
        told = [cut(f"not seen: {each}", wide) for each in notes[: max(0, high - 12)]]
        self.page = max(1, high - ABOVE - BELOW - len(told))
        self._first = min(max(self._first, at - self.page + 1), at)
        self._first = max(0, min(self._first, len(rows) - self.page))
        shown = rows[self._first : self._first + self.page]
        parts: list[Any] = [
            Text(top_rows.summary(host, rows, sort, now, wide), style="bold", no_wrap=True),
            self._table(shown, at - self._first, wide),
        ]
        spare = self.page - len(shown)
        about = top_rows.details(rows[at], wide, spare) if rows else []
        about += [""] * (top_rows.DETAILS - len(about))
        parts += [Text("")] * (spare - (len(about) - top_rows.DETAILS))
        parts += [Text(each, style="yellow", no_wrap=True) for each in told]
        parts.append(Text("-" * wide, style="dim", no_wrap=True))
        parts += [Text(line, no_wrap=True) for line in about]
        help_ = next((each for each in HELP if columns(each) <= wide), "")
        parts.append(Text(help_, style="dim", no_wrap=True, end=""))
        if self._live is not None:
            with _at_the_terminal():
                self._live.update(Group(*parts[: max(1, high + 2)]), refresh=True)

    def _table(self, shown: list[top_rows.LockRow], at: int, wide: int) -> Table:
        room = top_rows.widths(wide)
        table = Table(
            box=None,
            pad_edge=False,
            padding=(0, top_rows.GAP, 0, 0),
            expand=False,
            header_style="dim",
        )
        for name, space in room.items():
            table.add_column(name, width=space, no_wrap=True, overflow="crop")
        for number, row in enumerate(shown):
            told = top_rows.cells(row, room)
            style = STYLES[row.answer.state]
            texts = [Text(told[name], style=style if name == "STATE" else "") for name in room]
            table.add_row(*texts, style="reverse" if number == at else "")
        return table
