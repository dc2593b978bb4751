"""A lock that is taken under one key and given back under another: it stays taken. LH209."""

from __future__ import annotations

import ast
import difflib
import re
from typing import TYPE_CHECKING

from ..events import shown
from ..rule import Hit, at, there

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..events import Event
    from ..judge import Judge
    from ..model import Function


def two_keys(judge: Judge) -> Iterator[Hit]:
    """LH209."""
    yield from two_numbers(judge)
    yield from two_paths(judge)
    yield from apart(judge)
    groups: dict[object, list[Function]] = {}
    for function in judge.functions:
        groups.setdefault(function.within or function, []).append(function)
    for members in groups.values():
        own = [event for function in members for event in judge.own(function)]
        taken = {e.key: e for e in own if e.kind == "redis_lock" and e.lockish}
        deleted = {e.key: e for e in own if e.kind == "redis_delete"}
        scripts = [e for e in own if e.kind in ("script", "other")]
        deleted |= {key: e for e in scripts if (key := freed_by_script(e))}
        given = {key: e for key, e in deleted.items() if e.lockish}
        if len(taken) == 1 and len(deleted) == 1 and not given:
            given = {
                key: e
                for key, e in deleted.items()
                if spelled_alike(key, *taken)
                or worked_out(next(iter(taken)), key)
                or (deleted[key].kind == "script" and of_same_parts(next(iter(taken)), key))
            }
        if len(taken) != 1 or len(given) != 1:
            continue
        (one, taker), (other, giver) = taken.popitem(), given.popitem()
        if re.fullmatch(r"(self\.)?\w+", one) or re.fullmatch(r"(self\.)?\w+", other):
            continue  # what stands in the one is not written here
        if (
            worked_out(one, other)
            or of_other_attribute(one, other)
            or (giver.kind == "script" and of_same_parts(one, other))
        ):
            yield at(
                giver,
                f"the lock is taken as `{shown(one)}` on line {taker.line} and given back as"
                f" `{shown(other)}`: for other names it stays taken",
                there(taker, "taken here"),
            )
            continue
        if one != other and literal(taker, one) and literal(giver, other) and alike(one, other):
            yield at(
                giver,
                f"the lock is taken as `{shown(one)}` on line {taker.line} and given back as"
                f" `{shown(other)}`: it stays taken",
                there(taker, "taken here"),
            )


ADVISORY = re.compile(r"advisory_(?:xact_)?(?P<gone>un)?lock\w*\s*\((?P<key>[^)]*)", re.IGNORECASE)


def two_numbers(judge: Judge) -> Iterator[Hit]:
    """`pg_advisory_lock(:a)`, and `pg_advisory_unlock(:b)` of another number."""
    if "advisory_unlock" not in judge.module.lower:
        return
    groups: dict[object, list[Function]] = {}
    for function in judge.functions:
        groups.setdefault(function.within or function, []).append(function)
    for members in groups.values():
        found: dict[bool, list[tuple[Event, str]]] = {True: [], False: []}
        for function in members:
            for event in judge.own(function):
                called = event.facts.get("called")
                if called is None or not called.args:
                    continue
                if getattr(called.func, "attr", "") not in ASKED_SQL:
                    continue
                text = next((t for t in function.texts(called.args[0]) if ADVISORY.search(t)), "")
                told = ADVISORY.search(text)
                if told is not None:
                    key = asked_key(function, called.args[1:]) or told["key"]
                    found[bool(told["gone"])].append((event, key))
        if len(found[True]) == len(found[False]) == 1:
            (giver, other), (taker, one) = found[True][0], found[False][0]
            if one != other and "%" not in one and "$" not in one:
                yield at(
                    giver,
                    f"the advisory lock is taken as `{shown(one)}` on line {taker.line} and given"
                    f" back as `{shown(other)}`: it stays taken",
                    there(taker, "taken here"),
                )


ASKED_SQL = frozenset(
    "execute scalar exec fetchval fetchrow fetch exec_driver_sql fetchone".split()
)


def asked_key(function: Function, given: list[ast.expr]) -> str:
    """The number that is handed to the statement, as text."""
    for each in given:
        if isinstance(each, ast.Dict):
            return "".join(function.key(value) for value in each.values)
        if isinstance(each, ast.Tuple | ast.List):
            return "".join(function.key(value) for value in each.elts)
        return function.key(each)
    return ""


def apart(judge: Judge) -> Iterator[Hit]:
    """The one key that a module takes, and the one that another function of it gives back."""
    plain = [f for f in judge.functions if f.within is None]
    own = [event for function in plain for event in judge.own(function)]
    taken = {e.key: e for e in own if e.kind == "redis_lock"}
    given = {e.key: e for e in own if e.kind == "redis_delete"}
    scripts = [e for e in own if e.kind in ("script", "other")]
    given |= {key: e for e in scripts if (key := freed_by_script(e))}
    if len(taken) != 1 or len(given) != 1:
        return
    (one, taker), (other, giver) = taken.popitem(), given.popitem()
    if one == other or taker.where is giver.where or not spelled_alike(one, other):
        return
    if literal(taker, one) and literal(giver, other):
        yield at(
            giver,
            f"the lock is taken as `{shown(one)}` on line {taker.line} and given back as"
            f" `{shown(other)}`: it stays taken",
            there(taker, "taken here"),
        )


def freed_by_script(event: Event) -> str:
    """The key in `eval(script, 1, key, token)`, where the script deletes it."""
    called = event.facts["called"]
    given = called.args
    keys = called.keywords.get("keys")
    if isinstance(keys, ast.List) and len(keys.elts) == 1 and isinstance(called.func, ast.Name):
        made = event.where.values(called.func.id)
        deletes = any(DELETES.search(t) for each in made for t in event.where.texts(each))
        return event.where.key(keys.elts[0]) if deletes else ""
    one = len(given) > 2 and isinstance(given[1], ast.Constant) and given[1].value == 1
    if not one or getattr(called.func, "attr", "") != "eval":
        return ""
    deletes = any(DELETES.search(text) for text in event.where.texts(given[0]))
    return event.where.key(given[2]) if deletes else ""


DELETES = re.compile(r"""call\s*\(\s*['"](del|unlink)['"]""", re.IGNORECASE)


def of_other_attribute(one: str, other: str) -> bool:
    """`tenant.pk` in the one, `tenant.slug` in the other, and all else the same."""
    bare = [re.sub(r"(⟨\w+⟩)\.\w+", r"\1", each) for each in (one, other)]
    return one != other and bare[0] == bare[1]


def of_same_parts(one: str, other: str) -> bool:
    """`hold:{show}:{seat}` and `seat:{show}:{seat}`."""
    parts = [re.findall(r"\{[^}]*\}|⟨\w+⟩|self\.\w+", each) for each in (one, other)]
    return one != other and bool(parts[0]) and parts[0] == parts[1]


def two_paths(judge: Judge) -> Iterator[Hit]:
    """`name + ".claim"` is made, and `stem(name) + ".claim"` is removed."""
    for group in judge.module.classes.values():
        own = [e for m in group.methods.values() for e in judge.own(m)]
        made = {e.key: e for e in own if e.kind == "create" and e.facts.get("exclusive")}
        gone = {e.key: e for e in own if e.kind == "unlink"}
        if len(made) != 1 or len(gone) != 1:
            continue
        (one, maker), (other, giver) = made.popitem(), gone.popitem()
        ends = [each.rpartition(".")[2] for each in (one, other)]
        names = [set(re.findall(r"⟨\w+⟩|self\.\w+", each)) for each in (one, other)]
        if one != other and ends[0] == ends[1] and len(ends[0]) > 2 and names[0] == names[1]:
            if names[0] and ("(" in one) != ("(" in other):
                yield at(
                    giver,
                    f"the lock is made as `{shown(one)}` on line {maker.line} and removed as"
                    f" `{shown(other)}`: for other names it stays",
                    there(maker, "made here"),
                )


def worked_out(one: str, other: str) -> bool:
    """One prefix, and behind it the same name, once changed by a call: `name.lower()`."""
    first, second = re.match(r"[\w\-]+[:/]", one), re.match(r"[\w\-]+[:/]", other)
    if not first or not second or first[0] != second[0] or one == other:
        return False
    rest = one[len(first[0]) :], other[len(first[0]) :]
    changed = [re.sub(r"\.(lower|upper|strip|casefold)\(\)", "", each) for each in rest]
    return changed[0] == changed[1]


def spelled_alike(one: str, other: str) -> bool:
    """The same letters, and not the same signs between them."""
    bare = [re.sub(r"\{[^}]*\}|⟨\w+⟩|%\w", "", each.lower()) for each in (one, other)]
    plain = [re.sub(r"[^a-z]", "", each) for each in bare]
    near = difflib.SequenceMatcher(None, plain[0], plain[1]).ratio() > 0.9
    return near and min(map(len, plain)) > 5


def literal(event: Event, key: str) -> bool:
    """Is the key written out in the code, and not handed in?"""
    return bool(re.search(r"[a-z]{3,}[:_/\-]", re.sub(r"\{[^}]*\}|⟨\w+⟩|self\.\w+", "", key)))


def alike(one: str, other: str) -> bool:
    parts = [re.findall(r"\{[^}]*\}", each) for each in (one, other)]
    return len(parts[0]) == len(parts[1])
