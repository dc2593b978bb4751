"""PostgreSQL whose disk is full: an error that says so, and nothing held that nobody has."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

import pytest

from crash.terrain import mounted
from ground import needs
from lifehold import LeaseLost, LifeholdError, NotAcquired, StoreUnavailable, connect
from servers import postgres

pytestmark = needs("postgres", "root", "tmpfs")
LABEL = os.urandom(900).hex()  # no compression makes it small, so that few leases fill a disk


@pytest.fixture
def folder():
    """One that the server's user can reach, as it cannot reach `tmp_path`."""
    with tempfile.TemporaryDirectory(prefix="lifehold-pg-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@contextlib.contextmanager
def filled(folder):
    """Not a byte is left in it."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"\0" * 4096)
    try:
        yield
    finally:
        filler.unlink()


def test_a_full_disk_of_the_tables_refuses_and_is_said_so(pg_server, folder):
    with mounted(folder / "small", "-t", "tmpfs", "-o", "size=32m", "none") as disk:
        pg_server.own(disk)
        pg_server.execute(f"CREATE TABLESPACE small LOCATION '{disk}'", "postgres")
        pg_server.execute("CREATE DATABASE small TABLESPACE small STRATEGY file_copy", "postgres")
        try:
            play(pg_server, disk)
        finally:
            pg_server.execute("DROP DATABASE small WITH (FORCE)", "postgres")
            pg_server.execute("DROP TABLESPACE small", "postgres")


def play(server, disk):
    store = connect(server.at("small"))
    held = store.lock("held", wait=0).acquire()
    leases, refused = [], []
    with filled(disk):
        for number in range(3000):
            try:
                leases.append(store.lock(f"new/{number}", wait=0, label=LABEL).acquire())
            except StoreUnavailable as error:
                refused.append((f"new/{number}", str(error)))
                if len(refused) == 3:
                    break
        assert len(refused) == 3
        assert all("its disk is full: free some space, nothing was changed" in text
                   for _, text in refused)  # fmt: skip
        held.check()
        for name, _ in refused:
            assert store.inspect(name) is None
        with pytest.raises(NotAcquired):  # reading goes on
            store.lock("held", wait=0).acquire()
    for name, _ in refused:
        store.lock(name, wait=0).acquire().release()
    for lease in [held, *leases]:
        lease.verify()
        lease.release()
    assert not any(state.holders for state in store.states())


@pytest.fixture
def cramped(folder):
    """A server whose log has a small disk of its own."""
    with mounted(folder / "log", "-t", "tmpfs", "-o", "size=6m", "none") as disk:
        server = postgres.Server(
            folder / "home",
            min_wal_size="2MB",
            max_wal_size="64MB",
            checkpoint_timeout="1h",
            fsync="on",
        )  # no checkpoint makes room meanwhile
        server.home.mkdir()
        server.own(server.home)
        wal = disk / "wal"
        wal.mkdir()
        server.own(wal)
        server.command(
            "initdb", "-D", str(server.data), "-X", str(wal), "--wal-segsize=1", "-A", "trust",
            "-U", "lifehold", "-E", "UTF8", "--locale=C", "--no-sync", "--no-instructions",
        )  # fmt: skip
        try:
            server.start()
            server.execute("CREATE DATABASE test", "postgres")
            yield server, disk
        finally:
            postgres.remove(server)


def test_a_full_disk_of_the_log_stops_the_server_and_nobody_believes_what_is_not_so(cramped):
    """It panics, comes back or not; what was told to be ours is ours, what was refused is not."""
    server, disk = cramped
    store = connect(server.url, timeout=3)
    leases, refused = {}, {}
    with filled(disk):
        for number in range(5000):
            name = f"new/{number}"
            try:
                leases[name] = store.lock(name, wait=0, ttl=600, label=LABEL).acquire()
            except LifeholdError as error:
                refused[name] = error
                if len(refused) == 3:
                    break
        assert len(refused) == 3
        assert all(isinstance(error, StoreUnavailable) for error in refused.values())
        next(iter(leases.values())).check()  # suspended is not lost
    with contextlib.suppress(Exception):
        server.kill()
    server.start()
    found = {state.name: state for state in store.states() if state.holders}
    for name, lease in leases.items():
        assert found[name].token == lease.token
        lease.verify()
    for name, error in refused.items():
        if name in found:  # it may have been carried out, and was said to be unknown
            assert error.nonce.startswith(found[name].holders[0].nonce)
    for lease in leases.values():
        with contextlib.suppress(LeaseLost):
            lease.release()
