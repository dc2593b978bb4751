"""The cures of locks in Redis: one request for two, and a release that compares.

Rule: a command is written only for what is seen to be a client of Redis, and is safe where that is
certain. A cache of Django, which has other methods, gets none.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from .cures import TELLS
from .tree import (
    argument,
    assigned_between,
    call_at,
    call_on,
    name_of,
    names_in,
    owner_of,
    plain,
    still,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .cures import Cure, Kind
    from .tree import SourceTree, Spot

SCRIPT = "RELEASE_OWN"
SCRIPTED = f"""\
{SCRIPT} = \"\"\"
if redis.call("get", KEYS[1]) == ARGV[1] then return redis.call("del", KEYS[1]) end
return 0
\"\"\"
"""


def one_request(tree: SourceTree, place: Spot) -> Kind | None:
    """LH201: SETNX and EXPIRE become one SET with NX and an end."""
    taken = call_at(tree, place, "setnx")
    ended = call_on(tree, place.spans[0], "expire", "pexpire") if place.spans else None
    if taken is None or ended is None:
        return None
    given, end = plain(taken), plain(ended)
    if given is None or end is None or len(given) != 2 or len(end) != 2:
        return None
    client, key = owner_of(tree, taken), tree.code(given[0])
    if not client or (owner_of(tree, ended), tree.code(end[0])) != (client, key):
        return None
    changed = assigned_between(tree, place.line, place.spans[0])
    if not still(tree, end[1]) or names_in(tree, end[1]) & changed:
        return None
    statement = tree.stands_alone(ended)
    kind = ends_each_success(tree, taken, statement) if statement is not None else None
    kind = least(kind, of_redis(tree, client))
    if statement is None or kind is None or not tree.drop(statement):
        return None
    unit = "ex" if name_of(ended) == "expire" else "px"
    more = [argument(cst.Name("True"), "nx"), argument(end[1], unit)]

    def whole(node: cst.CSTNode) -> cst.CSTNode:
        call = cst.ensure_type(node, cst.Call)
        func = cst.ensure_type(call.func, cst.Attribute).with_changes(attr=cst.Name("set"))
        kept = [each.with_changes(comma=cst.MaybeSentinel.DEFAULT) for each in call.args]
        return call.with_changes(func=func, args=[*kept, *more])

    tree.swap(taken, whole)
    return kind if taken_as_truth(tree, taken) else least("unsafe", kind)


LEAVING = (cst.Return, cst.Raise, cst.Break, cst.Continue, cst.Yield)


def ends_each_success(
    tree: SourceTree, taken: cst.Call, ended: cst.SimpleStatementLine
) -> Kind | None:
    """Does EXPIRE run whenever SETNX took the key, and then alone?

    None where it does not: a key that lives for ever on some path would end with the cure.
    """
    held = tree.block(ended)
    if held is None:
        return None
    block, number = held
    body = list(block.body)
    branch = tree.parents.get(block)
    if isinstance(branch, cst.Else):
        branch, sign = tree.parents.get(branch), -1
    else:
        sign = 1
    if isinstance(branch, cst.If) and says(tree, branch.test, taken) == sign:
        return least(asked_at_once(tree, taken, branch), quiet(tree, body[:number]))
    for place in reversed(range(number)):
        each = body[place]
        if isinstance(each, cst.If | cst.While) and says(tree, each.test, taken) == -1:
            if each.orelse is not None or not only_with_success(tree, each):
                return None
            between = quiet(tree, body[place + 1 : number])
            return least(asked_at_once(tree, taken, each), between)
        if taken in list(tree.within(each, cst.Call)):
            plain_line = isinstance(each, cst.SimpleStatementLine)
            between = quiet(tree, body[place + 1 : number]) if plain_line else None
            return least("unsafe", between)  # after a refusal, too
    return None


def least(*kinds: Kind | None) -> Kind | None:
    if None in kinds:
        return None
    return "unsafe" if "unsafe" in kinds else "safe"


def quiet(tree: SourceTree, between: list[cst.BaseStatement]) -> Kind | None:
    """Does nothing leave on the way (None), and does nothing happen that takes time?"""
    if any(True for each in between for kind in LEAVING for _ in tree.within(each, kind)):
        return None
    calls = [call for each in between for call in tree.within(each, cst.Call)]
    return "safe" if all(TELLS.match(tree.code(call.func)) for call in calls) else "unsafe"


def only_with_success(tree: SourceTree, each: cst.If | cst.While) -> bool:
    """Does what follows `if not taken: return`, `while not taken: wait` run with the key alone?"""
    if isinstance(each, cst.While):
        return not any(True for _ in tree.within(each.body, cst.Break))
    last = each.body.body[-1] if each.body.body else None
    if isinstance(last, cst.SimpleStatementLine):
        last = last.body[-1]
    return isinstance(last, cst.Return | cst.Raise | cst.Break | cst.Continue)


def asked_at_once(tree: SourceTree, taken: cst.Call, test: cst.If | cst.While) -> Kind | None:
    """Is the answer asked where it is given, or is nothing in between that may leave?"""
    if taken in list(tree.within(test.test, cst.Call)):
        return "safe"
    statement = tree.statement(taken)
    first = tree.block(statement) if statement is not None else None
    then = tree.block(test)
    if first is None or then is None or first[0] is not then[0]:
        return None
    return quiet(tree, list(first[0].body[first[1] + 1 : then[1]]))


def says(tree: SourceTree, test: cst.BaseExpression, taken: cst.Call) -> int:
    """1 where the test is true if and only if the key was taken, and -1 where it is false then.

    `ready and setnx()` counts as 1: SETNX is not sent in any other case.
    """
    if isinstance(test, cst.NamedExpr | cst.Await):
        return says(tree, test.value if isinstance(test, cst.NamedExpr) else test.expression, taken)
    if test is taken:
        return 1
    if isinstance(test, cst.Name):
        given = tree.parents.get(taken)
        given = tree.parents.get(given) if isinstance(given, cst.Await) else given
        if not isinstance(given, cst.Assign) or len(given.targets) != 1:
            return 0
        return int(tree.code(given.targets[0].target) == test.value)
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        return -says(tree, test.expression, taken)
    if isinstance(test, cst.BooleanOperation) and taken in list(tree.within(test.right, cst.Call)):
        sign = says(tree, test.right, taken)
        return sign if sign == (1 if isinstance(test.operator, cst.And) else -1) else 0
    if isinstance(test, cst.Comparison) and len(test.comparisons) == 1:
        one = test.comparisons[0]
        true = tree.code(one.comparator) in ("True", "1")
        if true and isinstance(one.operator, cst.Equal | cst.Is):
            return says(tree, test.left, taken)
    return 0


def compare_and_delete(tree: SourceTree, place: Spot) -> Kind | None:
    """LH203: a key is deleted where it still holds what this function wrote."""
    deleted = call_at(tree, place, "delete", "unlink")
    given = plain(deleted) if deleted is not None else None
    if deleted is None or given is None or len(given) != 1 or not place.spans:
        return None
    statement = tree.stands_alone(deleted)
    function = tree.above(deleted, cst.FunctionDef)
    taken = call_on(tree, place.spans[0], "set", "setnx")
    if statement is None or taken is None or tree.above(taken, cst.FunctionDef) is not function:
        return None
    written = [arg.value for arg in taken.args if arg.keyword is None]
    if len(written) < 2 or tree.code(written[0]) != tree.code(given[0]):
        return None
    value = written[1]
    if owner_of(tree, taken) != owner_of(tree, deleted) or not still(tree, value):
        return None
    if not names_in(tree, value) or names_in(tree, value) & assigned_between(
        tree, place.spans[0] + 1, place.line
    ):
        return None  # a constant names nobody
    kind = stays_written(tree, taken, deleted, tree.code(given[0]))
    return kind and least(scripted(tree, deleted, given[0], value), kind)


WRITES = re.compile(
    r"^(set|setex|psetex|setnx|getset|append|setrange|incr\w*|decr\w*|mset\w*|rename\w*|restore"
    r"|copy|hset|delete|unlink|getdel|eval\w*)$"
)
LOOKS = re.compile(r"^(get|exists|ttl|pttl|p?expire(at)?|persist|touch|type|watch)$")


def stays_written(tree: SourceTree, taken: cst.Call, deleted: cst.Call, key: str) -> Kind | None:
    """Does the key still hold what SET wrote? None where the function writes it once more.

    Where the key is handed on, or the module writes it elsewhere, that cannot be told: unsafe.
    """
    scope = tree.above(deleted, cst.FunctionDef) or tree.module
    kind: Kind = "safe"
    for call in tree.within(tree.module, cst.Call):
        if call in (taken, deleted) or not any(tree.code(arg.value) == key for arg in call.args):
            continue
        here = scope in (tree.module, tree.above(call, cst.FunctionDef))
        if WRITES.match(name_of(call)):
            again = tree.code(call.args[0].value) == key and name_of(call) in ("delete", "unlink")
            if here and not again:
                return None
            kind = kind if again else "unsafe"
        elif here and not LOOKS.match(name_of(call)) and not TELLS.match(tree.code(call.func)):
            kind = "unsafe"
    return kind


def scripted(
    tree: SourceTree, call: cst.Call, key: cst.BaseExpression, value: cst.BaseExpression
) -> Kind | None:
    """The call becomes the script that compares and deletes in one step."""
    kind = of_redis(tree, owner_of(tree, call))
    if kind is None:
        return None
    if any(each.value == SCRIPT for each in tree.within(tree.module, cst.Name)):
        if SCRIPTED.strip() not in tree.module.code.replace("\r\n", "\n"):
            return None  # the name means something else here
    else:
        tree.preface(SCRIPTED)

    def whole(node: cst.CSTNode) -> cst.CSTNode:
        old = cst.ensure_type(node, cst.Call)
        func = cst.ensure_type(old.func, cst.Attribute).with_changes(attr=cst.Name("eval"))
        args = [cst.Name(SCRIPT), cst.Integer("1"), key, value]
        return old.with_changes(func=func, args=[argument(each) for each in args])

    tree.swap(call, whole)
    return kind


def compare_in_one(tree: SourceTree, place: Spot) -> Kind | None:
    """LH204: GET, compare and DEL become one script."""
    deleted = call_at(tree, place, "delete", "unlink")
    given = plain(deleted) if deleted is not None else None
    if deleted is None or given is None or len(given) != 1 or not place.spans:
        return None
    branch = tree.above(deleted, cst.If)
    got = call_on(tree, place.spans[0], "get")
    looked = plain(got) if got is not None else None
    if (
        branch is None
        or got is None
        or looked is None
        or not isinstance(branch.test, cst.Comparison)
    ):
        return None
    if owner_of(tree, got) != owner_of(tree, deleted) or len(looked) != 1:
        return None
    if tree.code(looked[0]) != tree.code(given[0]) or not still(tree, given[0]):
        return None
    statement = tree.stands_alone(deleted)
    test = branch.test
    one = test.comparisons[0]
    if statement is None or len(test.comparisons) != 1 or not isinstance(one.operator, cst.Equal):
        return None
    held = tree.block(statement)
    if held is None or held[1] != 0 or tree.parents.get(held[0]) is not branch:
        return None
    sides = [test.left, one.comparator]
    asked = [each for each in sides if got in list(tree.within(each, cst.Call))]
    others = [each for each in sides if each not in asked]
    if len(asked) != 1 or not still(tree, others[0]) or not bare(tree, asked[0], got):
        return None
    if isinstance(tree.parents.get(deleted), cst.Await) != isinstance(
        tree.parents.get(got), cst.Await
    ):
        return None
    kind = scripted(tree, got, given[0], others[0])
    made = tree.swaps.pop(got, None)
    if kind is None or made is None or not tree.drop(statement):
        return None
    waits = isinstance(tree.parents.get(got), cst.Await)
    tree.swap(test, lambda _node: tested(tree, cst.ensure_type(made(got), cst.Call), waits=waits))
    return kind


def tested(tree: SourceTree, script: cst.Call, *, waits: bool) -> cst.BaseExpression:
    """The script as a test. A client refuses None, which is equal to no answer of GET."""
    asked: cst.BaseExpression = cst.Await(script) if waits else script
    value = script.args[-1].value
    if never_none(tree, value):
        return asked
    there = cst.ComparisonTarget(cst.IsNot(), cst.Name("None"))
    return cst.BooleanOperation(cst.Comparison(value, [there]), cst.And(), asked)


LITERALS = (cst.SimpleString, cst.ConcatenatedString, cst.FormattedString, cst.Integer, cst.Float)


def never_none(tree: SourceTree, value: cst.BaseExpression) -> bool:
    """Is this a literal, or a parameter that is annotated as text or a number?"""
    function = tree.above(value, cst.FunctionDef)
    if function is None or not isinstance(value, cst.Name):
        return isinstance(value, LITERALS)
    last = int(tree.positions[function].end.line)
    if value.value in assigned_between(tree, tree.line(function), last):
        return False
    return any(
        each.name.value == value.value
        and each.annotation is not None
        and tree.code(each.annotation.annotation) in ("str", "bytes", "int", "float")
        and (each.default is None or tree.code(each.default) != "None")
        for each in tree.within(function.params, cst.Param)
    )


def bare(tree: SourceTree, node: cst.CSTNode, got: cst.Call) -> bool:
    """The answer of GET itself, awaited or decoded and no more."""
    code = re.sub(r"\.decode\(.{0,10}\)$", "", tree.code(node)).strip("()")
    return code.removeprefix("await ").strip("()") == tree.code(got).strip("()")


# --- what is asked of them ---


def taken_as_truth(tree: SourceTree, node: cst.CSTNode) -> bool:
    """Is a value used as true or false alone?"""
    each, above = node, tree.parents.get(node)
    while isinstance(above, cst.Await | cst.UnaryOperation | cst.BooleanOperation):
        if isinstance(above, cst.UnaryOperation) and not isinstance(above.operator, cst.Not):
            return False
        each, above = above, tree.parents.get(above)
    if isinstance(above, cst.If | cst.While | cst.IfExp | cst.Assert):
        return above.test is each
    if isinstance(above, cst.Arg):
        called = tree.parents.get(above)
        return isinstance(called, cst.Call) and tree.code(called.func) == "bool"
    if isinstance(above, cst.Assign) and len(above.targets) == 1:
        name = above.targets[0].target
        return isinstance(name, cst.Name) and only_asked(tree, above, name.value)
    return False


def only_asked(tree: SourceTree, where: cst.CSTNode, name: str) -> bool:
    """Is a local name asked whether it is true, and nothing else?"""
    function = tree.above(where, cst.FunctionDef)
    if function is None:
        return False
    uses = [each for each in tree.within(function.body, cst.Name) if each.value == name]
    targets = [each for each in uses if isinstance(tree.parents.get(each), cst.AssignTarget)]
    others = [each for each in uses if each not in targets]
    return len(targets) == 1 and all(taken_as_truth(tree, each) for each in others)


def of_redis(tree: SourceTree, owner: str) -> Kind | None:
    """Is this a client of Redis? Safe where it is bound to one, None for a cache.

    What is only named like one may be anything: unsafe.
    """
    known = imported(tree)
    if owner.partition(".")[0].partition("[")[0] in known["cache"]:
        return None
    bound = list(given_to(tree, owner))
    clients = [is_client(tree, each, known) for each in bound if tree.code(each) != "None"]
    if any(CACHES.search(tree.code(each)) for each in bound):
        return None
    if clients and all(clients):
        return "safe"
    return None if known["cache"] else "unsafe"


CACHES = re.compile(r"\bcaches\[|\bget_cache\(|\bcaches\.create_connection")
CLIENTS = re.compile(r"(^|\.)((Strict)?Redis(Cluster)?|FakeStrictRedis|FakeRedis|from_url)$")
FROM_REDIS = re.compile(r"(from|import) (redis|fakeredis|aioredis|django_redis)\b")
FROM_CACHE = re.compile(
    r"from (django\.core\.cache|flask_caching|aiocache|cachelib|cachetools|diskcache)\b"
    r"|from django\.core import .*\bcache\b|import (django\.core\.cache|aiocache|diskcache)\b"
)
CONNECTS = "get_redis_connection"


def imported(tree: SourceTree) -> dict[str, set[str]]:
    """The names that the imports of a module bring, from redis-py and from caches."""
    found: dict[str, set[str]] = {"redis": set(), "cache": set()}
    lines: list[cst.Import | cst.ImportFrom] = [*tree.within(tree.module, cst.Import)]
    lines += tree.within(tree.module, cst.ImportFrom)
    for line in lines:
        text = tree.code(line)
        given = () if isinstance(line.names, cst.ImportStar) else line.names
        names = {tree.code(each.asname.name if each.asname else each.name) for each in given}
        if FROM_REDIS.match(text):
            found["redis"] |= names
        if FROM_CACHE.match(text):
            found["cache"] |= names
    return found


def given_to(tree: SourceTree, owner: str) -> Iterator[cst.BaseExpression]:
    """What a name or an attribute is bound to, by assignments, `with`, and annotations."""
    for each in tree.within(tree.module, cst.Assign):
        if any(tree.code(target.target) == owner for target in each.targets):
            yield each.value
    for annotated in tree.within(tree.module, cst.AnnAssign):
        if tree.code(annotated.target) == owner:
            yield annotated.value or annotated.annotation.annotation
    for item in tree.within(tree.module, cst.WithItem):
        if item.asname is not None and tree.code(item.asname.name) == owner:
            yield item.item
    for param in tree.within(tree.module, cst.Param):
        if param.name.value == owner:
            yield param.annotation.annotation if param.annotation else param.name


def is_client(
    tree: SourceTree, value: cst.BaseExpression, known: dict[str, set[str]], depth: int = 4
) -> bool:
    """Is this made by redis-py, or annotated as one of its clients?"""
    if isinstance(value, cst.Await):
        return is_client(tree, value.expression, known, depth)
    if isinstance(value, cst.Call):
        return named_client(tree, tree.code(value.func), known)
    text = tree.code(value).strip("'\"").partition("[")[0]
    if isinstance(value, cst.BinaryOperation):  # Redis | None
        sides = [each for each in (value.left, value.right) if tree.code(each) != "None"]
        return all(is_client(tree, each, known, depth) for each in sides)
    if named_client(tree, text, known):
        return True
    others = list(given_to(tree, text)) if depth and isinstance(value, cst.Name) else []
    others = [each for each in others if tree.code(each) != text]
    return bool(others) and all(is_client(tree, each, known, depth - 1) for each in others)


def named_client(tree: SourceTree, name: str, known: dict[str, set[str]]) -> bool:
    """Is this a class of clients, or a function that makes one?"""
    first = name.partition(".")[0]
    roots = {each.partition(".")[0] for each in known["redis"]}
    if first in roots:
        return bool(CLIENTS.search(name)) or name in known["redis"] or name == CONNECTS
    for group in tree.within(tree.module, cst.ClassDef):
        if group.name.value == name:
            return any(named_client(tree, tree.code(b.value), known) for b in group.bases)
    return False


CURES: dict[str, Cure] = {
    "LH201": one_request,
    "LH203": compare_and_delete,
    "LH204": compare_in_one,
}
