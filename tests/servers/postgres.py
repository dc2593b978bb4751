"""A private PostgreSQL: started in a second, killed, paused, restarted, copied to a standby.

    with postgres.started() as server:
        connect(server.url)
        server.kill(); server.start()

Promise: nothing of it outlives the test run, not even when that is killed (the server asks the
kernel to be ended with its parent). The binaries are those of Debian: installed, or fetched into a
folder by `apt-get download` and unpacked there.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from servers.ports import free_port

FETCHED = Path(tempfile.gettempdir(), f"lifehold-servers-{os.getuid()}")
LAST = 120.0  # seconds that a server may take to come up
SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "32MB",
    "max_connections": "150",
    "max_wal_senders": "4",
    "wal_level": "replica",
    "hot_standby": "on",
    "shared_preload_libraries": "pg_stat_statements",
    "log_min_messages": "warning",
    "autovacuum_naptime": "5s",
}


@functools.cache
def missing() -> str | None:
    """Why no PostgreSQL can be started here, None when one can."""
    if not hasattr(os, "getuid"):
        return "this is no Unix"
    if folder() is None:
        return "no PostgreSQL is installed, and none could be fetched"
    if os.getuid() == 0 and shutil.which("setpriv") is None:
        return "root needs setpriv to start it as somebody else"
    return None


@functools.cache
def folder() -> Path | None:
    """Where its binaries are."""
    for root in (Path("/"), FETCHED):
        found = sorted(root.glob("usr/lib/postgresql/*/bin/postgres"))
        if found:
            return found[-1].parent
    return _fetch()


def _fetch() -> Path | None:
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        return None
    FETCHED.mkdir(mode=0o755, exist_ok=True)
    debs = FETCHED / "debs"
    debs.mkdir(exist_ok=True)

    def run(*command: str) -> str:
        done = subprocess.run(
            command, cwd=debs, capture_output=True, text=True, timeout=900, check=False
        )
        return done.stdout

    found = run("apt-cache", "depends", "postgresql")
    if not found and os.getuid() == 0:  # a bare image has no lists of packages yet
        run("apt-get", "update", "-qq")
        found = run("apt-cache", "depends", "postgresql")
    names = [
        word for word in found.split() if word.startswith("postgresql-") and word[-1:].isdigit()
    ]
    if not names:
        return None
    options = ["--no-recommends", "--no-suggests", "--no-conflicts", "--no-breaks", "--no-replaces",
               "--no-enhances"]  # fmt: skip
    lines = run("apt-cache", "depends", "--recurse", *options, names[0]).splitlines()
    kin = (names[0], names[0].replace("postgresql", "postgresql-client"))
    wanted = {line for line in lines if line in kin or line.startswith("lib")}
    wanted = {name for name in wanted if not name.endswith(("-perl", "-dev"))}
    states = run("dpkg-query", "-W", "-f", "${db:Status-Abbrev}|${Package}\n").splitlines()
    there = {line.partition("|")[2] for line in states if line.startswith("ii")}
    run("apt-get", "download", *sorted(wanted - there))
    for deb in sorted(debs.glob("*.deb")):
        run("dpkg", "-x", str(deb), str(FETCHED))
    bins = sorted(FETCHED.glob("usr/lib/postgresql/*/bin/postgres"))
    return bins[-1].parent if bins else None


def user() -> str | None:
    """As whom it runs: it refuses root."""
    if os.getuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name).pw_name
    return "nobody"


class Server:
    """One server. `url`: of its database `test`, without a password."""

    def __init__(self, home: Path, port: int | None = None, **settings: str) -> None:
        self.home, self.port = home, port or free_port()
        self.data = home / "data"
        self.settings = {**SETTINGS, **settings}
        self.process: subprocess.Popen[bytes] | None = None
        self.more: dict[str, str] = {}  # of its environment

    @property
    def url(self) -> str:
        return f"postgresql://lifehold@127.0.0.1:{self.port}/test"

    def at(self, database: str) -> str:
        return f"postgresql://lifehold@127.0.0.1:{self.port}/{database}"

    # ---- its life

    def _run(self, program: str, *arguments: str) -> list[str]:
        bins = folder()
        assert bins is not None
        who = user()
        before = [] if who is None else [
            "setpriv", f"--reuid={who}", f"--regid={pwd.getpwnam(who).pw_gid}", "--clear-groups",
            "--pdeathsig", "QUIT",
        ]  # fmt: skip
        more = ["env", *(f"{key}={to}" for key, to in self.more.items())] if self.more else []
        return [*before, *more, str(bins / program), *arguments]

    def _environment(self) -> dict[str, str]:
        known = {
            "PATH": os.environ.get("PATH", ""),
            "LC_ALL": "C",
            "TZ": "UTC",
            "HOME": str(self.home),
        }
        if str(folder()).startswith(str(FETCHED)):
            known["LD_LIBRARY_PATH"] = ":".join(
                str(path) for path in FETCHED.glob("usr/lib/*-linux-gnu*") if path.is_dir()
            )
        return known

    def own(self, path: Path) -> None:
        who = user()
        if who is not None:
            known = pwd.getpwnam(who)
            os.chown(path, known.pw_uid, known.pw_gid)

    def command(self, program: str, *arguments: str) -> str:
        done = subprocess.run(
            self._run(program, *arguments), cwd=self.home, env=self._environment(), text=True,
            capture_output=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr or done.stdout
        return done.stdout

    def make(self) -> Server:
        """Its files."""
        self.home.mkdir(parents=True, exist_ok=True)
        self.own(self.home)
        self.command(
            "initdb", "-D", str(self.data), "-A", "trust", "-U", "lifehold", "-E", "UTF8",
            "--locale=C", "--no-sync", "--no-instructions",
        )  # fmt: skip
        return self

    def start(self) -> Server:
        options = [item for name, to in self.settings.items() for item in ("-c", f"{name}={to}")]
        log = (self.home / "log").open("ab")
        with log:
            self.process = subprocess.Popen(
                self._run(
                    "postgres", "-D", str(self.data), "-p", str(self.port), "-h", "127.0.0.1",
                    "-k", str(self.home), *options,
                ),
                cwd=self.home, env=self._environment(), stdout=log, stderr=log,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        self.wait_ready()
        return self

    def wait_ready(self) -> None:
        import psycopg

        until = time.monotonic() + LAST
        while True:
            try:
                psycopg.connect(self.at("postgres"), connect_timeout=2).close()
                return
            except psycopg.OperationalError:
                assert self.process is not None
                if self.process.poll() is not None or time.monotonic() > until:
                    raise AssertionError((self.home / "log").read_text()[-2000:]) from None
                time.sleep(0.01)

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def children(self) -> list[int]:
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                    if int(fields[1]) == self.pid:
                        found.append(int(entry.name))
        return found

    def kill(self) -> None:
        """kill -9 of the whole server: a crash, without a last word to its clients."""
        everyone = [self.pid, *self.children()]
        for pid in everyone:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert self.process is not None
        self.process.wait(LAST)
        until = time.monotonic() + LAST
        while any(Path(f"/proc/{pid}").exists() for pid in everyone) and time.monotonic() < until:
            time.sleep(0.005)
        (self.data / "postmaster.pid").unlink(missing_ok=True)

    def pause(self) -> None:
        for pid in [self.pid, *self.children()]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)

    def resume(self) -> None:
        for pid in [self.pid, *self.children()]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def stop(self, how: int = signal.SIGINT) -> None:
        """An orderly end (SIGINT: fast), or at once (SIGQUIT)."""
        if self.process is None or self.process.poll() is not None:
            return
        self.resume()
        os.kill(self.pid, how)
        try:
            self.process.wait(LAST)
        except subprocess.TimeoutExpired:
            self.kill()

    # ---- what is in it

    def execute(self, text: str, database: str = "test") -> list[tuple]:
        import psycopg

        with psycopg.connect(self.at(database), autocommit=True) as connection:
            cursor = connection.execute(text)
            return cursor.fetchall() if cursor.description else []

    def standby(self, home: Path, **settings: str) -> Server:
        """A streaming asynchronous copy that is up; `promote()` makes it the primary."""
        copy = Server(home, **settings)
        home.mkdir(parents=True, exist_ok=True)
        copy.own(home)
        copy.command(
            "pg_basebackup", "-h", "127.0.0.1", "-p", str(self.port), "-U", "lifehold", "-D",
            str(copy.data), "-R", "-X", "stream", "--no-sync", "-c", "fast",
        )  # fmt: skip
        return copy.start()

    def promote(self) -> None:
        self.command("pg_ctl", "promote", "-D", str(self.data), "-w")


@contextlib.contextmanager
def started(**settings: str):
    """A server with a database `test`, gone afterwards."""
    home = Path(tempfile.mkdtemp(prefix="lifehold-pg-"))
    server = Server(home, **settings)
    try:
        server.make().start()
        server.execute("CREATE DATABASE test", "postgres")
        yield server
    finally:
        remove(server)


def remove(server: Server) -> None:
    """Stop it at once, and forget its files."""
    server.stop(signal.SIGQUIT)
    shutil.rmtree(server.home, ignore_errors=True)
