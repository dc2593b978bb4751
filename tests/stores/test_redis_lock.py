"""redis-py's lock, replaced: the same key both ways, and nothing stays held by who has left."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import threading

import pytest
import redis
import redis.asyncio
from redis.exceptions import LockError, LockNotOwnedError

import lifehold
from ground import needs
from lifehold import LeaseLost, NotAcquired
from lifehold.compat import redis_lock
from lifehold.compat.redis_lock import Lock, protocol
from lifehold.compat.redis_lock.asyncio import Lock as AsyncLock
from lifehold.compat.redis_lock.asyncio import _behind
from lifehold.compat.redis_lock.protocol import LockKey
from lifehold.ops.redis_locks import side_keys
from lifehold.runtime import heartbeat
from patience import SOON, steadily, until

pytestmark = needs("redis")
LINE = side_keys(b"job").line


@pytest.fixture
def client(redis_url):
    with redis.Redis.from_url(redis_url) as made:
        yield made


def waits(client, count=1):
    """So many of ours stand in line for `job`."""
    until(lambda: client.zcard(LINE) == count)


def in_thread(work):
    """`join()` of it gives what it answered, or raises."""
    got = []
    thread = threading.Thread(target=lambda: got.append(work()))
    thread.start()

    def join():
        thread.join(SOON)
        assert got, "it has not ended, or it raised"
        return got[0]

    return join


@pytest.mark.parametrize(("first", "second"), [(Lock, redis.lock.Lock), (redis.lock.Lock, Lock)])
def test_ours_and_theirs_exclude_each_other_on_one_key(client, first, second):
    one = client.lock("job", timeout=60, lock_class=first)
    other = client.lock("job", timeout=60, lock_class=second)
    assert one.acquire(blocking=False)
    assert client.get("job") == one.local.token
    assert 0 < client.pttl("job") <= 60_000
    assert not other.acquire(blocking=False)
    assert other.locked()
    assert not other.owned()
    one.release()
    assert other.acquire(blocking=False)
    with pytest.raises(LockError):
        one.release()
    other.release()
    assert not client.exists("job")


def test_each_takes_over_the_others_value_and_releases_it(client):
    """A value that was handed on: `lock.local.token = value`."""
    for first, second in [(Lock, redis.lock.Lock), (redis.lock.Lock, Lock)]:
        one = first(client, "job", timeout=60)
        one.acquire()
        other = second(client, "job", timeout=60)
        other.local.token = one.local.token
        assert other.owned()
        assert other.extend(10)
        other.release()
        with pytest.raises(LockNotOwnedError):
            one.release()


@pytest.fixture
def events_alone(monkeypatch):
    """Nobody of ours looks by itself: what no message wakes sleeps on."""
    monkeypatch.setattr(protocol, "SLOW", 3600.0)
    monkeypatch.setattr(protocol, "GRACE", 3600.0)
    monkeypatch.setattr(protocol, "FIRST_NOTICE", 3600.0)


@pytest.mark.usefixtures("events_alone")
def test_a_release_of_ours_wakes_who_polls_and_who_listens(client):
    for waiter in (Lock, redis.lock.Lock):
        held = Lock(client, "job", timeout=60)
        held.acquire()
        other = waiter(client, "job", timeout=60)
        join = in_thread(other.acquire)
        if waiter is Lock:
            waits(client)
        held.release()
        assert join()
        client.delete("job")


def test_a_waiter_of_ours_gets_what_theirs_releases(client):
    held = redis.lock.Lock(client, "job", timeout=60)
    held.acquire()
    join = in_thread(Lock(client, "job", timeout=60).acquire)
    waits(client)
    held.release()
    assert join()


@pytest.mark.usefixtures("events_alone")
def test_a_release_wakes_one_of_many_and_the_dead_are_passed_over(redis_server, client):
    held = Lock(client, "job", timeout=60)
    held.acquire()
    done = []

    def turn():
        with Lock(client, "job", timeout=60) as lock:
            done.append(lock.token)
        return True

    client.zadd(LINE, {b"nobody-listens-here": 0})
    client.hset(side_keys(b"job").seen, b"nobody-listens-here", 2**50)
    joins = [in_thread(turn) for _ in range(8)]
    waits(client, 9)
    held.release()
    assert all(join() for join in joins)
    assert done == sorted({*done})
    assert len(done) == 8
    assert not client.zcard(LINE)


def test_tokens_grow_over_every_grant_of_ours_and_survive_a_lost_counter(client):
    tokens = []
    for _ in range(5):
        with Lock(client, "job", timeout=60) as lock:
            tokens.append(lock.token)
    client.delete(side_keys(b"job").token)
    with Lock(client, "job", timeout=60) as lock:
        tokens.append(lock.token)
        assert lock.token_reason is None
    tokens.append(tokens[-1] + 10**9)
    client.set(side_keys(b"job").token, tokens[-1])  # a clock that was ahead
    with Lock(client, "job", timeout=60) as lock:
        tokens.append(lock.token)
    assert tokens == sorted({*tokens})
    assert Lock(client, "job").token is None


@pytest.mark.parametrize("name", ["a{}b", "x}y", "{}"])
def test_a_name_whose_tag_cannot_be_repeated_has_no_token_and_the_reason(client, name):
    with Lock(client, name, timeout=60) as lock:
        assert lock.token is None
        assert "hash tag" in lock.token_reason
        assert client.keys() == [name.encode()]
        assert not redis.lock.Lock(client, name).acquire(blocking=False)
    assert not client.keys()


@pytest.mark.parametrize("name", ["job", "a{b}c", "{user}:7", "a{b", "é {x}{y}", "a{{b}}c"])
def test_what_lies_beside_a_key_shares_its_slot(name):
    from redis.crc import key_slot

    raw = name.encode()
    beside = side_keys(raw)
    keys = (beside.token, beside.owner, beside.given_up + b":n", beside.line, beside.seen)
    assert {key_slot(key) for key in keys} == {key_slot(raw)}


def test_two_keys_never_share_what_lies_beside_them():
    names = [b"a", b"{a}", b"{a}b", b"b{a}", b"a{b", b"{a}{a}"]
    assert len({side_keys(name).token for name in names}) == len(names)


class Deaf:
    """A client whose answers are lost: the request was carried out."""

    def __init__(self, client, error):
        self._client, self._error, self.left = client, error, 1

    def __getattr__(self, name):
        return getattr(self._client, name)

    def evalsha(self, *words, **options):
        found = self._client.evalsha(*words, **options)
        if self.left and isinstance(found, list) and found[0]:
            self.left -= 1
            raise self._error
        return found


@pytest.mark.parametrize(
    "error", [redis.ConnectionError("lost"), redis.TimeoutError("lost"), KeyboardInterrupt()]
)
@pytest.mark.parametrize("timeout", [60, None])
def test_an_acquire_whose_answer_is_lost_leaves_nothing_held(client, error, timeout, monkeypatch):
    monkeypatch.setattr(redis_lock.heartbeat, "apart", lambda work: work())  # no thread is left
    lock = Lock(Deaf(client, error), "job", timeout=timeout)
    with pytest.raises(type(error)):
        lock.acquire()
    assert not client.exists("job")
    assert lock.local.token is None
    assert Lock(client, "job", timeout=60).acquire(blocking=False)


def test_a_request_that_comes_after_its_undo_is_refused(client):
    """A paused server may carry out both, in either order."""
    lock = Lock(client, "job", timeout=60)
    key, ask = lock._at(), lock._request(None, None, None)
    from lifehold.runtime.blocking import finish

    finish(key.undo(ask, KeyboardInterrupt()))
    assert isinstance(finish(key.attempt(ask)), list)
    assert not client.exists("job")


def test_a_request_that_is_sent_twice_is_granted_once(client):
    from lifehold.runtime.blocking import finish

    lock = Lock(client, "job", timeout=60)
    key, ask = lock._at(), lock._request("chosen", None, None)
    one = finish(key.attempt(ask))
    assert finish(key.attempt(ask)).token == one.token
    same = lock._request("chosen", None, None)
    assert isinstance(finish(key.attempt(same)), list)  # another caller with the same value
    assert finish(key.release(one))
    assert finish(key.release(one))  # its answer was lost
    assert not client.exists("job")


def test_a_thread_that_is_interrupted_just_after_the_grant_holds_nothing(client, monkeypatch):
    lock = Lock(client, "job", timeout=60)

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(lock, "_begin", interrupted)
    with pytest.raises(KeyboardInterrupt):
        lock.acquire()
    assert not client.exists("job")


def test_an_interrupted_acquire_is_undone_at_a_full_server(redis_server, client, monkeypatch):
    lock = Lock(client, "job", timeout=None)

    def interrupted(*_):
        redis_server.call("CONFIG", "SET", "maxmemory", "1")
        raise KeyboardInterrupt

    monkeypatch.setattr(lock, "_begin", interrupted)
    monkeypatch.setattr(protocol, "UNDONE_AFTER", 0.0)  # what is refused now is not tried again
    monkeypatch.setattr(redis_lock.heartbeat, "apart", lambda work: work())
    try:
        with pytest.raises(KeyboardInterrupt):
            lock.acquire()
        assert not client.exists("job")
    finally:
        redis_server.call("CONFIG", "SET", "maxmemory", "0")


@pytest.mark.parametrize(
    ("refusal", "tries"),
    [
        (redis.ResponseError("OOM command not allowed"), 3),
        (redis.exceptions.NoPermissionError("this user has no permissions"), 1),
        (redis.ResponseError("WRONGTYPE Operation against a key"), 1),
    ],
)
def test_an_undo_that_is_refused_is_tried_again_unless_that_stays(
    client, monkeypatch, refusal, tries
):
    undo, tried = LockKey._undo, []

    async def refused(self, ask):
        tried.append(ask)
        if len(tried) < 3:
            raise refusal
        await undo(self, ask)

    monkeypatch.setattr(LockKey, "_undo", refused)
    monkeypatch.setattr(redis_lock.heartbeat, "apart", lambda work: work())
    lock = Lock(Deaf(client, KeyboardInterrupt()), "job", timeout=60)
    with pytest.raises(KeyboardInterrupt):
        lock.acquire()
    assert len(tried) == tries
    assert client.exists("job") == (tries == 1)


def test_a_waiter_that_gives_up_leaves_the_line_and_lets_the_next_one_in(client):
    held = Lock(client, "job", timeout=60)
    held.acquire()
    assert not Lock(client, "job", blocking_timeout=0.05).acquire()
    assert not client.zcard(LINE)
    with pytest.raises(LockError) as caught, Lock(client, "job", blocking_timeout=0.05):
        pass
    assert isinstance(caught.value, NotAcquired)
    assert caught.value.holder.owner.pid == os.getpid()
    assert f"pid {os.getpid()}" in str(caught.value)


def test_a_holder_is_told_by_its_own_clock_and_prolonged_by_extend(client, monkeypatch):
    now = protocol.clock.now()
    monkeypatch.setattr(protocol.clock, "now", lambda: now)
    lock = Lock(client, "job", timeout=60)
    lock.acquire()
    assert lock.remaining() == pytest.approx(54)
    lock.check()
    now += 55  # the server is not asked: at it the key lives on
    with pytest.raises(LockNotOwnedError) as caught:
        lock.check()
    assert isinstance(caught.value, LeaseLost)
    assert lock.remaining() == 0
    assert not lock.owned()
    lock.extend(60, replace_ttl=True)
    lock.check()
    assert lock.owned()
    lock.release()


def test_auto_renew_prolongs_and_tells_a_key_that_was_taken_away(client):
    with pytest.raises(ValueError, match="timeout"):
        Lock(client, "job", auto_renew=True)
    lock = Lock(client, "job", timeout=30, auto_renew=True)
    lock.acquire()
    kept = lock.local.kept._kept
    client.pexpire("job", 20_000)
    assert kept.verify() is None
    assert client.pttl("job") > 20_000
    client.set("job", "somebody else")
    assert kept.verify() is None
    with pytest.raises(LockNotOwnedError):
        lock.check()
    with pytest.raises(LockNotOwnedError):
        lock.release()
    assert client.get("job") == b"somebody else"


def test_a_lock_that_nobody_has_in_hand_is_renewed_no_more(client):
    lock = Lock(client, "job", timeout=1, auto_renew=True)
    lock.acquire()
    kept = lock.local.kept._kept
    until(lambda: kept.renewals)
    del lock
    gc.collect()
    assert kept.over
    until(lambda: not client.exists("job"))


def test_a_lock_of_asyncio_that_nobody_has_in_hand_is_renewed_no_more(redis_url, client):
    async def work(aclient):
        lock = AsyncLock(aclient, "job", timeout=1, auto_renew=True)
        await lock.acquire()
        kept = lock.local.kept._kept
        await seen(lambda: kept.renewals)
        del lock
        gc.collect()
        assert kept.over
        await seen(lambda: not client.exists("job"))

    run(redis_url, work)


@pytest.mark.parametrize("face", [Lock, AsyncLock])
def test_a_forked_child_that_drops_a_renewed_lock_neither_hangs_nor_ends_it(
    redis_url, client, face
):
    """L9  At the fork another thread may have been at the heartbeat's appointments."""
    inside, leave = threading.Event(), threading.Event()

    def busy():
        with heartbeat._diary.mutex:
            inside.set()
            leave.wait(SOON)
        return True

    def dropped_in_a_child(lock):
        kept, join = lock.local.kept._kept, in_thread(busy)
        inside.wait(SOON)
        if (child := os.fork()) == 0:
            lock.local.kept = None
            os._exit(0)
        leave.set()
        join()
        status = []
        try:
            until(lambda: status.extend(os.waitpid(child, os.WNOHANG)) or any(status))
        finally:
            if not any(status):
                os.kill(child, signal.SIGKILL)
        assert status[-2:] == [child, 0]
        assert not kept.over

    async def work(aclient):
        lock = AsyncLock(aclient, "job", timeout=60, auto_renew=True)
        await lock.acquire()
        dropped_in_a_child(lock)
        await lock.release()

    if face is AsyncLock:
        run(redis_url, work)
        return
    lock = Lock(client, "job", timeout=60, auto_renew=True)
    lock.acquire()
    dropped_in_a_child(lock)
    lock.release()


def test_a_lease_that_is_cut_short_by_hand_ends_by_the_holders_clock_too(client):
    lock = Lock(client, "job", timeout=600, auto_renew=True)
    lock.acquire()
    lock.extend(60, replace_ttl=True)
    assert lock.remaining() <= 60
    assert lock.local.kept._kept.verify() is None
    assert lock.remaining() > 60  # the key lives so long again
    lock.release()


def test_a_lease_of_asyncio_that_is_cut_short_by_hand_ends_too(redis_url):
    async def work(aclient):
        async with AsyncLock(aclient, "job", timeout=600, auto_renew=True) as lock:
            await lock.extend(60, replace_ttl=True)
            assert lock.remaining() <= 60

    run(redis_url, work)


@pytest.mark.parametrize(
    "seconds", [10**400, float("inf"), float("nan")], ids=["int", "inf", "nan"]
)
def test_seconds_of_which_no_deadline_can_be_made_change_nothing(client, seconds):
    lock = Lock(client, "job", timeout=600)
    with lock:
        for replace_ttl in (False, True):
            with pytest.raises(LockError, match="no length of time"):
                lock.extend(seconds, replace_ttl)
        assert 500 < lock.remaining() < 600


@pytest.mark.parametrize("seconds", ["3", b"3", "33333"])
def test_seconds_that_are_no_number_are_told_and_change_nothing(client, redis_url, seconds):
    lock = Lock(client, "job", timeout=600)
    lock.acquire()
    for replace_ttl in (False, True):
        with pytest.raises(LockError, match="3'"):
            lock.extend(seconds, replace_ttl)
    lock.timeout = seconds
    with pytest.raises(LockError, match="3'"):
        lock.reacquire()
    lock.timeout = 600
    assert 500 < lock.remaining() < 600
    lock.release()

    async def work(aclient):
        lock = AsyncLock(aclient, "job", timeout=600)
        await lock.acquire()
        with pytest.raises(LockError, match="3'"):
            await lock.extend(seconds)
        assert 500 < lock.remaining() < 600
        await lock.release()

    run(redis_url, work)


@pytest.mark.parametrize("kind", [redis.lock.Lock, Lock])
def test_what_a_subclass_calls_prolongs(client, kind):
    lock = client.lock("job", timeout=60, lock_class=kind)
    lock.acquire()
    assert lock.do_extend(60, False)
    assert 60_000 < client.pttl("job") <= 120_000
    assert lock.do_reacquire()
    assert client.pttl("job") <= 60_000
    client.delete("job")
    for prolong in (lambda: lock.do_extend(60, True), lock.do_reacquire):
        with pytest.raises(LockNotOwnedError):
            prolong()


@pytest.mark.parametrize("kind", [redis.asyncio.lock.Lock, AsyncLock])
def test_what_a_subclass_of_the_lock_of_asyncio_calls_prolongs(redis_url, kind):
    async def work(aclient):
        async with aclient.lock("job", timeout=60, lock_class=kind) as lock:
            assert await lock.do_extend(60, False)
            assert 60_000 < await aclient.pttl("job") <= 120_000
            assert await lock.do_reacquire()
            assert await aclient.pttl("job") <= 60_000

    run(redis_url, work)


def test_a_lease_of_asyncio_that_may_be_cut_short_ends_too(redis_url):
    async def work(aclient):
        lock = AsyncLock(aclient, "job", timeout=600)
        await lock.acquire()

        async def silent(*_, **__):
            raise redis.TimeoutError("no answer")

        evalsha, aclient.evalsha = aclient.evalsha, silent
        with pytest.raises(redis.TimeoutError):
            await lock.extend(60, replace_ttl=True)
        aclient.evalsha = evalsha
        assert lock.remaining() <= 60
        await lock.release()

    run(redis_url, work)


class Mute:
    """A client whose scripts are carried out, and give no answer from now on."""

    def __init__(self, client):
        self._client, self.silent = client, False

    def __getattr__(self, name):
        return getattr(self._client, name)

    def evalsha(self, *words, **options):
        found = self._client.evalsha(*words, **options)
        if self.silent:
            raise redis.TimeoutError("no answer")
        return found


def away_once(client):
    """The next script of a client does not reach the server."""
    evalsha = client.evalsha

    def away(*_, **__):
        client.evalsha = evalsha
        raise redis.ConnectionError("no server")

    client.evalsha = away


@pytest.mark.parametrize("name", ["jobs}7", "job"])
@pytest.mark.parametrize("token", ["me-2", None])
def test_a_second_acquire_that_raises_leaves_the_first_grant_in_hand(
    client, name, token, monkeypatch
):
    monkeypatch.setattr(redis_lock.heartbeat, "apart", lambda work: work())
    lock = Lock(client, name, timeout=60)
    assert lock.acquire(token="me-1")
    away_once(client)
    with pytest.raises(redis.ConnectionError):
        lock.acquire(blocking=False, token=token)
    assert lock.owned()
    lock.release()
    assert not client.exists(name)


@pytest.mark.parametrize("name", ["jobs}7", "job"])
def test_a_second_acquire_of_asyncio_that_raises_leaves_the_first_grant_in_hand(redis_url, name):
    async def work(aclient):
        lock = AsyncLock(aclient, name, timeout=60)
        assert await lock.acquire(token="me-1")
        away_once(aclient)
        with pytest.raises(redis.ConnectionError):
            await lock.acquire(blocking=False, token="me-2")
        assert await lock.owned()
        await lock.release()
        assert not await aclient.exists(name)

    run(redis_url, work)


@pytest.mark.parametrize("auto_renew", [False, True])
@pytest.mark.parametrize(
    ("shorten", "left"),
    [
        (lambda lock: lock.extend(60, replace_ttl=True), 60),
        (lambda lock: lock.extend(-540), 60),
        (lambda lock: lock.extend(0, replace_ttl=True), 0),
        (lambda lock: lock.reacquire(), 20),
    ],
    ids=["replaced", "reduced", "ended", "reacquired"],
)
def test_what_was_cut_short_without_an_answer_is_believed_no_longer(
    client, shorten, left, auto_renew
):
    """L8  The key may end so soon."""
    mute = Mute(client)
    lock = Lock(mute, "job", timeout=600, auto_renew=auto_renew)
    lock.acquire()
    if left == 20:
        lock.timeout = 20
    mute.silent = True
    with pytest.raises(redis.TimeoutError):
        shorten(lock)
    assert lock.remaining() <= max(0, client.pttl("job")) / 1000 <= left
    mute.silent = False
    client.delete("job")
    lock._renew_no_more(lock._mine())


def test_what_was_prolonged_without_an_answer_is_believed_as_before(client):
    mute = Mute(client)
    lock = Lock(mute, "job", timeout=600)
    lock.acquire()
    ends = lock._deadline()
    mute.silent = True
    for prolong in (lock.reacquire, lambda: lock.extend(10)):
        with pytest.raises(redis.TimeoutError):
            prolong()
        assert lock._deadline() == ends


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("at", "9" * 400),
        ("at", "9" * 5000),
        ("token", "9" * 5000),
        ("owner", '{"pid":[1],"command":5}'),
        ("owner", '{"pid":1,"command":5}'),
        ("owner", '{"pid":true}'),
        ("owner", "[]"),
        ("owner", "[" * 100_000),
    ],
)
def test_a_record_beside_the_key_that_makes_no_sense_is_dropped(client, field, text):
    with Lock(client, "job", timeout=60) as lock:
        client.hset(side_keys(b"job").owner, field, text)
        holder = lock.holder()
    at = {"at": "since", "token": "token", "owner": "owner"}[field]
    assert getattr(holder, at) is None


def test_a_silent_server_keeps_no_other_lease_from_its_renewal(redis_server, client, tmp_path):
    assert not client.exists("job")
    patient = redis_server.client(decode_responses=False, socket_timeout=None)
    lock = Lock(patient, "job", timeout=600, auto_renew=True)
    lock.acquire()
    renewed, kept = [], lock.local.kept._kept
    other = lifehold.Lock(tmp_path / "other.lock", kind="soft", ttl=600)
    with patient, other.acquire() as unrelated:
        redis_server.pause()
        try:
            heartbeat.at(protocol.clock.now(), kept._beat)
            later = protocol.clock.now() + 0.01
            heartbeat.at(later, lambda: renewed.append(unrelated.verify()))
            until(lambda: renewed)
            assert kept.renewals == 0  # the server has not answered yet
        finally:
            redis_server.resume()
        until(lambda: kept.renewals == 1)
        lock.release()


def test_a_forked_child_holds_nothing_of_its_parents(client):
    lock = Lock(client, "job", timeout=60)
    lock.acquire()
    if (child := os.fork()) == 0:
        try:
            lock.check()
        except LockError:
            os._exit(0 if lock.token is None else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    lock.release()


def test_a_long_wait_is_told_with_the_holder(client, caplog, monkeypatch):
    monkeypatch.setattr(protocol, "FIRST_NOTICE", 0.05)
    held = Lock(client, "job", timeout=60)
    held.acquire()
    with caplog.at_level(logging.WARNING, "lifehold"):
        join = in_thread(Lock(client, "job", timeout=60).acquire)
        until(lambda: any("waiting for 'job'" in each for each in caplog.messages))
        held.release()
        assert join()
    (said, *_) = [each for each in caplog.messages if "waiting for" in each]
    assert f"held by pid {os.getpid()}" in said


def test_an_uncontended_pair_is_one_script_each(redis_server, client):
    lock = Lock(client, "job", timeout=60)
    with lock:  # loads them
        pass

    def judge():  # the server is shared: a thread of a test before may ask it something
        with redis_server.counting() as calls, lock:
            pass
        assert calls["evalsha"] == 2
        assert "script|load" not in calls

    steadily(judge)


def test_scripts_that_were_flushed_are_loaded_again(redis_server, client):
    lock = Lock(client, "job", timeout=60)
    lock.acquire()
    redis_server.call("SCRIPT", "FLUSH", "SYNC")
    lock.release()
    assert not client.exists("job")


def test_a_value_that_is_no_text_is_held_and_told_to_a_client_that_decodes(redis_url, client):
    """Of another library; the client of the program was made with decode_responses=True."""
    client.set("job", b"\xff\xfe", px=60_000)
    with redis.Redis.from_url(redis_url, decode_responses=True) as decoding:
        with pytest.raises(redis_lock.LockNotAcquired) as caught:
            Lock(decoding, "job", blocking=False).__enter__()
        assert caught.value.holder is not None
        assert redis_lock.answer(decoding, "job").state == "held"

    async def work(_):
        async with redis.asyncio.Redis.from_url(redis_url, decode_responses=True) as decoding:
            with pytest.raises(redis_lock.LockNotAcquired):
                await AsyncLock(decoding, "job", blocking=False).__aenter__()

    run(redis_url, work)


# ---- asyncio


async def seen(what):
    end = asyncio.get_running_loop().time() + SOON
    while not what():
        assert asyncio.get_running_loop().time() < end, "it did not come"
        await asyncio.sleep(0.005)


def run(redis_url, work):
    async def main():
        async with redis.asyncio.Redis.from_url(redis_url) as client:
            await work(client)
            await seen(lambda: not _behind)  # they ask by this client, which closes now

    asyncio.run(main())


def test_asyncio_shares_keys_line_and_tokens_with_the_blocking_face(redis_url, client):
    async def work(aclient):
        async with aclient.lock("job", timeout=60, lock_class=AsyncLock) as one:
            token = one.token
            assert not Lock(client, "job").acquire(blocking=False)
            join = in_thread(lambda: (lock := Lock(client, "job", timeout=60)).acquire() and lock)
            await seen(lambda: client.zcard(LINE))
        other = await asyncio.to_thread(join)
        assert await aclient.get("job") is not None
        with pytest.raises(LockError):
            async with AsyncLock(aclient, "job", blocking=False):
                pass
        client.delete("job")
        async with AsyncLock(aclient, "job", timeout=30, auto_renew=True) as third:
            assert third.token > token
            third.check()
            await third.extend(5)
            assert await third.owned()
            assert (await third.holder()).owner.pid == os.getpid()
        assert other is not None
        assert not await AsyncLock(aclient, "job").locked()

    run(redis_url, work)


@pytest.mark.parametrize("times", [1, 2])
def test_a_cancelled_acquire_leaves_nothing_held(redis_url, client, times, monkeypatch):
    """Cancelled between the request and its answer, and again in the midst of the undo."""

    async def work(aclient):
        sent = asyncio.Event()
        attempt = LockKey.attempt

        async def slow(self, *given):
            got = await attempt(self, *given)
            sent.set()
            await asyncio.sleep(SOON)
            return got

        monkeypatch.setattr(LockKey, "attempt", slow)
        lock = AsyncLock(aclient, "job", timeout=60)
        task = asyncio.create_task(lock.acquire())
        await sent.wait()
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await task
        await seen(lambda: not client.exists("job"))
        assert lock.local.token is None

    run(redis_url, work)


def test_a_cancelled_waiter_leaves_the_line_and_the_next_one_gets_it(redis_url, client):
    async def work(aclient):
        held = AsyncLock(aclient, "job", timeout=60)
        await held.acquire()
        tasks = []
        for _ in range(2):
            lock = AsyncLock(aclient, "job", timeout=60)
            tasks.append(asyncio.create_task(lock.acquire()))
            await seen(lambda: client.zcard(LINE) == len(tasks))
        tasks[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks[0]
        assert client.zcard(LINE) == 1
        await held.release()
        assert await asyncio.wait_for(tasks[1], SOON)

    run(redis_url, work)


@pytest.mark.usefixtures("events_alone")
def test_a_waiter_that_leaves_a_free_lock_wakes_the_next_one(redis_url, client):
    """It may have been told of a release just before, and nobody else was."""

    async def work(aclient):
        client.set("job", "of somebody else")
        tasks = []
        for _ in range(2):
            lock = AsyncLock(aclient, "job", timeout=60, sleep=3600)
            tasks.append(asyncio.create_task(lock.acquire()))
            await seen(lambda: client.zcard(LINE) == len(tasks))
        client.delete("job")
        tasks[0].cancel()
        assert await asyncio.wait_for(tasks[1], SOON)

    run(redis_url, work)
