"""The rules about shell scripts, and about units and containers: LH301 to LH310."""

from __future__ import annotations

from .. import units
from ..rule import Rule
from ..rules import shell

RULES = (
    Rule(
        code="LH301",
        slug="shell-test-then-make",
        cwe=367,
        severity="error",
        confidence="high",
        default=True,
        language="shell",
        check=shell.test_then_make,
        title="a lock file is tested and then made",
        why="Two runs that test at the same moment both find nothing, and both make it.",
        timeline="""\
A  [ -f lock ]: no
B  [ -f lock ]: no
A  touch lock
B  touch lock: A and B both work""",
        bad="""\
#!/bin/sh
LOCK=/var/tmp/report.lock
if [ -f "$LOCK" ]; then
  echo "already running" >&2
  exit 1
fi
touch "$LOCK"
make report
""",
        good="""\
#!/bin/sh
exec 9>>/var/lock/report.lock
flock -n 9 || exit 1
make report
""",
        fix='`exec 9>>"$LOCK"; flock -n 9 || exit 1`, never removing it; or `lifehold run`.',
    ),
    Rule(
        code="LH302",
        slug="shell-lock-without-cleanup",
        cwe=459,
        severity="error",
        confidence="medium",
        default=True,
        language="shell",
        check=shell.no_cleanup,
        title="a lock that is held by being there, removed on the last line alone",
        why="A run that fails, is interrupted or killed never comes to that line.",
        timeline="""\
A  mkdir lock
A  fails in the middle
B  mkdir lock: File exists, for ever""",
        bad="""\
#!/bin/sh
mkdir /var/tmp/report.lock || exit 1
make report
rmdir /var/tmp/report.lock
""",
        good="""\
#!/bin/sh
exec 9>>/var/lock/report.lock
flock -n 9 || exit 1
make report
""",
        fix="A kernel lock (`flock`) ends with the process, however it ends.",
    ),
    Rule(
        code="LH303",
        slug="shell-pid-only",
        cwe=367,
        severity="warning",
        confidence="high",
        default=True,
        language="shell",
        check=shell.number_alone,
        title="whether the holder lives is asked by its number alone",
        why="A number is given out again, begins anew after a reboot and in each container.",
        timeline="""\
A  writes 4711 into the pid file, the host goes down
   after the boot 4711 is another program
B  kill -0 4711: alive, so it never starts""",
        bad="""\
#!/bin/sh
PIDFILE=/var/run/report.pid
if [ -f "$PIDFILE" ] && kill -0 "$(cat "$PIDFILE")" 2>/dev/null; then
  exit 1
fi
start_report
""",
        good="""\
#!/bin/sh
exec 9>>/var/run/report.lock
flock -n 9 || exit 1
start_report
""",
        fix="Ask the kernel whether the lock is held: `flock -n`; or compare the start time too.",
    ),
    Rule(
        code="LH304",
        slug="shell-trap-only",
        cwe=459,
        severity="info",
        confidence="medium",
        default=True,
        language="shell",
        check=shell.only_trap,
        title="a lock that is held by being there, removed by a trap alone",
        why="SIGKILL, the OOM killer and a power cut run no trap.",
        timeline="""\
A  mkdir lock; trap 'rmdir lock' EXIT
A  SIGKILL
B  mkdir lock: File exists, for ever""",
        bad="""\
#!/bin/sh
if ! mkdir /var/tmp/report.lock 2>/dev/null; then
  exit 1
fi
trap 'rmdir /var/tmp/report.lock' EXIT
make report
""",
        good="""\
#!/bin/sh
exec 9>>/var/lock/report.lock
flock -n 9 || exit 1
make report
""",
        fix="A kernel lock (`flock`) ends with the process, however it ends.",
    ),
    Rule(
        code="LH305",
        slug="shell-trap-before-lock",
        cwe=832,
        severity="error",
        confidence="high",
        default=True,
        language="shell",
        check=shell.trap_before_lock,
        title="the trap that removes the lock is set before the lock is taken",
        why="A run that is refused ends too; its trap removes the lock of the run that holds it.",
        timeline="""\
A  holds the lock
B  trap 'rm lock' EXIT; is refused; exits: A's lock is gone
C  gets in beside A""",
        bad="""\
#!/bin/sh
LOCK=/var/tmp/report.lock
trap 'rm -rf "$LOCK"' EXIT
mkdir "$LOCK" || exit 1
make report
""",
        good="""\
#!/bin/sh
exec 9>>/var/lock/report.lock
flock -n 9 || exit 1
make report
""",
        fix="Set the trap behind the line that takes the lock; better: `flock`, which needs none.",
    ),
    Rule(
        code="LH306",
        slug="shell-remove-flocked",
        cwe=367,
        severity="error",
        confidence="high",
        default=True,
        language="shell",
        check=shell.flock_and_remove,
        title="a file that is locked by flock is removed",
        why="Who waits has the old file open; the next one makes a new file of the same name and"
        " locks that one.",
        timeline="""\
A  flock, works, rm lock
B  waited on the old file: gets its lock
C  opens a new file: gets its lock, beside B""",
        bad="""\
#!/bin/sh
(
  flock -n 9 || exit 1
  make report
  rm -f /var/lock/report.lock
) 9>/var/lock/report.lock
""",
        good="""\
#!/bin/sh
(
  flock -n 9 || exit 1
  make report
) 9>/var/lock/report.lock
""",
        fix="Leave the file where it is: the lock is not the file's being there.",
    ),
    Rule(
        code="LH307",
        slug="shell-flock-unasked",
        cwe=252,
        severity="error",
        confidence="high",
        default=True,
        language="shell",
        check=shell.flock_unasked,
        title="flock may be refused, and nobody asks",
        why="`flock -n 9` says by its exit status whether the lock is held; a shell goes on.",
        timeline="""\
A  flock -n 9: held
B  flock -n 9: status 1, not asked; works beside A""",
        bad="""\
#!/bin/sh
exec 9>>/var/lock/report.lock
flock -n 9
make report
""",
        good="""\
#!/bin/sh
exec 9>>/var/lock/report.lock
flock -n 9 || exit 1
make report
""",
        fix="`flock -n 9 || exit 1`.",
    ),
    Rule(
        code="LH308",
        slug="shell-age-only",
        cwe=367,
        severity="warning",
        confidence="medium",
        default=True,
        language="shell",
        check=shell.removed_by_age,
        title="a lock is removed by its age alone",
        why="Long work, a stopped process, a clock that was set: an old lock may be a live one.",
        timeline="""\
A  holds the lock, works for 70 minutes
B  find -mmin +60 -delete: A's lock is gone; B works beside A""",
        bad="""\
#!/bin/sh
find /var/tmp -name 'report.lock' -mmin +60 -delete
mkdir /var/tmp/report.lock || exit 1
""",
        good="""\
#!/bin/sh
find /var/tmp -name 'report-*.log' -mmin +60 -delete
""",
        fix="Ask whether the holder lives: a kernel lock, or `lifehold clear`, which wants proof.",
    ),
    Rule(
        code="LH309",
        slug="pid-file-survives-restart",
        cwe=459,
        severity="warning",
        confidence="medium",
        default=True,
        language="unit",
        check=units.pid_survives,
        title="a pid file in a container outlives its process",
        why="A container that is started again keeps its files, and its numbers begin anew: the old"
        " file names the new process itself.",
        timeline="""\
A  writes 1 into server.pid; the container is killed
A' starts again as process 1, finds 1 in server.pid: "already running\"""",
        bad="""\
FROM python:3.13
CMD ["celery", "-A", "app", "beat", "--pidfile=/var/run/beat.pid"]
""",
        good="""\
FROM python:3.13
CMD ["celery", "-A", "app", "beat", "--pidfile="]
""",
        fix="Write none (a container's manager keeps it single), or remove it in the entrypoint.",
    ),
    Rule(
        code="LH310",
        slug="lock-folder-between-containers",
        cwe=667,
        severity="warning",
        confidence="medium",
        default=True,
        language="unit",
        check=units.shared_folder,
        title="containers share a folder of locks or pid files, and no process numbers",
        why="The number in a pid file means something in its own container alone.",
        timeline="""\
A  container 1 writes 7 into the shared pid file
B  container 2 asks kill(7, 0): no such process; takes the lock beside A""",
        bad="""\
services:
  web:
    image: app
    volumes:
      - locks:/app/locks
  worker:
    image: app
    volumes:
      - locks:/app/locks
volumes:
  locks:
""",
        good="""\
services:
  web:
    image: app
    volumes:
      - data:/app/data
  worker:
    image: app
    volumes:
      - data:/app/data
volumes:
  data:
""",
        fix="Kernel locks in that folder (flock) or a store's leases; no pid files.",
    ),
)
