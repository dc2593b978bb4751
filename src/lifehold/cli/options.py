"""The options of every command, in one table: for a quick reader, argparse, and the help text.

Promise: options end at the first word that is none, so all that follows NAME belongs to CMD.
`argparse` is the authority: it refuses, completes, explains. But importing it takes 0.7 of a bare
Python's start, so `quick` (cli/options_run.py) reads the well-formed usual lines of `run` by
itself, and passes on whatever it is not sure of. A test holds both to the same answers.
"""

from __future__ import annotations

from . import target
from .options_audit import AUDIT
from .options_dotlockfile import DOTLOCKFILE
from .options_flock import FLOCK
from .options_look import CHECK, COMPLETION, LOG, LS, TOUCH, WAIT, WHO
from .options_once import ONCE
from .options_ops import CLEAR, DOCTOR, TOP, WATCH
from .options_run import RUN, parted, quick
from .options_simulate import SIMULATE
from .options_store import STORE_COMMAND
from .row import Command, HelpAsked, Option, Usage, duration, in_store, status

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

__all__ = [
    "CHECK", "CLEAR", "COMMANDS", "COMPLETION", "DOCTOR", "LOG", "LS", "ONCE", "RUN",
    "STORE_COMMAND", "TOP", "TOUCH", "WAIT", "WATCH", "WHO",
    "Command", "HelpAsked", "Option", "Usage", "arguments", "duration", "quick", "status",
    "thorough",
]  # fmt: skip

DEMO = Command(
    "demo", "lifehold demo [--fast]",
    "A story of fifteen seconds: real processes, in a temporary folder.",
    """\
  lifehold demo               a holder, a waiter, kill -9, a late writer refused
  lifehold demo --fast        the same without the pauses
  NO_COLOR=1 lifehold demo    without colours""",
    (Option("fast", ("--fast",), "do not pause for the reader", default=False),),
)  # fmt: skip

COMMANDS = {
    command.name: command
    for command in (
        RUN, ONCE, WHO, LS, WAIT, LOG, CLEAR, DOCTOR, WATCH, TOP, CHECK, TOUCH, STORE_COMMAND,
        FLOCK, DOTLOCKFILE, SIMULATE, AUDIT, DEMO, COMPLETION,
    )
}  # fmt: skip
OF_CMD = ("run", "once")  # whose operands end with the words of another command
WIDEST = max(map(len, COMMANDS))

USAGE_OF_ALL = """\
usage: lifehold COMMAND ...

Locks that live exactly as long as their holder, and that always tell you who
that is.

  lifehold run nightly-report -- python report.py    never twice at once
  lifehold who nightly-report                        who holds it, is it alive
  lifehold demo                                      see it work, in 15 seconds

commands (lifehold COMMAND --help tells more):
"""


def arguments(command: Command, words: list[str]) -> tuple[dict[str, Any], list[str]]:
    """Options by name, and the operands. Raises Usage or HelpAsked."""
    return (command.name in OF_CMD and quick(command, words)) or thorough(command, words)


def thorough(command: Command, words: list[str]) -> tuple[dict[str, Any], list[str]]:
    """The same by argparse."""
    import argparse

    class Parser(argparse.ArgumentParser):
        def error(self, message: str) -> NoReturn:
            if "required" in message and (wrong := unknown(command, words)):
                message = f"unrecognized arguments: {wrong}"  # the cause; NAME is missing after it
            raise Usage(f"{message}\nusage: {command.usage}")

        def print_help(self, file: object = None) -> None:
            raise HelpAsked(help_of(command))

    def typed(read: Callable[[str], Any]) -> Callable[[str], Any]:
        def value(text: str) -> Any:
            try:
                return read(text)
            except ValueError as error:  # argparse shows the text of this class only
                raise argparse.ArgumentTypeError(str(error)) from None

        return value

    parser = Parser(prog=f"lifehold {command.name}", allow_abbrev=False)
    for option in command.options:
        how: dict[str, Any] = (
            {"type": typed(option.read), "action": "append" if option.many else "store"}
            if option.takes else {"action": "store_const", "const": option.store}
        )  # fmt: skip
        parser.add_argument(*option.flags, dest=option.name, **how)
    parser.set_defaults(**{option.name: option.default for option in command.options})
    if command.name in OF_CMD:  # CMD's words, `--` among them, are none of argparse's
        words, rest = parted(words, command)
        return vars(parser.parse_args(words)), rest
    named = any(word.partition("=")[0] == "--name" for word in words)
    for name, count in command.operands:
        fewer = "*" if count == "+" else count or "?"
        parser.add_argument(name, nargs=fewer if named else count, metavar=name.upper())
    mixed = len(command.operands) > 1  # an option may stand between two of them
    given = vars(parser.parse_intermixed_args(words) if mixed else parser.parse_args(words))
    rest = [*(given.pop("called", None) or ())]
    for name, _ in command.operands:
        found = given.pop(name)
        rest += found if isinstance(found, list) else [found] if found is not None else []
    return given, _meant(command, rest, given)


def _meant(command: Command, rest: list[str], given: dict[str, Any]) -> list[str]:
    """The operands by the one rule of NAME and PATH (target.py). Raises Usage."""
    if len(rest) > 1 and command.operands[0][1] in (None, "?") and command is not STORE_COMMAND:
        raise Usage(f"one lock is asked for, and {len(rest)} are named\nusage: {command.usage}")
    store = given.get("store")
    if store is not None:
        rest = [in_store(store, name) for name in rest]
        if command in (LS, TOP):
            rest = rest or [store]
    kind = command.operands[0][0] if command.operands else ""
    if kind in ("name", "path"):
        return [target.lock(word) for word in rest]
    if kind == "dir":
        return [target.folder(word, command.name) for word in rest]
    return [target.path(word) if "://" in word else word for word in rest]


def unknown(command: Command, words: list[str]) -> str | None:
    """The first word that looks like an option and is none."""
    flags = {flag for option in command.options for flag in option.flags}
    for word in words:
        if word == "--":
            return None
        flag = word.partition("=")[0] if word[:2] == "--" else word[:2]
        if len(word) > 1 and word[0] == "-" and flag not in flags:
            return word
    return None


def help_of(command: Command) -> str:
    """Three examples first, then what they mean."""
    rows = [
        ["  " + ", ".join(option.flags) + (f" {option.takes}" if option.takes else ""), option.help]
        for option in (*command.options, Option("help", ("-h", "--help"), "show this text"))
    ]
    width = max(len(row[0]) for row in rows) + 2
    margin = "\n" + " " * width
    options = "\n".join(f"{flags:<{width}}{text.replace(chr(10), margin)}" for flags, text in rows)
    notes = notes_of(command)
    notes = f"\n\n{notes}" if notes else ""
    parts = [f"usage: {command.usage}", command.summary, command.examples, f"options:\n{options}"]
    return "\n\n".join(parts) + notes


def notes_of(command: Command) -> str:
    """What stands behind the options; with the rule of NAME and PATH where the command has them."""
    if not command.operands or command.operands[0][0] not in ("name", "path"):
        return command.notes
    notes, codes, rest = command.notes.partition("Exit codes:")
    return f"{notes}{target.RULE}\n\n{codes}{rest}"


def help_of_all() -> str:
    """The first page."""
    return USAGE_OF_ALL + "\n".join(
        f"  {command.name:<{WIDEST}} {command.summary}" for command in COMMANDS.values()
    )
