"""How a lock ends: removed though it is another's, kept after an error, never really held."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from .. import words
from ..events import PARAMETER, compares_inode
from ..judge import calls_of, exits, is_constant, names_of, returned
from ..libraries import OUTSIDE, made_by
from ..model import calls_in, leaves, nodes, text_of
from ..rule import Hit, at, there
from .create import OWN_NAME, on_windows
from .stale import judgement, suppressed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..events import Event
    from ..judge import Judge
    from ..model import Frame, Function

STRICT = frozenset("release unlock exit cleanup free teardown del stop".split())
CALM = frozenset(
    "info debug warning warn error exception log print critical write echo secho notice".split()
)


def removes_flocked(judge: Judge) -> Iterator[Hit]:
    """LH108."""
    if compares_inode(judge.module):
        return
    for function in judge.functions:
        flocked = judge.flocked(function)
        for event in judge.whole(function) if flocked else ():
            if event.via is not None and not told_of_caller(judge, event):
                continue
            if event.kind != "unlink" or event.key not in flocked or on_windows(event):
                continue
            lock = flocked[event.key]
            same = lock.where is function or "⟨" not in event.key  # each has parameters of its own
            of_library = same and lock.kind == "library_lock"
            if not (event.lockish or judge.named_lock(function) or of_library):
                continue  # data that is locked itself: LH114
            judged = judgement(judge, function, event)
            if before_lock(judge, function, event) or (judged and judged.kind in ("alive", "age")):
                continue  # LH106 has it
            yield at(
                event,
                f"`{event.name}` is locked on line {lock.line} and unlinked here: who waits on the"
                " old file gets its lock while the next one locks a new file of the same name;"
                " both hold the lock",
                there(lock, "locked here"),
            )
            break


def told_of_caller(judge: Judge, event: Event) -> bool:
    """A removal in a helper that knows nothing of locks belongs to who calls it."""
    inner = event.facts["inside"]
    helper = event.via
    if helper is None or inner.via is not None:
        return False
    if PARAMETER.fullmatch(inner.key) and not judge.has_flock(judge.whole(helper)):
        return True  # it removes what it is handed
    if inner.lockish or judge.named_lock(helper):
        return False
    return not judge.has_flock(judge.own(helper)) and not words.speaks_of_lock(inner.key)


def before_lock(judge: Judge, function: Function, act: Event) -> bool:
    """Removed ahead of the lock in the same function: that is a stale break (LH106)."""
    seen = False
    for event in judge.whole(function):
        if event is act:
            seen = True
        if event.kind == "flock" and not seen:
            return False
        if event.kind == "flock" and seen and event.where is function:
            return not any(f.kind == "try" and f.part in ("finally", "handler") for f in act.frames)
    return False


def unowned_unlink(judge: Judge) -> Iterator[Hit]:
    """LH109."""
    for function in judge.functions:
        if words.breaks(function.name):
            continue
        if words.releases(function.name):
            yield from _unowned_release(judge, function)
        else:
            yield from _unowned_finally(judge, function)


def _unowned_release(judge: Judge, function: Function) -> Iterator[Hit]:
    if compares_inode(judge.module):
        return
    own_lock = function.within is not None and words.speaks_of_lock(function.within.name)
    if not own_lock and not set(words.pieces(function.name)) & STRICT:
        return
    flocked = judge.flocked(function)
    for event in judge.whole(function):
        if event.kind != "unlink" or not event.lockish or OWN_NAME.search(event.key):
            continue
        if not is_release(judge, function, event) or judge.mine(event):
            continue
        if judge.under_lock(event) and judge.tests(event):
            continue  # asked and removed under one lock
        if event.via is not None:
            if not guarded_by_look(judge, function, event):
                continue
        elif function.name == "__exit__" and not guarded_by_look(judge, function, event):
            if event.key in flocked or not shared_release(judge, function, event):
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


def left_by_error(judge: Judge, function: Function) -> Iterator[Hit]:
    """A lock file that is made, worked under, and removed by a plain statement behind the work."""
    own = judge.own(function)
    for made in own:
        if made.kind not in ("create", "write", "ensure") or not made.lockish:
            continue
        if made.kind == "ensure" and not any(e.kind == "unlink" and e.key == made.key for e in own):
            continue
        gone = [e for e in own if e.kind in ("unlink", "late_unlink") and e.key == made.key]
        if made.key in judge.flocked(function) or not_behind(made):
            continue
        if any(e.kind == "late_unlink" or judge.in_finally(e) for e in gone):
            continue
        if any(f.kind == "try" and f.part == "handler" for e in gone for f in e.frames):
            continue  # an error was thought of
        held = tuple(f for f in made.frames if (f.kind, f.part) != ("try", "body"))
        plain = [e for e in gone if e.line > made.line and e.frames[: len(held)] == held]
        if plain and works_between(judge, function, made, plain[-1]):
            yield at(
                plain[-1],
                f"`{made.name}` is made on line {made.line} and removed here only if nothing in"
                " between raises: after an error the lock stays",
                there(made, "made here"),
            )
            return


def not_behind(made: Event) -> bool:
    """Does what follows run without the lock too: it was refused, or the function has returned?"""
    tried = [f.node for f in made.frames if (f.kind, f.part) == ("try", "body")]
    return any(exits(t.body) or not all(exits(h.body) for h in t.handlers) for t in tried)


HARMLESS = frozenset(
    "close write open fdopen str getpid print flush exists sleep time ctime now exit join info"
    " debug warning error echo getcwd encode format isoformat gethostname fsync with_suffix stderr"
    " touch read strip int".split()
)


def works_between(judge: Judge, function: Function, made: Event, gone: Event) -> bool:
    """Is anything done under the lock that may raise, beside writing down who holds it?"""
    return any(
        made.line < event.line < gone.line
        and event.kind in ("other", "call")
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
    for function in judge.functions:
        for made in judge.own(function):
            alone = made.kind == "create" and made.facts.get("exclusive")
            if not made.lockish or not (alone or made.kind == "write"):
                continue
            if not alone and not any(e.kind == "exists" and e.key == made.key
                                     for e in judge.whole(function)):  # fmt: skip
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


# --- LH112 --------------------------------------------------------------------------------------


def ignored_result(judge: Judge) -> Iterator[Hit]:
    """LH112."""
    for function in judge.functions:
        yield from dropped_answers(judge, function)
        yield from fails_open(judge, function)
        yield from goes_on_without(judge, function)
        yield from goes_on_unlocked(judge, function)


def dropped_answers(judge: Judge, function: Function) -> Iterator[Hit]:
    if asks(function):
        return
    for event in judge.own(function):
        stmt = event.facts.get("statement")
        if not isinstance(stmt, ast.Expr):
            continue
        value = stmt.value.value if isinstance(stmt.value, ast.Await) else stmt.value
        if value is not event.site:
            continue
        if event.kind == "call" and answers_in_truth(judge, event.facts["helper"]):
            if waits_by_default(event) or raises_instead(event):
                continue
            name = text_of(event.facts["called"].func)
            yield at(
                event,
                f"`{name}()` answers False when the lock is held by another, and nobody looks: the"
                " work goes on without the lock",
            )
        elif event.kind in ("redis_lock", "take") and work_unasked(judge, function, event):
            yield at(
                event,
                f"whether `{event.name}` was taken is not looked at: the work goes on without the"
                " lock",
            )
        elif event.kind == "acquire" and may_refuse(judge, function, event):
            if taken_again(judge, function, event):
                continue
            yield at(
                event,
                f"`{event.name}.acquire` may answer False, and nobody looks: the work goes on"
                " without the lock",
            )
    yield from tied_to_none(judge, function)


def work_unasked(judge: Judge, function: Function, event: Event) -> bool:
    """Is the lock's key set where nobody holds it, and then work done, whoever holds it?"""
    if not event.lockish or judge.handled_by(event) or words.releases(function.name):
        return False
    own = [e for e in judge.own(function) if e.line > event.line]
    if event.kind == "take" and event.facts["called"].func.attr not in ("put", "put_if_not_exists"):
        return False  # a refusal raises
    if any(e.kind in ("redis_get", "key_exists", "redis_expire") for e in own):
        return False
    return any(e.kind in ("other", "call") for e in own)


def tied_to_none(judge: Judge, function: Function) -> Iterator[Hit]:
    """`__enter__` that keeps the answer and returns all the same."""
    if function.name not in ("__enter__", "__aenter__"):
        return
    for event in judge.own(function):
        stmt = event.facts.get("statement")
        if event.kind != "acquire" or not isinstance(stmt, ast.Assign):
            continue
        if not isinstance(stmt.targets[0], ast.Name) or made_by(
            judge, function, event.facts["called"].func
        ) not in ("redis", "threading", "multiprocessing", "asyncio"):
            continue
        name = stmt.targets[0].id
        tested = [
            n
            for s, _ in function.walked
            if isinstance(s, ast.If | ast.While | ast.Assert | ast.Return)
            for n in nodes(s.test if not isinstance(s, ast.Return) else s)
            if isinstance(n, ast.Name) and n.id == name
        ]
        if not tested:
            yield at(
                event,
                f"`{name}` is False when the lock is held by another, and {function.title} returns"
                " all the same: the block runs without the lock",
            )


def raises_instead(call: Event) -> bool:
    """`acquire(raise_if_fail=True)` does not answer False."""
    given = call.facts["called"].keywords
    return any(re.search("rais|fail|strict", k) and is_constant(v, True) for k, v in given.items())


def taken_again(judge: Judge, function: Function, event: Event) -> bool:
    """A lock between threads that is armed so, and waited for right behind."""
    return any(
        e.kind == "acquire" and e.key == event.key and e.line > event.line
        for e in judge.own(function)
    )


def waits_by_default(call: Event) -> bool:
    """`acquire(blocking=True, timeout=None)` called without a bound answers True alone."""
    helper, called = call.facts["helper"], call.facts["called"]
    bounds = {"blocking", "timeout", "wait", "block"} & set(helper.parameters)
    if not bounds or called.args or bounds & set(called.keywords):
        return False
    given = [helper.defaults.get(name) for name in bounds]
    return all(
        (isinstance(v, ast.Constant) and v.value in (None, True)) or isinstance(v, ast.UnaryOp)
        for v in given
    )


def answers_in_truth(judge: Judge, helper: Function) -> bool:
    """Does this helper acquire, and say by True and False whether it did?"""
    if not words.acquires(helper.name):
        return False
    answers = [v for v in returned(helper.body) if v is not None]
    no = [
        v
        for v in returned(helper.body)
        if is_constant(v, False) or v is None or is_constant(v, None)
    ]
    if not answers or not (any(is_constant(v, True) for v in answers) or _bools(answers)) or not no:
        return False
    kinds = {e.kind for e in judge.whole(helper)}
    return bool(kinds & {"create", "flock", "redis_lock", "acquire"})


def _bools(answers: list[ast.expr]) -> bool:
    return any(isinstance(v, ast.Call) and text_of(v.func) == "bool" for v in answers)


def may_refuse(judge: Judge, function: Function, event: Event) -> bool:
    """An acquire with a bound, of a kind that answers by False and does not raise."""
    called = event.facts["called"]
    maker = made_by(judge, function, called.func)
    if maker not in ("redis", "threading", "multiprocessing"):
        return False
    given = {*called.keywords}
    if maker == "redis":
        created = _created(judge, function, called.func)
        bound = created and {"blocking_timeout", "blocking"} & set(created)
        return bool(given & {"blocking_timeout", "blocking"} or bound or called.args)
    nonblocking = is_constant(called.keywords.get("blocking"), False)
    return "timeout" in given or nonblocking or bool(called.args)


def _created(judge: Judge, function: Function, func: ast.expr) -> dict[str, ast.expr] | None:
    owner = func.value if isinstance(func, ast.Attribute) else None
    name = text_of(owner)
    for event in judge.everything():
        if event.kind == "make_lock":
            stmt = event.facts["statement"]
            if isinstance(stmt, ast.Assign) and any(text_of(t) == name for t in stmt.targets):
                bound: dict[str, ast.expr] = event.facts["bound"]
                return bound
    return None


def fails_open(judge: Judge, function: Function) -> Iterator[Hit]:
    """`except Exception: return True` around an acquire."""
    if asks(function) or not any(
        e.kind in ("redis_lock", "flock", "create") for e in judge.own(function)
    ):
        return  # of a question True means that another holds it
    answers = [v for v in returned(function.body) if v is not None]
    if not any(is_constant(v, False) for v in answers) and not _bools(answers):
        return
    for event in judge.own(function):
        if event.kind not in ("redis_lock", "flock", "create") or (
            event.kind == "create" and not event.lockish
        ):
            continue
        for handler in judge.handled_by(event):
            for answer in returned(handler.body):
                if is_constant(answer, True) and not retried(handler):
                    yield Hit(
                        function,
                        handler,
                        f"{function.title} answers True when the attempt on line {event.line}"
                        " failed: the caller works without the lock",
                        (there(event, "attempted here"),),
                    )
                    return


def asks(function: Function) -> bool:
    """Is this a question by its name, and no acquire?"""
    first = words.pieces(function.name)[:1]
    return (bool(first) and first[0] in ("is", "has", "check", "probe", "can", "test")) or (
        "missing" in words.pieces(function.name)
    )


def retried(handler: ast.ExceptHandler) -> bool:
    """Does the handler look closer before it answers?"""
    return any(isinstance(stmt, ast.If | ast.Try | ast.For | ast.While) for stmt in handler.body)


def goes_on_without(judge: Judge, function: Function) -> Iterator[Hit]:
    """A refused lock is logged, and the work goes on."""
    if words.releases(function.name):
        return
    for event in judge.own(function):
        if not may_be_refused(judge, function, event) or judge.loops(event):
            continue
        shrugged = suppressed(judge, event, REFUSED if event.kind == "flock" else TIMEOUTS)
        if shrugged and event.kind == "create":
            shrugged = None
        stmt = event.facts.get("statement")
        if shrugged and shrugged.body[-1] is stmt and runs_behind(function, shrugged):
            yield Hit(
                function,
                event.site,
                f"a refusal is suppressed on line {shrugged.lineno}, and the work goes on without"
                " the lock",
                (there(event, "refused here"),),
            )
            return
        for handler in judge.handled_by(event):
            if not refused(judge, function, event, handler):
                continue
            told = event.kind != "create" or any(calls_of([s]) for s in handler.body)
            if told and only_logs(handler.body) and work_follows(function, handler, event):
                yield Hit(
                    function,
                    handler,
                    f"the lock was refused on line {event.line}; this is logged, and the work goes"
                    " on without it",
                    (there(event, "refused here"),),
                )
                return


def may_be_refused(judge: Judge, function: Function, event: Event) -> bool:
    """An attempt that raises where the lock is another's."""
    if event.kind == "flock":
        return bool(event.facts["nonblocking"]) and not event.facts["windows"]
    if event.kind == "create":
        made = event.lockish and bool(event.facts.get("exclusive"))
        return made and not judge.has_flock(judge.whole(function))
    return event.kind == "acquire"


def goes_on_unlocked(judge: Judge, function: Function) -> Iterator[Hit]:
    """`if not lock.acquire(...): log(...)`, and the work is done all the same."""
    if asks(function) or words.releases(function.name):
        return
    tried = [e for e in judge.own(function) if answers_by_truth(judge, function, e)]
    for stmt, frames in function.walked if tried else ():
        if not isinstance(stmt, ast.If) or stmt.orelse or not only_logs(stmt.body):
            continue
        if not calls_of(stmt.body) or any(f.kind == "while" for f in frames):
            continue
        event = next((e for e in tried if refusal(judge, function, stmt.test, e)), None)
        if event is None or guarded_by_answer(function, stmt) or not runs_behind(function, stmt):
            continue
        yield at(
            event,
            f"a refusal is logged on line {stmt.body[0].lineno}, and the work goes on without the"
            " lock",
            there(event, "refused here"),
        )
        return


def answers_by_truth(judge: Judge, function: Function, event: Event) -> bool:
    if event.kind == "call":
        return answers_in_truth(judge, event.facts["helper"])
    if event.kind == "acquire":
        return made_by(judge, function, event.facts["called"].func) in OUTSIDE
    return event.kind in ("redis_lock", "take") and event.lockish


def refusal(judge: Judge, function: Function, test: ast.expr, event: Event) -> bool:
    """Is this test true where the attempt was refused: `not got`, `got is None`?"""
    plain: ast.expr | None = None
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        plain = test.operand
    elif isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Is | ast.Eq):
        plain = test.left if is_constant(test.comparators[0], None, False) else None
    if isinstance(plain, ast.Name):
        plain = function.only_value(plain.id)
    if isinstance(plain, ast.NamedExpr | ast.Await):
        plain = plain.value
    plain = plain.value if isinstance(plain, ast.Await) else plain
    return plain is event.site


def guarded_by_answer(function: Function, told: ast.If) -> bool:
    """Is the answer asked a second time, before the work?"""
    names = {n.id for n in nodes(told.test) if isinstance(n, ast.Name)}
    for stmt, _frames in function.walked:
        if isinstance(stmt, ast.If | ast.While | ast.Return | ast.Assert) and stmt is not told:
            asked = stmt.value if isinstance(stmt, ast.Return) else stmt.test
            held = {n.id for n in nodes(asked) if isinstance(n, ast.Name)} if asked else set()
            if held & names and not (isinstance(stmt, ast.If) and only_frees(stmt.body)):
                return True
    return False


def only_frees(block: list[ast.stmt]) -> bool:
    """A block that gives the lock back, and does no more."""
    names = [text_of(call.func).rpartition(".")[2] for call in calls_of(block)]
    return bool(names) and all(map(words.releases, names))


TIMEOUTS = frozenset(
    "Timeout filelock.Timeout LockException portalocker.LockException AlreadyLocked LockError"
    " TimeoutError Exception BaseException".split()
)
REFUSED = frozenset("OSError IOError BlockingIOError Exception BaseException".split())
# What a library raises when the lock is held by another.
HELD_ELSEWHERE = re.compile(
    r"(^|\.)(Timeout|TimeoutError|LockException|AlreadyLocked|LockError|LockTimeout|LockFailed"
    r"|LockNotAcquired\w*|NotAcquired|WouldBlock|Exception|BaseException)$"
)


def refused(judge: Judge, function: Function, event: Event, handler: ast.ExceptHandler) -> bool:
    """Does this handler catch that the lock is another's?"""
    kinds = names_of(handler)
    if event.kind == "acquire":
        library = made_by(judge, function, event.facts["called"].func) in OUTSIDE
        return library and any(map(HELD_ELSEWHERE.search, kinds))
    if event.kind == "create":
        return bool(kinds & (REFUSED | {"FileExistsError"}))
    return bool(kinds & REFUSED) or any(map(HELD_ELSEWHERE.search, kinds))


def runs_behind(function: Function, block: ast.stmt) -> bool:
    """Does anything run behind this statement?"""
    end = block.end_lineno or 0
    return any(s.lineno > end and not leaves([s]) and calls_in(s) for s, _ in function.walked)


def only_logs(body: list[ast.stmt]) -> bool:
    for stmt in body:
        if isinstance(stmt, ast.Pass):
            continue
        if isinstance(stmt, ast.Expr) and isinstance(stmt.value, ast.Constant):
            continue
        if not (isinstance(stmt, ast.Expr) and isinstance(stmt.value, ast.Call)):
            return False
        if text_of(stmt.value.func).rpartition(".")[2] not in CALM:
            return False
    return True


def work_follows(function: Function, handler: ast.ExceptHandler, event: Event) -> bool:
    """Does anything run behind the `try`?"""
    end = max(getattr(f.node, "end_lineno", 0) for f in event.frames if f.kind == "try")
    inner = [f for f in event.frames if f.kind == "try" and handler in f.node.handlers]
    tried = inner[-1].node
    if getattr(tried, "orelse", []):
        return False
    last = max(getattr(tried, "end_lineno", 0), 0)
    return any(
        stmt.lineno > last and not leaves([stmt]) and calls_in(stmt) and stmt.lineno <= end + 400
        for stmt, _ in function.walked
    )
