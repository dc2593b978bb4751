"""The rows of the commands that keep a place in order: clear, doctor, watch, top."""

from __future__ import annotations

from . import target
from .row import STORE, Command, Option, duration

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
    "doctor", "lifehold doctor [--peer ssh:HOST] [--json] DIR",
    "Try out whether locks in a folder exclude; which kind to use.",
    """\
  lifehold doctor /srv/app                     what is safe there, and why
  lifehold doctor --peer ssh:web-2 /mnt/nfs    the other half on a second host
  lifehold doctor --json . || exit             in a deployment""",
    (
        Option("peer", ("--peer",), "ask a second host that has the same folder, by ssh; it needs"
               "\nPython 3 and no lifehold", "ssh:HOST"),
        Option("json", ("--json",), "answer in JSON, schema lifehold.doctor/1", default=False),
    ),
    (("dir", None),),
    """\
Real tries by two processes, in a folder of its own that is removed again:
flock, fcntl and OFD locks, O_EXCL, link, rename, mkdir, the clock of the file
server, inotify; and a look at rights, umask, room and mount options.

Exit codes: 0 safe, 3 unproven, 78 unsafe; 64 usage, 66 no such folder, 71 the
system refused.""",
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
CONFIG is a TOML file: folders = ["/run/lock"], every = "60s", held = "6h",
stale = "alert", skips = 3, silent = "26h", webhook = "https://...", and more:
see the page of the watch. HUP reads it again.

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
        raise ValueError(f"sort by {', '.join(SORTS)}, not by {text!r}")
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
        Option("once", ("--once",), "one table, and end; so it does without a terminal too",
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
