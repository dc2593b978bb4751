"""The rules of other languages: shell, units and containers (LH3), JavaScript (LH4)."""

from __future__ import annotations

from .. import units
from ..rule import Rule
from ..rules import javascript, shell

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
    Rule(
        code="LH401",
        slug="js-check-then-create",
        cwe=367,
        severity="error",
        confidence="high",
        default=True,
        language="javascript",
        check=javascript.test_then_make,
        title="existsSync, then writeFile of a lock",
        why="Two processes that look at the same moment both find nothing and both write.",
        timeline="""\
A  existsSync: no
B  existsSync: no
A  writeFileSync; B  writeFileSync: both work""",
        bad="""\
const fs = require("fs");
function acquire(lockPath) {
  if (fs.existsSync(lockPath)) return false;
  fs.writeFileSync(lockPath, String(process.pid));
  return true;
}
""",
        good="""\
const fs = require("fs");
function save(path, text) {
  if (fs.existsSync(path)) return false;
  fs.writeFileSync(path, text);
  return true;
}
""",
        fix="Make it in one step that fails when it is there: `{ flag: 'wx' }`; and see LH402.",
    ),
    Rule(
        code="LH402",
        slug="js-ownerless-lock",
        cwe=459,
        severity="warning",
        confidence="medium",
        default=True,
        language="javascript",
        check=javascript.no_recovery,
        title="mkdir or wx as a lock, and no recovery",
        why="A lock that is held by being there outlives a crash of its maker.",
        timeline="""\
A  mkdirSync(lock), SIGKILL
B  EEXIST, for ever""",
        bad="""\
const fs = require("fs");
function lock(lockDir) {
  fs.mkdirSync(lockDir);
}
function unlock(lockDir) {
  fs.rmdirSync(lockDir);
}
""",
        good="""\
const fs = require("fs");
function prepare(lockDir) {
  fs.mkdirSync(lockDir, { recursive: true });
}
""",
        fix="Use a lock that proves a holder dead, or a kernel lock; see `lifehold run`.",
    ),
    Rule(
        code="LH403",
        slug="js-pid-only",
        cwe=367,
        severity="warning",
        confidence="high",
        default=True,
        language="javascript",
        check=javascript.number_alone,
        title="whether the holder lives is asked by its number alone",
        why="A number is given out again, begins anew after a reboot and in each container.",
        timeline="""\
A  writes 4711, the host goes down
   after the boot 4711 is another program
B  kill(4711, 0): alive; waits for ever""",
        bad="""\
const fs = require("fs");
function lockHolderLives(lockPath) {
  try {
    process.kill(Number(fs.readFileSync(lockPath, "utf8")), 0);
    return true;
  } catch (error) {
    return error.code === "EPERM";
  }
}
""",
        good="""\
function stop(child) {
  process.kill(child.pid, "SIGTERM");
}
""",
        fix="Keep the start time of the process beside its number, and compare both.",
    ),
    Rule(
        code="LH404",
        slug="js-eperm-is-dead",
        cwe=367,
        severity="error",
        confidence="high",
        default=True,
        language="javascript",
        check=javascript.not_allowed_is_dead,
        title="a process of another user is taken for dead",
        why="kill(pid, 0) fails with EPERM for a live process of another user.",
        timeline="""\
A  root holds the lock
B  kill(pid, 0): EPERM; taken for dead; A's lock is removed""",
        bad="""\
const fs = require("fs");
function lockHolderLives(lockPath) {
  const pid = Number(fs.readFileSync(lockPath, "utf8"));
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
}
""",
        good="""\
function alive(pid) {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return error.code === "EPERM";
  }
}
""",
        fix="Only ESRCH means that there is no such process.",
    ),
    Rule(
        code="LH405",
        slug="js-racy-stale-break",
        cwe=367,
        severity="error",
        confidence="high",
        default=True,
        language="javascript",
        check=javascript.racy_break,
        title="a stale lock is judged, and then removed by its name",
        why="Between the look and the removal another process may have put its own lock there.",
        timeline="""\
A  dead. B and C find its lock stale
B  unlink, makes its own
C  unlink: B's lock; makes its own: two holders""",
        bad="""\
const fs = require("fs");
function acquire(lockPath) {
  const age = Date.now() - fs.statSync(lockPath).mtimeMs;
  if (age > 10000) {
    fs.unlinkSync(lockPath);
  }
  fs.writeFileSync(lockPath, String(process.pid), { flag: "wx" });
}
""",
        good="""\
const fs = require("fs");
function clean(folder, cachePath) {
  const age = Date.now() - fs.statSync(cachePath).mtimeMs;
  if (age > 10000) {
    fs.unlinkSync(cachePath);
  }
}
""",
        fix="Claim it in one step (rename it away to a name of your own), look again, then decide.",
    ),
    Rule(
        code="LH406",
        slug="js-age-only",
        cwe=367,
        severity="error",
        confidence="high",
        default=True,
        language="javascript",
        check=javascript.age_alone,
        title="age alone makes a lock stale",
        why="Long work, a laptop that slept, a clock that was set: an old lock may be a live one.",
        timeline="""\
A  holds the lock, sleeps with its laptop
B  older than 10 s: removed; B works
A  wakes and writes beside B""",
        bad="""\
const fs = require("fs");
function acquire(lockPath) {
  const stat = fs.statSync(lockPath);
  if (Date.now() - stat.mtimeMs > 10000) fs.rmSync(lockPath);
  fs.writeFileSync(lockPath, "", { flag: "wx" });
}
""",
        good="""\
const fs = require("fs");
function clean(logPath) {
  const stat = fs.statSync(logPath);
  if (Date.now() - stat.mtimeMs > 10000) fs.rmSync(logPath);
}
""",
        fix="A holder renews (utimes), and stops when it could not; ask more than the age.",
    ),
    Rule(
        code="LH407",
        slug="js-unowned-release",
        cwe=832,
        severity="error",
        confidence="medium",
        default=True,
        language="javascript",
        check=javascript.unowned_release,
        title="a release removes the lock without asking whose it is",
        why="Where a lock can be taken over, the one that is released may be another's.",
        timeline="""\
A  stalls; B takes the lock over
A  wakes, releases: B's lock is gone, C gets in""",
        bad="""\
const fs = require("fs");
class FileLock {
  acquire() {
    const age = Date.now() - fs.statSync(this.lockPath).mtimeMs;
    if (age > 10000) fs.unlinkSync(this.lockPath);
    fs.writeFileSync(this.lockPath, "", { flag: "wx" });
  }
  release() {
    fs.unlinkSync(this.lockPath);
  }
}
""",
        good="""\
const fs = require("fs");
class Cache {
  close() {
    fs.unlinkSync(this.file);
  }
}
""",
        fix="Write a random word into it, and remove it only while it still holds that word.",
    ),
    Rule(
        code="LH408",
        slug="js-only-at-exit",
        cwe=459,
        severity="info",
        confidence="medium",
        default=True,
        language="javascript",
        check=javascript.only_at_exit,
        title="a lock is removed by an exit handler alone",
        why="SIGKILL, the OOM killer and a power cut run no handler.",
        timeline="""\
A  wx; process.on('exit', remove)
A  SIGKILL
B  EEXIST, for ever""",
        bad="""\
const fs = require("fs");
function acquire(lockPath) {
  fs.writeFileSync(lockPath, String(process.pid), { flag: "wx" });
  process.on("exit", () => fs.unlinkSync(lockPath));
}
""",
        good="""\
const fs = require("fs");
function open(tempPath) {
  fs.writeFileSync(tempPath, "", { flag: "wx" });
  process.on("exit", () => fs.unlinkSync(tempPath));
}
""",
        fix="Use a lock that proves a holder dead, or a kernel lock; see `lifehold run`.",
    ),
    Rule(
        code="LH409",
        slug="js-setnx-then-expire",
        cwe=362,
        severity="error",
        confidence="high",
        default=True,
        language="javascript",
        check=javascript.two_steps,
        title="a lock is taken and gets its expiry in a second request",
        why="A crash between the two leaves a key without an expiry.",
        timeline="""\
A  SETNX lock 1 -> 1
A  killed before EXPIRE
B  SETNX -> 0, for ever""",
        bad="""\
async function acquire(redis, token) {
  const taken = await redis.setnx("lock:report", token);
  if (taken) await redis.expire("lock:report", 30);
  return taken;
}
""",
        good="""\
async function acquire(redis, token) {
  return (await redis.set("lock:report", token, "EX", 30, "NX")) === "OK";
}
""",
        fix="One request: SET key token NX PX milliseconds.",
    ),
    Rule(
        code="LH410",
        slug="js-lock-without-ttl",
        cwe=459,
        severity="error",
        confidence="high",
        default=True,
        language="javascript",
        check=javascript.without_end,
        title="a lock in a store without an end",
        why="A store does not notice that the holder died.",
        timeline="""\
A  SET lock token NX
A  the host goes down
B  waits until somebody deletes the key""",
        bad="""\
async function acquire(redis, token) {
  return redis.set("lock:report", token, "NX");
}
""",
        good="""\
async function acquire(redis, token) {
  return redis.set("lock:report", token, { NX: true, PX: 30000 });
}
""",
        fix="Give it a ttl, and renew it while the work goes on.",
    ),
    Rule(
        code="LH411",
        slug="js-unowned-delete",
        cwe=832,
        severity="error",
        confidence="medium",
        default=True,
        language="javascript",
        check=javascript.unowned_delete,
        title="the key of a lock is deleted without asking whose it is",
        why="When the work took longer than the ttl, the key is another holder's by then.",
        timeline="""\
A  lock, ttl 10 s, works 12 s
B  gets the lock at 10 s
A  DEL at 12 s: B's lock is gone""",
        bad="""\
async function run(redis, token, work) {
  if (await redis.set("lock:report", token, "EX", 10, "NX")) {
    await work();
    await redis.del("lock:report");
  }
}
""",
        good="""\
const RELEASE = `if redis.call("get", KEYS[1]) == ARGV[1]
then return redis.call("del", KEYS[1]) end`;
async function run(redis, token, work) {
  if (await redis.set("lock:report", token, "EX", 10, "NX")) {
    await work();
    await redis.eval(RELEASE, 1, "lock:report", token);
  }
}
""",
        fix="Compare and delete in one script.",
    ),
    Rule(
        code="LH412",
        slug="js-compare-then-delete",
        cwe=367,
        severity="error",
        confidence="high",
        default=True,
        language="javascript",
        check=javascript.compare_apart,
        title="owner compared and lock deleted or renewed, in two requests",
        why="The lease can run out between the two.",
        timeline="""\
A  GET lock -> a: mine
   the lease runs out, B acquires
A  DEL lock: B's lock is gone""",
        bad="""\
async function release(redis, lockKey, token) {
  if ((await redis.get(lockKey)) === token) {
    await redis.del(lockKey);
  }
}
""",
        good="""\
async function forget(redis, jobKey, token) {
  if ((await redis.get(jobKey)) === token) {
    await redis.del(jobKey);
  }
}
""",
        fix="Compare and delete in one script.",
    ),
)
