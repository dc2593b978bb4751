"""The rows of the commands that keep a place in order: doctor, clear."""

from __future__ import annotations

from .row import Command, Option

CLEAR = Command(
    "clear", "lifehold clear [--dry-run] [-R] [--force WORD] [--json] PATH|DIR...",
    "Remove stale locks: only on proof, only what is safe to remove.",
    """\
  lifehold clear --dry-run -R /srv/app    what would be removed, and why
  lifehold clear /srv/app/server.pid      if its process is proven gone
  lifehold log                            what was removed, by whom, and why""",
    (
        Option("dry_run", ("-n", "--dry-run"), "remove nothing, say what would be", default=False),
        Option("deep", ("-R", "--recursive"), "look into the folders below each DIR too",
               default=False),
        Option("force", ("--force",), "remove a lock without proof: WORD is that of this very lock,"
               "\nas `clear PATH` tells it. Never the file of a kernel lock", "WORD"),
        Option("json", ("--json",), "answer in JSON, schema lifehold.clear/1", default=False),
    ),
    (("path", "+"),),
    """\
A lock is removed when its holder is proven gone, as the one that was judged,
in one step: a lock that another process takes meanwhile stays. The file of a
kernel lock is never removed, since two files of one name are two locks. No age
proves anything. Each removal is noted before it is done.

Exit codes: 0 nothing stale or suspect is left, 1 something is; 64 usage, 66 no
such folder, 71 the system refused.""",
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
