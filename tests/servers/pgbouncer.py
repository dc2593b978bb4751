"""A PgBouncer before a private PostgreSQL, transaction pooling or another. Debian's, or none."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from servers import postgres
from servers.ports import free_port

PACKAGES = ("pgbouncer", "libevent-2.1-7", "libc-ares2")
CONFIGURED = """
[databases]
test = host=127.0.0.1 port={upstream} dbname=test user=lifehold
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = {mode}
default_pool_size = 4
ignore_startup_parameters = extra_float_digits
"""


@functools.cache
def missing() -> str | None:
    return postgres.missing() or (None if program() else "PgBouncer could not be fetched")


@functools.cache
def program() -> Path | None:
    found = shutil.which("pgbouncer")
    if found:
        return Path(found)
    fetched = postgres.FETCHED / "usr/sbin/pgbouncer"
    if not fetched.exists() and shutil.which("apt-get") and shutil.which("dpkg"):
        debs = postgres.FETCHED / "pooler"
        debs.mkdir(mode=0o755, parents=True, exist_ok=True)
        subprocess.run(
            ["apt-get", "download", *PACKAGES], cwd=debs, capture_output=True, timeout=120,
            check=False,
        )  # fmt: skip
        for deb in debs.glob("*.deb"):
            subprocess.run(["dpkg", "-x", str(deb), str(postgres.FETCHED)], check=False)
    return fetched if fetched.exists() else None


@contextlib.contextmanager
def before(server: postgres.Server, mode: str = "transaction"):
    """Its URL, as long as it runs."""
    home = Path(tempfile.mkdtemp(prefix="lifehold-pooler-"))
    server.own(home)
    port = free_port()
    config = home / "pgbouncer.ini"
    config.write_text(CONFIGURED.format(upstream=server.port, port=port, mode=mode))
    config.chmod(0o644)
    who = server._run("postgres")[:-1]
    libraries = ":".join(str(path) for path in postgres.FETCHED.glob("usr/lib/*-linux-gnu*"))
    process = subprocess.Popen(
        [*who, str(program()), str(config)], cwd=home, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, env={"LD_LIBRARY_PATH": libraries, "PATH": os.environ["PATH"]},
    )  # fmt: skip
    try:
        until = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 5).close()
                break
            except OSError:
                assert process.poll() is None
                assert time.monotonic() < until
                time.sleep(0.01)
        yield f"postgresql://lifehold@127.0.0.1:{port}/test"
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(90)
        shutil.rmtree(home, ignore_errors=True)
