"""`clear --force WORD` of a lease in a store ends the grant that the word names, and no other."""

from __future__ import annotations

import pytest

from ground import require
from lifehold import LeaseLost, connect
from lifehold.core.backend import Given, Request
from lifehold.core.grant import Holder
from lifehold.ops import stored
from lifehold.ops.answer import KEPT, REMOVED
from lifehold.runtime.blocking import finish
from lifehold.store.redis.scripts import keys
from patience import until

STORES = ["memory", "sqlite", "postgres", "session", "redis"]


def url_of(store, tmp_path, request):
    if store == "memory":
        return f"memory://{tmp_path}"
    if store == "sqlite":
        return f"sqlite:///{tmp_path}/a.db"
    require("redis" if store == "redis" else "postgres")
    return request.getfixturevalue("redis_url" if store == "redis" else "pg_url")


@pytest.fixture(params=STORES)
def make(request, tmp_path):
    """A maker of the same lock, again and again, in an empty store; and its URL."""
    kind = {"kind": "session"} if request.param == "session" else {}
    url = url_of(request.param, tmp_path, request)
    return lambda: connect(url).lock("job", wait=0, **kind), f"{url}#job"


def test_who_comes_while_the_holder_of_the_word_goes_is_not_broken(make, monkeypatch):
    make, url = make
    first, second = make().acquire(), []
    word = stored.clear(url).word
    broken = stored.broken

    def others_meet(*order):
        first.release()
        second.append(make().acquire())
        return broken(*order)

    monkeypatch.setattr(stored, "broken", others_meet)
    done = stored.clear(url, force=word)
    second[0].verify()
    assert (done.action, "let go meanwhile" in done.why) == (KEPT, True)
    second[0].release()


def test_the_word_ends_the_grant_that_it_names(make):
    make, url = make
    lease = make().acquire()
    assert stored.clear(url, force=stored.clear(url).word).action == REMOVED
    with pytest.raises(LeaseLost):
        lease.release()
    make().acquire().release()


@pytest.mark.parametrize("store", [each for each in STORES if each != "session"])
def test_the_word_of_a_permit_that_has_run_out_ends_nobody_elses(store, tmp_path, request):
    site = connect(url_of(store, tmp_path, request))._site
    gone, here = (
        Request("gpu", letter * 16, ttl, site.owner(""), capacity=2)
        for letter, ttl in (("a", 0.2), ("b", 3600.0))
    )
    for asked in (gone, here):
        assert isinstance(finish(site.backend.acquire(asked)), Given)
    whom = Holder(nonce=f"{gone.nonce}--")
    until(lambda: [each.nonce for each in site.state("gpu").holders] == [here.nonce])
    assert site.break_("gpu", "its word was shown", whom) is None
    assert [each.nonce for each in site.state("gpu").holders] == [here.nonce]


@pytest.mark.parametrize("store", ["postgres", "redis"])
def test_an_order_that_was_carried_out_is_told_though_another_row_is_damaged(
    store, tmp_path, request
):
    url = url_of(store, tmp_path, request)
    site = connect(url)._site
    meant, odd = (
        Request("gpu", letter * 16, 3600.0, site.owner(""), capacity=2) for letter in "ab"
    )
    for asked in (meant, odd):
        assert isinstance(finish(site.backend.acquire(asked)), Given)
    if store == "postgres":
        server = request.getfixturevalue("pg_server")
        statement = f"UPDATE lifehold_holder SET weight = -7 WHERE mark = '{odd.nonce}'"
        server.execute(statement, url.rpartition("/")[2])
    else:
        server, key = request.getfixturevalue("redis_server"), keys("gpu")[1]
        text = server.call("HGET", key, odd.nonce).split(" ")
        server.call("HSET", key, odd.nonce, " ".join(["x", *text[1:]]))
    told = site.break_("gpu", "its word was shown", Holder(nonce=f"{meant.nonce}--"))
    assert told is not None
    assert told.evidence
    assert not site.state("gpu").holders


def test_of_what_is_no_database_no_word_is_told_that_would_not_help(tmp_path):
    (tmp_path / "notes.db").write_text("these are my notes\n")
    url = f"sqlite:///{tmp_path}/notes.db#x"
    for word in ("", "damaged"):
        told = stored.clear(url, force=word)
        assert (told.action, told.word) == (KEPT, "")
        assert "no database" in told.why
