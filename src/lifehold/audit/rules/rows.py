"""Rows of databases and documents as leases: no condition, no owner, the clock of the client."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from .. import words
from ..blocks import exits
from ..events import shown
from ..model import nodes, text_of
from ..rule import Hit, at, there

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..events import Event
    from ..judge import Judge
    from ..model import Called, Function


CLAIMS_ROW = re.compile(
    r"\s*UPDATE\s+[\w.\"`]*(?:lock|lease|leader|mutex)[\w\"`]*\s+SET\s(?P<set>.*?)"
    r"\bWHERE\b(?P<where>.*)",
    re.IGNORECASE | re.DOTALL,
)
MARKS_ROW = re.compile(
    r"\s*UPDATE\s+[\w.\"`]+\s+SET\s(?P<set>\s*(?:locked|claimed|held|leased|taken)_by\b.*?)"
    r"\bWHERE\b(?P<where>.*)",
    re.IGNORECASE | re.DOTALL,
)
TAKEN = re.compile(
    r"\b\w*(own|hold|locked|taken|acquired|token|leader|worker|instance|by|pid|host)\w*\s*=",
    re.IGNORECASE,
)
CONDITION = re.compile(
    r"\bNULL\b|<|>|own|hold|locked|taken|acquired|token|worker|nonce|version|expir|until|state"
    r"|status|\bfree\b|avail|EXISTS|RETURNING",
    re.IGNORECASE,
)
ONE_BY_ONE = re.compile(
    r"for\s+update|advisory|begin\s+(immediate|exclusive)|lock\s+table|serializable|with_for_update"
    r"|get_lock|updlock",
    re.IGNORECASE,
)
GIVES_ROW = re.compile(
    r"\s*DELETE\s+FROM\s+[\w.\"`]*(?:lock|lease|leader|mutex)[\w\"`]*\s+WHERE\b(?P<where>.*)",
    re.IGNORECASE | re.DOTALL,
)
FREES_OWNER = re.compile(
    r"\s*UPDATE\s+[\w.\"`]+\s+SET\s+(?:owner|holder|(?:locked|held|claimed|leased)_by)\w*\s*=\s*"
    r"NULL.*?\bWHERE\b(?P<where>.*)",
    re.IGNORECASE | re.DOTALL,
)
FREES_ROW = re.compile(
    r"\s*UPDATE\s+[\w.\"`]*(?:lease|leader|mutex)[\w\"`]*\s+SET\s.*?=\s*NULL.*?"
    r"\bWHERE\b(?P<where>.*)",
    re.IGNORECASE | re.DOTALL,
)
ASKS_SQL = ("execute", "fetchval", "fetchrow", "fetchone", "fetch", "exec_driver_sql")
BY_CLIENT = re.compile(
    r"\w*(expir|lease|until|deadline|ttl|timeout)\w*\s*<=?\s*(:\w+|%s|\?|%\(\w+\)s|\$\d)",
    re.IGNORECASE,
)
LEASES = re.compile(r"\b(UPDATE|INTO|FROM)\s+\S*(lease|leader|mutex)", re.IGNORECASE)
DOCUMENTS = frozenset(
    "put_item update_item insert_one replace_one update_one find_one_and_update save upsert".split()
)
RENEWS_ROW = re.compile(
    r"\s*UPDATE\s+\S*(?:lock|lease|leader)\S*\s+SET\s(?P<set>.*?)\bWHERE\b(?P<where>.*)",
    re.IGNORECASE | re.DOTALL,
)
ENDS_AT = re.compile(r"expir|until|deadline|heartbeat|renewed|lease|last_seen|alive", re.IGNORECASE)
WHOSE = re.compile(
    r"own|hold|token|nonce|worker|by\b|node|host|instance|session|version|uuid|client|fence|pid"
    r"|unique|leader|rvn|secret|expir|until",
    re.IGNORECASE,
)


def unconditional_write(judge: Judge) -> Iterator[Hit]:
    """LH208."""
    yield from unconditional_row(judge)
    yield from unconditional_document(judge)
    yield from unowned_row(judge)
    yield from claimed_item(judge)
    yield from saved_object(judge)
    yield from looked_for_object(judge)
    lower = judge.module.lower
    shaped = "key={" in lower and ("put_item(" in lower or "update_item(" in lower)
    if not ("dynamo" in lower or "boto3" in lower or shaped):
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
            if not (of_lease(judge, function) or table_of_locks(function, called.node)):
                continue
            if words.breaks(function.name):
                continue
            yield at(
                event,
                f"`{called.func.attr}` on the lock's record has no ConditionExpression: it succeeds"
                " whoever holds the lock",
            )


LEASED = re.compile(r"lease|leader|election|mutex", re.IGNORECASE)


def of_lease(judge: Judge, function: Function) -> bool:
    """Is this function part of a lock or lease, by its name or its class?"""
    owner = function.within.name if function.within else ""
    return judge.named_lock(function) or bool(LEASED.search(f"{owner} {function.name}"))


def unconditional_row(judge: Judge) -> Iterator[Hit]:
    """`UPDATE locks SET owner = ? WHERE name = ?`: whoever holds it, the row is taken."""
    asked = any(f".{name}(" in judge.module.text for name in ASKS_SQL)
    if not asked or "update" not in judge.module.lower or ONE_BY_ONE.search(judge.module.text):
        return
    for function in judge.functions:
        if words.releases(function.name) or words.breaks(function.name):
            continue
        for event in judge.own(function):
            called = event.facts.get("called")
            if called is None or not called.args or not isinstance(called.func, ast.Attribute):
                continue
            if called.func.attr not in ASKS_SQL:
                continue
            texts = function.texts(called.args[0])
            row = next(filter(None, map(CLAIMS_ROW.match, texts)), None)
            if row is None and read_before(judge, function, event):
                row = next(filter(None, map(MARKS_ROW.match, texts)), None)
            if row is None or not TAKEN.search(row["set"]) or CONDITION.search(row["where"]):
                continue
            if re.search(r"=\s*NULL", row["set"], re.IGNORECASE):
                continue  # it is given back
            yield at(
                event,
                "this UPDATE takes the row of the lock without a condition on who holds it: two"
                " that read it free at the same moment both take it",
            )
            break


def read_before(judge: Judge, function: Function, update: Event) -> bool:
    """`SELECT locked_by ...` before it, whose answer ends the function?"""
    for event in judge.own(function):
        called = event.facts["called"]
        if event.line >= update.line or getattr(called.func, "attr", "") not in ASKS_SQL:
            continue
        texts = function.texts(called.args[0]) if called.args else []
        asked = any(re.match(r"\s*SELECT\b.*_by\b", t, re.IGNORECASE | re.DOTALL) for t in texts)
        between = [
            s
            for s, _frames in function.walked
            if isinstance(s, ast.If) and exits(s.body) and event.line < s.lineno < update.line
        ]
        if asked and (between or decided(judge, function, event)):
            return True
    return False


def unconditional_document(judge: Judge) -> Iterator[Hit]:
    """`if locks.find_one(...): return`, and then `locks.update_one({"_id": name}, ...)`."""
    if "find_one(" not in judge.module.text:
        return
    for function in judge.functions:
        if words.releases(function.name) or words.breaks(function.name):
            continue
        own = [e for e in judge.own(function) if isinstance(e.facts["called"].func, ast.Attribute)]
        asked = {text_of(e.facts["called"].func.value): e for e in own
                 if e.facts["called"].func.attr == "find_one"}  # fmt: off
        for event in own:
            called = event.facts["called"]
            if called.func.attr not in ("update_one", "replace_one", "find_one_and_update"):
                continue
            place = text_of(called.func.value)
            if place not in asked or not called.args or not isinstance(called.args[0], ast.Dict):
                continue
            named = words.speaks_of_lock(place) or words.speaks_of_lock(function.name)
            if not named and not (words.acquires(function.name) and says_owner(called)):
                continue
            names = [str(getattr(key, "value", "owner")) for key in called.args[0].keys]
            if any(map(CONDITION.search, names)) or "$or" in names:
                continue
            yield at(
                event,
                f"`{place}` is read on line {asked[place].line} and written here without a"
                " condition on who holds it: two that read it free at the same moment both take it",
                there(asked[place], "read here"),
            )
            break


HELD_BY = re.compile(r"^(locked|held|claimed|taken|acquired)_(by|at)", re.IGNORECASE)
OBJECT_LOOKS = frozenset("head_object get_object exists stat_object list_objects_v2".split())
CONDITIONS = frozenset("IfNoneMatch IfMatch if_generation_match if_none_match overwrite".split())


def looked_for_object(judge: Judge) -> Iterator[Hit]:
    """`head_object(Key=lock)`, which fails, and then `put_object(Key=lock)` of an object store."""
    if "put_object(" not in judge.module.text and "upload_from_string(" not in judge.module.text:
        return
    for function in judge.functions:
        own = [e for e in judge.own(function) if isinstance(e.facts["called"].func, ast.Attribute)]
        asked = [e for e in own if e.facts["called"].func.attr in OBJECT_LOOKS]
        for event in own if asked else ():
            called = event.facts["called"]
            if called.func.attr not in ("put_object", "upload_from_string"):
                continue
            key = called.keywords.get("Key", called.func.value)
            of_lock = function.lockish(key) or (
                "Key" in called.keywords and judge.named_lock(function)
            )
            if of_lock and CONDITIONS.isdisjoint(called.keywords):
                yield at(
                    event,
                    f"the object of the lock is looked for on line {asked[0].line} and written here"
                    " without a condition: two that find none both write it",
                    there(asked[0], "looked for here"),
                )
                break


LOCKED_BY = re.compile(
    r"^(is_)?(locked|held|taken|busy|running|in_progress|claimed)", re.IGNORECASE
)


def saved_object(judge: Judge) -> Iterator[Hit]:
    """`if lock.locked: return`, and then `lock.locked = True; lock.save()` of an ORM's object."""
    if ".save(" not in judge.module.text and ".commit(" not in judge.module.text:
        return
    if ONE_BY_ONE.search(judge.module.text) or "select_for_update" in judge.module.text:
        return
    for function in judge.functions:
        if words.releases(function.name) or words.breaks(function.name):
            continue
        asked: dict[str, ast.If] = {}
        for stmt, _frames in function.walked:
            if isinstance(stmt, ast.If):
                names = [text_of(n) for n in nodes(stmt.test) if isinstance(n, ast.Attribute)]
                asked |= {name: stmt for name in names if name.count(".") == 1}
            elif isinstance(stmt, ast.Assign) and text_of(stmt.targets[0]) in asked:
                name = text_of(stmt.targets[0])
                kept = saves(judge, function, name, stmt)
                if kept is not None:
                    yield at(
                        kept,
                        f"`{name}` is asked on line {asked[name].lineno} and saved here without a"
                        " condition: two that read it free at the same moment both take it",
                    )
                    break


def saves(judge: Judge, function: Function, name: str, stmt: ast.Assign) -> Event | None:
    """The save of an object that is a lock, whose attribute was asked and set."""
    owner, _, attribute = name.partition(".")
    made = [text for value in function.values(owner) for text in function.texts(value)]
    lock = words.speaks_of_lock(owner) or any(map(words.speaks_of_lock, made))
    if owner == "self" or not (lock or HELD_BY.search(attribute)):
        return None
    stored = {"objects", "query", "session", "get_or_create", "filter_by"} & set(made)
    if re.search("peewee|sqlalchemy|django|tortoise|sqlmodel", judge.module.lower) and made:
        stored = {"get"}
    if not made and not function.is_parameter(owner):
        stored = {"objects"} if ".objects." in judge.module.text else stored
    if not stored or not (LOCKED_BY.match(attribute) or TAKEN.search(attribute + "=")):
        return None
    for event in judge.own(function):
        called = event.facts["called"]
        if event.line > stmt.lineno and isinstance(called.func, ast.Attribute):
            if text_of(called.func) == f"{owner}.save" or called.func.attr == "commit":
                return event
    return None


def unowned_row(judge: Judge) -> Iterator[Hit]:
    """`DELETE FROM locks WHERE name = ?` where a lease can run out: it may be another's by now."""
    lower = judge.module.lower
    asked = any(f".{name}(" in lower for name in ASKS_SQL) and (
        "delete" in lower or "update" in lower
    )
    gives = asked and re.search(r"delete\s+from|update\s", lower) and ENDS_AT.search(lower)
    for function in judge.functions if gives else ():
        if not words.releases(function.name):
            continue
        for event in judge.own(function):
            called = event.facts["called"]
            if not called.args or not isinstance(called.func, ast.Attribute):
                continue
            if called.func.attr not in ASKS_SQL:
                continue
            texts = function.texts(called.args[0])
            strict = set(words.pieces(function.name)) & {"release", "unlock", "exit", "aexit"}
            row = next(filter(None, map(GIVES_ROW.match, texts)), None) if strict else None
            row = row or next(filter(None, map(FREES_ROW.match, texts)), None)
            row = row or next(filter(None, map(FREES_OWNER.match, texts)), None)
            if row and not WHOSE.search(row["where"]):
                yield at(
                    event,
                    "this deletes the row of the lock without asking whose it is: when the lease"
                    " ran out before, it is the row of the next holder",
                )
                break


def table_of_locks(function: Function, call: ast.Call) -> bool:
    return any(words.speaks_of_lock(text) for text in function.texts(call) if len(text) < 60)


def document_by_clock(judge: Judge, function: Function) -> Iterator[Hit]:
    """`if item["expires"] > time.time(): return False`, and then the record is written."""
    writes = [
        event
        for event in judge.own(function)
        if isinstance(event.facts["called"].func, ast.Attribute)
        and event.facts["called"].func.attr in DOCUMENTS
    ]
    if not writes or words.releases(function.name):
        return
    call = writes[0].facts["called"]
    if not (of_lease(judge, function) or table_of_locks(function, call.node) or says_owner(call)):
        return
    for stmt, _frames in function.walked:
        for node in nodes(stmt.test) if isinstance(stmt, ast.If) else ():
            if not isinstance(node, ast.Compare) or not isinstance(
                node.ops[0], ast.Lt | ast.Gt | ast.LtE | ast.GtE
            ):
                continue
            sides = [node.left, *node.comparators]
            ends = [s for s in sides if isinstance(s, ast.Subscript | ast.Attribute)
                    and ENDS_AT.search(ast.unparse(s))]  # fmt: off
            if ends and any(reads_clock(function, s) for s in sides if s is not ends[0]):
                yield Hit(
                    function,
                    node,
                    f"`{ast.unparse(ends[0])}` is compared with the clock of this host: two clocks"
                    " differ and step, so a live holder is robbed",
                    (there(writes[0], "taken here"),),
                )
                return


def reads_clock(function: Function, node: ast.AST) -> bool:
    return bool({"time", "now", "utcnow", "timestamp"} & set(function.texts(node)))


def by_client_clock(judge: Judge) -> Iterator[Hit]:
    """A condition `lock_expiry < :now`, where `now` comes from this host."""
    for function in judge.functions:
        yield from document_by_clock(judge, function)
        for event in judge.own(function):
            called = event.facts.get("called")
            if called is None or not isinstance(called.func, ast.Attribute):
                continue
            method = called.func.attr
            if by_attribute(function, called) or by_filter(function, called):
                yield at(
                    event,
                    "the end of the lease is compared with the clock of this host: two clocks"
                    " differ and step, so a live holder is robbed",
                )
                continue
            if method in ("put_item", "update_item", "delete_item"):
                asked = called.keywords.get("ConditionExpression")
            else:
                asked = called.args[0] if method == "execute" and called.args else None
            if asked is None:
                continue
            text = " ".join(t for t in function.texts(asked) if " " in t)
            text = renamed(called, text)
            found = BY_CLIENT.search(text)
            if method == "execute" and not re.search(
                r"\b(UPDATE|INSERT|DELETE)\b", text, re.IGNORECASE
            ):
                continue
            if not found or not (
                words.speaks_of_lock(text)
                or LEASES.search(text)
                or judge.named_lock(function)
                or taken_item_of_owner(called)
            ):
                continue
            if not takes_time(function, called.node):
                continue
            yield at(
                event,
                f"`{found[0]}` compares with the clock of this host: two clocks differ and step, so"
                " a live holder is robbed",
            )


def renewed_for_anyone(judge: Judge, renews: frozenset[str]) -> Iterator[Hit]:
    """`UPDATE leases SET expires_at = ... WHERE name = ?`: whoever holds it, it is prolonged."""
    if "update" not in judge.module.lower:
        return
    yield from renewed_item(judge, renews)
    for function in judge.functions:
        if not set(words.pieces(function.name)) & renews:
            continue
        for event in judge.own(function):
            called = event.facts.get("called")
            if called is None or not called.args or not isinstance(called.func, ast.Attribute):
                continue
            if called.func.attr not in ("execute", "fetchval", "fetchrow"):
                continue
            row = next(filter(None, map(RENEWS_ROW.match, function.texts(called.args[0]))), None)
            if row and ENDS_AT.search(row["set"]) and not WHOSE.search(row["where"]):
                yield at(
                    event,
                    "this renews the row without asking whose it is: after a lost lease it keeps"
                    " the lock of another holder alive, and this one goes on working",
                )
                break


OWNER_FIELD = re.compile(
    r"^(lock_?)?(owner|holder|worker|token|nonce|instance|node|host|claimed_?by|held_?by|locked_?by"
    r"|taken_?by|leader|client|runner|process|pid|session|agent)(_?id)?$",
    re.IGNORECASE,
)


def says_owner(called: Called) -> bool:
    """Does the record that is written name its owner?"""
    given = [*called.args, *called.keywords.values()]
    keys = [key for each in given for n in nodes(each) if isinstance(n, ast.Dict) for key in n.keys]
    return any(OWNER_FIELD.match(str(getattr(key, "value", ""))) for key in keys)


def renamed(called: Called, text: str) -> str:
    """A condition with the names that `ExpressionAttributeNames` gives to its marks."""
    names = called.keywords.get("ExpressionAttributeNames")
    if isinstance(names, ast.Dict):
        for key, value in zip(names.keys, names.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(value, ast.Constant):
                text = text.replace(str(key.value), str(value.value))
    return text


def by_attribute(function: Function, called: Called) -> bool:
    """`Attr("id").not_exists() | Attr("expires").lt(now)`."""
    asked = called.keywords.get("ConditionExpression")
    if asked is None or "not_exists" not in ast.dump(asked):
        return False
    for node in nodes(asked):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr in ("lt", "lte") and any(map(ENDS_AT.search, function.texts(node.func))):
            return any(reads_clock(function, given) for given in node.args)
    return False


def by_filter(function: Function, called: Called) -> bool:
    """`find_one_and_update({"_id": name, "until": {"$lt": now}}, ..., upsert=True)`."""
    method = getattr(called.func, "attr", "")
    if method not in ("find_one_and_update", "update_one", "replace_one", "find_one_and_replace"):
        return False
    asked = called.args[0] if called.args else called.keywords.get("filter")
    if asked is None or not is_upsert(called):
        return False
    for node in nodes(asked):
        for key, value in (
            zip(node.keys, node.values, strict=True) if isinstance(node, ast.Dict) else ()
        ):
            if ENDS_AT.search(str(getattr(key, "value", ""))) and isinstance(value, ast.Dict):
                marks = [str(getattr(mark, "value", "")) for mark in value.keys]
                if {"$lt", "$lte"} & set(marks):
                    return any(reads_clock(function, each) for each in value.values)
    return False


def is_upsert(called: Called) -> bool:
    given = called.keywords.get("upsert")
    return isinstance(given, ast.Constant) and given.value is True


def unowned_item(judge: Judge) -> Iterator[Hit]:
    """`delete_item(Key=...)`, where whoever comes takes a lease that has run out."""
    yield from removed_though_refused(judge)
    if not any(name in judge.module.text for name in ("delete_item(", "delete_one(")):
        return
    leased = [
        e
        for f in judge.functions
        for e in judge.own(f)
        if (
            by_attribute(f, e.facts["called"])
            or by_filter(f, e.facts["called"])
            or runs_out(f, e.facts["called"])
        )
    ]
    for function in judge.functions if leased else ():
        for event in judge.own(function):
            called = event.facts["called"]
            method = getattr(called.func, "attr", "")
            if method == "delete_one" and called.args and isinstance(called.args[0], ast.Dict):
                names = [str(getattr(key, "value", "")) for key in called.args[0].keys]
                bare = not any(map(WHOSE.search, names))
            else:
                bare = method == "delete_item" and not (
                    {"ConditionExpression", "Expected"} & set(called.keywords)
                )
            if bare and not words.breaks(function.name):
                yield at(
                    event,
                    "this deletes the record of the lease without asking whose it is: when the"
                    " lease ran out before, it is the record of the next holder",
                    there(leased[0], "taken here"),
                )
                break


def removed_though_refused(judge: Judge) -> Iterator[Hit]:
    """`try: create(node) except NodeExistsError: return`, and `finally: delete(node)` of both."""
    for function in judge.functions if "kazoo" in judge.module.lower else ():
        own = judge.own(function)
        for taken in (e for e in own if e.kind == "take"):
            refused = any(exits(h.body) for h in judge.handled_by(taken))
            for event in own if refused else ():
                called = event.facts["called"]
                same = getattr(called.func, "attr", "") == "delete" and called.args
                if not same or function.key(called.args[0]) != taken.key:
                    continue
                finals = [f.node for f in event.frames if f.part == "finally"]
                if any(f.node in finals and f.part == "body" for f in taken.frames):
                    yield at(
                        event,
                        f"`{shown(taken.key)}` is removed here although line {taken.line} may have"
                        " found that it is another's: then that holder works without it",
                        there(taken, "taken here"),
                    )
                    return


def runs_out(function: Function, called: Called) -> bool:
    """A put where none is, or where the one that is there has run out."""
    asked = called.keywords.get("ConditionExpression")
    if asked is None or getattr(called.func, "attr", "") != "put_item":
        return False
    text = renamed(called, " ".join(t for t in function.texts(asked) if " " in t))
    return "attribute_not_exists" in text and BY_CLIENT.search(text) is not None


def get_then_put(judge: Judge) -> Iterator[Hit]:
    """`client.get(key)`, which finds nothing, and then `client.put(key, me)`: etcd, Consul."""
    if "etcd" not in judge.module.lower and "consul" not in judge.module.lower:
        return
    for function in judge.functions:
        own = [e for e in judge.own(function) if isinstance(e.facts["called"].func, ast.Attribute)]
        for event in own:
            called = event.facts["called"]
            if called.func.attr != "put" or len(called.args) < 2 or "acquire" in called.keywords:
                continue
            key = function.key(called.args[0])
            client = text_of(called.func.value)
            seen = [
                e
                for e in own
                if text_of(e.facts["called"].func) == f"{client}.get"
                and e.line < event.line
                and e.facts["called"].args
                and function.key(e.facts["called"].args[0]) == key
            ]
            if seen and refused_by(function, seen[0]):
                yield at(
                    event,
                    f"`{key}` is read on line {seen[0].line} and put here without a transaction:"
                    " two that find nothing at the same moment both put it, and both hold the lock",
                    there(seen[0], "read here"),
                )
                break


def refused_by(function: Function, get: Event) -> bool:
    """Does a test of what was read end the function, and with no value of it?"""
    stmt = get.facts["statement"]
    target = stmt.targets[0] if isinstance(stmt, ast.Assign) else None
    first = target.elts[0] if isinstance(target, ast.Tuple) and target.elts else target
    name = text_of(first)
    for each, _frames in function.walked:
        if isinstance(each, ast.If) and name and exits(each.body):
            asked = {n.id for n in nodes(each.test) if isinstance(n, ast.Name)}
            answers = [n for s in each.body for n in nodes(s) if isinstance(n, ast.Return)]
            if name in asked and not any(text_of(a.value) == name for a in answers):
                return True
    return False


def taken_item_of_owner(called: Called) -> bool:
    """An item that is put where none is, and says who put it: a lease by its form."""
    asked = called.keywords.get("ConditionExpression")
    item = called.keywords.get("Item")
    return (
        asked is not None
        and isinstance(item, ast.Dict)
        and "attribute_not_exists" in ast.dump(asked)
        and any(OWNER_FIELD.match(str(getattr(key, "value", ""))) for key in item.keys)
    )


def renewed_item(judge: Judge, renews: frozenset[str]) -> Iterator[Hit]:
    """`update_item` of a lease with no ConditionExpression, in a renewal."""
    for function in judge.functions:
        if not set(words.pieces(function.name)) & renews:
            continue
        for event in judge.own(function):
            called = event.facts["called"]
            if getattr(called.func, "attr", "") != "update_item":
                continue
            table = any(LEASED.search(text) for text in function.texts(called.func))
            if not table and not of_lease(judge, function):
                continue
            if not {"ConditionExpression", "Expected"} & set(called.keywords):
                yield at(
                    event,
                    "this renews the item without asking whose it is: after a lost lease it keeps"
                    " the lock of another holder alive, and this one goes on working",
                )
                break


def claimed_item(judge: Judge) -> Iterator[Hit]:
    """`get_item`, which tells who has it, and then `put_item` with an owner and no condition."""
    if "put_item(" not in judge.module.text or "get_item(" not in judge.module.text:
        return
    for function in judge.functions:
        own = [e for e in judge.own(function) if isinstance(e.facts["called"].func, ast.Attribute)]
        asked = [e for e in own if e.facts["called"].func.attr == "get_item"]
        for event in own:
            called = event.facts["called"]
            item = called.keywords.get("Item")
            if called.func.attr != "put_item" or not isinstance(item, ast.Dict):
                continue
            if {"ConditionExpression", "Expected"} & set(called.keywords):
                continue
            table = text_of(called.func.value)
            seen = [e for e in asked if text_of(e.facts["called"].func.value) == table]
            names = [str(getattr(key, "value", "")) for key in item.keys]
            if seen and any(map(OWNER_FIELD.match, names)) and decided(judge, function, seen[0]):
                yield at(
                    event,
                    f"the item is read on line {seen[0].line} and put here without a"
                    " ConditionExpression: two that read it free at the same moment both take it",
                    there(seen[0], "read here"),
                )
                break


def decided(judge: Judge, function: Function, get: Event) -> bool:
    """Does what was read end the function, where another has it?"""
    return any(
        isinstance(stmt, ast.If) and exits(stmt.body) and judge.rests_on(function, stmt.test, get)
        for stmt, _frames in function.walked
    )


def takes_time(function: Function, call: ast.Call) -> bool:
    texts = set(function.texts(call))
    return bool(texts & {"time", "now", "utcnow", "today", "timestamp"})
