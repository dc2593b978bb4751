"""The options of `lifehold flock`: those of util-linux flock(1), read as getopt_long(3) reads them.

Rule: what flock(1) accepts is accepted, with the same meaning, short options in one word and long
ones cut short included; what it refuses ends with the same code.
"""

from __future__ import annotations

from .row import Command, Option, Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

DATA, INPUT, UNAVAILABLE, SYSTEM, CREATE = 65, 66, 69, 71, 73  # sysexits.h
CONFLICT = 1
LONG = {
    "shared": "s", "exclusive": "x", "unlock": "u", "nonblocking": "n", "nonblock": "n", "nb": "n",
    "timeout": "w", "wait": "w", "conflict-exit-code": "E", "close": "o", "no-fork": "F",
    "verbose": "verbose", "help": "h", "version": "V", "command": "c",
}  # fmt: skip
SHORT = {"s": "s", "e": "x", "x": "x", "u": "u", "n": "n", "o": "o", "F": "F", "h": "h", "V": "V",
         "w": "w", "E": "E", "c": "c"}  # fmt: skip
TAKES = "wE"

FLOCK = Command(
    "flock", "lifehold flock [OPTION...] FILE|DIRECTORY|NUMBER [CMD...]",
    "flock(1) of util-linux: same options, messages, exit codes.",
    """\
  lifehold flock -n /run/job.lock backup --all         or 1, at once
  lifehold flock -w 30 -E 75 /run/job.lock -c 'a | b'  through the shell
  exec 9>/run/job.lock; lifehold flock 9               an open file of the shell""",
    (
        Option("shared", ("-s", "--shared"), "a shared lock"),
        Option("exclusive", ("-x", "-e", "--exclusive"), "an exclusive lock; what is done anyway"),
        Option("unlock", ("-u", "--unlock"), "let go; rarely needed, as closing the file does it"),
        Option("nonblock", ("-n", "--nb", "--nonblock"), "fail rather than wait"),
        Option("timeout", ("-w", "--wait", "--timeout"), "wait at most so long", "SECONDS"),
        Option("conflict", ("-E", "--conflict-exit-code"),
               "the exit code for -n and -w in vain; 1", "N"),
        Option("close", ("-o", "--close"), "close the file before CMD runs"),
        Option("command", ("-c", "--command"), "run one line through $SHELL", "LINE"),
        Option("no_fork", ("-F", "--no-fork"), "become CMD, without a process in between"),
        Option("verbose", ("--verbose",), "tell how long it took, and who holds it"),
    ),
    notes="""\
The same lock as flock(1) and `lifehold run PATH`, so that they exclude each
other. Nothing is ever written into FILE. On a terminal, and with --verbose, a
wait of more than two seconds says who holds the lock. For new scripts `lifehold
run` is better: it names the holder and never outlives its CMD.

Exit codes: that of CMD, 128+N for a signal; 1 (or -E) held by somebody else; 64
usage, 65 not an open file, 66 FILE cannot be opened, 69 CMD cannot be run, 71
the system refused, 73 FILE cannot be made.""",
)  # fmt: skip


def parsed(words: list[str]) -> tuple[dict[str, Any], list[str]]:
    """The options by their short letter, and what follows. Raises Usage."""
    given: dict[str, Any] = {}
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        if word == "--":
            break
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            letter = _long(name)
            if letter in TAKES:
                given[letter] = value if equals else _next(rest, f"option '--{name}'")
            elif equals:
                raise Usage(f"option '--{name}' doesn't allow an argument")
            else:
                given[letter] = True
        else:
            _short(word[1:], rest, given)
        if "c" in given and len(given) == 1 and not rest:
            break
    return given, rest


def _long(name: str) -> str:
    if name in LONG:
        return LONG[name]
    fitting = {LONG[each] for each in LONG if each.startswith(name)}
    if len(fitting) != 1:
        raise Usage(f"{'ambiguous' if fitting else 'unrecognized'} option '--{name}'")
    return fitting.pop()


def _short(letters: str, rest: list[str], given: dict[str, Any]) -> None:
    while letters:
        letter, letters = letters[0], letters[1:]
        if letter not in SHORT:
            raise Usage(f"invalid option -- '{letter}'")
        meaning = SHORT[letter]
        if meaning in TAKES:
            given[meaning] = letters or _next(rest, f"option -- '{letter}'")
            return
        given[meaning] = True


def _next(rest: list[str], what: str) -> str:
    if not rest:
        raise Usage(f"{what} requires an argument")
    return rest.pop(0)


def timeout(text: str) -> float:
    """Seconds of patience. Raises Usage."""
    try:
        found = float(text)
        if not (found == found and abs(found) != float("inf")):
            raise ValueError
    except ValueError:
        raise Usage(f"invalid timeout value: '{text}'") from None
    return found


def conflict(text: str) -> int:
    """An exit code. Raises Usage."""
    if not (text.lstrip("+").isascii() and text.lstrip("+").isdigit() and int(text) <= 255):
        raise Usage(f"exit code out of range (expected 0 to 255): '{text}'")
    return int(text)
