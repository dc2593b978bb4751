"""The row of `lifehold run`: its options and its help."""

from __future__ import annotations

from .row import Command, Option, duration, status

RUN = Command(
    "run", "lifehold run [options] NAME|PATH [--] CMD [ARG...]",
    "Run CMD while holding a lock; nobody else has it meanwhile.",
    """\
  lifehold run nightly-report -- python report.py    wait until it is free
  lifehold run -n sync -- rsync -a src/ dst/         do not wait: 75 when held
  lifehold run -w 5m ./data/db.lock -- make          wait five minutes; a path""",
    (
        Option("wait", ("-n", "--nonblock"), "do not wait when it is held", store=0.0),
        Option("wait", ("-w", "--wait"), "wait at most so long: seconds, 30s, 5m, 1h, "
               "2d\n(default: until it is free)", "TIME", duration),
        Option("conflict", ("-E", "--conflict-exit-code"), "exit code when it is held "
               "(default: 75)", "N", status, default=75),
        Option("exclusive", ("-x", "--exclusive"), "hold it alone (default)", default=True),
        Option("exclusive", ("-s", "--shared"), "hold it together with others that use -s",
               store=False, default=True),
        Option("close", ("-o", "--close"), "CMD does not inherit the lock, and ends with\nlifehold",
               default=False),
        Option("label", ("--label",), "a word for people, shown to who waits", "TEXT", default=""),
    ),
    (("name", None), ("cmd", "...")),
    """\
Options stand before NAME; what follows NAME belongs to CMD.

A NAME has no slash and lives in $LIFEHOLD_DIR, else /var/lib/lifehold if you
may write there, else $XDG_STATE_HOME/lifehold (~/.local/state/lifehold), as
NAME.lock. A PATH has a slash.

CMD finds in its environment: LIFEHOLD_NAME, LIFEHOLD_LOCK (the file),
LIFEHOLD_TOKEN (grows with every exclusive grant; empty when there is none),
LIFEHOLD_NONCE, LIFEHOLD_HELD (all locks held around it).

The lock outlives a kill -9 of lifehold for as long as CMD runs. TERM, INT, HUP
and QUIT are passed on to CMD. When the lock is lost, CMD is stopped: TERM,
after 5 s KILL.

Exit codes: CMD's own (128 + N when signal N ended it); 127 not found, 126 not
executable; 75 held; 64 usage; 65 corrupt record; 71 the system refused; 74 lost
while running; 78 unsafe ground.""",
)  # fmt: skip
