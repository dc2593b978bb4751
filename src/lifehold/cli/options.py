"""The options of every command, in one table: for a quick reader, argparse, and the help text.

Promise: options end at the first word that is none, so all that follows NAME belongs to CMD.
`argparse` is the authority: it refuses, completes, explains. But importing it takes 0.7 of a bare
Python's start, so `quick` (cli/options_run.py) reads the well-formed usual lines of `run` by
itself, and passes on whatever it is not sure of. A test holds both to the same answers.
"""

from __future__ import annotations

from ..core.nearest import did_you_mean
from . import mistaken, target
from .options_audit import AUDIT
from .options_choose import CHOOSE
from .options_dotlockfile import DOTLOCKFILE
from .options_flock import FLOCK
from .options_once import ONCE
from .options_run import RUN, parted, quick
from .options_simulate import SIMULATE
from .row import STORE, Command, HelpAsked, Option, Usage, duration, in_store, status

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from typing import Any, NoReturn


# ------------------------------------------------------------------------------------------------
# The rows of the commands that look at locks: who, ls, wait, log, check, touch, completion.


JSON = "answer in JSON, schema lifehold."


def count(text: str) -> int:
    """A number of lines."""
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 1 << 31):
        raise ValueError(f"a number of lines is 1 or more, not {text!r}")
    return int(text)


def number(text: str) -> int:
    """A fencing token."""
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"a token is a number, as in $LIFEHOLD_TOKEN, not {text!r}")
    return int(text)


WHO = Command(
    "who", "lifehold who [--json] NAME|PATH...",
    "Say who holds a lock, since when, is it alive; or who did last.",
    """\
  lifehold who nightly-report                one lock, in words
  lifehold who nightly-report ./db.lock      several, as a table
  lifehold who --json nightly-report         for programs""",
    (target.NAMED, STORE,
        Option("json", ("--json",), f"{JSON}who/1", default=False),),
    (("name", "+"),),
    """\
Works on the locks of lifehold, flock(1) and everything else that uses flock(2),
fcntl(2) or OFD locks, and on pid files. Names the child that holds on when the
process that took the lock is gone, who waits, and who still holds a file that
was removed. Takes no lock itself.

Exit codes: 0 held, 1 free, 3 suspect or stale (it cannot be proven that the
holder lives), 64 usage, 65 corrupt record, 66 no such folder, 71 the system
refused. Of several locks: an error first, then 3, then 0, and 1 when all are
free.""",
)  # fmt: skip

LS = Command(
    "ls", "lifehold ls [-R|--host] [--stale] [--older TIME] [--watch] [DIR...]",
    "List the locks of a folder, by default those with plain names.",
    """\
  lifehold ls                    all plain names, those that are held first
  lifehold ls --host --held      whatever is locked on this machine, by any tool
  lifehold ls -R --stale /srv    what is left of the dead, in the whole tree
  lifehold ls --held --older 1h  what is held for more than an hour""",
    (
        Option("host", ("--host",), "every lock of this machine: all that the kernel shows, and\n"
               "the lock files in the usual places", default=False),
        Option("deep", ("-R", "--recursive"), "look into the folders below each DIR too",
               default=False),
        Option("held", ("--held",), "leave out what is free", default=False),
        Option("stale", ("--stale",), "only what is stale: its holder is proven gone",
               default=False),
        Option("older", ("--older",), "only what is held for longer: 30s, 5m, 1h, 2d", "TIME",
               duration),
        Option("watch", ("--watch",), "go on: show the list anew when it changes; into a file or\n"
               "a pipe one line for each change", default=False),
        Option("names", ("--names",), "the names only, as other commands take them",
               default=False),
        STORE,
        Option("json", ("--json",), f"{JSON}ls/1", default=False),
    ),
    (("dir", "*"),),
    """\
Of a DIR it shows the files with a record of lifehold, those of any other tool
on which the kernel shows a lock, and the lock files, links and folders that
`lifehold who` knows. Stale ones come first. Without -R folders in it are not
entered; links and other file systems never are. What --host could not see, it
says; so do --stale, --held, --older and --names of folders not read.

Exit codes: 0, also when there is none; 64 usage, 66 no such folder, 71 the
system refused.""",
)  # fmt: skip

WAIT = Command(
    "wait", "lifehold wait [-w TIME] [--json] NAME|PATH",
    "Wait until nobody holds a lock; hold nothing then.",
    """\
  lifehold wait nightly-report              until it is free
  lifehold wait -w 5m ./db.lock || exit     at most five minutes
  lifehold wait /var/run/crond.pid          until that process has ended""",
    (
        Option("wait", ("-w", "--wait"), "wait at most so long: seconds, 30s, 5m, 1h, 2d",
               "TIME", duration),
        target.NAMED, STORE,
        Option("json", ("--json",), f"{JSON}wait/1", default=False),
    ),
    (("name", None),),
    """\
To know that it was free is not to have it: somebody may take it at once. Use
`lifehold run` for work that must not overlap.

Stands in the kernel's queue, and lets go at once when it gets the lock: for
some microseconds, in which a try without patience (-n) can be turned away.

Exit codes: 0 it is free, 75 still held, 64 usage, 66 no such folder, 71 the
system refused.""",
)  # fmt: skip

LOG = Command(
    "log", "lifehold log [-l N] [--event EVENT] [--json] [NAME|PATH]",
    "Show the runs of a lock; without NAME, what `clear` removed.",
    """\
  lifehold log nightly-report                  all that is kept, oldest first
  lifehold log --event skip nightly-report     when was it skipped, and for whom
  lifehold log                                 which stale locks were removed""",
    (
        Option("last", ("-l", "--last"), "only the last N lines", "N", count),
        Option("event", ("--event",), "only these: hold, skip, timeout, loss, takeover;\n"
               "of `clear`: clear, kept", "EVENT"),
        target.NAMED, STORE,
        Option("json", ("--json",), f"{JSON}log/1", default=False),
    ),
    (("name", "?"),),
    """\
The history lies beside the lock and is bounded: old lines go.

Exit codes: 0, also when there is none; 64 usage, 66 no such folder, 71 the
system refused.""",
)  # fmt: skip

CHECK = Command(
    "check", "lifehold check [--token N] [--json] [NAME|PATH]",
    "Say whether the `lifehold run` around us still holds its lock.",
    """\
  lifehold check || exit 74                        the innermost lock around us
  lifehold check nightly-report                    this one
  lifehold check --token "$TOKEN" nightly-report   is N the token of its holder?""",
    (
        Option("token", ("--token",), "valid only if the holder's fencing token is N", "N", number),
        target.NAMED, STORE,
        Option("json", ("--json",), f"{JSON}check/1", default=False),
    ),
    (("name", "?"),),
    """\
Silent when it is valid. Between a check and a write only the token protects.

Exit codes: 0 held by us (with --token: held under that token), 1 not; 64 usage,
71 the system refused.""",
)  # fmt: skip

TOUCH = Command(
    "touch", "lifehold touch [--json] [NAME|PATH]",
    "Go on only while the lock around us is ours: else end with 74.",
    """\
  lifehold touch || exit           the innermost lock around us
  lifehold touch nightly-report    this one
  lifehold touch --json            for programs""",
    (target.NAMED, STORE, Option("json", ("--json",), f"{JSON}check/1", default=False),),
    (("name", "?"),),
    """\
A kernel lock does not run out, and a lease is renewed by the `lifehold run`
around us: there is nothing to prolong.

Exit codes: 0 it is ours, 74 it is not, 64 usage, 71 the system refused.""",
)  # fmt: skip

COMPLETION = Command(
    "completion", "lifehold completion bash|zsh|fish",
    "Print the completion of commands and lock names for a shell.",
    """\
  eval "$(lifehold completion bash)"                 in ~/.bashrc
  lifehold completion zsh > ~/.zfunc/_lifehold       a folder of $fpath
  lifehold completion fish > ~/.config/fish/completions/lifehold.fish""",
    (),
    (("shell", None),),
)  # fmt: skip


# ------------------------------------------------------------------------------------------------
# The rows of the commands that keep a place in order: clear, doctor, watch, top.


CLEAR = Command(
    "clear", "lifehold clear [-n] [-R|--boot] [--force WORD] [--json] PATH|DIR...",
    "Remove stale locks: only on proof, only what is safe to remove.",
    """\
  lifehold clear --dry-run -R /srv/app    what would be removed, and why
  lifehold clear /srv/app/server.pid      if its process is proven gone
  lifehold clear --boot /srv/app          at boot, by the unit that is shipped
  lifehold log                            what was removed, by whom, and why""",
    (
        Option("dry_run", ("-n", "--dry-run"), "remove nothing, say what would be", default=False),
        Option("deep", ("-R", "--recursive"), "look into the folders below each DIR too",
               default=False),
        Option("boot", ("--boot",), "only what an earlier boot has left, in whole trees; without\n"
               "a DIR in the folder of plain names", default=False),
        Option("force", ("--force",), "remove a lock without proof: WORD is that of this very lock,"
               "\nas `clear PATH` tells it. Never the file of a kernel lock", "WORD"),
        target.NAMED,
        STORE,
        Option("json", ("--json",), "answer in JSON, schema lifehold.clear/1", default=False),
    ),
    (("path", "*"),),
    """\
A lock is removed when its holder is proven gone, as the one that was judged,
in one step: a lock that another process takes meanwhile stays. The file of a
kernel lock is never removed, since two files of one name are two locks. No age
proves anything. Each removal is noted before it is done.

Exit codes: 0 nothing stale or suspect is left, 1 something is, with --force
also when it is held; 64 usage, 66 no such folder, 71 the system refused.""",
)  # fmt: skip

DOCTOR = Command(
    "doctor", "lifehold doctor [--peer ssh:HOST] [--json] DIR|URL",
    "Try out whether locks in a folder exclude; which kind to use.",
    """\
  lifehold doctor /srv/app                     what is safe there, and why
  lifehold doctor --peer ssh:web-2 /mnt/nfs    the other half on a second host
  lifehold doctor --json . || exit             in a deployment
  lifehold doctor redis://db-1/0               what leases stand on in a Redis""",
    (
        Option("peer", ("--peer",), "ask a second host that has the same folder, by ssh; it needs"
               "\nPython 3 and no lifehold", "ssh:HOST"),
        Option("json", ("--json",), "answer in JSON, schema lifehold.doctor/1, of a URL\n"
               "lifehold.doctor-store/1", default=False),
    ),
    (("dir", None),),
    """\
Real tries by two processes, in a folder of its own that is removed again:
flock, fcntl and OFD locks, O_EXCL, link, rename, mkdir, the clock of the file
server, inotify; and a look at rights, umask, room and mount options.
Of a Redis, its sentinels or its cluster nothing is written: memory policy,
persistence, replicas, clock, rights and scripts are looked at.

Exit codes: 0 safe, 3 unproven, 78 unsafe; 64 usage, 66 no such folder, 69 the
server was not reached, 71 the system refused.""",
)  # fmt: skip

WATCH = Command(
    "watch", "lifehold watch [--check | --once] CONFIG",
    "Watch folders: tell what is stale, held too long, skipped.",
    """\
  lifehold watch /etc/lifehold/watch.toml            until it is stopped
  lifehold watch --check /etc/lifehold/watch.toml    is the configuration right?
  lifehold watch --once /etc/lifehold/watch.toml     one round, for cron""",
    (
        Option("check", ("--check",), "read the configuration and end", default=False),
        Option("once", ("--once",), "one round; ends with 1 when something is wrong",
               default=False),
    ),
    (("config", None),),
    """\
CONFIG is a TOML file; of its keys folders is needed:

  folders = ["/run/lock"]       absolute paths, with all below them
  every = "60s"                 from the end of a round to the next
  stale = "alert"               or "clear" (on proof), "ignore"
  suspect = "ignore"            or "alert": what cannot be proven
  held = "6h"                   alert when a lock is held for longer
  skips = 3                     alert when so many runs were skipped; 0: never
  silent = "26h"                alert when a lock has not run for so long
  again = "1d"                  tell what is still wrong once more
  log = "/var/log/alerts"       each alert as a line of JSON
  command = ["mail", "root"]    gets the JSON on stdin
  webhook = "https://..."       gets the JSON by POST
  listen = "127.0.0.1:9467"     /metrics and /healthz
  textfile = "/var/lib/x.prom"  for node-exporter, after each round

Each alert is told on stderr too. HUP reads CONFIG again.

Exit codes: 0 stopped, 1 something is wrong (--once), 75 it runs already; 64
usage and configuration, 71 the system refused.""",
)  # fmt: skip

SORTS = ("state", "time", "waiters", "name")


def every(text: str) -> float:
    """A length of time between two looks."""
    found = duration(text)
    if not 0.2 <= found <= 3600:
        raise ValueError(f"between two looks lie 0.2 s to 1 h, not {text!r}")
    return found


def sort(text: str) -> str:
    """By which column."""
    if text not in SORTS:
        end = did_you_mean(text, SORTS)
        raise ValueError(f"sort by {', '.join(SORTS)}, not by {text!r}{end}")
    return text


TOP = Command(
    "top", "lifehold top [-d TIME] [--sort KEY] [--once] [--json] [DIR...]",
    "Show a live table of locks: who holds them, how long, who waits.",
    """\
  lifehold top                    every lock of this machine that is in use
  lifehold top /srv/app           those in a folder and below it
  lifehold top --once --sort time the table once: longest held first""",
    (
        Option("delay", ("-d", "--delay"), "look again at least so often, by default 2s", "TIME",
               every, default=2.0),
        Option("sort", ("--sort",), f"by {', '.join(SORTS[:-1])} or {SORTS[-1]}", "KEY", sort,
               default=SORTS[0]),
        Option("once", ("--once",), "one table, then end; the default without a terminal",
               default=False),
        STORE,
        Option("json", ("--json",), "the same in JSON, schema lifehold.top/1", default=False),
    ),
    (("dir", "*"),),
    """\
Keys: q ends it; s sorts by the next column, r the other way round; f shows free
locks too; arrows, j and k choose a lock, whose evidence and remedy stand below.
The live table needs the package rich: pip install 'lifehold[top]'.

Exit codes: 0; 64 usage, 66 no such folder, 71 the system refused, or rich is
missing.""",
)  # fmt: skip


# ------------------------------------------------------------------------------------------------
# The rows of the command that keeps a store in order.


STORE_COMMAND = Command(
    "store", "lifehold store migrate|check|prune [OPTION]... [URL]",
    "Make, check and prune the tables of a store of leases.",
    """\
  lifehold store check postgresql://app@db/shop    what works there, what lacks
  lifehold store migrate --grant app postgresql://owner@db/shop
  lifehold store migrate --sql --grant app | less  the same as SQL, to review
  lifehold store prune --older-than 30d sqlite:////var/lib/locks.db""",
    (
        Option("sql", ("--sql",), "migrate: print the SQL and ask no server; without URL\n"
               "that of PostgreSQL", default=False),
        Option("grant", ("--grant",), "migrate: give the role ROLE what it needs, and no more",
               "ROLE"),
        Option("older_than", ("--older-than",), "prune: forget names that nobody has used for so\n"
               "long: seconds, or 30m, 12h, 90d", "TIME", duration),
        Option("json", ("--json",), "answer in JSON, schema lifehold.store-migrate/1,\n"
               "lifehold.store-check/1 or lifehold.store-prune/1", default=False),
    ),
    (("act", None), ("url", "?")),
    """\
migrate makes tables and functions, or brings them up to this version, in one
transaction; it may be run again, and beside those who hold leases. check
changes nothing: it takes, renews, breaks and releases a lease in a transaction
that is rolled back, and looks at rights, versions, pooler, standbys and clock.
prune leaves alone what is held, waited for, or has a token above the clock.

Exit codes: 0 done, or leases can be kept there; 1 they cannot as it is; 64
usage, 69 the store was not reached, or refused; of a file also 65, 71 and 78.""",
)  # fmt: skip


__all__ = [
    "CHECK", "CLEAR", "COMMANDS", "COMPLETION", "DOCTOR", "LOG", "LS", "ONCE", "RUN",
    "STORE_COMMAND", "TOP", "TOUCH", "WAIT", "WATCH", "WHO",
    "Command", "HelpAsked", "Option", "Usage", "arguments", "duration", "quick", "status",
    "thorough",
]  # fmt: skip

DEMO = Command(
    "demo", "lifehold demo [--fast]",
    "A story of 15 seconds: real processes, in a temporary folder.",
    """\
  lifehold demo               a holder, a waiter, kill -9, a late writer refused
  lifehold demo --fast        the same without the pauses
  NO_COLOR=1 lifehold demo    without colours""",
    (Option("fast", ("--fast",), "do not pause for the reader", default=False),),
)  # fmt: skip

GROUPS = {
    "take a lock, or wait for it": (RUN, ONCE, WAIT, CHECK, TOUCH, FLOCK, DOTLOCKFILE),
    "look at locks": (WHO, LS, TOP, LOG),
    "clean up, keep watch": (CLEAR, WATCH, DOCTOR, STORE_COMMAND),
    "learn and prepare": (CHOOSE, DEMO, SIMULATE, AUDIT, COMPLETION),
}
COMMANDS = {command.name: command for group in GROUPS.values() for command in group}
OF_CMD = ("run", "once")  # whose operands end with the words of another command
WIDEST = max(map(len, COMMANDS))

USAGE_OF_ALL = """\
usage: lifehold COMMAND ...

Locks that live exactly as long as their holder, and that always tell you who
that is.

  lifehold run nightly-report -- python run.py    never twice at once
  lifehold who nightly-report                     who holds it, is it alive
  lifehold demo                                   see it work, in 15 seconds
  lifehold help run                               all about one command
"""


def arguments(command: Command, words: list[str]) -> tuple[dict[str, Any], list[str]]:
    """Options by name, and the operands. Raises Usage or HelpAsked."""
    return (command.name in OF_CMD and quick(command, words)) or thorough(command, words)


def thorough(command: Command, words: list[str]) -> tuple[dict[str, Any], list[str]]:
    """The same by argparse."""
    import argparse

    class Parser(argparse.ArgumentParser):
        def error(self, message: str) -> NoReturn:
            told = mistaken.refused(message, command, words)
            raise Usage(f"{told}\nusage: {command.usage}")

        def print_help(self, file: object = None) -> None:
            raise HelpAsked(help_of(command))

    def typed(read: Callable[[str], object]) -> Callable[[str], object]:
        def value(text: str) -> Any:
            try:
                return read(text)
            except ValueError as error:  # argparse shows the text of this class only
                raise argparse.ArgumentTypeError(str(error)) from None

        return value

    parser = Parser(prog=f"lifehold {command.name}", allow_abbrev=False)
    both = command.name in OF_CMD  # -n and -w
    patience = parser.add_mutually_exclusive_group() if both else parser
    for option in command.options:
        how: dict[str, Any] = (
            {"type": typed(option.read), "action": "append" if option.many else "store"}
            if option.takes else {"action": "store_const", "const": option.store}
        )  # fmt: skip
        place = patience if option.name == "wait" else parser
        place.add_argument(*option.flags, dest=option.name, **how)
    parser.set_defaults(**{option.name: option.default for option in command.options})
    if command.name in OF_CMD:  # CMD's words, `--` among them, are none of argparse's
        options, rest = parted(words, command)
        return vars(parser.parse_args(options)), rest
    named = any(word.partition("=")[0] == "--name" for word in words)
    for name, count in command.operands:
        fewer = "*" if count == "+" else count or "?"
        parser.add_argument(name, nargs=fewer if named else count, metavar=name.upper())
    given = _parsed(parser, words)
    rest = [*(given.pop("called", None) or ())]
    for name, _ in command.operands:
        found = given.pop(name)
        rest += found if isinstance(found, list) else [found] if found is not None else []
    return given, _meant(command, rest, given)


def _parsed(parser: argparse.ArgumentParser, words: list[str]) -> dict[str, Any]:
    # An option may stand between two operands; behind `--` there is none.
    parse = parser.parse_args if "--" in words else parser.parse_intermixed_args
    try:
        return vars(parse(words))
    except AttributeError as error:  # what argparse of 3.11 raises when Ctrl-C ends it
        if isinstance(error.__context__, KeyboardInterrupt):
            raise error.__context__ from None
        raise


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
    """The first page: the commands by what one wants to do."""
    parts = [USAGE_OF_ALL]
    for head, group in GROUPS.items():
        rows = (f"  {command.name:<{WIDEST}}  {command.summary}" for command in group)
        parts.append("\n".join([f"{head}:", *rows, ""]))
    return "\n".join(parts).rstrip("\n")
