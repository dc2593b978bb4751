"""The rows of the commands that look at locks: who, ls, wait, log, check, touch, completion."""

from __future__ import annotations

from . import target
from .row import STORE, Command, Option, duration

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
    "List the locks of a folder, by default all that have a plain name.",
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
says.

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
        Option("event", ("--event",), "only these: hold, skip, timeout, loss or takeover", "EVENT"),
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
