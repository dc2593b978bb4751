"""`who` beside the real tools: each takes its lock, is asked for, is killed, and asked for again.

    python tests/soak/families.py --tools FOLDER [NAME...]

FOLDER/venv is a virtual environment with filelock, flufl.lock, zc.lockfile, portalocker,
lockfolder, mercurial, celery, gunicorn, snakemake and dvc; FOLDER/x holds unpacked packages of
restic, borgbackup, vim-tiny, procmail, postgresql (`dpkg -x`). What is missing is named, not passed
over. Each is asked for from a container and by another user too, while it lives. Ends with 1 when
an answer is not the expected one.
"""

from __future__ import annotations

import argparse
import json
import os
import pty
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

HELD, FREE, STALE, SUSPECT = "held", "free", "stale", "suspect"
SLEEP = "import time; print('held', flush=True); time.sleep(120)"


class Tools:
    """Where the tools are, and a folder for one of them."""

    def __init__(self, tools: Path, folder: Path) -> None:
        self.tools, self.folder = tools, folder
        self.python = str(tools / "venv/bin/python")
        self.path = f"{tools}/venv/bin:{tools}/x/usr/bin:" + os.environ["PATH"]
        self.started: list[int] = []

    def start(self, *words: str, **more: object) -> subprocess.Popen[str]:
        env = {
            **os.environ,
            "PATH": self.path,
            "HOME": str(self.folder),
            **dict(more.pop("env", {})),
        }
        env.pop("PYTHONPATH", None)
        process = subprocess.Popen(
            words, cwd=more.pop("cwd", self.folder), env=env, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True, start_new_session=True, **more,
        )  # fmt: skip
        self.started.append(process.pid)
        return process

    def done(self, *words: str, **more: object) -> None:
        process = self.start(*words, **more)
        out, _ = process.communicate(timeout=120)
        if process.returncode:
            raise RuntimeError(f"{words[0]} ended with {process.returncode}: {out[-300:]}")

    def script(self, text: str) -> subprocess.Popen[str]:
        """A Python program of the venv that has its lock when it says so."""
        process = self.start(self.python, "-c", f"{text}\n{SLEEP}")
        assert process.stdout is not None
        if process.stdout.readline() != "held\n":
            raise RuntimeError("it did not get its lock")
        return process

    def there(self, pattern: str, seconds: float = 60) -> Path:
        """The first path that matches, once it is there."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for found in sorted(self.folder.glob(pattern)):
                return found
            for found in [self.folder / pattern] if os.path.lexists(self.folder / pattern) else []:
                return found
            time.sleep(0.05)
        raise RuntimeError(f"{pattern} did not appear")

    def end(self) -> None:
        for pid in self.started:
            try:
                os.killpg(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


Held = tuple[Path, int]


def flock(t: Tools) -> Held:
    process = t.start("flock", "a.lock", "sh", "-c", "echo held; exec sleep 120")
    process.stdout.readline()
    return t.folder / "a.lock", process.pid


def of(text: str, name: str = "a.lock") -> Callable[[Tools], Held]:
    return lambda t: (t.folder / name, t.script(text).pid)


def dotlockfile(t: Tools) -> Held:
    process = t.start("sh", "-c", "dotlockfile -l -p m.lock && echo held; sleep 120")
    process.stdout.readline()
    return t.folder / "m.lock", process.pid


def lockfile(t: Tools) -> Held:
    process = t.start("sh", "-c", "lockfile p.lock && echo held; sleep 120")
    process.stdout.readline()
    return t.there("p.lock"), process.pid


def git(t: Tools) -> Held:
    t.done("git", "init", "-q")
    (t.folder / "f").write_text("1")
    for words in (
        ("add", "f"),
        ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "1"),
    ):
        t.done("git", *words)
    (t.folder / "f").write_text("2")
    env = {"GIT_EDITOR": "sleep 120 #"}
    process = t.start("git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-a", env=env)
    return t.there(".git/index.lock"), process.pid


def hg(t: Tools) -> Held:
    t.done("hg", "init")
    process = t.start("hg", "debuglocks", "--set-wlock", stdin=subprocess.PIPE)
    return t.there(".hg/wlock"), process.pid


def celery(t: Tools) -> Held:
    (t.folder / "app.py").write_text(
        "from celery import Celery\napp = Celery('a', broker='memory://')\n"
    )
    process = t.start("celery", "-A", "app", "beat", "--pidfile", "celerybeat.pid")
    path = t.there("celerybeat.pid")
    time.sleep(0.5)
    return path, process.pid


def gunicorn(t: Tools) -> Held:
    (t.folder / "app.py").write_text("def app(e, s): s('200 OK', []); return []\n")
    process = t.start("gunicorn", "--pid", "gunicorn.pid", "-b", "unix:sock", "app:app")
    path = t.there("gunicorn.pid")
    time.sleep(0.5)
    return path, process.pid


def restic(t: Tools) -> Held:
    env = {"RESTIC_PASSWORD": "x"}
    t.done("restic", "-r", f"{t.folder}/repo", "init", env=env)
    process = t.start("restic", "-r", f"{t.folder}/repo", "backup", "--stdin", env=env,
                      stdin=subprocess.PIPE)  # fmt: skip
    return t.there("repo/locks/*"), process.pid


def borg(t: Tools) -> Held:
    program = t.folder / "borg"  # with the packages of the venv behind its own
    program.write_text(
        f"import sys; sys.path.insert(0, '{t.tools}/x/usr/lib/python3/dist-packages')\n"
        "from borg.archiver import main; main()\n"
    )
    t.done(t.python, str(program), "init", "-e", "none", "repo")
    process = t.start(t.python, str(program), "with-lock", "repo", "sleep", "120")
    return t.there("repo/lock.exclusive"), process.pid


def vim(t: Tools) -> Held:
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(t.folder)
        os.execvpe("vim.tiny", ["vim.tiny", "notes"], {"PATH": t.path, "TERM": "vt100"})
    t.started.append(pid)
    os.write(terminal, b"ihello")
    return t.there(".notes.swp"), pid


def postgres(t: Tools) -> Held:
    binaries = t.tools / "x/usr/lib/postgresql/15/bin"
    os.chown(t.folder, 65534, 65534)
    t.folder.parent.chmod(0o755)
    user = {"user": 65534, "group": 65534}
    t.done(f"{binaries}/initdb", "-D", "data", "-N", "-A", "trust", **user)
    words = ("-D", f"{t.folder}/data", "-k", str(t.folder), "-h", "")
    process = t.start(f"{binaries}/postgres", *words, **user)
    path = t.there("data/postmaster.pid")
    time.sleep(1)
    return path, process.pid


def snakemake(t: Tools) -> Held:
    (t.folder / "Snakefile").write_text("rule all:\n  output: 'x'\n  shell: 'sleep 120'\n")
    process = t.start("snakemake", "-j1")
    return t.there(".snakemake/locks/*.lock"), process.pid


def dvc(t: Tools) -> Held:
    t.done("dvc", "init", "--no-scm", "-q")
    (t.folder / "dvc.yaml").write_text("stages:\n  a:\n    cmd: sleep 120\n    outs: [x]\n")
    process = t.start("dvc", "repro")
    until = time.monotonic() + 60
    path = t.folder / ".dvc/tmp/rwlock"
    while time.monotonic() < until and (not path.exists() or len(path.read_bytes()) < 5):
        time.sleep(0.05)
    return path, process.pid


FILELOCK = "import filelock; a = filelock.{}('a.lock'); a.acquire()"
# name -> how it is taken, its family, what is said while it lives, and after kill -9
SCENES: dict[str, tuple[Callable[[Tools], Held], str, str, str]] = {
    "flock": (flock, "flock", HELD, FREE),
    "fcntl": (of("import fcntl; a = open('a.lock', 'w'); fcntl.lockf(a, 2)"), "fcntl", HELD, FREE),
    "filelock": (of(FILELOCK.format("FileLock")), "flock", HELD, FREE),
    "filelock soft": (of(FILELOCK.format("SoftFileLock")), "filelock-soft", HELD, STALE),
    "filelock marker": (of(FILELOCK.format("MarkerSoftFileLock")), "filelock-marker", HELD, STALE),
    "filelock lease": (of(FILELOCK.format("SoftFileLease")), "filelock-lease", HELD, STALE),
    "filelock strict": (of(FILELOCK.format("StrictSoftFileLock")), "filelock-strict", HELD, STALE),
    "filelock rw": (of("import filelock; a = filelock.SoftReadWriteLock('a.lock'); "
                       "a.acquire_write()", "a.lock.rw"), "filelock-rw", HELD, STALE),
    "portalocker": (of("import portalocker; a = portalocker.Lock('a.lock'); a.acquire()"),
                    "flock", HELD, FREE),
    "portalocker pid": (of("import portalocker; a = portalocker.PidFileLock('a.pid'); a.acquire()",
                           "a.pid"), "pidfile", HELD, STALE),
    "flufl": (of("import flufl.lock; a = flufl.lock.Lock('a.lck'); a.lock()", "a.lck"),
              "flufl", HELD, STALE),
    "zc.lockfile": (of("import zc.lockfile; a = zc.lockfile.LockFile('a.lock')"),
                    "zc.lockfile", HELD, FREE),
    "lockfolder": (of("import pathlib; from lockfolder import lockfolder as l; l.setup(); "
                      "p = pathlib.Path('folder'); p.mkdir(); l.lock(p)", "folder"),
                   "lockfolder", HELD, STALE),
    "sqlite": (of("import sqlite3; a = sqlite3.connect('a.db'); a.execute('create table t(x)'); "
                  "a.execute('begin exclusive')", "a.db"), "sqlite", HELD, FREE),
    "dotlockfile": (dotlockfile, "dotlockfile", HELD, STALE),
    "procmail": (lockfile, "procmail", SUSPECT, SUSPECT),
    "git": (git, "git", HELD, SUSPECT),
    "mercurial": (hg, "mercurial", HELD, STALE),
    "celery": (celery, "celery", HELD, STALE),
    "gunicorn": (gunicorn, "gunicorn", HELD, STALE),
    "restic": (restic, "restic", HELD, SUSPECT),
    "borg": (borg, "borg", HELD, STALE),
    "vim": (vim, "vim", HELD, STALE),
    "postgres": (postgres, "postgres", HELD, STALE),
    "snakemake": (snakemake, "snakemake", HELD, SUSPECT),
    "dvc": (dvc, "dvc", HELD, STALE),
}  # fmt: skip


def who(path: Path, *before: str) -> dict[str, object]:
    command = [*before, sys.executable, "-m", "lifehold", "who", "--json", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if not done.stdout:
        raise RuntimeError(done.stderr)
    found: dict[str, object] = json.loads(done.stdout)["locks"][0]
    return found


ELSEWHERE = {
    "container": ("unshare", "-p", "-f", "--mount-proc"),
    "other user": ("setpriv", "--reuid=65533", "--clear-groups", "--"),
}


def play(name: str, tools: Path) -> list[str]:
    """What was wrong, nothing when all was as expected."""
    take, family, live, dead = SCENES[name]
    wrong = []
    with tempfile.TemporaryDirectory(prefix="family-", dir="/tmp") as folder:
        place = Path(folder, "here")
        place.mkdir()
        Path(folder).chmod(0o755)
        t = Tools(tools, place)
        try:
            path, pid = take(t)
            found = who(path)
            if (found["family"], found["state"]) != (family, live):
                wrong.append(f"live: {found['family']} {found['state']} {found['holder']}")
            for where, before in ELSEWHERE.items():
                if who(path, *before)["state"] == STALE:
                    wrong.append(f"a live one is stale to the {where}")
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            time.sleep(0.3)
            found = who(path)
            known = family if dead != FREE else found["family"]
            if (found["family"], found["state"]) != (known, dead):
                wrong.append(f"dead: {found['family']} {found['state']} {found['holder']}")
        finally:
            t.end()
    return wrong


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tools", type=Path, required=True)
    parser.add_argument("names", nargs="*", default=list(SCENES))
    given = parser.parse_args(words)
    failed = 0
    for name in given.names:
        try:
            wrong = play(name, given.tools)
        except (RuntimeError, OSError, subprocess.SubprocessError) as error:
            print(f"{name:<16} NOT RUN: {error}", flush=True)
            continue
        failed += bool(wrong)
        print(f"{name:<16} {'; '.join(wrong) or 'as expected'}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
