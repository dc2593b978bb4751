"""Every store keeps the rules: one suite, over the stores of ours and over two toys."""

from __future__ import annotations

import itertools
import os
import threading
import time
import unicodedata

import pytest

import toystores as toys
from lifehold import CorruptRecord, InvalidArgument, connect, registry
from lifehold.core.backend import Given, Order, Refused, Request, Traits
from lifehold.core.deadline import terms
from lifehold.core.grant import Grant, Unknown
from lifehold.core.owner import Owner
from lifehold.core.value import replace
from lifehold.runtime.blocking import BLOCKING, finish
from lifehold.store.engine import StoreLock
from lifehold.store.memory import Memory
from lifehold.store.rules import LockState
from lifehold.store.site import Site
from lifehold.store.sqlite.backend import Sqlite
from lifehold.store.sqlite.database import Database
from lifehold.testing import backends, histories
from lifehold.testing.backends import (
    CLAIMED,
    ClaimBroken,
    ComingClient,
    StoreCase,
    StoreSubject,
    cases,
)
from lifehold.testing.histories import play


def memory():
    backend = Memory()
    return Site("memory://", backend, backend)


class Set:
    """A clock that a history sets."""

    at = 0.0

    def now(self):
        return self.at

    def utc_us(self):
        return int(self.at * 1e6)

    def set(self, at):
        self.at = at


SUBJECTS = {
    "memory": StoreSubject("memory", memory),
    "table": StoreSubject("table", toys.table),
    "session": StoreSubject("session", toys.session),
}


@pytest.mark.parametrize("case", [c for s in SUBJECTS.values() for c in cases(s)], ids=str)
def test_it_keeps_the_rules(case):
    if why := case.why_not():
        pytest.skip(why)
    case.run()


@pytest.mark.parametrize("number", range(len(cases(SUBJECTS["memory"]))))
def test_sqlite_keeps_the_rules(number, tmp_path):
    subject = StoreSubject("sqlite", lambda: connect(f"sqlite:///{tmp_path}/locks.db")._site)
    cases(subject)[number].run()


@pytest.fixture(scope="module")
def pg_rules(pg_server):
    # The tests of a module may be shared out anew between processes: then it is made twice.
    pg_server.execute("DROP DATABASE IF EXISTS kept_rules WITH (FORCE)", "postgres")
    pg_server.execute("CREATE DATABASE kept_rules", "postgres")
    return pg_server.at("kept_rules")


@pytest.mark.parametrize("number", range(len(cases(SUBJECTS["memory"]))))
def test_postgresql_keeps_the_rules(number, pg_rules):
    subject = StoreSubject("postgresql", lambda: connect(pg_rules, create=True)._site)
    cases(subject)[number].run()


def claimed(name):
    return next(each for each in CLAIMED if each.name == name)


@pytest.mark.parametrize("seed", range(8))
def test_histories_in_which_leases_run_out_are_answered_to_the_last_digit(seed, tmp_path):
    times = Set()
    file = Database(str(tmp_path / "x.db"), busy=30.0, synchronous="normal", shared=False)
    play(Sqlite(file, times.now, times.utc_us), seed, 150, times.set)
    play(Memory(times.now, times.utc_us), seed, 150, times.set)
    file.close()


def test_a_history_on_a_slow_machine_differs_by_nobody_who_was_called_and_is_late(monkeypatch):
    ticks = itertools.count(7000.0, 0.004)
    monkeypatch.setattr(histories.clock, "now", lambda: next(ticks))
    for seed in range(3):
        play(Memory(histories.clock.now, lambda: int(next(ticks) * 1e6)), seed, 250)


class Undeclared(toys.TableStore):
    """The table, which does not say what it lacks."""

    traits = Traits()


def test_a_store_that_does_not_say_what_it_lacks_fails(monkeypatch):
    monkeypatch.setattr(backends, "PATIENT", 0.5)
    subject = StoreSubject("undeclared", lambda: Site("toy://", Undeclared(), toys.Silent()))
    with pytest.raises(ClaimBroken):
        StoreCase(subject, claimed("who_leaves_calls_who_waits")).run()


class UndeclaredSession(toys.SessionStore):
    """It ends leases by itself and does not say so: a watch never ends one."""

    traits = Traits(lacks=toys.SessionStore.traits.lacks)


def test_a_watch_that_the_store_does_not_believe_does_not_make_waiters_ask_without_pause():
    def opened():
        backend = UndeclaredSession()
        return Site("toy://", backend, backend)

    name = "a_holder_that_renews_is_not_robbed_and_waiters_ask_seldom"
    StoreCase(StoreSubject("undeclared", opened), claimed(name)).run()


class Forgetful(Memory):
    """It gives a nonce that asks again another grant, and tokens that do not grow."""

    traits = Traits("at once")

    async def release(self, name, nonce):
        found = await super().release(name, nonce)
        del self._locks[name]
        return found

    def _lock(self, name):
        return super()._lock(name).at(self._now(), "", 0)


@pytest.mark.parametrize(
    "name",
    [
        "tokens_grow_over_releases_breaks_and_bumps",
        "it_answers_as_the_reference_does_in_history_1",
    ],
)
def test_a_store_that_forgets_its_tokens_fails(name):
    def forgetful():
        backend = Forgetful()
        return Site("toy://", backend, backend)

    case = next(each for each in cases(StoreSubject("x", forgetful)) if each.claim.name == name)
    with pytest.raises(ClaimBroken):
        case.run()


class RenewsShort(Memory):
    """A renewal is kept for a quarter of what was asked for."""

    async def renew(self, many):
        return await super().renew([replace(one, ttl=one.ttl / 4) for one in many])


class RenewsShortWatched(toys.TableStore):
    """The same where the holder is watched."""

    async def renew(self, many):
        return await super().renew([replace(one, ttl=one.ttl / 4) for one in many])


class Confuses(toys.TableStore):
    """Names that differ are one item: what `of` makes of them."""

    def __init__(self, of):
        super().__init__()
        self.of = of

    def _step(self, name, work):
        return super()._step(self.of(name), work)

    async def look(self, names, prefix=""):
        look = super().look
        found = [(name, await look((self.of(name),))) for name in names]
        return tuple(replace(state, name=name) for name, states in found for state in states)


class Refuses(toys.TableStore):
    """It takes no name whose bytes it does not like."""

    async def acquire(self, request):
        if len(request.name) > 100 or request.name != request.name.strip().lower():
            raise InvalidArgument("no such names here")
        return await super().acquire(request)


def over(backend):
    """One case: a claim about a store of its own."""
    waker = backend if isinstance(backend, Memory) else toys.Silent()
    return lambda name: StoreCase(
        StoreSubject("toy", lambda: Site("toy://", backend, waker)), claimed(name)
    )


class LooksFirst(toys.TableStore):
    """GET, decide, SET without a comparison: whoever comes in between is overwritten."""

    async def acquire(self, request):
        text = self.table.get(request.name)[1]
        state = LockState(request.name) if text is None else LockState.read(request.name, text)
        answer = state.at(0.0, os.urandom(4).hex(), 0).acquire(request)
        if isinstance(answer, Given):
            self.set(request.name, state.text())
        return answer

    def set(self, name, text):
        time.sleep(0.001)  # a round trip
        with self.table.mutex:
            version = self.table.items.get(name, (0, None))[0]
            self.table.items[name] = version + 1, text


@pytest.mark.parametrize(
    "name",
    [
        "of_those_who_ask_at_once_one_comes_in",
        "of_those_who_ask_at_once_each_has_its_own_slot",
        "of_those_who_ask_at_once_no_writer_is_beside_a_reader",
    ],
)
def test_a_store_that_looks_before_it_sets_fails(name):
    with pytest.raises(ClaimBroken, match="L1"):
        over(LooksFirst())(name).run()


def test_clients_that_are_in_beside_each_other_are_seen():
    def lock():
        backend = Memory()
        return StoreLock(Site("toy://", backend, backend), "x", BLOCKING, terms(60.0))

    order = []
    ComingClient(lock(), order, stay=True).home()
    with pytest.raises(ClaimBroken, match="two are in"):
        ComingClient(lock(), order).home()


@pytest.mark.parametrize("store", [RenewsShort, RenewsShortWatched])
def test_a_store_that_renews_for_less_than_was_asked_fails(store):
    with pytest.raises(ClaimBroken, match="after a renewal"):
        over(store())("a_renewal_counts_for_its_whole_ttl").run()


def test_a_holder_that_the_machine_lets_renew_too_late_is_played_again(monkeypatch):
    pauses, mine = [], threading.get_ident()

    def pause(seconds):
        if threading.get_ident() != mine:  # a thread that another test has left pauses, too
            return time.sleep(seconds)
        pauses.append(seconds)
        return time.sleep(seconds if len(pauses) > 1 else 2 * backends.SHORT)

    monkeypatch.setattr(backends.clock, "pause", pause)
    over(Memory())("a_renewal_counts_for_its_whole_ttl").run()
    assert pauses[:2] == [backends.SHORT / 4] * 2


@pytest.mark.parametrize(
    "of",
    [
        lambda name: name[:40],
        lambda name: name[:199],
        str.lower,
        str.rstrip,
        lambda name: unicodedata.normalize("NFC", name),
    ],
    ids=["cut", "cut late", "case", "space", "letters"],
)
def test_a_store_in_which_two_names_are_one_lock_fails(of):
    with pytest.raises(ClaimBroken):
        over(Confuses(of))("names_that_differ_in_anything_are_two_locks").run()


def test_a_store_that_refuses_a_name_or_keeps_them_apart_passes():
    for backend in (Confuses(str), Refuses()):
        over(backend)("names_that_differ_in_anything_are_two_locks").run()


# ------------------------------------------------------------------------------------------------
# What the shape of stores without SQL buys.


@pytest.fixture
def offered():
    registry.STORES["toy-session"], registry.STORES["toy-table"] = (
        "toystores:session",
        "toystores:table",
    )
    yield
    del registry.STORES["toy-session"], registry.STORES["toy-table"]


def test_a_store_is_added_by_a_row(offered):
    store = connect("toy-table://one", ttl=2)
    with store.lock("a", wait=0) as first:
        assert store.holders("a")[0].token == first.token
    with store.lock("a", wait=0) as second:
        assert second.token > first.token
    assert "it lacks clock" in str(store.ground())


def test_a_shorter_ttl_ends_the_lease_earlier_and_renews_it_more_often(offered):
    store = connect("toy-session://two", ttl=300)
    with store.lock("a", wait=0) as lease:
        assert lease.remaining() < toys.SessionStore.longest
        assert lease._kept.terms.heartbeat < toys.SessionStore.longest / 2


def locks_of(site, *names):
    return [StoreLock(site, name, BLOCKING, terms(30.0)) for name in names]


def test_one_lease_without_an_answer_leaves_the_others_as_they_are():
    site = toys.session()
    locks = locks_of(site, "here", "there")
    grants = [lock.attempt() for lock in locks]
    site.backend.away = "there"
    answers = finish(locks[0].renew_many(list(zip(locks, grants, strict=True))))
    assert [type(each) for each in answers] == [Grant, Unknown]


def test_what_a_store_lacks_is_refused_by_name(offered):
    session, table = connect("toy-session://three"), connect("toy-table://three")
    with pytest.raises(InvalidArgument, match=r"lock_delay.*gone at once"):
        session.lock("a", lock_delay=2.0)
    with pytest.raises(InvalidArgument, match=r"fair=True.*a place in line"):
        table.lock("a", fair=True)
    table.lock("a")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"token": 1}',
        '{"token": "1", "capacity": 1, "kept": null, "holders": [], "queue": []}',
        '{"token": true, "capacity": 1, "kept": null, "holders": [], "queue": []}',
        '{"token": 1, "capacity": 1, "kept": [1], "holders": [], "queue": []}',
        '{"token": 1, "capacity": 1, "kept": null, "holders": [{}], "queue": []}',
        '{"token": 1, "capacity": 1, "kept": null, "holders": [], "queue": [7]}',
        '{"token": 1, "capacity": 1, "kept": null, "holders": "", "queue": []}',
        '{"token": 1, "capacity": 1, "kept": null, "holders": {}, "queue": []}',
        '{"token": 1, "capacity": 1, "kept": 0, "holders": [], "queue": []}',
        '{"token": 1, "capacity": 0, "kept": null, "holders": [], "queue": []}',
        '{"token": 9223372036854775807, "capacity": 1, "kept": null, "holders": [], "queue": []}',
        "[" * 100_000,
    ],
    ids=range(15),
)
def test_a_text_that_is_no_state_is_named_with_a_remedy(text):
    with pytest.raises(CorruptRecord, match=r"'jobs'.*remove that item") as caught:
        LockState.read("jobs", text)
    assert caught.value.name == "jobs"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('"ends_at": 14.5', '"ends_at": NaN'),
        ('"ends_at": 14.5', f'"ends_at": 1{"0" * 400}'),
        ('"weight": 1', '"weight": -1'),
        ('"ttl": 9, "owner"', '"ttl": "x", "owner"'),
        ('"delay": 0.0', '"delay": null'),
        ('"shared": true', '"shared": 1'),
    ],
)
def test_one_wrong_member_lets_nobody_in(before, after):
    state = LockState("jobs").at(5.0, "clock", 7_000_000)
    me = Owner(12, "host")
    state.acquire(Request("jobs", "a", 9.5, me, capacity=2, shared=True, delay=0.5))
    state.acquire(Request("jobs", "b", 9, me, capacity=2, weight=2, wait=True, handoff_id="h"))
    text = state.text()
    assert before in text
    with pytest.raises(CorruptRecord, match="nobody can tell who holds it"):
        LockState.read("jobs", text.replace(before, after))


def test_the_text_of_a_state_tells_all_of_it():
    state = LockState("jobs").at(5.0, "clock", 7_000_000)
    me = Owner(12, "hôst\udcff", label="nightly")
    asked = Request("jobs", "a", 9.5, me, capacity=2, shared=True, delay=0.5)
    assert isinstance(state.acquire(asked), Given)
    waiting = Request("jobs", "b", 9, me, capacity=2, weight=2, wait=True, handoff_id="h")
    assert isinstance(state.acquire(waiting), Refused)
    state.order(Order("keep", "jobs", 1, "a result"))
    again = LockState.read("jobs", state.text()).at(6.0, "clock", 8_000_000)
    assert again.text() == state.text()
    state.at(6.0, "clock", 8_000_000)
    assert again.state() == state.state()
    assert again.queue[0].asked == state.queue[0].asked == waiting
    assert [state.release("a"), again.release("a")] == [True, True]
    assert again.handed == state.handed != []
