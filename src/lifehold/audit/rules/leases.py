"""Leases in databases and services: no condition, no renewal, no listener, no token."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from .. import words
from ..blocks import names_of
from ..libraries import OUTSIDE, made_by
from ..model import calls_in, nodes, text_of
from ..rule import Hit, at, there
from .refused import only_logs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..events import Event
    from ..judge import Judge
    from ..model import Function

SESSION_LOCK = re.compile(r"pg_(try_)?advisory_lock(_shared)?\s*\(|\bGET_LOCK\s*\(", re.IGNORECASE)
SESSION_CALLS = ("pg_advisory_lock", "pg_try_advisory_lock")  # of SQLAlchemy's `func`
POOLED = re.compile(r"session|pool|engine|^db$|connection$", re.IGNORECASE)
WRITES = re.compile(r"^\s*(UPDATE|INSERT|DELETE|REPLACE|MERGE)\b", re.IGNORECASE)


def outlived(judge: Judge) -> Iterator[Hit]:
    """LH210."""
    for function in judge.functions:
        for stmt, _frames in function.walked:
            if not isinstance(stmt, ast.With | ast.AsyncWith):
                continue
            for item in stmt.items:
                ttl = lease_of(judge, function, item.context_expr)
                if ttl is None:
                    continue
                name = text_of(item.optional_vars)
                long = longer_work(judge, function, stmt, ttl)
                if long is None and "etcd" in judge.module.lower and not kept_alive(judge):
                    loops = [s for s in stmt.body if isinstance(s, ast.For | ast.While)]
                    long = (loops[0], float("inf")) if loops and calls_in(loops[0]) else None
                if long is None or renewed(stmt, name):
                    continue
                node, seconds = long
                yield Hit(
                    function,
                    node,
                    f"the lease of line {stmt.lineno} ends after {ttl:g} s, and this may take"
                    f" {as_long(seconds)}: the next holder is in before it ends",
                )
        yield from outlived_by_hand(judge, function)
        yield from outlived_key(judge, function)


def outlived_by_hand(judge: Judge, function: Function) -> Iterator[Hit]:
    """`lock.acquire()`, work that is longer than the lease, `lock.release()`."""
    own = judge.own(function)
    for taken in own:
        called = taken.facts.get("called")
        if taken.kind != "acquire" or called is None or not isinstance(called.func, ast.Attribute):
            continue
        ttl = lease_of(judge, function, called.func.value)
        name = text_of(called.func.value)
        given = [e for e in own if e.kind == "release" and e.line > taken.line]
        end = next((e.line for e in given if text_of(e.facts["called"].func.value) == name), 0)
        if ttl is None or not end or renewed(function.node, name):
            continue
        etcd = "etcd" in judge.module.lower and not kept_alive(judge)
        loops = [s for s, _ in function.walked if isinstance(s, ast.For | ast.While)]
        looped = next((s for s in loops if taken.line < s.lineno < end and calls_in(s)), None)
        if etcd and looped is not None:
            yield Hit(
                function,
                looped,
                f"the lease of line {taken.line} ends after {ttl:g} s, this loop takes as long as"
                " it takes, and nothing keeps the lease: the next holder is in before it ends",
                (there(taken, "taken here"),),
            )
            continue
        for event in own:
            seconds = lasting(event) if taken.line < event.line < end else None
            if seconds is not None and seconds >= ttl:
                yield at(
                    event,
                    f"the lease of line {taken.line} ends after {ttl:g} s, and this may take"
                    f" {as_long(seconds)}: the next holder is in before it ends",
                    there(taken, "taken here"),
                )
                break


def outlived_key(judge: Judge, function: Function) -> Iterator[Hit]:
    """`set(key, token, nx=True, ex=60)`, and then a program that may run for hours."""
    own = judge.own(function) if "redis_lock" in judge.kinds else []
    leased = [e for e in own if e.kind == "redis_lock" and e.facts.get("timed") and e.lockish]
    if not leased or "redis_expire" in judge.kinds or renewed(function.node, ""):
        return
    for taken in leased:
        ttl = number(taken.facts.get("ttl"))
        if ttl is None:
            continue
        millis = {"px", "pxat"} & set(taken.facts["called"].keywords)
        ttl = ttl / 1000 if millis else ttl
        for event in own:
            seconds = lasting(event) if event.line > taken.line else None
            if seconds is None or seconds < ttl or (seconds == float("inf") and ttl > 600):
                continue
            yield at(
                event,
                f"the lease of line {taken.line} ends after {ttl:g} s, and this may take"
                f" {as_long(seconds)}: the next holder is in before it ends",
                there(taken, "taken here"),
            )
            return


def kept_alive(judge: Judge) -> bool:
    return any(word in judge.module.text for word in (".refresh(", "keepalive", "keep_alive"))


def lease_of(judge: Judge, function: Function, node: ast.AST) -> float | None:
    """The length of a lease that nobody renews: `redis.lock(name, timeout=10)`."""
    if isinstance(node, ast.Name):
        node = function.only_value(node.id) or node
    for event in judge.own(function):
        if event.site is node and event.kind == "make_lock":
            return number(event.facts.get("ttl"))
    if isinstance(node, ast.Call) and text_of(node.func).endswith(".lock"):
        if "etcd" in judge.module.lower:
            return number(next((k.value for k in node.keywords if k.arg == "ttl"), None))
    return None


def number(node: ast.AST | None) -> float | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return float(node.value)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        sides = number(node.left), number(node.right)
        return sides[0] * sides[1] if sides[0] is not None and sides[1] is not None else None
    return None


def longer_work(
    judge: Judge, function: Function, stmt: ast.stmt, ttl: float
) -> tuple[ast.AST, float] | None:
    for event in judge.own(function):
        if not any(f.node is stmt for f in event.frames):
            continue
        given = lasting(event)
        if given is not None and given >= ttl:
            return event.site, given
    return None


def lasting(event: Event) -> float | None:
    """How long this may take, in seconds that stand there."""
    called = event.facts.get("called")
    if event.kind == "sleep":
        return number(event.facts.get("seconds"))
    if called is None or event.kind == "make_lock":
        return None
    if event.facts.get("name", "") in ENDLESS and "timeout" not in called.keywords:
        return float("inf")
    return number(called.keywords.get("timeout"))


# Programs that are waited for as long as they take.
ENDLESS = frozenset(
    "subprocess.run subprocess.call subprocess.check_call subprocess.check_output os.system".split()
)


def as_long(seconds: float) -> str:
    return "as long as it likes" if seconds == float("inf") else f"{seconds:g} s"


def renewed(stmt: ast.AST, name: str) -> bool:
    return any(
        isinstance(n, ast.Attribute) and n.attr in ("extend", "reacquire", "renew", "refresh")
        for n in ast.walk(stmt)
    )


def session_lock(judge: Judge) -> Iterator[Hit]:
    """LH211."""
    if "advisory_lock" not in judge.module.lower and "get_lock" not in judge.module.lower:
        return
    for function in judge.functions:
        for event in judge.own(function):
            called = event.facts.get("called")
            if called is None or not called.args or not isinstance(called.func, ast.Attribute):
                continue
            if called.func.attr not in ("execute", "scalar", "exec", "exec_driver_sql", "fetchval"):
                continue
            texts = function.texts(called.args[0])
            if not any(SESSION_LOCK.search(t) or t in SESSION_CALLS for t in texts):
                continue
            owner = text_of(called.func.value).rpartition(".")[2]
            if not pooled(judge, function, called.func.value, owner) and not lent(event, owner):
                continue
            yield at(
                event,
                f"a session lock is taken on `{owner}`, which gives its connection back to a pool:"
                " the next statement may run on another one, and the lock stays with this one",
            )


LENDS = frozenset("acquire connection connect getconn get_connection begin session".split())
GIVEN_BACK = re.compile(r"advisory_unlock|RELEASE_LOCK", re.IGNORECASE)


def lent(event: Event, owner: str) -> bool:
    """`async with pool.acquire() as conn:`, whose block ends before the lock is given back."""
    for frame in event.frames:
        for item in frame.node.items if frame.kind == "with" else ():
            call = item.context_expr
            if text_of(item.optional_vars) != owner or not isinstance(call, ast.Call):
                continue
            pool, _, lends = text_of(call.func).rpartition(".")
            if lends not in LENDS or not re.search(r"pool|engine", pool, re.IGNORECASE):
                continue
            inside = [n for s in frame.node.body for n in ast.walk(s)]
            texts = [str(n.value) for n in inside if isinstance(n, ast.Constant)]
            names = [text_of(n.func) for n in inside if isinstance(n, ast.Call)]
            return not any(map(GIVEN_BACK.search, [*texts, *names])) and not any(
                isinstance(n, ast.Yield) for n in inside
            )
    return False


def pooled(judge: Judge, function: Function, node: ast.expr, owner: str) -> bool:
    if re.search(r"session$", owner, re.IGNORECASE) and "sqlalchemy" in judge.module.lower:
        return True
    if owner.strip("_") == "pool":
        return True
    return "pgbouncer" in judge.module.lower


def deaf_to_loss(judge: Judge) -> Iterator[Hit]:
    """LH213."""
    yield from deaf_zookeeper(judge)
    yield from loss_swallowed(judge)
    yield from loss_unasked(judge)
    yield from renewal_unasked(judge)
    yield from unasked_lease(judge)


PROLONGS = frozenset("extend reacquire renew refresh".split())


def loss_swallowed(judge: Judge) -> Iterator[Hit]:
    """`try: lock.extend(...) except LockError: pass`, again and again: nobody hears of the loss."""
    for function in judge.functions:
        for event in judge.own(function):
            called = event.facts.get("called")
            if called is None or getattr(called.func, "attr", "") not in PROLONGS:
                continue
            if not any(f.kind in ("while", "for") for f in event.frames):
                continue
            made = made_by(judge, function, called.func)
            if made not in OUTSIDE and "lock" not in text_of(called.func).lower():
                continue
            for handler in judge.handled_by(event):
                if names_of(handler) & LOSSES and only_logs(handler.body):
                    yield Hit(
                        function,
                        handler,
                        f"the renewal of line {event.line} says here that the lock is lost, and"
                        " nobody is told: the work goes on without it",
                        (there(event, "renewed here"),),
                    )
                    return


PROLONGED = re.compile(r"""call\s*\(\s*['"]p?expire['"]""", re.IGNORECASE)


def renewal_unasked(judge: Judge) -> Iterator[Hit]:
    """A script that renews if the lease is ours, again and again, whose answer nobody reads."""
    if "script" not in judge.kinds:
        return
    for function in judge.functions:
        for event in judge.own(function):
            stmt = event.facts.get("statement")
            if event.kind != "script" or not isinstance(stmt, ast.Expr) or not judge.loops(event):
                continue
            value = stmt.value.value if isinstance(stmt.value, ast.Await) else stmt.value
            given = event.facts["called"].args[:1]
            if value is event.site and any(
                PROLONGED.search(t) for each in given for t in function.texts(each)
            ):
                yield at(
                    event,
                    "this renewal answers 0 when the lease is another's, and nobody reads it: the"
                    " work goes on without the lock",
                )
                return


TOLD = re.compile(r"^_?(lost|is_lost|expired|gone|failed|lease_lost|lock_lost|revoked)$")


def loss_unasked(judge: Judge) -> Iterator[Hit]:
    """A renewal that sets `self.lost`, which nobody in this module ever asks."""
    for function in judge.functions if "lost" in judge.module.lower else ():
        for event in judge.own(function):
            called = event.facts.get("called")
            owner = called.func.value if called and isinstance(called.func, ast.Attribute) else None
            if called is None or getattr(called.func, "attr", "") != "set" or called.args:
                continue
            if not isinstance(owner, ast.Attribute) or not TOLD.match(owner.attr):
                continue
            said = asks_for(judge, owner.attr)
            group = function.within.name if function.within else ""
            used = not group or f"{group}(" in judge.module.text
            if used and not said and {"redis_lock", "script", "make_lock"} & judge.kinds:
                yield at(
                    event,
                    f"`{text_of(owner)}` says that the lease is lost, and nothing here asks it: the"
                    " work goes on without the lock",
                )
                return


def asks_for(judge: Judge, attribute: str) -> bool:
    """Is this attribute read anywhere, but to be set?"""
    for function in judge.functions:
        for stmt in function.body:
            below = list(ast.walk(stmt))
            set_here = {
                id(n.func.value)
                for n in below
                if isinstance(n, ast.Call)
                and isinstance(n.func, ast.Attribute)
                and n.func.attr == "set"
            }
            for node in below:
                if isinstance(node, ast.Attribute) and node.attr == attribute:
                    if isinstance(node.ctx, ast.Load) and id(node) not in set_here:
                        return True
    return False


LOSSES = frozenset(
    "LockError LockNotOwnedError redis.exceptions.LockError redis.exceptions.LockNotOwnedError"
    " Exception BaseException NotHeld LeaseLost LockLost".split()
)
OF_SESSION = ("Lock", "WriteLock", "ReadLock", "Semaphore", "Election")


def deaf_zookeeper(judge: Judge) -> Iterator[Hit]:
    module = judge.module
    if "KazooClient" not in module.text or "add_listener" in module.text:
        return
    if not any(name.startswith("kazoo.client") for name in module.imports.values()):
        return  # who makes the client listens
    for function in judge.functions:
        for event in judge.own(function):
            called = event.facts.get("called")
            if called is None or not isinstance(called.func, ast.Attribute):
                continue
            if called.func.attr in OF_SESSION and called.args:
                yield at(
                    event,
                    "nobody listens for SUSPENDED and LOST: when the session ends, this lock is"
                    " another's, and the holder is not told",
                )
                return


def unasked_lease(judge: Judge) -> Iterator[Hit]:
    """A lifehold lease with a ttl around a loop that never asks it."""
    if "lifehold" not in judge.module.lower:
        return
    for function in judge.functions:
        for stmt, _frames in function.walked:
            if not isinstance(stmt, ast.With | ast.AsyncWith):
                continue
            for item in stmt.items:
                if not of_lifehold(judge, function, item.context_expr):
                    continue
                name = text_of(item.optional_vars)
                if name and any(
                    isinstance(n, ast.Name) and n.id == name for s in stmt.body for n in ast.walk(s)
                ):
                    continue
                loop = next((s for s in stmt.body if isinstance(s, ast.While | ast.For)), None)
                if loop is not None and calls_in(loop):
                    yield Hit(
                        function,
                        loop,
                        f"this loop works under the lease of line {stmt.lineno} and never asks"
                        " whether it still holds",
                    )


def of_lifehold(judge: Judge, function: Function, node: ast.AST) -> bool:
    """`store.lock(...)` or `Lock(..., ttl=...)` of lifehold."""
    if not isinstance(node, ast.Call):
        return False
    name = judge.module.dotted(node.func)
    if name in ("lifehold.Lock", "lifehold.AsyncLock"):
        return any(k.arg == "ttl" for k in node.keywords) or "://" in function.key(node)
    if isinstance(node.func, ast.Attribute) and node.func.attr == "lock":
        owner = node.func.value
        value = function.values(owner.id) if isinstance(owner, ast.Name) else []
        made = [v.value if isinstance(v, ast.Await) else v for v in value]
        return any(
            isinstance(v, ast.Call) and judge.module.dotted(v.func) in CONNECTS for v in made
        )
    return False


CONNECTS = ("lifehold.connect", "lifehold.aconnect")


def unfenced_write(judge: Judge) -> Iterator[Hit]:
    """LH214."""
    for function in judge.functions:
        for stmt, _frames in function.walked:
            if not isinstance(stmt, ast.With | ast.AsyncWith):
                continue
            for item in stmt.items:
                if not _leased(judge, function, item.context_expr):
                    continue
                name = text_of(item.optional_vars)
                inside = [n for s in stmt.body for n in ast.walk(s)]
                if name and any(isinstance(n, ast.Name) and n.id == name for n in inside):
                    continue
                for call in (n for n in inside if isinstance(n, ast.Call)):
                    written = call.args and WRITES.search(_sql(call.args[0]))
                    if written and text_of(call.func).rpartition(".")[2] in (
                        "execute",
                        "executemany",
                    ):
                        yield Hit(
                            function,
                            call,
                            f"this write carries no fencing token: after a pause longer than the"
                            f" lease of line {stmt.lineno} it lands on the work of the next holder",
                        )
                        return


def _leased(judge: Judge, function: Function, node: ast.AST) -> bool:
    return of_lifehold(judge, function, node) or lease_of(judge, function, node) is not None


def _sql(node: ast.expr) -> str:
    found = [
        n.value for n in nodes(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)
    ]
    return found[0] if found else ""


# --- conditions in the text of a request --------------------------------------------------------

IDEMPOTENT = re.compile(r"idempot|dedup", re.IGNORECASE)
DONE = re.compile(r"^(completed?|done|succeeded|success|finished|processed)$", re.IGNORECASE)
PAUSES = re.compile(
    r"sleep|wait|back_?off|delay|pause|jitter|select|poll|join|retry|next_|\.get$|recv|input|yield"
    r"|pop$|listen"
)


TRIES = frozenset(
    "transaction txn put put_if_not_exists put_item update_item insert_one find_one_and_update"
    " update_one create acquire_lock try_acquire try_lock set_nx setnx create_node execute"
    " fetchval post request compare_and_set cas".split()
)


def hot_loop(judge: Judge) -> Iterator[Hit]:
    """A loop that asks a store for the lock, whatever the store, and leaves when it has it."""
    for function in judge.functions:
        if not words.acquires(function.name) or words.releases(function.name):
            continue
        for stmt, _frames in function.walked:
            if not isinstance(stmt, ast.While) or paused(judge, function, stmt):
                continue
            inside = [n for s in stmt.body for n in nodes(s)]
            asked = [
                n for n in inside
                if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)
                and n.func.attr in TRIES and of_lock(judge, function, n)
            ]  # fmt: off
            endless = isinstance(stmt.test, ast.Constant) and bool(stmt.test.value)
            won = any(isinstance(s, ast.If) and leaves_loop(s.body) for s in stmt.body)
            if endless and asked and won and not any(isinstance(n, ast.Raise) for n in inside):
                yield Hit(
                    function,
                    stmt,
                    f"this loop asks for the lock on line {asked[0].lineno} and begins again at"
                    " once: all who wait load the store, and the holder with them",
                )
                break


def of_lock(judge: Judge, function: Function, asked: ast.Call) -> bool:
    """Is a lock asked for, by the name of who asks or by what is named in the request?"""
    if judge.named_lock(function) or re.search(r"lead|lease|elect", function.name, re.IGNORECASE):
        return True
    texts = [text for given in [*asked.args, *[k.value for k in asked.keywords]]
             for text in function.texts(given)]  # fmt: off
    return any(words.speaks_of_lock(text) or "lease" in text.lower() for text in texts)


def leaves_loop(block: list[ast.stmt]) -> bool:
    return bool(block) and isinstance(block[-1], ast.Return | ast.Break)


def no_pause(judge: Judge) -> Iterator[Hit]:
    """LH215."""
    yield from hot_loop(judge)
    for function in judge.functions:
        for event in judge.own(function):
            taken = event.kind in ("redis_lock", "take") or (
                event.kind in ("create", "flock")
                and (event.facts.get("exclusive") or event.facts.get("nonblocking"))
            )
            if not taken or not (event.lockish or event.kind == "flock"):
                continue
            loops = judge.loops(event)
            loop = loops[-1] if loops else None
            stmt = event.facts.get("statement")
            if isinstance(stmt, ast.While) and event.kind in ("redis_lock", "take"):
                loop = stmt  # `while not set(..., nx=True): pass`
            if loop is None or paused(judge, function, loop) or bounded(judge, event, loop):
                continue
            yield at(
                event,
                f"this attempt is repeated by the loop of line {loop.lineno} without a pause: all"
                " who wait load the processor or the store, and the holder with them",
            )
            break


def paused(judge: Judge, function: Function, loop: ast.While) -> bool:
    for stmt in [*loop.body, loop.test]:
        for node in ast.walk(stmt):
            if isinstance(node, ast.Call):
                name = judge.module.dotted(node.func) or getattr(node.func, "attr", "")
                if PAUSES.search(name.lower()) and not (name.endswith("sleep") and no_time(node)):
                    return True
                helper = judge.reader.callee(function, judge.module.called(node))
                if helper is not None and any(e.kind == "sleep" for e in judge.whole(helper)):
                    return True
            if isinstance(node, ast.Yield | ast.YieldFrom):
                return True
    return False


def no_time(call: ast.Call) -> bool:
    """`sleep(0)` is no pause."""
    return bool(call.args) and number(call.args[0]) == 0


def bounded(judge: Judge, event: Event, loop: ast.While) -> bool:
    """Does a refusal leave the loop: is it repeated for another reason?"""
    for handler in judge.handled_by(event):
        if any(isinstance(n, ast.Raise | ast.Return | ast.Break) for n in ast.walk(handler)):
            return True
    inside = [n for stmt in loop.body for n in ast.walk(stmt)]
    refused = [n for n in inside if isinstance(n, ast.Raise)]
    return bool(refused) or not (judge.handled_by(event) or event.kind in ("redis_lock", "take"))


def forgotten_key(judge: Judge) -> Iterator[Hit]:
    """LH216."""
    if not ("idempot" in judge.module.lower or "dedup" in judge.module.lower):
        return
    for function in judge.functions:
        for event in judge.own(function):
            if not any(f.kind == "try" and f.part == "handler" for f in event.frames):
                continue
            called = event.facts.get("called")
            name = text_of(called.func).rpartition(".")[2] if called is not None else ""
            deletes = event.kind == "redis_delete" or name in (
                "delete_item",
                "delete",
                "delete_one",
            )
            sql = (
                name == "execute"
                and any(
                    re.match(r"\s*DELETE\b", t, re.IGNORECASE) for t in function.texts(called.node)
                )
                if called is not None
                else False
            )
            if not (deletes or sql) or called is None:
                continue
            if any(IDEMPOTENT.search(t) for t in function.texts(called.node)):
                yield at(
                    event,
                    "the record that the request began is deleted on an error: after a timeout the"
                    " work may be done already, and the retry does it a second time",
                )
                break


def completed_by_anyone(judge: Judge) -> Iterator[Hit]:
    """LH217."""
    if not ("idempot" in judge.module.lower or "dedup" in judge.module.lower):
        return
    for function in judge.functions:
        for event in judge.own(function):
            called = event.facts.get("called")
            if called is None or not isinstance(called.func, ast.Attribute):
                continue
            texts = function.texts(called.node)
            if not any(IDEMPOTENT.search(t) for t in texts):
                continue
            if event.kind == "redis_set":
                late = any(DONE.match(t) for t in texts) and "xx" not in called.keywords
                late = late and not begun_as_long(judge, event)
            elif called.func.attr == "update_item":
                late = (
                    any(DONE.match(t) for t in texts)
                    and "ConditionExpression" not in called.keywords
                )
            else:
                late = called.func.attr == "execute" and any(map(plain_completion, texts))
            if late:
                yield at(
                    event,
                    "the record is completed without a condition: a worker whose lease ran out"
                    " overwrites the result of the one that took over",
                )
                break


def begun_as_long(judge: Judge, done: Event) -> bool:
    """Was it begun in the same function for as long: is there no lease that runs out before?"""
    kept = text_of(done.facts.get("ttl"))
    return bool(kept) and any(
        e.kind == "redis_lock" and e.key == done.key and text_of(e.facts.get("ttl")) == kept
        for e in judge.own(done.where)
    )


def plain_completion(text: str) -> bool:
    """`UPDATE idempotency SET status = 'completed' WHERE key = ...` and no more conditions."""
    found = re.search(r"\bUPDATE\b.*?\bSET\b(.*?)\bWHERE\b(.*)", text, re.IGNORECASE | re.DOTALL)
    if not found or not IDEMPOTENT.search(text):
        return False
    done = re.search(
        r"status\s*=\s*'(completed?|done|succeeded|finished)'", found[1], re.IGNORECASE
    )
    return bool(done) and not re.search(
        r"status|state|token|owner|generation|version|fence|lock|attempt", found[2], re.IGNORECASE
    )


# --- lifehold itself ----------------------------------------------------------------------------


def blocks_renewal(judge: Judge) -> Iterator[Hit]:
    """LH218."""
    if "lifehold" not in judge.module.lower:
        return
    for function in judge.functions:
        for stmt, _frames in function.walked:
            if not isinstance(stmt, ast.AsyncWith):
                continue
            for item in stmt.items:
                ttl = ttl_of(judge, function, item.context_expr)
                long = longer_work(judge, function, stmt, ttl) if ttl is not None else None
                if long is None or awaited(stmt, long[0]):
                    continue
                yield Hit(
                    function,
                    long[0],
                    f"this call blocks the event loop for up to {long[1]:g} s, and the lease of"
                    f" line {stmt.lineno} ends after {ttl:g} s without a renewal",
                )


def ttl_of(judge: Judge, function: Function, node: ast.AST) -> float | None:
    if isinstance(node, ast.Name):
        node = function.only_value(node.id) or node
    if isinstance(node, ast.Call) and of_lifehold(judge, function, node):
        return next((number(k.value) for k in node.keywords if k.arg == "ttl"), None)
    return None


def awaited(stmt: ast.AST, call: ast.AST) -> bool:
    return any(isinstance(n, ast.Await) and call in ast.walk(n) for n in ast.walk(stmt))


def dropped_lease(judge: Judge) -> Iterator[Hit]:
    """LH219."""
    if "lifehold" not in judge.module.lower:
        return
    for function in judge.functions:
        yield from blind_attempts(judge, function)
        for event in judge.own(function):
            stmt = event.facts.get("statement")
            called = event.facts.get("called")
            if not isinstance(stmt, ast.Expr) or called is None:
                continue
            value = stmt.value.value if isinstance(stmt.value, ast.Await) else stmt.value
            if value is not event.site or not isinstance(called.func, ast.Attribute):
                continue
            if called.func.attr not in ("acquire", "attempt", "try_acquire"):
                continue
            made = called.func.value
            if isinstance(made, ast.Name):
                found = function.values(made.id)
                made = found[0] if len(found) == 1 else made
            if isinstance(made, ast.Call) and lease_maker(judge, function, made):
                yield at(
                    event,
                    "the lease that this returns is dropped: nobody can release it, ask it, or hand"
                    " its token on",
                )


def blind_attempts(judge: Judge, function: Function) -> Iterator[Hit]:
    """`with lock.attempt():` whose body cannot know whether it holds the lock."""
    for stmt, _frames in function.walked:
        if not isinstance(stmt, ast.With | ast.AsyncWith):
            continue
        for item in stmt.items:
            call = item.context_expr
            if item.optional_vars or not (
                isinstance(call, ast.Call)
                and isinstance(call.func, ast.Attribute)
                and call.func.attr in ("attempt", "attempt_read", "attempt_write")
                and made_by(judge, function, call.func) == "lifehold"
            ):
                continue
            if not any(isinstance(n, ast.Attribute) and n.attr == "lease" for n in ast.walk(stmt)):
                yield Hit(
                    function,
                    call,
                    "this block runs also when the lock is held by another: the lease, or None, is"
                    " dropped, and nobody asks",
                )


def lease_maker(judge: Judge, function: Function, node: ast.Call) -> bool:
    return judge.module.dotted(node.func) in OURS or of_lifehold(judge, function, node)


OURS = ("lifehold.Lock", "lifehold.AsyncLock")
GUARDS = re.compile(
    r"^lifehold\.(recipes\.)?fence\.(\w+\.)?"
    r"((Async)?(RowFence|SqlFence|FencedFile|FencedObject)|a?hooks|LeaseAuth)$"
)


def token_not_handed(judge: Judge) -> Iterator[Hit]:
    """LH220."""
    if "lifehold" not in judge.module.lower:
        return
    for function in judge.functions:
        for stmt, _frames in function.walked:
            if not isinstance(stmt, ast.With | ast.AsyncWith):
                continue
            for item in stmt.items:
                if not of_lifehold(judge, function, item.context_expr):
                    continue
                name = text_of(item.optional_vars)
                for node in (n for s in stmt.body for n in ast.walk(s)):
                    if not isinstance(node, ast.Call):
                        continue
                    if not GUARDS.match(judge.module.dotted(node.func)):
                        continue
                    given = [*node.args, *(k.value for k in node.keywords)]
                    if name and any(name in function.texts(each) for each in given):
                        continue
                    yield Hit(
                        function,
                        node,
                        f"this guard is not given the lease of line {stmt.lineno}: it admits by"
                        " another token, so a late writer is not refused",
                    )
