"""Leases in databases and services: no condition, no renewal, no listener, no token."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from .. import words
from ..events import shown
from ..model import calls_in, nodes, text_of
from ..rule import Hit, at, there

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..events import Event
    from ..judge import Judge
    from ..model import Function

SESSION_LOCK = re.compile(r"pg_(try_)?advisory_lock(_shared)?\s*\(|\bGET_LOCK\s*\(", re.IGNORECASE)
POOLED = re.compile(r"session|pool|engine|^db$|connection$", re.IGNORECASE)
WRITES = re.compile(r"^\s*(UPDATE|INSERT|DELETE|REPLACE|MERGE)\b", re.IGNORECASE)


def unconditional_write(judge: Judge) -> Iterator[Hit]:
    """LH208."""
    if "dynamo" not in judge.module.lower and "boto3" not in judge.module.lower:
        return
    for function in judge.functions:
        for event in judge.own(function):
            called = event.facts.get("called")
            if called is None or not isinstance(called.func, ast.Attribute):
                continue
            if called.func.attr not in ("put_item", "update_item", "delete_item"):
                continue
            if {"ConditionExpression", "Expected"} & set(called.keywords) or any(
                k.arg is None for k in called.node.keywords
            ):
                continue
            if not (judge.named_lock(function) or table_of_locks(function, called.node)):
                continue
            if words.breaks(function.name):
                continue
            yield at(
                event,
                f"`{called.func.attr}` on the lock's record has no ConditionExpression: it succeeds"
                " whoever holds the lock",
            )


def table_of_locks(function: Function, call: ast.Call) -> bool:
    return any(words.speaks_of_lock(text) for text in function.texts(call) if len(text) < 60)


def two_keys(judge: Judge) -> Iterator[Hit]:
    """LH209."""
    groups: dict[object, list[Function]] = {}
    for function in judge.functions:
        groups.setdefault(function.within or function, []).append(function)
    for members in groups.values():
        own = [event for function in members for event in judge.own(function)]
        taken = {e.key: e for e in own if e.kind == "redis_lock" and e.lockish}
        given = {e.key: e for e in own if e.kind == "redis_delete" and e.lockish}
        if len(taken) != 1 or len(given) != 1:
            continue
        (one, taker), (other, giver) = taken.popitem(), given.popitem()
        if one != other and literal(taker, one) and literal(giver, other) and alike(one, other):
            yield at(
                giver,
                f"the lock is taken as `{shown(one)}` on line {taker.line} and given back as"
                f" `{shown(other)}`: it stays taken",
                there(taker, "taken here"),
            )


def literal(event: Event, key: str) -> bool:
    """Is the key written out in the code, and not handed in?"""
    return bool(re.search(r"[a-z]{3,}[:_/\-]", re.sub(r"\{[^}]*\}|⟨\w+⟩|self\.\w+", "", key)))


def alike(one: str, other: str) -> bool:
    parts = [re.findall(r"\{[^}]*\}", each) for each in (one, other)]
    return len(parts[0]) == len(parts[1])


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
                if long is None or renewed(stmt, name):
                    continue
                node, seconds = long
                yield Hit(
                    function,
                    node,
                    f"the lease of line {stmt.lineno} ends after {ttl:g} s, and this may take"
                    f" {seconds:g} s: the next holder is in before it ends",
                )


def lease_of(judge: Judge, function: Function, node: ast.AST) -> float | None:
    """The length of a lease that nobody renews: `redis.lock(name, timeout=10)`."""
    if isinstance(node, ast.Name):
        node = function.only_value(node.id) or node
    for event in judge.own(function):
        if event.site is node and event.kind == "make_lock":
            return number(event.facts.get("ttl"))
    return None


def number(node: ast.AST | None) -> float | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return float(node.value)
    return None


def longer_work(
    judge: Judge, function: Function, stmt: ast.stmt, ttl: float
) -> tuple[ast.AST, float] | None:
    for event in judge.own(function):
        if not any(f.node is stmt for f in event.frames):
            continue
        called = event.facts.get("called")
        given = number(event.facts.get("seconds")) if event.kind == "sleep" else None
        if called is not None and given is None and "timeout" in called.keywords:
            given = number(called.keywords["timeout"])
        if given is not None and given >= ttl:
            return event.site, given
    return None


def renewed(stmt: ast.stmt, name: str) -> bool:
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
            if not any(SESSION_LOCK.search(t) for t in function.texts(called.args[0])):
                continue
            owner = text_of(called.func.value).rpartition(".")[2]
            if not pooled(judge, function, called.func.value, owner):
                continue
            yield at(
                event,
                f"a session lock is taken on `{owner}`, which gives its connection back to a pool:"
                " the next statement may run on another one, and the lock stays with this one",
            )


def pooled(judge: Judge, function: Function, node: ast.expr, owner: str) -> bool:
    if re.search(r"session$", owner, re.IGNORECASE) and "sqlalchemy" in judge.module.lower:
        return True
    if owner.strip("_") == "pool":
        return True
    return "pgbouncer" in judge.module.lower


def deaf_to_loss(judge: Judge) -> Iterator[Hit]:
    """LH213."""
    yield from deaf_zookeeper(judge)
    yield from unasked_lease(judge)


def deaf_zookeeper(judge: Judge) -> Iterator[Hit]:
    module = judge.module
    if "kazoo" not in module.lower or "add_listener" in module.text:
        return
    if not any(name.startswith("kazoo") for name in module.imports.values()):
        return
    for function in judge.functions:
        for event in judge.own(function):
            called = event.facts.get("called")
            if called is None or not isinstance(called.func, ast.Attribute):
                continue
            if called.func.attr in ("Lock", "WriteLock", "Semaphore") and called.args:
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
        return any(
            isinstance(v, ast.Call) and judge.module.dotted(v.func) in CONNECTS for v in value
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
