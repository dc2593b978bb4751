"""`once` on stores: what is kept is the store's, and a late writer is refused by it."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import lifehold
from ground import needs
from lifehold import connect, once
from lifehold.aio import aonce
from lifehold.recipes.once import OnceRules, forget
from lifehold.recipes.once_results import StoreResults


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=needs("postgres"))])
def url(request, tmp_path):
    if request.param == "postgres":
        return f"{request.getfixturevalue('pg_url')}#job"
    where = {"memory": f"memory://{tmp_path}", "sqlite": f"sqlite:///{tmp_path}/x.db"}
    return f"{where[request.param]}#job"


def test_one_runs_and_the_others_get_its_value(url):
    runs = []

    def work():
        runs.append(1)
        return {"answer": len(runs)}

    assert [once(url, work) for _ in range(3)] == [{"answer": 1}] * 3
    assert forget(url)
    assert not forget(url)
    assert once(url, work) == {"answer": 2}


def test_a_failure_is_the_same_for_all(url):
    def fail():
        raise ValueError("no")

    with pytest.raises(lifehold.OnceFailed, match="ValueError: no"):
        once(url, fail, keep_failure=60)
    with pytest.raises(lifehold.OnceFailed, match="ValueError: no"):
        once(url, lambda: 1, keep_failure=60)


def test_it_is_awaited_too(url):
    import asyncio

    async def both():
        async def work():
            return 7

        return await aonce(url, work), await aonce(url, work)

    assert asyncio.run(both()) == (7, 7)


def test_who_has_lost_the_lease_leaves_no_result(url):
    where, _, name = url.partition("#")
    store = connect(where)
    late = store.lock(name).acquire()
    run = StoreResults(url).begin(late.token, late.check)
    store.break_(name, "it hangs")
    assert once(url, lambda: "later") == "later"
    with pytest.raises(lifehold.LeaseLost, match="a later run has begun"):
        run.publish(b"late")
    assert once(url, lambda: "anew") == "later"
    with pytest.raises(lifehold.LeaseLost):
        late.release()


def test_what_is_kept_is_not_read_by_who_lists_the_store(url):
    where, _, name = url.partition("#")
    once(url, lambda: "x" * 100)
    (state,) = connect(where).states()
    assert (state.name, state.kept) == (name, None)


def test_a_result_too_large_for_a_store_is_a_failure_for_all_and_runs_once(url, monkeypatch):
    arrive, come, runs = OnceRules.arrive, threading.Barrier(4), []

    def arrived(rules):
        seen = arrive(rules)
        come.wait(60)
        return seen

    def work():
        runs.append(1)
        return "x" * 2_000_000

    def call(_):
        try:
            return once(url, work)
        except lifehold.LifeholdError as error:
            return error

    monkeypatch.setattr(OnceRules, "arrive", arrived)
    with ThreadPoolExecutor(3) as pool:
        answers = pool.map(call, range(3))
        come.wait(60)
        kinds = sorted(type(each).__name__ for each in answers)
    assert kinds == ["OnceFailed", "OnceFailed", "ResultRefused"]
    assert runs == [1]


def test_the_longest_failure_fits_into_a_store(url):
    def fail():
        raise ValueError("\U0001f600" * 70_000)

    for _ in range(2):
        with pytest.raises(lifehold.OnceFailed) as caught:
            once(url, fail, keep_failure=None)
        assert not [note for note in getattr(caught.value, "__notes__", ()) if "told" in note]
    assert not caught.value.here


def test_a_text_that_no_run_has_left_is_no_result(tmp_path):
    url = f"sqlite:///{tmp_path}/x.db#job"
    once(url, lambda: 1)
    with contextlib.closing(sqlite3.connect(tmp_path / "x.db")) as database, database:
        database.execute("UPDATE lifehold_kept SET text = 'abc'")
    assert [once(url, lambda: 2), once(url, lambda: 3)] == [2, 2]
