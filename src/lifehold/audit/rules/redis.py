"""Locks in Redis, memcached and caches: two steps that should be one, no end, no owner."""

from __future__ import annotations

import ast
import functools
import re
from typing import TYPE_CHECKING

from .. import words
from ..judge import CLOCK
from ..model import maker_of, nodes, text_of
from ..rule import Hit, at, there
from .create import denies
from .keys import alike, freed_by_script, literal, spelled_alike
from .rows import by_client_clock, get_then_put, renewed_for_anyone, unowned_item

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..events import Event
    from ..judge import Judge
    from ..model import Function, Module

TAKES = frozenset("acquire aquire lock locked claim obtain take grab hold enter aenter".split())
RENEWS = frozenset(
    "renewer renewal keeper renew extend refresh heartbeat prolong touch keep keepalive"
    " alive".split()
)
SCRIPTED = re.compile(r"redis\.call|redis\.pcall", re.IGNORECASE)


def locked_keys(judge: Judge) -> dict[str, Event]:
    """The keys that this module takes with NX, by key."""
    found: dict[str, Event] = {}
    for function in judge.functions:
        for event in judge.whole(function):
            if event.kind == "redis_lock":
                found.setdefault(event.key, event)
    return found


def is_key(judge: Judge, event: Event, locked: dict[str, Event]) -> bool:
    """Is this key a lock: by its name, or because the module takes it with NX?"""
    if event.lockish:
        return True
    made = locked.get(event.key)
    if made is not None and made.where is event.where and judge.in_finally(event):
        return True  # taken with NX, given back however the work ends: no other thing is used so
    if made is not None and not made.key.startswith("⟨"):
        if set(words.pieces(made.where.name)) & TAKES:
            return True
    names = event.where.name, event.where.within.name if event.where.within else ""
    return any(map(words.speaks_of_lock, names)) and event.key.strip("⟨⟩").removeprefix(
        "self."
    ).strip("_") in ("key", "name", "resource", "lock_id")


def two_steps(judge: Judge) -> Iterator[Hit]:
    """LH201."""
    for function in judge.functions:
        own = judge.own(function)
        for taken in own:
            if taken.kind != "redis_lock" or taken.facts["timed"]:
                continue
            for event in own:
                if (
                    event.kind == "redis_expire"
                    and event.key == taken.key
                    and event.line > taken.line
                ):
                    if "pipe" in str(event.facts.get("client", "")).lower():
                        continue
                    if not (is_key(judge, taken, {}) or words.acquires(function.name)):
                        continue
                    yield at(
                        taken,
                        f"`{taken.name}` is taken here and gets its end on line {event.line}: a"
                        " crash in between leaves a lock without an end",
                        there(event, "the end is set here"),
                    )
                    break


def without_end(judge: Judge) -> Iterator[Hit]:
    """LH202."""
    yield from lua_without_end(judge)
    expiring = {e.key for e in judge.everything() if e.kind == "redis_expire"}
    for function in judge.functions:
        for event in judge.own(function):
            if event.kind == "make_lock" and not event.facts["timed"]:
                if not (called_of_redis(event) or made_of_redis(event)):
                    continue
                yield at(
                    event,
                    f"the lock `{event.name}` has no timeout: when its holder dies, nobody gets it"
                    " again until the key is deleted by hand",
                )
            elif event.kind == "redis_set" and looked_for(judge, event, expiring):
                yield at(
                    event,
                    f"`{event.name}` is set without an expiry: when its holder dies, the lock stays"
                    " for ever",
                )
            elif event.kind == "redis_lock" and not event.facts["timed"]:
                if event.key in expiring or not is_key(judge, event, {}):
                    continue
                record = "job" in event.key.lower() and not event.lockish
                if (
                    is_default(judge, event)
                    or record
                    or scripted(judge, function)
                    or ends_in_value(judge, event)
                ):
                    continue
                yield at(
                    event,
                    f"`{event.name}` is set without an expiry: when its holder dies, the lock stays"
                    " for ever",
                )


def looked_for(judge: Judge, event: Event, expiring: set[str]) -> bool:
    """Is it set by two steps, read and set, with no end, and removed behind the work?"""
    if event.facts.get("timed") or not event.lockish or event.key in expiring:
        return False
    if ends_in_value(judge, event) or set_value_ends(event):
        return False
    own = judge.own(event.where)
    asked = any(
        e.kind in ("redis_get", "key_exists") and e.key == event.key and e.line < event.line
        for e in own
    )
    gone = any(e.kind == "redis_delete" for e in judge.done_to(event.key))
    return asked and gone and event.facts.get("value") is not None


def set_value_ends(event: Event) -> bool:
    """Is the instant of its end what is written?"""
    value = event.facts.get("value")
    return value is not None and any(CLOCK.search(t) for t in event.where.texts(value))


def is_default(judge: Judge, event: Event) -> bool:
    """`set(key, 30, nx=True)`, and then the key is read: a first value, and no lock."""
    return isinstance(event.facts["statement"], ast.Expr) and any(
        e.kind == "redis_get" and e.key == event.key and e.line > event.line
        for e in judge.own(event.where)
    )


def ends_in_value(judge: Judge, event: Event) -> bool:
    """Is its end written into it, and looked at by whoever comes next?"""
    value = event.facts["called"].args[1:2]
    wrote = any(CLOCK.search(text) for each in value for text in event.where.texts(each))
    if not wrote:
        return False
    around = [each for each in judge.functions if each.within is event.where.within]
    return any(hit.function in around for hit in client_clock(judge))


def called_of_redis(event: Event) -> bool:
    client = text_of(event.facts["called"].func).lower()
    return bool(re.search(r"redis|client|conn|cache|^r\.|rdb", client))


def made_of_redis(event: Event) -> bool:
    """`self.r.lock(...)`, where the object was made by `redis.Redis(...)`."""
    func = event.facts["called"].func
    made = maker_of(event.where, func.value) if isinstance(func, ast.Attribute) else None
    name = event.where.module.dotted(made.func) if made is not None else ""
    return name.partition(".")[0] in ("redis", "aioredis", "valkey")


@functools.lru_cache(4)
def _scripts(module: Module) -> bool:
    return SCRIPTED.search(module.text) is not None


def scripted(judge: Judge, function: Function) -> bool:
    """Does this function speak to the server in Lua?"""
    if not _scripts(judge.module):
        return False
    texts = [n for s in function.body for n in nodes(s) if isinstance(n, ast.Constant)]
    return any(isinstance(n.value, str) and SCRIPTED.search(n.value) for n in texts)


def compares_owner(judge: Judge, event: Event, *, by_any: bool = False) -> Event | None:
    """The GET whose answer is compared before this act."""
    gets = [
        e
        for e in judge.whole(event.where)
        if e.kind == "redis_get" and e.key == event.key and e.line <= event.line
    ]
    taken = [e for e in judge.done_to(event.key) if e.kind == "redis_lock"]
    if not by_any and any(map(says_nobody, taken)):
        return None
    for get in gets:
        for _frame, test in judge.tests(event):
            if judge.rests_on(event.where, test, get) and compared_by(get, test):
                return get
    return None


def says_nobody(taken: Event) -> bool:
    """Is what is set the same for all: a text that is written down?"""
    value = taken.facts.get("value")
    if isinstance(value, ast.Name):
        known = taken.where.values(value.id)
        value = known[0] if len(known) == 1 else value
    return isinstance(value, ast.Constant)


def compared_by(get: Event, test: ast.expr) -> bool:
    """Is the answer compared in the test, or in the helper that got it?"""
    return compares(test) or (get.via is not None and any(map(compares, get.via.body)))


def compares(test: ast.AST) -> bool:
    """Is something compared with something that is no constant?"""
    for node in nodes(test):
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq | ast.NotEq):
            sides = [node.left, *node.comparators]
            if all(not isinstance(side, ast.Constant) for side in sides):
                return True
    return False


def unowned_delete(judge: Judge) -> Iterator[Hit]:
    """LH203."""
    yield from lua_unowned(judge)
    yield from unowned_item(judge)
    yield from freed_by_all(judge)
    yield from _deletes(judge, cache=False)


def freed_by_all(judge: Judge) -> Iterator[Hit]:
    """A script that compares, where every holder has set the same text."""
    for function in judge.functions:
        for event in judge.own(function):
            key = freed_by_script(event) if event.kind in ("script", "other") else ""
            taken = [e for e in judge.done_to(key) if e.kind == "redis_lock"] if key else []
            if taken and all(map(says_nobody, taken)):
                yield at(
                    event,
                    f"`{event.where.key(taken[0].expr)}` holds the same text for every holder: the"
                    " comparison tells nobody apart, and the lock of the next one is deleted",
                    there(taken[0], "taken here"),
                )
                break


def late_delete(judge: Judge) -> Iterator[Hit]:
    """LH212."""
    yield from _deletes(judge, cache=True)


def _deletes(judge: Judge, *, cache: bool) -> Iterator[Hit]:
    locked = locked_keys(judge)
    for function in judge.functions:
        if words.breaks(function.name) or scripted(judge, function):
            continue
        for event in judge.own(function):
            if event.kind != "redis_delete" or not deletes_lock(judge, event, locked):
                continue
            made = locked.get(event.key)
            if of_cache(event, made) != cache or compares_owner(judge, event):
                continue
            if watched(judge, function) and compared_anywhere(judge, function, event):
                continue
            if timed_guard(judge, event):
                continue
            if len(locked) == 1 and event.key not in locked and spelled_alike(event.key, *locked):
                continue  # LH209 has it
            if len(locked) == 1 and other_key(event, *locked.values()):
                continue  # so here
            spans = (there(made, "taken here"),) if made else ()
            yield at(
                event,
                f"`{event.name}` is deleted without asking whose it is: when the lease ran out"
                " before, this deletes the lock of the next holder, and a third one gets in",
                *spans,
            )
            break


def other_key(event: Event, made: Event) -> bool:
    """Is another key deleted than the function or class takes: by LH209's words?"""
    near = made.where is event.where or (
        made.where.within is not None and made.where.within is event.where.within
    )
    plain = event.key != made.key and event.lockish and made.lockish
    return (
        near
        and plain
        and literal(made, made.key)
        and literal(event, event.key)
        and alike(event.key, made.key)
    )


def of_cache(event: Event, made: Event | None) -> bool:
    """Whether a key of a cache is deleted. One that was set by NX is Redis's, whatever its name."""
    if made is not None and not made.facts.get("cache"):
        return False
    return bool(event.facts.get("cache"))


def deletes_lock(judge: Judge, event: Event, locked: dict[str, Event]) -> bool:
    if is_key(judge, event, locked):
        if event.lockish and judge.in_finally(event) and set_here(judge, event):
            return True
        return bool(locked) or (words.releases(event.where.name) and event.lockish)
    return False


def set_here(judge: Judge, event: Event) -> bool:
    """Did this very function set the key, by two steps or by one?"""
    return any(e.kind == "redis_set" and e.key == event.key for e in judge.own(event.where))


def watched(judge: Judge, function: Function) -> bool:
    return any(e.kind == "watch" for e in judge.own(function))


def compared_anywhere(judge: Judge, function: Function, event: Event) -> bool:
    gets = [e for e in judge.own(function) if e.kind == "redis_get"]
    tests = [s.test for s, _ in function.walked if isinstance(s, ast.If)]
    return any(judge.rests_on(function, t, g) and compares(t) for g in gets for t in tests)


def timed_guard(judge: Judge, event: Event) -> bool:
    """The delete happens only while the lease cannot have run out."""
    return any(
        CLOCK.search(text)
        for _frame, test in judge.tests(event)
        if any(
            isinstance(n, ast.Compare) and isinstance(n.ops[0], ast.Lt | ast.Gt | ast.LtE | ast.GtE)
            for n in nodes(test)
        )
        for text in event.where.texts(test)
    )


def compare_apart(judge: Judge) -> Iterator[Hit]:
    """LH204."""
    for function in judge.functions:
        if watched(judge, function):
            continue
        for event in judge.own(function):
            if event.kind not in ("redis_delete", "redis_expire"):
                continue
            get = compares_owner(judge, event, by_any=True)
            if get is None or not (
                is_key(judge, event, locked_keys(judge)) or owner_like(event.where)
            ):
                continue
            what = "deleted" if event.kind == "redis_delete" else "renewed"
            yield at(
                event,
                f"`{event.name}` is compared on line {get.line} and {what} here, in two requests:"
                " the lease can end in between, and then this is the lock of the next holder",
                there(get, "compared here"),
            )
            break


def owner_like(function: Function) -> bool:
    names = function.parameters
    return any(
        re.search(r"token|client_id|owner|identifier|lock_value|request_id", n) for n in names
    )


def unowned_renewal(judge: Judge) -> Iterator[Hit]:
    """LH205."""
    yield from renewed_for_anyone(judge, RENEWS)
    yield from set_again(judge)
    if "redis_expire" not in judge.kinds:
        return
    locked = locked_keys(judge)
    for function in judge.functions:
        own = judge.own(function)
        if scripted(judge, function):
            continue
        takes = [e for e in own if e.kind == "redis_lock"]
        owner = function.within.name if function.within else ""
        renews = bool(set(words.pieces(f"{owner} {function.name}")) & RENEWS)
        for event in own:
            again = event.facts.get("writes") and event.key in locked
            if again and not compares_owner(judge, event):
                yield at(
                    event,
                    f"`{event.name}` is renewed without asking whose it is: after a lost lease this"
                    " takes the lock from another holder",
                )
                break
            if takes and not prolonged(takes, event):
                continue
            if not takes and not renews and not beats(judge, event) and not begins_again(function):
                continue
            if event.kind != "redis_expire" or not (
                is_key(judge, event, locked)
                or made_for_lock(judge, event)
                or handed_lock(judge, event)
            ):
                continue
            if compares_owner(judge, event):
                continue
            yield at(
                event,
                f"`{event.name}` is renewed without asking whose it is: after a lost lease this"
                " keeps the lock of another holder alive, and this one goes on working",
            )
            break


def set_again(judge: Judge) -> Iterator[Hit]:
    """`set(key, me, ex=30)` every ten seconds: whoever holds the lock, it is ours again."""
    taken = {e.key for e in judge.everything() if e.kind == "redis_lock"}
    for function in judge.functions if taken else ():
        owner = function.within.name if function.within else ""
        renews = bool(set(words.pieces(f"{owner} {function.name}")) & RENEWS)
        for event in judge.own(function):
            if event.kind != "redis_set" or not event.facts.get("timed") or not event.lockish:
                continue
            if event.key not in taken or not (renews or beats(judge, event)):
                continue
            if compares_owner(judge, event) or scripted(judge, function) or in_transaction(event):
                continue
            yield at(
                event,
                f"`{event.name}` is set again without asking whose it is: after a lost lease this"
                " takes the lock from another holder",
            )
            break


def prolonged(takes: list[Event], event: Event) -> bool:
    """Is it renewed in a loop of the work, which began after the lock was taken?"""
    looped = [f.node for f in event.frames if f.kind in ("for", "while") and f.part == "body"]
    return any(
        event.line > taken.line
        and any(all(f.node is not loop for f in taken.frames) for loop in looped)
        for taken in takes
    )


def begins_again(function: Function) -> bool:
    """Does it hand itself to a timer: `Timer(3, self._again)`?"""
    own = {function.name, f"self.{function.name}"}
    calls = [n for s in function.body for n in nodes(s) if isinstance(n, ast.Call)]
    given = [text_of(each) for n in calls for each in [*n.args, *[k.value for k in n.keywords]]]
    return not own.isdisjoint(given)


def beats(judge: Judge, event: Event) -> bool:
    """Is it repeated after a pause, and nothing else takes the lock in that loop?"""
    for loop in judge.loops(event):
        names = [text_of(n.func).rpartition(".")[2] for n in nodes(loop) if isinstance(n, ast.Call)]
        waits = [n for s in [loop.test, *loop.body] for n in nodes(s) if isinstance(n, ast.Call)]
        names += [text_of(n.func).rpartition(".")[2] for n in waits]
        if {"sleep", "wait"} & set(names):
            return True
    return False


def handed_lock(judge: Judge, event: Event) -> bool:
    """Is the key a parameter, and the key of a lock what a caller hands over?"""
    return event.key.startswith("⟨") and any(
        each.facts.get("inside") is event and each.lockish
        for caller in judge.callers(event.where)
        if caller is not event.where
        for each in judge.whole(caller)
    )


def made_for_lock(judge: Judge, event: Event) -> bool:
    """`self.key`, where the module makes an object of this class with the key of a lock."""
    group = event.where.within
    made = group.methods.get("__init__") if group is not None else None
    if group is None or made is None or not text_of(event.expr).startswith("self."):
        return False
    kept = group.attributes.get(text_of(event.expr)[5:], [])
    names = {text_of(value) for value, where in kept if where is made}
    for maker in judge.functions:
        for other in judge.own(maker):
            called = other.facts.get("called")
            if called is None or text_of(called.func) != group.name:
                continue
            bound = dict(zip(made.parameters[1:], called.args, strict=False)) | called.keywords
            handed = [given for name, given in bound.items() if name in names]
            if any(map(maker.lockish, handed)):
                return True
            taken = {
                e.key
                for given in handed
                for e in judge.done_to(maker.key(given))
                if e.kind == "redis_lock"
            }
            if taken:
                return True
    return False


def client_clock(judge: Judge) -> Iterator[Hit]:
    """LH206."""
    yield from by_client_clock(judge)
    locked = locked_keys(judge)
    for function in judge.functions:
        own = judge.own(function)
        gets = [e for e in own if e.kind == "redis_get" and is_key(judge, e, locked)]
        if not gets:
            continue
        for stmt, _frames in function.walked:
            if not isinstance(stmt, ast.If | ast.While):
                continue
            test = stmt.test
            order = any(
                isinstance(n, ast.Compare)
                and isinstance(n.ops[0], ast.Lt | ast.Gt | ast.LtE | ast.GtE)
                for n in nodes(test)
            )
            wall = {"time.time", "now", "utcnow"} & {
                text_of(n.func).rpartition(".")[2]
                if text_of(n.func) != "time.time"
                else "time.time"
                for n in judge._calls_behind(function, test)
            }
            get = next((g for g in gets if judge.rests_on(function, test, g)), None)
            if order and wall and get is not None:
                yield Hit(
                    function,
                    stmt.test,
                    f"the clock of this host decides whether `{get.name}` has run out: two clocks"
                    " differ and step, so a live holder is robbed",
                    (there(get, "the holder's instant is read here"),),
                )
                break


def get_then_set(judge: Judge) -> Iterator[Hit]:
    """LH207."""
    yield from get_then_put(judge)
    for function in judge.functions:
        own = judge.own(function)
        if words.releases(function.name):
            continue
        renews = bool(set(words.pieces(function.name)) & RENEWS)
        for event in own:
            if event.kind != "redis_set" or not event.lockish:
                continue
            looks = [
                e
                for e in own
                if e.kind in ("redis_get", "key_exists")
                and e.key == event.key
                and e.line <= event.line
            ]
            look = next((e for e in looks if led(judge, function, e, event)), None)
            if look is None or compares_owner_positive(judge, event):
                continue
            if in_transaction(event) or judge.under_lock(event):
                continue
            if renews and not on_absence(judge, function, look, event):
                continue
            yield at(
                event,
                f"`{event.name}` is read on line {look.line} and set here without NX: two clients"
                " that read at the same moment both set it, and both hold the lock",
                there(look, "read here"),
            )
            break


TRANSACTION = re.compile(r"\.(transact|transaction|begin|exclusive|immediate)\b", re.IGNORECASE)


def in_transaction(event: Event) -> bool:
    """`with cache.transact():`, of the very store that is written."""
    store = text_of(event.facts["called"].func).rpartition(".")[0]
    for frame in event.frames:
        if frame.kind == "with":
            for item in frame.node.items:
                given = item.context_expr
                name = text_of(given.func) if isinstance(given, ast.Call) else ""
                if store and name.startswith(store) and TRANSACTION.search(name):
                    return True
    return False


def led(judge: Judge, function: Function, look: Event, act: Event) -> bool:
    return any(judge.rests_on(function, test, look) for _f, test in judge.tests(act))


def on_absence(judge: Judge, function: Function, look: Event, act: Event) -> bool:
    """Is it set because nothing was there? A renewal sets what is there."""
    for frame, test in judge.tests(act):
        if judge.rests_on(function, test, look) and not compares(test):
            return denies(test) != (frame.part == "else")
    return False


def compares_owner_positive(judge: Judge, event: Event) -> bool:
    """`if owner == me: set(...)` is a renewal, not a takeover."""
    for frame, test in judge.tests(event):
        if frame.part in ("then", "body"):
            for node in nodes(test):
                if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq):
                    if all(not isinstance(s, ast.Constant) for s in [node.left, *node.comparators]):
                        return True
    return False


# --- Lua in strings -----------------------------------------------------------------------------

LUA = re.compile(r"redis\.p?call\s*\(")
LUA_COMMENT = re.compile(r"--(?!\[\[)[^\n]*")
LUA_DELETES = re.compile(r"call\s*\(\s*['\"](del|unlink)['\"]\s*,\s*KEYS\[1\]", re.IGNORECASE)
LUA_TAKES = re.compile(r"['\"]setnx['\"]|['\"]set['\"][^)]*['\"]nx['\"]", re.IGNORECASE)
LUA_ENDS = re.compile(r"['\"](px|ex|exat|pxat|p?expire(at)?|setex|psetex)['\"]", re.IGNORECASE)
LUA_READS = re.compile(
    r"['\"](h?m?get|hexists|exists|sismember|zscore|lindex|lrange)['\"]", re.IGNORECASE
)


def lua_scripts(judge: Judge) -> Iterator[tuple[Function, ast.Constant, str, str]]:
    """Each script in a string: where it stands, its text, and the name under which it is known."""
    if not LUA.search(judge.module.text):
        return
    for function in judge.functions:
        for stmt, _frames in function.walked:
            if isinstance(stmt, ast.Assign | ast.AnnAssign | ast.Expr | ast.Return):
                targets = stmt.targets if isinstance(stmt, ast.Assign) else []
                if isinstance(stmt, ast.AnnAssign):
                    targets = [stmt.target]
                names = [text_of(each) for each in targets] + [function.name]
                for node in nodes(stmt):
                    if isinstance(node, ast.Constant) and isinstance(node.value, str):
                        if LUA.search(node.value):
                            text = LUA_COMMENT.sub("", node.value)
                            yield function, node, text, " ".join(names)


def of_a_lock(judge: Judge, function: Function, name: str) -> bool:
    owner = function.within.name if function.within else ""
    if words.speaks_of_lock(f"{name} {owner}") or "unlock" in name.lower():
        return True
    return words.file_speaks_of_lock(judge.module.path)


def lua_without_end(judge: Judge) -> Iterator[Hit]:
    """A script that takes a lock and gives it no end."""
    for function, node, text, name in lua_scripts(judge):
        if LUA_TAKES.search(text) and not LUA_ENDS.search(text):
            if of_a_lock(judge, function, name):
                yield Hit(
                    function,
                    node,
                    "this script takes a lock without an expiry: when its holder dies, the lock"
                    " stays for ever",
                )


def lua_unowned(judge: Judge) -> Iterator[Hit]:
    """A script that gives a lock back and does not ask whose it is."""
    for function, node, text, name in lua_scripts(judge):
        if LUA_DELETES.search(text) and not LUA_READS.search(text):
            if words.releases(name) or "unlock" in name.lower():
                if of_a_lock(judge, function, name) and "ARGV" not in text.partition("del")[0]:
                    yield Hit(
                        function,
                        node,
                        "this script deletes the lock without asking whose it is: when the lease"
                        " ran out before, it is the lock of the next holder",
                    )
