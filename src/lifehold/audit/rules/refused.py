"""A refusal that nobody looks at: the lock is another's, and the work goes on without it. LH112."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from .. import words
from ..blocks import calls_of, is_constant, names_of, returned
from ..libraries import OUTSIDE, made_by
from ..model import calls_in, leaves, maker_of, nodes, text_of
from ..rule import Hit, at, there
from .stale import suppressed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..events import Event
    from ..judge import Judge
    from ..model import Function

CALM = frozenset(
    "info debug warning warn error exception log print critical write echo secho notice".split()
)


def ignored_result(judge: Judge) -> Iterator[Hit]:
    """LH112."""
    for function in judge.functions:
        yield from dropped_answers(judge, function)
        yield from fails_open(judge, function)
        yield from goes_on_without(judge, function)
        yield from goes_on_unlocked(judge, function)
        yield from works_with_none(judge, function)


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
    if not words.acquires(helper.name) and not tries_handle(judge, helper):
        return False
    finals = [e for e in judge.own(helper) if judge.in_finally(e)]
    if any(not str(e.facts.get("name", "")).endswith("close") for e in finals):
        return False  # it works under the lock itself
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


def tries_handle(judge: Judge, helper: Function) -> bool:
    """Does it lock what it is handed, again and again, and say whether it did?"""
    if asks(helper):
        return False
    handed = [
        e
        for e in judge.own(helper)
        if e.kind == "flock" and e.facts["nonblocking"] and e.key.strip("⟨⟩") in helper.parameters
    ]
    return bool(handed)


def _bools(answers: list[ast.expr]) -> bool:
    return any(isinstance(v, ast.Call) and text_of(v.func) == "bool" for v in answers)


def may_refuse(judge: Judge, function: Function, event: Event) -> bool:
    """An acquire with a bound, of a kind that answers by False and does not raise."""
    called = event.facts["called"]
    maker = made_by(judge, function, called.func)
    if maker not in ("redis", "threading", "multiprocessing", "fasteners", "etcd3"):
        return False
    given = {*called.keywords}
    if maker == "redis":
        created = _created(judge, function, called.func)
        made = maker_of(function, called.func.value) if created is None else None
        created = {k.arg: k.value for k in made.keywords if k.arg} if made else created
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
    always = len(answers) > 1 and all(is_constant(v, True) for v in answers)
    if not any(is_constant(v, False) for v in answers) and not _bools(answers) and not always:
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
            enters = function.name in ("__enter__", "__aenter__")
            if (
                told
                and only_logs(handler.body)
                and (enters or work_follows(function, handler, event))
            ):
                yield Hit(
                    function,
                    handler,
                    f"the lock was refused on line {event.line}; this is logged, and the work goes"
                    " on without it",
                    (there(event, "refused here"),),
                )
                return


def works_with_none(judge: Judge, function: Function) -> Iterator[Hit]:
    """`fd = lock(path)`, which logs a refusal and answers None, and nobody asks before the work."""
    for event in judge.own(function):
        helper, stmt = event.facts.get("helper"), event.facts.get("statement")
        if helper is None or not isinstance(stmt, ast.Assign) or stmt.value is not event.site:
            continue
        name = text_of(stmt.targets[0])
        if not name or not refuses_by_none(judge, helper):
            continue
        asked = [
            s
            for s, frames in function.walked
            if isinstance(s, ast.If | ast.While | ast.Assert)
            and not any(f.part == "finally" for f in frames)
            and any(isinstance(n, ast.Name) and n.id == name for n in nodes(s.test))
        ]
        if not asked and runs_behind(function, stmt):
            yield at(
                event,
                f"`{name}` is None when the lock is another's, and nobody asks before the work",
            )
            return


def refuses_by_none(judge: Judge, helper: Function) -> bool:
    """Does it answer with a handle, and with None where the lock is refused?"""
    for event in judge.own(helper):
        if event.kind != "flock" or not event.facts["nonblocking"]:
            continue
        for handler in judge.handled_by(event):
            answers = returned(handler.body)
            others = [v for v in returned(helper.body) if v not in answers]
            if answers and all(v is None or is_constant(v, None) for v in answers):
                return bool(others) and all(isinstance(v, ast.Name) for v in others)
    return False


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
    if asks(function) or set(words.pieces(function.name)) & {"release", "unlock", "free", "exit"}:
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
    return any(
        s.lineno > end and (not leaves([s]) or isinstance(s, ast.Return)) and calls_in(s)
        for s, _ in function.walked
    )


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
