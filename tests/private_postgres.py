"""A PostgreSQL server of the test's own: a temporary folder, a Unix socket, no port.

    @pytest.fixture(scope="module")
    def postgres(): yield from private_postgres.served()      # a connection string

Ground: `@needs("postgresql")`: Debian's binaries or some on PATH, and a user other than root to run
them as.
"""

from __future__ import annotations

import glob
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

PATIENCE = 30.0  # seconds


def binary(name: str) -> str | None:
    """The newest one there is."""
    found = sorted(glob.glob(f"/usr/lib/postgresql/*/bin/{name}"))
    return found[-1] if found else shutil.which(name)


def missing() -> str | None:
    """Why no server can be started here."""
    if binary("postgres") is None or binary("initdb") is None:
        return "no postgres or initdb"
    try:
        user()
    except KeyError:
        return "root may not run it, and there is no user postgres"
    return None


def user() -> dict[str, object]:
    """As whom to run it: as ourselves, or as postgres when we are root. Raises KeyError."""
    if os.geteuid() != 0:
        return {}
    found = pwd.getpwnam("postgres")
    return {"user": found.pw_uid, "group": found.pw_gid, "extra_groups": []}


def served() -> Iterator[str]:
    """The connection string of a server that runs until the generator goes on."""
    folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
    identity = user()
    try:
        if identity:
            os.chown(folder, identity["user"], identity["group"])
        made = subprocess.run(
            [binary("initdb"), "-A", "trust", "-U", "postgres", "-N", "-D", folder / "data"],
            capture_output=True, text=True, timeout=120, cwd=folder, check=False, **identity,
        )  # fmt: skip
        assert made.returncode == 0, made.stderr
        settings = {"listen_addresses": "", "unix_socket_directories": folder, "fsync": "off"}
        options = [f"-c{name}={value}" for name, value in settings.items()]
        with open(folder / "log", "wb") as log:
            server = subprocess.Popen(
                [*ended_with_us(), binary("postgres"), "-D", folder / "data", *options],
                stdout=log, stderr=log, cwd=folder, **identity,
            )  # fmt: skip
        try:
            dsn = f"host={folder} user=postgres dbname=postgres"
            wait_for(dsn, server, folder / "log")
            yield dsn
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(PATIENCE)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def ended_with_us() -> list[str]:
    """What makes the kernel end the server when this process is killed, where there is such."""
    found = shutil.which("setpriv")
    return [found, "--pdeathsig", "QUIT"] if found else []


def wait_for(dsn: str, server: subprocess.Popen[bytes], log: Path) -> None:
    """Until it answers."""
    import psycopg

    end = time.monotonic() + PATIENCE
    while True:
        try:
            psycopg.connect(dsn).close()
            return
        except psycopg.OperationalError:
            alive = server.poll() is None
            assert alive and time.monotonic() < end, log.read_text()  # noqa: PT018
            time.sleep(0.05)
