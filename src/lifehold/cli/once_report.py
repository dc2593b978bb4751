"""What became of a `lifehold once`, for people and programs: words on stderr, one line of JSON.

Promise: who gets what another run made is told so, with whose and how old it is: nothing is dropped
in silence. With --json our last words are the one line (schema lifehold.once/1,
docs/reference/once.schema.json). The history of the lock is written by cli/report.py.
"""

from __future__ import annotations

import json

from ..core import explain
from ..core.mask import printable
from ..runtime import clock
from .render import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..recipes.once_results import Result

SCHEMA = "lifehold.once/1"
RAN, REPLAYED, UNNEEDED, HELD = "ran", "replayed", "unneeded", "held"
BY = ("pid", "host", "user")
LOST, ENDED, FORGOTTEN, ERROR = "lost", "ended", "forgotten", "error"


class OnceReport:
    """The account of one call. `waited`: seconds until CMD ran or it was clear that it does not."""

    def __init__(self, name: str, path: str, given: dict[str, Any]) -> None:
        self.name, self.path, self.given = name, path, given
        self._asked_at = clock.now()
        self.waited: float | None = None
        self.anew = f"lifehold once --forget {explain.quote(name)}"  # how to have it run again

    def stop_waiting(self) -> None:
        """The wait is over."""
        self.waited = clock.now() - self._asked_at

    def verbose(self, text: str) -> None:
        """A line for who asked to hear more."""
        if self.given["verbose"]:
            say(text)

    def replaying(self, result: Result) -> None:
        """Whose output follows, and how to have it made anew."""
        self.stop_waiting()
        age, code = result.age(), result.facts["code"]
        ago = f", {explain.span(age)} ago" if age < float("inf") else ""
        say(
            f"'{printable(self.name)}' is not run again: what {result.by()} got follows "
            f"(status {code}{ago}); to have it run anew: {self.anew}"
        )

    def end(
        self, outcome: str, code: int, *, facts: dict[str, Any] | None = None,
        number: int | None = None, text: str = "",
    ) -> int:  # fmt: skip
        """The one line, if it was asked for; the exit code."""
        if self.waited is None:
            self.stop_waiting()
        if self.given["json"]:
            told = facts or {}
            line = {
                "schema": SCHEMA,
                "outcome": outcome,
                "code": code,
                "name": self.name,
                "path": self.path,
                "waited": round(self.waited or 0.0, 6),
                "number": number,
                "token": told.get("token"),
                "bytes": told.get("size"),
                "made_at": told.get("at"),
                "made_by": {key: told.get(key) for key in ("pid", "host", "user")}
                if told
                else None,
                "text": text or None,
            }
            say(json.dumps(line), prefix="")
        return code
