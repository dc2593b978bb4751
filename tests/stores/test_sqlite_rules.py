"""SQLite answers as the reference does, whatever is asked in whatever order."""

from __future__ import annotations

import os
import random
import sqlite3
import tempfile
from pathlib import Path

import pytest

from lifehold import connect
from lifehold.core.backend import WHOLE, Given, NoReply, Order, Refused, Renewal, Request
from lifehold.runtime import process
from lifehold.runtime.blocking import finish
from lifehold.store.memory import Memory
from lifehold.store.sqlite import rows
from lifehold.store.sqlite import schema as sql
from lifehold.store.sqlite.backend import Sqlite
from lifehold.store.sqlite.database import Database

SHAPES = [(1, 1, False), (1, 1, False), (3, 1, False), (WHOLE, 1, True), (WHOLE, WHOLE, False)]
NAMES = ["a", "b", "ü/ö#?%"]


class Times:
    """A clock that the test sets, and another that may be set back."""

    def __init__(self):
        self.at, self.utc = 1000.0, 1_700_000_000_000_000

    def now(self):
        return self.at

    def utc_us(self):
        return self.utc


@pytest.fixture
def place():
    """A folder, in memory where there is one: thousands of steps need no disk."""
    base = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=base) as folder:
        yield Path(folder)


@pytest.fixture
def files(place):
    opened = []

    def make(name="x.db", **options):
        given = {"busy": 30.0, "synchronous": "normal", "shared": False} | options
        opened.append(Database(str(place / name), **given))
        return opened[-1]

    yield make
    for file in opened:
        file.close()


def question(dice, marks, tokens):
    """One request of a random history: the method, and what it is given."""
    name, verb = dice.choice(NAMES), dice.random()
    nonce = dice.choice(marks)
    if verb < 0.55:
        capacity, weight, shared = dice.choice(SHAPES)
        gone = f"{dice.choice(marks)}:{dice.randrange(3)}" if dice.random() < 0.1 else None
        return "acquire", (Request(
            name, nonce, dice.choice([1.0, 5.0]), process.here(), capacity, weight, shared,
            dice.choice([0.0, 0.0, 2.0]), dice.random() < 0.6, dice.random() < 0.8, 3.0, "", gone,
        ),)  # fmt: skip
    if verb < 0.7:
        many = [Renewal(dice.choice(NAMES), dice.choice(marks), 4.0, dice.choice([None, None, 1]))
                for _ in range(dice.randrange(1, 5))]  # fmt: skip
        return "renew", (many,)
    if verb < 0.93:
        return "release", (name, nonce)
    order = dice.choice(["break", "bump", "keep", "forget"])
    return "order", (Order(order, name, "why", "who", dice.choice([0, 7, *tokens]), f"{verb}"),)


@pytest.mark.parametrize("seed", range(16))
def test_sqlite_answers_as_the_reference_does(seed, files, monkeypatch):
    if seed % 2:  # a line of three is long already: only a part of it is read
        monkeypatch.setattr(rows, "FEW", 2)
    dice, times = random.Random(seed), Times()
    memory = Memory(times.now, times.utc_us)
    sqlite, whole = (Sqlite(files(), times.now, times.utc_us) for _ in range(2))
    whole.file.step(lambda _: None)  # an order to break makes no tables, and notes nothing then
    # The other one does everything by transactions, as each did before one statement could do it.
    whole.take_free, whole.leave_free = (lambda _: None), (lambda *_: False)
    once, quick = sqlite.file.once, []
    sqlite.file.once = lambda *given: quick.append(once(*given)) or quick[-1]
    marks = [f"{number:016x}" for number in range((3, 12, 7, 12)[seed % 4])]
    for _ in range(250):
        held = [held.token or 0 for state in finish(memory.look(None)) for held in state.holders]
        method, given = question(dice, marks, held)
        expected = finish(getattr(memory, method)(*given))
        found = finish(getattr(dice.choice([sqlite, whole]), method)(*given))
        for each in (sqlite, whole):
            each._given_up.clear()  # the engine asks nothing more with a mark it has released
        assert _plain(found) == _plain(expected), (method, given)
        states = {state.name: state for state in finish(memory.look(NAMES)) if state.token}
        here = {state.name: state for state in finish(sqlite.look(NAMES)) if state.token}
        assert here == states
        times.at += dice.choice([0.0, 0.0, 0.3, 1.1])
        times.utc += dice.choice([0, 1, 500_000, 4_000_000, -3_000_000])
    assert seed % 4 or set(quick) == {0, 1}  # of three that ask, many find it free


def _plain(answer):
    """A name that was only asked about is known to the one store and not to the other."""
    unknown = getattr(answer, "token", 0) is None and not getattr(answer, "holders", True)
    return None if unknown else answer


def test_tokens_grow_though_utc_is_set_back(files):
    times, tokens = Times(), []
    for start in range(3):
        sqlite = Sqlite(files(f"{start // 2}.db"), times.now, times.utc_us)
        for number in range(20):
            nonce = f"{start:08x}{number:08x}"
            request = Request("a", nonce, 5.0, process.here())
            tokens.append((start // 2, finish(sqlite.acquire(request)).token))
            finish(sqlite.release("a", nonce))
            times.utc -= 1_000_000
    first = [token for file, token in tokens if file == 0]
    assert first == sorted(set(first))


def test_no_token_repeats_when_the_power_failed_and_the_clock_was_set_back(files, place):
    times = Times()
    sqlite, nonce = Sqlite(files(), times.now, times.utc_us), "f" * 16
    finish(sqlite.acquire(Request("a", nonce, 5.0, process.here())))
    finish(sqlite.release("a", nonce))
    with sqlite3.connect(place / "x.db") as db:
        before = db.execute("SELECT token FROM lifehold_names").fetchall()
    lost = []
    for number in range(50):  # what the disk does not know of
        nonce = f"{number:016x}"
        lost.append(finish(sqlite.acquire(Request("a", nonce, 5.0, process.here()))).token)
        finish(sqlite.release("a", nonce))
        times.utc += 100_000
    with sqlite3.connect(place / "x.db") as db:  # the power fails: the last steps are gone
        db.execute("UPDATE lifehold_names SET token = ?", before[0])
        db.execute("UPDATE lifehold_meta SET boot = 'the boot before'")
    times.utc -= 3600_000_000
    after = finish(sqlite.acquire(Request("a", "e" * 16, 5.0, process.here()))).token
    assert after > max(lost)


def test_the_ceiling_is_on_the_disk_before_a_token_below_it_is_given(files):
    times, seen = Times(), []
    file = files()
    sqlite = Sqlite(file, times.now, times.utc_us)
    step = file.step

    def watched(work, **how):
        if how.get("durable"):
            seen.append("durable")
        return step(work, **how)

    file.step = watched
    for number in range(3):
        nonce = f"{number:016x}"
        assert finish(sqlite.acquire(Request("a", nonce, 5.0, process.here()))).token
        seen.append("token")
        finish(sqlite.release("a", nonce))
        times.utc += 40_000_000
    assert seen == ["durable", "token", "token", "durable", "token"]


def test_a_lost_commit_is_found_again(files):
    sqlite = Sqlite(file := files())
    finish(sqlite.acquire(Request("b", "0" * 16, 5.0, process.here())))  # open, with a ceiling
    real, lost = file._db, []

    class Failing:
        """A connection whose first commit is done, and answered by an error."""

        def __getattr__(self, name):
            return getattr(real, name)

        def execute(self, statement, *given):
            answer = real.execute(statement, *given)
            if statement == "COMMIT" and not lost:
                lost.append(statement)
                error = sqlite3.OperationalError("disk I/O error")
                error.sqlite_errorcode = 10
                raise error
            return answer

    file._db = Failing()
    request = Request("a", "1" * 16, 5.0, process.here())
    with pytest.raises(NoReply):
        finish(sqlite.acquire(request))
    (state,) = finish(sqlite.look(("a",)))
    again = finish(sqlite.acquire(request))
    assert again.token == state.token
    assert len(finish(sqlite.look(("a",)))[0].holders) == 1
    file._db = real


@pytest.mark.parametrize("lost", [sql.TAKE_BELOW, sql.GO])
def test_a_lost_answer_of_one_statement_is_asked_for_again(lost, place):
    store = connect(f"sqlite:///{place}/x.db")
    lock = store.lock("a", ttl=60, wait=0)
    first = lock.acquire()
    first.release()
    file = store._site.backend.file
    real, failed = file._db, []

    class Failing:
        """A connection that carries out one statement, and answers it by an error."""

        def __getattr__(self, name):
            return getattr(real, name)

        def execute(self, statement, *given):
            answer = real.execute(statement, *given)
            if statement == lost and not failed:
                assert answer.rowcount == 1
                failed.append(statement)
                error = sqlite3.OperationalError("disk I/O error")
                error.sqlite_errorcode = 10
                raise error
            return answer

    file._db = Failing()
    lease = lock.acquire()
    assert lease.token > first.token
    assert len(finish(store._site.backend.look(("a",)))[0].holders) == 1
    lease.release()
    assert failed
    assert not finish(store._site.backend.look(("a",)))[0].holders
    store._site.backend.close()


def test_a_free_lock_is_taken_and_left_by_one_statement_each(place, monkeypatch):
    store, seen = connect(f"sqlite:///{place}/x.db"), []
    lock = store.lock("a", ttl=60, wait=0)
    lock.acquire().release()
    file = store._site.backend.file
    real = file._db

    class Counting:
        def __getattr__(self, name):
            return getattr(real, name)

        def execute(self, statement, *given):
            seen.append(statement.split()[0])
            return real.execute(statement, *given)

    monkeypatch.setattr(file, "_db", Counting())
    lock.acquire().release()
    assert seen == ["INSERT", "DELETE"]
    store._site.backend.close()


def test_a_waiter_that_came_in_meanwhile_is_not_taken_for_one_that_has_gone(files):
    """Its mark is no waiter's any more when its life is judged, and its chair must stay."""
    sqlite = Sqlite(files())
    me, mine, other = process.here(), "1" * 16, "2" * 16
    third = "3" * 16
    finish(sqlite.acquire(Request("a", third, 60.0, me)))
    wakeup = sqlite.listen(mine, lambda: None)
    finish(sqlite.acquire(Request("a", mine, 60.0, me, wait=True, wakeup=wakeup)))
    steps = []
    write = sqlite._write

    def between(work, **how):
        answer = write(work, **how)
        if not steps:  # after the step that saw it in line, before its life is judged
            steps.append(1)
            finish(sqlite.release("a", third))
            assert isinstance(finish(sqlite.acquire(Request("a", mine, 60.0, me))), Given)
            sqlite.forget(mine)
        return answer

    sqlite._write = between
    answer = finish(sqlite.acquire(Request("a", other, 60.0, me, wait=True)))
    assert isinstance(answer, Refused)
    assert finish(sqlite.release("a", mine))
    sqlite.close()


def test_a_request_that_comes_after_its_release_leaves_nothing(files):
    """Its asker was cancelled, and gave it back before the helper thread had begun."""
    sqlite, request = Sqlite(files()), Request("a", "1" * 16, 60.0, process.here(), wait=True)
    assert not finish(sqlite.release("a", request.nonce))
    assert isinstance(finish(sqlite.acquire(request)), Refused)
    (state,) = finish(sqlite.look(("a",))) or (None,)
    assert state is None or not (state.holders or state.waiters)


def test_without_a_boot_id_every_step_is_on_the_disk_and_no_instant_is_compared(files, monkeypatch):
    process._forget()
    monkeypatch.setattr(process, "boot_id", lambda: None)
    one, other = Sqlite(files()), Sqlite(files())
    given = finish(one.acquire(Request("a", "1" * 16, 60.0, process.here())))
    assert one.file.synchronous == "full"
    refused = finish(other.acquire(Request("a", "2" * 16, 60.0, process.here())))
    assert [(held.token, held.ends_in) for held in refused.holders] == [(given.token, None)]
    gone = refused.holders[0].version  # watched for its ttl
    after = finish(other.acquire(Request("a", "2" * 16, 60.0, process.here(), gone=gone)))
    assert after.token > given.token
    process._forget()


def test_a_thousand_leases_are_renewed_in_one_step(files):
    sqlite, me, begun = Sqlite(files()), process.here(), []
    marks = [f"{number:016x}" for number in range(1000)]
    for nonce in marks:
        finish(sqlite.acquire(Request(f"job-{nonce}", nonce, 60.0, me)))
    sqlite.file._db.set_trace_callback(begun.append)
    _, kept = finish(sqlite.renew([Renewal(f"job-{nonce}", nonce, 60.0) for nonce in marks]))
    assert kept == (True,) * 1000
    assert sum(text.startswith("BEGIN") for text in begun) == 1
    states = finish(sqlite.look(None, "job-"))
    assert [held.renewals for state in states for held in state.holders] == [1] * 1000
