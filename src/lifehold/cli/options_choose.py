"""The row of `lifehold choose`: an option for each question of the tree."""

from __future__ import annotations

from ..core.nearest import did_you_mean
from .choose_tree import QUESTIONS
from .row import Command, Option

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .choose_tree import Question


def answer_to(question: Question) -> Callable[[str], str]:
    """Reads an answer: its word, or its number from 1 on. Raises ValueError."""

    def read(text: str) -> str:
        words = [*question.answers]
        text = text.strip().lower()
        if text.isascii() and text.isdigit() and 0 < int(text) <= len(words):
            return words[int(text) - 1]
        if text not in words:
            end = did_you_mean(text, words)
            raise ValueError(f"answer {' or '.join(words)}, not {text!r}{end}")
        return text

    return read


def _row(question: Question) -> Option:
    words = ", ".join(question.answers)
    return Option(
        question.name,
        (f"--{question.name}",),
        f"{question.text.rstrip('?')}:\n{words}",
        "WORD",
        answer_to(question),
    )


CHOOSE = Command(
    "choose",
    "lifehold choose [--hosts WORD] [--who WORD] [OPTION...]",
    "Five questions, and the lock that fits: one line of code.",
    """\
  lifehold choose                                  it asks
  lifehold choose --hosts one --who processes --how one --late no
  lifehold choose --hosts several --place database --how once --json""",
    (
        *map(_row, QUESTIONS),
        Option("json", ("--json",), "answer in JSON, schema lifehold.choose/1", default=False),
    ),
    (),
    """\
Asks on a terminal what no option has answered, and only what still matters. An
answer is a word or its number. Without a terminal each question needs its
option.

Exit codes: 0; 64 usage, also when a question is left open.""",
)
