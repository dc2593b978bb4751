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
BLANK, LONGEST = " \t\n\v\f\r", 1000  # what strtol(3) reads over; digits


class WrongValue(Usage):
    """A value that cannot be: told without a word about --help, as flock(1) does."""


LONG = {
    "shared": "s",
    "exclusive": "x",
    "unlock": "u",
    "nonblocking": "n",
    "nonblock": "n",
    "nb": "n",
    "timeout": "w",
    "wait": "w",
    "conflict-exit-code": "E",
    "close": "o",
    "no-fork": "F",
    "verbose": "verbose",
    "help": "h",
    "version": "V",
}
SHORT = {
    "s": "s",
    "e": "x",
    "x": "x",
    "u": "u",
    "n": "n",
    "o": "o",
    "F": "F",
    "h": "h",
    "V": "V",
    "w": "w",
    "E": "E",
}
TAKES = "wE"

FLOCK = Command(
    "flock",
    "lifehold flock [OPTION...] FILE|DIRECTORY|NUMBER [CMD...]",
    "flock(1) of util-linux: same options, messages, exit codes.",
    """\
  lifehold flock -n /run/job.lock backup --all         or 1, at once
  lifehold flock -w 30 -E 75 /run/job.lock -c 'a | b'  through the shell
  exec 9>/run/job.lock; lifehold flock 9               an open file of the shell""",
    (
        Option("shared", ("-s", "--shared"), "a shared lock"),
        Option("exclusive", ("-x", "-e", "--exclusive"), "an exclusive lock (default)"),
        Option("unlock", ("-u", "--unlock"), "let go; closing the file does it too"),
        Option("nonblock", ("-n", "--nb", "--nonblock"), "fail rather than wait"),
        Option("timeout", ("-w", "--wait", "--timeout"), "wait at most so long", "SECONDS"),
        Option(
            "conflict",
            ("-E", "--conflict-exit-code"),
            "the exit code for -n and -w in vain; 1",
            "N",
        ),
        Option("close", ("-o", "--close"), "close the file before CMD runs"),
        Option("command", ("-c", "--command"), "run one line through $SHELL", "LINE"),
        Option("no_fork", ("-F", "--no-fork"), "become CMD, without a process in between"),
        Option("verbose", ("--verbose",), "tell how long it took, and who holds it"),
    ),
    (("file", None), ("cmd", "*")),
    notes="""\
FILE is a path, as with flock(1), also without a slash. For `lifehold run` it is
./FILE then.

The same lock as flock(1) and `lifehold run PATH`, so that they exclude each
other. Nothing is ever written into FILE. On a terminal, and with --verbose, a
wait of more than two seconds says who holds the lock. For new scripts `lifehold
run` is better: it names the holder and never outlives its CMD.

Exit codes: that of CMD, 128+N for a signal; 1 (or -E) held by somebody else; 64
usage, 65 not an open file, 66 FILE cannot be opened, 69 CMD cannot be run, 71
the system refused, 73 FILE cannot be made.""",
)


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
                needed = f"option '--{name}' requires an argument"
                given[letter] = value if equals else _next(rest, needed)
            elif equals:
                raise Usage(f"option '--{name}' doesn't allow an argument")
            else:
                given[letter] = True
        else:
            _short(word[1:], rest, given)
    return given, rest


def _long(name: str) -> str:
    if name in LONG:
        return LONG[name]
    fitting = [each for each in LONG if each.startswith(name)]
    if not fitting:
        raise Usage(f"unrecognized option '--{name}'")
    if len({LONG[each] for each in fitting}) > 1:
        shown = " ".join(f"'--{each}'" for each in fitting)
        raise Usage(f"option '--{name}' is ambiguous; possibilities: {shown}")
    return LONG[fitting[0]]


def _short(letters: str, rest: list[str], given: dict[str, Any]) -> None:
    while letters:
        letter, letters = letters[0], letters[1:]
        if letter not in SHORT:
            raise Usage(f"invalid option -- '{letter}'")
        meaning = SHORT[letter]
        if meaning in TAKES:
            given[meaning] = letters or _next(rest, f"option requires an argument -- '{letter}'")
            return
        given[meaning] = True


def _next(rest: list[str], what: str) -> str:
    if not rest:
        raise Usage(what)
    return rest.pop(0)


def timeout(text: str) -> float:
    """Seconds of patience, as strtod(3) reads them. Raises Usage."""
    plain = text.lstrip(BLANK)
    try:
        if "_" in plain or not plain.isascii() or plain != plain.rstrip():
            raise ValueError
        return float.fromhex(plain) if "x" in plain.lower() else float(plain)
    except (ValueError, OverflowError):
        raise WrongValue(f"invalid timeout value: '{text}'") from None


def whole(text: str) -> int | None:
    """A whole number, as strtol(3) reads it; None for anything else."""
    plain = text.lstrip(BLANK)
    digits = plain[plain[:1] in ("+", "-") :]
    if not (digits.isascii() and digits.isdigit() and len(digits) < LONGEST):
        return None
    return int(plain)


def conflict(text: str) -> int:
    """An exit code. Raises Usage."""
    found = whole(text)
    if found is None:
        raise WrongValue(f"invalid exit code: '{text}'")
    if not 0 <= found <= 255:
        raise WrongValue("exit code out of range (expected 0 to 255)")
    return found
