"""One look of `lifehold ls`: the locks asked for, in order, and what could not be seen."""

from __future__ import annotations

from ..core.errors import LifeholdError
from ..ops import inventory
from ..ops.answer import FREE, STALE
from ..runtime import clock
from . import exits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..ops.answer import Answer


class Found:
    """One look. `code`: what the command ends with; `unseen`: in words; `looked`: in which folders.

    `missing`: what could not be listed, one text each.
    """

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.code = exits.DONE
        self.unseen: list[str] = []
        self.looked: list[str] = []
        self.missing: list[str] = []


def look(
    given: dict[str, Any], folders: list[str], tell: Callable[[int], None] | None = None
) -> Found:
    """What was asked for, in order. An error of one folder does not hide the others."""
    found = Found()
    if given["host"]:
        view = inventory.of_host(tell)
        found.answers, found.unseen, found.looked = view.answers, view.unseen, view.looked
    elif not folders:
        found.answers = inventory.of_names()
    for folder in folders:
        try:
            found.answers += inventory.of_folder(folder, deep=given["deep"], tell=tell)
        except LifeholdError as error:
            found.missing.append(error.text)
            found.code = max(found.code, exits.code_of(error))
    found.answers = _chosen(found.answers, given)
    found.answers.sort(key=lambda answer: (inventory.ORDER[answer.state], answer.name))
    return found


def nothing(given: dict[str, Any], folders: list[str]) -> str:
    """What is said where there is none."""
    what = "are stale" if given["stale"] else "are held" if given["held"] else ""
    if folders or given["host"]:
        return f"no locks {what} there".replace("  ", " ")
    what = what.removeprefix("are ")
    return f"no {what} locks with a plain name; all of this machine: lifehold ls --host".replace(
        "  ", " "
    )


def _chosen(answers: list[Answer], given: dict[str, Any]) -> list[Answer]:
    """Those that were asked for."""
    older = given["older"]
    if given["held"] or given["stale"] or older is not None:
        answers = [answer for answer in answers if answer.state != FREE]
    if given["stale"]:
        answers = [answer for answer in answers if answer.state == STALE]
    if older is not None:
        before = clock.utc_now() - older
        answers = [answer for answer in answers if _since(answer) <= before]
    return answers


def _since(answer: Answer) -> float:
    """Since when it is held; where that is not known, the begin of the process that holds it."""
    holder = answer.holder
    since = None if holder is None else holder.began if holder.since is None else holder.since
    return clock.utc_now() if since is None else since
