"""A holder that is stopped past its ttl and goes on: what becomes of its late writes, in a table.

    cd tests && PYTHONPATH=../src:. python -m soak.pause_demo [--count 100] [--peers] [--redis]

One process takes COUNT locks, reads what each guards, and is stopped (SIGSTOP). A second one waits
for each lock, and writes 100. The first goes on (SIGCONT): it asks whether it still holds each
lock, and then writes, blindly (1) and what it made of the value that it had read (value + 1).
`landed`: late writes that are in the data afterwards. `told`: holders that learned of their loss
by asking before they wrote. Peers have no token to compare, so nothing can refuse their writes.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

TTL = 4.0  # seconds


class Fenced:
    """Locks of a store, and rows behind a guard. `guarded=False`: the same without the guard."""

    def __init__(self, url: str, data: str, guarded: bool) -> None:
        from lifehold import connect

        self.store, self.guarded = connect(url, ttl=TTL), guarded
        self.data = open_data(data)

    def take(self, name: str) -> object:
        lease = self.store.lock(name, wait=60).acquire()
        if self.guarded:
            self._guard(name, lease).advance()
            self.data.commit()
        return lease

    def _guard(self, name: str, lease: object):
        from lifehold.fence import SqlFence

        return SqlFence(self.data, name, lease)

    def read(self, name: str) -> int:
        return value_of(self.data, name)

    def told(self, lease) -> bool:
        from lifehold import LeaseLost

        try:
            lease.check()
        except LeaseLost:
            return True
        return False

    def write(self, name: str, lease: object, amount: int) -> bool:
        from lifehold import StaleToken

        put(self.data, name, amount)
        try:
            if self.guarded:
                self._guard(name, lease).admit()
        except StaleToken:
            self.data.rollback()
            return False
        self.data.commit()
        return True


class Advisory:
    """pg_advisory_lock: freed by the server when it ends the session, as it does for a dead one."""

    def __init__(self, url: str, data: str, _guarded: bool) -> None:
        import psycopg

        self.session = psycopg.connect(url, autocommit=True)
        self.data = open_data(data)

    def take(self, name: str) -> str:
        self.session.execute("SELECT pg_advisory_lock(hashtext(%s))", (name,))
        return name

    def read(self, name: str) -> int:
        return value_of(self.data, name)

    def told(self, _lease: object) -> bool:
        return False  # there is nothing to ask without a round trip

    def write(self, name: str, _lease: object, amount: int) -> bool:
        put(self.data, name, amount)
        self.data.commit()
        return True


class RedisPy:
    """redis.lock.Lock with a timeout."""

    def __init__(self, url: str, data: str, _guarded: bool) -> None:
        import redis

        self.client = redis.Redis.from_url(url)
        self.data = open_data(data)

    def take(self, name: str):
        lock = self.client.lock(name, timeout=TTL)
        lock.acquire()
        return lock

    def read(self, name: str) -> int:
        return value_of(self.data, name)

    def told(self, _lease: object) -> bool:
        return False  # owned() asks the server; it was true before the pause

    write = Advisory.write


class InRedis:
    """Locks of redis-py's face, and values in the same Redis behind a guard, or without one."""

    def __init__(self, url: str, _data: str, guarded: bool) -> None:
        import redis

        self.client, self.guarded = redis.Redis.from_url(url), guarded

    def take(self, name: str):
        from lifehold.compat.redis_lock import Lock

        lock = Lock(self.client, f"lock-{name}", timeout=TTL)
        lock.acquire()
        if self.guarded:
            self._guard(lock).advance(name)
        return lock

    def _guard(self, lock: object):
        from lifehold.fence import FencedRedis

        return FencedRedis(self.client, lock)

    def read(self, name: str) -> int:
        return int(self.client.get(name) or 0)

    def told(self, lease) -> bool:
        from lifehold import LeaseLost

        try:
            lease.check()
        except LeaseLost:
            return True
        return False

    def write(self, name: str, lease: object, amount: int) -> bool:
        from lifehold import StaleToken

        if not self.guarded:
            self.client.set(name, amount)
            return True
        try:
            self._guard(lease).set(name, amount)
        except StaleToken:
            return False
        return True


class InRedisByTransaction(InRedis):
    """The same, each write in WATCH, MULTI, EXEC."""

    def write(self, name: str, lease: object, amount: int) -> bool:
        from lifehold import LeaseLost, StaleToken

        def work(pipe) -> None:
            pipe.multi()
            pipe.set(name, amount)

        try:
            self._guard(lease).transaction(work, name, tries=5)
        except (StaleToken, LeaseLost):
            return False
        return True


class RedisPyInRedis(InRedis):
    """redis.lock.Lock, and values in the same Redis."""

    def take(self, name: str):
        lock = self.client.lock(f"lock-{name}", timeout=TTL)
        lock.acquire()
        return lock

    def told(self, _lease: object) -> bool:
        return False


class PythonRedisLock(RedisPyInRedis):
    """python-redis-lock, which is renewed by a thread."""

    def take(self, name: str):
        import redis_lock

        lock = redis_lock.Lock(self.client, name, expire=int(TTL), auto_renewal=True)
        lock.acquire()
        return lock


class Pottery(RedisPyInRedis):
    """pottery's Redlock over one server."""

    def take(self, name: str):
        import pottery

        lock = pottery.Redlock(key=name, masters={self.client}, auto_release_time=TTL)
        lock.acquire()
        return lock


class Kazoo:
    """kazoo.recipe.lock.Lock, whose session the server ends; no listener is registered."""

    def __init__(self, url: str, data: str, _guarded: bool) -> None:
        from kazoo.client import KazooClient

        self.client = KazooClient(url, timeout=TTL)
        self.client.start()
        self.data = open_data(data)

    def take(self, name: str):
        lock = self.client.Lock(f"/locks/{name}", str(os.getpid()))
        lock.acquire(timeout=60)
        return lock

    def read(self, name: str) -> int:
        return value_of(self.data, name)

    def told(self, lease) -> bool:
        return not lease.is_acquired

    write = Advisory.write


WAYS = {
    "lifehold": Fenced,
    "advisory": Advisory,
    "redis-py": RedisPy,
    "kazoo": Kazoo,
    "in-redis": InRedis,
    "in-redis-watched": InRedisByTransaction,
    "redis-py-in-redis": RedisPyInRedis,
    "python-redis-lock": PythonRedisLock,
    "pottery": Pottery,
}


def open_data(data: str):
    if data.startswith("postgresql"):
        import psycopg

        return psycopg.connect(data)
    return sqlite3.connect(data, timeout=60)


def value_of(data, name: str) -> int:
    mark = "?" if isinstance(data, sqlite3.Connection) else "%s"
    (amount,) = data.execute(f"SELECT amount FROM thing WHERE name = {mark}", (name,)).fetchone()
    data.commit()
    return int(amount)


def put(data, name: str, amount: int) -> None:
    mark = "?" if isinstance(data, sqlite3.Connection) else "%s"
    data.execute(f"UPDATE thing SET amount = {mark} WHERE name = {mark}", (amount, name))


def holder(way: str, url: str, data: str, guarded: str, count: str) -> None:
    """The process that is stopped."""
    made = WAYS[way](url, data, guarded == "yes")
    names = [f"thing-{number}" for number in range(int(count))]
    held = {name: (made.take(name), made.read(name)) for name in names}
    print("ready", flush=True)
    sys.stdin.readline()
    told = late = 0
    for at, (name, (lease, seen)) in enumerate(held.items()):
        told += made.told(lease)
        late += made.write(name, lease, 1 if at % 2 else seen + 1)
    print(told, late, flush=True)
    os._exit(0)


def round_of(way: str, url: str, data: str, guarded: bool, count: int) -> tuple[int, int]:
    """(holders told, late writes that landed)."""
    words = [way, url, data, "yes" if guarded else "no", str(count)]
    child = subprocess.Popen(
        [sys.executable, "-m", "soak.pause_demo", "--holder", *words],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stdout.readline() == "ready\n"
    stop(child.pid, url)
    try:
        time.sleep(TTL)
        if way == "advisory":
            _end_sessions(url)
        mine = WAYS[way](url, data, guarded)
        names = [f"thing-{number}" for number in range(count)]
        leases = {}
        for name in names:
            leases[name] = mine.take(name)
            assert mine.write(name, leases[name], 100)
    finally:
        os.kill(child.pid, signal.SIGCONT)
    told, _ = child.communicate("go\n", timeout=120)[0].split()
    for lease in leases.values():
        if hasattr(lease, "release"):
            with suppress(Exception):  # a busy machine may have let it run out
                lease.release()
    landed = sum(mine.read(name) != 100 for name in names)
    return int(told), landed


def stop(pid: int, url: str) -> None:
    """Stop it, but not inside a transaction of SQLite, which would stop everybody."""
    os.kill(pid, signal.SIGSTOP)
    if not url.startswith("sqlite"):
        return
    path = url.removeprefix("sqlite:///")
    probe = f"import sqlite3; sqlite3.connect({path!r}, timeout=0.3).execute('BEGIN IMMEDIATE')"
    words = [sys.executable, "-c", probe]
    while subprocess.run(words, stderr=subprocess.DEVNULL, check=False).returncode:
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.1)
        os.kill(pid, signal.SIGSTOP)


def _end_sessions(url: str) -> None:
    import psycopg

    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted"
        )


def make_data(data: str, count: int) -> None:
    from lifehold.fence import create_table

    with open_data(data) as made:
        for table in ("thing", "lifehold_fence"):
            made.execute(f"DROP TABLE IF EXISTS {table}")
        made.execute("CREATE TABLE thing (name text PRIMARY KEY, amount integer)")
        made.execute(create_table())
        for number in range(count):
            made.execute(f"INSERT INTO thing VALUES ('thing-{number}', 0)")
        made.commit()


@contextmanager
def zookeeper():
    """A private one, of Debian's packages zookeeper and default-jre-headless."""
    with tempfile.TemporaryDirectory() as folder:
        with socket.socket() as port:
            port.bind(("127.0.0.1", 0))
            number = port.getsockname()[1]
        settings = Path(folder, "zoo.cfg")
        settings.write_text(
            f"tickTime=200\ndataDir={folder}\nclientPort={number}\nmaxSessionTimeout=60000\n"
            "clientPortAddress=127.0.0.1\nadmin.enableServer=false\nmaxClientCnxns=0\n"
        )
        command = ["java", "-Xmx128m", "-cp", "/usr/share/java/*",
                   "org.apache.zookeeper.server.ZooKeeperServerMain", str(settings)]  # fmt: skip
        server = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder
        )
        try:
            until = time.monotonic() + 30
            while time.monotonic() < until:
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", number)) == 0:
                        break
                time.sleep(0.1)
            yield f"127.0.0.1:{number}"
        finally:
            server.terminate()
            server.wait()


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--count", type=int, default=100)
    given.add_argument("--peers", action="store_true", help="advisory locks, redis-py, kazoo")
    given.add_argument("--redis", action="store_true", help="values in Redis, alone")
    given.add_argument("--holder", nargs=5, help=argparse.SUPPRESS)
    words = given.parse_args()
    if words.holder:
        holder(*words.holder)
    from servers import postgres

    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        if words.redis:
            show(redis_cases(in_redis(stack)), words.count)
            return
        server = stack.enter_context(postgres.started())
        plain = f"{Path(folder)}/data.db"
        cases = [
            ("lifehold, sqlite", "lifehold", f"sqlite:///{folder}/locks.db", plain, True),
            ("the same, no guard", "lifehold", f"sqlite:///{folder}/locks.db", plain, False),
            ("lifehold, postgresql", "lifehold", server.url, server.url, True),
            ("the same, no guard", "lifehold", server.url, server.url, False),
        ]
        if words.peers:
            cases.append(("pg_advisory_lock", "advisory", server.url, server.url, False))
            cases.append(("redis-py Lock", "redis-py", in_redis(stack), plain, False))
            zoo = stack.enter_context(zookeeper())
            cases.append(("kazoo Lock", "kazoo", zoo, plain, False))
        show(cases, words.count)


def in_redis(stack: ExitStack) -> str:
    """The URL of a private one."""
    from servers import redis

    return stack.enter_context(redis.started()).url


def redis_cases(url: str) -> list[tuple[str, str, str, str, bool]]:
    """Values in Redis: behind our guards, without one, and beside locks that have no token."""
    return [
        ("lifehold's redis_lock, FencedRedis", "in-redis", url, "", True),
        ("the same, WATCH and MULTI", "in-redis-watched", url, "", True),
        ("the same, no guard", "in-redis", url, "", False),
        ("redis-py Lock", "redis-py-in-redis", url, "", False),
        ("python-redis-lock, auto_renewal", "python-redis-lock", url, "", False),
        ("pottery Redlock, one server", "pottery", url, "", False),
    ]


def show(cases: list[tuple[str, str, str, str, bool]], count: int) -> None:
    rows = []
    for name, way, url, data, guarded in cases:
        if data:
            make_data(data, count)
        elif url.startswith("redis"):
            import redis

            with redis.Redis.from_url(url) as client:
                client.flushall()
        told, landed = round_of(way, url, data, guarded, count)
        rows.append((name, landed, count - landed, told))
        print(f"{name}: {landed} landed, {told} told", file=sys.stderr)
    print("| locks | late writes | landed | refused | holders told by asking |")
    print("|---|---|---|---|---|")
    for name, landed, refused, told in rows:
        print(f"| {name} | {count} | {landed} | {refused} | {told} |")


if __name__ == "__main__":
    main()
