"""`clear --force WORD` of a lease in a store ends the grant that the word names, and no other."""

from __future__ import annotations

import pytest

from ground import require
from lifehold import LeaseLost, connect
from lifehold.ops import stored
from lifehold.ops.answer import KEPT, REMOVED

STORES = ["memory", "sqlite", "postgres", "session", "redis"]


@pytest.fixture(params=STORES)
def make(request, tmp_path):
    """A maker of the same lock, again and again, in an empty store; and its URL."""
    kind = {"kind": "session"} if request.param == "session" else {}
    if request.param == "memory":
        url = f"memory://{tmp_path}"
    elif request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/a.db"
    else:
        require("redis" if request.param == "redis" else "postgres")
        url = request.getfixturevalue("redis_url" if request.param == "redis" else "pg_url")
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
