"""The man pages, made from the table of options: `python -m lifehold.cli.manual FOLDER`."""

from __future__ import annotations

import os
import sys

from .. import __version__
from .options import COMMANDS, USAGE_OF_ALL, notes_of
from .row import Command, Option

HELP = Option("help", ("-h", "--help"), "show this text")
FILES = """\
A NAME has no slash. It is the file NAME.lock in $LIFEHOLD_DIR, when that is set; else in
/var/lib/lifehold, if you may write there; else in $XDG_STATE_HOME/lifehold, by default
~/.local/state/lifehold. What has a slash is a PATH."""


def escaped(text: str) -> str:
    """`text` as roff shows it, character by character."""
    shown = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    shown = shown.replace("`", "\\(ga").replace("^", "\\(ha").replace("~", "\\(ti")
    return "\n".join(
        "\\&" + line if line[:1] in (".", "\\") else line for line in shown.split("\n")
    )


def page(command: Command) -> str:
    """The page of one command, section 1."""
    name = f"lifehold-{command.name}"
    parts = [
        _head(name), ".SH NAME", f"{escaped(name)} \\- {escaped(_first_small(command.summary))}",
        ".SH SYNOPSIS", f".B {escaped(command.usage)}", ".SH EXAMPLES", _verbatim(command.examples),
        ".SH OPTIONS",
    ]  # fmt: skip
    for option in (*command.options, HELP):
        takes = f" \\fI{escaped(option.takes)}\\fR" if option.takes else ""
        flags = ", ".join(f"\\fB{escaped(flag)}\\fR" for flag in option.flags)
        parts += [".TP", flags + takes, escaped(" ".join(option.help.split()))]
    notes = [part for part in notes_of(command).split("\n\n") if part]
    codes = [part for part in notes if part.startswith("Exit codes:")]
    if words := [escaped(part) for part in notes if part not in codes]:
        parts += [".SH DESCRIPTION", "\n.PP\n".join(words)]
    if codes:
        parts += [".SH EXIT STATUS", escaped(codes[0].removeprefix("Exit codes:").strip())]
    return "\n".join([*parts, ".SH SEE ALSO", _see(command.name)]) + "\n"


def front() -> str:
    """lifehold(1)."""
    parts = [
        _head("lifehold"), ".SH NAME",
        "lifehold \\- locks that live exactly as long as their holder", ".SH SYNOPSIS",
        ".B lifehold\n.I COMMAND\n\\&...", ".SH EXAMPLES",
        _verbatim("\n".join(line for line in USAGE_OF_ALL.splitlines() if line.startswith("  "))),
        ".SH COMMANDS",
    ]  # fmt: skip
    for command in COMMANDS.values():
        parts += [".TP", f"\\fB{escaped(command.name)}\\fR", escaped(command.summary)]
    return "\n".join([*parts, ".SH FILES", escaped(FILES), ".SH SEE ALSO", _see("")]) + "\n"


def _head(name: str) -> str:
    title = escaped(name.upper())
    return f'.TH "{title}" "1" "" "lifehold {escaped(__version__)}" "User Commands"\n.nh\n.ad l'


def _verbatim(text: str) -> str:
    return f".nf\n{escaped(text)}\n.fi"


def _first_small(text: str) -> str:
    return text[:1].lower() + text[1:].rstrip(".")


def _see(name: str) -> str:
    others = ["lifehold"] if name else []
    others += [f"lifehold-{each}" for each in COMMANDS if each != name]
    return ",\n".join(f".BR {escaped(each)} (1)" for each in others).replace("(1),", "(1) ,")


def main(folder: str) -> None:
    """Write one page per command, and lifehold.1."""
    os.makedirs(folder, exist_ok=True)
    pages = {"lifehold": front()} | {f"lifehold-{n}": page(c) for n, c in COMMANDS.items()}
    for name, text in pages.items():
        with open(os.path.join(folder, f"{name}.1"), "w", encoding="utf-8") as file:
            file.write(text)


if __name__ == "__main__":
    main(sys.argv[1])
