"""L13  What no step has written under a key of ours: it costs its own name alone."""

from __future__ import annotations

import pytest

from ground import needs
from lifehold import CorruptRecord, LifeholdError, connect

pytestmark = needs("redis")
GOOD = "5 1 0 0 30 0 99999999999 1 0 1 {}"
ODD = {
    "no holder": {"holders": "garbage"},
    "no token": {"holders": GOOD.replace("5", "tok", 1)},
    "no instant": {"holders": GOOD.replace(" 1 0 1 {}", " x 0 1 " + "[" * 100_000)},
    "no end": {"holders": GOOD.replace("99999999999", "inf")},
    "no last token": {"lease": "zz"},
    "a long last token": {"lease": "z" * 40},
    "half a number": {"lease": "12x"},
    "no waiter": {"waiters": "junk"},
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_an_odd_row_costs_its_own_name_and_an_order_removes_it(redis_url, odd):
    store = connect(redis_url)
    store.lock("good").acquire().release()
    backend = store._site.backend

    def write(*words):
        store._site.ask(lambda _: backend.command(*words))

    lease, holders, line, dies, waiters = (
        f"lifehold:{{b}}:{each}" for each in ("lease", "holders", "line", "dies", "waiters")
    )
    write("HSET", lease, "lifehold", "1", "token", odd.get("lease", "5"), "capacity", "1")
    if "waiters" in odd:
        write("ZADD", line, 1, "w")
        write("ZADD", dies, 9e12, "w")
        write("HSET", waiters, "w", odd["waiters"])
    else:
        write("HSET", holders, "m", odd.get("holders", GOOD))
    assert store.list() == ["b", "good"]
    assert [state.name for state in store.states()] == ["b", "good"]
    if "holders" in odd:
        with pytest.raises(CorruptRecord, match="removes it"):
            store.inspect("b")
    for ask in (
        lambda: store.inspect("b"),
        lambda: store.lock("b", wait=0).acquire().release(),
        lambda: store.lock("b", wait=0.01, notify=False).acquire().release(),
    ):
        try:
            ask()
        except LifeholdError:
            pass
    store.break_("b", "it is none of ours")
    with store.lock("b", wait=0) as held:
        assert held.token > 5
