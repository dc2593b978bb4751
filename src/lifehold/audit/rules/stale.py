"""How a lock is taken for stale: by a number, by an error, by its age, and removed by its name."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from .. import words
from ..blocks import exits, is_constant, names_of, returned
from ..events import compares_inode, compares_start
from ..judge import BROAD
from ..model import calls_in, leaves, nodes, text_of
from ..rule import Hit, at, there
from .create import ages, on_windows, own_child

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..events import Event
    from ..judge import Judge
    from ..model import Function

HEARTBEATS = ("heartbeat", "keepalive", "keep_alive", "renew", "refresh", "touch_lock")


def asks_by_number(judge: Judge) -> Iterator[Hit]:
    """LH104."""
    if compares_start(judge.module) or only_shows(judge):
        return
    for function in judge.functions:
        told = False
        for event in judge.own(function):
            loop = event.kind == "signal" and any(
                not own_child(each, event) for each in judge.loops(event)
            )
            if event.kind != "alive" and not loop:
                continue
            if told or not pid_of_lock(judge, function, event):
                continue
            told = True
            yield at(
                event,
                f"`{event.name}` is only a number: after a reboot, in another container or once the"
                " number is given out again it names another process, and the lock looks held"
                " for ever, or free while it is held",
            )
        if told:
            continue
        for act in removals(judge, function):
            judged = judgement(judge, function, act)
            if judged is not None and judged.kind == "alive" and judged.via is not None:
                yield at(
                    judged,
                    "whether the holder lives is asked by its number alone: the number may belong"
                    " to another process by now, or to none that this container can see",
                    there(act, "the lock is removed here"),
                )
                break


def only_shows(judge: Judge) -> bool:
    """Does this module decide nothing by it: makes, removes, signals and ends nothing?"""
    acts = {"create", "write", "unlink", "late_unlink", "signal", "ensure", "fork"}
    if acts & judge.kinds or "exit" in judge.module.text:
        return False
    return any(isinstance(n, ast.Yield) for f in judge.functions for s in f.body for n in nodes(s))


def pid_of_lock(judge: Judge, function: Function, event: Event) -> bool:
    """Does the number come out of a lock file, or is it asked about for one?"""
    if event.expr is not None and not a_holder(function, event.expr):
        return False
    if judge.at_lock(function):
        return True
    texts = function.texts(event.expr) if event.expr is not None else []
    if any(words.speaks_of_lock(text) for text in texts):
        return True
    return any(e.kind == "read" and e.lockish for e in judge.whole(function))


RELATIVE = re.compile(r"(^|_|\b)(parent|ppid|getppid)(_|\b|pid)", re.IGNORECASE)


def a_holder(function: Function, number: ast.expr) -> bool:
    """No: the number of a parent, and one that is only tried out: `for pid in (4194303, 99999)`."""
    if RELATIVE.search(text_of(number)):
        return False
    if not isinstance(number, ast.Name):
        return True
    for stmt, _frames in function.walked:
        if isinstance(stmt, ast.For) and text_of(stmt.target) == number.id:
            tried = stmt.iter
            if isinstance(tried, ast.Call) and text_of(tried.func) == "range":
                return False
            if isinstance(tried, ast.Tuple | ast.List):
                return not all(isinstance(each, ast.Constant) for each in tried.elts)
    return not any(
        isinstance(value, ast.BinOp) and any(map(_own_number, nodes(value)))
        for value in function.values(number.id)
    )


def _own_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and text_of(node.func) == "os.getpid"


def not_allowed_is_dead(judge: Judge) -> Iterator[Hit]:
    """LH105."""
    yield from denied_is_dead(judge)
    for function in judge.functions:
        for event in judge.own(function):
            if event.kind != "alive" or not event.facts.get("kill"):
                continue
            if signalled(judge, function, event):
                continue
            handler = misjudging(judge, event)
            quiet = suppressed(judge, event, BROAD) if handler is None else None
            if quiet is not None and says_alive_within(quiet):
                if pid_of_lock(judge, function, event):
                    yield at(
                        event,
                        f"kill({event.name}, 0) of another user's live process fails with EPERM:"
                        f" what line {quiet.lineno} suppresses takes that process for dead",
                    )
                continue
            if handler is None or not pid_of_lock(judge, function, event):
                continue
            what = " or ".join(sorted(names_of(handler)))
            yield Hit(
                function,
                handler,
                f"kill({event.name}, 0) of another user's live process fails with EPERM: `except"
                f" {what}` takes that process for dead",
                (there(event, "asked here"),),
            )


DENIED = frozenset("psutil.Error psutil.AccessDenied Error AccessDenied".split())


def denied_is_dead(judge: Judge) -> Iterator[Hit]:
    """`except psutil.Error: return True` of a question whether a process is gone."""
    for function in judge.functions if "psutil" in judge.module.text else ():
        for event in judge.own(function):
            if event.facts.get("name") != "psutil.Process" or not judge.at_lock(function):
                continue
            for handler in judge.handled_by(event):
                denied = names_of(handler) & DENIED
                if denied and says_dead(judge, event, handler):
                    yield Hit(
                        function,
                        handler,
                        f"psutil may not look at another user's process: `except"
                        f" {min(denied)}` takes that process for dead",
                        (there(event, "asked here"),),
                    )
                    return


def signalled(judge: Judge, function: Function, event: Event) -> bool:
    """Did a signal reach that process before? Then this one is permitted, too."""
    for each in judge.own(function):
        if each is event:
            return False
        around = tuple(f for f in each.frames if (f.kind, f.part) != ("try", "body"))
        if each.kind == "signal" and each.key == event.key:
            if around == event.frames[: len(around)]:
                return True
    return False


def suppressed(
    judge: Judge, event: Event, kinds: frozenset[str]
) -> ast.With | ast.AsyncWith | None:
    """The `with suppress(...)` of one of these kinds that the event stands in."""
    for frame in reversed(event.frames):
        if frame.kind != "with":
            continue
        for item in frame.node.items:
            call = item.context_expr
            if isinstance(call, ast.Call) and judge.module.dotted(call.func).endswith("suppress"):
                if {text_of(each) for each in call.args} & kinds:
                    found: ast.With | ast.AsyncWith = frame.node
                    return found
    return None


def says_alive_within(block: ast.With | ast.AsyncWith) -> bool:
    """`with suppress(OSError): kill(pid, 0); return True`, and something else behind it."""
    inside = [v for v in returned(block.body) if isinstance(v, ast.Constant) and v.value]
    flags = [s for s in block.body if isinstance(s, ast.Assign) and is_constant(s.value, True)]
    return bool(inside or flags)


def misjudging(judge: Judge, event: Event) -> ast.ExceptHandler | None:
    """The handler that takes "not permitted" for "not there"."""
    for handler in judge.handled_by(event):
        kinds = names_of(handler)
        if not kinds & BROAD and "PermissionError" not in kinds:
            continue
        texts = {text_of(n) or getattr(n, "attr", "") for s in handler.body for n in nodes(s)}
        looks = any(
            t.rpartition(".")[2] in ("errno", "ESRCH", "EPERM", "args", "winerror") for t in texts
        )
        if looks:
            return handler if counts_eperm_as_dead(handler) else None
        if says_dead(judge, event, handler):
            return handler
        return None
    return None


def counts_eperm_as_dead(handler: ast.ExceptHandler) -> bool:
    """`if e.errno == ESRCH or e.errno == EPERM: remove`."""
    for stmt in handler.body:
        if isinstance(stmt, ast.If):
            texts = ast.dump(stmt.test)
            if "'EPERM'" in texts and "'ESRCH'" in texts and "NotEq" not in texts:
                return not any(
                    isinstance(v, ast.Constant) and v.value is True and not calls_in(stmt)
                    for v in returned(stmt.body)
                )
    return False


DEAD = re.compile(r"stale|dead|gone|expired|orphan|defunct", re.IGNORECASE)


def says_dead(judge: Judge, event: Event, handler: ast.ExceptHandler) -> bool:
    """Does the handler go on as if there were no such process?"""
    if any(isinstance(n, ast.Raise) for stmt in handler.body for n in nodes(stmt)):
        return False
    answers = returned(handler.body)
    if answers and DEAD.search(event.where.name):
        return all(is_constant(v, True) for v in answers)
    if answers:
        return all(v is None or (isinstance(v, ast.Constant) and not v.value) for v in answers)
    for each in judge.whole(event.where):
        if each.kind in ("unlink", "redis_delete"):
            if any(f.handler is handler for f in each.frames):
                return True
    for stmt in handler.body:
        if isinstance(stmt, ast.Assign) and isinstance(stmt.value, ast.Constant):
            if not stmt.value.value:
                return True
    if all(isinstance(stmt, ast.Pass) for stmt in handler.body):
        leaves_when_alive = [f for f in event.frames if f.kind == "try" and f.part == "body"]
        node = leaves_when_alive[-1].node
        return any(returned(getattr(node, "body", []))) or exits(getattr(node, "orelse", []))
    return False


# --- breaking -----------------------------------------------------------------------------------


def removals(judge: Judge, function: Function) -> list[Event]:
    """Where this function removes a lock file by its path."""
    found = []
    for event in judge.whole(function):
        if event.kind == "unlink" and (event.lockish or judge.named_lock(function)):
            if not words.PACKAGES.search(event.key):
                found.append(event)
    return found


def taken_over(judge: Judge, function: Function) -> list[Event]:
    """Where a lock that this function makes with O_EXCL is written over, as its holder is gone."""
    own = judge.own(function)
    alone = {e.key for e in own if e.kind == "create" and e.facts.get("exclusive") and e.lockish}
    over = [e for e in own if e.kind == "write" and e.key in alone and not e.facts.get("rename")]
    return [e for e in over if any(k.kind == "alive" and k.line < e.line for k in own)]


def judgement(judge: Judge, function: Function, act: Event) -> Event | None:
    """What was found out about the lock before it is removed, and led to the removal."""
    whole = judge.whole(function)
    before: list[Event] = []
    for event in whole:
        if event is act:
            break
        if event.site is not act.site:
            before.append(event)
    looks = [e for e in before if e.kind in ("alive", "age", "read", "stat", "open", "exists")]
    if re.search(r"getpid|token_hex|uuid", act.key):
        return None  # a name of one's own
    order = {"alive": 0, "age": 1, "read": 2, "open": 3, "stat": 4, "exists": 5}
    for look in sorted(looks, key=lambda e: order[e.kind]):
        if look.kind != "alive" and look.key != act.key:
            continue
        if look.kind == "open" and look.facts.get("number"):
            continue
        call = look
        if "inside" in look.facts:
            call = next(e for e in judge.own(function) if e.site is look.site and e.kind == "call")
        if judge.controls(call, act):
            return look
    return None


def removes_by_name(judge: Judge) -> Iterator[Hit]:
    """LH106."""
    if compares_inode(judge.module):
        return  # what was judged is what is removed
    for function in judge.functions:
        forced = words.breaks(function.name)
        whole = judge.whole(function)
        for act in [*removals(judge, function), *taken_over(judge, function)]:
            if on_windows(act) or judge.under_lock(act):
                continue
            if judge.mine_for_release(act) or claimed(judge, function, act):
                continue
            if act.via is not None and not judged_here(judge, function, act):
                continue
            judged = judgement(judge, function, act)
            tried = met_by_create(judge, whole, act)
            if forced and (judged is None or judged.kind not in ("alive", "age")):
                continue  # an operator's verb, and nothing asked
            if judged is not None and judged.kind == "stat":
                sized = sizes_by(judge, function, act) and goes_on(whole, act)
                judged = judged if sized or ages_by(judge, function, act) else None
            if judged is not None and judged.kind in ("exists", "open"):
                judged = judged if goes_on(whole, act) else None
            if judged is None and tried is None and act.kind == "write":
                judged = next(e for e in judge.own(function) if e.kind == "alive")
            if judged is None and tried is None:
                continue
            found = judged or tried
            assert found is not None
            yield at(
                act,
                f"`{act.name}` is judged on line {found.line} and removed here by its name: another"
                " process may have removed it and made its own in between, and that live lock goes",
                there(found, "judged here"),
            )
            break


def ages_by(judge: Judge, function: Function, act: Event) -> bool:
    """Is it the age that leads to the removal?"""
    return any(ages(judge, function, test) for _frame, test in judge.tests(act))


def sizes_by(judge: Judge, function: Function, act: Event) -> bool:
    """Is an empty file taken for stale? Its maker may stand between open and write."""
    says = (judge.says(function, test) for _frame, test in judge.tests(act))
    return any(text.endswith(("getsize", "st_size")) for each in says for text in each)


def judged_here(judge: Judge, function: Function, act: Event) -> bool:
    """A removal inside of a helper is ours only if the judgement is."""
    inner = act.facts.get("inside")
    if inner is None or act.via is None:
        return True
    return judgement(judge, act.via, inner) is None


def goes_on(whole: list[Event], act: Event) -> bool:
    """Is the lock taken in the same function, after it was removed?"""
    after = False
    for event in whole:
        after = after or event is act
        if after and event.kind in ("create", "write", "flock") and event is not act:
            if event.key == act.key or event.kind == "flock":
                return True
    return any(
        e.kind == "create" and e.key == act.key and any(f.kind == "while" for f in e.frames)
        for e in whole
    )


def met_by_create(judge: Judge, whole: list[Event], act: Event) -> Event | None:
    """The exclusive create whose refusal leads to the removal."""
    for event in whole:
        if event.kind == "create" and event.key == act.key and judge.in_handler_of(act, event):
            for frame in act.frames:
                if frame.handler and names_of(frame.handler) & {
                    "FileExistsError",
                    "OSError",
                    "IOError",
                }:
                    return event
    return None


def claimed(judge: Judge, function: Function, act: Event) -> bool:
    """Is the removal made safe by a kernel lock, or by a rename to a name of one's own?"""
    for event in judge.whole(function):
        if event is act:
            return False
        if event.kind == "flock":
            return True
        if event.kind == "write" and event.facts.get("rename"):
            source = event.facts.get("source")
            if source is not None and event.where.key(source) == act.key:
                return True
    return False


def breaks_by_age(judge: Judge) -> Iterator[Hit]:
    """LH107."""
    yield from swept(judge)
    if compares_inode(judge.module) or any(word in judge.module.lower for word in HEARTBEATS):
        return
    for function in judge.functions:
        for event in judge.whole(function):
            if event.kind not in ("unlink", "write") or not event.lockish:
                continue
            if re.search(r"getpid|token_hex|uuid", event.key):
                continue
            if judge.under_lock(event):
                continue
            if event.kind == "write" and not _takes(judge, function, event):
                continue
            if event.via is not None and not _aged_here(judge, function, event):
                continue
            if any(judge.asks_owner(function, test) for _frame, test in judge.tests(event)):
                continue  # a release by its holder
            test = _aged_test(judge, function, event) or _aged_out(judge, function, event)
            if test is None:
                continue
            yield at(
                event,
                f"the age of `{event.name}` decides here, and nothing keeps a held lock young: a"
                " holder that works longer, or a clock that steps, is robbed while it lives",
            )
            break


def swept(judge: Judge) -> Iterator[Hit]:
    """`for each in glob("*.claim"): unlink(each)`, where such files are locks of whoever lives."""
    made = {
        suffix(e.key)
        for e in judge.everything()
        if e.kind == "create" and e.facts.get("exclusive") and not e.facts.get("folder")
    } - {""}
    for function in judge.functions:
        for event in judge.own(function):
            if event.kind != "unlink" or not isinstance(event.expr, ast.Name):
                continue
            listed = function.looped.get(event.expr.id)
            if listed is None or not isinstance(listed, ast.Call):
                continue
            if not text_of(listed.func).endswith("glob") and getattr(
                listed.func, "attr", ""
            ) not in ("glob", "rglob"):
                continue
            ends = {suffix(t) for t in function.texts(listed) if "*" in t}
            named = ends & LOCK_ENDS
            found = (ends & made) | (named if run_at_start(judge, function) else set())
            if found and not judge.tests(event):
                yield at(
                    event,
                    f"every `*{found.pop()}` is removed here, whoever made it: those of"
                    " processes that live, on this host or another, too",
                )
                break


LOCK_ENDS = frozenset(
    ".lock .lck .pid .LOCK .mutex .claim .lease .busy .running .guard .inuse .sentinel".split()
)


def run_at_start(judge: Judge, function: Function) -> bool:
    """Is it called when the program begins, and not by an operator's wish?"""
    return any(
        caller.name in ("", "main", "run", "start", "__init__", "setup", "startup", "boot")
        for caller in judge.callers(function)
    )


def suffix(text: str) -> str:
    """`.claim`, of a path or a pattern."""
    found = re.search(r"\.[A-Za-z]{3,}$", text)
    return found[0] if found else ""


def _aged_out(judge: Judge, function: Function, event: Event) -> ast.expr | None:
    """`if exists(lock): if age < limit: return`, and behind both the lock is written over."""
    if event.kind != "write" or event.where is not function or event.via is not None:
        return None
    looks = [e for e in judge.own(function) if e.kind == "exists" and e.key == event.key]
    for stmt, frames in function.walked:
        if not isinstance(stmt, ast.If) or stmt.lineno > event.line or not leaves(stmt.body):
            continue
        outer = [f.node for f in frames if (f.kind, f.part) == ("if", "then")]
        tests = [each.test for each in outer if isinstance(each, ast.If)]
        seen = any(look.site in nodes(test) for test in tests for look in looks)
        if seen and ages(judge, function, stmt.test):
            return stmt.test
    return None


def _takes(judge: Judge, function: Function, event: Event) -> bool:
    return not judge.has_flock(judge.whole(function)) and not event.facts.get("touch")


def _aged_here(judge: Judge, function: Function, event: Event) -> bool:
    """A break inside of helpers is told where the age is asked, and nowhere above."""
    helper, inner = event.via, event.facts.get("inside")
    while helper is not None and inner is not None:
        if _aged_test(judge, helper, inner) is not None:
            return False
        helper, inner = inner.via, inner.facts.get("inside")
    return True


def _aged_test(judge: Judge, function: Function, event: Event) -> ast.expr | None:
    for frame, test in judge.tests(event):
        if frame.kind == "while" and bounds(test):
            continue
        if judge.where_of(frame, event) is function and ages(judge, function, test):
            return test
    return None


BOUND = re.compile(
    r"(stop|end|finish|give_?up|return|leave|due|wake)\w*_at$|deadline|until", re.IGNORECASE
)


def bounds(test: ast.expr) -> bool:
    """`while monotonic() < stop_at`: the clock ends the loop, and asks nothing of the lock."""
    return isinstance(test, ast.Compare) and any(
        BOUND.search(text_of(side)) for side in (test.left, *test.comparators)
    )
