"""The command's front door: which command, and what its end means.

Promise: every error of lifehold becomes one clear text on stderr and the exit code of
cli/exits.py. An error that nobody expected keeps its traceback and ends with 70, never with a code
that has a meaning.
"""

from __future__ import annotations

import os
import sys

from ..core.errors import LifeholdError
from ..core.mask import masked_urls, printable
from ..runtime import fork
from . import exits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

    from . import render
else:
    render = fork.later("lifehold.cli.render", globals())

NAMED = ("flock", "dotlockfile")
# The module of a command that has none of its own name.
ROOMS = {"ls": "look", "touch": "check", "who": "look"}


def main(given: Sequence[str] | None = None) -> int:
    """Run the command line `given`, by default that of the process; the answer is the exit code."""
    words = list(sys.argv[1:] if given is None else given)
    called = os.path.basename(sys.argv[0]) if given is None and sys.argv else ""
    if called in NAMED:  # by a link of that name
        words.insert(0, called)
    if given is None:  # what the record shows as our command: as typed, without the interpreter
        sys.orig_argv[:] = ["lifehold", *words]
    _open_standard_streams()
    leaving = given is None and words[:1] in (["run"], ["once"], ["dotlockfile"])
    interrupted = False
    try:
        if given is None:
            _hear_interrupts()
        code = _command(words)
    except BaseException as error:  # noqa: BLE001  each gets its exit code, none is hidden
        interrupted = given is None and isinstance(error, KeyboardInterrupt)
        code = exits.code_of(error) if leaving and interrupted else _ended(error, words)
    if leaving or interrupted:
        _leave(code, interrupted=interrupted)
    if given is None:
        _end_by_interrupts()
    return code


def _hear_interrupts() -> None:
    """Ctrl-C raises KeyboardInterrupt again, which until now ended us at once (__main__.py)."""
    signal = fork.lazily("_signal")
    if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end_by_interrupts() -> None:
    """From here on Ctrl-C ends us by the signal: an interpreter that ends has no place to raise."""
    signal = fork.lazily("_signal")
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _leave(code: int, *, interrupted: bool) -> NoReturn:
    """End at once: taking the interpreter down costs a fifth of its start.

    After Ctrl-C by the signal itself, whatever the command. A shell sees the same 130, and ends the
    loop or the script that we stand in, which it does not when we merely exit with 130.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            continue  # closed, or not there at all
    if interrupted and hasattr(os, "posix_spawnp"):
        from . import signals

        signals.end_by_interrupt()
    os._exit(code)


def _command(words: list[str]) -> int:
    name = words[0] if words else "--help"
    if name == "run":
        from .run import run

        return run(words[1:])
    from . import options

    if name in options.COMMANDS:
        from importlib import import_module

        room = import_module(f"lifehold.cli.{ROOMS.get(name, name)}")
        command: int = getattr(room, name)(words[1:])
        return command
    if name == "help" and words[1:]:
        return _command([words[1], "--help"])
    if name in ("-h", "--help", "help"):
        render.show_help(options.help_of_all())
        return exits.DONE if words else exits.USAGE
    if name in ("-V", "--version", "version"):
        if words[1:]:
            raise options.Usage(f"{name} takes nothing behind it, and there is {words[1]!r}")
        from .. import __version__

        render.put(f"lifehold {__version__}")
        return exits.DONE
    from . import mistaken

    raise options.Usage(mistaken.command(printable(name), options.COMMANDS))


def _ended(error: BaseException, words: list[str]) -> int:
    """What an error means to the caller, who typed `words`."""
    if isinstance(error, SystemExit):
        raise error
    if type(error).__name__ == "HelpAsked":
        return _shown(str(error))
    if isinstance(error, BrokenPipeError):
        render.forget_stdout()
    elif isinstance(error, LifeholdError):
        render.say(masked_urls(_as_typed(error.text, words)))  # L11  it may quote what was typed
    elif isinstance(error, OSError):
        render.say(exits.text_of(error))
    elif isinstance(error, KeyboardInterrupt):
        if os.isatty(2):
            render.say("", prefix="")  # after the terminal's ^C
    else:
        sys.excepthook(type(error), error, error.__traceback__)
    return exits.code_of(error)


def _as_typed(text: str, words: list[str]) -> str:
    """The words of the library as those of the command where one takes the same arguments."""
    if words[:1] not in (["run"], ["once"], ["simulate"]) or "=" not in text:
        return text
    from . import mistaken, options

    return mistaken.in_options(text, options.COMMANDS[words[0]])


def _shown(text: str) -> int:
    try:
        render.show_help(text)
    except BrokenPipeError:
        render.forget_stdout()
    except LifeholdError as error:  # a full disk
        render.say(error.text)
        return exits.code_of(error)
    return exits.DONE


def _open_standard_streams() -> None:
    """A lock file must not become number 0, 1 or 2, or CMD would read from it or write into it.

    The fillers are closed by exec: CMD finds the streams that it was given, and those that it was
    not.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            try:
                os.open(os.devnull, os.O_RDWR)
            except OSError:  # a chroot without it
                os.open("/", os.O_RDONLY)
