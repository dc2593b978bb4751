"""`lifehold choose`: which lock, or none. The tree itself is in choose_tree.py."""

from __future__ import annotations

import os
import sys

from . import exits
from .choose_tree import LATE, LATE_PAGE, QUESTIONS, end_of, is_asked
from .options import Usage, arguments
from .options_choose import CHOOSE, answer_to
from .render import put, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .choose_tree import Question

SCHEMA = "lifehold.choose/1"


def choose(words: list[str]) -> int:
    """The exit code of `lifehold choose WORDS`."""
    given, _ = arguments(CHOOSE, words)
    answers: dict[str, str] = {}
    for question in QUESTIONS:
        if is_asked(question, answers):
            told = given[question.name]
            answers[question.name] = asked(question) if told is None else told
    put(as_json(answers) if given["json"] else in_words(answers))
    return exits.DONE


def asked(question: Question) -> str:
    """The answer of who sits at the terminal. Raises Usage when nobody answers."""
    open_one = Usage(
        f"{question.text} Answer by --{question.name}: {', '.join(question.answers)}\n"
        f"usage: {CHOOSE.usage}"
    )
    if sys.stdin is None or not os.isatty(sys.stdin.fileno()):
        raise open_one
    lines = [f"  {at}  {word:<9}  {text}" for at, (word, text) in enumerate(_rows(question), 1)]
    say("\n".join([question.text, *lines]), prefix="")
    while True:
        os.write(2, b"> ")
        line = sys.stdin.readline()
        if not line:
            raise open_one
        try:
            return answer_to(question)(line)
        except ValueError as error:
            say(str(error), prefix="")


def _rows(question: Question) -> list[tuple[str, str]]:
    return list(question.answers.items())


def in_words(answers: dict[str, str]) -> str:
    """What fits, as one line of code and the page of the documentation that says more."""
    end = end_of(answers)
    lines = [end.what, ""]
    lines += [f"  {name:<8} {text}" for name, text in _lines(answers) if text]
    return "\n".join(lines)


def _lines(answers: dict[str, str]) -> list[tuple[str, str]]:
    end = end_of(answers)
    late = answers.get("late") == "yes"
    return [
        ("python", end.python),
        ("command", end.command),
        ("page", end.page),
        ("late", LATE if late else ""),
        ("", LATE_PAGE if late else ""),
    ]


def as_json(answers: dict[str, str]) -> str:
    """One object."""
    import json

    end = end_of(answers)
    found = {"what": end.what, "python": end.python, "command": end.command, "page": end.page}
    late = LATE_PAGE if answers.get("late") == "yes" else None
    return json.dumps({"schema": SCHEMA, "answers": answers, **found, "late": late}, indent=2)
