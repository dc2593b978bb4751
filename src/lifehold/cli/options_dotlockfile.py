"""The options of `lifehold dotlockfile`: those of dotlockfile(1), read as getopt(3) reads them.

Rule: what the original accepts is accepted, with the same meaning, letters in one word included,
and nothing more: options end at the first word that is none, and a second `--` belongs to CMD.
"""

from __future__ import annotations

from .row import Command, Option, Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

TAKES = "ri"
LETTERS = "qpNmluctP" + TAKES
USAGE = 1
FOREVER = 0x7FFFFFF0  # retries: what dotlockfile takes -1 for

DOTLOCKFILE = Command(
    "dotlockfile",
    "lifehold dotlockfile [-l|-u|-t|-c] [OPTION...] FILE|-m [CMD...]",
    "dotlockfile(1) of liblockfile: same options, exit codes, files.",
    """\
  lifehold dotlockfile -l -p -r 3 box.lock && ...     make it, for this script
  lifehold dotlockfile -P -p box.lock backup --all    hold it while CMD runs
  lifehold dotlockfile -u box.lock                    remove it""",
    (
        Option("lock", ("-l",), "make the lock file (default)"),
        Option("unlock", ("-u",), "remove it, whoever made it"),
        Option("touch", ("-t",), "make it young: it counts for 300 s from now on"),
        Option("check", ("-c",), "0 when a valid lock file is there, else 1"),
        Option(
            "pid",
            ("-p",),
            "write and believe process numbers: with CMD our own,\nelse that of our caller",
        ),
        Option("retries", ("-r",), "tries after the first; 5, and -1 for ever", "N"),
        Option("interval", ("-i",), "seconds between tries, instead of 5, 10, ... 60", "SECONDS"),
        Option("mailbox", ("-m",), "the lock of $MAIL, or of our own mailbox"),
        Option("pass", ("-P",), "end with the status of CMD"),
        Option("quiet", ("-q",), "say nothing"),
        Option("nothing", ("-N",), "accepted, and means nothing"),
    ),
    (("file", None), ("cmd", "*")),
    notes="""\
FILE is a path, as with dotlockfile(1), also without a slash. For the other
commands of lifehold it is ./FILE then.

The same file as dotlockfile(1), so that both exclude each other, mail programs
and `lifehold run --kind link`. A file is stale 300 s after its last touch, or
with -p when its process is gone. Ours takes it over in place, so that two who
find it stale do not both win; it does not remove symbolic links; it holds a
lock for CMD by a kernel lock too, and when it is killed by TERM it ends CMD and
removes the lock. Without -i a waiter is woken when the file changes. -p is
refused on network file systems. For new scripts `lifehold run` is better.

Exit codes: 0 done; 1 wrong usage, or the answer no of -c, -t, -u; 2 a temporary
file cannot be made, 3 nor written; 4 held by somebody else; 5 other errors; 7
-p, and our caller is gone; 8 a stale file that cannot be removed. With -P
that of CMD, 128+N for a signal, 127 cannot be run.""",
)


class BadValue(Exception):
    """A value that cannot be; the text for stderr."""


def parsed(words: list[str]) -> tuple[dict[str, Any], list[str]]:
    """The options by their letter, and what follows. Raises Usage, BadValue."""
    given: dict[str, Any] = {}
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        if word == "--":
            break
        letters = word[1:]
        while letters:
            letter, letters = letters[0], letters[1:]
            if letter not in LETTERS:
                raise Usage(f"invalid option -- '{letter}'")
            if letter not in TAKES:
                given[letter] = True
                continue
            if not letters and not rest:
                raise Usage(f"option requires an argument -- '{letter}'")
            text, letters = letters or rest.pop(0), ""
            given[letter] = retries(text) if letter == "r" else interval(text)
    return given, rest


def number(text: str) -> int:
    """As atoi(3) reads it; 0 for none."""
    text = text.lstrip(" \t\n\v\f\r")
    sign = text[:1] in ("+", "-")
    digits = text[sign:]
    length = next((at for at, char in enumerate(digits) if char not in "0123456789"), len(digits))
    found = int(digits[:length] or 0)
    return -found if text[:1] == "-" else found


def retries(text: str) -> int:
    """Tries after the first. Raises BadValue."""
    found = number(text)
    if found <= 0 and found != -1 and text != "0":
        raise BadValue(f"-r takes a number of retries from 0 on, or -1 for ever, not {text!r}")
    return FOREVER if found == -1 else min(found, FOREVER)


def interval(text: str) -> int:
    """Seconds. Raises BadValue."""
    found = number(text)
    if found <= 0 and text != "0":
        raise BadValue(f"-i takes a number of seconds from 0 on, not {text!r}")
    return found
