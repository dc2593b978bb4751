"""A holder that is stopped past its ttl, a successor, and what becomes of the late writes.

One process holds a hundred leases, of file locks and of stores in turn, moves the fence of a hundred things per guard and reads them; it
is stopped between that and its writes. Its successor takes the hundred locks over, moves every
fence, and writes half of the things. Then the first one goes on, and writes all of them twice:
blindly, and what it made of the value that it had read. Without a guard all of that lands.
"""

from __future__ import annotations

import asyncio
import errno
import http.client
import os
import sqlite3
import threading
from contextlib import contextmanager
from wsgiref.simple_server import WSGIRequestHandler, make_server

import pytest

from crash.terrain import as_nobody, folder_for_all, in_a_child, refusal_of, result
from ground import missing, needs, require
from lifehold import AsyncLock, LeaseLost, LifeholdError, Lock, StaleToken
from lifehold.fence import (
    FencedFile,
    FencedObject,
    FenceWSGI,
    FileTokens,
    FolderObjects,
    RowFence,
    SessionFence,
    SqlFence,
    create_table,
)
from lifehold.testing.crash import Child, point

COUNT = 100
TTL = {"ttl": 1.0, "heartbeat": 0.2, "margin": 0.2}
STORES = {"sqlite": "package:lifehold.store.sqlite",
          "postgresql": "package:lifehold.store.postgres"}  # fmt: skip
GROUND = {"session": "package:sqlalchemy", "postgresql rows": "postgres",
          "postgresql table": "postgres"}  # fmt: skip
ROWS = [
    "create table account (id integer primary key, amount integer, fence bigint)",
    create_table(),
    *(f"insert into account values ({number}, 0, 0)" for number in range(COUNT)),
]


class Bare:
    """No guard at all: the control."""

    def __init__(self, folder):
        self.folder = folder

    def path(self, number):
        return self.folder / f"bare-{number}"

    def advance(self, number, token):
        pass

    def read(self, number, token):
        path = self.path(number)
        return int(path.read_text()) if path.exists() else 0

    def write(self, number, token, amount):
        self.path(number).write_text(str(amount))


class Rows:
    """A fence in each row."""

    def __init__(self, connection):
        self.connection = connection

    def advance(self, number, token):
        with self.transaction():
            RowFence(self.connection, "account", token).advance(number)

    def read(self, number, token):
        with self.transaction():
            found = self.connection.execute(f"select amount from account where id = {number}")
            return found.fetchone()[0]

    def write(self, number, token, amount):
        row = RowFence(self.connection, "account", token)
        with self.transaction():
            done = self.connection.execute(
                f"update account set amount = {amount}, {row.set} "
                f"where id = {number} and {row.where}",
                row.parameters,
            )
            row.wrote(done)

    @contextmanager
    def transaction(self):
        try:
            yield
        except BaseException:
            self.connection.rollback()
            raise
        self.connection.commit()


class Table(Rows):
    """A fence in a table of its own; other things than those of Rows."""

    def advance(self, number, token):
        with self.transaction():
            SqlFence(self.connection, f"account/{number}", token).advance()

    def write(self, number, token, amount):
        with self.transaction():
            SqlFence(self.connection, f"account/{number}", token).admit()
            self.connection.execute(f"update account set amount = {amount} where id = {number}")


class Sessions:
    """SQLAlchemy."""

    def __init__(self, path):
        import sqlalchemy
        from sqlalchemy.orm import Session

        self.engine = sqlalchemy.create_engine(f"sqlite:///{path}", connect_args={"timeout": 30})
        self.connection = self.engine.connect()
        self.text, self.session = sqlalchemy.text, Session(self.connection)
        self.session.execute(self.text("pragma synchronous = off"))
        self.session.commit()

    def advance(self, number, token):
        SessionFence(self.session, f"account/{number}", token).advance()
        self.session.commit()

    def read(self, number, token):
        found = self.session.execute(self.text(f"select amount from account where id = {number}"))
        amount = found.scalar_one()
        self.session.rollback()
        return amount

    def write(self, number, token, amount):
        try:
            with SessionFence(self.session, f"account/{number}", token):
                pay = f"update account set amount = {amount} where id = {number}"
                self.session.execute(self.text(pay))
                self.session.commit()
        except BaseException:
            self.session.rollback()
            raise

    def close(self):
        self.session.close()
        self.connection.close()
        self.engine.dispose()


class Things:
    """Files, or objects: `make(number, token)` is the guard."""

    def __init__(self, make):
        self.make = make

    def advance(self, number, token):
        self.make(number, token).advance()

    def read(self, number, token):
        return int(self.make(number, token).read().data or 0)

    def write(self, number, token, amount):
        self.make(number, token).write(b"%d" % amount)


class Http:
    """A service behind the middleware."""

    def __init__(self, port):
        self.port = port

    def ask(self, method, number, token, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, f"/{number}", body, {"Lifehold-Token": str(token)})
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        if answer.status == 412:
            raise StaleToken(text.decode())
        assert answer.status == 200, text
        return int(text)

    def advance(self, number, token):
        self.ask("GET", number, token)

    def read(self, number, token):
        return self.ask("GET", number, token)

    def write(self, number, token, amount):
        self.ask("PUT", number, token, str(amount))


def service(folder):
    """The application behind the middleware, on a port of its own, not yet served."""
    amounts = {}

    def app(environ, start_response):
        if environ["REQUEST_METHOD"] == "PUT":
            length = int(environ["CONTENT_LENGTH"])
            amounts[environ["PATH_INFO"]] = int(environ["wsgi.input"].read(length))
        start_response("200 OK", [])
        return [str(amounts.get(environ["PATH_INFO"], 0)).encode()]

    class Silent(WSGIRequestHandler):
        def log_message(self, *_):
            pass

    registry = FileTokens(folder / "tokens", durable=False)
    guarded = FenceWSGI(app, name=lambda environ: environ["PATH_INFO"], registry=registry)
    return make_server("127.0.0.1", 0, guarded, handler_class=Silent)


@contextmanager
def guards(folder, dsn, port):
    """All of them by name, with connections of this process."""
    opened = []

    def sqlite(name):
        connection = sqlite3.connect(folder / name, timeout=30)
        connection.execute("pragma synchronous = off")
        opened.append(connection)
        return connection

    objects = FolderObjects(folder / "objects", durable=False)
    found = {
        "none": Bare(folder),
        "rows": Rows(sqlite("rows.db")),
        "table": Table(sqlite("table.db")),
        "file": Things(lambda n, token: FencedFile(folder / f"file-{n}", token, durable=False)),
        "object": Things(lambda n, token: FencedObject(objects, str(n), token)),
        "http": Http(port),
    }
    if missing(GROUND["session"]) is None:
        found["session"] = Sessions(folder / "session.db")
        opened.append(found["session"])
    if dsn:
        import psycopg

        for name, kind in (("postgresql rows", Rows), ("postgresql table", Table)):
            schema = name.rpartition(" ")[2]
            opened.append(psycopg.connect(dsn, options=f"-csearch_path=fence_{schema}"))
            found[name] = kind(opened[-1])
    try:
        yield found
    finally:
        for each in opened:
            each.close()


def prepared(folder, dsn):
    """The tables, with a hundred things in each."""
    for name in ("rows.db", "table.db", "session.db"):
        connection = sqlite3.connect(folder / name)
        for text in ROWS:
            connection.execute(text)
        connection.commit()
        connection.close()
    if dsn:
        import psycopg

        for schema in ("fence_rows", "fence_table"):
            with psycopg.connect(dsn, options=f"-csearch_path={schema}") as connection:
                connection.execute(f"create schema {schema}")
                for text in ROWS:
                    connection.execute(text)


def locked(face, folder, dsn, number):
    """The lock of a thing: mostly of files, some of stores."""
    if number % 10 == 0:
        return face(f"sqlite:///{folder}/leases.db#{number}", **TTL)
    if number % 10 == 5 and dsn:
        return face(f"{dsn}#{number}", **TTL)
    kind = "generation" if number % 2 else "soft"
    return face(folder / f"{number}.lock", kind=kind, **TTL)


def late_writer(folder, dsn, port):
    """The holder that is stopped between its reads and its writes."""
    leases = [locked(Lock, folder, dsn, number).acquire(30) for number in range(COUNT)]
    seen = {}
    with guards(folder, dsn, port) as found:
        for name, guard in found.items():
            for number, lease in enumerate(leases):
                guard.advance(number, lease.token)
                seen[name, number] = guard.read(number, lease.token)
        point("held")
        outcome = {}
        for name, guard in found.items():
            for form in ("blind", "made of what was read"):
                landed = 0
                for number, lease in enumerate(leases):
                    amount = 1000 if form == "blind" else seen[name, number] + 1
                    try:
                        guard.write(number, lease.token, amount)
                        landed += 1
                    except StaleToken:
                        pass
                outcome[f"{name}, {form}"] = landed
    told = 0
    for lease in leases:
        try:
            lease.check()
        except LeaseLost:
            told += 1
        try:
            lease.release()
        except LifeholdError:
            pass
    point("over", [outcome, told])


def successor(folder, dsn, port):
    """Takes all the locks over, moves every fence, and writes half of the things."""

    async def acquired():
        locks = [locked(AsyncLock, folder, dsn, number) for number in range(COUNT)]
        return await asyncio.gather(*(lock.acquire(120) for lock in locks))

    async def succeed():
        leases = await acquired()
        tokens = [lease.token for lease in leases]
        with guards(folder, dsn, port) as found:
            for guard in found.values():
                for number, token in enumerate(tokens):
                    guard.advance(number, token)
                    if number % 2:
                        guard.write(number, token, guard.read(number, token) + 100)
        point("succeeded", tokens)
        for lease in leases:
            try:
                await lease.release()
            except LifeholdError:
                pass  # of a busy machine: nobody came after, and the tokens are as good

    asyncio.run(succeed())


def amounts(folder, dsn, port, tokens):
    """What is in the things at the end, by guard."""
    with guards(folder, dsn, port) as found:
        return {
            name: [guard.read(number, token) for number, token in enumerate(tokens)]
            for name, guard in found.items()
        }


@pytest.fixture(scope="module")
def database():
    """The URL of a PostgreSQL of our own, "" where there can be none."""
    if missing("postgres") is not None:
        yield ""
        return
    from servers import postgres

    with postgres.started() as server:
        yield server.url


@pytest.fixture(scope="module")
def played(tmp_path_factory, database):
    """(what landed of the late writes, how many leases were told lost, what is there at the end)"""
    folder = tmp_path_factory.mktemp("late")
    prepared(folder, database)
    with service(folder) as server:
        port = server.server_port
        with Child(late_writer, folder, database, port) as first:
            thread = threading.Thread(target=server.serve_forever, args=(0.01,))
            thread.start()
            try:
                first.at("held", 120)
                first.stop()
                with Child(successor, folder, database, port) as second:
                    tokens = second.at("succeeded", 120)
                first.resume()
                outcome, told = first.at("over", 120)
                yield outcome, told, amounts(folder, database, port, tokens)
            finally:
                server.shutdown()
                thread.join(90)


GUARDS = ["rows", "table", "session", "file", "object", "http", *list(GROUND)[1:]]


@pytest.mark.parametrize("form", ["blind", "made of what was read"])
@pytest.mark.parametrize("guard", GUARDS)
def test_a_hundred_late_writes_of_a_hundred_are_refused(played, guard, form):
    require(*([GROUND[guard]] if guard in GROUND else []))
    outcome, _, there = played
    assert outcome[f"{guard}, {form}"] == 0
    assert there[guard] == [100 if number % 2 else 0 for number in range(COUNT)]


def test_without_a_guard_every_late_write_lands(played):
    outcome, _, there = played
    assert outcome["none, blind"] == outcome["none, made of what was read"] == COUNT
    assert there["none"] == [1] * COUNT


def test_every_holder_that_checks_after_its_pause_is_told(played):
    assert played[1] == COUNT


def stop_at_every_step(path, token, points):
    from lifehold.testing.crash import points_at_calls

    points_at_calls(points)
    FencedFile(path, token).write(b"%d" % token * 100)


STEPS = ("open", "pwrite", "fsync", "rename", "close", "lstat", "fchmod", "flock")


def test_a_writer_that_is_killed_at_any_step_leaves_whole_data_and_no_older_token(tmp_path):
    path = tmp_path / "x"
    FencedFile(path, 1).write(b"1" * 100)
    with Child(stop_at_every_step, path, 2, STEPS) as child:
        while child.step():
            pass
        steps = len(child.passed)
        assert child.end().well, child.end().error
    assert steps > 20
    token, outcomes = 2, set()
    for number in range(1, steps + 1):
        before, token = token, token + 2
        with Child(stop_at_every_step, path, token, STEPS) as child:
            for _ in range(number):
                child.step()
            child.kill()
        found = FencedFile(path).read()
        assert found.data == b"%d" % found.token * 100
        assert (found.token, found.fence) in {(before, before), (before, token), (token, token)}
        outcomes.add((found.token == token, found.fence == token))
        with pytest.raises(StaleToken):
            FencedFile(path, found.fence - 1, wait=5).write(b"late")
        FencedFile(path, token + 1, wait=5).write(b"%d" % (token + 1) * 100)
        token += 1
    assert outcomes == {(False, False), (False, True), (True, True)}
    assert [name for name in os.listdir(tmp_path) if name.endswith(".new")] == []


def write_shared(path, token):
    FencedFile(path, token, shared=True).write(b"%d" % token)


def admit_shared(folder, token):
    os.umask(0o077)
    FileTokens(folder, shared=True, durable=False).admit("payments", token)


def as_other(function, *given):
    """What the call raised of us as another user than nobody, None for nothing."""

    def other():
        os.setgroups([])
        os.setgid(1)
        os.setuid(1)
        return refusal_of(function, *given)

    return in_a_child(other)


@needs("root")
def test_a_refused_write_in_a_sticky_folder_leaves_nothing_that_shuts_out_the_owner():
    with folder_for_all(0o1777) as folder:
        path = folder / "x"
        assert result(as_nobody(refusal_of, write_shared, path, 5)) is None
        kind, text, code = as_other(write_shared, path, 6)
        assert (kind, code) == ("NotPermitted", errno.EPERM)
        assert "sticky bit" in text
        assert sorted(os.listdir(folder)) == ["x", "x.fence", "x.fence.lock"]
        assert result(as_nobody(refusal_of, write_shared, path, 7)) is None
        assert path.read_bytes() == b"7"


@needs("root")
def test_what_another_user_left_in_a_sticky_folder_shuts_nobody_out():
    with folder_for_all(0o1777) as folder:
        path = folder / "x"
        for name in ("x.fence.new", "x.fence.data.new"):
            (folder / name).write_bytes(b"of root")
        assert result(as_nobody(refusal_of, write_shared, path, 5)) is None
        assert path.read_bytes() == b"5"


@needs("root")
def test_the_folder_of_shared_tokens_is_open_to_every_user():
    with folder_for_all(0o777) as folder:
        assert result(as_nobody(refusal_of, admit_shared, folder / "tokens", 5)) is None
        assert as_other(admit_shared, folder / "tokens", 6) is None
        assert as_other(admit_shared, folder / "tokens", 5)[0] == "StaleToken"
        assert result(as_nobody(refusal_of, admit_shared, folder / "tokens", 7)) is None
