"""How a lock ends: removed though it is another's, kept after an error, never really held."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from .. import forms, words
from ..blocks import calls_of, exits, names_of
from ..events import compares_inode
from ..libraries import OUTSIDE, made_by
from ..model import leaves, text_of
from ..rule import Hit, at, there
from .create import OWN_NAME, gave_up
from .keys import freed_by_script
from .leases import number
from .refused import CALM
from .stale import judgement

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..events import Event
    from ..judge import Judge
    from ..model import Frame, Function
STRICT = frozenset("release unlock exit cleanup free teardown del stop".split())


def unowned_unlink(judge: Judge) -> Iterator[Hit]:
    """LH109."""
    for function in judge.functions:
        if words.breaks(function.name):
            continue
        if words.releases(function.name) or called_at_end(judge, function):
            yield from _unowned_release(judge, function)
        else:
            yield from _unowned_finally(judge, function)


def _unowned_release(judge: Judge, function: Function) -> Iterator[Hit]:
    if compares_inode(judge.module):
        return
    own_lock = function.within is not None and words.speaks_of_lock(function.within.name)
    by_name = set(words.pieces(function.name)) & STRICT
    if not own_lock and not by_name and not called_at_end(judge, function):
        return
    flocked = judge.flocked(function)
    for event in judge.whole(function):
        if event.kind != "unlink" or not event.lockish or OWN_NAME.search(event.key):
            continue
        if not is_release(judge, function, event) or judge.mine(event):
            continue
        if forms.holds_data(judge, judge.done_by_unit(function, event.key)):
            continue
        if judge.under_lock(event) and judge.tests(event):
            continue  # asked and removed under one lock
        if event.via is not None:
            if not guarded_by_look(judge, function, event):
                continue
        elif function.name == "__exit__" and not guarded_by_look(judge, function, event):
            shared = shared_release(judge, function, event)
            if event.key in flocked or not (shared or entered_in_vain(judge, function, event)):
                continue
        if event.key in flocked and not beyond_guard(judge, function):
            continue  # LH108 has it
        judged = judgement(judge, function, event)
        if judged is not None and judged.kind in ("alive", "age", "stat"):
            continue
        yield at(
            event,
            f"`{event.name}` is removed without asking whose it is: after a failed acquire, a"
            " second release or a takeover it is the lock of another process",
        )
        break


def called_at_end(judge: Judge, function: Function) -> bool:
    """Does a signal call it that was asked for before the lock is taken?"""
    return any(
        event.kind == "at_signal"
        and any(
            made.kind == "create" and made.lockish and made.line > event.line
            for made in judge.own(event.where)
        )
        for event in judge.registered(function.name)
    )


def entered_in_vain(judge: Judge, function: Function, event: Event) -> bool:
    """Does `__enter__` pass over a refusal, and `__exit__` remove what may be another's?"""
    group = function.within
    enter = group.methods.get("__enter__") if group is not None else None
    for made in judge.own(enter) if enter is not None else ():
        if made.kind == "create" and made.key == event.key and made.facts.get("exclusive"):
            handlers = judge.handled_by(made)
            if any(f.kind in ("while", "for") for f in made.frames):
                return False  # it waits
            return bool(handlers) and not any(exits(h.body) for h in handlers)
    return False


def beyond_guard(judge: Judge, function: Function) -> bool:
    """Is the unlock guarded by the handle, and the removal, which comes after, not?"""
    if function.name in ("__exit__", "__aexit__"):
        return False
    unlocks = [e for e in judge.own(function) if e.kind == "unlock"]
    return bool(unlocks) and all(judge.mine(event) for event in unlocks)


def is_release(judge: Judge, function: Function, event: Event) -> bool:
    """Is this the release of a lock made in the same class or module, and no other tidying?"""
    made = [e for e in judge.unit(function) if e.kind in ("create", "write") and e.lockish]
    if any(e.key == event.key for e in made) or judge.named_lock(function):
        return bool(made) or judge.named_lock(function)
    if event.key in judge.flocked(function):
        return True
    return bool(made) and words.speaks_of_lock(event.key)


def guarded_by_look(judge: Judge, function: Function, event: Event) -> bool:
    """Does only the presence of the file lead to the removal?"""
    return any(
        judge.where_of(frame, event) is function and judge.only_looks(function, test)
        for frame, test in judge.tests(event)
    )


def shared_release(judge: Judge, function: Function, event: Event) -> bool:
    """Can the lock have been taken over meanwhile: is it ever broken?"""
    for other in judge.functions:
        if other.within is function.within and other is not function:
            for act in judge.own(other):
                if act.kind == "unlink" and act.key == event.key and judgement(judge, other, act):
                    return True
    return False


def _unowned_finally(judge: Judge, function: Function) -> Iterator[Hit]:
    own = judge.own(function)
    for event in own:
        if event.kind != "unlink" or not event.lockish or not judge.in_finally(event):
            continue
        if judge.mine(event):
            continue
        finals = [f.node for f in event.frames if f.kind == "try" and f.part == "finally"]
        for made in judge.whole(function):
            if made.kind == "write" and made.key == event.key and finals:
                seen = gave_up(judge, function, made) if made.via is None else None
                if seen is None or not any(f.node in finals for f in seen.frames):
                    continue
                yield at(
                    event,
                    f"`{event.name}` is removed here although line {seen.line} may have found that"
                    " it is another's: then that process works without it",
                    there(seen, "looked for here"),
                )
                return
            if made.kind != "create" or made.key != event.key or not made.facts.get("exclusive"):
                continue
            inside = any(f.node in finals and f.part == "body" for f in made.frames)
            broken = any(
                e.kind == "unlink"
                and e is not event
                and e.key == event.key
                and judgement(judge, e.where if e.via is None else e.via, e.facts.get("inside", e))
                for e in judge.whole(function)
            )
            if inside and not handled_apart(finals, made):
                what = "although the acquire may have failed"
            elif broken:
                what = "although another process may have taken it over as stale"
            else:
                continue
            yield at(
                event,
                f"`{event.name}` is removed here {what}: then it is the lock of another process",
                there(made, "made here"),
            )
            return


def handled_apart(finals: list[ast.AST], made: Event) -> bool:
    """Is the create in a `try` of its own inside, whose handlers leave before the body?"""
    return not any(f.node in finals and f.part == "body" for f in made.frames)


# --- LH110 --------------------------------------------------------------------------------------


def not_in_finally(judge: Judge) -> Iterator[Hit]:
    """LH110."""
    for function in judge.functions:
        if function.manages_context:
            yield from yield_outside_try(judge, function)
            continue
        for taken, given in pairs(judge, function):
            if taken.kind == "call" and taken.facts["helper"].manages_context:
                continue  # it ends with its `with`
            if judge.in_finally(given) or not between(judge, function, taken, given):
                continue
            if any(judge.in_finally(e) and same_release(e, given) for e in judge.own(function)):
                continue
            yield at(
                given,
                f"`{shown_of(taken)}` is acquired on line {taken.line} and released here only if"
                " nothing in between raises: after an error the lock stays",
                there(taken, "acquired here"),
            )
            break
        else:
            yield from left_by_error(judge, function)
            yield from key_left_by_error(judge, function)


def left_by_error(judge: Judge, function: Function) -> Iterator[Hit]:
    """A lock file that is made, worked under, and removed by a plain statement behind the work."""
    own = judge.own(function)
    removed: dict[str, list[Event]] = {}
    for event in own:
        if event.kind in ("unlink", "late_unlink"):
            removed.setdefault(event.key, []).append(event)
    thought_of = {  # an error, by these keys
        key
        for key, gone in removed.items()
        if any(
            e.kind == "late_unlink"
            or any(f.kind == "try" and f.part in ("finally", "handler") for f in e.frames)
            for e in gone
        )
    }
    flocked = judge.flocked(function) if removed else {}
    for made in own:
        if made.kind not in ("create", "write", "ensure") or not made.lockish:
            continue
        gone = removed.get(made.key, [])
        if not gone or made.key in thought_of or made.key in flocked or not_behind(made):
            continue
        held = tuple(f for f in made.frames if (f.kind, f.part) != ("try", "body"))
        plain = next(
            (e for e in reversed(gone) if e.line > made.line and e.frames[: len(held)] == held),
            None,
        )
        if plain is not None and works_between(judge, function, made, plain):
            yield at(
                plain,
                f"`{made.name}` is made on line {made.line} and removed here only if nothing in"
                " between raises: after an error the lock stays",
                there(made, "made here"),
            )
            return


LONG = 600  # seconds for which nobody wants to wait after an error


def short_lived(made: Event) -> bool:
    """Does the key end by itself, before long?"""
    ttl = number(made.facts.get("ttl"))
    if {"px", "pxat"} & set(made.facts["called"].keywords):
        ttl = ttl / 1000 if ttl is not None else None
    return bool(made.facts.get("timed")) and not (ttl is not None and ttl >= LONG)


def key_left_by_error(judge: Judge, function: Function) -> Iterator[Hit]:
    """The same of a key without an end."""
    own = judge.own(function)
    for made in own:
        if made.kind not in ("redis_lock", "redis_set") or not made.lockish:
            continue
        if short_lived(made) or any(e.kind == "redis_expire" for e in judge.done_to(made.key)):
            continue
        gone = [
            e
            for e in own
            if (e.kind == "redis_delete" and e.key == made.key)
            or (e.kind in ("script", "other") and freed_by_script(e) == made.key)
        ]
        if any(f.kind == "try" and f.part != "body" for e in gone for f in e.frames):
            continue
        plain = [e for e in gone if e.line > made.line and not e.frames[len(made.frames) :]]
        if plain and works_between(judge, function, made, plain[-1]):
            yield at(
                plain[-1],
                f"`{made.name}` is set on line {made.line} and deleted here only if nothing in"
                " between raises: after an error the lock stays",
                there(made, "set here"),
            )
            return


def not_behind(made: Event) -> bool:
    """Does what follows run without the lock too: it was refused, or the function has returned?"""
    tried = [f.node for f in made.frames if (f.kind, f.part) == ("try", "body")]
    return any(
        exits(t.body) or not all(leaves(forms.where_it_is_there(h.body)) for h in t.handlers)
        for t in tried
    )


HARMLESS = frozenset(
    "close write open fdopen str getpid print flush exists sleep time ctime now exit join info"
    " debug warning error echo getcwd encode format isoformat gethostname fsync with_suffix stderr"
    " touch read strip int".split()
)


def works_between(judge: Judge, function: Function, made: Event, gone: Event) -> bool:
    """Is anything done under the lock that may raise, beside writing down who holds it?"""
    first, last = made.line, gone.line
    return any(
        event.kind in ("other", "call")
        and first < event.line < last
        and str(event.facts.get("name", "")).rpartition(".")[2] not in HARMLESS
        and text_of(event.facts["called"].func).rpartition(".")[2] not in HARMLESS
        for event in judge.own(function)
    )


def shown_of(event: Event) -> str:
    called = event.facts["called"]
    name = text_of(called.func).rpartition(".")[0] or text_of(called.func) or event.name
    return name or "the lock"


def same_release(one: Event, other: Event) -> bool:
    return text_of(one.facts["called"].func) == text_of(other.facts["called"].func)


def pairs(judge: Judge, function: Function) -> list[tuple[Event, Event]]:
    """Acquire and release of one lock in one function, both plain statements of it."""
    found = []
    own = judge.own(function)
    for taken in own:
        if not crosses_processes(judge, function, taken):
            continue
        owner = text_of(taken.facts["called"].func).rpartition(".")[0]
        for given in own:
            later = given.line > taken.line and given.frames[: len(taken.frames)] == taken.frames
            name = text_of(given.facts["called"].func)
            if (
                later
                and name.rpartition(".")[0] == owner
                and words.releases(name.rpartition(".")[2])
                and given.kind in ("release", "call", "other")
            ):
                if any(f.kind == "try" and f.part == "handler" for f in given.frames):
                    continue
                if given.kind == "call" and not frees(judge, given):
                    continue
                if not owner and not of_one_lock(judge, taken, given):
                    continue
                if given.kind == "other":
                    continue
                found.append((taken, given))
                break
    return found


def frees(judge: Judge, call: Event) -> bool:
    kinds = {e.kind for e in judge.whole(call.facts["helper"])}
    return bool(kinds & {"unlink", "unlock", "redis_delete", "release", "script"})


def of_one_lock(judge: Judge, taken: Event, given: Event) -> bool:
    """Do two helpers of the module work on the same path or key?"""
    kinds = ("create", "write", "open", "unlink", "redis_lock", "redis_delete", "flock", "unlock")
    whole = judge.whole(taken.where)
    keys = [
        {e.key for e in whole if e.site is each.site and e.kind in kinds} for each in (taken, given)
    ]
    return not keys[0].isdisjoint(keys[1])


def crosses_processes(judge: Judge, function: Function, taken: Event) -> bool:
    """Is this the acquire of a lock between processes or hosts?"""
    called = taken.facts["called"]
    if taken.kind == "call":
        name = text_of(called.func).rpartition(".")[2]
        if not words.acquires(name):
            return False
        kinds = {
            e.kind for e in judge.whole(taken.facts["helper"]) if e.lockish or e.kind == "flock"
        }
        lock = judge.named_lock(taken.facts["helper"])
        return bool(kinds & {"create", "flock", "redis_lock"}) or (lock and "write" in kinds)
    if taken.kind != "acquire":
        return False
    return made_by(judge, function, called.func) in OUTSIDE


def between(judge: Judge, function: Function, taken: Event, given: Event) -> bool:
    """Is anything called in between that may raise?"""
    quiet = ("print", "len", "str", "int", "time.time", "time.monotonic")
    for event in judge.own(function):
        if (taken.line, 0) < (event.line, 0) < (given.line, 0):
            name = event.facts.get("name", "")
            if name not in quiet and name.rpartition(".")[2] not in CALM:
                return True
    return False


def undone(frame: Frame) -> bool:
    """A `try` whose handler of everything does something about it."""
    if (frame.kind, frame.part) != ("try", "body"):
        return False
    handlers = frame.node.handlers
    return any(names_of(h) & {"BaseException", "Exception"} and calls_of(h.body) for h in handlers)


def dies_with_frame(function: Function, lock: Event) -> bool:
    """A file that only this generator knows is closed with it, and its lock ends."""
    handle = lock.facts.get("handle_expr")
    if isinstance(handle, ast.Call) and isinstance(handle.func, ast.Attribute):
        handle = handle.func.value
    if not (isinstance(handle, ast.Name) and handle.id in function.assigned):
        return False
    value = function.only_value(handle.id)
    number = isinstance(value, ast.Call) and function.module.dotted(value.func) == "os.open"
    return not number  # a number is closed by nobody


def yield_outside_try(judge: Judge, function: Function) -> Iterator[Hit]:
    """A context manager whose block may raise at `yield`, and then nothing is released."""
    own = judge.whole(function)
    for stmt, frames in function.walked:
        if not (isinstance(stmt, ast.Expr | ast.Assign) and isinstance(stmt.value, ast.Yield)):
            continue
        if any(f.kind == "try" and f.part == "body" and f.node.finalbody for f in frames):
            continue
        if any(f.kind == "with" or undone(f) for f in frames):
            continue
        after = [
            e
            for e in own
            if e.line > stmt.lineno
            and not any(f.part == "handler" for f in e.frames)
            and (
                e.kind in ("unlock", "release", "script")
                or (e.kind in ("unlink", "redis_delete") and e.lockish)
            )
        ]
        before = [
            e
            for e in own
            if e.line < stmt.lineno
            and (
                e.kind in ("acquire", "redis_lock")
                or (e.kind == "flock" and not dies_with_frame(function, e))
                or (e.kind in ("create", "write") and e.lockish)
            )
        ]
        if after and before:
            yield Hit(
                function,
                stmt,
                f"an error in the block is raised at this `yield`, and the release on line"
                f" {after[0].line} never runs: the lock stays until the process ends, or for ever",
                (there(before[0], "acquired here"), there(after[0], "released here")),
            )
            return


# --- LH111 --------------------------------------------------------------------------------------


def only_at_exit(judge: Judge) -> Iterator[Hit]:
    """LH111."""
    registered: dict[str, Event] = {}
    for event in judge.everything():
        if event.kind in ("at_exit", "at_signal") and event.expr is not None:
            for node in ast.walk(event.expr):
                if isinstance(node, ast.Name | ast.Attribute) and text_of(node):
                    registered.setdefault(text_of(node).rpartition(".")[2], event)
    if not registered and "__del__" not in judge.module.text:
        return
    for function in judge.functions:
        for made in judge.own(function):
            alone = made.kind == "create" and made.facts.get("exclusive")
            if not made.lockish or not (alone or made.kind == "write"):
                continue
            if not alone and not any(
                e.kind == "exists" and e.key == made.key for e in judge.own(function)
            ):
                continue
            unit = judge.unit(function)
            if any(e.kind in ("alive", "age", "flock", "touch") for e in unit):
                continue
            gone = [e for e in unit if e.kind == "unlink" and (e.key == made.key or e.lockish)]
            inline = [e for e in registered.values() if e.where is function]
            late = [e for e in gone if e.where.name == "__del__" or e.where.name in registered]
            direct = [
                e
                for e in inline
                if "remove" in ast.dump(e.facts["called"].node)
                or "unlink" in ast.dump(e.facts["called"].node)
            ]
            if (gone and len(late) == len(gone)) or (not gone and direct):
                end = (late or direct)[0]
                yield at(
                    made,
                    f"`{made.name}` is removed by an exit handler alone: SIGKILL, the OOM killer,"
                    " os._exit and a power cut run none, and the lock stays",
                    there(end, "removed here"),
                )
                break
