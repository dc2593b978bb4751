"""Guards of Redis keys: a late write changes nothing, and EXEC's nil is told apart."""

from __future__ import annotations

import asyncio
import inspect

import pytest
import redis
import redis.asyncio

from ground import needs
from lifehold import CorruptRecord, InvalidArgument, LeaseLost, StaleToken, UnsafeGround
from lifehold.compat.redis_lock import Lock
from lifehold.fence import AsyncFencedRedis, Conflict, FencedRedis
from lifehold.recipes.fence import redis as redis_fence

pytestmark = needs("redis")
APPEND = "return redis.call('append', KEYS[1], ARGV[1])"


@pytest.fixture
def client(redis_url):
    with redis.Redis.from_url(redis_url, decode_responses=True) as made:
        yield made


@pytest.fixture(params=["blocking", "asyncio"])
def guard(request, redis_url, client):
    """Makes a guard for a token, whose methods answer at once."""
    if request.param == "blocking":
        yield lambda token: FencedRedis(client, token)
        return
    with asyncio.Runner() as runner:

        class Finished:
            def __init__(self, token):
                self._made = AsyncFencedRedis(aclient, token)

            def __getattr__(self, name):
                method = getattr(self._made, name)

                async def call(*given, **named):
                    return await method(*given, **named)

                return lambda *given, **named: runner.run(call(*given, **named))

        aclient = redis.asyncio.Redis.from_url(redis_url, decode_responses=True)
        yield Finished
        runner.run(aclient.aclose())


def write_by_transaction(guard):
    def work(pipe):
        pipe.multi()
        pipe.set("x", "late")

    guard.transaction(work, "x")


WAYS = {
    "set": lambda guard: guard.set("x", "late"),
    "hset": lambda guard: guard.hset("x", {"a": "late"}),
    "incr": lambda guard: guard.incr("x"),
    "delete": lambda guard: guard.delete("x"),
    "command": lambda guard: guard.command("GETDEL", "x"),
    "run": lambda guard: guard.run(APPEND, ["x"], ["late"]),
    "transaction": write_by_transaction,
    "advance": lambda guard: guard.advance("x"),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_late_write_changes_nothing_by_whatever_way(guard, client, way):
    guard(5).set("x", "1")
    guard(6).advance("x")
    with pytest.raises(StaleToken) as caught:
        WAYS[way](guard(5))
    assert (caught.value.name, caught.value.token, caught.value.fence) == ("x", 5, 6)
    assert client.get("x") == "1"
    assert guard(6).fence("x") == 6


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-lru"])
def test_a_server_that_may_evict_a_fence_and_keep_the_data_is_refused(guard, client, way, policy):
    guard(9).set("x", "{}")
    before = client.config_get("maxmemory-policy")["maxmemory-policy"]
    client.config_set("maxmemory-policy", policy)
    try:
        with pytest.raises(StaleToken):
            WAYS[way](guard(5))
        client.delete("lifehold:1:fence:{x}")  # as by eviction
        if policy == "volatile-lru":  # a fence does not expire, so it is not evicted either
            guard(9).advance("x")
            return
        with pytest.raises(UnsafeGround, match="maxmemory-policy"):
            WAYS[way](guard(5))
        assert client.get("x") == "{}"
    finally:
        client.config_set("maxmemory-policy", before)


def test_a_holder_may_write_often_and_each_answer_is_the_servers(guard, client):
    guard(5).set("s", "1", ttl=60)
    assert 0 < client.pttl("s") <= 60_000
    assert guard(5).incr("s", 4) == 5
    assert guard(5).hset("h", {"a": 1, "b": 2}) == 2
    assert guard(5).run(APPEND, ["s"], ["x"]) == 2
    assert guard(5).run("return redis.call('get', KEYS[1])", ["nothing"]) is None
    assert guard(5).run("redis.call('set', KEYS[1], ARGV[2])", ["two"], ["a", "b"]) is None
    assert client.get("two") == "b"
    assert guard(5).delete("s")
    assert not guard(5).delete("s")
    assert guard(5).fence("s") == 5


MANY = 9001  # words, more than a script has room for in one command


def test_a_write_of_many_words_is_the_one_command_that_it_is_without_a_guard(guard, client):
    fields = {f"f{at}": at for at in range(MANY)}
    client.hset("h", mapping={"f1": "old", "f8999": "old"})
    assert guard(5).hset("h", fields) == MANY - 2
    assert client.hgetall("h") == {name: str(value) for name, value in fields.items()}
    words = [str(at) for at in range(MANY)]
    for name, seen in [
        ("RPUSH", lambda: client.lrange("k", 0, -1) == words),
        ("lpush", lambda: client.lrange("k", 0, -1) == words[::-1]),
        ("SADD", lambda: client.smembers("k") == set(words)),
    ]:
        client.delete("k")
        assert guard(5).command(name, "k", *words) == MANY
        assert seen()
    assert guard(5).command("SREM", "k", *words[1:], "nothing") == MANY - 1
    assert guard(5).command("HDEL", "h", *fields) == MANY
    client.zadd("z", dict.fromkeys(words, 1))
    assert guard(5).command("ZREM", "z", *words) == MANY
    assert client.keys("[hz]") == []


def test_a_late_write_of_many_words_changes_nothing(guard, client):
    guard(6).command("RPUSH", "x", "1")
    with pytest.raises(StaleToken):
        guard(5).command("RPUSH", "x", *range(MANY))
    assert client.lrange("x", 0, -1) == ["1"]


def test_as_many_words_as_a_script_has_room_for_are_sent_and_one_more_is_refused(guard, client):
    names = [f"f{at}" for at in range(redis_fence.MOST)]
    assert guard(5).command("PFADD", "x", *names) == 1
    with pytest.raises(InvalidArgument, match=r"8000 words.*7999.*run\(\)"):
        guard(5).command("PFADD", "y", *names, "more")
    with pytest.raises(InvalidArgument, match="in turn"):
        guard(5).command("HSET", "y", *range(MANY))
    assert client.keys("*y*") == []  # no fence either


def test_a_script_of_ones_own_takes_any_number_of_words(guard, client):
    script = """for at = 1, #ARGV, 1000 do
        redis.call('pfadd', KEYS[1], unpack(ARGV, at, math.min(at + 999, #ARGV)))
    end"""
    guard(5).run(script, ["x"], range(MANY))
    assert client.exists("x")


@pytest.mark.parametrize("ttl", [0, -1, float("inf"), float("nan"), 1e300, True, "60"])
def test_what_is_no_time_to_live_is_refused_before_anything_happens(guard, client, ttl):
    with pytest.raises(InvalidArgument, match="ttl"):
        guard(5).set("x", "1", ttl=ttl)
    assert not client.keys()


def test_a_script_that_refuses_raises_and_answers_nothing(guard):
    with pytest.raises(redis.ResponseError, match="refused"):
        guard(5).run("return redis.error_reply('MY refused')", ["x"])
    with pytest.raises(redis.ResponseError, match="refused"):
        guard(5).run("return {err='MY refused'}", ["x"])


def test_one_late_key_of_several_refuses_all(guard, client):
    guard(5).advance("{t}a", "{t}b")
    guard(7).advance("{t}b")
    with pytest.raises(StaleToken) as caught:
        guard(6).run("redis.call('set', KEYS[1], 1)", ["{t}a", "{t}b"])
    assert caught.value.name == "{t}b"
    assert not client.exists("{t}a")
    assert guard(6).fence("{t}a") == 5


@pytest.mark.parametrize(("older", "newer"), [(9, 10), (2**53, 2**53 + 1), (2**63 - 2, 2**63 - 1)])
def test_tokens_are_compared_to_their_last_digit(guard, older, newer):
    guard(newer).advance("x")
    guard(newer).advance("x")
    with pytest.raises(StaleToken):
        guard(older).advance("x")


def test_what_cannot_be_guarded_is_refused_before_anything_happens(guard, client):
    with pytest.raises(InvalidArgument, match="hash tag"):
        guard(5).set("x}y", "1")
    with pytest.raises(InvalidArgument, match="names its keys"):
        guard(5).advance()
    with pytest.raises(InvalidArgument, match="field"):
        guard(5).hset("x", {})
    with pytest.raises(InvalidArgument, match="ttl"):
        guard(5).set("x", "1", ttl=0)
    with pytest.raises(InvalidArgument, match="multi"):
        guard(5).transaction(lambda pipe: None, "x")
    assert not client.keys()


def late_transaction(key):
    def work(pipe):
        pipe.multi()
        pipe.set(key, "late")

    return lambda guard: guard.transaction(work, key)


@pytest.mark.parametrize("key", [7, -1, 1.5, None, True, ["7"]], ids=repr)
def test_a_key_that_is_no_text_and_no_bytes_is_refused_by_every_way(guard, client, key):
    guard(9).set("7", "new")
    before = {each: client.get(each) for each in client.scan_iter()}
    for way in (
        lambda late: late.advance("{7}", key),
        lambda late: late.advance(key),
        lambda late: late.set(key, "late"),
        lambda late: late.incr(key),
        lambda late: late.hset(key, {"a": "late"}),
        lambda late: late.delete(key),
        lambda late: late.command("APPEND", key, "late"),
        lambda late: late.command("RPUSH", key, *range(9000)),
        lambda late: late.run(APPEND, [key], ["late"]),
        lambda late: late.fence(key),
        late_transaction(key),
    ):
        with pytest.raises(InvalidArgument, match="key"):
            way(guard(5))
    assert {each: client.get(each) for each in client.scan_iter()} == before


@pytest.mark.parametrize(
    "form",
    [str, str.encode, lambda key: bytearray(key.encode()), lambda key: memoryview(key.encode())],
    ids=["str", "bytes", "bytearray", "memoryview"],
)
def test_a_key_has_one_fence_in_whatever_form_it_is_given(guard, client, form):
    key = form("7")
    guard(9).advance("7")
    assert guard(9).fence(key) == 9
    for way in (lambda late: late.set(key, "late"), late_transaction(key)):
        with pytest.raises(StaleToken):
            way(guard(5))
    guard(9).set(key, "new")
    assert client.get("7") == "new"


DAMAGED = [b"abc", b"", b"-5", b"1e9", b"007", b"5 ", b"9" * 23, b"9" * 5000]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("damaged", DAMAGED, ids=range(len(DAMAGED)))
def test_a_fence_that_is_damaged_admits_nobody(guard, client, way, damaged):
    guard(5).advance("x")
    client.set(redis_fence.fence_key("x"), damaged)
    with pytest.raises(CorruptRecord, match=r"lifehold:1:fence:\{x\}"):
        WAYS[way](guard(2**62))
    with pytest.raises(CorruptRecord):
        guard(2**62).fence("x")
    assert client.get(redis_fence.fence_key("x")) == damaged.decode()
    assert client.get("x") is None


def test_bytes_of_no_encoding_in_a_fence_admit_nobody(redis_url):
    with redis.Redis.from_url(redis_url) as raw:
        raw.set(redis_fence.fence_key("x"), b"\xff\xfe")
        guard = FencedRedis(raw, 2**62)
        for call in (*WAYS.values(), lambda guard: guard.fence("x")):
            with pytest.raises(CorruptRecord):
                call(guard)
        assert raw.get("x") is None


@pytest.mark.parametrize("way", WAYS)
def test_a_fence_of_another_type_admits_nobody_and_is_named(guard, client, way):
    client.rpush(redis_fence.fence_key("x"), "5")
    for call in (WAYS[way], lambda guard: guard.fence("x")):
        with pytest.raises(CorruptRecord, match=r"'x': its fence 'lifehold:1:fence:\{x\}'"):
            call(guard(2**62))
    assert client.get("x") is None


def test_data_of_another_type_is_named_by_its_key(guard, client):
    client.set("text", "1")
    for write in (
        lambda guard: guard.hset("text", {"a": 1}),
        lambda guard: guard.command("RPUSH", "text", *range(MANY)),
    ):
        with pytest.raises(redis.ResponseError, match=r"^WRONGTYPE .* \(key 'text'\)$"):
            write(guard(5))
    with pytest.raises(redis.ResponseError, match="not an integer"):
        guard(5).command("INCRBY", "text", "one")
    assert client.get("text") == "1"


@pytest.mark.parametrize("key", ["é", b"\xe9"], ids=["text", "bytes"])
def test_a_key_has_one_fence_in_the_encoding_of_its_client(redis_url, key):
    with redis.Redis.from_url(redis_url, encoding="latin-1", decode_responses=True) as client:
        FencedRedis(client, 9).set("é", "new")
        assert client.get(b"\xe9") == "new"
        late = FencedRedis(client, 5)
        assert late.fence(key) == 9
        for way in (lambda late: late.set(key, "late"), late_transaction(key)):
            with pytest.raises(StaleToken):
                way(late)
        assert client.get("é") == "new"
        with pytest.raises(InvalidArgument, match="latin-1"):
            late.set("ж", "late")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "cp500"])
def test_a_client_whose_words_no_server_reads_is_refused(redis_url, encoding):
    with (
        redis.Redis.from_url(redis_url, encoding=encoding) as client,
        pytest.raises(InvalidArgument, match=encoding),
    ):
        FencedRedis(client, 5)


def test_a_client_of_the_other_face_is_refused_before_anything_is_written(redis_url, client):
    with asyncio.Runner() as runner:
        aclient = redis.asyncio.Redis.from_url(redis_url)
        for kind, wrong, right in [
            (AsyncFencedRedis, client, "FencedRedis"),
            (FencedRedis, aclient, "AsyncFencedRedis"),
        ]:
            with pytest.raises(InvalidArgument, match=f"take {right}"):
                kind(wrong, 5)
        runner.run(aclient.aclose())


@pytest.mark.parametrize("kind", [FencedRedis, AsyncFencedRedis])
@pytest.mark.parametrize("wrong", [None, "redis://", "pipeline"])
def test_what_is_no_client_is_refused(client, kind, wrong):
    given = client.pipeline() if wrong == "pipeline" else wrong
    with pytest.raises(InvalidArgument, match="client"):
        kind(given, 5)


class Changed:
    """A lease that answers as it is told, and a `work` during which somebody comes."""

    token = 5

    def __init__(self, client, holds, comes):
        self._client, self._holds, self._comes, self.called = client, holds, comes, 0

    def verify(self):
        if not self._holds:
            raise LeaseLost("gone")

    def work(self, pipe):
        self.called += 1
        self._comes(self.called)
        pipe.multi()
        pipe.incr("x")


def test_exec_nil_is_a_conflict_while_the_lease_holds_and_is_tried_again(guard, client):
    once = Changed(client, True, lambda time: time == 1 and client.set("x", 10))
    assert guard(once).transaction(once.work, "x", tries=2) == [11]
    assert once.called == 2
    always = Changed(client, True, lambda time: client.set("x", 20))
    with pytest.raises(Conflict):
        guard(always).transaction(always.work, "x")
    assert client.get("x") == "20"


def test_exec_nil_is_a_loss_once_the_lease_is_gone(guard, client):
    gone = Changed(client, False, lambda time: client.set("x", 10))
    with pytest.raises(LeaseLost):
        guard(gone).transaction(gone.work, "x", tries=5)
    assert (gone.called, client.get("x")) == (1, "10")


def unanswered(pipe):
    """The next answer on its connection does not come."""
    connection = pipe.connection

    def late(*_, **__):
        del connection.read_response
        raise redis.TimeoutError("no answer")

    async def late_too(*_, **__):
        late()

    is_async = inspect.iscoroutinefunction(connection.read_response)
    connection.read_response = late_too if is_async else late


def test_an_exec_without_an_answer_is_no_conflict_and_is_not_sent_again(guard):
    times = []

    def work(pipe):
        times.append(1)
        pipe.multi()
        pipe.incr("x")
        if len(times) == 1:
            unanswered(pipe)

    with pytest.raises(redis.TimeoutError, match="no answer"):
        guard(5).transaction(work, "x", tries=2)
    assert len(times) == 1


def test_a_connection_that_ends_before_exec_is_tried_again_and_is_no_conflict(guard, client):
    times = []

    def work(pipe):
        times.append(1)
        if len(times) % 2:
            try:
                raise redis.ConnectionError("cut")
            except redis.ConnectionError:
                raise redis.WatchError("A ConnectionError occurred")  # noqa: B904  as redis-py
        pipe.multi()
        pipe.incr("x")

    assert guard(5).transaction(work, "x", tries=2) == [1]
    assert len(times) == 2
    with pytest.raises(redis.ConnectionError, match="cut"):
        guard(5).transaction(work, "x")
    assert client.get("x") == "1"


def test_a_successor_that_only_advanced_ends_a_transaction_in_its_midst(guard, client):
    late = Changed(client, True, lambda time: FencedRedis(client, 6).advance("x"))
    with pytest.raises(StaleToken):
        guard(late).transaction(late.work, "x", tries=5)
    assert not client.exists("x")


def lapsed(client, lock):
    """Its key has ended at the server, while its holder slept."""
    client.delete(lock.name)


def test_100_of_100_late_writes_are_refused_and_land_beside_redis_pys_own_lock(client):
    refused = landed = 0
    for number in range(100):
        ours, theirs = f"ours-{number}", f"theirs-{number}"
        first, second = (Lock(client, f"lock-{number}", timeout=60) for _ in range(2))
        first.acquire()
        lapsed(client, first)
        second.acquire()
        FencedRedis(client, second).set(ours, 100)
        try:
            FencedRedis(client, first).set(ours, 1)
        except StaleToken:
            refused += client.get(ours) == "100"
        one, two = (redis.lock.Lock(client, f"peer-{number}", timeout=60) for _ in range(2))
        one.acquire()
        lapsed(client, one)
        two.acquire()
        client.set(theirs, 100)
        client.set(theirs, 1)  # nothing that it has could be compared
        landed += client.get(theirs) == "1"
    assert (refused, landed) == (100, 100)


def test_both_faces_offer_the_same():
    def public(kind):
        return {name for name, _ in inspect.getmembers(kind) if not name.startswith("_")}

    assert public(FencedRedis) == public(AsyncFencedRedis)
