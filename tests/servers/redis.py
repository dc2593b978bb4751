"""A private Redis: started in milliseconds, killed, paused, restarted empty or with its file.

    with redis.started() as server:
        connect(server.url)
        server.kill(); server.start()

Replicas with sentinels and clusters of such servers: servers/redis_groups.py.

Promise: nothing of it outlives the test run, not even when that is killed: each server asks the
kernel to be ended with the thread that started it, so start it in one that lives on. The binaries
are those of Debian: installed, or fetched into a folder by `apt-get download` and unpacked there.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from servers.ports import free_port

FETCHED = Path(tempfile.gettempdir(), f"lifehold-servers-{os.getuid()}", "redis")
PACKAGES = ("redis-server", "redis-tools", "libatomic1", "libjemalloc2", "liblzf1", "libfaketime")
LAST = 150.0  # seconds that anything here may take: a sentinel that was stopped rests for 30
ADMIN = ("harness", "of-the-harness")  # who asks where users or passwords are set
SETTINGS = {
    "bind": "127.0.0.1",
    "save": '""',
    "appendonly": "no",
    "enable-debug-command": "yes",
    "enable-module-command": "no",
    "repl-diskless-sync-delay": "0",
    "repl-ping-replica-period": "1",
    "maxmemory-policy": "noeviction",
    "daemonize": "no",
}


@functools.cache
def missing() -> str | None:
    """Why no Redis can be started here, None when one can."""
    if not hasattr(os, "getuid"):
        return "this is no Unix"
    if program("redis-server") is None:
        return "no Redis is installed, and none could be fetched"
    return None


@functools.cache
def program(name: str) -> Path | None:
    """`redis-server` or `redis-cli`, installed or fetched."""
    found = shutil.which(name)
    if found:
        return Path(found)
    fetched = FETCHED / "usr/bin" / name
    if not fetched.exists():
        _fetch()
    return fetched if fetched.exists() else None


def programs() -> dict[str, str]:
    """The environment in which `redis-server` and `redis-cli` are commands."""
    folder = str(Path(str(program("redis-server"))).parent)
    return environment() | {"PATH": f"{os.environ.get('PATH', '')}:{folder}"}


def _fetch() -> None:
    """Into a folder of our own, then by one rename into its place: two runs may fetch at once."""
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        return
    FETCHED.parent.mkdir(mode=0o755, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="redis-", dir=FETCHED.parent))
    if os.getuid() == 0:
        work.chmod(0o755)  # the user of apt writes there

    def run(*command: str) -> int:
        done = subprocess.run(command, cwd=work, capture_output=True, timeout=900, check=False)
        return done.returncode

    if run("apt-get", "download", *PACKAGES) != 0 and os.getuid() == 0:
        run("apt-get", "update", "-qq")  # a bare image has no lists of packages yet
        run("apt-get", "download", *PACKAGES)
    for deb in sorted(work.glob("*.deb")):
        run("dpkg", "-x", str(deb), str(work))
        deb.unlink()
    if (work / "usr/bin/redis-server").exists() or (work / "usr/bin/redis-cli").exists():
        with contextlib.suppress(OSError):  # another run was faster
            work.rename(FETCHED)
    shutil.rmtree(work, ignore_errors=True)


def environment() -> dict[str, str]:
    """In which the fetched programs find their libraries."""
    known = {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C", "TZ": "UTC"}
    if str(program("redis-server")).startswith(str(FETCHED)):
        known["LD_LIBRARY_PATH"] = ":".join(
            str(path) for path in FETCHED.glob("usr/lib/*-linux-gnu*") if path.is_dir()
        )
    return known


def faketime() -> Path | None:
    """The library that steps the clock of a server, for `server.more["LD_PRELOAD"]`."""
    if not FETCHED.exists():
        _fetch()
    for root in (Path("/"), FETCHED):
        found = sorted(root.glob("usr/lib/*/faketime/libfaketimeMT.so.1"))
        if found:
            return found[0]
    return None


def until(what: str, seen: Callable[[], Any], last: float = LAST) -> Any:
    """What `seen()` answers as soon as that is true; a client's error is a `not yet`."""
    import redis

    end = time.monotonic() + last
    why: object = ""
    while True:
        try:
            answer = seen()
            if answer:
                return answer
        except (redis.RedisError, OSError) as error:
            why = error
        if time.monotonic() > end:
            raise AssertionError(f"not within {last:g} s: {what} ({why})")
        time.sleep(0.01)


class Server:
    """One server. `url` by TCP, `unix_url` by its socket, `tls_url` with `tls=True`.

    `settings`: words of redis.conf, `_` for `-`; `password`: of the user `default`; `users`: lines
    as of `ACL SETUSER`; `more`: of its environment.
    """

    def __init__(
        self, home: Path, *, password: str = "", users: tuple[str, ...] = (), tls: bool = False,
        aof: bool = False, sentinel: bool = False, **settings: str,
    ) -> None:  # fmt: skip
        self.home, self.port, self.tls_port = home, free_port(), 0
        self.socket = home / "socket"
        self.password, self.users, self.tls, self.sentinel = password, users, tls, sentinel
        self.settings = SETTINGS | {key.replace("_", "-"): to for key, to in settings.items()}
        if aof:
            self.settings["appendonly"] = "yes"
            self.settings.setdefault("appendfsync", "always")
        self.lines: list[str] = []  # more of its file, as they stand
        self.more: dict[str, str] = {}
        self.process: subprocess.Popen[bytes] | None = None
        self._admin: Any = None

    def __repr__(self) -> str:
        return f"<{'sentinel' if self.sentinel else 'redis'} :{self.port}>"

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    @property
    def _who(self) -> str:
        return f":{self.password}@" if self.password else ""

    @property
    def url(self) -> str:
        return f"redis://{self._who}127.0.0.1:{self.port}/0"

    @property
    def unix_url(self) -> str:
        return f"unix://{self._who}{self.socket}?db=0"

    @property
    def tls_url(self) -> str:
        assert self.tls
        return f"rediss://{self._who}127.0.0.1:{self.tls_port}/0?ssl_ca_certs={self.certificate}"

    @property
    def certificate(self) -> Path:
        """Its own, which is its authority as well."""
        return self.home / "server.crt"

    @property
    def guarded(self) -> bool:
        """Whether the harness itself has to say who it is."""
        return bool(self.password or self.users)

    # ---- its life

    def _command(self) -> list[str]:
        binary = program("redis-server")
        assert binary is not None
        with_us = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        more = ["env", *(f"{key}={to}" for key, to in self.more.items())] if self.more else []
        mode = ["--sentinel"] if self.sentinel else []
        return [*with_us, *more, str(binary), str(self.home / "redis.conf"), *mode]

    def _configure(self) -> None:
        path = self.home / "redis.conf"
        if self.sentinel and path.exists():
            return  # it keeps what it learns in there
        lines = [f"port {self.port}", f"dir {self.home}"]
        if self.sentinel:
            lines += ["bind 127.0.0.1", *self.lines]
        else:
            lines += [f"unixsocket {self.socket}", "unixsocketperm 700", *self.lines]
            lines += [f"{key} {to}" for key, to in self.settings.items()]
            lines += [f"requirepass {self.password}"] if self.password else []
            lines += [f"user {each}" for each in self.users]
            if self.guarded:
                lines.append(f"user {ADMIN[0]} on >{ADMIN[1]} ~* &* +@all")
            if self.tls:
                lines += [f"tls-port {self.tls_port}", f"tls-cert-file {self.certificate}",
                          f"tls-key-file {self.home / 'server.key'}", "tls-auth-clients no",
                          f"tls-ca-cert-file {self.certificate}"]  # fmt: skip
        path.write_text("\n".join([*lines, ""]))

    def launch(self) -> Server:
        """Its process; `start` waits for it too."""
        self.home.mkdir(parents=True, exist_ok=True)
        if self.tls and not self.tls_port:
            self.tls_port = free_port()
            _certify(self.home)
        self._configure()
        with (self.home / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self._command(), cwd=self.home, env=environment(), stdin=subprocess.DEVNULL,
                stdout=log, stderr=log,
            )  # fmt: skip
        return self

    def start(self) -> Server:
        self.launch()
        self.wait_ready()
        return self

    def wait_ready(self) -> None:
        def there() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, (self.home / "log").read_text()[-2000:]
            return bool(self.call("PING"))

        until(f"{self} is ready", there)

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        """kill -9: a crash, without a last word to its clients."""
        self.close()
        if self.running:
            os.kill(self.pid, signal.SIGKILL)
        if self.process is not None:
            self.process.wait(LAST)

    def pause(self) -> None:
        """SIGSTOP: its connections stay, and nothing answers."""
        os.kill(self.pid, signal.SIGSTOP)
        until(f"{self} is stopped", lambda: _state(self.pid) == "T")

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def restart(self, *, empty: bool = False) -> Server:
        """A crash and a new start: with its append-only file, where it keeps one, or empty."""
        self.kill()
        if empty:
            shutil.rmtree(self.home / "appendonlydir", ignore_errors=True)
            (self.home / "dump.rdb").unlink(missing_ok=True)
        return self.start()

    def close(self) -> None:
        """The harness's own connection."""
        admin, self._admin = self._admin, None
        if admin is not None:
            admin.close()

    # ---- what is in it

    def client(self, **options: Any) -> Any:
        """A `redis.Redis` that asks once and never again; options as of its own."""
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        given: dict[str, Any] = {
            "host": "127.0.0.1", "port": self.port, "decode_responses": True,
            "socket_timeout": LAST, "retry": Retry(NoBackoff(), 0),
        }  # fmt: skip
        if self.password:
            given["password"] = self.password
        return redis.Redis(**(given | options))

    def call(self, *words: object) -> Any:
        """The answer to one command, of who may do everything."""
        if self._admin is None:
            who: dict[str, Any] = {}
            if not self.sentinel:  # never counted among the connections by TCP
                who["unix_socket_path"] = str(self.socket)
            if self.guarded:
                who |= {"username": ADMIN[0], "password": ADMIN[1]}
            self._admin = self.client(**who)
        return self._admin.execute_command(*words)

    def info(self, section: str = "everything") -> dict[str, Any]:
        return dict(self.call("INFO", section))

    @contextlib.contextmanager
    def counting(self) -> Iterator[dict[str, int]]:
        """How often it did each command in here, those of scripts too; filled at the end.

        Names as `get`, `client|list`; the harness's own `info` and `config` are left out.
        """
        calls: dict[str, int] = {}
        before = self._calls()
        yield calls
        for name, count in self._calls().items():
            if count > before.get(name, 0) and not name.startswith(("info", "config")):
                calls[name] = count - before.get(name, 0)

    def _calls(self) -> dict[str, int]:
        told = self.info("commandstats")
        return {name.removeprefix("cmdstat_"): each["calls"] for name, each in told.items()}

    def replica(self, home: Path | None = None, **settings: str) -> Server:
        """An asynchronous copy that has caught up."""
        copy = Server(home or self.home / f"replica-{free_port()}", **settings)
        copy.lines.append(f"replicaof 127.0.0.1 {self.port}")
        if self.guarded:
            copy.lines += [f"masteruser {ADMIN[0]}", f"masterauth {ADMIN[1]}"]
        copy.start()
        until(f"{copy} follows {self}", copy.follows)
        return copy

    def follows(self) -> bool:
        """Whether it is a replica whose link is up."""
        return self.info("replication").get("master_link_status") == "up"


@contextlib.contextmanager
def started(**options: Any) -> Iterator[Server]:
    """A server, gone afterwards. Options as of `Server`."""
    with room("lifehold-redis-") as home:
        server = Server(home, **options)
        try:
            yield server.start()
        finally:
            server.kill()


@contextlib.contextmanager
def room(prefix: str) -> Iterator[Path]:
    """A folder whose path is short enough for a socket in it."""
    home = Path(tempfile.mkdtemp(prefix=prefix, dir="/tmp"))
    try:
        yield home
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "T" if sys.platform != "linux" else ""


def _certify(home: Path) -> None:
    """A certificate for 127.0.0.1 that signs itself."""
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-nodes", "-days", "2", "-subj", "/CN=lifehold tests", "-keyout", "server.key", "-out",
         "server.crt", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"],
        cwd=home, check=True, capture_output=True, timeout=LAST,
    )  # fmt: skip
