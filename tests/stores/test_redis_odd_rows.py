"""L13  What no step has written under a key of ours: it costs its own name alone."""

from __future__ import annotations

import pytest

from ground import needs
from lifehold import CorruptRecord, LifeholdError, StoreUnavailable, connect

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
    "a token beyond the last": {"lease": str(2**63 - 1)},
    "a token far beyond": {"lease": "9" * 23},
    "a token of many digits": {"lease": "9" * 5000},
    "zeros before a token": {"lease": "0" * 30 + "7"},
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


def kept(store, key):
    """A call of the store about a key, the text of one of its hashes."""
    return lambda *words: store._site.ask(
        lambda backend: backend.command(words[0], key, *words[1:])
    )


@pytest.mark.parametrize("odd", ["0", "-1", "nan", "0.2"])
def test_a_holder_of_no_weight_keeps_others_out(redis_url, odd):
    store = connect(redis_url)
    pair = store.read_write("b")
    for first, second, name in (
        (lambda: store.lock("a").acquire(), lambda: store.lock("a", wait=0).acquire(), "a"),
        (pair.acquire_write, lambda: pair.acquire_read(wait=0), "b"),
    ):
        lease, about = first(), kept(store, f"lifehold:{{{name}}}:holders")
        nonce, text = about("HGETALL")
        token, _, rest = text.decode().split(" ", 2)
        about("HSET", nonce, f"{token} {odd} {rest}")
        with pytest.raises(CorruptRecord, match="removes it"):
            second()
        lease.verify()
        lease.release()
        second().release()


@pytest.mark.parametrize("wait", [0, 60])
def test_a_holder_that_cannot_be_read_is_told_at_once(redis_url, wait):
    store = connect(redis_url)
    store.lock("a").acquire().release()
    kept(store, "lifehold:{a}:holders")("HSET", "m", "garbage")
    with pytest.raises(CorruptRecord, match="removes it"):
        store.lock("a", wait=wait).acquire()
    store.break_("a", "it is none of ours")
    store.lock("a", wait=0).acquire().release()


@pytest.mark.parametrize("last", [str(2**63 - 1), "9" * 23])
def test_a_last_token_beyond_the_range_is_told_and_removed(redis_url, last):
    store = connect(redis_url)
    store.lock("a").acquire().release()
    kept(store, "lifehold:{a}:lease")("HSET", "token", last)
    assert "token is" in store.states()[0].damage
    for ask in (
        lambda: store.lock("a", wait=0).acquire(),
        lambda: store.read_write("a").acquire_read(wait=0),
        lambda: store.bump("a"),
    ):
        with pytest.raises(CorruptRecord, match="removes it"):
            ask()
    store.break_("a", "its token is none of ours")
    with store.lock("a", wait=0) as lease:
        assert 0 < lease.token < 2**62
    assert not store.states()[0].damage


@pytest.mark.parametrize("kind", ["holders", "line", "undone"])
def test_a_name_that_nobody_can_get_for_a_key_of_another_program_is_not_free(redis_url, kind):
    store = connect(redis_url)
    store.lock("a").acquire().release()
    kept(store, f"lifehold:{{a}}:{kind}")("SET", "a text")
    for ask in (
        lambda: store.lock("a", wait=0).acquire(),
        lambda: store.inspect("a"),
        lambda: store.break_("a", "it is none of ours"),
        lambda: store.bump("a"),
    ):
        with pytest.raises(StoreUnavailable, match="WRONGTYPE"):
            ask()
    assert ["WRONGTYPE" in state.damage for state in store.states()] == [True]
    kept(store, f"lifehold:{{a}}:{kind}")("DEL")
    store.lock("a", wait=0).acquire().release()


@pytest.mark.parametrize("kind", ["dies", "kept", "undone"])
def test_a_held_name_beside_which_another_program_has_a_key_stays_in_the_list(redis_url, kind):
    store = connect(redis_url)
    with store.lock("a"), store.lock("b"):
        kept(store, f"lifehold:{{a}}:{kind}")("SET", "a text")
        kept(store, "lifehold:{c}:lease")("SET", "of another program")
        assert store.list() == ["a", "b"]
        assert ["WRONGTYPE" in state.damage for state in store.states()] == [True, False]
        kept(store, f"lifehold:{{a}}:{kind}")("DEL")
        assert [state.damage for state in store.states()] == ["", ""]
