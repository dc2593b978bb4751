"""The rules about locks in stores and coordination services: LH201 to LH220."""

from __future__ import annotations

from ..rule import Rule
from ..rules import keys, leases, redis, rows

RULES = (
    Rule(
        code="LH201",
        slug="setnx-then-expire",
        cwe=362,
        severity="error",
        confidence="high",
        default=True,
        cured="safe",
        check=redis.two_steps,
        about=frozenset("redis_lock".split()),
        title="a lock is taken and gets its expiry in a second request",
        why="A crash between the two leaves a key without an expiry: the lock stays for ever.",
        timeline="""\
A  SETNX lock 1  -> 1
A  killed before EXPIRE
B  SETNX lock 1  -> 0, for ever""",
        bad="""\
import redis

client = redis.Redis()

def acquire(token):
    if client.setnx("lock:report", token):
        client.expire("lock:report", 30)
        return True
    return False
""",
        good="""\
import redis

client = redis.Redis()

def acquire(token):
    return bool(client.set("lock:report", token, nx=True, ex=30))
""",
        fix="One request: SET key token NX PX milliseconds.",
    ),
    Rule(
        code="LH202",
        slug="lock-without-ttl",
        cwe=459,
        severity="error",
        confidence="high",
        default=True,
        check=redis.without_end,
        about=frozenset("redis_lock redis_set make_lock lua".split()),
        title="a lock in a store without an end",
        why="A store does not notice that the holder died. Without an expiry the key stays.",
        timeline="""\
A  SET lock token NX
A  the host goes down
B  waits until somebody deletes the key by hand""",
        bad="""\
import redis

def job(work):
    client = redis.Redis()
    with client.lock("lock:report"):
        work()
""",
        good="""\
import redis

def job(work):
    client = redis.Redis()
    with client.lock("lock:report", timeout=30):
        work()
""",
        fix="Give it a ttl, and renew it while the work goes on.",
    ),
    Rule(
        code="LH203",
        slug="unowned-delete",
        cwe=832,
        severity="error",
        confidence="medium",
        default=True,
        cured="safe",
        check=redis.unowned_delete,
        title="the key of a lock is deleted without asking whose it is",
        why="When the work took longer than the ttl, the key is another holder's by then.",
        timeline="""\
A  lock, ttl 10 s, works 12 s
B  gets the lock at 10 s
A  DEL lock at 12 s: B's lock is gone, C gets in beside B""",
        bad="""\
import redis

client = redis.Redis()

def run(token, work):
    if client.set("lock:report", token, nx=True, ex=30):
        try:
            work()
        finally:
            client.delete("lock:report")
""",
        good='''\
import redis

client = redis.Redis()
RELEASE = """
if redis.call("get", KEYS[1]) == ARGV[1] then return redis.call("del", KEYS[1]) end
return 0
"""

def run(token, work):
    if client.set("lock:report", token, nx=True, ex=30):
        try:
            work()
        finally:
            client.eval(RELEASE, 1, "lock:report", token)
''',
        fix="Write a random value when you acquire; compare and delete in one script.",
    ),
    Rule(
        code="LH204",
        slug="compare-then-delete",
        cwe=367,
        severity="error",
        confidence="high",
        default=True,
        cured="safe",
        check=redis.compare_apart,
        about=frozenset("redis_get".split()),
        title="owner compared and lock deleted or renewed, in two requests",
        why="The lease can run out between the two requests; what is deleted or renewed is then the"
        " lock of the next holder.",
        timeline="""\
A  GET lock -> "a": mine
   the lease runs out, B acquires
A  DEL lock: B's lock is gone""",
        bad="""\
def release(client, key, token):
    if client.get(key) == token:
        client.delete(key)

def acquire(client, key, token):
    return client.set(key, token, nx=True, ex=30)  # redis lock
""",
        good='''\
RELEASE = """
if redis.call("get", KEYS[1]) == ARGV[1] then return redis.call("del", KEYS[1]) end
return 0
"""

def release(client, key, token):
    return client.eval(RELEASE, 1, key, token)
''',
        fix="Compare and act in one Lua script, or under WATCH and MULTI.",
    ),
    Rule(
        code="LH205",
        slug="unowned-renewal",
        cwe=832,
        severity="warning",
        confidence="medium",
        default=True,
        check=redis.unowned_renewal,
        title="a lease is renewed without asking whose it is",
        why="After a pause the key is another's. Renewing it keeps that lock alive and tells its"
        " former holder that all is well.",
        timeline="""\
A  pauses longer than its ttl; B acquires
A  EXPIRE lock 30 -> 1: "renewed"
A, B  both work""",
        bad="""\
class RedisLock:
    def __init__(self, client, key):
        self.client = client
        self.key = key

    def renew(self):
        self.client.expire(self.key, 30)
""",
        good='''\
RENEW = """
if redis.call("get", KEYS[1]) == ARGV[1] then return redis.call("expire", KEYS[1], ARGV[2]) end
return 0
"""

class RedisLock:
    def __init__(self, client, key, token):
        self.client = client
        self.key = key
        self.token = token

    def renew(self):
        return self.client.eval(RENEW, 1, self.key, self.token, 30)
''',
        fix="Compare and extend in one script; stop working when the answer is 0.",
    ),
    Rule(
        code="LH206",
        slug="client-clock-expiry",
        cwe=362,
        severity="warning",
        confidence="high",
        default=True,
        check=redis.client_clock,
        title="the clock of a client decides whether a lock has run out",
        why="Clocks of two hosts differ, and step. Who is ahead takes locks that have not run out.",
        timeline="""\
A  lock = 12:00:00 + 30 s by the clock of A
B  whose clock is 40 s ahead: "run out"
A, B  both work""",
        bad="""\
import time

def is_free(redis_client, timeout):
    taken_at = redis_client.get("lock:report")
    if taken_at and float(taken_at) + timeout < time.time():
        return True
    return False
""",
        good="""\
def acquire(redis_client, token):
    return bool(redis_client.set("lock:report", token, nx=True, px=30000))
""",
        fix="Let the server end the lease: SET NX PX, or a condition on the server's own clock.",
    ),
    Rule(
        code="LH207",
        slug="get-then-set",
        cwe=367,
        severity="error",
        confidence="high",
        default=True,
        check=redis.get_then_set,
        title="a lock is read and then set, without NX",
        why="Two clients that read at the same moment both find it free, and both set it.",
        timeline="""\
A  GET lock -> nil      B  GET lock -> nil
A  SET lock a           B  SET lock b
A, B  both work""",
        bad="""\
from django.core.cache import cache

def start(work):
    if cache.get("lock:report"):
        return
    cache.set("lock:report", 1, timeout=60)
    work()
""",
        good="""\
from django.core.cache import cache

def start(work):
    if not cache.add("lock:report", 1, timeout=60):
        return
    work()
""",
        fix="SET with NX, or `cache.add`: look and take in one request.",
    ),
    Rule(
        code="LH208",
        slug="write-without-condition",
        cwe=362,
        severity="error",
        confidence="medium",
        default=True,
        check=rows.unconditional_write,
        title="the record of a lock is written without a condition",
        why="A put without a condition succeeds whoever holds the lock: the last writer wins.",
        timeline="""\
A  put_item(lock, owner=A)
B  put_item(lock, owner=B)    no error
A, B  both work""",
        bad="""\
import boto3

table = boto3.resource("dynamodb").Table("locks")

def acquire_lock(name, owner):
    table.put_item(Item={"lock_id": name, "owner": owner})
""",
        good="""\
import boto3

table = boto3.resource("dynamodb").Table("locks")

def acquire_lock(name, owner):
    table.put_item(
        Item={"lock_id": name, "owner": owner},
        ConditionExpression="attribute_not_exists(lock_id)",
    )
""",
        fix="Say in the condition what you saw: not there, or the very record that ran out.",
    ),
    Rule(
        code="LH209",
        slug="two-keys",
        cwe=667,
        severity="error",
        confidence="medium",
        default=True,
        check=keys.two_keys,
        title="a lock is acquired under one key and released under another",
        why="What is released was never taken, and what was taken stays until its ttl.",
        timeline="""\
A  SET lock:42 a NX EX 600
A  DEL locks:42    -> 0
B  waits ten minutes""",
        bad="""\
class JobLock:
    def acquire(self, redis, job):
        return redis.set(f"lock:{job}", "1", nx=True, ex=600)

    def release(self, redis, job):
        if self.owned:
            redis.delete(f"job_lock:{job}")
""",
        good="""\
from lifehold import connect

def run(job, work):
    with connect("redis://localhost").lock(f"job/{job}", ttl=600) as lease:
        work(lease)
""",
        fix="Build the key in one place.",
    ),
    Rule(
        code="LH210",
        slug="work-outlives-lease",
        cwe=672,
        severity="warning",
        confidence="high",
        default=True,
        check=leases.outlived,
        title="the work may take longer than the lease, and nobody renews it",
        why="At the end of the ttl the store gives the lock to the next, whatever the holder does.",
        timeline="""\
A  lock, ttl 10 s; a request with timeout 60 s
B  gets the lock at 10 s
A, B  both work""",
        bad="""\
import redis, requests

client = redis.Redis()

def fetch(url):
    with client.lock("lock:fetch", timeout=10):
        return requests.get(url, timeout=60)
""",
        good="""\
import redis, requests

client = redis.Redis()

def fetch(url):
    with client.lock("lock:fetch", timeout=60):
        return requests.get(url, timeout=10)
""",
        fix="A ttl longer than the work, or a heartbeat that renews it.",
    ),
    Rule(
        code="LH211",
        slug="session-lock-on-a-pool",
        cwe=667,
        severity="warning",
        confidence="medium",
        default=True,
        check=leases.session_lock,
        title="a lock of the database session is taken on a pooled connection",
        why="The lock belongs to the connection. The pool gives that to somebody else, with the"
        " lock on it, and the unlock runs on another one.",
        timeline="""\
A  pg_advisory_lock on connection 1; commit gives it back
A  pg_advisory_unlock on connection 2: false
B  waits for a lock that nobody holds""",
        bad="""\
from sqlalchemy import text

def run(session, work):
    session.execute(text("SELECT pg_advisory_lock(42)"))
    work()
    session.commit()
    session.execute(text("SELECT pg_advisory_unlock(42)"))
""",
        good="""\
from sqlalchemy import text

def run(session, work):
    session.execute(text("SELECT pg_advisory_xact_lock(42)"))
    work()
    session.commit()
""",
        fix="pg_advisory_xact_lock, which ends with the transaction; or a connection of its own.",
    ),
    Rule(
        code="LH212",
        slug="cache-delete-after-expiry",
        cwe=832,
        severity="warning",
        confidence="medium",
        default=True,
        check=redis.late_delete,
        about=frozenset("redis_delete".split()),
        title="the lock of a cache is deleted, though it may have run out",
        why="A cache cannot compare and delete. After the timeout the key is the next holder's.",
        timeline="""\
A  cache.add(lock, 60 s), works 70 s
B  cache.add succeeds at 60 s
A  cache.delete at 70 s: B's lock is gone""",
        bad="""\
from django.core.cache import cache

def run(work):
    if cache.add("lock:report", 1, 60):
        try:
            work()
        finally:
            cache.delete("lock:report")
""",
        good="""\
import time

from django.core.cache import cache

def run(work):
    ends_at = time.monotonic() + 57
    if cache.add("lock:report", 1, 60):
        try:
            work()
        finally:
            if time.monotonic() < ends_at:
                cache.delete("lock:report")
""",
        fix="Delete only well before the end, by a monotonic clock; else let it run out. Better: a"
        " store that compares.",
    ),
    Rule(
        code="LH213",
        slug="deaf-to-loss",
        cwe=414,
        severity="info",
        confidence="medium",
        default=True,
        check=leases.deaf_to_loss,
        title="nobody asks whether the lease is still held",
        why="A session can end and a lease run out while the work goes on. The client says so, to"
        " those who ask.",
        timeline="""\
A  holds the lock, is cut off: SUSPENDED, then LOST
B  gets the lock
A  works on, it never asked""",
        bad="""\
from lifehold import connect

store = connect("sqlite:///locks.db")

def run(jobs):
    with store.lock("worker", ttl=30):
        for job in jobs:
            job()
""",
        good="""\
from lifehold import connect

store = connect("sqlite:///locks.db")

def run(jobs):
    with store.lock("worker", ttl=30) as lease:
        for job in jobs:
            lease.check()
            job()
""",
        fix="`lease.check()` in every round; a listener for SUSPENDED and LOST with ZooKeeper.",
    ),
    Rule(
        code="LH214",
        slug="write-without-token",
        cwe=413,
        severity="info",
        confidence="medium",
        default=False,
        check=leases.unfenced_write,
        title="a write under a lease carries no fencing token",
        why="A holder that was paused does not know it. Only a number that grows with every grant,"
        " compared where the data is, refuses its late write.",
        timeline="""\
A  lease, token 7; a pause of 40 s
B  lease, token 8, writes
A  writes over it: nothing compares 7 with 8""",
        bad="""\
from lifehold import connect

store = connect("sqlite:///locks.db")

def pay(db, order):
    with store.lock("payments", ttl=10):
        db.execute("UPDATE orders SET paid = 1 WHERE id = ?", (order,))
""",
        good="""\
from lifehold import connect

store = connect("sqlite:///locks.db")

def pay(db, order):
    with store.lock("payments", ttl=10) as lease:
        db.execute(
            "UPDATE orders SET paid = 1, token = ? WHERE id = ? AND token <= ?",
            (lease.token, order, lease.token),
        )
""",
        fix="Hand `lease.token` to a guard of lifehold.fence, or compare it in the WHERE.",
    ),
    Rule(
        code="LH215",
        slug="retry-without-pause",
        cwe=834,
        severity="warning",
        confidence="high",
        default=True,
        check=leases.no_pause,
        title="an attempt is repeated without a pause",
        why="All who wait ask as fast as they can, and the holder works the slower for it.",
        timeline="""\
A  holds the lock
B, C, D  SET NX, SET NX, SET NX ...: 100,000 a second""",
        bad="""\
import redis

client = redis.Redis()

def acquire(token):
    while True:
        if client.set("lock:report", token, nx=True, ex=30):
            return
""",
        good="""\
import random, redis, time

client = redis.Redis()

def acquire(token, wait):
    pause, ends = 0.01, time.monotonic() + wait
    while not client.set("lock:report", token, nx=True, ex=30):
        if time.monotonic() > ends:
            raise TimeoutError("report")
        time.sleep(random.uniform(0, pause))
        pause = min(1.0, pause * 2)
""",
        fix="Wait between attempts, longer each time, by a random part; or be woken (BLPOP).",
    ),
    Rule(
        code="LH216",
        slug="idempotency-key-deleted",
        cwe=460,
        severity="error",
        confidence="medium",
        default=True,
        check=leases.forgotten_key,
        title="a record against a second run is deleted when an error came",
        why="An error, and a timeout most of all, does not say that nothing was done.",
        timeline="""\
A  record, pay(): done at the bank; the answer is lost
A  error: the record is deleted
B  retry: no record; pays again""",
        bad="""\
def handle(redis, request, pay):
    idempotency_key = f"idempotency:{request.id}"
    if not redis.set(idempotency_key, "PENDING", nx=True, ex=86400):
        return None
    try:
        return pay(request)
    except Exception:
        redis.delete(idempotency_key)
        raise
""",
        good="""\
def handle(redis, request, pay):
    idempotency_key = f"idempotency:{request.id}"
    if not redis.set(idempotency_key, "PENDING", nx=True, ex=86400):
        return None
    return pay(request)
""",
        fix="Keep the record, marked as unknown; a reconciliation finds out what was done.",
    ),
    Rule(
        code="LH217",
        slug="completed-without-condition",
        cwe=362,
        severity="warning",
        confidence="medium",
        default=True,
        check=leases.completed_by_anyone,
        title="a record is completed whoever works on it now",
        why="A worker that stalled comes back, and overwrites what the next one wrote.",
        timeline="""\
A  PROCESSING, stalls; its lease ends
B  takes over, COMPLETED with its result
A  wakes: COMPLETED with another result""",
        bad="""\
def complete(db, key, result):
    db.execute(
        "UPDATE idempotency_keys SET status = 'completed', result = ? WHERE id = ?",
        (result, key),
    )
""",
        good="""\
def complete(db, key, result, token):
    db.execute(
        "UPDATE idempotency_keys SET status = 'completed', result = ?"
        " WHERE id = ? AND status = 'processing' AND token = ?",
        (result, key, token),
    )
""",
        fix="Compare state and token in the statement, and look how many rows it changed.",
    ),
    Rule(
        code="LH218",
        slug="lease-starved",
        cwe=410,
        severity="error",
        confidence="high",
        default=True,
        check=leases.blocks_renewal,
        title="a blocking call outlasts the lease that its event loop renews",
        why="A lease is renewed by a task of the loop; a call that blocks the loop stops it.",
        timeline="""\
A  async with lock (ttl 5 s): time.sleep(10)
   nothing is renewed; the lease ends after 5 s
B  acquires; A goes on beside B""",
        bad="""\
import time
from lifehold import AsyncLock

async def job():
    async with AsyncLock("report", ttl=5):
        time.sleep(10)
""",
        good="""\
import asyncio
from lifehold import AsyncLock

async def job():
    async with AsyncLock("report", ttl=5):
        await asyncio.sleep(10)
""",
        fix="Await, or run the call in a thread: `await asyncio.to_thread(...)`.",
    ),
    Rule(
        code="LH219",
        slug="lease-dropped",
        cwe=772,
        severity="error",
        confidence="high",
        default=True,
        check=leases.dropped_lease,
        title="the lease that an acquire returned is dropped",
        why="The lease is the only thing that can be released, asked, and that carries the token. A"
        " block of `attempt()` runs in any case: the lease, or None, says whether it has the lock.",
        timeline="""\
A  lock.acquire(): the lease is dropped
A  cannot release; nobody gets in before A ends""",
        bad="""\
from lifehold import Lock

def job(work):
    lock = Lock("report")
    lock.acquire()
    work()
""",
        good="""\
from lifehold import Lock

def job(work):
    with Lock("report").acquire() as lease:
        work(lease)
""",
        fix="`with lock as lease:`, or keep what `acquire()` returns and release it. Of an attempt:"
        " `with lock.attempt() as lease:`, and `if lease:` inside.",
    ),
    Rule(
        code="LH220",
        slug="token-not-handed",
        cwe=362,
        severity="error",
        confidence="high",
        default=True,
        check=leases.token_not_handed,
        title="a guard is not given the lease that it stands under",
        why="A guard refuses late writers by the token of the lease; another number does not.",
        timeline="""\
A  lease with token 7, stalls; B gets 8
B  writes with the number 1
A  writes with the number 1: admitted""",
        bad="""\
from lifehold import Lock
from lifehold.fence import FencedFile

def write(data):
    with Lock("report", ttl=10) as lease:
        FencedFile("report.json", 1).write(data)
""",
        good="""\
from lifehold import Lock
from lifehold.fence import FencedFile

def write(data):
    with Lock("report", ttl=10) as lease:
        FencedFile("report.json", lease).write(data)
""",
        fix="Hand the lease itself to the guard.",
    ),
)
